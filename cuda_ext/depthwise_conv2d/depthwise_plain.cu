// The plain kernels: filters of one tap, and what borders that are not zero add to an image's gradient.

#include "depthwise.cuh"

namespace depthwise {
namespace {

constexpr int threads = 256;
constexpr int64_t most_blocks = int64_t{1} << 20;

unsigned blocks_for(int64_t n) { return static_cast<unsigned>(std::min((n + threads - 1) / threads, most_blocks)); }

// One output a thread.
template <typename T>
__global__ void __launch_bounds__(threads) convolve_plainly(const T* __restrict__ x, const T* __restrict__ weight,
                                                            T* __restrict__ out, const Shape shape, int padding) {
  const int64_t plane = int64_t{shape.height} * shape.width;
  const int border = shape.k / 2;
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < shape.batch * shape.channels * plane;
       i += int64_t{gridDim.x} * threads) {
    const int64_t image = i / plane;
    const T* from = x + image * plane;
    const T* w = weight + image % shape.channels * shape.k * shape.k;
    const int y = static_cast<int>(i % plane / shape.width);
    const int column = static_cast<int>(i % shape.width);
    float sum = 0;
    for (int a = 0; a < shape.k; ++a) {
      const int row = padded(y + a - border, shape.height, padding);
      for (int b = 0; b < shape.k; ++b) {
        const int place = padded(column + b - border, shape.width, padding);
        if (row >= 0 && place >= 0) {
          sum += static_cast<float>(w[a * shape.k + b]) * static_cast<float>(from[int64_t{row} * shape.width + place]);
        }
      }
    }
    out[i] = static_cast<T>(sum);
  }
}

// The image's gradient at one place: each place of the padded image that shows it, times the filter. From a pixel to the
// next it is `step` elements.
template <typename T>
__device__ float image_gradient_at(const T* g, const T* w, int y, int x, const Shape& shape, int padding,
                                   int64_t step) {
  const int border = shape.k / 2;
  float sum = 0;
  // Candidates of a direction: the place itself, then those before the first and behind the last.
  for (int i = 0; i <= 2 * border; ++i) {
    const int row = i == 0 ? y : i <= border ? -i : shape.height - 1 + i - border;
    if (padded(row, shape.height, padding) != y) continue;
    for (int j = 0; j <= 2 * border; ++j) {
      const int column = j == 0 ? x : j <= border ? -j : shape.width - 1 + j - border;
      if (padded(column, shape.width, padding) != x) continue;
      const int last_a = min(shape.k - 1, row + border);
      const int last_b = min(shape.k - 1, column + border);
      for (int a = max(0, row + border - shape.height + 1); a <= last_a; ++a) {
        const T* line = g + (int64_t{row + border - a} * shape.width + column + border) * step;
        for (int b = max(0, column + border - shape.width + 1); b <= last_b; ++b) {
          sum += static_cast<float>(w[a * shape.k + b]) * static_cast<float>(line[-b * step]);
        }
      }
    }
  }
  return sum;
}

// At every place, or at those alone that are within k / 2 of an edge, where padding adds to the gradient.
template <typename T>
__global__ void __launch_bounds__(threads)
    image_gradient_plainly(const T* __restrict__ g, const T* __restrict__ weight, T* __restrict__ gradient,
                           const Shape shape, int padding, int band_rows, int band_columns, bool channels_last) {
  const int64_t plane = int64_t{shape.height} * shape.width;
  const int64_t step = channels_last ? shape.channels : 1;
  const int64_t full_rows = int64_t{band_rows} * shape.width;
  const int64_t places = full_rows + int64_t{shape.height - band_rows} * band_columns;
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < shape.batch * shape.channels * places;
       i += int64_t{gridDim.x} * threads) {
    // Neighbouring threads have neighbouring elements.
    const int64_t image = channels_last ? i / (places * step) * step + i % step : i / places;
    const int64_t place = i / step % places;
    const int64_t first = channels_last ? image / step * plane * step + i % step : image * plane;
    int y, x;
    if (place < full_rows) {
      y = static_cast<int>(place / shape.width);
      x = static_cast<int>(place % shape.width);
      if (y >= (band_rows + 1) / 2) y += shape.height - band_rows;
    } else {
      y = static_cast<int>((place - full_rows) / band_columns) + (band_rows + 1) / 2;
      x = static_cast<int>((place - full_rows) % band_columns);
      if (x >= (band_columns + 1) / 2) x += shape.width - band_columns;
    }
    const T* w = weight + image % shape.channels * shape.k * shape.k;
    gradient[first + (int64_t{y} * shape.width + x) * step] =
        static_cast<T>(image_gradient_at(g + first, w, y, x, shape, padding, step));
  }
}

// One tap of one channel a block, added in one order always.
template <typename T>
__global__ void __launch_bounds__(threads) filter_gradient_plainly(const T* __restrict__ g, const T* __restrict__ x,
                                                                   T* __restrict__ gradient, const Shape shape,
                                                                   int padding) {
  __shared__ float sums[threads];
  const int taps = shape.k * shape.k;
  const int border = shape.k / 2;
  const int64_t plane = int64_t{shape.height} * shape.width;
  for (int64_t block = blockIdx.x; block < shape.channels * taps; block += gridDim.x) {
    const int64_t channel = block / taps;
    const int a = static_cast<int>(block % taps) / shape.k;
    const int b = static_cast<int>(block % taps) % shape.k;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < shape.batch * plane; i += threads) {
      const int64_t start = (i / plane * shape.channels + channel) * plane;
      const int row = padded(static_cast<int>(i % plane / shape.width) + a - border, shape.height, padding);
      const int column = padded(static_cast<int>(i % shape.width) + b - border, shape.width, padding);
      if (row >= 0 && column >= 0) {
        sum += static_cast<float>(g[start + i % plane]) *
               static_cast<float>(x[start + int64_t{row} * shape.width + column]);
      }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int step = threads / 2; step > 0; step /= 2) {
      if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
      __syncthreads();
    }
    if (threadIdx.x == 0) gradient[block] = static_cast<T>(sums[0]);
    __syncthreads();
  }
}

constexpr int columns = 32;
constexpr int lines = 8;

template <typename T>
__global__ void __launch_bounds__(columns* lines) add(const float* __restrict__ parts, T* __restrict__ sum,
                                                      int64_t size, int count) {
  cuda_ext::wait_for_the_one_before();
  __shared__ float sums[lines][columns];
  const int64_t i = int64_t{blockIdx.x} * columns + threadIdx.x;
  float total = 0;
  if (i < size) {
    for (int part = threadIdx.y; part < count; part += lines) total += parts[part * size + i];
  }
  sums[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y == 0 && i < size) {
    total = 0;
#pragma unroll
    for (int line = 0; line < lines; ++line) total += sums[line][threadIdx.x];
    sum[i] = static_cast<T>(total);
  }
}

}  // namespace

template <typename T>
void convolve_plain(const T* x, const T* weight, T* out, const Shape& shape, int padding, cudaStream_t stream) {
  const int64_t n = shape.batch * shape.channels * shape.height * shape.width;
  convolve_plainly<T><<<blocks_for(n), threads, 0, stream>>>(x, weight, out, shape, padding);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void image_gradient_plain(const T* g, const T* weight, T* gradient, const Shape& shape, int padding, bool border_only,
                          bool channels_last, cudaStream_t stream) {
  const int band = border_only ? 2 * (shape.k / 2 + 1) : shape.height;
  const int rows = std::min(shape.height, band);
  const int across = std::min(shape.width, 2 * (shape.k / 2 + 1));
  const int64_t places = int64_t{rows} * shape.width + int64_t{shape.height - rows} * across;
  image_gradient_plainly<T><<<blocks_for(shape.batch * shape.channels * places), threads, 0, stream>>>(
      g, weight, gradient, shape, padding, rows, across, channels_last);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void filter_gradient_plain(const T* g, const T* x, T* gradient, const Shape& shape, int padding, cudaStream_t stream) {
  const int64_t blocks = std::min(shape.channels * shape.k * shape.k, most_blocks);
  filter_gradient_plainly<T><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(g, x, gradient, shape, padding);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void add_parts(const float* parts, T* sum, int64_t size, int count, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((size + columns - 1) / columns);
  cuda_ext::launch_early(&add<T>, dim3(blocks), dim3(columns, lines), 0, stream, parts, sum, size, count);
}

#define INSTANTIATE(T)                                                                                              \
  template void convolve_plain(const T*, const T*, T*, const Shape&, int, cudaStream_t);                           \
  template void image_gradient_plain(const T*, const T*, T*, const Shape&, int, bool, bool, cudaStream_t);         \
  template void filter_gradient_plain(const T*, const T*, T*, const Shape&, int, cudaStream_t);                    \
  template void add_parts(const float*, T*, int64_t, int, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)

}  // namespace depthwise
