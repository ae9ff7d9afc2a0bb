// What the depthwise convolution's kernels share: how an image is cut into tiles, and how a tile with its border comes
// into shared memory.
#pragma once

#include "../launch.cuh"

#include <algorithm>
#include <cstdint>

namespace depthwise {

enum Padding : int { zeros = 0, reflect = 1, replicate = 2 };

// The shape of one call; the filter is k x k, one for each channel.
struct Shape {
  int64_t batch, channels;
  int height, width, k;
};

// n / divisor as one multiplication; exact where n and the divisor stay below 2^16.
struct Divider {
  uint32_t divisor, factor;
  Divider() = default;
  explicit Divider(int d)
      : divisor(static_cast<uint32_t>(d)), factor(d == 1 ? 0 : 0xffffffffu / static_cast<uint32_t>(d) + 1) {}
  __device__ int operator()(int n) const {
    return divisor == 1 ? n : static_cast<int>(__umulhi(static_cast<uint32_t>(n), factor));
  }
};

// A rectangle of shared memory that holds a part of an image: `rows` rows, each `pitch` elements, moved `bytes` at a
// time (0: element by element). Its first element is the image's (top, left) relative to the tile of outputs.
struct Window {
  int rows, pitch, top, left, bytes;
  int per_item;  // moves for one image
  Divider by_row, by_item;

  // Sets the pitch, and with it what depends on it and on the rows.
  template <typename T>
  void resize(int new_pitch) {
    const int step = bytes ? bytes / static_cast<int>(sizeof(T)) : 1;
    pitch = new_pitch;
    per_item = rows * (pitch / step);
    by_row = Divider(pitch / step);
    by_item = Divider(per_item);
  }
};

// How the outputs of one channel are cut: images into tiles, tiles into units of `unit_rows` x 4 outputs, one a thread.
// A stage is the part that is in shared memory at once: one tile, or several whole images where they are small.
struct Plan {
  int tile_height, tile_width;  // multiples of unit_rows and, where an image has several tiles across, of 8
  int tiles_down, tiles_across;
  int strips, units;  // units across a tile, units of a tile
  Divider by_units, by_strips;
  int images;          // images in a stage; 1 unless an image is one tile
  int64_t stages;      // of a channel
  int stages_a_block;
  int blocks;          // of a channel
  int threads;
  bool packed;         // outputs are stored four at a time
};

template <typename T>
__device__ inline float widen(T value) {
  return static_cast<float>(value);
}

// Four neighbours, aligned to their common size, as floats.
template <typename T>
__device__ inline void load4(const T* from, float* to) {
  if constexpr (sizeof(T) == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    struct alignas(8) Four {
      T values[4];
    };
    const Four v = *reinterpret_cast<const Four*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = widen(v.values[i]);
  }
}

template <typename T>
__device__ inline void store4(T* to, const float* from) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
    struct alignas(8) Four {
      T values[4];
    } v;
#pragma unroll
    for (int i = 0; i < 4; ++i) v.values[i] = static_cast<T>(from[i]);
    *reinterpret_cast<Four*>(to) = v;
  }
}

template <typename T>
__device__ inline void load2(const T* from, float* to) {
  struct alignas(2 * sizeof(T)) Two {
    T values[2];
  };
  const Two v = *reinterpret_cast<const Two*>(from);
  to[0] = widen(v.values[0]), to[1] = widen(v.values[1]);
}

// The place that padding puts at `i`, or -1 where that is zero. The clamp is for the slack of a tile, which no output
// reads: a place within reach of the filter needs none.
__device__ inline int padded(int i, int size, int padding) {
  if (static_cast<unsigned>(i) < static_cast<unsigned>(size)) return i;
  if (padding == zeros) return -1;
  if (padding == reflect) i = i < 0 ? -i : 2 * (size - 1) - i;
  return min(max(i, 0), size - 1);
}

// Asynchronous copy of Bytes from device to shared memory, or zeros.
template <int Bytes>
__device__ inline void copy_or_zero(void* to, const void* from, bool copy) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int size = copy ? Bytes : 0;
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from), "r"(size));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(address), "l"(from), "n"(Bytes), "r"(size));
  }
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::); }

// Waits until at most `pending` groups of copies are under way.
template <int pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending));
}

// Where a stage's outputs lie: the first image, how many, and the tile's first row and column.
struct Stage {
  int64_t image;
  int images, row, column;
};

__device__ inline Stage stage_at(int64_t index, const Plan& plan, const Shape& shape) {
  const int tiles = plan.tiles_down * plan.tiles_across;
  if (tiles == 1) {
    const int64_t image = index * plan.images;
    const int64_t left = shape.batch - image;
    return {image, left < plan.images ? static_cast<int>(left) : plan.images, 0, 0};
  }
  const int64_t image = index / tiles;
  const int tile = static_cast<int>(index - image * tiles);
  const int down = tile / plan.tiles_across;
  return {image, 1, down * plan.tile_height, (tile - down * plan.tiles_across) * plan.tile_width};
}

template <typename T, int Bytes>
__device__ inline void fill_by(T* shared, const T* source, const Window& window, const Stage& stage,
                               const Shape& shape, int64_t channel, int padding) {
  constexpr int step = Bytes ? Bytes / static_cast<int>(sizeof(T)) : 1;
  const int64_t plane = int64_t{shape.height} * shape.width;
  const T* first = source + (stage.image * shape.channels + channel) * plane;
  const int total = stage.images * window.per_item;
  const int moves_a_row = window.by_row.divisor;
  for (int i = threadIdx.x; i < total; i += blockDim.x) {
    const int image = window.by_item(i);
    const int place = i - image * window.per_item;
    const int row = window.by_row(place);
    const int column = (place - row * moves_a_row) * step;
    const int y = stage.row + window.top + row;
    const int x = stage.column + window.left + column;
    T* to = shared + (image * window.rows + row) * window.pitch + column;
    const T* from = first + image * shape.channels * plane;
    const bool inside = static_cast<unsigned>(y) < static_cast<unsigned>(shape.height) &&
                        static_cast<unsigned>(x) < static_cast<unsigned>(shape.width);
    if (inside || padding == zeros) {
      from = inside ? from + int64_t{y} * shape.width + x : from;
      if constexpr (Bytes != 0) {
        copy_or_zero<Bytes>(to, from, inside);
      } else {
        *to = inside ? *from : static_cast<T>(0.f);
      }
    } else {
      const T* line = from + int64_t{padded(y, shape.height, padding)} * shape.width;
#pragma unroll
      for (int j = 0; j < step; ++j) to[j] = line[padded(x + j, shape.width, padding)];
    }
  }
}

// Starts to bring a stage's window of `source` [batch, channels, height, width] into shared memory. A move lies whole
// inside of the image or outside: its width divides the image's, the tile's and the border's.
template <typename T>
__device__ inline void fill(T* shared, const T* source, const Window& window, const Stage& stage, const Shape& shape,
                            int64_t channel, int padding) {
  if (window.bytes == 16) return fill_by<T, 16>(shared, source, window, stage, shape, channel, padding);
  if (window.bytes == 8) return fill_by<T, 8>(shared, source, window, stage, shape, channel, padding);
  if (window.bytes == 4) return fill_by<T, 4>(shared, source, window, stage, shape, channel, padding);
  if constexpr (sizeof(T) == 2) fill_by<T, 0>(shared, source, window, stage, shape, channel, padding);
}

__host__ __device__ inline int up_to(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// The widest move that every row of an image at `data` allows.
template <typename T>
int bytes_a_move(const void* data, int width) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  for (int bytes : {16, 8, 4}) {
    if (address % bytes == 0 && int64_t{width} * sizeof(T) % bytes == 0) return bytes;
  }
  return 0;
}

// `border`: what the filter reaches beyond the tile on each side, 0 for a window of the outputs' own places.
template <typename T>
Window window_of(const void* data, int tile_height, int tile_width, int border, int width) {
  Window window{};
  constexpr int pack = 16 / sizeof(T);
  window.bytes = bytes_a_move<T>(data, width);
  window.rows = tile_height + 2 * border;
  window.top = -border;
  window.left = -up_to(border, pack);
  window.resize<T>(up_to(up_to(border, pack) + tile_width + up_to(border, 4), pack));
  return window;
}

}  // namespace depthwise
