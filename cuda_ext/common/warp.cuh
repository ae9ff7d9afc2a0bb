// What the 32 threads of a warp compute together.
#pragma once

namespace cuda_ext {

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
  return value;
}

}  // namespace cuda_ext
