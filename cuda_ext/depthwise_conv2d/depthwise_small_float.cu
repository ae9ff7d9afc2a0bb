#include "depthwise_small.cuh"

namespace depthwise {

template void convolve_small(const float*, const float*, float*, const Shape&, int, bool, cudaStream_t);
template int blocks_small<float>(const Shape&);
template void differentiate_small(const float*, const float*, const float*, float*, float*, const Shape&, int, bool,
                                  cudaStream_t);

}  // namespace depthwise
