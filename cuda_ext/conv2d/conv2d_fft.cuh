// 2D convolution for large filters: each tile of the image by Fourier transforms in shared memory (overlap-save).
//
// A tile of 64 x 64 or 128 x 128 pixels is transformed, multiplied with the filter's spectrum and transformed back. The
// results whose filter lies within the tile are right, and are written: for a filter of 31, 34 x 34 or 98 x 98. Two
// tiles of one image are one complex tile, one as its real and one as its imaginary part: the filter is real, and keeps
// them apart.
//
// A side of 8 S numbers is transformed in two steps: by 8, of places that are S apart, and by S, of neighbours, each in
// a thread's registers. Number n = a + S j (a < S, j < 8) and frequency f = p + 8 q (p < 8, q < S):
//
//   place a + S j holds x[a + S j]   ->   place a + S p holds    sum over j of x[a + S j] w8^(j p)   times w^(a p)
//                                    ->   place S p + q holds    X[p + 8 q]
//
// The frequencies stay in this order: the filter's spectrum is made in it, and the inverse begins with what came last.
// Steps and who does them (a warp's lanes lie along the tile's columns, or along the parts of a few of its rows):
//
//   1  columns by 8, from the image      warp a: rows a + S j          lanes: columns
//   2  columns by S                      warp p: rows S p + i          lanes: columns
//   3  rows by 8                         a warp: 8 rows of its own     lanes: a, rows
//   4  rows by S, product, and back      the same 8 rows               lanes: p, rows
//   5  6  7  back, as 3, 2 and 1, to the results
//
// Shared memory holds a row's places with a gap behind every 16, and rows begin 8 (4 where rows have 64 places) apart
// modulo 16 pairs of banks, so that the lanes of half a warp lie in different banks in every step.
#pragma once

#include "conv2d.cuh"
#include "fft.cuh"

namespace cuda_ext::conv2d {

__device__ const fft::Roots roots;

// S: an eighth of a tile's side, 8 or 16.
template <int S>
struct Tile {
  static_assert(S == 8 || S == 16);
  static constexpr int side = 8 * S;
  // Each has 8 rows of its own.
  static constexpr int warps = S, threads = 32 * warps;
  static constexpr int pitch = side + S / 2;
  static constexpr int bytes = side * pitch * sizeof(float2);
  // Blocks that share a multiprocessor, as far as shared memory and registers (64 a thread) go.
  static constexpr int blocks = S == 16 ? 1 : 4;
  // A chunk is 32 columns, one per lane.
  static constexpr int chunks = side / 32;
};

// How the results of an image are cut into tiles. step: rows and columns of a tile's results.
struct Cover {
  int height, width, half;
  Padding padding;
  int step, across, tiles, pairs;
};

// One of a pair's tiles: its first place in the image, which may lie outside.
struct Place {
  int top, left;
  bool exists, inside;

  __device__ Place(const Cover& cover, int number, int side) {
    top = number / cover.across * cover.step - cover.half;
    left = number % cover.across * cover.step - cover.half;
    exists = number < cover.tiles;
    inside = exists && top >= 0 && left >= 0 && top + side <= cover.height && left + side <= cover.width;
  }
};

// As `source`; also -1 for what is further outside than any result needs. Without a branch.
__device__ __forceinline__ int source_or_none(int i, int n, const Cover& cover) {
  const int reflected = i < 0 ? -i : i < n ? i : 2 * n - 2 - i;
  const int repeated = min(max(i, 0), n - 1);
  const int found = cover.padding == Padding::reflect ? reflected : repeated;
  const bool known = cover.padding == Padding::zeros ? i >= 0 && i < n : i >= -cover.half && i < n + cover.half;
  return known ? found : -1;
}

// Eight pixels of one column, S rows apart from `row` on; column and row count from the tile's first place.
template <int S, bool inside, typename T>
__device__ __forceinline__ void load_pixels(float (&pixels)[8], const T* image, const Cover& cover, const Place& place,
                                            int row, int column) {
  if constexpr (inside) {
    const T* from = image + int64_t{place.top + row} * cover.width + place.left + column;
    const int64_t down = int64_t{S} * cover.width;
#pragma unroll
    for (int j = 0; j < 8; ++j) pixels[j] = static_cast<float>(from[j * down]);
  } else {
    const int x = source_or_none(place.left + column, cover.width, cover);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int y = source_or_none(place.top + row + S * j, cover.height, cover);
      const bool known = place.exists && x >= 0 && y >= 0;
      // What is not known is read from the image's first pixel, so that no load waits for a branch.
      const float pixel = static_cast<float>(image[known ? int64_t{y} * cover.width + x : 0]);
      pixels[j] = known ? pixel : 0.f;
    }
  }
}

template <typename T, int S>
class Convolution {
 public:
  using Own = Tile<S>;

  __device__ Convolution(float2* memory, const Cover& cover)
      : memory_(memory), cover_(cover), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {
    along_ = lane_ + lane_ / 16;
  }

  // Step 1.
  template <bool inside>
  __device__ __forceinline__ void load(const T* image, const Place& a, const Place& b) {
    // Chunks whose pixels are on their way at once.
    constexpr int loaded = inside ? Own::chunks : Own::chunks / 2;
    float2 column_roots[8];
    read_roots(column_roots, warp_);
#pragma unroll 1
    for (int chunk = 0; chunk < Own::chunks; chunk += loaded) {
      float real[loaded][8], imaginary[loaded][8];
#pragma unroll
      for (int c = 0; c < loaded; ++c) {
        load_pixels<S, inside>(real[c], image, cover_, a, warp_, 32 * (chunk + c) + lane_);
        load_pixels<S, inside>(imaginary[c], image, cover_, b, warp_, 32 * (chunk + c) + lane_);
      }
#pragma unroll
      for (int c = 0; c < loaded; ++c) {
        float2 x[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = {real[c][j], imaginary[c][j]};
        fft::transform<false>(x);
        float2* to = memory_ + warp_ * Own::pitch + 34 * (chunk + c) + along_;
#pragma unroll
        for (int p = 0; p < 8; ++p) to[p * S * Own::pitch] = p == 0 ? x[0] : fft::product(x[p], column_roots[p]);
      }
    }
  }

  // Steps 2 and 6.
  template <bool inverse>
  __device__ __forceinline__ void transform_columns() {
#pragma unroll 1
    for (int part = warp_; part < 8 * Own::chunks; part += Own::warps) {
      float2* at = memory_ + part % 8 * S * Own::pitch + 34 * (part / 8) + along_;
      float2 x[S];
#pragma unroll
      for (int i = 0; i < S; ++i) x[i] = at[i * Own::pitch];
      fft::transform<inverse>(x);
#pragma unroll
      for (int i = 0; i < S; ++i) at[i * Own::pitch] = x[i];
    }
  }

  // Steps 3 to 5.
  __device__ __forceinline__ void multiply_rows(const float4* spectrum) {
    transform_rows<false>();
    __syncwarp();
#pragma unroll
    for (int t = 0; t < 8; t += 4) {
      const int p = lane_ % 8, row = 8 * warp_ + t;
      float2* at = memory_ + (row + lane_ / 8) * Own::pitch + S * p + S * p / 16;
      const float4* factors = spectrum + row / 4 * (S / 2 * 32) + lane_;
      float2 x[S];
#pragma unroll
      for (int i = 0; i < S; ++i) x[i] = at[i];
      fft::transform<false>(x);
#pragma unroll
      for (int i = 0; i < S; i += 2) {
        const float4 two = factors[i / 2 * 32];
        x[i] = fft::product(x[i], {two.x, two.y});
        x[i + 1] = fft::product(x[i + 1], {two.z, two.w});
      }
      fft::transform<true>(x);
#pragma unroll
      for (int i = 0; i < S; ++i) at[i] = x[i];
    }
    __syncwarp();
    transform_rows<true>();
  }

  // Step 7.
  __device__ __forceinline__ void store(T* results, const Place& a, const Place& b) {
    float2 column_roots[8];
    read_roots(column_roots, warp_);
#pragma unroll 1
    for (int chunk = 0; chunk < Own::chunks; ++chunk) {
      const float2* from = memory_ + warp_ * Own::pitch + 34 * chunk + along_;
      float2 x[8];
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        const float2 value = from[p * S * Own::pitch];
        x[p] = p == 0 ? value : fft::product_with_conjugate(value, column_roots[p]);
      }
      fft::transform<true>(x);
      const int column = 32 * chunk + lane_;
      if (column >= cover_.step) continue;
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = x[j].x;
      store_pixels(results, values, a, column);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = x[j].y;
      if (b.exists) store_pixels(results, values, b, column);
    }
  }

 private:
  // The roots of a side to the powers 0, a, ... 7 a.
  __device__ __forceinline__ static void read_roots(float2 (&powers)[8], int a) {
#pragma unroll
    for (int p = 0; p < 8; ++p) powers[p] = roots.values[a * p * (fft::roots_of / Own::side)];
  }

  // Steps 3 and 5.
  template <bool inverse>
  __device__ __forceinline__ void transform_rows() {
    constexpr int rows_at_once = 32 / S;
    const int a = lane_ % S, part = lane_ / S;
    float2 row_roots[8];
    read_roots(row_roots, a);
#pragma unroll 1
    for (int t = 0; t < 8; t += rows_at_once) {
      // Of rows of 64 places those two apart lie in different banks.
      const int row = 8 * warp_ + t + (S == 16 ? part : part % 2 * 2 + part / 2);
      float2* at = memory_ + row * Own::pitch;
      float2 x[8];
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        const float2 value = at[a + S * p + (a + S * p) / 16];
        x[p] = inverse && p > 0 ? fft::product_with_conjugate(value, row_roots[p]) : value;
      }
      fft::transform<inverse>(x);
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        at[a + S * p + (a + S * p) / 16] = inverse || p == 0 ? x[p] : fft::product(x[p], row_roots[p]);
      }
    }
  }

  // Results of one column, S rows apart from the warp's first on.
  __device__ __forceinline__ void store_pixels(T* results, const float (&values)[8], const Place& place, int column) {
    const int top = place.top + cover_.half, x = place.left + cover_.half + column;
    if (x >= cover_.width) return;
    T* to = results + int64_t{top + warp_} * cover_.width + x;
    const int64_t down = int64_t{S} * cover_.width;
    const int rows = min(cover_.step, cover_.height - top);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (warp_ + S * j < rows) to[j * down] = static_cast<T>(values[j]);
    }
  }

  float2* const memory_;
  const Cover& cover_;
  const int warp_, lane_;
  // A lane's place along the 32 columns of a chunk.
  int along_;
};

// A block is a pair of tiles of one image. transform_filter is in front of it, and starts after all before that: so the
// images can be read while it runs. The spectrum must not be read as constant, because it is written meanwhile.
template <typename T, int S>
__global__ void __launch_bounds__(Tile<S>::threads, Tile<S>::blocks)
    convolve_by_fft(const T* __restrict__ images, const float4* spectrum, T* results,
                    const __grid_constant__ Cover cover) {
  extern __shared__ __align__(16) float2 memory[];
  const int pair = static_cast<int>(blockIdx.x % cover.pairs);
  const int64_t offset = int64_t{blockIdx.x / cover.pairs} * cover.height * cover.width;
  const Place a(cover, 2 * pair, Tile<S>::side), b(cover, 2 * pair + 1, Tile<S>::side);
  Convolution<T, S> convolution(memory, cover);
  if (a.inside && b.inside) {
    convolution.template load<true>(images + offset, a, b);
  } else {
    convolution.template load<false>(images + offset, a, b);
  }
  __syncthreads();
  convolution.template transform_columns<false>();
  wait_for_the_one_before();
  __syncthreads();
  convolution.multiply_rows(spectrum);
  __syncthreads();
  convolution.template transform_columns<true>();
  __syncthreads();
  convolution.store(results + offset, a, b);
}

// The conjugate of the filter's transform over side x side, divided by their number: in the order of step 4, as it is
// read. A block is a row of the transform. Not to be launched early: what comes behind relies on that.
template <typename T>
__global__ void __launch_bounds__(fft::roots_of)
    transform_filter(const T* __restrict__ weight, float2* __restrict__ spectrum, int size, int side) {
  __shared__ double2 roots_of_all[fft::roots_of];
  __shared__ float taps[largest_filter * largest_filter];
  __shared__ double2 sums[largest_filter];
  let_the_next_start();
  const int t = threadIdx.x;
  for (int n = t; n < size * size; n += fft::roots_of) taps[n] = static_cast<float>(weight[n]);
  sincospi(2.0 * t / fft::roots_of, &roots_of_all[t].y, &roots_of_all[t].x);
  __syncthreads();
  const int place = static_cast<int>(blockIdx.x), eighth = side / 8;
  const int row_step = (place / eighth + 8 * (place % eighth)) * (fft::roots_of / side);
  if (t < size) {
    double2 sum = {0, 0};
    for (int i = 0; i < size; ++i) {
      const double2 root = roots_of_all[row_step * i % fft::roots_of];
      const double tap = taps[i * size + t];
      sum.x += tap * root.x;
      sum.y += tap * root.y;
    }
    sums[t] = sum;
  }
  __syncthreads();
  if (t >= side) return;
  const int p = t / eighth, q = t % eighth, column_step = (p + 8 * q) * (fft::roots_of / side);
  double2 sum = {0, 0};
  for (int j = 0; j < size; ++j) {
    const double2 root = roots_of_all[column_step * j % fft::roots_of], by = sums[j];
    sum.x += by.x * root.x - by.y * root.y;
    sum.y += by.x * root.y + by.y * root.x;
  }
  const double scale = 1.0 / (side * side);
  const int lane = place % 4 * 8 + p;
  spectrum[((place / 4 * (eighth / 2) + q / 2) * 32 + lane) * 2 + q % 2] = {static_cast<float>(scale * sum.x),
                                                                           static_cast<float>(scale * sum.y)};
}

}  // namespace cuda_ext::conv2d
