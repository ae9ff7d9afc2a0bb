// The fastest 2D convolution, for float.

#include "conv2d_register.cuh"

namespace cuda_ext::conv2d {

template <>
void launch_register<float>(const Call<float>& call) {
  launch_any_size(call);
}

}  // namespace cuda_ext::conv2d
