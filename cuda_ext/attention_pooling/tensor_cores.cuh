// Matrix products of one warp: the instructions, and how float is carried on bfloat16 units.
#pragma once

#include "../launch.cuh"

namespace cuda_ext {

// What the matrix units take for a value of T. A float travels as two bfloat16, value = high + low to 2^-17 of it, and a
// product as high*high + high*low + low*high: as exact to a few 2^-18, at half the instructions of TF32 in three parts.
template <typename T>
struct Units {
  using Element = T;
  static constexpr int planes = 1;
};
template <>
struct Units<float> {
  using Element = __nv_bfloat16;
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

// c [16, 8] += a [16, 16] b [16, 8]
template <typename E>
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<E, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
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
