#include "depthwise_matrix.cuh"

namespace depthwise {

using T = __nv_bfloat16;

template void convolve_small(const T*, const T*, T*, const Shape&, int, bool, cudaStream_t);
template int blocks_small<T>(const Shape&);
template void differentiate_small(const T*, const T*, const T*, T*, float*, const Shape&, int, bool, cudaStream_t);

}  // namespace depthwise
