#include "depthwise_small.cuh"

namespace depthwise {

template void convolve_small(const __nv_bfloat16*, const __nv_bfloat16*, __nv_bfloat16*, const Shape&, int, bool, cudaStream_t);
template int blocks_small<__nv_bfloat16>(const Shape&);
template void differentiate_small(const __nv_bfloat16*, const __nv_bfloat16*, const __nv_bfloat16*, __nv_bfloat16*, float*, const Shape&, int, bool,
                                  cudaStream_t);

}  // namespace depthwise
