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
#pragma once

#include "norm.cuh"

namespace cuda_ext::channels {

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
static __global__ void __launch_bounds__(threads, value_blocks)
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
static __global__ void __launch_bounds__(threads, value_blocks)
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
static __global__ void __launch_bounds__(threads)
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
static __global__ void __launch_bounds__(threads, adds ? add_blocks : sum_blocks)
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
static __global__ void __launch_bounds__(threads)
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
static __global__ void __launch_bounds__(threads)
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

}  // namespace cuda_ext::channels
