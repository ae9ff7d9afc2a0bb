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
constexpr int whole_rows = 32;      // of a stage
constexpr int whole_stages = 3;     // six were no faster
constexpr int whole_units = 56;     // of a gate: 7 tiles of 8
constexpr int whole_columns = 224;  // of x and 1: twice 7 tiles of 16
constexpr int x_place = 4 * whole_units, h_place = x_place + whole_columns, whole_width = h_place + 64 + 8;
constexpr int x_tiles = 7, h_tiles = 11;  // of 8 gradients, of a warp
constexpr int most_tiles = 49;
static_assert(x_tiles * whole_columns / 32 <= most_tiles && h_tiles * 4 <= most_tiles);

constexpr int whole_shared = whole_stages * whole_rows * whole_width * 2;

// `bytes` of each row, as one lane brings them to shared memory.
struct Piece {
  const char* from;
  int row;  // in bytes, from one row to the next
  bool is, of_x;
};

// The piece of a staged row that begins with number `place`, if there is one.
template <typename T>
__device__ __forceinline__ Piece piece_of(int place, const Correlation<T>& input, const Correlation<T>& state,
                                          int direction, int first_column, int columns) {
  const auto piece = [](const T* from, int64_t row, bool is, bool of_x) {
    return Piece{reinterpret_cast<const char*>(from), static_cast<int>(row * sizeof(T)), is, of_x};
  };
  const int padded = state.x.columns;
  if (place < x_place) {
    const int gate = place / whole_units, unit = place % whole_units;
    return piece(input.g.data + direction * state.g_group + gate * padded + unit, input.g.row, unit < padded, false);
  }
  if (place < h_place) {
    const int column = place - x_place;
    const bool is = column < min(columns, input.x.columns - first_column);
    return piece(input.x.data + first_column + column, input.x.row, is, true);
  }
  const int unit = place - h_place;
  const bool is = unit < padded && first_column == 0;
  return piece(state.x.data + direction * state.x_group + unit, state.x.row, is, false);
}

// What a warp makes: 16 `count` columns of x or of h, from tile `first` on, by the gradients from number `gradient` on.
// Warps 0 to 2 have the larger half of x's tiles; 6 and 7 have h, of 21 tiles of gradients 11 each.
struct Job {
  bool of_h;
  int first, count, gradient;

  __device__ Job(int warp, int first_column, int width, int inputs, int padded) : of_h(warp >= 6) {
    const int all = (min(width, inputs + 1 - first_column) + 15) / 16, larger = (all + 1) / 2;
    first = warp < 3 || of_h ? 0 : larger;
    count = of_h ? first_column == 0 ? (padded + 16) / 16 : 0 : warp < 3 ? larger : all - larger;
    gradient = of_h ? whole_units + (warp - 6) * 80 : warp % 3 * whole_units;
  }
  __device__ int tiles() const { return of_h ? h_tiles : x_tiles; }
};

// sum [16 job.count, 8 tiles] += a^T b of a stage; a, b: the thread's addresses for ldmatrix. `count` is known at compile
// time: a branch between matrix instructions waits for the last of them.
template <typename E, int tiles, int count = most_tiles / tiles>
__device__ __forceinline__ void multiply_stage(float (&sum)[most_tiles][4], unsigned a, unsigned b, const Job& job) {
  if constexpr (count > 0) {
    if (job.count < count) return multiply_stage<E, tiles, count - 1>(sum, a, b, job);
#pragma unroll 1
    for (int half = 0; half < whole_rows; half += 16) {
      const int offset = half * whole_width * 2;
      uint32_t right[(tiles + 1) / 2][4];
      // An odd last column's neighbour is read and not used.
#pragma unroll
      for (int j = 0; j < tiles; j += 2) load_matrices_transposed(right[j / 2], b + offset + j * 16);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        uint32_t left[4];
        load_matrices_transposed(left, a + offset + i * 32);
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          multiply<E>(sum[i * tiles + j], left, right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
}

// Both correlations, in input.out [slices, column tiles, d, warps, most_tiles, 32] float4. The blocks of a slice of the rows
// follow one another: the directions', and of more columns than one block makes those of each `width`. Rows come in pieces
// of so many bytes.
template <typename T, int bytes>
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
    pieces[i] = piece_of<T>(first, input, state, direction, first_column, width);
    if (pieces[i].is) continue;
    // A 1 lies on a multiple of 8 bytes.
    const int one = first < h_place ? x_place + input.x.columns - first_column : h_place + padded;
#pragma unroll 1
    for (int row = warp; row < whole_stages * whole_rows; row += whole_warps) {
#pragma unroll
      for (int place = first; place < first + bytes / 2; place += 4) {
        const uint32_t word = place == one ? pack<E>(1.f, 0.f) : 0;
        *reinterpret_cast<uint2*>(staged + row * whole_width + place) = {word, 0};
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
    const unsigned to = base + (stage * whole_rows + warp * own) * whole_width * 2 + lane * bytes;
#pragma unroll
    for (int r = 0; r < own; ++r) {
      const int m = static_cast<int>(first) + warp * own + r, of_x = __shfl_sync(0xffffffff, place, r);
#pragma unroll
      for (int i = 0; i < loads; ++i) {
        if (!pieces[i].is) continue;
        const char* const from = row_at(pieces[i].from, pieces[i].of_x ? of_x : m, pieces[i].row);
        copy_async<bytes>(to + r * whole_width * 2 + 32 * i * bytes, from, static_cast<unsigned>(m) < end);
      }
    }
  };
#pragma unroll 1
  for (int s = 0; s < whole_stages - 1; ++s) {
    fetch(s, begin + s * whole_rows, place_of(begin + s * whole_rows));
    commit_copies();
  }
  int next = place_of(begin + (whole_stages - 1) * whole_rows);

  const Job job(warp, first_column, width, input.x.columns, padded);
  const unsigned a = base + ((lane / 16 * 8 + lane % 8) * whole_width + lane / 8 % 2 * 8 +
                             (job.of_h ? h_place : x_place) + 16 * job.first) * 2;
  const unsigned b = base + (lane % 16 * whole_width + lane / 16 * 8 + job.gradient) * 2;
  float sum[most_tiles][4] = {};
  int stage = 0;
  for (unsigned m = begin; m < end; m += whole_rows, stage = stage + 1 == whole_stages ? 0 : stage + 1) {
    await_copies<whole_stages - 2>();
    __syncthreads();
    const auto fetch_next = [&] {
      fetch(stage == 0 ? whole_stages - 1 : stage - 1, m + (whole_stages - 1) * whole_rows, next);
      commit_copies();
      next = place_of(m + whole_stages * whole_rows);
    };
    // Of two warps that share matrix units one fetches while the other multiplies.
    const bool late = warp >= whole_warps / 2;
    if (!late) fetch_next();
    const unsigned offset = stage * whole_rows * whole_width * 2;
    if (job.of_h) {
      multiply_stage<E, h_tiles>(sum, a + offset, b + offset, job);
    } else {
      multiply_stage<E, x_tiles>(sum, a + offset, b + offset, job);
    }
    if (late) fetch_next();
  }
  // As the matrix units leave them: `finish_whole` finds what each is.
  const int64_t first_tile = (int64_t{blockIdx.x} * whole_warps + warp) * most_tiles;
  float4* const out = reinterpret_cast<float4*>(input.out) + first_tile * 32 + lane;
  const int made = job.count * job.tiles();
#pragma unroll
  for (int t = 0; t < most_tiles; ++t) {
    if (t < made) out[t * 32] = make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
  }
}

}  // namespace gru
