// Filters of 3, 5 and 7 in float: each is a template of its own, whole in registers.

#include "depthwise.cuh"

namespace depthwise {

namespace {

// Rows of a unit: a thread computes unit_rows x 4 outputs from (unit_rows + k - 1) x (4 + k - 1) inputs.
constexpr int unit_rows = 4;
constexpr int most_threads = 128;

struct Launch {
  Walk walk;
  bool flip, wants_image;
};

// One row of a unit's inputs, 4 + k - 1 places from `centre` - k / 2 on. What a flag denies is zero: copied in one piece,
// an image has no border to its left and right, but its rows' neighbours.
template <int k>
__device__ inline void load_row(const float* centre, bool left, bool right, float* row) {
  constexpr int border = k / 2;
  load4(centre, row + border);
  if constexpr (border == 1) {
    row[0] = left ? centre[-1] : 0.f;
    row[5] = right ? centre[4] : 0.f;
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

// Calls `function` with r, tap and b for all rows of the unit that input row i of it reaches: through the tap `tap`, in
// column b of the filter.
template <int k, typename Function>
__device__ inline void for_taps(int i, Function function) {
#pragma unroll
  for (int r = 0; r < unit_rows; ++r) {
    if (i - r < 0 || i - r >= k) continue;
#pragma unroll
    for (int b = 0; b < k; ++b) function(r, (i - r) * k + b, b);
  }
}

__device__ inline void store_unit(float* plane, const float (&values)[unit_rows][4], int y, int x, const Shape& shape,
                                  bool packed) {
#pragma unroll
  for (int r = 0; r < unit_rows; ++r) {
    if (y + r >= shape.height) return;
    float* to = plane + int64_t{y + r} * shape.width + x;
    if (packed) {
      if (x < shape.width) store4(to, values[r]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (x + j < shape.width) to[j] = values[r][j];
      }
    }
  }
}

// Where a thread's unit lies in a stage, and whether the image goes on beside it (see load_row).
struct Unit {
  int image, down, across;
  bool left, right;
};

// Calls `function` for the thread's units of a stage. Where they do not fill the warps evenly, another warp has the
// rest in each stage and block.
template <typename Function>
__device__ inline void for_units(int s, const Stage& stage, const Walk& walk, Function function) {
  const Plan& plan = walk.plan;
  const int warps = blockDim.x / 32;
  const int warp = (threadIdx.x / 32 + s + blockIdx.x + blockIdx.y) % warps;
  for (int u = warp * 32 + threadIdx.x % 32; u < stage.images * plan.units; u += blockDim.x) {
    const int image = plan.by_units(u);
    const int place = u - image * plan.units;
    const int down = plan.by_strips(place);
    const int across = (place - down * plan.strips) * 4;
    function(Unit{image, down * unit_rows, across, !walk.bulk || across > 0,
                  !walk.bulk || across + 4 < walk.shape.width});
  }
}

__device__ inline const float* place_of(const Unit& unit, const float* shared, const Window& window) {
  return shared + unit.image * window.image + window.origin + unit.down * window.pitch + unit.across;
}

template <int k>
__device__ inline void load_filter(const float* weight, bool flip, float (&w)[k * k]) {
#pragma unroll
  for (int i = 0; i < k * k; ++i) w[i] = weight[int64_t{blockIdx.x} * (k * k) + (flip ? k * k - 1 - i : i)];
}

__device__ inline float* plane_of(float* out, const Stage& stage, const Unit& unit, const Shape& shape) {
  return out + ((stage.image + unit.image) * shape.channels + blockIdx.x) * (int64_t{shape.height} * shape.width);
}

template <int k>
__global__ void __launch_bounds__(most_threads)
    convolve(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out,
             const __grid_constant__ Launch args) {
  extern __shared__ __align__(16) char memory[];
  cuda_ext::let_the_next_start();
  const Walk& walk = args.walk;
  float w[k * k];
  const auto begin = [&] { load_filter<k>(weight, args.flip, w); };
  const auto compute = [&](int s, const Stage& stage, const float* shared) {
    for_units(s, stage, walk, [&](const Unit& unit) {
      const float* centre = place_of(unit, shared, walk.window);
      float sum[unit_rows][4] = {};
#pragma unroll
      for (int i = 0; i < unit_rows + k - 1; ++i) {
        float row[4 + k - 1];
        load_row<k>(centre + i * walk.window.pitch, unit.left, unit.right, row);
        for_taps<k>(i, [&](int r, int tap, int b) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[r][j] = fmaf(w[tap], row[j + b], sum[r][j]);
        });
      }
      store_unit(plane_of(out, stage, unit, walk.shape), sum, stage.row + unit.down, stage.column + unit.across,
                 walk.shape, walk.plan.packed);
    });
  };
  for_stages<false>(walk, walk.bulk, x, x, memory, begin, compute, [](int, const Stage&) {});
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
      parts[(int64_t{blockIdx.y} * args.walk.shape.channels + blockIdx.x) * (k * k) +
            (args.flip ? k * k - 1 - tap : tap)] = total;
    }
  }
}

// Both gradients read the result's gradient g through the same window: at each place of the image,
//   image gradient = sum over taps of flipped weight * g,   filter gradient += image * g.
// With flip off and g and the image in each other's place it gives the filter's gradient for any padding.
template <int k>
__global__ void __launch_bounds__(most_threads, k == 7 ? 3 : 4)
    differentiate(const float* __restrict__ g, const float* __restrict__ x, const float* __restrict__ weight,
                  float* __restrict__ image_gradient, float* __restrict__ parts, const __grid_constant__ Launch args) {
  extern __shared__ __align__(16) char memory[];
  cuda_ext::let_the_next_start();
  const Walk& walk = args.walk;
  float w[k * k];
  const auto begin = [&] { load_filter<k>(weight, args.flip, w); };
  float gradient[k * k] = {};
  const auto compute = [&](int s, const Stage& stage, const float* shared) {
    for_units(s, stage, walk, [&](const Unit& unit) {
      const float* centre = place_of(unit, shared, walk.window);
      const float* own = place_of(unit, shared + walk.centre_offset, walk.centre);
      float value[unit_rows][4];
#pragma unroll
      for (int r = 0; r < unit_rows; ++r) load4(own + r * walk.centre.pitch, value[r]);
      float sum[unit_rows][4] = {};
#pragma unroll
      for (int i = 0; i < unit_rows + k - 1; ++i) {
        float row[4 + k - 1];
        load_row<k>(centre + i * walk.window.pitch, unit.left, unit.right, row);
        if (args.wants_image) {
          for_taps<k>(i, [&](int r, int tap, int b) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[r][j] = fmaf(w[tap], row[j + b], sum[r][j]);
          });
        }
        for_taps<k>(i, [&](int r, int tap, int b) {
#pragma unroll
          for (int j = 0; j < 4; ++j) gradient[tap] = fmaf(value[r][j], row[j + b], gradient[tap]);
        });
      }
      if (args.wants_image) {
        store_unit(plane_of(image_gradient, stage, unit, walk.shape), sum, stage.row + unit.down,
                   stage.column + unit.across, walk.shape, walk.plan.packed);
      }
    });
  };
  for_stages<true>(walk, walk.bulk, g, x, memory, begin, compute, [](int, const Stage&) {});
  reduce_taps<k>(gradient, parts, args, memory);
}

// The largest tile across and down, but for images up to that size, which stay whole.
constexpr int tile_side = 64;
// Several images share a stage while they stay below both, so that an SM holds a few blocks of two stages each.
constexpr int stage_bytes = 32 * 1024;
constexpr int most_units = 400;

Launch plan_launch(const Shape& shape, const float* windowed, const float* centred, const float* out, bool backward,
                   int padding, bool flip, bool wants_image) {
  Launch args{};
  args.flip = flip;
  args.wants_image = wants_image;
  Walk& walk = args.walk;
  walk.shape = shape;
  walk.padding = padding;
  Plan& plan = walk.plan;
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
    walk.window = window_of<float>(windowed, shape, plan, shape.k / 2, padding);
    walk.centre = window_of<float>(centred, shape, plan, 0, padding);
    if (walk.bulk) {
      lay_whole<float>(walk.window, plan, shape, shape.k / 2);
      lay_whole<float>(walk.centre, plan, shape, 0);
    }
    walk.centre_offset = plan.images * walk.window.image;
    walk.buffer = walk.centre_offset + (backward ? plan.images * walk.centre.image : 0);
    return walk.buffer * static_cast<int>(sizeof(float));
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
  walk.bulk =
      comes_whole(walk.window, windowed, shape) && comes_whole(walk.centre, centred, shape) && cuda_ext::has_hopper_code();
  if (walk.bulk) walk.image_bytes = shape.height * shape.width * static_cast<int>(sizeof(float));
  const int bytes = windows();
  share_stages(plan, shape, std::max(2, (backward ? 16 : 8) / plan.images));
  walk.depth = std::max(1, std::min({plan.stages_a_block, most_depth, most_shared / bytes}));
  plan.packed = shape.width % 4 == 0 && cuda_ext::aligned_for_packs(out);
  return args;
}

template <int k>
void launch_convolve(const float* x, const float* weight, float* out, const Launch& args, cudaStream_t stream) {
  const int bytes = args.walk.depth * args.walk.buffer * static_cast<int>(sizeof(float));
  allow_shared(convolve<k>, bytes);
  const dim3 grid(static_cast<unsigned>(args.walk.shape.channels), args.walk.plan.blocks);
  cuda_ext::launch_early(&convolve<k>, grid, args.walk.plan.threads, bytes, stream, x, weight, out, args);
}

template <int k>
void launch_differentiate(const float* windowed, const float* centred, const float* weight, float* image_gradient,
                          float* parts, const Launch& args, cudaStream_t stream) {
  const int threads = args.walk.plan.threads;
  const int elements = std::max(args.walk.depth * args.walk.buffer, k * k * threads);
  const int bytes = elements * static_cast<int>(sizeof(float));
  allow_shared(differentiate<k>, bytes);
  const dim3 grid(static_cast<unsigned>(args.walk.shape.channels), args.walk.plan.blocks);
  cuda_ext::launch_early(&differentiate<k>, grid, threads, bytes, stream, windowed, centred, weight, image_gradient,
                         parts, args);
}

}  // namespace

template <>
void convolve_small(const float* x, const float* weight, float* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream) {
  const Launch args = plan_launch(shape, x, x, out, false, padding, flip, true);
  switch (shape.k) {
    case 3: return launch_convolve<3>(x, weight, out, args, stream);
    case 5: return launch_convolve<5>(x, weight, out, args, stream);
    default: return launch_convolve<7>(x, weight, out, args, stream);
  }
}

template <>
int blocks_small<float>(const Shape& shape) {
  return plan_launch(shape, nullptr, nullptr, nullptr, true, zeros, false, true).walk.plan.blocks;
}

template <>
void differentiate_small(const float* windowed, const float* centred, const float* weight, float* image_gradient,
                         float* parts, const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  const Launch args =
      plan_launch(shape, windowed, centred, image_gradient, true, padding, flip, image_gradient != nullptr);
  switch (shape.k) {
    case 3: return launch_differentiate<3>(windowed, centred, weight, image_gradient, parts, args, stream);
    case 5: return launch_differentiate<5>(windowed, centred, weight, image_gradient, parts, args, stream);
    default: return launch_differentiate<7>(windowed, centred, weight, image_gradient, parts, args, stream);
  }
}

}  // namespace depthwise
