// The gradient of a 2D convolution's filter: for each of its k x k taps, the sum over all images of the result's
// gradient times the image, moved by the tap's place. Without atomics, so that equal inputs give equal bits.
//
// A block takes one row of the filter. It walks over pieces of 512 columns of the gradient; each thread holds that
// row's k sums over four columns in registers, and the row of the image comes, padded, through shared memory. What the
// blocks give is added up by a second kernel, in an order that depends on the shape alone.

#include "conv2d.cuh"

#include <algorithm>

namespace cuda_ext::conv2d {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 128;
constexpr int piece = 4 * threads;
constexpr int piece_rows = 64;
constexpr int64_t most_blocks = 2048;

template <typename C>
__device__ inline C sum_of_warp(C value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffff, value, distance);
  return value;
}

// `most` is a bound of the filter's size that is known to the compiler. partials: [gridDim.x, size, size].
template <typename T, int most>
__global__ void __launch_bounds__(threads)
    sum_pieces(const T* __restrict__ images, const T* __restrict__ gradient, float* __restrict__ partials,
               int height, int width, int size, int64_t across, int64_t down, int64_t pieces, Padding padding) {
  constexpr int warps = threads / 32;
  __shared__ float line[piece + most];
  __shared__ float sums_of_warps[warps][most];
  const int i = blockIdx.y;
  const int half = size / 2;
  float sums[most] = {};
  for (int64_t p = blockIdx.x; p < pieces; p += gridDim.x) {
    const int left = static_cast<int>(p % across) * piece;
    const int64_t rest = p / across;
    const int top = static_cast<int>(rest % down) * piece_rows;
    const int64_t image = rest / down * height * width;
    const int bottom = min(top + piece_rows, height);
    for (int y = top; y < bottom; ++y) {
      const int row = source(y + i - half, height, padding);
      if (row < 0) continue;
      const T* from = images + image + int64_t{row} * width;
      __syncthreads();
      for (int c = threadIdx.x; c < piece + most; c += threads) {
        const int x = left + c - half;
        const int column = x < width + half ? source(x, width, padding) : -1;
        line[c] = column < 0 ? 0.0f : static_cast<float>(from[column]);
      }
      __syncthreads();
      // A thread's columns lie a block apart: its neighbours read the next banks.
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int c = v * threads + threadIdx.x;
        if (left + c >= width) break;
        const float value = static_cast<float>(gradient[image + int64_t{y} * width + left + c]);
#pragma unroll
        for (int j = 0; j < most; ++j) sums[j] += value * line[c + j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < most; ++j) {
    const float sum = sum_of_warp(sums[j]);
    if (threadIdx.x % 32 == 0) sums_of_warps[threadIdx.x / 32][j] = sum;
  }
  __syncthreads();
  if (threadIdx.x < size) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += sums_of_warps[w][threadIdx.x];
    partials[(int64_t{blockIdx.x} * size + i) * size + threadIdx.x] = sum;
  }
}

// A block a tap.
template <typename T>
__global__ void __launch_bounds__(threads)
    sum_partials(const float* __restrict__ partials, T* __restrict__ result, int blocks) {
  double sum = 0;
  for (int p = threadIdx.x; p < blocks; p += threads) sum += partials[int64_t{p} * gridDim.x + blockIdx.x];
  __shared__ double sums[threads / 32];
  sum = sum_of_warp(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < threads / 32; ++w) sum += sums[w];
    result[blockIdx.x] = static_cast<T>(static_cast<float>(sum));
  }
}

template <typename T>
void launch(const Tensor& images, const Tensor& gradient, const Tensor& partials, const Tensor& result, int64_t across,
            int64_t down, Padding padding, cudaStream_t stream) {
  const int height = static_cast<int>(images.size(1)), width = static_cast<int>(images.size(2));
  const int size = static_cast<int>(result.size(0));
  const int blocks = static_cast<int>(partials.size(0));
  const dim3 grid(blocks, size);
  auto* sums = static_cast<float*>(partials.data_ptr());
  auto* kernel = size <= 7 ? sum_pieces<T, 7> : size <= 15 ? sum_pieces<T, 15> : sum_pieces<T, largest_filter>;
  kernel<<<grid, threads, 0, stream>>>(static_cast<const T*>(images.data_ptr()),
                                       static_cast<const T*>(gradient.data_ptr()), sums, height, width, size, across,
                                       down, images.size(0) * across * down, padding);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  sum_partials<T><<<size * size, threads, 0, stream>>>(sums, static_cast<T*>(result.data_ptr()), blocks);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// images, gradient: [N, H, W] of one dtype on one GPU. The result is [size, size].
Tensor conv2d_filter_gradient(Tensor images, Tensor gradient, int64_t size, int64_t padding) {
  STD_TORCH_CHECK(images.is_cuda() && gradient.is_cuda() && images.get_device_index() == gradient.get_device_index(),
                  "conv2d_filter_gradient: images and gradient must be on one GPU, got devices ",
                  images.get_device_index(), " and ", gradient.get_device_index());
  STD_TORCH_CHECK(images.scalar_type() == gradient.scalar_type(),
                  "conv2d_filter_gradient: images and gradient must have one dtype");
  STD_TORCH_CHECK(images.dim() == 3 && gradient.dim() == 3,
                  "conv2d_filter_gradient: images and gradient must be [N, H, W], got ", images.dim(), " and ",
                  gradient.dim(), " dimensions");
  for (int d = 0; d < 3; ++d) {
    STD_TORCH_CHECK(images.size(d) == gradient.size(d),
                    "conv2d_filter_gradient: images and gradient must have one shape, got ", images.size(d), " and ",
                    gradient.size(d), " in dimension ", d);
  }
  STD_TORCH_CHECK(size % 2 == 1 && size >= 3 && size <= largest_filter && padding >= 0 && padding <= 2,
                  "conv2d_filter_gradient: no such size or padding, got ", size, " and ", padding);
  const int64_t height = images.size(1), width = images.size(2);
  STD_TORCH_CHECK(std::max(height, width) <= int64_t{1} << 30,
                  "conv2d_filter_gradient: at most 2^30 rows and columns, got ", height, " and ", width);
  const auto fill = static_cast<Padding>(padding);
  STD_TORCH_CHECK(fill != Padding::reflect || std::min(height, width) > size / 2,
                  "conv2d_filter_gradient: to reflect, images must be larger than size / 2, got ", height, " x ",
                  width);
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  images = torch::stable::contiguous(images);
  gradient = torch::stable::contiguous(gradient);
  Tensor result = torch::stable::new_empty(images, {size, size});
  if (images.numel() == 0) return torch::stable::zero_(result);
  const int64_t across = (width + piece - 1) / piece;
  const int64_t down = (height + piece_rows - 1) / piece_rows;
  const int64_t blocks = std::min(images.size(0) * across * down, most_blocks);
  const Tensor partials = torch::stable::new_empty(images, {blocks, size, size}, ScalarType::Float);
  const cudaStream_t stream = current_stream(images.get_device_index());
  with_dtype("conv2d_filter_gradient", images.scalar_type(), [&](auto t) {
    launch<decltype(t)>(images, gradient, partials, result, across, down, fill, stream);
  });
  return result;
}

}  // namespace
}  // namespace cuda_ext::conv2d

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("conv2d_filter_gradient(Tensor images, Tensor gradient, int size, int padding) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("conv2d_filter_gradient", TORCH_BOX(&cuda_ext::conv2d::conv2d_filter_gradient));
}
