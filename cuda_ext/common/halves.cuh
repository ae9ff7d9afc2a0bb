// Numbers of half precision in pairs, and float32 as two of them.
#pragma once

#include "launch.cuh"

namespace cuda_ext {

template <typename E>
__device__ inline unsigned pack(float low, float high) {
  if constexpr (std::is_same_v<E, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
}

template <typename E>
__device__ inline unsigned pack(float2 x) {
  return pack<E>(x.x, x.y);
}

// Two numbers of half precision as they are.
template <typename E>
__device__ inline unsigned pair_of(E low, E high) {
  return *reinterpret_cast<const unsigned short*>(&low) |
         static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(&high)) << 16;
}

template <typename E>
__device__ inline float2 unpack(unsigned pair) {
  if constexpr (std::is_same_v<E, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}

// float32 is multiplied on units of half precision as two numbers each, value = high + low, in three products: high by
// high, high by low and low by high. In float16 those that enter a product together are scaled by one power of two, which
// brings the largest to between 2^13 and 2^14: each is then right to 2^-22 of itself or 2^-38 of the largest. In bfloat16
// they need no scale, and are right to 2^-16.

// That power of two, itself between 2^-limit and 2^limit, so that no product of so many scales, or of their inverses,
// overflows. What is not finite stays so.
template <int limit>
__device__ inline float scale_for(float largest) {
  const int exponent = 13 + 127 - static_cast<int>(__float_as_uint(largest) >> 23 & 255);
  const int within = exponent > limit ? limit : exponent < -limit ? -limit : exponent;
  return __uint_as_float(static_cast<unsigned>(127 + within) << 23);
}

// 1 / scale of a power of two.
__device__ inline float inverse_of(float scale) { return __uint_as_float((254u << 23) - __float_as_uint(scale)); }

// Two numbers' high and low parts. (The high ones are taken back out of their pair: to convert one number alone is an
// instruction of a quarter of the rate.)
template <typename E>
__device__ inline void split_pair(float2 x, unsigned& high, unsigned& low) {
  high = pack<E>(x);
  const float2 taken = unpack<E>(high);
  low = pack<E>(x.x - taken.x, x.y - taken.y);
}

}  // namespace cuda_ext
