// 2D convolution on the matrix units, for half.

#include "conv2d_matrix.cuh"

namespace cuda_ext::conv2d {

template <>
void launch_matrix<__half>(const Call<__half>& call) {
  launch_matrix_of(call);
}

}  // namespace cuda_ext::conv2d
