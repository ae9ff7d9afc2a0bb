// What a norm and its activation are made of, on the device, and the second stage of the sums over all rows.
#pragma once

#include "../common/functions.cuh"
#include "channels.cuh"

namespace cuda_ext::channels {

enum Activation : int { none = 0, relu = 1, swish = 2, gelu = 3 };

// What a channel's norm is made of, and the activation; `mean`, `variance`, `weight` and `bias` are a number a channel.
struct Norm {
  const float *mean, *variance, *weight, *bias;
  const float* beta;  // of swish; null where it is 1
  float epsilon;
  int activation;
};

__device__ inline float inverse_root(float x) { return 1.0f / sqrtf(x); }

// 1 / (1 + 2^(rate x)), rate = -beta log2(e): two instructions of the special function unit. The error is 2 or 3 in the
// last place; tanh.approx, which is one, would leave 11 bits.
constexpr float log2_e = 1.4426950408889634f;
__device__ inline float gate_of(float x, float rate) {
  return cuda_ext::reciprocal(1.0f + cuda_ext::power_of_two(x * rate));
}

__device__ inline float larger(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

// An activation: its value, and dy times its derivative, with what dy gives to beta.
struct Floored {  // relu, and none: its floor is minus infinity, and no number is at most NaN
  float floor, closed;
  __device__ explicit Floored(const Norm& norm)
      : floor(norm.activation == relu ? 0.0f : -INFINITY), closed(norm.activation == relu ? 0.0f : NAN) {}
  __device__ float value(float z) const { return larger(z, floor); }
  // As in PyTorch, the gradient passes a NaN.
  __device__ float through(float dy, float z, float&) const { return z <= closed ? 0.0f : dy; }
};

struct Swish {
  float beta, rate;
  __device__ explicit Swish(const Norm& norm)
      : beta(norm.beta == nullptr ? 1.0f : *norm.beta), rate(beta * -log2_e) {}
  __device__ float value(float z) const { return z * gate_of(z, rate); }
  __device__ float through(float dy, float z, float& to_beta) const {
    const float gate = gate_of(z, rate), value = z * gate, rest = z - value;
    to_beta += dy * value * rest;
    return dy * (gate + gate * (beta * rest));
  }
};

// z times the normal distribution function of z. Its tail beyond |z| is a polynomial of t = 1 / (1 + p |z|) times e^(-z^2 / 2)
// (Abramowitz and Stegun 1964, 7.1.26), right to 3e-7. The density needs the same exponential.
struct Gelu {
  __device__ explicit Gelu(const Norm&) {}
  // The distribution function, and the density but for its factor.
  __device__ static float2 distribution(float z) {
    constexpr float p = 0.3275911f * 0.70710678f;
    const float bell = cuda_ext::power_of_two(z * z * (-0.5f * log2_e));
    const float t = cuda_ext::reciprocal(fmaf(p, fabsf(z), 1.0f));
    float tail = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
    tail = fmaf(t, tail, 0.5f * 1.421413741f);
    tail = fmaf(t, tail, 0.5f * -0.284496736f);
    tail = fmaf(t, tail, 0.5f * 0.254829592f) * t * bell;
    return {z > 0 ? 1.0f - tail : tail, bell};
  }
  __device__ float value(float z) const { return z * distribution(z).x; }
  __device__ float through(float dy, float z, float&) const {
    constexpr float density = 0.39894228f;  // 1 / sqrt(2 pi)
    const float2 found = distribution(z);
    return dy * fmaf(z * density, found.y, found.x);
  }
};

// Calls `function` with the activation; the loops over rows stand within it, so that none decides again.
template <typename Function>
__device__ void with_activation(const Norm& norm, Function function) {
  if (norm.activation == swish) function(Swish(norm));
  else if (norm.activation == gelu) function(Gelu(norm));
  else function(Floored(norm));
}

// The norms of a thread's channels, in registers.
template <int V>
struct Lanes {
  float mean[V], scale[V], bias[V];

  __device__ Lanes(const Norm& norm, int channel, int channels) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const bool real = channel + v < channels;
      mean[v] = real ? norm.mean[channel + v] : 0.0f;
      scale[v] = real ? norm.weight[channel + v] * inverse_root(norm.variance[channel + v] + norm.epsilon) : 0.0f;
      bias[v] = real ? norm.bias[channel + v] : 0.0f;
    }
  }
};

template <typename T>
static __global__ void __launch_bounds__(finish_threads)
    finish_statistics(const float* partial, int blocks, const T* x, int64_t stride_of_x, int64_t rows,
                      int channels, float* mean, float* variance) {
  cuda_ext::wait_for_the_one_before();
  cuda_ext::let_the_next_start();
  const int channel = blockIdx.x * finish_channels + threadIdx.x;
  const bool real = channel < channels;
  const int64_t stride = int64_t{2} * channels;
  double sums[2];
  total(real ? partial + channel : nullptr, blocks, stride, channels, sums);
  if (real && threadIdx.y == 0) {
    float from[1];
    beginnings<T, 1>(x + channel, stride_of_x, rows, from);
    const double shift = sums[0] / static_cast<double>(rows);
    mean[channel] = static_cast<float>(static_cast<double>(from[0]) + shift);
    const double found = sums[1] / static_cast<double>(rows) - shift * shift;
    variance[channel] = static_cast<float>(found < 0 ? 0.0 : found);
  }
}

// The gradients of weight, bias and beta, and what each channel's dx is made of: dx = s dz + slope (x - mean) + offset.
// Without batch statistics slope and offset are zero. With `adds`, both are added to what is there.
// The last block of the grid sums beta's.
static __global__ void __launch_bounds__(finish_threads)
    finish_gradients(const float* partial, int blocks, const float* partial_beta, int beta_blocks,
                     int64_t rows, int channels, Norm norm, bool training, bool adds,
                     float* weight, float* bias, float* beta, float* slope,
                     float* offset) {
  cuda_ext::wait_for_the_one_before();
  cuda_ext::let_the_next_start();
  if (partial_beta != nullptr && blockIdx.x == gridDim.x - 1) {
    double sum[1];
    total(threadIdx.x == 0 ? partial_beta : nullptr, beta_blocks, 1, 0, sum);
    if (threadIdx.x == 0 && threadIdx.y == 0) *beta = static_cast<float>(sum[0]);
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
  weight[channel] = static_cast<float>(centred * inverse);
  bias[channel] = static_cast<float>(plain);
  if (slope == nullptr) return;
  const double share = training ? -static_cast<double>(norm.weight[channel]) * inverse / static_cast<double>(rows) : 0;
  const double to_slope = share * inverse * inverse * centred, to_offset = share * plain;
  slope[channel] = static_cast<float>(to_slope + (adds ? static_cast<double>(slope[channel]) : 0.0));
  offset[channel] = static_cast<float>(to_offset + (adds ? static_cast<double>(offset[channel]) : 0.0));
}

inline dim3 finish_grid(int64_t channels, bool with_beta = false) {
  return dim3(static_cast<unsigned>((channels + finish_channels - 1) / finish_channels + with_beta));
}

inline const dim3 finish_block(finish_channels, finish_parts);

inline Norm norm_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& variance,
                const std::optional<Tensor>& beta, int64_t activation, double epsilon) {
  STD_TORCH_CHECK(activation >= none && activation <= gelu, "batch_norm_activation: activation must be 0 to 3");
  const int64_t channels = x.size(1);
  return {vector(x, mean, channels, "mean"),
          vector(x, variance, channels, "variance"),
          vector(x, weight, channels, "weight"),
          vector(x, bias, channels, "bias"),
          beta.has_value() ? vector(x, *beta, 1, "beta") : nullptr,
          static_cast<float>(epsilon),
          static_cast<int>(activation)};
}

}  // namespace cuda_ext::channels
