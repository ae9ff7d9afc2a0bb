// The kernels for states of half.

#include "kernels.cuh"

namespace cuda_ext::attention {

template void launch_forward<__half>(const Forward&, int, cudaStream_t);
template void launch_backward<__half>(const Backward&, cudaStream_t);

}  // namespace cuda_ext::attention
