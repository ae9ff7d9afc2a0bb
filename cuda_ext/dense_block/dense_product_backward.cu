// The backward pass of a dense block's 1x1 convolution and of the norm and activation in front of it, a = f(z): from dy,
// da = dy W and dW = dy^T a, both by the matrix units. Neither da nor a is written: dz comes of da while that is in
// registers, and a is made of x again beside it.
//
// Where dy is what a norm behind the convolution passes on, dy = g + slope (y - mean) + offset, it is made here of g and y.

#include "../common/mma.cuh"
#include "products.cuh"

namespace {

using namespace cuda_ext::channels;
using cuda_ext::await_copies;
using cuda_ext::commit_copies;
using cuda_ext::copy_async;
using cuda_ext::load_matrices;
using cuda_ext::load_matrices_transposed;
using cuda_ext::multiply;
using cuda_ext::pack;
using cuda_ext::shared_address;

constexpr int NT = 8;
constexpr int N = NT * 8;
constexpr int group = 4;
constexpr int warps = 4;
constexpr int block_threads = warps * 32;
constexpr int tile_rows = warps * 16;

// Where channel c of row r lies in a staged tile of x or the gradient, c a multiple of 8. The eights of a row change places
// so that neither eight rows of one of them nor two rows of four meet in a bank.
__device__ inline int in_tile(int r, int c) { return r * N + (c ^ ((r & 1) << 5 | (r & 2) << 3 | (r & 4) << 1)); }

// What is made of dy: y null where dy is it.
template <typename T>
struct Given {
  const T *dy, *y;
  const float *mean, *slope, *offset;
  int outputs;
};

// A tile in shared memory: dy and y, x and the gradient.
template <typename T, int K>
struct Stage {
  static constexpr int stride = K + skew;
  T dy[tile_rows * stride], y[tile_rows * stride], x[tile_rows * N], gradient[tile_rows * N];
};

template <typename T, int K>
__device__ __forceinline__ void copy_tile(Stage<T, K>& to, const Given<T>& given, const T* __restrict__ x,
                                          int64_t x_stride, const T* gradient, int64_t gradient_stride,
                                          int64_t first_row, int64_t rows, int channels) {
  for (int i = threadIdx.x; i < tile_rows * (K / 8); i += block_threads) {
    const int r = i / (K / 8), k = i % (K / 8) * 8;
    const bool real = first_row + r < rows && k < given.outputs;
    const int64_t at = real ? (first_row + r) * given.outputs + k : 0;
    copy_async<16>(to.dy + r * Stage<T, K>::stride + k, given.dy + at, real);
    if (given.y != nullptr) copy_async<16>(to.y + r * Stage<T, K>::stride + k, given.y + at, real);
  }
  const int c = threadIdx.x % NT * 8;
#pragma unroll
  for (int r = threadIdx.x / NT; r < tile_rows; r += block_threads / NT) {
    const bool real = first_row + r < rows && c < channels;
    copy_async<16>(to.x + in_tile(r, c), real ? x + (first_row + r) * x_stride + c : x, real);
    copy_async<16>(to.gradient + in_tile(r, c), real ? gradient + (first_row + r) * gradient_stride + c : gradient, real);
  }
}

// dy of the norm behind: g + slope (y - mean) + offset. table: mean, slope and offset, K numbers each. A thread keeps to
// eight outputs.
template <typename T, int K>
__device__ __forceinline__ void finish_dy(Stage<T, K>& tile, const float* table, int rows) {
  constexpr int lanes = K / 8, at_once = block_threads / lanes;
  const int output = threadIdx.x % lanes * 8, group_of_rows = threadIdx.x / lanes;
  if (group_of_rows >= at_once) return;
  float mean[8], slope[8], offset[8];
#pragma unroll
  for (int v = 0; v < 8; ++v) {
    mean[v] = table[output + v];
    slope[v] = table[K + output + v];
    offset[v] = table[2 * K + output + v];
  }
#pragma unroll 2
  for (int r = group_of_rows; r < rows; r += at_once) {
    T* const own = tile.dy + r * Stage<T, K>::stride + output;
    float values[8], ys[8];
    unpack(load<T, 8>(own), values);
    unpack(load<T, 8>(tile.y + r * Stage<T, K>::stride + output), ys);
#pragma unroll
    for (int v = 0; v < 8; ++v) values[v] += offset[v] + slope[v] * (ys[v] - mean[v]);
    store(own, packed<T, 8>(values));
  }
}

// What da of 16 rows and 64 channels, a warp's products, gives to the norm: s dz is added to the gradient, and sums of dz
// and of dz (x - mean). In the staged x takes its place what the convolution read.
template <typename T, typename Activation>
__device__ __forceinline__ void through_norm(const float (&da)[NT][4], T* xs, const T* gradients, T* gradient,
                                             int64_t gradient_stride, int rows, int channels, const float4* by,
                                             float (&sums)[2][NT][2], float& to_beta, int lane,
                                             const Activation& activation) {
#pragma unroll
  for (int j = 0; j < NT; j += group) {
    const int channel = output_of<group>(j, lane % 4 * 2);
    float values[2][2 * group], found[2][2 * group];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = in_tile(half * 8 + lane / 4, channel);
      unpack(load<T, 2 * group>(xs + at), values[half]);
      unpack(load<T, 2 * group>(gradients + at), found[half]);
    }
#pragma unroll
    for (int v = 0; v < 2 * group; ++v) {
      // Past the channels lies what others wrote.
      if (channel + v >= channels) break;
      const float4 own = by[in_table<group>(channel) + v];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float centred = values[half][v] - own.x, z = centred * own.y + own.z;
        const float dz = activation.through(da[j + v / 2][half * 2 + v % 2], z, to_beta);
        values[half][v] = activation.value(z);
        sums[0][j + v / 2][v % 2] += dz;
        sums[1][j + v / 2][v % 2] += dz * centred;
        found[half][v] += own.y * dz;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4;
      store(xs + in_tile(row, channel), packed<T, 2 * group>(values[half]));
      if (row < rows && channel < channels) {
        store(gradient + row * gradient_stride + channel, packed<T, 2 * group>(found[half]));
      }
    }
  }
}

// K outputs, and 64 channels, those from blockIdx.y 64 on. A tile is copied while the one before is multiplied. A warp
// takes 16 of the tile's rows for da, and 16 of the channels for dW.
template <typename T, int K>
__global__ void __launch_bounds__(block_threads, 3)
    products_back(Given<T> given, const T* __restrict__ w, int64_t w_stride, const T* __restrict__ x, int64_t x_stride,
                  int64_t rows, int channels, Norm norm, T* gradient, int64_t gradient_stride, float* partial,
                  float* partial_beta, float* partial_weights) {
  constexpr int stride = K + skew, MO = K / 16;
  constexpr unsigned size = sizeof(T);
  extern __shared__ __align__(128) unsigned char memory[];
  auto* const stages = reinterpret_cast<Stage<T, K>*>(memory);
  T* const ws = reinterpret_cast<T*>(stages + 2);
  float4* const by = reinterpret_cast<float4*>(ws + N * stride);
  float* const table = reinterpret_cast<float*>(by + in_table<group>(N));
  float* const shared_sums = table + 3 * K;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, own = warp * 16, first = blockIdx.y * N;

  for (int i = thread; i < K * N; i += block_threads) {
    const int n = i % N, k = i / N, channel = first + output_of<group>(n / 8, n % 8);
    ws[n * stride + k] = k < given.outputs && channel < channels ? w[k * w_stride + channel] : T(0.0f);
  }
  fill_table<group>(by, norm, first, N, channels);
  for (int k = thread; given.y != nullptr && k < K; k += block_threads) {
    const bool real = k < given.outputs;
    table[k] = real ? given.mean[k] : 0.0f;
    table[K + k] = real ? given.slope[k] : 0.0f;
    table[2 * K + k] = real ? given.offset[k] : 0.0f;
  }

  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  const auto copy = [&](int64_t tile, int stage) {
    if (tile < tiles) {
      copy_tile(stages[stage], given, x + first, x_stride, gradient + first, gradient_stride, tile * tile_rows, rows,
                channels - first);
    }
    commit_copies();
  };
  int stage = 0;
  copy(blockIdx.x, stage);
  float sums[2][NT][2] = {}, to_beta = 0, weights[MO][2][4] = {};
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, stage ^= 1) {
    const int64_t left = rows - tile * tile_rows;
    const int count = left < tile_rows ? static_cast<int>(left) : tile_rows;
    Stage<T, K>& here = stages[stage];
    await_copies<0>();
    __syncthreads();
    copy(tile + gridDim.x, stage ^ 1);
    if (given.y != nullptr) {
      finish_dy(here, table, count);
      __syncthreads();
    }
    float da[1][NT][4] = {};
    const unsigned from = shared_address(here.dy + (own + lane % 16) * stride + lane / 16 * 8);
    const unsigned filter = shared_address(ws + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      unsigned a[4];
      load_matrices(a, from + k * size);
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        unsigned b[4];
        load_matrices(b, filter + (j * 8 * stride + k) * size);
        multiply<T>(da[0][j], a, b[0], b[1]);
        multiply<T>(da[0][j + 1], a, b[2], b[3]);
      }
    }
    with_activation(norm, [&](const auto activation) {
      through_norm(da[0], here.x + own * N, here.gradient + own * N,
                   gradient + (tile * tile_rows + own) * gradient_stride + first, gradient_stride, count - own,
                   channels - first, by, sums, to_beta, lane, activation);
    });
    __syncthreads();
    const T* const dys = here.dy + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
    const T* const xs = here.x + in_tile(lane % 16, warp * 16 + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < tile_rows; k += 16) {
      unsigned b[4];
      load_matrices_transposed(b, xs + k * N);
#pragma unroll
      for (int m = 0; m < MO; ++m) {
        unsigned a[4];
        load_matrices_transposed(a, dys + k * stride + m * 16);
        multiply<T>(weights[m][0], a, b[0], b[1]);
        multiply<T>(weights[m][1], a, b[2], b[3]);
      }
    }
  }
  await_copies<0>();
  cuda_ext::let_the_next_start();
#pragma unroll
  for (int i = 0; i < MO * 8; ++i) {
    const int output = i / 8 * 16 + i % 4 / 2 * 8 + lane / 4;
    const int channel = first + warp * 16 + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
    if (output < given.outputs && channel < channels) {
      partial_weights[(int64_t{blockIdx.x} * given.outputs + output) * channels + channel] = weights[i / 8][i / 4 % 2][i % 4];
    }
  }
  store_gradients<warps, NT, group>(sums, to_beta, shared_sums, first, channels, partial, partial_beta);
}

template <typename T, int K>
void products_back_of(const Given<T>& given, const Tensor& w, const Tensor& x, const Norm& norm, bool training,
                      const Tensor& gradient, const Tensor& dw, const Tensor& weight, const Tensor& bias,
                      const Tensor& beta, const Tensor& slope, const Tensor& offset) {
  const Matrix m = matrix(x, "x"), wm = matrix(w, "w"), gm = matrix(gradient, "gradient");
  STD_TORCH_CHECK(in_lanes<T>(x, m, 8) && in_lanes<T>(gradient, gm, 8),
                  "dense_product_backward: rows must begin on 16 bytes");
  constexpr int bytes = 2 * sizeof(Stage<T, K>) + N * (K + skew) * 2 + in_table<group>(N) * 16 +
                        (3 * K + warps * (2 * N + 1)) * 4;
  const auto kernel = products_back<T, K>;
  const int channels = static_cast<int>(m.channels), groups = (channels + N - 1) / N;
  const int64_t tiles = (m.rows + tile_rows - 1) / tile_rows;
  const auto blocks = static_cast<int>(
      std::min<int64_t>(tiles, std::max(1, blocks_at_once(kernel, block_threads, bytes) / groups)));
  const bool with_beta = norm.beta != nullptr;
  const int64_t size = int64_t{blocks} * 2 * channels, weights = int64_t{given.outputs} * channels;
  const Tensor partial = floats(x, {size + int64_t{blocks} * groups + blocks * weights});
  float* const sums = static_cast<float*>(partial.data_ptr());
  float* const betas = with_beta ? sums + size : nullptr;
  float* const partial_weights = sums + size + int64_t{blocks} * groups;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::launch(kernel, {dim3(blocks, groups), dim3(block_threads), static_cast<std::size_t>(bytes), stream}, given,
                   static_cast<const T*>(wm.data), wm.stride, static_cast<const T*>(m.data), m.stride, m.rows, channels,
                   norm, static_cast<T*>(gm.data), gm.stride, sums, betas, partial_weights);
  cuda_ext::launch_early(&finish_gradients, finish_grid(channels, with_beta), finish_block, 0, stream, sums, blocks, betas,
                         blocks * groups, m.rows, channels, norm, training, true,
                         vector(x, weight, channels, "weight's gradient"), vector(x, bias, channels, "bias's gradient"),
                         vector(x, beta, with_beta, "beta's gradient"), vector(x, slope, channels, "slope"),
                         vector(x, offset, channels, "offset"));
  cuda_ext::launch_early(&finish_weights, finish_grid(weights), finish_weights_block, 0, stream, partial_weights, blocks,
                         weights, static_cast<float*>(dw.data_ptr()));
}

template <typename T>
Given<T> given_of(const Tensor& dy, const std::optional<Tensor>& y, const std::optional<Tensor>& mean,
                  const std::optional<Tensor>& slope, const std::optional<Tensor>& offset) {
  const auto whole = [&](const Tensor& rows, const char* name) {
    const Matrix m = matrix(rows, name);
    STD_TORCH_CHECK(m.rows == dy.size(0) && m.channels == dy.size(1) && m.stride == m.channels && m.channels % 8 == 0 &&
                        m.channels <= 64 && cuda_ext::aligned_for_packs(m.data),
                    "dense_product_backward: ", name, " must be contiguous, of at most 64 outputs, a multiple of 8");
    return static_cast<const T*>(m.data);
  };
  const int outputs = static_cast<int>(dy.size(1));
  const T* const own = whole(dy, "dy");
  if (!y.has_value()) return {own, nullptr, nullptr, nullptr, nullptr, outputs};
  same(dy, *y, "y");
  STD_TORCH_CHECK(mean.has_value() && slope.has_value() && offset.has_value(),
                  "dense_product_backward: y comes with its mean, slope and offset");
  return {own, whole(*y, "y"), vector(dy, *mean, outputs, "y's mean"), vector(dy, *slope, outputs, "y's slope"),
          vector(dy, *offset, outputs, "y's offset"), outputs};
}

// dy, y: rows of outputs; w: outputs x channels, padded; x: rows of channels. dW [outputs, channels], float32, and the
// gradients of weight, bias and beta. gradient += s dz, where dz is what dy W gives to the norm of x; slope and offset +=
// the coefficients of the rest (batch_norm_activation_add_backward).
std::tuple<Tensor, Tensor, Tensor, Tensor> dense_product_backward(
    Tensor dy, std::optional<Tensor> y, std::optional<Tensor> y_mean, std::optional<Tensor> y_slope,
    std::optional<Tensor> y_offset, Tensor w, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance,
    std::optional<Tensor> beta, int64_t activation, double epsilon, bool training, Tensor gradient, Tensor slope,
    Tensor offset) {
  matrix(x, "x");
  matrix(w, "w");
  same(x, dy, "dy", false);
  same(x, w, "w", false);
  same(x, gradient, "gradient");
  STD_TORCH_CHECK(gradient.size(1) == x.size(1) && dy.size(0) == x.size(0) && dy.size(1) == w.size(0) &&
                      w.size(1) >= x.size(1),
                  "dense_product_backward: ", dy.size(0), " x ", dy.size(1), ", ", w.size(0), " x ", w.size(1),
                  " and ", x.size(0), " x ", x.size(1), " do not fit each other");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const auto floats_like = [&](std::initializer_list<int64_t> shape) {
    const torch::headeronly::IntHeaderOnlyArrayRef sizes(shape.begin(), shape.size());
    return x.size(0) ? torch::stable::new_empty(x, sizes, ScalarType::Float)
                     : torch::stable::new_zeros(x, sizes, ScalarType::Float);
  };
  const int64_t channels = x.size(1);
  Tensor dw = floats_like({dy.size(1), channels}), to_weight = floats_like({channels}), to_bias = floats_like({channels});
  Tensor to_beta = floats_like({beta.has_value()});
  if (x.size(0) == 0) return {dw, to_weight, to_bias, to_beta};
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  const auto run = [&](auto t) {
    using T = decltype(t);
    const Given<T> given = given_of<T>(dy, y, y_mean, y_slope, y_offset);
    const auto with = [&](auto k) {
      products_back_of<T, decltype(k)::value>(given, w, x, norm, training, gradient, dw, to_weight, to_bias, to_beta,
                                              slope, offset);
    };
    if (given.outputs <= 48) with(std::integral_constant<int, 48>{});
    else with(std::integral_constant<int, 64>{});
  };
  switch (x.scalar_type()) {
    case ScalarType::Half: run(__half{}); break;
    case ScalarType::BFloat16: run(__nv_bfloat16{}); break;
    default: STD_TORCH_CHECK(false, "dense_product_backward: dtype must be float16 or bfloat16");
  }
  return {dw, to_weight, to_bias, to_beta};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "dense_product_backward(Tensor dy, Tensor? y, Tensor? y_mean, Tensor? y_slope, Tensor? y_offset, Tensor w, "
      "Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, Tensor? beta, int activation, "
      "float epsilon, bool training, Tensor(a!) gradient, Tensor(b!) slope, Tensor(c!) offset) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("dense_product_backward", TORCH_BOX(&dense_product_backward));
}
