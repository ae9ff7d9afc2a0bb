// Vector addition, z = x + y: the worked example of a kernel.
//
// It reads two numbers and writes one for each addition, so that memory bandwidth alone bounds it: 3 n sizeof(T)
// bytes. Each thread moves 16 bytes at a time; enough threads are resident to keep the memory busy, so that one load of
// each input under way a thread is as fast as four (measured on an H200).

#include "../common/launch.cuh"

#include <algorithm>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 512;
constexpr int unroll = 4;
// The stride loop takes what a grid of so many blocks, 2 GiB of each vector, leaves.
constexpr int64_t most_blocks = int64_t{1} << 18;

template <typename T>
__device__ T sum(T a, T b) {
  return static_cast<T>(static_cast<float>(a) + static_cast<float>(b));
}

// All three pointers lie on 16 bytes. `n` counts elements and may exceed 2^31, so every index has 64 bits.
template <typename T>
__global__ void __launch_bounds__(threads) add_packs(const T* __restrict__ x, const T* __restrict__ y,
                                                     T* __restrict__ z, int64_t n) {
  using Pack = cuda_ext::Pack<T>;
  const auto* x_packs = reinterpret_cast<const Pack*>(x);
  const auto* y_packs = reinterpret_cast<const Pack*>(y);
  auto* z_packs = reinterpret_cast<Pack*>(z);
  const int64_t packs = n / Pack::size;
  const int64_t index = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * threads;
  for (int64_t i = index; i < packs; i += stride) {
    const Pack a = x_packs[i];
    const Pack b = y_packs[i];
    Pack c;
#pragma unroll
    for (int j = 0; j < Pack::size; ++j) c.values[j] = sum(a.values[j], b.values[j]);
    z_packs[i] = c;
  }
  // What does not fill a pack: at most 7 elements.
  const int64_t tail = packs * Pack::size + index;
  if (tail < n) z[tail] = sum(x[tail], y[tail]);
}

// For a view that begins between two packs. One element at a time moves too few bytes a thread to keep the memory busy:
// with `unroll` loads of each input under way it is as fast as packs, without 1.6 times slower (fp32 on an H200).
template <typename T>
__global__ void __launch_bounds__(threads) add_elements(const T* __restrict__ x, const T* __restrict__ y,
                                                        T* __restrict__ z, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * threads * unroll;
  for (int64_t first = int64_t{blockIdx.x} * threads * unroll + threadIdx.x; first < n; first += stride) {
    T a[unroll], b[unroll];
#pragma unroll
    for (int j = 0; j < unroll; ++j) {
      if (const int64_t i = first + j * threads; i < n) {
        a[j] = x[i];
        b[j] = y[i];
      }
    }
#pragma unroll
    for (int j = 0; j < unroll; ++j) {
      if (const int64_t i = first + j * threads; i < n) z[i] = sum(a[j], b[j]);
    }
  }
}

template <typename T>
void launch(const Tensor& x, const Tensor& y, const Tensor& z, cudaStream_t stream) {
  const auto* x_data = static_cast<const T*>(x.data_ptr());
  const auto* y_data = static_cast<const T*>(y.data_ptr());
  auto* z_data = static_cast<T*>(z.data_ptr());
  const int64_t n = x.numel();
  const bool packed = cuda_ext::aligned_for_packs(x_data) && cuda_ext::aligned_for_packs(y_data) &&
                      cuda_ext::aligned_for_packs(z_data);
  const int64_t per_block = int64_t{threads} * (packed ? cuda_ext::Pack<T>::size : unroll);
  const auto blocks = static_cast<unsigned>(std::min((n + per_block - 1) / per_block, most_blocks));
  if (packed) {
    add_packs<T><<<blocks, threads, 0, stream>>>(x_data, y_data, z_data, n);
  } else {
    add_elements<T><<<blocks, threads, 0, stream>>>(x_data, y_data, z_data, n);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// x, y: any one shape, on one GPU, of one of the three dtypes. The result is contiguous. The Python face has refused all
// else with a better message; what is checked again here is what would read or write outside a tensor.
Tensor vector_add(Tensor x, Tensor y) {
  STD_TORCH_CHECK(x.is_cuda() && y.is_cuda() && x.get_device_index() == y.get_device_index(),
                  "vector_add: x and y must be on one GPU, got devices ", x.get_device_index(), " and ",
                  y.get_device_index());
  STD_TORCH_CHECK(x.scalar_type() == y.scalar_type(), "vector_add: x and y must have one dtype");
  STD_TORCH_CHECK(x.numel() == y.numel(), "vector_add: x and y must have one shape, got ", x.numel(), " and ",
                  y.numel(), " elements");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  x = torch::stable::contiguous(x);
  y = torch::stable::contiguous(y);
  Tensor z = torch::stable::empty_like(x);
  if (x.numel() == 0) return z;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::with_dtype("vector_add", x.scalar_type(), [&](auto t) { launch<decltype(t)>(x, y, z, stream); });
  return z;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("vector_add(Tensor x, Tensor y) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("vector_add", TORCH_BOX(&vector_add));
}
