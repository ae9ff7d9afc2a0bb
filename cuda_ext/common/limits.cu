// For tests: what a GPU with less shared memory would run.

#include "launch.cuh"

namespace {

void limit_shared_memory(int64_t bytes) { cuda_ext::shared_memory_limit.store(static_cast<int>(bytes)); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) { m.def("limit_shared_memory(int bytes) -> ()"); }

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CompositeExplicitAutograd, m) {
  m.impl("limit_shared_memory", TORCH_BOX(&limit_shared_memory));
}
