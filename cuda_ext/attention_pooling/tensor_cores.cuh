// Matrix products of one warp: the instructions, and how float is carried on bfloat16 units.
#pragma once

#include "../common/launch.cuh"

namespace cuda_ext {

// What the matrix units take for a value of T. A float is multiplied by a power of two, one for all that enter a product
// together, that brings the largest of them to 2^13, and travels as two halves, value = high + low: exact to 2^-22 of the
// value, or 2^-38 of the largest. A product is high*high + high*low + low*high, at half the instructions of TF32 in three
// parts. (Two bfloat16 need no scale, but leave an error of 5e-6 in the results and 1.2e-5 in the bias's gradient.)
template <typename T>
struct Units {
  using Element = T;
  static constexpr int planes = 1;
};
template <>
struct Units<float> {
  using Element = __half;
  static constexpr int planes = 2;
};

__device__ inline unsigned bits(__nv_bfloat162 x) { return *reinterpret_cast<unsigned*>(&x); }
__device__ inline unsigned bits(__half2 x) { return *reinterpret_cast<unsigned*>(&x); }

template <typename E>
__device__ unsigned pack(float2 x) {
  if constexpr (std::is_same_v<E, __half>) {
    return bits(__float22half2_rn(x));
  } else {
    return bits(__float22bfloat162_rn(x));
  }
}

template <typename E>
__device__ float2 unpack(unsigned x) {
  if constexpr (std::is_same_v<E, __half>) {
    return __half22float2(*reinterpret_cast<__half2*>(&x));
  } else {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
  }
}

// The power of two that brings a positive number to between 2^13 and 2^14, itself between 2^-limit and 2^limit. What is not
// finite stays so.
template <int limit>
__device__ float scale_for(float largest) {
  const int exponent = 13 + 127 - static_cast<int>(__float_as_uint(largest) >> 23 & 255);
  return __uint_as_float(static_cast<unsigned>(127 + (exponent > limit ? limit : exponent < -limit ? -limit : exponent))
                         << 23);
}

// 1 / scale of a power of two.
__device__ inline float inverse_of(float scale) { return __uint_as_float((254u << 23) - __float_as_uint(scale)); }

// planes[0] is the value rounded to an element of the units, planes[1], for float, what that leaves.
template <typename T>
__device__ void split(float2 x, unsigned (&planes)[Units<T>::planes]) {
  using E = typename Units<T>::Element;
  planes[0] = pack<E>(x);
  if constexpr (Units<T>::planes == 2) {
    const float2 high = unpack<E>(planes[0]);
    planes[1] = pack<E>(make_float2(x.x - high.x, x.y - high.y));
  }
}

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ inline void load_matrices(unsigned (&m)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

__device__ inline void load_matrices_transposed(unsigned (&m)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// An 8 x 8 matrix of halves, two of a row a thread, transposed within the warp.
__device__ inline unsigned transposed(unsigned x) {
  unsigned y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// d [16, 8] = a [16, 16] b [16, 8] + c
template <typename E>
__device__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const float (&c)[4]) {
  if constexpr (std::is_same_v<E, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  }
}

// c [16, 8] += a [16, 16] b [16, 8], or = if `fresh`, which spares the zeros.
template <typename E, bool fresh = false>
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const float d[4] = {fresh ? 0.0f : c[0], fresh ? 0.0f : c[1], fresh ? 0.0f : c[2], fresh ? 0.0f : c[3]};
  multiply<E>(c, a, b0, b1, d);
}

// c [16, 8] += a [16, 8] b [8, 8]
template <typename E>
__device__ void multiply(float (&c)[4], const unsigned (&a)[2], unsigned b) {
  if constexpr (std::is_same_v<E, __half>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
}

}  // namespace cuda_ext
