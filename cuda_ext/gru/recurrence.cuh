// What both passes of the GRU's recurrence share: where a thread stands in its tile, and the weights it keeps.
#pragma once

#include "gru.cuh"

namespace gru {

// A thread's part of the tile that its block, or its cluster of `split` blocks, runs: of rows lane / 4 and lane / 4 + 8
// the 2 `columns` neighbouring units from `unit` on. They are `real` where the padded units have them.
template <int columns, int split>
struct Position {
  static constexpr int own = 2 * columns;
  int direction, slot, warp, lane, unit;
  bool real;

  __device__ __forceinline__ Position(int directions, int padded)
      : direction(blockIdx.x / split % directions),
        slot(blockIdx.x / split / directions * tile),
        warp(blockIdx.x % split * (blockDim.x / 32) + threadIdx.x / 32),
        lane(threadIdx.x % 32),
        unit(warp * 8 * columns + lane % 4 * own),
        real(unit < padded) {}
  __device__ __forceinline__ int row(int i) const { return lane / 4 + 8 * i; }
};

// A warp's fragments of the recurrent weights, which stay in registers throughout. The last block of a cluster may have
// more warps than there are fragments for: they get zeros.
template <int parts, int columns, int k_steps, int split>
__device__ __forceinline__ void load_fragments(uint32_t (&w)[parts][3 * columns][k_steps][2], const uint32_t* weights,
                                               int warps, const Position<columns, split>& at) {
  const bool is = split == 1 || at.warp < warps;
  const int place = at.direction * warps + at.warp;
  const uint2* mine = reinterpret_cast<const uint2*>(weights) + place * parts * 3 * columns * k_steps * 32 + at.lane;
#pragma unroll
  for (int p = 0; p < parts; ++p)
#pragma unroll
    for (int c = 0; c < 3 * columns; ++c)
#pragma unroll
      for (int k = 0; k < k_steps; ++k) {
        const uint2 both = is ? mine[((p * 3 * columns + c) * k_steps + k) * 32] : uint2{};
        w[p][c][k][0] = both.x;
        w[p][c][k][1] = both.y;
      }
}

// A thread's numbers of a row in states [d, N, H], of the sequence at `place`.
template <typename T, int columns, int split>
__device__ __forceinline__ void load_state(float (&h)[2 * columns], const T* states, int place,
                                           const Position<columns, split>& at, int sequences, int units, bool pairs) {
  constexpr int own = 2 * columns;
  const T* from = states + (at.direction * int64_t{sequences} + place) * units + at.unit;
  const Raw<T, own> raw = load_units<T, own>(from, units - at.unit, pairs);
#pragma unroll
  for (int u = 0; u < own; ++u) h[u] = raw[u];
}

template <typename T, int columns, int split>
__device__ __forceinline__ void store_state(const float (&h)[2 * columns], T* states, int place,
                                            const Position<columns, split>& at, int sequences, int units, bool pairs) {
  T* to = states + (at.direction * int64_t{sequences} + place) * units + at.unit;
  store_units(to, h, units - at.unit, pairs);
}

}  // namespace gru
