// The fastest 2D convolution, for bfloat16.

#include "conv2d_register.cuh"

namespace cuda_ext::conv2d {

template <>
void launch_register<__nv_bfloat16>(const Call<__nv_bfloat16>& call) {
  launch_any_size(call);
}

}  // namespace cuda_ext::conv2d
