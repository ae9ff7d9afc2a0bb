// One launch over many tensors: which tensor a block has, and which of its tiles.
#pragma once

#include "launch.cuh"

#include <climits>
#include <vector>

namespace cuda_ext {

// An argument of a kernel, of which there may be 32,764 bytes from CUDA 12.1 on. Tensor i has the blocks from begins[i]
// to begins[i + 1].
template <typename Item, int most>
struct TensorList {
  static constexpr int capacity = most;
  Item items[most];
  unsigned begins[most + 1];
  int count;

  __device__ int of_block(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (begins[middle] <= block) low = middle;
      else high = middle;
    }
    return low;
  }
};

// Calls f(list, first) with all items in one list, or in several of `many` each; first: the number of its first item.
// An item has a member `size`, and a block for each `tile` of its numbers; without a block f is not called.
template <typename Item, typename F>
void for_each_list(const std::vector<Item>& items, int64_t tile, F&& f) {
  constexpr int few = 64, many = 600;
  static_assert(sizeof(TensorList<Item, many>) < 32000, "an argument of a kernel has at most 32,764 bytes");
  const auto fill = [&](auto& list, std::size_t first) {
    list.count = 0;
    list.begins[0] = 0;
    for (std::size_t i = first; i < items.size() && list.count < list.capacity; ++i) {
      const int64_t end = list.begins[list.count] + (items[i].size + tile - 1) / tile;
      STD_TORCH_CHECK(end <= INT_MAX, "more numbers than a grid has blocks for");
      list.items[list.count++] = items[i];
      list.begins[list.count] = static_cast<unsigned>(end);
    }
    if (list.begins[list.count] > 0) f(list, static_cast<int>(first));
  };
  if (items.size() <= few) {
    TensorList<Item, few> list;
    fill(list, 0);
  } else {
    TensorList<Item, many> list;
    for (std::size_t first = 0; first < items.size(); first += many) fill(list, first);
  }
}

// Whether the numbers of a tensor fill the memory from its first one on, in whatever order of its dimensions.
inline bool fills_its_memory(const torch::stable::Tensor& tensor) {
  int64_t extent = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) extent += (tensor.size(i) - 1) * tensor.stride(i);
  return tensor.numel() == 0 || extent == tensor.numel();
}

inline bool of_equal_sizes(const torch::stable::Tensor& a, const torch::stable::Tensor& b) {
  if (a.dim() != b.dim()) return false;
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != b.size(i)) return false;
  }
  return true;
}

// Whether two tensors are of one dtype on one device, and of equal sizes and strides.
inline bool laid_out_alike(const torch::stable::Tensor& a, const torch::stable::Tensor& b) {
  if (!of_equal_sizes(a, b) || a.scalar_type() != b.scalar_type() || a.is_cuda() != b.is_cuda() ||
      a.get_device_index() != b.get_device_index()) {
    return false;
  }
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

}  // namespace cuda_ext
