// 2D convolution in half precision on the matrix units, for filters of 5 to 17. Each dtype has a .cu file of its own.
//
// A row of the result is a row of the image times a banded matrix: with the taps w of a row of the filter,
//   out[x] = sum over j of in[x + j - K / 2] w[j] = sum over c of in[c] W[c][x],   W[c][x] = w[c - x + K / 2],
// so that a product of 16 x 8 numbers over 24 makes 8 columns of the result at 16 places, from the 8 columns above them
// and 8 to each side. The 16 places lie side by side: 128 columns of one row. As in `convolve_down` (conv2d_register.cuh)
// a warp walks down a strip and keeps the K - 1 rows of results that are under way: each new row of the image is
// multiplied with the matrix of every row of the filter, and each product also moves the sums to their next place.
//
// On an H200 a filter of 3 takes as long here as in `register` (24.7 us for 64 images of 512 x 512, which is not bound by
// arithmetic then), so that it is left to that one.
//
// Products are exact and sums in float. A zero of the matrix times what is not finite is NaN, eight columns wide: rows
// with such results are computed again, tap by tap.
#pragma once

#include "conv2d_strips.cuh"

#include "../common/halves.cuh"
#include "../common/mma.cuh"

namespace cuda_ext::conv2d {

// The banded matrices of the filter's rows as operands: columns 8 left of the results, theirs, and 8 right.
template <typename T, int K>
__device__ inline void load_bands(const T* weight, unsigned (&bands)[K][3]) {
  const int lane = threadIdx.x;
#pragma unroll
  for (int a = 0; a < K; ++a) {
#pragma unroll
    for (int block = 0; block < 3; ++block) {
      bands[a][block] = band<T>(lane, 8 * (block - 1) + K / 2, K, [&](int j) { return weight[a * K + j]; });
    }
  }
}

template <typename T>
__device__ inline bool not_finite(unsigned pair) {
  const unsigned exponent = std::is_same_v<T, __half> ? 0x7c00u : 0x7f80u;
  return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

// One result, tap by tap.
template <typename T, int K>
__device__ inline T single(const T* from, const T* weight, int y, int x, const Image& image) {
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < K; ++i) {
    const int row = source(y + i - K / 2, image.height, image.padding);
#pragma unroll 1
    for (int j = 0; j < K; ++j) {
      const int column = source(x + j - K / 2, image.width, image.padding);
      const bool inside = row >= 0 && column >= 0;
      const float value = inside ? static_cast<float>(from[int64_t{row} * image.width + column]) : 0.f;
      sum = fmaf(static_cast<float>(weight[i * K + j]), value, sum);
    }
  }
  return static_cast<T>(sum);
}

// A row of results: each thread has neighbouring columns, in pairs that are 64 columns apart.
template <typename T, int pairs>
__device__ inline void write_pairs(T* to, const unsigned (&values)[pairs], int column, const Image& image) {
#pragma unroll
  for (int p = 0; p < pairs; ++p) {
    if (image.packed) {
      if (column + 64 * p < image.width) *reinterpret_cast<unsigned*>(to + 64 * p) = values[p];
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (column + 64 * p + e < image.width) to[64 * p + e] = reinterpret_cast<const T*>(&values[p])[e];
      }
    }
  }
}

// `sets` of 128 columns a warp; `step` rows between two waits, `slots` such steps in the ring.
template <typename T, int K, int sets, int step, int slots, int warps>
__global__ void __launch_bounds__(32, warps)
    multiply_down(const T* __restrict__ images, const T* __restrict__ weight, T* __restrict__ results, Image image,
                  int rows, int strips, int chunks) {
  constexpr int columns = 128 * sets;
  using Memory = Ring<T, K, columns, step, slots>;
  static_assert(Memory::margin == 8, "a block of columns on each side");
  __shared__ Memory ring;
  let_the_next_start();
  wait_for_the_one_before();

  const Task task(image, columns, rows, strips, chunks);
  const int last = task.rows + K - 1;
  const T* from = images + task.offset;
  if (task.left < Memory::margin || task.left + columns + Memory::margin > image.width) {
    // What no copy reaches, beyond an image's sides, is multiplied with zeros: it must be finite.
    auto* const packs = reinterpret_cast<int4*>(ring.rows);
    for (int at = threadIdx.x; at < static_cast<int>(sizeof(ring.rows) / 16); at += 32) packs[at] = {};
    // Other lanes write to the same places next.
    __syncwarp();
  }
  Strip<T, K, columns, step, slots> strip(ring, from, image, task.left);
#pragma unroll 1
  for (int s = 0; s < slots - 1; ++s) {
    strip.fetch(s, task.top - K / 2 + s * step, min(step, last - s * step));
    strip.mend(s, last - s * step);
  }
  unsigned bands[K][3];
  load_bands<T, K>(weight, bands);
  // sums[i]: of the result that has met rows 0 to i of the filter.
  float sums[K - 1][sets][4] = {};

  const int lane = threadIdx.x;
  // Of the matrices of a load, the places 0 to 7 and 8 to 15 of a block of columns, then those of the next block.
  const int first = 8 * (lane % 8 + lane / 8 % 2 * 8 + lane / 16);
  const int third = 8 * (lane % 8 + lane / 8 % 2 * 8 + 2) + (sets == 2 ? lane / 16 * 128 : 0);
  const int column = task.left + 2 * lane;
  T* out = results + task.offset + int64_t{task.top} * image.width + column;
  int slot = 0, free = slots - 1;
  unsigned phase = 0;
#pragma unroll 1
  for (int r0 = 0; r0 < last; r0 += step) {
    strip.await(slot, phase);
    const int next = r0 + (slots - 1) * step;
    strip.fetch(free, task.top - K / 2 + next, min(step, last - next));
#pragma unroll
    for (int s = 0; s < step; ++s) {
      const int r = r0 + s;
      const T* row = ring.rows[slot][s];
      unsigned left[sets][4], right[4];
#pragma unroll
      for (int g = 0; g < sets; ++g) load_matrices(left[g], row + first + 128 * g);
      load_matrices(right, row + third);
      float done[sets][4];
#pragma unroll
      for (int i = K - 1; i >= 0; --i) {
        // Row i of the filter meets row r for the strip's result r - i.
        if (K > 7 && (r < i || r >= task.rows + i)) continue;
#pragma unroll
        for (int g = 0; g < sets; ++g) {
          float(&sum)[4] = i == K - 1 ? done[g] : sums[i < K - 1 ? i : 0][g];
          float before[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) before[e] = i > 0 ? sums[i > 0 ? i - 1 : 0][g][e] : 0.f;
          multiply<T>(sum, left[g], bands[i][0], bands[i][1], before);
          const unsigned side[2] = {right[2 * g], right[2 * g + 1]};
          multiply<T>(sum, side, bands[i][2]);
        }
      }
      if (r >= K - 1 && r < last) {
        unsigned pairs[2 * sets];
        bool bad = false;
#pragma unroll
        for (int p = 0; p < 2 * sets; ++p) {
          pairs[p] = pack<T>(done[p / 2][p % 2 * 2], done[p / 2][p % 2 * 2 + 1]);
          bad = bad || not_finite<T>(pairs[p]);
        }
        if (__any_sync(0xffffffff, bad)) {
#pragma unroll 1
          for (int p = 0; p < 2 * sets; ++p) {
            T pair[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int x = min(column + 64 * p + e, image.width - 1);
              pair[e] = single<T, K>(from, weight, task.top + r - (K - 1), x, image);
            }
#pragma unroll
            for (int q = 0; q < 2 * sets; ++q) {
              if (q == p) {
                pairs[q] = pair_of(pair[0], pair[1]);
              }
            }
          }
        }
        write_pairs(out, pairs, column, image);
        out += image.width;
      }
    }
    strip.mend(free, last - next);
    free = slot;
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }
}

// As many rows a strip as let all warps run at once: fewer rows would read more of the image twice.
template <typename T, int K, int sets, int step, int slots, int warps>
void launch_products(const Call<T>& call) {
  static std::atomic<int> resident{0};
  launch_strips(call, multiply_down<T, K, sets, step, slots, warps>, {128 * sets, 8, 1 << 30, step, true}, resident);
}

template <typename T>
void launch_matrix_of(const Call<T>& call) {
  switch (call.size) {
    case 5: return launch_products<T, 5, 2, 2, 4, 16>(call);
    case 7: return launch_products<T, 7, 2, 2, 4, 16>(call);
    case 9: return launch_products<T, 9, 2, 2, 4, 12>(call);
    case 11: return launch_products<T, 11, 2, 2, 4, 12>(call);
    case 13: return launch_products<T, 13, 2, 1, 6, 8>(call);
    case 15: return launch_products<T, 15, 2, 1, 6, 8>(call);
    // Twice the columns would take more registers than there are.
    case 17: return launch_products<T, 17, 1, 2, 6, 10>(call);
    default: STD_TORCH_CHECK(false, "conv2d: no kernel 'matrix' for a filter of ", call.size);
  }
}

}  // namespace cuda_ext::conv2d
