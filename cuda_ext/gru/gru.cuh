// What the GRU's kernels share: the layout of the gates, the split of a number into operands of the matrix units, and
// one matrix instruction.
//
// Shapes: N sequences, M real steps, d directions, H units, P units padded to a multiple of 8, I inputs.
// What the forward pass makes of each step lies as [M, d, 5, P]: the candidate n, the reset gate r, the update gate z,
// m = W_hn h + b_hn, and the state h before the step; if no backward pass follows, n, r and z alone. So the three sums
// that the input makes (n, r, z) and the three that the state makes (r, z, m) lie together.
#pragma once

#include "../launch.cuh"

namespace gru {

constexpr int candidate = 0, reset = 1, update = 2, memory = 3, before = 4;
// Sequences of a block: the rows of one matrix instruction.
constexpr int tile = 16;

// One sequence, in order of falling length: its place n in the batch, its rows among the M, and its first row among the
// states (the same in a ragged batch, n T in a padded one).
struct alignas(16) Sequence {
  int place, first, length, state;
};

// fp32 is multiplied as two bf16 each, high and low, in three products: 16 bits and fp32's range.
template <typename T>
constexpr int parts = std::is_same_v<T, float> ? 2 : 1;
// A sum in three parts, one a product of high and low, where there are registers for them: a third of the time that one
// matrix instruction waits for the last.
template <typename T, int k_steps, int columns>
constexpr int chains = parts<T> == 2 && k_steps == 4 && columns == 1 ? 3 : 1;

// How a block shares out its work: k-steps of 16 units in a recurrent product, and columns of 8 units of each gate in a
// warp. Of two columns a warp loads the state once; one column makes more warps with less to do each, which is faster
// where there are too few blocks to fill the GPU, and all that a warp has room for where fp32 keeps two fragments of
// each of many weights.
struct Division {
  int k_steps, columns, warps;
};

template <typename T>
inline Division division(int64_t units, int64_t directions, int64_t sequences) {
  constexpr int few_blocks = 132;
  const int k_steps = units <= 64 ? 4 : units <= 112 ? 7 : 8;
  const bool few = (sequences + tile - 1) / tile * directions <= few_blocks;
  const int columns = few || (std::is_same_v<T, float> && k_steps > 4) ? 1 : 2;
  return {k_steps, columns, static_cast<int>((units + 8 * columns - 1) / (8 * columns))};
}

// 4-byte registers of all fragments of the recurrent weights.
template <typename T>
inline int64_t fragments(const Division& by, int64_t directions) {
  return directions * by.warps * parts<T> * 3 * by.columns * by.k_steps * 64;
}

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

// Two numbers' high and low operands. (The high ones are taken back out of their pair: to convert one number alone is
// an instruction of a quarter of the rate.)
__device__ inline void split(float a, float b, uint32_t& high, uint32_t& low) {
  high = packed<__nv_bfloat16>(a, b);
  low = packed<__nv_bfloat16>(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xffff0000u));
}

template <typename E>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<E, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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

// Both are right at either end, where the exponential is 0 or infinite: to about 1e-7 for float, and to 2^-11, one
// instruction each, where the result is rounded to half precision.
template <typename T>
__device__ inline float hyperbolic_tangent(float x) {
  float result;
  if constexpr (sizeof(T) == 2) {
    asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  } else {
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 2.885390082f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.f + result));
    result = 1.f - 2.f * result;
  }
  return result;
}

template <typename T>
__device__ inline float sigmoid(float x) {
  if constexpr (sizeof(T) == 2) return 0.5f + 0.5f * hyperbolic_tangent<T>(0.5f * x);
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * -1.442695041f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.f + result));
  return result;
}

// relu, NaN where x is, as torch.relu has it, and its slope by its value y, at 0 that of PyTorch, 0.
template <typename C>
__device__ inline C rectifier(C x) {
  return x < 0 ? 0 : x;
}

template <typename C>
__device__ inline C slope_of_rectifier(C y) {
  return y > 0 ? 1 : 0;
}

// n neighbouring numbers as they lie in memory, moved in as few instructions as that takes. (A struct of half-precision
// numbers the compiler stores one by one.)
template <typename T, int n>
struct Raw {
  static constexpr int count = n * sizeof(T) / 4;
  uint32_t words[count];

  __device__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    } else {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16))));
    }
  }
  __device__ static Raw of(const float (&values)[n]) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if constexpr (sizeof(T) == 4) {
        raw.words[i] = __float_as_uint(values[i]);
      } else {
        raw.words[i] = packed<T>(values[2 * i], values[2 * i + 1]);
      }
    }
    return raw;
  }
};

template <typename T, int n>
__device__ inline Raw<T, n> load(const T* from) {
  Raw<T, n> raw;
  if constexpr (raw.count == 4) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    raw.words[0] = all.x, raw.words[1] = all.y, raw.words[2] = all.z, raw.words[3] = all.w;
  } else if constexpr (raw.count == 2) {
    const uint2 all = *reinterpret_cast<const uint2*>(from);
    raw.words[0] = all.x, raw.words[1] = all.y;
  } else {
    raw.words[0] = *reinterpret_cast<const uint32_t*>(from);
  }
  return raw;
}

template <typename T, int n>
__device__ inline void store(T* to, const Raw<T, n>& raw) {
  if constexpr (raw.count == 4) {
    *reinterpret_cast<uint4*>(to) = {raw.words[0], raw.words[1], raw.words[2], raw.words[3]};
  } else if constexpr (raw.count == 2) {
    *reinterpret_cast<uint2*>(to) = {raw.words[0], raw.words[1]};
  } else {
    *reinterpret_cast<uint32_t*>(to) = raw.words[0];
  }
}

// The operands of n neighbours: one each at `to`, or high ones there and low ones at `to + part`.
template <typename T, int n>
__device__ inline void store_operands(Operand<T>* to, int part, const float (&values)[n]) {
  using E = Operand<T>;
  if constexpr (parts<T> == 2) {
    Raw<E, n> high, low;
#pragma unroll
    for (int i = 0; i < n; i += 2) split(values[i], values[i + 1], high.words[i / 2], low.words[i / 2]);
    store<E, n>(to, high);
    store<E, n>(to + part, low);
  } else {
    store<E, n>(to, Raw<E, n>::of(values));
  }
}

// The same for a row that may begin anywhere, and of whose units only `left` are still there: in pairs if `pairs`.
template <typename T, int n>
__device__ inline Raw<T, n> load_units(const T* from, int left, bool pairs) {
  Raw<T, n> raw{};
  if (pairs) {
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      if (i < left) {
        const Raw<T, 2> pair = load<T, 2>(from + i);
#pragma unroll
        for (int w = 0; w < pair.count; ++w) raw.words[i / 2 * pair.count + w] = pair.words[w];
      }
    }
  } else {
    float values[n];
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = i < left ? static_cast<float>(from[i]) : 0.f;
    raw = Raw<T, n>::of(values);
  }
  return raw;
}

template <typename T, int n>
__device__ inline void store_units(T* to, const float (&values)[n], int left, bool pairs) {
  if (pairs) {
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      const float both[2] = {values[i], values[i + 1]};
      if (i < left) store<T, 2>(to + i, Raw<T, 2>::of(both));
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (i < left) to[i] = static_cast<T>(values[i]);
    }
  }
}

}  // namespace gru
