// What the kernels over channels share: how a block walks the rows of a channels-last tensor, and how sums over all
// rows are made of sums over some, in an order that is always the same.
#pragma once

#include <algorithm>
#include <cmath>

#include "../common/launch.cuh"

namespace cuda_ext::channels {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 256;

// V neighbouring channels of one row, moved by one load or store.
template <typename T, int V>
struct alignas(sizeof(T) * V) Lane {
  T values[V];
};

template <typename T, int V>
__device__ Lane<T, V> load(const T* from) {
  return *reinterpret_cast<const Lane<T, V>*>(from);
}

template <typename T, int V>
__device__ void store(T* to, const Lane<T, V>& lane) {
  *reinterpret_cast<Lane<T, V>*>(to) = lane;
}

// The numbers of a lane in the type that is computed in, and back; two of half precision are rounded by one
// instruction.
template <typename T, int V>
__device__ void unpack(const Lane<T, V>& lane, float (&values)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) values[v] = static_cast<float>(lane.values[v]);
}

template <typename T, int V>
__device__ Lane<T, V> packed(const float (&values)[V]) {
  Lane<T, V> lane;
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
#pragma unroll
    for (int v = 0; v < V; v += 2) {
      const auto pair = [&] {
        if constexpr (std::is_same_v<T, __half>) return __floats2half2_rn(values[v], values[v + 1]);
        else return __floats2bfloat162_rn(values[v], values[v + 1]);
      }();
      lane.values[v] = pair.x;
      lane.values[v + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) lane.values[v] = static_cast<T>(values[v]);
  }
  return lane;
}

__device__ inline float middle_of(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }

// Where a channel's sums begin, so that they keep the digits where the mean is large: the middle one of three rows. One
// row that is far from the others, as it may be, would cost the others' squares their digits.
template <typename T, int V>
__device__ void beginnings(const T* x, int64_t stride, int64_t rows, float (&from)[V]) {
  float values[3][V];
#pragma unroll
  for (int i = 0; i < 3; ++i) unpack(load<T, V>(x + rows * (2 * i + 1) / 6 * stride), values[i]);
#pragma unroll
  for (int v = 0; v < V; ++v) from[v] = middle_of(values[0][v], values[1][v], values[2][v]);
}

// Zeros for what lies past the channels in a lane that they do not fill.
template <typename T, int V>
__device__ void cut(Lane<T, V>& lane, int channel, int channels) {
  if (channel + V <= channels) return;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (channel + v >= channels) lane.values[v] = static_cast<T>(0.0f);
  }
}

// How a launch covers `rows` x `channels`. Neighbouring threads take neighbouring lanes of a row, `lanes` of them, and
// a block takes `rows` rows at once, and some such steps, of neighbouring rows, at a time, whose loads are under way
// together. A thread keeps its lane for all of its rows, so that what belongs to a channel stays in registers.
// blockIdx.y counts groups of lanes, for rows of more channels than a block has threads.
struct Cover {
  int lanes;
  int rows;
  dim3 grid;
  int block;
};

inline Cover cover(int64_t rows, int64_t channels, int width, int steps_at_a_time, int blocks_a_multiprocessor) {
  const auto all = static_cast<int>((channels + width - 1) / width);
  const int lanes = std::min(all, threads);
  const int at_once = threads / lanes;
  const int groups = (all + lanes - 1) / lanes;
  const int64_t resident = std::max(1, cuda_ext::multiprocessors() * blocks_a_multiprocessor / groups);
  const int64_t steps = (rows + at_once - 1) / at_once;
  // At most so many rows a thread that a sum in float keeps its digits.
  const int64_t blocks =
      std::max(std::min((steps + steps_at_a_time - 1) / steps_at_a_time, resident), (steps + 511) / 512);
  return {lanes, at_once, dim3(static_cast<unsigned>(std::max<int64_t>(blocks, 1)), groups), lanes * at_once};
}

// Where a thread stands in its launch's cover.
struct Place {
  int lane;
  int group;
  int64_t row;
  int64_t stride;
  int channel;  // the first of its lane

  __device__ Place(int lanes, int rows, int width, int steps)
      : lane(threadIdx.x % lanes),
        group(threadIdx.x / lanes),
        row(int64_t{blockIdx.x} * rows * steps + group),
        stride(int64_t{gridDim.x} * rows * steps),
        channel((blockIdx.y * lanes + lane) * width) {}
};

// Calls `function` for all rows of a thread: with `steps` rows at a time, the first of them and that number, a
// constant, while there are so many, and then one by one. With `back` the other way round, from the last row to the
// first: what an earlier walk read last is still in the L2 cache.
template <int steps, bool back = false, typename Function>
__device__ void for_rows(const Place& place, int64_t rows, int at_once, Function function) {
  const int64_t first_of_last = rows - (steps - 1) * at_once;
  if constexpr (back) {
    const int64_t whole = first_of_last > place.row ? (first_of_last - 1 - place.row) / place.stride + 1 : 0;
    int64_t begin = place.row + whole * place.stride;
    for (int64_t single = begin; single < rows; single += at_once) {
      function(single, std::integral_constant<int, 1>{});
    }
    for (begin -= place.stride; begin >= place.row; begin -= place.stride) {
      function(begin, std::integral_constant<int, steps>{});
    }
  } else {
    int64_t begin = place.row;
    for (; begin < first_of_last; begin += place.stride) function(begin, std::integral_constant<int, steps>{});
    for (; begin < rows; begin += at_once) function(begin, std::integral_constant<int, 1>{});
  }
}

// Add what the block's threads hold for one lane and write it: partial[blockIdx.x][quantity][channel].
template <int Q, int V>
__device__ void write_partial(const float (&sums)[Q][V], const Place& place, int lanes, int rows, int channels,
                              float* partial) {
  __shared__ float shared[threads * V];
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; ++v) shared[(place.group * lanes + place.lane) * V + v] = sums[q][v];
    __syncthreads();
    for (int i = threadIdx.x; i < lanes * V; i += blockDim.x) {
      float sum = 0;
      for (int r = 0; r < rows; ++r) sum += shared[r * lanes * V + i];
      const int channel = blockIdx.y * lanes * V + i;
      if (channel < channels) partial[(int64_t{blockIdx.x} * Q + q) * channels + channel] = sum;
    }
  }
}

constexpr int finish_channels = 8;
constexpr int finish_parts = 128;
constexpr int finish_threads = finish_channels * finish_parts;

// The sums over all blocks of Q quantities, in double; called by blocks of finish_channels x parts threads, many parts
// where there are few channels. Threads of part 0 get the results.
template <int Q, int parts = finish_parts, typename C>
__device__ void total(const C* partial, int blocks, int64_t block_stride, int64_t quantity_stride, double (&sums)[Q]) {
  __shared__ double shared[Q][parts][finish_channels];
#pragma unroll
  for (int q = 0; q < Q; ++q) sums[q] = 0;
  if (partial != nullptr) {
#pragma unroll 4
    for (int b = threadIdx.y; b < blocks; b += parts) {
#pragma unroll
      for (int q = 0; q < Q; ++q) sums[q] += static_cast<double>(partial[b * block_stride + q * quantity_stride]);
    }
  }
#pragma unroll
  for (int q = 0; q < Q; ++q) shared[q][threadIdx.y][threadIdx.x] = sums[q];
  for (int half = parts / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y >= half) continue;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      sums[q] += shared[q][threadIdx.y + half][threadIdx.x];
      shared[q][threadIdx.y][threadIdx.x] = sums[q];
    }
  }
}

// A matrix of rows and channels whose channels are neighbours in memory; from one row to the next it is `stride`.
struct Matrix {
  void* data;
  int64_t rows, channels, stride;
};

inline Matrix matrix(const Tensor& x, const char* name) {
  STD_TORCH_CHECK(x.is_cuda(), "batch_norm_activation: ", name, " must be on a GPU");
  STD_TORCH_CHECK(x.dim() == 2, "batch_norm_activation: ", name, " must have rows and channels, got ", x.dim(),
                  " dimensions");
  STD_TORCH_CHECK(x.size(1) <= 1 || x.stride(1) == 1, "batch_norm_activation: the channels of ", name,
                  " must be neighbours, got a stride of ", x.stride(1));
  STD_TORCH_CHECK(x.size(1) >= 1 && x.size(1) <= (1 << 24), "batch_norm_activation: ", name, " has ", x.size(1),
                  " channels");
  // The stride of a single row says nothing and may be anything.
  const int64_t stride = x.size(0) > 1 ? x.stride(0) : std::max(x.stride(0), x.size(1));
  STD_TORCH_CHECK(stride >= x.size(1), "batch_norm_activation: the rows of ", name, " overlap");
  return {x.data_ptr(), x.size(0), x.size(1), stride};
}

inline void same(const Tensor& x, const Tensor& y, const char* name, bool rows = true) {
  STD_TORCH_CHECK(x.scalar_type() == y.scalar_type(), "batch_norm_activation: ", name, " has another dtype than x");
  STD_TORCH_CHECK(x.get_device_index() == y.get_device_index(), "batch_norm_activation: ", name,
                  " is on another device than x");
  STD_TORCH_CHECK(!rows || (x.size(0) == y.size(0) && x.size(1) <= y.size(1)), "batch_norm_activation: ", name,
                  " must be as large as x, got ", y.size(0), " x ", y.size(1), " beside ", x.size(0), " x ", x.size(1));
}

// A vector of one number a channel.
inline float* vector(const Tensor& x, const Tensor& y, int64_t size, const char* name) {
  STD_TORCH_CHECK(y.is_cuda() && y.get_device_index() == x.get_device_index(), "batch_norm_activation: ", name,
                  " is on another device than x");
  STD_TORCH_CHECK(y.scalar_type() == ScalarType::Float, "batch_norm_activation: ", name, " must be float32");
  STD_TORCH_CHECK(y.numel() == size && y.is_contiguous(), "batch_norm_activation: ", name, " must be contiguous, ",
                  size, " numbers, got ", y.numel());
  return static_cast<float*>(y.data_ptr());
}

// Whether rows can be read and written in lanes of V: each row begins on one, and the last one lies within the tensor's
// storage even where the channels do not fill it (what is beside them is read and left as it was).
template <typename T>
bool in_lanes(const Tensor& x, const Matrix& m, int width) {
  if (reinterpret_cast<std::uintptr_t>(m.data) % (sizeof(T) * width) || m.stride % width) return false;
  if (m.channels % width == 0) return true;
  int64_t bytes = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(x.get(), &bytes));
  const int64_t filled = (m.channels + width - 1) / width * width;
  return filled <= m.stride &&
         (x.storage_offset() + (m.rows - 1) * m.stride + filled) * static_cast<int64_t>(sizeof(T)) <= bytes;
}

inline Tensor floats(const Tensor& x, std::initializer_list<int64_t> shape) {
  return torch::stable::new_empty(x, torch::headeronly::IntHeaderOnlyArrayRef(shape.begin(), shape.size()),
                                  ScalarType::Float);
}

}  // namespace cuda_ext::channels
