// The backward pass: it reads the states once, and computes the projection again.
#pragma once

#include "tile.cuh"

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

// Float's numbers that are split together share a scale, which takes from a row that is much smaller than the largest
// all of its bits, where that is of another sequence, and may be infinite. Such a row's gradient is computed apart.
__device__ inline bool stands_apart(float most_of_row, float most_of_all) {
  return most_of_row > 0 && most_of_row < most_of_all * 0x1p-30f;
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
  T* const out = static_cast<T*>(call.states_gradient);
  const int64_t origin = call.index[0], last = call.index[1];
  const int64_t all = (last - origin + unit_rows - 1) / unit_rows;
  const int64_t from = all * blockIdx.x / gridDim.x, to = all * (blockIdx.x + 1) / gridDim.x;
  // The index's entries of this thread's two rows, of the next tile when this one's are in use, and what they lead to.
  const auto entry_of = [&](int64_t unit, int i) {
    const int64_t row = origin + unit * unit_rows + g + 8 * i;
    return unit < to && row < last ? call.index[index_head + row] : -1;
  };
  const auto fetch = [&](int64_t unit, const int32_t(&entries)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t sequence = rows.ragged ? entries[i] : entries[i] / static_cast<int>(rows.steps);
      if (entries[i] >= 0 && sequence < rows.sequences) {
        const int64_t row = rows.ragged ? origin + unit * unit_rows + g + 8 * i : entries[i];
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
  };
  int32_t entries[2] = {entry_of(from + warp, 0), entry_of(from + warp, 1)};
  fetch(from + warp, entries);
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
      int place[2], sequence[2];
      bool real[2];
      float share[2], slope[2];
      Row<T, eighths> x[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = origin + (tile + warp) * unit_rows + g + 8 * i;
        real[i] = row < last;
        const int32_t entry = entries[i];
        place[i] = rows.ragged ? static_cast<int>(row) : entry;
        sequence[i] = rows.ragged ? entry : entry / static_cast<int>(rows.steps);
        if (entry < 0 || sequence[i] >= rows.sequences) real[i] = false;
        if (!real[i]) place[i] = sequence[i] = 0;
        x[i].load(static_cast<const T*>(call.states) + int64_t{place[i]} * width, real[i], width, call.packs, q);
        share[i] = real[i] ? static_cast<const float*>(call.weights)[place[i]] : 0.0f;
      }
      // The direct part of the states' gradient, which the product joins; float adds it at the end.
      float change[eighths][4] = {};
      if constexpr (planes == 1) {
        Row<T, eighths> gradient[2], pooled[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t from = int64_t{sequence[i]} * width;
          gradient[i].load(static_cast<const T*>(call.gradient) + from, real[i], width, call.packs, q);
          pooled[i].load(static_cast<const T*>(call.pooled) + from, real[i], width, call.packs, q);
        }
        score_gradients<T, eighths>(slope, call, x, gradient, pooled, place, sequence, real, share, lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int pair = 0; pair < eighths; ++pair) {
            const float2 y = gradient[i].at(pair);
            change[pair][2 * i] = share[i] * y.x;
            change[pair][2 * i + 1] = share[i] * y.y;
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          slope[i] = score_gradient<T, eighths>(call, x[i], place[i], sequence[i], real[i], share[i], q);
        }
      }

      // Scaled slopes, and what undoes the scales of the projection and of the states' gradient.
      float scale = 1, scaled[2] = {slope[0], slope[1]}, inverse = tangent_scale<T>, change_inverse = 1;
      bool apart[2] = {};
      if constexpr (planes == 2) {
        const float largest = most_of_warp(fmaxf(x[0].largest(), x[1].largest()));
        const float largest_slope = most_of_warp(fmaxf(fabsf(slope[0]), fabsf(slope[1])));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // Every lane takes part in the exchange, of rows that are not real as well.
          const float most = most_of_quad(x[i].largest());
          apart[i] = real[i] && (stands_apart(most, largest) || stands_apart(fabsf(slope[i]), largest_slope));
        }
        scale = scale_for<60>(largest);
        const float slope_scale = scale_for<60>(largest_slope * largest_context);
        const float weight_inverse = inverse_of(weight_scale);
        scaled[0] *= slope_scale;
        scaled[1] *= slope_scale;
        inverse *= inverse_of(scale) * weight_inverse;
        change_inverse = inverse_of(slope_scale) * weight_inverse;
        if (lane == 0) {
          shared.inverses[warp][0] = inverse_of(slope_scale);
          shared.inverses[warp][1] = inverse_of(slope_scale) * inverse_of(scale);
        }
      }
      const int at = (warp * unit_rows + g) * Shape::pitch;
      const Operands<T, eighths> operands(x, scale, static_cast<unsigned>(width) >> 31);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_row<T, eighths>(shared.states + at + 8 * i * Shape::pitch, Shared::tile_plane, x[i], scale, q);
      }
      // The projection becomes tanh, and slopes, which go to shared memory in the order of the weight's rows.
      const auto slopes_of = [&](int pair, const float(&u)[4], unsigned(&parted)[2][planes]) {
        const int c = Shape::column(pair, q);
        const float2 bias = *reinterpret_cast<const float2*>(shared.vectors.bias + c);
        const float2 context = *reinterpret_cast<const float2*>(shared.vectors.context + c);
        float2 sum = context_sum(pair);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float a = tangent<T>(u[2 * k], inverse, bias.x), b = tangent<T>(u[2 * k + 1], inverse, bias.y);
          sum.x = fmaf(slope[k], a, sum.x);
          sum.y = fmaf(slope[k], b, sum.y);
          const float x = scaled[k] * context.x, y = scaled[k] * context.y;
          split<T>(make_float2(fmaf(-a, a * x, x), fmaf(-b, b * y, y)), parted[k]);
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) {
            *reinterpret_cast<unsigned*>(shared.slopes + plane * Shared::tile_plane + at + 8 * k * Shape::pitch + 8 * pair +
                                         2 * q) = parted[k][plane];
          }
        }
        context_sum(pair) = sum;
      };
      if constexpr (planes == 1) {
        // Two tiles of them at a time are the operand of the product back to the states.
#pragma unroll(Shared::crowded ? 1 : Shape::blocks)
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
      } else {
        // Float has no registers for both products at once: the second one reads them.
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
        const unsigned slopes_of_rows = shared_address(shared.slopes) +
                                        2 * ((warp * unit_rows + lane % 16) * Shape::pitch + (lane >> 4) * 8);
#pragma unroll
        for (int block = 0; block < Shape::blocks; ++block) {
          unsigned a[planes][4];
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) {
            load_matrices(a[plane], slopes_of_rows + 2 * (plane * Shared::tile_plane + 16 * block));
          }
          multiply_block<T, eighths, true, false>(change, a, block, 0, weight, lane);
        }
        if constexpr (Shape::tail) {
          unsigned a[planes][2], m[4];
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) {
            load_matrices(m, slopes_of_rows + 2 * (plane * Shared::tile_plane + 16 * Shape::blocks));
            a[plane][0] = m[0];
            a[plane][1] = m[1];
          }
          multiply_tail<T, eighths, true>(change, a, 0, weight, lane);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Row<T, eighths> result;
        if constexpr (planes == 2) {
          result.load(static_cast<const T*>(call.gradient) + int64_t{sequence[i]} * width, real[i], width, call.packs, q);
        }
#pragma unroll
        for (int pair = 0; pair < eighths; ++pair) {
          float2 y = make_float2(change[pair][2 * i], change[pair][2 * i + 1]);
          if constexpr (planes == 2) {
            const float2 direct = result.at(pair);
            y = make_float2(fmaf(y.x, change_inverse, share[i] * direct.x), fmaf(y.y, change_inverse, share[i] * direct.y));
          }
          result.set(pair, y);
        }
        if (real[i] && !apart[i]) result.store(out + int64_t{place[i]} * width, width, call.packs, q);
      }
      if constexpr (planes == 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          for (unsigned lanes = __ballot_sync(all_lanes, apart[i] && q == 0); lanes != 0; lanes &= lanes - 1) {
            const int from = __ffs(lanes) - 1;
            gradient_of_row<T>(call, __shfl_sync(all_lanes, place[i], from), __shfl_sync(all_lanes, sequence[i], from),
                            __shfl_sync(all_lanes, share[i], from), __shfl_sync(all_lanes, slope[i], from));
          }
        }
      }
    }
    entries[0] = then[0];
    entries[1] = then[1];
    fetch(tile + warps + warp, entries);
    __syncthreads();

    if (part < parts) {
      const int count = static_cast<int>(to - tile < warps ? to - tile : warps);
      const unsigned slopes = shared_address(shared.slopes), states = shared_address(shared.states);
      const unsigned ones = pack<E>(make_float2(1, 1));
      float sums[tiles][4] = {}, own[4] = {};
      const auto join = [&](float slope_inverse, float inverse) {
#pragma unroll
        for (int i = 0; i < 4; ++i) bias_sums[i] = fmaf(own[i], slope_inverse, bias_sums[i]);
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          float4 sum = weight_sum(j);
          sum.x = fmaf(sums[j][0], inverse, sum.x);
          sum.y = fmaf(sums[j][1], inverse, sum.y);
          sum.z = fmaf(sums[j][2], inverse, sum.z);
          sum.w = fmaf(sums[j][3], inverse, sum.w);
          weight_sum(j) = sum;
        }
      };
#pragma unroll(planes == 1 ? 2 : 1)
      for (int unit = 0; unit < count; ++unit) {
        unsigned a[planes][4];
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
          load_matrices_transposed(
              a[plane], slopes + 2 * (plane * Shared::tile_plane +
                                      (16 * unit + (lane >> 4) * 8 + lane % 8) * Shape::pitch + 16 * strip +
                                      (lane >> 3) % 2 * 8));
        }
        const int row = 16 * unit + (lane >> 3) % 2 * 8 + lane % 8, other = lane >> 4;
        const int next = planes == 2 ? 0 : other, from = (planes == 2 ? other * Shared::tile_plane : 0) + row * Shape::pitch;
        constexpr int group = 4;
#pragma unroll
        for (int first = 0; first < tiles; first += group) {
          unsigned b[group][4];
#pragma unroll
          for (int i = 0; i < group; i += 3 - planes) {
            if (first + i < tiles) {
              const int wanted = part * tiles + first + i + next;
              load_matrices_transposed(b[i], states + 2 * (from + 8 * (wanted < eighths ? wanted : eighths - 1)));
            }
          }
          if constexpr (planes == 2) {
#pragma unroll
            for (int i = 0; i < group && first + i < tiles; ++i) {
              multiply<E, true>(sums[first + i], a[1], b[i][0], b[i][1]);
            }
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
        if (part == 0) {
          if constexpr (planes == 2) multiply<E, true>(own, a[1], ones, ones);
          multiply<E>(own, a[0], ones, ones);
        }
        // A unit's own scales; without scales once a tile.
        if constexpr (planes == 2) join(shared.inverses[unit][0], shared.inverses[unit][1]);
      }
      if constexpr (planes == 1) join(1.0f, 1.0f);
    }
    __syncthreads();
  }

  float* const partial = static_cast<float*>(call.partials) + int64_t{blockIdx.x} * call.parameters.part();
  if (part < parts) {
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
    partial[units * (width + 1) + a] = sum;
  }
}

}  // namespace cuda_ext::attention
