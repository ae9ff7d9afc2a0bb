// The forward pass: scores of 64 rows at a time, of whichever sequences they are, then softmax and sum of each sequence.
#pragma once

#include "tile.cuh"

#include <cmath>

namespace cuda_ext::attention {

// A block's rows whose scores are in shared memory at a time; it reads these rows twice, the second time from its cache.
constexpr int kept_rows = 1024;

// As many as registers allow.
template <typename T>
constexpr int forward_threads = Units<T>::planes == 2 ? 384 : 512;

template <typename T, int eighths>
struct ForwardShared {
  static constexpr int threads = forward_threads<T>;
  alignas(16) typename Units<T>::Element weight[Units<T>::planes * Tile<T, eighths>::weight_plane];
  Vectors<eighths> vectors;
  float scores[kept_rows];
  // Where the rows are among all.
  int places[kept_rows];
  int lengths[threads];
  // Rows of the block's sequences from `base` on that come before each.
  int before[threads];
  int sums[threads / 32];
};

// The sum of `x` over the block, and over the threads before this one.
template <int threads>
__device__ int2 scan(int x, int (&sums)[threads / 32]) {
  const int lane = threadIdx.x % 32;
  int inclusive = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(all_lanes, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) sums[threadIdx.x / 32] = inclusive;
  __syncthreads();
  int before = inclusive - x, all = 0;
#pragma unroll
  for (int warp = 0; warp < threads / 32; ++warp) {
    if (warp < threadIdx.x / 32) before += sums[warp];
    all += sums[warp];
  }
  return make_int2(before, all);
}

// The scores of a warp's 16 rows, which are rows g and g + 8 of a thread; the warps of a warpgroup come together.
template <typename T, int eighths>
__device__ __forceinline__ float2 scores_of_rows(const Row<T, eighths> (&x)[2], const Vectors<eighths>& vectors,
                                                 unsigned weight, float weight_scale, int lane) {
  using Shape = Tile<T, eighths>;
  const int q = lane % 4;
  float scales[2] = {1, 1}, inverses[2] = {1, 1};
  if constexpr (Shape::planes == 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[i] = scale_for<60>(most_of_quad(x[i].largest()));
      inverses[i] = tangent_scale<T> * (inverse_of(scales[i]) * inverse_of(weight_scale));
    }
  }
  const Operands<T, eighths> operands(x, scales);
  float u[eighths][4];
  operands.template multiply_all<false>(u, weight, lane);
  await_products<0>(u);
  float scores[2] = {};
  const auto add = [&](int pair, float2 bias, float2 context) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scores[i] = fmaf(tangent<T>(u[pair][2 * i], inverses[i], bias.x), context.x, scores[i]);
      scores[i] = fmaf(tangent<T>(u[pair][2 * i + 1], inverses[i], bias.y), context.y, scores[i]);
    }
  };
#pragma unroll
  for (int block = 0; block < Shape::blocks; ++block) {
    const float4 bias = *reinterpret_cast<const float4*>(vectors.bias + 16 * block + 4 * q);
    const float4 context = *reinterpret_cast<const float4*>(vectors.context + 16 * block + 4 * q);
    add(2 * block, make_float2(bias.x, bias.y), make_float2(context.x, context.y));
    add(2 * block + 1, make_float2(bias.z, bias.w), make_float2(context.z, context.w));
  }
  if constexpr (Shape::tail) {
    const int column = Shape::column(eighths - 1, q);
    add(eighths - 1, *reinterpret_cast<const float2*>(vectors.bias + column),
        *reinterpret_cast<const float2*>(vectors.context + column));
  }
  return make_float2(over_quad(scores[0]), over_quad(scores[1]));
}

// The columns 4 * lane to 4 * lane + 3 of a row, which has them.
template <typename T, bool packs>
__device__ __forceinline__ float4 columns_of_lane(const T* row, int width, int lane) {
  const int c = 4 * lane;
  if constexpr (!packs) {
    return make_float4(static_cast<float>(row[c]), c + 1 < width ? static_cast<float>(row[c + 1]) : 0.0f,
                       c + 2 < width ? static_cast<float>(row[c + 2]) : 0.0f,
                       c + 3 < width ? static_cast<float>(row[c + 3]) : 0.0f);
  } else if constexpr (std::is_same_v<T, float>) {
    return *reinterpret_cast<const float4*>(row + c);
  } else {
    const uint2 four = *reinterpret_cast<const uint2*>(row + c);
    const float2 first = unpack<T>(four.x), second = unpack<T>(four.y);
    return make_float4(first.x, first.y, second.x, second.y);
  }
}

// Adds `count` rows, 32 at most, times their weights, of which each lane has one.
template <typename T, bool packs>
__device__ __forceinline__ void add_rows(float4& pooled, const T* rows, int count, float weight, int width, int lane) {
  constexpr int at_once = 8;
  // A lane without columns goes along with the first.
  const int column = 4 * lane < width ? lane : 0;
#pragma unroll 1
  for (int step = 0; step < count; step += at_once) {
    float4 x[at_once];
    // Beyond the last row the weight is 0.
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      x[j] = columns_of_lane<T, packs>(rows + min(step + j, count - 1) * width, width, column);
    }
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const float share = __shfl_sync(all_lanes, weight, step + j);
      pooled.x = fmaf(share, x[j].x, pooled.x);
      pooled.y = fmaf(share, x[j].y, pooled.y);
      pooled.z = fmaf(share, x[j].z, pooled.z);
      pooled.w = fmaf(share, x[j].w, pooled.w);
    }
  }
}

// What a warp makes of a sequence's scores: its weights and its pooled vector. The scores may be where the weights go.
template <typename T>
__device__ void pool(const Forward& call, const float* scores, int64_t n, int64_t first, int length, int lane) {
  const int width = call.parameters.width;
  const T* const states = static_cast<const T*>(call.states) + first * width;
  float* const weights = static_cast<float*>(call.weights) + first;
  float largest = -INFINITY, sum = 0;
#pragma unroll 1
  for (int t = lane; t < length; t += 32) largest = fmaxf(largest, scores[t]);
  largest = most_of_warp(largest);
#pragma unroll 1
  for (int t = lane; t < length; t += 32) sum += expf(scores[t] - largest);
  const float whole = length > 0 ? 1.0f / over_rows(over_quad(sum)) : 0.0f;
  float4 pooled{};
#pragma unroll 1
  for (int start = 0; start < length; start += 32) {
    const int t = start + lane, count = min(32, length - start);
    const float weight = t < length ? expf(scores[t] - largest) * whole : 0.0f;
    if (t < length) weights[t] = weight;
    const T* const rows = states + int64_t{start} * width;
    if (call.packs) {
      add_rows<T, true>(pooled, rows, count, weight, width, lane);
    } else {
      add_rows<T, false>(pooled, rows, count, weight, width, lane);
    }
  }
  const int c = 4 * lane;
  T* const out = static_cast<T*>(call.pooled) + n * width;
  if (c < width) out[c] = static_cast<T>(pooled.x);
  if (c + 1 < width) out[c + 1] = static_cast<T>(pooled.y);
  if (c + 2 < width) out[c + 2] = static_cast<T>(pooled.z);
  if (c + 3 < width) out[c + 3] = static_cast<T>(pooled.w);
}

// A sequence's part of the index that lets the backward pass skip padding, and the weights of padding. real: the real rows
// before it.
__device__ inline void list_rows(const Forward& call, int64_t n, int64_t first, int length, int64_t real, int lane) {
  const Rows& rows = call.rows;
  int32_t* const index = call.index + index_head;
  const int64_t steps = rows.ragged ? length : rows.steps;
#pragma unroll 1
  for (int64_t t = lane; t < steps; t += 32) {
    if (rows.ragged) {
      index[first + t] = static_cast<int32_t>(n);
    } else if (t < length) {
      index[real + t] = static_cast<int32_t>(first + t);
    } else {
      // From the end on, as many as there is padding.
      index[rows.total - 1 - (first - real) - (t - length)] = -1;
      static_cast<float*>(call.weights)[first + t] = 0;
    }
  }
}

// A thread's part of the sum of the first `count` lengths. Many loads are under way, for they are on the way to all else.
template <int threads, typename Length>
__device__ int sum_lengths(const Length* lengths, int64_t steps, int64_t count) {
  constexpr int at_once = 16;
  int sum = 0;
#pragma unroll 1
  for (int64_t n = threadIdx.x; n < count; n += at_once * threads) {
    Length some[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) some[i] = n + i * threads < count ? lengths[n + i * threads] : 0;
#pragma unroll
    for (Length length : some) sum += static_cast<int>(Rows::within(length, steps));
  }
  return sum;
}

// What is outside of all sequences, and where the index's rows begin and end. real: the real rows of all sequences.
template <int threads>
__device__ void finish_index(const Forward& call, int64_t real, bool last) {
  const Rows& rows = call.rows;
  if (rows.ragged) {
    const int64_t from = rows.first(0), to = rows.within(rows.bound(rows.sequences), rows.total);
    const int64_t stride = int64_t{gridDim.x} * threads, thread = int64_t{blockIdx.x} * threads + threadIdx.x;
    for (int64_t row = thread; row < rows.total; row += stride) {
      if (row < from || row >= to) {
        static_cast<float*>(call.weights)[row] = 0;
        call.index[index_head + row] = -1;
      }
    }
    if (thread == 0) {
      call.index[0] = static_cast<int32_t>(from);
      call.index[1] = static_cast<int32_t>(to > from ? to : from);
    }
  } else if (last && threadIdx.x == 0) {
    call.index[0] = 0;
    call.index[1] = static_cast<int32_t>(real);
  }
}

// The scores of the block's rows `begin` to `end`, which are numbered over sequences `from` to `to` of those from `base`
// on, at most `kept_rows`: to shared memory, and to the weights' places if `spill`.
template <typename T, int eighths>
__device__ __forceinline__ void score_rows(const Forward& call, ForwardShared<T, eighths>& shared, float weight_scale,
                                           int64_t base, int from, int to, int begin, int end, bool spill) {
  constexpr int threads = forward_threads<T>;
  const int width = call.parameters.width, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
  for (int i = from + warp; i < to; i += threads / 32) {
    const int before = shared.before[i] - shared.before[from] - begin;
    const int first = static_cast<int>(call.rows.first(base + i));
#pragma unroll 1
    for (int t = max(0, -before) + lane; t < min(shared.lengths[i], end - begin - before); t += 32) {
      shared.places[before + t] = first + t;
    }
  }
  __syncthreads();
  const unsigned weight = shared_address(shared.weight);
  const int g = lane / 4, q = lane % 4;
  for (int tile = warp / 4 * 64; tile < end - begin; tile += threads / 2) {
    int row[2];
    int place[2];
    Row<T, eighths> x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row[i] = tile + warp % 4 * unit_rows + g + 8 * i;
      // Beyond the last row some row, whose scores are dropped.
      place[i] = shared.places[min(row[i], end - begin - 1)];
      x[i].load(static_cast<const T*>(call.states) + int64_t{place[i]} * width, true, width, call.packs, q);
    }
    const float2 scores = scores_of_rows<T, eighths>(x, shared.vectors, weight, weight_scale, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (q == 0 && row[i] < end - begin) {
        const float score = i ? scores.y : scores.x;
        shared.scores[row[i]] = score;
        if (spill) static_cast<float*>(call.weights)[place[i]] = score;
      }
    }
  }
  __syncthreads();
}

// Each block takes a run of sequences, as many at a time as have room for their scores.
template <typename T, int eighths, bool packs>
__global__ void __launch_bounds__(forward_threads<T>, 1) forward_kernel(const __grid_constant__ Forward given) {
  Forward call = given;
  call.packs = packs;
  after_the_kernel_before();
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr int threads = forward_threads<T>;
  auto& shared = *reinterpret_cast<ForwardShared<T, eighths>*>(memory);
  const Rows& rows = call.rows;
  const int width = call.parameters.width, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = rows.sequences * blockIdx.x / gridDim.x, end = rows.sequences * (blockIdx.x + 1) / gridDim.x;
  // Ask for a sequence's states before they are needed.
  const auto fetch = [&](int64_t n, int length) {
    const auto* states = reinterpret_cast<const char*>(static_cast<const T*>(call.states) + rows.first(n) * width);
    const int64_t bytes = int64_t{length} * width * static_cast<int64_t>(sizeof(T));
#pragma unroll 1
    for (int64_t at = lane * 128; at < bytes; at += 32 * 128) fetch_ahead(states + at);
  };
  Weight<T, eighths, threads> loaded;
  loaded.load(call.parameters, call.packs);
  const auto length_of = [&](int64_t n) { return n < end ? static_cast<int>(rows.length(n)) : 0; };
  int own_length = length_of(begin + threadIdx.x);
  shared.lengths[threadIdx.x] = own_length;
  int before = 0;
  if (!rows.ragged) {
    before = rows.wide ? sum_lengths<threads>(static_cast<const int64_t*>(rows.bounds), rows.steps, begin)
                       : sum_lengths<threads>(static_cast<const int32_t*>(rows.bounds), rows.steps, begin);
  }
  __syncthreads();
  for (int i = warp; i < min(fetched_at_once, threads) && begin + i < end; i += threads / 32) {
    fetch(begin + i, shared.lengths[i]);
  }
  const float weight_scale = loaded.store(shared.weight, shared.vectors).x;
  int64_t real = scan<threads>(before, shared.sums).y;
  for (int64_t base = begin; base < end; base += threads) {
    const int2 sums = scan<threads>(own_length, shared.sums);
    shared.lengths[threadIdx.x] = own_length;
    shared.before[threadIdx.x] = sums.x;
    __syncthreads();
    const int count = static_cast<int>(end - base < threads ? end - base : threads);
    for (int from = 0, to; from < count; from = to) {
      const int first_row = shared.before[from];
      const bool fits = threadIdx.x >= from && threadIdx.x < count && sums.x + own_length - first_row <= kept_rows;
      to = from + max(1, __syncthreads_count(fits));
      const int all = shared.before[to - 1] + shared.lengths[to - 1] - first_row;
      for (int i = to + warp; i < min(count, 2 * to - from); i += threads / 32) fetch(base + i, shared.lengths[i]);
      for (int start = 0; start < all; start += kept_rows) {
        score_rows(call, shared, weight_scale, base, from, to, start, min(all, start + kept_rows), all > kept_rows);
      }
      for (int i = from + warp; i < to; i += threads / 32) {
        const int64_t n = base + i, first = rows.first(n);
        const int before = shared.before[i] - first_row;
        const float* scores = all > kept_rows ? static_cast<const float*>(call.weights) + first : shared.scores + before;
        pool<T>(call, scores, n, first, shared.lengths[i], lane);
        list_rows(call, n, first, shared.lengths[i], real + shared.before[i], lane);
      }
      __syncthreads();
    }
    real += sums.y;
    own_length = length_of(base + threads + threadIdx.x);
  }
  finish_index<threads>(call, real, end == rows.sequences);
}

}  // namespace cuda_ext::attention
