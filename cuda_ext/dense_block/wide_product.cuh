// The product of dense_product.cu for 72 to 128 outputs, on Hopper's matrix units: a warpgroup multiplies 64 rows by all
// outputs, so that x is read, normalised and activated once.
//
// One warpgroup copies, and the others multiply. They could copy too; but before the matrix units read what a thread wrote to
// shared memory, it waits for all of its copies, also for those that it began ahead. Neighbouring threads copy to neighbours
// in shared memory, else each 16 bytes are a request to the L2 cache of their own.
#pragma once

#include "../common/wgmma.cuh"
#include "products.cuh"

namespace cuda_ext::channels {

constexpr int wide_outputs = 128;
constexpr int wide_tiles = wide_outputs / 8;
constexpr int group_rows = 64;
constexpr int group_threads = 128;

// Stages of shared memory that the threads of one warpgroup fill, by copies, and others use. Each thread goes through them in
// turn.
template <int stages>
struct Ring {
  unsigned barriers, parity = 0;
  int stage = 0;

  // By one thread, before the others begin; 2 `stages` barriers.
  __device__ static void begin(std::uint64_t* barriers, int users) {
    for (int i = 0; i < stages; ++i) {
      begin_barrier(shared_address(barriers + i), group_threads);
      begin_barrier(shared_address(barriers + stages + i), users);
    }
    order_barriers();
  }
  __device__ explicit Ring(std::uint64_t* barriers) : barriers(shared_address(barriers)) {}

  __device__ void await_empty() const { await_barrier(barriers + 8 * (stages + stage), parity ^ 1); }
  __device__ void fill() const { arrive_after_copies(barriers + 8 * stage); }
  __device__ void await_full() const { await_barrier(barriers + 8 * stage, parity); }
  __device__ void release() const { arrive(barriers + 8 * (stages + stage)); }
  __device__ void advance() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

constexpr int wide_chunk = 64;
constexpr int wide_stages = 4;

// How many blocks of so many warpgroups, and of one that copies, fit on a multiprocessor.
constexpr int wide_resident(int groups) { return groups == 1 ? 2 : 1; }

// Weights of a chunk of channels, if they are kept here.
template <typename T, bool kept>
struct WideWeights {
  alignas(1024) T weights[wide_outputs * wide_chunk];
};
template <typename T>
struct WideWeights<T, false> {};

// A block's shared memory, behind which lies a WideChunk for each chunk of channels. x is read by ldmatrix alone.
template <typename T, int groups, bool stays>
struct WideShared {
  static constexpr int row = wide_chunk + skew;
  struct Stage : WideWeights<T, !stays> {
    alignas(1024) T x[groups * group_rows * row];
  } stages[wide_stages];
  float center[wide_outputs];
  std::uint64_t barriers[2 * wide_stages];
};

template <typename T, bool stays>
struct WideChunk : WideWeights<T, stays> {
  float2 table[wide_chunk];  // scale and shift of each channel
};

template <typename T, int groups, bool stays>
constexpr int wide_bytes(int chunks) {
  return static_cast<int>(sizeof(WideShared<T, groups, stays>) + chunks * sizeof(WideChunk<T, stays>));
}

// Weights of a chunk of channels from `channel` on, all outputs, so ordered that each thread gets neighbouring ones
// (output_of). `thread` is one of so many.
template <typename T, int threads>
__device__ __forceinline__ void copy_wide_weights(T* to, const T* __restrict__ w, int64_t w_stride, int outputs, int channel,
                                                  int thread) {
  const int column = thread % 8 * 8;
  w += channel + column;
#pragma unroll
  for (int n = thread / 8; n < wide_outputs; n += threads / 8) {
    const int output = output_of<4>(n / 8, n % 8);
    const bool real = channel + column < w_stride && output < outputs;
    copy_async<16>(Swizzled<T, wide_outputs>{to}.at(n, column), real ? w + output * w_stride : w, real);
  }
}

// What the copying warpgroup does: all of a block's tiles to the stages. `thread` is one of it.
template <typename T, int groups, bool stays>
__device__ __forceinline__ void copy_wide_tiles(WideShared<T, groups, stays>& shared, const T* __restrict__ x,
                                                int64_t x_stride, const T* __restrict__ w, int64_t w_stride, int outputs,
                                                int64_t rows, int channels, int thread) {
  constexpr int tile_rows = groups * group_rows, at_once = group_threads / 8, row = shared.row;
  const int column = thread % 8 * 8;
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  Ring<wide_stages> ring(shared.barriers);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first = tile * tile_rows + thread / 8;
    const int left = static_cast<int>(rows - first < tile_rows ? rows - first : tile_rows);
    const T* from = x + first * x_stride + column;
    for (int channel = 0; channel < channels; channel += wide_chunk, from += wide_chunk, ring.advance()) {
      auto& here = shared.stages[ring.stage];
      T* const to = here.x + thread / 8 * row + column;
      ring.await_empty();
      // Products of what is not copied are not used.
      if (channel + column < channels) {
#pragma unroll
        for (int i = 0; i < tile_rows / at_once; ++i) {
          if (i * at_once < left) copy_async<16>(to + i * at_once * row, from + i * at_once * x_stride, true);
        }
      }
      if constexpr (!stays) {
        copy_wide_weights<T, group_threads>(here.weights, w, w_stride, outputs, channel, thread);
      }
      ring.fill();
    }
  }
  await_copies<0>();
}

// `groups` warpgroups multiply 64 rows each. stays: whether all weights stay in shared memory; else a chunk of them comes
// with each of a tile.
template <typename T, int groups, bool stays>
static __global__ void __launch_bounds__((groups + 1) * group_threads, wide_resident(groups))
    wide_products(const T* __restrict__ x, int64_t x_stride, const T* __restrict__ w, int64_t w_stride, int outputs,
                  T* __restrict__ y, int64_t rows, int channels, Norm norm, double* partial) {
  if constexpr (has_warpgroups) {
    constexpr int users = groups * group_threads, warps = users / 32, tile_rows = groups * group_rows;
    constexpr int group = 4, steps = wide_chunk / 16;
    using Shared = WideShared<T, groups, stays>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    auto* const chunk_of = reinterpret_cast<WideChunk<T, stays>*>(&shared + 1);
    const int chunks = (channels + wide_chunk - 1) / wide_chunk;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, own_rows = warp * 16;
    const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
    if (thread == 0) Ring<wide_stages>::begin(shared.barriers, users);
    __syncthreads();
    if (thread >= users) {
      use_fewer_registers();
      cuda_ext::wait_for_the_one_before();
      copy_wide_tiles(shared, x, x_stride, w, w_stride, outputs, rows, channels, thread - users);
      return;
    }

    use_more_registers<groups>();
    const auto sync = [] { sync_threads<users>(1); };
    if constexpr (stays) {
      for (int part = 0; part < chunks; ++part) {
        copy_wide_weights<T, users>(chunk_of[part].weights, w, w_stride, outputs, part * wide_chunk, thread);
      }
      commit_copies();
    }
    cuda_ext::wait_for_the_one_before();
    for (int c = thread; c < chunks * wide_chunk; c += users) {
      chunk_of[c / wide_chunk].table[c % wide_chunk] = scale_and_shift(norm, c, channels);
    }
    await_copies<0>();
    order_with_bulk_copies();
    sync();

    float sums[2][wide_tiles][2] = {};
    Ring<wide_stages> ring(shared.barriers);
    with_activation(norm, [&](const auto activation) {
      for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float product[wide_tiles][4];
        for (int part = 0; part < chunks; ++part, ring.advance()) {
          auto& here = shared.stages[ring.stage];
          const T* const xs = here.x + (own_rows + lane % 16) * Shared::row + lane / 16 * 8;
          const T* weights;
          if constexpr (stays) weights = chunk_of[part].weights;
          else weights = here.weights;
          ring.await_full();
          unsigned a[steps][4];
#pragma unroll
          for (int step = 0; step < steps; ++step) {
            load_activated<T>(a[step], shared_address(xs + step * 16), chunk_of[part].table + step * 16,
                              channels - part * wide_chunk - step * 16, lane, activation);
          }
          if (stays) ring.release();
          else order_with_bulk_copies();
          begin_products();
#pragma unroll
          for (int step = 0; step < steps; ++step) {
            const auto b = describe_swizzled(shared_address(weights + step * 16));
            multiply_rows<T, false>(product, a[step], b, part > 0 || step > 0);
          }
          commit_products();
          await_products<0>(product);
          if (!stays) ring.release();
        }
        unsigned result[wide_tiles][2];
#pragma unroll
        for (int j = 0; j < wide_tiles; ++j) {
          result[j][0] = pack<T>(product[j][0], product[j][1]);
          result[j][1] = pack<T>(product[j][2], product[j][3]);
        }
        const int64_t left = rows - tile * tile_rows - own_rows;
        if (tile == blockIdx.x) {
          const int first_rows = left < 16 ? static_cast<int>(left) : 16;
          if (warp == 0) find_center<T, wide_tiles, group>(shared.center, result, first_rows, lane);
          sync();
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = half * 8 + lane / 4;
          if (row >= left) continue;
          store_row<T, wide_tiles, group>(y + (tile * tile_rows + own_rows + row) * outputs, result, half, 0, outputs, lane);
          add_row<T, wide_tiles, group>(result, half, sums, shared.center, lane);
        }
      }
    });
    cuda_ext::let_the_next_start();
    if (partial == nullptr) return;
    // Where the tiles were.
    sync();
    store_sums<wide_tiles, warps, group>(partial, sums, reinterpret_cast<float*>(memory), shared.center,
                                         rows_of_block(rows, tiles, tile_rows), outputs, 0, sync);
  }
}

}  // namespace cuda_ext::channels
