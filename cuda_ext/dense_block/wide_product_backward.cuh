// The backward pass of dense_product_backward.cu for 72 to 128 outputs, on Hopper's matrix units. They read a tile in shared
// memory along either of its sides: so da = dy W and dW = dy^T a both take dy as it was copied, and a where x was.
#pragma once

#include "wide_product.cuh"

namespace cuda_ext::channels {

constexpr int wide_channels = 128;
constexpr int wide_backward_stages = 3;

// What a block stages of 64 rows: dy, x and the gradient.
template <typename T>
struct WideBackwardStage {
  alignas(1024) T dy[group_rows * wide_outputs];
  alignas(1024) T x[group_rows * wide_channels];
  alignas(1024) T gradient[group_rows * wide_channels];
};

template <typename T>
struct WideBackwardShared {
  WideBackwardStage<T> stages[wide_backward_stages];
  alignas(1024) T weights[wide_outputs * wide_channels];
  float4 by[wide_channels];
  float sums[2][group_threads / 32 * (wide_channels + 1)];
  std::uint64_t barriers[2 * wide_backward_stages];
};

// What da of a warp's 16 rows and 64 channels gives to the norm: s dz is added to the staged gradient, a takes the place of
// x, zero in rows that are not real, and dz and dz (x - mean) are summed. by: mean, scale and bias of each channel.
template <typename T, typename Activation>
__device__ __forceinline__ void through_wide_norm(const float (&da)[8][4], T* xs, T* gradients, int rows, int channels,
                                                  const float4* by, float (&sums)[2][8][2], float& to_beta, int lane,
                                                  const Activation& activation) {
  // The loads of so many products stand before their stores: the compiler keeps accesses to shared memory in order.
  constexpr int at_once = 2;
#pragma unroll
  for (int first = 0; first < 8; first += at_once) {
    if (first * 8 >= channels) break;
    const auto place = [&](T* tile, int j, int half) {
      return reinterpret_cast<unsigned*>(Swizzled<T, group_rows>{tile}.at(half * 8 + lane / 4, (first + j) * 8 + lane % 4 * 2));
    };
    unsigned values[at_once][2], found[at_once][2];
#pragma unroll
    for (int i = 0; i < at_once * 2; ++i) {
      values[i / 2][i % 2] = *place(xs, i / 2, i % 2);
      found[i / 2][i % 2] = *place(gradients, i / 2, i % 2);
    }
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int column = (first + j) * 8 + lane % 4 * 2;
      const float4 norms[2] = {by[column], by[column + 1]};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = cuda_ext::unpack<T>(values[j][half]), of_gradient = cuda_ext::unpack<T>(found[j][half]);
        float a[2] = {x.x, x.y}, g[2] = {of_gradient.x, of_gradient.y};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          // Past the channels lies what others wrote; and of rows that are padding z may be infinite in half precision, and
          // infinity times a dy of zero is no number.
          const bool real = half * 8 + lane / 4 < rows && column + e < channels;
          const float centred = real ? a[e] - norms[e].x : 0.0f, z = centred * norms[e].y + norms[e].z;
          const float dz = real ? activation.through(da[first + j][half * 2 + e], z, to_beta) : 0.0f;
          a[e] = real ? activation.value(z) : 0.0f;
          sums[0][first + j][e] += dz;
          sums[1][first + j][e] += dz * centred;
          g[e] += norms[e].y * dz;
        }
        values[j][half] = cuda_ext::pack<T>(a[0], a[1]);
        found[j][half] = cuda_ext::pack<T>(g[0], g[1]);
      }
    }
#pragma unroll
    for (int i = 0; i < at_once * 2; ++i) {
      *place(xs, i / 2, i % 2) = values[i / 2][i % 2];
      *place(gradients, i / 2, i % 2) = found[i / 2][i % 2];
    }
  }
}

// Where a column of a block lies in its tile: those of the second warpgroup, from `half` on, begin on a panel.
__device__ inline int place_of_half(int column, int half) { return column < half ? column : wide_channels / 2 + column - half; }

// Copies a thread's part of 64 rows of 128 columns, of which so many are real; with `zeros` also zeros for the others.
template <typename T, bool zeros>
__device__ __forceinline__ void copy_rows(T* tile, const T* __restrict__ from, int64_t stride, int rows, int columns,
                                          int half = wide_channels / 2) {
  static_assert(wide_outputs == wide_channels);
  constexpr int lanes = wide_channels / 8, at_once = group_threads / lanes;
  const int column = threadIdx.x % lanes * 8, row = threadIdx.x % group_threads / lanes;
  if (!zeros && column >= columns) return;
  T* const to = Swizzled<T, group_rows>{tile}.at(row, place_of_half(column, half));
  const T* const first = from + row * stride + column;
#pragma unroll
  for (int i = 0; i < group_rows / at_once; ++i) {
    const bool real = column < columns && row + i * at_once < rows;
    if (zeros || real) copy_async<16>(to + i * at_once * 64, real ? first + i * at_once * stride : from, real);
  }
}

__device__ inline int rows_of_tile(int64_t tile, int64_t rows) {
  const int64_t left = rows - tile * group_rows;
  return left < group_rows ? static_cast<int>(left) : group_rows;
}

// What the copying warpgroup does: all of a block's tiles to the stages. x, added: from the block's first channel on.
template <typename T>
__device__ __forceinline__ void copy_wide_tiles(WideBackwardShared<T>& shared, const Given<T>& given, const T* __restrict__ x,
                                                int64_t x_stride, const T* added, int64_t added_stride, int64_t rows,
                                                int channels, int half) {
  const int64_t tiles = (rows + group_rows - 1) / group_rows;
  Ring<wide_backward_stages> ring(shared.barriers);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, ring.advance()) {
    WideBackwardStage<T>& to = shared.stages[ring.stage];
    const int64_t row = tile * group_rows;
    const int real = rows_of_tile(tile, rows);
    ring.await_empty();
    // Where there is no dy it is zero for dW.
    copy_rows<T, true>(to.dy, given.dy + row * given.outputs, given.outputs, real, given.outputs);
    copy_rows<T, false>(to.x, x + row * x_stride, x_stride, real, channels, half);
    copy_rows<T, false>(to.gradient, added + row * added_stride, added_stride, real, channels, half);
    ring.fill();
  }
  await_copies<0>();
}

// The channels of blockIdx.y of 64 rows at a time: two warpgroups take half of them each. given: dy alone, finished. The
// gradient becomes what it is added to, which may be itself, and s dz.
template <typename T>
static __global__ void __launch_bounds__(3 * group_threads, 1)
    wide_products_back(Given<T> given, const T* __restrict__ w, int64_t w_stride, const T* __restrict__ x,
                       int64_t x_stride, int64_t rows, int channels, Norm norm, const T* added, int64_t added_stride,
                       T* gradient, int64_t gradient_stride, float* partial, float* partial_beta,
                       float* partial_weights) {
  if constexpr (has_warpgroups) {
    using Tile = Swizzled<T, group_rows>;
    using Weights = Swizzled<T, wide_outputs>;
    constexpr int users = 2 * group_threads, side_channels = wide_channels / 2, half_outputs = wide_outputs / 2;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<WideBackwardShared<T>*>(memory);
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int side = warp / 4, own_rows = warp % 4 * 16;
    const int outputs = given.outputs, width = ((channels + gridDim.y - 1) / gridDim.y + 15) / 16 * 16;
    const int begin = blockIdx.y * width, count = min(width, channels - begin), half = (count + 15) / 16 * 8;
    const int64_t tiles = (rows + group_rows - 1) / group_rows;
    if (thread == 0) Ring<wide_backward_stages>::begin(shared.barriers, users);
    __syncthreads();
    if (thread >= users) {
      use_fewer_registers();
      cuda_ext::wait_for_the_one_before();
      copy_wide_tiles(shared, given, x + begin, x_stride, added + begin, added_stride, rows, count, half);
      return;
    }

    use_more_registers<2>();
    const auto sync = [&] { sync_threads<group_threads>(1 + side); };
    // The warpgroup's channels, and where they begin in a tile.
    const int first = begin + side * half, own = side == 0 ? min(half, count) : max(0, count - half);
    const int panel = side * side_channels;
    // Zeros past the outputs and the channels.
    for (int i = thread % group_threads; i < wide_outputs * (side_channels / 8); i += group_threads) {
      const int output = i / (side_channels / 8), column = i % (side_channels / 8) * 8;
      const bool real = output < outputs && column < own;
      copy_async<16>(Weights{shared.weights}.at(output, panel + column),
                     real ? w + output * w_stride + first + column : w, real);
    }
    commit_copies();
    for (int i = thread % group_threads; i < side_channels; i += group_threads) {
      shared.by[panel + i] = table_entry(norm, first + i, first + own);
    }
    cuda_ext::wait_for_the_one_before();
    await_copies<0>();
    order_with_bulk_copies();
    sync();

    float sums[2][8][2] = {}, to_beta = 0, weights[2][8][4] = {};
    Ring<wide_backward_stages> ring(shared.barriers);
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, ring.advance()) {
      WideBackwardStage<T>& here = shared.stages[ring.stage];
      const int real_rows = rows_of_tile(tile, rows);
      float da[8][4];
      unsigned a[wide_outputs / 16][4];
      ring.await_full();
#pragma unroll
      for (int k = 0; k < wide_outputs / 16; ++k) {
        load_matrices(a[k], Tile{here.dy}.address(own_rows + lane % 16, k * 16 + lane / 16 * 8));
      }
      begin_products();
#pragma unroll
      for (int k = 0; k < wide_outputs / 16; ++k) {
        const unsigned from = Weights{shared.weights}.address(k * 16, panel);
        multiply_rows<T, true>(da, a[k], describe_swizzled(from), k > 0);
      }
      commit_products();
      await_products<0>(da);
      with_activation(norm, [&](const auto activation) {
        through_wide_norm<T>(da, Tile{here.x}.at(own_rows, panel), Tile{here.gradient}.at(own_rows, panel),
                             real_rows - own_rows, own, shared.by + panel, sums, to_beta, lane, activation);
      });
      order_with_bulk_copies();
      sync();
      begin_products();
#pragma unroll
      for (int k = 0; k < group_rows; k += 16) {
        const auto of_a = describe_swizzled(Tile{here.x}.address(k, panel));
#pragma unroll
        for (int half_of_outputs = 0; half_of_outputs < 2; ++half_of_outputs) {
          const unsigned from = Tile{here.dy}.address(k, half_of_outputs * half_outputs);
          multiply_panels<T>(weights[half_of_outputs], describe_swizzled(from), of_a, true);
        }
      }
      commit_products();
      constexpr int lanes = side_channels / 8, at_once = group_threads / lanes;
      const int column = thread % lanes * 8, row = thread % group_threads / lanes;
      T* const to = gradient + (tile * group_rows + row) * gradient_stride + first + column;
#pragma unroll
      for (int i = 0; i < group_rows / at_once; ++i) {
        if (column >= own || row + i * at_once >= real_rows) continue;
        store(to + i * at_once * gradient_stride, load<T, 8>(Tile{here.gradient}.at(row + i * at_once, panel + column)));
      }
      await_products<0>(weights[0]);
      await_products<0>(weights[1]);
      ring.release();
    }
    cuda_ext::let_the_next_start();
#pragma unroll
    for (int i = 0; i < 2 * 8 * 4; ++i) {
      const int output = i / 32 * half_outputs + own_rows + i % 4 / 2 * 8 + lane / 4;
      const int channel = i / 4 % 8 * 8 + lane % 4 * 2 + i % 2;
      if (output < outputs && channel < own) {
        partial_weights[(int64_t{blockIdx.x} * outputs + output) * channels + first + channel] =
            weights[i / 32][i / 4 % 8][i % 4];
      }
    }
    store_gradients<4, 8, 1>(sums, to_beta, shared.sums[side], first, first + own, channels, partial,
                             place_of_block(partial_beta, side, 2), thread % group_threads, sync);
  }
}

}  // namespace cuda_ext::channels
