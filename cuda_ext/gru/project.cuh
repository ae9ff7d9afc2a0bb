// The large products of the GRU: the gates' sums from the input, and the input's gradient from theirs.
//
// fp32 is multiplied as two fp16 each in three products, each row of 32 numbers of the left operand scaled by its own power
// of two, and each row of weights by its own. The matrix units add up 32 numbers a time, and fp32 additions these sums,
// where the scales are taken back: the units round towards zero, which over thousands of additions errs by 1e-5.
#pragma once

#include "gru.cuh"

namespace gru {

constexpr int depth = 32;  // of a sum, staged in shared memory at a time
constexpr int project_threads = 256, tall = 128;  // 16 rows a warp
constexpr int project_width = depth + 8;          // padded against bank conflicts

// A matrix whose columns from `length` on lie `gap` further: three gates of each of two directions, out of four or
// five. Columns, rows and gaps are multiples of 4 numbers, and of 16 bytes if `packs`.
template <typename T>
struct Matrix {
  T* data;
  int64_t row;  // from one row to the next
  int columns, length, gap;
  bool packs;
  __host__ __device__ int at(int column) const { return column + (column >= length ? gap : 0); }
};

// Starts to bring the numbers of a row that 16 bytes hold, of which the first `left` are there, a multiple of 4, and
// zeros for the others. Unless `packs`, they begin on 8 bytes. elsewhere: any address that may be read.
template <typename T>
__device__ void bring(uint4* to, const T* from, int left, bool packs, const T* elsewhere) {
  if (sizeof(T) == 4 || packs) {
    copy_async<16>(to, left > 0 ? from : elsewhere, left > 0);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is = left > 4 * half;
      copy_async<8>(reinterpret_cast<uint2*>(to) + half, is ? from + 4 * half : elsewhere, is);
    }
  }
}

__device__ inline float largest_of(const uint4& four) {
  return fmaxf(fmaxf(fabsf(__uint_as_float(four.x)), fabsf(__uint_as_float(four.y))),
               fmaxf(fabsf(__uint_as_float(four.z)), fabsf(__uint_as_float(four.w))));
}

// Four of fp32, scaled and split.
__device__ inline void split_four(const uint4& four, float scale, uint2& high, uint2& low) {
  const float2 first = make_float2(__uint_as_float(four.x) * scale, __uint_as_float(four.y) * scale);
  const float2 second = make_float2(__uint_as_float(four.z) * scale, __uint_as_float(four.w) * scale);
  split_pair<__half>(first, high.x, low.x);
  split_pair<__half>(second, high.y, low.y);
}

// The input weights as gru_prepare packs them, rows of `row` numbers; of fp32 the low parts lie `part` behind the high
// ones, and `inverse` has what takes each row's scale back.
template <typename T>
struct Weights {
  const Element<T>* data;
  int64_t row, part;
  const float* inverse;
};

// `fresh` is known once the loops around it are unrolled.
template <typename E>
__device__ __forceinline__ void multiply_from(bool fresh, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  if (fresh) {
    multiply<E, true>(c, a, b0, b1);
  } else {
    multiply<E>(c, a, b0, b1);
  }
}

// A thread's two rows of 32 numbers, 8 each, from where they were staged to the operands of two matrix instructions, in the
// order of packed_number. inverse: what takes the scales of fp32's rows back.
template <typename T, int pieces>
__device__ __forceinline__ void load_left(uint32_t (&left)[2][parts<T>][4], float (&inverse)[2],
                                          const uint4 (&staged)[2][pieces][project_threads]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 first = staged[i][0][threadIdx.x];
    if constexpr (parts<T> == 2) {
      const uint4 second = staged[i][1][threadIdx.x];
      // Four neighbouring threads hold a row.
      float largest = fmaxf(largest_of(first), largest_of(second));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
      const float scale = scale_for(largest);
      inverse[i] = inverse_of(scale);
      uint2 high[2], low[2];
      split_four(first, scale, high[0], low[0]);
      split_four(second, scale, high[1], low[1]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        left[k][0][i] = high[k].x;
        left[k][0][i + 2] = high[k].y;
        left[k][1][i] = low[k].x;
        left[k][1][i + 2] = low[k].y;
      }
    } else {
      left[0][0][i] = first.x;
      left[0][0][i + 2] = first.y;
      left[1][0][i] = first.z;
      left[1][0][i + 2] = first.w;
    }
  }
}

// sum [16, 16 pairs] += left [16, 32] b [32, 16 pairs]. b: the thread's place in the staged weights, of which the low
// parts lie b_part behind the high ones.
template <typename T, int b_part, int pairs>
__device__ __forceinline__ void multiply_step(float (&sum)[2 * pairs][4], const uint32_t (&left)[2][parts<T>][4],
                                              const float (&inverse)[2], const Element<T>* b) {
  using E = Element<T>;
  constexpr int parts = gru::parts<T>;
#pragma unroll
  for (int j = 0; j < pairs; ++j) {
    float scaled[2][4];
    auto& even = parts == 2 ? scaled[0] : sum[2 * j];
    auto& odd = parts == 2 ? scaled[1] : sum[2 * j + 1];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t right[parts][4];
#pragma unroll
      for (int p = 0; p < parts; ++p) load_matrices(right[p], b + p * b_part + j * 16 * project_width + 16 * k);
#pragma unroll
      for (int p = 0; p < 2 * parts - 1; ++p) {
        multiply_from<E>(parts == 2 && k + p == 0, even, left[k][p == 1], right[p == 2][0], right[p == 2][1]);
        multiply_from<E>(parts == 2 && k + p == 0, odd, left[k][p == 1], right[p == 2][2], right[p == 2][3]);
      }
    }
    if constexpr (parts == 2) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        sum[2 * j][v] = fmaf(even[v], inverse[v / 2], sum[2 * j][v]);
        sum[2 * j + 1][v] = fmaf(odd[v], inverse[v / 2], sum[2 * j + 1][v]);
      }
    }
  }
}

// Four neighbours of a row of c from `column` on: the weights' scales are taken back, and the bias is added.
template <typename T>
__device__ __forceinline__ void store_sums(T* to, float (&values)[4], int column, int length, const float* b_inverse,
                                           const float* bias) {
  if constexpr (parts<T> == 2) {
    const float4 inverse = *reinterpret_cast<const float4*>(b_inverse + column);
    values[0] *= inverse.x;
    values[1] *= inverse.y;
    values[2] *= inverse.z;
    values[3] *= inverse.w;
  }
  if (bias != nullptr) {
    // Of n, r and z of each direction, in its stretch of four.
    const float4 more = *reinterpret_cast<const float4*>(bias + column + (column >= length ? length / 3 : 0));
    values[0] += more.x;
    values[1] += more.y;
    values[2] += more.z;
    values[3] += more.w;
  }
  store<T, 4>(to, Raw<T, 4>::of(values));
}

// c[m, j] = sum_k a[m, k] b[j, k] + bias[j] of real steps m. Rows of a or of c may lie elsewhere: row m at source[m]. If
// `all`, and then without bias, the other rows of c become zero: padding, or rows of no sequence.
template <typename T>
struct Product {
  Matrix<const T> a;
  const int* a_source;
  Weights<T> b;
  const float* bias;
  Matrix<T> c;
  const int* c_source;
  bool all;
  int64_t rows;
  const Sequence* plan;
  int sequences;
};

// Shared memory of a block of `project`: of a two rows of each thread, in loads of 16 bytes, and b.
template <typename T, int across, int stages>
struct ProjectShared {
  uint4 a[stages][2][sizeof(T) / 2][project_threads];
  Element<T> b[stages][gru::parts<T>][across][project_width];
};

// A block makes `tall` rows and `across` columns, a warp 16 rows; of 16 columns a thread makes 4 neighbours in two rows.
// What comes next is on its way `stages` - 1 steps ahead, of a each thread's own 8 numbers of two rows, so that they go from
// there straight into its operands. The arguments are a Product's: as one struct they take more registers than there are.
template <typename T, int across, int stages>
__global__ void __launch_bounds__(project_threads, 2)
    project(Matrix<const T> a, const int* a_source, Weights<T> b, const float* bias, Matrix<T> c, const int* c_source,
            bool all, int64_t rows, const Sequence* plan, int sequences) {
  using E = Element<T>;
  constexpr int parts = gru::parts<T>;
  constexpr int numbers = 16 / sizeof(T), pieces = 8 / numbers;  // of a load, and loads of a thread in a row
  constexpr int chunks = depth / 8;
  constexpr int b_part = across * project_width;
  constexpr int b_loads = (across * chunks + project_threads - 1) / project_threads;
  constexpr int pairs = across / 16;
  extern __shared__ uint4 shared[];
  auto& staged = *reinterpret_cast<ProjectShared<T, across, stages>*>(shared);

  // Blocks of one tile of rows follow one another, so that the rows are read from memory once.
  const int column_tiles = (c.columns + across - 1) / across;
  cuda_ext::wait_for_the_one_before();
  const int origin = plan[sequences].first, last = plan[sequences].length;
  const int64_t first_row = int64_t{blockIdx.x / column_tiles} * tall;
  const int64_t begin = all ? 0 : origin, end = all ? rows : last;
  if (first_row >= end || first_row + tall <= begin) return;
  const int first_column = blockIdx.x % column_tiles * across;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  const T* a_row[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t m = first_row + warp * 16 + lane / 4 + 8 * i;
    a_row[i] = m >= origin && m < last ? a.data + (a_source ? a_source[m] : m) * a.row : nullptr;
  }
  const int chunk = threadIdx.x % chunks * 8;
  const E* b_row[b_loads];
#pragma unroll
  for (int i = 0; i < b_loads; ++i) {
    const int row = (threadIdx.x + i * project_threads) / chunks;
    const bool is = row < across && first_column + row < c.columns;
    b_row[i] = is ? b.data + (first_column + row) * b.row + chunk : nullptr;
  }
  const auto fetch = [&](int step) {
#pragma unroll
    for (int p = 0; p < pieces; ++p) {
      const int column = step * depth + p * depth / pieces + lane % 4 * numbers;
      const int left = a.columns - column, at = a.at(column);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint4* const to = &staged.a[step % stages][i][p][threadIdx.x];
        bring(to, a_row[i] + at, a_row[i] ? left : 0, a.packs, a.data);
      }
    }
#pragma unroll
    for (int i = 0; i < b_loads; ++i) {
      const int index = threadIdx.x + i * project_threads;
      if (index >= across * chunks) break;
      // Of 16 columns, those that one thread will hold, 4 q to 4 q + 3, go to places 2 q and 2 q + 1 of both tiles.
      const int row = index / chunks;
      const int place = row / 16 * 16 + row / 2 % 2 * 8 + row / 4 % 4 * 2 + row % 2;
#pragma unroll
      for (int p = 0; p < parts; ++p) {
        const E* from = b_row[i] ? b_row[i] + p * b.part + step * depth : b.data;
        copy_async<16>(&staged.b[step % stages][p][place][chunk], from, b_row[i] != nullptr);
      }
    }
  };

  float sum[2 * pairs][4] = {};
  const int steps = first_row < last ? (a.columns + depth - 1) / depth : 0;
#pragma unroll
  for (int step = 0; step < stages - 1; ++step) {
    if (step < steps) fetch(step);
    commit_copies();
  }
  for (int step = 0; step < steps; ++step) {
    await_copies<stages - 2>();
    __syncthreads();
    if (step + stages - 1 < steps) fetch(step + stages - 1);
    commit_copies();

    uint32_t left[2][parts][4];
    float inverse[2] = {};
    load_left<T, pieces>(left, inverse, staged.a[step % stages]);
    const E* b_now = &staged.b[step % stages][0][lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
    multiply_step<T, b_part, pairs>(sum, left, inverse, b_now);
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t m = first_row + warp * 16 + lane / 4 + 8 * i;
    if (m < begin || m >= end) continue;
    T* row = c.data + (c_source ? c_source[m] : m) * c.row;
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int column = first_column + 16 * j + lane % 4 * 4;
      float values[4] = {sum[2 * j][2 * i], sum[2 * j][2 * i + 1], sum[2 * j + 1][2 * i], sum[2 * j + 1][2 * i + 1]};
      if (column >= c.columns) continue;
      const int at = c.at(column);
      store_sums<T>(row + at, values, column, c.length, b.inverse, bias);
    }
  }
}

}  // namespace gru
