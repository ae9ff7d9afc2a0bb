// One instruction each of the special function unit, right to 2 units of the last place but for the last.
#pragma once

namespace cuda_ext {

// 2^x; what is under 2^-126 becomes 0.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// To 2^-11 of itself, a rounding to half precision.
__device__ inline float coarse_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace cuda_ext
