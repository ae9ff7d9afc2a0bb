// The arguments of the kernels, and what launches them.
#pragma once

#include "../common/launch.cuh"

namespace cuda_ext::attention {

// The widest states and projection that the kernels take.
constexpr int64_t widest = 128;
// The matrix units take so many rows at a time.
constexpr int unit_rows = 16;
// The index of real steps begins with where its rows begin and end.
constexpr int64_t index_head = 2;

// Rows of states are numbered 0 to `total`: over [N, T] if padded, as they stand if ragged.
struct Rows {
  const void* bounds;  // Lengths [N], or offsets [N + 1] if ragged.
  bool wide;           // int64, not int32.
  bool ragged;
  int64_t sequences;  // N
  int64_t steps;      // T; 0 if ragged.
  int64_t total;

  __device__ int64_t bound(int64_t i) const {
    return wide ? static_cast<const int64_t*>(bounds)[i] : static_cast<const int32_t*>(bounds)[i];
  }
  __device__ static int64_t within(int64_t value, int64_t most) { return value < 0 ? 0 : value > most ? most : value; }
  __device__ int64_t first(int64_t n) const { return ragged ? within(bound(n), total) : n * steps; }
  // What is outside of the tensor is no step of any sequence, whatever the bounds say.
  __device__ int64_t length(int64_t n) const {
    if (!ragged) return within(bound(n), steps);
    return within(within(bound(n + 1), total) - first(n), total);
  }
};

struct Parameters {
  const void* weight;
  const void* bias;
  const void* context;
  bool single;  // float beside states of half precision; else the states' dtype.
  int width;    // D
  int units;    // A

  // Numbers that all have together, and between the beginnings of two blocks' parts of their gradients, which are read four
  // at a time.
  __host__ __device__ int64_t count() const { return int64_t{units} * (width + 2); }
  __host__ __device__ int64_t part() const { return (count() + 3) / 4 * 4; }
};

struct Forward {
  Rows rows;
  Parameters parameters;
  const void* states;
  void* pooled;
  void* weights;  // float
  int32_t* index;
  bool packs;  // Rows of states and weight begin where four elements can be moved at once.
};

struct Backward {
  Rows rows;
  Parameters parameters;
  const void* states;
  const void* pooled;
  const void* weights;
  const int32_t* index;
  const void* gradient;          // of pooled
  const void* weights_gradient;  // or null
  void* states_gradient;
  void* of_weight;  // The parameters' gradients.
  void* of_bias;
  void* of_context;
  void* partials;  // [blocks, part()], A D + 2 A in each: a part of the parameters' gradients from each block.
  int blocks;      // 0 for few rows, whose kernel needs no parts.
  bool packs;
};

template <typename T>
__device__ void store_parameter(const Parameters& p, void* to, int64_t at, float value) {
  if (p.single) {
    static_cast<float*>(to)[at] = value;
  } else {
    static_cast<T*>(to)[at] = static_cast<T>(value);
  }
}

// A kernel that `launch` starts may be started while the one before it on the stream still runs, if that allows it; it waits
// here, and allows the next one to start. For a small batch a launch takes as long as a kernel.
__device__ inline void after_the_kernel_before() {
  wait_for_the_one_before();
  let_the_next_start();
}

template <typename... Wanted, typename... Given>
void launch(void (*kernel)(Wanted...), int64_t blocks, dim3 threads, size_t bytes, cudaStream_t stream,
            const Given&... arguments) {
  cuda_ext::launch_early(kernel, dim3(static_cast<unsigned>(blocks)), threads, bytes, stream, arguments...);
}

template <typename T>
void launch_forward(const Forward& call, int processors, cudaStream_t stream);
template <typename T>
void launch_backward(const Backward& call, cudaStream_t stream);

}  // namespace cuda_ext::attention
