// The matrix units of Hopper (sm_90a): products of a warpgroup, four warps of which each has 16 of 64 rows.
//
// A warp's part of c and of a, when a is in registers, is drawn in mma.cuh: its columns are tiles of 8 one beside the other.
// Operands in shared memory are read by their descriptors, and lie in panels of 8 columns: 16 bytes a row, one row after
// the other; or in tiles of 64 columns: 128 bytes a row, swizzled. Both may be read along either of their sides. Code for
// other GPUs has nothing of this: it must not be reached where `has_warpgroups` is false.
#pragma once

#include "mma.cuh"

namespace cuda_ext {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CUDA_EXT_WARPGROUP(...) asm volatile(__VA_ARGS__)
constexpr bool has_warpgroups = true;
#else
#define CUDA_EXT_WARPGROUP(...) static_cast<void>(0)
constexpr bool has_warpgroups = false;
#endif

// Bytes between the beginnings of two groups of 8 along the sum, and of 8 rows (of a) or columns (of b) of the result.
__device__ inline std::uint64_t describe_panels(unsigned address, unsigned along_sum, unsigned across) {
  return std::uint64_t{(address & 0x3ffff) >> 4} | std::uint64_t{along_sum >> 4} << 16 | std::uint64_t{across >> 4} << 32;
}

// Rows of 64 numbers of half precision, one after the other from a multiple of 1024 bytes on. The eights of row r change
// places, c to c ^ r % 8, so that neither a row nor one eight of 8 rows meets itself in a bank.
template <typename T, int rows>
struct Swizzled {
  T* data;

  __device__ T* at(int row, int column) const {
    return data + column / 64 * rows * 64 + row * 64 + ((column / 8 ^ row) % 8 * 8 + column % 8);
  }
  __device__ unsigned address(int row, int column) const { return shared_address(at(row, column)); }
};

// The descriptor of a Swizzled tile from a row on that is a multiple of 8, along the sum or across; 64 columns at most.
__device__ inline std::uint64_t describe_swizzled(unsigned address) {
  return std::uint64_t{(address & 0x3ffff) >> 4} | std::uint64_t{1} << 16 | std::uint64_t{1024 >> 4} << 32 |
         std::uint64_t{1} << 62;
}

// Of a kernel's warpgroups one copies and needs few registers, and the others take what it leaves: one other where two such
// blocks stand on a multiprocessor, or two of a single block.
__device__ inline void use_fewer_registers() { CUDA_EXT_WARPGROUP("setmaxnreg.dec.sync.aligned.u32 40;"); }

template <int others>
__device__ inline void use_more_registers() {
  static_assert(others == 1 || others == 2);
  CUDA_EXT_WARPGROUP("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(others == 1 ? 216 : 232));
}

// Waits for so many threads, whole warps, that call it with this barrier; 0 is __syncthreads'.
template <int threads>
__device__ inline void sync_threads(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}

// Before the first of some products, whose operands are in registers.
__device__ inline void begin_products() { CUDA_EXT_WARPGROUP("wgmma.fence.sync.aligned;" ::: "memory"); }
// Products are awaited in groups: those since the last one, and all but the last `left`.
__device__ inline void commit_products() { CUDA_EXT_WARPGROUP("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// The sums may be read afterwards.
template <int left, int tiles>
__device__ inline void await_products(float (&c)[tiles][4]) {
  CUDA_EXT_WARPGROUP("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[tile][i])::"memory");
  }
}

#define LIST_1 "%0, %1, %2, %3"
#define LIST_8                                                                                                            \
  LIST_1 ", %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "     \
         "%26, %27, %28, %29, %30, %31"
#define LIST_13                                                                                                           \
  LIST_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51"
#define LIST_16 LIST_13 ", %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TILE(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define TILES_1 TILE(0)
#define TILES_8 TILE(0), TILE(1), TILE(2), TILE(3), TILE(4), TILE(5), TILE(6), TILE(7)
#define TILES_13 TILES_8, TILE(8), TILE(9), TILE(10), TILE(11), TILE(12)
#define TILES_16 TILES_13, TILE(13), TILE(14), TILE(15)
// numbers: the operands behind the sums.
#define PRODUCT(type, columns, count, numbers, add, ...)                                                                  \
  CUDA_EXT_WARPGROUP("{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns         \
                     "k16.f32." type "." type " {" LIST_##count "}, " numbers ";\n}"                                      \
                     : TILES_##count                                                                                      \
                     : __VA_ARGS__)
#define PRODUCTS(columns, count, numbers, add, ...)                                                                       \
  if constexpr (tiles == count) {                                                                                         \
    if constexpr (std::is_same_v<E, __half>) {                                                                            \
      PRODUCT("f16", columns, count, numbers, add, __VA_ARGS__);                                                          \
    } else {                                                                                                              \
      PRODUCT("bf16", columns, count, numbers, add, __VA_ARGS__);                                                         \
    }                                                                                                                     \
  }

// c [64, 8 tiles] = a [64, 16] b [16, 8 tiles] (+ c if `add`). across: b's panels go along its columns.
template <typename E, bool across, int tiles>
__device__ inline void multiply_rows(float (&c)[tiles][4], const unsigned (&a)[4], std::uint64_t b, bool add) {
#define GIVEN "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(across))
  static_assert(tiles == 8 || tiles == 13 || tiles == 16);
  PRODUCTS("64", 8, "{%32, %33, %34, %35}, %36, add, 1, 1, %38", "%37", GIVEN)
  PRODUCTS("104", 13, "{%52, %53, %54, %55}, %56, add, 1, 1, %58", "%57", GIVEN)
  PRODUCTS("128", 16, "{%64, %65, %66, %67}, %68, add, 1, 1, %70", "%69", GIVEN)
#undef GIVEN
}

// The same of a in shared memory; the panels of a and b go along their rows and columns of the result.
template <typename E, int tiles>
__device__ inline void multiply_panels(float (&c)[tiles][4], std::uint64_t a, std::uint64_t b, bool add) {
#define GIVEN "l"(a), "l"(b), "r"(static_cast<int>(add))
  static_assert(tiles == 1 || tiles == 8 || tiles == 13 || tiles == 16);
  PRODUCTS("8", 1, "%4, %5, add, 1, 1, 1, 1", "%6", GIVEN)
  PRODUCTS("64", 8, "%32, %33, add, 1, 1, 1, 1", "%34", GIVEN)
  PRODUCTS("104", 13, "%52, %53, add, 1, 1, 1, 1", "%54", GIVEN)
  PRODUCTS("128", 16, "%64, %65, add, 1, 1, 1, 1", "%66", GIVEN)
#undef GIVEN
}

#undef PRODUCTS
#undef PRODUCT
#undef TILES_16
#undef TILES_13
#undef TILES_8
#undef TILES_1
#undef TILE
#undef LIST_16
#undef LIST_13
#undef LIST_8
#undef LIST_1
#undef CUDA_EXT_WARPGROUP

}  // namespace cuda_ext
