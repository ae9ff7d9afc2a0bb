// A dense block's 3x3 convolution: what is called from PyTorch. The kernels are in convolutions.cuh.

#include <cstdlib>

#include "convolutions.cuh"

namespace {

using namespace cuda_ext::channels;

// How the rows are cut into tiles: pixels of one, and the most slots that their taps read.
struct Cut {
  int pixels, slots, tiles;
};

int slots_of(const Images& images, int pixels) {
  const int image = images.height * images.width;
  const auto crossed = [&](int size, bool in_step) { return (pixels - 1 + (in_step ? 0 : size - 1)) / size; };
  return pixels + crossed(images.width, pixels % images.width == 0) +
         crossed(image, pixels % image == 0 || image % pixels == 0) * images.pitch() + 2 * images.pitch() + 2;
}

// The cheapest cut for blocks whose warps multiply `most` pixels: whole lines or images spare slots and leave parts of
// the products unused. bytes_of: shared memory of a block, by slots.
template <typename Function>
Cut cut(const Images& images, int most, Function bytes_of) {
  const int limit = cuda_ext::shared_memory_of_a_block();
  Cut best{};
  double least = 0;
  for (int size = most; size >= 16 && best.pixels == 0; size /= 2) {
    for (const int unit : {1, images.width, images.height * images.width}) {
      const int pixels = size / unit * unit;
      if (pixels == 0) continue;
      const int slots = slots_of(images, pixels);
      const double cost = (2.0 * most + slots) / pixels;
      if (bytes_of(slots) > limit || (best.pixels != 0 && cost >= least)) continue;
      best = {pixels, slots, (images.rows + pixels - 1) / pixels};
      least = cost;
    }
  }
  STD_TORCH_CHECK(best.pixels != 0, "dense_convolution: images of ", images.height, " x ", images.width,
                  " do not fit the GPU's shared memory");
  return best;
}

// As many blocks as the GPU holds at once, and no more than tiles.
template <typename Kernel>
int blocks_of(Kernel kernel, int block_threads, int bytes, int tiles, int groups) {
  return std::min(tiles, std::max(1, blocks_at_once(kernel, block_threads, bytes) / groups));
}

Images images_of(const Tensor& x, int64_t height, int64_t width) {
  STD_TORCH_CHECK(height >= 1 && width >= 1 && height <= (1 << 15) && width <= (1 << 15) &&
                      x.size(0) % (height * width) == 0,
                  "dense_convolution: ", x.size(0), " rows are no images of ", height, " x ", width);
  // A slot for each pixel, behind each line, and of a line behind each image, and around them.
  STD_TORCH_CHECK((x.size(0) / width + x.size(0) / (height * width) + 2) * (width + 1) < (int64_t{1} << 31),
                  "dense_convolution: too many rows, ", x.size(0));
  return {static_cast<int>(x.size(0)), static_cast<int>(height), static_cast<int>(width)};
}

// x: rows of channels, without gaps; filters: outputs x 3 x 3 x channels; dy: rows of outputs.
void check(const Tensor& x, const Tensor* filters, const Tensor* dy) {
  const Matrix m = matrix(x, "x");
  STD_TORCH_CHECK(m.stride == m.channels && m.channels % 8 == 0 && cuda_ext::aligned_for_packs(m.data),
                  "dense_convolution: x must be contiguous, of a multiple of 8 channels");
  if (filters != nullptr) {
    STD_TORCH_CHECK(filters->is_cuda() && filters->get_device_index() == x.get_device_index() &&
                        filters->scalar_type() == x.scalar_type() && filters->is_contiguous() && filters->dim() == 4 &&
                        filters->size(1) == 3 && filters->size(2) == 3 && filters->size(3) == m.channels &&
                        cuda_ext::aligned_for_packs(filters->data_ptr()),
                    "dense_convolution: filters must be contiguous, outputs x 3 x 3 x channels");
  }
  if (dy != nullptr) {
    const Matrix d = matrix(*dy, "dy");
    same(x, *dy, "dy", false);
    STD_TORCH_CHECK(d.rows == m.rows && d.stride == d.channels && d.channels % 8 == 0 && d.channels <= 32 &&
                        cuda_ext::aligned_for_packs(d.data) &&
                        (filters == nullptr || filters->size(0) == d.channels),
                    "dense_convolution: dy must be contiguous, rows of at most 32 outputs, a multiple of 8");
  }
}

template <int value>
using Number = std::integral_constant<int, value>;

int variant(const char* name) {
  const char* found = std::getenv(name);
  return found == nullptr ? 0 : std::atoi(found);
}

// Calls `function` with the channels that a block takes at once, and with the 16s of outputs.
template <typename Function>
void with_sizes(int64_t channels, int64_t outputs, Function function) {
  const auto with_outputs = [&](auto c) {
    if (outputs <= 16) function(c, Number<1>{});
    else function(c, Number<2>{});
  };
  if (channels <= 48) with_outputs(Number<48>{});
  else with_outputs(Number<64>{});
}

template <typename T, int W, int MF, int NT, int C>
void convolve_with(const Tensor& x, const Tensor& filters, const Norm& norm, const Images& images, const Tensor& y,
                   const Tensor& mean, const Tensor& variance, bool statistics) {
  constexpr int stride = C + skew, group = NT % 4 ? 2 : 4;
  const Matrix to = matrix(y, "y");
  const auto kernel = convolve<T, W, MF, NT, C>;
  const auto bytes_of = [](int slots) {
    return (slots + taps * NT * 8) * stride * 2 + (W * 2 + 1) * NT * 8 * 4 + (slots + W * MF * 16) * 4;
  };
  const Cut by = cut(images, W * MF * 16, bytes_of);
  const int bytes = bytes_of(by.slots), blocks = blocks_of(kernel, W * 32, bytes, by.tiles, 1);
  const int outputs = static_cast<int>(to.channels);
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const bool whole = outputs % (2 * group) == 0 && to.stride % (2 * group) == 0 &&
                     reinterpret_cast<std::uintptr_t>(to.data) % (4 * group) == 0;
  Tensor partial;
  if (statistics) partial = torch::stable::new_empty(x, {int64_t{blocks} * 2 * outputs}, ScalarType::Double);
  auto* const partials = statistics ? static_cast<double*>(partial.data_ptr()) : nullptr;
  cuda_ext::launch(kernel, {dim3(blocks), dim3(W * 32), static_cast<std::size_t>(bytes), stream},
                   static_cast<const T*>(x.data_ptr()), static_cast<int>(x.size(1)),
                   static_cast<const T*>(filters.data_ptr()), static_cast<int>(filters.size(0)), images, by.pixels,
                   by.slots, norm, static_cast<T*>(to.data), to.stride, outputs, whole, partials);
  if (!statistics) return;
  finish_product<<<finish_grid(outputs), finish_block, 0, stream>>>(
      partials, blocks, images.rows, outputs, vector(x, mean, outputs, "mean"), vector(x, variance, outputs, "variance"));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T, int W, int MF, int NT, int K>
void convolve_back_with(const Tensor& dy, const Tensor& filters, const Tensor& x, const Norm& norm,
                        const Images& images, bool training, const Tensor& g, const Tensor& weight, const Tensor& bias,
                        const Tensor& beta, const Tensor& slope, const Tensor& offset) {
  constexpr int stride = K + skew, N = NT * 8, table = in_table<NT % 4 ? 2 : 4>(N);
  const auto kernel = convolve_back<T, W, MF, NT, K>;
  const auto bytes_of = [](int slots) {
    return (slots + taps * N) * stride * 2 + table * 16 + W * (2 * N + 1) * 4 + (slots + W * MF * 16) * 4;
  };
  const Cut by = cut(images, W * MF * 16, bytes_of);
  const int channels = static_cast<int>(x.size(1)), groups = (channels + N - 1) / N;
  const int bytes = bytes_of(by.slots), blocks = blocks_of(kernel, W * 32, bytes, by.tiles, groups);
  const bool with_beta = norm.beta != nullptr;
  const int64_t size = int64_t{blocks} * 2 * channels;
  const Tensor partial = floats(x, {size + int64_t{blocks} * groups});
  float* const sums = static_cast<float*>(partial.data_ptr());
  float* const betas = with_beta ? sums + size : nullptr;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::launch(kernel, {dim3(blocks, groups), dim3(W * 32), static_cast<std::size_t>(bytes), stream},
                   static_cast<const T*>(dy.data_ptr()), static_cast<int>(dy.size(1)),
                   static_cast<const T*>(filters.data_ptr()), static_cast<const T*>(x.data_ptr()), channels, images,
                   by.pixels, by.slots, norm, static_cast<T*>(g.data_ptr()), sums, betas);
  finish_gradients<<<finish_grid(channels, with_beta), finish_block, 0, stream>>>(
      sums, blocks, betas, blocks * groups, images.rows, channels, norm, training, false,
      vector(x, weight, channels, "weight's gradient"), vector(x, bias, channels, "bias's gradient"),
      vector(x, beta, with_beta, "beta's gradient"), vector(x, slope, channels, "slope"),
      vector(x, offset, channels, "offset"));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T, int O, int P, int C>
void convolve_filters_with(const Tensor& dy, const Tensor& x, const Norm& norm, const Images& images, int most,
                           const Tensor& dw) {
  constexpr int threads = 3 * O * P * 32;
  const auto kernel = convolve_filters<T, O, P, C>;
  const auto bytes_of = [&](int slots) {
    const int staged = most * (C + skew) * 2 + slots * (O * 16 + skew) * 2 + (slots + most) * 4;
    return std::max(staged, P > 1 ? threads / P * (3 * C / 2 + 1) * 4 : 0);
  };
  const Cut by = cut(images, most, bytes_of);
  const int channels = static_cast<int>(x.size(1)), groups = (channels + C - 1) / C;
  const int growth = static_cast<int>(dw.size(0));
  const int bytes = bytes_of(by.slots), blocks = blocks_of(kernel, threads, bytes, by.tiles, groups);
  const int64_t size = dw.numel();
  const Tensor partial = floats(x, {blocks * size});
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::launch(kernel, {dim3(blocks, groups), dim3(threads), static_cast<std::size_t>(bytes), stream},
                   static_cast<const T*>(dy.data_ptr()), static_cast<int>(dy.size(1)),
                   static_cast<const T*>(x.data_ptr()), channels, images, by.pixels, by.slots, most, norm, growth,
                   static_cast<float*>(partial.data_ptr()));
  finish_weights<<<finish_grid(size), dim3(finish_channels, weight_parts), 0, stream>>>(
      static_cast<const float*>(partial.data_ptr()), blocks, size, static_cast<float*>(dw.data_ptr()));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename Function>
void with_half(const Tensor& x, Function function) {
  switch (x.scalar_type()) {
    case ScalarType::Half: function(__half{}); break;
    case ScalarType::BFloat16: function(__nv_bfloat16{}); break;
    default: STD_TORCH_CHECK(false, "dense_convolution: dtype must be float16 or bfloat16");
  }
}

// x: rows of channels; y: rows of outputs, which the filters may be padded with zeros beyond. With `statistics` also
// their mean and biased variance.
void dense_convolution(Tensor x, Tensor filters, Tensor weight, Tensor bias, Tensor mean, Tensor variance,
                       std::optional<Tensor> beta, int64_t activation, double epsilon, int64_t height, int64_t width,
                       Tensor y, Tensor y_mean, Tensor y_variance, bool statistics) {
  check(x, &filters, nullptr);
  matrix(y, "y");
  same(x, y, "y", false);
  STD_TORCH_CHECK(y.size(0) == x.size(0) && y.size(1) <= filters.size(0) && filters.size(0) <= 32,
                  "dense_convolution: y has ", y.size(0), " x ", y.size(1), " for ", x.size(0), " rows and ",
                  filters.size(0), " outputs, of at most 32");
  if (x.size(0) == 0) return;
  const Images images = images_of(x, height, width);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  with_half(x, [&](auto t) {
    using T = decltype(t);
    with_sizes(x.size(1), filters.size(0), [&](auto c, auto outputs) {
      constexpr int C = decltype(c)::value, NT = decltype(outputs)::value * 2;
      const auto run = [&](auto warps, auto fragments) {
        convolve_with<T, decltype(warps)::value, decltype(fragments)::value, NT, C>(x, filters, norm, images, y, y_mean,
                                                                                   y_variance, statistics);
      };
      switch (variant("DENSE_FORWARD")) {
        case 1: run(Number<8>{}, Number<2>{}); break;
        case 2: run(Number<8>{}, Number<NT == 2 ? 4 : 1>{}); break;
        default: run(Number<4>{}, Number<NT == 2 ? 4 : 2>{});
      }
    });
  });
}

// s dz, the gradients of weight, bias and beta, and slope and offset of the rest of dx (batch_norm_activation).
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> dense_convolution_backward(
    Tensor dy, Tensor filters, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance,
    std::optional<Tensor> beta, int64_t activation, double epsilon, bool training, int64_t height, int64_t width) {
  check(x, &filters, &dy);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t channels = x.size(1);
  Tensor g = torch::stable::new_empty(x, {x.size(0), channels});
  const auto vector_like = [&](int64_t size) {
    return x.size(0) ? torch::stable::new_empty(x, {size}, ScalarType::Float)
                     : torch::stable::new_zeros(x, {size}, ScalarType::Float);
  };
  Tensor to_weight = vector_like(channels), to_bias = vector_like(channels), to_beta = vector_like(beta.has_value());
  Tensor slope = vector_like(channels), offset = vector_like(channels);
  if (x.size(0) == 0) return {g, to_weight, to_bias, to_beta, slope, offset};
  const Images images = images_of(x, height, width);
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  with_half(x, [&](auto t) {
    using T = decltype(t);
    with_sizes(channels, dy.size(1), [&](auto c, auto outputs) {
      constexpr int NT = decltype(c)::value / 8, K = decltype(outputs)::value * 16;
      const auto run = [&](auto warps, auto fragments) {
        convolve_back_with<T, decltype(warps)::value, decltype(fragments)::value, NT, K>(
            dy, filters, x, norm, images, training, g, to_weight, to_bias, to_beta, slope, offset);
      };
      switch (variant("DENSE_BACK")) {
        case 1: run(Number<4>{}, Number<1>{}); break;
        case 2: run(Number<8>{}, Number<1>{}); break;
        default: run(Number<4>{}, Number<2>{});
      }
    });
  });
  return {g, to_weight, to_bias, to_beta, slope, offset};
}

// dw [outputs, 3, 3, channels], float32, of the first `outputs` of dy.
Tensor dense_convolution_weight_gradient(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance,
                                         std::optional<Tensor> beta, int64_t activation, double epsilon,
                                         int64_t height, int64_t width, int64_t outputs) {
  check(x, nullptr, &dy);
  STD_TORCH_CHECK(outputs >= 1 && outputs <= dy.size(1), "dense_convolution: dy has ", dy.size(1), " outputs, not ", outputs);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor dw = x.size(0) ? torch::stable::new_empty(x, {outputs, 3, 3, x.size(1)}, ScalarType::Float)
                        : torch::stable::new_zeros(x, {outputs, 3, 3, x.size(1)}, ScalarType::Float);
  if (x.size(0) == 0) return dw;
  const Images images = images_of(x, height, width);
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  with_half(x, [&](auto t) {
    using T = decltype(t);
    with_sizes(x.size(1), dy.size(1), [&](auto c, auto sixteens) {
      constexpr int C = decltype(c)::value, O = decltype(sixteens)::value;
      switch (variant("DENSE_FILTERS")) {
        case 1: convolve_filters_with<T, O, 1, C>(dy, x, norm, images, 128, dw); break;
        case 2: convolve_filters_with<T, O, 4 / O, C>(dy, x, norm, images, 256, dw); break;
        case 3: convolve_filters_with<T, O, 2 / O, C>(dy, x, norm, images, 128, dw); break;
        default: convolve_filters_with<T, O, 2 / O, C>(dy, x, norm, images, 256, dw);
      }
    });
  });
  return dw;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def(
      "dense_convolution(Tensor x, Tensor filters, Tensor weight, Tensor bias, Tensor mean, Tensor variance, "
      "Tensor? beta, int activation, float epsilon, int height, int width, Tensor(a!) y, Tensor(b!) mean_of_y, "
      "Tensor(c!) variance_of_y, bool statistics) -> ()");
  m.def(
      "dense_convolution_backward(Tensor dy, Tensor filters, Tensor x, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor variance, Tensor? beta, int activation, float epsilon, bool training, int height, int width) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "dense_convolution_weight_gradient(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor variance, Tensor? beta, int activation, float epsilon, int height, int width, int outputs) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("dense_convolution", TORCH_BOX(&dense_convolution));
  m.impl("dense_convolution_backward", TORCH_BOX(&dense_convolution_backward));
  m.impl("dense_convolution_weight_gradient", TORCH_BOX(&dense_convolution_weight_gradient));
}
