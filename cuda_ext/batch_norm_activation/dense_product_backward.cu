// The backward pass of a dense block's 1x1 convolution and of the norm and activation before it, in one walk over the
// block's buffer: da = dy W by the matrix units, dz = da f'(z), gradient += s dz, and the sums that the norm needs. As a
// product and a pass over its result it would write and read da, which is as large as what the layer reads.
//
// A block takes 128 rows at a time: it keeps their dy in shared memory and goes through the channels in chunks of 64, for
// each of which a warp multiplies 16 rows, turns its result in shared memory so that a thread has 8 neighbouring channels,
// and adds to x's rows as batch_norm_activation.cu does.

#include "matrix_units.cuh"
#include "norm.cuh"

namespace {

using namespace cuda_ext::channels;
using namespace cuda_ext::units;
namespace units = cuda_ext::units;

constexpr int tile_rows = 128;
constexpr int chunk = 64;
constexpr int warps = threads / 32;
// Rows in shared memory are 16 bytes longer than what they hold, so that eight of them lie in different banks.
constexpr int skew = 8;
constexpr int chunk_stride = chunk + skew;

// What a block has in shared memory, in bytes from its beginning.
struct Layout {
  int inner;         // columns of dy, up to a multiple of 16
  int dy, w, turned, partial, table, sums, bytes;

  __host__ __device__ Layout(int columns, int channels) {
    inner = (columns + 15) / 16 * 16;
    const int all = (channels + chunk - 1) / chunk * chunk;
    dy = 0;
    w = dy + tile_rows * (inner + skew) * 2;
    turned = w + 2 * inner * chunk_stride * 2;
    partial = turned + tile_rows * chunk_stride * 2;
    table = partial + 2 * warps * 2 * chunk * 4;
    sums = table + 3 * all * 4;
    bytes = sums + 2 * all * 4;
  }
};

template <typename T>
__global__ void __launch_bounds__(threads, 2)
    dense_product_gradients(const T* __restrict__ dy, int64_t dy_stride, const T* __restrict__ w, int64_t w_stride,
                            int columns, const T* __restrict__ x, int64_t x_stride, T* __restrict__ gradient,
                            int64_t gradient_stride, int64_t rows, int channels, Norm<float> norm, float* partial,
                            float* partial_beta) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Layout layout(columns, channels);
  const int inner = layout.inner, dy_row = inner + skew;
  const int all = (channels + chunk - 1) / chunk * chunk;
  T* const dys = reinterpret_cast<T*>(memory + layout.dy);
  T* const ws = reinterpret_cast<T*>(memory + layout.w);
  float* const shared_partial = reinterpret_cast<float*>(memory + layout.partial);
  float* const table = reinterpret_cast<float*>(memory + layout.table);
  float* const sums = reinterpret_cast<float*>(memory + layout.sums);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  T* const turned = reinterpret_cast<T*>(memory + layout.turned) + warp * 16 * chunk_stride;

  for (int c = thread; c < all; c += threads) {
    const bool real = c < channels;
    table[c] = real ? norm.mean[c] : 0;
    table[all + c] = real ? norm.weight[c] * inverse_root(norm.variance[c] + norm.epsilon) : 0;
    table[2 * all + c] = real ? norm.bias[c] : 0;
    sums[c] = sums[all + c] = 0;
  }
  float to_beta = 0;

  const auto copy_w = [&](int first, int half) {
    for (int i = thread; i < inner * (chunk / 8); i += threads) {
      const int k = i / (chunk / 8), c = i % (chunk / 8) * 8;
      const bool real = k < columns && first + c < w_stride;
      copy_async(ws + (half * inner + k) * chunk_stride + c, real ? w + k * w_stride + first + c : w, real);
    }
  };
  // Adds what the warps have left of one chunk's sums.
  const auto add_sums = [&](int first, int half) {
    if (thread >= 2 * chunk) return;
    const float* from = shared_partial + half * warps * 2 * chunk + thread;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < warps; ++i) sum += from[i * 2 * chunk];
    sums[thread / chunk * all + first + thread % chunk] += sum;
  };

  int turn = 0, before = -1;
  with_activation(norm, [&](const auto activation) {
    for (int64_t tile = blockIdx.x; tile * tile_rows < rows; tile += gridDim.x) {
      const int64_t first_row = tile * tile_rows;
      __syncthreads();
      for (int i = thread; i < tile_rows * (inner / 8); i += threads) {
        const int r = i / (inner / 8), k = i % (inner / 8) * 8;
        const bool real = first_row + r < rows && k < columns;
        copy_async(dys + r * dy_row + k, real ? dy + (first_row + r) * dy_stride + k : dy, real);
      }
      copy_w(0, turn % 2);
      commit();
      for (int first = 0; first < channels; first += chunk, ++turn) {
        // This thread's 8 channels, of 4 of its warp's rows; asked for before the product, which hides the wait.
        const int channel = first + lane % 8 * 8;
        const int64_t own_row = first_row + warp * 16 + lane / 8;
        Lane<T, 8> xs[4]{}, gradients[4]{};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (channel < channels && own_row + i * 4 < rows) {
            xs[i] = load<T, 8>(x + (own_row + i * 4) * x_stride + channel);
            gradients[i] = load<T, 8>(gradient + (own_row + i * 4) * gradient_stride + channel);
          }
        }
        await_copies<0>();
        __syncthreads();
        if (first + chunk < channels) {
          copy_w(first + chunk, (turn + 1) % 2);
          commit();
        }
        if (before >= 0) add_sums(before, (turn + 1) % 2);
        before = first;

        float product[chunk / 8][4] = {};
        const T* const a_row = dys + (warp * 16 + lane % 16) * dy_row + lane / 16 * 8;
        const T* const b_row = ws + (turn % 2 * inner + lane % 16) * chunk_stride + lane / 16 * 8;
        for (int k = 0; k < inner; k += 16) {
          unsigned a[4];
          load_fragments(a, a_row + k);
#pragma unroll
          for (int n = 0; n < chunk; n += 16) {
            unsigned b[4];
            load_transposed(b, b_row + k * chunk_stride + n);
            multiply<T>(product[n / 8], a, b[0], b[1]);
            multiply<T>(product[n / 8 + 1], a, b[2], b[3]);
          }
        }
#pragma unroll
        for (int n = 0; n < chunk / 8; ++n) {
          T* const to = turned + lane / 4 * chunk_stride + n * 8 + lane % 4 * 2;
          *reinterpret_cast<unsigned*>(to) = units::packed<T>(product[n][0], product[n][1]);
          *reinterpret_cast<unsigned*>(to + 8 * chunk_stride) = units::packed<T>(product[n][2], product[n][3]);
        }
        __syncwarp();

        float own[2][8] = {};
        if (channel < channels) {
          float means[8], scales[8], biases[8];
#pragma unroll
          for (int v = 0; v < 8; ++v) {
            means[v] = table[channel + v];
            scales[v] = table[all + channel + v];
            biases[v] = table[2 * all + channel + v];
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int64_t row = own_row + i * 4;
            if (row >= rows) break;
            auto da_lane = load<T, 8>(turned + (lane / 8 + i * 4) * chunk_stride + lane % 8 * 8);
            cut(da_lane, channel, channels);
            cut(xs[i], channel, channels);
            float das[8], values[8], into[8];
            unpack(da_lane, das);
            unpack(xs[i], values);
            unpack(gradients[i], into);
#pragma unroll
            for (int v = 0; v < 8; ++v) {
              const float centred = values[v] - means[v];
              const float dz = activation.through(das[v], centred * scales[v] + biases[v], to_beta);
              own[0][v] += dz;
              own[1][v] += dz * centred;
              into[v] += scales[v] * dz;
            }
            store(gradient + row * gradient_stride + channel, cuda_ext::channels::packed<T, 8>(into));
          }
        }
#pragma unroll
        for (int q = 0; q < 2; ++q) {
#pragma unroll
          for (int v = 0; v < 8; ++v) {
            own[q][v] += __shfl_xor_sync(0xffffffffu, own[q][v], 8);
            own[q][v] += __shfl_xor_sync(0xffffffffu, own[q][v], 16);
            if (lane < 8) shared_partial[((turn % 2 * warps + warp) * 2 + q) * chunk + lane * 8 + v] = own[q][v];
          }
        }
      }
    }
  });
  __syncthreads();
  if (before >= 0) add_sums(before, (turn + 1) % 2);
  __syncthreads();
  for (int c = thread; c < channels; c += threads) {
    partial[(int64_t{blockIdx.x} * 2) * channels + c] = sums[c];
    partial[(int64_t{blockIdx.x} * 2 + 1) * channels + c] = sums[all + c];
  }
  if (partial_beta != nullptr) {
    float* const shared = reinterpret_cast<float*>(memory);
    __syncthreads();
    shared[thread] = to_beta;
    __syncthreads();
    if (thread == 0) {
      float sum = 0;
      for (int i = 0; i < threads; ++i) sum += shared[i];
      partial_beta[blockIdx.x] = sum;
    }
  }
}

template <typename T>
void gradients_of(const Tensor& dy, const Tensor& w, const Tensor& x, const Norm<float>& norm, bool training,
                  const Tensor& gradient, const Tensor& weight, const Tensor& bias, const Tensor& beta,
                  const Tensor& slope, const Tensor& offset) {
  const Matrix m = matrix(x, "x"), dm = matrix(dy, "dy"), wm = matrix(w, "w"), gm = matrix(gradient, "gradient");
  const Layout layout(static_cast<int>(dm.channels), static_cast<int>(m.channels));
  int device = 0, multiprocessors = 0, most = 0;
  STD_CUDA_CHECK(cudaGetDevice(&device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  STD_TORCH_CHECK(layout.bytes <= most, "dense_product_backward: ", m.channels, " channels from ", dm.channels,
                  " take more shared memory than the GPU has");
  if (m.rows == 0) return;
  STD_TORCH_CHECK(in_lanes<T>(x, m, 8) && in_lanes<T>(gradient, gm, 8) && in_lanes<T>(dy, dm, 8) &&
                      in_lanes<T>(w, wm, 8) && dm.channels % 8 == 0,
                  "dense_product_backward: rows must begin on 16 bytes");
  STD_CUDA_CHECK(cudaFuncSetAttribute(dense_product_gradients<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      layout.bytes));
  const int64_t tiles = (m.rows + tile_rows - 1) / tile_rows;
  const int blocks = static_cast<int>(std::min<int64_t>(tiles, multiprocessors * int64_t{2}));
  const bool with_beta = norm.beta != nullptr;
  const Tensor partial = floats<float>(x, {int64_t{blocks} * 2 * m.channels + blocks});
  float* sums = static_cast<float*>(partial.data_ptr());
  float* beta_sums = with_beta ? sums + int64_t{blocks} * 2 * m.channels : nullptr;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  dense_product_gradients<T><<<blocks, threads, layout.bytes, stream>>>(
      static_cast<const T*>(dm.data), dm.stride, static_cast<const T*>(wm.data), wm.stride,
      static_cast<int>(dm.channels), static_cast<const T*>(m.data), m.stride, static_cast<T*>(gm.data), gm.stride,
      m.rows, static_cast<int>(m.channels), norm, sums, beta_sums);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  finish_gradients<T><<<finish_grid(m.channels, with_beta), finish_block, 0, stream>>>(
      sums, blocks, beta_sums, blocks, m.rows, static_cast<int>(m.channels), norm, training, true,
      vector<float>(x, weight, m.channels, "weight's gradient"), vector<float>(x, bias, m.channels, "bias's gradient"),
      vector<float>(x, beta, with_beta, "beta's gradient"), vector<float>(x, slope, m.channels, "slope"),
      vector<float>(x, offset, m.channels, "offset"));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// dy: rows of the convolution's outputs; w: outputs x inputs, the inputs padded to a multiple of 8.
std::tuple<Tensor, Tensor, Tensor> dense_product_backward(Tensor dy, Tensor w, Tensor x, Tensor weight, Tensor bias,
                                                          Tensor mean, Tensor variance, std::optional<Tensor> beta,
                                                          int64_t activation, double epsilon, bool training,
                                                          Tensor gradient, Tensor slope, Tensor offset) {
  matrix(x, "x");
  same(x, dy, "dy", false);
  same(x, w, "w", false);
  same(x, gradient, "gradient");
  STD_TORCH_CHECK(dy.size(0) == x.size(0) && dy.size(1) == w.size(0) && w.size(1) >= x.size(1) &&
                      gradient.size(1) == x.size(1),
                  "dense_product_backward: dy, w and gradient do not fit x, ", x.size(0), " x ", x.size(1));
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const auto vector_like = [&](int64_t size) { return torch::stable::new_zeros(x, {size}, ScalarType::Float); };
  Tensor to_weight = vector_like(x.size(1)), to_bias = vector_like(x.size(1)), to_beta = vector_like(beta.has_value());
  const Norm<float> norm = norm_of<float>(x, weight, bias, mean, variance, beta, activation, epsilon);
  switch (x.scalar_type()) {
    case ScalarType::Half:
      gradients_of<__half>(dy, w, x, norm, training, gradient, to_weight, to_bias, to_beta, slope, offset);
      break;
    case ScalarType::BFloat16:
      gradients_of<__nv_bfloat16>(dy, w, x, norm, training, gradient, to_weight, to_bias, to_beta, slope, offset);
      break;
    default: STD_TORCH_CHECK(false, "dense_product_backward: dtype must be float16 or bfloat16");
  }
  return {to_weight, to_bias, to_beta};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def(
      "dense_product_backward(Tensor dy, Tensor w, Tensor x, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor variance, Tensor? beta, int activation, float epsilon, bool training, Tensor(a!) gradient, "
      "Tensor(b!) slope, Tensor(c!) offset) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("dense_product_backward", TORCH_BOX(&dense_product_backward));
}
