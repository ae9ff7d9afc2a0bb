// The GRU's recurrence, backward through time: the same tiles as the forward pass, from the last step to the first.
//
// What reaches a state, from above and from the next step, stays in registers. Each step makes the gradients of the
// four sums n, r, z and m, which are all that the weights' and the input's gradients need, and passes the state's on
// through one product [16, 3 H] x [3 H, H] with the recurrent weights, in registers throughout. One barrier a step.

#include "../common/refuse.cuh"
#include "recurrence.cuh"

#include <optional>

namespace {

using gru::Sequence;
using torch::stable::Tensor;

// The gradients of r, z and m of a tile; shared memory has two of them.
template <typename T, int k_steps>
using Operands = gru::Operand<T>[gru::parts<T>][3][gru::tile][gru::operand_width<k_steps>];
template <typename T, int k_steps>
constexpr int shared_bytes = 2 * sizeof(Operands<T, k_steps>);

// One row's gradients of the four sums at a step, from what the forward pass kept of it, `now`, and what reaches its
// state: `carried` from the next step and `above`. to_state: what the state before gets without the product; past the
// sequence's end all that came.
template <bool rectified, int columns, int own, typename Kept, typename Above>
__device__ __forceinline__ void make_gradients(float (&d)[4][own], float (&to_state)[columns][4],
                                               const float (&carried)[own], const Kept& now, const Above& above, int i,
                                               bool active) {
#pragma unroll
  for (int u = 0; u < own; ++u) {
    const float n = now[gru::candidate][u], r = now[gru::reset][u], z = now[gru::update][u];
    const float state = carried[u] + above[u];
    const float dn = active ? state * (1.f - z) * (rectified ? gru::slope_of_rectifier(n) : 1.f - n * n) : 0.f;
    d[gru::candidate][u] = dn;
    d[gru::recurrent][u] = dn * r;
    d[gru::reset][u] = dn * r * now[gru::recurrent][u] * (1.f - r);
    d[gru::update][u] = active ? state * (now[gru::previous][u] - n) * z * (1.f - z) : 0.f;
    to_state[u / 2][2 * i + u % 2] = active ? state * z : carried[u];
  }
}

// The tile's gradients [16, 3 H] of r, z and m times a warp's columns of the weights, and the state's whole gradient,
// which is carried to the step before.
template <typename E, int parts, int chains, int columns, int k_steps, int width, int own>
__device__ __forceinline__ void multiply_gradients(float (&carried)[2][own], float (&sum)[chains][3][columns][4],
                                                   const uint32_t (&w)[parts][3 * columns][k_steps][2],
                                                   const E (&gradients)[parts][3][gru::tile][width], int lane) {
#pragma unroll
  for (int k = 0; k < k_steps; ++k)
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      uint32_t a[parts][4];
#pragma unroll
      for (int p = 0; p < parts; ++p) gru::load_matrices(a[p], &gradients[p][g][lane % 16][16 * k + lane / 16 * 8]);
#pragma unroll
      for (int p = 0; p < 2 * parts - 1; ++p) {
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const auto& b = w[p == 2][g * columns + c][k];
          gru::multiply<E>(sum[p % chains][g][c], a[p == 1], b[0], b[1]);
        }
      }
    }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int u = 0; u < own; ++u) {
      const int c = u / 2, v = 2 * i + u % 2;
      carried[i][u] = 0.f;
#pragma unroll
      for (int p = 0; p < chains; ++p) carried[i][u] += sum[p][0][c][v] + sum[p][1][c][v] + sum[p][2][c][v];
    }
}

// gates [M, d, 5, P] as the forward pass left them; gradients [M, d, 4, P], of the sums n, r, z and m, are written at
// real steps, if `sends` by bulk copies (gru::Outgoing). above: the gradient of states, last: of final; either may be
// null. of_initial [d, N, H]: the gradient of the first states, or null if nobody asks. rectified: as forward.
template <typename T, int k_steps, int columns, int split, bool rectified>
__global__ void __launch_bounds__(32 * ((2 * k_steps / columns + split - 1) / split))
    recur_back(const T* gates, const Sequence* plan, const uint32_t* weights, int warps, const T* above,
               const T* last, T* gradients, T* of_initial, int sequences, int units, int padded, int directions,
               bool pairs, bool sends) {
  using E = gru::Operand<T>;
  constexpr int parts = gru::parts<T>, chains = gru::chains<T, k_steps, columns, split>;
  constexpr int own = 2 * columns, width = gru::operand_width<k_steps>;
  using Own = gru::Raw<T, own>;
  extern __shared__ uint4 shared[];
  auto* const operand = reinterpret_cast<Operands<T, k_steps>*>(shared);
  const gru::Position<columns, split> at(directions, padded);
  for (int i = threadIdx.x; i < shared_bytes<T, k_steps> / 16; i += blockDim.x) shared[i] = uint4{};
  cuda_ext::wait_for_the_one_before();
  uint32_t w[parts][3 * columns][k_steps][2];
  gru::load_fragments(w, weights, warps, at);
  int length[2], steps = 0;
  Sequence sequence[2];
  float carried[2][own] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = at.slot + at.row(i);
    sequence[i] = place < sequences ? plan[place] : Sequence{-1, 0, 0, 0};
    length[i] = at.real ? sequence[i].length : 0;
    steps = max(steps, sequence[i].length);
    if (last != nullptr && at.real && sequence[i].place >= 0) {
      gru::load_state(carried[i], last, sequence[i].place, at, sequences, units, pairs);
    }
  }
  steps = __reduce_max_sync(0xffffffff, steps);

  // Where the tile's last step would lie in each sequence: past the end of a shorter one, until that begins.
  const int64_t forwards = at.direction == 0 ? 1 : -1;
  const int64_t gate_step = forwards * directions * 5 * padded, gradient_step = forwards * directions * 4 * padded;
  const int64_t state_step = forwards * directions * units;
  const T* gate_row[2];
  const T* above_row[2];
  T* gradient_row[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t step = (at.direction == 0 ? 0 : sequence[i].length - 1) + (steps - 1) * forwards;
    const int64_t row = (sequence[i].first + step) * directions + at.direction;
    gate_row[i] = gates + row * 5 * padded + at.unit;
    gradient_row[i] = gradients + row * 4 * padded + at.unit;
    above_row[i] = above + ((sequence[i].state + step) * directions + at.direction) * units + at.unit;
  }
  gru::Outgoing<T, 4> outgoing(shared + shared_bytes<T, k_steps> / 16, padded);
  if (sends && threadIdx.x < gru::tile && at.slot + static_cast<int>(threadIdx.x) < sequences) {
    const Sequence of = plan[at.slot + threadIdx.x];
    const int64_t step = (at.direction == 0 ? 0 : of.length - 1) + (steps - 1) * forwards;
    outgoing.to = gradients + ((of.first + step) * directions + at.direction) * 4 * padded;
    outgoing.step_by = -gradient_step;
    outgoing.length = of.length;
  }
  Own next[2][5] = {}, next_above[2] = {};
  const auto fetch = [&](int i, int step) {
    if (step >= 0 && step < length[i]) {
#pragma unroll
      for (int g = 0; g < 5; ++g) next[i][g] = gru::load<T, own>(gate_row[i] + g * padded);
      if (above != nullptr) next_above[i] = gru::load_units<T, own>(above_row[i], units - at.unit, pairs);
    }
    gate_row[i] -= gate_step;
    above_row[i] -= state_step;
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) fetch(i, steps - 1);
  gru::meet<split>();
  for (int step = steps - 1; step >= 0; --step) {
    float sum[chains][3][columns][4] = {};
    auto& current = operand[step % 2];
    float of_state[3][2][own];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool active = step < length[i];
      float d[4][own];
      make_gradients<rectified>(d, sum[0][0], carried[i], next[i], next_above[i], i, active);
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        if constexpr (split == 1) {
          gru::store_operands<T>(&current[0][g][at.row(i)][at.unit], 3 * gru::tile * width, d[g + 1]);
        } else {
#pragma unroll
          for (int u = 0; u < own; ++u) of_state[g][i][u] = d[g + 1][u];
        }
      }
      if (active) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          T* const to = sends ? outgoing.at(step, at.row(i), g, at.unit) : gradient_row[i] + g * padded;
          gru::store<T, own>(to, Own::of(d[g]));
        }
      }
      gradient_row[i] -= gradient_step;
    }
    // Only now, when all that was loaded is used: a wait for some of it would be for this as well.
#pragma unroll
    for (int i = 0; i < 2; ++i) fetch(i, step - 1);
    if constexpr (split > 1) {
#pragma unroll
      for (int g = 0; g < 3 && at.warp < 2 * k_steps; ++g) {
        auto* const to = &current[0][g][at.row(0)][8 * at.warp];
        gru::share_operands<T, split>(to, 8 * width, 3 * gru::tile * width, of_state[g]);
      }
    }
    if (sends) outgoing.ready();
    gru::meet<split>();
    if (sends) outgoing.send(step);
    if (step == 0 && of_initial == nullptr) break;
    multiply_gradients<E, parts, chains, columns, k_steps, width>(carried, sum, w, current, at.lane);
  }
  if (sends) outgoing.finish();
  if (of_initial == nullptr) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = at.slot + at.row(i);
    if (!at.real || place >= sequences) continue;
    gru::store_state(carried[i], of_initial, plan[place].place, at, sequences, units, pairs);
  }
}

struct Arguments {
  Tensor gates, plan, weights;
  const void *above, *last;
  Tensor gradients;
  void* of_initial;
  int sequences, units, padded, directions;
  bool rectified, pairs;
};

template <typename T, int k_steps, int columns, int split = 1>
void launch(const Arguments& with, int tiles, int warps, cudaStream_t stream) {
  const int all = shared_bytes<T, k_steps> + gru::Outgoing<T, 4>::bytes_of(with.padded);
  const bool sends = split == 1 && gru::sends(k_steps, tiles, all);
  cuda_ext::launch(
      with.rectified ? recur_back<T, k_steps, columns, split, true> : recur_back<T, k_steps, columns, split, false>,
      {dim3(tiles * split), dim3((warps + split - 1) / split * 32),
       static_cast<std::size_t>(sends ? all : shared_bytes<T, k_steps>), stream, true, split},
      static_cast<const T*>(with.gates.data_ptr()), static_cast<const Sequence*>(with.plan.data_ptr()),
      static_cast<const uint32_t*>(with.weights.data_ptr()), warps, static_cast<const T*>(with.above),
      static_cast<const T*>(with.last), static_cast<T*>(with.gradients.data_ptr()), static_cast<T*>(with.of_initial),
      with.sequences, with.units, with.padded, with.directions, with.pairs, sends);
}

template <typename T>
void choose(Arguments with, cudaStream_t stream) {
  const gru::Division by = gru::division<T>(with.units, with.directions, with.sequences);
  STD_TORCH_CHECK(with.weights.numel() == gru::fragments<T>(by, with.directions),
                  "gru_backward: the weights do not fit");
  const auto begins_on_pairs = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % (2 * sizeof(T)) == 0;
  };
  with.pairs = with.units % 2 == 0 && begins_on_pairs(with.above) && begins_on_pairs(with.last) &&
               begins_on_pairs(with.of_initial);
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

// above: the gradient of states, last: of final. gradients [M, d, 4, P] are written at real steps, and of_initial
// [d, N, H], the gradient of the first states.
void gru_backward(Tensor gates, Tensor plan, Tensor weights, std::optional<Tensor> above, std::optional<Tensor> last,
                  int64_t units, bool rectified, Tensor gradients, std::optional<Tensor> of_initial) {
  const int64_t sequences = plan.size(0) - 1;
  CUDA_EXT_REFUSE_UNLESS(gates.is_cuda(), "gru_backward: gates must be on a GPU");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, plan, torch::headeronly::ScalarType::Int, "gru_backward: plan");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, weights, torch::headeronly::ScalarType::Int, "gru_backward: weights");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, above, gates.scalar_type(), "gru_backward: above");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, last, gates.scalar_type(), "gru_backward: last");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, gradients, gates.scalar_type(), "gru_backward: gradients");
  CUDA_EXT_REFUSE_UNLESS_BESIDE(gates, of_initial, gates.scalar_type(), "gru_backward: of_initial");
  CUDA_EXT_REFUSE_UNLESS(plan.dim() == 2 && plan.size(1) == 4 && sequences >= 0,
                         "gru_backward: plan must be [N + 1, 4]");
  STD_TORCH_CHECK(gates.is_cuda() && gates.dim() == 4 && gates.size(2) == 5 && gates.size(3) == (units + 7) / 8 * 8 &&
                      5 * gradients.numel() == 4 * gates.numel() && gradients.scalar_type() == gates.scalar_type() &&
                      (!above || above->scalar_type() == gates.scalar_type()) &&
                      (!above || above->numel() % (gates.size(1) * units) == 0) &&
                      (!above || above->numel() >= gates.size(0) * gates.size(1) * units) &&
                      (!last || last->scalar_type() == gates.scalar_type()) &&
                      (!last || last->numel() == gates.size(1) * sequences * units) &&
                      (!of_initial || of_initial->scalar_type() == gates.scalar_type()) &&
                      (!of_initial || of_initial->numel() == gates.size(1) * sequences * units),
                  "gru_backward: gates and gradients do not fit together");
  STD_TORCH_CHECK(gates.is_contiguous() && plan.is_contiguous() && weights.is_contiguous() &&
                      (!above || above->is_contiguous()) && (!last || last->is_contiguous()) &&
                      gradients.is_contiguous() && (!of_initial || of_initial->is_contiguous()),
                  "gru_backward takes contiguous tensors");
  if (sequences == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(gates.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(gates.get_device_index());
  Arguments with{gates, plan, weights, above ? above->data_ptr() : nullptr, last ? last->data_ptr() : nullptr,
                 gradients, of_initial ? of_initial->data_ptr() : nullptr, static_cast<int>(sequences),
                 static_cast<int>(units), static_cast<int>(gates.size(3)), static_cast<int>(gates.size(1)), rectified,
                 false};
  cuda_ext::with_dtype("gru_backward", gates.scalar_type(), [&](auto t) { choose<decltype(t)>(with, stream); });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def(
      "gru_backward(Tensor gates, Tensor plan, Tensor weights, Tensor? above, Tensor? last, int units, "
      "bool rectified, Tensor(a!) gradients, Tensor(b!)? of_initial) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("gru_backward", TORCH_BOX(&gru_backward));
}
