// Batch norm and the activation behind it, over channels-last tensors, both passes in two walks over memory each:
//
//   statistics   mean and variance of each channel: one read
//   forward      y = f(z), z = weight (x - mean) / sqrt(variance + epsilon) + bias: one read, one write
//   backward     sums of dz and dz (x - mean), dz = dy f'(z): one read of x and dy, z computed again
//                dx = s (dz - mean(dz) - (x - mean) mean(dz (x - mean)) / (variance + epsilon)), s = weight /
//                sqrt(variance + epsilon): one more, and one write
//
// In a dense block, where many norms read the same channels, the gradient of a channel is the sum over its readers.
// Only s dz needs the reader's own pass; the rest is linear in x, with coefficients that are summed over the readers, a
// number a channel, and applied once (add_backward, centred_gradient). So a reader's backward pass is one walk, not
// two.

#include "norm.cuh"

namespace {

using namespace cuda_ext::channels;

constexpr const char* name = "batch_norm_activation";

// Average pooling of 2 x 2 behind the activation: a row of x is a pixel of images of `height` x `width`, and a row of y
// is one of half of that. The last line or column of an odd size is left out, as nn.AvgPool2d does.
struct Pool {
  int64_t height, width;
  int64_t halved_rows(int64_t rows) const {
    return height * width != 0 ? rows / (height * width) * (height / 2) * (width / 2) : 0;
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

// Rows of a thread whose loads are under way together, where it reads one tensor, and where it reads two or three.
constexpr int steps = 4;
constexpr int sum_steps = 2;
constexpr int add_steps = 4;
// Blocks that a multiprocessor holds at once: so many are launched, and each goes on while there are rows. So they walk
// over memory together, and forward's walk back begins with what the statistics read last. Where sum_gradients adds, a
// thread needs more registers.
constexpr int value_blocks = 3;
constexpr int sum_blocks = 3;
constexpr int add_blocks = 2;

// Sums of x and its square, both from `beginnings` on; with `copy`, also writes what it reads.
template <typename T, int V>
__global__ void __launch_bounds__(threads, value_blocks)
    sum_values(const T* __restrict__ x, int64_t x_stride, T* __restrict__ copy, int64_t copy_stride, int64_t rows,
               int channels, int lanes, int rows_at_once, float* partial) {
  const Place place(lanes, rows_at_once, V, steps);
  float sums[2][V] = {}, first[V], values[V];
  if (place.channel < channels) {
    beginnings<T, V>(x + place.channel, x_stride, rows, first);
    for_rows<steps>(place, rows, rows_at_once, [&](int64_t begin, auto number) {
      constexpr int count = decltype(number)::value;
      Lane<T, V> loaded[count];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int64_t row = begin + i * rows_at_once;
        loaded[i] = load<T, V>(x + row * x_stride + place.channel);
      }
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int64_t row = begin + i * rows_at_once;
        if (copy != nullptr) store(copy + row * copy_stride + place.channel, loaded[i]);
        unpack(loaded[i], values);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float value = values[v] - first[v];
          sums[0][v] += value;
          sums[1][v] += value * value;
        }
      }
    });
  }
  cuda_ext::let_the_next_start();
  write_partial<2, V>(sums, place, lanes, rows_at_once, channels, partial);
}

// y has `columns` columns, of which those past the channels become zero.
template <typename T, int V>
__global__ void __launch_bounds__(threads, value_blocks)
    forward(const T* __restrict__ x, int64_t x_stride, T* __restrict__ y, int64_t rows, int channels, int columns,
            int lanes, int rows_at_once, Norm norm) {
  const Place place(lanes, rows_at_once, V, steps);
  cuda_ext::wait_for_the_one_before();
  if (place.channel >= columns) return;
  const Lanes<V> own(norm, place.channel, channels);
  with_activation(norm, [&](const auto activation) {
    for_rows<steps, true>(place, rows, rows_at_once, [&](int64_t begin, auto number) {
      constexpr int count = decltype(number)::value;
      Lane<T, V> loaded[count]{};
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int64_t row = begin + i * rows_at_once;
        if (place.channel < channels) loaded[i] = load<T, V>(x + row * x_stride + place.channel);
      }
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int64_t row = begin + i * rows_at_once;
        cut(loaded[i], place.channel, channels);
        float values[V];
        unpack(loaded[i], values);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          values[v] = activation.value((values[v] - own.mean[v]) * own.scale[v] + own.bias[v]);
        }
        store(y + row * int64_t{columns} + place.channel, packed<T, V>(values));
      }
    });
  });
}

// The same with `pool`: `rows` counts those of y.
template <typename T, int V>
__global__ void __launch_bounds__(threads)
    forward_pooled(const T* __restrict__ x, int64_t x_stride, T* __restrict__ y, int64_t rows, int channels, int lanes,
                   int rows_at_once, Norm norm, Pool pool) {
  const Place place(lanes, rows_at_once, V, 1);
  if (place.channel >= channels) return;
  const Lanes<V> own(norm, place.channel, channels);
  with_activation(norm, [&](const auto activation) {
    for (int64_t row = place.row; row < rows; row += place.stride) {
      const T* first = x + pool.from(row) * x_stride + place.channel;
      Lane<T, V> four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = load<T, V>(first + ((i / 2) * pool.width + i % 2) * x_stride);
      float sums[V] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float values[V];
        unpack(four[i], values);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          sums[v] += 0.25f * activation.value((values[v] - own.mean[v]) * own.scale[v] + own.bias[v]);
        }
      }
      store(y + row * int64_t{channels} + place.channel, packed<T, V>(sums));
    }
  });
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

// Sums of dz, of dz (x - mean) and of what goes to beta. With `gradient`, adds s dz to it.
template <typename T, int V, bool adds, bool pooled>
__global__ void __launch_bounds__(threads, adds ? add_blocks : sum_blocks)
    sum_gradients(const T* __restrict__ dy, int64_t dy_stride, const T* __restrict__ x, int64_t x_stride,
                  T* __restrict__ gradient, int64_t gradient_stride, int64_t rows, int channels, int lanes,
                  int rows_at_once, Norm norm, Pool pool, float* partial,
                  float* partial_beta) {
  const Place place(lanes, rows_at_once, V, adds ? add_steps : sum_steps);
  float sums[2][V] = {}, to_beta = 0;
  if (place.channel < channels) {
    const Lanes<V> own(norm, place.channel, channels);
    with_activation(norm, [&](const auto activation) {
      for_rows<adds ? add_steps : sum_steps>(place, rows, rows_at_once, [&](int64_t begin, auto number) {
        constexpr int count = decltype(number)::value;
        Lane<T, V> loaded_dys[count], loaded_xs[count], loaded_into[count]{};
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const int64_t row = begin + i * rows_at_once;
          loaded_dys[i] = load_gradient<T, V, pooled>(dy, dy_stride, row, place.channel, pool);
          loaded_xs[i] = load<T, V>(x + row * x_stride + place.channel);
          if constexpr (adds) loaded_into[i] = load<T, V>(gradient + row * gradient_stride + place.channel);
        }
#pragma unroll
        for (int i = 0; i < count; ++i) {
          cut(loaded_dys[i], place.channel, channels);
          cut(loaded_xs[i], place.channel, channels);
          float dys[V], xs[V], into[V];
          unpack(loaded_dys[i], dys);
          unpack(loaded_xs[i], xs);
          unpack(loaded_into[i], into);
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const float centred = xs[v] - own.mean[v];
            const float dz =
                activation.through(pooled ? 0.25f * dys[v] : dys[v], centred * own.scale[v] + own.bias[v], to_beta);
            sums[0][v] += dz;
            sums[1][v] += dz * centred;
            into[v] += own.scale[v] * dz;
          }
          if constexpr (adds) {
            store(gradient + (begin + i * rows_at_once) * gradient_stride + place.channel, packed<T, V>(into));
          }
        }
      });
    });
  }
  cuda_ext::let_the_next_start();
  write_partial<2, V>(sums, place, lanes, rows_at_once, channels, partial);
  if (partial_beta != nullptr) {
    __shared__ float shared[threads];
    shared[threadIdx.x] = to_beta;
    __syncthreads();
    if (threadIdx.x == 0) {
      float sum = 0;
      for (int i = 0; i < blockDim.x; ++i) sum += shared[i];
      partial_beta[blockIdx.y * gridDim.x + blockIdx.x] = sum;
    }
  }
}

// dx = s dz + slope (x - mean) + offset.
template <typename T, int V, bool pooled>
__global__ void __launch_bounds__(threads)
    input_gradient(const T* __restrict__ dy, int64_t dy_stride, const T* __restrict__ x, int64_t x_stride,
                   T* __restrict__ dx, int64_t rows, int channels, int lanes, int rows_at_once, Norm norm,
                   Pool pool, const float* slope, const float* offset) {
  const Place place(lanes, rows_at_once, V, sum_steps);
  if (place.channel >= channels) return;
  float slopes[V], offsets[V], to_beta = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    slopes[v] = slope[place.channel + v];
    offsets[v] = offset[place.channel + v];
  }
  const Lanes<V> own(norm, place.channel, channels);
  with_activation(norm, [&](const auto activation) {
    for_rows<sum_steps>(place, rows, rows_at_once, [&](int64_t begin, auto number) {
      constexpr int count = decltype(number)::value;
      Lane<T, V> loaded_dys[count], loaded_xs[count];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int64_t row = begin + i * rows_at_once;
        loaded_dys[i] = load_gradient<T, V, pooled>(dy, dy_stride, row, place.channel, pool);
        loaded_xs[i] = load<T, V>(x + row * x_stride + place.channel);
      }
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int64_t row = begin + i * rows_at_once;
        float dys[V], xs[V];
        unpack(loaded_dys[i], dys);
        unpack(loaded_xs[i], xs);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float centred = xs[v] - own.mean[v];
          const float dz =
              activation.through(pooled ? 0.25f * dys[v] : dys[v], centred * own.scale[v] + own.bias[v], to_beta);
          dys[v] = own.scale[v] * dz + (slopes[v] * centred + offsets[v]);
        }
        store(dx + row * int64_t{channels} + place.channel, packed<T, V>(dys));
      }
    });
  });
}

// gradient + slope (x - mean) + offset, in `columns` columns, of which those past the channels become zero.
template <typename T, int V>
__global__ void __launch_bounds__(threads)
    finish_gradient(const T* __restrict__ gradient, int64_t gradient_stride, const T* __restrict__ x, int64_t x_stride,
                    T* __restrict__ dx, int64_t rows, int channels, int columns, int lanes, int rows_at_once,
                    const float* mean, const float* slope, const float* offset) {
  const Place place(lanes, rows_at_once, V, steps);
  if (place.channel >= columns) return;
  const bool real = place.channel < channels;  // of the whole lane, or of none
  float means[V] = {}, slopes[V] = {}, offsets[V] = {};
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (!real) break;
    means[v] = mean[place.channel + v];
    slopes[v] = slope[place.channel + v];
    offsets[v] = offset[place.channel + v];
  }
  for_rows<steps>(place, rows, rows_at_once, [&](int64_t begin, auto number) {
    constexpr int count = decltype(number)::value;
    Lane<T, V> loaded[count]{}, loaded_xs[count]{};
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int64_t row = begin + i * rows_at_once;
      if (!real) break;
      loaded[i] = load<T, V>(gradient + row * gradient_stride + place.channel);
      loaded_xs[i] = load<T, V>(x + row * x_stride + place.channel);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int64_t row = begin + i * rows_at_once;
      float values[V], xs[V];
      unpack(loaded[i], values);
      unpack(loaded_xs[i], xs);
#pragma unroll
      for (int v = 0; v < V; ++v) values[v] += offsets[v] + slopes[v] * (xs[v] - means[v]);
      store(dx + row * int64_t{columns} + place.channel, packed<T, V>(values));
    }
  });
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

template <typename T>
void statistics_of(const Tensor& x, const Tensor* copy, const Tensor& mean, const Tensor& variance) {
  const Matrix m = matrix(x, "x");
  const Matrix to = copy == nullptr ? Matrix{nullptr, m.rows, m.channels, m.stride} : matrix(*copy, "y");
  float* means = vector(x, mean, m.channels, "mean");
  float* variances = vector(x, variance, m.channels, "variance");
  if (m.rows == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  // A copy must not write beside its channels.
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && (copy == nullptr || (in_lanes<T>(*copy, to, lane) && m.channels % lane == 0));
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, m.channels, V, steps, value_blocks);
    const auto blocks = static_cast<int>(c.grid.x);
    const Tensor partial = floats(x, {int64_t{blocks} * 2 * m.channels});
    sum_values<T, V><<<c.grid, c.block, 0, stream>>>(static_cast<const T*>(m.data), m.stride, static_cast<T*>(to.data),
                                                     to.stride, m.rows, static_cast<int>(m.channels), c.lanes, c.rows,
                                                     static_cast<float*>(partial.data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    cuda_ext::launch_early(&finish_statistics<T>, finish_grid(m.channels), finish_block, 0, stream,
                           static_cast<const float*>(partial.data_ptr()), blocks, static_cast<const T*>(m.data), m.stride,
                           m.rows, static_cast<int>(m.channels), means, variances);
  });
}

// x: rows of channels. Mean and biased variance of each channel.
std::tuple<Tensor, Tensor> batch_statistics(Tensor x) {
  matrix(x, "x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t channels = x.size(1);
  Tensor mean = torch::stable::new_zeros(x, {channels}, ScalarType::Float);
  Tensor variance = torch::stable::new_zeros(x, {channels}, ScalarType::Float);
  cuda_ext::with_dtype(name, x.scalar_type(),
                       [&](auto t) { statistics_of<decltype(t)>(x, nullptr, mean, variance); });
  return {mean, variance};
}

// The same, written to mean and variance, of what is copied to y meanwhile.
void copy_with_statistics(Tensor x, Tensor y, Tensor mean, Tensor variance) {
  matrix(x, "x");
  same(x, y, "y");
  STD_TORCH_CHECK(x.size(1) == y.size(1), "batch_norm_activation: y must have the channels of x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) { statistics_of<decltype(t)>(x, &y, mean, variance); });
}

template <typename T>
void forward_of(const Tensor& x, const Norm& norm, const Pool& pool, const Tensor& y) {
  const Matrix m = matrix(x, "x");
  if (y.size(0) == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int64_t columns = y.size(1);
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && columns % lane == 0 && cuda_ext::aligned_for_packs(y.data_ptr());
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c =
        pool.height ? cover(y.size(0), columns, V, 1, 8) : cover(y.size(0), columns, V, steps, value_blocks);
    if (pool.height) {
      forward_pooled<T, V><<<c.grid, c.block, 0, stream>>>(static_cast<const T*>(m.data), m.stride,
                                                           static_cast<T*>(y.data_ptr()), y.size(0),
                                                           static_cast<int>(m.channels), c.lanes, c.rows, norm, pool);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
      return;
    }
    cuda_ext::launch_early(&forward<T, V>, c.grid, c.block, 0, stream, static_cast<const T*>(m.data), m.stride,
                           static_cast<T*>(y.data_ptr()), m.rows, static_cast<int>(m.channels),
                           static_cast<int>(columns), c.lanes, c.rows, norm);
  });
}

// height and width 0: no pooling.
Pool pool_of(const Tensor& x, int64_t height, int64_t width) {
  STD_TORCH_CHECK(height >= 0 && width >= 0 && height <= (1 << 24) && width <= (1 << 24) &&
                      (height * width != 0 ? x.size(0) % (height * width) == 0 : height + width == 0),
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
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) { forward_of<decltype(t)>(x, norm, pool, y); });
  return y;
}

// The sums of a backward pass: fills weight, bias, beta, slope and offset; with `gradient`, adds s dz to it.
template <typename T>
void gradients_of(const Tensor& dy, const Tensor& x, const Norm& norm, const Pool& pool,
                  const Tensor* gradient, bool training, const Tensor& weight, const Tensor& bias, const Tensor& beta,
                  const Tensor& slope, const Tensor& offset) {
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
    const Cover c = gradient == nullptr ? cover(m.rows, m.channels, V, sum_steps, sum_blocks)
                                        : cover(m.rows, m.channels, V, add_steps, add_blocks);
    const auto blocks = static_cast<int>(c.grid.x);
    const int beta_blocks = blocks * static_cast<int>(c.grid.y);
    const bool with_beta = norm.beta != nullptr;
    const Tensor partial = floats(x, {int64_t{blocks} * 2 * m.channels + beta_blocks});
    float* sums = static_cast<float*>(partial.data_ptr());
    float* beta_sums = with_beta ? sums + int64_t{blocks} * 2 * m.channels : nullptr;
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
    cuda_ext::launch_early(&finish_gradients, finish_grid(m.channels, with_beta), finish_block, 0, stream, sums,
                           blocks, beta_sums, beta_blocks, m.rows, static_cast<int>(m.channels), norm, training,
                           gradient != nullptr, vector(x, weight, m.channels, "weight's gradient"),
                           vector(x, bias, m.channels, "bias's gradient"),
                           vector(x, beta, with_beta, "beta's gradient"), vector(x, slope, m.channels, "slope"),
                           vector(x, offset, m.channels, "offset"));
  });
}

template <typename T>
void input_gradient_of(const Tensor& dy, const Tensor& x, const Norm& norm, const Pool& pool,
                       const Tensor& slope, const Tensor& offset, const Tensor& dx) {
  const Matrix m = matrix(x, "x"), dm = matrix(dy, "dy");
  if (m.rows == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && in_lanes<T>(dy, dm, lane) && m.channels % lane == 0;
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, m.channels, V, sum_steps, 8);
    const auto launch = [&](auto pooled) {
      input_gradient<T, V, decltype(pooled)::value><<<c.grid, c.block, 0, stream>>>(
          static_cast<const T*>(dm.data), dm.stride, static_cast<const T*>(m.data), m.stride,
          static_cast<T*>(dx.data_ptr()), m.rows, static_cast<int>(m.channels), c.lanes, c.rows, norm, pool,
          vector(x, slope, m.channels, "slope"), vector(x, offset, m.channels, "offset"));
    };
    if (pool.height) launch(std::true_type{});
    else launch(std::false_type{});
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

template <typename T>
void finish_gradient_of(const Tensor& gradient, const Tensor& x, const Tensor& mean, const Tensor& slope,
                        const Tensor& offset, const Tensor& dx) {
  const Matrix m = matrix(x, "x"), gm = matrix(gradient, "gradient");
  if (m.rows == 0) return;
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && in_lanes<T>(gradient, gm, lane) && m.channels % lane == 0 &&
           dx.size(1) % lane == 0;
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, dx.size(1), V, steps, 8);
    finish_gradient<T, V><<<c.grid, c.block, 0, cuda_ext::current_stream(x.get_device_index())>>>(
        static_cast<const T*>(gm.data), gm.stride, static_cast<const T*>(m.data), m.stride,
        static_cast<T*>(dx.data_ptr()), m.rows, static_cast<int>(m.channels), static_cast<int>(dx.size(1)), c.lanes,
        c.rows, vector(x, mean, m.channels, "mean"), vector(x, slope, m.channels, "slope"),
        vector(x, offset, m.channels, "offset"));
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
  const auto vector_like = [&](int64_t size) {
    return x.size(0) ? torch::stable::new_empty(x, {size}, ScalarType::Float)
                     : torch::stable::new_zeros(x, {size}, ScalarType::Float);
  };
  Tensor to_weight = vector_like(channels), to_bias = vector_like(channels), to_beta = vector_like(beta.has_value());
  Tensor slope = vector_like(channels), offset = vector_like(channels);
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    gradients_of<T>(dy, x, norm, pool, nullptr, training, to_weight, to_bias, to_beta, slope, offset);
    input_gradient_of<T>(dy, x, norm, pool, slope, offset, dx);
  });
  return {dx, to_weight, to_bias, to_beta};
}

// gradient += s dz; slope and offset += the coefficients of the rest.
std::tuple<Tensor, Tensor, Tensor> batch_norm_activation_add_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias,
                                                                      Tensor mean, Tensor variance,
                                                                      std::optional<Tensor> beta, int64_t activation,
                                                                      double epsilon, bool training, Tensor gradient,
                                                                      Tensor slope, Tensor offset) {
  matrix(x, "x");
  same(x, dy, "dy");
  same(x, gradient, "gradient");
  STD_TORCH_CHECK(gradient.size(1) == x.size(1), "batch_norm_activation: gradient must have the channels of x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const auto vector_like = [&](int64_t size) {
    return x.size(0) ? torch::stable::new_empty(x, {size}, ScalarType::Float)
                     : torch::stable::new_zeros(x, {size}, ScalarType::Float);
  };
  Tensor to_weight = vector_like(x.size(1)), to_bias = vector_like(x.size(1)), to_beta = vector_like(beta.has_value());
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) {
    gradients_of<decltype(t)>(dy, x, norm, Pool{}, &gradient, training, to_weight, to_bias, to_beta, slope, offset);
  });
  return {to_weight, to_bias, to_beta};
}

// gradient + slope (x - mean) + offset, and columns of zeros.
Tensor centred_gradient(Tensor gradient, Tensor x, Tensor mean, Tensor slope, Tensor offset, int64_t columns) {
  matrix(x, "x");
  same(x, gradient, "gradient");
  check_columns(x, columns, false);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor dx = torch::stable::new_empty(x, {x.size(0), columns});
  cuda_ext::with_dtype(name, x.scalar_type(),
                       [&](auto t) { finish_gradient_of<decltype(t)>(gradient, x, mean, slope, offset, dx); });
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def("batch_statistics(Tensor x) -> (Tensor, Tensor)");
  m.def("copy_with_statistics(Tensor x, Tensor(a!) y, Tensor(b!) mean, Tensor(c!) variance) -> ()");
  m.def(
      "batch_norm_activation(Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, Tensor? beta, "
      "int activation, float epsilon, int columns, int height=0, int width=0) -> Tensor");
  m.def(
      "batch_norm_activation_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, "
      "Tensor? beta, int activation, float epsilon, bool training, int height=0, int width=0) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "batch_norm_activation_add_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor variance, Tensor? beta, int activation, float epsilon, bool training, Tensor(a!) gradient, "
      "Tensor(b!) slope, Tensor(c!) offset) -> (Tensor, Tensor, Tensor)");
  m.def("centred_gradient(Tensor gradient, Tensor x, Tensor mean, Tensor slope, Tensor offset, int columns) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("batch_statistics", TORCH_BOX(&batch_statistics));
  m.impl("copy_with_statistics", TORCH_BOX(&copy_with_statistics));
  m.impl("batch_norm_activation", TORCH_BOX(&batch_norm_activation));
  m.impl("batch_norm_activation_backward", TORCH_BOX(&batch_norm_activation_backward));
  m.impl("batch_norm_activation_add_backward", TORCH_BOX(&batch_norm_activation_add_backward));
  m.impl("centred_gradient", TORCH_BOX(&centred_gradient));
}
