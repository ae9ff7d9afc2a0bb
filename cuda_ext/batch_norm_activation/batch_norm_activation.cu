// Batch norm and the activation behind it: what is called from PyTorch. The kernels are in kernels.cuh.

#include "kernels.cuh"

namespace {

using namespace cuda_ext::channels;

constexpr const char* name = "batch_norm_activation";

// Call `function` with the widest lane, as a constant, that all of the tensors can be moved in.
template <typename T, typename Function>
void with_lane(bool widest, bool half, Function function) {
  constexpr int width = 16 / sizeof(T);
  if (widest) {
    function(std::integral_constant<int, width>{});
  } else if constexpr (width == 8) {
    if (half) function(std::integral_constant<int, 4>{});
    else function(std::integral_constant<int, 1>{});
  } else {
    function(std::integral_constant<int, 1>{});
  }
}

template <typename T>
constexpr int width = 16 / sizeof(T);

template <typename T>
void statistics_of(const Tensor& x, const Tensor* copy, const Tensor& mean, const Tensor& variance) {
  const Matrix m = matrix(x, "x");
  const Matrix to = copy == nullptr ? Matrix{nullptr, m.rows, m.channels, m.stride} : matrix(*copy, "y");
  float* means = vector(x, mean, m.channels, "mean");
  float* variances = vector(x, variance, m.channels, "variance");
  if (m.rows == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  // A copy must not write beside its channels.
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && (copy == nullptr || (in_lanes<T>(*copy, to, lane) && m.channels % lane == 0));
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, m.channels, V, steps, value_blocks);
    const auto blocks = static_cast<int>(c.grid.x);
    const Tensor partial = floats(x, {int64_t{blocks} * 2 * m.channels});
    sum_values<T, V><<<c.grid, c.block, 0, stream>>>(static_cast<const T*>(m.data), m.stride, static_cast<T*>(to.data),
                                                     to.stride, m.rows, static_cast<int>(m.channels), c.lanes, c.rows,
                                                     static_cast<float*>(partial.data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    cuda_ext::launch_early(&finish_statistics<T>, finish_grid(m.channels), finish_block, 0, stream,
                           static_cast<const float*>(partial.data_ptr()), blocks, static_cast<const T*>(m.data), m.stride,
                           m.rows, static_cast<int>(m.channels), means, variances);
  });
}

// x: rows of channels. Mean and biased variance of each channel.
std::tuple<Tensor, Tensor> batch_statistics(Tensor x) {
  matrix(x, "x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t channels = x.size(1);
  Tensor mean = torch::stable::new_zeros(x, {channels}, ScalarType::Float);
  Tensor variance = torch::stable::new_zeros(x, {channels}, ScalarType::Float);
  cuda_ext::with_dtype(name, x.scalar_type(),
                       [&](auto t) { statistics_of<decltype(t)>(x, nullptr, mean, variance); });
  return {mean, variance};
}

// The same, written to mean and variance, of what is copied to y meanwhile.
void copy_with_statistics(Tensor x, Tensor y, Tensor mean, Tensor variance) {
  matrix(x, "x");
  same(x, y, "y");
  STD_TORCH_CHECK(x.size(1) == y.size(1), "batch_norm_activation: y must have the channels of x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) { statistics_of<decltype(t)>(x, &y, mean, variance); });
}

template <typename T>
void forward_of(const Tensor& x, const Norm& norm, const Pool& pool, const Tensor& y) {
  const Matrix m = matrix(x, "x");
  if (y.size(0) == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int64_t columns = y.size(1);
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && columns % lane == 0 && cuda_ext::aligned_for_packs(y.data_ptr());
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c =
        pool.height ? cover(y.size(0), columns, V, 1, 8) : cover(y.size(0), columns, V, steps, value_blocks);
    if (pool.height) {
      forward_pooled<T, V><<<c.grid, c.block, 0, stream>>>(static_cast<const T*>(m.data), m.stride,
                                                           static_cast<T*>(y.data_ptr()), y.size(0),
                                                           static_cast<int>(m.channels), c.lanes, c.rows, norm, pool);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
      return;
    }
    cuda_ext::launch_early(&forward<T, V>, c.grid, c.block, 0, stream, static_cast<const T*>(m.data), m.stride,
                           static_cast<T*>(y.data_ptr()), m.rows, static_cast<int>(m.channels),
                           static_cast<int>(columns), c.lanes, c.rows, norm);
  });
}

// height and width 0: no pooling.
Pool pool_of(const Tensor& x, int64_t height, int64_t width) {
  STD_TORCH_CHECK(height >= 0 && width >= 0 && height <= (1 << 24) && width <= (1 << 24) &&
                      (height * width != 0 ? x.size(0) % (height * width) == 0 : height + width == 0),
                  "batch_norm_activation: ", x.size(0), " rows are no images of ", height, " x ", width);
  return {height, width};
}

void check_columns(const Tensor& x, int64_t columns, bool exact) {
  STD_TORCH_CHECK(columns >= x.size(1) && columns <= x.size(1) + (exact ? 0 : 64),
                  "batch_norm_activation: columns must be the ", x.size(1), " channels and at most 64 more, got ",
                  columns);
}

Tensor batch_norm_activation(Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance,
                             std::optional<Tensor> beta, int64_t activation, double epsilon, int64_t columns,
                             int64_t height, int64_t width) {
  matrix(x, "x");
  const Pool pool = pool_of(x, height, width);
  check_columns(x, columns, pool.height != 0);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor y = torch::stable::new_empty(x, {pool.height ? pool.halved_rows(x.size(0)) : x.size(0), columns});
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) { forward_of<decltype(t)>(x, norm, pool, y); });
  return y;
}

// The sums of a backward pass: fills weight, bias, beta, slope and offset; with `gradient`, adds s dz to it.
template <typename T>
void gradients_of(const Tensor& dy, const Tensor& x, const Norm& norm, const Pool& pool,
                  const Tensor* gradient, bool training, const Tensor& weight, const Tensor& bias, const Tensor& beta,
                  const Tensor& slope, const Tensor& offset) {
  const Matrix m = matrix(x, "x"), dm = matrix(dy, "dy");
  const Matrix gm = gradient == nullptr ? Matrix{nullptr, m.rows, m.channels, m.stride} : matrix(*gradient, "gradient");
  if (m.rows == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const auto fits = [&](int lane) {
    // dy may be wider than x; a gradient is written only in its own channels.
    const Matrix narrow{dm.data, dm.rows, m.channels, dm.stride};
    return in_lanes<T>(x, m, lane) && in_lanes<T>(dy, narrow, lane) &&
           (gradient == nullptr || in_lanes<T>(*gradient, gm, lane));
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = gradient == nullptr ? cover(m.rows, m.channels, V, sum_steps, sum_blocks)
                                        : cover(m.rows, m.channels, V, add_steps, add_blocks);
    const auto blocks = static_cast<int>(c.grid.x);
    const int beta_blocks = blocks * static_cast<int>(c.grid.y);
    const bool with_beta = norm.beta != nullptr;
    const Tensor partial = floats(x, {int64_t{blocks} * 2 * m.channels + beta_blocks});
    float* sums = static_cast<float*>(partial.data_ptr());
    float* beta_sums = with_beta ? sums + int64_t{blocks} * 2 * m.channels : nullptr;
    const auto launch = [&](auto adds, auto pooled) {
      sum_gradients<T, V, decltype(adds)::value, decltype(pooled)::value><<<c.grid, c.block, 0, stream>>>(
          static_cast<const T*>(dm.data), dm.stride, static_cast<const T*>(m.data), m.stride, static_cast<T*>(gm.data),
          gm.stride, m.rows, static_cast<int>(m.channels), c.lanes, c.rows, norm, pool, sums, beta_sums);
    };
    if (gradient != nullptr) {
      launch(std::true_type{}, std::false_type{});
    } else if (pool.height) {
      launch(std::false_type{}, std::true_type{});
    } else {
      launch(std::false_type{}, std::false_type{});
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    cuda_ext::launch_early(&finish_gradients, finish_grid(m.channels, with_beta), finish_block, 0, stream, sums,
                           blocks, beta_sums, beta_blocks, m.rows, static_cast<int>(m.channels), norm, training,
                           gradient != nullptr, vector(x, weight, m.channels, "weight's gradient"),
                           vector(x, bias, m.channels, "bias's gradient"),
                           vector(x, beta, with_beta, "beta's gradient"), vector(x, slope, m.channels, "slope"),
                           vector(x, offset, m.channels, "offset"));
  });
}

template <typename T>
void input_gradient_of(const Tensor& dy, const Tensor& x, const Norm& norm, const Pool& pool,
                       const Tensor& slope, const Tensor& offset, const Tensor& dx) {
  const Matrix m = matrix(x, "x"), dm = matrix(dy, "dy");
  if (m.rows == 0) return;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && in_lanes<T>(dy, dm, lane) && m.channels % lane == 0;
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, m.channels, V, sum_steps, 8);
    const auto launch = [&](auto pooled) {
      input_gradient<T, V, decltype(pooled)::value><<<c.grid, c.block, 0, stream>>>(
          static_cast<const T*>(dm.data), dm.stride, static_cast<const T*>(m.data), m.stride,
          static_cast<T*>(dx.data_ptr()), m.rows, static_cast<int>(m.channels), c.lanes, c.rows, norm, pool,
          vector(x, slope, m.channels, "slope"), vector(x, offset, m.channels, "offset"));
    };
    if (pool.height) launch(std::true_type{});
    else launch(std::false_type{});
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

template <typename T>
void finish_gradient_of(const Tensor& gradient, const Tensor& x, const Tensor& mean, const Tensor& slope,
                        const Tensor& offset, const Tensor& dx) {
  const Matrix m = matrix(x, "x"), gm = matrix(gradient, "gradient");
  if (m.rows == 0) return;
  const auto fits = [&](int lane) {
    return in_lanes<T>(x, m, lane) && in_lanes<T>(gradient, gm, lane) && m.channels % lane == 0 &&
           dx.size(1) % lane == 0;
  };
  with_lane<T>(fits(width<T>), fits(4), [&](auto lane) {
    constexpr int V = decltype(lane)::value;
    const Cover c = cover(m.rows, dx.size(1), V, steps, 8);
    finish_gradient<T, V><<<c.grid, c.block, 0, cuda_ext::current_stream(x.get_device_index())>>>(
        static_cast<const T*>(gm.data), gm.stride, static_cast<const T*>(m.data), m.stride,
        static_cast<T*>(dx.data_ptr()), m.rows, static_cast<int>(m.channels), static_cast<int>(dx.size(1)), c.lanes,
        c.rows, vector(x, mean, m.channels, "mean"), vector(x, slope, m.channels, "slope"),
        vector(x, offset, m.channels, "offset"));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_activation_backward(
    Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, std::optional<Tensor> beta,
    int64_t activation, double epsilon, bool training, int64_t height, int64_t width) {
  matrix(x, "x");
  const Pool pool = pool_of(x, height, width);
  same(x, dy, "dy", pool.height == 0);
  STD_TORCH_CHECK(dy.size(1) == x.size(1), "batch_norm_activation: dy must have the channels of x");
  STD_TORCH_CHECK(!pool.height || dy.size(0) == pool.halved_rows(x.size(0)),
                  "batch_norm_activation: dy must have a quarter of the rows of x, got ", dy.size(0));
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t channels = x.size(1);
  Tensor dx = torch::stable::new_empty(x, {x.size(0), channels});
  const auto vector_like = [&](int64_t size) {
    return x.size(0) ? torch::stable::new_empty(x, {size}, ScalarType::Float)
                     : torch::stable::new_zeros(x, {size}, ScalarType::Float);
  };
  Tensor to_weight = vector_like(channels), to_bias = vector_like(channels), to_beta = vector_like(beta.has_value());
  Tensor slope = vector_like(channels), offset = vector_like(channels);
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    gradients_of<T>(dy, x, norm, pool, nullptr, training, to_weight, to_bias, to_beta, slope, offset);
    input_gradient_of<T>(dy, x, norm, pool, slope, offset, dx);
  });
  return {dx, to_weight, to_bias, to_beta};
}

// gradient += s dz; slope and offset += the coefficients of the rest.
std::tuple<Tensor, Tensor, Tensor> batch_norm_activation_add_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias,
                                                                      Tensor mean, Tensor variance,
                                                                      std::optional<Tensor> beta, int64_t activation,
                                                                      double epsilon, bool training, Tensor gradient,
                                                                      Tensor slope, Tensor offset) {
  matrix(x, "x");
  same(x, dy, "dy");
  same(x, gradient, "gradient");
  STD_TORCH_CHECK(gradient.size(1) == x.size(1), "batch_norm_activation: gradient must have the channels of x");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const auto vector_like = [&](int64_t size) {
    return x.size(0) ? torch::stable::new_empty(x, {size}, ScalarType::Float)
                     : torch::stable::new_zeros(x, {size}, ScalarType::Float);
  };
  Tensor to_weight = vector_like(x.size(1)), to_bias = vector_like(x.size(1)), to_beta = vector_like(beta.has_value());
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  cuda_ext::with_dtype(name, x.scalar_type(), [&](auto t) {
    gradients_of<decltype(t)>(dy, x, norm, Pool{}, &gradient, training, to_weight, to_bias, to_beta, slope, offset);
  });
  return {to_weight, to_bias, to_beta};
}

// gradient + slope (x - mean) + offset, and columns of zeros.
Tensor centred_gradient(Tensor gradient, Tensor x, Tensor mean, Tensor slope, Tensor offset, int64_t columns) {
  matrix(x, "x");
  same(x, gradient, "gradient");
  check_columns(x, columns, false);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor dx = torch::stable::new_empty(x, {x.size(0), columns});
  cuda_ext::with_dtype(name, x.scalar_type(),
                       [&](auto t) { finish_gradient_of<decltype(t)>(gradient, x, mean, slope, offset, dx); });
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("batch_statistics(Tensor x) -> (Tensor, Tensor)");
  m.def("copy_with_statistics(Tensor x, Tensor(a!) y, Tensor(b!) mean, Tensor(c!) variance) -> ()");
  m.def(
      "batch_norm_activation(Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, Tensor? beta, "
      "int activation, float epsilon, int columns, int height=0, int width=0) -> Tensor");
  m.def(
      "batch_norm_activation_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, "
      "Tensor? beta, int activation, float epsilon, bool training, int height=0, int width=0) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "batch_norm_activation_add_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor variance, Tensor? beta, int activation, float epsilon, bool training, Tensor(a!) gradient, "
      "Tensor(b!) slope, Tensor(c!) offset) -> (Tensor, Tensor, Tensor)");
  m.def("centred_gradient(Tensor gradient, Tensor x, Tensor mean, Tensor slope, Tensor offset, int columns) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("batch_statistics", TORCH_BOX(&batch_statistics));
  m.impl("copy_with_statistics", TORCH_BOX(&copy_with_statistics));
  m.impl("batch_norm_activation", TORCH_BOX(&batch_norm_activation));
  m.impl("batch_norm_activation_backward", TORCH_BOX(&batch_norm_activation_backward));
  m.impl("batch_norm_activation_add_backward", TORCH_BOX(&batch_norm_activation_add_backward));
  m.impl("centred_gradient", TORCH_BOX(&centred_gradient));
}
