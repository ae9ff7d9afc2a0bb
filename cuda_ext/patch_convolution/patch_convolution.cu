// A network's first convolution: patches of 2 x 2 pixels by fixed filters, eight for each channel of the image, a
// trained bias, and the activation behind it. The gradient is that of the bias alone.
//
// Memory bandwidth bounds both passes. The forward pass reads the images and writes the activations; the backward pass
// reads the images and the activations' gradients, and computes the convolution again. All arithmetic is float32:
// filters that whiten subtract numbers that are nearly equal. One rounding at the end gives half precision.
//
// A thread computes all outputs of some pixels, from patches and sums in registers; the filters lie in shared memory,
// where all threads of a warp read the same four numbers at a time.
//
// Each block writes its sums for the bias to a place of its own, and a second kernel adds them, in double, in an order
// that the shape alone decides: no atomics, the same bits in every run and on every GPU.

#include "../batch_norm_activation/norm.cuh"
#include "../common/warp.cuh"

#include <algorithm>
#include <cstdint>

namespace {

using cuda_ext::channels::load;
using cuda_ext::channels::Norm;
using cuda_ext::channels::packed;
using cuda_ext::channels::store;
using cuda_ext::channels::unpack;
using cuda_ext::channels::with_activation;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 256;
constexpr int warps = threads / 32;
constexpr int side = 2;
constexpr int filters_per_channel = 8;
// A thread computes so many outputs of some pixels at a time: a filter's number that it reads serves all the pixels.
// The backward pass has registers for fewer, beside its sums.
constexpr int group = 8;
constexpr int forward_pixels = 4;
constexpr int backward_pixels = 2;
// Of which each writes sums: more would fill the GPU no better, and the second kernel adds them all.
constexpr int64_t most_blocks = 1024;

// images: [count, height, width, channels]; the result has one row and one column less.
template <int channels>
struct Patches {
  static constexpr int inputs = side * side * channels;
  static constexpr int outputs = filters_per_channel * channels;
  const float* __restrict__ images;
  const float* __restrict__ filters;  // [outputs, channels, 2, 2]
  const float* __restrict__ bias;
  int64_t count, height, width;

  __device__ int64_t pixels() const { return count * (height - 1) * (width - 1); }
};

// The filters as [inputs, outputs], in the order in which a patch lies in memory, and the bias.
template <int channels>
struct Weights {
  using Of = Patches<channels>;
  float4 filters[Of::inputs][Of::outputs / 4];
  float bias[Of::outputs];

  __device__ void load(const Of& of) {
    for (int i = threadIdx.x; i < Of::inputs * Of::outputs; i += threads) {
      const int output = i / Of::inputs, channel = i % Of::inputs / (side * side), place = i % (side * side);
      reinterpret_cast<float*>(filters[place * channels + channel])[output] = of.filters[i];
    }
    if (threadIdx.x < Of::outputs) bias[threadIdx.x] = of.bias[threadIdx.x];
    __syncthreads();
  }

  // The convolution and the bias of outputs first, first + 1, ... at each pixel.
  template <int pixels_each>
  __device__ void apply(const float (&patches)[pixels_each][Of::inputs], int first,
                        float (&sums)[pixels_each][group]) const {
    // The filters are read again for each group and pixel: more of them than a thread has registers would be kept.
    asm volatile("" ::: "memory");
#pragma unroll
    for (int p = 0; p < pixels_each; ++p) {
#pragma unroll
      for (int o = 0; o < group; ++o) sums[p][o] = bias[first + o];
    }
#pragma unroll
    for (int i = 0; i < Of::inputs; ++i) {
#pragma unroll
      for (int o = 0; o < group; o += 4) {
        const float4 four = filters[i][(first + o) / 4];
#pragma unroll
        for (int p = 0; p < pixels_each; ++p) {
          sums[p][o] = fmaf(patches[p][i], four.x, sums[p][o]);
          sums[p][o + 1] = fmaf(patches[p][i], four.y, sums[p][o + 1]);
          sums[p][o + 2] = fmaf(patches[p][i], four.z, sums[p][o + 2]);
          sums[p][o + 3] = fmaf(patches[p][i], four.w, sums[p][o + 3]);
        }
      }
    }
  }
};

// Calls `function(at, first, sums)` with the convolution and the bias of each pixel `at`, of outputs first, first + 1,
// ... A block's pixels that lie past the last one are among them: their patches are zeros.
template <int pixels_each, int channels, typename Function>
__device__ void walk(const Patches<channels>& of, Function function) {
  using Of = Patches<channels>;
  __shared__ Weights<channels> weights;
  weights.load(of);
  const int64_t step = int64_t{gridDim.x} * threads * pixels_each;
  for (int64_t pixel = int64_t{blockIdx.x} * threads * pixels_each + threadIdx.x; pixel < of.pixels(); pixel += step) {
    float patches[pixels_each][Of::inputs];
#pragma unroll
    for (int p = 0; p < pixels_each; ++p) {
      const int64_t at = pixel + p * threads;
      const int64_t line = at / (of.width - 1), column = at - line * (of.width - 1);
      const int64_t image = line / (of.height - 1), row = line - image * (of.height - 1);
      const float* from = of.images + ((image * of.height + row) * of.width + column) * channels;
#pragma unroll
      for (int i = 0; i < Of::inputs; ++i) {
        constexpr int in_a_row = side * channels;
        patches[p][i] = at < of.pixels() ? from[i / in_a_row * of.width * channels + i % in_a_row] : 0.0f;
      }
    }
#pragma unroll
    for (int first = 0; first < Of::outputs; first += group) {
      float sums[pixels_each][group];
      weights.apply(patches, first, sums);
#pragma unroll
      for (int p = 0; p < pixels_each; ++p) function(pixel + p * threads, first, sums[p]);
    }
  }
}

template <typename T, int channels>
__global__ void __launch_bounds__(threads, 2) forward(Patches<channels> of, Norm norm, T* __restrict__ y) {
  constexpr int outputs = Patches<channels>::outputs, size = cuda_ext::Pack<T>::size;
  with_activation(norm, [&](const auto& activation) {
    walk<forward_pixels>(of, [&](int64_t at, int first, const float (&sums)[group]) {
#pragma unroll
      for (int o = 0; o < group; o += size) {
        float values[size];
#pragma unroll
        for (int j = 0; j < size; ++j) values[j] = activation.value(sums[o + j]);
        if (at < of.pixels()) store<T, size>(y + at * outputs + first + o, packed<T, size>(values));
      }
    });
  });
}

// partials: [blocks, outputs].
template <typename T, int channels>
__global__ void __launch_bounds__(threads, 2) backward(Patches<channels> of, Norm norm, const T* __restrict__ dy,
                                                       float* __restrict__ partials) {
  constexpr int outputs = Patches<channels>::outputs, size = cuda_ext::Pack<T>::size;
  __shared__ float gathered[warps][outputs];
  float totals[outputs] = {};
  with_activation(norm, [&](const auto& activation) {
    walk<backward_pixels>(of, [&](int64_t at, int first, const float (&sums)[group]) {
#pragma unroll
      for (int o = 0; o < group; o += size) {
        float above[size] = {}, unused = 0;
        if (at < of.pixels()) unpack(load<T, size>(dy + at * outputs + first + o), above);
#pragma unroll
        for (int j = 0; j < size; ++j) totals[first + o + j] += activation.through(above[j], sums[o + j], unused);
      }
    });
  });
#pragma unroll
  for (int o = 0; o < outputs; ++o) {
    const float sum = cuda_ext::warp_sum(totals[o]);
    if (threadIdx.x % 32 == 0) gathered[threadIdx.x / 32][o] = sum;
  }
  __syncthreads();
  if (threadIdx.x < outputs) {
    float sum = 0;
    for (int warp = 0; warp < warps; ++warp) sum += gathered[warp][threadIdx.x];
    partials[int64_t{blockIdx.x} * outputs + threadIdx.x] = sum;
  }
}

// The sum of each output over the blocks. A block of this grid takes one output.
__global__ void __launch_bounds__(most_blocks) finish(const float* __restrict__ partials, int blocks, float* result) {
  __shared__ double sums[most_blocks];
  const int outputs = static_cast<int>(gridDim.x);
  sums[threadIdx.x] = static_cast<int>(threadIdx.x) < blocks ? partials[threadIdx.x * outputs + blockIdx.x] : 0.0f;
  for (int half = most_blocks / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) result[blockIdx.x] = static_cast<float>(sums[0]);
}

void check(const Tensor& images, const Tensor& filters, const Tensor& bias, int64_t activation) {
  const int64_t channels = images.dim() == 4 ? images.size(3) : 0;
  STD_TORCH_CHECK(channels == 1 || channels == 3,
                  "patch_convolution: images must be [count, height, width, 1 or 3], got ", images.dim(),
                  " dimensions and ", channels, " channels");
  STD_TORCH_CHECK(filters.numel() == filters_per_channel * side * side * channels * channels &&
                      bias.numel() == filters_per_channel * channels,
                  "patch_convolution: filters must be [", filters_per_channel * channels, ", ", channels, ", 2, 2]");
  for (const Tensor* tensor : {&images, &filters, &bias}) {
    STD_TORCH_CHECK(tensor->is_cuda() && tensor->get_device_index() == images.get_device_index() &&
                        tensor->is_contiguous() && tensor->scalar_type() == ScalarType::Float,
                    "patch_convolution: images, filters and bias must be float32, contiguous, on one GPU");
  }
  STD_TORCH_CHECK(activation >= cuda_ext::channels::none && activation <= cuda_ext::channels::gelu,
                  "patch_convolution: activation must be 0 to 3");
}

// Calls `function` with the patches of images of one or of three channels.
template <typename Function>
void with_patches(const Tensor& images, const Tensor& filters, const Tensor& bias, Function&& function) {
  const auto fill = [&](auto of) {
    of.images = static_cast<const float*>(images.data_ptr());
    of.filters = static_cast<const float*>(filters.data_ptr());
    of.bias = static_cast<const float*>(bias.data_ptr());
    of.count = images.size(0), of.height = images.size(1), of.width = images.size(2);
    function(of);
  };
  if (images.size(3) == 1) fill(Patches<1>{});
  else fill(Patches<3>{});
}

Norm plain(int64_t activation) {
  Norm norm{};
  norm.activation = static_cast<int>(activation);
  return norm;
}

unsigned blocks_of(int64_t pixels, int pixels_each) {
  const int64_t per_block = threads * pixels_each;
  return static_cast<unsigned>(std::min((pixels + per_block - 1) / per_block, most_blocks));
}

// images [count, height, width, channels] -> [count, height - 1, width - 1, outputs] of dtype. The Python face has
// refused all else with a better message; what is checked again here is what would read or write outside a tensor.
Tensor patch_convolution(Tensor images, Tensor filters, Tensor bias, int64_t activation, ScalarType dtype) {
  check(images, filters, bias, activation);
  STD_TORCH_CHECK(images.size(1) > 0 && images.size(2) > 0, "patch_convolution: images without pixels");
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  Tensor y = torch::stable::new_empty(
      images, {images.size(0), images.size(1) - 1, images.size(2) - 1, filters_per_channel * images.size(3)}, dtype);
  const cudaStream_t stream = cuda_ext::current_stream(images.get_device_index());
  cuda_ext::with_dtype("patch_convolution", dtype, [&](auto t) {
    using T = decltype(t);
    if (y.numel() == 0) return;
    with_patches(images, filters, bias, [&](auto of) {
      const unsigned grid = blocks_of(y.numel() / bias.numel(), forward_pixels);
      forward<<<grid, threads, 0, stream>>>(of, plain(activation), static_cast<T*>(y.data_ptr()));
    });
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return y;
}

// dy as the result of patch_convolution, contiguous -> the gradient of the bias.
Tensor patch_convolution_backward(Tensor dy, Tensor images, Tensor filters, Tensor bias, int64_t activation) {
  check(images, filters, bias, activation);
  STD_TORCH_CHECK(dy.is_cuda() && dy.get_device_index() == images.get_device_index() && dy.is_contiguous() &&
                      dy.dim() == 4 && dy.size(0) == images.size(0) && dy.size(1) == images.size(1) - 1 &&
                      dy.size(2) == images.size(2) - 1 && dy.size(3) == bias.numel() &&
                      cuda_ext::aligned_for_packs(dy.data_ptr()),
                  "patch_convolution_backward: dy must be as the result, contiguous, on the images' GPU");
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  Tensor result = torch::stable::new_empty(bias, {bias.numel()});
  const cudaStream_t stream = cuda_ext::current_stream(images.get_device_index());
  const unsigned grid = blocks_of(dy.numel() / bias.numel(), backward_pixels);
  Tensor partials = torch::stable::new_empty(bias, {static_cast<int64_t>(grid), bias.numel()});
  auto* sums = static_cast<float*>(partials.data_ptr());
  cuda_ext::with_dtype("patch_convolution_backward", dy.scalar_type(), [&](auto t) {
    using T = decltype(t);
    if (grid == 0) return;
    with_patches(images, filters, bias, [&](auto of) {
      backward<<<grid, threads, 0, stream>>>(of, plain(activation), static_cast<const T*>(dy.data_ptr()), sums);
    });
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  finish<<<static_cast<unsigned>(bias.numel()), most_blocks, 0, stream>>>(sums, static_cast<int>(grid),
                                                                          static_cast<float*>(result.data_ptr()));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("patch_convolution(Tensor images, Tensor filters, Tensor bias, int activation, ScalarType dtype) -> Tensor");
  m.def(
      "patch_convolution_backward(Tensor dy, Tensor images, Tensor filters, Tensor bias, int activation) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("patch_convolution", TORCH_BOX(&patch_convolution));
  m.impl("patch_convolution_backward", TORCH_BOX(&patch_convolution_backward));
}
