// The matrix units: fragments from shared memory, and products of 16 x 8 numbers over 16 or 8.
//
// Who holds what of c [16, 8] += a [16, 16] b [16, 8], lane = 4 g + q of a warp:
//
//   a, 2-byte numbers         k: 2q 2q+1   2q+8 2q+9      b         n: g            c          n: 2q    2q+1
//     row g                      a[0]        a[2]           k: 2q 2q+1    b0          row g        c[0]    c[1]
//     row g + 8                  a[1]        a[3]           k: 2q+8 2q+9  b1          row g + 8    c[2]    c[3]
//
// A register holds two neighbours along k. ldmatrix brings four 8 x 8 matrices so: lane i names the row of 16 bytes that
// is row i % 8 of matrix i / 8, and gets columns 2q and 2q + 1 of row g of each; transposed, columns for rows.
#pragma once

#include "copies.cuh"
#include "halves.cuh"

namespace cuda_ext {

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

__device__ inline void load_matrices(unsigned (&m)[4], const void* row) { load_matrices(m, shared_address(row)); }

__device__ inline void load_matrices_transposed(unsigned (&m)[4], const void* row) {
  load_matrices_transposed(m, shared_address(row));
}

// An 8 x 8 matrix of halves, two of a row a thread, transposed within the warp.
__device__ inline unsigned transposed(unsigned x) {
  unsigned y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// d [16, 8] = a [16, 16] b [16, 8] + c
template <typename E>
__device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const float (&c)[4]) {
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
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const float d[4] = {fresh ? 0.0f : c[0], fresh ? 0.0f : c[1], fresh ? 0.0f : c[2], fresh ? 0.0f : c[3]};
  multiply<E>(c, a, b0, b1, d);
}

// c [16, 8] += a [16, 8] b [8, 8]
template <typename E>
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[2], unsigned b) {
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

// A lane's register of a banded matrix as the operand b: b[k, n] = tap(first + k - n), 0 outside taps 0 to size - 1.
template <typename E, typename Tap>
__device__ inline unsigned band(int lane, int first, int size, Tap tap) {
  E pair[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int j = first + lane % 4 * 2 + e - lane / 4;
    pair[e] = j >= 0 && j < size ? tap(j) : static_cast<E>(0.f);
  }
  return pair_of(pair[0], pair[1]);
}

}  // namespace cuda_ext
