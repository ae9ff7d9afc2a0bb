// The backward pass of half precision: it reads the states once, and computes the projection again.
#pragma once

#include "backward_rows.cuh"

namespace cuda_ext::attention {

// What is multiplied along its rows is in panels of 8 columns, as the weight.
template <typename T, int eighths>
struct HalfShared {
  using Shape = Tile<T, eighths>;
  static constexpr int rows = backward_threads / 32 * unit_rows;
  static constexpr int panel = rows * 8;
  // Units of the projection come by 64.
  static constexpr int slope_panels = (eighths + 7) / 8 * 8;
  static constexpr int strips = (eighths + 1) / 2;
  alignas(16) T weight[Shape::weight_plane];
  union {
    T slopes[slope_panels * panel];
    // Afterwards.
    float contexts[backward_threads / 32][Shape::width];
  };
  T states[eighths * panel];
  T ones[unit_rows * 8];
  Vectors<eighths> vectors;
};

// The gradients of the scores of two rows, as `score_gradient` but by the matrix units: of the products of 16 rows with 8
// gradients those of a row with its own.
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

// A thread's pairs of two rows to their places in panels, from its first row's on.
template <typename T, int eighths, int panel>
__device__ __forceinline__ void store_panels(T* to, const Operands<T, eighths>& rows) {
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
#pragma unroll
    for (int i = 0; i < 2; ++i) *reinterpret_cast<unsigned*>(to + pair * panel + 64 * i) = rows.parts[pair][i][0];
  }
}

// The projection becomes tanh and that slopes, as operands. context_sums: of the context's gradient.
template <typename T, int eighths>
__device__ __forceinline__ void make_slopes(Operands<T, eighths>& slopes, float2 (&context_sums)[eighths],
                                            const float (&u)[eighths][4], const float (&slope)[2],
                                            const Vectors<eighths>& vectors, int q) {
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    const int column = Tile<T, eighths>::column(pair, q);
    const float2 bias = *reinterpret_cast<const float2*>(vectors.bias + column);
    const float2 context = *reinterpret_cast<const float2*>(vectors.context + column);
    float2 added = context_sums[pair];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float a = tangent<T>(u[pair][2 * k], 1.0f, bias.x), b = tangent<T>(u[pair][2 * k + 1], 1.0f, bias.y);
      added.x = fmaf(slope[k], a, added.x);
      added.y = fmaf(slope[k], b, added.y);
      const float x = slope[k] * context.x, y = slope[k] * context.y;
      slopes.parts[pair][k][0] = pack<T>(fmaf(-a, a * x, x), fmaf(-b, b * y, y));
    }
    context_sums[pair] = added;
  }
}

// Adds the products of a tile's slopes^T and states to a warpgroup's 64 rows of the weight's gradient, and to the bias's;
// without warpgroups it is done on return. Where the projection has no more than 64 units, what the second warpgroup adds
// up is of no use.
template <typename T, int eighths>
__device__ __forceinline__ void begin_sums(float (&sums)[eighths][4], float (&bias_sums)[1][4],
                                           const HalfShared<T, eighths>& shared, int warp, int lane) {
  using Shared = HalfShared<T, eighths>;
  constexpr unsigned panel = 2 * Shared::panel;
  const int half = warp / 4;
  const unsigned states = shared_address(shared.states);
  const unsigned slopes = shared_address(shared.slopes) + 8 * panel * half;
  if constexpr (has_warpgroups) {
    const std::uint64_t ones = describe_panels(shared_address(shared.ones), 128, 256);
    begin_products();
#pragma unroll
    for (int unit = 0; unit < backward_threads / 32; ++unit) {
      const std::uint64_t a = describe_panels(slopes + 256 * unit, 128, panel);
      multiply_panels<T>(sums, a, describe_panels(states + 256 * unit, 128, panel), true);
      multiply_panels<T>(bias_sums, a, ones, true);
    }
    commit_products();
  } else {
    const int strip = 4 * half + warp % 4;
    if (strip >= Shared::strips) return;
    const unsigned ones = pack<T>(1.0f, 1.0f);
    // Each lane names a row of 16 bytes: of two groups of 8 rows and two panels.
    const unsigned row = 16 * ((lane >> 3) % 2 * 8 + lane % 8), next = lane >> 4;
    for (int unit = 0; unit < backward_threads / 32; ++unit) {
      unsigned a[4];
      load_matrices_transposed(a, slopes + (2 * (warp % 4) + (lane >> 3) % 2) * panel + 256 * unit +
                                      16 * ((lane >> 4) * 8 + lane % 8));
#pragma unroll
      for (int tile = 0; tile < eighths; tile += 2) {
        unsigned b[4];
        load_matrices_transposed(b, states + min(tile + next, eighths - 1u) * panel + 256 * unit + row);
        multiply<T>(sums[tile], a, b[0], b[1]);
        if (tile + 1 < eighths) multiply<T>(sums[tile + 1 < eighths ? tile + 1 : 0], a, b[2], b[3]);
      }
      multiply<T>(bias_sums[0], a, ones, ones);
    }
  }
}

// The gradients of a unit's rows of states: their part of the pooled vector's, and what came back through the projection.
template <typename T, int eighths>
__device__ __forceinline__ void store_change(const float (&change)[eighths][4], const Backward& call,
                                             const UnitRows& of, int q) {
  const int width = call.parameters.width;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    Row<T, eighths> result;
    result.load(static_cast<const T*>(call.gradient) + int64_t{of.sequence[i]} * width, of.real[i], width, call.packs, q);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      const float2 direct = result.at(pair);
      result.set(pair, make_float2(fmaf(of.share[i], direct.x, change[pair][2 * i]),
                                   fmaf(of.share[i], direct.y, change[pair][2 * i + 1])));
    }
    if (of.real[i]) {
      result.store(static_cast<T*>(call.states_gradient) + int64_t{of.place[i]} * width, width, call.packs, q);
    }
  }
}

// The block's part of the parameters' gradients. A warp has 16 units' of the weight's and the bias's.
template <typename T, int eighths>
__device__ void store_partial(const Backward& call, HalfShared<T, eighths>& shared, const float (&sums)[eighths][4],
                              const float (&bias_sums)[1][4], const float2 (&context_sums)[eighths]) {
  using Shape = Tile<T, eighths>;
  const int width = call.parameters.width, units = call.parameters.units;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  float* const partial = static_cast<float*>(call.partials) + int64_t{blockIdx.x} * call.parameters.part();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int a = Shape::unit(16 * warp + g + 8 * i);
    if (a < units) {
#pragma unroll
      for (int pair = 0; pair < eighths; ++pair) {
        store_two(partial + a * width, Shape::column(pair, q), width,
                  make_float2(sums[pair][2 * i], sums[pair][2 * i + 1]));
      }
      if (q == 0) partial[units * width + a] = bias_sums[0][2 * i];
    }
  }
  store_context<T, eighths>(partial + units * (width + 1), shared.contexts, context_sums, units);
}

// Each block takes a run of real steps, found through the index, 16 a warp at a time. A warp computes the projection again,
// the scores' gradient (softmax's needs of the rest of its sequence only gradient . pooled), its slopes ds (1 - u^2)
// context, and with these for an operand the states' gradient; a warpgroup adds the tile's slopes^T states to its 64 rows
// of the weight's gradient.
template <typename T, int eighths>
__global__ void __launch_bounds__(backward_threads, 1) backward_half_kernel(const __grid_constant__ Backward call) {
  after_the_kernel_before();
  using Shared = HalfShared<T, eighths>;
  constexpr int warps = backward_threads / 32;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int width = call.parameters.width;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int64_t origin = call.index[0], last = call.index[1];
  const int64_t all = (last - origin + unit_rows - 1) / unit_rows;
  const int64_t from = all * blockIdx.x / gridDim.x, to = all * (blockIdx.x + 1) / gridDim.x;
  // The index's entries of this thread's two rows of a unit.
  const auto entry_of = [&](int64_t unit, int i) {
    const int64_t row = origin + unit * unit_rows + g + 8 * i;
    return unit < to && row < last ? call.index[index_head + row] : -1;
  };
  int32_t entries[2] = {entry_of(from + warp, 0), entry_of(from + warp, 1)};
  Weight<T, eighths, backward_threads> loaded;
  loaded.load(call.parameters, call.packs);
  UnitRows of;
  Row<T, eighths> x[2];
  load_rows(of, x, call, entries, origin + (from + warp) * unit_rows + g, q);
  entries[0] = entry_of(from + warps + warp, 0);
  entries[1] = entry_of(from + warps + warp, 1);
  if (threadIdx.x < unit_rows * 8) shared.ones[threadIdx.x] = static_cast<T>(1.0f);
  loaded.store(shared.weight, shared.vectors);
  clear_padding<T>(call, blockIdx.x, gridDim.x, warp, warps, lane);
  float sums[eighths][4] = {}, bias_sums[1][4] = {};
  float2 context_sums[eighths] = {};
  const unsigned weight = shared_address(shared.weight);
  const int at = (warp * unit_rows + g) * 8 + 2 * q;
  __syncthreads();

  for (int64_t tile = from; tile < to; tile += warps) {
    // What the next tile needs is on its way to the cache while this one is made.
    const int64_t next = origin + (tile + warps + warp) * unit_rows + g;
    fetch_rows<T>(call, entries, next, q);
    const int32_t then[2] = {entry_of(tile + 2 * warps + warp, 0), entry_of(tile + 2 * warps + warp, 1)};
    float slope[2];
    {
      Row<T, eighths> gradient[2], pooled[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = int64_t{of.sequence[i]} * width;
        gradient[i].load(static_cast<const T*>(call.gradient) + row, of.real[i], width, call.packs, q);
        pooled[i].load(static_cast<const T*>(call.pooled) + row, of.real[i], width, call.packs, q);
      }
      score_gradients<T, eighths>(slope, call, x, gradient, pooled, of.place, of.sequence, of.real, of.share, lane);
    }
    Operands<T, eighths> operands(x, {1, 1});
    store_panels<T, eighths, Shared::panel>(shared.states + at, operands);
    float change[eighths][4];
    operands.template multiply_all<false>(change, weight, lane);
    await_products<0>(change);
    make_slopes<T, eighths>(operands, context_sums, change, slope, shared.vectors, q);
    store_panels<T, eighths, Shared::panel>(shared.slopes + at, operands);
    order_with_bulk_copies();
    __syncthreads();
    operands.template multiply_all<true>(change, weight, lane);
    begin_sums<T, eighths>(sums, bias_sums, shared, warp, lane);
    const UnitRows done = of;
    load_rows(of, x, call, entries, next, q);
    entries[0] = then[0];
    entries[1] = then[1];
    await_products<1>(change);
    store_change<T, eighths>(change, call, done, q);
    await_products<0>(sums);
    await_products<0>(bias_sums);
    __syncthreads();
  }
  store_partial(call, shared, sums, bias_sums, context_sums);
}

}  // namespace cuda_ext::attention
