// Swish, y = x s with s = sigmoid(beta x), and its gradients: of x, g (s + beta x s (1 - s)), and of beta, the sum of
// g x^2 s (1 - s). beta is 1, one scalar or one a channel.
//
// Memory bandwidth bounds both passes: the forward pass reads x and writes y, the backward pass reads x and the
// gradient and writes x's, 2 n and 3 n sizeof(T) bytes. Each number is moved once, 16 bytes at a time; s is computed
// again from x.
//
// A dense x is taken in its memory order, whatever its strides. There element i has the channel
// (i / inner) % channels, where inner is the channel's stride: [N, float], [N, float, H, W] and channels last alike. A run of
// `inner` elements of one channel is called a plane here. Two kernels share the work:
//
//   planes   for large planes (a scalar beta: one plane of all elements). A block takes a part of one plane, so it has
//            one beta and one sum.
//   periods  for small ones. The channels of the packs repeat with a period; a thread takes packs that lie a multiple
//            of it apart, so that its betas and sums stay in registers.
//
// Each block writes its sums to a place of its own, and a second kernel adds them, in double, in an order that depends
// on the shape alone: no atomics, the same bits in every run and on every GPU.

#include "../common/functions.cuh"
#include "../common/launch.cuh"
#include "../common/warp.cuh"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

enum class Pass { forward, backward, backward_beta };

constexpr int threads = 256;
constexpr int most_final_threads = 1024;
// A plane of so many packs, three a thread, is worth blocks of its own.
constexpr int64_t least_plane = 3 * threads;
constexpr int64_t most_parts = 1 << 16;
constexpr int64_t least_threads = 1 << 17;

// s is 1 / (1 + exp(-z)). For float the exponential is 2^(-log2(e) z), one instruction of its own, and so
// is the reciprocal; both are right to 2 units of the last place, and flush what is under 2^-126 to 0. The factor of
// z is multiplied into beta beforehand, and taken out of beta's gradient at the end.
struct Sigmoid {
  static constexpr float factor = -1.4426950408889634f;
  static constexpr float inverse_factor = -0.6931471805599453f;
  static __device__ float of_scaled(float z) {
    return cuda_ext::reciprocal(1.0f + cuda_ext::power_of_two(z));
  }
};

// The result of one element, y or the gradient of x; `sum` gathers beta's over the factor.
template <Pass pass>
__device__ float element(float x, float gradient, float scaled_beta, float& sum) {
  const float gate = Sigmoid::of_scaled(scaled_beta * x);
  const float value = x * gate;
  if constexpr (pass == Pass::forward) return value;
  // (1 - gate) / factor, with one rounding: nothing where the gate is 1.
  const float rest = fma(gate, -Sigmoid::inverse_factor, Sigmoid::inverse_factor);
  const float bend = value * rest;
  if constexpr (pass == Pass::backward_beta) sum = fma(gradient, x * bend, sum);
  return gradient * fma(scaled_beta, bend, gate);
}

// beta in x's dtype or in float, or 1.
struct Beta {
  const void* data;
  bool single;

  template <typename T>
  __device__ float scaled(int64_t channel) const {
    if (data == nullptr) return Sigmoid::factor;
    const float beta = single ? static_cast<float>(static_cast<const float*>(data)[channel])
                          : static_cast<float>(static_cast<const T*>(data)[channel]);
    return beta * Sigmoid::factor;
  }
};

template <typename T>
struct Operands {
  const T* __restrict__ x;
  const T* __restrict__ gradient;
  T* __restrict__ result;
};

// The packs first, first + step, ... before `end`, `unroll` of them under way together; element j of each has the beta
// and the sum of index j * sums / size.
template <typename T, Pass pass, int sums, int unroll>
__device__ void packs(const Operands<T>& of, int64_t first, int64_t step, int64_t end, const float (&beta)[sums],
                      float (&sum)[sums]) {
  using Pack = cuda_ext::Pack<T>;
  for (int64_t base = first; base < end; base += step * unroll) {
    // Kept as four words until they are used: elements of 16 bits that a condition sets take a register each.
    uint4 x[unroll], gradient[unroll];
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
      if (const int64_t i = base + k * step; i < end) {
        x[k] = reinterpret_cast<const uint4*>(of.x)[i];
        if constexpr (pass != Pass::forward) gradient[k] = reinterpret_cast<const uint4*>(of.gradient)[i];
      }
    }
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
      if (const int64_t i = base + k * step; i < end) {
        const Pack& of_x = reinterpret_cast<const Pack&>(x[k]);
        const Pack& of_gradient = reinterpret_cast<const Pack&>(gradient[k]);
        Pack result;
#pragma unroll
        for (int j = 0; j < Pack::size; ++j) {
          const float g = pass == Pass::forward ? 0.0f : static_cast<float>(of_gradient.values[j]);
          result.values[j] = static_cast<T>(element<pass>(static_cast<float>(of_x.values[j]), g,
                                                          beta[j * sums / Pack::size], sum[j * sums / Pack::size]));
        }
        reinterpret_cast<Pack*>(of.result)[i] = result;
      }
    }
  }
}

// One element outside the packs.
template <typename T, Pass pass>
__device__ void single(const Operands<T>& of, int64_t i, float beta, float& sum) {
  const float gradient = pass == Pass::forward ? 0.0f : static_cast<float>(of.gradient[i]);
  of.result[i] = static_cast<T>(element<pass>(static_cast<float>(of.x[i]), gradient, beta, sum));
}

// Block b takes part b % parts of plane b / parts: `part` elements, a multiple of a pack, or what is left of the plane.
// Planes begin and end anywhere; the elements before a part's first whole pack and after its last are taken singly.
template <typename T, Pass pass>
__global__ void __launch_bounds__(threads) planes(Operands<T> of, Beta beta, float* partials,
                                                  int64_t inner, uint32_t channels, uint32_t parts, int64_t part) {
  constexpr int size = cuda_ext::Pack<T>::size;
  const uint32_t plane = blockIdx.x / parts;
  const int64_t begin = plane * inner + (blockIdx.x - plane * parts) * part;
  const int64_t end = min(begin + part, (plane + 1) * inner);
  const int64_t first = (begin + size - 1) / size;
  const int64_t last = end / size;
  const float b[] = {beta.scaled<T>(plane % channels)};
  float sum[1] = {};
  packs<T, pass, 1, 1>(of, first + threadIdx.x, threads, last, b, sum);
  const int64_t head = min(first * size, end);
  const int64_t tail = max(last * size, head);
  if (begin + threadIdx.x < head) single<T, pass>(of, begin + threadIdx.x, b[0], sum[0]);
  if (tail + threadIdx.x < end) single<T, pass>(of, tail + threadIdx.x, b[0], sum[0]);
  if constexpr (pass == Pass::backward_beta) {
    __shared__ float sums[threads / 32];
    sum[0] = cuda_ext::warp_sum(sum[0]);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum[0];
    __syncthreads();
    if (threadIdx.x < 32) {
      sum[0] = cuda_ext::warp_sum(threadIdx.x < threads / 32 ? sums[threadIdx.x] : 0.0f);
      if (threadIdx.x == 0) partials[blockIdx.x] = sum[0];
    }
  }
}

// The packs as lines of one period each. A block is `width` packs wide and `height` lines high, `segments` blocks make
// a line, and the grid's blocks step down the lines together, `stride` packs at a time. `sums` is 1 where each
// pack lies in one plane, else a pack's elements.
template <typename T, Pass pass, int sums>
__global__ void __launch_bounds__(threads, 4) periods(Operands<T> of, Beta beta, float* partials,
                                                   int64_t n, int64_t inner, int64_t channels, int64_t period,
                                                   int64_t stride, int width, int height, uint32_t segments) {
  constexpr int size = cuda_ext::Pack<T>::size;
  const uint32_t band = blockIdx.x / segments;
  const uint32_t segment = blockIdx.x - band * segments;
  const int line = threadIdx.x / width;
  const int64_t column = int64_t{segment} * width + (threadIdx.x - line * width);
  float sum[sums] = {};
  if (line < height && column < period) {
    float b[sums];
    int64_t offset, channel;
    if (period * size < int64_t{1} << 32) {
      // A division of 32 bits takes a quarter of the time of one of 64.
      const auto place = static_cast<uint32_t>(column * size);
      const uint32_t plane = place / static_cast<uint32_t>(inner);
      offset = place - plane * static_cast<uint32_t>(inner);
      channel = plane % static_cast<uint32_t>(channels);
    } else {
      const int64_t plane = column * size / inner;
      offset = column * size - plane * inner;
      channel = plane % channels;
    }
#pragma unroll
    for (int j = 0; j < sums; ++j) {
      b[j] = beta.scaled<T>(channel);
      if (++offset == inner) {
        offset = 0;
        if (++channel == channels) channel = 0;
      }
    }
    const int64_t whole = n / size;
    const int64_t first = (int64_t{band} * height + line) * period + column;
    packs<T, pass, sums, 2>(of, first, stride, whole, b, sum);
    if constexpr (sums == size) {
      // What does not fill a pack falls to the thread whose pack it would be.
      if (whole % stride == first) {
#pragma unroll
        for (int j = 0; j < size; ++j) {
          if (const int64_t i = whole * size + j; i < n) single<T, pass>(of, i, b[j], sum[j]);
        }
      }
    }
  }
  if constexpr (pass == Pass::backward_beta) {
    __shared__ alignas(16) float gathered[threads * sums];
#pragma unroll
    for (int j = 0; j < sums; ++j) gathered[threadIdx.x * sums + j] = sum[j];
    __syncthreads();
    for (int i = threadIdx.x; i < width * sums; i += threads) {
      const int64_t place = int64_t{segment} * width * sums + i;
      if (place < period * sums) {
        float total = 0;
        for (int k = 0; k < height; ++k) total += gathered[k * width * sums + i];
        partials[band * (period * sums) + place] = total;
      }
    }
  }
}

// partials [rows, channels, depth] -> the sum of each channel. A block takes `width` channels.
template <typename T>
__global__ void __launch_bounds__(most_final_threads) add_partials(const float* __restrict__ partials,
                                                                   void* __restrict__ result, bool single,
                                                                   uint32_t rows, int64_t channels, uint32_t depth,
                                                                   int width) {
  // Loads under way together: added one by one they would take a memory latency each.
  constexpr int unroll = 8;
  __shared__ double sums[most_final_threads];
  const int64_t channel = int64_t{blockIdx.x} * width + threadIdx.x % width;
  double sum = 0;
  if (channel < channels) {
    const int64_t count = int64_t{rows} * depth;
    const auto step = static_cast<int64_t>(blockDim.x / width);
    for (int64_t base = threadIdx.x / width; base < count; base += step * unroll) {
      float values[unroll];
#pragma unroll
      for (int k = 0; k < unroll; ++k) {
        const int64_t i = base + k * step;
        const int64_t row = depth == 1 ? i : static_cast<uint32_t>(i) / depth;
        values[k] = i < count ? partials[(row * channels + channel) * depth + (i - row * depth)] : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < unroll; ++k) sum += values[k];
    }
  }
  sums[threadIdx.x] = sum;
  for (int half = blockDim.x / 2; half >= width; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x < width && channel < channels) {
    const auto total = static_cast<float>(sums[threadIdx.x] * Sigmoid::factor);
    if (single) {
      static_cast<float*>(result)[channel] = static_cast<float>(total);
    } else {
      static_cast<T*>(result)[channel] = static_cast<T>(total);
    }
  }
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

unsigned grid_of(int64_t blocks) {
  STD_TORCH_CHECK(blocks < int64_t{1} << 31, "swish: ", blocks, " blocks are more than a grid can have");
  return static_cast<unsigned>(blocks);
}

// x, the gradient and the result lie in one memory order and begin on 16 bytes; beta is contiguous.
template <typename T, Pass pass>
void launch(const Tensor& x, const Tensor* gradient, const std::optional<Tensor>& beta, const Tensor& result,
            const Tensor* beta_gradient) {
  constexpr int size = cuda_ext::Pack<T>::size;
  constexpr bool with_sums = pass == Pass::backward_beta;
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const Operands<T> of{static_cast<const T*>(x.data_ptr()),
                       gradient ? static_cast<const T*>(gradient->data_ptr()) : nullptr,
                       static_cast<T*>(result.data_ptr())};
  const bool in_float = beta && beta->scalar_type() == ScalarType::Float;
  const Beta b{beta ? beta->data_ptr() : nullptr, in_float};
  const int64_t n = x.numel();
  const int64_t channels = beta ? beta->numel() : 1;
  const int64_t inner = channels == 1 ? n : x.stride(1);
  // Partial sums [rows, channels, depth].
  int64_t rows = 0, depth = 0;
  std::optional<Tensor> partials;
  const auto place_for_partials = [&]() -> float* {
    if (!with_sums) return nullptr;
    partials = torch::stable::new_empty(x, {rows * channels * depth}, ScalarType::Float);
    return static_cast<float*>(partials->data_ptr());
  };
  if (channels == 1 || inner >= least_plane * size) {
    const int64_t packs_each = with_sums ? 4 : 3;
    const int64_t parts = std::min(ceil_div(inner, threads * packs_each * size), most_parts);
    const int64_t part = ceil_div(ceil_div(inner, parts), size) * size;
    rows = n / inner / channels;
    depth = parts;
    planes<T, pass><<<grid_of(n / inner * parts), threads, 0, stream>>>(
        of, b, place_for_partials(), inner, static_cast<uint32_t>(channels), static_cast<uint32_t>(parts), part);
  } else {
    const int64_t repeat = channels * inner;
    const int64_t period = repeat / std::gcd(repeat, int64_t{size});
    const bool uniform = inner % size == 0;
    const int64_t sums = uniform ? 1 : size;
    const int64_t all = ceil_div(n, size);
    const int64_t lines = ceil_div(all, period);
    // With sums a block is narrow and high: it adds up its lines, so the higher it is the fewer sums it writes.
    int64_t segments = ceil_div(period, with_sums ? 32 : threads);
    int64_t height = threads / ceil_div(period, segments);
    if (lines < height) {
      height = lines;
      segments = ceil_div(period, threads / height);
    }
    const int64_t width = ceil_div(period, segments);
    // A thread's packs pay for its betas and sums; but a small tensor is spread over the whole GPU first.
    const int64_t packs_each = !with_sums ? (sizeof(T) == 2 ? size : size / 2) : uniform ? 4 : 16;
    const int64_t working = std::max(ceil_div(all, packs_each), std::min(all, least_threads));
    const int64_t bands = std::clamp<int64_t>(working / (period * height), 1, ceil_div(lines, height));
    depth = uniform ? inner / size : inner;
    rows = bands * period * sums / (channels * depth);
    auto* kernel = uniform ? &periods<T, pass, 1> : &periods<T, pass, size>;
    kernel<<<grid_of(bands * segments), threads, 0, stream>>>(
        of, b, place_for_partials(), n, inner, channels, period, bands * height * period, static_cast<int>(width),
        static_cast<int>(height), static_cast<uint32_t>(segments));
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  if constexpr (with_sums) {
    // Eight sums side by side are the 32 bytes that memory gives at least.
    const int width = channels >= 8 && depth == 1 ? 8 : 1;
    const int final_threads = rows * depth * width > 1024 ? most_final_threads : 256;
    add_partials<T><<<grid_of(ceil_div(channels, width)), final_threads, 0, stream>>>(
        static_cast<const float*>(partials->data_ptr()), beta_gradient->data_ptr(), in_float, static_cast<uint32_t>(rows),
        channels, static_cast<uint32_t>(depth), width);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

template <Pass pass>
void dispatch(const Tensor& x, const Tensor* gradient, const std::optional<Tensor>& beta, const Tensor& result,
              const Tensor* beta_gradient = nullptr) {
  cuda_ext::with_dtype("swish", x.scalar_type(), [&](auto t) {
    launch<decltype(t), pass>(x, gradient, beta, result, beta_gradient);
  });
}

void check_operands(const Tensor& x, const std::optional<Tensor>& beta) {
  STD_TORCH_CHECK(x.is_cuda(), "swish: x must be on a GPU");
  if (!beta) return;
  STD_TORCH_CHECK(beta->is_cuda() && beta->get_device_index() == x.get_device_index(),
                  "swish: x and beta must be on one GPU, got devices ", x.get_device_index(), " and ",
                  beta->get_device_index());
  const bool half = x.scalar_type() == ScalarType::Half || x.scalar_type() == ScalarType::BFloat16;
  STD_TORCH_CHECK(beta->scalar_type() == x.scalar_type() || (half && beta->scalar_type() == ScalarType::Float),
                  "swish: beta must have x's dtype or, where x is half, float32");
  STD_TORCH_CHECK(beta->dim() == 0 || (beta->dim() == 1 && x.dim() >= 2 && beta->size(0) == x.size(1)),
                  "swish: beta must be a scalar or one a channel");
}

void check_gradient(const Tensor& gradient, const Tensor& x) {
  bool same = gradient.is_cuda() && gradient.get_device_index() == x.get_device_index() &&
              gradient.scalar_type() == x.scalar_type() && gradient.dim() == x.dim();
  for (int64_t i = 0; same && i < x.dim(); ++i) same = gradient.size(i) == x.size(i);
  STD_TORCH_CHECK(same, "swish: the gradient must have x's device, dtype and shape");
}

// `tensor`, or a copy of it that has the memory order of `like`, which is dense, and begins on 16 bytes.
Tensor in_order_of(const Tensor& like, const Tensor& tensor) {
  bool same = cuda_ext::aligned_for_packs(tensor.data_ptr());
  for (int64_t i = 0; same && i < like.dim(); ++i) same = like.size(i) == 1 || like.stride(i) == tensor.stride(i);
  if (same) return tensor;
  Tensor copy = torch::stable::empty_like(like);
  return torch::stable::copy_(copy, tensor);
}

// x of any strides; the result is dense, in the order that PyTorch's element-wise operations give.
Tensor swish(Tensor x, std::optional<Tensor> beta) {
  check_operands(x, beta);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor result = torch::stable::empty_like(x);
  if (x.numel() == 0) return result;
  if (beta) beta = torch::stable::contiguous(*beta);
  dispatch<Pass::forward>(in_order_of(result, x), nullptr, beta, result);
  return result;
}

Tensor swish_backward(Tensor gradient, Tensor x, std::optional<Tensor> beta) {
  check_operands(x, beta);
  check_gradient(gradient, x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor result = torch::stable::empty_like(x);
  if (x.numel() == 0) return result;
  if (beta) beta = torch::stable::contiguous(*beta);
  gradient = in_order_of(result, gradient);
  dispatch<Pass::backward>(in_order_of(result, x), &gradient, beta, result);
  return result;
}

std::tuple<Tensor, Tensor> swish_backward_beta(Tensor gradient, Tensor x, Tensor beta) {
  check_operands(x, beta);
  check_gradient(gradient, x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor result = torch::stable::empty_like(x);
  beta = torch::stable::contiguous(beta);
  Tensor beta_gradient = torch::stable::empty_like(beta);
  if (x.numel() == 0) return {result, torch::stable::zero_(beta_gradient)};
  gradient = in_order_of(result, gradient);
  dispatch<Pass::backward_beta>(in_order_of(result, x), &gradient, beta, result, &beta_gradient);
  return {result, beta_gradient};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("swish(Tensor x, Tensor? beta) -> Tensor");
  m.def("swish_backward(Tensor gradient, Tensor x, Tensor? beta) -> Tensor");
  m.def("swish_backward_beta(Tensor gradient, Tensor x, Tensor beta) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("swish", TORCH_BOX(&swish));
  m.impl("swish_backward", TORCH_BOX(&swish_backward));
  m.impl("swish_backward_beta", TORCH_BOX(&swish_backward_beta));
}
