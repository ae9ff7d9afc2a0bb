// The GRU's recurrence, forward: h' = (1 - z) n + z h, step after step, the weights in registers throughout.
//
// A block, or a cluster of blocks, takes 16 sequences of like length, one direction, and runs to the longest's last
// step. A warp owns 8 or 16 units: it multiplies the tile's state [16, H], which lies in shared memory, by its columns
// of the three recurrent weights, and the sums that it then holds are r, z and m of the same units, so that the gates,
// the candidate and the new state never leave its registers but for the state's operand. One barrier a step.

#include "../common/refuse.cuh"
#include "recurrence.cuh"

#include <optional>

namespace {

using gru::Sequence;
using torch::stable::Tensor;

// The states of a tile; shared memory has two of them.
template <typename T, int k_steps>
using Operands = gru::Operand<T>[gru::parts<T>][gru::tile][gru::operand_width<k_steps>];

// What of the kernel's arguments a row's own pointers need.
template <typename T>
struct Call {
  T* gates;
  const Sequence* plan;
  T *states, *final;
  int sequences, units, padded, directions, limit;
  bool keep, pairs;
};

// What a thread reads and writes of its two rows: the sequences, the gates of a step, and its states.
template <typename T, int columns, int split>
struct Rows {
  static constexpr int own = 2 * columns;
  int length[2], steps = 0;
  Sequence sequence[2];
  T* gate_row[2];
  T* state_row[2];
  int64_t gate_stride, state_stride, gate_step, state_step;

  __device__ __forceinline__ Rows(const Call<T>& call, const gru::Position<columns, split>& at) {
    const int slots = call.keep ? 5 : 3;
    gate_stride = int64_t{call.directions} * slots * call.padded;
    state_stride = int64_t{call.directions} * call.units;
    gate_step = at.direction == 0 ? gate_stride : -gate_stride;
    state_step = at.direction == 0 ? state_stride : -state_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = at.slot + at.row(i);
      sequence[i] = row < call.sequences ? call.plan[row] : Sequence{-1, 0, 0, 0};
      length[i] = at.real ? sequence[i].length : 0;
      steps = max(steps, sequence[i].length);
      const int64_t begin = at.direction == 0 ? 0 : sequence[i].length - 1;
      gate_row[i] =
          call.gates + (sequence[i].first + begin) * gate_stride + at.direction * slots * call.padded + at.unit;
      state_row[i] = call.states + (sequence[i].state + begin) * state_stride + at.direction * call.units + at.unit;
    }
    steps = __reduce_max_sync(0xffffffff, steps);
  }

  // Asks for the input's sums of `step`, which lie `ahead` of where the rows are.
  __device__ __forceinline__ void fetch(gru::Raw<T, own> (&next)[2][3], int step, int64_t ahead, int padded) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        if (step < length[i]) next[i][g] = gru::load<T, own>(gate_row[i] + ahead + g * padded);
      }
  }
};

// The tile's state [16, H] times a warp's columns of the three weights, added to the sums of r, z and m.
template <typename E, int parts, int chains, int columns, int k_steps, int width>
__device__ __forceinline__ void multiply_state(float (&sum)[chains][3][columns][4],
                                               const uint32_t (&w)[parts][3 * columns][k_steps][2],
                                               const E (&state)[parts][gru::tile][width], int lane) {
#pragma unroll
  for (int k = 0; k < k_steps; ++k) {
    uint32_t a[parts][4];
#pragma unroll
    for (int p = 0; p < parts; ++p) gru::load_matrices(a[p], &state[p][lane % 16][16 * k + lane / 16 * 8]);
#pragma unroll
    for (int p = 0; p < 2 * parts - 1; ++p) {
      // High by high, then low by high and high by low; low by low is below the last bit kept.
#pragma unroll
      for (int g = 0; g < 3; ++g)
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const auto& b = w[p == 2][g * columns + c][k];
          gru::multiply<E>(sum[p % chains][g][c], a[p == 1], b[0], b[1]);
        }
    }
  }
#pragma unroll
  for (int p = 1; p < chains; ++p)
#pragma unroll
    for (int g = 0; g < 3; ++g)
#pragma unroll
      for (int c = 0; c < columns; ++c)
#pragma unroll
        for (int v = 0; v < 4; ++v) sum[0][g][c][v] += sum[p][g][c][v];
}

// One row's gates and candidate from its sums, and its new state, which stays as it is past the sequence's end. kept:
// what the backward pass reads.
template <typename T, bool rectified, int columns, int own>
__device__ __forceinline__ void make_state(float (&h)[own], float (&kept)[5][own], const float (&sum)[3][columns][4],
                                           const float (&of_input)[own], int i, bool active) {
#pragma unroll
  for (int u = 0; u < own; ++u) {
    const float r = kept[gru::reset][u] = gru::sigmoid<T>(sum[0][u / 2][2 * i + u % 2]);
    const float z = kept[gru::update][u] = gru::sigmoid<T>(sum[1][u / 2][2 * i + u % 2]);
    const float m = kept[gru::recurrent][u] = sum[2][u / 2][2 * i + u % 2];
    const float total = of_input[u] + r * m;
    const float n = kept[gru::candidate][u] = rectified ? gru::rectifier(total) : gru::hyperbolic_tangent<T>(total);
    kept[gru::previous][u] = h[u];
    h[u] = active ? n + z * (h[u] - n) : h[u];
  }
}

// The last states, and zeros to the states of a padded batch behind each sequence's end.
template <typename T, int columns, int split>
__device__ __forceinline__ void store_last(const float (&h)[2][2 * columns], const Call<T>& call,
                                           const Rows<T, columns, split>& rows,
                                           const gru::Position<columns, split>& at) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Sequence& sequence = rows.sequence[i];
    if (!at.real || sequence.place < 0) continue;
    gru::store_state(h[i], call.final, sequence.place, at, call.sequences, call.units, call.pairs);
    const float zero[2 * columns] = {};
    for (int step = sequence.length; step < call.limit; ++step) {
      T* to = call.states + (int64_t{sequence.state} + step) * rows.state_stride + at.direction * call.units + at.unit;
      gru::store_units(to, zero, call.units - at.unit, call.pairs);
    }
  }
}

// gates [M, d, 5, P]: the sums of n, r and z from the input on entry; n, r, z, m and the state before the step on exit.
// Without `keep` [M, d, 3, P], and not changed. sends: by bulk copies (gru::Outgoing). initial: the states before the
// first step [d, N, H], or null for zeros. The states of a padded batch from a sequence's end to `limit` are zero. Units
// from H on, which pad the last warp's columns, stay zero throughout: their weights are. rectified: the candidate is
// relu of its sum, not tanh.
template <typename T, int k_steps, int columns, int split, bool rectified>
__global__ void __launch_bounds__(32 * ((2 * k_steps / columns + split - 1) / split))
    recur(T* gates, const Sequence* plan, const uint32_t* weights, int warps, const float* bias, const T* initial,
          T* states, T* final, int sequences, int units, int padded, int directions, int limit, bool keep, bool pairs,
          bool sends) {
  using E = gru::Operand<T>;
  constexpr int parts = gru::parts<T>, chains = gru::chains<T, k_steps, columns, split>;
  constexpr int own = 2 * columns;  // units of a thread in a row, neighbours
  constexpr int width = gru::operand_width<k_steps>;
  using Own = gru::Raw<T, own>;
  extern __shared__ uint4 shared[];
  __shared__ alignas(16) Operands<T, k_steps> operand[2];

  const Call<T> call{gates, plan, states, final, sequences, units, padded, directions, limit, keep, pairs};
  const gru::Position<columns, split> at(directions, padded);
  for (int i = threadIdx.x; i < 2 * parts * gru::tile * width / 2; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(operand)[i] = 0;
  }
  cuda_ext::wait_for_the_one_before();
  uint32_t w[parts][3 * columns][k_steps][2];
  gru::load_fragments(w, weights, warps, at);
  Rows<T, columns, split> rows(call, at);
  gru::Outgoing<T, 5> outgoing(shared, padded);
  if (sends && threadIdx.x < gru::tile && at.slot + static_cast<int>(threadIdx.x) < sequences) {
    const Sequence of = plan[at.slot + threadIdx.x];
    const int64_t begin = of.first + (at.direction == 0 ? 0 : of.length - 1);
    outgoing.to = gates + begin * rows.gate_stride + at.direction * 5 * padded;
    outgoing.step_by = rows.gate_step;
    outgoing.length = of.length;
  }

  float h[2][own] = {};
  float recurrent_bias[own] = {};
  if (at.real) {
#pragma unroll
    for (int u = 0; u < own; ++u) recurrent_bias[u] = bias[(at.direction * 4 + gru::recurrent) * padded + at.unit + u];
  }
  Own next[2][3] = {};
  rows.fetch(next, 0, 0, padded);
  if (initial != nullptr) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!at.real || rows.sequence[i].place < 0) continue;
      gru::load_state(h[i], initial, rows.sequence[i].place, at, sequences, units, pairs);
    }
    // After the zeros, which every block of a cluster has written to its own memory.
    gru::meet<split>();
    if constexpr (split == 1) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        gru::store_operands<T>(&operand[0][0][at.row(i)][at.unit], gru::tile * width, h[i]);
      }
    } else if (at.warp < 2 * k_steps) {
      gru::share_operands<T, split>(&operand[0][0][at.row(0)][8 * at.warp], 8 * width, gru::tile * width, h);
    }
  }
  gru::meet<split>();

  for (int step = 0; step < rows.steps; ++step) {
    // All that the last step loaded is taken before any more is asked for: a wait for the one would be for both.
    float sum[chains][3][columns][4] = {};
    float of_input[2][own];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int u = 0; u < own; ++u) {
        sum[0][0][u / 2][2 * i + u % 2] = next[i][gru::reset][u];
        sum[0][1][u / 2][2 * i + u % 2] = next[i][gru::update][u];
        sum[0][2][u / 2][2 * i + u % 2] = recurrent_bias[u];
        of_input[i][u] = next[i][gru::candidate][u];
      }
    rows.fetch(next, step + 1, rows.gate_step, padded);
    multiply_state<E, parts, chains, columns, k_steps, width>(sum, w, operand[step % 2], at.lane);

    auto& following = operand[(step + 1) % 2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool active = step < rows.length[i];
      float kept[5][own];
      make_state<T, rectified>(h[i], kept, sum[0], of_input[i], i, active);
      if constexpr (split == 1) {
        gru::store_operands<T>(&following[0][at.row(i)][at.unit], gru::tile * width, h[i]);
      }
      if (active) {
        gru::store_units(rows.state_row[i], h[i], units - at.unit, pairs);
        if (keep) {
#pragma unroll
          for (int g = 0; g < 5; ++g) {
            T* const to = sends ? outgoing.at(step, at.row(i), g, at.unit) : rows.gate_row[i] + g * padded;
            gru::store<T, own>(to, Own::of(kept[g]));
          }
        }
      }
      rows.gate_row[i] += rows.gate_step;
      rows.state_row[i] += rows.state_step;
    }
    if constexpr (split > 1) {
      if (at.warp < 2 * k_steps) {
        gru::share_operands<T, split>(&following[0][at.row(0)][8 * at.warp], 8 * width, gru::tile * width, h);
      }
    }
    if (sends) outgoing.ready();
    gru::meet<split>();
    if (sends) outgoing.send(step);
  }
  if (sends) outgoing.finish();
  store_last(h, call, rows, at);
}

struct Arguments {
  Tensor gates, plan, weights, bias;
  const void* initial;
  Tensor states, final;
  int limit;
  bool keep, rectified;
  int sequences, units, padded, directions;
};

template <typename T, int k_steps, int columns, int split = 1>
void launch(const Arguments& with, int tiles, int warps, cudaStream_t stream) {
  constexpr int operands = 2 * sizeof(Operands<T, k_steps>);
  const int buffers = gru::Outgoing<T, 5>::bytes_of(with.padded);
  const bool sends = with.keep && split == 1 && gru::sends(k_steps, tiles, operands + buffers);
  const bool pairs = with.units % 2 == 0 && reinterpret_cast<std::uintptr_t>(with.initial) % (2 * sizeof(T)) == 0;
  cuda_ext::launch(
      with.rectified ? recur<T, k_steps, columns, split, true> : recur<T, k_steps, columns, split, false>,
      {dim3(tiles * split), dim3((warps + split - 1) / split * 32), static_cast<std::size_t>(sends ? buffers : 0), stream,
       true, split},
      static_cast<T*>(with.gates.data_ptr()), static_cast<const Sequence*>(with.plan.data_ptr()),
      static_cast<const uint32_t*>(with.weights.data_ptr()), warps, static_cast<const float*>(with.bias.data_ptr()),
      static_cast<const T*>(with.initial), static_cast<T*>(with.states.data_ptr()),
      static_cast<T*>(with.final.data_ptr()), with.sequences, with.units, with.padded, with.directions, with.limit,
      with.keep, pairs, sends);
}

template <typename T>
void choose(const Arguments& with, cudaStream_t stream) {
  const gru::Division by = gru::division<T>(with.units, with.directions, with.sequences);
  STD_TORCH_CHECK(with.weights.numel() == gru::fragments<T>(by, with.directions),
                  "gru_forward: the weights do not fit");
  const int tiles = (with.sequences + gru::tile - 1) / gru::tile * with.directions;
  const auto run = [&](auto k_steps) {
    constexpr int k = decltype(k_steps)::value;
    if constexpr (!std::is_same_v<T, float> || k == 4) {
      if (by.columns == 2) return launch<T, k, 2>(with, tiles, by.warps, stream);
    } else {
      if (gru::takes_clusters<T, k>(tiles)) return launch<T, k, 1, 4>(with, tiles, by.warps, stream);
    }
    launch<T, k, 1>(with, tiles, by.warps, stream);
  };
  switch (by.k_steps) {
    case 4: run(std::integral_constant<int, 4>{}); break;
    case 7: run(std::integral_constant<int, 7>{}); break;
    default: run(std::integral_constant<int, 8>{});
  }
}

// gates [M, d, 5 or 3, P], plan and bias as the other operations make them; initial [d, N, H]: the first states. states
// [.., d H] are written, of a ragged batch (steps < 0) at real steps, of a padded one of `steps` steps everywhere, and
// final [d, N, H].
void gru_forward(Tensor gates, Tensor plan, Tensor weights, Tensor bias, std::optional<Tensor> initial, Tensor states,
                 Tensor final, int64_t steps, bool keep, bool rectified) {
  const int64_t directions = final.size(0), sequences = final.size(1), units = final.size(2);
  CUDA_EXT_REFUSE_UNLESS(gates.is_cuda(), "gru_forward: gates must be on a GPU");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, plan, torch::headeronly::ScalarType::Int, "gru_forward: plan");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, weights, torch::headeronly::ScalarType::Int, "gru_forward: weights");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, bias, torch::headeronly::ScalarType::Float, "gru_forward: bias");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, initial, gates.scalar_type(), "gru_forward: initial");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, states, gates.scalar_type(), "gru_forward: states");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, final, gates.scalar_type(), "gru_forward: final");
  STD_TORCH_CHECK(gates.is_cuda() && gates.dim() == 4 && gates.size(1) == directions &&
                      gates.size(2) == (keep ? 5 : 3) && gates.size(3) == (units + 7) / 8 * 8 &&
                      plan.numel() == 4 * (sequences + 1) && bias.numel() == directions * 4 * gates.size(3) &&
                      states.scalar_type() == gates.scalar_type() && final.scalar_type() == gates.scalar_type() &&
                      (!initial || (initial->scalar_type() == gates.scalar_type() && initial->is_cuda() &&
                                    initial->numel() == final.numel())) &&
                      states.numel() % (directions * units) == 0,
                  "gru_forward: gates, plan, states and final do not fit together");
  STD_TORCH_CHECK(gates.is_contiguous() && plan.is_contiguous() && weights.is_contiguous() && bias.is_contiguous() &&
                      (!initial || initial->is_contiguous()) && states.is_contiguous() && final.is_contiguous(),
                  "gru_forward takes contiguous tensors");
  STD_TORCH_CHECK(steps <= 0 || states.numel() == sequences * steps * directions * units,
                  "gru_forward: states do not hold ", steps, " steps of each sequence");
  if (sequences == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(gates.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(gates.get_device_index());
  const Arguments with{gates,
                       plan,
                       weights,
                       bias,
                       initial ? initial->data_ptr() : nullptr,
                       states,
                       final,
                       static_cast<int>(steps),
                       keep,
                       rectified,
                       static_cast<int>(sequences),
                       static_cast<int>(units),
                       static_cast<int>(gates.size(3)),
                       static_cast<int>(directions)};
  cuda_ext::with_dtype("gru_forward", gates.scalar_type(), [&](auto t) { choose<decltype(t)>(with, stream); });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "gru_forward(Tensor(a!) gates, Tensor plan, Tensor weights, Tensor bias, Tensor? initial, Tensor(b!) states, "
      "Tensor(c!) final, int steps, bool keep, bool rectified) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("gru_forward", TORCH_BOX(&gru_forward));
}
