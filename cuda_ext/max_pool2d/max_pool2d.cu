// Maximum pooling of windows of 2 x 2, channels last, and its gradient.
//
// Memory bandwidth bounds both passes. The forward pass reads x and writes a quarter as many maxima, each with a byte
// that says which of the window's four it is; the backward pass reads the maxima's gradients and the bytes and writes
// the gradient of x. Each number is moved once, and none is added up: windows do not overlap.
//
// A block takes a row of windows at a time, and a thread 16 bytes of neighbouring channels of one window: four loads or
// four stores are under way together. Where the channels of a pixel do not fill such packs, a thread takes one channel.

#include "../common/launch.cuh"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <type_traits>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 128;
constexpr int window = 4;
// A stride loop takes the rows of windows that a grid of so many blocks leaves.
constexpr int64_t most_blocks = int64_t{1} << 20;

// Of the images x: [count, height, width, channels].
struct Images {
  int64_t count, height, width, channels;
};

// Neighbouring numbers, `bytes` each, in words: elements of 16 bits that a condition sets would be stored one by one.
template <int size, int bytes>
struct Several {
  static constexpr int per_word = size == 1 ? 1 : 4 / bytes;
  static constexpr unsigned mask = bytes == 4 ? ~0u : (1u << (8 * bytes)) - 1;
  using Short = std::conditional_t<size * bytes == 1, uint8_t, uint16_t>;
  using Word = std::conditional_t<size * bytes <= 2, Short, unsigned>;
  unsigned words[size / per_word] = {};

  __device__ unsigned get(int j) const { return words[j / per_word] >> (j % per_word * 8 * bytes) & mask; }
  // Sets what is still 0.
  __device__ void set(int j, unsigned bits) { words[j / per_word] |= bits << (j % per_word * 8 * bytes); }

  // `at` counts elements; what is moved together lies on a multiple of its bytes.
  __device__ void load(const void* from, int64_t at) {
    const char* place = static_cast<const char*>(from) + at * bytes;
    if constexpr (size * bytes == 16) {
      const auto [a, b, c, d] = *reinterpret_cast<const uint4*>(place);
      words[0] = a, words[1] = b, words[2] = c, words[3] = d;
    } else if constexpr (size * bytes == 8) {
      const auto [a, b] = *reinterpret_cast<const uint2*>(place);
      words[0] = a, words[1] = b;
    } else {
      words[0] = *reinterpret_cast<const Word*>(place);
    }
  }

  __device__ void store(void* to, int64_t at) const {
    char* place = static_cast<char*>(to) + at * bytes;
    if constexpr (size * bytes == 16) {
      // An assignment would be four stores.
      __stwb(reinterpret_cast<uint4*>(place), make_uint4(words[0], words[1], words[2], words[3]));
    } else if constexpr (size * bytes == 8) {
      *reinterpret_cast<uint2*>(place) = {words[0], words[1]};
    } else {
      *reinterpret_cast<Word*>(place) = static_cast<Word>(words[0]);
    }
  }
};

template <typename T>
__device__ float number_of(unsigned bits) {
  if constexpr (std::is_same_v<T, float>) return __uint_as_float(bits);
  else if constexpr (std::is_same_v<T, __half>) return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
  else return __uint_as_float(bits << 16);
}

// As PyTorch chooses: the first of equal numbers, and the last NaN if there is one.
__device__ bool replaces(float value, float best) { return value > best || value != value; }

template <typename T, int size>
__global__ void __launch_bounds__(threads) pool(const T* __restrict__ x, T* __restrict__ y,
                                                uint8_t* __restrict__ index, Images of) {
  const int64_t down = of.height / 2, across = of.width / 2;
  const int packs = static_cast<int>(of.channels / size);
  for (int64_t row = blockIdx.x; row < of.count * down; row += gridDim.x) {
    const int64_t image = row / down;
    const int64_t from = (image * of.height + 2 * (row - image * down)) * of.width * of.channels;
    for (int64_t item = threadIdx.x; item < across * packs; item += threads) {
      const int64_t column = item / packs, channel = (item - column * packs) * size;
      Several<size, sizeof(T)> given[window];
#pragma unroll
      for (int k = 0; k < window; ++k) {
        given[k].load(x, from + (k / 2 * of.width + 2 * column + k % 2) * of.channels + channel);
      }
      Several<size, sizeof(T)> most;
      Several<size, 1> which;
#pragma unroll
      for (int j = 0; j < size; ++j) {
        unsigned best = given[0].get(j), place = 0;
#pragma unroll
        for (unsigned k = 1; k < window; ++k) {
          const bool better = replaces(number_of<T>(given[k].get(j)), number_of<T>(best));
          best = better ? given[k].get(j) : best;
          place = better ? k : place;
        }
        most.set(j, best);
        which.set(j, place);
      }
      const int64_t to = (row * across + column) * of.channels + channel;
      most.store(y, to);
      which.store(index, to);
    }
  }
}

// A last row or column that no window reaches has a gradient of zero: it belongs to windows that are cut off.
template <typename T, int size>
__global__ void __launch_bounds__(threads) pool_backward(const T* __restrict__ gradient,
                                                         const uint8_t* __restrict__ index, T* __restrict__ dx,
                                                         Images of) {
  const int64_t down = (of.height + 1) / 2, across = (of.width + 1) / 2;
  const int packs = static_cast<int>(of.channels / size);
  for (int64_t row = blockIdx.x; row < of.count * down; row += gridDim.x) {
    const int64_t image = row / down, window_row = row - image * down;
    const int64_t to = (image * of.height + 2 * window_row) * of.width * of.channels;
    const int64_t first = (image * (of.height / 2) + window_row) * (of.width / 2) * of.channels;
    for (int64_t item = threadIdx.x; item < across * packs; item += threads) {
      const int64_t column = item / packs, channel = (item - column * packs) * size;
      const bool below = 2 * window_row + 1 < of.height, right = 2 * column + 1 < of.width;
      Several<size, sizeof(T)> given;
      Several<size, 1> which;
      if (below && right) {
        const int64_t at = first + column * of.channels + channel;
        given.load(gradient, at);
        which.load(index, at);
      }
#pragma unroll
      for (unsigned k = 0; k < window; ++k) {
        Several<size, sizeof(T)> part;
#pragma unroll
        for (int j = 0; j < size; ++j) part.set(j, which.get(j) == k ? given.get(j) : 0);
        if ((k < 2 || below) && (k % 2 == 0 || right)) {
          part.store(dx, to + (k / 2 * of.width + 2 * column + k % 2) * of.channels + channel);
        }
      }
    }
  }
}

template <typename T>
bool packed(const Images& of, const void* a, const void* b) {
  constexpr int size = cuda_ext::Pack<T>::size;
  return of.channels % size == 0 && cuda_ext::aligned_for_packs(a) && cuda_ext::aligned_for_packs(b);
}

unsigned blocks(int64_t rows) { return static_cast<unsigned>(std::min(rows, most_blocks)); }

// x: [count, height, width, channels], contiguous. Returns the maxima and their numbers in the windows. The Python face
// has refused all else with a better message; what is checked again here is what would read or write outside a tensor.
std::tuple<Tensor, Tensor> max_pool2d(Tensor x) {
  STD_TORCH_CHECK(x.is_cuda() && x.dim() == 4 && x.is_contiguous(),
                  "max_pool2d: x must be [count, height, width, channels], contiguous, on a GPU");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Images of{x.size(0), x.size(1), x.size(2), x.size(3)};
  Tensor y = torch::stable::new_empty(x, {of.count, of.height / 2, of.width / 2, of.channels});
  Tensor index = torch::stable::new_empty(y, {of.count, of.height / 2, of.width / 2, of.channels}, ScalarType::Byte);
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::with_dtype("max_pool2d", x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    if (y.numel() == 0) return;
    const auto* from = static_cast<const T*>(x.data_ptr());
    auto* to = static_cast<T*>(y.data_ptr());
    auto* which = static_cast<uint8_t*>(index.data_ptr());
    const unsigned grid = blocks(of.count * (of.height / 2));
    if (packed<T>(of, from, to)) {
      pool<T, cuda_ext::Pack<T>::size><<<grid, threads, 0, stream>>>(from, to, which, of);
    } else {
      pool<T, 1><<<grid, threads, 0, stream>>>(from, to, which, of);
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {y, index};
}

// gradient, index: of the maxima, [count, height / 2, width / 2, channels], contiguous. Returns the gradient of x.
Tensor max_pool2d_backward(Tensor gradient, Tensor index, int64_t height, int64_t width) {
  STD_TORCH_CHECK(gradient.is_cuda() && gradient.dim() == 4 && gradient.is_contiguous() && index.dim() == 4 &&
                      index.is_contiguous() && index.get_device_index() == gradient.get_device_index() &&
                      index.scalar_type() == ScalarType::Byte,
                  "max_pool2d_backward: gradient and index must be [count, rows, columns, channels], contiguous, on "
                  "one GPU, index of bytes");
  bool alike = gradient.size(1) == height / 2 && gradient.size(2) == width / 2;
  for (int64_t axis = 0; axis < 4; ++axis) alike = alike && gradient.size(axis) == index.size(axis);
  STD_TORCH_CHECK(alike, "max_pool2d_backward: gradient and index must be of the windows of ", height, " x ", width);
  const torch::stable::accelerator::DeviceGuard guard(gradient.get_device_index());
  const Images of{gradient.size(0), height, width, gradient.size(3)};
  Tensor dx = torch::stable::new_empty(gradient, {of.count, height, width, of.channels});
  const cudaStream_t stream = cuda_ext::current_stream(gradient.get_device_index());
  cuda_ext::with_dtype("max_pool2d_backward", gradient.scalar_type(), [&](auto t) {
    using T = decltype(t);
    if (dx.numel() == 0) return;
    const auto* from = static_cast<const T*>(gradient.data_ptr());
    const auto* which = static_cast<const uint8_t*>(index.data_ptr());
    auto* to = static_cast<T*>(dx.data_ptr());
    const unsigned grid = blocks(of.count * ((height + 1) / 2));
    if (packed<T>(of, from, to) && cuda_ext::aligned_for_packs(which)) {
      pool_backward<T, cuda_ext::Pack<T>::size><<<grid, threads, 0, stream>>>(from, which, to, of);
    } else {
      pool_backward<T, 1><<<grid, threads, 0, stream>>>(from, which, to, of);
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("max_pool2d(Tensor x) -> (Tensor, Tensor)");
  m.def("max_pool2d_backward(Tensor gradient, Tensor index, int height, int width) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("max_pool2d", TORCH_BOX(&max_pool2d));
  m.impl("max_pool2d_backward", TORCH_BOX(&max_pool2d_backward));
}
