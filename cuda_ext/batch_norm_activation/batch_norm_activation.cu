// Batch norm and the activation behind it, over channels-last tensors, both passes in two walks over memory each:
//
//   statistics   mean and variance of each channel: one read
//   forward      y = f(z), z = weight (x - mean) / sqrt(variance + epsilon) + bias: one read, one write
//   backward     sums of dz and dz (x - mean), dz = dy f'(z): one read of x and dy, z computed again
//                dx = s (dz - mean(dz) - (x - mean) mean(dz (x - mean)) / (variance + epsilon)), s = weight /
//                sqrt(variance + epsilon): one more, and one write
//
// In a dense block, where many norms read the same channels, the gradient of a channel is the sum over its readers. Only
// s dz needs the reader's own pass; the rest is linear in x, with coefficients that are summed over the readers, a number
// a channel, and applied once (add_backward, centred_gradient). So a reader's backward pass is one walk, not two.

#include "channels.cuh"

namespace {

using namespace cuda_ext::channels;
using cuda_ext::compute_t;

enum Activation : int { none = 0, relu = 1, swish = 2 };

// What a channel's norm is made of, and the activation; `mean`, `variance`, `weight` and `bias` are a number a channel.
template <typename C>
struct Norm {
  const C *mean, *variance, *weight, *bias;
  const C* beta;  // of swish; null where it is 1
  C epsilon;
  int activation;
};

__device__ float inverse_root(float x) { return 1.0f / sqrtf(x); }
__device__ double inverse_root(double x) { return 1.0 / sqrt(x); }
// With the fast exponential and division two thirds of the arithmetic is left; the error is 2 or 3 in the last place.
__device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

template <typename C>
__device__ C activate(C z, int activation, C beta) {
  if (activation == relu) return z > C{0} ? z : (z == z ? C{0} : z);
  if (activation == swish) return z * sigmoid(beta * z);
  return z;
}

// dy f'(z); adds dy df/dbeta to `to_beta`.
template <typename C>
__device__ C through(C dy, C z, int activation, C beta, C& to_beta) {
  if (activation == relu) return z > C{0} ? dy : C{0};
  if (activation == swish) {
    const C gate = sigmoid(beta * z);
    const C rest = z * (C{1} - gate);
    to_beta += dy * z * gate * rest;
    return dy * gate * (C{1} + beta * rest);
  }
  return dy;
}

// Average pooling of 2 x 2 behind the activation: a row of x is a pixel of images of `height` x `width`, and a row of y
// is one of half of that. The last line or column of an odd size is left out, as nn.AvgPool2d does.
struct Pool {
  int64_t height, width;
  int64_t halved_rows(int64_t rows) const {
    return height * width ? rows / (height * width) * (height / 2) * (width / 2) : 0;
  }
  // The row of y that `row` of x goes into, or -1.
  __device__ int64_t into(int64_t row) const {
    const int64_t line = divided(row, width);
    const int64_t column = row - line * width;
    const int64_t image = divided(line, height);
    const int64_t y = (line - image * height) / 2, x = column / 2;
    if (y >= height / 2 || x >= width / 2) return -1;
    return (image * (height / 2) + y) * (width / 2) + x;
  }
  // The first of the four rows of x that go into `row` of y.
  __device__ int64_t from(int64_t row) const {
    const int64_t line = divided(row, width / 2);
    const int64_t image = divided(line, height / 2);
    return (image * height + (line - image * (height / 2)) * 2) * width + (row - line * (width / 2)) * 2;
  }
  // Division of 64 bits takes several times as long, and is seldom needed.
  __device__ static int64_t divided(int64_t a, int64_t b) {
    return a <= 0x7fffffff ? static_cast<int>(a) / static_cast<int>(b) : a / b;
  }
};

// The norms of a thread's channels, in registers.
template <int V, typename C>
struct Lanes {
  C mean[V], scale[V], bias[V], beta;

  __device__ Lanes(const Norm<C>& norm, int channel, int channels) {
    beta = norm.beta == nullptr ? C{1} : *norm.beta;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const bool real = channel + v < channels;
      mean[v] = real ? norm.mean[channel + v] : C{0};
      scale[v] = real ? norm.weight[channel + v] * inverse_root(norm.variance[channel + v] + norm.epsilon) : C{0};
      bias[v] = real ? norm.bias[channel + v] : C{0};
    }
  }
};

// Sums of x and its square, both from the first row's value on, which keeps the digits where the mean is large; with
// `copy`, also writes what it reads.
template <typename T, int V>
__global__ void __launch_bounds__(threads) sum_values(const T* __restrict__ x, int64_t x_stride, T* __restrict__ copy,
                                                      int64_t copy_stride, int64_t rows, int channels, int lanes,
                                                      int rows_at_once, compute_t<T>* partial) {
  using C = compute_t<T>;
  const Place place(lanes, rows_at_once, V);
  C sums[2][V] = {}, first[V];
  if (place.channel < channels) {
    const auto lane = load<T, V>(x + place.channel);
#pragma unroll
    for (int v = 0; v < V; ++v) first[v] = static_cast<C>(lane.values[v]);
#pragma unroll 4
    for (int64_t row = place.row; row < rows; row += place.stride) {
      const auto values = load<T, V>(x + row * x_stride + place.channel);
      if (copy != nullptr) store(copy + row * copy_stride + place.channel, values);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const C value = static_cast<C>(values.values[v]) - first[v];
        sums[0][v] += value;
        sums[1][v] += value * value;
      }
    }
  }
  write_partial<2, V, C>(sums, place, lanes, rows_at_once, channels, partial);
}

template <typename T>
__global__ void finish_statistics(const compute_t<T>* partial, int blocks, const T* x, int64_t rows, int channels,
                                  compute_t<T>* mean, compute_t<T>* variance) {
  using C = compute_t<T>;
  const int channel = blockIdx.x * finish_channels + threadIdx.x;
  const bool real = channel < channels;
  const int64_t stride = int64_t{2} * channels;
  double sums[2];
  total(real ? partial + channel : nullptr, blocks, stride, channels, sums);
  if (real && threadIdx.y == 0) {
    const double shift = sums[0] / static_cast<double>(rows);
    mean[channel] = static_cast<C>(static_cast<double>(static_cast<C>(x[channel])) + shift);
    const double found = sums[1] / static_cast<double>(rows) - shift * shift;
    variance[channel] = static_cast<C>(found < 0 ? 0.0 : found);
  }
}

// y has `columns` columns, of which those past the channels become zero.
template <typename T, int V>
__global__ void __launch_bounds__(threads) forward(const T* __restrict__ x, int64_t x_stride, T* __restrict__ y,
                                                   int64_t rows, int channels, int columns, int lanes,
                                                   int rows_at_once, Norm<compute_t<T>> norm) {
  using C = compute_t<T>;
  const Place place(lanes, rows_at_once, V);
  if (place.channel >= columns) return;
  const Lanes<V, C> own(norm, place.channel, channels);
#pragma unroll 4
  for (int64_t row = place.row; row < rows; row += place.stride) {
    Lane<T, V> values{};
    if (place.channel < channels) values = load<T, V>(x + row * x_stride + place.channel);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const C z = (static_cast<C>(values.values[v]) - own.mean[v]) * own.scale[v] + own.bias[v];
      values.values[v] = static_cast<T>(place.channel + v < channels ? activate(z, norm.activation, own.beta) : C{0});
    }
    store(y + row * int64_t{columns} + place.channel, values);
  }
}

// dy of one row of x; with `pooled`, four times that.
template <typename T, int V, bool pooled>
__device__ Lane<T, V> load_gradient(const T* dy, int64_t stride, int64_t row, int channel, const Pool& pool) {
  if constexpr (pooled) {
    row = pool.into(row);
    if (row < 0) return {};
  }
  return load<T, V>(dy + row * stride + channel);
}

// The same with `pool`: `rows` counts those of y.
template <typename T, int V>
__global__ void __launch_bounds__(threads) forward_pooled(const T* __restrict__ x, int64_t x_stride, T* __restrict__ y,
                                                          int64_t rows, int channels, int lanes, int rows_at_once,
                                                          Norm<compute_t<T>> norm, Pool pool) {
  using C = compute_t<T>;
  const Place place(lanes, rows_at_once, V);
  if (place.channel >= channels) return;
  const Lanes<V, C> own(norm, place.channel, channels);
  for (int64_t row = place.row; row < rows; row += place.stride) {
    const T* first = x + pool.from(row) * x_stride + place.channel;
    Lane<T, V> values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = load<T, V>(first + ((i / 2) * pool.width + i % 2) * x_stride);
    C sums[V] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const C z = (static_cast<C>(values[i].values[v]) - own.mean[v]) * own.scale[v] + own.bias[v];
        sums[v] += activate(z, norm.activation, own.beta);
      }
    }
#pragma unroll
    for (int v = 0; v < V; ++v) values[0].values[v] = static_cast<T>(sums[v] * C{0.25});
    store(y + row * int64_t{channels} + place.channel, values[0]);
  }
}

// Blocks that a multiprocessor holds at once: so many are launched, and each sums as long as there are rows.
constexpr int sum_blocks = 3;

// Sums of dz, of dz (x - mean) and of what goes to beta. With `gradient`, adds s dz to it.
template <typename T, int V, bool adds, bool pooled>
__global__ void __launch_bounds__(threads, sum_blocks) sum_gradients(const T* __restrict__ dy, int64_t dy_stride,
                                                         const T* __restrict__ x, int64_t x_stride,
                                                         T* __restrict__ gradient, int64_t gradient_stride,
                                                         int64_t rows, int channels, int lanes, int rows_at_once,
                                                         Norm<compute_t<T>> norm, Pool pool, compute_t<T>* partial,
                                                         compute_t<T>* partial_beta) {
  using C = compute_t<T>;
  const Place place(lanes, rows_at_once, V);
  C sums[2][V] = {}, to_beta = 0;
  if (place.channel < channels) {
    const Lanes<V, C> own(norm, place.channel, channels);
#pragma unroll 2
    for (int64_t row = place.row; row < rows; row += place.stride) {
      const auto dys = load_gradient<T, V, pooled>(dy, dy_stride, row, place.channel, pool);
      const auto xs = load<T, V>(x + row * x_stride + place.channel);
      Lane<T, V> into{};
      if constexpr (adds) into = load<T, V>(gradient + row * gradient_stride + place.channel);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (place.channel + v < channels) {
          const C centred = static_cast<C>(xs.values[v]) - own.mean[v];
          const C dz = through(static_cast<C>(dys.values[v]) * C{pooled ? 0.25 : 1}, centred * own.scale[v] + own.bias[v], norm.activation,
                               own.beta, to_beta);
          sums[0][v] += dz;
          sums[1][v] += dz * centred;
          if constexpr (adds) {
            into.values[v] = static_cast<T>(static_cast<C>(into.values[v]) + own.scale[v] * dz);
          }
        }
      }
      if constexpr (adds) store(gradient + row * gradient_stride + place.channel, into);
    }
  }
  write_partial<2, V, C>(sums, place, lanes, rows_at_once, channels, partial);
  if (partial_beta != nullptr) {
    __shared__ C shared[threads];
    shared[threadIdx.x] = to_beta;
    __syncthreads();
    if (threadIdx.x == 0) {
      C sum = 0;
      for (int i = 0; i < blockDim.x; ++i) sum += shared[i];
      partial_beta[blockIdx.y * gridDim.x + blockIdx.x] = sum;
    }
  }
}

// The gradients of weight, bias and beta, and what each channel's dx is made of: dx = s dz + slope (x - mean) + offset.
// Without batch statistics slope and offset are zero. With `adds`, both are added to what is there.
// The last block of the grid sums beta's.
template <typename T>
__global__ void finish_gradients(const compute_t<T>* partial, int blocks, const compute_t<T>* partial_beta,
                                 int beta_blocks, int64_t rows, int channels, Norm<compute_t<T>> norm, bool training,
                                 bool adds, compute_t<T>* weight, compute_t<T>* bias, compute_t<T>* beta,
                                 compute_t<T>* slope, compute_t<T>* offset) {
  using C = compute_t<T>;
  if (partial_beta != nullptr && blockIdx.x == gridDim.x - 1) {
    double sum[1];
    total(threadIdx.x == 0 ? partial_beta : nullptr, beta_blocks, 1, 0, sum);
    if (threadIdx.x == 0 && threadIdx.y == 0) *beta = static_cast<C>(sum[0]);
    return;
  }
  const int channel = blockIdx.x * finish_channels + threadIdx.x;
  const bool real = channel < channels;
  const int64_t stride = int64_t{2} * channels;
  double sums[2];
  total(real ? partial + channel : nullptr, blocks, stride, channels, sums);
  if (!real || threadIdx.y != 0) return;
  const double plain = sums[0], centred = sums[1];
  const double inverse = 1.0 / sqrt(static_cast<double>(norm.variance[channel]) + static_cast<double>(norm.epsilon));
  weight[channel] = static_cast<C>(centred * inverse);
  bias[channel] = static_cast<C>(plain);
  if (slope == nullptr) return;
  const double share = training ? -static_cast<double>(norm.weight[channel]) * inverse / static_cast<double>(rows) : 0;
  const double to_slope = share * inverse * inverse * centred, to_offset = share * plain;
  slope[channel] = static_cast<C>(to_slope + (adds ? static_cast<double>(slope[channel]) : 0.0));
  offset[channel] = static_cast<C>(to_offset + (adds ? static_cast<double>(offset[channel]) : 0.0));
}

// dx = s dz + slope (x - mean) + offset.
template <typename T, int V, bool pooled>
__global__ void __launch_bounds__(threads) input_gradient(const T* __restrict__ dy, int64_t dy_stride,
                                                          const T* __restrict__ x, int64_t x_stride,
                                                          T* __restrict__ dx, int64_t rows, int channels, int lanes,
                                                          int rows_at_once, Norm<compute_t<T>> norm, Pool pool,
                                                          const compute_t<T>* slope, const compute_t<T>* offset) {
  using C = compute_t<T>;
  const Place place(lanes, rows_at_once, V);
  if (place.channel >= channels) return;
  C slopes[V], offsets[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    slopes[v] = slope[place.channel + v];
    offsets[v] = offset[place.channel + v];
  }
  const Lanes<V, C> own(norm, place.channel, channels);
  C to_beta = 0;
#pragma unroll 2
  for (int64_t row = place.row; row < rows; row += place.stride) {
    auto dys = load_gradient<T, V, pooled>(dy, dy_stride, row, place.channel, pool);
    const auto xs = load<T, V>(x + row * x_stride + place.channel);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const C centred = static_cast<C>(xs.values[v]) - own.mean[v];
      const C dz = through(static_cast<C>(dys.values[v]) * C{pooled ? 0.25 : 1},
                           centred * own.scale[v] + own.bias[v], norm.activation, own.beta, to_beta);
      dys.values[v] = static_cast<T>(own.scale[v] * dz + slopes[v] * centred + offsets[v]);
    }
    store(dx + row * int64_t{channels} + place.channel, dys);
  }
}

// gradient + slope (x - mean) + offset, in `columns` columns, of which those past the channels become zero.
template <typename T, int V>
__global__ void __launch_bounds__(threads) finish_gradient(const T* __restrict__ gradient, int64_t gradient_stride,
                                                           const T* __restrict__ x, int64_t x_stride,
                                                           T* __restrict__ dx, int64_t rows, int channels, int columns,
                                                           int lanes, int rows_at_once, const compute_t<T>* mean,
                                                           const compute_t<T>* slope, const compute_t<T>* offset) {
  using C = compute_t<T>;
  const Place place(lanes, rows_at_once, V);
  if (place.channel >= columns) return;
  const bool real = place.channel < channels;  // of the whole lane, or of none
  C means[V] = {}, slopes[V] = {}, offsets[V] = {};
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (!real) break;
    means[v] = mean[place.channel + v];
    slopes[v] = slope[place.channel + v];
    offsets[v] = offset[place.channel + v];
  }
#pragma unroll 4
  for (int64_t row = place.row; row < rows; row += place.stride) {
    Lane<T, V> values{}, xs{};
    if (real) {
      values = load<T, V>(gradient + row * gradient_stride + place.channel);
      xs = load<T, V>(x + row * x_stride + place.channel);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      values.values[v] = static_cast<T>(static_cast<C>(values.values[v]) + offsets[v] +
                                        slopes[v] * (static_cast<C>(xs.values[v]) - means[v]));
    }
    store(dx + row * int64_t{columns} + place.channel, values);
  }
}

// Call `function` with the widest lane, as a constant, that all of the tensors can be moved in.
template <typename T, typename Function>
void with_lane(bool widest, bool half, Function function) {
  constexpr int width = std::is_same_v<T, double> ? 1 : 16 / sizeof(T);
  if (widest && width > 1) {
    function(std::integral_constant<int, width>{});
  } else if constexpr (width == 8) {
    if (half) function(std::integral_constant<int, 4>{});
    else function(std::integral_constant<int, 1>{});
  } else {
    function(std::integral_constant<int, 1>{});
  }
}

template <typename T>
constexpr int width = 16 / sizeof(T);

dim3 finish_grid(int64_t channels, bool with_beta = false) {
  return dim3(static_cast<unsigned>((channels + finish_channels - 1) / finish_channels + with_beta));
}

const dim3 finish_block(finish_channels, finish_parts);

template <typename C>
Norm<C> norm_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& variance,
                const std::optional<Tensor>& beta, int64_t activation, double epsilon) {
  STD_TORCH_CHECK(activation >= none && activation <= swish, "batch_norm_activation: activation must be 0, 1 or 2");
  const int64_t channels = x.size(1);
  return {vector<C>(x, mean, channels, "mean"),
          vector<C>(x, variance, channels, "variance"),
          vector<C>(x, weight, channels, "weight"),
          vector<C>(x, bias, channels, "bias"),
          beta.has_value() ? vector<C>(x, *beta, 1, "beta") : nullptr,
          static_cast<C>(epsilon),
          static_cast<int>(activation)};
}

template <typename T>
void statistics_of(const Tensor& x, const Tensor* copy, const Tensor& mean, const Tensor& variance) {
  using C = compute_t<T>;
  const Matrix m = matrix(x, "x");
  const Matrix to = copy == nullptr ? Matrix{nullptr, m.rows, m.channels, m.stride} : matrix(*copy, "y");
  C* means = vector<C>(x, mean, m.channels, "mean");
  C* variances = vector<C>(x, variance, m.channels, "variance");
  if (m.rows == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  // A copy must not write beside its channels.
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && (copy == nullptr || (in_lanes<T>(*copy, to, lane) && m.channels % lane == 0));
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, m.channels, V, 4);
    const auto blocks = static_cast<int>(c.grid.x);
    const Tensor partial = floats<C>(x, {int64_t{blocks} * 2 * m.channels});
    sum_values<T, V><<<c.grid, c.block, 0, stream>>>(
        static_cast<const T*>(m.data), m.stride, static_cast<T*>(to.data), to.stride, m.rows,
        static_cast<int>(m.channels), c.lanes, c.rows, static_cast<C*>(partial.data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    finish_statistics<T><<<finish_grid(m.channels), finish_block, 0, stream>>>(
        static_cast<const C*>(partial.data_ptr()), blocks, static_cast<const T*>(m.data), m.rows,
        static_cast<int>(m.channels), means, variances);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

// x: rows of channels. Mean and biased variance of each channel.
std::tuple<Tensor, Tensor> batch_statistics(Tensor x) {
  matrix(x, "x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const auto type = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  const int64_t channels = x.size(1);
  Tensor mean = torch::stable::new_zeros(x, {channels}, type);
  Tensor variance = torch::stable::new_zeros(x, {channels}, type);
  FOR_DTYPE(x, statistics_of<T>(x, nullptr, mean, variance));
  return {mean, variance};
}

// The same, written to mean and variance, of what is copied to y meanwhile.
void copy_with_statistics(Tensor x, Tensor y, Tensor mean, Tensor variance) {
  matrix(x, "x");
  same(x, y, "y");
  STD_TORCH_CHECK(x.size(1) == y.size(1), "batch_norm_activation: y must have the channels of x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  FOR_DTYPE(x, statistics_of<T>(x, &y, mean, variance));
}

template <typename T>
void forward_of(const Tensor& x, const Norm<compute_t<T>>& norm, const Pool& pool, const Tensor& y) {
  const Matrix m = matrix(x, "x");
  if (y.size(0) == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int64_t columns = y.size(1);
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && columns % lane == 0 && cuda_ext::aligned_for_packs(y.data_ptr());
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(y.size(0), columns, V, 8);
    if (pool.height) {
      forward_pooled<T, V><<<c.grid, c.block, 0, stream>>>(static_cast<const T*>(m.data), m.stride,
                                                           static_cast<T*>(y.data_ptr()), y.size(0),
                                                           static_cast<int>(m.channels), c.lanes, c.rows, norm, pool);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
      return;
    }
    forward<T, V><<<c.grid, c.block, 0, stream>>>(
        static_cast<const T*>(m.data), m.stride, static_cast<T*>(y.data_ptr()), m.rows, static_cast<int>(m.channels),
        static_cast<int>(columns), c.lanes, c.rows, norm);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

// height and width 0: no pooling.
Pool pool_of(const Tensor& x, int64_t height, int64_t width) {
  STD_TORCH_CHECK(height >= 0 && width >= 0 && height <= (1 << 24) && width <= (1 << 24) &&
                      (height * width ? x.size(0) % (height * width) == 0 : height + width == 0),
                  "batch_norm_activation: ", x.size(0), " rows are no images of ", height, " x ", width);
  return {height, width};
}

void check_columns(const Tensor& x, int64_t columns, bool exact) {
  STD_TORCH_CHECK(columns >= x.size(1) && columns <= x.size(1) + (exact ? 0 : 64),
                  "batch_norm_activation: columns must be the ", x.size(1), " channels and at most 64 more, got ",
                  columns);
}

Tensor batch_norm_activation(Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance,
                             std::optional<Tensor> beta, int64_t activation, double epsilon, int64_t columns,
                             int64_t height, int64_t width) {
  matrix(x, "x");
  const Pool pool = pool_of(x, height, width);
  check_columns(x, columns, pool.height != 0);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor y = torch::stable::new_empty(x, {pool.height ? pool.halved_rows(x.size(0)) : x.size(0), columns});
  FOR_DTYPE(x, using C = compute_t<T>;
            forward_of<T>(x, norm_of<C>(x, weight, bias, mean, variance, beta, activation, epsilon), pool, y));
  return y;
}

// The sums of a backward pass: fills weight, bias, beta, slope and offset; with `gradient`, adds s dz to it.
template <typename T>
void gradients_of(const Tensor& dy, const Tensor& x, const Norm<compute_t<T>>& norm, const Pool& pool,
                  const Tensor* gradient, bool training, const Tensor& weight, const Tensor& bias, const Tensor& beta, const Tensor& slope,
                  const Tensor& offset) {
  using C = compute_t<T>;
  const Matrix m = matrix(x, "x"), dm = matrix(dy, "dy");
  const Matrix gm = gradient == nullptr ? Matrix{nullptr, m.rows, m.channels, m.stride} : matrix(*gradient, "gradient");
  if (m.rows == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const auto fits = [&](int lane) {
    // dy may be wider than x; a gradient is written only in its own channels.
    const Matrix narrow{dm.data, dm.rows, m.channels, dm.stride};
    return in_lanes<T>(x, m, lane) && in_lanes<T>(dy, narrow, lane) &&
           (gradient == nullptr || in_lanes<T>(*gradient, gm, lane));
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, m.channels, V, sum_blocks);
    const auto blocks = static_cast<int>(c.grid.x);
    const int beta_blocks = blocks * static_cast<int>(c.grid.y);
    const bool with_beta = norm.beta != nullptr;
    const Tensor partial = floats<C>(x, {int64_t{blocks} * 2 * m.channels + beta_blocks});
    C* sums = static_cast<C*>(partial.data_ptr());
    C* beta_sums = with_beta ? sums + int64_t{blocks} * 2 * m.channels : nullptr;
    const auto launch = [&](auto adds, auto pooled) {
      sum_gradients<T, V, decltype(adds)::value, decltype(pooled)::value><<<c.grid, c.block, 0, stream>>>(
          static_cast<const T*>(dm.data), dm.stride, static_cast<const T*>(m.data), m.stride, static_cast<T*>(gm.data),
          gm.stride, m.rows, static_cast<int>(m.channels), c.lanes, c.rows, norm, pool, sums, beta_sums);
    };
    if (gradient != nullptr) {
      launch(std::true_type{}, std::false_type{});
    } else if (pool.height) {
      launch(std::false_type{}, std::true_type{});
    } else {
      launch(std::false_type{}, std::false_type{});
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    finish_gradients<T><<<finish_grid(m.channels, with_beta), finish_block, 0, stream>>>(
        sums, blocks, beta_sums, beta_blocks, m.rows, static_cast<int>(m.channels), norm, training,
        gradient != nullptr, vector<C>(x, weight, m.channels, "weight's gradient"),
        vector<C>(x, bias, m.channels, "bias's gradient"), vector<C>(x, beta, with_beta, "beta's gradient"),
        vector<C>(x, slope, m.channels, "slope"), vector<C>(x, offset, m.channels, "offset"));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

template <typename T>
void input_gradient_of(const Tensor& dy, const Tensor& x, const Norm<compute_t<T>>& norm, const Pool& pool,
                       const Tensor& slope, const Tensor& offset, const Tensor& dx) {
  using C = compute_t<T>;
  const Matrix m = matrix(x, "x"), dm = matrix(dy, "dy");
  if (m.rows == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && in_lanes<T>(dy, dm, lane) && m.channels % lane == 0;
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, m.channels, V, 8);
    const auto launch = [&](auto pooled) {
      input_gradient<T, V, decltype(pooled)::value><<<c.grid, c.block, 0, stream>>>(
          static_cast<const T*>(dm.data), dm.stride, static_cast<const T*>(m.data), m.stride,
          static_cast<T*>(dx.data_ptr()), m.rows, static_cast<int>(m.channels), c.lanes, c.rows, norm, pool,
          vector<C>(x, slope, m.channels, "slope"), vector<C>(x, offset, m.channels, "offset"));
    };
    if (pool.height) launch(std::true_type{});
    else launch(std::false_type{});
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

template <typename T>
void finish_gradient_of(const Tensor& gradient, const Tensor& x, const Tensor& mean, const Tensor& slope,
                        const Tensor& offset, const Tensor& dx) {
  using C = compute_t<T>;
  const Matrix m = matrix(x, "x"), gm = matrix(gradient, "gradient");
  if (m.rows == 0) return;
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && in_lanes<T>(gradient, gm, lane) && m.channels % lane == 0 &&
           dx.size(1) % lane == 0;
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, dx.size(1), V, 8);
    finish_gradient<T, V><<<c.grid, c.block, 0, cuda_ext::current_stream(x.get_device_index())>>>(
        static_cast<const T*>(gm.data), gm.stride, static_cast<const T*>(m.data), m.stride,
        static_cast<T*>(dx.data_ptr()), m.rows, static_cast<int>(m.channels), static_cast<int>(dx.size(1)), c.lanes,
        c.rows, vector<C>(x, mean, m.channels, "mean"), vector<C>(x, slope, m.channels, "slope"),
        vector<C>(x, offset, m.channels, "offset"));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_activation_backward(
    Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, std::optional<Tensor> beta,
    int64_t activation, double epsilon, bool training, int64_t height, int64_t width) {
  matrix(x, "x");
  const Pool pool = pool_of(x, height, width);
  same(x, dy, "dy", pool.height == 0);
  STD_TORCH_CHECK(dy.size(1) == x.size(1), "batch_norm_activation: dy must have the channels of x");
  STD_TORCH_CHECK(!pool.height || dy.size(0) == pool.halved_rows(x.size(0)),
                  "batch_norm_activation: dy must have a quarter of the rows of x, got ", dy.size(0));
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t channels = x.size(1);
  Tensor dx = torch::stable::new_empty(x, {x.size(0), channels});
  const auto type = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  const auto vector_like = [&](int64_t size) {
    return x.size(0) ? torch::stable::new_empty(x, {size}, type) : torch::stable::new_zeros(x, {size}, type);
  };
  Tensor to_weight = vector_like(channels), to_bias = vector_like(channels), to_beta = vector_like(beta.has_value());
  Tensor slope = vector_like(channels), offset = vector_like(channels);
  FOR_DTYPE(x, using C = compute_t<T>;
            const Norm<C> norm = norm_of<C>(x, weight, bias, mean, variance, beta, activation, epsilon);
            gradients_of<T>(dy, x, norm, pool, nullptr, training, to_weight, to_bias, to_beta, slope, offset);
            input_gradient_of<T>(dy, x, norm, pool, slope, offset, dx));
  return {dx, to_weight, to_bias, to_beta};
}

// gradient += s dz; slope and offset += the coefficients of the rest.
std::tuple<Tensor, Tensor, Tensor> batch_norm_activation_add_backward(
    Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, std::optional<Tensor> beta,
    int64_t activation, double epsilon, bool training, Tensor gradient, Tensor slope, Tensor offset) {
  matrix(x, "x");
  same(x, dy, "dy");
  same(x, gradient, "gradient");
  STD_TORCH_CHECK(gradient.size(1) == x.size(1), "batch_norm_activation: gradient must have the channels of x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const auto type = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  const auto vector_like = [&](int64_t size) {
    return x.size(0) ? torch::stable::new_empty(x, {size}, type) : torch::stable::new_zeros(x, {size}, type);
  };
  Tensor to_weight = vector_like(x.size(1)), to_bias = vector_like(x.size(1)), to_beta = vector_like(beta.has_value());
  FOR_DTYPE(x, using C = compute_t<T>;
            const Norm<C> norm = norm_of<C>(x, weight, bias, mean, variance, beta, activation, epsilon);
            gradients_of<T>(dy, x, norm, Pool{}, &gradient, training, to_weight, to_bias, to_beta, slope, offset));
  return {to_weight, to_bias, to_beta};
}

// gradient + slope (x - mean) + offset, and columns of zeros.
Tensor centred_gradient(Tensor gradient, Tensor x, Tensor mean, Tensor slope, Tensor offset, int64_t columns) {
  matrix(x, "x");
  same(x, gradient, "gradient");
  check_columns(x, columns, false);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor dx = torch::stable::new_empty(x, {x.size(0), columns});
  FOR_DTYPE(x, finish_gradient_of<T>(gradient, x, mean, slope, offset, dx));
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def("batch_statistics(Tensor x) -> (Tensor, Tensor)");
  m.def("copy_with_statistics(Tensor x, Tensor(a!) y, Tensor(b!) mean, Tensor(c!) variance) -> ()");
  m.def(
      "batch_norm_activation(Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, Tensor? beta, "
      "int activation, float epsilon, int columns, int height, int width) -> Tensor");
  m.def(
      "batch_norm_activation_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, "
      "Tensor? beta, int activation, float epsilon, bool training, int height, int width) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "batch_norm_activation_add_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor variance, Tensor? beta, int activation, float epsilon, bool training, Tensor(a!) gradient, "
      "Tensor(b!) slope, Tensor(c!) offset) -> (Tensor, Tensor, Tensor)");
  m.def(
      "centred_gradient(Tensor gradient, Tensor x, Tensor mean, Tensor slope, Tensor offset, int columns) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("batch_statistics", TORCH_BOX(&batch_statistics));
  m.impl("copy_with_statistics", TORCH_BOX(&copy_with_statistics));
  m.impl("batch_norm_activation", TORCH_BOX(&batch_norm_activation));
  m.impl("batch_norm_activation_backward", TORCH_BOX(&batch_norm_activation_backward));
  m.impl("batch_norm_activation_add_backward", TORCH_BOX(&batch_norm_activation_add_backward));
  m.impl("centred_gradient", TORCH_BOX(&centred_gradient));
}
