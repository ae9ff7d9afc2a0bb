// What the backward pass makes of rows: the gradients of their scores, their way to shared memory, and what stands apart.
#pragma once

#include "tile.cuh"

namespace cuda_ext::attention {

// Columns c and c + 1 of a row, of which there are `width`.
__device__ inline void store_two(float* row, int c, int width, float2 two) {
  if (width % 2 == 0) {
    if (c < width) *reinterpret_cast<float2*>(row + c) = two;
  } else {
    if (c < width) row[c] = two.x;
    if (c + 1 < width) row[c + 1] = two.y;
  }
}

template <typename E, int planes>
__device__ void store_operand(E* place, int plane, const unsigned (&a)[planes], const unsigned (&b)[planes]) {
#pragma unroll
  for (int i = 0; i < planes; ++i) *reinterpret_cast<uint2*>(place + i * plane) = make_uint2(a[i], b[i]);
}

// A thread's part of a row to shared memory, columns in their own order.
template <typename T, int eighths>
__device__ void store_row(typename Units<T>::Element* place, int plane, const Row<T, eighths>& x, float scale, int q) {
  using Shape = Tile<T, eighths>;
#pragma unroll
  for (int block = 0; block < Shape::blocks; ++block) {
    unsigned a[Shape::planes], b[Shape::planes];
    x.operand(2 * block, scale, a);
    x.operand(2 * block + 1, scale, b);
    store_operand(place + 16 * block + 4 * q, plane, a, b);
  }
  if constexpr (Shape::tail) {
    unsigned a[Shape::planes];
    x.operand(2 * Shape::blocks, scale, a);
#pragma unroll
    for (int i = 0; i < Shape::planes; ++i) {
      *reinterpret_cast<unsigned*>(place + i * plane + 16 * Shape::blocks + 2 * q) = a[i];
    }
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

// The same of two rows of half precision, by the matrix units: of the products of 16 rows with 8 gradients those of a row
// with its own.
template <typename T, int eighths>
__device__ void score_gradients(float (&slope)[2], const Backward& call, const Row<T, eighths> (&x)[2],
                                const Row<T, eighths> (&gradient)[2], const Row<T, eighths> (&pooled)[2],
                                const int (&place)[2], const int (&sequence)[2], const bool (&real)[2],
                                const float (&share)[2], int lane) {
  using Shape = Tile<T, eighths>;
  const int g = lane / 4;
  float found[2][2];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const Row<T, eighths>(&rows)[2] = side ? pooled : x;
    float products[2][4] = {};
#pragma unroll
    for (int block = 0; block < Shape::blocks; ++block) {
      const unsigned a[4] = {rows[0].pairs[2 * block], rows[1].pairs[2 * block], rows[0].pairs[2 * block + 1],
                             rows[1].pairs[2 * block + 1]};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply<T>(products[i], a, gradient[i].pairs[2 * block], gradient[i].pairs[2 * block + 1]);
      }
    }
    if constexpr (Shape::tail) {
      const unsigned a[2] = {rows[0].pairs[eighths - 1], rows[1].pairs[eighths - 1]};
#pragma unroll
      for (int i = 0; i < 2; ++i) multiply<T>(products[i], a, gradient[i].pairs[eighths - 1]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float own = g % 2 ? products[i][2 * i + 1] : products[i][2 * i];
      found[side][i] = __shfl_sync(all_lanes, own, lane - lane % 4 + g / 2);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float own = found[0][i], mean = found[1][i];
    if (call.weights_gradient) {
      float others = 0;
      if (real[i]) {
        const auto* weights = static_cast<const float*>(call.weights);
        const auto* gradients = static_cast<const float*>(call.weights_gradient);
        const int64_t first = call.rows.first(sequence[i]), beyond = first + call.rows.length(sequence[i]);
        for (int64_t t = first + lane % 4; t < beyond; t += 4) others += weights[t] * gradients[t];
        own += gradients[place[i]];
      }
      mean += over_quad(others);
    }
    slope[i] = share[i] * (own - mean);
  }
}

// Float's numbers that are split together share a scale, which takes digits from those that are much smaller than the
// largest, and may be infinite. The gradients of a sequence whose slopes are all below a share of the largest slope, or of
// a row whose states are, are computed apart. Halves keep 17 bits of slopes of that share, and a small state changes a
// tangent little.
constexpr float apart_by_slopes = 0x1p-22f, apart_by_states = 0x1p-30f;
__device__ inline bool stands_apart(float most, float most_of_all, float share) {
  return most > 0 && most < most_of_all * share;
}

// The largest slope of the rows of `sequence` among those that the warp's lanes have.
__device__ inline float most_of_sequence(float slope, int64_t sequence) {
  const unsigned lanes = __match_any_sync(all_lanes, static_cast<int>(sequence));
  return __uint_as_float(__reduce_max_sync(lanes, __float_as_uint(fabsf(slope))));
}

__device__ inline float most_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

// The gradient of one row of states of float by a warp, without matrix units: slow, and seldom wanted.
template <typename T>
__device__ __noinline__ void gradient_of_row(const Backward& call, int64_t place, int64_t sequence, float share,
                                             float slope) {
  constexpr int each = widest / 32;
  const Parameters& p = call.parameters;
  const int lane = threadIdx.x % 32;
  const auto* weight = static_cast<const float*>(p.weight);
  const auto* bias = static_cast<const float*>(p.bias);
  const auto* context = static_cast<const float*>(p.context);
  float x[each], sum[each];
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int c = lane + 32 * j;
    x[j] = c < p.width ? static_cast<const float*>(call.states)[place * p.width + c] : 0.0f;
    sum[j] = c < p.width ? share * static_cast<const float*>(call.gradient)[sequence * p.width + c] : 0.0f;
  }
  for (int a = 0; a < p.units; ++a) {
    float w[each], product = 0;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int c = lane + 32 * j;
      w[j] = c < p.width ? weight[a * p.width + c] : 0.0f;
      product = fmaf(w[j], x[j], product);
    }
    const float u = tanhf(over_rows(over_quad(product)) + bias[a]), most = slope * context[a];
    const float change = fmaf(-u, u * most, most);
#pragma unroll
    for (int j = 0; j < each; ++j) sum[j] = fmaf(change, w[j], sum[j]);
  }
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int c = lane + 32 * j;
    if (c < p.width) static_cast<float*>(call.states_gradient)[place * p.width + c] = sum[j];
  }
}

// Zeros to the gradient of what is no step of any sequence.
template <typename T>
__device__ void clear_padding(const Backward& call, int warp, int warps, int lane) {
  const Rows& rows = call.rows;
  const int width = call.parameters.width;
  T* const out = static_cast<T*>(call.states_gradient);
  if (rows.ragged) {
    for (int64_t row = int64_t{blockIdx.x} * warps + warp; row < rows.total; row += int64_t{gridDim.x} * warps) {
      if (row < call.index[0] || row >= call.index[1]) {
        for (int d = lane; d < width; d += 32) out[row * width + d] = static_cast<T>(0.0f);
      }
    }
    return;
  }
  const int64_t begin = rows.sequences * blockIdx.x / gridDim.x, end = rows.sequences * (blockIdx.x + 1) / gridDim.x;
  for (int64_t n = begin + warp; n < end; n += warps) {
    const int64_t length = rows.length(n), count = (rows.steps - length) * width;
    T* padding = out + (n * rows.steps + length) * width;
    if (call.packs) {
      auto* fours = reinterpret_cast<uint2*>(padding);
      for (int64_t i = lane; i < count * static_cast<int64_t>(sizeof(T)) / 8; i += 32) fours[i] = make_uint2(0, 0);
    } else {
      for (int64_t i = lane; i < count; i += 32) padding[i] = static_cast<T>(0.0f);
    }
  }
}

}  // namespace cuda_ext::attention
