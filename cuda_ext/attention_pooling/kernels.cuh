// The kernels on the matrix units, for states of float, half and bfloat16; one .cu file each instantiates them.
#pragma once

#include "backward_float.cuh"
#include "backward_half.cuh"
#include "backward_small_batch.cuh"
#include "forward.cuh"

#include <algorithm>

namespace cuda_ext::attention {

// The smallest kernel that takes this width.
template <typename F>
void with_eighths(int width, F&& f) {
  if (width <= 64) {
    f(std::integral_constant<int, 8>{});
  } else if (width <= 104) {
    f(std::integral_constant<int, 13>{});
  } else {
    f(std::integral_constant<int, 16>{});
  }
}

template <typename T, int eighths>
using BackwardShared = std::conditional_t<std::is_same_v<T, float>, FloatShared<eighths>, HalfShared<T, eighths>>;

// Bytes of shared memory of a block that a GPU must have: SHARED_MEMORY in library.py holds the same numbers.
template <typename T, int eighths>
constexpr std::size_t needed_shared_memory = sizeof(BackwardShared<T, eighths>);
static_assert(needed_shared_memory<__half, 8> == 41984);
static_assert(needed_shared_memory<__half, 13> == 85824);
static_assert(needed_shared_memory<__half, 16> == 99840);
static_assert(needed_shared_memory<float, 8> == 93008);
static_assert(needed_shared_memory<float, 13> == 161168);
static_assert(needed_shared_memory<float, 16> == 210256);

template <typename T>
void launch_forward(const Forward& call, int processors, cudaStream_t stream) {
  const int64_t sequences = call.rows.sequences;
  with_eighths(std::max(call.parameters.width, call.parameters.units), [&](auto eighths) {
    constexpr int e = decltype(eighths)::value;
    if (!call.rows.ragged && call.rows.steps <= few_steps && sequences <= 2 * processors) {
      launch(call.packs ? forward_few_kernel<T, e, true> : forward_few_kernel<T, e, false>, sequences, few_threads, 0,
             stream, call);
      return;
    }
    const int64_t blocks = std::min<int64_t>(sequences, processors);
    launch(call.packs ? forward_kernel<T, e, true> : forward_kernel<T, e, false>, blocks, forward_threads<T>,
           sizeof(ForwardShared<T, e>), stream, call);
  });
}

template <typename T>
void launch_backward(const Backward& call, cudaStream_t stream) {
  with_eighths(std::max(call.parameters.width, call.parameters.units), [&](auto eighths) {
    constexpr int e = decltype(eighths)::value;
    const bool plain = call.packs && !call.weights_gradient;
    if (call.blocks == 0) {
      const int ranks = cuda_ext::has_hopper_code() ? few_ranks : 1;
      const int64_t pieces = (call.rows.total + unit_rows - 1) / unit_rows;
      const int64_t clusters = Strip<T, e>::count + (pieces + ranks - 1) / ranks;
      const dim3 grid(static_cast<unsigned>(clusters * ranks));
      cuda_ext::launch(plain ? backward_few_kernel<T, e, true> : backward_few_kernel<T, e, false>,
                       {grid, few_threads, sizeof(BackwardFewShared<T, e>), stream, true, ranks}, call, ranks);
      return;
    }
    constexpr std::size_t bytes = needed_shared_memory<T, e>;
    if constexpr (std::is_same_v<T, float>) {
      launch(plain ? backward_float_kernel<e, true> : backward_float_kernel<e, false>, call.blocks, backward_threads,
             bytes, stream, call);
    } else {
      launch(backward_half_kernel<T, e>, call.blocks, backward_threads, bytes, stream, call);
    }
  });
}

}  // namespace cuda_ext::attention
