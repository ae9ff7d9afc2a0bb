// What the products of a dense block share: the norm in front of them, the statistics of what they give, and sums over
// blocks. A warp holds its products as mma.cuh draws c, NT of them side by side.
//
// The kernels are launched early. Before one waits for the kernel before it, it reads only what was written earlier still,
// such as weights: that kernel has itself waited for those before it.
#pragma once

#include "../common/mma.cuh"
#include "finish.cuh"

namespace cuda_ext::channels {

// Rows in shared memory are 16 bytes longer than what they hold, so that eight of them lie in different banks.
constexpr int skew = 8;

// Gives away a block's shared memory piece by piece; on the host, of no memory, it counts the bytes.
struct Pieces {
  unsigned char* memory;
  int bytes = 0;

  template <typename T>
  __host__ __device__ T* take(int count) {
    T* const own = reinterpret_cast<T*>(memory + bytes);
    bytes += count * static_cast<int>(sizeof(T));
    return own;
  }
};

__device__ inline float2 scale_and_shift(const Norm& norm, int channel, int channels) {
  if (channel >= channels) return {0, 0};
  const float scale = norm.weight[channel] * inverse_root(norm.variance[channel] + norm.epsilon);
  return {scale, norm.bias[channel] - norm.mean[channel] * scale};
}

// The output that column `n` of product `j` of a warp stands for. A thread holds columns 2t and 2t + 1 of each product;
// so ordered, those of `group` products are neighbours and are stored at once.
template <int group>
__device__ int output_of(int j, int n) {
  return j / group * group * 8 + n / 2 * 2 * group + j % group * 2 + n % 2;
}

// A warp's fragment of 16 channels of 16 rows, normalised and activated. xs: the thread's address in the staged tile; table:
// each channel's scale and shift; channels: how many there are from the fragment's first on.
template <typename T, typename Activation>
__device__ __forceinline__ void load_activated(unsigned (&a)[4], unsigned xs, const float2* table, int channels, int lane,
                                               const Activation& activation) {
  const float4 low = *reinterpret_cast<const float4*>(table + lane % 4 * 2);
  const float4 high = *reinterpret_cast<const float4*>(table + lane % 4 * 2 + 8);
  cuda_ext::load_matrices(a, xs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 values = cuda_ext::unpack<T>(a[i]);
    const float4& by = i < 2 ? low : high;
    const int first = lane % 4 * 2 + i / 2 * 8;
    // Past the channels lies what others wrote or will write.
    if (channels < 16) {
      if (first >= channels) values.x = 0;
      if (first + 1 >= channels) values.y = 0;
    }
    a[i] = cuda_ext::pack<T>(activation.value(values.x * by.x + by.y), activation.value(values.y * by.z + by.w));
  }
}

// Two neighbours of dy with a norm's part of the gradient, dy + slope (y - mean) + offset, by slope and offset - slope mean.
template <typename T>
__device__ __forceinline__ unsigned finished_pair(unsigned dy, unsigned y, float2 slope, float2 rest) {
  const float2 values = cuda_ext::unpack<T>(dy), of_y = cuda_ext::unpack<T>(y);
  return cuda_ext::pack<T>(values.x + (slope.x * of_y.x + rest.x), values.y + (slope.y * of_y.y + rest.y));
}

// The slopes of K outputs, and behind them the rests; `thread` is one of so many.
template <int K, typename T>
__device__ __forceinline__ void fill_finish(float* table, const Given<T>& given, int thread, int count) {
  for (int k = thread; k < K; k += count) {
    const float slope = k < given.outputs ? given.slope[k] : 0.0f;
    table[k] = slope;
    table[K + k] = k < given.outputs ? given.offset[k] - slope * given.mean[k] : 0.0f;
  }
}

// A row's products of one warp to y. half: which row of the fragments.
template <typename T, int NT, int group>
__device__ __forceinline__ void store_row(T* y, const unsigned (&result)[NT][2], int half, int first_output,
                                          int outputs, int lane) {
#pragma unroll
  for (int j = 0; j < NT; j += group) {
    const int output = first_output + output_of<group>(j, lane % 4 * 2);
    if (output >= outputs) continue;
    Lane<unsigned, group> lanes_of_y;
#pragma unroll
    for (int i = 0; i < group; ++i) lanes_of_y.values[i] = result[j + i][half];
    store(reinterpret_cast<unsigned*>(y + output), lanes_of_y);
  }
}

// The middle ones of three rows' values, from which on the block sums (channels::beginnings), of a warp's outputs. `rows` of
// its rows, at least one, are real.
template <typename T, int NT, int group>
__device__ __forceinline__ void find_center(float* center, const unsigned (&result)[NT][2], int rows, int lane) {
  const int second = lane % 4 + 4 * (rows > 3 ? 3 : rows - 1), third = lane % 4 + 4 * (rows > 6 ? 6 : rows - 1);
#pragma unroll
  for (int j = 0; j < NT; ++j) {
    const unsigned own = result[j][0];
    const float2 a = cuda_ext::unpack<T>(own);
    const float2 b = cuda_ext::unpack<T>(__shfl_sync(0xffffffffu, own, second));
    const float2 c = cuda_ext::unpack<T>(__shfl_sync(0xffffffffu, own, third));
    if (lane < 4) {
      center[output_of<group>(j, lane * 2)] = middle_of(a.x, b.x, c.x);
      center[output_of<group>(j, lane * 2 + 1)] = middle_of(a.y, b.y, c.y);
    }
  }
}

// Adds what a row's products lie from the center, and its square, to the sums. half: which row of the fragments.
template <typename T, int NT, int group>
__device__ __forceinline__ void add_row(const unsigned (&result)[NT][2], int half, float (&sums)[2][NT][2],
                                        const float* center, int lane) {
#pragma unroll
  for (int j = 0; j < NT; ++j) {
    const int output = output_of<group>(j, lane % 4 * 2);
    const float2 values = cuda_ext::unpack<T>(result[j][half]);
    const float first = values.x - center[output], second = values.y - center[output + 1];
    sums[0][j][0] += first;
    sums[0][j][1] += second;
    sums[1][j][0] += first * first;
    sums[1][j][1] += second * second;
  }
}

// The sums of a warp's rows to shared memory: to[quantity][output].
template <int NT, int group>
__device__ __forceinline__ void share_sums(float* to, float (&sums)[2][NT][2], int lane) {
#pragma unroll
  for (int q = 0; q < 2; ++q) {
#pragma unroll
    for (int j = 0; j < NT; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& sum = sums[q][j][e];
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        sum += __shfl_xor_sync(0xffffffffu, sum, 8);
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        if (lane < 4) to[q * NT * 8 + output_of<group>(j, lane * 2 + e)] = sum;
      }
    }
  }
}

// The block's sums of its outputs and of their squares, of all of its `count` rows, and from zero on, in double. Its first
// `warps` warps hold the same outputs; sync waits for them.
template <int NT, int warps, int group, typename Sync>
__device__ __forceinline__ void store_sums(double* partial, float (&sums)[2][NT][2], float* shared_sums,
                                           const float* center, int64_t count, int outputs, int first_output, Sync sync) {
  const int thread = threadIdx.x;
  share_sums<NT, group>(shared_sums + thread / 32 * 2 * NT * 8, sums, thread % 32);
  sync();
  for (int n = thread; n < NT * 8; n += warps * 32) {
    double sum = 0, square = 0;
    for (int i = 0; i < warps; ++i) {
      sum += shared_sums[i * 2 * NT * 8 + n];
      square += shared_sums[(i * 2 + 1) * NT * 8 + n];
    }
    const double from = center[n], rows = static_cast<double>(count);
    if (first_output + n < outputs) {
      partial[(int64_t{blockIdx.x} * 2) * outputs + first_output + n] = sum + rows * from;
      partial[(int64_t{blockIdx.x} * 2 + 1) * outputs + first_output + n] =
          square + 2 * from * sum + rows * from * from;
    }
  }
}

// How many of `rows` rows a block takes that goes through the tiles of its grid.
__device__ inline int64_t rows_of_block(int64_t rows, int64_t tiles, int tile_rows) {
  int64_t count = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    count += rows - tile * tile_rows < tile_rows ? rows - tile * tile_rows : tile_rows;
  }
  return count;
}

// A table of N channels in shared memory: mean, scale and bias of each, with a gap behind those of one thread, so that
// four threads read different banks.
template <int group>
constexpr __host__ __device__ int in_table(int channel) { return channel + channel / (2 * group); }

__device__ inline float4 table_entry(const Norm& norm, int c, int channels) {
  return c < channels ? make_float4(norm.mean[c], scale_and_shift(norm, c, channels).x, norm.bias[c], 0) : float4{};
}

template <int group>
__device__ void fill_table(float4* table, const Norm& norm, int first, int count, int channels) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    table[in_table<group>(i)] = table_entry(norm, first + i, channels);
  }
}

// A block's place among numbers of which each of its `sides` has one, if there are any.
__device__ inline float* place_of_block(float* numbers, int side = 0, int sides = 1) {
  return numbers == nullptr ? nullptr : numbers + (blockIdx.y * sides + side) * gridDim.x + blockIdx.x;
}

// The sums of W warps, in which this is `thread`: partial[blockIdx.x][quantity][channel] from the first channel to the last,
// and the place of beta's. sync: waits for these warps.
template <int W, int NT, int group, typename Sync>
__device__ __forceinline__ void store_gradients(float (&sums)[2][NT][2], float to_beta, float* shared_sums, int first,
                                                int last, int channels, float* partial, float* own_beta, int thread,
                                                Sync sync) {
  constexpr int N = NT * 8;
  const int warp = thread / 32, lane = thread % 32;
  share_sums<NT, group>(shared_sums + warp * 2 * N, sums, lane);
  float* const betas = shared_sums + W * 2 * N;
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) to_beta += __shfl_xor_sync(0xffffffffu, to_beta, apart);
  if (lane == 0) betas[warp] = to_beta;
  sync();
  for (int i = thread; i < 2 * N; i += W * 32) {
    float sum = 0;
    for (int w = 0; w < W; ++w) sum += shared_sums[w * 2 * N + i];
    const int channel = first + i % N;
    if (channel < last) partial[(int64_t{blockIdx.x} * 2 + i / N) * channels + channel] = sum;
  }
  if (own_beta != nullptr && thread == 0) {
    float sum = 0;
    for (int w = 0; w < W; ++w) sum += betas[w];
    *own_beta = sum;
  }
}

// As many blocks as the GPU holds at once.
template <typename Kernel>
int blocks_at_once(Kernel kernel, int block_threads, int shared_bytes) {
  cuda_ext::allow_all_shared_memory(kernel);
  int resident = 0;
  STD_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, block_threads, shared_bytes));
  return cuda_ext::multiprocessors() * resident;
}

// Whether there are so few rows that blocks of 32 or 64 of them, at most two on a multiprocessor, take less time than large
// blocks, which leave multiprocessors idle.
inline bool are_few(int64_t rows) { return rows < int64_t{2} * 32 * cuda_ext::multiprocessors(); }

// A pair of neighbouring columns c and c + 1 of a row of weights goes to the place in shared memory that `output_of` gives to
// its product and column, so that a thread gets neighbouring columns of neighbouring products.
template <int group>
__device__ int place_of(int column) {
  const int of_group = column % (8 * group);
  return column - of_group + of_group % (2 * group) / 2 * 8 + of_group / (2 * group) * 2;
}

}  // namespace cuda_ext::channels
