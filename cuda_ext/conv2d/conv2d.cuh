// What the kernels of the 2D convolution share: what a call is, and what lies outside an image.
#pragma once

#include "../common/copies.cuh"

namespace cuda_ext::conv2d {

constexpr int largest_filter = 31;

enum class Padding : int { zeros, reflect, replicate };

// Where the padded image takes row (or column) `i` of `n` from; -1 where it is zero. If the padding reflects, `i` is
// less than `n` outside.
__host__ __device__ inline int source(int i, int n, Padding padding) {
  if (i >= 0 && i < n) return i;
  if (padding == Padding::zeros) return -1;
  if (padding == Padding::replicate) return i < 0 ? 0 : n - 1;
  return i < 0 ? -i : 2 * n - 2 - i;
}

// One call: `images` pictures of height x width, contiguous, and a filter of size x size.
template <typename T>
struct Call {
  const T* images;
  const T* weight;
  T* results;
  int64_t count;
  int height, width, size;
  Padding padding;
  int device;
  cudaStream_t stream;
};

// The best kernel for small filters, in conv2d_register*.cu; for float, half and bfloat16.
template <typename T>
void launch_register(const Call<T>& call);

// On the matrix units, in conv2d_matrix*.cu; for half and bfloat16 and filters of 5 to 17.
template <typename T>
void launch_matrix(const Call<T>& call);

// By Fourier transforms, in conv2d_fft.cu; `spectrum` is room for so many numbers.
constexpr int64_t most_of_a_spectrum = 2 * 128 * 128;
template <typename T>
void launch_fft(const Call<T>& call, float* spectrum);

}  // namespace cuda_ext::conv2d
