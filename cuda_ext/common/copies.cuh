// Copies between global and shared memory while threads go on: cp.async, and from sm_90 on bulk copies with barriers.
// What is compiled for older GPUs leaves bulk copies out; the host asks `has_hopper_code` before it counts on them.
#pragma once

#include "launch.cuh"

namespace cuda_ext {

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 4, 8 or 16 bytes from global to shared memory, without passing registers; zeros instead unless `real`, and then `from`
// is not read.
template <int bytes>
__device__ inline void copy_async(unsigned to, const void* from, bool real) {
  const int read = real ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes), "r"(read)
                 : "memory");
  }
}

template <int bytes>
__device__ inline void copy_async(void* to, const void* from, bool real) {
  copy_async<bytes>(shared_address(to), from, real);
}

// Copies are awaited in groups: those since the last one, and all but the last `left`.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int left>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER(...) static_cast<void>(0)
#endif

// What ordinary stores wrote to shared memory is there for bulk copies.
__device__ inline void order_with_bulk_copies() { HOPPER("fence.proxy.async.shared::cta;" ::: "memory"); }

// A barrier in shared memory counts arrivals, and the bytes that bulk copies bring: one thread begins it, and announces
// bytes where it copies; all wait for the parity of the phase.
__device__ inline void begin_barrier(unsigned barrier, int arrivals = 1) {
  HOPPER("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void arrive(unsigned barrier) {
  HOPPER("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// When the copies are done that this thread has begun with copy_async.
__device__ inline void arrive_after_copies(unsigned barrier) {
  HOPPER("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// After the last `begin_barrier`, by the thread that called it.
__device__ inline void order_barriers() { HOPPER("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void expect_bytes(unsigned barrier, int bytes) {
  HOPPER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void await_barrier(unsigned barrier, unsigned parity) {
  HOPPER(
      "{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
          barrier),
      "r"(parity)
      : "memory");
}

// `bytes` is a multiple of 16, and both begin on 16 bytes.
__device__ inline void copy_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  HOPPER("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
         "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
         : "memory");
}

// The same from shared to global memory, in groups of a thread's own.
__device__ inline void store_bulk(void* to, const void* from, int bytes) {
  HOPPER("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
         "r"(shared_address(from)), "r"(bytes)
         : "memory");
}

__device__ inline void commit_stores() { HOPPER("cp.async.bulk.commit_group;" ::: "memory"); }

// Until what the thread's stores read may be written again, and until they are done.
__device__ inline void await_stores_read() { HOPPER("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void await_stores() { HOPPER("cp.async.bulk.wait_group 0;" ::: "memory"); }

#undef HOPPER

}  // namespace cuda_ext
