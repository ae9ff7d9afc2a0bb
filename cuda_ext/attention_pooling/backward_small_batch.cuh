// The backward pass of small batches.
#pragma once

#include "backward_rows.cuh"
#include "small_batch.cuh"

#include <cooperative_groups.h>

namespace cuda_ext::attention {

// Blocks that share the rows for the gradients of 16 units, in a cluster.
constexpr int few_ranks = 8;

// The blocks of a cluster, of which there is none but of one block before sm_90, wait for one another.
__device__ inline void meet_in_cluster() {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#else
  __syncthreads();
#endif
}

// What is at `own` in the shared memory of a block of the cluster.
__device__ inline float in_block_of_cluster(float& own, int rank) {
#if __CUDA_ARCH__ >= 900
  return *cooperative_groups::this_cluster().map_shared_rank(&own, rank);
#else
  return own;
#endif
}

template <typename T, int eighths>
struct BackwardFewShared {
  static constexpr int strips = Strip<T, eighths>::count;
  // The weight's gradient, then the bias's and the context's.
  static constexpr int columns = 8 * eighths + 2;
  union {
    struct {
      // A warp's part of the states' gradient: of each pair of columns and each of its two rows a thread's own.
      float2 change[strips][eighths][2][32];
      // A warp's part of the gradient of the scores of 16 rows.
      float scores[few_warps][unit_rows];
    };
    struct {
      // Each warp's sums of the gradients of 16 units, and the block's.
      float sums[few_warps][unit_rows][columns];
      float whole[unit_rows][columns];
    };
  };
};

// A thread's two rows of the 16 from `first` of the index on.
template <typename T, int eighths>
struct FewRows {
  int64_t place[2], sequence[2];
  bool real[2];
  float share[2];
  Row<T, eighths> x[2];

  // The index of padded rows begins at 0, so that its entry need not wait for its head.
  __device__ __forceinline__ void load(const Backward& call, int64_t first, int64_t last, const int32_t (&entries)[2], int g,
                                       int q) {
    const Rows& rows = call.rows;
    const int width = call.parameters.width;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = first + g + 8 * i;
      real[i] = row < last;
      const int32_t entry = real[i] ? entries[i] : 0;
      place[i] = rows.ragged ? row : entry;
      sequence[i] = rows.ragged ? entry : entry / static_cast<int32_t>(rows.steps);
      if (entry < 0 || sequence[i] >= rows.sequences) real[i] = false;
      if (!real[i]) place[i] = sequence[i] = 0;
      x[i].load(static_cast<const T*>(call.states) + place[i] * width, real[i], width, call.packs, q);
      share[i] = real[i] ? static_cast<const float*>(call.weights)[place[i]] : 0.0f;
    }
  }
};

__device__ __forceinline__ void few_entries(int32_t (&entries)[2], const Backward& call, int64_t first, int g) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = first + g + 8 * i;
    entries[i] = row < call.rows.total ? call.index[index_head + row] : -1;
  }
}

// A thread's numbers of 16 units of the bias and the context.
template <typename T>
struct FewVectors {
  float bias[2][2], context[2][2];

  __device__ __forceinline__ void load(const Parameters& p, int first, int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int unit = first + 8 * i + 2 * q + k;
        bias[i][k] = unit < p.units ? parameter<T>(p.bias, p.single, unit) * tangent_scale<T> : 0.0f;
        context[i][k] = unit < p.units ? parameter<T>(p.context, p.single, unit) : 0.0f;
      }
    }
  }

  __device__ __forceinline__ float largest_context() const {
    return most_of_warp(fmaxf(fmaxf(fabsf(context[0][0]), fabsf(context[0][1])),
                              fmaxf(fabsf(context[1][0]), fabsf(context[1][1]))));
  }
};

// The two columns of a gradient from c on.
template <typename T>
__device__ __forceinline__ float2 gradient_at(const Backward& call, int64_t sequence, int c) {
  const int width = call.parameters.width;
  const T* const at = static_cast<const T*>(call.gradient) + sequence * width;
  return make_float2(c < width ? static_cast<float>(at[c]) : 0.0f, c + 1 < width ? static_cast<float>(at[c + 1]) : 0.0f);
}

// A warp's part of the gradient of a row's score: softmax needs of the rest of a sequence only the gradient times the pooled
// vector, of which each warp takes some columns.
template <typename T, int eighths>
__device__ __forceinline__ float part_of_score(const Backward& call, const Row<T, eighths>& x, int64_t place,
                                               int64_t sequence, bool real, int warp, int q) {
  using Shape = Tile<T, eighths>;
  const int width = call.parameters.width;
  float sum = 0;
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    if (pair % few_warps == warp && real) {
      const int c = Shape::column(pair, q);
      const float2 a = gradient_at<T>(call, sequence, c), b = x.at(pair);
      const T* const pooled = static_cast<const T*>(call.pooled) + sequence * width;
      if (c < width) sum += a.x * (b.x - static_cast<float>(pooled[c]));
      if (c + 1 < width) sum += a.y * (b.y - static_cast<float>(pooled[c + 1]));
    }
  }
  if (call.weights_gradient && warp == 0 && real) {
    const auto* weights = static_cast<const float*>(call.weights);
    const auto* gradients = static_cast<const float*>(call.weights_gradient);
    const int64_t first = call.rows.first(sequence), beyond = first + call.rows.length(sequence);
    for (int64_t t = first + q; t < beyond; t += 4) sum -= weights[t] * gradients[t];
    if (q == 0) sum += gradients[place];
  }
  return over_quad(sum);
}

// Slopes of 16 rows and 16 units as an operand, and transposed; a thread's sums of the gradients of the bias and the context
// go on. u: the projection.
template <typename T>
struct FewSlopes {
  static constexpr int planes = Units<T>::planes;
  unsigned slopes[planes][4], across[planes][4];

  __device__ __forceinline__ void make(const Sums<T> (&u)[2], const float (&slope)[2], const float (&slope_scales)[2],
                                       const float (&inverses)[2], const FewVectors<T>& vectors, float (&bias_sums)[2][2],
                                       float (&context_sums)[2][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float two[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float a = tangent<T>(u[i].at(2 * k + j), inverses[k], vectors.bias[i][j]);
          const float most = slope[k] * slope_scales[k] * vectors.context[i][j];
          two[j] = fmaf(-a, a * most, most);
          context_sums[i][j] = fmaf(slope[k], a, context_sums[i][j]);
          bias_sums[i][j] = fmaf(two[j], inverse_of(slope_scales[k]), bias_sums[i][j]);
        }
        unsigned part[planes];
        split<T>(make_float2(two[0], two[1]), part);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
          slopes[plane][2 * i + k] = part[plane];
          across[plane][2 * k + i] = transposed(part[plane]);
        }
      }
    }
  }
};

// The states' gradient: the warps' parts added up, and what comes directly.
template <typename T, int eighths>
__device__ __forceinline__ void add_changes(const Backward& call, const BackwardFewShared<T, eighths>& shared,
                                            const int64_t (&place)[2], const int64_t (&sequence)[2],
                                            const bool (&real)[2], const float (&share)[2], int warp, int lane) {
  const int width = call.parameters.width, q = lane % 4;
  for (int pair = warp; pair < eighths; pair += few_warps) {
    const int c = Tile<T, eighths>::column(pair, q);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 direct = gradient_at<T>(call, sequence[i], c);
      float2 sum = make_float2(share[i] * direct.x, share[i] * direct.y);
#pragma unroll
      for (int k = 0; k < BackwardFewShared<T, eighths>::strips; ++k) {
        const float2 part = shared.change[k][pair][i][lane];
        sum.x += part.x;
        sum.y += part.y;
      }
      if (real[i]) {
        T* const out = static_cast<T*>(call.states_gradient) + place[i] * width;
        if (c < width) out[c] = static_cast<T>(sum.x);
        if (c + 1 < width) out[c + 1] = static_cast<T>(sum.y);
      }
    }
  }
}

// For few real steps: a block takes 16 of them, a warp 16 units of the projection and what comes back through these, which
// the warps then add up. What one product leaves in a warp's registers, transposed there, is the operand of the next.
template <typename T, int eighths>
__device__ __forceinline__ void few_states(const Backward& call, BackwardFewShared<T, eighths>& shared, int block,
                                           int blocks) {
  constexpr int planes = Units<T>::planes, strips = BackwardFewShared<T, eighths>::strips, idle = few_warps - strips;
  const Parameters& p = call.parameters;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int64_t origin = call.rows.ragged ? call.index[0] : 0, last = call.index[1];
  const int64_t first = origin + int64_t{block} * unit_rows;
  int32_t entries[2];
  few_entries(entries, call, first, g);
  Strip<T, eighths> strip;
  strip.load(p, call.packs, 16 * warp, lane);
  FewVectors<T> vectors;
  vectors.load(p, 16 * warp, q);
  // Warps that have no units fill the padding with zeros.
  if (idle == 0 || warp >= strips) {
    clear_padding<T>(call, block, blocks, idle == 0 ? warp : warp - strips, idle == 0 ? few_warps : idle, lane);
  }
  if (first >= last) return;

  FewRows<T, eighths> of;
  of.load(call, first, last, entries, g, q);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float part = part_of_score<T, eighths>(call, of.x[i], of.place[i], of.sequence[i], of.real[i], warp, q);
    if (q == 0) shared.scores[warp][g + 8 * i] = part;
  }
  const bool busy = warp < strips;
  float scales[2] = {1, 1};
  Sums<T> u[2];
  Parts<T, eighths, 2> of_units;
  if (busy) {
    strip.find_scale();
    Parts<T, eighths, 2> of_rows;
    if constexpr (planes == 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) scales[i] = scale_for<60>(most_of_quad(of.x[i].largest()));
    }
    of_rows.set(of.x, scales);
    of_units.set(strip.rows, {strip.scale, strip.scale});
    multiply_rows<T, eighths, 2>(u, of_rows, of_units);
  }
  __syncthreads();

  if (busy) {
    const float largest_context = planes == 2 ? vectors.largest_context() : 0, weight_inverse = inverse_of(strip.scale);
    float slope[2], slope_scales[2] = {1, 1}, inverses[2], change_inverses[2], unused[2][2][2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < few_warps; ++k) sum += shared.scores[k][g + 8 * i];
      slope[i] = of.share[i] * sum;
      if constexpr (planes == 2) slope_scales[i] = scale_for<60>(fabsf(slope[i]) * largest_context);
      inverses[i] = tangent_scale<T> * (inverse_of(scales[i]) * weight_inverse);
      change_inverses[i] = inverse_of(slope_scales[i]) * weight_inverse;
    }
    FewSlopes<T> slopes;
    slopes.make(u, slope, slope_scales, inverses, vectors, unused[0], unused[1]);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      unsigned w[2][planes];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) w[i][plane] = transposed(of_units.parts[pair][i][plane]);
      }
      float change[4] = {};
      multiply_parts<T>(change, slopes.slopes, w[0], w[1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        shared.change[warp][pair][i][lane] =
            make_float2(change[2 * i] * change_inverses[i], change[2 * i + 1] * change_inverses[i]);
      }
    }
  }
  __syncthreads();
  add_changes(call, shared, of.place, of.sequence, of.real, of.share, warp, lane);
}

// The gradients of 16 units' parameters over all rows: a cluster's blocks, and their warps, share the rows, and the blocks
// the sums of what all of them found.
template <typename T, int eighths>
__device__ __forceinline__ void few_parameters(const Backward& call, BackwardFewShared<T, eighths>& shared, int first_unit,
                                               int rank, int ranks) {
  using Shape = Tile<T, eighths>;
  constexpr int planes = Shape::planes, columns = BackwardFewShared<T, eighths>::columns;
  const Parameters& p = call.parameters;
  const int width = p.width, lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int64_t origin = call.rows.ragged ? call.index[0] : 0, last = call.index[1];
  int64_t first = origin + int64_t{rank * few_warps + warp} * unit_rows;
  int32_t entries[2];
  few_entries(entries, call, first, g);
  FewVectors<T> vectors;
  vectors.load(p, first_unit, q);
  float weight_scale;
  Parts<T, eighths, 2> of_units;
  {
    Strip<T, eighths> strip;
    strip.load(p, call.packs, first_unit, lane);
    strip.find_scale();
    of_units.set(strip.rows, {strip.scale, strip.scale});
    weight_scale = strip.scale;
  }
  float sums[eighths][4] = {}, bias_sums[2][2] = {}, context_sums[2][2] = {};
  for (; first < last; first += int64_t{ranks} * few_warps * unit_rows, few_entries(entries, call, first, g)) {
    FewRows<T, eighths> of;
    of.load(call, first, last, entries, g, q);
    float slope[2], scale = 1, slope_scale = 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      slope[i] = score_gradient<T, eighths>(call, of.x[i], of.place[i], of.sequence[i], of.real[i], of.share[i], q);
    }
    if constexpr (planes == 2) {
      scale = scale_for<60>(most_of_warp(fmaxf(of.x[0].largest(), of.x[1].largest())));
      const float largest_slope = most_of_warp(fmaxf(fabsf(slope[0]), fabsf(slope[1])));
      slope_scale = scale_for<60>(largest_slope * vectors.largest_context());
    }
    Parts<T, eighths, 2> of_rows;
    of_rows.set(of.x, {scale, scale});
    Sums<T> u[2];
    multiply_rows<T, eighths, 2>(u, of_rows, of_units);
    FewSlopes<T> slopes;
    const float projection_inverse = tangent_scale<T> * (inverse_of(scale) * inverse_of(weight_scale));
    slopes.make(u, slope, {slope_scale, slope_scale}, {projection_inverse, projection_inverse}, vectors, bias_sums,
                context_sums);
    const float inverse = inverse_of(slope_scale) * inverse_of(scale);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      unsigned s[2][planes];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) s[i][plane] = transposed(of_rows.parts[pair][i][plane]);
      }
      float products[4] = {};
      multiply_parts<T>(products, slopes.across, s[0], s[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[pair][i] = fmaf(products[i], inverse, sums[pair][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      *reinterpret_cast<float2*>(&shared.sums[warp][g + 8 * i][Shape::column(pair, q)]) =
          make_float2(sums[pair][2 * i], sums[pair][2 * i + 1]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float bias_sum = over_rows(bias_sums[i][j]), context_sum = over_rows(context_sums[i][j]);
      if (g == 0) shared.sums[warp][8 * i + 2 * q + j][columns - 2] = bias_sum;
      if (g == 0) shared.sums[warp][8 * i + 2 * q + j][columns - 1] = context_sum;
    }
  }
  __syncthreads();
  constexpr int count = unit_rows * columns;
  for (int at = threadIdx.x; at < count; at += few_threads) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < few_warps; ++k) sum += shared.sums[k][0][at];
    shared.whole[0][at] = sum;
  }
  meet_in_cluster();
  for (int at = count * rank / ranks + threadIdx.x; at < count * (rank + 1) / ranks; at += few_threads) {
    float sum = 0;
    for (int k = 0; k < ranks; ++k) sum += in_block_of_cluster(shared.whole[0][at], k);
    const int unit = first_unit + at / columns, column = at % columns;
    if (unit < p.units && column < width) store_parameter<T>(p, call.of_weight, int64_t{unit} * width + column, sum);
    if (unit < p.units && column == columns - 2) store_parameter<T>(p, call.of_bias, unit, sum);
    if (unit < p.units && column == columns - 1) store_parameter<T>(p, call.of_context, unit, sum);
  }
  // No block may end while another reads its sums.
  meet_in_cluster();
}

// A small batch's backward pass: the first blocks, in clusters of `ranks`, make the parameters' gradients, and the others
// the states', each for itself.
template <typename T, int eighths, bool plain>
__global__ void __launch_bounds__(few_threads) backward_few_kernel(const __grid_constant__ Backward given, int ranks) {
  Backward call = given;
  if constexpr (plain) call.packs = true, call.weights_gradient = nullptr;
  after_the_kernel_before();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardFewShared<T, eighths>*>(memory);
  const int block = static_cast<int>(blockIdx.x), of_units = ranks * Strip<T, eighths>::count;
  if (block < of_units) {
    few_parameters(call, shared, block / ranks * unit_rows, block % ranks, ranks);
  } else {
    few_states(call, shared, block - of_units, static_cast<int>(gridDim.x) - of_units);
  }
}

}  // namespace cuda_ext::attention
