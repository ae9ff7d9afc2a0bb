// Depthwise 2D convolution, forward and backward: checks, dispatch and registration.

#include "depthwise.cuh"

#include <tuple>

namespace {

using torch::headeronly::MemoryFormat;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using namespace depthwise;

constexpr int64_t longest_side = int64_t{1} << 30;

Shape checked(const char* name, const Tensor& x, const Tensor& weight, int64_t padding) {
  STD_TORCH_CHECK(x.is_cuda() && weight.is_cuda() && x.get_device_index() == weight.get_device_index(), name,
                  ": x and weight must be on one GPU, got devices ", x.get_device_index(), " and ",
                  weight.get_device_index());
  STD_TORCH_CHECK(x.scalar_type() == weight.scalar_type(), name, ": x and weight must have one dtype");
  STD_TORCH_CHECK(x.dim() == 4 && weight.dim() == 4, name, ": x and weight must have 4 dimensions, got ", x.dim(),
                  " and ", weight.dim());
  const int64_t k = weight.size(2);
  STD_TORCH_CHECK(weight.size(0) == x.size(1) && weight.size(1) == 1 && weight.size(3) == k && k % 2 == 1 && k <= 31,
                  name, ": weight must be [", x.size(1), ", 1, k, k] with an odd k up to 31, got [", weight.size(0),
                  ", ", weight.size(1), ", ", k, ", ", weight.size(3), "]");
  STD_TORCH_CHECK(x.size(2) <= longest_side && x.size(3) <= longest_side && x.size(1) < (int64_t{1} << 31), name,
                  ": x must have at most 2^30 rows and columns and 2^31 - 1 channels, got ", x.size(2), ", ",
                  x.size(3), " and ", x.size(1));
  STD_TORCH_CHECK(padding >= zeros && padding <= replicate, name, ": padding must be 0, 1 or 2, got ", padding);
  STD_TORCH_CHECK(padding != reflect || x.numel() == 0 || (k / 2 < x.size(2) && k / 2 < x.size(3)), name,
                  ": reflect padding needs more than ", k / 2, " rows and columns, got ", x.size(2), " and ",
                  x.size(3));
  return {x.size(0), x.size(1), static_cast<int>(x.size(2)), static_cast<int>(x.size(3)), static_cast<int>(k)};
}

template <typename T>
const T* read(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
}

template <typename T>
T* written(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// As PyTorch has it: what is both, for one channel or one pixel, is NCHW.
MemoryFormat format_of(const Tensor& x) {
  if (x.is_contiguous()) return MemoryFormat::Contiguous;
  int64_t expected = 1;
  for (int dim : {1, 3, 2, 0}) {
    if (x.size(dim) == 1) continue;
    if (x.stride(dim) != expected) return MemoryFormat::Contiguous;
    expected *= x.size(dim);
  }
  return MemoryFormat::ChannelsLast;
}

// Whether the kernels of depthwise_channels_last.cuh take it: every pixel begins on 16 bytes.
bool fits_channels_last(const Tensor& x, const Shape& shape) {
  const int64_t pack = x.scalar_type() == ScalarType::Float ? 4 : 8;
  return shape.k >= 3 && shape.k <= 7 && shape.channels % pack == 0 && shape.channels <= most_channels_last &&
         shape.batch < int64_t{1} << 31;
}

Tensor laid_out(Tensor x, MemoryFormat format) {
  x = torch::stable::contiguous(x, format);
  return format == MemoryFormat::ChannelsLast && !cuda_ext::aligned_for_packs(x.data_ptr()) ? torch::stable::clone(x) : x;
}

Tensor empty_like(const Tensor& x, MemoryFormat format) {
  return torch::stable::empty({x.size(0), x.size(1), x.size(2), x.size(3)}, x.scalar_type(), std::nullopt, x.device(),
                              std::nullopt, format);
}

template <typename T>
void convolve(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip, cudaStream_t stream) {
  if (shape.k == 1) {
    convolve_plain(x, weight, out, shape, padding, stream);
  } else if (shape.k <= 7) {
    convolve_small(x, weight, out, shape, padding, flip, stream);
  } else {
    convolve_large(x, weight, out, shape, padding, flip, stream);
  }
}

template <typename T>
void backward(const Tensor& gradient, const Tensor& image, const Tensor& filter, const Tensor* image_gradient,
              const Tensor* filter_gradient, const Shape& shape, int padding, cudaStream_t stream) {
  const T* g = read<T>(gradient);
  const T* x = read<T>(image);
  const T* weight = read<T>(filter);
  T* to_image = image_gradient ? written<T>(*image_gradient) : nullptr;
  if (shape.k == 1) {
    if (image_gradient) image_gradient_plain(g, weight, to_image, shape, padding, false, false, stream);
    if (filter_gradient) filter_gradient_plain(g, x, written<T>(*filter_gradient), shape, padding, stream);
    return;
  }
  const bool small = shape.k <= 7;
  const bool fused = small && image_gradient && filter_gradient && padding == zeros;
  if (image_gradient && !fused) {
    convolve(g, weight, to_image, shape, zeros, true, stream);
    if (padding != zeros) image_gradient_plain(g, weight, to_image, shape, padding, true, false, stream);
  }
  if (!filter_gradient) return;
  const int blocks = small ? blocks_small<T>(shape) : blocks_large<T>(shape);
  const int64_t taps = shape.channels * shape.k * shape.k;
  const Tensor parts = torch::stable::new_empty(image, {blocks, taps}, ScalarType::Float);
  if (fused) {
    differentiate_small(g, x, weight, to_image, written<float>(parts), shape, zeros, true, stream);
  } else if (small) {
    differentiate_small(x, g, weight, static_cast<T*>(nullptr), written<float>(parts), shape, padding, false, stream);
  } else {
    differentiate_large(g, x, written<float>(parts), shape, padding, stream);
  }
  add_parts(read<float>(parts), written<T>(*filter_gradient), taps, blocks, stream);
}

// The same for channels-last tensors and filters of 3, 5 and 7.
template <typename T>
void backward_channels_last(const Tensor& gradient, const Tensor& image, const Tensor& filter,
                            const Tensor* image_gradient, const Tensor* filter_gradient, const Shape& shape,
                            int padding, cudaStream_t stream) {
  const T* g = read<T>(gradient);
  const T* x = read<T>(image);
  const T* weight = read<T>(filter);
  T* to_image = image_gradient ? written<T>(*image_gradient) : nullptr;
  const bool fused =
      image_gradient && filter_gradient && padding == zeros && shape.k <= largest_fused_channels_last;
  if (image_gradient && !fused) {
    convolve_channels_last(g, weight, to_image, shape, zeros, true, stream);
    if (padding != zeros) image_gradient_plain(g, weight, to_image, shape, padding, true, true, stream);
  }
  if (!filter_gradient) return;
  const int blocks = blocks_channels_last<T>(shape);
  const int64_t taps = shape.channels * shape.k * shape.k;
  const Tensor parts = torch::stable::new_empty(image, {blocks, taps}, ScalarType::Float);
  if (fused) {
    differentiate_channels_last(g, x, weight, to_image, written<float>(parts), shape, zeros, true, stream);
  } else {
    differentiate_channels_last(x, g, weight, static_cast<T*>(nullptr), written<float>(parts), shape, padding, false, stream);
  }
  add_parts(read<float>(parts), written<T>(*filter_gradient), taps, blocks, stream);
}

Tensor depthwise_conv2d(Tensor x, Tensor weight, int64_t padding) {
  const Shape shape = checked("depthwise_conv2d", x, weight, padding);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const MemoryFormat format = format_of(x);
  const bool last = format == MemoryFormat::ChannelsLast && fits_channels_last(x, shape);
  const MemoryFormat inside = last ? format : MemoryFormat::Contiguous;
  x = laid_out(x, inside);
  weight = torch::stable::contiguous(weight);
  Tensor out = empty_like(x, inside);
  if (x.numel() == 0) return out;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int mode = static_cast<int>(padding);
  cuda_ext::with_dtype("depthwise_conv2d", x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    if (last) {
      convolve_channels_last(read<T>(x), read<T>(weight), written<T>(out), shape, mode, false, stream);
    } else {
      convolve(read<T>(x), read<T>(weight), written<T>(out), shape, mode, false, stream);
    }
  });
  return torch::stable::contiguous(out, format);
}

std::tuple<Tensor, Tensor> depthwise_conv2d_backward(Tensor gradient, Tensor x, Tensor weight, int64_t padding,
                                                     bool wants_x, bool wants_weight) {
  const char* name = "depthwise_conv2d_backward";
  const Shape shape = checked(name, x, weight, padding);
  STD_TORCH_CHECK(gradient.is_cuda() && gradient.get_device_index() == x.get_device_index(), name,
                  ": gradient and x must be on one GPU, got devices ", gradient.get_device_index(), " and ",
                  x.get_device_index());
  STD_TORCH_CHECK(gradient.scalar_type() == x.scalar_type(), name, ": gradient and x must have one dtype");
  STD_TORCH_CHECK(gradient.dim() == 4 && gradient.size(0) == x.size(0) && gradient.size(1) == x.size(1) &&
                      gradient.size(2) == x.size(2) && gradient.size(3) == x.size(3),
                  name, ": gradient and x must have one shape");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const MemoryFormat format = format_of(x);
  const bool last = format == MemoryFormat::ChannelsLast && fits_channels_last(x, shape);
  const MemoryFormat inside = last ? format : MemoryFormat::Contiguous;
  gradient = laid_out(gradient, inside);
  x = laid_out(x, inside);
  weight = torch::stable::contiguous(weight);
  const int64_t channels = x.size(1);
  const int64_t k = shape.k;
  Tensor image_gradient = wants_x ? empty_like(x, inside) : torch::stable::new_empty(x, {0});
  // Of no image at all it is zero.
  Tensor filter_gradient = !wants_weight    ? torch::stable::new_empty(x, {0})
                           : x.numel() == 0 ? torch::stable::new_zeros(x, {channels, 1, k, k})
                                            : torch::stable::new_empty(x, {channels, 1, k, k});
  if (x.numel() == 0) return {image_gradient, filter_gradient};
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int mode = static_cast<int>(padding);
  const Tensor* image = wants_x ? &image_gradient : nullptr;
  const Tensor* filter = wants_weight ? &filter_gradient : nullptr;
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    if (last) {
      backward_channels_last<T>(gradient, x, weight, image, filter, shape, mode, stream);
    } else {
      backward<T>(gradient, x, weight, image, filter, shape, mode, stream);
    }
  });
  if (wants_x) image_gradient = torch::stable::contiguous(image_gradient, format);
  return {image_gradient, filter_gradient};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def("depthwise_conv2d(Tensor x, Tensor weight, int padding) -> Tensor");
  m.def(
      "depthwise_conv2d_backward(Tensor gradient, Tensor x, Tensor weight, int padding, bool wants_x, "
      "bool wants_weight) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("depthwise_conv2d", TORCH_BOX(&depthwise_conv2d));
  m.impl("depthwise_conv2d_backward", TORCH_BOX(&depthwise_conv2d_backward));
}
