// What the depthwise convolution's kernels share: how an image is cut into tiles, and how a tile with its border comes
// into shared memory.
#pragma once

#include "../common/copies.cuh"

#include <algorithm>
#include <cstdint>

namespace depthwise {

// The most shared memory of a block on every GPU served.
constexpr int most_shared = 99 * 1024;

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

// A rectangle of shared memory that holds a part of an image, `rows` rows of `pitch` elements; its first element is the
// image's at (top, left) from the tile's first output. It is brought in `bytes` at a time (0: element by element), by
// threads that step through it without a division. Where the tile is the whole image and padding is zero, only the image
// itself is brought in, each time, into zeros that were written once.
struct Window {
  int rows, pitch, top, left, bytes;
  bool whole;
  int first, fill_rows, moves;  // what is brought in: its place, its rows, and moves a row
  Divider by_row, by_image;
  int origin, image;  // the place of the tile's first column in the first row, and the distance between images
  int step_images, step_rows, step_moves;  // how far a block's threads step, and by how many elements
  int step;
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

// Waits until at most `pending` groups of copies, up to 3, are under way.
__device__ inline void wait_for_copies(int pending) {
  switch (pending) {
    case 0: cuda_ext::await_copies<0>(); break;
    case 1: cuda_ext::await_copies<1>(); break;
    case 2: cuda_ext::await_copies<2>(); break;
    default: cuda_ext::await_copies<3>();
  }
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

template <typename T, int Bytes, bool whole>
__device__ inline void fill_by(T* shared, const T* source, const Window& window, const Stage& stage,
                               const Shape& shape, int64_t channel, int padding) {
  constexpr int size = Bytes ? Bytes / static_cast<int>(sizeof(T)) : 1;
  const int64_t plane = int64_t{shape.height} * shape.width;
  const int64_t between = shape.channels * plane;
  int image = window.by_image(threadIdx.x);
  int row = window.by_row(threadIdx.x - image * window.fill_rows * window.moves);
  int move = threadIdx.x - (image * window.fill_rows + row) * window.moves;
  int y = whole ? 0 : stage.row + window.top;
  int x = whole ? 0 : stage.column + window.left;
  const T* from = source + (stage.image * shape.channels + channel) * plane + image * between +
                  int64_t{y + row} * shape.width + x + move * size;
  T* to = shared + window.first + (image * window.rows + row) * window.pitch + move * size;
  const int64_t step = window.step_images * between + int64_t{window.step_rows} * shape.width + window.step_moves * size;
  const int next_row = window.pitch - window.moves * size;
  const int next_image = (window.rows - window.fill_rows) * window.pitch;
  const auto advance = [&] {
    image += window.step_images;
    row += window.step_rows;
    move += window.step_moves;
    to += window.step;
    from += step;
    if (move >= window.moves) {
      move -= window.moves;
      ++row;
      to += next_row;
      if (!whole) from += shape.width - window.moves * size;
    }
    if (row >= window.fill_rows) {
      row -= window.fill_rows;
      ++image;
      to += next_image;
      from += between - int64_t{window.fill_rows} * shape.width;
    }
  };
  const auto inside = [&] {
    return whole || (static_cast<unsigned>(y + row) < static_cast<unsigned>(shape.height) &&
                     static_cast<unsigned>(x + move * size) < static_cast<unsigned>(shape.width));
  };
  const auto beyond = [&](int j) {
    const T* corner = source + ((stage.image + image) * shape.channels + channel) * plane;
    return corner[int64_t{padded(y + row, shape.height, padding)} * shape.width +
                  padded(x + move * size + j, shape.width, padding)];
  };
  if constexpr (Bytes != 0) {
    for (; image < stage.images; advance()) {
      const bool copied = inside();
      if (copied || padding == zeros) {
        cuda_ext::copy_async<Bytes>(to, copied ? from : source, copied);
      } else {
#pragma unroll
        for (int j = 0; j < size; ++j) to[j] = beyond(j);
      }
    }
  } else {
    // No asynchronous copy is so small: a few loads are under way before the first is stored.
    constexpr int unroll = 4;
    while (image < stage.images) {
      T values[unroll];
      T* places[unroll];
#pragma unroll
      for (int i = 0; i < unroll; ++i) {
        places[i] = nullptr;
        if (image >= stage.images) continue;
        places[i] = to;
        values[i] = inside() ? *from : padding == zeros ? static_cast<T>(0.f) : beyond(0);
        advance();
      }
#pragma unroll
      for (int i = 0; i < unroll; ++i) {
        if (places[i]) *places[i] = values[i];
      }
    }
  }
}

template <typename T, bool whole>
__device__ inline void fill(T* shared, const T* source, const Window& window, const Stage& stage, const Shape& shape,
                            int64_t channel, int padding) {
  if (window.bytes == 16) return fill_by<T, 16, whole>(shared, source, window, stage, shape, channel, padding);
  if (window.bytes == 8) return fill_by<T, 8, whole>(shared, source, window, stage, shape, channel, padding);
  if (window.bytes == 4) return fill_by<T, 4, whole>(shared, source, window, stage, shape, channel, padding);
  if constexpr (sizeof(T) == 2) fill_by<T, 0, whole>(shared, source, window, stage, shape, channel, padding);
}

// Starts to bring a stage's window of `source` [batch, channels, height, width] into shared memory. A move lies whole
// inside of the image or outside: its width divides the image's, the tile's and the border's.
template <typename T>
__device__ inline void fill(T* shared, const T* source, const Window& window, const Stage& stage, const Shape& shape,
                            int64_t channel, int padding) {
  if (window.whole) {
    fill<T, true>(shared, source, window, stage, shape, channel, padding);
  } else {
    fill<T, false>(shared, source, window, stage, shape, channel, padding);
  }
}

// Bulk copies, a whole image by one instruction: with code for Hopper. `barrier` counts the bytes. One thread calls
// `expect` and `fill_whole`: the copies of several would be issued one by one as well.
__device__ inline void begin_barriers(uint64_t* barriers, int count) {
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) cuda_ext::begin_barrier(cuda_ext::shared_address(barriers + i));
    cuda_ext::order_barriers();
  }
  // What ordinary stores wrote here is in place before the copies.
  cuda_ext::order_with_bulk_copies();
}

template <typename T>
__device__ inline void fill_whole(T* shared, const T* source, const Window& window, const Stage& stage,
                                  const Shape& shape, int64_t channel, int bytes, uint64_t* barrier) {
  const int64_t plane = int64_t{shape.height} * shape.width;
  const T* from = source + (stage.image * shape.channels + channel) * plane;
  T* to = shared + window.first;
#pragma unroll 1
  for (int image = 0; image < stage.images; ++image) {
    cuda_ext::copy_bulk(cuda_ext::shared_address(to), from, bytes, cuda_ext::shared_address(barrier));
    from += shape.channels * plane;
    to += window.image;
  }
}

// Zeros for a window that is filled with whole images. `bytes` is a multiple of 16.
__device__ inline void clear(void* memory, int bytes) {
  auto* packs = static_cast<uint4*>(memory);
  for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) packs[i] = make_uint4(0, 0, 0, 0);
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

// `border`: what the filter reaches beyond the tile on each side, 0 for a window of the outputs' own places. `more_rows`
// and `more_columns`: what a kernel reads beyond that, for sums that it drops.
template <typename T>
Window window_of(const void* data, const Shape& shape, const Plan& plan, int border, int padding, int more_rows = 0,
                 int more_columns = 0) {
  Window window{};
  constexpr int pack = 16 / sizeof(T);
  window.bytes = bytes_a_move<T>(data, shape.width);
  window.whole = plan.tiles_down == 1 && plan.tiles_across == 1 && (padding == zeros || border == 0);
  window.rows = plan.tile_height + 2 * border + more_rows;
  window.top = -border;
  window.left = -up_to(border, pack);
  window.pitch = up_to(up_to(border, pack) + plan.tile_width + up_to(border, 4) + more_columns, pack);
  const int size = window.bytes ? window.bytes / static_cast<int>(sizeof(T)) : 1;
  window.first = window.whole ? border * window.pitch - window.left : 0;
  window.fill_rows = window.whole ? shape.height : window.rows;
  window.moves = (window.whole ? shape.width : window.pitch) / size;
  window.by_row = Divider(window.moves);
  window.by_image = Divider(window.fill_rows * window.moves);
  const int image = plan.threads / (window.fill_rows * window.moves);
  const int rest = plan.threads - image * window.fill_rows * window.moves;
  window.step_images = image;
  window.step_rows = rest / window.moves;
  window.step_moves = rest % window.moves;
  window.origin = -window.left;
  window.image = window.rows * window.pitch;
  window.step = (image * window.rows + window.step_rows) * window.pitch + window.step_moves * size;
  return window;
}

// Whether a window's images can come in one piece each, their rows without a gap: a thread's four places must lie
// together in shared memory, and bulk copies move multiples of 16 bytes.
template <typename T>
bool comes_whole(const Window& window, const T* data, const Shape& shape) {
  return window.whole && shape.width % 4 == 0 &&
         int64_t{shape.height} * shape.width * static_cast<int64_t>(sizeof(T)) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

// Lays a window out for that: border rows of zeros above and below, none to the sides.
template <typename T>
void lay_whole(Window& window, const Plan& plan, const Shape& shape, int border) {
  constexpr int pack = 16 / sizeof(T);
  window.pitch = shape.width;
  window.first = border == 0 ? 0 : up_to(border * shape.width + 4, pack);
  window.origin = window.first - border * shape.width;
  window.image = up_to(window.first + (plan.tile_height + border) * shape.width + 4, pack);
}

// What a block's walk over its stages needs: windows of one tensor or two, and how they come.
struct Walk {
  Shape shape;
  Plan plan;
  Window window, centre;
  int padding;
  bool bulk;                  // whole images come in one piece each, of image_bytes
  int image_bytes;
  int depth;                  // stages under way at once, up to most_depth
  int buffer, centre_offset;  // elements of T: one stage, and where in it the centre window begins
};

constexpr int most_depth = 2;

// Brings the block's stages into `memory`, the next one while one is computed. All threads call begin() once the first
// is under way; for each stage, once it is there, compute(s, stage, shared), and after the barrier that ends it
// after(s, stage). Without `with_centre` only the window of `windowed` is brought. `bulk` is walk.bulk, a constant
// where the kernel has it as one. The kernel may be launched early (see launch.cuh): it must not touch global memory
// before.
template <bool with_centre, typename T, typename Begin, typename Compute, typename After>
__device__ inline void for_stages(const Walk& walk, bool bulk, const T* windowed, const T* centred, char* memory,
                                  Begin begin, Compute compute, After after) {
  const Plan& plan = walk.plan;
  const Shape& shape = walk.shape;
  const int64_t channel = blockIdx.x;
  const int64_t first = int64_t{blockIdx.y} * plan.stages_a_block;
  const int stages = static_cast<int>(min(plan.stages - first, int64_t{plan.stages_a_block}));
  T* buffers = reinterpret_cast<T*>(memory);

  __shared__ uint64_t arrived[most_depth];
  // The window of the places themselves is whole wherever the other is; not so the other way round.
  if (with_centre ? walk.centre.whole : walk.window.whole) {
    clear(memory, walk.depth * walk.buffer * static_cast<int>(sizeof(T)));
    if (bulk) begin_barriers(arrived, walk.depth);
    __syncthreads();
  }
  const auto stage_of = [&](int s) -> Stage {
    if (!bulk) return stage_at(first + s, plan, shape);
    const int64_t image = (first + s) * plan.images;
    return {image, static_cast<int>(min(int64_t{plan.images}, shape.batch - image)), 0, 0};
  };
  const auto bring = [&](int s) {
    T* buffer = buffers + s % walk.depth * walk.buffer;
    if (bulk) {
      if (s >= stages || threadIdx.x != 0) return;
      const Stage stage = stage_of(s);
      uint64_t* barrier = &arrived[s % walk.depth];
      cuda_ext::expect_bytes(cuda_ext::shared_address(barrier), (with_centre ? 2 : 1) * stage.images * walk.image_bytes);
      fill_whole(buffer, windowed, walk.window, stage, shape, channel, walk.image_bytes, barrier);
      if constexpr (with_centre) {
        fill_whole(buffer + walk.centre_offset, centred, walk.centre, stage, shape, channel, walk.image_bytes, barrier);
      }
      return;
    }
    if (s < stages) {
      const Stage stage = stage_of(s);
      fill(buffer, windowed, walk.window, stage, shape, channel, walk.padding);
      if constexpr (with_centre) {
        fill(buffer + walk.centre_offset, centred, walk.centre, stage, shape, channel, zeros);
      }
    }
    cuda_ext::commit_copies();
  };
  cuda_ext::wait_for_the_one_before();
  for (int s = 0; s < walk.depth - 1; ++s) bring(s);
  begin();
  for (int s = 0; s < stages; ++s) {
    bring(s + walk.depth - 1);
    if (bulk) {
      cuda_ext::await_barrier(cuda_ext::shared_address(&arrived[s % walk.depth]), s / walk.depth & 1);
    } else {
      wait_for_copies(walk.depth - 1);
      __syncthreads();
    }
    const Stage stage = stage_of(s);
    compute(s, stage, buffers + s % walk.depth * walk.buffer);
    __syncthreads();
    after(s, stage);
  }
}

// Stages that one block walks. Longer runs cost fewer beginnings and, with the filter's gradient, fewer sums over a
// block; enough blocks keep the GPU busy, about four for each SM of a large one. That is a constant, as is all that a
// plan is made from, but for the shape: which parts of the filter's gradient are summed in which order does not depend
// on the GPU.
inline void share_stages(Plan& plan, const Shape& shape, int64_t longest) {
  constexpr int few_blocks = 512;
  const int64_t few = std::max<int64_t>(1, plan.stages * shape.channels / few_blocks);
  const int64_t at_least = (plan.stages + 65534) / 65535;
  plan.stages_a_block = static_cast<int>(std::max(std::min(few, longest), at_least));
  plan.blocks = static_cast<int>((plan.stages + plan.stages_a_block - 1) / plan.stages_a_block);
}

// Sets how much shared memory a kernel may have; the most that one block gets on every GPU served is most_shared.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// The kernels, by file. All pointers are to contiguous tensors on the stream's device: images of [batch, channels, height,
// width], filters of [channels, k, k]; none is empty. `flip` turns each filter by half a turn.

// k of 3, 5 and 7: depthwise_small.cu in float, depthwise_matrix.cuh in half precision.
template <typename T>
void convolve_small(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream);

// Writes parts [blocks_small, channels, k, k], whose sum over the first dimension is the filter's gradient. Either both
// gradients for zero padding, from windows of the result's gradient at the places of x, flipped; or, image_gradient
// null, that of the filter alone for any padding, from windows of x at the places of the result's gradient.
template <typename T>
int blocks_small(const Shape& shape);
template <typename T>
void differentiate_small(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                         const Shape& shape, int padding, bool flip, cudaStream_t stream);

// depthwise_large.cu: k from 9. Parts as above, [blocks_large, channels, k, k].
template <typename T>
void convolve_large(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream);
template <typename T>
int blocks_large(const Shape& shape);
template <typename T>
void differentiate_large(const T* g, const T* x, float* parts, const Shape& shape, int padding, cudaStream_t stream);

// depthwise_channels_last.cuh: k of 3, 5 and 7, tensors of [batch, height, width, channels]. Parts as above. Both
// gradients at once up to `largest_fused_channels_last`: 7 x 7 taps and their gradients take too many registers (268 us, apart 231, at
// 64 x 128 x 56 x 56 in float32 on an H200). With so many channels at most, a row of a tile has less than 2^31 elements.
constexpr int64_t most_channels_last = int64_t{1} << 20;
constexpr int largest_fused_channels_last = 5;
template <typename T>
void convolve_channels_last(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                            cudaStream_t stream);
template <typename T>
int blocks_channels_last(const Shape& shape);
template <typename T>
void differentiate_channels_last(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                                 const Shape& shape, int padding, bool flip, cudaStream_t stream);

// depthwise_plain.cu: any k. The image's gradient at every place, or at those alone that padding adds to; also of
// channels-last tensors.
template <typename T>
void convolve_plain(const T* x, const T* weight, T* out, const Shape& shape, int padding, cudaStream_t stream);
template <typename T>
void image_gradient_plain(const T* g, const T* weight, T* gradient, const Shape& shape, int padding, bool border_only,
                          bool channels_last, cudaStream_t stream);
template <typename T>
void filter_gradient_plain(const T* g, const T* x, T* gradient, const Shape& shape, int padding, cudaStream_t stream);

// Sums `count` parts of `size` numbers each, in one order always.
template <typename T>
void add_parts(const float* parts, T* sum, int64_t size, int count, cudaStream_t stream);

}  // namespace depthwise
