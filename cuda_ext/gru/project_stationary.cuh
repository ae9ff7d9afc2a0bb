// The product of project.cuh in half precision, with the weights stationary: a block keeps all of them, or one part of
// their columns, in its warps' registers, and its rows stream past them through shared memory. A row of the left operand
// comes from memory once for each part.
#pragma once

#include "project.cuh"

namespace gru {

constexpr int stationary_warps = 8, stationary_threads = 32 * stationary_warps;

// A block for sums over up to 16 `k_steps`: a warp holds the weights of up to `tiles` times 8 columns. An odd number of
// 16-byte pieces a row keeps ldmatrix free of bank conflicts. Any GPU has shared memory for the stages; 64 rows were slower.
template <int steps>
struct Stationary {
  static constexpr int k_steps = steps, rows = 32;
  static constexpr int tiles = steps <= 13 ? 6 : steps <= 21 ? 4 : 3;
  static constexpr int stages = steps <= 21 ? 4 : 3;
  static constexpr int stride = 2 * k_steps + 1;
  static constexpr int shared = stages * rows * stride * 16;
};

// `from` + index times `row` bytes. (The compiler widens factors ahead of a loop, and then multiplies 64 bits by 64.)
template <typename C>
__device__ inline C* row_at(C* from, int index, int row) {
  static_assert(sizeof(C) == 1);
  int64_t offset;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(offset) : "r"(index), "r"(row));
  return from + offset;
}

// The tiles of 8 columns that a warp makes: pairs from an even one on, where that can be, and of an odd number one alone.
// Of a pair's 16 columns a thread makes 4 neighbours, so that it stores 8 bytes.
struct Share {
  int count, pairs_at, alone;

  __device__ Share(int first, int count) : count(count), pairs_at(first + (first & count & 1)), alone(first) {
    if (first % 2 == 0) alone = first + count - 1;
  }
  // The column that is `place` of 8 of tile j in the matrix instruction.
  __device__ int column(int j, int place) const {
    if (count % 2 == 1 && j == count - 1) return 8 * alone + place;
    return 8 * pairs_at + j / 2 * 16 + place / 2 * 4 + j % 2 * 2 + place % 2;
  }
};

// A thread's weights of its warp's columns, as gru_prepare packs them: 16 bytes have those of two k-steps.
template <typename E, int tiles, int k_steps>
__device__ __forceinline__ void load_weights(uint32_t (&weights)[tiles][k_steps][2], const E* data, int64_t row,
                                             int columns, const Share& share) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < tiles; ++j) {
    const int column = share.column(j, lane / 4);
    const E* const from = data + column * row + lane % 4 * 8;
#pragma unroll
    for (int k = 0; k < k_steps; k += 2) {
      const bool is = j < share.count && column < columns && 16 * k < row;
      const uint4 both = is ? *reinterpret_cast<const uint4*>(from + 16 * k) : uint4{};
      weights[j][k][0] = both.x;
      weights[j][k][1] = both.y;
      if (k + 1 < k_steps) {
        weights[j][k + 1][0] = both.z;
        weights[j][k + 1][1] = both.w;
      }
    }
  }
}

// A thread's n neighbours of the bias, or zeros. It lies in stretches of four gates, of which c has three.
template <int n>
__device__ __forceinline__ Raw<float, n> bias_of(const float* bias, int column, int columns, int length) {
  if (bias == nullptr || column >= columns) return {};
  return load<float, n>(bias + column + (column >= length ? length / 3 : 0));
}

// c [16, 8 count] of 16 staged rows, none of them real if `zeros`. This thread stores two: row i begins at to[i], if it
// `is`. left: the thread's address for ldmatrix.
template <typename T, int tiles, int k_steps, int count = tiles>
__device__ __forceinline__ void project_rows(const uint32_t (&weights)[tiles][k_steps][2], const Share& share,
                                             unsigned left, bool zeros, const Matrix<T>& c, T* const (&to)[2],
                                             const bool (&is)[2], const float* bias) {
  if constexpr (count > 1) {
    if (share.count < count) {
      return project_rows<T, tiles, k_steps, count - 1>(weights, share, left, zeros, c, to, is, bias);
    }
  }
  const int pairs_at = 8 * share.pairs_at + threadIdx.x % 4 * 4, alone_at = 8 * share.alone + threadIdx.x % 4 * 2;
  float sum[count][4];
#pragma unroll
  for (int j = 0; j < count; j += 2) {
    if (j + 1 < count) {
      const Raw<float, 4> more = bias_of<4>(bias, pairs_at + 8 * j, c.columns, c.length);
#pragma unroll
      for (int v = 0; v < 4; ++v) sum[j + v / 2][v % 2] = sum[j + v / 2][v % 2 + 2] = more[v];
    } else {
      const Raw<float, 2> more = bias_of<2>(bias, alone_at, c.columns, c.length);
      sum[j][0] = sum[j][2] = more[0];
      sum[j][1] = sum[j][3] = more[1];
    }
  }
  if (!zeros) {
#pragma unroll
    for (int k = 0; k < k_steps; ++k) {
      uint32_t a[4];
      load_matrices(a, left + 32 * k);
#pragma unroll
      for (int j = 0; j < count; ++j) multiply<Element<T>>(sum[j], a, weights[j][k][0], weights[j][k][1]);
    }
  }
  // What is stored is made ahead of the condition, which is then a predicate and no branch.
#pragma unroll
  for (int j = 0; j < count; j += 2) {
    const int column = j + 1 < count ? pairs_at + 8 * j : alone_at, at = c.at(column);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      T* const place = to[i] + at;
      const bool really = is[i] && column < c.columns;
      if (j + 1 < count) {
        const float values[4] = {sum[j][2 * i], sum[j][2 * i + 1], sum[j + 1][2 * i], sum[j + 1][2 * i + 1]};
        const Raw<T, 4> raw = Raw<T, 4>::of(values);
        if (really) store<T, 4>(place, raw);
      } else {
        const float values[2] = {sum[j][2 * i], sum[j][2 * i + 1]};
        const Raw<T, 2> raw = Raw<T, 2>::of(values);
        if (really) store<T, 2>(place, raw);
      }
    }
  }
}

// As `project`, of half precision alone. Blocks along x share the rows out, those along y the columns. Rows come in pieces
// of so many bytes.
template <typename T, typename S, int bytes>
__global__ void __launch_bounds__(stationary_threads, 1) project_stationary(Product<T> of) {
  const Matrix<const T>& a = of.a;
  const Matrix<T>& c = of.c;
  constexpr int own = S::rows / stationary_warps;          // rows that a warp brings
  constexpr int loads = (S::k_steps + bytes - 1) / bytes;  // of a lane in a row
  extern __shared__ uint4 shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // What no copy writes stays zero.
  for (int row = threadIdx.x; row < S::stages * S::rows; row += stationary_threads) {
    for (int i = a.columns / 4; i < 2 * S::stride; ++i) reinterpret_cast<uint2*>(shared + row * S::stride)[i] = {};
  }
  cuda_ext::wait_for_the_one_before();
  const unsigned origin = of.plan[of.sequences].first, last = of.plan[of.sequences].length;
  const int whole = (c.columns + 7) / 8, parts = gridDim.y, part = blockIdx.y;
  const int first_tile = whole * part / parts, tiles = whole * (part + 1) / parts - first_tile;
  const int each = tiles / stationary_warps, more = tiles % stationary_warps;
  const Share share(first_tile + warp * each + min(warp, more), each + (warp < more));
  uint32_t weights[S::tiles][S::k_steps][2];
  load_weights(weights, of.b.data, of.b.row, c.columns, share);

  // Behind the last of 2^31 rows a stage's first is still a number.
  const unsigned end = of.all ? static_cast<unsigned>(of.rows) : last, step = gridDim.x * S::rows;
  unsigned first = (of.all ? 0 : origin) + blockIdx.x * S::rows;
  if (first >= end) return;
  // Where the row lies that a lane names among its warp's, -1 where there is none. It is known a stage before it is used.
  const auto place_of = [&](unsigned first) {
    const unsigned m = first + warp * own + lane;
    if (lane >= own || m < origin || m >= last) return -1;
    return of.a_source ? of.a_source[m] : static_cast<int>(m);
  };
  // Where a lane's pieces come from in a row, in bytes; -1 where there is none.
  int at[loads];
#pragma unroll
  for (int i = 0; i < loads; ++i) {
    const int column = (lane + 32 * i) * bytes / 2;
    at[i] = column < a.columns ? 2 * a.at(column) : -1;
  }
  const unsigned base = cuda_ext::shared_address(shared);
  const int row_bytes = static_cast<int>(2 * a.row);
  const auto fetch = [&](int stage, int place) {
    const unsigned rows = base + (stage * S::rows + warp * own) * S::stride * 16 + lane * bytes;
#pragma unroll
    for (int r = 0; r < own; ++r) {
      const int row = __shfl_sync(0xffffffff, place, r);
      const char* const from = row_at(reinterpret_cast<const char*>(a.data), row, row_bytes);
#pragma unroll
      for (int i = 0; i < loads; ++i) {
        if (at[i] >= 0) copy_async<bytes>(rows + r * S::stride * 16 + 32 * i * bytes, from + at[i], row >= 0);
      }
    }
  };
#pragma unroll
  for (int s = 0; s < S::stages - 1; ++s) {
    fetch(s, place_of(first + s * step));
    commit_copies();
  }
  int next = place_of(first + (S::stages - 1) * step);

  const unsigned left = base + (lane % 16 * S::stride + lane / 16) * 16;
  for (int stage = 0; first < end; first += step, stage = stage + 1 == S::stages ? 0 : stage + 1) {
    await_copies<S::stages - 2>();
    __syncthreads();
    const auto fetch_next = [&] {
      fetch(stage == 0 ? S::stages - 1 : stage - 1, next);
      commit_copies();
      next = place_of(first + S::stages * step);
    };
    // Of two warps that share matrix units one fetches while the other multiplies.
    const bool late = warp >= stationary_warps / 2;
    if (!late) fetch_next();
#pragma unroll 1
    for (int half = 0; half < S::rows && share.count > 0; half += 16) {
      T* to[2];
      bool is[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned m = first + half + lane / 4 + 8 * i;
        is[i] = m < end;
        const int row = is[i] && of.c_source ? of.c_source[m] : static_cast<int>(m);
        to[i] = reinterpret_cast<T*>(row_at(reinterpret_cast<char*>(c.data), row, static_cast<int>(2 * c.row)));
      }
      const bool zeros = first + half >= last;
      project_rows(weights, share, left + (stage * S::rows + half) * S::stride * 16, zeros, c, to, is, of.bias);
    }
    if (late) fetch_next();
  }
}

}  // namespace gru
