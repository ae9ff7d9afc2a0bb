// What the gradient of a dense block's 1x1 convolution gives to the channels that it read: da = dy W by the matrix units,
// and, while da is in registers, the backward pass of the norm and activation in front of it. So da is never written.

#include <cstdlib>

#include "../common/mma.cuh"
#include "products.cuh"

namespace {

using namespace cuda_ext::channels;
using cuda_ext::await_copies;
using cuda_ext::commit_copies;
using cuda_ext::copy_async;
using cuda_ext::load_matrices;
using cuda_ext::multiply;
using cuda_ext::shared_address;

constexpr int NT = 8;
constexpr int block_channels = NT * 8;
constexpr int group = 4;

// A block multiplies K outputs of 16 W MF rows by 64 channels, those from blockIdx.y 64 on. dy comes a tile ahead.
template <typename T, int W, int MF, int K>
__global__ void __launch_bounds__(W * 32, (MF == 1 ? 16 : 12) / W)
    products_back(const T* __restrict__ dy, int64_t dy_stride, int outputs, const T* __restrict__ w, int64_t w_stride,
                  const T* __restrict__ x, int64_t x_stride, int64_t rows, int channels, Norm norm,
                  T* __restrict__ gradient, int64_t gradient_stride, float* partial, float* partial_beta) {
  constexpr int threads = W * 32, M = W * MF * 16, N = block_channels, stride = K + skew;
  extern __shared__ __align__(128) unsigned char memory[];
  T* const staged = reinterpret_cast<T*>(memory);
  T* const ws = staged + 2 * M * stride;
  float4* const by = reinterpret_cast<float4*>(ws + N * stride);
  float* const shared_sums = reinterpret_cast<float*>(by + in_table<group>(N));
  const int thread = threadIdx.x, lane = thread % 32, own = thread / 32 * MF * 16, first = blockIdx.y * N;

  for (int i = thread; i < K * N; i += threads) {
    const int n = i % N, k = i / N, channel = first + output_of<group>(n / 8, n % 8);
    ws[n * stride + k] = k < outputs && channel < channels ? w[k * w_stride + channel] : T(0.0f);
  }
  fill_table<group>(by, norm, first, N, channels);

  const int64_t tiles = (rows + M - 1) / M;
  const auto copy = [&](int64_t tile, int stage) {
    for (int i = thread; tile < tiles && i < M * (K / 8); i += threads) {
      const int r = i / (K / 8), k = i % (K / 8) * 8;
      const bool real = tile * M + r < rows && k < outputs;
      copy_async<16>(staged + (stage * M + r) * stride + k, real ? dy + (tile * M + r) * dy_stride + k : dy, real);
    }
    commit_copies();
  };
  int stage = 0;
  copy(blockIdx.x, stage);
  float sums[2][NT][2] = {}, to_beta = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    await_copies<0>();
    __syncthreads();
    copy(tile + gridDim.x, stage ^ 1);
    const unsigned from = shared_address(staged + (stage * M + own + lane % 16) * stride + lane / 16 * 8);
    const unsigned weights = shared_address(ws + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
    stage ^= 1;
    float product[MF][NT][4] = {};
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      unsigned a[MF][4];
#pragma unroll
      for (int m = 0; m < MF; ++m) {
        load_matrices(a[m], from + (m * 16 * stride + k) * static_cast<unsigned>(sizeof(T)));
      }
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        unsigned b[4];
        load_matrices(b, weights + (j * 8 * stride + k) * static_cast<unsigned>(sizeof(T)));
#pragma unroll
        for (int m = 0; m < MF; ++m) {
          multiply<T>(product[m][j], a[m], b[0], b[1]);
          multiply<T>(product[m][j + 1], a[m], b[2], b[3]);
        }
      }
    }
    with_activation(norm, [&](const auto activation) {
      through_norm<T, MF, NT, group, true>(product, x + first, x_stride, gradient + first, gradient_stride,
                                           tile * M + own, rows - tile * M - own, channels - first, by, sums, to_beta,
                                           lane, activation);
    });
  }
  await_copies<0>();
  __syncthreads();
  store_gradients<W, NT, group>(sums, to_beta, shared_sums, first, channels, partial, partial_beta);
}

template <int value>
using Number = std::integral_constant<int, value>;

template <typename T, int W, int MF, int K>
void products_back_with(const Tensor& dy, const Tensor& w, const Tensor& x, const Norm& norm, bool training,
                        const Tensor& gradient, const Tensor& weight, const Tensor& bias, const Tensor& beta,
                        const Tensor& slope, const Tensor& offset) {
  const Matrix m = matrix(x, "x"), dm = matrix(dy, "dy"), wm = matrix(w, "w"), gm = matrix(gradient, "gradient");
  STD_TORCH_CHECK(in_lanes<T>(x, m, 8) && in_lanes<T>(dy, dm, 8) && in_lanes<T>(gradient, gm, 8) && dm.channels % 8 == 0,
                  "dense_product_add_backward: rows must begin on 16 bytes");
  constexpr int tile_rows = W * MF * 16, stride = K + skew;
  constexpr int bytes = (2 * tile_rows + block_channels) * stride * 2 + in_table<group>(block_channels) * 16 +
                        W * (2 * block_channels + 1) * 4;
  const auto kernel = products_back<T, W, MF, K>;
  const int channels = static_cast<int>(m.channels), groups = (channels + block_channels - 1) / block_channels;
  const int64_t tiles = (m.rows + tile_rows - 1) / tile_rows;
  const int resident = (MF == 1 ? 16 : 12) / W;
  const auto blocks =
      static_cast<int>(std::min<int64_t>(tiles, std::max(1, cuda_ext::multiprocessors() * resident / groups)));
  const bool with_beta = norm.beta != nullptr;
  const int64_t size = int64_t{blocks} * 2 * channels;
  const Tensor partial = floats(x, {size + int64_t{blocks} * groups});
  float* const sums = static_cast<float*>(partial.data_ptr());
  float* const betas = with_beta ? sums + size : nullptr;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::launch(kernel, {dim3(blocks, groups), dim3(W * 32), static_cast<std::size_t>(bytes), stream},
                   static_cast<const T*>(dm.data), dm.stride, static_cast<int>(dm.channels),
                   static_cast<const T*>(wm.data), wm.stride, static_cast<const T*>(m.data), m.stride, m.rows, channels,
                   norm, static_cast<T*>(gm.data), gm.stride, sums, betas);
  finish_gradients<<<finish_grid(channels, with_beta), finish_block, 0, stream>>>(
      sums, blocks, betas, blocks * groups, m.rows, channels, norm, training, true,
      vector(x, weight, channels, "weight's gradient"), vector(x, bias, channels, "bias's gradient"),
      vector(x, beta, with_beta, "beta's gradient"), vector(x, slope, channels, "slope"),
      vector(x, offset, channels, "offset"));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// dy: rows of outputs; w: outputs x channels, padded; x: rows of channels. gradient += s dz, where dz is what dy W gives
// to the norm of x; slope and offset += the coefficients of the rest (batch_norm_activation_add_backward).
std::tuple<Tensor, Tensor, Tensor> dense_product_add_backward(Tensor dy, Tensor w, Tensor x, Tensor weight, Tensor bias,
                                                              Tensor mean, Tensor variance, std::optional<Tensor> beta,
                                                              int64_t activation, double epsilon, bool training,
                                                              Tensor gradient, Tensor slope, Tensor offset) {
  matrix(x, "x");
  matrix(w, "w");
  same(x, dy, "dy", false);
  same(x, w, "w", false);
  same(x, gradient, "gradient");
  STD_TORCH_CHECK(gradient.size(1) == x.size(1) && dy.size(0) == x.size(0) && dy.size(1) == w.size(0) &&
                      w.size(1) >= x.size(1) && dy.size(1) <= 64,
                  "dense_product_add_backward: ", dy.size(0), " x ", dy.size(1), ", ", w.size(0), " x ", w.size(1),
                  " and ", x.size(0), " x ", x.size(1), " do not fit each other");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const auto vector_like = [&](int64_t size) {
    return x.size(0) ? torch::stable::new_empty(x, {size}, ScalarType::Float)
                     : torch::stable::new_zeros(x, {size}, ScalarType::Float);
  };
  Tensor to_weight = vector_like(x.size(1)), to_bias = vector_like(x.size(1)), to_beta = vector_like(beta.has_value());
  if (x.size(0) == 0) return {to_weight, to_bias, to_beta};
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  const auto run = [&](auto t, auto k) {
    using T = decltype(t);
    constexpr int K = decltype(k)::value;
    const auto with = [&](auto warps, auto fragments) {
      products_back_with<T, decltype(warps)::value, decltype(fragments)::value, K>(
          dy, w, x, norm, training, gradient, to_weight, to_bias, to_beta, slope, offset);
    };
    const char* found = std::getenv("DENSE_PRODUCT");
    switch (found == nullptr ? 0 : std::atoi(found)) {
      case 1: with(Number<8>{}, Number<1>{}); break;
      case 2: with(Number<4>{}, Number<2>{}); break;
      default: with(Number<4>{}, Number<1>{});
    }
  };
  const auto run_with = [&](auto t) {
    if (dy.size(1) <= 48) run(t, Number<48>{});
    else run(t, Number<64>{});
  };
  switch (x.scalar_type()) {
    case ScalarType::Half: run_with(__half{}); break;
    case ScalarType::BFloat16: run_with(__nv_bfloat16{}); break;
    default: STD_TORCH_CHECK(false, "dense_product_add_backward: dtype must be float16 or bfloat16");
  }
  return {to_weight, to_bias, to_beta};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def(
      "dense_product_add_backward(Tensor dy, Tensor w, Tensor x, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor variance, Tensor? beta, int activation, float epsilon, bool training, Tensor(a!) gradient, "
      "Tensor(b!) slope, Tensor(c!) offset) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("dense_product_add_backward", TORCH_BOX(&dense_product_add_backward));
}
