#include "depthwise_small.cuh"

namespace depthwise {

template void convolve_small(const __half*, const __half*, __half*, const Shape&, int, bool, cudaStream_t);
template int blocks_small<__half>(const Shape&);
template void differentiate_small(const __half*, const __half*, const __half*, __half*, float*, const Shape&, int, bool,
                                  cudaStream_t);

}  // namespace depthwise
