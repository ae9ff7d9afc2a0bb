// Filters of 3, 5 and 7 in half precision, on the matrix units. Each dtype has a .cu file of its own.
//
// A row of the result is a row of the image times a banded matrix: with the taps w of one row of the filter,
//   out[x] = sum over i of in[x - border + i] w[i] = sum over j of in[j] W[j][x],   W[j][x] = w[j - x + border],
// so that one product of 16 x 8 x 16 makes 8 columns of 16 rows, from 16 columns of the image and one row of the
// filter. The products are exact and the sums in float, as in the other kernels.
//
// Which 16 rows is free, as each row of an operand has an address of its own. They lie 7 apart, so that what is loaded
// for row u of these groups of 7 serves the k results u - k + 1 to u, and nothing is loaded twice. (7 divides the
// common sizes, 7 to 224; and 7 rows of 7, 9, ... times 16 bytes apart lie in different banks of shared memory.)
//
// Columns come 8 at a time, aligned. Two such blocks hold all that the 8 results around their common edge need; so
// results are computed from 4 columns left of a block on.
//
// The filter's gradient is a product too, over rows: D[i][j] = sum over y of window[y + a][i] centre[y][j], whose
// diagonals i - j are the taps of row a. The same places of the image make it, with the operands transposed as they are
// loaded.
#pragma once

#include "depthwise.cuh"

#include "../common/halves.cuh"
#include "../common/mma.cuh"

namespace depthwise {

// Rows of a group; groups, of any images of a stage, and columns that a warp computes at a time.
constexpr int group_rows = 7;
constexpr int unit_groups = 8;
constexpr int unit_columns = 16;
constexpr int matrix_threads = 128;

struct MatrixLaunch {
  Walk walk;
  bool flip, wants_image;
  // Where images come in one piece each the results leave so too: elements of T up to their two buffers, and from one
  // image to the next.
  int results, result_image;
  int groups;                   // of an image
  Divider by_groups;
  int first_block, last_block;  // blocks of 8 columns of the window that hold numbers, counted from the tile's first
};

// The banded matrices of a filter, as operands: of each row of taps, this thread's two pairs.
template <typename T, int k>
__device__ inline void load_bands(const T* taps, bool flip, unsigned (&bands)[k][2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int a = 0; a < k; ++a) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bands[a][half] = cuda_ext::band<T>(lane, half * 8 - 4 + k / 2, k, [&](int b) {
        const int tap = a * k + b;
        return taps[flip ? k * k - 1 - tap : tap];
      });
    }
  }
}

// Zeros to begin with; NaN for ever once a value was not finite, as 0 x is then. Both are pairs.
template <typename T>
__device__ inline unsigned poisoned(unsigned values, unsigned so_far) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const T zero = static_cast<T>(0.f);
  const Pair sum = __hfma2(*reinterpret_cast<const Pair*>(&values), Pair(zero, zero),
                           *reinterpret_cast<const Pair*>(&so_far));
  return *reinterpret_cast<const unsigned*>(&sum);
}

template <typename T>
__device__ inline bool is_poisoned(unsigned pair) {
  const unsigned exponent = std::is_same_v<T, __half> ? 0x7c00u : 0x7f80u;
  return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

// Where a warp's unit lies in a stage, for one thread. `window` and `centre`: of the row of the matrix lane / 8 that
// the thread gives the address of, its place in the stage's buffer; -1 where there is none. The four matrices of a
// product are three neighbouring blocks of columns, the middle one twice. `row` and `column`: what the thread holds of
// the results, pairs at `column` and `column` + 8 of the group's rows, of which left_rows and right_rows are real.
struct Spot {
  int window, centre;
  int image, row, column, left_rows, right_rows;
};

__device__ __forceinline__ Spot spot_of(int unit, const Stage& stage, const MatrixLaunch& args) {
  const Walk& walk = args.walk;
  const Plan& plan = walk.plan;
  const int lane = threadIdx.x % 32;
  Spot spot;
  const int groups = stage.images * args.groups;
  const int eight = plan.by_strips(unit);
  const int strip = unit - eight * plan.strips;
  const int from = eight * unit_groups + lane % 8;
  const int from_image = args.by_groups(from);
  const int from_row = (from - from_image * args.groups) * group_rows;
  const int block = 2 * strip - 1 + (lane / 8 + 1) / 2;
  spot.window = from >= groups || block < args.first_block || block >= args.last_block
                    ? -1
                    : from_image * walk.window.image + walk.window.origin + from_row * walk.window.pitch + block * 8;
  spot.centre = from >= groups || block < 0 || block * 8 >= plan.tile_width
                    ? -1
                    : walk.centre_offset + from_image * walk.centre.image + walk.centre.origin +
                          from_row * walk.centre.pitch + block * 8;
  const int to = eight * unit_groups + lane / 4;
  spot.image = args.by_groups(to);
  spot.row = (to - spot.image * args.groups) * group_rows;
  spot.column = strip * unit_columns - 4 + lane % 4 * 2;
  const int rows = to < groups ? walk.shape.height - stage.row - spot.row : 0;
  const int columns = min(plan.tile_width, walk.shape.width - stage.column);
  spot.left_rows = spot.column >= 0 && spot.column < columns ? rows : 0;
  spot.right_rows = spot.column + 8 < columns ? rows : 0;
  return spot;
}

// One result, tap by tap. `centre`: the place of the result in the window; `left` and `right`: how many columns beside
// it hold numbers.
template <typename T, int k>
__device__ inline T single(const T* centre, int pitch, int left, int right, const T* taps, bool flip) {
  float sum = 0;
#pragma unroll 1
  for (int a = 0; a < k; ++a) {
#pragma unroll 1
    for (int b = 0; b < k; ++b) {
      const int column = b - k / 2;
      if (column < -left || column > right) continue;
      const int tap = a * k + b;
      sum = fmaf(widen(taps[flip ? k * k - 1 - tap : tap]), widen(centre[a * pitch + column]), sum);
    }
  }
  return static_cast<T>(sum);
}

// A warp's results of a unit again, tap by tap, once one of them was not finite: a factor of zero does not hide that, and
// it would spread over the 16 columns of a product. place: of the thread's first result; first_column: of the tile in the
// image.
template <typename T, int k>
__device__ __forceinline__ void compute_singly(T* place, const T* shared, const Spot& spot, const MatrixLaunch& args,
                                               int first_column, const T* taps) {
  const Walk& walk = args.walk;
  const int width = walk.shape.width;
  const T* at = shared + spot.image * walk.window.image + walk.window.origin + spot.row * walk.window.pitch;
#pragma unroll 1
  for (int i = 0; i < group_rows * 4; ++i) {
    const int t = i / 4, half = i / 2 % 2;
    const int x = spot.column + half * 8 + i % 2;
    if (t >= (half ? spot.right_rows : spot.left_rows) || first_column + x >= width) continue;
    place[int64_t{t} * width + half * 8 + i % 2] =
        single<T, k>(at + t * walk.window.pitch + x, walk.window.pitch, x - args.first_block * 8,
                     args.last_block * 8 - 1 - x, taps, args.flip);
  }
}

// The block's part of the filter's gradient: each warp's products side by side in `products`; then a thread adds one
// diagonal, in one order always. parts: of the block and the channel.
template <int k>
__device__ __forceinline__ void add_diagonals(float* parts, const float (&gradient)[k][4], float* products, bool flip) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int a = 0; a < k; ++a) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      products[((warp * k + a) * 16 + lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = gradient[a][i];
    }
  }
  __syncthreads();
  for (int tap = threadIdx.x; tap < k * k; tap += blockDim.x) {
    const int a = tap / k;
    float total = 0;
    for (int j = 0; j < 8; ++j) {
      const int row = tap - a * k + 8 - k / 2 + (j < 4 ? j : j - 8);
      for (int w = 0; w < warps; ++w) total += products[((w * k + a) * 16 + row) * 8 + j];
    }
    parts[flip ? k * k - 1 - tap : tap] = total;
  }
}

// out and parts as in depthwise.cuh; `backward`: also the filter's gradient.
template <typename T, int k, bool backward, bool bulk>
__global__ void __launch_bounds__(matrix_threads, backward ? (k == 7 ? 4 : 5) : (bulk ? 8 : 7))
    multiply(const T* __restrict__ windowed, const T* __restrict__ centred, const T* __restrict__ weight,
             T* __restrict__ out, float* __restrict__ parts, const __grid_constant__ MatrixLaunch args) {
  extern __shared__ __align__(16) char memory[];
  if constexpr (backward) cuda_ext::let_the_next_start();
  const Walk& walk = args.walk;
  const Plan& plan = walk.plan;
  const Shape& shape = walk.shape;
  const int64_t channel = blockIdx.x;
  const int64_t plane = int64_t{shape.height} * shape.width;
  const T* taps = weight + channel * (k * k);
  const bool wants_image = !backward || args.wants_image;
  __shared__ __align__(16) T nothing[8];
  if (threadIdx.x < 8) nothing[threadIdx.x] = static_cast<T>(0.f);

  unsigned bands[k][2];
  const auto begin = [&] { load_bands<T, k>(taps, args.flip, bands); };
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;

  float gradient[backward ? k : 1][4] = {};
  Spot spot;
  int found_for = 0;
  const auto results_of = [&](int s) {
    return reinterpret_cast<T*>(memory) + args.results + s % 2 * plan.images * args.result_image;
  };
  const auto compute = [&](int s, const Stage& stage, const T* shared) {
    const int units = (stage.images * args.groups + unit_groups - 1) / unit_groups * plan.strips;
    for (int unit = warp; unit < units; unit += warps) {
      // Where a warp has one unit a stage it stays where it is.
      if (!bulk || units > warps || stage.images != found_for) spot = spot_of(unit, stage, args);
      found_for = stage.images;
      const T* window_row = spot.window < 0 ? nothing : shared + spot.window;
      const int window_pitch = spot.window < 0 ? 0 : walk.window.pitch;
      const T* centre_row = spot.centre < 0 ? nothing : shared + spot.centre;
      const int centre_pitch = spot.centre < 0 ? 0 : walk.centre.pitch;
      T* place = bulk ? results_of(s) + spot.image * args.result_image + spot.row * shape.width + spot.column
                      : out + ((stage.image + spot.image) * shape.channels + channel) * plane +
                            int64_t{stage.row + spot.row} * shape.width + stage.column + spot.column;

      unsigned centre[group_rows][2];
      float sum[group_rows][4];
      unsigned poison = 0;
#pragma unroll
      for (int u = 0; u < group_rows + k - 1; ++u) {
        unsigned a[4], turned[4];
        cuda_ext::load_matrices(a, window_row + u * window_pitch);
        if constexpr (backward) {
          cuda_ext::load_matrices_transposed(turned, window_row + u * window_pitch);
          if (u < group_rows) {
            unsigned c[4];
            cuda_ext::load_matrices_transposed(c, centre_row + u * centre_pitch);
            // Columns 4 to 7 of one block and 0 to 3 of the next, in whichever order.
            centre[u][0] = lane < 16 ? c[1] : c[0];
            centre[u][1] = lane < 16 ? c[3] : c[2];
          }
        }
#pragma unroll
        for (int t = 0; t < group_rows; ++t) {
          const int tap = u - t;
          if (tap < 0 || tap >= k) continue;
          if (tap == 0) sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0.f;
          cuda_ext::multiply<T>(sum[t], a, bands[tap][0], bands[tap][1]);
          if constexpr (backward) cuda_ext::multiply<T>(gradient[tap], turned, centre[t][0], centre[t][1]);
        }
        if (const int t = u - k + 1; t >= 0 && wants_image) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const unsigned pair = cuda_ext::pack<T>(sum[t][2 * half], sum[t][2 * half + 1]);
            poison = poisoned<T>(pair, poison);
            if (t >= (half ? spot.right_rows : spot.left_rows)) continue;
            if constexpr (bulk) {
              *reinterpret_cast<unsigned*>(place + t * shape.width + half * 8) = pair;
            } else if (plan.packed) {
              *reinterpret_cast<unsigned*>(place + int64_t{t} * shape.width + half * 8) = pair;
            } else {
              T* pixels = place + int64_t{t} * shape.width + half * 8;
              pixels[0] = reinterpret_cast<const T*>(&pair)[0];
              if (stage.column + spot.column + half * 8 + 1 < shape.width) {
                pixels[1] = reinterpret_cast<const T*>(&pair)[1];
              }
            }
          }
        }
      }
      if (is_poisoned<T>(poison)) compute_singly<T, k>(place, shared, spot, args, stage.column, taps);
    }
    if (bulk && wants_image) {
      cuda_ext::order_with_bulk_copies();
      if (threadIdx.x == 0) cuda_ext::await_stores_read();
    }
  };
  const auto store = [&](int s, const Stage& stage) {
    if (!bulk || !wants_image || threadIdx.x != 0) return;
    T* to = out + (stage.image * shape.channels + channel) * plane;
#pragma unroll 1
    for (int image = 0; image < stage.images; ++image) {
      cuda_ext::store_bulk(to, results_of(s) + image * args.result_image, walk.image_bytes);
      to += shape.channels * plane;
    }
    cuda_ext::commit_stores();
  };
  for_stages<backward>(walk, bulk, windowed, centred, memory, begin, compute, store);
  if (bulk && threadIdx.x == 0) cuda_ext::await_stores_read();

  if constexpr (backward) {
    __syncthreads();
    float* const own_parts = parts + (int64_t{blockIdx.y} * shape.channels + channel) * (k * k);
    add_diagonals<k>(own_parts, gradient, reinterpret_cast<float*>(memory), args.flip);
  }
}

// A window whose rows lie in different banks: an odd number of 16 bytes apart.
template <typename T>
Window odd_window_of(const T* data, const Shape& shape, const Plan& plan, int border, int padding) {
  const Window window = window_of<T>(data, shape, plan, border, padding);
  return window.pitch / 8 % 2 == 1 ? window : window_of<T>(data, shape, plan, border, padding, 0, 8);
}

// The largest tile across and down, but for images whose window has at most whole_image elements, which stay whole:
// then two stages of two windows and two buffers of results fit a block.
constexpr int matrix_tile_side = 56;
constexpr int whole_image = 8 * 1024;
// Several small images share a stage, while there is a warp for each unit.
constexpr int units_a_stage = matrix_threads / 32;

template <typename T>
MatrixLaunch plan_matrix(const Shape& shape, const T* windowed, const T* centred, const T* out, bool backward,
                         int padding, bool flip, bool wants_image) {
  MatrixLaunch args{};
  args.flip = flip;
  args.wants_image = wants_image;
  Walk& walk = args.walk;
  walk.shape = shape;
  walk.padding = padding;
  Plan& plan = walk.plan;
  const int border = shape.k / 2;
  const bool one =
      int64_t{up_to(shape.height, group_rows) + 2 * border} * (up_to(shape.width, 8) + 24) <= whole_image;
  plan.tiles_down = one ? 1 : (shape.height - 1) / matrix_tile_side + 1;
  plan.tiles_across = one ? 1 : (shape.width - 1) / matrix_tile_side + 1;
  plan.tile_height = up_to((shape.height - 1) / plan.tiles_down + 1, group_rows);
  plan.tile_width = up_to((shape.width - 1) / plan.tiles_across + 1, 8);
  plan.tiles_down = (shape.height - 1) / plan.tile_height + 1;
  plan.tiles_across = (shape.width - 1) / plan.tile_width + 1;
  plan.strips = (plan.tile_width + 4 - 1) / unit_columns + 1;
  plan.by_strips = Divider(plan.strips);
  args.groups = plan.tile_height / group_rows;
  args.by_groups = Divider(args.groups);
  args.first_block = -1;
  args.last_block = plan.tile_width / 8 + 1;
  const int64_t tiles = int64_t{plan.tiles_down} * plan.tiles_across;
  const auto windows = [&] {
    walk.window = odd_window_of<T>(windowed, shape, plan, border, padding);
    walk.centre = odd_window_of<T>(centred, shape, plan, 0, padding);
    if (walk.bulk) {
      lay_whole<T>(walk.window, plan, shape, border);
      lay_whole<T>(walk.centre, plan, shape, 0);
    }
    walk.centre_offset = plan.images * walk.window.image;
    walk.buffer = walk.centre_offset + (backward ? plan.images * walk.centre.image : 0);
    return walk.buffer * static_cast<int>(sizeof(T));
  };
  const auto units = [&] { return (plan.images * args.groups + unit_groups - 1) / unit_groups * plan.strips; };
  plan.images = 1;
  if (tiles == 1) {
    const int most = units_a_stage * unit_groups / (plan.strips * args.groups);
    plan.images = static_cast<int>(std::min<int64_t>(std::max(1, most), shape.batch));
  }
  plan.stages = tiles == 1 ? (shape.batch + plan.images - 1) / plan.images : shape.batch * tiles;
  plan.threads = std::min(32 * units(), matrix_threads);
  windows();
  // The plan so far is one for all pointers: the number of blocks is asked for before there are any. Rows of a multiple
  // of 64 bytes without a gap would lie in the same banks.
  walk.bulk = comes_whole(walk.window, windowed, shape) && comes_whole(walk.centre, centred, shape) &&
              shape.width % 8 == 0 && shape.width % 32 != 0 && cuda_ext::aligned_for_packs(out) && cuda_ext::has_hopper_code();
  if (walk.bulk) {
    walk.image_bytes = shape.height * shape.width * static_cast<int>(sizeof(T));
    args.first_block = 0;
    args.last_block = shape.width / 8;
    args.result_image = wants_image ? shape.height * shape.width : 0;
  }
  windows();
  share_stages(plan, shape, std::max(2, 16 / plan.images));
  walk.depth = std::min(plan.stages_a_block, most_depth);
  args.results = walk.depth * walk.buffer;
  plan.packed = shape.width % 2 == 0 && reinterpret_cast<std::uintptr_t>(out) % (2 * sizeof(T)) == 0;
  return args;
}

template <typename T, int k, bool backward>
void launch_multiply(const T* windowed, const T* centred, const T* weight, T* out, float* parts,
                     const MatrixLaunch& args, cudaStream_t stream) {
  const Plan& plan = args.walk.plan;
  const int buffers = (args.results + 2 * plan.images * args.result_image) * static_cast<int>(sizeof(T));
  const int products = backward ? plan.threads / 32 * k * 128 * static_cast<int>(sizeof(float)) : 0;
  const int bytes = std::max(buffers, products);
  auto* const kernel = args.walk.bulk ? &multiply<T, k, backward, true> : &multiply<T, k, backward, false>;
  allow_shared(kernel, bytes);
  const dim3 grid(static_cast<unsigned>(args.walk.shape.channels), plan.blocks);
  if constexpr (backward) {
    cuda_ext::launch_early(kernel, grid, plan.threads, bytes, stream, windowed, centred, weight, out, parts, args);
  } else {
    // Not early: the waiting blocks would take the place of those that work (3 to 18 % slower on an H200).
    kernel<<<grid, plan.threads, bytes, stream>>>(windowed, centred, weight, out, parts, args);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

template <typename T>
void convolve_small(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream) {
  const MatrixLaunch args = plan_matrix<T>(shape, x, x, out, false, padding, flip, true);
  float* const no_parts = nullptr;
  switch (shape.k) {
    case 3: return launch_multiply<T, 3, false>(x, x, weight, out, no_parts, args, stream);
    case 5: return launch_multiply<T, 5, false>(x, x, weight, out, no_parts, args, stream);
    default: return launch_multiply<T, 7, false>(x, x, weight, out, no_parts, args, stream);
  }
}

template <typename T>
int blocks_small(const Shape& shape) {
  return plan_matrix<T>(shape, nullptr, nullptr, nullptr, true, zeros, false, true).walk.plan.blocks;
}

template <typename T>
void differentiate_small(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                         const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  const MatrixLaunch args =
      plan_matrix<T>(shape, windowed, centred, image_gradient, true, padding, flip, image_gradient != nullptr);
  switch (shape.k) {
    case 3: return launch_multiply<T, 3, true>(windowed, centred, weight, image_gradient, parts, args, stream);
    case 5: return launch_multiply<T, 5, true>(windowed, centred, weight, image_gradient, parts, args, stream);
    default: return launch_multiply<T, 7, true>(windowed, centred, weight, image_gradient, parts, args, stream);
  }
}

}  // namespace depthwise
