// Copies of many tensors by one launch.
//
// A block copies a tile of bytes, of whatever dtype. Tensors of other strides, dtypes or devices are left to PyTorch, one
// by one.

#include "../common/tensor_list.cuh"

namespace {

using cuda_ext::TensorList;
using torch::stable::Tensor;

constexpr int threads = 256;
// Loads of 16 bytes that a thread has under way at once.
constexpr int ahead = 4;
constexpr int tile = static_cast<int>(sizeof(uint4)) * ahead * threads;

// size: bytes.
struct Bytes {
  const char* from;
  char* to;
  int64_t size;
};

template <int most>
__global__ void __launch_bounds__(threads) copy_tiles(const __grid_constant__ TensorList<Bytes, most> list) {
  const int i = list.of_block(blockIdx.x);
  const int64_t first = int64_t{blockIdx.x - list.begins[i]} * tile;
  const char* const from = list.items[i].from + first;
  char* const to = list.items[i].to + first;
  const int size = static_cast<int>(min(int64_t{tile}, list.items[i].size - first));
  const bool aligned = (reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % sizeof(uint4) == 0;
  const int packs = aligned ? size / static_cast<int>(sizeof(uint4)) : 0;
  uint4 loaded[ahead];
#pragma unroll
  for (int j = 0; j < ahead; ++j) {
    const int at = j * threads + static_cast<int>(threadIdx.x);
    if (at < packs) loaded[j] = reinterpret_cast<const uint4*>(from)[at];
  }
#pragma unroll
  for (int j = 0; j < ahead; ++j) {
    const int at = j * threads + static_cast<int>(threadIdx.x);
    if (at < packs) reinterpret_cast<uint4*>(to)[at] = loaded[j];
  }
  for (int at = packs * static_cast<int>(sizeof(uint4)) + threadIdx.x; at < size; at += threads) to[at] = from[at];
}

// Lists of one length, of tensors of equal sizes.
void foreach_copy(std::vector<Tensor> targets, std::vector<Tensor> sources) {
  STD_TORCH_CHECK(targets.size() == sources.size(), "foreach_copy: lists of different lengths");
  const auto device = targets[0].get_device_index();
  std::vector<Bytes> items;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    Tensor& target = targets[i];
    const Tensor& source = sources[i];
    STD_TORCH_CHECK(cuda_ext::of_equal_sizes(target, source), "foreach_copy: tensors ", i, " are of different sizes");
    if (target.is_cuda() && target.get_device_index() == device && cuda_ext::laid_out_alike(target, source) &&
        cuda_ext::fills_its_memory(target)) {
      items.push_back({static_cast<const char*>(source.data_ptr()), static_cast<char*>(target.data_ptr()),
                       target.numel() * static_cast<int64_t>(target.element_size())});
    } else {
      torch::stable::copy_(target, source);
    }
  }
  if (items.empty()) return;
  const torch::stable::accelerator::DeviceGuard guard(device);
  const cudaStream_t stream = cuda_ext::current_stream(device);
  cuda_ext::for_each_list(items, tile, [&](const auto& list, int) {
    cuda_ext::launch(copy_tiles<std::decay_t<decltype(list)>::capacity>,
                     {dim3(list.begins[list.count]), dim3(threads), 0, stream}, list);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("foreach_copy(Tensor(a!)[] targets, Tensor[] sources) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) { m.impl("foreach_copy", TORCH_BOX(&foreach_copy)); }
