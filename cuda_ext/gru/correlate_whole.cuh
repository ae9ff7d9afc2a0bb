// The products of correlate.cuh in half precision for up to 56 units: a block makes all that one direction's gradients
// are multiplied with, so that each row comes to it once, and keeps the sums in registers: of a warp 7 x 7 tiles of the
// matrix units, or 4 x 11.
//
// A staged row, in numbers:
//
//     0      56     112    168    224                                448         512
//     | of n | of r | of z | of m | x, then 1 for the bias, then 0   | h, 1, 0   | 8 of padding
//
// Six warps make (n, r, z) x: each one gate and half of the columns. Two make (r, z, m) h. The 1 gives the sums of the
// gradients alone.
#pragma once

#include "correlate.cuh"
#include "project_stationary.cuh"

namespace gru {

constexpr int whole_warps = 8, whole_threads = 32 * whole_warps;
constexpr int whole_rows = 32;     // of a stage
constexpr int whole_units = 56;    // of a gate: 7 tiles of 8
constexpr int whole_columns = 224; // of x and 1: twice 7 tiles of 16
constexpr int x_place = 4 * whole_units, h_place = x_place + whole_columns, whole_width = h_place + 64 + 8;
constexpr int x_tiles = 7, h_tiles = 11;  // of 8 gradients, of a warp
constexpr int most_tiles = 49;
static_assert(x_tiles * whole_columns / 32 <= most_tiles && h_tiles * 4 <= most_tiles);

template <int stages>
constexpr int whole_shared = stages * whole_rows * whole_width * 2;

// `bytes` of each row, as one lane brings them to shared memory.
struct Piece {
  const char* from;
  int row, to;  // in bytes: from one row to the next, and the place in a staged row
  bool is, of_x;
};

// The piece of a staged row that begins with number `place`; where there is none, what is brought goes to the padding.
template <typename T, int bytes>
__device__ __forceinline__ Piece piece_of(int place, const Correlation<T>& input, const Correlation<T>& state,
                                          int direction, int first_column, int columns) {
  const int gate = place / whole_units, padded = state.x.columns, unit = place < x_place ? place % whole_units : place - h_place;
  const int column = place - x_place;
  bool is = unit < padded && (place < x_place || first_column == 0);
  const T* from = input.g.data + direction * state.g_group + gate * padded + unit;
  int64_t row = input.g.row;
  const bool of_x = place >= x_place && place < h_place;
  if (of_x) {
    is = column < min(columns, input.x.columns - first_column);
    from = input.x.data + first_column + column;
    row = input.x.row;
  } else if (place >= h_place) {
    from = state.x.data + direction * state.x_group + unit;
    row = state.x.row;
  }
  return {reinterpret_cast<const char*>(from), static_cast<int>(row * sizeof(T)), 2 * (is ? place : whole_width - 8), is, of_x};
}

// sum [16 count, 8 tiles] += a^T b of 16 staged rows; a, b: the thread's addresses for ldmatrix.
template <typename E, int tiles>
__device__ __forceinline__ void multiply_whole(float (&sum)[most_tiles][4], unsigned a, unsigned b, int count) {
  uint32_t right[(tiles + 1) / 2][4], left[2][4];
  load_matrices_transposed(left[0], a);
  // An odd last column's neighbour is read and not used.
#pragma unroll
  for (int j = 0; j < tiles; j += 2) load_matrices_transposed(right[j / 2], b + j * 16);
#pragma unroll
  for (int i = 0; i < most_tiles / tiles; ++i) {
    if (i >= count) break;
    if (i + 1 < count) load_matrices_transposed(left[(i + 1) % 2], a + (i + 1) * 32);
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
      multiply<E>(sum[i * tiles + j], left[i % 2], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
  }
}

// Sums to where the blocks' slices lie, [3 P, columns and 1]. first_column: of a's 16 count; first: of b's gradients,
// 56 a gate. The first `skipped` tiles another warp writes.
template <int tiles>
__device__ __forceinline__ void store_whole(const float (&sum)[most_tiles][4], float* out, int columns, int first_column,
                                            int first, int skipped, int padded, int count) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < most_tiles / tiles; ++i) {
    if (i >= count) break;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int column = first_column + 16 * i + lane / 4 + v / 2 * 8;
      if (column > columns) continue;
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        const int place = first + 8 * j + lane % 4 * 2 + v % 2, unit = place % whole_units;
        if (j < skipped || unit >= padded) continue;
        out[(place / whole_units * padded + unit) * int64_t{columns + 1} + column] = sum[i * tiles + j][v];
      }
    }
  }
}

// Both correlations, as `correlate` makes them. The blocks of a slice of the rows follow one another: the directions', and
// of more columns than one block makes those of each `width`. Rows come in pieces of so many bytes.
template <typename T, int stages, int bytes>
__global__ void __launch_bounds__(whole_threads, 1)
    correlate_whole(Correlation<T> input, Correlation<T> state, int width, int slices, const Sequence* plan,
                    int sequences) {
  using E = Element<T>;
  constexpr int own = whole_rows / whole_warps;  // rows that a warp brings
  constexpr int loads = 32 / bytes;              // of a lane in a row
  extern __shared__ uint4 shared[];
  E* const staged = reinterpret_cast<E*>(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int directions = state.groups, column_tiles = input.column_tiles, padded = state.x.columns;
  const int direction = blockIdx.x % directions, first_column = blockIdx.x / directions % column_tiles * width;
  const int slice = blockIdx.x / directions / column_tiles;

  Piece pieces[loads];
#pragma unroll
  for (int i = 0; i < loads; ++i) {
    const int first = (lane + 32 * i) * bytes / 2;
    pieces[i] = piece_of<T, bytes>(first, input, state, direction, first_column, width);
    if (pieces[i].is) continue;
    const int one_of_x = x_place + input.x.columns - first_column, one_of_h = h_place + padded;
    for (int row = warp; row < stages * whole_rows; row += whole_warps) {
      for (int place = first; place < first + bytes / 2; ++place) {
        const bool one = place == (place < h_place ? one_of_x : one_of_h);
        staged[row * whole_width + place] = static_cast<E>(one ? 1.f : 0.f);
      }
    }
  }
  cuda_ext::wait_for_the_one_before();
  const int64_t origin = plan[sequences].first, last = plan[sequences].length;
  const int64_t share = ((last - origin + slices - 1) / slices + whole_rows - 1) / whole_rows * whole_rows;
  const auto begin = static_cast<unsigned>(min(origin + slice * share, last));
  const auto end = static_cast<unsigned>(min(begin + share, last));

  // Where the row of x lies that a lane names among its warp's, known a stage before it is used.
  const auto place_of = [&](unsigned first) {
    const unsigned m = first + warp * own + lane;
    return lane < own && m < end && input.x_source ? input.x_source[m] : static_cast<int>(m);
  };
  const unsigned base = cuda_ext::shared_address(staged);
  const auto fetch = [&](int stage, unsigned first, int place) {
    const unsigned to = base + (stage * whole_rows + warp * own) * whole_width * 2;
#pragma unroll
    for (int r = 0; r < own; ++r) {
      const int m = static_cast<int>(first) + warp * own + r, of_x = __shfl_sync(0xffffffff, place, r);
#pragma unroll
      for (int i = 0; i < loads; ++i) {
        const char* const from = row_at(pieces[i].from, pieces[i].of_x ? of_x : m, pieces[i].row);
        copy_async<bytes>(to + pieces[i].to + r * whole_width * 2, from, pieces[i].is && static_cast<unsigned>(m) < end);
      }
    }
  };
#pragma unroll
  for (int s = 0; s < stages - 1; ++s) {
    fetch(s, begin + s * whole_rows, place_of(begin + s * whole_rows));
    commit_copies();
  }
  int next = place_of(begin + (stages - 1) * whole_rows);

  // Warps 0 to 2 have the larger half of x's tiles; 6 and 7 have h, of 21 tiles of gradients 11 each.
  const bool of_h = warp >= 6;
  const int all = (min(width, input.x.columns + 1 - first_column) + 15) / 16, larger = (all + 1) / 2;
  const int first_tile = warp < 3 || of_h ? 0 : larger;
  const int count = of_h ? first_column == 0 ? (padded + 16) / 16 : 0 : warp < 3 ? larger : all - larger;
  const int gradient = of_h ? whole_units + (warp - 6) * 80 : warp % 3 * whole_units;
  const unsigned a = cuda_ext::shared_address(staged + (lane / 16 * 8 + lane % 8) * whole_width + lane / 8 % 2 * 8 +
                                              (of_h ? h_place : x_place) + 16 * first_tile);
  const unsigned b = cuda_ext::shared_address(staged + lane % 16 * whole_width + lane / 16 * 8 + gradient);

  float sum[most_tiles][4] = {};
  int stage = 0;
  for (unsigned m = begin; m < end; m += whole_rows, stage = stage + 1 == stages ? 0 : stage + 1) {
    await_copies<stages - 2>();
    __syncthreads();
    fetch(stage == 0 ? stages - 1 : stage - 1, m + (stages - 1) * whole_rows, next);
    commit_copies();
    next = place_of(m + stages * whole_rows);
#pragma unroll
    for (int half = 0; half < whole_rows; half += 16) {
      const int offset = (stage * whole_rows + half) * whole_width * 2;
      if (of_h) {
        multiply_whole<E, h_tiles>(sum, a + offset, b + offset, count);
      } else {
        multiply_whole<E, x_tiles>(sum, a + offset, b + offset, count);
      }
    }
  }

  const int64_t place = int64_t{slice} * directions + direction;
  if (of_h) {
    float* const out = state.out + place * 3 * padded * (padded + 1);
    store_whole<h_tiles>(sum, out, padded, 0, gradient - whole_units, warp - 6, padded, count);
  } else {
    float* const out = input.out + place * 3 * padded * (input.x.columns + 1);
    store_whole<x_tiles>(sum, out, input.x.columns, first_column + 16 * first_tile, gradient, 0, padded, count);
  }
}

}  // namespace gru
