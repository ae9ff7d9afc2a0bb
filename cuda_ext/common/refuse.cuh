// What only tells or refuses, and decides no number of a result. The digest of a kernel's source, which is part of the
// keys of runs, leaves out the statements that call these three macros, and the line that includes this file
// (reread/storage/numeric.py): a message or a refusal more changes no key. Three rules make that safe:
//
// - this file contains nothing else, since no key contains it;
// - an argument has no side effect: no assignment, no ++, no call that writes;
// - a call is a statement of its own, NAME(...); behind a semicolon or a brace. Behind `if (...)` it is not left out.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdio>
#include <optional>
#include <string>
#include <type_traits>

// Host: raises RuntimeError with these words, which are strings and numbers, unless the condition holds.
#define CUDA_EXT_REFUSE_UNLESS(condition, ...)   \
  do {                                           \
    STD_TORCH_CHECK((condition), ##__VA_ARGS__); \
  } while (false)

// Host: the same unless `tensor` has the dtype and is on the GPU of `other`, or is an optional one and none. The words
// name it.
#define CUDA_EXT_REFUSE_UNLESS_BESIDE(other, tensor, dtype, ...)                                                   \
  do {                                                                                                             \
    STD_TORCH_CHECK(cuda_ext::is_beside(other, tensor, dtype), __VA_ARGS__, " must be ", cuda_ext::name_of(dtype), \
                    " on ", cuda_ext::place_of(other), ", got ", cuda_ext::name_of(tensor), " on ",                \
                    cuda_ext::place_of(tensor));                                                                   \
  } while (false)

// Device: prints a line per warp, on the program's standard output, where the condition holds. A trap on the same
// condition follows: `if (condition) __trap();`. The format takes whole numbers, a %lld each.
#define CUDA_EXT_TELL_IF(condition, format, ...)                \
  do {                                                          \
    if (condition) cuda_ext::tell(format "\n", ##__VA_ARGS__);  \
  } while (false)

namespace cuda_ext {

inline bool is_beside(const torch::stable::Tensor& other, const torch::stable::Tensor& tensor,
                      torch::headeronly::ScalarType dtype) {
  return tensor.is_cuda() && tensor.get_device_index() == other.get_device_index() && tensor.scalar_type() == dtype;
}

inline bool is_beside(const torch::stable::Tensor& other, const std::optional<torch::stable::Tensor>& tensor,
                      torch::headeronly::ScalarType dtype) {
  return !tensor || is_beside(other, *tensor, dtype);
}

// As PyTorch's users know the dtypes that operations take.
inline std::string name_of(torch::headeronly::ScalarType dtype) {
  using torch::headeronly::ScalarType;
  switch (dtype) {
    case ScalarType::Double: return "float64";
    case ScalarType::Float: return "float32";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Long: return "int64";
    case ScalarType::Int: return "int32";
    default: return torch::headeronly::toString(dtype);
  }
}

inline std::string name_of(const torch::stable::Tensor& tensor) { return name_of(tensor.scalar_type()); }

inline std::string name_of(const std::optional<torch::stable::Tensor>& tensor) { return name_of(*tensor); }

inline std::string place_of(const torch::stable::Tensor& tensor) {
  return tensor.is_cuda() ? "cuda:" + std::to_string(tensor.get_device_index()) : "another device";
}

inline std::string place_of(const std::optional<torch::stable::Tensor>& tensor) { return place_of(*tensor); }

// The first of those threads of a warp that come here together prints. The others wait for it: the trap of one ends the
// kernel. It is no inline function, as that would cost the kernel of cross entropy a spill.
template <typename... Values>
__device__ __noinline__ void tell(const char* format, Values... values) {
  static_assert((std::is_integral_v<Values> && ...), "a %lld takes a whole number");
  const unsigned together = __activemask();
  unsigned before;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
  if ((together & before) == 0) {
    printf(format, static_cast<long long>(values)...);
    __threadfence_system();
  }
  __syncwarp(together);
}

}  // namespace cuda_ext
