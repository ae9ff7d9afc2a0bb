// 2D convolution of images of one channel: the operation, and the first three rungs of its ladder.
//
// vanilla, constant and tiled are a blog post's kernels, kept as they are taught: a thread an output. Where the filter
// and the image are read from is all that changes from one to the next. The others are in conv2d_register.cuh,
// conv2d_matrix.cuh and conv2d_fft.cuh.

#include "conv2d.cuh"

#include <algorithm>
#include <mutex>

namespace cuda_ext::conv2d {
namespace {

using torch::stable::Tensor;

constexpr int tile_columns = 32;
constexpr int tile_rows = 8;

// A grid's y and z end at 65535, so that all blocks lie along x; a block is a tile of one image.
struct Tiles {
  int64_t across, down, total;
};

template <typename T>
Tiles tiles_of(const Call<T>& call) {
  const int64_t across = (call.width + tile_columns - 1) / tile_columns;
  const int64_t down = (call.height + tile_rows - 1) / tile_rows;
  STD_TORCH_CHECK(call.count * across * down < int64_t{1} << 31, "conv2d: more than 2^31 tiles of ", tile_rows, " x ",
                  tile_columns, ", got ", call.count, " images of ", call.height, " x ", call.width);
  return {across, down, call.count * across * down};
}

struct Place {
  int64_t image;
  int top, left;
};

__device__ inline Place place_of_block(const Tiles& tiles) {
  const int64_t row = blockIdx.x / tiles.across;
  return {row / tiles.down, static_cast<int>(row % tiles.down) * tile_rows,
          static_cast<int>(blockIdx.x % tiles.across) * tile_columns};
}

// One output, its filter given by `tap(i, j)` and its image by `pixel(i, j)`.
template <typename Tap, typename Pixel>
__device__ inline float sum_of_products(int size, const Tap& tap, const Pixel& pixel) {
  float sum = 0;
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < size; ++j) sum += tap(i, j) * pixel(i, j);
  }
  return sum;
}

template <typename T, typename Tap>
__device__ inline void convolve_from_global(const Call<T>& call, const Tiles& tiles, const Tap& tap) {
  const Place place = place_of_block(tiles);
  const int y = place.top + threadIdx.y, x = place.left + threadIdx.x;
  if (y >= call.height || x >= call.width) return;
  const int64_t pixels = int64_t{call.height} * call.width;
  const T* image = call.images + place.image * pixels;
  const int half = call.size / 2;
  const float sum = sum_of_products(call.size, tap, [&](int i, int j) {
    const int row = source(y + i - half, call.height, call.padding);
    const int column = source(x + j - half, call.width, call.padding);
    return row < 0 || column < 0 ? 0.0f : static_cast<float>(image[int64_t{row} * call.width + column]);
  });
  call.results[place.image * pixels + int64_t{y} * call.width + x] = static_cast<T>(sum);
}

template <typename T>
__global__ void __launch_bounds__(tile_columns* tile_rows) vanilla(Call<T> call, Tiles tiles) {
  convolve_from_global(call, tiles, [&](int i, int j) { return static_cast<float>(call.weight[i * call.size + j]); });
}

// Constant memory has one copy for all that runs on a GPU: the filter must not be overwritten while a kernel reads it.
constexpr int most_devices = 64;
__constant__ __align__(16) unsigned char filter_of_all[largest_filter * largest_filter * sizeof(float)];

template <typename T>
__global__ void __launch_bounds__(tile_columns* tile_rows) constant(Call<T> call, Tiles tiles) {
  convolve_from_global(call, tiles, [&](int i, int j) {
    return static_cast<float>(reinterpret_cast<const T*>(filter_of_all)[i * call.size + j]);
  });
}

std::mutex filling;
cudaEvent_t last_read[most_devices] = {};

// An event orders the calls of all streams, one behind the other. Nothing would order the replays of a CUDA graph.
template <typename T>
void launch_constant(const Call<T>& call, const Tiles& tiles) {
  STD_TORCH_CHECK(call.device < most_devices, "conv2d: kernel 'constant' knows ", most_devices, " GPUs, got number ",
                  call.device);
  cudaStreamCaptureStatus status;
  STD_CUDA_CHECK(cudaStreamIsCapturing(call.stream, &status));
  STD_TORCH_CHECK(status == cudaStreamCaptureStatusNone,
                  "conv2d: the kernel 'constant' cannot be captured in a CUDA graph, whose replays would overwrite ",
                  "other calls' filters: choose another kernel");
  const std::lock_guard<std::mutex> lock(filling);
  cudaEvent_t& last = last_read[call.device];
  if (last == nullptr) STD_CUDA_CHECK(cudaEventCreateWithFlags(&last, cudaEventDisableTiming));
  STD_CUDA_CHECK(cudaStreamWaitEvent(call.stream, last, 0));
  const size_t bytes = static_cast<size_t>(call.size) * call.size * sizeof(T);
  STD_CUDA_CHECK(cudaMemcpyToSymbolAsync(filter_of_all, call.weight, bytes, 0, cudaMemcpyDeviceToDevice, call.stream));
  constant<T><<<static_cast<unsigned>(tiles.total), dim3(tile_columns, tile_rows), 0, call.stream>>>(call, tiles);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  STD_CUDA_CHECK(cudaEventRecord(last, call.stream));
}

template <typename T>
__global__ void __launch_bounds__(tile_columns* tile_rows) tiled(Call<T> call, Tiles tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  float* const filter = reinterpret_cast<float*>(memory);
  float* const tile = filter + call.size * call.size;
  const Place place = place_of_block(tiles);
  const int64_t pixels = int64_t{call.height} * call.width;
  const T* image = call.images + place.image * pixels;
  const int half = call.size / 2;
  const int pitch = tile_columns + 2 * half;
  const int index = threadIdx.y * tile_columns + threadIdx.x;
  for (int i = index; i < call.size * call.size; i += tile_columns * tile_rows) {
    filter[i] = static_cast<float>(call.weight[i]);
  }
  for (int r = threadIdx.y; r < tile_rows + 2 * half; r += tile_rows) {
    // Beyond the image's far side there may be rows and columns that no output needs: they count as zero.
    const int y = place.top + r - half;
    const int row = y < call.height + half ? source(y, call.height, call.padding) : -1;
    for (int c = threadIdx.x; c < pitch; c += tile_columns) {
      const int x = place.left + c - half;
      const int column = x < call.width + half ? source(x, call.width, call.padding) : -1;
      const bool inside = row >= 0 && column >= 0;
      tile[r * pitch + c] = inside ? static_cast<float>(image[int64_t{row} * call.width + column]) : 0.0f;
    }
  }
  __syncthreads();
  const int y = place.top + threadIdx.y, x = place.left + threadIdx.x;
  if (y >= call.height || x >= call.width) return;
  const float* corner = tile + threadIdx.y * pitch + threadIdx.x;
  const float sum = sum_of_products(call.size, [&](int i, int j) { return filter[i * call.size + j]; },
                                    [&](int i, int j) { return corner[i * pitch + j]; });
  call.results[place.image * pixels + int64_t{y} * call.width + x] = static_cast<T>(sum);
}

enum class Kernel : int { vanilla, constant, tiled, registers, matrix, fft };

template <typename T>
void launch(const Call<T>& call, Kernel kernel) {
  const Tiles tiles = tiles_of(call);
  const auto blocks = static_cast<unsigned>(tiles.total);
  const dim3 threads(tile_columns, tile_rows);
  if (kernel == Kernel::vanilla) {
    vanilla<T><<<blocks, threads, 0, call.stream>>>(call, tiles);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  } else if (kernel == Kernel::constant) {
    launch_constant(call, tiles);
  } else {
    const size_t filter_size = static_cast<size_t>(call.size) * call.size;
    const size_t halo = 2 * (call.size / 2);
    // At most 27 KiB.
    const size_t bytes = (filter_size + (tile_rows + halo) * (tile_columns + halo)) * sizeof(float);
    tiled<T><<<blocks, threads, bytes, call.stream>>>(call, tiles);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

template <typename T>
Tensor run(const Tensor& images, const Tensor& weight, Padding padding, Kernel kernel) {
  Tensor results = torch::stable::empty_like(images);
  if (images.numel() == 0) return results;
  const int device = images.get_device_index();
  const Call<T> call{static_cast<const T*>(images.data_ptr()), static_cast<const T*>(weight.data_ptr()),
                     static_cast<T*>(results.data_ptr()), images.size(0), static_cast<int>(images.size(1)),
                     static_cast<int>(images.size(2)), static_cast<int>(weight.size(0)), padding, device,
                     current_stream(device)};
  if (kernel == Kernel::registers) {
    launch_register(call);
  } else if (kernel == Kernel::matrix) {
    if constexpr (sizeof(T) == 2) {
      launch_matrix(call);
    } else {
      STD_TORCH_CHECK(false, "conv2d: the kernel 'matrix' takes half precision");
    }
  } else if (kernel == Kernel::fft) {
    // Freed behind the kernels of this call, in the order of the stream.
    Tensor spectrum = torch::stable::new_empty(images, {most_of_a_spectrum}, torch::headeronly::ScalarType::Float);
    launch_fft(call, static_cast<float*>(spectrum.data_ptr()));
  } else {
    launch(call, kernel);
  }
  return results;
}

// images: [N, H, W]; weight: [k, k]; padding and kernel: by their numbers in the Python face. The result is contiguous.
// The face has refused all else with a better message; what is checked again here is what would read or write outside a
// tensor.
Tensor conv2d(Tensor images, Tensor weight, int64_t padding, int64_t kernel) {
  STD_TORCH_CHECK(images.is_cuda() && weight.is_cuda() && images.get_device_index() == weight.get_device_index(),
                  "conv2d: images and weight must be on one GPU, got devices ", images.get_device_index(), " and ",
                  weight.get_device_index());
  STD_TORCH_CHECK(images.scalar_type() == weight.scalar_type(), "conv2d: images and weight must have one dtype");
  STD_TORCH_CHECK(images.dim() == 3 && weight.dim() == 2, "conv2d: images must be [N, H, W] and weight [k, k], got ",
                  images.dim(), " and ", weight.dim(), " dimensions");
  const int64_t size = weight.size(0), height = images.size(1), width = images.size(2);
  STD_TORCH_CHECK(size == weight.size(1) && size % 2 == 1 && size >= 3 && size <= largest_filter,
                  "conv2d: weight must be k x k, k odd from 3 to 31, got ", size, " x ", weight.size(1));
  STD_TORCH_CHECK(padding >= 0 && padding <= 2 && kernel >= 0 && kernel <= 5, "conv2d: no such padding or kernel, got ",
                  padding, " and ", kernel);
  STD_TORCH_CHECK(std::max(height, width) <= int64_t{1} << 30, "conv2d: at most 2^30 rows and columns, got ", height,
                  " and ", width);
  STD_TORCH_CHECK(static_cast<Padding>(padding) != Padding::reflect || std::min(height, width) > size / 2,
                  "conv2d: to reflect, images must be larger than k / 2, got ", height, " x ", width);
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  images = torch::stable::contiguous(images);
  weight = torch::stable::contiguous(weight);
  const auto fill = static_cast<Padding>(padding);
  const auto rung = static_cast<Kernel>(kernel);
  Tensor results;
  with_dtype("conv2d", images.scalar_type(),
             [&](auto t) { results = run<decltype(t)>(images, weight, fill, rung); });
  return results;
}

}  // namespace
}  // namespace cuda_ext::conv2d

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("conv2d(Tensor images, Tensor weight, int padding, int kernel) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("conv2d", TORCH_BOX(&cuda_ext::conv2d::conv2d));
}
