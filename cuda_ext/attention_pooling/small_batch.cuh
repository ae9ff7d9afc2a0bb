// What both passes of small batches have in common, whose time is latency, and the forward pass.
#pragma once

#include "forward.cuh"

#include <cmath>

namespace cuda_ext::attention {

constexpr int few_warps = 8;
constexpr int few_threads = 32 * few_warps;
constexpr int few_steps = 32;

// For small batches, when time is latency: no weight in shared memory, but in each warp's registers the 16 rows of it that
// are the warp's, two a thread, straight from memory.
template <typename T, int eighths>
struct Strip {
  using Shape = Tile<T, eighths>;
  static constexpr int count = (eighths + 1) / 2;
  Row<T, eighths> rows[2];
  float scale = 1;

  // Rows `first` + g and `first` + g + 8; zeros beyond the last.
  __device__ void load(const Parameters& p, bool packs, int first, int lane) {
    const int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + g + 8 * i;
      const bool real = row < p.units;
      if (std::is_same_v<T, float> || !p.single) {
        rows[i].load(static_cast<const T*>(p.weight) + row * p.width, real, p.width, packs, q);
      } else {
        Row<float, eighths> wide;
        wide.load(static_cast<const float*>(p.weight) + row * p.width, real, p.width, packs, q);
#pragma unroll
        for (int pair = 0; pair < eighths; ++pair) rows[i].set(pair, wide.pairs[pair]);
      }
    }
  }

  // Once what was loaded may be waited for.
  __device__ void find_scale() {
    if constexpr (Shape::planes == 2) scale = scale_for<30>(most_of_warp(fmaxf(rows[0].largest(), rows[1].largest())));
  }
};

// A product whose parts for float are summed apart, for more of them to be under way.
template <typename T>
struct Sums {
  using E = typename Units<T>::Element;
  static constexpr int planes = Units<T>::planes;
  float parts[2 * planes - 1][4] = {};

  __device__ float at(int i) const {
    float sum = parts[0][i];
#pragma unroll
    for (int k = 1; k < 2 * planes - 1; ++k) sum += parts[k][i];
    return sum;
  }

  __device__ void add(const unsigned (&a)[planes][4], const unsigned (&b0)[planes], const unsigned (&b1)[planes]) {
    multiply<E>(parts[0], a[0], b0[0], b1[0]);
    if constexpr (planes == 2) {
      multiply<E>(parts[1], a[0], b0[1], b1[1]);
      multiply<E>(parts[2], a[1], b0[0], b1[0]);
    }
  }

  __device__ void add(const unsigned (&a)[planes][2], const unsigned (&b)[planes]) {
    multiply<E>(parts[0], a[0], b[0]);
    if constexpr (planes == 2) {
      multiply<E>(parts[1], a[0], b[1]);
      multiply<E>(parts[2], a[1], b[0]);
    }
  }
};

// sum += a b, float's small products first.
template <typename T>
__device__ void multiply_parts(float (&sum)[4], const unsigned (&a)[Units<T>::planes][4],
                               const unsigned (&b0)[Units<T>::planes], const unsigned (&b1)[Units<T>::planes]) {
  using E = typename Units<T>::Element;
  if constexpr (Units<T>::planes == 2) {
    multiply<E>(sum, a[1], b0[0], b1[0]);
    multiply<E>(sum, a[0], b0[1], b1[1]);
  }
  multiply<E>(sum, a[0], b0[0], b1[0]);
}

// A thread's part of some rows, scaled, as operands.
template <typename T, int eighths, int count>
struct Parts {
  static constexpr int planes = Units<T>::planes;
  unsigned parts[eighths][count][planes];

  __device__ void set(const Row<T, eighths> (&rows)[count], const float (&scales)[count]) {
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
#pragma unroll
      for (int i = 0; i < count; ++i) rows[i].operand(pair, scales[i], parts[pair][i]);
    }
  }
};

// sums[j] += a b_j over the columns of 16 rows of the first operand and 8 of each second one.
template <typename T, int eighths, int count>
__device__ void multiply_rows(Sums<T> (&sums)[count], const Parts<T, eighths, 2>& a, const Parts<T, eighths, count>& b) {
  using Shape = Tile<T, eighths>;
  constexpr int planes = Shape::planes;
#pragma unroll
  for (int block = 0; block < Shape::blocks; ++block) {
    unsigned quad[planes][4];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
#pragma unroll
      for (int i = 0; i < 4; ++i) quad[plane][i] = a.parts[2 * block + i / 2][i % 2][plane];
    }
#pragma unroll
    for (int j = 0; j < count; ++j) sums[j].add(quad, b.parts[2 * block][j], b.parts[2 * block + 1][j]);
  }
  if constexpr (Shape::tail) {
    unsigned two[planes][2];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
#pragma unroll
      for (int i = 0; i < 2; ++i) two[plane][i] = a.parts[eighths - 1][i][plane];
    }
#pragma unroll
    for (int j = 0; j < count; ++j) sums[j].add(two, b.parts[eighths - 1][j]);
  }
}

template <typename T, int eighths>
struct ForwardFewShared {
  float scores[Strip<T, eighths>::count][few_steps];
  int before[few_warps];
};

// For small batches of short sequences: a block takes one sequence, a warp 16 units of the projection of all of its steps.
// Padding may be loaded, but what is loaded is dropped.
template <typename T, int eighths, bool packs>
__global__ void __launch_bounds__(few_threads) forward_few_kernel(const __grid_constant__ Forward given) {
  Forward call = given;
  call.packs = packs;
  after_the_kernel_before();
  using Shape = Tile<T, eighths>;
  constexpr int strips = Strip<T, eighths>::count;
  __shared__ ForwardFewShared<T, eighths> shared;
  const Rows& rows = call.rows;
  const Parameters& p = call.parameters;
  const int width = p.width, steps = static_cast<int>(rows.steps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int64_t n = blockIdx.x, first = n * steps;
  // Which step's score and weight a lane has, as `scatter_over_rows` leaves them.
  const int own = 8 * (g / 2) + 2 * q + g % 2;

  Strip<T, eighths> strip;
  strip.load(p, call.packs, 16 * warp, lane);
  Row<T, eighths> x[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int t = 8 * j + g;
    x[j].load(static_cast<const T*>(call.states) + (first + t) * width, t < steps, width, call.packs, q);
  }
  float bias[2], context[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int unit = 16 * warp + g + 8 * i;
    bias[i] = unit < p.units ? parameter<T>(p.bias, p.single, unit) * tangent_scale<T> : 0.0f;
    context[i] = unit < p.units ? parameter<T>(p.context, p.single, unit) : 0.0f;
  }
  const int length = static_cast<int>(rows.length(n));
  int before = 0;
  for (int64_t i = threadIdx.x; i < n; i += few_threads) before += static_cast<int>(rows.length(i));
  before = __reduce_add_sync(all_lanes, before);
  if (lane == 0) shared.before[warp] = before;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      if (8 * j + g >= length) x[j].pairs[pair] = {};
    }
  }

  if (warp < strips) {
    strip.find_scale();
    float scale = 1, inverse = tangent_scale<T>;
    if constexpr (Shape::planes == 2) {
      scale = scale_for<60>(
          most_of_warp(fmaxf(fmaxf(x[0].largest(), x[1].largest()), fmaxf(x[2].largest(), x[3].largest()))));
      inverse *= inverse_of(scale) * inverse_of(strip.scale);
    }
    Sums<T> u[4];
    Parts<T, eighths, 2> units;
    Parts<T, eighths, 4> of_steps;
    units.set(strip.rows, {strip.scale, strip.scale});
    of_steps.set(x, {scale, scale, scale, scale});
    multiply_rows<T, eighths, 4>(u, units, of_steps);
    float s[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[2 * j + i] = tangent<T>(u[j].at(i), inverse, bias[0]) * context[0] +
                       tangent<T>(u[j].at(2 + i), inverse, bias[1]) * context[1];
      }
    }
    scatter_over_rows<8>(s, lane);
    shared.scores[warp][own] = s[0];
  }
  __syncthreads();

  float weight = -INFINITY;
  if (own < length) {
    weight = 0;
#pragma unroll
    for (int k = 0; k < strips; ++k) weight += shared.scores[k][own];
  }
  const float largest = most_of_warp(weight);
  weight = own < length ? expf(weight - largest) : 0.0f;
  const float whole = length > 0 ? 1.0f / over_rows(over_quad(weight)) : 0.0f;
  weight *= whole;
  float share[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) share[j] = __shfl_sync(all_lanes, weight, (2 * j + g % 2) * 4 + g / 2);
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    if (pair % few_warps == warp) {
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 a = x[j].at(pair);
        sum.x = fmaf(share[j], a.x, sum.x);
        sum.y = fmaf(share[j], a.y, sum.y);
      }
      sum = make_float2(over_rows(sum.x), over_rows(sum.y));
      const int c = Shape::column(pair, q);
      T* const out = static_cast<T*>(call.pooled) + n * width;
      if (g == 0 && c < width) out[c] = static_cast<T>(sum.x);
      if (g == 0 && c + 1 < width) out[c + 1] = static_cast<T>(sum.y);
    }
  }
  if (warp == few_warps - 1) {
    before = 0;
#pragma unroll
    for (int i = 0; i < few_warps; ++i) before += shared.before[i];
    if (own < length) static_cast<float*>(call.weights)[first + own] = weight;
    list_rows(call, n, first, length, before, lane);
    if (n == rows.sequences - 1 && lane == 0) {
      call.index[0] = 0;
      call.index[1] = before + length;
    }
  }
}

}  // namespace cuda_ext::attention
