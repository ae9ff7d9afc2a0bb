// The products of the GRU that sum over its steps: the weights' gradients, in slices of the steps.
//
// fp32 is multiplied as in project.cuh, with a power of two for all numbers of 32 rows.
#pragma once

#include "project.cuh"

namespace gru {

constexpr int correlate_rows = 112, correlate_threads = 224;

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

// What is staged of g and x: rows of shared memory and the loads of a thread that fill them.
template <typename T, int tiles>
struct CorrelateShape {
  static constexpr int parts = gru::parts<T>, warps = correlate_threads / 32;
  static constexpr int g_width = correlate_rows + 8, x_width = 8 * tiles + 16;
  static constexpr int g_part = depth * g_width, x_part = depth * x_width, buffer = parts * (g_part + x_part);
  // Numbers of a load, loads of a row, rows of one load of all threads, and loads of a thread.
  static constexpr int numbers = 16 / sizeof(T), chunks = correlate_rows / numbers;
  static constexpr int rows = correlate_threads / chunks, loads = depth / rows;
  static_assert(correlate_threads % chunks == 0 && depth % rows == 0 && 8 * tiles <= correlate_rows);
  using Own = uint4[loads][correlate_threads];
  // Bytes of shared memory: two buffers, and of fp32 what has arrived of g and x.
  static constexpr int shared = 2 * buffer * sizeof(Element<T>) + (parts == 2 ? 2 * sizeof(Own) : 0);
};

// fp32 that has arrived, of g and x, scaled and split into the buffer at `staged`. inverses: what takes the scales back, of
// g, and of both. own_row, place: of a thread's loads.
template <typename Shape, int tiles>
__device__ __forceinline__ void stage_split(__half* staged, const typename Shape::Own* raw,
                                            float (&largest)[2][Shape::warps], int own_row, int place,
                                            float& g_inverse, float& inverse) {
  constexpr int loads = Shape::loads;
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
    of_both[b] = largest_in_warp(of_both[b]);
    if (threadIdx.x % 32 == 0) largest[b][threadIdx.x / 32] = of_both[b];
  }
  __syncthreads();
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int w = 0; w < Shape::warps; ++w) of_both[b] = fmaxf(of_both[b], largest[b][w]);
    const float scale = scale_for(of_both[b]);
    if (b == 0) g_inverse = inverse = inverse_of(scale);
    if (b == 1) inverse *= inverse_of(scale);
    if (b == 1 && place >= 8 * tiles) break;
    const int width = b == 0 ? Shape::g_width : Shape::x_width, part = b == 0 ? Shape::g_part : Shape::x_part;
    __half* const to = staged + b * Shape::parts * Shape::g_part + own_row * width + place;
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      uint2 high, low;
      split_four(next[b][i], scale, high, low);
      *reinterpret_cast<uint2*>(to + i * Shape::rows * width) = high;
      *reinterpret_cast<uint2*>(to + i * Shape::rows * width + part) = low;
    }
  }
}

// sum [16, 8 tiles and 1] += g^T x, and g^T 1 in the last, of the `depth` rows that are staged; g_now and x_now: the
// thread's places there.
template <typename T, int tiles>
__device__ __forceinline__ void multiply_rows(float (&sum)[tiles + 1][4], const Element<T>* g_now,
                                              const Element<T>* x_now, float g_inverse, float inverse) {
  using E = Element<T>;
  using Shape = CorrelateShape<T, tiles>;
  constexpr int parts = Shape::parts;
  const uint32_t one = pack<E>(1.f, 1.f);
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
      load_matrices_transposed(left[k][p], g_now + p * Shape::g_part + 16 * k * Shape::g_width);
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
        load_matrices_transposed(right[p], x_now + p * Shape::x_part + 16 * k * Shape::x_width + j * 8);
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
}

// One block's part of a correlation; a warp makes 16 rows of all of its columns. What comes next is on its way while a
// thread multiplies; of fp32 each thread's own, which it scales and splits when it is there.
template <typename T, int tiles>
__device__ void correlate_tile(const Correlation<T>& of, int index, int slices, const Sequence* plan, int sequences) {
  using E = Element<T>;
  using Shape = CorrelateShape<T, tiles>;
  constexpr int parts = Shape::parts, numbers = Shape::numbers, chunks = Shape::chunks, loads = Shape::loads;
  constexpr int rows = Shape::rows, g_width = Shape::g_width, x_width = Shape::x_width, g_part = Shape::g_part;
  extern __shared__ uint4 shared[];
  E* const staged = reinterpret_cast<E*>(shared);  // [2][parts of g, parts of x]
  auto* const raw = reinterpret_cast<typename Shape::Own*>(staged + 2 * Shape::buffer);  // of g, of x
  __shared__ float largest[2][Shape::warps];

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
    E* const g_to = staged + buffer * Shape::buffer + own_row * g_width + place;
    E* const x_to = staged + buffer * Shape::buffer + parts * g_part + own_row * x_width + place;
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
    commit_copies();
  };
  // What takes the scales of what is staged back: of g, and of both.
  float g_inverse = 1.f, inverse = 1.f;
  const auto stage = [&](int buffer) {
    await_copies<0>();
    if constexpr (parts == 2) {
      stage_split<Shape, tiles>(staged + buffer * Shape::buffer, raw, largest, own_row, place, g_inverse, inverse);
    }
  };

  float sum[tiles + 1][4] = {};
  if (begin < end) {
    fetch(begin, 0);
    stage(0);
  }
  __syncthreads();
  int buffer = 0;
  for (int64_t m = begin; m < end; m += depth, buffer ^= 1) {
    if (m + depth < end) fetch(m + depth, buffer ^ 1);
    const E* g_now = staged + buffer * Shape::buffer + (lane / 16 * 8 + lane % 8) * g_width + warp * 16 +
                     lane / 8 % 2 * 8;
    const E* x_now = staged + buffer * Shape::buffer + parts * g_part + lane % 16 * x_width + lane / 16 * 8;
    multiply_rows<T, tiles>(sum, g_now, x_now, g_inverse, inverse);
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
  cuda_ext::wait_for_the_one_before();
  const int index = blockIdx.x, inputs = input.blocks() * slices;
  if (index < inputs) {
    correlate_tile<T, input_tiles>(input, index, slices, plan, sequences);
  } else {
    correlate_tile<T, state_tiles>(state, index - inputs, slices, plan, sequences);
  }
}

}  // namespace gru
