// The arguments of the kernels, and what launches them.
#pragma once

#include "../launch.cuh"

namespace cuda_ext::attention {

// The widest states and projection that the matrix units' kernels take; wider ones take the plain kernels.
constexpr int64_t widest = 128;
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
};

struct Forward {
  Rows rows;
  Parameters parameters;
  const void* states;
  void* pooled;
  void* weights;  // float, double for double.
  int32_t* index;
  bool packs;  // Rows of states begin where four elements can be moved at once.
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
  void* partials;  // [blocks, A D + 2 A]: the parameters' gradients, a part from each block.
  int blocks;
  bool packs;
};

// Whether the kernels for T take this width on this GPU; if not, the plain ones do.
template <typename T>
bool fits(int64_t width, int64_t shared_bytes);
template <typename T>
void launch_forward(const Forward& call, int blocks, cudaStream_t stream);
template <typename T>
void launch_backward(const Backward& call, cudaStream_t stream);

}  // namespace cuda_ext::attention
