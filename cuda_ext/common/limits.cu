// For tests: what a GPU with less shared memory would run, and what the current GPU's code was compiled for.

#include "launch.cuh"

namespace {

void limit_shared_memory(int64_t bytes) { cuda_ext::shared_memory_limit.store(static_cast<int>(bytes)); }

bool has_hopper_code() { return cuda_ext::has_hopper_code(); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("limit_shared_memory(int bytes) -> ()");
  m.def("has_hopper_code() -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CompositeExplicitAutograd, m) {
  m.impl("limit_shared_memory", TORCH_BOX(&limit_shared_memory));
  m.impl("has_hopper_code", TORCH_BOX(&has_hopper_code));
}
