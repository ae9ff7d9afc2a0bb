// A dense block's 3x3 convolution: what is called from PyTorch. The kernels are in convolutions.cuh.

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

Images images_of(const Tensor& x, int64_t height, int64_t width) {
  STD_TORCH_CHECK(height >= 1 && width >= 1 && height <= (1 << 15) && width <= (1 << 15) &&
                      x.size(0) % (height * width) == 0,
                  "dense_convolution: ", x.size(0), " rows are no images of ", height, " x ", width);
  // A slot for each pixel, behind each line, and of a line behind each image, and around them.
  STD_TORCH_CHECK((x.size(0) / width + x.size(0) / (height * width) + 2) * (width + 1) < (int64_t{1} << 31),
                  "dense_convolution: too many rows, ", x.size(0));
  return Images{static_cast<int>(x.size(0)), static_cast<int>(height), static_cast<int>(width)};
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
    STD_TORCH_CHECK(d.rows == m.rows && d.stride == d.channels && d.channels % 8 == 0 && d.channels <= outputs_at_most &&
                        cuda_ext::aligned_for_packs(d.data) &&
                        (filters == nullptr || filters->size(0) == d.channels),
                    "dense_convolution: dy must be contiguous, rows of 8 or 16 outputs");
  }
}

template <typename T, int C, int warps, int MF>
void convolve_with(const Tensor& x, const Tensor& filters, const Norm& norm, const Images& images, const Tensor& y,
                   const Tensor& mean, const Tensor& variance, bool statistics) {
  constexpr int threads_of_block = warps * 32, tile_pixels = warps * MF * 16;
  const Matrix to = matrix(y, "y");
  const auto kernel = convolve<T, C, warps, MF>;
  const auto bytes_of = [](int slots) { return ConvolveShared<T, C, warps, MF>(nullptr, slots).bytes; };
  const Cut by = cut(images, tile_pixels, bytes_of);
  const int bytes = bytes_of(by.slots), blocks = std::min(by.tiles, blocks_at_once(kernel, threads_of_block, bytes));
  const int outputs = static_cast<int>(to.channels);
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const bool whole = outputs % 4 == 0 && to.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(to.data) % 8 == 0;
  Tensor partial;
  if (statistics) partial = torch::stable::new_empty(x, {int64_t{blocks} * 2 * outputs}, ScalarType::Double);
  auto* const partials = statistics ? static_cast<double*>(partial.data_ptr()) : nullptr;
  cuda_ext::launch(kernel, {dim3(blocks), dim3(threads_of_block), static_cast<std::size_t>(bytes), stream, true},
                   static_cast<const T*>(x.data_ptr()), static_cast<int>(x.size(1)),
                   static_cast<const T*>(filters.data_ptr()), static_cast<int>(filters.size(0)), images, by.pixels,
                   by.slots, norm, static_cast<T*>(to.data), to.stride, outputs, whole, partials);
  if (!statistics) return;
  cuda_ext::launch_early(&finish_product, finish_grid(outputs), sum_block, 0, stream, partials, blocks, images.rows,
                         outputs, vector(x, mean, outputs, "mean"), vector(x, variance, outputs, "variance"));
}

template <typename T, int C, int V>
void convolve_back_with(const Given<T>& given, const Tensor& filters, const Tensor& x, const Norm& norm,
                        const Images& images, bool training, int growth, const Tensor& g, const Gradients& to) {
  constexpr int threads_of_block = backward_warps * 32;
  const auto kernel = convolve_back<T, C, V>;
  const auto bytes_of = [&](int slots) { return ConvolveBackShared<T, C>(nullptr, slots, given.y != nullptr).bytes; };
  const Cut by = cut(images, backward_pixels, bytes_of);
  const int bytes = bytes_of(by.slots), blocks = std::min(by.tiles, blocks_at_once(kernel, threads_of_block, bytes));
  const int channels = static_cast<int>(x.size(1));
  const int64_t size = int64_t{growth} * taps * channels;
  const Tensor partial = floats(x, {blocks * (size + 2 * channels + 1)});
  float* const weights = static_cast<float*>(partial.data_ptr());
  float* const sums = weights + blocks * size;
  float* const betas = norm.beta != nullptr ? sums + int64_t{blocks} * 2 * channels : nullptr;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::launch(kernel, {dim3(blocks), dim3(threads_of_block), static_cast<std::size_t>(bytes), stream, true},
                   given, static_cast<int>(filters.size(0)), static_cast<const T*>(filters.data_ptr()),
                   static_cast<const T*>(x.data_ptr()), channels, images, by.pixels, by.slots, norm,
                   static_cast<T*>(g.data_ptr()), growth, sums, betas, weights);
  launch_finish({weights, size, sums, betas, blocks, blocks}, to, images.rows, channels, norm, training, stream);
}

// Calls `function` with the channels that a block takes.
template <typename Function>
void with_channels(const Tensor& x, Function function) {
  STD_TORCH_CHECK(x.size(1) <= 64, "dense_convolution: x has ", x.size(1), " channels, of at most 64");
  if (x.size(1) <= 48) function(std::integral_constant<int, 48>{});
  else function(std::integral_constant<int, 64>{});
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
  STD_TORCH_CHECK(y.size(0) == x.size(0) && y.size(1) <= filters.size(0) && filters.size(0) <= outputs_at_most,
                  "dense_convolution: y has ", y.size(0), " x ", y.size(1), " for ", x.size(0), " rows and ",
                  filters.size(0), " outputs, of at most 16");
  if (x.size(0) == 0) return;
  const Images images = images_of(x, height, width);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  with_half(x, [&](auto t) {
    with_channels(x, [&](auto c) {
      const auto with = [&](auto warps, auto fragments) {
        convolve_with<decltype(t), decltype(c)::value, decltype(warps)::value, decltype(fragments)::value>(
            x, filters, norm, images, y, y_mean, y_variance, statistics);
      };
      // Blocks of 256 pixels, or of 64: 64 images of 8 x 8 took 5.6 us on an H200 by these, and 9.4 us by those.
      if (are_few(images.rows)) with(std::integral_constant<int, 4>{}, std::integral_constant<int, 1>{});
      else with(std::integral_constant<int, 8>{}, std::integral_constant<int, 2>{});
    });
  });
}

// dy and what makes it whole.
template <typename T>
Given<T> given_of(const Tensor& dy, const Tensor& y, const Tensor& filters, const Tensor& mean, const Tensor& slope,
                  const Tensor& offset) {
  const Matrix d = matrix(dy, "dy"), m = matrix(y, "y");
  same(dy, y, "y");
  STD_TORCH_CHECK(d.channels == m.channels && d.channels <= filters.size(0) && filters.size(0) <= outputs_at_most &&
                      filters.size(0) % 8 == 0 && d.rows < (int64_t{1} << 31),
                  "dense_convolution_backward: y and the filters do not fit dy");
  return {static_cast<const T*>(d.data),
          static_cast<const T*>(m.data),
          d.stride,
          m.stride,
          vector(dy, mean, d.channels, "y's mean"),
          vector(dy, slope, d.channels, "y's slope"),
          vector(dy, offset, d.channels, "y's offset"),
          static_cast<int>(d.channels)};
}

// s dz, the rest of which is slope (x - mean) + offset (batch_norm_activation); dw [outputs, 3, 3, channels], of the first
// `outputs` of dy; the gradients of weight, bias and beta; slope and offset. With y, dy is without its part of slope and
// offset, which the norms behind y add, and may be columns of wider rows.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> dense_convolution_backward(
    Tensor dy, Tensor filters, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance,
    std::optional<Tensor> beta, int64_t activation, double epsilon, bool training, int64_t height, int64_t width,
    int64_t outputs, std::optional<Tensor> y, std::optional<Tensor> y_mean, std::optional<Tensor> y_slope,
    std::optional<Tensor> y_offset) {
  check(x, &filters, y.has_value() ? nullptr : &dy);
  same(x, dy, "dy", false);
  STD_TORCH_CHECK(!y.has_value() || (y_mean.has_value() && y_slope.has_value() && y_offset.has_value()),
                  "dense_convolution_backward: y comes with its mean, slope and offset");
  STD_TORCH_CHECK(dy.size(0) == x.size(0) && outputs >= 1 && outputs <= filters.size(0), "dense_convolution: dy has ",
                  dy.size(0), " rows and the filters ", filters.size(0), " outputs, not ", x.size(0), " and ", outputs);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t channels = x.size(1);
  Tensor g = torch::stable::new_empty(x, {x.size(0), channels});
  const auto floats_like = [&](std::initializer_list<int64_t> shape) {
    const torch::headeronly::IntHeaderOnlyArrayRef sizes(shape.begin(), shape.size());
    return x.size(0) ? torch::stable::new_empty(x, sizes, ScalarType::Float)
                     : torch::stable::new_zeros(x, sizes, ScalarType::Float);
  };
  Tensor dw = floats_like({outputs, 3, 3, channels}), to_weight = floats_like({channels}), to_bias = floats_like({channels});
  Tensor to_beta = floats_like({beta.has_value()}), slope = floats_like({channels}), offset = floats_like({channels});
  with_half(x, [&](auto t) {
    using T = decltype(t);
    const auto columns = static_cast<int>(dy.size(1));
    Given<T> given{static_cast<const T*>(dy.data_ptr()), nullptr, columns, 0, nullptr, nullptr, nullptr, columns};
    if (y.has_value()) given = given_of<T>(dy, *y, filters, *y_mean, *y_slope, *y_offset);
    if (x.size(0) == 0) return;
    const Images images = images_of(x, height, width);
    const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
    const auto numbers = [](const Tensor& of) { return static_cast<float*>(of.data_ptr()); };
    const Gradients to{numbers(dw),    numbers(to_weight), numbers(to_bias), numbers(to_beta), numbers(slope),
                       numbers(offset), false};
    Tensor whole;
    // The kernel copies two columns at once or four.
    if (lanes_of(given) == 1) whole = finish(given, dy, dy.size(0), static_cast<int>(filters.size(0)));
    with_channels(x, [&](auto c) {
      constexpr int C = decltype(c)::value;
      const auto run = lanes_of(given) == 4 ? convolve_back_with<T, C, 4> : convolve_back_with<T, C, 2>;
      run(given, filters, x, norm, images, training, static_cast<int>(outputs), g, to);
    });
  });
  return {g, dw, to_weight, to_bias, to_beta, slope, offset};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "dense_convolution(Tensor x, Tensor filters, Tensor weight, Tensor bias, Tensor mean, Tensor variance, "
      "Tensor? beta, int activation, float epsilon, int height, int width, Tensor(a!) y, Tensor(b!) mean_of_y, "
      "Tensor(c!) variance_of_y, bool statistics) -> ()");
  m.def(
      "dense_convolution_backward(Tensor dy, Tensor filters, Tensor x, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor variance, Tensor? beta, int activation, float epsilon, bool training, int height, int width, int outputs, "
      "Tensor? y=None, Tensor? y_mean=None, Tensor? y_slope=None, Tensor? y_offset=None) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("dense_convolution", TORCH_BOX(&dense_convolution));
  m.impl("dense_convolution_backward", TORCH_BOX(&dense_convolution_backward));
}
