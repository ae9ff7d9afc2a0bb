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
// Tokens of a thread.
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
  const bool begins = i == 0 || numbers[i - 1] != number, ends = i + 1 == count || numbers[i + 1] != number;
  if (begins && ends) ranges[number] = make_int2(i, i + 1);
  else if (begins) ranges[number].x = i;
  else if (ends) ranges[number].y = i + 1;
}

// What a block has of a pass. numbers, before: of a thread's token in each round, and how many of its warp's tokens in front
// of it have its digit. counts: of a warp's tokens with a digit, then of those of the warps in front of it.
struct Work {
  unsigned numbers[most_each][sort_threads];
  uint16_t before[most_each][sort_threads];
  uint16_t counts[sort_warps][digits];
  int totals[digits], begins[digits];
  typename cub::BlockScan<int, sort_threads>::TempStorage scan;
};

// `passes` digits from the lowest on; the last pass writes `sorted`, those before it that and `spare` in turn. The loops are
// kept short: a kernel that runs once waits for its instructions too.
template <typename Index>
__global__ void __launch_bounds__(sort_threads, 1)
    sort_few(const Index* __restrict__ tokens, int count, int64_t rows, int passes, Pairs spare, Pairs sorted,
             int2* ranges) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char room[];
  Work& work = *reinterpret_cast<Work*>(room);
  const auto blocks = cooperative_groups::this_cluster();
  const int block = static_cast<int>(blocks.block_rank()), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  for (int64_t row = block * sort_threads + thread; row < rows; row += cluster * sort_threads) ranges[row] = int2{};

  const int each = (count + cluster * sort_threads - 1) / (cluster * sort_threads);
  const int first = (block * sort_warps + warp) * each * 32 + lane;
  for (int pass = 0; pass < passes; ++pass) {
    const bool even = (passes - 1 - pass) % 2 == 0;
    const Pairs from = even ? spare : sorted, to = even ? sorted : spare;
    const auto digit_of = [&](int j) {
      return static_cast<int>(work.numbers[j][thread] >> pass * digit_bits) & (digits - 1);
    };
    const int own = min(each, (count - first + 31) / 32);  // rounds in which the thread has a token
#pragma unroll 4
    for (int j = 0; j < own; ++j) {
      const int i = first + 32 * j;
      work.numbers[j][thread] = pass == 0 ? number_of(tokens[i], rows) : from.numbers[i];
    }
    for (int digit = lane; digit < digits; digit += 32) work.counts[warp][digit] = 0;
    __syncwarp();
#pragma unroll 1
    for (int j = 0; j < each; ++j) {
      const int digit = j < own ? digit_of(j) : -1;
      const unsigned alike = __match_any_sync(0xffffffff, digit);
      const int in_front = __popc(alike & ((1u << lane) - 1));
      const int before = j < own ? work.counts[warp][digit] + in_front : 0;
      work.before[j][thread] = static_cast<uint16_t>(before);
      __syncwarp();
      if (j < own && in_front == 0) work.counts[warp][digit] = static_cast<uint16_t>(before + __popc(alike));
      __syncwarp();
    }
    __syncthreads();
    // Four threads have a digit, each a quarter of the warps, and then of the blocks.
    const int digit = thread / 4, quarter = thread % 4;
    const auto in_quarters_before = [&](int sum) {
      int up_to = sum;
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffff, up_to, distance, 4);
        if (quarter >= distance) up_to += other;
      }
      return up_to - sum;
    };
    constexpr int share = sort_warps / 4;
    int sum = 0;
#pragma unroll
    for (int w = 0; w < share; ++w) sum += work.counts[quarter * share + w][digit];
    int running = in_quarters_before(sum);
    if (quarter == 3) work.totals[digit] = running + sum;
#pragma unroll
    for (int w = 0; w < share; ++w) {
      uint16_t& of_warp = work.counts[quarter * share + w][digit];
      const int here = of_warp;
      of_warp = static_cast<uint16_t>(running);
      running += here;
    }
    blocks.sync();
    int in_front = 0, of_all = 0;
#pragma unroll
    for (int b = quarter; b < cluster; b += 4) {
      const int total = *blocks.map_shared_rank(&work.totals[digit], b);
      if (b < block) in_front += total;
      of_all += total;
    }
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      in_front += __shfl_xor_sync(0xffffffff, in_front, distance);
      of_all += __shfl_xor_sync(0xffffffff, of_all, distance);
    }
    int begin;
    cub::BlockScan<int, sort_threads>(work.scan).ExclusiveSum(quarter == 0 ? of_all : 0, begin);
    if (quarter == 0) work.begins[digit] = begin + in_front;
    __syncthreads();
#pragma unroll 2
    for (int j = 0; j < own; ++j) {
      const int i = first + 32 * j, of = digit_of(j);
      const int place = work.begins[of] + work.counts[warp][of] + work.before[j][thread];
      to.numbers[place] = work.numbers[j][thread];
      to.places[place] = pass == 0 ? i : from.places[i];
    }
    blocks.sync();
  }
#pragma unroll 1
  for (int i = block * sort_threads + thread; i < count; i += cluster * sort_threads) {
    mark_range(sorted.numbers, i, count, ranges);
  }
#endif
}

}  // namespace cuda_ext::embedding
