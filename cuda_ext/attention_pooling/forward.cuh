// The forward pass: it reads the states once, with a running maximum, and lists the real steps.
#pragma once

#include "tile.cuh"

#include <cmath>

namespace cuda_ext::attention {

// The pooled vector of a sequence: a thread's sums over its rows, times `whole`.
template <typename T, int eighths>
__device__ void store_pooled(const Forward& call, float (&sums)[2 * eighths], float whole, int64_t n, int lane) {
  constexpr int half = eighths, quarter = (half + 1) / 2, eighth = (quarter + 1) / 2;
  const int width = call.parameters.width;
  scatter_over_rows<2 * eighths>(sums, lane);
  T* out = static_cast<T*>(call.pooled) + n * width;
  const int second = lane & 8 ? quarter : 0, third = lane & 4 ? eighth : 0;
#pragma unroll
  for (int i = 0; i < eighth; ++i) {
    // Which of the sums this one is, unless it is the padding of a half.
    const int inner = third + i, middle = second + inner, which = (lane & 16 ? half : 0) + middle;
    if (inner < quarter && middle < half) {
      const int c = Tile<T, eighths>::column(which / 2, lane % 4) + which % 2;
      if (c < width) out[c] = static_cast<T>(sums[i] * whole);
    }
  }
}

template <typename T, int eighths>
struct ForwardShared {
  alignas(16) typename Units<T>::Element weight[Units<T>::planes * Tile<T, eighths>::weight_plane];
  Vectors<eighths> vectors;
  float scores[Units<T>::planes == 2 ? forward_threads<T> / 32 : 1][kept_scores];
  int lengths[forward_threads<T>];
  int before[forward_threads<T>];
  short order[forward_threads<T>];
  int sums[forward_threads<T> / 32];
  int next;
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

// What a warp makes of a sequence: the pooled vector and the weights, softmax with a running maximum. Float: 16 steps at a
// time. `scores`: room for the sequence's scores.
template <typename T, int eighths>
__device__ void pool_float(const Forward& call, const Vectors<eighths>& vectors, unsigned weight, float weight_scale,
                           float* scores, int64_t n, int64_t first, int length, int lane) {
  using Shape = Tile<T, eighths>;
  const int width = call.parameters.width, g = lane / 4, q = lane % 4;
  const T* states = static_cast<const T*>(call.states) + first * width;
  float* weights = static_cast<float*>(call.weights) + first;
  float largest = -INFINITY, sum = 0;
  float pooled[2 * eighths] = {};
  for (int start = 0; start < length; start += unit_rows) {
    const int t0 = start + g, t1 = t0 + 8;
    Row<T, eighths> x[2];
    x[0].load(states + int64_t{t0} * width, t0 < length, width, call.packs, q);
    x[1].load(states + int64_t{t1} * width, t1 < length, width, call.packs, q);
    const float scale = scale_for<60>(most_of_warp(fmaxf(x[0].largest(), x[1].largest())));
    const float inverse = tangent_scale<T> * (inverse_of(scale) * inverse_of(weight_scale));
    const Operands<T, eighths> operands(x, scale);
    float s0 = 0, s1 = 0;
    float u[eighths][4];
    operands.project(u, 0, weight, lane);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      const int c = Shape::column(pair, q);
      const float2 bias = *reinterpret_cast<const float2*>(vectors.bias + c);
      const float2 context = *reinterpret_cast<const float2*>(vectors.context + c);
      s0 = fmaf(tangent<T>(u[pair][0], inverse, bias.x), context.x, s0);
      s0 = fmaf(tangent<T>(u[pair][1], inverse, bias.y), context.y, s0);
      s1 = fmaf(tangent<T>(u[pair][2], inverse, bias.x), context.x, s1);
      s1 = fmaf(tangent<T>(u[pair][3], inverse, bias.y), context.y, s1);
    }
    s0 = over_quad(s0);
    s1 = over_quad(s1);
    s0 = t0 < length ? s0 : s0 * 0 - INFINITY;
    s1 = t1 < length ? s1 : s1 * 0 - INFINITY;
    if (q == 0) {
      if (t0 < length) scores[t0] = s0;
      if (t1 < length) scores[t1] = s1;
    }
    float highest = fmaxf(s0, s1);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) highest = fmaxf(highest, __shfl_xor_sync(all_lanes, highest, step));
    highest = fmaxf(highest, largest);
    const float shrink = expf(largest - highest), p0 = expf(s0 - highest), p1 = expf(s1 - highest);
    largest = highest;
    sum = sum * shrink + p0 + p1;
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      const float2 a = x[0].at(pair), b = x[1].at(pair);
      pooled[2 * pair] = pooled[2 * pair] * shrink + p0 * a.x + p1 * b.x;
      pooled[2 * pair + 1] = pooled[2 * pair + 1] * shrink + p0 * a.y + p1 * b.y;
    }
  }
  const float whole = length > 0 ? 1.0f / over_rows(sum) : 0.0f;
  store_pooled<T, eighths>(call, pooled, whole, n, lane);
  __syncwarp();
  for (int t = lane; t < length; t += 32) weights[t] = expf(scores[t] - largest) * whole;
  __syncwarp();
}

// Half precision: up to 32 steps at a time, in eights, the scores of `tiles` eights by a product with the units along its
// rows: its second operand is the states' registers as they were loaded. Returns to lane 4 g + q the score of step
// 8 (g / 2) + 2 q + g % 2.
template <typename T, int eighths, int tiles>
__device__ float scores_in_eights(const Row<T, eighths> (&x)[4], const Vectors<eighths>& vectors, unsigned weight, int lane) {
  using Shape = Tile<T, eighths>;
  constexpr int strips = (eighths + 1) / 2;
  const int g = lane / 4;
  float s[8] = {};
#pragma unroll 1
  for (int strip = 0; strip < strips; ++strip) {
    // The last strip may have 8 units only; the rows beyond are the last one's, and come times 0.
    const bool whole = strip < Shape::blocks;
    const int unit = 16 * strip + (whole ? g / 2 * 4 + g % 2 : g);
    const float bias[2] = {vectors.bias[unit], whole ? vectors.bias[unit + 2] : 0.0f};
    const float context[2] = {vectors.context[unit], whole ? vectors.context[unit + 2] : 0.0f};
    const float start[4] = {bias[0], bias[0], bias[1], bias[1]};
    const int row = min(16 * strip + lane % 16, Shape::width - 1);
    const unsigned from = weight + 2 * (row * Shape::pitch + (lane >> 4) * 8);
    float u[tiles][4];
#pragma unroll
    for (int block = 0; block < Shape::blocks; ++block) {
      unsigned a[4];
      load_matrices(a, from + 32 * block);
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        if (block == 0) {
          multiply<T>(u[j], a, x[j].pairs[0], x[j].pairs[1], start);
        } else {
          multiply<T>(u[j], a, x[j].pairs[2 * block], x[j].pairs[2 * block + 1]);
        }
      }
    }
    if constexpr (Shape::tail) {
      unsigned m[4];
      load_matrices(m, from + 32 * Shape::blocks);
      const unsigned a[2] = {m[0], m[1]};
#pragma unroll
      for (int j = 0; j < tiles; ++j) multiply<T>(u[j], a, x[j].pairs[eighths - 1]);
    }
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[2 * j + i] = fmaf(tangent<T>(u[j][i], 1.0f, 0.0f), context[0], s[2 * j + i]);
        s[2 * j + i] = fmaf(tangent<T>(u[j][2 + i], 1.0f, 0.0f), context[1], s[2 * j + i]);
      }
    }
  }
  scatter_over_rows<8>(s, lane);
  return s[0];
}

// Adds to the pooled vectors of a thread's columns `tiles` eights of steps; `power` is that of the step of `scores_in_eights`.
template <typename T, int eighths, int tiles>
__device__ void pool_eights(float (&pooled)[2 * eighths], const Row<T, eighths> (&x)[4], float power, int lane) {
  const int g = lane / 4;
#pragma unroll
  for (int j = 0; j < tiles; ++j) {
    const float p = __shfl_sync(all_lanes, power, (2 * j + g % 2) * 4 + g / 2);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      const float2 a = x[j].at(pair);
      pooled[2 * pair] = fmaf(p, a.x, pooled[2 * pair]);
      pooled[2 * pair + 1] = fmaf(p, a.y, pooled[2 * pair + 1]);
    }
  }
}

// f(number of eights that hold `count` steps, 4 at most), a constant.
template <typename F>
__device__ void with_tiles(int count, F&& f) {
  if (count > 24) {
    f(std::integral_constant<int, 4>{});
  } else if (count > 16) {
    f(std::integral_constant<int, 3>{});
  } else if (count > 8) {
    f(std::integral_constant<int, 2>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

template <typename T, int eighths>
__device__ void pool_half(const Forward& call, const Vectors<eighths>& vectors, unsigned weight, int64_t n, int64_t first,
                          int length, int lane) {
  const int width = call.parameters.width, g = lane / 4, q = lane % 4;
  const T* states = static_cast<const T*>(call.states) + first * width;
  float* weights = static_cast<float*>(call.weights) + first;
  const int own = 8 * (g / 2) + 2 * q + g % 2;
  float largest = -INFINITY, sum = 0, score = 0;
  float pooled[2 * eighths] = {};
  for (int start = 0; start < length; start += 32) {
    Row<T, eighths> x[4];
    with_tiles(length - start, [&](auto tiles) {
#pragma unroll
      for (int j = 0; j < decltype(tiles)::value; ++j) {
        const int t = start + 8 * j + g;
        x[j].load(states + int64_t{t} * width, t < length, width, call.packs, q);
      }
      score = scores_in_eights<T, eighths, decltype(tiles)::value>(x, vectors, weight, lane);
      // A score that is not a number makes all of its sequence so.
      const bool real = start + own < length;
      score = real ? score : score * 0 - INFINITY;
      const float highest = fmaxf(largest, most_of_warp(score)), power = expf(score - highest);
      if (start > 0) {
        const float shrink = expf(largest - highest);
        sum *= shrink;
#pragma unroll
        for (int i = 0; i < 2 * eighths; ++i) pooled[i] *= shrink;
      }
      largest = highest;
      sum += power;
      pool_eights<T, eighths, decltype(tiles)::value>(pooled, x, power, lane);
    });
    // Kept until the sum is known; the last ones in registers.
    if (start + 32 < length) weights[start + own] = score;
  }
  const float whole = length > 0 ? 1.0f / over_rows(over_quad(sum)) : 0.0f;
  for (int t = own; t < length; t += 32) weights[t] = expf((t + 32 - own < length ? weights[t] : score) - largest) * whole;
  store_pooled<T, eighths>(call, pooled, whole, n, lane);
}

// Each block takes a run of sequences, each warp one at a time. It also writes the index that lets the backward pass skip
// padding.
template <typename T, int eighths>
__global__ void __launch_bounds__(forward_threads<T>, 1) forward_kernel(const Forward call) {
  after_the_kernel_before();
  constexpr int threads = forward_threads<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<T, eighths>*>(memory);
  const Rows& rows = call.rows;
  const int width = call.parameters.width, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = rows.sequences * blockIdx.x / gridDim.x, end = rows.sequences * (blockIdx.x + 1) / gridDim.x;
  // Ask for a sequence's states before they are needed.
  const auto fetch = [&](int64_t n, int length) {
    const auto* states = reinterpret_cast<const char*>(static_cast<const T*>(call.states) + rows.first(n) * width);
    const int64_t bytes = int64_t{length} * width * static_cast<int64_t>(sizeof(T));
    for (int64_t at = lane * 128; at < bytes; at += 32 * 128) fetch_ahead(states + at);
  };
  Weight<T, eighths, threads> loaded;
  loaded.load(call.parameters);
  const int64_t early = begin + threadIdx.x;
  shared.lengths[threadIdx.x] = early < end ? static_cast<int>(rows.length(early)) : 0;
  int before = 0;
  if (!rows.ragged) {
    // Many loads under way, for they are on the way to everything else.
    for (int64_t n = threadIdx.x; n < begin; n += 12 * threads) {
      int lengths[12];
#pragma unroll
      for (int i = 0; i < 12; ++i) {
        const int64_t other = n + i * threads;
        lengths[i] = other < begin ? static_cast<int>(rows.length(other)) : 0;
      }
#pragma unroll
      for (int length : lengths) before += length;
    }
  }
  __syncthreads();
  for (int i = warp; i < fetched_at_once && begin + i < end; i += threads / 32) fetch(begin + i, shared.lengths[i]);
  const float weight_scale = loaded.store(shared.weight, shared.vectors).x;
  const unsigned weight = shared_address(shared.weight);
  if (!rows.ragged) before = scan<threads>(before, shared.sums).y;
  for (int64_t base = begin; base < end; base += threads) {
    const int64_t own = base + threadIdx.x;
    const int own_length = own < end ? static_cast<int>(rows.length(own)) : 0;
    const int2 sums = scan<threads>(own_length, shared.sums);
    // The longest first, in three classes, for the warps to end together: a count of ten bits for each.
    static_assert(threads < 1024);
    const int shift = own_length > 24 ? 0 : own_length > 16 ? 10 : 20;
    const int2 classes = scan<threads>(own < end ? 1 << shift : 0, shared.sums);
    const int longer = shift == 0 ? 0 : (classes.y & 1023) + (shift == 20 ? classes.y >> 10 & 1023 : 0);
    shared.lengths[threadIdx.x] = own_length;
    shared.before[threadIdx.x] = before + sums.x;
    if (own < end) shared.order[longer + (classes.x >> shift & 1023)] = static_cast<short>(threadIdx.x);
    if (threadIdx.x == 0) shared.next = 0;
    before += sums.y;
    __syncthreads();
    const int count = static_cast<int>(end - base < threads ? end - base : threads);
    const auto take = [&] {
      int turn = 0;
      if (lane == 0) turn = atomicAdd(&shared.next, 1);
      return __shfl_sync(all_lanes, turn, 0);
    };
    for (int turn = take(), then; turn < count; turn = then) {
      // Its own next sequence, too.
      then = take();
      if (then < count && (base > begin || shared.order[then] >= fetched_at_once)) {
        fetch(base + shared.order[then], shared.lengths[shared.order[then]]);
      }
      const int taken = shared.order[turn];
      const int64_t n = base + taken, first = rows.first(n);
      const int length = shared.lengths[taken];
      float* weights = static_cast<float*>(call.weights) + first;
      if constexpr (Units<T>::planes == 1) {
        pool_half<T, eighths>(call, shared.vectors, weight, n, first, length, lane);
      } else {
        float* scores = length <= kept_scores ? shared.scores[warp] : weights;
        pool_float<T, eighths>(call, shared.vectors, weight, weight_scale, scores, n, first, length, lane);
      }
      for (int64_t t = length + lane; t < rows.steps; t += 32) weights[t] = 0;
      int32_t* index = call.index + index_head;
      if (rows.ragged) {
        for (int t = lane; t < length; t += 32) index[first + t] = static_cast<int32_t>(n);
      } else {
        const int real = shared.before[taken];
        for (int t = lane; t < length; t += 32) index[real + t] = static_cast<int32_t>(first + t);
        // From the end on, as many as there is padding.
        for (int64_t t = length + lane; t < rows.steps; t += 32) {
          index[rows.total - 1 - (first - real) - (t - length)] = -1;
        }
      }
    }
    __syncthreads();
  }
  if (rows.ragged) {
    // Rows of no sequence.
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
  } else if (end == rows.sequences && threadIdx.x == 0) {
    call.index[0] = 0;
    call.index[1] = before;
  }
}

}  // namespace cuda_ext::attention
