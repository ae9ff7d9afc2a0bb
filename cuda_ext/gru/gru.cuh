// What the GRU's kernels share: the layout of the gates, the split of a number into operands of the matrix units, and
// one matrix instruction.
//
// Shapes: N sequences, M real steps, d directions, H units, P units padded to a multiple of 8, I inputs.
// What the forward pass makes of each step lies as [M, d, 5, P]: the candidate n, the reset gate r, the update gate z,
// m = W_hn h + b_hn, and the state h before the step; if no backward pass follows, n, r and z alone. So the three sums
// that the input makes (n, r, z) and the three that the state makes (r, z, m) lie together.
#pragma once

#include "../common/functions.cuh"
#include "../common/halves.cuh"
#include "../common/mma.cuh"

namespace gru {

using cuda_ext::await_copies;
using cuda_ext::commit_copies;
using cuda_ext::copy_async;
using cuda_ext::inverse_of;
using cuda_ext::load_matrices;
using cuda_ext::load_matrices_transposed;
using cuda_ext::multiply;
using cuda_ext::pack;
using cuda_ext::split_pair;

// What is kept of a step: the gates, the candidate and its recurrent part m, and the previous state.
constexpr int candidate = 0, reset = 1, update = 2, recurrent = 3, previous = 4;
// Sequences of a block: the rows of one matrix instruction.
constexpr int tile = 16;

// One sequence, in order of falling length: its place n in the batch, its rows among the M, and its first row among the
// states (the same in a ragged batch, n T in a padded one).
struct alignas(16) Sequence {
  int place, first, length, state;
};

// fp32 is multiplied as two halves of 16 bits each, high and low, in three products: high by high, low by high and high
// by low. In the recurrent products they are bf16: 16 bits and fp32's range, without a scale, which there would have to
// be found anew between one step and the next; as much of the sums comes from elsewhere, that errs by 8e-7. The large
// products, whose numbers are at hand in advance, take fp16 (Element), scaled, and 22 bits.
template <typename T>
constexpr int parts = std::is_same_v<T, float> ? 2 : 1;
// A recurrent sum in three parts, one a product of high and low, where there are registers for them: a third of the
// time that one matrix instruction waits for the last.
template <typename T, int k_steps, int columns, int split>
constexpr int chains = parts<T> == 2 && columns == 1 && (k_steps == 4 || split > 1) ? 3 : 1;

// Numbers of a row of operands in shared memory, padded against bank conflicts.
template <int k_steps>
constexpr int operand_width = 16 * k_steps + 8;

// How a block shares out its work: k-steps of 16 units in a recurrent product, and columns of 8 units of each gate in a
// warp. Of two columns a warp loads the state once; one column makes more warps with less to do each, which is faster
// where there are too few blocks to fill the GPU, and all that a warp has room for where fp32 keeps two fragments of
// each of many weights.
struct Division {
  int k_steps, columns, warps;
};

template <typename T>
inline Division division(int64_t units, int64_t directions, int64_t sequences) {
  const int k_steps = units <= 64 ? 4 : units <= 112 ? 7 : 8;
  const bool few = (sequences + tile - 1) / tile * directions <= cuda_ext::multiprocessors();
  const int columns = few || (std::is_same_v<T, float> && k_steps > 4) ? 1 : 2;
  return {k_steps, columns, static_cast<int>((units + 8 * columns - 1) / (8 * columns))};
}

// 4-byte registers of all fragments of the recurrent weights.
template <typename T>
inline int64_t fragments(const Division& by, int64_t directions) {
  return directions * by.warps * parts<T> * 3 * by.columns * by.k_steps * 64;
}

// The input weights as gru_prepare packs them for products [.., K] x [K, ..]: rows of K numbers, zeros to a multiple of
// 32, of fp32 with a scale for each row behind them all. Forward the rows are the gates' [d, 3, P], else the inputs.
struct Packed {
  int64_t rows, columns, size;
};

inline Packed packed_weights(bool scaled, int64_t gates, int64_t inputs, bool transposed) {
  const int64_t rows = transposed ? (inputs + 7) / 8 * 8 : gates;
  const int64_t columns = ((transposed ? gates : inputs) + 31) / 32 * 32;
  return {rows, columns, rows * columns + (scaled ? rows : 0)};
}

// Of 32 numbers of a sum, which is at this place of a packed row: the order in which two matrix instructions take them
// from four threads, which load 16 bytes at a time, neighbours of each other's: 8 numbers each, or twice 4 of fp32.
template <typename T>
__host__ __device__ constexpr int packed_number(int place) {
  const int instruction = place / 16 % 2, half = place / 8 % 2, thread = place / 2 % 4;
  return place / 32 * 32 + 2 * half + place % 2 +
         (sizeof(T) == 4 ? 16 * instruction + 4 * thread : 8 * thread + 4 * instruction);
}

template <typename T>
using Operand = std::conditional_t<std::is_same_v<T, __half>, __half, __nv_bfloat16>;
template <typename T>
using Element = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat16, __half>;

// Of fp32 numbers that are split into fp16 together; no product of two scales overflows. A number is right to 2^-22 of
// itself or 2^-38 of the largest, from 2^-49 to 2^76 (2e-15 to 7e22); smaller ones are to 2^-87.
__device__ inline float scale_for(float largest) { return cuda_ext::scale_for<62>(largest); }

// The largest of a warp's numbers, which are not negative: their bits have the same order.
__device__ inline float largest_in_warp(float x) {
  return __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(x)));
}

// Both are right at either end, where the exponential is 0 or infinite: to about 1e-7 for float, and to 2^-11, one
// instruction each, where the result is rounded to half precision.
template <typename T>
__device__ inline float hyperbolic_tangent(float x) {
  if constexpr (sizeof(T) == 2) return cuda_ext::coarse_tanh(x);
  return 1.f - 2.f * cuda_ext::reciprocal(1.f + cuda_ext::power_of_two(x * 2.885390082f));
}

template <typename T>
__device__ inline float sigmoid(float x) {
  if constexpr (sizeof(T) == 2) return 0.5f + 0.5f * hyperbolic_tangent<T>(0.5f * x);
  return cuda_ext::reciprocal(1.f + cuda_ext::power_of_two(x * -1.442695041f));
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
        raw.words[i] = pack<T>(values[2 * i], values[2 * i + 1]);
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
    for (int i = 0; i < n; i += 2) {
      split_pair<E>(make_float2(values[i], values[i + 1]), high.words[i / 2], low.words[i / 2]);
    }
    store<E, n>(to, high);
    store<E, n>(to + part, low);
  } else {
    store<E, n>(to, Raw<E, n>::of(values));
  }
}

// The operands of two neighbours in two rows, 8 apart, of a warp's 8 units, into the shared memory of every block of
// the cluster. to: the warp's first unit in its thread's first row. Four threads that hold a row trade, so that each
// has all 8 units of one row and part: stores to another block cost by their number.
template <typename T, int split>
__device__ inline void share_operands(Operand<T>* to, int rows_apart, int part, const float (&values)[2][2]) {
#if __CUDA_ARCH__ >= 900
  constexpr int pieces = 2 * parts<T>;
  uint32_t words[pieces];  // [part, row]
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (parts<T> == 2) {
      split_pair<Operand<T>>(make_float2(values[i][0], values[i][1]), words[i], words[2 + i]);
    } else {
      words[i] = pack<Operand<T>>(values[i][0], values[i][1]);
    }
  }
  const int thread = threadIdx.x % 4, piece = thread % pieces;
  uint32_t got[4];  // of the thread so far away, then of each in order
#pragma unroll
  for (int away = 0; away < 4; ++away) {
    const int theirs = (thread ^ away) % pieces;  // the piece that the other thread is to have
    uint32_t word = theirs % 2 == 0 ? words[0] : words[1];
    if constexpr (pieces == 4) word = theirs < 2 ? word : theirs % 2 == 0 ? words[2] : words[3];
    got[away] = __shfl_xor_sync(0xffffffff, word, away);
  }
  const auto swap_if = [](bool is, uint32_t& a, uint32_t& b) {
    const uint32_t first = is ? b : a;
    b = is ? a : b;
    a = first;
  };
  swap_if(thread % 2 == 1, got[0], got[1]);
  swap_if(thread % 2 == 1, got[2], got[3]);
  swap_if(thread >= 2, got[0], got[2]);
  swap_if(thread >= 2, got[1], got[3]);
  const auto own = static_cast<uint32_t>(__cvta_generic_to_shared(to + piece / 2 * part + piece % 2 * rows_apart));
#pragma unroll
  for (int rank = 0; rank < split; ++rank) {
    // Of half precision two threads have the same, for half of the blocks each.
    if (pieces == 2 && rank % 2 != thread / 2) continue;
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(rank));
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(got[0]), "r"(got[1]), "r"(got[2]),
                 "r"(got[3])
                 : "memory");
  }
#endif
}

// All threads of the cluster wait for one another, and see what was written to their shared memory.
template <int split>
__device__ inline void meet() {
  if constexpr (split == 1) {
    __syncthreads();
  } else {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
  }
}

// A tile of sequences whose blocks would leave most of the GPU idle is shared by a cluster of four, of which each has a
// part of the units and gets the others' states through distributed shared memory. It pays for fp32 above 64 units, of
// which one block's registers do not hold the weights; half precision is slower by it.
template <typename T, int k_steps>
inline bool takes_clusters(int64_t tiles) {
  if constexpr (std::is_same_v<T, float> && k_steps > 4) {
    return cuda_ext::has_hopper_code() && 4 * tiles <= cuda_ext::multiprocessors();
  }
  return false;
}

// What a block writes of each step, [16, slots, P] numbers of one stretch in memory for each sequence, lies in shared
// memory first and goes out as one long copy a sequence, while the next step is made in the other of two buffers. (A
// warp's own stores are pieces of 16 or 32 bytes, and where blocks fill the GPU they take as long as all else. Where
// they do not, the copies' wait is what a step takes longer: see `sends`.)
template <typename T, int slots>
struct Outgoing {
  T* staged;  // [2, 16, stride]
  int padded, stride;
  T* to = nullptr;  // where this thread's sequence goes, if it has one, and by how much that moves on
  int64_t step_by = 0;
  int length = 0;

  // Numbers of a row in shared memory, padded against bank conflicts.
  __host__ __device__ static int stride_of(int padded) {
    return slots * padded + (slots * padded / 8 % 2 == 0 ? 8 : 0);
  }
  static int bytes_of(int padded) { return 2 * tile * stride_of(padded) * static_cast<int>(sizeof(T)); }

  __device__ Outgoing(void* shared, int padded)
      : staged(static_cast<T*>(shared)), padded(padded), stride(stride_of(padded)) {}
  __device__ T* at(int step, int row, int slot, int unit) const {
    return staged + (step % 2 * tile + row) * stride + slot * padded + unit;
  }
  // Before the barrier: what was written may be copied, and the copies of the step before were read.
  __device__ void ready() const {
    cuda_ext::order_with_bulk_copies();
    if (threadIdx.x < tile) cuda_ext::await_stores_read();
  }
  // After the barrier, of the sequences that have this step.
  __device__ void send(int step) {
    if (threadIdx.x < tile && step < length) {
      cuda_ext::store_bulk(to, at(step, threadIdx.x, 0, 0), slots * padded * static_cast<int>(sizeof(T)));
      cuda_ext::commit_stores();
    }
    to += step_by;
  }
  __device__ void finish() const {
    if (threadIdx.x < tile) cuda_ext::await_stores();
  }
};

// bytes: of shared memory that a block takes with the two buffers.
inline bool sends(int k_steps, int64_t tiles, int bytes) {
  return cuda_ext::has_hopper_code() && (k_steps > 4 || tiles > 2 * cuda_ext::multiprocessors()) &&
         bytes <= cuda_ext::shared_memory_of_a_block();
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
