// 2D convolution on the matrix units, for bfloat16.

#include "conv2d_matrix.cuh"

namespace cuda_ext::conv2d {

template <>
void launch_matrix<__nv_bfloat16>(const Call<__nv_bfloat16>& call) {
  launch_matrix_of(call);
}

}  // namespace cuda_ext::conv2d
