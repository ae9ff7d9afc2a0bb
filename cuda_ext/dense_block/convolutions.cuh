// A dense block's 3x3 convolution on the matrix units, with the norm and activation in front of it, over the rows of
// channels-last images, a row a pixel:
//
//   convolve        y = a * w and its statistics, a = f(scale x + shift)
//   convolve_back   dw = sum of a dy, a tap at a time; s dz, dz = f'(z) (dy * w mirrored), and the sums that the rest of
//                   the norm's backward pass takes
//
// A block goes through tiles of so many neighbouring pixels. What their taps read is copied into slots of shared memory
// while the tile before is multiplied. In slots an image's lines follow each other with one slot of zeros behind each
// line and one line of zeros behind each image; these are also in front of the next. So a tap is as many slots from any
// pixel, and no border needs a test:
//
//   3 x 2 images       slots (. is zero)       a tap's slot, from the pixel's upper left
//     abc  ghi           abc.def.....ghi.        0          1            2
//     def  jkl           jkl.                    pitch      pitch + 1    pitch + 2       pitch = width + 1
//                                                2 pitch    2 pitch + 1  2 pitch + 2
//
// A fragment of 16 pixels and 16 channels is 16 rows of shared memory, each of which a thread names by itself.
#pragma once

#include "../common/mma.cuh"
#include "products.cuh"

namespace cuda_ext::channels {

constexpr int taps = 9;

// Divides numbers below 2^31 by a multiplication (Granlund and Montgomery, Division by Invariant Integers using
// Multiplication, 1994, figure 4.1).
struct Divisor {
  unsigned multiplier, shift = 0;

  explicit Divisor(int64_t by) {
    while (int64_t{1} << shift < by) ++shift;
    multiplier = static_cast<unsigned>((((int64_t{1} << shift) - by) << 32) / by + 1);
  }
  __device__ friend int operator/(int number, const Divisor& by) {
    return static_cast<int>((__umulhi(by.multiplier, number) + number) >> by.shift);
  }
};

struct Images {
  int rows, height, width;
  Divisor of_width{width}, of_pixels{int64_t{height} * width}, of_pitch{width + 1}, of_lines{height + 1};

  __host__ __device__ int pitch() const { return width + 1; }

  // A pixel's slot, counted from the first pixel.
  __device__ int place(int row) const { return row + row / of_width + row / of_pixels * pitch(); }

  // The row of a slot's pixel; -1 in a slot of zeros.
  __device__ int row_at(int place) const {
    if (place < 0) return -1;
    const int line = place / of_pitch, column = place - line * pitch(), image = line / of_lines;
    const int row = (line - image) * width + column;
    return column < width && line - image * (height + 1) < height && row < rows ? row : -1;
  }
};

// A tile's pixels, and the slots that their taps read.
struct Tile {
  int first, count, begin, slots;

  __device__ Tile(const Images& images, int tile, int pixels)
      : first(tile * pixels),
        count(images.rows - first < pixels ? images.rows - first : pixels),
        begin(images.place(first) - images.pitch() - 1),
        slots(images.place(first + count - 1) + images.pitch() + 2 - begin) {}

  // Each slot's row.
  __device__ void find_rows(const Images& images, int* rows) const {
    for (int i = threadIdx.x; i < slots; i += blockDim.x) rows[i] = images.row_at(begin + i);
  }

  // Each pixel's upper left slot, of `pixels` that the warps take: 0 beyond those that there are.
  __device__ void find_places(const Images& images, int pixels, int* places) const {
    for (int i = threadIdx.x; i < pixels; i += blockDim.x) {
      places[i] = i < count ? images.place(first + i) - images.pitch() - 1 - begin : 0;
    }
  }
};

// The first of V of C columns that a thread has of its slots.
template <int C, int V>
__device__ int column_of_thread() { return threadIdx.x % (C / V) * V; }

// Calls `function` with each slot of a thread, the same ones in each call, its row and the thread's column. It reads the rows
// of four slots at once.
template <int C, int V, int threads, typename Function>
__device__ __forceinline__ void for_each_slot(int slots, const int* rows, Function function) {
  constexpr int lanes = C / V, at_once = threads / lanes, ahead = 4;
  const int column = column_of_thread<C, V>(), group = threadIdx.x / lanes;
  if (group >= at_once) return;
  for (int first = group; first < slots; first += ahead * at_once) {
    int own[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) own[i] = rows[min(first + i * at_once, slots - 1)];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (first + i * at_once < slots) function(first + i * at_once, own[i], column);
    }
  }
}

// V columns of a row to its slot of C, while the thread goes on; zeros where there is no row, and beyond the columns.
template <typename T, int C, int V>
__device__ __forceinline__ void copy_slot(T* to, const T* __restrict__ from, int64_t from_stride, int columns, int slot,
                                          int row, int column) {
  const bool real = row >= 0 && column < columns;
  copy_async<V * sizeof(T)>(to + slot * (C + skew) + column, real ? from + row * from_stride + column : from, real);
}

// Applies norm and activation to a tile in its slots, but for those of zeros.
template <typename T, int C, int threads, typename Activation>
__device__ __forceinline__ void activate(T* tile, const float2 (&by)[8], int slots, const int* rows,
                                         const Activation& activation) {
  for_each_slot<C, 8, threads>(slots, rows, [&](int slot, int row, int column) {
    if (row < 0) return;
    T* const own = tile + slot * (C + skew) + column;
    float values[8];
    unpack(load<T, 8>(own), values);
#pragma unroll
    for (int v = 0; v < 8; ++v) values[v] = activation.value(values[v] * by[v].x + by[v].y);
    store(own, packed<T, 8>(values));
  });
}

// Makes whole what the thread itself has copied of a gradient and of y, in the gradient's slots; table: as fill_finish has it.
template <typename T, int C, int V, int threads>
__device__ __forceinline__ void finish_slots(T* dy, const T* y, const float* table, int columns, int slots, const int* rows) {
  const int column = column_of_thread<C, V>();
  float2 slope[V / 2], rest[V / 2];
#pragma unroll
  for (int v = 0; v < V / 2; ++v) {
    slope[v] = *reinterpret_cast<const float2*>(table + column + 2 * v);
    rest[v] = *reinterpret_cast<const float2*>(table + C + column + 2 * v);
  }
  for_each_slot<C, V, threads>(slots, rows, [&](int slot, int row, int) {
    if (row < 0 || column >= columns) return;
    auto* const own = reinterpret_cast<unsigned*>(dy + slot * (C + skew) + column);
    auto values = load<unsigned, V / 2>(own);
    const auto ys = load<unsigned, V / 2>(reinterpret_cast<const unsigned*>(y + slot * (C + skew) + column));
#pragma unroll
    for (int v = 0; v < V / 2; ++v) values.values[v] = finished_pair<T>(values.values[v], ys.values[v], slope[v], rest[v]);
    store(own, values);
  });
}

// y of NT products of a row, from their words; `whole`: in lanes of 2 group.
template <typename T, int NT, int group>
__device__ __forceinline__ void store_outputs(T* y, const unsigned (&result)[NT][2], int half, int outputs, bool whole,
                                              int lane) {
#pragma unroll
  for (int j = 0; j < NT; j += group) {
    const int output = output_of<group>(j, lane % 4 * 2);
    if (whole) {
      Lane<unsigned, group> words;
#pragma unroll
      for (int i = 0; i < group; ++i) words.values[i] = result[j + i][half];
      if (output < outputs) store(reinterpret_cast<unsigned*>(y + output), words);
    } else {
#pragma unroll
      for (int i = 0; i < 2 * group; ++i) {
        if (output + i < outputs) y[output + i] = reinterpret_cast<const T*>(&result[j + i / 2][half])[i % 2];
      }
    }
  }
}

constexpr int outputs_at_most = 16;

// Shared memory of a block of `convolve`, in rows of C channels.
template <typename T, int C, int warps, int MF>
struct ConvolveShared {
  static constexpr int stride = C + skew, pixels = warps * MF * 16;
  T *staged, *filters;
  float *sums, *center;
  int *rows, *places;  // of two tiles: each slot's row, and each pixel's slot
  int bytes;

  __host__ __device__ ConvolveShared(unsigned char* memory, int slots) {
    Pieces pieces{memory};
    staged = pieces.take<T>(2 * slots * stride);
    filters = pieces.take<T>(taps * outputs_at_most * stride);
    sums = pieces.take<float>(warps * 2 * outputs_at_most);
    center = pieces.take<float>(outputs_at_most);
    rows = pieces.take<int>(2 * slots);
    places = pieces.take<int>(2 * pixels);
    bytes = pieces.bytes;
  }
};

// A block of `warps` warps multiplies C channels of its pixels by 16 outputs; a warp 16 MF of the pixels.
template <typename T, int C, int warps, int MF>
static __global__ void __launch_bounds__(warps * 32, 16 / warps)
    convolve(const T* __restrict__ x, int channels, const T* __restrict__ filters, int filter_rows, Images images,
             int pixels, int slots, Norm norm, T* __restrict__ y, int64_t y_stride, int outputs, bool whole,
             double* partial) {
  using Shared = ConvolveShared<T, C, warps, MF>;
  constexpr int threads = warps * 32, tile_pixels = Shared::pixels, N = outputs_at_most, NT = N / 8, stride = Shared::stride;
  constexpr int group = 2;
  constexpr unsigned size = sizeof(T);
  extern __shared__ __align__(128) unsigned char memory[];
  const Shared shared(memory, slots);
  T* const staged = shared.staged;
  int *const rows = shared.rows, *const places = shared.places;
  const int thread = threadIdx.x, lane = thread % 32, own = thread / 32 * MF * 16;
  const int tiles = (images.rows + pixels - 1) / pixels, step = gridDim.x;

  // Rows of filters are so ordered that each thread gets neighbouring outputs (output_of).
  for (int i = thread; i < taps * N * C / 8; i += threads) {
    const int row = i / (C / 8), c = i % (C / 8) * 8, output = output_of<group>(row % N / 8, row % 8);
    const bool real = output < filter_rows && c < channels;
    copy_async<16>(shared.filters + row * stride + c, real ? filters + (output * taps + row / N) * channels + c : filters,
                   real);
  }
  Tile here(images, blockIdx.x, pixels);
  here.find_rows(images, rows);
  here.find_places(images, tile_pixels, places);
  if (blockIdx.x + step < tiles) Tile(images, blockIdx.x + step, pixels).find_rows(images, rows + slots);
  cuda_ext::wait_for_the_one_before();
  float2 by[8];
#pragma unroll
  for (int v = 0; v < 8; ++v) by[v] = scale_and_shift(norm, column_of_thread<C, 8>() + v, channels);
  __syncthreads();
  const auto copy = [&](const Tile& tile, int stage) {
    for_each_slot<C, 8, threads>(tile.slots, rows + stage * slots, [&](int slot, int row, int column) {
      copy_slot<T, C, 8>(staged + stage * slots * stride, x, channels, channels, slot, row, column);
    });
  };
  copy(here, 0);
  commit_copies();

  float sums[2][NT][2] = {};
  int stage = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += step, stage ^= 1) {
    here = Tile(images, tile, pixels);
    T* const xs = staged + stage * slots * stride;
    int* const own_rows = rows + stage * slots;
    await_copies<0>();
    __syncthreads();
    if (tile + step < tiles) copy(Tile(images, tile + step, pixels), stage ^ 1);
    commit_copies();
    with_activation(norm, [&](const auto activation) { activate<T, C, threads>(xs, by, here.slots, own_rows, activation); });
    __syncthreads();
    if (tile + step < tiles) {
      Tile(images, tile + step, pixels).find_places(images, tile_pixels, places + (stage ^ 1) * tile_pixels);
    }
    if (tile + 2 * step < tiles) Tile(images, tile + 2 * step, pixels).find_rows(images, own_rows);
    unsigned from[MF];
#pragma unroll
    for (int m = 0; m < MF; ++m) {
      from[m] = shared_address(xs + places[stage * tile_pixels + own + m * 16 + lane % 16] * stride + lane / 16 * 8);
    }
    unsigned filter = shared_address(shared.filters + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
    float product[MF][NT][4] = {};
#pragma unroll 1
    for (int line = 0; line < 3; ++line) {
#pragma unroll
      for (int i = 0; i < 3 * C / 16; ++i) {
        const int tap = i / (C / 16), k = i % (C / 16) * 16;
        unsigned b[4], a[MF][4];
        load_matrices(b, filter + (tap * N * stride + k) * size);
#pragma unroll
        for (int m = 0; m < MF; ++m) load_matrices(a[m], from[m] + (tap * stride + k) * size);
#pragma unroll
        for (int m = 0; m < MF; ++m) {
          multiply<T>(product[m][0], a[m], b[0], b[1]);
          multiply<T>(product[m][1], a[m], b[2], b[3]);
        }
      }
      filter += 3 * N * stride * size;
#pragma unroll
      for (int m = 0; m < MF; ++m) from[m] += images.pitch() * stride * size;
    }
    unsigned result[MF][NT][2];
#pragma unroll
    for (int i = 0; i < MF * NT; ++i) {
      const float(&found)[4] = product[i / NT][i % NT];
      result[i / NT][i % NT][0] = pack<T>(found[0], found[1]);
      result[i / NT][i % NT][1] = pack<T>(found[2], found[3]);
    }
    if (tile == blockIdx.x) {
      if (own == 0) find_center<T, NT, group>(shared.center, result[0], here.count, lane);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < MF * 2; ++i) {
      const int pixel = own + i * 8 + lane / 4;
      if (pixel >= here.count) continue;
      store_outputs<T, NT, group>(y + (here.first + pixel) * y_stride, result[i / 2], i % 2, outputs, whole, lane);
      add_row<T, NT, group>(result[i / 2], i % 2, sums, shared.center, lane);
    }
  }
  cuda_ext::let_the_next_start();
  if (partial == nullptr) return;
  store_sums<NT, warps, group>(partial, sums, shared.sums, shared.center, rows_of_block(images.rows, tiles, pixels), outputs, 0,
                               [] { __syncthreads(); });
}

// What da of 16 pixels and 8 NT channels, a warp's products, gives to the norm: s dz to g, and sums of dz and of
// dz (x - mean). In the staged x takes its place what the convolution read, and zeros where there is no pixel.
template <typename T, int NT, int group, typename Activation>
__device__ __forceinline__ void through_norm(const float (&da)[NT][4], T* xs, T* __restrict__ g, int pixels, int channels,
                                             const float4* by, float (&sums)[2][NT][2], float& to_beta, int lane,
                                             const Activation& activation) {
  T* const own_g = g + lane / 4 * channels;
#pragma unroll
  for (int j = 0; j < NT; j += group) {
    const int channel = output_of<group>(j, lane % 4 * 2);
    if (channel >= channels) continue;
    float values[2][2 * group], found[2][2 * group];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unpack(load<T, 2 * group>(xs + (half * 8 + lane / 4) * (NT * 8 + skew) + channel), values[half]);
    }
#pragma unroll
    for (int v = 0; v < 2 * group; ++v) {
      const float4 own = by[in_table<group>(channel) + v];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool real = half * 8 + lane / 4 < pixels;
        const float centred = values[half][v] - own.x, z = centred * own.y + own.z;
        const float dz = activation.through(real ? da[j + v / 2][half * 2 + v % 2] : 0.0f, z, to_beta);
        values[half][v] = real ? activation.value(z) : 0.0f;
        sums[0][j + v / 2][v % 2] += dz;
        sums[1][j + v / 2][v % 2] += dz * centred;
        found[half][v] = own.y * dz;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel = half * 8 + lane / 4;
      store(xs + pixel * (NT * 8 + skew) + channel, packed<T, 2 * group>(values[half]));
      if (pixel < pixels) store(own_g + half * 8 * channels + channel, packed<T, 2 * group>(found[half]));
    }
  }
}

constexpr int backward_warps = 6;
constexpr int backward_pixels = backward_warps * 16;

// Of up to 48 channels both warps of a line of taps take all, of every other 16 pixels; else each takes half of them.
__host__ __device__ constexpr bool shares_pixels(int C) { return C <= 48; }

// Shared memory of a block of `convolve_back`; y's rows lie behind dy's where they make them whole.
template <typename T, int C>
struct ConvolveBackShared {
  static constexpr int stride = outputs_at_most + skew, x_stride = C + skew, group = C / 8 % 4 ? 2 : 4;
  T *x, *dy, *y, *filters;
  float4* by;
  float *sums, *finish;
  int *rows, *places;  // of two tiles: each slot's row, and each pixel's slot
  int bytes;

  __host__ __device__ ConvolveBackShared(unsigned char* memory, int slots, bool finishes) {
    Pieces pieces{memory};
    x = pieces.take<T>(2 * backward_pixels * x_stride);
    dy = pieces.take<T>(2 * slots * stride);
    y = pieces.take<T>(finishes ? 2 * slots * stride : 0);
    filters = pieces.take<T>(taps * outputs_at_most * x_stride);
    by = pieces.take<float4>(in_table<group>(C));
    sums = pieces.take<float>(backward_warps * (2 * C + 1));
    finish = pieces.take<float>(2 * outputs_at_most);
    rows = pieces.take<int>(2 * slots);
    places = pieces.take<int>(2 * backward_pixels);
    bytes = pieces.bytes;
  }
};

// The block's dw of a line's three taps and 8 J channels: partial[blockIdx.x][output][tap][channel]. Where both warps of a
// line hold them, they are added first.
template <int J, bool shared_by_two>
__device__ __forceinline__ void store_filters(float (&product)[3][J][4], float* shared, int line, int half,
                                              int first_channel, int growth, int channels, float* partial) {
  constexpr int numbers = 3 * J * 4;
  const int lane = threadIdx.x % 32;
  if constexpr (shared_by_two) {
    float* const own = shared + (line * 32 + lane) * (numbers + 1);
    __syncthreads();
    if (half == 1) {
#pragma unroll
      for (int i = 0; i < numbers; ++i) own[i] = product[i / (J * 4)][i / 4 % J][i % 4];
    }
    __syncthreads();
    if (half == 1) return;
#pragma unroll
    for (int i = 0; i < numbers; ++i) product[i / (J * 4)][i / 4 % J][i % 4] += own[i];
  }
#pragma unroll
  for (int half_of_outputs = 0; half_of_outputs < 2; ++half_of_outputs) {
    const int output = half_of_outputs * 8 + lane / 4;
    if (output >= growth) continue;
    float* const to = partial + ((int64_t{blockIdx.x} * growth + output) * taps + line * 3) * channels + first_channel +
                      lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 3 * J; ++i) {
      const int tap = i / J, j = i % J;
      if (first_channel + j * 8 >= channels) continue;
      const float(&found)[4] = product[tap][j];
      *reinterpret_cast<float2*>(to + tap * channels + j * 8) = {found[half_of_outputs * 2], found[half_of_outputs * 2 + 1]};
    }
  }
}

// A block takes 16 outputs and C channels of 96 pixels: a warp 16 of the pixels for da, and three taps for dw. What norms
// behind y pass on becomes whole where it is staged; of dy a thread copies V columns at once.
template <typename T, int C, int V>
static __global__ void __launch_bounds__(backward_warps * 32, 2)
    convolve_back(Given<T> given, int outputs, const T* __restrict__ filters, const T* __restrict__ x, int channels,
                  Images images, int pixels, int slots, Norm norm, T* __restrict__ g, int growth, float* partial,
                  float* partial_beta, float* partial_filters) {
  using Shared = ConvolveBackShared<T, C>;
  constexpr int threads = backward_warps * 32, M = backward_pixels, K = outputs_at_most, stride = Shared::stride;
  constexpr int NT = C / 8, group = Shared::group, x_stride = Shared::x_stride, own_products = shares_pixels(C) ? NT : NT / 2;
  constexpr unsigned size = sizeof(T);
  extern __shared__ __align__(128) unsigned char memory[];
  const Shared shared(memory, slots, given.y != nullptr);
  int *const rows = shared.rows, *const places = shared.places;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, own = warp * 16;
  const int tiles = (images.rows + pixels - 1) / pixels, step = gridDim.x;

  for (int i = thread; i < taps * K * C / 2; i += threads) {
    const int c = i % (C / 2) * 2, k = i / (C / 2) % K, tap = i / (C / 2) / K;
    const bool real = k < outputs && c < channels;
    copy_async<4>(shared.filters + (tap * K + k) * x_stride + place_of<group>(c),
                  real ? filters + (k * taps + tap) * channels + c : filters, real);
  }
  fill_table<group>(shared.by, norm, 0, C, channels);
  const auto copy = [&](const Tile& tile, int stage) {
    T *const to_dy = shared.dy + stage * slots * stride, *const to_y = shared.y + stage * slots * stride;
    for_each_slot<K, V, threads>(tile.slots, rows + stage * slots, [&](int slot, int row, int column) {
      copy_slot<T, K, V>(to_dy, given.dy, given.dy_stride, given.outputs, slot, row, column);
      if (given.y != nullptr) copy_slot<T, K, V>(to_y, given.y, given.y_stride, given.outputs, slot, row, column);
    });
    for (int i = thread; i < M * NT; i += threads) {
      const int pixel = i / NT, c = i % NT * 8;
      const bool real = pixel < tile.count && c < channels;
      copy_async<16>(shared.x + (stage * M + pixel) * x_stride + c,
                     real ? x + int64_t{tile.first + pixel} * channels + c : x, real);
    }
  };
  Tile here(images, blockIdx.x, pixels);
  here.find_rows(images, rows);
  here.find_places(images, M, places);
  if (blockIdx.x + step < tiles) Tile(images, blockIdx.x + step, pixels).find_rows(images, rows + slots);
  cuda_ext::wait_for_the_one_before();
  if (given.y != nullptr) fill_finish<K>(shared.finish, given, thread, threads);
  __syncthreads();
  copy(here, 0);
  commit_copies();

  const int line = warp / 2, share = shares_pixels(C) ? warp % 2 : 0, own_channel = shares_pixels(C) ? 0 : warp % 2 * (C / 2);
  float sums[2][NT][2] = {}, to_beta = 0, filter_products[3][own_products][4] = {};
  int stage = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += step, stage ^= 1) {
    here = Tile(images, tile, pixels);
    T* const xs = shared.x + stage * M * x_stride;
    T* const dys = shared.dy + stage * slots * stride;
    const int* const own_places = places + stage * M;
    int* const own_rows = rows + stage * slots;
    await_copies<0>();
    if (given.y != nullptr) {
      const T* const ys = shared.y + stage * slots * stride;
      finish_slots<T, K, V, threads>(dys, ys, shared.finish, given.outputs, here.slots, own_rows);
    }
    __syncthreads();
    if (tile + step < tiles) copy(Tile(images, tile + step, pixels), stage ^ 1);
    commit_copies();
    float da[NT][4] = {};
    const unsigned from = shared_address(dys + own_places[own + lane % 16] * stride + lane / 16 * 8);
    const unsigned filter = shared_address(shared.filters + lane % 16 * x_stride + lane / 16 * 8);
#pragma unroll
    for (int tap = 0; tap < taps; ++tap) {
      unsigned a[4];
      load_matrices(a, from + (tap / 3 * images.pitch() + tap % 3) * stride * size);
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        // dy's pixel sees this one through the mirrored tap.
        unsigned b[4];
        load_matrices_transposed(b, filter + ((8 - tap) * K * x_stride + j * 8) * size);
        multiply<T>(da[j], a, b[0], b[1]);
        multiply<T>(da[j + 1], a, b[2], b[3]);
      }
    }
    with_activation(norm, [&](const auto activation) {
      through_norm<T, NT, group>(da, xs + own * x_stride, g + int64_t{here.first + own} * channels, here.count - own,
                                 channels, shared.by, sums, to_beta, lane, activation);
    });
    __syncthreads();
    if (tile + step < tiles) Tile(images, tile + step, pixels).find_places(images, M, places + (stage ^ 1) * M);
    if (tile + 2 * step < tiles) Tile(images, tile + 2 * step, pixels).find_rows(images, own_rows);
    const T* const dys_from = dys + ((2 - line) * images.pitch() + 2) * stride + lane / 8 % 2 * 8;
    const T* const xs_from = xs + lane % 16 * x_stride + own_channel + lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < M / 16; i += shares_pixels(C) ? 2 : 1) {
      const int k = (i + share) * 16;
      unsigned b[own_products / 2][4];
#pragma unroll
      for (int j = 0; j < own_products / 2; ++j) load_matrices_transposed(b[j], xs_from + k * x_stride + j * 16);
      const T* const own_dys = dys_from + own_places[k + lane / 16 * 8 + lane % 8] * stride;
#pragma unroll
      for (int tap = 0; tap < 3; ++tap) {
        unsigned a[4];
        load_matrices_transposed(a, own_dys - tap * stride);
#pragma unroll
        for (int j = 0; j < own_products; ++j) {
          multiply<T>(filter_products[tap][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
  await_copies<0>();
  cuda_ext::let_the_next_start();
  store_gradients<backward_warps, NT, group>(sums, to_beta, shared.sums, 0, channels, channels, partial,
                                             place_of_block(partial_beta), threadIdx.x, [] { __syncthreads(); });
  store_filters<own_products, shares_pixels(C)>(filter_products, reinterpret_cast<float*>(memory), line, warp % 2,
                                                own_channel, growth, channels, partial_filters);
}

}  // namespace cuda_ext::channels
