// The kernels for states of bfloat16.

#include "kernels.cuh"

namespace cuda_ext::attention {

template void launch_forward<__nv_bfloat16>(const Forward&, int, cudaStream_t);
template void launch_backward<__nv_bfloat16>(const Backward&, cudaStream_t);

}  // namespace cuda_ext::attention
