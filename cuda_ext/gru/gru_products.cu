// The GRU's large matrix products, over real steps alone: rows `origin` to `last`, which only the GPU knows (plan[N]); a
// block of other rows ends at once. A library's product would do all N T.
//
// `project` makes the gates' sums from the input, and the input's gradient from theirs. `correlate` makes the weights'
// gradients in slices of M, and `finish` adds those up in order. In half precision, where an operand or the sums fit into a
// block's registers, `project_stationary`, `correlate_whole` and `finish_whole` do.

#include "../common/refuse.cuh"
#include "correlate_whole.cuh"
#include "project_stationary.cuh"

#include <algorithm>
#include <array>
#include <climits>
#include <optional>
#include <vector>

namespace {

using gru::Correlation;
using gru::Matrix;
using gru::Product;
using gru::Sequence;
using gru::Weights;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int finish_threads = 128;

template <typename W>
struct Gradients {
  W *w_ih[2], *w_hh[2], *b_ih[2], *b_hh[2];

  // The place of a sum as nn.GRU lays the gradients out, rows r, z, n: `column` of x or of the state, of which `own` are
  // real and number `last` is the bias; null where it is none.
  __device__ W* at(bool of_state, int direction, int row, int column, int own, int last) const {
    const auto of = [direction](W* const (&both)[2]) { return direction == 0 ? both[0] : both[1]; };
    if (column == last) return (of_state ? of(b_hh) : of(b_ih)) + row;
    return column < own ? (of_state ? of(w_hh) : of(w_ih)) + int64_t{row} * own + column : nullptr;
  }
};

// The slices added up in order. A row of the grid is one of a direction's rows r, z, n.
// from_input [slices, d, 3 (n r z), P, I to 4 and 1], from_state [slices, d, 3 (r z m), P, P + 1].
template <typename W>
__global__ void __launch_bounds__(finish_threads)
    finish(const float* from_input, const float* from_state, int slices, int directions, int units, int padded, int inputs,
           int wide_inputs, Gradients<W> out) {
  cuda_ext::wait_for_the_one_before();
  const int direction = blockIdx.y / (3 * units), row = blockIdx.y % (3 * units), gate = row / units;
  const int place = blockIdx.x * finish_threads + threadIdx.x;
  const bool state = place > wide_inputs;
  const int column = state ? place - wide_inputs - 1 : place, last = state ? padded : wide_inputs;
  W* const to = out.at(state, direction, row, column, state ? units : inputs, last);
  if (column > last || to == nullptr) return;
  const int stretch = state ? gate : gate == 2 ? 0 : gate + 1;
  const int64_t at = ((direction * 3 + stretch) * padded + row % units) * int64_t{last + 1} + column;
  const int64_t slice = int64_t{directions} * 3 * padded * (last + 1);
  const float* const from = (state ? from_state : from_input) + at;
  float sum = 0;
#pragma unroll 16
  for (int s = 0; s < slices; ++s) sum += from[s * slice];
  *to = static_cast<W>(sum);
}

// The same of what correlate_whole left. A block adds up one tile of one of its warps: four warps take a quarter of the
// slices each, and then one number each of the lanes' four. Gradients lie in stretches of whole_units, of which the input
// has the first three and the state the last three:
//
//   stretch         0 candidate  1 reset  2 update  3 recurrent
//   nn.GRU's gate   2 n          0 r      1 z       2 n
template <typename W>
__global__ void __launch_bounds__(finish_threads)
    finish_whole(const float4* sums, int slices, int directions, int width, int units, int padded, int inputs,
                 int wide_inputs, Gradients<W> out) {
  __shared__ float4 parts[4][32];
  cuda_ext::wait_for_the_one_before();
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32, tile = blockIdx.y;
  const int warp = blockIdx.x % gru::whole_warps, block = blockIdx.x / gru::whole_warps, direction = block % directions;
  const int first_column = block / directions * width;
  const gru::Job job(warp, first_column, width, wide_inputs, padded);
  if (tile >= job.count * job.tiles()) return;
  const float4* const from = sums + (int64_t{blockIdx.x} * gru::most_tiles + tile) * 32 + lane;
  const int64_t slice = int64_t{gridDim.x} * gru::most_tiles * 32;
  float4 sum{};
#pragma unroll 8
  for (int s = slices * own / 4; s < slices * (own + 1) / 4; ++s) {
    const float4 more = from[s * slice];
    sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
  }
  parts[own][lane] = sum;
  __syncthreads();
  const auto part = [&](int p) { return reinterpret_cast<const float*>(&parts[p][lane])[own]; };
  const int column = first_column + 16 * (job.first + tile / job.tiles()) + lane / 4 + own / 2 * 8;
  const int place = job.gradient + tile % job.tiles() * 8 + lane % 4 * 2 + own % 2;
  const int unit = place % gru::whole_units, stretch = place / gru::whole_units, gate = (stretch + 2) % 3;
  if (unit >= units) return;
  W* const to = job.of_h ? out.at(true, direction, gate * units + unit, column, units, padded)
                         : out.at(false, direction, gate * units + unit, column, inputs, wide_inputs);
  if (to != nullptr) *to = static_cast<W>(part(0) + part(1) + part(2) + part(3));
}

template <typename T, int across, int stages>
void launch_across(const Product<T>& of, cudaStream_t stream) {
  constexpr int shared = sizeof(gru::ProjectShared<T, across, stages>);
  const int64_t blocks = (of.rows + gru::tall - 1) / gru::tall * ((of.c.columns + across - 1) / across);
  if constexpr (stages > 2) {
    if (shared > cuda_ext::shared_memory_of_a_block()) return launch_across<T, across, stages - 1>(of, stream);
  }
  cuda_ext::launch_early(gru::project<T, across, stages>, dim3(static_cast<unsigned>(blocks)), dim3(gru::project_threads),
                         shared, stream, of.a, of.a_source, of.b, of.bias, of.c, of.c_source, of.all, of.rows, of.plan,
                         of.sequences);
}

template <typename T, int k_steps>
void launch_stationary(const Product<T>& of, cudaStream_t stream) {
  using S = gru::Stationary<k_steps>;
  const int tiles = (of.c.columns + 7) / 8, widest = gru::stationary_warps * S::tiles;
  const int parts = (tiles + widest - 1) / widest;
  const int64_t stages = (of.rows + S::rows - 1) / S::rows;
  const auto blocks = std::clamp<int64_t>(cuda_ext::multiprocessors() / parts, 1, stages);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
  cuda_ext::launch_early(of.a.packs ? gru::project_stationary<T, S, 16> : gru::project_stationary<T, S, 8>, grid,
                         dim3(gru::stationary_threads), S::shared, stream, of);
}

template <typename T>
void launch_project(const Product<T>& of, cudaStream_t stream) {
  if constexpr (gru::parts<T> == 1) {
    // Whatever the number of rows: those behind a batch change no bit of its results.
    if (of.a.columns <= 7 * 16) return launch_stationary<T, 7>(of, stream);
    if (of.a.columns <= 13 * 16) return launch_stationary<T, 13>(of, stream);
    if (of.a.columns <= 21 * 16) return launch_stationary<T, 21>(of, stream);
    if (of.a.columns <= 32 * 16) return launch_stationary<T, 32>(of, stream);
  }
  constexpr int64_t few_rows = 1 << 13;  // too few for a large tile on each multiprocessor
  constexpr int stages = gru::parts<T> == 2 ? 3 : 4;
  if (of.rows <= few_rows) {
    launch_across<T, 32, stages>(of, stream);
  } else {
    launch_across<T, 112, stages>(of, stream);
  }
}

template <typename T, int input_tiles, int state_tiles>
void launch_tiles(Correlation<T> input, Correlation<T> state, int slices, const Sequence* plan, int sequences,
                  cudaStream_t stream) {
  const auto share_out = [](Correlation<T>& of, int tiles) {
    of.row_tiles = (of.g.columns + gru::correlate_rows - 1) / gru::correlate_rows;
    of.column_tiles = std::max(1, (of.x.columns + 8 * tiles - 1) / (8 * tiles));
  };
  share_out(input, input_tiles);
  share_out(state, state_tiles);
  constexpr int shared = gru::CorrelateShape<T, std::max(input_tiles, state_tiles)>::shared;
  cuda_ext::launch_early(gru::correlate<T, input_tiles, state_tiles>, dim3((input.blocks() + state.blocks()) * slices),
                         dim3(gru::correlate_threads), shared, stream, input, state, slices, plan, sequences);
}

template <typename T>
void launch_correlate(const Correlation<T>& input, const Correlation<T>& state, int slices, const Sequence* plan,
                      int sequences, cudaStream_t stream) {
  const auto with_state = [&](auto input_tiles) {
    if (state.x.columns <= 56) {
      launch_tiles<T, decltype(input_tiles)::value, 7>(input, state, slices, plan, sequences, stream);
    } else {
      launch_tiles<T, decltype(input_tiles)::value, 13>(input, state, slices, plan, sequences, stream);
    }
  };
  if (input.x.columns <= 56) {
    with_state(std::integral_constant<int, 7>{});
  } else {
    with_state(std::integral_constant<int, 13>{});
  }
}

template <typename T>
void launch_whole(const Correlation<T>& input, const Correlation<T>& state, int width, int slices, const Sequence* plan,
                  int sequences, cudaStream_t stream) {
  cuda_ext::launch_early(input.x.packs ? gru::correlate_whole<T, 16> : gru::correlate_whole<T, 8>,
                         dim3(state.groups * input.column_tiles * slices), dim3(gru::whole_threads), gru::whole_shared,
                         stream, input, state, width, slices, plan, sequences);
}

// What every product here is told: the rows of x [.., I] that are real steps, and the sizes; I is a multiple of 4.
struct Shape {
  int64_t rows, inputs, directions, slots, padded;
  bool packs(const Tensor& x) const { return inputs * static_cast<int64_t>(x.element_size()) % 16 == 0; }
  const int* source;
  const Sequence* plan;
  int sequences;
};

Shape shape_of(const char* name, const Tensor& x, const Tensor& gates, const Tensor& plan, const Tensor& source) {
  CUDA_EXT_REFUSE_UNLESS_BESIDE(x, plan, ScalarType::Int, name, ": plan");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(x, source, ScalarType::Int, name, ": source");
  CUDA_EXT_REFUSE_UNLESS(plan.dim() == 2 && plan.size(0) > 0 && plan.size(1) == 4, name, ": plan must be [N + 1, 4]");
  const int64_t inputs = x.size(x.dim() - 1), rows = gates.size(0);
  STD_TORCH_CHECK(x.is_cuda() && x.is_contiguous() && gates.is_contiguous() && plan.is_contiguous() &&
                      source.is_contiguous() && gates.dim() == 4 && gates.size(2) >= 3 && x.numel() == rows * inputs &&
                      (source.numel() == 0 || source.numel() == rows) && x.scalar_type() == gates.scalar_type() &&
                      inputs < INT_MAX && inputs % 4 == 0,
                  name, ": x, gates, plan and source do not fit together");
  STD_TORCH_CHECK(cuda_ext::aligned_for_packs(x.data_ptr()), name, ": x must begin on 16 bytes");
  return {rows, inputs, gates.size(1), gates.size(2), gates.size(3),
          source.numel() == 0 ? nullptr : static_cast<const int*>(source.data_ptr()),
          static_cast<const Sequence*>(plan.data_ptr()), static_cast<int>(plan.size(0) - 1)};
}

template <typename T>
const T* read(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
}

template <typename T>
Matrix<const T> three_gates(const Tensor& gates, const Shape& of) {
  const int64_t padded = of.padded;
  return {read<T>(gates), of.directions * of.slots * padded, static_cast<int>(of.directions * 3 * padded),
          static_cast<int>(3 * padded), static_cast<int>((of.slots - 3) * padded), true};
}

gru::Packed packed_of(const Tensor& weights, const Shape& of, bool transposed) {
  return gru::packed_weights(weights.scalar_type() == ScalarType::Float, of.directions * 3 * of.padded, of.inputs,
                             transposed);
}

template <typename T>
Weights<T> weights_of(const Tensor& weights, const gru::Packed& packed) {
  const int64_t part = packed.rows * packed.columns;
  const bool scaled = gru::parts<T> == 2;
  return {static_cast<decltype(Weights<T>::data)>(weights.data_ptr()), packed.columns, scaled ? part : 0,
          scaled ? static_cast<const float*>(weights.data_ptr()) + part : nullptr};
}

// The sums n, r and z of each real step's gates from x, weights as gru_prepare packs them and bias [d, 4, P].
void gru_project(Tensor x, Tensor plan, Tensor source, Tensor weights, Tensor bias, Tensor gates) {
  CUDA_EXT_REFUSE_UNLESS(x.is_cuda(), "gru_project: x must be on a GPU");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(x, gates, x.scalar_type(), "gru_project: gates");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(x, weights, x.scalar_type(), "gru_project: weights");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(x, bias, ScalarType::Float, "gru_project: bias");
  const Shape of = shape_of("gru_project", x, gates, plan, source);
  STD_TORCH_CHECK(weights.is_contiguous() && weights.scalar_type() == x.scalar_type() &&
                      weights.numel() == packed_of(weights, of, false).size && bias.is_contiguous() &&
                      bias.numel() == of.directions * 4 * of.padded,
                  "gru_project: weights and bias do not fit x and gates");
  if (of.rows == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  cuda_ext::with_dtype("gru_project", x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const int inputs = static_cast<int>(of.inputs);
    const Matrix<const T> a{read<T>(x), of.inputs, inputs, INT_MAX, 0, of.packs(x)};
    const Weights<T> b = weights_of<T>(weights, packed_of(weights, of, false));
    const Matrix<const T> c = three_gates<T>(gates, of);
    launch_project<T>({a, of.source, b, read<float>(bias),
                       {static_cast<T*>(gates.data_ptr()), c.row, c.columns, c.length, c.gap, true}, nullptr, false,
                       of.rows, of.plan, of.sequences}, stream);
  });
}

// The gradient of x, from the gradients of the sums and the weights as gru_prepare packs them, transposed; zeros to all
// rows but real steps.
void gru_project_back(Tensor gradients, Tensor plan, Tensor source, Tensor weights, Tensor of_x) {
  CUDA_EXT_REFUSE_UNLESS(of_x.is_cuda(), "gru_project_back: of_x must be on a GPU");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(of_x, gradients, of_x.scalar_type(), "gru_project_back: gradients");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(of_x, weights, of_x.scalar_type(), "gru_project_back: weights");
  const Shape of = shape_of("gru_project_back", of_x, gradients, plan, source);
  STD_TORCH_CHECK(weights.is_contiguous() && weights.scalar_type() == of_x.scalar_type() &&
                      weights.numel() == packed_of(weights, of, true).size,
                  "gru_project_back: weights do not fit the gradients");
  if (of.rows == 0 || of.inputs == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(of_x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(of_x.get_device_index());
  cuda_ext::with_dtype("gru_project_back", of_x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const Matrix<const T> a = three_gates<T>(gradients, of);
    const Weights<T> b = weights_of<T>(weights, packed_of(weights, of, true));
    launch_project<T>({a, nullptr, b, nullptr,
                       {static_cast<T*>(of_x.data_ptr()), of.inputs, static_cast<int>(of.inputs), INT_MAX, 0, true},
                       of.source, true, of.rows, of.plan, of.sequences}, stream);
  });
}

// The gradients of the parameters, of w_ih's dtype: [3 H, I], [3 H, H], [3 H] and [3 H] of each direction.
std::vector<Tensor> gru_correlate(Tensor x, Tensor plan, Tensor source, Tensor gradients, Tensor gates, Tensor w_ih) {
  CUDA_EXT_REFUSE_UNLESS(x.is_cuda(), "gru_correlate: x must be on a GPU");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(x, gradients, x.scalar_type(), "gru_correlate: gradients");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(x, gates, x.scalar_type(), "gru_correlate: gates");
  const Shape of = shape_of("gru_correlate", x, gradients, plan, source);
  const int64_t units = w_ih.size(0) / 3, inputs = w_ih.size(1);
  STD_TORCH_CHECK((inputs + 3) / 4 * 4 == of.inputs && of.slots == 4 && gates.is_contiguous() && gates.dim() == 4 &&
                      gates.size(2) == 5 && 4 * gates.numel() == 5 * gradients.numel() &&
                      (units + 7) / 8 * 8 == of.padded && gates.scalar_type() == x.scalar_type(),
                  "gru_correlate: gates do not fit the gradients");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(x.get_device_index());
  const int64_t d = of.directions, padded = of.padded;
  const bool whole = padded <= gru::whole_units && x.scalar_type() != ScalarType::Float;
  // A block that makes the whole of a direction's sums fills a multiprocessor, and has 64 rows or more. Of the others
  // there are three a multiprocessor and more, of which two run at a time, with 96 rows or more.
  const int64_t wide = of.inputs + 1, column_tiles = (wide + gru::whole_columns - 1) / gru::whole_columns;
  const int64_t width = (wide + 16 * column_tiles - 1) / (16 * column_tiles) * 16;
  const int64_t processors = cuda_ext::multiprocessors();
  const int64_t most = whole                    ? processors / (d * column_tiles)
                       : padded <= 56 && d == 2 ? processors / 2 : 2 * processors / (d * 3);
  const int64_t slices = std::clamp<int64_t>(of.rows / (whole ? 64 : 3 * gru::depth), 1, std::max<int64_t>(most, 1));
  const int64_t whole_size = column_tiles * d * gru::whole_warps * gru::most_tiles * 32 * 4;
  const int64_t input_size = whole ? whole_size : d * 3 * padded * (of.inputs + 1);
  const int64_t state_size = whole ? 0 : d * 3 * padded * (padded + 1);
  Tensor from_input = torch::stable::new_empty(x, {slices, input_size}, ScalarType::Float);
  Tensor from_state = torch::stable::new_empty(x, {slices, state_size}, ScalarType::Float);
  const ScalarType wanted = w_ih.scalar_type();
  std::vector<Tensor> found;
  for (int64_t direction = 0; direction < d; ++direction) {
    found.push_back(torch::stable::new_empty(x, {3 * units, inputs}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units, units}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units}, wanted));
    found.push_back(torch::stable::new_empty(x, {3 * units}, wanted));
  }
  cuda_ext::with_dtype("gru_correlate", x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const Matrix<const T> of_input = three_gates<T>(gradients, of);
    Matrix<const T> of_state = of_input;
    of_state.columns = static_cast<int>(3 * padded);
    of_state.data += padded;
    const T* previous = read<T>(gates) + gru::previous * padded;
    const Correlation<T> input{of_input,
                               {read<T>(x), of.inputs, static_cast<int>(of.inputs), INT_MAX, 0, of.packs(x)},
                               0, 0, of.source, 1, static_cast<float*>(from_input.data_ptr()),
                               1, static_cast<int>(column_tiles)};
    const Correlation<T> state{of_state,
                               {previous, d * 5 * padded, static_cast<int>(padded), INT_MAX, 0, true},
                               4 * padded, 5 * padded, nullptr, static_cast<int>(d),
                               static_cast<float*>(from_state.data_ptr()), 1, 1};
    if constexpr (gru::parts<T> == 1) {
      if (whole) return launch_whole<T>(input, state, width, slices, of.plan, of.sequences, stream);
    }
    launch_correlate<T>(input, state, slices, of.plan, of.sequences, stream);
  });
  const dim3 rows(static_cast<unsigned>((of.inputs + padded + 2 + finish_threads - 1) / finish_threads),
                  static_cast<unsigned>(d * 3 * units));
  const dim3 tiles(static_cast<unsigned>(column_tiles * d * gru::whole_warps), gru::most_tiles);
  const auto add_up = [&](auto w) {
    using W = decltype(w);
    Gradients<W> out{};
    for (int64_t direction = 0; direction < d; ++direction) {
      const auto data = [&](int i) { return static_cast<W*>(found[4 * direction + i].data_ptr()); };
      out.w_ih[direction] = data(0);
      out.w_hh[direction] = data(1);
      out.b_ih[direction] = data(2);
      out.b_hh[direction] = data(3);
    }
    if (whole) {
      cuda_ext::launch_early(finish_whole<W>, tiles, dim3(finish_threads), 0, stream,
                             static_cast<const float4*>(from_input.data_ptr()), slices, d, width, units, padded, inputs,
                             of.inputs, out);
    } else {
      cuda_ext::launch_early(finish<W>, rows, dim3(finish_threads), 0, stream, read<float>(from_input),
                             read<float>(from_state), slices, d, units, padded, inputs, of.inputs, out);
    }
  };
  cuda_ext::with_dtype("gru_correlate", wanted, add_up);
  return found;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "gru_project(Tensor x, Tensor plan, Tensor source, Tensor weights, Tensor bias, Tensor(a!) gates) -> ()");
  m.def(
      "gru_project_back(Tensor gradients, Tensor plan, Tensor source, Tensor weights, Tensor(a!) of_x) -> ()");
  m.def(
      "gru_correlate(Tensor x, Tensor plan, Tensor source, Tensor gradients, Tensor gates, Tensor w_ih) "
      "-> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("gru_project", TORCH_BOX(&gru_project));
  m.impl("gru_project_back", TORCH_BOX(&gru_project_back));
  m.impl("gru_correlate", TORCH_BOX(&gru_correlate));
}
