// What the backward pass makes of rows: the gradients of their scores, their way to shared memory, and what stands apart.
#pragma once

#include "tile.cuh"

namespace cuda_ext::attention {

// Two warpgroups, with as many registers as a thread may have.
constexpr int backward_threads = 256;

// Columns c and c + 1 of a row, of which there are `width`.
__device__ inline void store_two(float* row, int c, int width, float2 two) {
  if (width % 2 == 0) {
    if (c < width) *reinterpret_cast<float2*>(row + c) = two;
  } else {
    if (c < width) row[c] = two.x;
    if (c + 1 < width) row[c + 1] = two.y;
  }
}

// Where a thread's two rows of a unit are: their places among the states, their sequences, whether they are real steps,
// and their weights.
struct UnitRows {
  int place[2], sequence[2];
  bool real[2];
  float share[2];
};

// Asks for what the entries of the index lead to. first: the thread's first row among those of the index.
template <typename T>
__device__ __forceinline__ void fetch_rows(const Backward& call, const int32_t (&entries)[2], int64_t first, int q) {
  const Rows& rows = call.rows;
  const int width = call.parameters.width;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t sequence = rows.ragged ? entries[i] : entries[i] / static_cast<int>(rows.steps);
    if (entries[i] >= 0 && sequence < rows.sequences) {
      const int64_t row = rows.ragged ? first + 8 * i : entries[i];
      const auto* states = reinterpret_cast<const char*>(static_cast<const T*>(call.states) + row * width);
      const auto* gradient = reinterpret_cast<const char*>(static_cast<const T*>(call.gradient) + sequence * width);
      const auto* pooled = reinterpret_cast<const char*>(static_cast<const T*>(call.pooled) + sequence * width);
      for (int at = 128 * q; at < width * static_cast<int>(sizeof(T)); at += 512) {
        fetch_ahead(states + at);
        fetch_ahead(gradient + at);
        fetch_ahead(pooled + at);
      }
      if (q == 3) fetch_ahead(static_cast<const float*>(call.weights) + row);
    }
  }
}

template <typename T, int eighths>
__device__ __forceinline__ void load_rows(UnitRows& of, Row<T, eighths> (&x)[2], const Backward& call,
                                          const int32_t (&entries)[2], int64_t first, int q) {
  const Rows& rows = call.rows;
  const int width = call.parameters.width;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t entry = entries[i];
    of.place[i] = rows.ragged ? static_cast<int>(first + 8 * i) : entry;
    of.sequence[i] = rows.ragged ? entry : entry / static_cast<int>(rows.steps);
    of.real[i] = entry >= 0 && of.sequence[i] < rows.sequences;
    if (!of.real[i]) of.place[i] = of.sequence[i] = 0;
    x[i].load(static_cast<const T*>(call.states) + int64_t{of.place[i]} * width, of.real[i], width, call.packs, q);
    of.share[i] = of.real[i] ? static_cast<const float*>(call.weights)[of.place[i]] : 0.0f;
  }
}

// The gradient of a row's score: softmax needs of the rest of its sequence only the gradient times the pooled vector.
template <typename T, int eighths>
__device__ float score_gradient(const Backward& call, const Row<T, eighths>& x, int64_t place, int64_t sequence, bool real,
                                float share, int q) {
  const int width = call.parameters.width;
  Row<T, eighths> gradient, pooled;
  gradient.load(static_cast<const T*>(call.gradient) + sequence * width, real, width, call.packs, q);
  pooled.load(static_cast<const T*>(call.pooled) + sequence * width, real, width, call.packs, q);
  float own = 0, mean = 0;
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    const float2 a = gradient.at(pair), b = x.at(pair), c = pooled.at(pair);
    own += a.x * b.x + a.y * b.y;
    mean += a.x * c.x + a.y * c.y;
  }
  if (call.weights_gradient && real) {
    const auto* weights = static_cast<const float*>(call.weights);
    const auto* gradients = static_cast<const float*>(call.weights_gradient);
    const int64_t first = call.rows.first(sequence), beyond = first + call.rows.length(sequence);
    for (int64_t t = first + q; t < beyond; t += 4) mean += weights[t] * gradients[t];
    if (q == 0) own += gradients[place];
  }
  return share * (over_quad(own) - over_quad(mean));
}

// The context's gradient: each thread has a part of it, and the block comes together.
template <typename T, int eighths>
__device__ __forceinline__ void store_context(float* partial, float (&contexts)[backward_threads / 32][8 * eighths],
                                              const float2 (&context_sums)[eighths], int units) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    const float x = over_rows(context_sums[pair].x), y = over_rows(context_sums[pair].y);
    if (g == 0) {
      const int c = Tile<T, eighths>::column(pair, q);
      contexts[warp][c] = x;
      contexts[warp][c + 1] = y;
    }
  }
  __syncthreads();
  for (int a = threadIdx.x; a < units; a += backward_threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < backward_threads / 32; ++i) sum += contexts[i][a];
    partial[a] = sum;
  }
}

// Zeros to the gradient of what is no step of any sequence.
template <typename T>
__device__ void clear_padding(const Backward& call, int block, int blocks, int warp, int warps, int lane) {
  const Rows& rows = call.rows;
  const int width = call.parameters.width;
  T* const out = static_cast<T*>(call.states_gradient);
  if (rows.ragged) {
    for (int64_t row = int64_t{block} * warps + warp; row < rows.total; row += int64_t{blocks} * warps) {
      if (row < call.index[0] || row >= call.index[1]) {
        for (int d = lane; d < width; d += 32) out[row * width + d] = static_cast<T>(0.0f);
      }
    }
    return;
  }
  const int64_t begin = rows.sequences * block / blocks, end = rows.sequences * (block + 1) / blocks;
  // A lane has the length of one of the warp's next 32 sequences.
#pragma unroll 1
  for (int64_t first = begin + warp; first < end; first += 32 * warps) {
    const int64_t own = first + lane * warps;
    const int own_length = own < end ? static_cast<int>(rows.length(own)) : 0;
#pragma unroll 1
    for (int i = 0; i < 32 && first + i * warps < end; ++i) {
      const int64_t n = first + i * warps, length = __shfl_sync(all_lanes, own_length, i);
      T* const padding = out + (n * rows.steps + length) * width;
      const int64_t count = (rows.steps - length) * width;
      if (call.packs) {
        auto* fours = reinterpret_cast<uint2*>(padding);
#pragma unroll 4
        for (int64_t at = lane; at < count * static_cast<int64_t>(sizeof(T)) / 8; at += 32) fours[at] = make_uint2(0, 0);
      } else {
#pragma unroll 1
        for (int64_t at = lane; at < count; at += 32) padding[at] = static_cast<T>(0.0f);
      }
    }
  }
}

}  // namespace cuda_ext::attention
