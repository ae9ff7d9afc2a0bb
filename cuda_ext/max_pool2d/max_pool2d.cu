// Maximum pooling of windows of 2 x 2 or 3 x 3, which begin at every second row and column, and its gradient; channels
// last. Windows of 3 x 3 begin one pixel before the image: what lies outside of it is never a maximum.
//
// Memory bandwidth bounds both passes. The forward pass reads x and writes a quarter as many maxima, each with a byte
// that says which of its window's numbers it is; the backward pass reads the maxima's gradients and the bytes and
// writes the gradient of x, each number once. Windows of 2 x 2 do not overlap: nothing is added up. At most four
// windows of 3 x 3 reach 2 x 2 pixels, which one thread takes: it adds up in float32, in a fixed order.
//
// A thread takes 16 bytes of neighbouring channels: several loads or stores are under way together. Where the channels
// of a pixel do not fill such packs, it takes one channel. It walks down a strip of windows, and keeps the row that the
// next ones share; the columns that neighbours share are in the caches.

#include "../common/halves.cuh"
#include "../common/launch.cuh"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <type_traits>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 128;
// Down a grid. A stride loop takes the strips that are left.
constexpr int64_t most_blocks = 65535;

// Of the images x: [count, height, width, channels].
struct Images {
  int64_t count, height, width, channels;
};

// Rows of windows, or of the gradient's patches, that a thread walks down.
__host__ __device__ constexpr int64_t strip(int64_t window) { return window == 2 ? 1 : 4; }

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Windows along a side of `size` pixels. The first of 3 x 3 begins a pixel before the side, and the last may end behind.
__host__ __device__ constexpr int64_t windows(int64_t size, int64_t window) { return (size + window) / 2 - 1; }

// Neighbouring numbers, `bytes` each, in words: elements of 16 bits that a condition sets would be stored one by one.
template <int size, int bytes>
struct Several {
  static constexpr int per_word = size == 1 ? 1 : 4 / bytes;
  static constexpr unsigned mask = bytes == 4 ? ~0u : (1u << (8 * bytes)) - 1;
  using Short = std::conditional_t<size * bytes == 1, uint8_t, uint16_t>;
  using Word = std::conditional_t<size * bytes <= 2, Short, unsigned>;
  static constexpr int count = size / per_word;
  unsigned words[count] = {};

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

// Minus infinity, twice where the numbers have half precision.
template <typename T>
constexpr unsigned lowest = std::is_same_v<T, float>    ? 0xff800000u
                            : std::is_same_v<T, __half> ? 0xfc00fc00u
                                                        : 0xff80ff80u;
// A whole number times this is in each half of a word, or in a word.
template <typename T>
constexpr unsigned each = sizeof(T) == 4 ? 1 : 0x10001;

// All bits of the numbers in `value` that replace those in `best`, as PyTorch chooses: the first of equal numbers, and
// the last NaN if there is one.
template <typename T>
__device__ unsigned replaces(unsigned value, unsigned best) {
  if constexpr (std::is_same_v<T, float>) {
    const float number = __uint_as_float(value);
    return number > __uint_as_float(best) || number != number ? ~0u : 0;
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    const Pair pair = *reinterpret_cast<const Pair*>(&value);
    return __hgt2_mask(pair, *reinterpret_cast<const Pair*>(&best)) | __hneu2_mask(pair, pair);
  }
}

// All bits of those of `places` that are `place`. Two of them compare as what their bits are in float16: tiny numbers.
template <typename T>
__device__ unsigned equal(unsigned places, unsigned place) {
  const unsigned wanted = place * each<T>;
  if constexpr (sizeof(T) == 4) return places == wanted ? ~0u : 0;
  else return __heq2_mask(*reinterpret_cast<const __half2*>(&places), *reinterpret_cast<const __half2*>(&wanted));
}

template <typename T>
__device__ float2 plus(float2 sum, unsigned word) {
  float2 numbers{__uint_as_float(word), 0};
  if constexpr (sizeof(T) == 2) numbers = cuda_ext::unpack<T>(word);
  return {sum.x + numbers.x, sum.y + numbers.y};
}

template <typename T>
__device__ unsigned rounded(float2 sum) {
  if constexpr (sizeof(T) == 4) return __float_as_uint(sum.x);
  else return cuda_ext::pack<T>(sum);
}

template <typename T, int size, int window>
__global__ void __launch_bounds__(threads) pool(const T* __restrict__ x, T* __restrict__ y,
                                                uint8_t* __restrict__ index, Images of) {
  using Numbers = Several<size, sizeof(T)>;
  constexpr int padding = window - 2;
  const int64_t down = windows(of.height, window), across = windows(of.width, window);
  const int64_t packs = of.channels / size, item = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t column = item / packs, channel = (item - column * packs) * size;
  if (column >= across) return;
  const bool left = column > 0, right = 2 * column + 1 < of.width;
  const int64_t strips = ceil_div(down, strip(window)), line = of.width * of.channels;
  for (int64_t part = blockIdx.y; part < of.count * strips; part += gridDim.y) {
    const int64_t image = part / strips, first = (part - image * strips) * strip(window);
    const int64_t end = min(first + strip(window), down);
    int64_t from = (image * of.height + 2 * first - padding) * line + (2 * column - padding) * of.channels + channel;
    int64_t to = ((image * down + first) * across + column) * of.channels + channel;
    Numbers given[window][window];
    const auto load = [&](Numbers(&row)[window], int i, bool inside) {
#pragma unroll
      for (int j = 0; j < window; ++j) {
        if (padding == 0 || (inside && (j > 0 || left) && (j < 2 || right))) {
          row[j].load(x, from + i * line + j * of.channels);
        } else {
          for (unsigned& word : row[j].words) word = lowest<T>;
        }
      }
    };
    if constexpr (window == 3) load(given[2], 0, first > 0);
#pragma unroll 1
    for (int64_t row = first; row < end; ++row) {
      if constexpr (window == 3) {
        for (int j = 0; j < window; ++j) given[0][j] = given[2][j];
      }
#pragma unroll
      for (int i = padding; i < window; ++i) load(given[i], i, i < 2 || 2 * row + 1 < of.height);
      // Where all numbers are minus infinity, the first in the image is the maximum.
      const unsigned first_place = padding * (window * (row == 0) + !left);
      Numbers most, places;
#pragma unroll
      for (int w = 0; w < Numbers::count; ++w) {
        unsigned best = given[0][0].words[w], place = first_place * each<T>;
#pragma unroll
        for (unsigned k = 1; k < window * window; ++k) {
          const unsigned value = given[k / window][k % window].words[w], better = replaces<T>(value, best);
          best = (value & better) | (best & ~better);
          place = (k * each<T> & better) | (place & ~better);
        }
        most.words[w] = best;
        places.words[w] = place;
      }
      Several<size, 1> which;
#pragma unroll
      for (int j = 0; j < size; ++j) which.set(j, places.get(j));
      most.store(y, to);
      which.store(index, to);
      from += 2 * line;
      to += across * of.channels;
    }
  }
}

// A thread writes 2 x 2 pixels at a time, in rows 2 row + p and columns 2 column + q. Windows (row + i, column + j)
// reach them, of 2 x 2 the first alone. A window that there is not has a gradient of zero: pixels that it alone would
// reach are then zero too.
template <typename T, int size, int window>
__global__ void __launch_bounds__(threads) pool_backward(const T* __restrict__ gradient,
                                                         const uint8_t* __restrict__ index, T* __restrict__ dx,
                                                         Images of) {
  using Numbers = Several<size, sizeof(T)>;
  constexpr int padding = window - 2, reach = window - 1;
  const int64_t down = windows(of.height, window), across = windows(of.width, window);
  const int64_t packs = of.channels / size, item = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t column = item / packs, channel = (item - column * packs) * size;
  if (2 * column >= of.width) return;
  const bool right = 2 * column + 1 < of.width;
  const int64_t rows = ceil_div(of.height, 2), strips = ceil_div(rows, strip(window)), line = of.width * of.channels;
  for (int64_t part = blockIdx.y; part < of.count * strips; part += gridDim.y) {
    const int64_t image = part / strips, first = (part - image * strips) * strip(window);
    const int64_t end = min(first + strip(window), rows);
    int64_t from = ((image * down + first) * across + column) * of.channels + channel;
    int64_t to = (image * of.height + 2 * first) * line + 2 * column * of.channels + channel;
    Numbers given[reach][reach], places[reach][reach];
    const auto load_next = [&](int i, bool inside) {
#pragma unroll
      for (int j = 0; j < reach; ++j) {
        given[i][j] = places[i][j] = {};
        if (!inside || column + j >= across) continue;
        Several<size, 1> which;
        which.load(index, from + j * of.channels);
        given[i][j].load(gradient, from + j * of.channels);
#pragma unroll
        for (int k = 0; k < size; ++k) places[i][j].set(k, which.get(k));
      }
      from += across * of.channels;
    };
    if constexpr (window == 3) load_next(1, true);
#pragma unroll 1
    for (int64_t row = first; row < end; ++row) {
      if constexpr (window == 3) {
        for (int j = 0; j < reach; ++j) given[0][j] = given[1][j], places[0][j] = places[1][j];
      }
      load_next(reach - 1, row + reach - 1 < down);
#pragma unroll
      for (int pixel = 0; pixel < 4; ++pixel) {
        const int p = pixel / 2, q = pixel % 2;
        Numbers sums;
#pragma unroll
        for (int w = 0; w < Numbers::count; ++w) {
          unsigned only = 0;
          float2 sum{0, 0};
#pragma unroll
          for (int k = 0; k < reach * reach; ++k) {
            const int i = k / reach, j = k % reach, place_row = p + padding - 2 * i, place = q + padding - 2 * j;
            if (place_row < 0 || place < 0) continue;
            only = given[i][j].words[w] & equal<T>(places[i][j].words[w], place_row * window + place);
            sum = plus<T>(sum, only);
          }
          sums.words[w] = reach == 1 || pixel == 0 ? only : rounded<T>(sum);
        }
        if ((p == 0 || 2 * row + 1 < of.height) && (q == 0 || right)) {
          sums.store(dx, to + p * line + q * of.channels);
        }
      }
      to += 2 * line;
    }
  }
}

template <typename T>
bool packed(const Images& of, const void* a, const void* b) {
  constexpr int size = cuda_ext::Pack<T>::size;
  return of.channels % size == 0 && cuda_ext::aligned_for_packs(a) && cuda_ext::aligned_for_packs(b);
}

// For so many rows in each image, of so many threads each.
dim3 blocks(const Images& of, int64_t rows, int64_t across, int64_t window) {
  const int64_t strips = std::min(of.count * ceil_div(rows, strip(window)), most_blocks);
  return dim3(static_cast<unsigned>(ceil_div(across, threads)), static_cast<unsigned>(strips));
}

// Calls f(T{}, the window as a constant); it is 2 or 3.
template <typename F>
void dispatch(const char* name, ScalarType dtype, int64_t window, F&& f) {
  cuda_ext::with_dtype(name, dtype, [&](auto t) {
    if (window == 2) f(t, std::integral_constant<int, 2>{});
    else f(t, std::integral_constant<int, 3>{});
  });
}

// x: [count, height, width, channels], contiguous. Returns the maxima and their numbers in the windows. The Python face
// has refused all else with a better message; what is checked again here is what would read or write outside a tensor.
std::tuple<Tensor, Tensor> max_pool2d(Tensor x, int64_t window) {
  STD_TORCH_CHECK(x.is_cuda() && x.dim() == 4 && x.is_contiguous(),
                  "max_pool2d: x must be [count, height, width, channels], contiguous, on a GPU");
  STD_TORCH_CHECK(window == 2 || window == 3, "max_pool2d: window must be 2 or 3");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Images of{x.size(0), x.size(1), x.size(2), x.size(3)};
  const int64_t down = windows(of.height, window), across = windows(of.width, window);
  Tensor y = torch::stable::new_empty(x, {of.count, down, across, of.channels});
  Tensor index = torch::stable::new_empty(y, {of.count, down, across, of.channels}, ScalarType::Byte);
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  dispatch("max_pool2d", x.scalar_type(), window, [&](auto t, auto constant) {
    using T = decltype(t);
    constexpr int side = decltype(constant)::value, size = cuda_ext::Pack<T>::size;
    if (y.numel() == 0) return;
    const auto* from = static_cast<const T*>(x.data_ptr());
    auto* to = static_cast<T*>(y.data_ptr());
    auto* which = static_cast<uint8_t*>(index.data_ptr());
    if (packed<T>(of, from, to)) {
      const dim3 grid = blocks(of, down, across * (of.channels / size), side);
      pool<T, size, side><<<grid, threads, 0, stream>>>(from, to, which, of);
    } else {
      const dim3 grid = blocks(of, down, across * of.channels, side);
      pool<T, 1, side><<<grid, threads, 0, stream>>>(from, to, which, of);
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {y, index};
}

// gradient, index: of the maxima, [count, rows, columns, channels], contiguous. Returns the gradient of x.
Tensor max_pool2d_backward(Tensor gradient, Tensor index, int64_t height, int64_t width, int64_t window) {
  STD_TORCH_CHECK(gradient.is_cuda() && gradient.dim() == 4 && gradient.is_contiguous() && index.dim() == 4 &&
                      index.is_contiguous() && index.get_device_index() == gradient.get_device_index() &&
                      index.scalar_type() == ScalarType::Byte,
                  "max_pool2d_backward: gradient and index must be [count, rows, columns, channels], contiguous, on "
                  "one GPU, index of bytes");
  STD_TORCH_CHECK(window == 2 || window == 3, "max_pool2d_backward: window must be 2 or 3");
  bool alike = gradient.size(1) == windows(height, window) && gradient.size(2) == windows(width, window);
  for (int64_t axis = 0; axis < 4; ++axis) alike = alike && gradient.size(axis) == index.size(axis);
  STD_TORCH_CHECK(alike, "max_pool2d_backward: gradient and index must be of the windows of ", height, " x ", width);
  const torch::stable::accelerator::DeviceGuard guard(gradient.get_device_index());
  const Images of{gradient.size(0), height, width, gradient.size(3)};
  Tensor dx = torch::stable::new_empty(gradient, {of.count, height, width, of.channels});
  const cudaStream_t stream = cuda_ext::current_stream(gradient.get_device_index());
  dispatch("max_pool2d_backward", gradient.scalar_type(), window, [&](auto t, auto constant) {
    using T = decltype(t);
    constexpr int side = decltype(constant)::value, size = cuda_ext::Pack<T>::size;
    if (dx.numel() == 0) return;
    const auto* from = static_cast<const T*>(gradient.data_ptr());
    const auto* which = static_cast<const uint8_t*>(index.data_ptr());
    auto* to = static_cast<T*>(dx.data_ptr());
    const int64_t down = ceil_div(height, 2), across = ceil_div(width, 2);
    if (packed<T>(of, from, to) && cuda_ext::aligned_for_packs(which)) {
      const dim3 grid = blocks(of, down, across * (of.channels / size), side);
      pool_backward<T, size, side><<<grid, threads, 0, stream>>>(from, which, to, of);
    } else {
      const dim3 grid = blocks(of, down, across * of.channels, side);
      pool_backward<T, 1, side><<<grid, threads, 0, stream>>>(from, which, to, of);
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("max_pool2d(Tensor x, int window) -> (Tensor, Tensor)");
  m.def("max_pool2d_backward(Tensor gradient, Tensor index, int height, int width, int window) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("max_pool2d", TORCH_BOX(&max_pool2d));
  m.impl("max_pool2d_backward", TORCH_BOX(&max_pool2d_backward));
}
