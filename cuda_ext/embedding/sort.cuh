// The tokens of an embedding sorted by number, equal ones in their order, and where each number begins and ends.
//
// A radix sort of few tokens in one launch: CUB's takes six, and its blocks of thousands of tokens leave most of the GPU
// idle. A cluster of eight blocks shares the tokens out, a run of them to each warp. Each pass counts the digits of each
// run, adds the counts of the runs in front, in the block and by shared memory in the blocks before it, and moves each
// token behind those of lesser digits and those of its own digit in front of it.
#pragma once

#include "../common/launch.cuh"

#include <cooperative_groups.h>
#include <cub/block/block_scan.cuh>

namespace cuda_ext::embedding {

// Numbers and places of the tokens.
struct Pairs {
  unsigned* numbers;
  int* places;
};

constexpr int cluster = 8, sort_threads = 1024, sort_warps = sort_threads / 32;
// Tokens of a thread, whose numbers it has in registers.
constexpr int most_each = 8;
constexpr int few_tokens = cluster * sort_threads * most_each;
constexpr int digit_bits = 8, digits = 1 << digit_bits;

// A token outside of the table stops the program, as PyTorch's own does.
template <typename Index>
__device__ unsigned number_of(Index token, int64_t rows) {
  if (token < 0 || token >= rows) __trap();
  return static_cast<unsigned>(token);
}

// ranges [rows]: of the sorted tokens those of a number, (0, 0) for none; zeros beforehand.
__device__ inline void mark_range(const unsigned* numbers, int i, int count, int2* ranges) {
  const unsigned number = numbers[i];
  if (i == 0 || numbers[i - 1] != number) ranges[number].x = i;
  if (i + 1 == count || numbers[i + 1] != number) ranges[number].y = i + 1;
}

// `passes` digits from the lowest on; the last pass writes `sorted`, those before it that and `spare` in turn.
template <typename Index>
__global__ void __launch_bounds__(sort_threads, 1)
    sort_few(const Index* __restrict__ tokens, int count, int64_t rows, int passes, Pairs spare, Pairs sorted,
             int2* ranges) {
#if __CUDA_ARCH__ >= 900
  __shared__ int counts[sort_warps][digits], totals[digits], begins[digits];
  using Scan = cub::BlockScan<int, sort_threads>;
  __shared__ typename Scan::TempStorage room;
  const auto blocks = cooperative_groups::this_cluster();
  const int block = static_cast<int>(blocks.block_rank()), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  for (int64_t row = block * sort_threads + thread; row < rows; row += cluster * sort_threads) ranges[row] = int2{};

  const int each = (count + cluster * sort_threads - 1) / (cluster * sort_threads);
  const int first = (block * sort_warps + warp) * each * 32 + lane;
  unsigned numbers[most_each];
  int before[most_each];
  for (int pass = 0; pass < passes; ++pass) {
    const bool even = (passes - 1 - pass) % 2 == 0;
    const Pairs from = even ? spare : sorted, to = even ? sorted : spare;
    const auto digit_of = [&](int j) { return static_cast<int>(numbers[j] >> pass * digit_bits) & (digits - 1); };
    const auto is = [&](int j) { return j < each && first + 32 * j < count; };
#pragma unroll
    for (int j = 0; j < most_each; ++j) {
      if (!is(j)) continue;
      const int i = first + 32 * j;
      numbers[j] = pass == 0 ? number_of(tokens[i], rows) : from.numbers[i];
    }
    for (int digit = lane; digit < digits; digit += 32) counts[warp][digit] = 0;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < most_each; ++j) {
      if (j >= each) break;
      const int digit = is(j) ? digit_of(j) : -1;
      const unsigned alike = __match_any_sync(0xffffffff, digit);
      const int in_front = __popc(alike & ((1u << lane) - 1));
      before[j] = is(j) ? counts[warp][digit] + in_front : 0;
      __syncwarp();
      if (is(j) && in_front == 0) counts[warp][digit] = before[j] + __popc(alike);
      __syncwarp();
    }
    __syncthreads();
    if (thread < digits) {
      int sum = 0;
      for (int w = 0; w < sort_warps; ++w) {
        const int of_warp = counts[w][thread];
        counts[w][thread] = sum;
        sum += of_warp;
      }
      totals[thread] = sum;
    }
    blocks.sync();
    int of_blocks_before = 0, of_all = 0;
    for (int b = 0; thread < digits && b < cluster; ++b) {
      const int total = *blocks.map_shared_rank(&totals[thread], b);
      if (b < block) of_blocks_before += total;
      of_all += total;
    }
    int begin;
    Scan(room).ExclusiveSum(of_all, begin);
    if (thread < digits) begins[thread] = begin + of_blocks_before;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < most_each; ++j) {
      if (!is(j)) continue;
      const int digit = digit_of(j), place = begins[digit] + counts[warp][digit] + before[j];
      to.numbers[place] = numbers[j];
      const int i = first + 32 * j;
      to.places[place] = pass == 0 ? i : from.places[i];
    }
    blocks.sync();
  }
  for (int i = block * sort_threads + thread; i < count; i += cluster * sort_threads) {
    mark_range(sorted.numbers, i, count, ranges);
  }
#endif
}

}  // namespace cuda_ext::embedding
