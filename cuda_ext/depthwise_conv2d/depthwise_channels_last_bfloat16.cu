#include "depthwise_channels_last.cuh"

namespace depthwise {

using T = __nv_bfloat16;

template void convolve_channels_last(const T*, const T*, T*, const Shape&, int, bool, cudaStream_t);
template int blocks_channels_last<T>(const Shape&);
template void differentiate_channels_last(const T*, const T*, const T*, T*, float*, const Shape&, int, bool, cudaStream_t);

}  // namespace depthwise
