// What a norm and its activation are made of, on the device, and the second stage of the sums over all rows.
#pragma once

#include "channels.cuh"

namespace cuda_ext::channels {

enum Activation : int { none = 0, relu = 1, swish = 2 };

// What a channel's norm is made of, and the activation; `mean`, `variance`, `weight` and `bias` are a number a channel.
template <typename C>
struct Norm {
  const C *mean, *variance, *weight, *bias;
  const C* beta;  // of swish; null where it is 1
  C epsilon;
  int activation;
};

__device__ inline float inverse_root(float x) { return 1.0f / sqrtf(x); }
__device__ inline double inverse_root(double x) { return 1.0 / sqrt(x); }

// 1 / (1 + 2^(rate x)), rate = -beta log2(e): two instructions of the special function unit. The error is 2 or 3 in the
// last place; tanh.approx, which is one, would leave 11 bits.
constexpr double log2_e = 1.4426950408889634;
__device__ inline float gate_of(float x, float rate) {
  float power, gate;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * rate));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(gate) : "f"(1.0f + power));
  return gate;
}
__device__ inline double gate_of(double x, double rate) { return 1.0 / (1.0 + exp2(x * rate)); }

__device__ inline float larger(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
__device__ inline double larger(double x, double y) { return x < y ? y : x; }

// An activation: its value, and dy times its derivative, with what dy gives to beta.
template <typename C>
struct Floored {  // relu, and none with a floor of minus infinity
  C floor;
  __device__ explicit Floored(const Norm<C>& norm)
      : floor(norm.activation == relu ? C{0} : static_cast<C>(-INFINITY)) {}
  __device__ C value(C z) const { return larger(z, floor); }
  __device__ C through(C dy, C z, C&) const { return z > floor ? dy : C{0}; }
};

template <typename C>
struct Swish {
  C beta, rate;
  __device__ explicit Swish(const Norm<C>& norm)
      : beta(norm.beta == nullptr ? C{1} : *norm.beta), rate(beta * static_cast<C>(-log2_e)) {}
  __device__ C value(C z) const { return z * gate_of(z, rate); }
  __device__ C through(C dy, C z, C& to_beta) const {
    const C gate = gate_of(z, rate), value = z * gate, rest = z - value;
    to_beta += dy * value * rest;
    return dy * (gate + gate * (beta * rest));
  }
};

// Calls `function` with the activation; the loops over rows stand within it, so that none decides again.
template <typename C, typename Function>
__device__ void with_activation(const Norm<C>& norm, Function function) {
  if (norm.activation == swish) function(Swish<C>(norm));
  else function(Floored<C>(norm));
}

// The norms of a thread's channels, in registers.
template <int V, typename C>
struct Lanes {
  C mean[V], scale[V], bias[V];

  __device__ Lanes(const Norm<C>& norm, int channel, int channels) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const bool real = channel + v < channels;
      mean[v] = real ? norm.mean[channel + v] : C{0};
      scale[v] = real ? norm.weight[channel + v] * inverse_root(norm.variance[channel + v] + norm.epsilon) : C{0};
      bias[v] = real ? norm.bias[channel + v] : C{0};
    }
  }
};

template <typename T>
static __global__ void __launch_bounds__(finish_threads)
    finish_statistics(const compute_t<T>* partial, int blocks, const T* x, int64_t rows, int channels,
                      compute_t<T>* mean, compute_t<T>* variance) {
  using C = compute_t<T>;
  cuda_ext::wait_for_the_one_before();
  cuda_ext::let_the_next_start();
  const int channel = blockIdx.x * finish_channels + threadIdx.x;
  const bool real = channel < channels;
  const int64_t stride = int64_t{2} * channels;
  double sums[2];
  total(real ? partial + channel : nullptr, blocks, stride, channels, sums);
  if (real && threadIdx.y == 0) {
    const double shift = sums[0] / static_cast<double>(rows);
    mean[channel] = static_cast<C>(static_cast<double>(static_cast<C>(x[channel])) + shift);
    const double found = sums[1] / static_cast<double>(rows) - shift * shift;
    variance[channel] = static_cast<C>(found < 0 ? 0.0 : found);
  }
}

// The gradients of weight, bias and beta, and what each channel's dx is made of: dx = s dz + slope (x - mean) + offset.
// Without batch statistics slope and offset are zero. With `adds`, both are added to what is there.
// The last block of the grid sums beta's.
template <typename T>
static __global__ void __launch_bounds__(finish_threads)
    finish_gradients(const compute_t<T>* partial, int blocks, const compute_t<T>* partial_beta, int beta_blocks,
                     int64_t rows, int channels, Norm<compute_t<T>> norm, bool training, bool adds,
                     compute_t<T>* weight, compute_t<T>* bias, compute_t<T>* beta, compute_t<T>* slope,
                     compute_t<T>* offset) {
  using C = compute_t<T>;
  cuda_ext::wait_for_the_one_before();
  cuda_ext::let_the_next_start();
  if (partial_beta != nullptr && blockIdx.x == gridDim.x - 1) {
    double sum[1];
    total(threadIdx.x == 0 ? partial_beta : nullptr, beta_blocks, 1, 0, sum);
    if (threadIdx.x == 0 && threadIdx.y == 0) *beta = static_cast<C>(sum[0]);
    return;
  }
  const int channel = blockIdx.x * finish_channels + threadIdx.x;
  const bool real = channel < channels;
  const int64_t stride = int64_t{2} * channels;
  double sums[2];
  total(real ? partial + channel : nullptr, blocks, stride, channels, sums);
  if (!real || threadIdx.y != 0) return;
  const double plain = sums[0], centred = sums[1];
  const double inverse = 1.0 / sqrt(static_cast<double>(norm.variance[channel]) + static_cast<double>(norm.epsilon));
  weight[channel] = static_cast<C>(centred * inverse);
  bias[channel] = static_cast<C>(plain);
  if (slope == nullptr) return;
  const double share = training ? -static_cast<double>(norm.weight[channel]) * inverse / static_cast<double>(rows) : 0;
  const double to_slope = share * inverse * inverse * centred, to_offset = share * plain;
  slope[channel] = static_cast<C>(to_slope + (adds ? static_cast<double>(slope[channel]) : 0.0));
  offset[channel] = static_cast<C>(to_offset + (adds ? static_cast<double>(offset[channel]) : 0.0));
}

inline dim3 finish_grid(int64_t channels, bool with_beta = false) {
  return dim3(static_cast<unsigned>((channels + finish_channels - 1) / finish_channels + with_beta));
}

inline const dim3 finish_block(finish_channels, finish_parts);

template <typename C>
Norm<C> norm_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& variance,
                const std::optional<Tensor>& beta, int64_t activation, double epsilon) {
  STD_TORCH_CHECK(activation >= none && activation <= swish, "batch_norm_activation: activation must be 0, 1 or 2");
  const int64_t channels = x.size(1);
  return {vector<C>(x, mean, channels, "mean"),
          vector<C>(x, variance, channels, "variance"),
          vector<C>(x, weight, channels, "weight"),
          vector<C>(x, bias, channels, "bias"),
          beta.has_value() ? vector<C>(x, *beta, 1, "beta") : nullptr,
          static_cast<C>(epsilon),
          static_cast<int>(activation)};
}

}  // namespace cuda_ext::channels
