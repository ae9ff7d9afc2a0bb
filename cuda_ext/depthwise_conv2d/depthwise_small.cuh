// Filters of 3, 5 and 7: each is a template of its own, whole in registers. Each dtype has a .cu file of its own.
#pragma once

#include "depthwise.cuh"

namespace depthwise {

// Rows of a unit: a thread computes unit_rows x 4 outputs from (unit_rows + k - 1) x (4 + k - 1) inputs.
constexpr int unit_rows = 4;
constexpr int most_threads = 128;
// Stages under way at once. Three were slower than two: they leave room for fewer blocks (measured on an H200).
constexpr int most_stages = 2;

struct Launch {
  Shape shape;
  Plan plan;
  Window window, centre;
  int padding;
  bool flip, wants_image;
  bool bulk;                  // whole images come in one piece each, of image_bytes
  int image_bytes;
  int depth;                  // stages under way at once, up to most_stages
  int buffer, centre_offset;  // elements of T: one stage, and where in it the centre window begins
};

// One row of a unit's inputs, 4 + k - 1 places from `centre` - k / 2 on. What a flag denies is zero: copied in one piece,
// an image has no border to its left and right, but its rows' neighbours.
template <int k, typename T>
__device__ inline void load_row(const T* centre, bool left, bool right, float* row) {
  constexpr int border = k / 2;
  load4(centre, row + border);
  if constexpr (border == 1) {
    row[0] = left ? widen(centre[-1]) : 0.f;
    row[5] = right ? widen(centre[4]) : 0.f;
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
  if constexpr (border > 1) {
#pragma unroll
    for (int i = 0; i < border; ++i) {
      row[i] = left ? row[i] : 0.f;
      row[border + 4 + i] = right ? row[border + 4 + i] : 0.f;
    }
  }
}

template <typename T>
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

// The thread's first unit. Where units do not fill the warps evenly, another warp has the rest in each stage and block.
__device__ inline int rotated(int stage, const Plan& plan) {
  const int warps = blockDim.x / 32;
  const int warp = (threadIdx.x / 32 + stage + blockIdx.x + blockIdx.y) % warps;
  return warp * 32 + threadIdx.x % 32;
}

__device__ inline Unit unit_at(int index, const Plan& plan) {
  const int image = plan.by_units(index);
  const int place = index - image * plan.units;
  const int down = plan.by_strips(place);
  return {image, down * unit_rows, (place - down * plan.strips) * 4};
}

template <typename T, int k>
__global__ void __launch_bounds__(most_threads) convolve(const T* __restrict__ x, const T* __restrict__ weight,
                                                         T* __restrict__ out, const __grid_constant__ Launch args) {
  extern __shared__ __align__(16) char memory[];
  T* buffers = reinterpret_cast<T*>(memory);
  const Plan& plan = args.plan;
  const Shape& shape = args.shape;
  const int64_t channel = blockIdx.x;
  const int64_t first = int64_t{blockIdx.y} * plan.stages_a_block;
  const int stages = static_cast<int>(min(plan.stages - first, int64_t{plan.stages_a_block}));

  __shared__ uint64_t arrived[most_stages];
  if (args.window.whole) {
    clear(memory, args.depth * args.buffer * static_cast<int>(sizeof(T)));
    if (args.bulk) begin_barriers(arrived, args.depth);
    __syncthreads();
  }
  const auto bring = [&](int s) {
    if (s < stages) {
      T* buffer = buffers + s % args.depth * args.buffer;
      const Stage stage = stage_at(first + s, plan, shape);
      if (args.bulk) {
        if (threadIdx.x < 32) {
          uint64_t* barrier = &arrived[s % args.depth];
          expect(barrier, stage.images * args.image_bytes);
          fill_whole(buffer, x, args.window, stage, shape, channel, args.image_bytes, barrier);
        }
        return;
      }
      fill(buffer, x, args.window, stage, shape, channel, args.padding);
    }
    commit_copies();
  };
  for (int s = 0; s < args.depth - 1; ++s) bring(s);

  float w[k * k];
#pragma unroll
  for (int i = 0; i < k * k; ++i) {
    w[i] = widen(weight[channel * (k * k) + (args.flip ? k * k - 1 - i : i)]);
  }

  for (int s = 0; s < stages; ++s) {
    bring(s + args.depth - 1);
    if (args.bulk) {
      wait_for(&arrived[s % args.depth], s / args.depth & 1);
    } else {
      wait_for_copies(args.depth - 1);
      __syncthreads();
    }
    const Stage stage = stage_at(first + s, plan, shape);
    const T* shared = buffers + s % args.depth * args.buffer;
    const int units = stage.images * plan.units;
    for (int u = rotated(s, plan); u < units; u += blockDim.x) {
      const Unit unit = unit_at(u, plan);
      const T* centre = shared + unit.image * args.window.image + args.window.origin +
                        unit.down * args.window.pitch + unit.across;
      const bool left = !args.bulk || unit.across > 0;
      const bool right = !args.bulk || unit.across + 4 < shape.width;
      float sum[unit_rows][4] = {};
#pragma unroll
      for (int i = 0; i < unit_rows + k - 1; ++i) {
        float row[4 + k - 1];
        load_row<k>(centre + i * args.window.pitch, left, right, row);
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

// Over the block: each thread's sums side by side, then a warp adds those of one tap, in one order always.
template <int k>
__device__ inline void reduce_taps(const float (&gradient)[k * k], float* parts, const Launch& args, char* memory) {
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
      parts[(int64_t{blockIdx.y} * args.shape.channels + blockIdx.x) * (k * k) +
            (args.flip ? k * k - 1 - tap : tap)] = total;
    }
  }
}

// Both gradients read the result's gradient g through the same window: at each place of the image,
//   image gradient = sum over taps of flipped weight * g,   filter gradient += image * g.
// With flip off and g and the image in each other's place it gives the filter's gradient for any padding.
template <typename T, int k>
__global__ void __launch_bounds__(most_threads, k == 7 ? 3 : 4)
    differentiate(const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ weight,
                  T* __restrict__ image_gradient, float* __restrict__ parts, const __grid_constant__ Launch args) {
  extern __shared__ __align__(16) char memory[];
  T* buffers = reinterpret_cast<T*>(memory);
  const Plan& plan = args.plan;
  const Shape& shape = args.shape;
  const int64_t channel = blockIdx.x;
  const int64_t first = int64_t{blockIdx.y} * plan.stages_a_block;
  const int stages = static_cast<int>(min(plan.stages - first, int64_t{plan.stages_a_block}));

  // The window of the places themselves is whole wherever the other is; not so the other way round.
  __shared__ uint64_t arrived[most_stages];
  if (args.centre.whole) {
    clear(memory, args.depth * args.buffer * static_cast<int>(sizeof(T)));
    if (args.bulk) begin_barriers(arrived, args.depth);
    __syncthreads();
  }
  const auto bring = [&](int s) {
    if (s < stages) {
      T* buffer = buffers + s % args.depth * args.buffer;
      const Stage stage = stage_at(first + s, plan, shape);
      if (args.bulk) {
        if (threadIdx.x < 32) {
          uint64_t* barrier = &arrived[s % args.depth];
          expect(barrier, 2 * stage.images * args.image_bytes);
          fill_whole(buffer, g, args.window, stage, shape, channel, args.image_bytes, barrier);
          fill_whole(buffer + args.centre_offset, x, args.centre, stage, shape, channel, args.image_bytes, barrier);
        }
        return;
      }
      fill(buffer, g, args.window, stage, shape, channel, args.padding);
      fill(buffer + args.centre_offset, x, args.centre, stage, shape, channel, zeros);
    }
    commit_copies();
  };
  for (int s = 0; s < args.depth - 1; ++s) bring(s);
  float w[k * k];
#pragma unroll
  for (int i = 0; i < k * k; ++i) w[i] = widen(weight[channel * (k * k) + (args.flip ? k * k - 1 - i : i)]);

  float gradient[k * k] = {};
  for (int s = 0; s < stages; ++s) {
    bring(s + args.depth - 1);
    if (args.bulk) {
      wait_for(&arrived[s % args.depth], s / args.depth & 1);
    } else {
      wait_for_copies(args.depth - 1);
      __syncthreads();
    }
    const Stage stage = stage_at(first + s, plan, shape);
    const T* shared = buffers + s % args.depth * args.buffer;
    const int units = stage.images * plan.units;
    for (int u = rotated(s, plan); u < units; u += blockDim.x) {
      const Unit unit = unit_at(u, plan);
      const T* centre = shared + unit.image * args.window.image + args.window.origin +
                        unit.down * args.window.pitch + unit.across;
      const bool left = !args.bulk || unit.across > 0;
      const bool right = !args.bulk || unit.across + 4 < shape.width;
      const T* own = shared + args.centre_offset + unit.image * args.centre.image +
                     unit.down * args.centre.pitch + unit.across;
      float value[unit_rows][4];
#pragma unroll
      for (int r = 0; r < unit_rows; ++r) load4(own + r * args.centre.pitch, value[r]);
      float sum[unit_rows][4] = {};
#pragma unroll
      for (int i = 0; i < unit_rows + k - 1; ++i) {
        float row[4 + k - 1];
        load_row<k>(centre + i * args.window.pitch, left, right, row);
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

  reduce_taps<k>(gradient, parts, args, memory);
}

// The largest tile across and down, but for images up to that size, which stay whole.
constexpr int tile_side = 64;
// Several images share a stage while they stay below both, so that an SM holds a few blocks of two stages each.
constexpr int stage_bytes = 32 * 1024;
constexpr int most_units = 400;
// About four for each SM of a large GPU. It is a constant, as is all that a plan is made from, but for the shape: which
// parts of the filter's gradient are summed in which order does not depend on the GPU.
constexpr int few_blocks = 512;

template <typename T>
Launch plan_launch(const Shape& shape, const T* windowed, const T* centred, const T* out, bool backward,
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
    if (args.bulk) {
      lay_whole<T>(args.window, plan, shape, shape.k / 2);
      lay_whole<T>(args.centre, plan, shape, 0);
    }
    args.centre_offset = plan.images * args.window.image;
    args.buffer = args.centre_offset + (backward ? plan.images * args.centre.image : 0);
    return args.buffer * static_cast<int>(sizeof(T));
  };
  plan.images = 1;
  const int image_bytes = windows();
  if (tiles == 1) {
    const int most = std::min(most_units / plan.units, stage_bytes / image_bytes);
    plan.images = static_cast<int>(std::min<int64_t>(std::max(1, most), shape.batch));
  }
  plan.stages = tiles == 1 ? (shape.batch + plan.images - 1) / plan.images : shape.batch * tiles;
  plan.threads = std::min(up_to(plan.images * plan.units, 32), most_threads);
  // The plan so far is one for all pointers: the number of blocks is asked for before there are any.
  args.bulk = comes_whole(args.window, windowed, shape) && comes_whole(args.centre, centred, shape) && has_bulk_copies();
  if (args.bulk) args.image_bytes = shape.height * shape.width * static_cast<int>(sizeof(T));
  windows();
  // Longer runs of stages cost fewer beginnings and, backward, fewer sums over a block; enough blocks keep the GPU busy.
  const int64_t longest = std::max(2, (backward ? 16 : 8) / plan.images);
  const int64_t few = std::max<int64_t>(1, plan.stages * shape.channels / few_blocks);
  const int64_t at_least = (plan.stages + 65534) / 65535;
  plan.stages_a_block = static_cast<int>(std::max(std::min(few, longest), at_least));
  plan.blocks = static_cast<int>((plan.stages + plan.stages_a_block - 1) / plan.stages_a_block);
  args.depth = std::max(1, std::min({plan.stages_a_block, most_stages, most_shared / (args.buffer * static_cast<int>(sizeof(T)))}));
  plan.packed = shape.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(out) % (4 * sizeof(T)) == 0;
  return args;
}

// Sets how much shared memory a kernel may have; the most that one block gets on every GPU served is 99 KB.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

template <typename T, int k>
void launch_convolve(const T* x, const T* weight, T* out, const Launch& args, cudaStream_t stream) {
  const int bytes = args.depth * args.buffer * static_cast<int>(sizeof(T));
  allow_shared(convolve<T, k>, bytes);
  const dim3 grid(static_cast<unsigned>(args.shape.channels), args.plan.blocks);
  convolve<T, k><<<grid, args.plan.threads, bytes, stream>>>(x, weight, out, args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void convolve_small(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream) {
  const Launch args = plan_launch<T>(shape, x, x, out, false, padding, flip, true);
  switch (shape.k) {
    case 3: return launch_convolve<T, 3>(x, weight, out, args, stream);
    case 5: return launch_convolve<T, 5>(x, weight, out, args, stream);
    default: return launch_convolve<T, 7>(x, weight, out, args, stream);
  }
}

template <typename T>
int blocks_small(const Shape& shape) {
  return plan_launch<T>(shape, nullptr, nullptr, nullptr, true, zeros, false, true).plan.blocks;
}

template <typename T, int k>
void launch_differentiate(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                          const Launch& args, cudaStream_t stream) {
  const int buffers = args.depth * args.buffer * static_cast<int>(sizeof(T));
  const int sums = k * k * args.plan.threads * static_cast<int>(sizeof(float));
  const int bytes = std::max(buffers, sums);
  allow_shared(differentiate<T, k>, bytes);
  const dim3 grid(static_cast<unsigned>(args.shape.channels), args.plan.blocks);
  differentiate<T, k>
      <<<grid, args.plan.threads, bytes, stream>>>(windowed, centred, weight, image_gradient, parts, args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void differentiate_small(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                         const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  const Launch args =
      plan_launch<T>(shape, windowed, centred, image_gradient, true, padding, flip, image_gradient != nullptr);
  switch (shape.k) {
    case 3: return launch_differentiate<T, 3>(windowed, centred, weight, image_gradient, parts, args, stream);
    case 5: return launch_differentiate<T, 5>(windowed, centred, weight, image_gradient, parts, args, stream);
    default: return launch_differentiate<T, 7>(windowed, centred, weight, image_gradient, parts, args, stream);
  }
}

}  // namespace depthwise
