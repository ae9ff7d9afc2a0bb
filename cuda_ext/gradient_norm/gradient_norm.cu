// The norm of many tensors together, each number read once.
//
// The gradients were just written, and a good part of them may still be in the cache: many small blocks read them as fast
// as it gives them. Each block adds a tile in a fixed order, and one block adds the tiles: no atomics, the same bits each
// time.

#include "../common/tensor_list.cuh"

#include <cub/block/block_reduce.cuh>

namespace {

using cuda_ext::TensorList;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 256;
// Loads of 16 bytes that a thread has under way at once.
constexpr int ahead = 8;
constexpr int tile = 4 * ahead * threads;
constexpr int threads_of_last = 1024;

struct Numbers {
  const float* values;
  int64_t size;
};

// sums [blocks]: of the squares of each block's tile.
template <int most>
__global__ void __launch_bounds__(threads) sum_tiles(const __grid_constant__ TensorList<Numbers, most> list,
                                                     float* sums) {
  cuda_ext::let_the_next_start();
  // The last to be written first: they are in the cache.
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  const int i = list.of_block(block);
  const int64_t first = int64_t{block - list.begins[i]} * tile;
  const float* const from = list.items[i].values + first;
  const int count = static_cast<int>(min(int64_t{tile}, list.items[i].size - first));
  float sum = 0;
  if (count == tile && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    float4 packs[ahead];
#pragma unroll
    for (int j = 0; j < ahead; ++j) packs[j] = reinterpret_cast<const float4*>(from)[j * threads + threadIdx.x];
#pragma unroll
    for (int j = 0; j < ahead; ++j) {
      sum += packs[j].x * packs[j].x + packs[j].y * packs[j].y + packs[j].z * packs[j].z + packs[j].w * packs[j].w;
    }
  } else {
    for (int at = threadIdx.x; at < count; at += threads) sum += from[at] * from[at];
  }
  using Reduce = cub::BlockReduce<float, threads>;
  __shared__ typename Reduce::TempStorage room;
  sum = Reduce(room).Sum(sum);
  if (threadIdx.x == 0) sums[block] = sum;
}

__global__ void __launch_bounds__(threads_of_last) root_of_sums(const float* __restrict__ sums, int count, float* norm) {
  cuda_ext::wait_for_the_one_before();
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += threads_of_last) sum += sums[i];
  using Reduce = cub::BlockReduce<double, threads_of_last>;
  __shared__ typename Reduce::TempStorage room;
  sum = Reduce(room).Sum(sum);
  if (threadIdx.x == 0) *norm = static_cast<float>(sqrt(sum));
}

// tensors: float32 on one GPU, without gaps; at least one. -> float32 []
Tensor gradient_norm(std::vector<Tensor> tensors) {
  STD_TORCH_CHECK(!tensors.empty(), "gradient_norm: no tensors");
  const Tensor& like = tensors[0];
  std::vector<Numbers> items;
  int64_t blocks = 0;
  for (const Tensor& tensor : tensors) {
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == like.get_device_index() &&
                        tensor.scalar_type() == ScalarType::Float && cuda_ext::fills_its_memory(tensor),
                    "gradient_norm: tensors must be float32 on one GPU, without gaps");
    items.push_back({static_cast<const float*>(tensor.data_ptr()), tensor.numel()});
    blocks += (tensor.numel() + tile - 1) / tile;
  }
  STD_TORCH_CHECK(blocks <= INT_MAX, "gradient_norm: more numbers than a grid has blocks for");
  const torch::stable::accelerator::DeviceGuard guard(like.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(like.get_device_index());
  const Tensor sums = torch::stable::new_empty(like, {blocks});
  Tensor norm = torch::stable::new_empty(like, {});
  auto* const sums_data = static_cast<float*>(sums.data_ptr());
  int64_t done = 0;
  cuda_ext::for_each_list(items, tile, [&](const auto& list, int) {
    cuda_ext::launch(sum_tiles<std::decay_t<decltype(list)>::capacity>,
                     {dim3(list.begins[list.count]), dim3(threads), 0, stream}, list, sums_data + done);
    done += list.begins[list.count];
  });
  cuda_ext::launch_early(root_of_sums, dim3(1), dim3(threads_of_last), 0, stream,
                         static_cast<const float*>(sums_data), static_cast<int>(blocks),
                         static_cast<float*>(norm.data_ptr()));
  return norm;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("gradient_norm(Tensor[] tensors) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("gradient_norm", TORCH_BOX(&gradient_norm));
}
