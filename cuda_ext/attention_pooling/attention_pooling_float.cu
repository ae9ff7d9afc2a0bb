// The kernels for states of float.

#include "kernels.cuh"

namespace cuda_ext::attention {

template void launch_forward<float>(const Forward&, int, cudaStream_t);
template void launch_backward<float>(const Backward&, cudaStream_t);

}  // namespace cuda_ext::attention
