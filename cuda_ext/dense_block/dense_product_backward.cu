// The backward pass of a dense block's 1x1 convolution and of the norm and activation in front of it, a = f(z): from dy,
// da = dy W and dW = dy^T a, both by the matrix units. Neither da nor a is written: dz comes of da while that is in
// registers, and a is made of x again beside it.
//
// Where dy is what a norm behind the convolution passes on, dy = g + slope (y - mean) + offset, it is made here of g and y.

#include "wide_product_backward.cuh"

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

constexpr int warps = 4;
constexpr int block_threads = warps * 32;
constexpr int tile_rows = warps * 16;
// Channels of a block, 8 NT of them, lie in rows of 64.
constexpr int row_size = 64;

__host__ __device__ constexpr int group_of(int NT) { return NT % 4 ? 2 : 4; }

// Where channel c of row r lies in a staged tile of x or the gradient, c a multiple of 8. The eights of a row change places
// so that neither eight rows of one of them nor two rows of four meet in a bank.
__device__ inline int in_tile(int r, int c) {
  return r * row_size + (c ^ ((r & 1) << 5 | (r & 2) << 3 | (r & 4) << 1));
}

// A tile in shared memory: dy and y, x and the gradient.
template <typename T, int K>
struct Stage {
  static constexpr int stride = K + skew;
  T dy[tile_rows * stride], y[tile_rows * stride], x[tile_rows * row_size], gradient[tile_rows * row_size];
};

// Rows [tile_rows] of the block's channels from the first on, and of dy and y. x, gradient: of the first row.
template <typename T, int K, int NT>
__device__ __forceinline__ void copy_tile(Stage<T, K>& to, const Given<T>& given, const T* __restrict__ x,
                                          int64_t x_stride, const T* gradient, int64_t gradient_stride,
                                          int64_t first_row, int64_t rows, int channels) {
  constexpr int lanes = row_size / 8, at_once = block_threads / lanes;
  const int count = rows - first_row < tile_rows ? static_cast<int>(rows - first_row) : tile_rows;
  const int c = threadIdx.x % lanes * 8, row = threadIdx.x / lanes, at = in_tile(row, c);
  if (c < K) {
    const int64_t begin = (first_row + row) * given.outputs + c;
#pragma unroll
    for (int i = 0; i < tile_rows / at_once; ++i) {
      const bool real = c < given.outputs && row + i * at_once < count;
      const int64_t from = real ? begin + i * at_once * given.outputs : 0;
      const int to_place = (row + i * at_once) * Stage<T, K>::stride + c;
      copy_async<16>(to.dy + to_place, given.dy + from, real);
      if (given.y != nullptr) copy_async<16>(to.y + to_place, given.y + from, real);
    }
  }
  if (c >= NT * 8) return;
  const bool within = c < channels;
  x += within ? row * x_stride + c : 0;
  gradient += within ? row * gradient_stride + c : 0;
#pragma unroll
  for (int i = 0; i < tile_rows / at_once; ++i) {
    const bool real = within && row + i * at_once < count;
    copy_async<16>(to.x + at + i * at_once * row_size, x, real);
    copy_async<16>(to.gradient + at + i * at_once * row_size, gradient, real);
    if (real && i + 1 < tile_rows / at_once) {
      x += at_once * x_stride;
      gradient += at_once * gradient_stride;
    }
  }
}

// A fragment of a warp's 16 rows of dy, of 16 outputs from k on, and, of a norm behind them, with its part of the gradient:
// dy = g + slope (y - mean) + offset, which takes its place where it is staged. table: as fill_finish has it.
template <typename T, int K>
__device__ __forceinline__ void load_finished(unsigned (&a)[4], T* dy, const T* y, bool finishes, const float* table, int k,
                                              int rows, int lane) {
  constexpr int stride = Stage<T, K>::stride;
  const int of_lane = lane % 16 * stride + lane / 16 * 8 + k;
  load_matrices(a, dy + of_lane);
  if (!finishes) return;
  unsigned ys[4];
  load_matrices(ys, y + of_lane);
  // Before one lane writes what another has read.
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i % 2 * 8 + lane / 4, output = k + i / 2 * 8 + lane % 4 * 2;
    const auto pair = [&](int which) { return *reinterpret_cast<const float2*>(table + which * K + output); };
    const unsigned whole = finished_pair<T>(a[i], ys[i], pair(0), pair(1));
    // Past the rows lie zeros.
    if (row < rows) a[i] = whole;
    *reinterpret_cast<unsigned*>(dy + row * stride + output) = a[i];
  }
}

// What da of 16 rows and 8 NT channels, a warp's products, gives to the norm: s dz is added to the gradient, and sums of dz
// and of dz (x - mean). In the staged x takes its place what the convolution read.
template <typename T, int NT, typename Activation>
__device__ __forceinline__ void through_norm(const float (&da)[NT][4], T* xs, const T* gradients, T* gradient,
                                             int64_t gradient_stride, int rows, int channels, const float4* by,
                                             float (&sums)[2][NT][2], float& to_beta, int lane,
                                             const Activation& activation) {
  constexpr int group = group_of(NT);
#pragma unroll
  for (int j = 0; j < NT; j += group) {
    const int channel = output_of<group>(j, lane % 4 * 2);
    float values[2][2 * group], found[2][2 * group];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4, at = in_tile(row, channel / 8 * 8) + channel % 8;
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
        // Of padding z may be infinite in half precision, and infinity times a dy of zero is no number.
        values[half][v] = half * 8 + lane / 4 < rows ? activation.value(z) : 0.0f;
        sums[0][j + v / 2][v % 2] += dz;
        sums[1][j + v / 2][v % 2] += dz * centred;
        found[half][v] += own.y * dz;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4;
      store(xs + in_tile(row, channel / 8 * 8) + channel % 8, packed<T, 2 * group>(values[half]));
      if (row < rows && channel < channels) {
        store(gradient + row * gradient_stride + channel, packed<T, 2 * group>(found[half]));
      }
    }
  }
}

// Shared memory of a block.
template <typename T, int K, int NT>
struct Shared {
  static constexpr int channels = NT * 8, row = channels + skew;
  Stage<T, K> stages[2];
  T weights[K * row];
  float4 by[in_table<group_of(NT)>(channels)];
  float finish[2 * K];
  float sums[warps * (2 * channels + 1)];
};

// K outputs, and 8 NT channels, those from blockIdx.y on. The gradient becomes what it is added to, which may be itself, and
// s dz. A tile is copied while the one before is multiplied. A warp takes 16 of the tile's rows for da, and 16 of the
// channels for dW.
template <typename T, int K, int NT>
__global__ void __launch_bounds__(block_threads, 3)
    products_back(Given<T> given, const T* __restrict__ w, int64_t w_stride, const T* __restrict__ x, int64_t x_stride,
                  int64_t rows, int channels, Norm norm, const T* added, int64_t added_stride, T* gradient,
                  int64_t gradient_stride, float* partial, float* partial_beta, float* partial_weights) {
  constexpr int stride = K + skew, MO = K / 16, N = NT * 8, group = group_of(NT), w_row = Shared<T, K, NT>::row;
  constexpr unsigned size = sizeof(T);
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T, K, NT>*>(memory);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, own = warp * 16, first = blockIdx.y * N;

  // Rows of w are padded with zeros.
  for (int i = thread; i < K * N / 2; i += block_threads) {
    const int c = i % (N / 2) * 2, k = i / (N / 2);
    const bool real = k < given.outputs && first + c < channels;
    copy_async<4>(shared.weights + k * w_row + place_of<group>(c), real ? w + k * w_stride + first + c : w, real);
  }
  fill_table<group>(shared.by, norm, first, N, channels);
  cuda_ext::wait_for_the_one_before();
  if (given.y != nullptr) fill_finish<K>(shared.finish, given, thread, block_threads);

  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  const auto copy = [&](int64_t tile, int stage) {
    if (tile < tiles) {
      const int64_t row = tile * tile_rows;
      copy_tile<T, K, NT>(shared.stages[stage], given, x + row * x_stride + first, x_stride,
                          added + row * added_stride + first, added_stride, row, rows, channels - first);
    }
    commit_copies();
  };
  int stage = 0;
  copy(blockIdx.x, stage);
  float sums[2][NT][2] = {}, to_beta = 0, weights[MO][2][4] = {};
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, stage ^= 1) {
    const int64_t left = rows - tile * tile_rows;
    const int count = left < tile_rows ? static_cast<int>(left) : tile_rows;
    Stage<T, K>& here = shared.stages[stage];
    await_copies<0>();
    __syncthreads();
    copy(tile + gridDim.x, stage ^ 1);
    float da[NT][4] = {};
    const unsigned filter = shared_address(shared.weights + lane % 16 * w_row + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      unsigned a[4];
      load_finished<T, K>(a, here.dy + own * stride, here.y + own * stride, given.y != nullptr, shared.finish, k, count - own,
                          lane);
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        unsigned b[4];
        load_matrices_transposed(b, filter + (k * w_row + j * 8) * size);
        multiply<T>(da[j], a, b[0], b[1]);
        multiply<T>(da[j + 1], a, b[2], b[3]);
      }
    }
    with_activation(norm, [&](const auto activation) {
      through_norm<T, NT>(da, here.x + own * row_size, here.gradient + own * row_size,
                          gradient + (tile * tile_rows + own) * gradient_stride + first, gradient_stride, count - own,
                          channels - first, shared.by, sums, to_beta, lane, activation);
    });
    __syncthreads();
    if (own < N) {
      const T* const dys = here.dy + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
      const T* const xs = here.x + in_tile(lane % 16, own + lane / 16 * 8);
#pragma unroll
      for (int k = 0; k < tile_rows; k += 16) {
        unsigned b[4];
        load_matrices_transposed(b, xs + k * row_size);
#pragma unroll
        for (int m = 0; m < MO; ++m) {
          unsigned a[4];
          load_matrices_transposed(a, dys + k * stride + m * 16);
          multiply<T>(weights[m][0], a, b[0], b[1]);
          multiply<T>(weights[m][1], a, b[2], b[3]);
        }
      }
    }
  }
  await_copies<0>();
  cuda_ext::let_the_next_start();
#pragma unroll
  for (int i = 0; i < MO * 8; ++i) {
    const int output = i / 8 * 16 + i % 4 / 2 * 8 + lane / 4;
    const int channel = first + own + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
    if (own < N && output < given.outputs && channel < channels) {
      partial_weights[(int64_t{blockIdx.x} * given.outputs + output) * channels + channel] = weights[i / 8][i / 4 % 2][i % 4];
    }
  }
  store_gradients<warps, NT, group>(sums, to_beta, shared.sums, first, channels, channels, partial,
                                    place_of_block(partial_beta), thread, [] { __syncthreads(); });
}

// A kernel, how many threads, bytes of shared memory, rows and channels a block of it has, and sums of beta's gradient.
template <typename T>
struct Chosen {
  void (*kernel)(Given<T>, const T*, int64_t, const T*, int64_t, int64_t, int, Norm, const T*, int64_t, T*, int64_t, float*,
                 float*, float*);
  int block_threads, bytes, tile_rows, channels, betas;
};

template <typename T>
Chosen<T> choose(int outputs, int channels) {
  if (outputs > 64) {
    STD_TORCH_CHECK(cuda_ext::has_warpgroup_code(),
                    "dense_product_backward: more than 64 outputs take a GPU of compute capability 9.0");
    return {wide_products_back<T>, 3 * group_threads, sizeof(WideBackwardShared<T>), group_rows, wide_channels, 2};
  }
  const auto chosen = [&](auto k, auto nt) {
    constexpr int K = decltype(k)::value, NT = decltype(nt)::value;
    return Chosen<T>{products_back<T, K, NT>, block_threads, sizeof(Shared<T, K, NT>), tile_rows, NT * 8, 1};
  };
  const auto with_outputs = [&](auto nt) {
    return outputs <= 48 ? chosen(std::integral_constant<int, 48>{}, nt) : chosen(std::integral_constant<int, 64>{}, nt);
  };
  // The fewest groups of channels, and of so many the narrower ones.
  const int groups = (channels + 63) / 64;
  return channels <= groups * 48 ? with_outputs(std::integral_constant<int, 6>{})
                                 : with_outputs(std::integral_constant<int, 8>{});
}

template <typename T>
void products_back_of(Given<T> given, const Tensor& w, const Tensor& x, const Norm& norm, bool training,
                      const Tensor& added, const Tensor& gradient, const Gradients& to) {
  const Matrix m = matrix(x, "x"), wm = matrix(w, "w"), am = matrix(added, "added"), gm = matrix(gradient, "gradient");
  STD_TORCH_CHECK(in_lanes<T>(x, m, 8) && in_lanes<T>(added, am, 8) && in_lanes<T>(gradient, gm, 8),
                  "dense_product_backward: rows must begin on 16 bytes");
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int channels = static_cast<int>(m.channels);
  const Chosen<T> of = choose<T>(given.outputs, channels);
  Tensor whole;
  if (given.y != nullptr && given.outputs > 64) whole = finish(given, x, m.rows, given.outputs);
  const int groups = (channels + of.channels - 1) / of.channels;
  const int64_t tiles = (m.rows + of.tile_rows - 1) / of.tile_rows;
  const auto blocks = static_cast<int>(
      std::min<int64_t>(tiles, std::max(1, blocks_at_once(of.kernel, of.block_threads, of.bytes) / groups)));
  const int64_t size = int64_t{given.outputs} * channels;
  const Tensor partial = floats(x, {blocks * (size + 2 * channels + groups * of.betas)});
  float* const weights = static_cast<float*>(partial.data_ptr());
  float* const sums = weights + blocks * size;
  float* const betas = norm.beta != nullptr ? sums + int64_t{blocks} * 2 * channels : nullptr;
  cuda_ext::launch(of.kernel,
                   {dim3(blocks, groups), dim3(of.block_threads), static_cast<std::size_t>(of.bytes), stream, true}, given,
                   static_cast<const T*>(wm.data), wm.stride, static_cast<const T*>(m.data), m.stride, m.rows, channels,
                   norm, static_cast<const T*>(am.data), am.stride, static_cast<T*>(gm.data), gm.stride, sums, betas,
                   weights);
  launch_finish({weights, size, sums, betas, blocks, blocks * groups * of.betas}, to, m.rows, channels, norm, training, stream);
}

template <typename T>
Given<T> given_of(const Tensor& dy, const std::optional<Tensor>& y, const std::optional<Tensor>& mean,
                  const std::optional<Tensor>& slope, const std::optional<Tensor>& offset) {
  const auto whole = [&](const Tensor& rows, const char* name) {
    const Matrix m = matrix(rows, name);
    STD_TORCH_CHECK(m.rows == dy.size(0) && m.channels == dy.size(1) && m.stride == m.channels && m.channels % 8 == 0 &&
                        m.channels <= wide_outputs && cuda_ext::aligned_for_packs(m.data),
                    "dense_product_backward: ", name, " must be contiguous, of at most 128 outputs, a multiple of 8");
    return static_cast<const T*>(m.data);
  };
  const int outputs = static_cast<int>(dy.size(1));
  const T* const own = whole(dy, "dy");
  if (!y.has_value()) return {own, nullptr, outputs, 0, nullptr, nullptr, nullptr, outputs};
  same(dy, *y, "y");
  STD_TORCH_CHECK(mean.has_value() && slope.has_value() && offset.has_value(),
                  "dense_product_backward: y comes with its mean, slope and offset");
  return {own, whole(*y, "y"), outputs, outputs, vector(dy, *mean, outputs, "y's mean"),
          vector(dy, *slope, outputs, "y's slope"), vector(dy, *offset, outputs, "y's offset"), outputs};
}

// dy, y: rows of outputs; w: outputs x channels, padded; x: rows of channels. dW [outputs, channels], float32, and the
// gradients of weight, bias and beta. gradient += s dz, or = added + s dz, where dz is what dy W gives to the norm of x;
// slope and offset += the coefficients of the rest (batch_norm_activation_add_backward).
std::tuple<Tensor, Tensor, Tensor, Tensor> dense_product_backward(
    Tensor dy, std::optional<Tensor> y, std::optional<Tensor> y_mean, std::optional<Tensor> y_slope,
    std::optional<Tensor> y_offset, Tensor w, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance,
    std::optional<Tensor> beta, int64_t activation, double epsilon, bool training, Tensor gradient, Tensor slope,
    Tensor offset, std::optional<Tensor> added) {
  const Tensor& from = added.has_value() ? *added : gradient;
  matrix(x, "x");
  matrix(w, "w");
  same(x, dy, "dy", false);
  same(x, w, "w", false);
  same(x, gradient, "gradient");
  same(x, from, "added");
  STD_TORCH_CHECK(gradient.size(1) == x.size(1) && from.size(1) == x.size(1) && dy.size(0) == x.size(0) &&
                      dy.size(1) == w.size(0) && w.size(1) >= x.size(1),
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
  const Gradients to{vector(x, dw, dw.numel(), "w's gradient"),
                     vector(x, to_weight, channels, "weight's gradient"),
                     vector(x, to_bias, channels, "bias's gradient"),
                     vector(x, to_beta, beta.has_value(), "beta's gradient"),
                     vector(x, slope, channels, "slope"),
                     vector(x, offset, channels, "offset"),
                     true};
  const auto run = [&](auto t) {
    using T = decltype(t);
    products_back_of<T>(given_of<T>(dy, y, y_mean, y_slope, y_offset), w, x, norm, training, from, gradient, to);
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
      "float epsilon, bool training, Tensor(a!) gradient, Tensor(b!) slope, Tensor(c!) offset, "
      "Tensor? added=None) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("dense_product_backward", TORCH_BOX(&dense_product_backward));
}
