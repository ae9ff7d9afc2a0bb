// What follows a dense block's products: the sums over all blocks, in a fixed order and in double, and what they become.
#pragma once

#include "../batch_norm_activation/norm.cuh"

namespace cuda_ext::channels {

// Blocks of finish_channels x sum_parts threads, or half as many for few sums. So many loads of a thread are under way at
// once: two blocks of each of an H200's multiprocessors are summed in one round.
constexpr int sum_parts = 64;
constexpr int sum_loads = 5;

// The sums over all blocks of Q quantities of a thread's channel; threads of part 0 get the results. These kernels are short
// and many: the block waits once, where `total` waits at each halving.
template <int Q, int parts = sum_parts, typename C>
__device__ void sum_blocks_of(const C* partial, int blocks, int64_t block_stride, int64_t quantity_stride,
                              double (&sums)[Q]) {
  constexpr int warps = finish_channels * parts / 32;
  __shared__ double shared[warps][Q][finish_channels];
#pragma unroll
  for (int q = 0; q < Q; ++q) sums[q] = 0;
  for (int first = threadIdx.y; partial != nullptr && first < blocks; first += sum_loads * parts) {
    C loaded[sum_loads][Q];
#pragma unroll
    for (int i = 0; i < sum_loads; ++i) {
      const int block = first + i * parts;
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        loaded[i][q] = block < blocks ? partial[block * block_stride + q * quantity_stride] : static_cast<C>(0);
      }
    }
#pragma unroll
    for (int i = 0; i < sum_loads; ++i) {
#pragma unroll
      for (int q = 0; q < Q; ++q) sums[q] += static_cast<double>(loaded[i][q]);
    }
  }
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    for (int apart = finish_channels; apart < 32; apart *= 2) sums[q] += __shfl_xor_sync(0xffffffffu, sums[q], apart);
    if (threadIdx.y % (32 / finish_channels) == 0) {
      shared[threadIdx.y / (32 / finish_channels)][q][threadIdx.x] = sums[q];
    }
  }
  __syncthreads();
  if (threadIdx.y != 0) return;
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    sums[q] = 0;
#pragma unroll
    for (int warp = 0; warp < warps; ++warp) sums[q] += shared[warp][q][threadIdx.x];
  }
}

inline const dim3 sum_block(finish_channels, sum_parts);

static __global__ void __launch_bounds__(finish_channels * sum_parts)
    finish_product(const double* partial, int blocks, int64_t rows, int outputs, float* mean, float* variance) {
  cuda_ext::wait_for_the_one_before();
  cuda_ext::let_the_next_start();
  const int output = blockIdx.x * finish_channels + threadIdx.x;
  const bool real = output < outputs;
  double sums[2];
  sum_blocks_of(real ? partial + output : nullptr, blocks, int64_t{2} * outputs, outputs, sums);
  if (real && threadIdx.y == 0) {
    const double center = sums[0] / static_cast<double>(rows);
    const double found = sums[1] / static_cast<double>(rows) - center * center;
    mean[output] = static_cast<float>(center);
    variance[output] = static_cast<float>(found < 0 ? 0.0 : found);
  }
}

// What a backward kernel's blocks summed: of `size` weights, and of each channel of the norm in front of them.
struct Partial {
  const float* weights;
  int64_t size;
  const float *channels, *betas;
  int blocks, beta_blocks;
};

// What the sums become: the gradients of the weights, and of the norm's weight, bias and beta; slope and offset of the
// rest of its input's gradient, which with `adds` are added to what is there.
struct Gradients {
  float *weights, *weight, *bias, *beta, *slope, *offset;
  bool adds;
};

// A block sums beta's gradient, some those of channels, as finish_gradients does (norm.cuh), and the others four weights a
// thread. That file is part of the keys of networks without dense blocks, and so stays as it is.
constexpr int weights_of_thread = 4;

template <int parts>
static __global__ void __launch_bounds__(finish_channels * parts)
    finish_backward(Partial partial, Gradients to, int64_t rows, int channels, Norm norm, bool training) {
  cuda_ext::wait_for_the_one_before();
  cuda_ext::let_the_next_start();
  const int for_channels = (channels + finish_channels - 1) / finish_channels;
  const int block = static_cast<int>(blockIdx.x) - 1 - for_channels;
  if (block >= 0) {
    const int64_t i = (int64_t{block} * finish_channels + threadIdx.x) * weights_of_thread;
    double sums[weights_of_thread];
    sum_blocks_of<weights_of_thread, parts>(i < partial.size ? partial.weights + i : nullptr, partial.blocks, partial.size, 1, sums);
    if (i >= partial.size || threadIdx.y != 0) return;
    Lane<float, weights_of_thread> found;
#pragma unroll
    for (int v = 0; v < weights_of_thread; ++v) found.values[v] = static_cast<float>(sums[v]);
    store(to.weights + i, found);
    return;
  }
  if (blockIdx.x == 0) {
    if (partial.betas == nullptr) return;
    double sum[1];
    sum_blocks_of<1, parts>(threadIdx.x == 0 ? partial.betas : nullptr, partial.beta_blocks, 1, 0, sum);
    if (threadIdx.x == 0 && threadIdx.y == 0) *to.beta = static_cast<float>(sum[0]);
    return;
  }
  const int channel = (static_cast<int>(blockIdx.x) - 1) * finish_channels + threadIdx.x;
  const bool real = channel < channels;
  double sums[2];
  sum_blocks_of<2, parts>(real ? partial.channels + channel : nullptr, partial.blocks, int64_t{2} * channels, channels, sums);
  if (!real || threadIdx.y != 0) return;
  const double inverse = 1.0 / sqrt(static_cast<double>(norm.variance[channel]) + static_cast<double>(norm.epsilon));
  to.weight[channel] = static_cast<float>(sums[1] * inverse);
  to.bias[channel] = static_cast<float>(sums[0]);
  const double share = training ? -static_cast<double>(norm.weight[channel]) * inverse / static_cast<double>(rows) : 0;
  const double slope = share * inverse * inverse * sums[1], offset = share * sums[0];
  to.slope[channel] = static_cast<float>(slope + (to.adds ? static_cast<double>(to.slope[channel]) : 0.0));
  to.offset[channel] = static_cast<float>(offset + (to.adds ? static_cast<double>(to.offset[channel]) : 0.0));
}

inline void launch_finish(const Partial& partial, const Gradients& to, int64_t rows, int channels, const Norm& norm,
                          bool training, cudaStream_t stream) {
  STD_TORCH_CHECK(partial.size % weights_of_thread == 0, "a dense block's weights must be a multiple of ",
                  weights_of_thread);
  constexpr int of_block = finish_channels * weights_of_thread;
  const auto blocks = static_cast<unsigned>(1 + (channels + finish_channels - 1) / finish_channels +
                                            (partial.size + of_block - 1) / of_block);
  const auto with = [&](auto parts) {
    constexpr int P = decltype(parts)::value;
    cuda_ext::launch_early(&finish_backward<P>, dim3(blocks), dim3(finish_channels, P), 0, stream, partial, to, rows, channels,
                           norm, training);
  };
  if (partial.blocks <= sum_parts) with(std::integral_constant<int, sum_parts / 2>{});
  else with(std::integral_constant<int, sum_parts>{});
}

// Rows that are a gradient: dy, or, where y is given, dy + slope (y - mean) + offset, of a norm behind them.
template <typename T>
struct Given {
  const T *dy, *y;
  int64_t dy_stride, y_stride;
  const float *mean, *slope, *offset;
  int outputs;
};

constexpr int finish_steps = 4;

// As finish_gradient of batch_norm_activation, which is not launched early: the whole of given rows, to rows of `columns` of
// which those past the outputs become zero. A thread takes V columns.
template <typename T, int V>
static __global__ void __launch_bounds__(threads) finish_rows(Given<T> given, int rows, T* to, int columns) {
  const int lanes = columns / V, at_once = threads / lanes;
  const int column = static_cast<int>(threadIdx.x) % lanes * V;
  const int first = static_cast<int>(blockIdx.x) * finish_steps * at_once + static_cast<int>(threadIdx.x) / lanes;
  const bool real = column < given.outputs;  // of the whole lane, or of none
  cuda_ext::wait_for_the_one_before();
  cuda_ext::let_the_next_start();
  Lane<T, V> dys[finish_steps]{}, ys[finish_steps]{};
#pragma unroll
  for (int i = 0; i < finish_steps; ++i) {
    const int row = first + i * at_once;
    if (!real || row >= rows) continue;
    dys[i] = load<T, V>(given.dy + row * given.dy_stride + column);
    ys[i] = load<T, V>(given.y + row * given.y_stride + column);
  }
#pragma unroll
  for (int i = 0; i < finish_steps; ++i) {
    const int row = first + i * at_once;
    if (row >= rows) continue;
    float values[V], of_y[V];
    unpack(dys[i], values);
    unpack(ys[i], of_y);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (real) values[v] += given.offset[column + v] + given.slope[column + v] * (of_y[v] - given.mean[column + v]);
    }
    store(to + int64_t{row} * columns + column, packed<T, V>(values));
  }
}

// The most columns of dy and y that a thread may take at once: 4, 2 or 1.
template <typename T>
int lanes_of(const Given<T>& given) {
  int width = 4;
  const auto begins = [&](const T* at) { return reinterpret_cast<std::uintptr_t>(at) % (sizeof(T) * width) == 0; };
  while (width > 1 && (given.outputs % width || given.dy_stride % width || given.y_stride % width || !begins(given.dy) ||
                       !begins(given.y))) {
    width /= 2;
  }
  return width;
}

// Makes given rows whole beforehand, in `columns` of which those past the outputs are zero. `given` then names them, and the
// tensor that is returned has them.
template <typename T>
Tensor finish(Given<T>& given, const Tensor& like, int64_t rows, int columns) {
  Tensor whole = torch::stable::new_empty(like, {rows, int64_t{columns}});
  T* const to = static_cast<T*>(whole.data_ptr());
  const auto with = [&](auto v) {
    constexpr int V = decltype(v)::value;
    const int of_block = threads / (columns / V) * finish_steps;
    cuda_ext::launch_early(&finish_rows<T, V>, dim3((static_cast<int>(rows) + of_block - 1) / of_block), dim3(threads), 0,
                           cuda_ext::current_stream(like.get_device_index()), given, static_cast<int>(rows), to, columns);
  };
  if (lanes_of(given) == 4) with(std::integral_constant<int, 4>{});
  else with(std::integral_constant<int, 1>{});
  given = {to, nullptr, columns, 0, nullptr, nullptr, nullptr, columns};
  return whole;
}

}  // namespace cuda_ext::channels
