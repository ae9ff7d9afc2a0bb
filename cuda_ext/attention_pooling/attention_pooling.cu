// Attention pooling (Yang et al. 2016, section 2.2), forward and backward: what is called from PyTorch, and the sum of the
// blocks' parts. The kernels stand in kernels.cuh.

#include "attention_pooling.cuh"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

namespace {

using namespace cuda_ext::attention;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int summing_groups = 16, summing_packs = 32;
// The blocks' parts of the parameters' gradients, added in the order of the blocks: `summing_groups` runs of them for
// each pack of numbers, and the runs' sums.
template <typename T>
__global__ void __launch_bounds__(summing_packs* summing_groups) sum_parts(const __grid_constant__ Backward call) {
  after_the_kernel_before();
  using Pack = cuda_ext::Pack<float>;
  const Parameters& p = call.parameters;
  const int blocks = call.blocks;
  __shared__ Pack sums[summing_groups][summing_packs];
  const int64_t pack = int64_t{blockIdx.x} * summing_packs + threadIdx.x, stride = p.part() / Pack::size;
  Pack sum{};
  if (pack < stride) {
    const int from = blocks * threadIdx.y / summing_groups, to = blocks * (threadIdx.y + 1) / summing_groups;
    const Pack* part = static_cast<const Pack*>(call.partials) + pack;
    // The blocks wrote of the last pack what belongs to a parameter.
    const int64_t left = p.count() - pack * Pack::size;
#pragma unroll 8
    for (int block = from; block < to; ++block) {
      Pack other{};
      if (left >= Pack::size) {
        other = part[block * stride];
      } else {
#pragma unroll
        for (int i = 0; i < Pack::size; ++i) {
          if (i < left) other.values[i] = part[block * stride].values[i];
        }
      }
#pragma unroll
      for (int i = 0; i < Pack::size; ++i) sum.values[i] += other.values[i];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const int own = threadIdx.y * summing_packs + threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * summing_packs * Pack::size + own;
  if (own >= summing_packs * Pack::size || i >= p.count()) return;
  float whole = 0;
#pragma unroll
  for (const auto& group : sums) whole += group[own / Pack::size].values[own % Pack::size];
  void* place = call.of_weight;
  int64_t at = i;
  if (i >= int64_t{p.units} * p.width) {
    at -= int64_t{p.units} * p.width;
    place = at < p.units ? call.of_bias : call.of_context;
    at %= p.units;
  }
  store_parameter<T>(p, place, at, whole);
}

// What the two operations have in common: the checks of what would be read outside of a tensor, and the description.
struct Call {
  Rows rows;
  Parameters parameters;
  ScalarType dtype;
  bool packs;
  int device;
  int processors;
};

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
  STD_TORCH_CHECK(width > 0 && units > 0 && width <= widest && units <= widest && weight.size(1) == width &&
                      bias.size(0) == units && context.size(0) == units,
                  "attention_pooling: weight must be [A, ", width, "], bias and context [A], A and D up to ", widest);
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
  call.processors = cuda_ext::multiprocessors();
  call.dtype = states.scalar_type();
  call.rows = {bounds.data_ptr(), bounds.scalar_type() == ScalarType::Long, ragged,
               ragged ? bounds.size(0) - 1 : states.size(0), ragged ? 0 : states.size(1), total};
  call.parameters = {weight.data_ptr(), bias.data_ptr(), context.data_ptr(), single, static_cast<int>(width),
                     static_cast<int>(units)};
  call.packs = width % 4 == 0 && aligned_for(states, half ? 8 : 16) && aligned_for(weight, 16);
  return call;
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
  Tensor weights = ragged ? torch::stable::new_empty(states, {call.rows.total}, ScalarType::Float)
                          : torch::stable::new_empty(states, {sequences, call.rows.steps}, ScalarType::Float);
  Tensor index = torch::stable::new_empty(states, {index_head + call.rows.total}, ScalarType::Int);
  if (call.rows.total == 0 || sequences == 0) {
    torch::stable::zero_(index);
    torch::stable::zero_(pooled);
    torch::stable::zero_(weights);
    return {pooled, weights, index};
  }
  const Forward forward{call.rows,          call.parameters, states.data_ptr(), pooled.data_ptr(), weights.data_ptr(),
                        static_cast<int32_t*>(index.data_ptr()), call.packs};
  const cudaStream_t stream = cuda_ext::current_stream(call.device);
  cuda_ext::with_dtype("attention_pooling", call.dtype,
                       [&](auto t) { launch_forward<decltype(t)>(forward, call.processors, stream); });
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
  const int64_t width = call.parameters.width, sequences = call.rows.sequences;
  for (const Tensor* tensor : {&gradient, &pooled}) {
    STD_TORCH_CHECK(tensor->is_cuda() && tensor->get_device_index() == call.device &&
                        tensor->scalar_type() == call.dtype && tensor->numel() == sequences * width,
                    "attention_pooling: pooled and its gradient must be [", sequences, ", ", width,
                    "] beside states, of their dtype");
  }
  for (const Tensor* tensor : {&weights, weights_gradient ? &*weights_gradient : &weights}) {
    STD_TORCH_CHECK(tensor->is_cuda() && tensor->get_device_index() == call.device &&
                        tensor->scalar_type() == ScalarType::Float && tensor->numel() == call.rows.total,
                    "attention_pooling: weights and their gradient must have ", call.rows.total,
                    " numbers of float32 beside states");
  }
  STD_TORCH_CHECK(index.is_cuda() && index.get_device_index() == call.device && index.is_contiguous() &&
                      index.scalar_type() == ScalarType::Int && index.numel() == index_head + call.rows.total,
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
  const int64_t pieces = (call.rows.total + unit_rows - 1) / unit_rows;
  const int blocks = pieces <= call.processors ? 0 : call.processors;
  const int64_t part = call.parameters.part(), at_once = summing_packs * cuda_ext::Pack<float>::size;
  Tensor partials = torch::stable::new_empty(states, {blocks * part}, ScalarType::Float);
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
                          weight_gradient.data_ptr(),
                          bias_gradient.data_ptr(),
                          context_gradient.data_ptr(),
                          partials.data_ptr(),
                          blocks,
                          packs};
  const cudaStream_t stream = cuda_ext::current_stream(call.device);
  cuda_ext::with_dtype("attention_pooling", call.dtype, [&](auto t) {
    using T = decltype(t);
    launch_backward<T>(backward, stream);
    if (blocks > 0) {
      launch(sum_parts<T>, (part + at_once - 1) / at_once, dim3(summing_packs, summing_groups), 0, stream, backward);
    }
  });
  return {states_gradient, weight_gradient, bias_gradient, context_gradient};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "attention_pooling(Tensor states, Tensor bounds, bool ragged, Tensor weight, Tensor bias, Tensor context) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "attention_pooling_backward(Tensor gradient, Tensor? weights_gradient, Tensor states, Tensor bounds, bool ragged, "
      "Tensor weight, Tensor bias, Tensor context, Tensor pooled, Tensor weights, Tensor index) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("attention_pooling", TORCH_BOX(&attention_pooling));
  m.impl("attention_pooling_backward", TORCH_BOX(&attention_pooling_backward));
}
