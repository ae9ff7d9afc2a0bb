// AdamW over all parameters of a network in one launch.
//
// `begin` counts each parameter's step and computes what its numbers have in common; `update` moves 28 bytes a number:
// parameter, gradient and both means are read, all but the gradient written. None is used again in this step, so that they
// are loaded and stored as what leaves the caches first: the gradients that are still there are not pushed out.

#include "../common/tensor_list.cuh"

#include <cmath>
#include <optional>

namespace {

using cuda_ext::laid_out_alike;
using cuda_ext::TensorList;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 256;
// Numbers of a tensor that a block updates.
constexpr int tile = 4 * threads;

// What begin reads of a parameter. size: one block each.
struct Setting {
  float* step;
  float rate, weight_decay;
  static constexpr int64_t size = 1;
};

// What update reads of it. size: numbers.
struct Parameter {
  float *values, *gradient, *mean, *square;
  int64_t size;
};

// gradient: what clipping leaves of it. decay: taken off the parameter, as a share of it. step: of the mean over the root of
// the mean square, both without their bias: the root is multiplied by `unbiased`.
struct Factors {
  float gradient, decay, step, unbiased;
};

// The norm of all gradients, or none, and the largest that they may have.
struct Clipping {
  const float* norm;
  float largest;

  // As torch.nn.utils.clip_grads_with_norm_ has it; of a norm that is not a number too.
  __device__ float factor() const {
    const float share = norm ? largest / (*norm + 1e-6f) : 1.0f;
    return share > 1 ? 1.0f : share;
  }
};

struct Shares {
  float mean, square, epsilon;
};

template <int most>
__global__ void begin(const __grid_constant__ TensorList<Setting, most> list, double log_beta1, double log_beta2,
                      Clipping clipping, const float* overflow, Factors* factors) {
  cuda_ext::let_the_next_start();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= list.count || (overflow && *overflow == 1)) return;
  const Setting& of = list.items[i];
  const float step = *of.step + 1;
  *of.step = step;
  // 1 - beta^step
  const double bias1 = -expm1(step * log_beta1), bias2 = -expm1(step * log_beta2);
  factors[i] = {clipping.factor(), of.rate * of.weight_decay, static_cast<float>(of.rate / bias1), static_cast<float>(rsqrt(bias2))};
}

// beta old + (1 - beta) value, rounded as PyTorch's kernel does.
__device__ float moved(float beta, float old, float value) { return fmaf(beta, old, fmaf(-beta, value, value)); }

__device__ void step(float& value, float gradient, float& mean, float& square, const Factors& factors,
                     const Shares& of) {
  gradient *= factors.gradient;
  mean = moved(of.mean, mean, gradient);
  square = moved(of.square, square, gradient * gradient);
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(square));
  const float decayed = fmaf(-factors.decay, value, value);
  value = decayed - __fdividef(factors.step * mean, fmaf(root, factors.unbiased, of.epsilon));
}

// scale: what the gradients are divided by, and are stored so.
template <int most>
__global__ void __launch_bounds__(threads)
    update(const __grid_constant__ TensorList<Parameter, most> list, const Factors* all_factors, Shares shares,
           const float* scale, const float* overflow) {
  const int i = list.of_block(blockIdx.x);
  const Parameter& of = list.items[i];
  const int64_t first = int64_t{blockIdx.x - list.begins[i]} * tile;
  cuda_ext::wait_for_the_one_before();
  if (overflow && *overflow == 1) return;
  const Factors factors = all_factors[i];
  const auto aligned = [](const float* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; };
  const bool packs = aligned(of.values) && aligned(of.gradient) && aligned(of.mean) && aligned(of.square);
  if (packs && first + tile <= of.size) {
    const int64_t at = first / 4 + threadIdx.x;
    float4 gradient = __ldcs(reinterpret_cast<const float4*>(of.gradient) + at);
    float4 value = __ldcs(reinterpret_cast<const float4*>(of.values) + at);
    float4 mean = __ldcs(reinterpret_cast<const float4*>(of.mean) + at);
    float4 square = __ldcs(reinterpret_cast<const float4*>(of.square) + at);
    if (scale) {
      const float by = *scale;
      gradient = make_float4(gradient.x / by, gradient.y / by, gradient.z / by, gradient.w / by);
      reinterpret_cast<float4*>(of.gradient)[at] = gradient;
    }
    step(value.x, gradient.x, mean.x, square.x, factors, shares);
    step(value.y, gradient.y, mean.y, square.y, factors, shares);
    step(value.z, gradient.z, mean.z, square.z, factors, shares);
    step(value.w, gradient.w, mean.w, square.w, factors, shares);
    __stcs(reinterpret_cast<float4*>(of.values) + at, value);
    __stcs(reinterpret_cast<float4*>(of.mean) + at, mean);
    __stcs(reinterpret_cast<float4*>(of.square) + at, square);
    return;
  }
  const int64_t end = min(first + tile, of.size);
#pragma unroll 1
  for (int64_t at = first + threadIdx.x; at < end; at += threads) {
    float gradient = of.gradient[at];
    if (scale) of.gradient[at] = gradient /= *scale;
    step(of.values[at], gradient, of.mean[at], of.square[at], factors, shares);
  }
}

// One number of float32 beside `like`, or none.
const float* number_of(const std::optional<Tensor>& tensor, const Tensor& like) {
  if (!tensor.has_value()) return nullptr;
  STD_TORCH_CHECK(tensor->is_cuda() && tensor->get_device_index() == like.get_device_index() && tensor->numel() == 1 &&
                      tensor->scalar_type() == ScalarType::Float,
                  "adamw: norm, scale and overflow must be one float32 on the parameters' GPU");
  return static_cast<const float*>(tensor->data_ptr());
}

// Lists of one length: of each parameter its gradient, its means, its step float32 [], its rate and its weight decay.
void adamw(std::vector<Tensor> parameters, std::vector<Tensor> gradients, std::vector<Tensor> means,
           std::vector<Tensor> squares, std::vector<Tensor> steps, std::vector<double> rates,
           std::vector<double> weight_decays, double beta1, double beta2, double epsilon, std::optional<Tensor> norm,
           double largest_norm, std::optional<Tensor> scale, std::optional<Tensor> overflow) {
  const std::size_t count = parameters.size();
  STD_TORCH_CHECK(gradients.size() == count && means.size() == count && squares.size() == count &&
                      steps.size() == count && rates.size() == count && weight_decays.size() == count,
                  "adamw: lists of different lengths");
  if (count == 0) return;
  std::vector<Setting> settings;
  std::vector<Parameter> items;
  const auto data = [](const Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); };
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& of = parameters[i];
    STD_TORCH_CHECK(of.scalar_type() == ScalarType::Float && of.is_cuda() &&
                        of.get_device_index() == parameters[0].get_device_index() && cuda_ext::fills_its_memory(of) &&
                        laid_out_alike(of, gradients[i]) && laid_out_alike(of, means[i]) &&
                        laid_out_alike(of, squares[i]),
                    "adamw: parameter ", i, ", its gradient and its means must be float32 on one GPU, of equal sizes "
                    "and strides, without gaps");
    number_of(steps[i], of);
    settings.push_back({data(steps[i]), static_cast<float>(rates[i]), static_cast<float>(weight_decays[i])});
    items.push_back({data(of), data(gradients[i]), data(means[i]), data(squares[i]), of.numel()});
  }
  const torch::stable::accelerator::DeviceGuard guard(parameters[0].get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(parameters[0].get_device_index());
  const Clipping clipping{number_of(norm, parameters[0]), static_cast<float>(largest_norm)};
  const float* by = number_of(scale, parameters[0]);
  const float* skip = number_of(overflow, parameters[0]);
  const Tensor room = torch::stable::new_empty(parameters[0], {static_cast<int64_t>(count * sizeof(Factors))},
                                               ScalarType::Byte);
  auto* factors = static_cast<Factors*>(room.data_ptr());
  cuda_ext::for_each_list(settings, 1, [&](const auto& list, int first) {
    cuda_ext::launch(begin<std::decay_t<decltype(list)>::capacity>, {dim3(1), dim3(list.capacity), 0, stream}, list,
                     std::log(double{static_cast<float>(beta1)}), std::log(double{static_cast<float>(beta2)}),
                     clipping, skip, factors + first);
  });
  const Shares shares{static_cast<float>(beta1), static_cast<float>(beta2), static_cast<float>(epsilon)};
  bool early = true;
  cuda_ext::for_each_list(items, tile, [&](const auto& list, int first) {
    cuda_ext::launch(update<std::decay_t<decltype(list)>::capacity>,
                     {dim3(list.begins[list.count]), dim3(threads), 0, stream, early}, list,
                     static_cast<const Factors*>(factors + first), shares, by, skip);
    early = false;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "adamw(Tensor(a!)[] parameters, Tensor(b!)[] gradients, Tensor(c!)[] means, Tensor(d!)[] squares, "
      "Tensor(e!)[] steps, float[] rates, float[] weight_decays, float beta1, float beta2, float epsilon, "
      "Tensor? norm, float largest_norm, Tensor? scale, Tensor? overflow) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("adamw", TORCH_BOX(&adamw));
}
