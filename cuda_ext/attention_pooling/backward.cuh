// The backward pass: it reads the states once, and computes the projection again.
#pragma once

#include "backward_rows.cuh"

namespace cuda_ext::attention {

template <typename T, int eighths, int threads>
struct BackwardShared {
  using Shape = Tile<T, eighths>;
  // So many threads that they have too few registers each.
  static constexpr bool crowded = eighths == 13 && Shape::planes == 1 && threads > 256;
  static constexpr int tile_rows = threads / 32 * unit_rows;
  static constexpr int tile_plane = tile_rows * Shape::pitch;
  alignas(16) typename Shape::Element weight[Shape::planes * Shape::weight_plane];
  alignas(16) typename Shape::Element states[Shape::planes * tile_plane];
  // A strip of 16 columns of the last row may end beyond it.
  alignas(16) typename Shape::Element slopes[Shape::planes * tile_plane + 8];
  Vectors<eighths> vectors;
  // For float, what the scales of a unit's slopes, and of these times its states, must be undone by.
  float inverses[threads / 32][2];
  float contexts[threads / 32][Shape::width];
  // Each thread's own sums of the context's gradient and of the weight's, where registers are short.
  static constexpr int strips = (eighths + 1) / 2, parts = threads / 32 / strips;
  static constexpr int tiles = (eighths + parts - 1) / parts;
  float2 context_sums[crowded ? eighths : 1][crowded ? threads : 1];
  float4 weight_sums[crowded ? tiles : 1][crowded ? threads : 1];
};

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
                                          const int32_t (&entries)[2], int64_t first, int64_t last, int q) {
  const Rows& rows = call.rows;
  const int width = call.parameters.width;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = first + 8 * i;
    of.real[i] = row < last;
    const int32_t entry = entries[i];
    of.place[i] = rows.ragged ? static_cast<int>(row) : entry;
    of.sequence[i] = rows.ragged ? entry : entry / static_cast<int>(rows.steps);
    if (entry < 0 || of.sequence[i] >= rows.sequences) of.real[i] = false;
    if (!of.real[i]) of.place[i] = of.sequence[i] = 0;
    x[i].load(static_cast<const T*>(call.states) + int64_t{of.place[i]} * width, of.real[i], width, call.packs, q);
    of.share[i] = of.real[i] ? static_cast<const float*>(call.weights)[of.place[i]] : 0.0f;
  }
}

// The scores' gradients, and of half precision the direct part of the states', which the product joins; float adds it at
// the end.
template <typename T, int eighths>
__device__ __forceinline__ void find_slopes(float (&slope)[2], float (&change)[eighths][4], const Backward& call,
                                            const UnitRows& of, const Row<T, eighths> (&x)[2], int lane) {
  const int width = call.parameters.width, q = lane % 4;
  if constexpr (Units<T>::planes == 1) {
    Row<T, eighths> gradient[2], pooled[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t from = int64_t{of.sequence[i]} * width;
      gradient[i].load(static_cast<const T*>(call.gradient) + from, of.real[i], width, call.packs, q);
      pooled[i].load(static_cast<const T*>(call.pooled) + from, of.real[i], width, call.packs, q);
    }
    score_gradients<T, eighths>(slope, call, x, gradient, pooled, of.place, of.sequence, of.real, of.share, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int pair = 0; pair < eighths; ++pair) {
        const float2 y = gradient[i].at(pair);
        change[pair][2 * i] = of.share[i] * y.x;
        change[pair][2 * i + 1] = of.share[i] * y.y;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      slope[i] = score_gradient<T, eighths>(call, x[i], of.place[i], of.sequence[i], of.real[i], of.share[i], q);
    }
  }
}

// Scaled slopes, and what undoes the scales: of the projection, of the states' gradient, of a unit's slopes, and of these
// times its states. apart: rows whose gradient is computed apart. All is 1 but for float.
template <typename T>
struct Scales {
  float scale = 1, scaled[2], inverse = tangent_scale<T>, change_inverse = 1;
  bool apart[2] = {};

  __device__ __forceinline__ explicit Scales(const float (&slope)[2]) : scaled{slope[0], slope[1]} {}
};

// A thread's part of a tile of sums, joined by a tile of products.
__device__ __forceinline__ float4 joined(float4 sum, const float (&products)[4], float inverse) {
  sum.x = fmaf(products[0], inverse, sum.x);
  sum.y = fmaf(products[1], inverse, sum.y);
  sum.z = fmaf(products[2], inverse, sum.z);
  sum.w = fmaf(products[3], inverse, sum.w);
  return sum;
}

template <typename T, int eighths>
__device__ __forceinline__ void find_scales(Scales<T>& of, float (&inverses)[2], const Row<T, eighths> (&x)[2],
                                            const float (&slope)[2], const int (&sequence)[2], const bool (&real)[2],
                                            float weight_scale, float largest_context, int lane) {
  const float largest = most_of_warp(fmaxf(x[0].largest(), x[1].largest()));
  const float largest_slope = most_of_warp(fmaxf(fabsf(slope[0]), fabsf(slope[1])));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Every lane takes part in the exchange, of rows that are not real as well.
    const float most = most_of_quad(x[i].largest()), most_slope = most_of_sequence(slope[i], sequence[i]);
    of.apart[i] = real[i] && (stands_apart(most, largest, apart_by_states) ||
                              stands_apart(most_slope, largest_slope, apart_by_slopes));
  }
  of.scale = scale_for<60>(largest);
  const float slope_scale = scale_for<60>(largest_slope * largest_context);
  const float weight_inverse = inverse_of(weight_scale);
  of.scaled[0] *= slope_scale;
  of.scaled[1] *= slope_scale;
  of.inverse *= inverse_of(of.scale) * weight_inverse;
  of.change_inverse = inverse_of(slope_scale) * weight_inverse;
  if (lane == 0) {
    inverses[0] = inverse_of(slope_scale);
    inverses[1] = inverse_of(slope_scale) * inverse_of(of.scale);
  }
}

// The projection u of a pair of columns becomes tanh, and slopes, which go to shared memory in the order of the weight's
// rows, at `to`. sum: of the context's gradient. parted: the slopes as operands.
template <typename T, int eighths, int tile_plane>
__device__ __forceinline__ void make_slopes(unsigned (&parted)[2][Units<T>::planes], float2& sum, const float (&u)[4],
                                            const float (&slope)[2], const Scales<T>& scales,
                                            const Vectors<eighths>& vectors, int column,
                                            typename Units<T>::Element* to) {
  using Shape = Tile<T, eighths>;
  const float2 bias = *reinterpret_cast<const float2*>(vectors.bias + column);
  const float2 context = *reinterpret_cast<const float2*>(vectors.context + column);
  float2 added = sum;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float a = tangent<T>(u[2 * k], scales.inverse, bias.x), b = tangent<T>(u[2 * k + 1], scales.inverse, bias.y);
    added.x = fmaf(slope[k], a, added.x);
    added.y = fmaf(slope[k], b, added.y);
    const float x = scales.scaled[k] * context.x, y = scales.scaled[k] * context.y;
    split<T>(make_float2(fmaf(-a, a * x, x), fmaf(-b, b * y, y)), parted[k]);
#pragma unroll
    for (int plane = 0; plane < Shape::planes; ++plane) {
      *reinterpret_cast<unsigned*>(to + plane * tile_plane + 8 * k * Shape::pitch) = parted[k][plane];
    }
  }
  sum = added;
}

// The states' gradient through the projection, of half precision: two tiles of slopes at a time are the operand of the
// product back to the states. slopes_of(pair, u, parted) makes them.
template <typename T, int eighths, bool crowded, typename Slopes>
__device__ __forceinline__ void change_at_once(float (&change)[eighths][4], const Operands<T, eighths>& operands,
                                               const Slopes& slopes_of, unsigned weight, int lane) {
  using Shape = Tile<T, eighths>;
  constexpr int planes = Shape::planes;
#pragma unroll(crowded ? 1 : Shape::blocks)
  for (int block = 0; block < Shape::blocks; ++block) {
    float u[2][4];
    unsigned parted[2][2][planes];
    operands.project(u, 2 * block, weight, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) slopes_of(2 * block + i, u[i], parted[i]);
    const unsigned a[planes][4] = {{parted[0][0][0], parted[0][1][0], parted[1][0][0], parted[1][1][0]}};
    multiply_block<T, eighths, true, false>(change, a, block, 0, weight, lane);
  }
  if constexpr (Shape::tail) {
    float u[1][4];
    unsigned parted[2][planes];
    operands.project(u, eighths - 1, weight, lane);
    slopes_of(eighths - 1, u[0], parted);
    const unsigned a[planes][2] = {{parted[0][0], parted[1][0]}};
    multiply_tail<T, eighths, true>(change, a, 0, weight, lane);
  }
}

// The same of float, which has no registers for both products at once: the second one reads the slopes from shared memory,
// of the warp's rows from `slopes` on.
template <typename T, int eighths, int tile_plane, typename Slopes>
__device__ __forceinline__ void change_in_turn(float (&change)[eighths][4], const Operands<T, eighths>& operands,
                                               const Slopes& slopes_of, const typename Units<T>::Element* slopes,
                                               unsigned weight, int lane) {
  using Shape = Tile<T, eighths>;
  constexpr int planes = Shape::planes;
  constexpr int final = 4 + eighths % 4;
#pragma unroll
  for (int first = 0; first < eighths - final; first += 4) {
    float u[4][4];
    unsigned parted[2][planes];
    operands.project(u, first, weight, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) slopes_of(first + i, u[i], parted);
  }
  {
    float u[final][4];
    unsigned parted[2][planes];
    operands.project(u, eighths - final, weight, lane);
#pragma unroll
    for (int i = 0; i < final; ++i) slopes_of(eighths - final + i, u[i], parted);
  }
  __syncwarp();
  const unsigned slopes_of_rows = shared_address(slopes) + 2 * (lane % 16 * Shape::pitch + (lane >> 4) * 8);
#pragma unroll
  for (int block = 0; block < Shape::blocks; ++block) {
    unsigned a[planes][4];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
      load_matrices(a[plane], slopes_of_rows + 2 * (plane * tile_plane + 16 * block));
    }
    multiply_block<T, eighths, true, false>(change, a, block, 0, weight, lane);
  }
  if constexpr (Shape::tail) {
    unsigned a[planes][2], m[4];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
      load_matrices(m, slopes_of_rows + 2 * (plane * tile_plane + 16 * Shape::blocks));
      a[plane][0] = m[0];
      a[plane][1] = m[1];
    }
    multiply_tail<T, eighths, true>(change, a, 0, weight, lane);
  }
}

// The gradients of a unit's rows of states.
template <typename T, int eighths>
__device__ __forceinline__ void store_change(const float (&change)[eighths][4], const Backward& call,
                                             const UnitRows& of, const float (&slope)[2], const Scales<T>& scales,
                                             int q) {
  constexpr int planes = Units<T>::planes;
  const int width = call.parameters.width;
  T* const out = static_cast<T*>(call.states_gradient);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    Row<T, eighths> result;
    if constexpr (planes == 2) {
      const T* const from = static_cast<const T*>(call.gradient) + int64_t{of.sequence[i]} * width;
      result.load(from, of.real[i], width, call.packs, q);
    }
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      float2 y = make_float2(change[pair][2 * i], change[pair][2 * i + 1]);
      if constexpr (planes == 2) {
        const float2 direct = result.at(pair);
        y = make_float2(fmaf(y.x, scales.change_inverse, of.share[i] * direct.x),
                        fmaf(y.y, scales.change_inverse, of.share[i] * direct.y));
      }
      result.set(pair, y);
    }
    if (of.real[i] && !scales.apart[i]) result.store(out + int64_t{of.place[i]} * width, width, call.packs, q);
  }
  if constexpr (planes == 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (unsigned lanes = __ballot_sync(all_lanes, scales.apart[i] && q == 0); lanes != 0; lanes &= lanes - 1) {
        const int from = __ffs(lanes) - 1;
        gradient_of_row<T>(call, __shfl_sync(all_lanes, of.place[i], from),
                           __shfl_sync(all_lanes, of.sequence[i], from), __shfl_sync(all_lanes, of.share[i], from),
                           __shfl_sync(all_lanes, slope[i], from));
      }
    }
  }
}

// The products of one unit's slopes^T and states: sums, 16 rows of the weight's gradient (a strip) by the columns of
// `tiles` tiles from tile `first_tile` on; and, if `wants_own`, own, of the slopes alone, the bias's gradient.
template <typename T, int eighths, int tiles, int tile_plane>
__device__ __forceinline__ void multiply_unit(float (&sums)[tiles][4], float (&own)[4], unsigned slopes,
                                              unsigned states, int unit, int strip, int first_tile, bool wants_own,
                                              int lane) {
  using Shape = Tile<T, eighths>;
  using E = typename Shape::Element;
  constexpr int planes = Shape::planes;
  const unsigned ones = pack<E>(make_float2(1, 1));
  unsigned a[planes][4];
#pragma unroll
  for (int plane = 0; plane < planes; ++plane) {
    load_matrices_transposed(a[plane],
                             slopes + 2 * (plane * tile_plane + (16 * unit + (lane >> 4) * 8 + lane % 8) * Shape::pitch +
                                           16 * strip + (lane >> 3) % 2 * 8));
  }
  const int row = 16 * unit + (lane >> 3) % 2 * 8 + lane % 8, other = lane >> 4;
  const int next = planes == 2 ? 0 : other, from = (planes == 2 ? other * tile_plane : 0) + row * Shape::pitch;
  constexpr int group = 4;
#pragma unroll
  for (int first = 0; first < tiles; first += group) {
    unsigned b[group][4];
#pragma unroll
    for (int i = 0; i < group; i += 3 - planes) {
      if (first + i < tiles) {
        const int wanted = first_tile + first + i + next;
        load_matrices_transposed(b[i], states + 2 * (from + 8 * (wanted < eighths ? wanted : eighths - 1)));
      }
    }
    if constexpr (planes == 2) {
#pragma unroll
      for (int i = 0; i < group && first + i < tiles; ++i) multiply<E, true>(sums[first + i], a[1], b[i][0], b[i][1]);
#pragma unroll
      for (int i = 0; i < group && first + i < tiles; ++i) multiply<E>(sums[first + i], a[0], b[i][2], b[i][3]);
#pragma unroll
      for (int i = 0; i < group && first + i < tiles; ++i) multiply<E>(sums[first + i], a[0], b[i][0], b[i][1]);
    } else {
#pragma unroll
      for (int i = 0; i < group && first + i < tiles; ++i) {
        multiply<E>(sums[first + i], a[0], b[i - i % 2][2 * (i % 2)], b[i - i % 2][2 * (i % 2) + 1]);
      }
    }
  }
  if (wants_own) {
    if constexpr (planes == 2) multiply<E, true>(own, a[1], ones, ones);
    multiply<E>(own, a[0], ones, ones);
  }
}

// A strip's gradient of the weight, and of the bias. weight_sum(tile): a thread's own sums.
template <typename T, int eighths, int tiles, typename WeightSum>
__device__ __forceinline__ void store_weights(float* partial, const WeightSum& weight_sum, const float (&bias_sums)[4],
                                              int strip, int part, int width, int units, int g, int q) {
  using Shape = Tile<T, eighths>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Which unit's slopes stand in this place.
    const int a = 16 * strip + (strip < Shape::blocks ? g / 2 * 4 + g % 2 + 2 * i : g + 8 * i);
    if (a < units) {
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        const int d = 8 * (part * tiles + j) + 2 * q;
        const float4 sum = weight_sum(j);
        store_two(partial + a * width, d, width, i ? make_float2(sum.z, sum.w) : make_float2(sum.x, sum.y));
      }
      if (part == 0 && q == 0) partial[units * width + a] = bias_sums[2 * i];
    }
  }
}

// The context's gradient, of which context_sum(pair) is a thread's own part.
template <typename T, int eighths, int threads, typename ContextSum>
__device__ __forceinline__ void store_context(float* partial, BackwardShared<T, eighths, threads>& shared,
                                              const ContextSum& context_sum, int units) {
  using Shape = Tile<T, eighths>;
  constexpr int warps = threads / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    const float2 sum = context_sum(pair);
    const float x = over_rows(sum.x), y = over_rows(sum.y);
    if (g == 0) {
      const int c = Shape::column(pair, q);
      shared.contexts[warp][c] = x;
      shared.contexts[warp][c + 1] = y;
    }
  }
  __syncthreads();
  for (int a = threadIdx.x; a < units; a += threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < warps; ++i) sum += shared.contexts[i][a];
    partial[a] = sum;
  }
}

// Each block takes a run of real steps, found through the index, 16 a warp at a time. A warp computes the projection again,
// the scores' gradient (softmax's needs of the rest of its sequence only gradient . pooled), its slopes ds (1 - u^2) context,
// and, with these for an operand from shared memory, the states' gradient; then the block adds the tile's slopes^T states to
// the weight's gradient, 16 rows of it a warp. The matrix units round towards zero when they add: each tile's sum begins anew
// and joins the others by an addition that rounds to nearest.
template <typename T, int eighths, int threads>
__global__ void __launch_bounds__(threads, 1) backward_kernel(const __grid_constant__ Backward call) {
  after_the_kernel_before();
  using Shape = Tile<T, eighths>;
  using Shared = BackwardShared<T, eighths, threads>;
  using E = typename Shape::Element;
  constexpr int warps = threads / 32;
  constexpr int strips = Shared::strips, parts = Shared::parts, tiles = Shared::tiles;
  constexpr int planes = Shape::planes;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const Rows& rows = call.rows;
  const int width = call.parameters.width, units = call.parameters.units;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int64_t origin = call.index[0], last = call.index[1];
  const int64_t all = (last - origin + unit_rows - 1) / unit_rows;
  const int64_t from = all * blockIdx.x / gridDim.x, to = all * (blockIdx.x + 1) / gridDim.x;
  // The index's entries of this thread's two rows, of the next tile when this one's are in use, and what they lead to.
  const auto entry_of = [&](int64_t unit, int i) {
    const int64_t row = origin + unit * unit_rows + g + 8 * i;
    return unit < to && row < last ? call.index[index_head + row] : -1;
  };
  int32_t entries[2] = {entry_of(from + warp, 0), entry_of(from + warp, 1)};
  fetch_rows<T>(call, entries, origin + (from + warp) * unit_rows + g, q);
  const float2 loaded =
      load_parameters<T, eighths, threads>(call.parameters, shared.weight, shared.vectors);
  const float weight_scale = loaded.x, largest_context = loaded.y;
  const unsigned weight = shared_address(shared.weight);

  clear_padding<T>(call, warp, warps, lane);
  const int strip = warp % strips, part = warp / strips;
  float4 own_sums[Shared::crowded ? 1 : tiles];
  const auto weight_sum = [&](int tile) -> float4& {
    if constexpr (Shared::crowded) {
      return shared.weight_sums[tile][threadIdx.x];
    } else {
      return own_sums[tile];
    }
  };
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) weight_sum(tile) = make_float4(0, 0, 0, 0);
  float bias_sums[4] = {};
  float2 context_sums[eighths];
  const auto context_sum = [&](int pair) -> float2& {
    if constexpr (Shared::crowded) {
      return shared.context_sums[pair][threadIdx.x];
    } else {
      return context_sums[pair];
    }
  };
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) context_sum(pair) = make_float2(0, 0);

  for (int64_t tile = from; tile < to; tile += warps) {
    const int32_t then[2] = {entry_of(tile + warps + warp, 0), entry_of(tile + warps + warp, 1)};
    if (tile + warp < to) {
      UnitRows of;
      Row<T, eighths> x[2];
      load_rows(of, x, call, entries, origin + (tile + warp) * unit_rows + g, last, q);
      float slope[2], change[eighths][4] = {};
      find_slopes(slope, change, call, of, x, lane);
      Scales<T> scales(slope);
      if constexpr (planes == 2) {
        find_scales(scales, shared.inverses[warp], x, slope, of.sequence, of.real, weight_scale, largest_context, lane);
      }
      const int at = (warp * unit_rows + g) * Shape::pitch;
      const Operands<T, eighths> operands(x, scales.scale, static_cast<unsigned>(width) >> 31);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_row<T, eighths>(shared.states + at + 8 * i * Shape::pitch, Shared::tile_plane, x[i], scales.scale, q);
      }
      const auto slopes_of = [&](int pair, const float(&u)[4], unsigned(&parted)[2][planes]) {
        make_slopes<T, eighths, Shared::tile_plane>(parted, context_sum(pair), u, slope, scales, shared.vectors,
                                                    Shape::column(pair, q), shared.slopes + at + 8 * pair + 2 * q);
      };
      if constexpr (planes == 1) {
        change_at_once<T, eighths, Shared::crowded>(change, operands, slopes_of, weight, lane);
      } else {
        const E* const of_warp = shared.slopes + warp * unit_rows * Shape::pitch;
        change_in_turn<T, eighths, Shared::tile_plane>(change, operands, slopes_of, of_warp, weight, lane);
      }
      store_change(change, call, of, slope, scales, q);
    }
    entries[0] = then[0];
    entries[1] = then[1];
    fetch_rows<T>(call, entries, origin + (tile + warps + warp) * unit_rows + g, q);
    __syncthreads();

    if (part < parts) {
      const int count = static_cast<int>(to - tile < warps ? to - tile : warps);
      const unsigned slopes = shared_address(shared.slopes), states = shared_address(shared.states);
      float sums[tiles][4] = {}, own[4] = {};
      const auto join = [&](float slope_inverse, float inverse) {
#pragma unroll
        for (int i = 0; i < 4; ++i) bias_sums[i] = fmaf(own[i], slope_inverse, bias_sums[i]);
#pragma unroll
        for (int j = 0; j < tiles; ++j) weight_sum(j) = joined(weight_sum(j), sums[j], inverse);
      };
#pragma unroll(planes == 1 ? 2 : 1)
      for (int unit = 0; unit < count; ++unit) {
        multiply_unit<T, eighths, tiles, Shared::tile_plane>(sums, own, slopes, states, unit, strip, part * tiles,
                                                             part == 0, lane);
        // A unit's own scales; without scales once a tile.
        if constexpr (planes == 2) join(shared.inverses[unit][0], shared.inverses[unit][1]);
      }
      if constexpr (planes == 1) join(1.0f, 1.0f);
    }
    __syncthreads();
  }

  float* const partial = static_cast<float*>(call.partials) + int64_t{blockIdx.x} * call.parameters.part();
  if (part < parts) {
    store_weights<T, eighths, tiles>(partial, weight_sum, bias_sums, strip, part, width, units, g, q);
  }
  store_context<T, eighths, threads>(partial + units * (width + 1), shared, context_sum, units);
}

}  // namespace cuda_ext::attention
