// Both passes for small batches, whose time is latency.
#pragma once

#include "backward.cuh"

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
  __device__ void load(const Parameters& p, int first, int lane) {
    const int g = lane / 4, q = lane % 4;
    const auto at = reinterpret_cast<std::uintptr_t>(p.weight);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + g + 8 * i;
      const bool real = row < p.units;
      if (std::is_same_v<T, float> || !p.single) {
        rows[i].load(static_cast<const T*>(p.weight) + row * p.width, real, p.width,
                     p.width % 4 == 0 && at % (4 * sizeof(T)) == 0, q);
      } else {
        Row<float, eighths> wide;
        wide.load(static_cast<const float*>(p.weight) + row * p.width, real, p.width, p.width % 4 == 0 && at % 16 == 0, q);
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

  __device__ void set(const Row<T, eighths> (&rows)[count], float scale) {
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
#pragma unroll
      for (int i = 0; i < count; ++i) rows[i].operand(pair, scale, parts[pair][i]);
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
template <typename T, int eighths>
__global__ void __launch_bounds__(few_threads) forward_few_kernel(const Forward call) {
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
  strip.load(p, 16 * warp, lane);
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
    units.set(strip.rows, strip.scale);
    of_steps.set(x, scale);
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
    int32_t* index = call.index + index_head;
    if (own < steps) {
      static_cast<float*>(call.weights)[first + own] = weight;
      if (own < length) {
        index[before + own] = static_cast<int32_t>(first + own);
      } else {
        index[rows.total - 1 - (first - before) - (own - length)] = -1;
      }
    }
    if (n == rows.sequences - 1 && lane == 0) {
      call.index[0] = 0;
      call.index[1] = before + length;
    }
  }
}

template <typename T, int eighths>
struct BackwardFewShared {
  static constexpr int strips = Strip<T, eighths>::count;
  // A warp's part of the states' gradient: of each pair of columns and each of its two rows a thread's own.
  float2 change[strips][eighths][2][32];
  // A warp's part of the gradient of the scores of 16 rows.
  float scores[few_warps][unit_rows];
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

// Slopes of 16 rows and a warp's 16 units as an operand, and transposed; the units' gradients of the bias and the context go
// to `partial`. u: the projection.
template <typename T>
__device__ __forceinline__ void make_few_slopes(unsigned (&slopes)[Units<T>::planes][4],
                                                unsigned (&across)[Units<T>::planes][4], const Sums<T> (&u)[2],
                                                const float (&slope)[2], float slope_scale, float inverse,
                                                const float (&bias)[2][2], const float (&context)[2][2],
                                                float* partial, const Parameters& p, int warp, int lane) {
  constexpr int planes = Units<T>::planes;
  const int g = lane / 4, q = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float of_context[2] = {}, of_bias[2] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float two[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float a = tangent<T>(u[i].at(2 * k + j), inverse, bias[i][j]), most = slope[k] * slope_scale * context[i][j];
        two[j] = fmaf(-a, a * most, most);
        of_context[j] = fmaf(slope[k], a, of_context[j]);
        of_bias[j] += two[j];
      }
      unsigned part[planes];
      split<T>(make_float2(two[0], two[1]), part);
#pragma unroll
      for (int plane = 0; plane < planes; ++plane) {
        slopes[plane][2 * i + k] = part[plane];
        across[plane][2 * k + i] = transposed(part[plane]);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float bias_sum = over_rows(of_bias[j]) * inverse_of(slope_scale), context_sum = over_rows(of_context[j]);
      const int unit = 16 * warp + 8 * i + 2 * q + j;
      if (g == 0 && unit < p.units) {
        partial[p.units * p.width + unit] = bias_sum;
        partial[p.units * (p.width + 1) + unit] = context_sum;
      }
    }
  }
}

// A warp's part of the states' gradient to shared memory, and its units' gradient of the weight to `partial`. The inverses
// undo the scales of each.
template <typename T, int eighths>
__device__ __forceinline__ void multiply_few_slopes(float2 (&changes)[eighths][2][32], float* partial,
                                                    const unsigned (&slopes)[Units<T>::planes][4],
                                                    const unsigned (&across)[Units<T>::planes][4],
                                                    const Parts<T, eighths, 2>& of_units,
                                                    const Parts<T, eighths, 2>& of_rows, float change_inverse,
                                                    float weight_inverse, const Parameters& p, int warp, int lane) {
  constexpr int planes = Units<T>::planes;
  const int g = lane / 4, q = lane % 4;
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    unsigned w[2][planes], s[2][planes];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int plane = 0; plane < planes; ++plane) {
        w[i][plane] = transposed(of_units.parts[pair][i][plane]);
        s[i][plane] = transposed(of_rows.parts[pair][i][plane]);
      }
    }
    float change[4] = {}, of_weight[4] = {};
    multiply_parts<T>(change, slopes, w[0], w[1]);
    multiply_parts<T>(of_weight, across, s[0], s[1]);
    const int c = Tile<T, eighths>::column(pair, q);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      changes[pair][i][lane] = make_float2(change[2 * i] * change_inverse, change[2 * i + 1] * change_inverse);
      const int unit = 16 * warp + g + 8 * i;
      const float2 two = make_float2(of_weight[2 * i] * weight_inverse, of_weight[2 * i + 1] * weight_inverse);
      if (unit < p.units) store_two(partial + unit * p.width, c, p.width, two);
    }
  }
}

// The states' gradient: the warps' parts added up, and what comes directly.
template <typename T, int eighths>
__device__ __forceinline__ void add_changes(const Backward& call, const BackwardFewShared<T, eighths>& shared,
                                            const int64_t (&place)[2], const int64_t (&sequence)[2],
                                            const bool (&stores)[2], const float (&share)[2], int warp, int lane) {
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
      if (stores[i]) {
        T* const out = static_cast<T*>(call.states_gradient) + place[i] * width;
        if (c < width) out[c] = static_cast<T>(sum.x);
        if (c + 1 < width) out[c + 1] = static_cast<T>(sum.y);
      }
    }
  }
}

// The gradients of rows that stand apart: a warp takes the two rows of its number, which four lanes hold.
template <typename T>
__device__ __forceinline__ void store_apart(const Backward& call, const bool (&apart)[2], const int64_t (&place)[2],
                                            const int64_t (&sequence)[2], const float (&share)[2],
                                            const float (&slope)[2], int warp) {
  const int from = 4 * warp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool own = __shfl_sync(all_lanes, static_cast<int>(apart[i]), from);
    const int64_t own_place = __shfl_sync(all_lanes, place[i], from);
    const int64_t own_sequence = __shfl_sync(all_lanes, sequence[i], from);
    const float own_share = __shfl_sync(all_lanes, share[i], from);
    const float own_slope = __shfl_sync(all_lanes, slope[i], from);
    if (own) gradient_of_row<T>(call, own_place, own_sequence, own_share, own_slope);
  }
}

// For few real steps: a block takes 16 of them, a warp 16 units of the projection, and all that is made of these: their
// part of the states' gradient, which the warps then add up, and of the parameters'. What one product leaves in a warp's
// registers, transposed there, is the operand of the next.
template <typename T, int eighths>
__global__ void __launch_bounds__(few_threads) backward_few_kernel(const __grid_constant__ Backward call) {
  after_the_kernel_before();
  using Shape = Tile<T, eighths>;
  using Shared = BackwardFewShared<T, eighths>;
  using E = typename Shape::Element;
  // Warps that have no units fill the padding with zeros.
  constexpr int planes = Shape::planes, strips = Shared::strips, idle = few_warps - strips;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const Rows& rows = call.rows;
  const Parameters& p = call.parameters;
  const int width = p.width, units = p.units;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  // The index of padded rows begins at 0, so that its entry need not wait for its head.
  const int64_t origin = rows.ragged ? call.index[0] : 0, last = call.index[1];
  int32_t entries[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = origin + int64_t{blockIdx.x} * unit_rows + g + 8 * i;
    entries[i] = row < rows.total ? call.index[index_head + row] : -1;
  }
  Strip<T, eighths> strip;
  strip.load(p, 16 * warp, lane);
  float bias[2][2], context[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int unit = 16 * warp + 8 * i + 2 * q + k;
      bias[i][k] = unit < units ? parameter<T>(p.bias, p.single, unit) * tangent_scale<T> : 0.0f;
      context[i][k] = unit < units ? parameter<T>(p.context, p.single, unit) : 0.0f;
    }
  }
  const bool some = origin + int64_t{blockIdx.x} * unit_rows < last;
  if (idle == 0 || warp >= strips) {
    clear_padding<T>(call, idle == 0 ? warp : warp - strips, idle == 0 ? few_warps : idle, lane);
  }
  if (!some) return;

  int64_t place[2], sequence[2];
  bool real[2];
  float share[2];
  Row<T, eighths> x[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = origin + int64_t{blockIdx.x} * unit_rows + g + 8 * i;
    real[i] = row < last;
    const int32_t entry = real[i] ? entries[i] : 0;
    place[i] = rows.ragged ? row : entry;
    sequence[i] = rows.ragged ? entry : entry / static_cast<int32_t>(rows.steps);
    if (entry < 0 || sequence[i] >= rows.sequences) real[i] = false;
    if (!real[i]) place[i] = sequence[i] = 0;
    x[i].load(static_cast<const T*>(call.states) + place[i] * width, real[i], width, call.packs, q);
    share[i] = real[i] ? static_cast<const float*>(call.weights)[place[i]] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float part = part_of_score<T, eighths>(call, x[i], place[i], sequence[i], real[i], warp, q);
    if (q == 0) shared.scores[warp][g + 8 * i] = part;
  }

  const bool busy = warp < strips;
  float scale = 1, slope_scale = 1, largest_context = 0, largest = 0;
  Sums<T> u[2];
  Parts<T, eighths, 2> of_rows, of_units;
  if constexpr (planes == 2) largest = most_of_warp(fmaxf(x[0].largest(), x[1].largest()));
  if (busy) {
    strip.find_scale();
    if constexpr (planes == 2) {
      scale = scale_for<60>(largest);
      largest_context = most_of_warp(fmaxf(fmaxf(fabsf(context[0][0]), fabsf(context[0][1])),
                                           fmaxf(fabsf(context[1][0]), fabsf(context[1][1]))));
    }
    of_rows.set(x, scale);
    of_units.set(strip.rows, strip.scale);
    multiply_rows<T, eighths, 2>(u, of_rows, of_units);
  }
  __syncthreads();

  float slope[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < few_warps; ++k) sum += shared.scores[k][g + 8 * i];
    slope[i] = share[i] * sum;
  }
  bool apart[2] = {};
  float largest_slope = 0;
  if constexpr (planes == 2) {
    largest_slope = most_of_warp(fmaxf(fabsf(slope[0]), fabsf(slope[1])));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Every lane takes part in the exchange, of rows that are not real as well.
      const float most = most_of_quad(x[i].largest()), most_slope = most_of_sequence(slope[i], sequence[i]);
      apart[i] = real[i] && (stands_apart(most, largest, apart_by_states) ||
                             stands_apart(most_slope, largest_slope, apart_by_slopes));
    }
  }
  if (busy) {
    if constexpr (planes == 2) slope_scale = scale_for<60>(largest_slope * largest_context);
    const float inverse = tangent_scale<T> * (inverse_of(scale) * inverse_of(strip.scale));
    float* const partial = static_cast<float*>(call.partials) + int64_t{blockIdx.x} * call.parameters.part();
    unsigned slopes[planes][4], across[planes][4];
    make_few_slopes<T>(slopes, across, u, slope, slope_scale, inverse, bias, context, partial, p, warp, lane);
    const float change_inverse = inverse_of(slope_scale) * inverse_of(strip.scale);
    const float weight_inverse = inverse_of(slope_scale) * inverse_of(scale);
    multiply_few_slopes<T, eighths>(shared.change[warp], partial, slopes, across, of_units, of_rows, change_inverse,
                                    weight_inverse, p, warp, lane);
  }
  __syncthreads();

  const bool stores[2] = {real[0] && !apart[0], real[1] && !apart[1]};
  add_changes(call, shared, place, sequence, stores, share, warp, lane);
  if constexpr (planes == 2) store_apart<T>(call, apart, place, sequence, share, slope, warp);
}

}  // namespace cuda_ext::attention
