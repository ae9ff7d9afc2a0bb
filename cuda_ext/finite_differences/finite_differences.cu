// The first derivative of a periodic grid along an axis by central differences of order 8, from global memory or from
// tiles in shared memory: M. Harris, "Finite Difference Methods in CUDA C/C++", parts 1 and 2, NVIDIA Technical Blog,
// 2013.
//
// A result takes the 4 points on each side of it, so that each point is read 8 times. `direct` leaves it to the caches
// that memory is read once; `tiled` reads a tile with its halo of 4 points on each side into shared memory. A warp
// reads neighbours in memory whatever the axis is, which decides the tiles' shapes:
//
//   x, whose points are neighbours    4 lines of 64 points, a thread a point
//   y and z                           32 lines, neighbours in x, of 64 points, a thread 8 of them
//
// A grid is read as [outer, length, inner]: `length` points along the axis, `inner` numbers from one to the next.

#include "../common/launch.cuh"

#include <cstdint>

namespace {

using torch::stable::Tensor;

constexpr int reach = 4;
// Points along the axis of a tile without its halo, and with it.
constexpr int points = 64;
constexpr int with_halo = points + 2 * reach;
// Along x a block has 64 x 4 threads, a row of them a line; across it 32 x 8, a column of them a line.
constexpr int lines_along_x = 4;
constexpr int lines_across = 32;
constexpr int points_at_once = 8;
constexpr int per_thread = points / points_at_once;
static_assert(points % points_at_once == 0 && with_halo % points_at_once == 0);

// Offsets within one length * inner, which is at most 2^30, have 32 bits, the others 64. A launch's y ends at 65535, so
// that all blocks lie along its x. Across the axis `across` tiles lie beside each other, then `along` one behind the
// other; along x it is the other way round.
struct Grid {
  int64_t outer;
  int length, inner;
  unsigned along, across;
  float weights[reach];
};

__device__ inline int wrapped(int point, int length) {
  return point < 0 ? point + length : point < length ? point : point - length;
}

// value(k): the number k points further. The operations are written out: every kernel gives the same bits.
template <typename Value>
__device__ inline float stencil(const Grid& grid, const Value& value) {
  float sum = grid.weights[0] * (value(1) - value(-1));
#pragma unroll
  for (int k = 2; k <= reach; ++k) sum = fmaf(grid.weights[k - 1], value(k) - value(-k), sum);
  return sum;
}

// The derivative at a point of the line that begins at `f`, whose points lie `inner` apart.
__device__ inline float from_global(const Grid& grid, const float* __restrict__ f, int point, int inner) {
  if (point >= reach && point < grid.length - reach) {
    return stencil(grid, [&](int k) { return f[(point + k) * inner]; });
  }
  return stencil(grid, [&](int k) { return f[wrapped(point + k, grid.length) * inner]; });
}

__global__ void __launch_bounds__(points* lines_along_x) direct_along_x(const float* __restrict__ f,
                                                                        float* __restrict__ result, Grid grid) {
  const int64_t line = int64_t{blockIdx.x / grid.along} * lines_along_x + threadIdx.y;
  const int point = static_cast<int>(blockIdx.x % grid.along) * points + threadIdx.x;
  if (line >= grid.outer || point >= grid.length) return;
  result[line * grid.length + point] = from_global(grid, f + line * grid.length, point, 1);
}

__global__ void __launch_bounds__(points* lines_along_x) tiled_along_x(const float* __restrict__ f,
                                                                       float* __restrict__ result, Grid grid) {
  __shared__ float tile[lines_along_x][with_halo];
  const int64_t line = int64_t{blockIdx.x / grid.along} * lines_along_x + threadIdx.y;
  const int first = static_cast<int>(blockIdx.x % grid.along) * points;
  // The last tile may be shorter: no more than the halo lies beyond the line's end, and one turn brings it back.
  const int inside = min(points, grid.length - first);
  if (line < grid.outer) {
    for (int p = threadIdx.x; p < inside + 2 * reach; p += points) {
      tile[threadIdx.y][p] = f[line * grid.length + wrapped(first + p - reach, grid.length)];
    }
  }
  __syncthreads();
  if (line >= grid.outer || threadIdx.x >= inside) return;
  const float* centre = &tile[threadIdx.y][threadIdx.x + reach];
  result[line * grid.length + first + threadIdx.x] = stencil(grid, [&](int k) { return centre[k]; });
}

// Of a block of `direct_across` and `tiled_across`: where [length, inner] begins, its first point, a thread's column.
struct Place {
  int64_t begin;
  int first, column;
};

__device__ inline Place place_across(const Grid& grid, int points_of_a_block) {
  const unsigned row = blockIdx.x / grid.across;
  const int column = static_cast<int>(blockIdx.x - row * grid.across) * lines_across + threadIdx.x;
  const unsigned outer = row / grid.along;
  const int first = static_cast<int>(row - outer * grid.along) * points_of_a_block;
  return {int64_t{outer} * grid.length * grid.inner, first, column};
}

__global__ void __launch_bounds__(lines_across* points_at_once) direct_across(const float* __restrict__ f,
                                                                              float* __restrict__ result, Grid grid) {
  const Place place = place_across(grid, points_at_once);
  const int point = place.first + threadIdx.y;
  if (place.column >= grid.inner || point >= grid.length) return;
  const int64_t line = place.begin + place.column;
  result[line + point * grid.inner] = from_global(grid, f + line, point, grid.inner);
}

__global__ void __launch_bounds__(lines_across* points_at_once) tiled_across(const float* __restrict__ f,
                                                                             float* __restrict__ result, Grid grid) {
  __shared__ float tile[with_halo][lines_across];
  const Place place = place_across(grid, points);
  const int64_t line = place.begin + place.column;
  const int inside = place.column < grid.inner ? min(points, grid.length - place.first) : 0;
  // All loads are under way before the first is stored.
  float numbers[with_halo / points_at_once];
#pragma unroll
  for (int i = 0; i < with_halo / points_at_once; ++i) {
    const int p = threadIdx.y + i * points_at_once;
    const bool needed = inside > 0 && p < inside + 2 * reach;
    numbers[i] = needed ? f[line + wrapped(place.first + p - reach, grid.length) * grid.inner] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < with_halo / points_at_once; ++i) tile[threadIdx.y + i * points_at_once][threadIdx.x] = numbers[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int p = threadIdx.y + i * points_at_once;
    if (p >= inside) break;
    const float sum = stencil(grid, [&](int k) { return tile[p + reach + k][threadIdx.x]; });
    result[line + (place.first + p) * grid.inner] = sum;
  }
}

// By their numbers in the Python face; axis 2 is x.
enum class Kernel : int64_t { direct, tiled };

int64_t parts(int64_t number, int64_t size) { return (number + size - 1) / size; }

void launch(const Tensor& f, const Tensor& result, Grid grid, Kernel kernel, cudaStream_t stream) {
  const bool along_x = grid.inner == 1, tiled = kernel == Kernel::tiled;
  const int64_t along = parts(grid.length, along_x || tiled ? points : points_at_once);
  const int64_t across = along_x ? parts(grid.outer, lines_along_x) : parts(grid.inner, lines_across);
  const int64_t blocks = along_x ? along * across : grid.outer * along * across;
  STD_TORCH_CHECK(blocks < int64_t{1} << 31, "finite_differences: at most 2^31 - 1 tiles, got ", blocks);
  grid.along = static_cast<unsigned>(along);
  grid.across = static_cast<unsigned>(across);
  const auto* from = static_cast<const float*>(f.data_ptr());
  auto* to = static_cast<float*>(result.data_ptr());
  const dim3 threads = along_x ? dim3(points, lines_along_x) : dim3(lines_across, points_at_once);
  const auto run = along_x ? (tiled ? tiled_along_x : direct_along_x) : (tiled ? tiled_across : direct_across);
  run<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(from, to, grid);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// f: [..., Z, Y, X] in float32; axis: 0 is z, 1 y, 2 x. The result is contiguous. The Python face has refused all else
// with a better message; what is checked again here is what would read or write outside a tensor.
Tensor finite_differences(Tensor f, int64_t axis, double spacing, int64_t kernel) {
  STD_TORCH_CHECK(f.is_cuda() && f.dim() >= 3, "finite_differences: f must be on a GPU and have 3 dimensions or more, ",
                  "got ", f.dim());
  STD_TORCH_CHECK(f.scalar_type() == torch::headeronly::ScalarType::Float, "finite_differences: dtype must be float32");
  STD_TORCH_CHECK(axis >= 0 && axis <= 2 && kernel >= 0 && kernel <= 1, "finite_differences: no such axis or kernel, ",
                  "got ", axis, " and ", kernel);
  const int64_t last = f.dim() - 1;
  const int64_t sizes[] = {f.size(last - 2), f.size(last - 1), f.size(last)};
  const int64_t length = sizes[axis];
  STD_TORCH_CHECK(length >= reach, "finite_differences: at least 4 points along the axis, got ", length);
  const torch::stable::accelerator::DeviceGuard guard(f.get_device_index());
  f = torch::stable::contiguous(f);
  Tensor result = torch::stable::empty_like(f);
  if (f.numel() == 0) return result;
  STD_TORCH_CHECK(sizes[0] * sizes[1] * sizes[2] <= int64_t{1} << 30, "finite_differences: at most 2^30 points in a ",
                  "grid, got ", sizes[0], " x ", sizes[1], " x ", sizes[2]);
  int64_t inner = 1;
  for (int64_t i = axis + 1; i <= 2; ++i) inner *= sizes[i];
  // Fornberg, "Generation of Finite Difference Formulas on Arbitrarily Spaced Grids", 1988, table 1.
  constexpr double coefficients[] = {4.0 / 5, -1.0 / 5, 4.0 / 105, -1.0 / 280};
  Grid grid{f.numel() / (length * inner), static_cast<int>(length), static_cast<int>(inner), 0, 0, {}};
  for (int i = 0; i < reach; ++i) grid.weights[i] = static_cast<float>(coefficients[i] / spacing);
  launch(f, result, grid, static_cast<Kernel>(kernel), cuda_ext::current_stream(f.get_device_index()));
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("finite_differences(Tensor f, int axis, float spacing, int kernel) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("finite_differences", TORCH_BOX(&finite_differences));
}
