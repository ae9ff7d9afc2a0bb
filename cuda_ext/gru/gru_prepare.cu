// What the GRU's other kernels read: the sequences in order of falling length, and the parameters as they multiply.

#include "gru.cuh"

#include <algorithm>
#include <array>
#include <climits>
#include <optional>
#include <tuple>

namespace {

using gru::Sequence;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int plan_threads = 1024;
constexpr int bins = 2 * plan_threads;

// The sum of `value` over this thread and those before it, over the block.
__device__ int64_t running_sum(int64_t value, int64_t* warp_sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int64_t before = __shfl_up_sync(0xffffffff, value, distance);
    if (lane >= distance) value += before;
  }
  __syncthreads();
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += warp_sums[w];
  return value;
}

// given: lengths [N] of a padded batch of `steps` steps, or, if steps < 0, offsets [N + 1] of a ragged one of `rows`
// rows. What would lie outside the batch is clamped: it can not be refused without waiting for the GPU. One block sorts
// by counting, so the order within one length (and, beyond 2048 steps, within two or more neighbouring ones) is any; no
// result depends on it. plan[N] holds the number of real steps in all.
template <typename I>
__global__ void __launch_bounds__(plan_threads) sort_by_length(const I* given, int sequences, int rows, int steps,
                                                               Sequence* plan) {
  __shared__ int start[bins];
  __shared__ int64_t warp_sums[plan_threads / 32];
  __shared__ int longest;
  const auto inside = [](int64_t value, int64_t low, int64_t high) { return value < low ? low : value > high ? high : value; };
  const auto first_of = [&](int n) { return inside(given[n], 0, rows); };
  const auto length_of = [&](int n) {
    if (steps >= 0) return static_cast<int>(inside(given[n], 0, steps));
    return static_cast<int>(inside(given[n + 1], first_of(n), rows) - first_of(n));
  };

  for (int i = threadIdx.x; i < bins; i += plan_threads) start[i] = 0;
  if (threadIdx.x == 0) longest = 1;
  __syncthreads();
  const int share = (sequences + plan_threads - 1) / plan_threads;
  const int begin = min(static_cast<int64_t>(threadIdx.x) * share, static_cast<int64_t>(sequences));
  const int end = min(begin + share, sequences);
  int64_t sum = 0;
  int most = 0;
  for (int n = begin; n < end; ++n) {
    const int length = length_of(n);
    sum += length;
    most = max(most, length);
  }
  atomicMax(&longest, __reduce_max_sync(0xffffffff, most));
  int64_t first = running_sum(sum, warp_sums) - sum;
  if (threadIdx.x == plan_threads - 1) plan[sequences] = {0, 0, static_cast<int>(first + sum), 0};

  // Bin 0 is the longest.
  const auto bin_of = [&](int length) {
    return longest < bins ? longest - length : static_cast<int>(int64_t{longest - length} * (bins - 1) / longest);
  };
  for (int n = begin; n < end; ++n) atomicAdd(&start[bin_of(length_of(n))], 1);
  __syncthreads();
  const int even = start[2 * threadIdx.x], odd = start[2 * threadIdx.x + 1];
  const int before = static_cast<int>(running_sum(even + odd, warp_sums)) - even - odd;
  __syncthreads();
  start[2 * threadIdx.x] = before;
  start[2 * threadIdx.x + 1] = before + even;
  __syncthreads();
  for (int n = begin; n < end; ++n) {
    const int length = length_of(n);
    const int row = steps >= 0 ? static_cast<int>(first) : static_cast<int>(first_of(n));
    plan[atomicAdd(&start[bin_of(length)], 1)] = {n, row, length, steps >= 0 ? n * steps : row};
    first += length;
  }
}

// source[m]: the row of the padded batch [N T] that real step m is; after the last, the rows of the padding.
__global__ void list_steps(const Sequence* plan, int sequences, int steps, int* source) {
  const int64_t total = int64_t{sequences} * steps;
  const int real = plan[sequences].length;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const Sequence sequence = plan[i / steps];
    const int step = static_cast<int>(i % steps);
    const int64_t padding = real + sequence.state - sequence.first;
    source[step < sequence.length ? sequence.first + step : padding + step - sequence.length] = sequence.state + step;
  }
}

// -> plan int32 [N + 1, 4] (gru::Sequence), source int32 [N T] (of a ragged batch [0]).
std::tuple<Tensor, Tensor> gru_plan(Tensor given, int64_t rows, int64_t steps) {
  STD_TORCH_CHECK(given.is_cuda() && given.dim() == 1, "gru_plan: lengths or offsets must be one-dimensional, on a GPU");
  const int64_t sequences = given.numel() - (steps < 0);
  STD_TORCH_CHECK(sequences >= 0, "gru_plan: offsets must hold one number more than there are sequences, got none");
  STD_TORCH_CHECK(rows <= INT_MAX && sequences < INT_MAX, "gru_plan: a batch holds fewer than 2^31 steps, got ", rows);
  STD_TORCH_CHECK(steps < 0 || rows == sequences * steps, "gru_plan: ", sequences, " sequences of ", steps,
                  " steps are not ", rows, " rows");
  const torch::stable::accelerator::DeviceGuard guard(given.get_device_index());
  given = torch::stable::contiguous(given);
  Tensor plan = torch::stable::new_empty(given, {sequences + 1, 4}, ScalarType::Int);
  Tensor source = torch::stable::new_empty(given, {std::max<int64_t>(steps, 0) * sequences}, ScalarType::Int);
  auto* data = static_cast<Sequence*>(plan.data_ptr());
  const cudaStream_t stream = cuda_ext::current_stream(given.get_device_index());
  const int n = static_cast<int>(sequences), t = static_cast<int>(steps), m = static_cast<int>(rows);
  if (given.scalar_type() == ScalarType::Int) {
    sort_by_length<<<1, plan_threads, 0, stream>>>(static_cast<const int32_t*>(given.data_ptr()), n, m, t, data);
  } else {
    STD_TORCH_CHECK(given.scalar_type() == ScalarType::Long, "gru_plan: lengths and offsets must be int32 or int64");
    sort_by_length<<<1, plan_threads, 0, stream>>>(static_cast<const int64_t*>(given.data_ptr()), n, m, t, data);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  if (source.numel() > 0) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((source.numel() + 255) / 256, 1 << 20));
    list_steps<<<blocks, 256, 0, stream>>>(data, n, t, static_cast<int*>(source.data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return {plan, source};
}

struct Parameters {
  const void *w_ih, *w_hh, *b_ih, *b_hh;
};

struct BothDirections {
  Parameters of[2];
};

// nn.GRU's rows are r, z, n.
__device__ constexpr int row_of(int gate) { return gate == gru::reset ? 0 : gate == gru::update ? 1 : 2; }

__host__ __device__ constexpr int64_t to_eight(int64_t inputs) { return (inputs + 7) / 8 * 8; }

// What lies at place i of the packed input weights.
struct Input {
  int direction, gate, unit, column;

  __device__ Input(int64_t i, bool transposed, int directions, int padded, int inputs) {
    const int64_t rows = int64_t{directions} * 3 * padded;
    const int row = static_cast<int>(transposed ? i % rows : i / to_eight(inputs));
    column = static_cast<int>(transposed ? i / rows : i % to_eight(inputs));
    unit = row % padded;
    gate = row / padded % 3;
    direction = row / padded / 3;
  }
};

template <typename W>
__device__ float number(const void* data, int64_t index) {
  return static_cast<float>(static_cast<const W*>(data)[index]);
}

// input: the input weights of n, r and z, [d, 3, P, I to 8] for the forward pass and [I, d, 3, P] for the backward. bias [d, 4, P]: what each gate's sum begins with.
// recurrent: fragments [d, warp, part, gate r z n, column, k-step, lane, 2] of a matrix instruction's right operand, of
// W_hh's transpose for the forward pass and of W_hh for the backward pass. The columns of a warp are dealt to its
// threads so that each thread's units, over all its columns, are neighbours.
template <typename T, typename W>
__global__ void pack(BothDirections parameters, int directions, int units, int padded, int inputs, int warps,
                     int columns, int k_steps, T* input, float* bias, uint32_t* recurrent, bool transposed) {
  using E = gru::Operand<T>;
  constexpr int parts = gru::parts<T>;
  const int64_t inputs_total = int64_t{directions} * 3 * padded * (transposed ? inputs : to_eight(inputs));
  const int64_t bias_total = int64_t{directions} * 4 * padded;
  const int64_t fragments = int64_t{directions} * warps * parts * 3 * columns * k_steps * 64;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < inputs_total + bias_total + fragments;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (i < inputs_total) {
      const Input at(i, transposed, directions, padded, inputs);
      const Parameters& from = parameters.of[at.direction];
      const bool is = at.unit < units && at.column < inputs;
      const int64_t index = (int64_t{row_of(at.gate)} * units + at.unit) * inputs + at.column;
      input[i] = static_cast<T>(is ? number<W>(from.w_ih, index) : 0.f);
    } else if (i < inputs_total + bias_total) {
      const int j = static_cast<int>(i - inputs_total);
      const int unit = j % padded, gate = j / padded % 4, direction = j / padded / 4;
      const Parameters& from = parameters.of[direction];
      const int row = row_of(gate) * units + unit;
      float value = 0.f;
      if (unit < units) {
        if (gate != gru::memory) value += number<W>(from.b_ih, row);
        if (gate != gru::candidate) value += number<W>(from.b_hh, row);
      }
      bias[j] = value;
    } else {
      int64_t j = i - inputs_total - bias_total;
      const auto next = [&j](int count) {
        const int index = static_cast<int>(j % count);
        j /= count;
        return index;
      };
      const int half = next(2), lane = next(32), k_step = next(k_steps), column = next(columns), gate = next(3);
      const int part = next(parts), warp = next(warps), direction = static_cast<int>(j);
      const int place = lane / 4;
      const int unit = warp * 8 * columns + place / 2 * 2 * columns + 2 * column + place % 2;
      const int k = 16 * k_step + lane % 4 * 2 + 8 * half;
      float values[2];
      for (int e = 0; e < 2; ++e) {
        const int64_t row = transposed ? k + e : unit, other = transposed ? unit : k + e;
        values[e] = 0.f;
        if (unit < units && k + e < units) {
          values[e] = number<W>(parameters.of[direction].w_hh, (int64_t{gate} * units + row) * units + other);
        }
        if (part == 1) values[e] = gru::remainder<E>(values[e]);
      }
      recurrent[i - inputs_total - bias_total] = gru::packed<E>(values[0], values[1]);
    }
  }
}

// float64: the recurrent weights as they are, [d, 3 H, H].
__global__ void pack_double(BothDirections parameters, int directions, int units, int padded, int inputs, double* input,
                            double* bias, double* recurrent, bool transposed) {
  const int64_t inputs_total = int64_t{directions} * 3 * padded * (transposed ? inputs : to_eight(inputs));
  const int64_t bias_total = int64_t{directions} * 4 * padded;
  const int64_t square = int64_t{3} * units * units;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < inputs_total + bias_total + directions * square;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (i < inputs_total) {
      const Input at(i, transposed, directions, padded, inputs);
      const auto* from = static_cast<const double*>(parameters.of[at.direction].w_ih);
      const bool is = at.unit < units && at.column < inputs;
      input[i] = is ? from[(int64_t{row_of(at.gate)} * units + at.unit) * inputs + at.column] : 0.;
    } else if (i < inputs_total + bias_total) {
      const int j = static_cast<int>(i - inputs_total);
      const int unit = j % padded, gate = j / padded % 4;
      const Parameters& from = parameters.of[j / padded / 4];
      const int row = row_of(gate) * units + unit;
      double value = 0.;
      if (unit < units) {
        if (gate != gru::memory) value += static_cast<const double*>(from.b_ih)[row];
        if (gate != gru::candidate) value += static_cast<const double*>(from.b_hh)[row];
      }
      bias[j] = value;
    } else {
      const int64_t j = i - inputs_total - bias_total;
      recurrent[j] = static_cast<const double*>(parameters.of[j / square].w_hh)[j % square];
    }
  }
}

template <typename T, typename W>
void launch_pack(const BothDirections& parameters, int64_t directions, int64_t units, int64_t padded, int64_t inputs,
                 const Tensor& input, const Tensor& bias, Tensor& recurrent, bool transposed, cudaStream_t stream) {
  const gru::Division by = gru::division<T>(units);
  const int64_t fragments = directions * by.warps * gru::parts<T> * 3 * by.columns * by.k_steps * 64;
  recurrent = torch::stable::new_empty(input, {fragments}, ScalarType::Int);
  const int64_t total = input.numel() + bias.numel() + fragments;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((total + 255) / 256, 1 << 16));
  pack<T, W><<<blocks, 256, 0, stream>>>(parameters, static_cast<int>(directions), static_cast<int>(units),
                                         static_cast<int>(padded), static_cast<int>(inputs), by.warps, by.columns,
                                         by.k_steps, static_cast<T*>(input.data_ptr()),
                                         static_cast<float*>(bias.data_ptr()),
                                         static_cast<uint32_t*>(recurrent.data_ptr()), transposed);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// x: of the dtype to multiply in. Parameters as nn.GRU's, of x's dtype or float32.
std::tuple<Tensor, Tensor, Tensor> gru_pack(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh,
                                            std::optional<Tensor> w_ih_reverse, std::optional<Tensor> w_hh_reverse,
                                            std::optional<Tensor> b_ih_reverse, std::optional<Tensor> b_hh_reverse,
                                            bool transposed) {
  const int64_t directions = w_ih_reverse.has_value() ? 2 : 1;
  std::array<Tensor, 8> given{w_ih, w_hh, b_ih, b_hh, w_ih, w_hh, b_ih, b_hh};
  if (directions == 2) {
    STD_TORCH_CHECK(w_hh_reverse && b_ih_reverse && b_hh_reverse, "gru_pack: a backward direction has four parameters");
    given[4] = *w_ih_reverse;
    given[5] = *w_hh_reverse;
    given[6] = *b_ih_reverse;
    given[7] = *b_hh_reverse;
  }
  STD_TORCH_CHECK(w_ih.dim() == 2 && w_hh.dim() == 2 && w_hh.size(0) == 3 * w_hh.size(1) && w_hh.size(1) > 0 &&
                      w_hh.size(1) <= 128 && w_ih.size(0) == w_hh.size(0),
                  "gru_pack: w_ih must be [3 H, I] and w_hh [3 H, H] with H from 1 to 128");
  const ScalarType wide = w_ih.scalar_type();
  BothDirections parameters;
  for (int i = 0; i < 8; ++i) {
    const Tensor& expected = given[i % 4];
    STD_TORCH_CHECK(given[i].is_cuda() && given[i].get_device_index() == x.get_device_index() &&
                        given[i].scalar_type() == wide && given[i].numel() == expected.numel() &&
                        (i % 4 < 2 || given[i].numel() == w_hh.size(0)),
                    "gru_pack: parameter ", i, " differs in device, dtype or size from the others or from x");
    given[i] = torch::stable::contiguous(given[i]);
  }
  for (int d = 0; d < 2; ++d) {
    parameters.of[d] = {given[4 * d].data_ptr(), given[4 * d + 1].data_ptr(), given[4 * d + 2].data_ptr(),
                        given[4 * d + 3].data_ptr()};
  }
  const int64_t units = w_hh.size(1), padded = (units + 7) / 8 * 8, inputs = w_ih.size(1);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const ScalarType narrow = x.scalar_type();
  Tensor input = torch::stable::new_empty(x, {directions * 3 * padded * (transposed ? inputs : to_eight(inputs))});
  Tensor bias = torch::stable::new_empty(x, {directions, 4, padded},
                                         narrow == ScalarType::Double ? ScalarType::Double : ScalarType::Float);
  Tensor recurrent;
  const auto run = [&](auto t, auto w) {
    launch_pack<decltype(t), decltype(w)>(parameters, directions, units, padded, inputs, input, bias, recurrent,
                                          transposed, stream);
  };
  STD_TORCH_CHECK(wide == narrow || wide == ScalarType::Float, "gru_pack: parameters must be of x's dtype or float32");
  if (narrow == ScalarType::Double) {
    STD_TORCH_CHECK(wide == narrow, "gru_pack: with x of float64 the parameters are too");
    recurrent = torch::stable::new_empty(x, {directions, 3 * units, units});
    const int64_t total = input.numel() + bias.numel() + recurrent.numel();
    pack_double<<<static_cast<unsigned>(std::min<int64_t>((total + 255) / 256, 1 << 16)), 256, 0, stream>>>(
        parameters, static_cast<int>(directions), static_cast<int>(units), static_cast<int>(padded),
        static_cast<int>(inputs), static_cast<double*>(input.data_ptr()), static_cast<double*>(bias.data_ptr()),
        static_cast<double*>(recurrent.data_ptr()), transposed);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  } else if (narrow == ScalarType::Float) {
    run(float{}, float{});
  } else if (narrow == ScalarType::Half) {
    wide == narrow ? run(__half{}, __half{}) : run(__half{}, float{});
  } else {
    STD_TORCH_CHECK(narrow == ScalarType::BFloat16, "gru_pack: x must be float64, float32, float16 or bfloat16");
    wide == narrow ? run(__nv_bfloat16{}, __nv_bfloat16{}) : run(__nv_bfloat16{}, float{});
  }
  return {input, bias, recurrent};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(cuda_ext_kernels, m) {
  m.def("gru_plan(Tensor given, int rows, int steps) -> (Tensor, Tensor)");
  m.def(
      "gru_pack(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor? w_ih_reverse, "
      "Tensor? w_hh_reverse, Tensor? b_ih_reverse, Tensor? b_hh_reverse, bool transposed) "
      "-> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(cuda_ext_kernels, CUDA, m) {
  m.impl("gru_plan", TORCH_BOX(&gru_plan));
  m.impl("gru_pack", TORCH_BOX(&gru_pack));
}
