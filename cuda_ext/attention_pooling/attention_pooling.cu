// Attention pooling (Yang et al. 2016, section 2.2), forward and backward: what is called from PyTorch, the plain kernels for
// double and for wide states, and the sum of the blocks' parts. The kernels for the rest stand in kernels.cuh.

#include "attention_pooling.cuh"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

namespace {

using namespace cuda_ext::attention;
using cuda_ext::compute_t;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 128;
constexpr int warps = threads / 32;
constexpr int summing_groups = 16, summing_packs = 32;
// The plain kernels keep a row in shared memory.
constexpr int64_t longest = 4096;

template <typename C>
__device__ C warp_sum(C x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The sum over a block, for all of its threads.
template <typename C>
__device__ C block_sum(C x, C (&sums)[warps]) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  C all = 0;
  for (C part : sums) all += part;
  return all;
}

template <typename T>
__device__ compute_t<T> value(const void* values, bool single, int64_t i) {
  return single ? static_cast<compute_t<T>>(static_cast<const float*>(values)[i])
                : static_cast<compute_t<T>>(static_cast<const T*>(values)[i]);
}

// tanh of the projection's unit `a` of a row in shared memory, in every lane of a warp.
template <typename T>
__device__ compute_t<T> unit(const Parameters& p, const compute_t<T>* row, int a) {
  compute_t<T> sum = 0;
  for (int d = threadIdx.x % 32; d < p.width; d += 32) {
    sum += row[d] * value<T>(p.weight, p.single, int64_t{a} * p.width + d);
  }
  return std::tanh(warp_sum(sum) + value<T>(p.bias, p.single, a));
}

// A block takes a sequence: scores into its weights, softmax over them, and the sum over a second read of its states.
template <typename T>
__global__ void __launch_bounds__(threads) plain_forward(const Forward call) {
  using C = compute_t<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ C sums[warps];
  C* row = reinterpret_cast<C*>(memory);
  const Parameters& p = call.parameters;
  for (int64_t n = blockIdx.x; n < call.rows.sequences; n += gridDim.x) {
    const int64_t first = call.rows.first(n), length = call.rows.length(n);
    const T* states = static_cast<const T*>(call.states) + first * p.width;
    C* weights = static_cast<C*>(call.weights) + first;
    C largest = -static_cast<C>(INFINITY), sum = 0;
    for (int64_t t = 0; t < length; ++t) {
      __syncthreads();
      for (int d = threadIdx.x; d < p.width; d += threads) row[d] = static_cast<C>(states[t * p.width + d]);
      __syncthreads();
      C score = 0;
      for (int a = threadIdx.x / 32; a < p.units; a += warps) {
        const C u = unit<T>(p, row, a);
        if (threadIdx.x % 32 == 0) score += u * value<T>(p.context, p.single, a);
      }
      score = block_sum(score, sums);
      if (threadIdx.x == 0) weights[t] = score;
      largest = score > largest ? score : largest;
    }
    __syncthreads();
    for (int64_t t = threadIdx.x; t < length; t += threads) {
      weights[t] = std::exp(weights[t] - largest);
      sum += weights[t];
    }
    sum = block_sum(sum, sums);
    for (int64_t t = threadIdx.x; t < length; t += threads) weights[t] /= sum;
    for (int64_t t = length + threadIdx.x; t < call.rows.steps; t += threads) weights[t] = 0;
    __syncthreads();
    for (int d = threadIdx.x; d < p.width; d += threads) {
      C pooled = 0;
      for (int64_t t = 0; t < length; ++t) pooled += weights[t] * static_cast<C>(states[t * p.width + d]);
      static_cast<T*>(call.pooled)[n * p.width + d] = static_cast<T>(pooled);
    }
  }
  if (call.rows.ragged) {
    const int64_t from = call.rows.first(0), to = call.rows.first(call.rows.sequences);
    for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < call.rows.total; i += int64_t{gridDim.x} * threads) {
      if (i < from || i >= to) static_cast<C*>(call.weights)[i] = 0;
    }
  }
}

// A block takes every gridDim-th sequence, and adds to its own part of the parameters' gradients, zero at the start.
template <typename T>
__global__ void __launch_bounds__(threads) plain_backward(const Backward call) {
  using C = compute_t<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ C sums[warps];
  const Parameters& p = call.parameters;
  C* row = reinterpret_cast<C*>(memory);
  C* slopes = row + p.width;
  C* part = static_cast<C*>(call.partials) + int64_t{blockIdx.x} * p.part();
  for (int64_t n = blockIdx.x; n < call.rows.sequences; n += gridDim.x) {
    const int64_t first = call.rows.first(n), length = call.rows.length(n);
    const T* states = static_cast<const T*>(call.states) + first * p.width;
    T* out = static_cast<T*>(call.states_gradient) + first * p.width;
    const C* weights = static_cast<const C*>(call.weights) + first;
    const T* gradient = static_cast<const T*>(call.gradient) + n * p.width;
    const T* pooled = static_cast<const T*>(call.pooled) + n * p.width;
    const C* weights_gradient = call.weights_gradient ? static_cast<const C*>(call.weights_gradient) + first : nullptr;
    C mean = 0;
    for (int d = threadIdx.x; d < p.width; d += threads) mean += static_cast<C>(gradient[d]) * static_cast<C>(pooled[d]);
    if (weights_gradient) {
      for (int64_t t = threadIdx.x; t < length; t += threads) mean += weights[t] * weights_gradient[t];
    }
    mean = block_sum(mean, sums);
    for (int64_t t = 0; t < length; ++t) {
      __syncthreads();
      C own = 0;
      for (int d = threadIdx.x; d < p.width; d += threads) {
        row[d] = static_cast<C>(states[t * p.width + d]);
        own += static_cast<C>(gradient[d]) * row[d];
      }
      own = block_sum(own, sums);
      if (weights_gradient) own += weights_gradient[t];
      const C slope = weights[t] * (own - mean);
      for (int a = threadIdx.x / 32; a < p.units; a += warps) {
        const C u = unit<T>(p, row, a);
        if (threadIdx.x % 32 == 0) {
          slopes[a] = slope * value<T>(p.context, p.single, a) * (1 - u * u);
          part[int64_t{p.units} * p.width + a] += slopes[a];
          part[int64_t{p.units} * (p.width + 1) + a] += slope * u;
        }
      }
      __syncthreads();
      for (int d = threadIdx.x; d < p.width; d += threads) {
        C sum = weights[t] * static_cast<C>(gradient[d]);
        for (int a = 0; a < p.units; ++a) {
          sum += slopes[a] * value<T>(p.weight, p.single, int64_t{a} * p.width + d);
          part[int64_t{a} * p.width + d] += slopes[a] * row[d];
        }
        out[t * p.width + d] = static_cast<T>(sum);
      }
    }
    for (int64_t i = length * p.width + threadIdx.x; i < call.rows.steps * p.width; i += threads) {
      out[i] = static_cast<T>(C{0});
    }
  }
  if (call.rows.ragged) {
    const int64_t from = call.rows.first(0), to = call.rows.first(call.rows.sequences);
    for (int64_t i = blockIdx.x; i < call.rows.total; i += gridDim.x) {
      if (i >= from && i < to) continue;
      for (int d = threadIdx.x; d < p.width; d += threads) {
        static_cast<T*>(call.states_gradient)[i * p.width + d] = static_cast<T>(C{0});
      }
    }
  }
}

// The blocks' parts of the parameters' gradients, added in the order of the blocks: `summing_groups` runs of them for
// each pack of numbers, and the runs' sums. Of blocks that each take 16 rows, those beyond the index's last wrote nothing.
template <typename T>
__global__ void __launch_bounds__(summing_packs* summing_groups) sum_parts(const void* partials, int blocks,
                                                                           const int32_t* index, Parameters p,
                                                                           void* weight, void* bias, void* context) {
  after_the_kernel_before();
  using C = compute_t<T>;
  using Pack = cuda_ext::Pack<C>;
  __shared__ Pack sums[summing_groups][summing_packs];
  const int64_t pack = int64_t{blockIdx.x} * summing_packs + threadIdx.x, stride = p.part() / Pack::size;
  Pack sum{};
  if (index) blocks = min(blocks, (index[1] - index[0] + unit_rows - 1) / unit_rows);
  if (pack < stride) {
    const int from = blocks * threadIdx.y / summing_groups, to = blocks * (threadIdx.y + 1) / summing_groups;
    const Pack* part = static_cast<const Pack*>(partials) + pack;
#pragma unroll 8
    for (int block = from; block < to; ++block) {
      const Pack other = part[block * stride];
#pragma unroll
      for (int i = 0; i < Pack::size; ++i) sum.values[i] += other.values[i];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const int own = threadIdx.y * summing_packs + threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * summing_packs * Pack::size + own;
  if (own >= summing_packs * Pack::size || i >= p.count()) return;
  C whole = 0;
#pragma unroll
  for (const auto& group : sums) whole += group[own / Pack::size].values[own % Pack::size];
  void* place = weight;
  int64_t at = i;
  if (i >= int64_t{p.units} * p.width) {
    at -= int64_t{p.units} * p.width;
    place = at < p.units ? bias : context;
    at %= p.units;
  }
  if (p.single) {
    static_cast<float*>(place)[at] = static_cast<float>(whole);
  } else {
    static_cast<T*>(place)[at] = static_cast<T>(whole);
  }
}

int attribute(cudaDeviceAttr which, int device) {
  int found = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&found, which, device));
  return found;
}

// What the two operations have in common: the checks of what would be read outside of a tensor, and the description.
struct Call {
  Rows rows;
  Parameters parameters;
  ScalarType dtype;
  ScalarType weights_dtype;
  bool matrix;  // The kernels on the matrix units take it.
  bool packs;
  int device;
  int processors;
};

template <typename F>
void with_dtype(ScalarType dtype, F&& f) {
  switch (dtype) {
    case ScalarType::Double: f(double{}); break;
    case ScalarType::Float: f(float{}); break;
    case ScalarType::Half: f(__half{}); break;
    case ScalarType::BFloat16: f(__nv_bfloat16{}); break;
    default: STD_TORCH_CHECK(false, "attention_pooling: states must be float64, float32, float16 or bfloat16");
  }
}

bool aligned_for(const Tensor& tensor, int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % static_cast<std::uintptr_t>(bytes) == 0;
}

Call describe(const Tensor& states, const Tensor& bounds, bool ragged, const Tensor& weight, const Tensor& bias,
              const Tensor& context) {
  for (const Tensor* tensor : {&states, &bounds, &weight, &bias, &context}) {
    STD_TORCH_CHECK(tensor->is_cuda() && tensor->get_device_index() == states.get_device_index(),
                    "attention_pooling: all tensors must be on one GPU");
    STD_TORCH_CHECK(tensor->is_contiguous(), "attention_pooling: all tensors must be contiguous");
  }
  STD_TORCH_CHECK(states.dim() == (ragged ? 2 : 3), "attention_pooling: states must have ", ragged ? 2 : 3,
                  " dimensions, got ", states.dim());
  STD_TORCH_CHECK(weight.dim() == 2 && bias.dim() == 1 && context.dim() == 1 && bounds.dim() == 1,
                  "attention_pooling: weight must have 2 dimensions, bias, context and lengths or offsets 1");
  const int64_t width = states.size(ragged ? 1 : 2), units = weight.size(0);
  STD_TORCH_CHECK(width > 0 && units > 0 && width <= longest && units <= longest && weight.size(1) == width &&
                      bias.size(0) == units && context.size(0) == units,
                  "attention_pooling: weight must be [A, ", width, "], bias and context [A]");
  STD_TORCH_CHECK(bounds.scalar_type() == ScalarType::Int || bounds.scalar_type() == ScalarType::Long,
                  "attention_pooling: lengths or offsets must be int32 or int64");
  STD_TORCH_CHECK(ragged ? bounds.size(0) > 0 : bounds.size(0) == states.size(0),
                  "attention_pooling: there must be a length a row, or one offset more than sequences");
  STD_TORCH_CHECK(weight.scalar_type() == bias.scalar_type() && weight.scalar_type() == context.scalar_type(),
                  "attention_pooling: weight, bias and context must have one dtype");
  const bool half = states.scalar_type() == ScalarType::Half || states.scalar_type() == ScalarType::BFloat16;
  const bool single = half && weight.scalar_type() == ScalarType::Float;
  STD_TORCH_CHECK(single || weight.scalar_type() == states.scalar_type(),
                  "attention_pooling: weight must have the dtype of states, or float32 beside half precision");
  const int64_t total = ragged ? states.size(0) : states.size(0) * states.size(1);
  STD_TORCH_CHECK(total < int64_t{1} << 31 && bounds.size(0) < int64_t{1} << 31,
                  "attention_pooling: fewer than 2^31 rows, got ", total);
  Call call{};
  call.device = states.get_device_index();
  call.processors = attribute(cudaDevAttrMultiProcessorCount, call.device);
  call.dtype = states.scalar_type();
  call.weights_dtype = call.dtype == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  call.rows = {bounds.data_ptr(), bounds.scalar_type() == ScalarType::Long, ragged,
               ragged ? bounds.size(0) - 1 : states.size(0), ragged ? 0 : states.size(1), total};
  call.parameters = {weight.data_ptr(), bias.data_ptr(), context.data_ptr(), single, static_cast<int>(width),
                     static_cast<int>(units)};
  const int64_t shared = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, call.device);
  const int64_t widest_side = std::max(width, units);
  switch (call.dtype) {
    case ScalarType::Float: call.matrix = fits<float>(widest_side, shared); break;
    case ScalarType::Half: call.matrix = fits<__half>(widest_side, shared); break;
    case ScalarType::BFloat16: call.matrix = fits<__nv_bfloat16>(widest_side, shared); break;
    default: call.matrix = false;
  }
  call.packs = width % 4 == 0 && aligned_for(states, half ? 8 : 16);
  return call;
}

int64_t index_size(const Call& call, int64_t width, int64_t units) {
  const bool used = call.dtype != ScalarType::Double && std::max(width, units) <= widest;
  return used ? index_head + call.rows.total : 0;
}

std::tuple<Tensor, Tensor, Tensor> attention_pooling(Tensor states, Tensor bounds, bool ragged, Tensor weight,
                                                     Tensor bias, Tensor context) {
  const torch::stable::accelerator::DeviceGuard guard(states.get_device_index());
  states = torch::stable::contiguous(states);
  bounds = torch::stable::contiguous(bounds);
  weight = torch::stable::contiguous(weight);
  bias = torch::stable::contiguous(bias);
  context = torch::stable::contiguous(context);
  const Call call = describe(states, bounds, ragged, weight, bias, context);
  const int64_t width = call.parameters.width, sequences = call.rows.sequences;
  Tensor pooled = torch::stable::new_empty(states, {sequences, width});
  Tensor weights = ragged ? torch::stable::new_empty(states, {call.rows.total}, call.weights_dtype)
                          : torch::stable::new_empty(states, {sequences, call.rows.steps}, call.weights_dtype);
  Tensor index = torch::stable::new_empty(states, {index_size(call, width, call.parameters.units)}, ScalarType::Int);
  if (!call.matrix || sequences == 0 || call.rows.total == 0) torch::stable::zero_(index);
  if (call.rows.total == 0 || sequences == 0) {
    torch::stable::zero_(pooled);
    torch::stable::zero_(weights);
    return {pooled, weights, index};
  }
  const Forward forward{call.rows,          call.parameters, states.data_ptr(), pooled.data_ptr(), weights.data_ptr(),
                        static_cast<int32_t*>(index.data_ptr()), call.packs};
  const cudaStream_t stream = cuda_ext::current_stream(call.device);
  const auto at_most = [&](int64_t blocks) { return static_cast<int>(std::min(sequences, blocks)); };
  with_dtype(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_same_v<T, double>) {
      if (call.matrix) return launch_forward<T>(forward, call.processors, stream);
    }
    const size_t bytes = width * sizeof(compute_t<T>);
    STD_CUDA_CHECK(cudaFuncSetAttribute(plain_forward<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(bytes)));
    plain_forward<T><<<at_most(8 * int64_t{call.processors}), threads, bytes, stream>>>(forward);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {pooled, weights, index};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_pooling_backward(Tensor gradient,
                                                                      std::optional<Tensor> weights_gradient,
                                                                      Tensor states, Tensor bounds, bool ragged,
                                                                      Tensor weight, Tensor bias, Tensor context,
                                                                      Tensor pooled, Tensor weights, Tensor index) {
  const torch::stable::accelerator::DeviceGuard guard(states.get_device_index());
  states = torch::stable::contiguous(states);
  bounds = torch::stable::contiguous(bounds);
  weight = torch::stable::contiguous(weight);
  bias = torch::stable::contiguous(bias);
  context = torch::stable::contiguous(context);
  gradient = torch::stable::contiguous(gradient);
  pooled = torch::stable::contiguous(pooled);
  weights = torch::stable::contiguous(weights);
  if (weights_gradient) weights_gradient = torch::stable::contiguous(*weights_gradient);
  const Call call = describe(states, bounds, ragged, weight, bias, context);
  const int64_t width = call.parameters.width, units = call.parameters.units, sequences = call.rows.sequences;
  for (const Tensor* tensor : {&gradient, &pooled}) {
    STD_TORCH_CHECK(tensor->is_cuda() && tensor->get_device_index() == call.device &&
                        tensor->scalar_type() == call.dtype && tensor->numel() == sequences * width,
                    "attention_pooling: pooled and its gradient must be [", sequences, ", ", width,
                    "] beside states, of their dtype");
  }
  for (const Tensor* tensor : {&weights, weights_gradient ? &*weights_gradient : &weights}) {
    STD_TORCH_CHECK(tensor->is_cuda() && tensor->get_device_index() == call.device &&
                        tensor->scalar_type() == call.weights_dtype && tensor->numel() == call.rows.total,
                    "attention_pooling: weights and their gradient must have ", call.rows.total,
                    " numbers beside states, of float32, or float64 beside float64");
  }
  STD_TORCH_CHECK(index.is_cuda() && index.get_device_index() == call.device && index.is_contiguous() &&
                      index.scalar_type() == ScalarType::Int && index.numel() == index_size(call, width, units),
                  "attention_pooling: the index must be the forward pass's");
  Tensor states_gradient = torch::stable::empty_like(states);
  Tensor weight_gradient = torch::stable::empty_like(weight);
  Tensor bias_gradient = torch::stable::empty_like(bias);
  Tensor context_gradient = torch::stable::empty_like(context);
  if (call.rows.total == 0 || sequences == 0) {
    torch::stable::zero_(states_gradient);
    torch::stable::zero_(weight_gradient);
    torch::stable::zero_(bias_gradient);
    torch::stable::zero_(context_gradient);
    return {states_gradient, weight_gradient, bias_gradient, context_gradient};
  }
  const int64_t pieces = call.matrix ? (call.rows.total + unit_rows - 1) / unit_rows : sequences;
  const int blocks = static_cast<int>(std::min<int64_t>(pieces, call.processors));
  const int64_t part = call.parameters.part(), at_once = summing_packs * (call.dtype == ScalarType::Double ? 2 : 4);
  Tensor partials = torch::stable::new_empty(states, {blocks * part}, call.weights_dtype);
  if (!call.matrix) torch::stable::zero_(partials);
  const int64_t pack_bytes = call.dtype == ScalarType::Float ? 16 : 8;
  const bool packs = call.packs && aligned_for(gradient, pack_bytes) && aligned_for(pooled, pack_bytes);
  const Backward backward{call.rows,
                          call.parameters,
                          states.data_ptr(),
                          pooled.data_ptr(),
                          weights.data_ptr(),
                          static_cast<const int32_t*>(index.data_ptr()),
                          gradient.data_ptr(),
                          weights_gradient ? weights_gradient->data_ptr() : nullptr,
                          states_gradient.data_ptr(),
                          partials.data_ptr(),
                          blocks,
                          packs};
  const cudaStream_t stream = cuda_ext::current_stream(call.device);
  with_dtype(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    bool done = false;
    if constexpr (!std::is_same_v<T, double>) {
      if (call.matrix) {
        launch_backward<T>(backward, stream);
        done = true;
      }
    }
    if (!done) {
      const size_t bytes = (width + units) * sizeof(compute_t<T>);
      STD_CUDA_CHECK(cudaFuncSetAttribute(plain_backward<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(bytes)));
      plain_backward<T><<<blocks, threads, bytes, stream>>>(backward);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
    launch(sum_parts<T>, (part + at_once - 1) / at_once, dim3(summing_packs, summing_groups), 0, stream,
           partials.data_ptr(), blocks, done && blocks == pieces ? backward.index : nullptr, call.parameters,
           weight_gradient.data_ptr(), bias_gradient.data_ptr(), context_gradient.data_ptr());
  });
  return {states_gradient, weight_gradient, bias_gradient, context_gradient};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def(
      "attention_pooling(Tensor states, Tensor bounds, bool ragged, Tensor weight, Tensor bias, Tensor context) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "attention_pooling_backward(Tensor gradient, Tensor? weights_gradient, Tensor states, Tensor bounds, bool ragged, "
      "Tensor weight, Tensor bias, Tensor context, Tensor pooled, Tensor weights, Tensor index) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("attention_pooling", TORCH_BOX(&attention_pooling));
  m.impl("attention_pooling_backward", TORCH_BOX(&attention_pooling_backward));
}
