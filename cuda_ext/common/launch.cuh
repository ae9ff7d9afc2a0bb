// What every kernel's host code needs: the current stream, what the GPU has, launches, and dispatch by dtype.
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

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <type_traits>
#include <utility>

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

inline int current_device() {
  int device = 0;
  STD_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

inline int attribute_of_device(cudaDeviceAttr attribute) {
  int value = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, current_device()));
  return value;
}

inline int multiprocessors() { return attribute_of_device(cudaDevAttrMultiProcessorCount); }

// What a test sets to see what a smaller GPU runs (limits.cu); 0 is no limit.
inline std::atomic<int> shared_memory_limit{0};

// Bytes of shared memory that a block may have on the current GPU, static and dynamic together.
inline int shared_memory_of_a_block() {
  const int allowed = attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int limit = shared_memory_limit.load();
  return limit > 0 && limit < allowed ? limit : allowed;
}

template <typename>
__global__ void probe() {}

// What the code that runs on the current GPU was compiled for, 90 for sm_90. The GPU's own version does not tell: a Hopper
// also runs what the driver compiles from PTX of sm_80, in which device code for Hopper is left out (__CUDA_ARCH__ is 800
// there, and ptxVersion 80).
inline int version_of_code() {
  constexpr int devices = 64;
  static std::atomic<int> versions[devices];
  const int device = current_device();
  int version = device < devices ? versions[device].load() : 0;
  if (version == 0) {
    cudaFuncAttributes attributes{};
    STD_CUDA_CHECK(cudaFuncGetAttributes(&attributes, probe<void>));
    version = attributes.ptxVersion;
    if (device < devices) versions[device].store(version);
  }
  return version;
}

// With bulk copies, clusters and programmatic launch.
inline bool has_hopper_code() { return version_of_code() >= 90; }

// With wgmma.cuh's products: build.py compiles for sm_90a, whose code no later GPU runs.
inline bool has_warpgroup_code() { return version_of_code() == 90; }

// Allows `kernel` all the dynamic shared memory of the current GPU's blocks, once per kernel and GPU. A maximum of each
// call's own bytes would fail the launch of another host thread, which needs more, between the two calls of this one.
template <typename... Wanted>
void allow_all_shared_memory(void (*kernel)(Wanted...)) {
  static std::mutex mutex;
  static std::set<std::pair<void (*)(Wanted...), int>> allowed;
  const std::pair key{kernel, current_device()};
  const std::lock_guard lock(mutex);
  if (allowed.count(key) != 0) return;
  cudaFuncAttributes attributes{};
  STD_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  const int most = attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      most - static_cast<int>(attributes.sharedSizeBytes)));
  allowed.insert(key);
}

// How a kernel is launched. shared_bytes: dynamic shared memory. early: as `wait_for_the_one_before` says; without code
// for Hopper a launch as any. cluster: blocks along x that share their shared memory; more than one needs that code.
struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool early = false;
  int cluster = 1;
};

template <typename... Wanted, typename... Given>
void launch(void (*kernel)(Wanted...), const Launch& how, const Given&... arguments) {
  // 48 KiB in all need no leave, of which a kernel's static shared memory takes up to 18.
  if (how.shared_bytes > 30 * 1024) allow_all_shared_memory(kernel);
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (how.early && has_hopper_code()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = how.cluster;
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid;
  config.blockDim = how.block;
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = how.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  STD_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Wanted>(arguments)...));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename... Wanted, typename... Given>
void launch_early(void (*kernel)(Wanted...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                  const Given&... arguments) {
  launch(kernel, {grid, block, shared_bytes, stream, true}, arguments...);
}

// Calls f(T{}) with the type of a tensor's numbers. float64 has no kernels: the references in Python take it.
template <typename F>
void with_dtype(const char* name, torch::headeronly::ScalarType dtype, F&& f) {
  using torch::headeronly::ScalarType;
  switch (dtype) {
    case ScalarType::Float: f(float{}); break;
    case ScalarType::Half: f(__half{}); break;
    case ScalarType::BFloat16: f(__nv_bfloat16{}); break;
    default: STD_TORCH_CHECK(false, name, ": dtype must be float32, float16 or bfloat16");
  }
}

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
