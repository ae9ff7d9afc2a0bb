// The kernels on the matrix units, for states of float, half and bfloat16; one .cu file each instantiates them.
#pragma once

#include "forward.cuh"
#include "small_batch.cuh"

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

// As many threads as there is use for, and, of dtypes and widths for which a GPU may have too little shared memory for
// so many, 256.
template <typename T, int eighths>
constexpr int least_backward_threads =
    sizeof(BackwardShared<T, eighths, backward_threads<T, eighths>>) <= 99 * 1024 ? backward_threads<T, eighths> : 256;

// Bytes of shared memory of a block that a GPU must have: SHARED_MEMORY in library.py holds the same numbers.
template <typename T, int eighths>
constexpr std::size_t needed_shared_memory = sizeof(BackwardShared<T, eighths, least_backward_threads<T, eighths>>);
static_assert(needed_shared_memory<__half, 8> == 87984);
static_assert(needed_shared_memory<__half, 13> == 79408);
static_assert(needed_shared_memory<__half, 16> == 109936);
static_assert(needed_shared_memory<float, 8> == 95088);
static_assert(needed_shared_memory<float, 13> == 154288);
static_assert(needed_shared_memory<float, 16> == 214384);

template <typename T>
void launch_forward(const Forward& call, int processors, cudaStream_t stream) {
  const int64_t sequences = call.rows.sequences;
  with_eighths(std::max(call.parameters.width, call.parameters.units), [&](auto eighths) {
    constexpr int e = decltype(eighths)::value;
    if (!call.rows.ragged && call.rows.steps <= few_steps && sequences <= 2 * processors) {
      launch(forward_few_kernel<T, e>, sequences, few_threads, 0, stream, call);
      return;
    }
    const int64_t blocks = std::min<int64_t>(sequences, processors);
    launch(forward_kernel<T, e>, blocks, forward_threads<T>, sizeof(ForwardShared<T, e>), stream, call);
  });
}

template <typename T>
void launch_backward(const Backward& call, cudaStream_t stream) {
  with_eighths(std::max(call.parameters.width, call.parameters.units), [&](auto eighths) {
    constexpr int e = decltype(eighths)::value;
    // A block for 16 rows: few enough of them to share the rows of each among its warps.
    if (call.blocks == (call.rows.total + unit_rows - 1) / unit_rows) {
      launch(backward_few_kernel<T, e>, call.blocks, few_threads, sizeof(BackwardFewShared<T, e>), stream, call);
      return;
    }
    constexpr int most = backward_threads<T, e>, least = least_backward_threads<T, e>;
    constexpr std::size_t bytes = sizeof(BackwardShared<T, e, most>);
    if constexpr (least < most) {
      if (bytes > static_cast<std::size_t>(cuda_ext::shared_memory_of_a_block())) {
        launch(backward_kernel<T, e, least>, call.blocks, least, needed_shared_memory<T, e>, stream, call);
        return;
      }
    }
    launch(backward_kernel<T, e, most>, call.blocks, most, bytes, stream, call);
  });
}

}  // namespace cuda_ext::attention
