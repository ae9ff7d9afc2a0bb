// What the GRU's other kernels read: the sequences in order of falling length, and the parameters as they multiply.

#include "../common/refuse.cuh"
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

constexpr int threads = 1024, warps = threads / 32;
constexpr unsigned all_lanes = 0xffffffff;
// Lengths that are counted apart; of longer batches a bin holds a few neighbouring lengths.
constexpr int bins = 256;
// A batch of so many steps is listed by the block that sorts it.
constexpr int few_steps = 1 << 13;

// The sum of `value` over the warp's lanes up to this one.
template <typename I>
__device__ I running_sum_of_warp(I value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const I before = __shfl_up_sync(all_lanes, value, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) value += before;
  }
  return value;
}

// Which steps of a batch are real. given: int32 or, if `wide`, int64 lengths [N] of a padded batch of `steps` steps,
// or, if steps < 0, offsets [N + 1] of a ragged one of `rows` rows. What would lie outside the batch is clamped: it can
// not be refused without waiting for the GPU.
struct Limits {
  const void* given;
  bool wide;
  int sequences, rows, steps;
  Sequence* plan;
  int* source;
  bool list;  // in the block that sorts, without a launch of its own

  __device__ int inside(int n, int low, int high) const {
    const int64_t value = wide ? static_cast<const int64_t*>(given)[n] : static_cast<const int32_t*>(given)[n];
    return static_cast<int>(value < low ? low : value > high ? high : value);
  }
  __device__ int first_of(int n) const { return inside(n, 0, rows); }
  __device__ int length_of(int n) const {
    if (steps >= 0) return inside(n, 0, steps);
    const int first = first_of(n);
    return inside(n + 1, first, rows) - first;
  }
};

// source[m]: the row of the padded batch [N T] that real step m is; after the last, the rows of the padding.
__device__ void list_steps(const Limits& of, int64_t index, int64_t stride) {
  const int64_t total = int64_t{of.sequences} * of.steps;
  const int real = of.plan[of.sequences].length;  // a padded batch's begin at 0
  for (int64_t i = index; i < total; i += stride) {
    const Sequence sequence = of.plan[i / of.steps];
    const int step = static_cast<int>(i % of.steps);
    const int64_t padding = int64_t{real} + sequence.state - sequence.first;
    const int64_t place = step < sequence.length ? sequence.first + step : padding + step - sequence.length;
    of.source[place] = sequence.state + step;
  }
}

__global__ void list_all_steps(Limits of) {
  cuda_ext::wait_for_the_one_before();
  list_steps(of, int64_t{blockIdx.x} * blockDim.x + threadIdx.x, int64_t{gridDim.x} * blockDim.x);
}

// One block sorts by counting. The sort is stable: sequences of one bin keep their order. A warp takes a run of
// sequences, and of each bin those of its run, behind those of the warps before it. plan[N] holds the row of the first
// real step and the row behind the last one.
__device__ void sort_by_length(const Limits& of) {
  __shared__ int start[warps][bins];
  __shared__ int64_t warp_sums[warps];
  __shared__ int longest;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < warps * bins; i += threads) start[0][i] = 0;
  if (threadIdx.x == 0) longest = 1;
  __syncthreads();
  const int64_t share = (int64_t{of.sequences} + threads - 1) / threads * 32;
  const int begin = static_cast<int>(min(warp * share, int64_t{of.sequences}));
  const int end = static_cast<int>(min(begin + share, int64_t{of.sequences}));
  int64_t sum = 0;
  int most = 0;
  // Unrolled, so that several loads are on their way.
#pragma unroll 8
  for (int n = begin + lane; n < end; n += 32) {
    const int length = of.length_of(n);
    sum += length;
    most = max(most, length);
  }
  atomicMax(&longest, most);
  sum = running_sum_of_warp(sum);
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  int64_t first = 0;
  for (int w = 0; w < warp; ++w) first += warp_sums[w];
  if (threadIdx.x == threads - 1) {
    const int origin = of.steps >= 0 ? 0 : of.first_of(0);
    const int last = of.steps >= 0 ? static_cast<int>(first + sum) : of.first_of(of.sequences);
    of.plan[of.sequences] = {0, origin, max(origin, last), 0};
  }

  // Bin 0 is the longest.
  const auto bin_of = [](int length) {
    const int shorter = longest - length;
    return longest < bins ? shorter : static_cast<int>(int64_t{shorter} * (bins - 1) / longest);
  };
#pragma unroll 4
  for (int n = begin + lane; n < end; n += 32) atomicAdd(&start[warp][bin_of(of.length_of(n))], 1);
  __syncthreads();
  // Counts become places: a thread a bin, whose warps follow one another.
  int count = 0;
  if (threadIdx.x < bins) {
    for (int w = 0; w < warps; ++w) count += start[w][threadIdx.x];
  }
  const int up_to = running_sum_of_warp(count);
  if (lane == 31) warp_sums[warp] = up_to;
  __syncthreads();
  if (threadIdx.x < bins) {
    int place = up_to - count;
    for (int w = 0; w < warp; ++w) place += static_cast<int>(warp_sums[w]);
    for (int w = 0; w < warps; ++w) {
      const int of_warp = start[w][threadIdx.x];
      start[w][threadIdx.x] = place;
      place += of_warp;
    }
  }
  __syncthreads();
  for (int base = begin; base < end; base += 32) {
    const int n = base + lane;
    const bool is = n < end;
    const int length = is ? of.length_of(n) : 0, bin = is ? bin_of(length) : -1;
    const int64_t up_to_this = running_sum_of_warp(int64_t{length});
    const unsigned alike = __match_any_sync(all_lanes, bin);
    const int before = __popc(alike & ((1u << lane) - 1));
    const int place = is ? start[warp][bin] + before : 0;
    __syncwarp();
    if (is && before == 0) start[warp][bin] += __popc(alike);
    __syncwarp();
    if (is) {
      const int row = of.steps >= 0 ? static_cast<int>(first + up_to_this - length) : of.first_of(n);
      of.plan[place] = {n, row, length, of.steps >= 0 ? n * of.steps : row};
    }
    first += __shfl_sync(all_lanes, up_to_this, 31);
  }
  if (of.list) {
    __syncthreads();
    list_steps(of, threadIdx.x, threads);
  }
}

struct Parameters {
  const void *w_ih, *w_hh, *b_ih, *b_hh;
};

// What is packed, and where it goes. input: the input weights of n, r and z, [d, 3, P, I] for the forward pass and
// [I, d, 3, P] for the backward (gru::packed_weights); of fp32 twice as fp16, high and low, each row scaled, then one
// float a row that takes the scale back (gru::scale_for). bias [d, 4, P]: what each gate's sum begins with. recurrent:
// fragments [d, warp, part, gate r z n, column, k-step, lane, 2] of a matrix instruction's right operand, of W_hh's
// transpose for the forward pass and of W_hh for the backward. The columns of a warp are dealt to its threads so that a
// thread's units, over all its columns, are neighbours.
template <typename T>
struct Packing {
  Parameters from[2];
  int directions, units, padded, inputs;
  bool transposed;
  gru::Packed weights;
  gru::Division by;
  T* input;
  float* bias;
  uint32_t* recurrent;
  int64_t input_size, bias_size, recurrent_size;
};

// nn.GRU's rows are r, z, n.
__device__ constexpr int row_of(int gate) { return gate == gru::reset ? 0 : gate == gru::update ? 1 : 2; }

template <typename W>
__device__ float number(const void* data, int64_t index) {
  return static_cast<float>(static_cast<const W*>(data)[index]);
}

// The weight of one gate's unit, `row` of [d, 3, P], and of one input; zero in the padding.
template <typename T, typename W>
__device__ float input_weight(const Packing<T>& of, int row, int column) {
  const int unit = row % of.padded, gate = row / of.padded % 3, direction = row / of.padded / 3;
  if (unit >= of.units || column >= of.inputs || direction >= of.directions) return 0;
  return number<W>(of.from[direction].w_ih, (int64_t{row_of(gate)} * of.units + unit) * of.inputs + column);
}

// fp32's input weights, a warp a row of the result.
__device__ void pack_scaled(const Packing<float>& of, int64_t warp, int64_t warps) {
  const int rows = static_cast<int>(of.weights.rows), columns = static_cast<int>(of.weights.columns);
  const int lane = threadIdx.x % 32;
  const auto weight = [&](int row, int column) {
    return of.transposed ? input_weight<float, float>(of, column, row) : input_weight<float, float>(of, row, column);
  };
  uint32_t* const high = reinterpret_cast<uint32_t*>(of.input);
  const int64_t part = of.weights.rows * columns / 2;
  const auto two = [&](int row, int place) {
    const int column = gru::packed_number<float>(place);
    return place < columns ? make_float2(weight(row, column), weight(row, column + 1)) : float2{};
  };
  constexpr int held = 6, stretch = 64 * held;  // a shorter row is read once
  for (int row = static_cast<int>(warp); row < rows; row += static_cast<int>(warps)) {
    float2 values[held];
    float largest = 0;
    for (int first = 0; first < columns; first += stretch) {
#pragma unroll
      for (int i = 0; i < held; ++i) values[i] = two(row, first + 64 * i + 2 * lane);
#pragma unroll
      for (int i = 0; i < held; ++i) largest = fmaxf(largest, fmaxf(fabsf(values[i].x), fabsf(values[i].y)));
    }
    const float scale = gru::scale_for(gru::largest_in_warp(largest));
    for (int first = 0; first < columns; first += stretch) {
#pragma unroll
      for (int i = 0; i < held; ++i) {
        const int place = first + 64 * i + 2 * lane;
        const float2 now = columns <= stretch ? values[i] : two(row, place);
        uint32_t* to = high + (int64_t{row} * columns + place) / 2;
        if (place < columns) gru::split_pair<__half>(make_float2(now.x * scale, now.y * scale), to[0], to[part]);
      }
    }
    if (lane == 0) of.input[2 * part + row] = gru::inverse_of(scale);
  }
}

// Number i of all others.
template <typename T, typename W>
__device__ void pack(const Packing<T>& of, int64_t i) {
  if constexpr (!std::is_same_v<T, float>) {
    if (i < of.input_size) {
      const int row = static_cast<int>(i / of.weights.columns), place = static_cast<int>(i % of.weights.columns);
      const int column = gru::packed_number<T>(place);
      const int gate = of.transposed ? column : row, input = of.transposed ? row : column;
      of.input[i] = static_cast<T>(input_weight<T, W>(of, gate, input));
      return;
    }
    i -= of.input_size;
  }
  if (i < of.bias_size) {
    const int unit = static_cast<int>(i % of.padded), gate = static_cast<int>(i / of.padded % 4);
    const Parameters& from = of.from[i / of.padded / 4];
    const int row = row_of(gate) * of.units + unit;
    float value = 0;
    if (unit < of.units && gate != gru::recurrent) value += number<W>(from.b_ih, row);
    if (unit < of.units && gate != gru::candidate) value += number<W>(from.b_hh, row);
    of.bias[i] = value;
    return;
  }
  i -= of.bias_size;
  using E = gru::Operand<T>;
  int64_t rest = i;
  const auto next = [&rest](int count) {
    const int index = static_cast<int>(rest % count);
    rest /= count;
    return index;
  };
  const int half = next(2), lane = next(32), k_step = next(of.by.k_steps), column = next(of.by.columns);
  const int gate = next(3), part = next(gru::parts<T>), warp = next(of.by.warps);
  const void* weights = of.from[rest].w_hh;
  const int place = lane / 4;
  const int unit = warp * 8 * of.by.columns + place / 2 * 2 * of.by.columns + 2 * column + place % 2;
  const int k = 16 * k_step + lane % 4 * 2 + 8 * half;
  float values[2];
  for (int e = 0; e < 2; ++e) {
    const int row = of.transposed ? k + e : unit, other = of.transposed ? unit : k + e;
    const bool is = row < of.units && other < of.units;
    values[e] = is ? number<W>(weights, (int64_t{gate} * of.units + row) * of.units + other) : 0.f;
  }
  uint32_t high = gru::pack<E>(values[0], values[1]), low = 0;
  if (part == 1) gru::split_pair<E>(make_float2(values[0], values[1]), high, low);
  of.recurrent[i] = part == 0 ? high : low;
}

// The first block sorts, if there is something to sort; the others pack.
template <typename T, typename W>
__global__ void __launch_bounds__(threads) prepare(Limits limits, Packing<T> packing) {
  cuda_ext::wait_for_the_one_before();
  const bool sorts = limits.plan != nullptr;  // of no sequences too, whose lengths lie nowhere
  if (sorts && blockIdx.x == 0) {
    sort_by_length(limits);
    return;
  }
  int64_t total = packing.bias_size + packing.recurrent_size;
  const int64_t stride = int64_t{gridDim.x - sorts} * threads;
  const int64_t first = int64_t{blockIdx.x - sorts} * threads + threadIdx.x;
  if constexpr (std::is_same_v<T, float>) {
    pack_scaled(packing, first / 32, stride / 32);
  } else {
    total += packing.input_size;
  }
  for (int64_t i = first; i < total; i += stride) pack<T, W>(packing, i);
}

// x: of the dtype to multiply in. limits: as in Limits, or none, and then plan and source are empty. Parameters: as
// nn.GRU's, of x's dtype or float32. -> plan int32 [N + 1, 4] (gru::Sequence), source int32 [N T] (of a ragged batch
// [0]), and input, bias and recurrent as in Packing.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_prepare(
    Tensor x, std::optional<Tensor> limits, int64_t rows, int64_t steps, Tensor w_ih, Tensor w_hh, Tensor b_ih,
    Tensor b_hh, std::optional<Tensor> w_ih_reverse, std::optional<Tensor> w_hh_reverse,
    std::optional<Tensor> b_ih_reverse, std::optional<Tensor> b_hh_reverse, int64_t sequences, bool transposed) {
  CUDA_EXT_REFUSE_UNLESS(x.is_cuda(), "gru_prepare: x must be on a GPU");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());

  Tensor given, plan, source;
  Limits of{};
  int64_t listed = 0;
  if (limits.has_value()) {
    given = torch::stable::contiguous(*limits);
    STD_TORCH_CHECK(given.is_cuda() && given.get_device_index() == x.get_device_index() && given.dim() == 1 &&
                        (given.scalar_type() == ScalarType::Int || given.scalar_type() == ScalarType::Long),
                    "gru_prepare: lengths or offsets must be int32 or int64, one-dimensional and on x's GPU");
    STD_TORCH_CHECK(given.numel() == sequences + (steps < 0), "gru_prepare: ", sequences, " sequences have as many "
                    "lengths, or offsets and one, got ", given.numel());
    STD_TORCH_CHECK(rows <= INT_MAX && sequences < INT_MAX, "gru_prepare: a batch holds fewer than 2^31 steps, got ",
                    rows);
    STD_TORCH_CHECK(steps < 0 || rows == sequences * steps, "gru_prepare: ", sequences, " sequences of ", steps,
                    " steps are not ", rows, " rows");
    listed = std::max<int64_t>(steps, 0) * sequences;
  }
  plan = torch::stable::new_empty(x, {limits.has_value() ? sequences + 1 : 0, 4}, ScalarType::Int);
  source = torch::stable::new_empty(x, {listed}, ScalarType::Int);
  if (limits.has_value()) {
    of = {given.data_ptr(), given.scalar_type() == ScalarType::Long, static_cast<int>(sequences),
          static_cast<int>(rows), static_cast<int>(steps), static_cast<Sequence*>(plan.data_ptr()),
          static_cast<int*>(source.data_ptr()), 0 < listed && listed <= few_steps};
  }

  const int64_t directions = w_ih_reverse.has_value() ? 2 : 1;
  std::array<Tensor, 8> parameters{w_ih, w_hh, b_ih, b_hh, w_ih, w_hh, b_ih, b_hh};
  if (directions == 2) {
    STD_TORCH_CHECK(w_hh_reverse && b_ih_reverse && b_hh_reverse, "gru_prepare: a direction has four parameters");
    parameters[4] = *w_ih_reverse;
    parameters[5] = *w_hh_reverse;
    parameters[6] = *b_ih_reverse;
    parameters[7] = *b_hh_reverse;
  }
  STD_TORCH_CHECK(w_ih.dim() == 2 && w_hh.dim() == 2 && w_hh.size(0) == 3 * w_hh.size(1) && w_hh.size(1) > 0 &&
                      w_hh.size(1) <= 128 && w_ih.size(0) == w_hh.size(0),
                  "gru_prepare: w_ih must be [3 H, I] and w_hh [3 H, H] with H from 1 to 128");
  const ScalarType narrow = x.scalar_type(), wide = w_ih.scalar_type();
  for (int i = 0; i < 8; ++i) {
    const Tensor& like = parameters[i % 4];
    STD_TORCH_CHECK(parameters[i].is_cuda() && parameters[i].get_device_index() == x.get_device_index() &&
                        parameters[i].scalar_type() == wide && parameters[i].numel() == like.numel() &&
                        (i % 4 < 2 || parameters[i].numel() == w_hh.size(0)),
                    "gru_prepare: parameter ", i, " differs in device, dtype or size from the others or from x");
    parameters[i] = torch::stable::contiguous(parameters[i]);
  }
  const int64_t units = w_hh.size(1), padded = (units + 7) / 8 * 8, inputs = w_ih.size(1);
  const gru::Packed packed =
      gru::packed_weights(narrow == ScalarType::Float, directions * 3 * padded, inputs, transposed);
  Tensor input = torch::stable::new_empty(x, {packed.size});
  Tensor bias = torch::stable::new_empty(x, {directions, 4, padded}, ScalarType::Float);
  Tensor recurrent;
  const auto run = [&](auto t, auto w) {
    using T = decltype(t);
    using W = decltype(w);
    Packing<T> packing{};
    for (int d = 0; d < 2; ++d) {
      packing.from[d] = {parameters[4 * d].data_ptr(), parameters[4 * d + 1].data_ptr(),
                         parameters[4 * d + 2].data_ptr(), parameters[4 * d + 3].data_ptr()};
    }
    packing.directions = static_cast<int>(directions);
    packing.units = static_cast<int>(units);
    packing.padded = static_cast<int>(padded);
    packing.inputs = static_cast<int>(inputs);
    packing.transposed = transposed;
    packing.weights = packed;
    packing.by = gru::division<T>(units, directions, sequences);
    packing.input_size = input.numel();
    packing.bias_size = bias.numel();
    const int64_t size = gru::fragments<T>(packing.by, directions);
    recurrent = torch::stable::new_empty(x, {size}, ScalarType::Int);
    packing.recurrent_size = size;
    packing.input = static_cast<T*>(input.data_ptr());
    packing.bias = static_cast<float*>(bias.data_ptr());
    packing.recurrent = static_cast<uint32_t*>(recurrent.data_ptr());
    const int64_t total = packing.input_size + packing.bias_size + packing.recurrent_size;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((total + threads - 1) / threads, 1 << 12));
    cuda_ext::launch_early(prepare<T, W>, dim3(blocks + (of.plan != nullptr)), dim3(threads), 0, stream, of, packing);
  };
  STD_TORCH_CHECK(wide == narrow || wide == ScalarType::Float,
                  "gru_prepare: parameters must be of x's dtype, or float32 with an x of half precision");
  cuda_ext::with_dtype("gru_prepare", narrow, [&](auto t) {
    if (wide == narrow) {
      run(t, t);
    } else {
      run(t, float{});
    }
  });
  if (listed > 0 && !of.list) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((listed + 255) / 256, 1 << 20));
    cuda_ext::launch_early(list_all_steps, dim3(blocks), dim3(256), 0, stream, of);
  }
  return {plan, source, input, bias, recurrent};
}

// Zeros to the rows of a ragged batch that no sequence has, before the first one and behind the last.
template <typename T>
__global__ void __launch_bounds__(threads)
    clear(const Sequence* plan, int sequences, T* rows, int64_t count, int64_t width) {
  cuda_ext::wait_for_the_one_before();
  const Sequence all = plan[sequences];
  const int64_t begin = all.first * width, gap = all.length * width - begin;
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < count * width - gap;
       i += int64_t{gridDim.x} * threads) {
    rows[i < begin ? i : i + gap] = T(0.0f);
  }
}

void gru_clear(Tensor plan, Tensor rows) {
  CUDA_EXT_REFUSE_UNLESS(rows.is_cuda(), "gru_clear: rows must be on a GPU");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(rows, plan, ScalarType::Int, "gru_clear: plan");
  STD_TORCH_CHECK(rows.is_cuda() && rows.is_contiguous() && rows.dim() == 2 && plan.is_cuda() && plan.is_contiguous() &&
                      plan.dim() == 2 && plan.size(1) == 4,
                  "gru_clear: rows and plan do not fit together");
  if (rows.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(rows.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(rows.get_device_index());
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>((rows.numel() + threads - 1) / threads, 4 * cuda_ext::multiprocessors()));
  cuda_ext::with_dtype("gru_clear", rows.scalar_type(), [&](auto t) {
    using T = decltype(t);
    cuda_ext::launch_early(clear<T>, dim3(blocks), dim3(threads), 0, stream,
                           static_cast<const Sequence*>(plan.data_ptr()), static_cast<int>(plan.size(0) - 1),
                           static_cast<T*>(rows.data_ptr()), rows.size(0), rows.size(1));
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "gru_prepare(Tensor x, Tensor? limits, int rows, int steps, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, "
      "Tensor? w_ih_reverse, Tensor? w_hh_reverse, Tensor? b_ih_reverse, Tensor? b_hh_reverse, int sequences, "
      "bool transposed) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("gru_clear(Tensor plan, Tensor(a!) rows) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("gru_prepare", TORCH_BOX(&gru_prepare));
  m.impl("gru_clear", TORCH_BOX(&gru_clear));
}
