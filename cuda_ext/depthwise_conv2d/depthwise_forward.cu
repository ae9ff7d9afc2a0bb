#include "depthwise_small.cuh"
#include "depthwise_kernels.h"

namespace depthwise {
namespace {

template <typename T, int k, int unit_rows>
void launch_rows(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  const Launch args = plan_launch<T>(shape, x, x, out, false, unit_rows, padding, flip, true);
  const int bytes = static_cast<int>((args.plan.stages_a_block > 1 ? 2 : 1) * args.buffer * sizeof(T));
  allow_shared(convolve<T, k, unit_rows>, bytes);
  const dim3 grid(static_cast<unsigned>(args.shape.channels), args.plan.blocks);
  convolve<T, k, unit_rows><<<grid, args.plan.threads, bytes, stream>>>(x, weight, out, args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T, int k>
void launch(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  if (tuned("DW_R", 4) == 8) return launch_rows<T, k, 8>(x, weight, out, shape, padding, flip, stream);
  launch_rows<T, k, 4>(x, weight, out, shape, padding, flip, stream);
}

}  // namespace

template <typename T>
void convolve_small(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream) {
  switch (shape.k) {
    case 1: return launch<T, 1>(x, weight, out, shape, padding, flip, stream);
    case 3: return launch<T, 3>(x, weight, out, shape, padding, flip, stream);
    case 5: return launch<T, 5>(x, weight, out, shape, padding, flip, stream);
    default: return launch<T, 7>(x, weight, out, shape, padding, flip, stream);
  }
}

template void convolve_small(const float*, const float*, float*, const Shape&, int, bool, cudaStream_t);
template void convolve_small(const __half*, const __half*, __half*, const Shape&, int, bool, cudaStream_t);
template void convolve_small(const __nv_bfloat16*, const __nv_bfloat16*, __nv_bfloat16*, const Shape&, int, bool,
                             cudaStream_t);

}  // namespace depthwise
