// Filters of 9 to 31: bound by arithmetic. Their size is known at run time only, and both kernels have one inner loop:
// a thread holds 4 rows x 8 sums, slides a window of 12 inputs along a row, and meets each window with 4 factors of
// each of 4 rows, 128 multiplications for 5 loads of 16 bytes. Forward, the sums are outputs and the factors the
// filter's; for the filter's gradient the sums are its taps and the factors the result's gradient.

#include "depthwise.cuh"

namespace depthwise {
namespace {

constexpr int rows = 4;
constexpr int columns = 8;
constexpr int most_threads = 256;

struct Launch {
  Shape shape;
  Plan plan;
  Window window, centre;
  int padding;
  bool flip;
  int centre_offset;   // elements of T: where in a stage the centre window begins
  int factors_offset;  // bytes: where the filter begins, forward
  int lead;            // places from the start of an aligned row of taps to the first tap
  int taps;            // of such a row, a multiple of 4 (forward) or 8 (gradient)
  int down, across;    // gradient: blocks of sums of a filter
  int segments;        // gradient: parts of an image's rows, each a thread's
  int slots;           // gradient: image segments in flight, images x segments
  int segment_rows;
};

template <typename T>
__device__ inline void load_factors(const T* from, float (&to)[4]) {
  load4(from, to);
}

// sums[r][j] += factor[r][t] * input[t + j] along a row; factor rows outside [low, high) are no factors. A row has
// `chunks` times 4 factors, of which those before `first` and from `last` on are none.
template <typename T, typename F>
__device__ inline void slide(const T* line, const F* const (&factors)[rows], const bool (&has)[rows], int chunks,
                             int first, int last, float (&sums)[rows][columns]) {
  float input[columns + 4];
  load4(line, input);
  load4(line + 4, input + 4);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    load4(line + 8 + 4 * chunk, input + 8);
    const bool whole = 4 * chunk >= first && 4 * chunk + 4 <= last;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (!has[r]) continue;
      float factor[4];
      load_factors(factors[r] + 4 * chunk, factor);
      if (whole) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
          for (int j = 0; j < columns; ++j) sums[r][j] = fmaf(factor[t], input[t + j], sums[r][j]);
        }
      } else {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          if (4 * chunk + t < first || 4 * chunk + t >= last) continue;
#pragma unroll
          for (int j = 0; j < columns; ++j) sums[r][j] = fmaf(factor[t], input[t + j], sums[r][j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < columns; ++j) input[j] = input[j + 4];
  }
}

template <typename T>
__global__ void __launch_bounds__(most_threads) convolve(const T* __restrict__ x, const T* __restrict__ weight,
                                                         T* __restrict__ out, const __grid_constant__ Launch args) {
  extern __shared__ __align__(16) char memory[];
  T* shared = reinterpret_cast<T*>(memory);
  float* filter = reinterpret_cast<float*>(memory + args.factors_offset);
  const Plan& plan = args.plan;
  const Shape& shape = args.shape;
  const int64_t channel = blockIdx.x;
  for (int i = threadIdx.x; i < shape.k * args.taps; i += blockDim.x) {
    const int a = i / args.taps;
    const int b = i % args.taps - args.lead;
    const int tap = a * shape.k + b;
    const T* own = weight + channel * (shape.k * shape.k);
    filter[i] = b < 0 || b >= shape.k ? 0.f : widen(own[args.flip ? shape.k * shape.k - 1 - tap : tap]);
  }
  if (args.window.whole) {
    clear(memory, args.factors_offset);
    __syncthreads();
  }
  for (int64_t s = blockIdx.y; s < plan.stages; s += gridDim.y) {
    const Stage stage = stage_at(s, plan, shape);
    fill(shared, x, args.window, stage, shape, channel, args.padding);
    cuda_ext::commit_copies();
    wait_for_copies(0);
    __syncthreads();
    const int units = stage.images * plan.units;
    for (int u = threadIdx.x; u < units; u += blockDim.x) {
      const int image = plan.by_units(u);
      const int down = plan.by_strips(u - image * plan.units);
      const int across = (u - image * plan.units - down * plan.strips) * columns;
      const T* line = shared + (image * args.window.rows + down * rows) * args.window.pitch - args.window.left + across -
                      up_to(shape.k / 2, 4);
      float sums[rows][columns] = {};
      for (int i = 0; i < shape.k + rows - 1; ++i) {
        const float* factors[rows];
        bool has[rows];
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          has[r] = i - r >= 0 && i - r < shape.k;
          factors[r] = filter + (i - r) * args.taps;
        }
        slide(line + i * args.window.pitch, factors, has, args.taps / 4, args.lead, args.lead + shape.k, sums);
      }
      T* plane = out + ((stage.image + image) * shape.channels + channel) * (int64_t{shape.height} * shape.width);
      const int y = stage.row + down * rows;
      const int first = stage.column + across;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        if (y + r >= shape.height) break;
        T* to = plane + int64_t{y + r} * shape.width + first;
#pragma unroll
        for (int j = 0; j < columns; j += 4) {
          if (plan.packed) {
            if (first + j < shape.width) store4(to + j, sums[r] + j);
          } else {
#pragma unroll
            for (int t = j; t < j + 4; ++t) {
              if (first + t < shape.width) to[t] = static_cast<T>(sums[r][t]);
            }
          }
        }
      }
    }
    __syncthreads();
  }
}

// parts [blocks, channels, k, k]: each block's sum over its stages.
template <typename T>
__global__ void __launch_bounds__(most_threads)
    differentiate(const T* __restrict__ g, const T* __restrict__ x, float* __restrict__ parts,
                  const __grid_constant__ Launch args) {
  extern __shared__ __align__(16) char memory[];
  T* shared = reinterpret_cast<T*>(memory);
  const Plan& plan = args.plan;
  const Shape& shape = args.shape;
  const int64_t channel = blockIdx.x;
  const int blocks_of_sums = args.down * args.across;
  const int slot = threadIdx.x / blocks_of_sums;
  const int place = threadIdx.x - slot * blocks_of_sums;
  const int first_row = place / args.across * rows;
  const int first_tap = (place - place / args.across * args.across) * columns;
  const int image = slot / args.segments;
  const int low = (slot - image * args.segments) * args.segment_rows;
  const int high = min(low + args.segment_rows, plan.tile_height);
  float sums[rows][columns] = {};
  if (args.centre.whole) {
    clear(memory, args.factors_offset);
    __syncthreads();
  }
  for (int64_t s = blockIdx.y; s < plan.stages; s += gridDim.y) {
    const Stage stage = stage_at(s, plan, shape);
    fill(shared, x, args.window, stage, shape, channel, args.padding);
    fill(shared + args.centre_offset, g, args.centre, stage, shape, channel, zeros);
    cuda_ext::commit_copies();
    wait_for_copies(0);
    __syncthreads();
    // Rows of the tile beyond the image are zeros.
    const int end = min(high, shape.height - stage.row);
    if (slot < args.slots && image < stage.images) {
      const T* line = shared + (image * args.window.rows + low + first_row) * args.window.pitch - args.window.left -
                      up_to(shape.k / 2, 4) + first_tap;
      const T* own = shared + args.centre_offset + (image * args.centre.rows + low) * args.centre.pitch;
      for (int i = 0; i < end - low + rows - 1; ++i) {
        const T* factors[rows];
        bool has[rows];
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          has[r] = i - r >= 0 && i - r < end - low;
          factors[r] = own + (i - r) * args.centre.pitch;
        }
        const int chunks = (min(plan.tile_width, shape.width - stage.column) + 3) / 4;
        slide(line + i * args.window.pitch, factors, has, chunks, 0, 4 * chunks, sums);
      }
    }
    __syncthreads();
  }

  // Over the block's slots, in order.
  float* all = reinterpret_cast<float*>(memory);
  const int size = blocks_of_sums * rows * columns;
  if (slot < args.slots) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        all[slot * size + (first_row + r) * args.taps + first_tap + j] = sums[r][j];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < shape.k * shape.k; i += blockDim.x) {
    float total = 0;
    for (int j = 0; j < args.slots; ++j) total += all[j * size + i / shape.k * args.taps + i % shape.k + args.lead];
    parts[(int64_t{blockIdx.y} * shape.channels + channel) * (shape.k * shape.k) + i] = total;
  }
}

constexpr int tile_side = 64;

template <typename T>
Launch plan_launch(const Shape& shape, const T* windowed, const T* centred, const T* out, int padding, bool flip,
                   bool gradient) {
  Launch args{};
  args.shape = shape;
  args.padding = padding;
  args.flip = flip;
  const int border = shape.k / 2;
  args.lead = up_to(border, 4) - border;
  args.taps = up_to(args.lead + shape.k, gradient ? columns : 4);
  Plan& plan = args.plan;
  plan.tiles_down = (shape.height - 1) / tile_side + 1;
  plan.tiles_across = (shape.width - 1) / tile_side + 1;
  plan.tile_height = up_to((shape.height - 1) / plan.tiles_down + 1, rows);
  plan.tile_width = up_to((shape.width - 1) / plan.tiles_across + 1, columns);
  plan.tiles_down = (shape.height - 1) / plan.tile_height + 1;
  plan.tiles_across = (shape.width - 1) / plan.tile_width + 1;
  plan.strips = plan.tile_width / columns;
  plan.units = plan.strips * (plan.tile_height / rows);
  plan.by_units = Divider(plan.units);
  plan.by_strips = Divider(plan.strips);
  const auto bytes_with = [&](int images) {
    // The last blocks of sums read rows below the filter's and places beyond, for sums that nobody wants.
    args.window = window_of<T>(windowed, shape, plan, border, padding, up_to(shape.k, rows) - shape.k, columns);
    args.centre = window_of<T>(centred, shape, plan, 0, padding);
    args.centre_offset = images * args.window.rows * args.window.pitch;
    const int elements = args.centre_offset + (gradient ? images * args.centre.rows * args.centre.pitch : 0);
    args.factors_offset = elements * static_cast<int>(sizeof(T));
    return args.factors_offset + (gradient ? 0 : shape.k * args.taps * static_cast<int>(sizeof(float)));
  };
  const int64_t tiles = int64_t{plan.tiles_down} * plan.tiles_across;
  plan.images = 1;
  // Two images of 56 x 56 fill 7 warps better than one fills 4.
  while (tiles == 1 && plan.images < shape.batch && plan.images * plan.units < 192 &&
         bytes_with(plan.images + 1) <= most_shared / 2) {
    ++plan.images;
  }
  plan.stages = tiles == 1 ? (shape.batch + plan.images - 1) / plan.images : shape.batch * tiles;
  plan.packed = shape.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(out) % (4 * sizeof(T)) == 0;
  if (!gradient) {
    plan.threads = std::min(up_to(plan.images * plan.units, 32), most_threads);
    bytes_with(plan.images);
    plan.blocks = static_cast<int>(std::min<int64_t>(plan.stages, 65535));
    return args;
  }
  args.down = up_to(shape.k, rows) / rows;
  args.across = args.taps / columns;
  const int blocks_of_sums = args.down * args.across;
  args.segments = std::max(1, most_threads / (blocks_of_sums * plan.images));
  args.segments = std::min(args.segments, (plan.tile_height + rows - 1) / rows);
  args.segment_rows = (plan.tile_height + args.segments - 1) / args.segments;
  args.segments = (plan.tile_height + args.segment_rows - 1) / args.segment_rows;
  // An image that has no thread of its own would be left out.
  if (args.segments == 1 && plan.images * blocks_of_sums > most_threads) {
    plan.images = most_threads / blocks_of_sums;
    plan.stages = (shape.batch + plan.images - 1) / plan.images;
  }
  args.slots = plan.images * args.segments;
  plan.threads = up_to(args.slots * blocks_of_sums, 32);
  bytes_with(plan.images);
  const int64_t wanted = std::max<int64_t>(1, 1024 / shape.channels);
  plan.blocks = static_cast<int>(std::min(plan.stages, std::min<int64_t>(wanted, 65535)));
  return args;
}

}  // namespace

template <typename T>
void convolve_large(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream) {
  const Launch args = plan_launch<T>(shape, x, x, out, padding, flip, false);
  const int bytes = args.factors_offset + shape.k * args.taps * static_cast<int>(sizeof(float));
  allow_shared(convolve<T>, bytes);
  const dim3 grid(static_cast<unsigned>(shape.channels), args.plan.blocks);
  convolve<T><<<grid, args.plan.threads, bytes, stream>>>(x, weight, out, args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
int blocks_large(const Shape& shape) {
  return plan_launch<T>(shape, nullptr, nullptr, nullptr, zeros, false, true).plan.blocks;
}

template <typename T>
void differentiate_large(const T* g, const T* x, float* parts, const Shape& shape, int padding, cudaStream_t stream) {
  const Launch args = plan_launch<T>(shape, x, g, nullptr, padding, false, true);
  const int sums = args.slots * args.down * args.across * rows * columns * static_cast<int>(sizeof(float));
  const int bytes = std::max(args.factors_offset, sums);
  allow_shared(differentiate<T>, bytes);
  const dim3 grid(static_cast<unsigned>(shape.channels), args.plan.blocks);
  differentiate<T><<<grid, args.plan.threads, bytes, stream>>>(g, x, parts, args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

#define INSTANTIATE(T)                                                                              \
  template void convolve_large(const T*, const T*, T*, const Shape&, int, bool, cudaStream_t);     \
  template int blocks_large<T>(const Shape&);                                                       \
  template void differentiate_large(const T*, const T*, float*, const Shape&, int, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)

}  // namespace depthwise
