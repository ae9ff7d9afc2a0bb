// A dense block's 3x3 convolution on the matrix units, with the norm and activation in front of it, over the rows of
// channels-last images, a row a pixel:
//
//   convolve         y = a * w and its statistics, a = f(scale x + shift)
//   convolve_back    s dz of the norm, dz = f'(z) (dy * w mirrored), and the sums that the norm's backward pass takes
//   convolve_filters dw = sum of a dy, a tap at a time
//
// A block goes through tiles of so many neighbouring pixels. What their taps read comes into slots of shared memory, and
// is normalised and activated there once. In slots an image's lines follow each other with one slot of zeros behind each
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

struct Images {
  int rows, height, width;

  __host__ __device__ int pitch() const { return width + 1; }

  // A pixel's slot, counted from the first pixel.
  __host__ __device__ int place(int row) const { return row + row / width + row / (height * width) * pitch(); }

  // The row of a slot's pixel; -1 in a slot of zeros.
  __device__ int row_at(int place) const {
    if (place < 0) return -1;
    const int line = place / pitch(), column = place - line * pitch(), image = line / (height + 1);
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

  // Each slot's row, and each pixel's upper left slot, of `pixels` that the warps take: 0 beyond those that there are.
  __device__ void find(const Images& images, int pixels, int* rows, int* places) const {
    for (int i = threadIdx.x; i < slots; i += blockDim.x) rows[i] = images.row_at(begin + i);
    for (int i = threadIdx.x; i < pixels; i += blockDim.x) {
      places[i] = i < count ? images.place(first + i) - images.pitch() - 1 - begin : 0;
    }
  }
};

// The norm of eight channels, and the activation, applied to a lane.
template <typename T, typename Activation>
struct Activated {
  float2 by[8];
  const Activation& activation;

  __device__ Activated(const Norm& norm, int channel, int channels, const Activation& activation)
      : activation(activation) {
#pragma unroll
    for (int v = 0; v < 8; ++v) by[v] = scale_and_shift(norm, channel + v, channels);
  }
  __device__ Lane<T, 8> operator()(const Lane<T, 8>& lane) const {
    float values[8];
    unpack(lane, values);
#pragma unroll
    for (int v = 0; v < 8; ++v) values[v] = activation.value(values[v] * by[v].x + by[v].y);
    return packed<T, 8>(values);
  }
};

template <typename T>
struct Unchanged {
  __device__ Lane<T, 8> operator()(const Lane<T, 8>& lane) const { return lane; }
};

// C columns of the rows that `row_of` names for each of `slots` slots, changed, to shared memory; zeros where it names
// -1 and beyond the columns that there are. from: the first of the columns.
template <typename T, int C, int threads, typename RowOf, typename Change>
__device__ __forceinline__ void stage(T* to, const T* __restrict__ from, int64_t stride, int columns, int slots,
                                      const RowOf& row_of, const Change& change) {
  constexpr int lanes = C / 8, at_once = threads / lanes, steps_ahead = 4;
  const int column = threadIdx.x % lanes * 8, group = threadIdx.x / lanes;
  if (group >= at_once) return;
  for (int begin = group; begin < slots; begin += at_once * steps_ahead) {
    Lane<T, 8> loaded[steps_ahead];
    int rows[steps_ahead];
#pragma unroll
    for (int i = 0; i < steps_ahead; ++i) {
      const int slot = begin + i * at_once;
      rows[i] = slot < slots && column < columns ? row_of(slot) : -1;
      if (rows[i] >= 0) loaded[i] = load<T, 8>(from + rows[i] * stride + column);
    }
#pragma unroll
    for (int i = 0; i < steps_ahead; ++i) {
      const int slot = begin + i * at_once;
      if (slot < slots) store(to + slot * (C + skew) + column, rows[i] >= 0 ? change(loaded[i]) : Lane<T, 8>{});
    }
  }
}

// The same of channels from `first` on, normalised and activated.
template <typename T, int C, int threads, typename RowOf>
__device__ __forceinline__ void stage_activated(T* to, const T* __restrict__ x, int channels, int first,
                                                const Norm& norm, int slots, const RowOf& row_of) {
  with_activation(norm, [&](const auto activation) {
    const Activated<T, decltype(activation)> change(norm, first + threadIdx.x % (C / 8) * 8, channels, activation);
    stage<T, C, threads>(to, x + first, channels, channels - first, slots, row_of, change);
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

// A block multiplies 16 W MF pixels by 8 NT outputs, C channels at a time; a warp 16 MF of the pixels.
template <typename T, int W, int MF, int NT, int C>
static __global__ void __launch_bounds__(W * 32, 512 / (W * 32))
    convolve(const T* __restrict__ x, int channels, const T* __restrict__ filters, int filter_rows, Images images,
             int pixels, int slots, Norm norm, T* __restrict__ y, int64_t y_stride, int outputs, bool whole,
             double* partial) {
  constexpr int threads = W * 32, M = W * MF * 16, N = NT * 8, stride = C + skew, group = NT % 4 ? 2 : 4;
  constexpr unsigned size = sizeof(T);
  extern __shared__ __align__(128) unsigned char memory[];
  T* const xs = reinterpret_cast<T*>(memory);
  T* const ws = xs + slots * stride;
  float* const shared_sums = reinterpret_cast<float*>(ws + taps * N * stride);
  float* const center = shared_sums + W * 2 * N;
  int* const rows = reinterpret_cast<int*>(center + N);
  int* const places = rows + slots;
  const int thread = threadIdx.x, lane = thread % 32, own = thread / 32 * MF * 16;
  const int chunks = (channels + C - 1) / C, tiles = (images.rows + pixels - 1) / pixels;

  float sums[2][NT][2] = {};
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Tile here(images, tile, pixels);
    __syncthreads();
    here.find(images, M, rows, places);
    float product[MF][NT][4] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      __syncthreads();
      // Rows of filters are so ordered that each thread gets neighbouring outputs (output_of).
      for (int i = thread; (chunks > 1 || tile == blockIdx.x) && i < taps * N * C / 8; i += threads) {
        const int row = i / (C / 8), c = i % (C / 8) * 8, output = output_of<group>(row % N / 8, row % 8);
        const bool real = output < filter_rows && chunk * C + c < channels;
        const T* const from = filters + (int64_t{output} * taps + row / N) * channels + chunk * C + c;
        copy_async<16>(ws + row * stride + c, real ? from : filters, real);
      }
      commit_copies();
      stage_activated<T, C, threads>(xs, x, channels, chunk * C, norm, here.slots, [&](int slot) { return rows[slot]; });
      await_copies<0>();
      __syncthreads();
      unsigned from[MF];
#pragma unroll
      for (int m = 0; m < MF; ++m) {
        from[m] = shared_address(xs + places[own + m * 16 + lane % 16] * stride + lane / 16 * 8);
      }
      unsigned filter = shared_address(ws + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
#pragma unroll 1
      for (int line = 0; line < 3; ++line) {
#pragma unroll
        for (int i = 0; i < 3 * C / 16; ++i) {
          const int step = i / (C / 16), k = i % (C / 16) * 16;
          unsigned b[NT / 2][4];
#pragma unroll
          for (int j = 0; j < NT / 2; ++j) {
            load_matrices(b[j], filter + ((step * N + j * 16) * stride + k) * size);
          }
#pragma unroll
          for (int m = 0; m < MF; ++m) {
            unsigned a[4];
            load_matrices(a, from[m] + (step * stride + k) * size);
#pragma unroll
            for (int j = 0; j < NT; ++j) multiply<T>(product[m][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
          }
        }
        filter += 3 * N * stride * size;
#pragma unroll
        for (int m = 0; m < MF; ++m) from[m] += images.pitch() * stride * size;
      }
    }
    unsigned result[MF][NT][2];
#pragma unroll
    for (int i = 0; i < MF * NT; ++i) {
      const float(&found)[4] = product[i / NT][i % NT];
      result[i / NT][i % NT][0] = pack<T>(found[0], found[1]);
      result[i / NT][i % NT][1] = pack<T>(found[2], found[3]);
    }
    if (tile == blockIdx.x) {
      if (own == 0) find_center<T, NT, group>(center, result[0], lane);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < MF * 2; ++i) {
      const int pixel = own + i / 2 * 16 + i % 2 * 8 + lane / 4;
      if (pixel >= here.count) continue;
      store_outputs<T, NT, group>(y + (here.first + pixel) * y_stride, result[i / 2], i % 2, outputs, whole, lane);
      add_row<T, NT, group>(result[i / 2], i % 2, sums, center, lane);
    }
  }
  if (partial == nullptr) return;
  store_sums<NT, 1, W, group>(partial, sums, shared_sums, center, rows_of_block(images.rows, tiles, pixels), outputs, 0);
}

// What dy of 16 MF pixels and 8 NT channels, a warp's products, gives to the norm: s dz to g, and sums of dz and of
// dz (x - mean). by: the channels' table.
template <typename T, int MF, int NT, int group, typename Activation>
__device__ __forceinline__ void through_norm(const float (&dy)[MF][NT][4], const T* __restrict__ x, T* __restrict__ g,
                                             int64_t stride, int pixels, int channels, const float4* by,
                                             float (&sums)[2][NT][2], float& to_beta, int lane,
                                             const Activation& activation) {
#pragma unroll
  for (int j = 0; j < NT; j += group) {
    const int channel = output_of<group>(j, lane % 4 * 2);
    if (channel >= channels) continue;
    Lane<T, 2 * group> loaded[MF * 2];
#pragma unroll
    for (int i = 0; i < MF * 2; ++i) {
      const int pixel = i * 8 + lane / 4;
      if (pixel < pixels) loaded[i] = load<T, 2 * group>(x + pixel * stride + channel);
    }
#pragma unroll
    for (int i = 0; i < MF * 2; ++i) {
      const int pixel = i * 8 + lane / 4;
      if (pixel >= pixels) continue;
      float values[2 * group];
      unpack(loaded[i], values);
#pragma unroll
      for (int v = 0; v < 2 * group; ++v) {
        const float4 own = by[in_table<group>(channel) + v];
        const float centred = values[v] - own.x;
        const float dz = activation.through(dy[i / 2][j + v / 2][i % 2 * 2 + v % 2], centred * own.y + own.z, to_beta);
        sums[0][j + v / 2][v % 2] += dz;
        sums[1][j + v / 2][v % 2] += dz * centred;
        values[v] = own.y * dz;
      }
      store(g + pixel * stride + channel, packed<T, 2 * group>(values));
    }
  }
}

// A block multiplies K outputs of 16 W MF pixels by 8 NT channels, those from blockIdx.y 8 NT on.
template <typename T, int W, int MF, int NT, int K>
static __global__ void __launch_bounds__(W * 32, (MF == 1 ? 16 : 12) / W)
    convolve_back(const T* __restrict__ dy, int outputs, const T* __restrict__ filters, const T* __restrict__ x,
                  int channels, Images images, int pixels, int slots, Norm norm, T* __restrict__ g, float* partial,
                  float* partial_beta) {
  constexpr int threads = W * 32, M = W * MF * 16, N = NT * 8, stride = K + skew, group = NT % 4 ? 2 : 4;
  constexpr unsigned size = sizeof(T);
  extern __shared__ __align__(128) unsigned char memory[];
  T* const dys = reinterpret_cast<T*>(memory);
  T* const ws = dys + slots * stride;
  float4* const by = reinterpret_cast<float4*>(ws + taps * N * stride);
  float* const shared_sums = reinterpret_cast<float*>(by + in_table<group>(N));
  int* const rows = reinterpret_cast<int*>(shared_sums + W * (2 * N + 1));
  int* const places = rows + slots;
  const int thread = threadIdx.x, lane = thread % 32, own = thread / 32 * MF * 16, first = blockIdx.y * N;
  const int tiles = (images.rows + pixels - 1) / pixels;

  for (int i = thread; i < taps * K * N; i += threads) {
    const int n = i % N, k = i / N % K, tap = i / N / K, channel = first + output_of<group>(n / 8, n % 8);
    const bool real = k < outputs && channel < channels;
    ws[(tap * N + n) * stride + k] = real ? filters[(int64_t{k} * taps + tap) * channels + channel] : T(0.0f);
  }
  fill_table<group>(by, norm, first, N, channels);

  float sums[2][NT][2] = {}, to_beta = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Tile here(images, tile, pixels);
    __syncthreads();
    here.find(images, M, rows, places);
    __syncthreads();
    stage<T, K, threads>(dys, dy, outputs, outputs, here.slots, [&](int slot) { return rows[slot]; }, Unchanged<T>{});
    __syncthreads();
    float product[MF][NT][4] = {};
    unsigned from[MF];
#pragma unroll
    for (int m = 0; m < MF; ++m) {
      from[m] = shared_address(dys + places[own + m * 16 + lane % 16] * stride + lane / 16 * 8);
    }
    // dy's pixel sees this one through the mirrored tap.
    unsigned filter = shared_address(ws + (8 * N + lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
#pragma unroll 1
    for (int line = 0; line < 3; ++line) {
#pragma unroll
      for (int i = 0; i < 3 * K / 16; ++i) {
        const int step = i / (K / 16), k = i % (K / 16) * 16;
        unsigned a[MF][4];
#pragma unroll
        for (int m = 0; m < MF; ++m) {
          load_matrices(a[m], from[m] + (step * stride + k) * size);
        }
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
          unsigned b[4];
          load_matrices(b, filter - step * N * stride * size + (j * 8 * stride + k) * size);
#pragma unroll
          for (int m = 0; m < MF; ++m) {
            multiply<T>(product[m][j], a[m], b[0], b[1]);
            multiply<T>(product[m][j + 1], a[m], b[2], b[3]);
          }
        }
      }
      filter -= 3 * N * stride * size;
#pragma unroll
      for (int m = 0; m < MF; ++m) from[m] += images.pitch() * stride * size;
    }
    with_activation(norm, [&](const auto activation) {
      const int64_t at = int64_t{here.first + own} * channels + first;
      through_norm<T, MF, NT, group>(product, x + at, g + at, channels, here.count - own, channels - first, by, sums,
                                     to_beta, lane, activation);
    });
  }
  __syncthreads();
  store_gradients<W, NT, group>(sums, to_beta, shared_sums, first, channels, partial, partial_beta);
}

// dw of C channels, those from blockIdx.y C on, and 16 O outputs over a share of the tiles. A warp takes three taps of a
// line for 16 of the outputs, and every P-th 16 pixels.
template <typename T, int O, int P, int C>
static __global__ void __launch_bounds__(3 * O * P * 32, O * P == 1 ? 5 : 4 / (O * P))
    convolve_filters(const T* __restrict__ dy, int outputs, const T* __restrict__ x, int channels, Images images,
                     int pixels, int slots, int padded_pixels, Norm norm, int growth, float* partial) {
  constexpr int threads = 3 * O * P * 32, NT = C / 8, stride = C + skew, dy_stride = O * 16 + skew;
  extern __shared__ __align__(128) unsigned char memory[];
  T* const xs = reinterpret_cast<T*>(memory);
  T* const dys = xs + padded_pixels * stride;
  int* const rows = reinterpret_cast<int*>(dys + slots * dy_stride);
  int* const places = rows + slots;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int share = warp % P, own_output = warp / P % O * 16, line = warp / (P * O);
  const int first = blockIdx.y * C, tiles = (images.rows + pixels - 1) / pixels;

  float product[3][NT][4] = {};
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Tile here(images, tile, pixels);
    __syncthreads();
    here.find(images, padded_pixels, rows, places);
    stage_activated<T, C, threads>(xs, x, channels, first, norm, padded_pixels,
                                   [&](int pixel) { return pixel < here.count ? here.first + pixel : -1; });
    __syncthreads();
    stage<T, O * 16, threads>(dys, dy, outputs, outputs, here.slots, [&](int slot) { return rows[slot]; },
                              Unchanged<T>{});
    __syncthreads();
    // The pixel that sees this one through the line's first tap is the last of the mirrored line.
    const T* const dys_from = dys + ((2 - line) * images.pitch() + 2) * dy_stride + own_output + lane / 8 % 2 * 8;
    const T* const xs_from = xs + lane % 16 * stride + lane / 16 * 8;
    for (int k = share * 16; k < padded_pixels; k += P * 16) {
      unsigned b[NT / 2][4];
#pragma unroll
      for (int j = 0; j < NT / 2; ++j) load_matrices_transposed(b[j], xs_from + k * stride + j * 16);
      const T* const own = dys_from + places[k + lane / 16 * 8 + lane % 8] * dy_stride;
#pragma unroll
      for (int tap = 0; tap < 3; ++tap) {
        unsigned a[4];
        load_matrices_transposed(a, own - tap * dy_stride);
#pragma unroll
        for (int j = 0; j < NT; ++j) multiply<T>(product[tap][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
  // The shares are added in turn.
  constexpr int numbers = 3 * NT * 4;
  float* const shared = reinterpret_cast<float*>(memory) + (warp / P * 32 + lane) * (numbers + 1);
#pragma unroll
  for (int p = 1; p < P; ++p) {
    __syncthreads();
    if (share == p) {
#pragma unroll
      for (int i = 0; i < numbers; ++i) shared[i] = product[i / (NT * 4)][i / 4 % NT][i % 4];
    }
    __syncthreads();
    if (share == 0) {
#pragma unroll
      for (int i = 0; i < numbers; ++i) product[i / (NT * 4)][i / 4 % NT][i % 4] += shared[i];
    }
  }
  if (share != 0) return;
#pragma unroll
  for (int i = 0; i < numbers; ++i) {
    const int tap = line * 3 + i / (NT * 4), j = i / 4 % NT;
    const int output = own_output + i % 4 / 2 * 8 + lane / 4, channel = first + j * 8 + lane % 4 * 2 + i % 2;
    if (output < growth && channel < channels) {
      const int64_t row = (int64_t{blockIdx.x} * growth + output) * taps + tap;
      partial[row * channels + channel] = product[i / (NT * 4)][j][i % 4];
    }
  }
}

}  // namespace cuda_ext::channels
