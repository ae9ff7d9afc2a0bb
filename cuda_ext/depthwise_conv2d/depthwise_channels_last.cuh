// Channels-last images, filters of 3, 5 and 7. Each dtype has a .cu file of its own.
//
// How the rows of a tile come is in channels_last_rows.cuh. Across a pixel lie `lanes` threads of some channels each,
// across a tile `groups` of them, of some columns each. A thread keeps the k - 1 rows of results that are under way: a
// new row is multiplied with every row of the filter, and the first multiply-add of each moves the sum to its next place,
// so that nothing is copied and every pixel is read once.
//
//   row r of a tile with its border, r = 0 ... rows + k - 2:   sums[i] = sums[i - 1] + row * (row i of the filter)
//
// where sums[i] is of the tile's row r - i, which is done at i = k - 1. The filter's gradient is made by the same walk:
// its row i adds row * (row r - i of the tensor in the centre), of which a thread keeps the last k.
#pragma once

#include "channels_last_rows.cuh"

namespace depthwise {

template <typename T, int V>
struct alignas(V * sizeof(T)) Channels {
  T values[V];
};

template <int V, typename T>
__device__ inline void load_channels(const T* from, float (&to)[V]) {
  const auto channels = *reinterpret_cast<const Channels<T, V>*>(from);
#pragma unroll
  for (int v = 0; v < V; ++v) to[v] = widen(channels.values[v]);
}

template <int V, typename T>
__device__ inline void store_channels(T* to, const float (&from)[V]) {
  Channels<T, V> channels;
#pragma unroll
  for (int v = 0; v < V; ++v) channels.values[v] = static_cast<T>(from[v]);
  *reinterpret_cast<Channels<T, V>*>(to) = channels;
}

// A thread's place: its first channel and pixel, counted from the block's, and whether the channels exist.
struct Place {
  int piece, lane, group;
  int64_t channel;
  bool real;

  __device__ Place(const RowLaunch& args, int V) {
    piece = static_cast<int>(blockIdx.x % args.pieces);
    group = static_cast<int>(threadIdx.x) / args.lanes;
    lane = static_cast<int>(threadIdx.x) - group * args.lanes;
    channel = (int64_t{piece} * args.lanes + lane) * V;
    real = channel < args.shape.channels;
  }
};

// The filter of a thread's channels, in registers. All threads call it; `memory`: room for the piece's filters.
template <typename T, int k, int V>
__device__ inline void load_filters(const T* weight, const Place& place, const RowLaunch& args, float* memory,
                                    float (&w)[k * k][V]) {
  const int64_t first = int64_t{place.piece} * args.lanes * V;
  const int count = static_cast<int>(min(int64_t{args.lanes} * V, args.shape.channels - first)) * (k * k);
  for (int i = threadIdx.x; i < args.lanes * V * (k * k); i += blockDim.x) {
    memory[i] = i < count ? widen(weight[first * (k * k) + i]) : 0.f;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < V; ++v) {
#pragma unroll
    for (int t = 0; t < k * k; ++t) {
      w[t][v] = memory[(place.lane * V + v) * (k * k) + (args.flip ? k * k - 1 - t : t)];
    }
  }
}

// One row of the window times every row of the filter, of which those are left out that no result needs: see above.
template <int k, int V, int columns>
__device__ inline void add_row(const float (&row)[columns + k - 1][V], const float (&w)[k * k][V], int r, int rows,
                               float (&sums)[k - 1][columns][V], float (&done)[columns][V]) {
#pragma unroll
  for (int i = k - 1; i >= 0; --i) {
    if (k > 3 && (r < i || r >= rows + i)) continue;
#pragma unroll
    for (int j = 0; j < k; ++j) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          float& sum = i == k - 1 ? done[c][v] : sums[i < k - 1 ? i : 0][c][v];
          const float before = j > 0 ? sum : i > 0 ? sums[i > 0 ? i - 1 : 0][c][v] : 0.f;
          sum = fmaf(w[i * k + j][v], row[c + j][v], before);
        }
      }
    }
  }
}

// The places of a thread's results in a tile.
template <typename T, int columns>
struct Target {
  T* to = nullptr;
  int columns_left = 0;

  __device__ void begin(T* out, const Tile& tile, const Place& place, const Shape& shape) {
    const int left = tile.left + place.group * columns;
    columns_left = place.real ? shape.width - left : 0;
    to = out + ((tile.image * shape.height + tile.top) * shape.width + left) * shape.channels + place.channel;
  }

  template <int V>
  __device__ void store_row(const float (&values)[columns][V], const Shape& shape) {
    const int channels = static_cast<int>(shape.channels);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      if (c < columns_left) store_channels<V>(to + c * channels, values[c]);
    }
    to += shape.width * shape.channels;
  }
};

template <typename T, int k, bool bulk>
__global__ void __launch_bounds__((form_of<T, k, false>.threads), (form_of<T, k, false>.blocks))
    convolve_rows(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ out,
                  const __grid_constant__ TensorMaps maps, const __grid_constant__ RowLaunch args) {
  constexpr Form form = form_of<T, k, false>;
  constexpr int V = form.channels, columns = form.columns;
  extern __shared__ __align__(128) char memory[];
  __shared__ uint64_t barriers[form.stages];
  cuda_ext::let_the_next_start();
  cuda_ext::wait_for_the_one_before();
  T* ring = reinterpret_cast<T*>(memory);
  const Place place(args, V);
  RowRing<T, k, false, bulk> rows(ring, x, x, maps, barriers, args);
  rows.start();
  float w[k * k][V];
  load_filters<T, k, V>(weight, place, args, reinterpret_cast<float*>(ring + form.stages * args.stage), w);
  float sums[k - 1][columns][V] = {};
  Target<T, columns> target;
  const auto begin = [&](const Tile& tile) { target.begin(out, tile, place, args.shape); };
  const auto step = [&](const Tile& tile, int r, const T* window, const T*) {
    const T* from = window + place.group * columns * args.pitch + place.lane * V;
    float row[columns + k - 1][V];
#pragma unroll
    for (int c = 0; c < columns + k - 1; ++c) load_channels<V>(from + c * args.pitch, row[c]);
    float done[columns][V];
    add_row<k, V, columns>(row, w, r, tile.rows, sums, done);
    if (r >= k - 1) target.store_row(done, args.shape);
  };
  rows.walk(begin, step);
}

// The block's part of the filter's gradient: a row of taps at a time, each thread's sums side by side, which are added
// in one order always.
template <int k, int V>
__device__ inline void add_groups(const float (&gradient)[k * k][V], const Place& place, const RowLaunch& args,
                                  float* memory, float* parts) {
  const int size = args.lanes * V;
  float* own = parts + (blockIdx.x / args.pieces) * args.shape.channels * (k * k);
#pragma unroll 1
  for (int a = 0; a < k; ++a) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < k; ++i) {
      if (i != a) continue;
#pragma unroll
      for (int b = 0; b < k; ++b) {
#pragma unroll
        for (int v = 0; v < V; ++v) memory[(place.group * k + b) * size + place.lane * V + v] = gradient[i * k + b][v];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < k * size; i += blockDim.x) {
      float total = 0;
      for (int group = 0; group < args.groups; ++group) total += memory[group * k * size + i];
      const int tap = a * k + i / size;
      const int64_t channel = int64_t{place.piece} * size + i % size;
      if (channel < args.shape.channels) own[channel * (k * k) + (args.flip ? k * k - 1 - tap : tap)] = total;
    }
  }
}

// As `differentiate` of depthwise_small.cu: windows of the result's gradient at the places of the image, flipped, give
// both gradients for zero padding; windows of the image at the places of the result's gradient, without `image`, that of
// the filter for any.
template <typename T, int k, bool bulk, bool image>
__global__ void __launch_bounds__((form_of<T, k, true>.threads), (form_of<T, k, true>.blocks))
    differentiate_rows(const T* __restrict__ windowed, const T* __restrict__ centred, const T* __restrict__ weight,
                       T* __restrict__ image_gradient, float* __restrict__ parts,
                       const __grid_constant__ TensorMaps maps, const __grid_constant__ RowLaunch args) {
  constexpr Form form = form_of<T, k, true>;
  constexpr int V = form.channels, columns = form.columns;
  extern __shared__ __align__(128) char memory[];
  __shared__ uint64_t barriers[form.stages];
  cuda_ext::let_the_next_start();
  cuda_ext::wait_for_the_one_before();
  T* ring = reinterpret_cast<T*>(memory);
  const Place place(args, V);
  RowRing<T, k, true, bulk> rows(ring, windowed, centred, maps, barriers, args);
  rows.start();
  float w[image ? k * k : 1][V];
  if constexpr (image) {
    load_filters<T, k, V>(weight, place, args, reinterpret_cast<float*>(ring + form.stages * args.stage), w);
  }
  float sums[k - 1][columns][V] = {};
  float gradient[k * k][V] = {};
  // The centre's rows r, r - 1, ... of a tile, zero where there is none.
  float own[k][columns][V] = {};
  Target<T, columns> target;
  const auto begin = [&](const Tile& tile) {
    if constexpr (image) target.begin(image_gradient, tile, place, args.shape);
  };
  const auto step = [&](const Tile& tile, int r, const T* window, const T* centre) {
    const int offset = place.group * columns * args.pitch + place.lane * V;
    float row[columns + k - 1][V];
#pragma unroll
    for (int c = 0; c < columns + k - 1; ++c) load_channels<V>(window + offset + c * args.pitch, row[c]);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int i = k - 1; i > 0; --i) own[i][c][v] = own[i - 1][c][v];
        own[0][c][v] = 0.f;
      }
      if (r < tile.rows) load_channels<V>(centre + offset + c * args.pitch, own[0][c]);
    }
#pragma unroll
    for (int i = 0; i < k; ++i) {
      if (k > 3 && (r < i || r >= tile.rows + i)) continue;
#pragma unroll
      for (int j = 0; j < k; ++j) {
#pragma unroll
        for (int c = 0; c < columns; ++c) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            gradient[i * k + j][v] = fmaf(own[i][c][v], row[c + j][v], gradient[i * k + j][v]);
          }
        }
      }
    }
    if constexpr (image) {
      float done[columns][V];
      add_row<k, V, columns>(row, w, r, tile.rows, sums, done);
      if (r >= k - 1) target.store_row(done, args.shape);
    }
  };
  rows.walk(begin, step);
  add_groups<k, V>(gradient, place, args, reinterpret_cast<float*>(memory), parts);
}

// The tensor copy engine has zeros for what is outside an image.
inline bool comes_in_bulk(int padding) { return padding == zeros && cuda_ext::has_hopper_code(); }

template <typename T, int k>
void launch_convolve_rows(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                          cudaStream_t stream) {
  constexpr Form form = form_of<T, k, false>;
  const bool bulk = comes_in_bulk(padding);
  const RowLaunch args = plan_rows<T, k, false>(shape, padding, flip, bulk);
  TensorMaps maps{};
  if (bulk) {
    maps.window = tensor_map(x, shape, args.lanes * form.channels, args.groups * form.columns + k - 1, form.rows);
  }
  const int filters = k * k * args.lanes * form.channels * int{sizeof(float)};
  const auto bytes = static_cast<std::size_t>(form.stages * args.stage * int{sizeof(T)} + filters);
  const dim3 grid(static_cast<unsigned>(args.blocks * args.pieces)), block(args.lanes * args.groups);
  cuda_ext::launch_early(bulk ? &convolve_rows<T, k, true> : &convolve_rows<T, k, false>, grid, block, bytes, stream, x,
                         weight, out, maps, args);
}

template <typename T, int k, bool image>
void launch_differentiate_rows(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                               const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  constexpr Form form = form_of<T, k, true>;
  const bool bulk = comes_in_bulk(padding);
  const RowLaunch args = plan_rows<T, k, true>(shape, padding, flip, bulk);
  TensorMaps maps{};
  if (bulk) {
    maps.window = tensor_map(windowed, shape, args.lanes * form.channels, args.groups * form.columns + k - 1, form.rows);
    maps.centre = tensor_map(centred, shape, args.lanes * form.channels, args.groups * form.columns, form.rows);
  }
  const int filters = k * k * args.lanes * form.channels * int{sizeof(float)};
  const int ring = form.stages * args.stage * int{sizeof(T)};
  const int sums = args.groups * k * args.lanes * form.channels * int{sizeof(float)};
  const auto bytes = static_cast<std::size_t>(std::max(ring + (image ? filters : 0), sums));
  const dim3 grid(static_cast<unsigned>(args.blocks * args.pieces)), block(args.lanes * args.groups);
  cuda_ext::launch_early(bulk ? &differentiate_rows<T, k, true, image> : &differentiate_rows<T, k, false, image>, grid,
                         block, bytes, stream, windowed, centred, weight, image_gradient, parts, maps, args);
}

template <typename T>
void convolve_channels_last(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                            cudaStream_t stream) {
  switch (shape.k) {
    case 3: return launch_convolve_rows<T, 3>(x, weight, out, shape, padding, flip, stream);
    case 5: return launch_convolve_rows<T, 5>(x, weight, out, shape, padding, flip, stream);
    default: return launch_convolve_rows<T, 7>(x, weight, out, shape, padding, flip, stream);
  }
}

template <typename T>
int blocks_channels_last(const Shape& shape) {
  switch (shape.k) {
    case 3: return plan_rows<T, 3, true>(shape, zeros, false, false).blocks;
    case 5: return plan_rows<T, 5, true>(shape, zeros, false, false).blocks;
    default: return plan_rows<T, 7, true>(shape, zeros, false, false).blocks;
  }
}

template <typename T>
void differentiate_channels_last(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                                 const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  const auto launch = [&](auto run) {
    run(windowed, centred, weight, image_gradient, parts, shape, padding, flip, stream);
  };
  switch (shape.k) {
    case 3: return launch(image_gradient ? launch_differentiate_rows<T, 3, true> : launch_differentiate_rows<T, 3, false>);
    case 5: return launch(image_gradient ? launch_differentiate_rows<T, 5, true> : launch_differentiate_rows<T, 5, false>);
    default: return launch(launch_differentiate_rows<T, 7, false>);
  }
}

}  // namespace depthwise
