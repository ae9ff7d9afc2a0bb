// The backward pass of float: it reads the states once, and computes the projection again.
#pragma once

#include "backward_rows.cuh"

namespace cuda_ext::attention {

template <int eighths>
struct FloatShared {
  using Shape = Tile<float, eighths>;
  static constexpr int warps = backward_threads / 32;
  static constexpr int tile_plane = warps * unit_rows * Shape::pitch;
  alignas(16) __half weight[2 * Shape::weight_plane];
  alignas(16) __half states[2 * tile_plane];
  // A strip of 16 columns of the last row may end beyond it.
  alignas(16) __half slopes[2 * tile_plane + 8];
  Vectors<eighths> vectors;
  // What the scales of a unit's slopes, and of these times its states, must be undone by.
  float inverses[warps][2];
  float contexts[warps][Shape::width];
  // A warp has `tiles` tiles of 8 columns of a strip of 16 rows of the weight's gradient.
  static constexpr int strips = (eighths + 1) / 2, parts = warps / strips, tiles = (eighths + parts - 1) / parts;
};

// A row comes in products of its own times a scale of its own; in the sums over rows, in which a small one counts little,
// all rows of a unit come times that of the largest.
struct Scales {
  float own[2];
  // From a row's scale to the unit's.
  __half2 ratio[2];

  // largest: of a thread's two rows. Returns the unit's scale.
  __device__ __forceinline__ float find(const float (&largest)[2]) {
    const float unit = scale_for<60>(most_of_warp(fmaxf(largest[0], largest[1])));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      own[i] = scale_for<60>(largest[i]);
      ratio[i] = __float2half2_rn(unit * inverse_of(own[i]));
    }
    return unit;
  }

  __device__ __forceinline__ unsigned to_unit(unsigned pair, int i) const {
    const __half2 scaled = __hmul2(*reinterpret_cast<const __half2*>(&pair), ratio[i]);
    return *reinterpret_cast<const unsigned*>(&scaled);
  }
};

// A thread's parts of two rows to shared memory, columns in their own order.
template <int eighths, int tile_plane>
__device__ __forceinline__ void store_rows(__half* place, const Operands<float, eighths>& rows, const Scales& scales,
                                           int q) {
  using Shape = Tile<float, eighths>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      __half* const row = place + 8 * i * Shape::pitch + plane * tile_plane;
#pragma unroll
      for (int block = 0; block < Shape::blocks; ++block) {
        *reinterpret_cast<uint2*>(row + 16 * block + 4 * q) =
            make_uint2(scales.to_unit(rows.parts[2 * block][i][plane], i),
                       scales.to_unit(rows.parts[2 * block + 1][i][plane], i));
      }
      if constexpr (Shape::tail) {
        *reinterpret_cast<unsigned*>(row + 16 * Shape::blocks + 2 * q) =
            scales.to_unit(rows.parts[eighths - 1][i][plane], i);
      }
    }
  }
}

// The projection u becomes tanh, and slopes, as operands and in shared memory in the order of the weight's rows, at `to`.
// context_sums: of the context's gradient.
template <int eighths, int tile_plane>
__device__ __forceinline__ void make_slopes(Operands<float, eighths>& slopes, float2 (&context_sums)[eighths],
                                            const float (&u)[eighths][4], const float (&slope)[2],
                                            const float (&inverses)[2], const Scales& scales,
                                            const Vectors<eighths>& vectors, __half* to, int q) {
  using Shape = Tile<float, eighths>;
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    const int column = Shape::column(pair, q);
    const float2 bias = *reinterpret_cast<const float2*>(vectors.bias + column);
    const float2 context = *reinterpret_cast<const float2*>(vectors.context + column);
    float2 added = context_sums[pair];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float a = tangent<float>(u[pair][2 * k], inverses[k], bias.x);
      const float b = tangent<float>(u[pair][2 * k + 1], inverses[k], bias.y);
      added.x = fmaf(slope[k], a, added.x);
      added.y = fmaf(slope[k], b, added.y);
      const float scaled = slope[k] * scales.own[k], x = scaled * context.x, y = scaled * context.y;
      split<float>(make_float2(fmaf(-a, a * x, x), fmaf(-b, b * y, y)), slopes.parts[pair][k]);
#pragma unroll
      for (int plane = 0; plane < 2; ++plane) {
        *reinterpret_cast<unsigned*>(to + plane * tile_plane + 8 * k * Shape::pitch + 8 * pair) =
            scales.to_unit(slopes.parts[pair][k][plane], k);
      }
    }
    context_sums[pair] = added;
  }
}

// The gradients of a unit's rows of states.
template <int eighths>
__device__ __forceinline__ void store_change(const float (&change)[eighths][4], const Backward& call, const UnitRows& of,
                                             const float (&inverses)[2], int q) {
  const int width = call.parameters.width;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    Row<float, eighths> result;
    const auto* const from = static_cast<const float*>(call.gradient) + int64_t{of.sequence[i]} * width;
    result.load(from, of.real[i], width, call.packs, q);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      const float2 direct = result.at(pair);
      result.set(pair, make_float2(fmaf(change[pair][2 * i], inverses[i], of.share[i] * direct.x),
                                   fmaf(change[pair][2 * i + 1], inverses[i], of.share[i] * direct.y)));
    }
    if (of.real[i]) {
      result.store(static_cast<float*>(call.states_gradient) + int64_t{of.place[i]} * width, width, call.packs, q);
    }
  }
}

// The products of one unit's slopes^T and states: sums, 16 rows of the weight's gradient (a strip) by the columns of
// `tiles` tiles from tile `first_tile` on; and, if `wants_own`, own, of the slopes alone, the bias's gradient.
template <int eighths, int tiles, int tile_plane>
__device__ __forceinline__ void multiply_unit(float (&sums)[tiles][4], float (&own)[4], unsigned slopes, unsigned states,
                                              int unit, int strip, int first_tile, bool wants_own, int lane) {
  constexpr int pitch = Tile<float, eighths>::pitch;
  const unsigned ones = pack<__half>(make_float2(1, 1));
  unsigned a[2][4];
#pragma unroll
  for (int plane = 0; plane < 2; ++plane) {
    load_matrices_transposed(a[plane], slopes + 2 * (plane * tile_plane + (16 * unit + (lane >> 4) * 8 + lane % 8) * pitch +
                                                     16 * strip + (lane >> 3) % 2 * 8));
  }
  // One load brings the matrices of both planes.
  const unsigned from = states + 2 * ((lane >> 4) * tile_plane + (16 * unit + lane % 16) * pitch);
  constexpr int group = 4;
#pragma unroll
  for (int first = 0; first < tiles; first += group) {
    unsigned b[group][4];
#pragma unroll
    for (int i = 0; i < group && first + i < tiles; ++i) {
      const int wanted = first_tile + first + i;
      load_matrices_transposed(b[i], from + 16 * (wanted < eighths ? wanted : eighths - 1));
    }
#pragma unroll
    for (int i = 0; i < group && first + i < tiles; ++i) multiply<__half, true>(sums[first + i], a[1], b[i][0], b[i][1]);
#pragma unroll
    for (int i = 0; i < group && first + i < tiles; ++i) multiply<__half>(sums[first + i], a[0], b[i][2], b[i][3]);
#pragma unroll
    for (int i = 0; i < group && first + i < tiles; ++i) multiply<__half>(sums[first + i], a[0], b[i][0], b[i][1]);
  }
  if (wants_own) {
    multiply<__half, true>(own, a[1], ones, ones);
    multiply<__half>(own, a[0], ones, ones);
  }
}

// A strip's gradient of the weight, and of the bias.
template <int eighths, int tiles>
__device__ __forceinline__ void store_weights(float* partial, const float (&sums)[tiles][4], const float (&bias_sums)[4],
                                              int strip, int part, int width, int units, int g, int q) {
  using Shape = Tile<float, eighths>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int a = Shape::unit(16 * strip + g + 8 * i);
    if (a < units) {
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        store_two(partial + a * width, 8 * (part * tiles + j) + 2 * q, width,
                  make_float2(sums[j][2 * i], sums[j][2 * i + 1]));
      }
      if (part == 0 && q == 0) partial[units * width + a] = bias_sums[2 * i];
    }
  }
}

// Each block takes a run of real steps, found through the index, 16 a warp at a time. A warp computes the projection again,
// the scores' gradient (softmax's needs of the rest of its sequence only gradient . pooled), its slopes ds (1 - u^2)
// context, and with these for an operand the states' gradient; then the block adds the tile's slopes^T states to the
// weight's gradient, 16 rows of it a warp. The matrix units round towards zero when they add: each unit's sum begins anew
// and joins the others by an addition that rounds to nearest.
template <int eighths, bool plain>
__global__ void __launch_bounds__(backward_threads, 1) backward_float_kernel(const __grid_constant__ Backward given) {
  Backward call = given;
  if constexpr (plain) call.packs = true, call.weights_gradient = nullptr;
  after_the_kernel_before();
  using Shape = Tile<float, eighths>;
  using Shared = FloatShared<eighths>;
  constexpr int warps = Shared::warps;
  constexpr int strips = Shared::strips, parts = Shared::parts, tiles = Shared::tiles;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
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
  fetch_rows<float>(call, entries, origin + (from + warp) * unit_rows + g, q);
  const float2 loaded = load_parameters<float, eighths, backward_threads>(call.parameters, call.packs,
                                                                             shared.weight, shared.vectors);
  const float weight_inverse = inverse_of(loaded.x), largest_context = loaded.y;
  const unsigned weight = shared_address(shared.weight);

  clear_padding<float>(call, blockIdx.x, gridDim.x, warp, warps, lane);
  const int strip = warp % strips, part = warp / strips;
  float sums[tiles][4] = {}, bias_sums[4] = {};
  float2 context_sums[eighths] = {};
  for (int64_t tile = from; tile < to; tile += warps) {
    const int32_t then[2] = {entry_of(tile + warps + warp, 0), entry_of(tile + warps + warp, 1)};
    UnitRows of;
    Row<float, eighths> x[2];
    load_rows(of, x, call, entries, origin + (tile + warp) * unit_rows + g, q);
    float slope[2], change[eighths][4];
    const float largest[2] = {most_of_quad(x[0].largest()), most_of_quad(x[1].largest())};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      slope[i] = score_gradient<float, eighths>(call, x[i], of.place[i], of.sequence[i], of.real[i], of.share[i], q);
    }
    Scales of_states, of_slopes;
    const float state_scale = of_states.find(largest);
    const float slope_scale = of_slopes.find({fabsf(slope[0]) * largest_context, fabsf(slope[1]) * largest_context});
    if (lane == 0) {
      shared.inverses[warp][0] = inverse_of(slope_scale);
      shared.inverses[warp][1] = inverse_of(slope_scale) * inverse_of(state_scale);
    }
    Operands<float, eighths> operands(x, of_states.own);
    const int at = (warp * unit_rows + g) * Shape::pitch;
    store_rows<eighths, Shared::tile_plane>(shared.states + at, operands, of_states, q);
    operands.template multiply_all<false>(change, weight, lane);
    await_products<0>(change);
    make_slopes<eighths, Shared::tile_plane>(operands, context_sums, change, slope,
                                             {tangent_scale<float> * (inverse_of(of_states.own[0]) * weight_inverse),
                                              tangent_scale<float> * (inverse_of(of_states.own[1]) * weight_inverse)},
                                             of_slopes, shared.vectors, shared.slopes + at + 2 * q, q);
    operands.template multiply_all<true>(change, weight, lane);
    await_products<0>(change);
    store_change(change, call, of,
                 {inverse_of(of_slopes.own[0]) * weight_inverse, inverse_of(of_slopes.own[1]) * weight_inverse}, q);
    entries[0] = then[0];
    entries[1] = then[1];
    fetch_rows<float>(call, entries, origin + (tile + warps + warp) * unit_rows + g, q);
    __syncthreads();

    if (part < parts) {
      const int count = static_cast<int>(to - tile < warps ? to - tile : warps);
      const unsigned slopes = shared_address(shared.slopes), states = shared_address(shared.states);
#pragma unroll 1
      for (int unit = 0; unit < count; ++unit) {
        float products[tiles][4], own[4] = {};
        multiply_unit<eighths, tiles, Shared::tile_plane>(products, own, slopes, states, unit, strip, part * tiles,
                                                          part == 0, lane);
        // A unit's own scales.
        const float slope_inverse = shared.inverses[unit][0], inverse = shared.inverses[unit][1];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          bias_sums[i] = fmaf(own[i], slope_inverse, bias_sums[i]);
#pragma unroll
          for (int j = 0; j < tiles; ++j) sums[j][i] = fmaf(products[j][i], inverse, sums[j][i]);
        }
      }
    }
    __syncthreads();
  }

  float* const partial = static_cast<float*>(call.partials) + int64_t{blockIdx.x} * call.parameters.part();
  if (part < parts) store_weights<eighths, tiles>(partial, sums, bias_sums, strip, part, width, units, g, q);
  store_context<float, eighths>(partial + units * (width + 1), shared.contexts, context_sums, units);
}

}  // namespace cuda_ext::attention
