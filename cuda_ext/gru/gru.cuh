// What the GRU's kernels share: the layout of the gates, the split of a number into operands of the matrix units, and
// one matrix instruction.
//
// Shapes: N sequences, M real steps, d directions, H units, P units padded to a multiple of 8, I inputs.
// Gates lie as [M, d, 4, P]: the candidate n, the reset gate r, the update gate z, and m = W_hn h + b_hn. So the three
// that the input product makes (n, r, z) and the three that the recurrent product makes (r, z, m) lie together.
#pragma once

#include "../launch.cuh"

namespace gru {

constexpr int candidate = 0, reset = 1, update = 2, memory = 3;
// Sequences of a block: the rows of one matrix instruction.
constexpr int tile = 16;

// One sequence, in order of falling length: its place n in the batch, its rows among the M, and its first row among the
// states (the same in a ragged batch, n T in a padded one).
struct alignas(16) Sequence {
  int place, first, length, state;
};

// How a block shares out its work, by dtype and H: k-steps of 16 units in a recurrent product, and columns of 8 units a
// gate in a warp. fp32 keeps two fragments of each weight, so that beyond 64 units a warp has room for one column.
struct Division {
  int k_steps, columns, warps;
};

template <typename T>
inline Division division(int64_t units) {
  const int k_steps = units <= 64 ? 4 : units <= 112 ? 7 : 8;
  const int columns = std::is_same_v<T, float> && k_steps > 4 ? 1 : 2;
  return {k_steps, columns, static_cast<int>((units + 8 * columns - 1) / (8 * columns))};
}

// fp32 is multiplied as two bf16 each, high and low, in three products: 16 bits and fp32's range.
template <typename T>
constexpr int parts = std::is_same_v<T, float> ? 2 : 1;
template <typename T>
using Operand = std::conditional_t<std::is_same_v<T, __half>, __half, __nv_bfloat16>;

template <typename E>
__device__ inline uint32_t packed(float a, float b) {
  if constexpr (std::is_same_v<E, __half>) {
    const __half2 both = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
}

// What rounding to the operand's type leaves of a: the low part's value.
template <typename E>
__device__ inline float remainder(float a) {
  return a - static_cast<float>(static_cast<E>(a));
}

template <typename E>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<E, __half>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four 8 x 8 matrices of 2-byte numbers from shared memory; each lane names one row of 16 bytes.
__device__ inline void load_matrices(uint32_t (&a)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
      : "r"(address));
}

__device__ inline void load_matrices_transposed(uint32_t (&a)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
      : "r"(address));
}

// Both to about 1e-7, and right at either end, where the exponential is 0 or infinite.
__device__ inline float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
__device__ inline float hyperbolic_tangent(float x) { return 1.f - __fdividef(2.f, 1.f + __expf(2.f * x)); }

// `n` neighbouring numbers, loaded and stored at once.
template <typename T, int n>
struct alignas(n * sizeof(T)) Some {
  T values[n];
};

// n neighbouring units of a row that may begin anywhere, of which those from `end` on do not exist.
template <typename T, int n>
__device__ inline void load_units(float (&values)[n], const T* row, int unit, int end, bool pairs) {
  if (pairs) {
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      Some<T, 2> both{};
      if (unit + i < end) both = *reinterpret_cast<const Some<T, 2>*>(row + unit + i);
      values[i] = static_cast<float>(both.values[0]);
      values[i + 1] = static_cast<float>(both.values[1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = unit + i < end ? static_cast<float>(row[unit + i]) : 0.f;
  }
}

template <typename T, int n>
__device__ inline void store_units(T* row, const float (&values)[n], int unit, int end, bool pairs) {
  if (pairs) {
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      if (unit + i < end) {
        *reinterpret_cast<Some<T, 2>*>(row + unit + i) = {static_cast<T>(values[i]), static_cast<T>(values[i + 1])};
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (unit + i < end) row[unit + i] = static_cast<T>(values[i]);
    }
  }
}

}  // namespace gru
