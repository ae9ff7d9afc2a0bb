// The GRU's large matrix products, over real steps alone: rows `origin` to `last`, which only the GPU knows (plan[N]); a
// block of other rows ends at once. A library's product would do all N T.
//
// `project` makes the gates' sums from the input, and the input's gradient from theirs. `correlate` makes the weights'
// gradients in slices of M, and `finish` adds those up in order.
//
// fp32 is multiplied as two fp16 each in three products, scaled by powers of two: of `project`, each row of 32 numbers
// of a by its own and each row of weights by its own; of `correlate`, each 32 rows of 112 columns. The matrix units
// add up 32 numbers a time, and fp32 additions these sums, where the scales are taken back: the units round towards
// zero, which over thousands of additions errs by 1e-5.

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
constexpr int project_threads = 256, tall = 128;  // 16 rows a warp
constexpr int project_width = depth + 8;          // padded against bank conflicts
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

// Starts to bring the numbers of a row that 16 bytes hold, of which the first `left` are there, a multiple of 4, and
// zeros for the others. Unless `packs`, they begin on 8 bytes. elsewhere: any address that may be read.
template <typename T>
__device__ void bring(uint4* to, const T* from, int left, bool packs, const T* elsewhere) {
  if (sizeof(T) == 4 || packs) {
    gru::copy<16>(to, left > 0 ? from : elsewhere, left > 0);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is = left > 4 * half;
      gru::copy<8>(reinterpret_cast<uint2*>(to) + half, is ? from + 4 * half : elsewhere, is);
    }
  }
}

__device__ float largest_of(const uint4& four) {
  return fmaxf(fmaxf(fabsf(__uint_as_float(four.x)), fabsf(__uint_as_float(four.y))),
               fmaxf(fabsf(__uint_as_float(four.z)), fabsf(__uint_as_float(four.w))));
}

// Four of fp32, scaled and split.
__device__ void split_four(const uint4& four, float scale, uint2& high, uint2& low) {
  gru::split_scaled(__uint_as_float(four.x) * scale, __uint_as_float(four.y) * scale, high.x, low.x);
  gru::split_scaled(__uint_as_float(four.z) * scale, __uint_as_float(four.w) * scale, high.y, low.y);
}

// The input weights as gru_prepare packs them, rows of `row` numbers; of fp32 the low parts lie `part` behind the high
// ones, and `inverse` has what takes each row's scale back.
template <typename T>
struct Weights {
  const gru::Element<T>* data;
  int64_t row, part;
  const float* inverse;
};

// `fresh` is known once the loops around it are unrolled.
template <typename E>
__device__ __forceinline__ void multiply_from(bool fresh, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  if (fresh) {
    gru::multiply<E, true>(c, a, b0, b1);
  } else {
    gru::multiply<E>(c, a, b0, b1);
  }
}

// c[m, j] = sum_k a[m, k] b[j, k] + bias[j] of real steps m. Rows of a or of c may lie elsewhere: row m at source[m]; of
// such a c the rows behind the last, which are its padding, become zero. A block makes `tall` rows and `across` columns, a warp 16
// rows; of 16 columns a thread makes 4 neighbours in two rows. What comes next is on its way `stages` - 1 steps ahead,
// of a each thread's own 8 numbers of two rows, so that they go from there straight into its operands.
template <typename T, int across, int stages>
__global__ void __launch_bounds__(project_threads, 2)
    project(Matrix<const T> a, const int* a_source, Weights<T> b, const float* bias, Matrix<T> c, const int* c_source,
            int64_t rows, const Sequence* plan, int sequences) {
  using E = gru::Element<T>;
  constexpr int parts = gru::parts<T>;
  constexpr int numbers = 16 / sizeof(T), pieces = 8 / numbers;  // of a load, and loads of a thread in a row
  constexpr int chunks = depth / 8;
  constexpr int b_part = across * project_width;
  constexpr int b_loads = (across * chunks + project_threads - 1) / project_threads;
  constexpr int pairs = across / 16;
  extern __shared__ uint4 shared[];
  using Pieces = uint4[2][pieces][project_threads];
  using Parts = E[parts][across][project_width];
  Pieces* const a_staged = reinterpret_cast<Pieces*>(shared);
  Parts* const b_staged = reinterpret_cast<Parts*>(a_staged + stages);

  // Blocks of one tile of rows follow one another, so that the rows are read from memory once.
  const int column_tiles = (c.columns + across - 1) / across;
  const int origin = plan[sequences].first, last = plan[sequences].length;
  const int64_t first_row = int64_t{blockIdx.x / column_tiles} * tall;
  const int64_t written = c_source ? rows : last;
  if (first_row >= written || first_row + tall <= origin) return;
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
        uint4* const to = &a_staged[step % stages][i][p][threadIdx.x];
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
        gru::copy<16>(&b_staged[step % stages][p][place][chunk], from, b_row[i] != nullptr);
      }
    }
  };

  float sum[2 * pairs][4] = {};
  const int steps = first_row < last ? (a.columns + depth - 1) / depth : 0;
#pragma unroll
  for (int step = 0; step < stages - 1; ++step) {
    if (step < steps) fetch(step);
    gru::end_group();
  }
  for (int step = 0; step < steps; ++step) {
    gru::wait_for_groups<stages - 2>();
    __syncthreads();
    if (step + stages - 1 < steps) fetch(step + stages - 1);
    gru::end_group();

    // Of two rows the operands of two matrix instructions, in the order of gru::packed_number.
    uint32_t left[2][parts][4];
    float inverse[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 first = a_staged[step % stages][i][0][threadIdx.x];
      if constexpr (parts == 2) {
        const uint4 second = a_staged[step % stages][i][1][threadIdx.x];
        // Four neighbouring threads hold a row.
        float largest = fmaxf(largest_of(first), largest_of(second));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
        const float scale = gru::scale_for(largest);
        inverse[i] = gru::inverse_of(scale);
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
    const E* b_now = &b_staged[step % stages][0][lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      float scaled[2][4];
      auto& even = parts == 2 ? scaled[0] : sum[2 * j];
      auto& odd = parts == 2 ? scaled[1] : sum[2 * j + 1];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t right[parts][4];
#pragma unroll
        for (int p = 0; p < parts; ++p) {
          gru::load_matrices(right[p], b_now + p * b_part + j * 16 * project_width + 16 * k);
        }
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

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t m = first_row + warp * 16 + lane / 4 + 8 * i;
    if (m < origin || m >= written) continue;
    T* row = c.data + (c_source ? c_source[m] : m) * c.row;
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int column = first_column + 16 * j + lane % 4 * 4;
      float values[4] = {sum[2 * j][2 * i], sum[2 * j][2 * i + 1], sum[2 * j + 1][2 * i], sum[2 * j + 1][2 * i + 1]};
      if (column >= c.columns) continue;
      const int at = c.at(column);
      if constexpr (parts == 2) {
        const float4 inverse = *reinterpret_cast<const float4*>(b.inverse + column);
        values[0] *= inverse.x;
        values[1] *= inverse.y;
        values[2] *= inverse.z;
        values[3] *= inverse.w;
      }
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

// The sums over real steps m of g[m, i] x[m, j]: out [slices, groups, g.columns, x.columns and 1], in the last column
// of g[m, i] alone. Groups are the directions where each has its own g and x.
template <typename T>
struct Correlation {
  Matrix<const T> g, x;
  int64_t g_group, x_group;
  const int* x_source;
  int groups;
  float* out;
  int row_tiles, column_tiles;  // a block each

  __host__ __device__ int blocks() const { return groups * row_tiles * column_tiles; }
};

template <typename T, int tiles>
constexpr int correlate_shared = 2 * gru::parts<T> * depth * (correlate_rows + 8 + 8 * tiles + 16) * 2 +
                                 (gru::parts<T> == 2 ? 2 * depth * correlate_rows * 4 : 0);

// One block's part of a correlation; a warp makes 16 rows of all of its columns. What comes next is on its way while a
// thread multiplies; of fp32 each thread's own, which it scales and splits when it is there.
template <typename T, int tiles>
__device__ void correlate_tile(const Correlation<T>& of, int index, int slices, const Sequence* plan, int sequences) {
  using E = gru::Element<T>;
  constexpr int parts = gru::parts<T>, warps = correlate_threads / 32;
  constexpr int g_width = correlate_rows + 8, x_width = 8 * tiles + 16;
  constexpr int g_part = depth * g_width, x_part = depth * x_width;
  // Numbers of a load, loads of a row, rows of one load of all threads, and loads of a thread.
  constexpr int numbers = 16 / sizeof(T), chunks = correlate_rows / numbers;
  constexpr int rows = correlate_threads / chunks, loads = depth / rows;
  static_assert(correlate_threads % chunks == 0 && depth % rows == 0 && 8 * tiles <= correlate_rows);
  extern __shared__ uint4 shared[];
  E* const staged = reinterpret_cast<E*>(shared);  // [2][parts of g, parts of x]
  using Own = uint4[loads][correlate_threads];
  Own* const raw = reinterpret_cast<Own*>(staged + 2 * parts * (g_part + x_part));  // of g, of x
  __shared__ float largest[2][warps];

  const Matrix<const T>&g = of.g, &x = of.x;
  const int slice = index / of.blocks(), place_in_slice = index % of.blocks();
  const int tile = place_in_slice / of.column_tiles, group = tile / of.row_tiles;
  const int first_row = tile % of.row_tiles * correlate_rows;
  const int first_column = place_in_slice % of.column_tiles * 8 * tiles;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  const int64_t origin = plan[sequences].first, last = plan[sequences].length;
  const int64_t share = ((last - origin + slices - 1) / slices + depth - 1) / depth * depth;
  const int64_t begin = origin + slice * share, end = min(begin + share, last);

  const int own_row = threadIdx.x / chunks, place = threadIdx.x % chunks * numbers;  // of a thread's loads
  const int g_left = first_row + place < g.columns ? numbers : 0;
  const int x_left = place < 8 * tiles ? x.columns - first_column - place : 0;
  const T* const g_from = g.data + group * of.g_group + g.at(first_row + place);
  const T* const x_from = x.data + group * of.x_group + first_column + place;
  const auto fetch = [&](int64_t m0, int buffer) {
    E* const g_to = staged + buffer * parts * (g_part + x_part) + own_row * g_width + place;
    E* const x_to = staged + buffer * parts * (g_part + x_part) + parts * g_part + own_row * x_width + place;
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int64_t m = m0 + i * rows + own_row;
      uint4* const to = parts == 2 ? &raw[1][i][threadIdx.x] : reinterpret_cast<uint4*>(x_to + i * rows * x_width);
      if (place >= 8 * tiles) break;
      const bool is = x_left > 0 && m < end;
      bring(to, x_from + (is && of.x_source ? of.x_source[m] : m) * x.row, is ? x_left : 0, x.packs, x.data);
    }
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int64_t m = m0 + i * rows + own_row;
      uint4* const to = parts == 2 ? &raw[0][i][threadIdx.x] : reinterpret_cast<uint4*>(g_to + i * rows * g_width);
      bring(to, g_from + m * g.row, m < end ? g_left : 0, true, g.data);
    }
    gru::end_group();
  };
  // What takes the scales of what is staged back: of g, and of both.
  float g_inverse = 1.f, inverse = 1.f;
  const auto stage = [&](int buffer) {
    gru::wait_for_groups<0>();
    if constexpr (parts == 2) {
      uint4 next[2][loads];
      float of_both[2];
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        of_both[b] = 0.f;
#pragma unroll
        for (int i = 0; i < loads; ++i) {
          next[b][i] = b == 0 || place < 8 * tiles ? raw[b][i][threadIdx.x] : uint4{};
          of_both[b] = fmaxf(of_both[b], largest_of(next[b][i]));
        }
        of_both[b] = gru::largest_in_warp(of_both[b]);
        if (lane == 0) largest[b][warp] = of_both[b];
      }
      __syncthreads();
#pragma unroll
      for (int b = 0; b < 2; ++b) {
#pragma unroll
        for (int w = 0; w < warps; ++w) of_both[b] = fmaxf(of_both[b], largest[b][w]);
        const float scale = gru::scale_for(of_both[b]);
        if (b == 0) g_inverse = inverse = gru::inverse_of(scale);
        if (b == 1) inverse *= gru::inverse_of(scale);
        if (b == 1 && place >= 8 * tiles) break;
        const int width = b == 0 ? g_width : x_width, part = b == 0 ? g_part : x_part;
        E* const to = staged + buffer * parts * (g_part + x_part) + b * parts * g_part + own_row * width + place;
#pragma unroll
        for (int i = 0; i < loads; ++i) {
          uint2 high, low;
          split_four(next[b][i], scale, high, low);
          *reinterpret_cast<uint2*>(to + i * rows * width) = high;
          *reinterpret_cast<uint2*>(to + i * rows * width + part) = low;
        }
      }
    }
  };

  float sum[tiles + 1][4] = {};
  const uint32_t one = gru::packed<E>(1.f, 1.f);
  if (begin < end) {
    fetch(begin, 0);
    stage(0);
  }
  __syncthreads();
  int buffer = 0;
  for (int64_t m = begin; m < end; m += depth, buffer ^= 1) {
    if (m + depth < end) fetch(m + depth, buffer ^ 1);
    const E* g_now = staged + buffer * parts * (g_part + x_part) + (lane / 16 * 8 + lane % 8) * g_width + warp * 16 +
                     lane / 8 % 2 * 8;
    const E* x_now = staged + buffer * parts * (g_part + x_part) + parts * g_part + lane % 16 * x_width + lane / 16 * 8;
    // Adds what was multiplied of scaled numbers.
    const auto add = [](float(&to)[4], const float(&scaled)[4], float by) {
#pragma unroll
      for (int v = 0; v < 4; ++v) to[v] = fmaf(scaled[v], by, to[v]);
    };
    uint32_t left[depth / 16][parts][4];
    float scaled[2][4];
    auto& ones = parts == 2 ? scaled[0] : sum[tiles];
#pragma unroll
    for (int k = 0; k < depth / 16; ++k)
#pragma unroll
      for (int p = 0; p < parts; ++p) {
        gru::load_matrices_transposed(left[k][p], g_now + p * g_part + 16 * k * g_width);
        multiply_from<E>(parts == 2 && k + p == 0, ones, left[k][p], one, one);
      }
    if constexpr (parts == 2) add(sum[tiles], ones, g_inverse);
#pragma unroll
    for (int j = 0; j < tiles; j += 2) {
      auto& even = parts == 2 ? scaled[0] : sum[j];
      auto& odd = parts == 2 ? scaled[1] : sum[j + 1];
#pragma unroll
      for (int k = 0; k < depth / 16; ++k) {
        uint32_t right[parts][4];
        // An odd last column's neighbour is padding of the row, read and not used.
#pragma unroll
        for (int p = 0; p < parts; ++p) {
          gru::load_matrices_transposed(right[p], x_now + p * x_part + 16 * k * x_width + j * 8);
        }
#pragma unroll
        for (int p = 0; p < 2 * parts - 1; ++p) {
          const bool fresh = parts == 2 && k + p == 0;
          multiply_from<E>(fresh, even, left[k][p == 1], right[p == 2][0], right[p == 2][1]);
          if (j + 1 < tiles) multiply_from<E>(fresh, odd, left[k][p == 1], right[p == 2][2], right[p == 2][3]);
        }
      }
      if constexpr (parts == 2) {
        add(sum[j], even, inverse);
        if (j + 1 < tiles) add(sum[j + 1], odd, inverse);
      }
    }
    if (m + depth < end) stage(buffer ^ 1);
    __syncthreads();
  }

#pragma unroll
  for (int v = 0; v < 4; ++v) {
    const int i = first_row + warp * 16 + lane / 4 + v / 2 * 8;
    if (i >= g.columns) continue;
    float* row = of.out + ((int64_t{slice} * of.groups + group) * g.columns + i) * (x.columns + 1);
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
      const int column = first_column + 8 * j + lane % 4 * 2 + v % 2;
      if (column < x.columns) row[column] = sum[j][v];
    }
    if (first_column == 0 && lane % 4 == 0 && v % 2 == 0) row[x.columns] = sum[tiles][v];
  }
}

// Both correlations of the weights' gradients, with the input and with the state before; first the blocks of the
// former, which take longer.
template <typename T, int input_tiles, int state_tiles>
__global__ void __launch_bounds__(correlate_threads, 2)
    correlate(Correlation<T> input, Correlation<T> state, int slices, const Sequence* plan, int sequences) {
  const int index = blockIdx.x, inputs = input.blocks() * slices;
  if (index < inputs) {
    correlate_tile<T, input_tiles>(input, index, slices, plan, sequences);
  } else {
    correlate_tile<T, state_tiles>(state, index - inputs, slices, plan, sequences);
  }
}

template <typename W>
struct Gradients {
  W *w_ih[2], *w_hh[2], *b_ih[2], *b_hh[2];
};

// The slices added up in order, as nn.GRU lays the gradients out: rows r, z, n.
// from_input [slices, d, 3 (n r z), P, I to 4 and 1], from_state [slices, d, 3 (r z m), P, P + 1].
template <typename W>
__global__ void finish(const float* from_input, const float* from_state, int slices, int directions, int units, int padded,
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
    const float* from = state ? from_state : from_input;
    float sum = 0;
    for (int s = 0; s < slices; ++s) sum += from[s * slice + at];
    const int64_t own = row % (3 * units);
    if (column == columns - 1) {
      (state ? out.b_hh : out.b_ih)[direction][own] = static_cast<W>(sum);
    } else {
      (state ? out.w_hh : out.w_ih)[direction][own * (columns - 1) + column] = static_cast<W>(sum);
    }
  }
}

template <typename T, int across, int stages>
void launch_across(const Matrix<const T>& a, const int* a_source, const Weights<T>& b, const void* bias,
                 const Matrix<T>& c, const int* c_source, int64_t rows, const Sequence* plan, int sequences,
                 cudaStream_t stream) {
  constexpr int shared =
      stages * (2 * 8 * static_cast<int>(sizeof(T)) * project_threads + gru::parts<T> * across * project_width * 2);
  const int64_t blocks = (rows + tall - 1) / tall * ((c.columns + across - 1) / across);
  if constexpr (stages > 2) {
    if (shared > cuda_ext::shared_memory_of_a_block()) {
      return launch_across<T, across, stages - 1>(a, a_source, b, bias, c, c_source, rows, plan, sequences, stream);
    }
  }
  cuda_ext::launch(project<T, across, stages>,
                   {dim3(static_cast<unsigned>(blocks)), dim3(project_threads), shared, stream}, a, a_source, b,
                   static_cast<const float*>(bias), c, c_source, rows, plan, sequences);
}

template <typename T>
void launch_project(const Matrix<const T>& a, const int* a_source, const Weights<T>& b, const void* bias,
                    const Matrix<T>& c, const int* c_source, int64_t rows, const Sequence* plan, int sequences,
                    cudaStream_t stream) {
  constexpr int64_t few_rows = 1 << 13;  // too few for a large tile on each multiprocessor
  constexpr int stages = gru::parts<T> == 2 ? 3 : 4;
  if (rows <= few_rows) {
    launch_across<T, 32, stages>(a, a_source, b, bias, c, c_source, rows, plan, sequences, stream);
  } else {
    launch_across<T, 112, stages>(a, a_source, b, bias, c, c_source, rows, plan, sequences, stream);
  }
}

template <typename T, int input_tiles, int state_tiles>
void launch_tiles(Correlation<T> input, Correlation<T> state, int slices, const Sequence* plan, int sequences,
                  cudaStream_t stream) {
  const auto share_out = [](Correlation<T>& of, int tiles) {
    of.row_tiles = (of.g.columns + correlate_rows - 1) / correlate_rows;
    of.column_tiles = std::max(1, (of.x.columns + 8 * tiles - 1) / (8 * tiles));
  };
  share_out(input, input_tiles);
  share_out(state, state_tiles);
  constexpr int shared = correlate_shared<T, std::max(input_tiles, state_tiles)>;
  cuda_ext::launch(correlate<T, input_tiles, state_tiles>,
                   {dim3((input.blocks() + state.blocks()) * slices), dim3(correlate_threads), shared, stream}, input,
                   state, slices, plan, sequences);
}

template <typename T>
void launch_correlate(const Correlation<T>& input, const Correlation<T>& state, int slices, const Sequence* plan,
                      int sequences, cudaStream_t stream) {
  const auto with_state = [&](auto input_tiles) {
    if (state.x.columns <= 56) {
      launch_tiles<T, decltype(input_tiles)::value, 7>(input, state, slices, plan, sequences, stream);
    } else {
      launch_tiles<T, decltype(input_tiles)::value, 13>(input, state, slices, plan, sequences, stream);
    }
  };
  if (input.x.columns <= 56) {
    with_state(std::integral_constant<int, 7>{});
  } else {
    with_state(std::integral_constant<int, 13>{});
  }
}

// What every product here is told: the rows of x [.., I] that are real steps, and the sizes; I is a multiple of 4.
struct Shape {
  int64_t rows, inputs, directions, slots, padded;
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

gru::Packed packed_of(const Tensor& weights, const Shape& of, bool transposed) {
  return gru::packed_weights(weights.scalar_type() == ScalarType::Float, of.directions * 3 * of.padded, of.inputs,
                             transposed);
}

template <typename T>
Weights<T> weights_of(const Tensor& weights, const gru::Packed& packed) {
  const int64_t part = packed.rows * packed.columns;
  const bool scaled = gru::parts<T> == 2;
  return {static_cast<decltype(Weights<T>::data)>(weights.data_ptr()), packed.columns, scaled ? part : 0,
          scaled ? static_cast<const float*>(weights.data_ptr()) + part : nullptr};
}

// The sums n, r and z of each real step's gates from x, weights as gru_prepare packs them and bias [d, 4, P].
void gru_project(Tensor x, Tensor plan, Tensor source, Tensor weights, Tensor bias, Tensor gates) {
  const Shape of = shape_of("gru_project", x, gates, plan, source);
  STD_TORCH_CHECK(weights.is_contiguous() && weights.scalar_type() == x.scalar_type() &&
                      weights.numel() == packed_of(weights, of, false).size && bias.is_contiguous() &&
                      bias.numel() == of.directions * 4 * of.padded,
                  "gru_project: weights and bias do not fit x and gates");
  if (of.rows == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::with_dtype("gru_project", x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const int inputs = static_cast<int>(of.inputs);
    const Matrix<const T> a{read<T>(x), of.inputs, inputs, INT_MAX, 0, of.packs(x)};
    const Weights<T> b = weights_of<T>(weights, packed_of(weights, of, false));
    const Matrix<const T> c = three_gates<T>(gates, of);
    launch_project<T>(a, of.source, b, bias.data_ptr(),
                      {static_cast<T*>(gates.data_ptr()), c.row, c.columns, c.length, c.gap, true}, nullptr, of.rows,
                      of.plan, of.sequences, stream);
  });
}

// The gradient of x at real steps, from the gradients of the sums and the weights as gru_prepare packs them,
// transposed.
void gru_project_back(Tensor gradients, Tensor plan, Tensor source, Tensor weights, Tensor of_x) {
  const Shape of = shape_of("gru_project_back", of_x, gradients, plan, source);
  STD_TORCH_CHECK(weights.is_contiguous() && weights.scalar_type() == of_x.scalar_type() &&
                      weights.numel() == packed_of(weights, of, true).size,
                  "gru_project_back: weights do not fit the gradients");
  if (of.rows == 0 || of.inputs == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(of_x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(of_x.get_device_index());
  cuda_ext::with_dtype("gru_project_back", of_x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const Matrix<const T> a = three_gates<T>(gradients, of);
    const Weights<T> b = weights_of<T>(weights, packed_of(weights, of, true));
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
  // Three blocks a multiprocessor and more, of which two run at a time, and 96 rows a slice or more.
  const int64_t most = padded <= 56 && d == 2 ? 66 : 264 / (d * 3);
  const int64_t slices = std::clamp<int64_t>(of.rows / (3 * depth), 1, most);
  Tensor from_input = torch::stable::new_empty(x, {slices, d * 3 * padded * (of.inputs + 1)}, ScalarType::Float);
  Tensor from_state = torch::stable::new_empty(x, {slices, d * 3 * padded * (padded + 1)}, ScalarType::Float);
  const ScalarType wanted = w_ih.scalar_type();
  std::vector<Tensor> found;
  for (int64_t direction = 0; direction < d; ++direction) {
    found.push_back(torch::stable::new_empty(x, {3 * units, inputs}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units, units}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units}, wanted));
  }
  cuda_ext::with_dtype("gru_correlate", x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const Matrix<const T> of_input = three_gates<T>(gradients, of);
    Matrix<const T> of_state = of_input;
    of_state.columns = static_cast<int>(3 * padded);
    of_state.data += padded;
    const T* before = read<T>(gates) + gru::before * padded;
    launch_correlate<T>(
        {of_input, {read<T>(x), of.inputs, static_cast<int>(of.inputs), INT_MAX, 0, of.packs(x)}, 0, 0, of.source, 1,
         static_cast<float*>(from_input.data_ptr())},
        {of_state, {before, d * 5 * padded, static_cast<int>(padded), INT_MAX, 0, true}, 4 * padded, 5 * padded,
         nullptr, static_cast<int>(d), static_cast<float*>(from_state.data_ptr())},
        static_cast<int>(slices), of.plan, of.sequences, stream);
  });
  const int64_t total = d * 3 * units * (inputs + units + 2);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((total + 127) / 128, 1 << 16));
  const auto add_up = [&](auto w) {
    using W = decltype(w);
    Gradients<W> out{};
    for (int64_t direction = 0; direction < d; ++direction) {
      const auto data = [&](int i) { return static_cast<W*>(found[4 * direction + i].data_ptr()); };
      out.w_ih[direction] = data(0);
      out.w_hh[direction] = data(1);
      out.b_ih[direction] = data(2);
      out.b_hh[direction] = data(3);
    }
    cuda_ext::launch(finish<W>, {dim3(blocks), dim3(128), 0, stream}, read<float>(from_input), read<float>(from_state),
                     slices, d, units, padded, inputs, of.inputs, out);
  };
  cuda_ext::with_dtype("gru_correlate", wanted, add_up);
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
