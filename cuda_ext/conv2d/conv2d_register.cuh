// The fastest 2D convolution in float32: sums in registers, rows of the image in a ring in shared memory, a block one warp.
//
// Up to a filter of 5 memory bounds it, above that arithmetic, so that nearly every instruction must be one of the
// pixels x k^2 multiply-adds. How a warp walks is in conv2d_strips.cuh.
//
// Up to a filter of 15, `convolve_down`: a thread keeps, for four or eight columns, the k - 1 results that are under
// way. Each new row is multiplied with every row of the filter: sum[i] = sum[i - 1] + row * filter[i], where the first
// multiply-add also moves the sum to its next place, and one result is complete. Every pixel is read from shared memory
// once. For larger filters so many sums have no place, and `convolve_patches` computes 4 x 8 results a thread at a
// time.
//
// Tried on an H200, 8192 x 8192 in float32, and not taken: 16-byte asynchronous copies by all lanes (a filter of 7:
// 0.20 ms, with bulk copies 0.18); four columns a thread (9: 0.33, with eight 0.28); two rows a step above 9 (11: 0.39,
// with one 0.37); streaming stores (7: 0.174, without 0.172); long strips for a filter of 3 (0.157, short 0.150). The
// filter in constant memory saves nothing: the multiply-add takes it from uniform registers, whose loads cost as many
// instructions as those from shared memory.
#pragma once

#include "conv2d_strips.cuh"

#include <utility>

namespace cuda_ext::conv2d {

// f(0), f(1), ... as constants: the compiler leaves loops of so many instructions rolled, and sums out of registers.
template <int... numbers, typename F>
__device__ inline void for_each(std::integer_sequence<int, numbers...>, F&& f) {
  (f(std::integral_constant<int, numbers>{}), ...);
}

template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T values[4];
};

template <typename T, int N>
__device__ inline void read(float (&x)[N], const T* from) {
#pragma unroll
  for (int c = 0; c < N; c += 4) {
    const auto four = *reinterpret_cast<const Four<T>*>(from + c);
#pragma unroll
    for (int v = 0; v < 4; ++v) x[c + v] = static_cast<float>(four.values[v]);
  }
}

template <typename T, int V>
__device__ inline void write(T* to, const float (&sums)[V], int column, const Image& image) {
#pragma unroll
  for (int c = 0; c < V; c += 4) {
    if (image.packed) {
      Four<T> four;
#pragma unroll
      for (int v = 0; v < 4; ++v) four.values[v] = static_cast<T>(sums[c + v]);
      if (column + c < image.width) *reinterpret_cast<Four<T>*>(to + c) = four;
    } else {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        if (column + c + v < image.width) to[c + v] = static_cast<T>(sums[c + v]);
      }
    }
  }
}

// V neighbouring columns of each of `groups` pieces of 32 V columns; `step` rows between two waits; `band` rows of the
// filter are left out together where a strip begins and ends; the filter in registers if it `fits`, else it is read
// from shared memory for every row, four taps at a time, which every lane gets at once.
template <typename T, int K, int V, int groups, int step, int band, bool fits, int warps>
__global__ void __launch_bounds__(32, warps)
    convolve_down(const T* __restrict__ images, const T* __restrict__ weight, T* __restrict__ results, Image image,
                  int rows, int strips, int chunks) {
  constexpr int half = K / 2;
  constexpr int slots = 4;
  constexpr int columns = 32 * V * groups;
  // What a thread reads on each side of its columns, in whole fours.
  constexpr int near = up_to(half, 4);
  __shared__ Ring<T, K, columns, step, slots> ring;
  // Its last row first, as it is used.
  __shared__ __align__(16) float filter[up_to(K * K, 4)];

  const Task task(image, columns, rows, strips, chunks);
  const int last = task.rows + K - 1;
  Strip<T, K, columns, step, slots> strip(ring, images + task.offset, image, task.left);
#pragma unroll 1
  for (int s = 0; s < slots - 1; ++s) {
    strip.fetch(s, task.top - half + s * step, min(step, last - s * step));
    strip.mend(s, last - s * step);
  }
  for (int i = threadIdx.x; i < K * K; i += 32) filter[(K - 1 - i / K) * K + i % K] = static_cast<float>(weight[i]);
  __syncwarp();
  float taps[fits ? K * K : 1];
  if constexpr (fits) {
#pragma unroll
    for (int i = 0; i < K * K; ++i) taps[i] = filter[i];
  }
  // sums[i]: of the result that has met rows 0 to i of the filter.
  float sums[K - 1][groups][V];
#pragma unroll
  for (int i = 0; i < K - 1; ++i)
#pragma unroll
    for (int g = 0; g < groups; ++g)
#pragma unroll
      for (int v = 0; v < V; ++v) sums[i][g][v] = 0.f;

  const int column = V * static_cast<int>(threadIdx.x);
  T* out = results + task.offset + int64_t{task.top} * image.width + task.left + column;
  int slot = 0, free = slots - 1;
  unsigned phase = 0;
#pragma unroll 1
  for (int r0 = 0; r0 < last; r0 += step) {
    strip.await(slot, phase);
    const int next = r0 + (slots - 1) * step;
    strip.fetch(free, task.top - half + next, min(step, last - next));
#pragma unroll
    for (int s = 0; s < step; ++s) {
      const int r = r0 + s;
      float x[groups][V + 2 * near];
#pragma unroll
      for (int g = 0; g < groups; ++g) read(x[g], &ring.rows[slot][s][32 * V * g + column + (strip.margin - near)]);
      float done[groups][V];
      for_each(std::make_integer_sequence<int, (K + band - 1) / band>{}, [&](auto number) {
        constexpr int highest = K - 1 - decltype(number)::value * band;
        constexpr int lowest = highest - band + 1 > 0 ? highest - band + 1 : 0;
        // Row i of the filter meets row r for the strip's result r - i.
        if (band < K && (r < lowest || r >= task.rows + highest)) return;
        [[maybe_unused]] float4 four{};
        for_each(std::make_integer_sequence<int, highest - lowest + 1>{}, [&](auto down) {
          constexpr int i = highest - decltype(down)::value;
#pragma unroll
          for (int j = 0; j < K; ++j) {
            const int n = (K - 1 - i) * K + j;
            float tap;
            if constexpr (fits) {
              tap = taps[n];
            } else {
              if (n % 4 == 0 || (i == highest && j == 0)) four = reinterpret_cast<const float4*>(filter)[n / 4];
              tap = n % 4 == 0 ? four.x : n % 4 == 1 ? four.y : n % 4 == 2 ? four.z : four.w;
            }
#pragma unroll
            for (int g = 0; g < groups; ++g)
#pragma unroll
              for (int v = 0; v < V; ++v) {
                const float value = x[g][near - half + v + j];
                float& sum = i == K - 1 ? done[g][v] : sums[i < K - 1 ? i : 0][g][v];
                const float before = j > 0 ? sum : sums[i > 0 ? i - 1 : 0][g][v];
                sum = i == 0 && j == 0 ? tap * value : fmaf(tap, value, before);
              }
          }
        });
      });
      if (r >= K - 1 && r < last) {
#pragma unroll
        for (int g = 0; g < groups; ++g) {
          write(out + 32 * V * g, done[g], task.left + 32 * V * g + column, image);
        }
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

// `high` rows of V columns a thread at a time, one patch below the other: `rows` is a multiple of `high`.
template <typename T, int K, int V, int high>
__global__ void __launch_bounds__(32)
    convolve_patches(const T* __restrict__ images, const T* __restrict__ weight, T* __restrict__ results, Image image,
                     int rows, int strips, int chunks) {
  constexpr int half = K / 2;
  constexpr int slots = 4;
  constexpr int columns = 32 * V;
  constexpr int near = up_to(half, 4);
  constexpr int pitch = up_to(K, 4);
  __shared__ Ring<T, K, columns, 1, slots> ring;
  __shared__ __align__(16) float filter[K * pitch];

  const Task task(image, columns, rows, strips, chunks);
  Strip<T, K, columns, 1, slots> strip(ring, images + task.offset, image, task.left);
  // The rows of all patches, one after another: each needs K - 1 more than it has.
  int patch = 0, row = 0;
  auto tall = [&](int of) { return min(high, task.rows - of * high); };
  auto fetch = [&](int s) {
    const bool more = patch * high < task.rows;
    strip.fetch(s, task.top + patch * high - half + row, more);
    if (more && ++row == tall(patch) + K - 1) {
      ++patch;
      row = 0;
    }
    return more;
  };
#pragma unroll 1
  for (int s = 0; s < slots - 1; ++s) strip.mend(s, fetch(s));
  for (int i = threadIdx.x; i < K * K; i += 32) filter[i / K * pitch + i % K] = static_cast<float>(weight[i]);
  __syncwarp();

  const int column = V * static_cast<int>(threadIdx.x);
  T* out = results + task.offset + int64_t{task.top} * image.width + task.left + column;
  int slot = 0, free = slots - 1;
  unsigned phase = 0;
#pragma unroll 1
  for (int p = 0; p * high < task.rows; ++p) {
    float sums[high][V];
#pragma unroll
    for (int h = 0; h < high; ++h)
#pragma unroll
      for (int v = 0; v < V; ++v) sums[h][v] = 0.f;
#pragma unroll 1
    for (int r = 0; r < tall(p) + K - 1; ++r) {
      strip.await(slot, phase);
      const bool more = fetch(free);
      float x[V + 2 * near];
      read(x, &ring.rows[slot][0][column + (strip.margin - near)]);
#pragma unroll
      for (int h = 0; h < high; ++h) {
        if (r < h || r >= h + K) continue;
        const auto* taps_of_row = reinterpret_cast<const float4*>(filter + (r - h) * pitch);
#pragma unroll
        for (int j = 0; j < K; j += 4) {
          const float4 four = taps_of_row[j / 4];
          const float taps[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int q = 0; q < 4 && j + q < K; ++q)
#pragma unroll
            for (int v = 0; v < V; ++v) sums[h][v] = fmaf(taps[q], x[near - half + v + j + q], sums[h][v]);
        }
      }
      strip.mend(free, more);
      free = slot;
      if (++slot == slots) {
        slot = 0;
        phase ^= 1;
      }
    }
#pragma unroll
    for (int h = 0; h < high; ++h) {
      if (h < tall(p)) write(out + int64_t{h} * image.width, sums[h], task.left + column, image);
    }
    out += int64_t{high} * image.width;
  }
}

template <typename T, int K>
void launch_size(const Call<T>& call) {
  static std::atomic<int> resident{0};
  constexpr int any = 1 << 30;
  // Where memory bounds it, short strips: all warps together then sweep over memory once, from one end to the other.
  if constexpr (K == 3) {
    launch_strips(call, convolve_down<T, K, 4, 2, 2, K, true, 24>, {256, 4, 8, 2}, resident);
  } else if constexpr (K == 5 && sizeof(T) == 4) {
    launch_strips(call, convolve_down<T, K, 4, 1, 2, K, true, 24>, {128, 8, 12, 2}, resident);
  } else if constexpr (K == 5) {
    launch_strips(call, convolve_down<T, K, 4, 2, 2, K, true, 20>, {256, 4, any, 2}, resident);
  } else if constexpr (K == 7) {
    launch_strips(call, convolve_down<T, K, 4, 2, 2, 4, false, 16>, {256, 8, any, 2}, resident);
  } else if constexpr (K == 9) {
    launch_strips(call, convolve_down<T, K, 8, 1, 2, 3, false, 16>, {256, 4, any, 2}, resident);
  } else if constexpr (K <= 15) {
    launch_strips(call, convolve_down<T, K, 8, 1, 1, K == 15 ? 2 : 4, false, 12>, {256, 4, any, 1}, resident);
  } else {
    launch_strips(call, convolve_patches<T, K, 8, 4>, {256, 4, any, 4}, resident);
  }
}

template <typename T>
void launch_any_size(const Call<T>& call) {
  switch (call.size) {
    case 3: return launch_size<T, 3>(call);
    case 5: return launch_size<T, 5>(call);
    case 7: return launch_size<T, 7>(call);
    case 9: return launch_size<T, 9>(call);
    case 11: return launch_size<T, 11>(call);
    case 13: return launch_size<T, 13>(call);
    case 15: return launch_size<T, 15>(call);
    case 17: return launch_size<T, 17>(call);
    case 19: return launch_size<T, 19>(call);
    case 21: return launch_size<T, 21>(call);
    case 23: return launch_size<T, 23>(call);
    case 25: return launch_size<T, 25>(call);
    case 27: return launch_size<T, 27>(call);
    case 29: return launch_size<T, 29>(call);
    case 31: return launch_size<T, 31>(call);
    default: STD_TORCH_CHECK(false, "conv2d: no kernel 'register' for a filter of ", call.size);
  }
}

}  // namespace cuda_ext::conv2d
