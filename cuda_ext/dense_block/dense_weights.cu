// The weights of a dense block's convolutions as its kernels read them, all in one launch: in half precision, and padded
// with zeros to 16 bytes.
//
//   kernel                      written
//   [outputs, channels, 1, 1]   outputs x padded channels
//   [outputs, channels, 3, 3]   padded outputs x 9 x channels

#include "../common/tensor_list.cuh"

namespace {

using cuda_ext::TensorList;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 256;
// Numbers of a thread: one store of 16 bytes.
constexpr int lane = 8;
constexpr int tile = lane * threads;

// Where the weights are, and how far it is from an output, a channel, a line and a tap to the next; where `size` numbers of
// them go.
template <typename T>
struct Weights {
  const float* from;
  T* to;
  int size, outputs, channels, taps;
  int of_output, of_channel, of_line, of_tap;

  __host__ __device__ int columns() const { return taps == 1 ? (channels + lane - 1) / lane * lane : channels; }
  __host__ int rows() const { return taps == 1 ? outputs : (outputs + lane - 1) / lane * lane; }
};

template <typename T, int most>
__global__ void __launch_bounds__(threads) pack(const __grid_constant__ TensorList<Weights<T>, most> list) {
  const int at = list.of_block(blockIdx.x);
  const Weights<T>& own = list.items[at];
  const int i = static_cast<int>(blockIdx.x - list.begins[at]) * tile + threadIdx.x * lane;
  if (i >= own.size) return;
  const int columns = own.columns(), channel = i % columns, tap = i / columns % own.taps, output = i / columns / own.taps;
  const float* const from = own.from + output * own.of_output + tap / 3 * own.of_line + tap % 3 * own.of_tap;
  cuda_ext::Pack<T> found;
#pragma unroll
  for (int v = 0; v < lane; ++v) {
    const bool real = output < own.outputs && channel + v < own.channels;
    found.values[v] = real ? static_cast<T>(from[(channel + v) * own.of_channel]) : T(0.0f);
  }
  *reinterpret_cast<cuda_ext::Pack<T>*>(own.to + i) = found;
}

template <typename T>
Weights<T> weights_of(const Tensor& kernel) {
  STD_TORCH_CHECK(kernel.is_cuda() && kernel.dim() == 4 && kernel.scalar_type() == ScalarType::Float &&
                      kernel.numel() < (1 << 30),
                  "dense_weights: kernels must be float32 of four dimensions on a GPU");
  const bool product = kernel.size(2) == 1 && kernel.size(3) == 1 && kernel.size(0) % lane == 0;
  STD_TORCH_CHECK(product || (kernel.size(2) == 3 && kernel.size(3) == 3 && kernel.size(1) % lane == 0),
                  "dense_weights: kernels must be 1 x 1, of a multiple of 8 outputs, or 3 x 3, of as many channels");
  int strides[4];
  for (int i = 0; i < 4; ++i) {
    STD_TORCH_CHECK(kernel.stride(i) < (1 << 30), "dense_weights: the numbers of a kernel lie too far from each other");
    strides[i] = static_cast<int>(kernel.stride(i));
  }
  Weights<T> own{static_cast<const float*>(kernel.data_ptr()), nullptr, 0, static_cast<int>(kernel.size(0)),
                 static_cast<int>(kernel.size(1)), product ? 1 : 9, strides[0], strides[1], strides[2], strides[3]};
  own.size = own.rows() * own.taps * own.columns();
  return own;
}

template <typename T>
Tensor packed(const Tensor& x, const std::vector<Tensor>& kernels) {
  std::vector<Weights<T>> items;
  int64_t size = 0;
  for (const Tensor& kernel : kernels) {
    STD_TORCH_CHECK(kernel.get_device_index() == x.get_device_index(), "dense_weights: a kernel is on another device than x");
    items.push_back(weights_of<T>(kernel));
    size += items.back().size;
  }
  Tensor all = torch::stable::new_empty(x, {size});
  T* to = static_cast<T*>(all.data_ptr());
  for (Weights<T>& own : items) {
    own.to = to;
    to += own.size;
  }
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::for_each_list(items, tile, [&](auto& list, int) {
    constexpr int most = std::decay_t<decltype(list)>::capacity;
    cuda_ext::launch(&pack<T, most>, {dim3(list.begins[list.count]), dim3(threads), 0, stream}, list);
  });
  return all;
}

// kernels: of 1x1 and 3x3 convolutions. All of them one behind the other, in x's dtype.
Tensor dense_weights(Tensor x, std::vector<Tensor> kernels) {
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  switch (x.scalar_type()) {
    case ScalarType::Half: return packed<__half>(x, kernels);
    case ScalarType::BFloat16: return packed<__nv_bfloat16>(x, kernels);
    default: STD_TORCH_CHECK(false, "dense_weights: x must be of float16 or bfloat16");
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) { m.def("dense_weights(Tensor x, Tensor[] kernels) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) { m.impl("dense_weights", TORCH_BOX(&dense_weights)); }
