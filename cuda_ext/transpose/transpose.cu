// Transpose of a matrix, by the three kernels of a tutorial: M. Harris, "An Efficient Matrix Transpose in CUDA C/C++",
// NVIDIA Technical Blog, 2013.
//
// Numbers are moved and not computed, so that memory bandwidth alone bounds it: each is read once and written once. A
// block of 32 x 8 threads moves a tile of 32 x 32 numbers, each thread four of them:
//
//   naive    reads rows of 32 neighbours; a warp's writes lie a whole row of the result apart
//   tiled    reads rows into shared memory and writes rows of the result out of its columns
//   padded   the same, with one unused column in the tile
//
// Shared memory has 32 banks of 4 bytes and serves each bank once at a time. Number (row, column) of the tile lies at
// row * pitch + column. Read by columns with a pitch of 32, the 32 floats of a warp lie in one bank (32 numbers of 2
// bytes in two banks); with a pitch of 33 no two words lie in one.

#include "../common/launch.cuh"

#include <cstdint>
#include <type_traits>

namespace {

using torch::stable::Tensor;

constexpr int side = 32;
constexpr int rows_at_once = 8;
constexpr int per_thread = side / rows_at_once;

// x: [rows, columns], y: [columns, rows]. A grid's y ends at 65535, so that all blocks lie along x: `across` tiles lie
// in a row of them.
template <typename T>
struct Call {
  const T* x;
  T* y;
  int64_t rows, columns;
  unsigned across;
};

struct Corner {
  int64_t row, column;
};

template <typename T>
__device__ Corner corner_of_tile(const Call<T>& call) {
  const unsigned down = blockIdx.x / call.across;
  return {int64_t{down} * side, int64_t{blockIdx.x - down * call.across} * side};
}

// A thread's numbers of the tile, `rows_at_once` rows apart: all loads are under way before the first is used.
template <typename T>
__device__ void read(const Call<T>& call, const Corner& corner, T (&numbers)[per_thread]) {
  const int64_t column = corner.column + threadIdx.x;
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int64_t row = corner.row + threadIdx.y + i * rows_at_once;
    numbers[i] = row < call.rows && column < call.columns ? call.x[row * call.columns + column] : T{0};
  }
}

template <typename T>
__global__ void __launch_bounds__(side* rows_at_once) transpose_directly(Call<T> call) {
  const Corner corner = corner_of_tile(call);
  T numbers[per_thread];
  read(call, corner, numbers);
  const int64_t column = corner.column + threadIdx.x;
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int64_t row = corner.row + threadIdx.y + i * rows_at_once;
    if (row < call.rows && column < call.columns) call.y[column * call.rows + row] = numbers[i];
  }
}

template <typename T, int pitch>
__global__ void __launch_bounds__(side* rows_at_once) transpose_by_tiles(Call<T> call) {
  __shared__ T tile[side][pitch];
  const Corner corner = corner_of_tile(call);
  T numbers[per_thread];
  read(call, corner, numbers);
#pragma unroll
  for (int i = 0; i < per_thread; ++i) tile[threadIdx.y + i * rows_at_once][threadIdx.x] = numbers[i];
  __syncthreads();
  // A row of the result is a column of x, and of the tile.
  const int64_t column = corner.row + threadIdx.x;
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int from = threadIdx.y + i * rows_at_once;
    const int64_t row = corner.column + from;
    if (row < call.columns && column < call.rows) call.y[row * call.rows + column] = tile[threadIdx.x][from];
  }
}

// By their numbers in the Python face.
enum class Kernel : int64_t { naive, tiled, padded };

template <typename T>
void launch(const Tensor& x, const Tensor& y, Kernel kernel, cudaStream_t stream) {
  const int64_t rows = x.size(0), columns = x.size(1);
  const int64_t down = (rows + side - 1) / side, across = (columns + side - 1) / side;
  STD_TORCH_CHECK(across < (int64_t{1} << 31) && down < (int64_t{1} << 31) && down * across < (int64_t{1} << 31),
                  "transpose: 2^31 tiles of ", side, " x ", side, " or more, got ", rows, " x ", columns);
  const Call<T> call{static_cast<const T*>(x.data_ptr()), static_cast<T*>(y.data_ptr()), rows, columns,
                     static_cast<unsigned>(across)};
  const auto blocks = static_cast<unsigned>(down * across);
  const dim3 threads(side, rows_at_once);
  switch (kernel) {
    case Kernel::naive: transpose_directly<T><<<blocks, threads, 0, stream>>>(call); break;
    case Kernel::tiled: transpose_by_tiles<T, side><<<blocks, threads, 0, stream>>>(call); break;
    case Kernel::padded: transpose_by_tiles<T, side + 1><<<blocks, threads, 0, stream>>>(call); break;
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// x: [rows, columns], of one of the three dtypes. The result is contiguous and never shares memory with x. The Python
// face has refused all else with a better message; what is checked again here is what would read or write outside a
// tensor.
Tensor transpose(Tensor x, int64_t kernel) {
  STD_TORCH_CHECK(x.is_cuda() && x.dim() == 2, "transpose: x must be a matrix on a GPU, got ", x.dim(), " dimensions");
  STD_TORCH_CHECK(kernel >= 0 && kernel <= 2, "transpose: no such kernel, got ", kernel);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  x = torch::stable::contiguous(x);
  Tensor y = torch::stable::new_empty(x, {x.size(1), x.size(0)});
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::with_dtype("transpose", x.scalar_type(), [&](auto t) {
    // Bits are moved: float16 and bfloat16 share their kernels.
    using Word = std::conditional_t<sizeof(t) == 4, uint32_t, uint16_t>;
    if (x.numel() > 0) launch<Word>(x, y, static_cast<Kernel>(kernel), stream);
  });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("transpose(Tensor x, int kernel) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("transpose", TORCH_BOX(&transpose));
}
