#include "depthwise_small.cuh"
#include "depthwise_kernels.h"

namespace depthwise {
namespace {

template <typename T, int k>
void launch(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts, const Launch& args,
            cudaStream_t stream) {
  const int buffers = (args.plan.stages_a_block > 1 ? 2 : 1) * args.buffer * sizeof(T);
  const int sums = k * k * args.plan.threads * sizeof(float);
  const int bytes = std::max(buffers, sums);
  allow_shared(differentiate<T, k>, bytes);
  const dim3 grid(static_cast<unsigned>(args.shape.channels), args.plan.blocks);
  differentiate<T, k><<<grid, args.plan.threads, bytes, stream>>>(windowed, centred, weight, image_gradient, parts, args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

template <typename T>
int blocks_small(const Shape& shape) {
  return plan_launch<T>(shape, nullptr, nullptr, nullptr, true, unit_rows_backward, zeros, false, true).plan.blocks;
}

template <typename T>
void differentiate_small(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                         const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  const Launch args = plan_launch<T>(shape, windowed, centred, image_gradient, true, unit_rows_backward, padding, flip,
                                     image_gradient != nullptr);
  switch (shape.k) {
    case 1: return launch<T, 1>(windowed, centred, weight, image_gradient, parts, args, stream);
    case 3: return launch<T, 3>(windowed, centred, weight, image_gradient, parts, args, stream);
    case 5: return launch<T, 5>(windowed, centred, weight, image_gradient, parts, args, stream);
    default: return launch<T, 7>(windowed, centred, weight, image_gradient, parts, args, stream);
  }
}

#define INSTANTIATE(T)                  \
  template int blocks_small<T>(const Shape&); \
  template void differentiate_small(const T*, const T*, const T*, T*, float*, const Shape&, int, bool, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)

}  // namespace depthwise
