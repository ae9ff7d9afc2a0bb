// Filters of 3, 5 and 7: each is a template of its own, whole in registers.
#pragma once

#include "depthwise.cuh"

#include <cstdlib>

namespace depthwise {

// Rows of a unit: a thread computes unit_rows x 4 outputs from (unit_rows + k - 1) x (4 + k - 1) inputs.
constexpr int unit_rows_backward = 4;
constexpr int most_threads = 256;

inline int tuned(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}

struct Launch {
  Shape shape;
  Plan plan;
  Window window, centre;
  int padding;
  bool flip, wants_image;
  int buffer, centre_offset;  // elements of T: one stage, and where in it the centre window begins
};

// One row of a unit's inputs, 4 + k - 1 places from `centre` - k / 2 on.
template <int k, typename T>
__device__ inline void load_row(const T* centre, float* row) {
  constexpr int border = k / 2;
  load4(centre, row + border);
  if constexpr (border == 0) return;
  if constexpr (border == 1) {
    row[0] = widen(centre[-1]);
    row[5] = widen(centre[4]);
  } else if constexpr (border == 2) {
    load2(centre - 2, row);
    load2(centre + 4, row + 6);
  } else if constexpr (border == 3) {
    float side[4];
    load4(centre - 4, side);
    row[0] = side[1], row[1] = side[2], row[2] = side[3];
    load4(centre + 4, side);
    row[7] = side[0], row[8] = side[1], row[9] = side[2];
  }
}

template <typename T, int unit_rows>
__device__ inline void store_unit(T* plane, const float (&values)[unit_rows][4], int y, int x, const Shape& shape,
                                  bool packed) {
#pragma unroll
  for (int r = 0; r < unit_rows; ++r) {
    if (y + r >= shape.height) return;
    T* to = plane + int64_t{y + r} * shape.width + x;
    if (packed) {
      if (x < shape.width) store4(to, values[r]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (x + j < shape.width) to[j] = static_cast<T>(values[r][j]);
      }
    }
  }
}

struct Unit {
  int image, down, across;
};

template <int unit_rows>
__device__ inline Unit unit_at(int index, const Plan& plan) {
  const int image = plan.by_units(index);
  const int place = index - image * plan.units;
  const int down = plan.by_strips(place);
  return {image, down * unit_rows, (place - down * plan.strips) * 4};
}

template <typename T, int k, int unit_rows>
__global__ void __launch_bounds__(most_threads) convolve(const T* __restrict__ x, const T* __restrict__ weight,
                                                         T* __restrict__ out, const __grid_constant__ Launch args) {
  extern __shared__ __align__(16) char memory[];
  T* buffers = reinterpret_cast<T*>(memory);
  const Plan& plan = args.plan;
  const Shape& shape = args.shape;
  const int64_t channel = blockIdx.x;
  const int64_t first = int64_t{blockIdx.y} * plan.stages_a_block;
  const int stages = static_cast<int>(min(plan.stages - first, int64_t{plan.stages_a_block}));

  if (args.window.whole) {
    clear(memory, (stages > 1 ? 2 : 1) * args.buffer * static_cast<int>(sizeof(T)));
    __syncthreads();
  }
  Stage next = stage_at(first, plan, shape);
  fill(buffers, x, args.window, next, shape, channel, args.padding);
  commit_copies();

  float w[k * k];
#pragma unroll
  for (int i = 0; i < k * k; ++i) {
    w[i] = widen(weight[channel * (k * k) + (args.flip ? k * k - 1 - i : i)]);
  }

  for (int s = 0; s < stages; ++s) {
    const Stage stage = next;
    if (s + 1 < stages) {
      next = stage_at(first + s + 1, plan, shape);
      fill(buffers + ((s + 1) & 1) * args.buffer, x, args.window, next, shape, channel, args.padding);
    }
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const T* shared = buffers + (s & 1) * args.buffer;
    const int units = stage.images * plan.units;
    for (int u = threadIdx.x; u < units; u += blockDim.x) {
      const Unit unit = unit_at<unit_rows>(u, plan);
      const T* centre = shared + (unit.image * args.window.rows + unit.down) * args.window.pitch - args.window.left +
                        unit.across;
      float sum[unit_rows][4] = {};
#pragma unroll
      for (int i = 0; i < unit_rows + k - 1; ++i) {
        float row[4 + k - 1];
        load_row<k>(centre + i * args.window.pitch, row);
#pragma unroll
        for (int r = 0; r < unit_rows; ++r) {
          if (i - r < 0 || i - r >= k) continue;
#pragma unroll
          for (int b = 0; b < k; ++b) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[r][j] = fmaf(w[(i - r) * k + b], row[j + b], sum[r][j]);
          }
        }
      }
      T* plane = out + ((stage.image + unit.image) * shape.channels + channel) * (int64_t{shape.height} * shape.width);
      store_unit(plane, sum, stage.row + unit.down, stage.column + unit.across, shape, plan.packed);
    }
    __syncthreads();
  }
}

// Both gradients read the result's gradient g through the same window: at each place of the image,
//   image gradient = sum over taps of flipped weight * g,   filter gradient += image * g.
// With flip off and g and the image in each other's place it gives the filter's gradient for any padding.
template <typename T, int k>
__global__ void __launch_bounds__(most_threads, 2)
    differentiate(const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ weight,
                  T* __restrict__ image_gradient, float* __restrict__ parts, const __grid_constant__ Launch args) {
  extern __shared__ __align__(16) char memory[];
  constexpr int unit_rows = unit_rows_backward;
  T* buffers = reinterpret_cast<T*>(memory);
  const Plan& plan = args.plan;
  const Shape& shape = args.shape;
  const int64_t channel = blockIdx.x;
  const int64_t first = int64_t{blockIdx.y} * plan.stages_a_block;
  const int stages = static_cast<int>(min(plan.stages - first, int64_t{plan.stages_a_block}));

  // The window of the places themselves is whole wherever the other is; not so the other way round.
  if (args.centre.whole) {
    clear(memory, (stages > 1 ? 2 : 1) * args.buffer * static_cast<int>(sizeof(T)));
    __syncthreads();
  }
  Stage next = stage_at(first, plan, shape);
  fill(buffers, g, args.window, next, shape, channel, args.padding);
  fill(buffers + args.centre_offset, x, args.centre, next, shape, channel, zeros);
  commit_copies();
  float w[k * k];
#pragma unroll
  for (int i = 0; i < k * k; ++i) w[i] = widen(weight[channel * (k * k) + (args.flip ? k * k - 1 - i : i)]);

  float gradient[k * k] = {};
  for (int s = 0; s < stages; ++s) {
    const Stage stage = next;
    if (s + 1 < stages) {
      next = stage_at(first + s + 1, plan, shape);
      T* buffer = buffers + ((s + 1) & 1) * args.buffer;
      fill(buffer, g, args.window, next, shape, channel, args.padding);
      fill(buffer + args.centre_offset, x, args.centre, next, shape, channel, zeros);
    }
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const T* shared = buffers + (s & 1) * args.buffer;
    const int units = stage.images * plan.units;
    for (int u = threadIdx.x; u < units; u += blockDim.x) {
      const Unit unit = unit_at<unit_rows>(u, plan);
      const T* centre = shared + (unit.image * args.window.rows + unit.down) * args.window.pitch - args.window.left +
                        unit.across;
      const T* own = shared + args.centre_offset +
                     (unit.image * args.centre.rows + unit.down) * args.centre.pitch + unit.across;
      float value[unit_rows][4];
#pragma unroll
      for (int r = 0; r < unit_rows; ++r) load4(own + r * args.centre.pitch, value[r]);
      float sum[unit_rows][4] = {};
#pragma unroll
      for (int i = 0; i < unit_rows + k - 1; ++i) {
        float row[4 + k - 1];
        load_row<k>(centre + i * args.window.pitch, row);
        if (args.wants_image) {
#pragma unroll
          for (int r = 0; r < unit_rows; ++r) {
            if (i - r < 0 || i - r >= k) continue;
#pragma unroll
            for (int b = 0; b < k; ++b) {
#pragma unroll
              for (int j = 0; j < 4; ++j) {
                sum[r][j] = fmaf(w[(i - r) * k + b], row[j + b], sum[r][j]);
              }
            }
          }
        }
#pragma unroll
        for (int r = 0; r < unit_rows; ++r) {
          if (i - r < 0 || i - r >= k) continue;
#pragma unroll
          for (int b = 0; b < k; ++b) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              gradient[(i - r) * k + b] = fmaf(value[r][j], row[j + b], gradient[(i - r) * k + b]);
            }
          }
        }
      }
      if (args.wants_image) {
        T* plane = image_gradient +
                   ((stage.image + unit.image) * shape.channels + channel) * (int64_t{shape.height} * shape.width);
        store_unit(plane, sum, stage.row + unit.down, stage.column + unit.across, shape, plan.packed);
      }
    }
    __syncthreads();
  }

  // Over the block: each thread's sums side by side, then a warp adds those of one tap, in one order always.
  float* sums = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int i = 0; i < k * k; ++i) sums[i * blockDim.x + threadIdx.x] = gradient[i];
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int tap = threadIdx.x / 32; tap < k * k; tap += blockDim.x / 32) {
    float total = 0;
    for (int i = lane; i < blockDim.x; i += 32) total += sums[tap * blockDim.x + i];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (lane == 0) {
      parts[(int64_t{blockIdx.y} * shape.channels + channel) * (k * k) + (args.flip ? k * k - 1 - tap : tap)] = total;
    }
  }
}

// The largest tile across and down, but for images up to that size, which stay whole.
constexpr int tile_side = 64;
// Several images share a stage while they stay below this, so that an SM holds a few blocks of two stages each.
constexpr int stage_bytes = 28 * 1024;

template <typename T>
Launch plan_launch(const Shape& shape, const T* windowed, const T* centred, const T* out, bool backward, int unit_rows,
                   int padding, bool flip, bool wants_image) {
  Launch args{};
  args.shape = shape;
  args.padding = padding;
  args.flip = flip;
  args.wants_image = wants_image;
  Plan& plan = args.plan;
  plan.tiles_down = (shape.height - 1) / tile_side + 1;
  plan.tiles_across = (shape.width - 1) / tile_side + 1;
  plan.tile_height = up_to((shape.height - 1) / plan.tiles_down + 1, unit_rows);
  plan.tile_width = up_to((shape.width - 1) / plan.tiles_across + 1, plan.tiles_across == 1 ? 4 : 8);
  plan.tiles_down = (shape.height - 1) / plan.tile_height + 1;
  plan.tiles_across = (shape.width - 1) / plan.tile_width + 1;
  plan.strips = plan.tile_width / 4;
  plan.units = plan.strips * (plan.tile_height / unit_rows);
  plan.by_units = Divider(plan.units);
  plan.by_strips = Divider(plan.strips);
  const int64_t tiles = int64_t{plan.tiles_down} * plan.tiles_across;
  const auto windows = [&] {
    args.window = window_of<T>(windowed, shape, plan, shape.k / 2, padding);
    args.centre = window_of<T>(centred, shape, plan, 0, padding);
    args.centre_offset = plan.images * args.window.rows * args.window.pitch;
    args.buffer = args.centre_offset + (backward ? plan.images * args.centre.rows * args.centre.pitch : 0);
    return args.buffer * static_cast<int>(sizeof(T));
  };
  plan.images = 1;
  const int image_bytes = windows();
  if (tiles == 1) {
    const int most = std::min(tuned("DW_UNITS", most_threads) / plan.units, tuned("DW_BYTES", stage_bytes) / image_bytes);
    plan.images = static_cast<int>(std::min<int64_t>(std::max(1, most), shape.batch));
  }
  plan.stages = tiles == 1 ? (shape.batch + plan.images - 1) / plan.images : shape.batch * tiles;
  plan.threads = std::min(up_to(plan.images * plan.units, 32), tuned("DW_THREADS", most_threads));
  windows();
  const int64_t few = std::max<int64_t>(1, plan.stages * shape.channels / tuned("DW_BLOCKS", 1024));
  const int64_t at_least = (plan.stages + 65534) / 65535;
  plan.stages_a_block = static_cast<int>(
      std::max(std::min<int64_t>(few, tuned(backward ? "DW_BSTAGES" : "DW_STAGES", backward ? 8 : 4)), at_least));
  plan.blocks = static_cast<int>((plan.stages + plan.stages_a_block - 1) / plan.stages_a_block);
  plan.packed = shape.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(out) % (4 * sizeof(T)) == 0;
  return args;
}

// Sets how much shared memory a kernel may have; the most that one block gets on every GPU served is 99 KB.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

}  // namespace depthwise
