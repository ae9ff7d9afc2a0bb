// The GRU's large matrix products, over real steps alone. How many there are, M, only the GPU knows: a block whose rows
// begin past M ends at once. A library's product would do all N T.
//
// `project` makes the gates' sums from the input, and the input's gradient from theirs. `correlate` makes the weights'
// gradients in slices of M, and `finish` adds those up in order. fp32 is multiplied as two bf16 each in three products.

#include "gru.cuh"

#include <algorithm>
#include <array>
#include <climits>
#include <optional>
#include <vector>

namespace {

using gru::Sequence;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int depth = 32;     // of a sum, staged in shared memory at a time
constexpr int project_threads = 256;
constexpr int correlate_rows = 112, correlate_threads = 224;

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

// Eight neighbouring numbers of a row, as they come from memory.
template <typename T>
struct Eight {
  static constexpr int words = 8 * sizeof(T) / 16;
  uint4 raw[words];
};

// Of which the first `left` are there: 4 or 8.
template <typename T>
__device__ Eight<T> load_eight(const T* data, int left, bool packs) {
  Eight<T> eight{};
  if constexpr (sizeof(T) == 4) {
    if (left > 0) eight.raw[0] = reinterpret_cast<const uint4*>(data)[0];
    if (left > 4) eight.raw[1] = reinterpret_cast<const uint4*>(data)[1];
  } else if (packs) {
    if (left > 0) eight.raw[0] = *reinterpret_cast<const uint4*>(data);
  } else {
    uint2 first{}, second{};
    if (left > 0) first = reinterpret_cast<const uint2*>(data)[0];
    if (left > 4) second = reinterpret_cast<const uint2*>(data)[1];
    eight.raw[0] = {first.x, first.y, second.x, second.y};
  }
  return eight;
}

// The operands of eight numbers, high and low, 16 bytes each, at `to` and `to + part`.
template <typename T>
__device__ void store_operands(gru::Operand<T>* to, int64_t part, const Eight<T>& eight) {
  if constexpr (sizeof(T) == 4) {
    uint4 high, low;
    const uint4 &a = eight.raw[0], &b = eight.raw[1];
    gru::split(__uint_as_float(a.x), __uint_as_float(a.y), high.x, low.x);
    gru::split(__uint_as_float(a.z), __uint_as_float(a.w), high.y, low.y);
    gru::split(__uint_as_float(b.x), __uint_as_float(b.y), high.z, low.z);
    gru::split(__uint_as_float(b.z), __uint_as_float(b.w), high.w, low.w);
    *reinterpret_cast<uint4*>(to) = high;
    *reinterpret_cast<uint4*>(to + part) = low;
  } else {
    *reinterpret_cast<uint4*>(to) = eight.raw[0];
  }
}

// c[m, j] = sum_k a[m, k] b[j, k] + bias[j], m < M. Rows of a or of c may lie elsewhere: row m at source[m]; of such a
// c the rows from M on, which are its padding, become zero. A block makes `tall` rows and `across` columns, a warp 16
// rows; of 16 columns a thread makes 4 neighbours in two rows.
template <typename T, int tall, int across>
__global__ void __launch_bounds__(project_threads, 2)
    project(Matrix<const T> a, const int* a_source, Matrix<const T> b, const float* bias, Matrix<T> c,
            const int* c_source, int64_t rows, const Sequence* plan, int sequences) {
  using E = gru::Operand<T>;
  constexpr int parts = gru::parts<T>;
  constexpr int width = depth + 8, chunks = depth / 8;
  constexpr int a_part = tall * width, b_part = across * width;
  constexpr int a_loads = (tall * chunks + project_threads - 1) / project_threads;
  constexpr int b_loads = (across * chunks + project_threads - 1) / project_threads;
  constexpr int down = tall / 16;  // warps
  constexpr int pairs = across / 16 / (project_threads / 32 / down);
  extern __shared__ uint4 shared[];
  E* const staged = reinterpret_cast<E*>(shared);  // [2][parts of a, parts of b]

  // Blocks of one tile of rows follow one another, so that the rows are read from memory once.
  const int column_tiles = (c.columns + across - 1) / across;
  const int count = plan[sequences].length;
  const int64_t first_row = int64_t{blockIdx.x / column_tiles} * tall;
  const int64_t written = c_source ? rows : count;
  if (first_row >= written) return;
  const int first_column = blockIdx.x % column_tiles * across;
  const int warp = threadIdx.x / 32 % down, group = threadIdx.x / 32 / down * pairs, lane = threadIdx.x % 32;

  const int chunk = threadIdx.x % chunks * 8;
  const T* a_row[a_loads];
  const T* b_row[b_loads];
#pragma unroll
  for (int i = 0; i < a_loads; ++i) {
    const int place = (threadIdx.x + i * project_threads) / chunks;
    const int64_t m = first_row + place;
    a_row[i] = place >= tall || m >= count ? nullptr : a.data + (a_source ? a_source[m] : m) * a.row;
  }
#pragma unroll
  for (int i = 0; i < b_loads; ++i) {
    const int row = (threadIdx.x + i * project_threads) / chunks;
    const bool is = row < across && first_column + row < c.columns;
    b_row[i] = is ? b.data + (first_column + row) * b.row + chunk : nullptr;
  }
  Eight<T> a_next[a_loads], b_next[b_loads];
  const auto fetch = [&](int k) {
    const int left = a.columns - k - chunk, at = a.at(k + chunk);
#pragma unroll
    for (int i = 0; i < a_loads; ++i) a_next[i] = load_eight(a_row[i] + at, a_row[i] ? left : 0, a.packs);
#pragma unroll
    for (int i = 0; i < b_loads; ++i) b_next[i] = load_eight(b_row[i] + k, b_row[i] ? left : 0, true);
  };
  const auto stage = [&](int buffer) {
    E* to = staged + buffer * parts * (a_part + b_part);
#pragma unroll
    for (int i = 0; i < a_loads; ++i) {
      const int index = threadIdx.x + i * project_threads;
      if (index >= tall * chunks) break;
      store_operands<T>(to + index / chunks * width + chunk, a_part, a_next[i]);
    }
    to += parts * a_part;
#pragma unroll
    for (int i = 0; i < b_loads; ++i) {
      const int index = threadIdx.x + i * project_threads;
      if (index >= across * chunks) break;
      // Of 16 columns, those that one thread will hold, 4 q to 4 q + 3, go to places 2 q and 2 q + 1 of both tiles.
      const int row = index / chunks;
      const int place = row / 16 * 16 + row / 2 % 2 * 8 + row / 4 % 4 * 2 + row % 2;
      store_operands<T>(to + place * width + chunk, b_part, b_next[i]);
    }
  };

  float sum[2 * pairs][4] = {};
  const int steps = first_row < count ? (a.columns + depth - 1) / depth : 0;
  if (steps > 0) {
    fetch(0);
    stage(0);
  }
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) fetch((step + 1) * depth);
    const E* a_now = staged + step % 2 * parts * (a_part + b_part) + (warp * 16 + lane % 16) * width + lane / 16 * 8;
    const E* b_now = staged + step % 2 * parts * (a_part + b_part) + parts * a_part +
                     (group * 16 + lane / 16 * 8 + lane % 8) * width + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < depth; k += 16) {
      uint32_t left[parts][4];
#pragma unroll
      for (int p = 0; p < parts; ++p) gru::load_matrices(left[p], a_now + p * a_part + k);
#pragma unroll
      for (int j = 0; j < pairs; ++j) {
        uint32_t right[parts][4];
#pragma unroll
        for (int p = 0; p < parts; ++p) gru::load_matrices(right[p], b_now + p * b_part + j * 16 * width + k);
#pragma unroll
        for (int p = 0; p < 2 * parts - 1; ++p) {
          gru::multiply<E>(sum[2 * j], left[p == 1], right[p == 2][0], right[p == 2][1]);
          gru::multiply<E>(sum[2 * j + 1], left[p == 1], right[p == 2][2], right[p == 2][3]);
        }
      }
    }
    if (step + 1 < steps) stage((step + 1) % 2);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t m = first_row + warp * 16 + lane / 4 + 8 * i;
    if (m >= written) continue;
    T* row = c.data + (c_source ? c_source[m] : m) * c.row;
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int column = first_column + 16 * (group + j) + lane % 4 * 4;
      float values[4] = {sum[2 * j][2 * i], sum[2 * j][2 * i + 1], sum[2 * j + 1][2 * i], sum[2 * j + 1][2 * i + 1]};
      if (column >= c.columns) continue;
      const int at = c.at(column);
      if (bias != nullptr) {
        // Of n, r and z of each direction, in its stretch of four.
        const float4 more = *reinterpret_cast<const float4*>(bias + column + (column >= c.length ? c.length / 3 : 0));
        values[0] += more.x;
        values[1] += more.y;
        values[2] += more.z;
        values[3] += more.w;
      }
      gru::store<T, 4>(row + at, gru::Raw<T, 4>::of(values));
    }
  }
}

// out[slice, group, i, j] = the sum over the slice's rows m of g[m, i] x[m, j], in column x.columns that of g[m, i].
// Groups are the directions where each has its own g and x. A warp makes 16 rows of all of a block's columns.
template <typename T, int tiles>
__global__ void __launch_bounds__(correlate_threads, 2)
    correlate(Matrix<const T> g, int64_t g_group, Matrix<const T> x, int64_t x_group, const int* x_source, int groups,
              float* out, const Sequence* plan, int sequences) {
  using E = gru::Operand<T>;
  constexpr int parts = gru::parts<T>;
  constexpr int g_width = correlate_rows + 8, x_width = 8 * tiles + 16;
  constexpr int g_part = depth * g_width, x_part = depth * x_width;
  constexpr int g_chunks = correlate_rows / 8;
  constexpr int g_loads = depth * g_chunks / correlate_threads;
  constexpr int x_loads = (depth * tiles + correlate_threads - 1) / correlate_threads;
  static_assert(depth * g_chunks % correlate_threads == 0);
  extern __shared__ uint4 shared[];
  E* const staged = reinterpret_cast<E*>(shared);

  const int row_tiles = (g.columns + correlate_rows - 1) / correlate_rows;
  const int group = blockIdx.y / row_tiles;
  const int first_row = blockIdx.y % row_tiles * correlate_rows, first_column = blockIdx.x * 8 * tiles;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T* g_data = g.data + group * g_group;
  const T* x_data = x.data + group * x_group;

  const int64_t count = plan[sequences].length;
  const int64_t share = ((count + gridDim.z - 1) / gridDim.z + depth - 1) / depth * depth;
  const int64_t begin = blockIdx.z * share, end = min(begin + share, count);

  // Where a thread's pieces lie: in which row of each staged depth, and from which column.
  const T* g_from[g_loads];
  const T* x_from[x_loads];
  int x_left[x_loads];
#pragma unroll
  for (int i = 0; i < g_loads; ++i) {
    const int index = threadIdx.x + i * correlate_threads, column = first_row + index % g_chunks * 8;
    g_from[i] = column < g.columns ? g_data + (begin + index / g_chunks) * g.row + g.at(column) : nullptr;
  }
#pragma unroll
  for (int i = 0; i < x_loads; ++i) {
    const int index = threadIdx.x + i * correlate_threads, column = first_column + index % tiles * 8;
    x_left[i] = x.columns - column;
    x_from[i] = index < depth * tiles && column < x.columns ? x_data + column : nullptr;
  }
  Eight<T> g_next[g_loads], x_next[x_loads];
  const auto fetch = [&](int64_t m0) {
#pragma unroll
    for (int i = 0; i < x_loads; ++i) {
      const int64_t m = m0 + (threadIdx.x + i * correlate_threads) / tiles;
      const bool is = x_from[i] != nullptr && m < end;
      x_next[i] = load_eight(x_from[i] + (is && x_source ? x_source[m] : m) * x.row, is ? x_left[i] : 0, x.packs);
    }
#pragma unroll
    for (int i = 0; i < g_loads; ++i) {
      const int64_t m = m0 + (threadIdx.x + i * correlate_threads) / g_chunks;
      g_next[i] = load_eight(g_from[i] + (m0 - begin) * g.row, g_from[i] != nullptr && m < end ? 8 : 0, true);
    }
  };
  const auto stage = [&](int buffer) {
    E* to = staged + buffer * parts * (g_part + x_part);
#pragma unroll
    for (int i = 0; i < g_loads; ++i) {
      const int index = threadIdx.x + i * correlate_threads;
      store_operands<T>(to + index / g_chunks * g_width + index % g_chunks * 8, g_part, g_next[i]);
    }
    to += parts * g_part;
#pragma unroll
    for (int i = 0; i < x_loads; ++i) {
      const int index = threadIdx.x + i * correlate_threads;
      if (index >= depth * tiles) break;
      store_operands<T>(to + index / tiles * x_width + index % tiles * 8, x_part, x_next[i]);
    }
  };

  float sum[tiles + 1][4] = {};
  const uint32_t one = gru::packed<E>(1.f, 1.f);
  if (begin < end) {
    fetch(begin);
    stage(0);
  }
  __syncthreads();
  int buffer = 0;
  for (int64_t m = begin; m < end; m += depth, buffer ^= 1) {
    if (m + depth < end) fetch(m + depth);
    const E* g_now = staged + buffer * parts * (g_part + x_part) + (lane / 16 * 8 + lane % 8) * g_width + warp * 16 +
                     lane / 8 % 2 * 8;
    const E* x_now = staged + buffer * parts * (g_part + x_part) + parts * g_part + lane % 16 * x_width + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < depth; k += 16) {
      uint32_t left[parts][4];
#pragma unroll
      for (int p = 0; p < parts; ++p) {
        gru::load_matrices_transposed(left[p], g_now + p * g_part + k * g_width);
        gru::multiply<E>(sum[tiles], left[p], one, one);
      }
#pragma unroll
      for (int j = 0; j < tiles; j += 2) {
        uint32_t right[parts][4];
        // An odd last column's neighbour is padding of the row, read and not used.
#pragma unroll
        for (int p = 0; p < parts; ++p) {
          gru::load_matrices_transposed(right[p], x_now + p * x_part + k * x_width + j * 8);
        }
#pragma unroll
        for (int p = 0; p < 2 * parts - 1; ++p) {
          gru::multiply<E>(sum[j], left[p == 1], right[p == 2][0], right[p == 2][1]);
          if (j + 1 < tiles) gru::multiply<E>(sum[j + 1], left[p == 1], right[p == 2][2], right[p == 2][3]);
        }
      }
    }
    if (m + depth < end) stage(buffer ^ 1);
    __syncthreads();
  }

#pragma unroll
  for (int v = 0; v < 4; ++v) {
    const int i = first_row + warp * 16 + lane / 4 + v / 2 * 8;
    if (i >= g.columns) continue;
    float* row = out + ((int64_t{blockIdx.z} * groups + group) * g.columns + i) * (x.columns + 1);
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
      const int column = first_column + 8 * j + lane % 4 * 2 + v % 2;
      if (column < x.columns) row[column] = sum[j][v];
    }
    if (blockIdx.x == 0 && lane % 4 == 0 && v % 2 == 0) row[x.columns] = sum[tiles][v];
  }
}

// float64: a thread a number, sums in the order of the rows. Plain; not for speed.
__global__ void project_double(Matrix<const double> a, const int* a_source, Matrix<const double> b, const double* bias,
                               Matrix<double> c, const int* c_source, int64_t rows, const Sequence* plan,
                               int sequences) {
  const int64_t count = plan[sequences].length, total = (c_source ? rows : count) * c.columns;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t m = i / c.columns;
    const int j = static_cast<int>(i % c.columns);
    double sum = bias ? bias[j + (j >= c.length ? c.length / 3 : 0)] : 0;
    if (m < count) {
      const double* row = a.data + (a_source ? a_source[m] : m) * a.row;
      for (int k = 0; k < a.columns; ++k) sum += row[a.at(k)] * b.data[j * b.row + k];
    }
    c.data[(c_source ? c_source[m] : m) * c.row + c.at(j)] = sum;
  }
}

__global__ void correlate_double(Matrix<const double> g, int64_t g_group, Matrix<const double> x, int64_t x_group,
                                 const int* x_source, int groups, double* out, const Sequence* plan, int sequences) {
  const int64_t columns = x.columns + 1, total = int64_t{groups} * g.columns * columns;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const int j = static_cast<int>(i % columns), row = static_cast<int>(i / columns % g.columns);
    const int64_t group = i / columns / g.columns;
    double sum = 0;
    for (int64_t m = 0; m < plan[sequences].length; ++m) {
      const double value = g.data[group * g_group + m * g.row + g.at(row)];
      sum += j < x.columns ? value * x.data[group * x_group + (x_source ? x_source[m] : m) * x.row + j] : value;
    }
    out[i] = sum;
  }
}

template <typename W>
struct Gradients {
  W *w_ih[2], *w_hh[2], *b_ih[2], *b_hh[2];
};

// The slices added up in order, as nn.GRU lays the gradients out: rows r, z, n.
// from_input [slices, d, 3 (n r z), P, I to 4 and 1], from_state [slices, d, 3 (r z m), P, P + 1].
template <typename S, typename W>
__global__ void finish(const S* from_input, const S* from_state, int slices, int directions, int units, int padded,
                       int inputs, int wide_inputs, Gradients<W> out) {
  const int64_t rows = int64_t{directions} * 3 * units, wide = inputs + 1, square = units + 1;
  const int64_t total = rows * (wide + square);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const bool state = i >= rows * wide;
    const int64_t j = state ? i - rows * wide : i, columns = state ? square : wide;
    const int64_t row = j / columns, column = j % columns;
    const int64_t unit = row % units, gate = row / units % 3, direction = row / units / 3;
    const int64_t stretch = state ? gate : gate == 2 ? 0 : gate + 1;
    const int64_t last = state ? padded : wide_inputs, lies = last + 1;
    const int64_t at = ((direction * 3 + stretch) * padded + unit) * lies + (column == columns - 1 ? last : column);
    const int64_t slice = int64_t{directions} * 3 * padded * lies;
    const S* from = state ? from_state : from_input;
    S sum = 0;
    for (int s = 0; s < slices; ++s) sum += from[s * slice + at];
    const int64_t own = row % (3 * units);
    if (column == columns - 1) {
      (state ? out.b_hh : out.b_ih)[direction][own] = static_cast<W>(sum);
    } else {
      (state ? out.w_hh : out.w_ih)[direction][own * (columns - 1) + column] = static_cast<W>(sum);
    }
  }
}

template <typename T, int tall, int across>
void launch_tall(const Matrix<const T>& a, const int* a_source, const Matrix<const T>& b, const void* bias,
                 const Matrix<T>& c, const int* c_source, int64_t rows, const Sequence* plan, int sequences,
                 cudaStream_t stream) {
  constexpr int shared = 2 * gru::parts<T> * (tall + across) * (depth + 8) * 2;
  const auto run = project<T, tall, across>;
  if constexpr (shared > 48 * 1024) {
    STD_CUDA_CHECK(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  }
  const int64_t blocks = (rows + tall - 1) / tall * ((c.columns + across - 1) / across);
  run<<<static_cast<unsigned>(blocks), project_threads, shared, stream>>>(
      a, a_source, b, static_cast<const float*>(bias), c, c_source, rows, plan, sequences);
}

template <typename T>
void launch_project(const Matrix<const T>& a, const int* a_source, const Matrix<const T>& b, const void* bias,
                    const Matrix<T>& c, const int* c_source, int64_t rows, const Sequence* plan, int sequences,
                    cudaStream_t stream) {
  constexpr int64_t few_rows = 1 << 13;  // too few for a large tile on each multiprocessor
  if constexpr (std::is_same_v<T, double>) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((rows * c.columns + 255) / 256, 1 << 20));
    project_double<<<blocks, 256, 0, stream>>>(a, a_source, b, static_cast<const double*>(bias), c, c_source, rows,
                                               plan, sequences);
  } else if (rows <= few_rows) {
    launch_tall<T, 32, 64>(a, a_source, b, bias, c, c_source, rows, plan, sequences, stream);
  } else {
    launch_tall<T, 128, 112>(a, a_source, b, bias, c, c_source, rows, plan, sequences, stream);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T, int tiles>
void launch_tiles(const Matrix<const T>& g, int64_t g_group, const Matrix<const T>& x, int64_t x_group,
                  const int* x_source, int groups, void* out, int slices, const Sequence* plan, int sequences,
                  cudaStream_t stream) {
  constexpr int shared = 2 * gru::parts<T> * depth * (correlate_rows + 8 + 8 * tiles + 16) * 2;
  const auto run = correlate<T, tiles>;
  if constexpr (shared > 48 * 1024) {
    STD_CUDA_CHECK(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  }
  const dim3 blocks((x.columns + 8 * tiles - 1) / (8 * tiles),
                    (g.columns + correlate_rows - 1) / correlate_rows * groups, slices);
  run<<<blocks, correlate_threads, shared, stream>>>(g, g_group, x, x_group, x_source, groups,
                                                     static_cast<float*>(out), plan, sequences);
}

template <typename T>
void launch_correlate(const Matrix<const T>& g, int64_t g_group, const Matrix<const T>& x, int64_t x_group,
                      const int* x_source, int groups, void* out, int slices, const Sequence* plan, int sequences,
                      cudaStream_t stream) {
  if constexpr (std::is_same_v<T, double>) {
    const int64_t total = int64_t{groups} * g.columns * (x.columns + 1);
    correlate_double<<<static_cast<unsigned>((total + 255) / 256), 256, 0, stream>>>(
        g, g_group, x, x_group, x_source, groups, static_cast<double*>(out), plan, sequences);
  } else if (x.columns <= 56) {
    launch_tiles<T, 7>(g, g_group, x, x_group, x_source, groups, out, slices, plan, sequences, stream);
  } else {
    launch_tiles<T, 13>(g, g_group, x, x_group, x_source, groups, out, slices, plan, sequences, stream);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// What every product here is told: the rows of x [.., I] that are real steps, and the sizes; I is a multiple of 4.
struct Shape {
  int64_t rows, inputs, directions, slots, padded;
  int64_t wide() const { return (inputs + 7) / 8 * 8; }
  bool packs(const Tensor& x) const { return inputs * static_cast<int64_t>(x.element_size()) % 16 == 0; }
  const int* source;
  const Sequence* plan;
  int sequences;
};

Shape shape_of(const char* name, const Tensor& x, const Tensor& gates, const Tensor& plan, const Tensor& source) {
  const int64_t inputs = x.size(x.dim() - 1), rows = gates.size(0);
  STD_TORCH_CHECK(x.is_cuda() && x.is_contiguous() && gates.is_contiguous() && plan.is_contiguous() &&
                      source.is_contiguous() && gates.dim() == 4 && gates.size(2) >= 3 && x.numel() == rows * inputs &&
                      (source.numel() == 0 || source.numel() == rows) && x.scalar_type() == gates.scalar_type() &&
                      inputs < INT_MAX && inputs % 4 == 0,
                  name, ": x, gates, plan and source do not fit together");
  STD_TORCH_CHECK(cuda_ext::aligned_for_packs(x.data_ptr()), name, ": x must begin on 16 bytes");
  return {rows, inputs, gates.size(1), gates.size(2), gates.size(3),
          source.numel() == 0 ? nullptr : static_cast<const int*>(source.data_ptr()),
          static_cast<const Sequence*>(plan.data_ptr()), static_cast<int>(plan.size(0) - 1)};
}

template <typename F>
void with_dtype(const char* name, ScalarType dtype, const F& run) {
  switch (dtype) {
    case ScalarType::Double: run(double{}); break;
    case ScalarType::Float: run(float{}); break;
    case ScalarType::Half: run(__half{}); break;
    case ScalarType::BFloat16: run(__nv_bfloat16{}); break;
    default: STD_TORCH_CHECK(false, name, ": dtype must be float64, float32, float16 or bfloat16");
  }
}

template <typename T>
const T* read(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
}

template <typename T>
Matrix<const T> three_gates(const Tensor& gates, const Shape& of) {
  const int64_t padded = of.padded;
  return {read<T>(gates), of.directions * of.slots * padded, static_cast<int>(of.directions * 3 * padded),
          static_cast<int>(3 * padded), static_cast<int>((of.slots - 3) * padded), true};
}

// The sums n, r and z of each real step's gates from x, weights [d, 3, P, I] and bias [d, 4, P].
void gru_project(Tensor x, Tensor plan, Tensor source, Tensor weights, Tensor bias, Tensor gates) {
  const Shape of = shape_of("gru_project", x, gates, plan, source);
  STD_TORCH_CHECK(weights.is_contiguous() && weights.numel() == of.directions * 3 * of.padded * of.wide() &&
                      bias.is_contiguous() && bias.numel() == of.directions * 4 * of.padded,
                  "gru_project: weights and bias do not fit x and gates");
  if (of.rows == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  with_dtype("gru_project", x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const int inputs = static_cast<int>(of.inputs);
    const Matrix<const T> a{read<T>(x), of.inputs, inputs, INT_MAX, 0, of.packs(x)};
    const Matrix<const T> b{read<T>(weights), of.wide(), inputs, INT_MAX, 0, true};
    const Matrix<const T> c = three_gates<T>(gates, of);
    launch_project<T>(a, of.source, b, bias.data_ptr(),
                      {static_cast<T*>(gates.data_ptr()), c.row, c.columns, c.length, c.gap, true}, nullptr, of.rows,
                      of.plan, of.sequences, stream);
  });
}

// The gradient of x at real steps, from the gradients of the sums and weights [I, d 3 P].
void gru_project_back(Tensor gradients, Tensor plan, Tensor source, Tensor weights, Tensor of_x) {
  const Shape of = shape_of("gru_project_back", of_x, gradients, plan, source);
  STD_TORCH_CHECK(weights.is_contiguous() && weights.numel() == of.directions * 3 * of.padded * of.wide(),
                  "gru_project_back: weights do not fit the gradients");
  if (of.rows == 0 || of.inputs == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(of_x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(of_x.get_device_index());
  with_dtype("gru_project_back", of_x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const Matrix<const T> a = three_gates<T>(gradients, of);
    const Matrix<const T> b{read<T>(weights), a.columns, a.columns, INT_MAX, 0, true};
    launch_project<T>(a, nullptr, b, nullptr,
                      {static_cast<T*>(of_x.data_ptr()), of.inputs, static_cast<int>(of.inputs), INT_MAX, 0, true},
                      of.source, of.rows, of.plan, of.sequences, stream);
  });
}

// The gradients of the parameters, of w_ih's dtype: [3 H, I], [3 H, H], [3 H] and [3 H] of each direction.
std::vector<Tensor> gru_correlate(Tensor x, Tensor plan, Tensor source, Tensor gradients, Tensor gates, Tensor w_ih) {
  const Shape of = shape_of("gru_correlate", x, gradients, plan, source);
  const int64_t units = w_ih.size(0) / 3, inputs = w_ih.size(1);
  STD_TORCH_CHECK((inputs + 3) / 4 * 4 == of.inputs && of.slots == 4 && gates.is_contiguous() && gates.dim() == 4 &&
                      gates.size(2) == 5 && 4 * gates.numel() == 5 * gradients.numel() &&
                      (units + 7) / 8 * 8 == of.padded && gates.scalar_type() == x.scalar_type(),
                  "gru_correlate: gates do not fit the gradients");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int64_t d = of.directions, padded = of.padded;
  const ScalarType dtype = x.scalar_type(), sums = dtype == ScalarType::Double ? dtype : ScalarType::Float;
  // About two blocks a multiprocessor, and 32 rows a slice or more.
  const int64_t most = dtype == ScalarType::Double ? 1 : 264 / (d * 3);
  const int64_t slices = std::clamp<int64_t>((of.rows + depth - 1) / depth, 1, most);
  Tensor from_input = torch::stable::new_empty(x, {slices, d * 3 * padded * (of.inputs + 1)}, sums);
  Tensor from_state = torch::stable::new_empty(x, {slices, d * 3 * padded * (padded + 1)}, sums);
  const ScalarType wanted = w_ih.scalar_type();
  std::vector<Tensor> found;
  for (int64_t direction = 0; direction < d; ++direction) {
    found.push_back(torch::stable::new_empty(x, {3 * units, inputs}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units, units}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units}, wanted));
  }
  with_dtype("gru_correlate", dtype, [&](auto t) {
    using T = decltype(t);
    const auto run = [&](const Matrix<const T>& g, const Matrix<const T>& right, const int* rows, int groups,
                         const Tensor& out) {
      launch_correlate<T>(g, 4 * padded, right, 5 * padded, rows, groups, out.data_ptr(), static_cast<int>(slices),
                          of.plan, of.sequences, stream);
    };
    Matrix<const T> g = three_gates<T>(gradients, of);
    run(g, {read<T>(x), of.inputs, static_cast<int>(of.inputs), INT_MAX, 0, of.packs(x)}, of.source, 1, from_input);
    g.columns = static_cast<int>(3 * padded);
    g.data += padded;
    const T* before = read<T>(gates) + gru::before * padded;
    run(g, {before, d * 5 * padded, static_cast<int>(padded), INT_MAX, 0, true}, nullptr, static_cast<int>(d),
        from_state);
  });
  const int64_t total = d * 3 * units * (inputs + units + 2);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((total + 127) / 128, 1 << 16));
  const auto add_up = [&](auto s, auto w) {
    using S = decltype(s);
    using W = decltype(w);
    Gradients<W> out{};
    for (int64_t direction = 0; direction < d; ++direction) {
      const auto data = [&](int i) { return static_cast<W*>(found[4 * direction + i].data_ptr()); };
      out.w_ih[direction] = data(0);
      out.w_hh[direction] = data(1);
      out.b_ih[direction] = data(2);
      out.b_hh[direction] = data(3);
    }
    finish<S, W><<<blocks, 128, 0, stream>>>(read<S>(from_input), read<S>(from_state), static_cast<int>(slices),
                                             static_cast<int>(d), static_cast<int>(units), static_cast<int>(padded),
                                             static_cast<int>(inputs), static_cast<int>(of.inputs), out);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  };
  switch (wanted) {
    case ScalarType::Double: add_up(double{}, double{}); break;
    case ScalarType::Float: add_up(float{}, float{}); break;
    case ScalarType::Half: add_up(float{}, __half{}); break;
    case ScalarType::BFloat16: add_up(float{}, __nv_bfloat16{}); break;
    default: STD_TORCH_CHECK(false, "gru_correlate: dtype must be float64, float32, float16 or bfloat16");
  }
  return found;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def(
      "gru_project(Tensor x, Tensor plan, Tensor source, Tensor weights, Tensor bias, Tensor(a!) gates) -> ()");
  m.def(
      "gru_project_back(Tensor gradients, Tensor plan, Tensor source, Tensor weights, Tensor(a!) of_x) -> ()");
  m.def(
      "gru_correlate(Tensor x, Tensor plan, Tensor source, Tensor gradients, Tensor gates, Tensor w_ih) "
      "-> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("gru_project", TORCH_BOX(&gru_project));
  m.impl("gru_project_back", TORCH_BOX(&gru_project_back));
  m.impl("gru_correlate", TORCH_BOX(&gru_correlate));
}
