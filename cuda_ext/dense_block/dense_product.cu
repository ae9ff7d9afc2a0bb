// A dense block's 1x1 convolution with the norm and activation before it and the statistics of its result: y = a W^T
// with a = f(scale x + shift), made while x is read, by the matrix units. So what the convolution reads is never written.
//
// x comes in tiles that are copied to shared memory ahead of their use. A fragment of x, as the matrix units take it, is
// normalised and activated in registers.

#include "wide_product.cuh"

namespace {

using namespace cuda_ext::channels;
using cuda_ext::await_copies;
using cuda_ext::commit_copies;
using cuda_ext::copy_async;
using cuda_ext::load_matrices;
using cuda_ext::multiply;
using cuda_ext::pack;
using cuda_ext::shared_address;

constexpr int chunk = wide_chunk;
constexpr int warps = threads / 32;
constexpr int chunk_stride = chunk + skew;
// Tiles in shared memory: as many as let two blocks stand on a multiprocessor.
constexpr int stages = 3;

// Of a block's 8 warps KS share the channels of 16 rows.
__host__ __device__ constexpr int tile_rows_of(int KS) { return warps / KS * 16; }

// The weights of a chunk of channels from `channel` on, of 8 NT outputs from the first on. They are so ordered that each
// thread gets neighbouring outputs (output_of).
template <typename T, int NT>
__device__ __forceinline__ void copy_weights(T* to, const T* __restrict__ w, int64_t w_stride, int outputs,
                                             int first_output, int channel) {
  constexpr int group = NT % 4 ? 2 : 4;
  channel += threadIdx.x % 8 * 8;
#pragma unroll
  for (int r = threadIdx.x / 8; r < NT * 8; r += threads / 8) {
    const int n = r % (NT * 8), output = first_output + r - n + output_of<group>(n / 8, n % 8);
    const bool real = channel < w_stride && output < outputs;
    copy_async<16>(to + r * chunk_stride + threadIdx.x % 8 * 8, real ? w + output * w_stride + channel : w, real);
  }
}

// The products of the KS warps that share the channels of 16 rows, added up: to the first of them.
template <int NT, int KS>
__device__ __forceinline__ void add_shares(float (&product)[NT][4], float* shares) {
  constexpr int numbers = NT * 4;
  const int warp = threadIdx.x / 32, share = warp % KS;
  float* const own = shares + warp / KS * (KS - 1) * numbers * 32 + threadIdx.x % 32;
#pragma unroll
  for (int i = 0; share > 0 && i < numbers; ++i) own[((share - 1) * numbers + i) * 32] = product[i / 4][i % 4];
  __syncthreads();
#pragma unroll
  for (int s = 0; share == 0 && s < KS - 1; ++s) {
#pragma unroll
    for (int i = 0; i < numbers; ++i) product[i / 4][i % 4] += own[(s * numbers + i) * 32];
  }
}

// Shared memory of a block that multiplies `chunks` of channels: all of the weights where they `stay`, else a chunk of them
// with each of a tile.
template <typename T, int NT, int KS, bool stays>
struct Shared {
  static constexpr int outputs = NT * 8, stage_size = (tile_rows_of(KS) + (stays ? 0 : outputs)) * chunk_stride;
  T *staged, *weights;
  float *sums, *center, *shares;
  float2* table;
  int bytes;

  __host__ __device__ Shared(unsigned char* memory, int chunks) {
    Pieces pieces{memory};
    staged = pieces.take<T>(stages * stage_size);
    weights = pieces.take<T>(stays ? chunks * outputs * chunk_stride : 0);
    sums = pieces.take<float>(warps * 2 * outputs);
    center = pieces.take<float>(outputs);
    table = pieces.take<float2>(chunks * chunk);
    shares = pieces.take<float>((KS - 1) * tile_rows_of(KS) * outputs);
    bytes = pieces.bytes;
  }
};

// A block multiplies 128 / KS rows by 8 NT outputs; a warp 16 rows and every KS-th 16 channels. stays: whether the weights do.
template <typename T, int NT, int KS, bool stays>
__global__ void __launch_bounds__(threads, 2)
    products(const T* __restrict__ x, int64_t x_stride, const T* __restrict__ w, int64_t w_stride, int outputs,
             T* __restrict__ y, int64_t rows, int channels, Norm norm, double* partial) {
  constexpr int block_outputs = NT * 8, tile_rows = tile_rows_of(KS);
  constexpr int group = NT % 4 ? 2 : 4;
  extern __shared__ __align__(128) unsigned char memory[];
  const int chunks = (channels + chunk - 1) / chunk;
  const Shared<T, NT, KS, stays> shared(memory, chunks);
  constexpr int stage_size = shared.stage_size;
  T* const staged = shared.staged;
  float2* const table = shared.table;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int first_output = blockIdx.y * block_outputs;
  const int own_share = warp % KS, own_rows = warp / KS * 16;

  for (int part = 0; stays && part < chunks; ++part) {
    copy_weights<T, NT>(shared.weights + part * block_outputs * chunk_stride, w, w_stride, outputs, first_output, part * chunk);
  }
  cuda_ext::wait_for_the_one_before();
  for (int c = thread; c < chunks * chunk; c += threads) table[c] = scale_and_shift(norm, c, channels);

  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  int64_t ahead_tile = blockIdx.x;
  int ahead_chunk = 0, ahead_stage = 0;
  const auto copy_ahead = [&] {
    if (ahead_tile < tiles) {
      T* const to = staged + ahead_stage * stage_size;
      const int64_t first_row = ahead_tile * tile_rows;
      const int channel = ahead_chunk * chunk + thread % 8 * 8;
#pragma unroll
      for (int i = 0; i < tile_rows * 8 / threads; ++i) {
        const int r = thread / 8 + i * (threads / 8);
        const bool real = channel < channels && first_row + r < rows;
        copy_async<16>(to + r * chunk_stride + thread % 8 * 8, real ? x + (first_row + r) * x_stride + channel : x, real);
      }
      if constexpr (!stays) {
        copy_weights<T, NT>(to + tile_rows * chunk_stride, w, w_stride, outputs, first_output, ahead_chunk * chunk);
      }
      if (++ahead_chunk == chunks) {
        ahead_chunk = 0;
        ahead_tile += gridDim.x;
      }
    }
    ahead_stage = (ahead_stage + 1) % stages;
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < stages - 1; ++i) copy_ahead();

  float sums[2][NT][2] = {};
  with_activation(norm, [&](const auto activation) {
    int stage = 0;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      float product[NT][4] = {};
      for (int part = 0; part < chunks; ++part) {
        await_copies<stages - 2>();
        __syncthreads();
        copy_ahead();
        const T* const xs = staged + stage * stage_size + (own_rows + lane % 16) * chunk_stride + lane / 16 * 8;
        const T* const ws = (stays ? shared.weights + part * block_outputs * chunk_stride
                                   : staged + stage * stage_size + tile_rows * chunk_stride);
        stage = (stage + 1) % stages;
#pragma unroll
        for (int step = 0; step < chunk; step += 16 * KS) {
          const int k = step + own_share * 16, channel = part * chunk + k;
          if (channel >= channels) break;
          unsigned a[4];
          load_activated<T>(a, shared_address(xs + k), table + channel, channels - channel, lane, activation);
#pragma unroll
          for (int j = 0; j < NT; j += 2) {
            unsigned b[4];
            load_matrices(b, ws + (j * 8 + lane / 16 * 8 + lane % 8) * chunk_stride + k + lane / 8 % 2 * 8);
            multiply<T>(product[j], a, b[0], b[1]);
            multiply<T>(product[j + 1], a, b[2], b[3]);
          }
        }
      }
      if constexpr (KS > 1) add_shares<NT, KS>(product, shared.shares);
      unsigned result[NT][2];
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        result[j][0] = pack<T>(product[j][0], product[j][1]);
        result[j][1] = pack<T>(product[j][2], product[j][3]);
      }
      if (tile == blockIdx.x) {
        const int64_t left = rows - tile * tile_rows;
        if (warp == 0) find_center<T, NT, group>(shared.center, result, left < 16 ? static_cast<int>(left) : 16, lane);
        __syncthreads();
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = tile * tile_rows + own_rows + half * 8 + lane / 4;
        if (row >= rows || own_share > 0) continue;
        store_row<T, NT, group>(y + row * outputs, result, half, first_output, outputs, lane);
        add_row<T, NT, group>(result, half, sums, shared.center, lane);
      }
    }
  });
  await_copies<0>();
  cuda_ext::let_the_next_start();
  if (partial == nullptr) return;
  store_sums<NT, warps, group>(partial, sums, shared.sums, shared.center, rows_of_block(rows, tiles, tile_rows), outputs,
                               first_output, [] { __syncthreads(); });
}

// A kernel, how many threads, bytes of shared memory, rows and outputs a block of it has, and blocks a multiprocessor.
template <typename T>
struct Chosen {
  void (*kernel)(const T*, int64_t, const T*, int64_t, int, T*, int64_t, int, Norm, double*);
  int block_threads, bytes, tile_rows, outputs, resident;
};

// So much that `resident` blocks stand on a multiprocessor, with the KiB of each that is the system's.
int shared_memory_of_each(int resident) {
  return std::min(cuda_ext::shared_memory_of_a_block(),
                  cuda_ext::attribute_of_device(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / resident - 1024);
}

// Of 128 outputs or fewer, on Hopper. Large tiles read the weights less often, and small ones reach all multiprocessors.
template <typename T>
Chosen<T> choose_wide(int64_t rows, int chunks) {
  const auto chosen = [&](auto groups) {
    constexpr int G = decltype(groups)::value;
    constexpr int resident = wide_resident(G);
    const bool stays = wide_bytes<T, G, true>(chunks) <= shared_memory_of_each(resident);
    constexpr int block_threads = (G + 1) * group_threads, tile_rows = G * group_rows;
    if (stays) {
      return Chosen<T>{wide_products<T, G, true>, block_threads, wide_bytes<T, G, true>(chunks), tile_rows, wide_outputs,
                       resident};
    }
    return Chosen<T>{wide_products<T, G, false>, block_threads, wide_bytes<T, G, false>(chunks), tile_rows, wide_outputs,
                     resident};
  };
  const bool large = rows / (2 * group_rows) >= cuda_ext::multiprocessors();
  return large ? chosen(std::integral_constant<int, 2>{}) : chosen(std::integral_constant<int, 1>{});
}

// Blocks of 48 or 64 outputs. Few rows are divided among more blocks, in which a warp has a quarter of the channels: 4,096
// rows of 150 to 330 channels took 6.6 us on an H200, and 8.1 us in blocks of 128 rows.
template <typename T>
Chosen<T> choose(int64_t outputs, int64_t rows, int chunks) {
  const int most = shared_memory_of_each(2);
  const auto chosen = [&](auto nt) {
    constexpr int NT = decltype(nt)::value;
    const auto with = [&](auto ks, auto stays) {
      constexpr int KS = decltype(ks)::value;
      constexpr bool kept = decltype(stays)::value;
      const int bytes = Shared<T, NT, KS, kept>(nullptr, chunks).bytes;
      return Chosen<T>{products<T, NT, KS, kept>, threads, bytes, tile_rows_of(KS), NT * 8, 2};
    };
    constexpr std::integral_constant<int, 1> alone;
    const Chosen<T> keeps = with(alone, std::true_type{});
    if (keeps.bytes > most) return with(alone, std::false_type{});
    return are_few(rows) ? with(std::integral_constant<int, 4>{}, std::true_type{}) : keeps;
  };
  return outputs <= 48 ? chosen(std::integral_constant<int, 6>{}) : chosen(std::integral_constant<int, 8>{});
}

template <typename T>
void product_of(const Tensor& x, const Tensor& w, const Norm& norm, const Tensor& y, const Tensor& mean,
                const Tensor& variance) {
  const Matrix m = matrix(x, "x"), wm = matrix(w, "w");
  if (m.rows == 0) return;
  const int64_t outputs = wm.rows;
  STD_TORCH_CHECK(in_lanes<T>(x, m, 8) && in_lanes<T>(w, wm, 8) && outputs % 8 == 0 && wm.stride == wm.channels,
                  "dense_product: rows must begin on 16 bytes");
  const bool sums = mean.numel() != 0;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int chunks = static_cast<int>((m.channels + chunk - 1) / chunk);
  const bool wide = outputs > 64 && outputs <= wide_outputs && cuda_ext::has_warpgroup_code();
  const Chosen<T> of = wide ? choose_wide<T>(m.rows, chunks) : choose<T>(outputs, m.rows, chunks);
  const int64_t tiles = (m.rows + of.tile_rows - 1) / of.tile_rows, groups = (outputs + of.outputs - 1) / of.outputs;
  const auto blocks =
      static_cast<int>(std::min(tiles, std::max<int64_t>(1, cuda_ext::multiprocessors() * of.resident / groups)));
  Tensor partial;
  if (sums) partial = torch::stable::new_empty(x, {int64_t{blocks} * 2 * outputs}, ScalarType::Double);
  auto* partials = sums ? static_cast<double*>(partial.data_ptr()) : nullptr;
  cuda_ext::launch(of.kernel,
                   {dim3(blocks, static_cast<unsigned>(groups)), dim3(of.block_threads),
                    static_cast<std::size_t>(of.bytes), stream, true},
                   static_cast<const T*>(m.data), m.stride, static_cast<const T*>(wm.data), wm.stride,
                   static_cast<int>(outputs), static_cast<T*>(y.data_ptr()), m.rows, static_cast<int>(m.channels), norm,
                   partials);
  if (!sums) return;
  cuda_ext::launch_early(&finish_product, finish_grid(outputs), sum_block, 0, stream, partials, blocks, m.rows,
                         static_cast<int>(outputs), vector(x, mean, outputs, "mean"),
                         vector(x, variance, outputs, "variance"));
}

void check(const Tensor& x, const Tensor& other, const char* name) {
  matrix(x, "x");
  matrix(other, name);
  same(x, other, name, false);
}

// x: rows of channels; w: outputs x channels, padded to a multiple of 8. y, and with `statistics` its mean and biased
// variance, else two empty vectors.
std::tuple<Tensor, Tensor, Tensor> dense_product(Tensor x, Tensor w, Tensor weight, Tensor bias, Tensor mean,
                                                 Tensor variance, std::optional<Tensor> beta, int64_t activation,
                                                 double epsilon, bool statistics) {
  check(x, w, "w");
  STD_TORCH_CHECK(w.size(1) >= x.size(1), "dense_product: w has ", w.size(1), " columns for ", x.size(1), " channels");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t outputs = w.size(0);
  Tensor y = torch::stable::new_empty(x, {x.size(0), outputs});
  const auto vector_like = [&] {
    const int64_t size = statistics ? outputs : 0;
    return x.size(0) ? torch::stable::new_empty(x, {size}, ScalarType::Float)
                     : torch::stable::new_zeros(x, {size}, ScalarType::Float);
  };
  Tensor y_mean = vector_like(), y_variance = vector_like();
  const Norm norm = norm_of(x, weight, bias, mean, variance, beta, activation, epsilon);
  switch (x.scalar_type()) {
    case ScalarType::Half: product_of<__half>(x, w, norm, y, y_mean, y_variance); break;
    case ScalarType::BFloat16: product_of<__nv_bfloat16>(x, w, norm, y, y_mean, y_variance); break;
    default: STD_TORCH_CHECK(false, "dense_product: dtype must be float16 or bfloat16");
  }
  return {y, y_mean, y_variance};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "dense_product(Tensor x, Tensor w, Tensor weight, Tensor bias, Tensor mean, Tensor variance, "
      "Tensor? beta, int activation, float epsilon, bool statistics) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("dense_product", TORCH_BOX(&dense_product));
}
