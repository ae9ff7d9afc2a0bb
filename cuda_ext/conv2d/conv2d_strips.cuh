// How a convolution of one channel walks over an image: a block is one warp, which owns a strip of some hundred columns
// and walks down it. The rows come, with their halo, through a ring in shared memory, a few steps ahead; the warp waits for
// its own copies, and for no other warp. On Hopper and later a row is one bulk copy; before, 16 bytes a lane.
//
// Beyond an image's left and right side the ring holds zeros, or what each lane mends: padding adds at most 15 columns
// there on each side. Rows are fetched from where the padding takes them.
#pragma once

#include "conv2d.cuh"

#include <algorithm>
#include <atomic>

namespace cuda_ext::conv2d {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool bulk_copies = true;
#else
constexpr bool bulk_copies = false;
#endif

__host__ __device__ constexpr int up_to(int n, int step) { return (n + step - 1) / step * step; }

// By one lane. `expected` bytes are announced to the barrier first, if any.
template <bool announce>
__device__ inline void copy_row(unsigned to, const void* from, int bytes, unsigned barrier, int expected) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (announce) {
    asm volatile(
        "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n"
        "@one mbarrier.arrive.expect_tx.shared.b64 _, [%3], %4;\n"
        "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n}" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "r"(expected)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n"
        "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n}" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
  }
#endif
}

struct Image {
  int height, width;
  Padding padding;
  // Rows begin on 16 bytes, of the images and of the results.
  bool packed;
};

// A warp's part of a launch.
struct Task {
  int left, top, rows;
  int64_t offset;

  __device__ Task(const Image& image, int columns, int rows_of_all, int strips, int chunks) {
    // From one lane, so that the compiler knows that a warp has them in common.
    const unsigned strip = __shfl_sync(0xffffffff, blockIdx.x % strips, 0);
    const unsigned rest = __shfl_sync(0xffffffff, blockIdx.x / strips, 0);
    left = static_cast<int>(strip) * columns;
    top = static_cast<int>(rest % chunks) * rows_of_all;
    rows = min(rows_of_all, image.height - top);
    offset = int64_t{rest / chunks} * image.height * image.width;
  }
};

// Shared memory: `slots` steps of `step` rows, each with as much halo as whole packs need.
template <typename T, int K, int columns, int step, int slots>
struct Ring {
  static constexpr int half = K / 2;
  static constexpr int pack = 16 / sizeof(T);
  static constexpr int margin = up_to(half, pack);
  static constexpr int row_size = columns + 2 * margin;
  static constexpr int row_bytes = row_size * sizeof(T);

  alignas(16) T rows[slots][step][row_size];
  alignas(8) uint64_t barriers[slots];
};

// A strip of the image on its way through the ring. `fetch` begins to bring a step, `await` ends it. A step's rows may
// lie outside the image: then they are what the padding says.
template <typename T, int K, int columns, int step, int slots>
class Strip {
 public:
  using Memory = Ring<T, K, columns, step, slots>;
  static constexpr int half = Memory::half, margin = Memory::margin;

  __device__ Strip(Memory& ring, const T* from, const Image& image, int left)
      : ring_(ring), from_(from), image_(image), left_(left), lane_(threadIdx.x) {
    begin_ = max(left - margin, 0);
    bytes_ = (min(left + columns + margin, image.width) - begin_) * int{sizeof(T)};
    barriers_ = shared_address(ring.barriers);
    rows_ = shared_address(&ring.rows[0][0][begin_ - left + margin]);
    const bool border = left < margin || left + columns + margin > image.width;
    mends_ = image.packed && image.padding != Padding::zeros && border;
    const int x = lane_ < 16 ? -1 - lane_ : image.width + lane_ - 16;
    halo_at_ = x - left + margin;
    halo_from_ = source(x, image.width, image.padding);
    if (!mends_ || lane_ % 16 >= half || halo_at_ < 0 || halo_at_ >= Memory::row_size) halo_at_ = -1;
    if (bulk_copies && image.packed) {
      if (border && image.padding == Padding::zeros) {
        // Bulk copies leave what is outside the image as it is here.
        for (int at = lane_; at < Memory::row_size; at += 32) {
          const int column = left - margin + at;
          if (column < 0 || column >= image.width) {
#pragma unroll 1
            for (int s = 0; s < slots * step; ++s) (&ring.rows[0][0][0])[s * Memory::row_size + at] = T(0.f);
          }
        }
      }
      if (lane_ == 0) begin_barriers();
      order_with_bulk_copies();
      __syncwarp();
    }
  }

  // Rows `first` to `first + count - 1` into slot `s`, whose former rows every lane must have read before the last
  // `await`. Nothing if `count` is not positive.
  __device__ void fetch(int s, int first, int count) {
    if (bulk_copies && image_.packed) {
      fetch_in_bulk(s, first, count);
      return;
    }
    if (image_.packed) {
      fetch_packs(s, first, count);
    } else {
      fetch_elements(s, first, count);
    }
    commit_copies();
  }

  // To be called after `fetch`, as late as can be: it waits for what `fetch` loaded into registers.
  __device__ void mend(int s, int count) {
    if (mends_ && halo_at_ >= 0) {
#pragma unroll
      for (int i = 0; i < step; ++i) {
        if (i < count) ring_.rows[s][i][halo_at_] = halo_[i];
      }
    }
  }

  // `phase` is the parity of how often slot `s` was awaited before.
  __device__ void await(int s, unsigned phase) {
    if (bulk_copies && image_.packed) {
      await_barrier(barriers_ + 8 * s, phase);
    } else {
      await_copies<slots - 2>();
    }
    __syncwarp();
  }

 private:
  __device__ void begin_barriers() {
    for (int s = 0; s < slots; ++s) begin_barrier(barriers_ + 8 * s);
    order_barriers();
  }

  __device__ void fetch_in_bulk(int s, int first, int count) {
    const unsigned barrier = barriers_ + 8 * s;
    const unsigned to = rows_ + s * step * Memory::row_bytes;
    if (first >= 0 && first + step <= image_.height && count >= step) {
      const T* line = from_ + int64_t{first} * image_.width;
      copy_row<true>(to, line + begin_, bytes_, barrier, step * bytes_);
#pragma unroll
      for (int i = 1; i < step; ++i) {
        copy_row<false>(to + i * Memory::row_bytes, line + int64_t{i} * image_.width + begin_, bytes_, barrier, 0);
      }
      if (mends_ && halo_at_ >= 0) {
#pragma unroll
        for (int i = 0; i < step; ++i) halo_[i] = line[int64_t{i} * image_.width + halo_from_];
      }
      return;
    }
    int inside = 0;
    for (int i = 0; i < min(step, count); ++i) inside += source(first + i, image_.height, image_.padding) >= 0;
    if (lane_ == 0) expect_bytes(barrier, inside * bytes_);
#pragma unroll
    for (int i = 0; i < step; ++i) {
      if (i >= count) break;
      const int row = source(first + i, image_.height, image_.padding);
      if (row >= 0) {
        const T* line = from_ + int64_t{row} * image_.width;
        copy_row<false>(to + i * Memory::row_bytes, line + begin_, bytes_, barrier, 0);
        if (mends_ && halo_at_ >= 0) halo_[i] = line[halo_from_];
      } else {
        for (int at = lane_; at < Memory::row_bytes / 16; at += 32) reinterpret_cast<int4*>(ring_.rows[s][i])[at] = {};
        order_with_bulk_copies();
      }
    }
  }

  __device__ void fetch_packs(int s, int first, int count) {
#pragma unroll
    for (int i = 0; i < step; ++i) {
      if (i >= count) break;
      const int row = source(first + i, image_.height, image_.padding);
      const T* line = from_ + int64_t{row} * image_.width;
      for (int at = lane_ * Memory::pack; at < Memory::row_size; at += 32 * Memory::pack) {
        const int x = left_ - margin + at;
        const bool inside = x >= 0 && x < image_.width;
        if (inside || image_.padding == Padding::zeros) {
          copy_async<16>(&ring_.rows[s][i][at], line + x, row >= 0 && inside);
        }
      }
      if (mends_ && halo_at_ >= 0) halo_[i] = line[halo_from_];
    }
  }

  __device__ void fetch_elements(int s, int first, int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int row = source(first + i, image_.height, image_.padding);
      const T* line = from_ + int64_t{row} * image_.width;
      T* slot = ring_.rows[s][i];
      if constexpr (sizeof(T) == 4) {
#pragma unroll 1
        for (int at = lane_; at < Memory::row_size; at += 32) {
          const int column = column_of(at);
          copy_async<4>(slot + at, line + column, row >= 0 && column >= 0);
        }
      } else {
        // Two bytes can not be copied asynchronously: as many loads at a time as there are registers for.
        constexpr int loads = K < 9 ? (Memory::row_size + 31) / 32 : 4;
#pragma unroll 1
        for (int at = lane_; at < Memory::row_size; at += 32 * loads) {
          T values[loads];
#pragma unroll
          for (int c = 0; c < loads; ++c) {
            const int column = column_of(at + 32 * c);
            values[c] = row < 0 || column < 0 ? T(0.f) : line[column];
          }
#pragma unroll
          for (int c = 0; c < loads; ++c) {
            if (at + 32 * c < Memory::row_size) slot[at + 32 * c] = values[c];
          }
        }
      }
    }
  }

  // Where place `at` of a row comes from, -1 for a zero; what is further outside than any result needs is zero too.
  __device__ int column_of(int at) const {
    const int x = left_ - margin + at;
    return x < -half || x >= image_.width + half ? -1 : source(x, image_.width, image_.padding);
  }

  Memory& ring_;
  const T* from_;
  const Image image_;
  int left_, lane_;
  // Of the columns that are inside the image: the first, and the bytes of a row.
  int begin_, bytes_;
  unsigned barriers_, rows_;
  // At an image's left and right border, unless they are zeros, each lane mends a column of the halo.
  bool mends_;
  int halo_at_, halo_from_;
  T halo_[step];
};

// How a kernel likes its strips cut: as many rows as let all warps run at once, but `least` to `most`, by `multiple`.
// early: the kernel waits for the one before it (launch.cuh).
struct Cut {
  int columns, least, most, multiple;
  bool early = false;
};

// GPUs of one machine that differ in how many warps they hold are slower for it, not wrong.
template <typename T, typename Kernel>
void launch_strips(const Call<T>& call, Kernel kernel, const Cut& cut, std::atomic<int>& resident) {
  int multiprocessors = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, call.device));
  int warps = resident.load(std::memory_order_relaxed);
  if (warps == 0) {
    STD_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&warps, kernel, 32, 0));
    resident.store(warps, std::memory_order_relaxed);
  }
  const int64_t strips = (call.width + cut.columns - 1) / cut.columns;
  const int64_t at_once = std::max<int64_t>(int64_t{multiprocessors} * warps / (strips * call.count), 1);
  int64_t rows = std::clamp<int64_t>((call.height + at_once - 1) / at_once, cut.least, cut.most);
  rows = (rows + cut.multiple - 1) / cut.multiple * cut.multiple;
  const int64_t chunks = (call.height + rows - 1) / rows;
  const int64_t blocks = strips * chunks * call.count;
  STD_TORCH_CHECK(blocks < int64_t{1} << 31, "conv2d: more than 2^31 strips, got ", call.count, " images of ",
                  call.height, " x ", call.width);
  const bool packed = aligned_for_packs(call.images) && aligned_for_packs(call.results) &&
                      call.width % (16 / int{sizeof(T)}) == 0;
  const Image image{call.height, call.width, call.padding, packed};
  launch(kernel, {dim3(static_cast<unsigned>(blocks)), dim3(32), 0, call.stream, cut.early}, call.images, call.weight,
         call.results, image, static_cast<int>(rows), static_cast<int>(strips), static_cast<int>(chunks));
}

}  // namespace cuda_ext::conv2d
