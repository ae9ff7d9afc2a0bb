// How the rows of channels-last images come into shared memory, for depthwise_channels_last.cuh.
//
// A block has a piece of the channels and walks down tiles of the images. The rows of a tile come with their border
// through a ring of stages, all but one of them under way while that one is computed. From sm_90 on a stage is one copy
// of the tensor copy engine, which also makes the zeros beyond the image. Otherwise, and for other paddings, each thread
// brings some packs of 16 bytes.
#pragma once

#include "depthwise.cuh"

namespace depthwise {

// What a launch is made for: channels and columns of a thread, stages of the ring and rows of a stage, the most threads
// of a block, the least blocks of a multiprocessor, and about how many tiles there should be.
struct Form {
  int channels, columns, stages, rows, threads, blocks, tiles;
};

// Measured on an H200 at 64 x 128 x 56 x 56 and 8 x 32 x 512 x 512. Whole pixels of 4 and 8 bytes a thread leave more
// registers for the sums, and few of large filters fit: there a thread has one channel.
template <typename T, int k, bool backward>
constexpr Form form_of = k == 3 && !backward && sizeof(T) == 4   ? Form{2, 4, 3, 4, 256, 3, 1024}
                         : k == 3 && !backward                   ? Form{4, 4, 3, 2, 256, 2, 256}
                         : k == 3                                ? Form{2, 4, 3, sizeof(T) == 4 ? 1 : 2, 256, 2, 256}
                         : k == 5 && !backward                   ? Form{1, 8, 4, 2, 256, 2, sizeof(T) == 4 ? 512 : 256}
                         : !backward                             ? Form{1, 4, 4, 2, 256, 2, 512}
                                                                 : Form{1, 4, 3, 2, 256, 2, 256};

struct RowLaunch {
  Shape shape;
  int padding;
  bool flip;
  int pieces, lanes, groups;           // of the channels; threads across a pixel, and across a tile
  int packs;                           // of 16 bytes, of a pixel
  int rows, tiles_down, tiles_across;  // rows of a tile; tiles of an image
  int64_t tiles;                       // of all images
  int blocks;                          // of a piece
  // Elements of shared memory: from pixel to pixel, a row of the window, where the centre begins, its row, and a stage;
  // bytes that a stage brings.
  int pitch, window_row, centre, centre_row, stage, stage_bytes;
};

// Where the tensor copy engine finds the tensors.
struct TensorMaps {
  CUtensorMap window, centre;
};

struct Tile {
  int64_t image;
  int top, left, rows;
};

__device__ inline Tile tile_at(int64_t index, int columns, const RowLaunch& args) {
  const int64_t rest = index / args.tiles_across;
  const int64_t image = rest / args.tiles_down;
  const int top = static_cast<int>(rest - image * args.tiles_down) * args.rows;
  const int left = static_cast<int>(index - rest * args.tiles_across) * columns;
  return {image, top, left, min(args.rows, args.shape.height - top)};
}

// Copies of the rows of one tensor, with `border` pixels on each side of a tile, by all threads: of a row each brings up
// to `most` packs.
template <typename T, int border, int most>
class RowCopies {
 public:
  __device__ RowCopies(const T* source, int padding) : source_(source), padding_(padding) {}

  // Finds the places of the thread's packs, in a row of the tile and in shared memory.
  __device__ void begin(const Tile& tile, int columns, int piece, const RowLaunch& args) {
    constexpr int pack = 16 / sizeof(T);
    const Shape& shape = args.shape;
    const int first = piece * args.packs * pack;
    const int channels = static_cast<int>(shape.channels);
    top_ = tile.top - border;
    from_ = source_ + (tile.image * shape.height * shape.width + tile.left - border) * shape.channels + first;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int number = static_cast<int>(threadIdx.x + i * blockDim.x);
      const int pixel = number / args.packs;
      const int channel = (number - pixel * args.packs) * pack;
      // What is further outside than any result needs is zero too.
      const int x = tile.left - border + pixel;
      const int column = x < shape.width + border ? padded(x, shape.width, padding_) : -1;
      to_[i] = pixel < columns + 2 * border && first + channel < channels ? pixel * args.pitch + channel : -1;
      offset_[i] = column < 0 ? -1 : (column - tile.left + border) * channels + channel;
    }
  }

  // Brings row `row` of the tile, counted from the border's first.
  __device__ void bring(T* to, int row, const Shape& shape) const {
    const int y = padded(top_ + row, shape.height, padding_);
    const T* line = from_ + int64_t{y} * shape.width * shape.channels;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const bool real = y >= 0 && offset_[i] >= 0;
      if (to_[i] >= 0) cuda_ext::copy_async<16>(to + to_[i], real ? line + offset_[i] : source_, real);
    }
  }

 private:
  const T* source_;
  const T* from_;
  int padding_, top_;
  int to_[most], offset_[most];
};

// A block's walk over its tiles. `bulk`: by the tensor copy engine. Forward, only the window is brought.
template <typename T, int k, bool backward, bool bulk>
class RowRing {
  static constexpr Form form = form_of<T, k, backward>;

 public:
  // All threads call it, with barriers for each stage.
  __device__ RowRing(T* ring, const T* windowed, const T* centred, const TensorMaps& maps, uint64_t* barriers,
                     const RowLaunch& args)
      : args_(args),
        maps_(maps),
        barriers_(barriers),
        ring_(ring),
        window_(windowed, args.padding),
        centre_(centred, zeros),
        piece_(static_cast<int>(blockIdx.x % args.pieces)),
        columns_(args.groups * form.columns),
        coming_(blockIdx.x / args.pieces) {
    if constexpr (bulk) {
      begin_barriers(barriers, form.stages);
      __syncthreads();
    }
  }

  // Brings the first stages.
  __device__ void start() {
    for (int s = 0; s < form.stages - 1; ++s) bring(s);
  }

  // Calls begin(tile) for each tile, and step(tile, r, window, centre) for its rows: r counts those of the window, from
  // the border's first; the centre's row r is there while the tile has one.
  template <typename Begin, typename Step>
  __device__ void walk(Begin begin, Step step) {
    int slot = 0, free = form.stages - 1;
    unsigned phase = 0;
    for (int64_t t = blockIdx.x / args_.pieces; t < args_.tiles; t += args_.blocks) {
      const Tile tile = tile_at(t, columns_, args_);
      begin(tile);
      const int last = tile.rows + k - 1;
#pragma unroll 1
      for (int r = 0; r < last; r += form.rows) {
        if constexpr (bulk) {
          cuda_ext::await_barrier(cuda_ext::shared_address(barriers_ + slot), phase);
        } else {
          cuda_ext::await_copies<form.stages - 2>();
        }
        // Then all threads have read the stage before.
        __syncthreads();
        bring(free);
        const T* rows = ring_ + slot * args_.stage;
#pragma unroll
        for (int i = 0; i < form.rows; ++i) {
          const T* centre = rows + args_.centre + i * args_.centre_row;
          if (i == 0 || r + i < last) step(tile, r + i, rows + i * args_.window_row, centre);
        }
        free = slot;
        if (++slot == form.stages) {
          slot = 0;
          phase ^= 1;
        }
      }
    }
  }

 private:
  static constexpr int pack = 16 / sizeof(T);
  static constexpr int most = ((form.columns + k - 1) * form.channels + pack - 1) / pack;
  static constexpr int most_of_centre = backward ? (form.columns * form.channels + pack - 1) / pack : 1;

  __device__ void bring(int slot) {
    T* to = ring_ + slot * args_.stage;
    if constexpr (bulk) {
      if (threadIdx.x == 0 && coming_ < args_.tiles) bring_in_bulk(to, cuda_ext::shared_address(barriers_ + slot));
    } else {
      if (coming_ < args_.tiles) bring_packs(to);
      cuda_ext::commit_copies();
    }
  }

  __device__ void bring_in_bulk(T* to, unsigned barrier) {
    const Tile tile = tile_at(coming_, columns_, args_);
    const int channel = piece_ * args_.lanes * form.channels;
    const int image = static_cast<int>(tile.image);
    cuda_ext::expect_bytes(barrier, args_.stage_bytes);
    cuda_ext::copy_box(cuda_ext::shared_address(to), maps_.window, channel, tile.left - k / 2, tile.top - k / 2 + row_,
                       image, barrier);
    if constexpr (backward) {
      cuda_ext::copy_box(cuda_ext::shared_address(to + args_.centre), maps_.centre, channel, tile.left, tile.top + row_,
                         image, barrier);
    }
    advance(tile.rows);
  }

  __device__ void bring_packs(T* to) {
    if (row_ == 0) {
      const Tile tile = tile_at(coming_, columns_, args_);
      rows_ = tile.rows;
      window_.begin(tile, columns_, piece_, args_);
      if constexpr (backward) centre_.begin(tile, columns_, piece_, args_);
    }
#pragma unroll
    for (int i = 0; i < form.rows; ++i) {
      if (row_ + i < rows_ + k - 1) window_.bring(to + i * args_.window_row, row_ + i, args_.shape);
      if (backward && row_ + i < rows_) {
        centre_.bring(to + args_.centre + i * args_.centre_row, row_ + i, args_.shape);
      }
    }
    advance(rows_);
  }

  __device__ void advance(int rows) {
    row_ += form.rows;
    if (row_ >= rows + k - 1) {
      row_ = 0;
      coming_ += args_.blocks;
    }
  }

  const RowLaunch& args_;
  const TensorMaps& maps_;
  uint64_t* barriers_;
  T* ring_;
  RowCopies<T, k / 2, most> window_;
  RowCopies<T, 0, most_of_centre> centre_;
  int piece_, columns_;
  // The tile and row that are brought next.
  int64_t coming_;
  int row_ = 0, rows_ = 0;
};

// Describes a tensor for copies of `rows` rows of `columns` pixels of `channels` channels each.
template <typename T>
CUtensorMap tensor_map(const T* data, const Shape& shape, int channels, int columns, int rows) {
  // By the driver, which nothing here is linked with.
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    STD_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status));
    STD_TORCH_CHECK(found, "depthwise_conv2d: the driver has no cuTensorMapEncodeTiled, query ", static_cast<int>(status));
    return reinterpret_cast<Encode>(found);
  }();
  constexpr auto dtype = std::is_same_v<T, float>    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                         : std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(shape.channels), static_cast<cuuint64_t>(shape.width),
                               static_cast<cuuint64_t>(shape.height), static_cast<cuuint64_t>(shape.batch)};
  const cuuint64_t strides[3] = {sizes[0] * sizeof(T), sizes[0] * sizes[1] * sizeof(T),
                                 sizes[0] * sizes[1] * sizes[2] * sizeof(T)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(channels), static_cast<cuuint32_t>(columns),
                             static_cast<cuuint32_t>(rows), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map{};
  // The driver wants the GPU's context to be the thread's, which a new thread, such as autograd's, has not yet.
  STD_CUDA_CHECK(cudaSetDevice(cuda_ext::current_device()));
  const CUresult result = encode(&map, dtype, 4, const_cast<T*>(data), sizes, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  STD_TORCH_CHECK(result == CUDA_SUCCESS, "depthwise_conv2d: no tensor map, error ", static_cast<int>(result));
  return map;
}

// The side of a box that the tensor copy engine takes.
constexpr int longest_box = 256;
constexpr int least_rows = 4;
// Multiprocessors of a large GPU. A constant, as is all that a plan is made from, but for the shape: the filter's
// gradient is then summed in one order on every GPU. `bulk` decides on places in shared memory only.
constexpr int many_multiprocessors = 132;

template <typename T, int k, bool backward>
RowLaunch plan_rows(const Shape& shape, int padding, bool flip, bool bulk) {
  constexpr Form form = form_of<T, k, backward>;
  constexpr int size = sizeof(T), pack = 16 / size, line = 128 / size;
  RowLaunch args{};
  args.shape = shape;
  args.padding = padding;
  args.flip = flip;
  const int across = static_cast<int>(shape.channels) / form.channels;
  args.pieces = (across + 31) / 32;
  args.lanes = up_to((across + args.pieces - 1) / args.pieces, std::max(1, pack / form.channels));
  args.packs = args.lanes * form.channels / pack;
  const auto lay_out = [&](int pitch) {
    const int columns = args.groups * form.columns;
    args.pitch = pitch;
    args.window_row = (columns + k - 1) * pitch;
    args.centre_row = backward ? columns * pitch : 0;
    args.centre = up_to(form.rows * args.window_row, line);
    args.stage = up_to(args.centre + form.rows * args.centre_row, line);
    args.stage_bytes = form.rows * (args.window_row + args.centre_row) * size;
    return form.stages * args.stage * size + k * k * args.lanes * form.channels * int{sizeof(float)};
  };
  // Packed, the groups that one warp reads would lie in the same banks; but the tensor copy engine packs.
  const int packed = args.lanes * form.channels, apart = packed + (args.lanes < 32 ? pack : 0);
  const int all = (shape.width + form.columns - 1) / form.columns;
  for (int most = std::min(form.threads / args.lanes, (longest_box - k + 1) / form.columns);; --most) {
    args.tiles_across = (all + most - 1) / most;
    args.groups = (all + args.tiles_across - 1) / args.tiles_across;
    if (most == 1 || lay_out(apart) <= most_shared) break;
  }
  lay_out(bulk ? packed : apart);
  const int64_t there = shape.batch * args.tiles_across * args.pieces;
  const int64_t most_down = (shape.height + least_rows - 1) / least_rows;
  const auto down = static_cast<int>(std::clamp<int64_t>((form.tiles + there - 1) / there, 1, most_down));
  args.rows = (shape.height + down - 1) / down;
  args.tiles_down = (shape.height + args.rows - 1) / args.rows;
  args.tiles = shape.batch * args.tiles_across * args.tiles_down;
  // A block of the backward pass has several tiles, so that there are few parts of the filter's gradient to add.
  const int at_once = many_multiprocessors * form.blocks * form.threads / (args.lanes * args.groups);
  const int most_blocks = backward ? at_once : 1 << 30;
  args.blocks = static_cast<int>(std::min<int64_t>(args.tiles, std::max(1, most_blocks / args.pieces)));
  return args;
}

}  // namespace depthwise
