// What every kernel's host code needs: the current stream, and the type that arithmetic is done in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <type_traits>

namespace cuda_ext {

// The stream that PyTorch is using on `device`, so that a launch takes its place among PyTorch's own and is captured
// with them in a CUDA graph.
inline cudaStream_t current_stream(torch::stable::accelerator::DeviceIndex device) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

// Programmatic dependent launch, from sm_90 on: a kernel that `launch_early` launches may start before the one in
// front of it has ended, once all blocks of that have called `let_the_next_start` or ended. All its threads call
// `wait_for_the_one_before` before they read or write global memory: what was launched earlier is then done. On other
// GPUs it is a launch as any.
__device__ inline void wait_for_the_one_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_the_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <typename... Wanted, typename... Given>
void launch_early(void (*kernel)(Wanted...), dim3 grid, dim3 block, int shared_bytes, cudaStream_t stream,
                  Given... arguments) {
  int device = 0, major = 0;
  STD_CUDA_CHECK(cudaGetDevice(&device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = grid;
  how.blockDim = block;
  how.dynamicSmemBytes = shared_bytes;
  how.stream = stream;
  how.attrs = &early;
  how.numAttrs = major >= 9 ? 1 : 0;
  STD_CUDA_CHECK(cudaLaunchKernelEx(&how, kernel, static_cast<Wanted>(arguments)...));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// Half precision is computed in float and rounded once, as PyTorch does; double stays double.
template <typename T>
using compute_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

// As many elements as one 16-byte load or store moves, the widest that a thread can issue.
template <typename T>
struct alignas(16) Pack {
  static constexpr int size = 16 / sizeof(T);
  T values[size];
};

inline bool aligned_for_packs(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace cuda_ext
