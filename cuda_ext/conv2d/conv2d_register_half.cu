// The fastest 2D convolution, for half.

#include "conv2d_register.cuh"

namespace cuda_ext::conv2d {

template <>
void launch_register<__half>(const Call<__half>& call) {
  launch_any_size(call);
}

}  // namespace cuda_ext::conv2d
