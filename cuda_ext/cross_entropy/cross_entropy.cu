// Cross entropy of a batch with its gradient: one launch, and a second one that adds the blocks' losses if there are several.
//
// A batch's scores are a few thousand numbers, and PyTorch's own loss with smoothed labels some twenty-five launches, of
// which each takes longer than its work. A row of few classes has one thread, so that one block takes a small batch; of more
// it has 8 neighbours or a warp.

#include "../common/launch.cuh"
#include "../common/refuse.cuh"

#include <cub/block/block_reduce.cuh>

#include <climits>
#include <cmath>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 256;

template <int lanes>
constexpr int rows_per_block = threads / lanes;

template <int lanes>
__device__ float largest_of_row(float value) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}

template <int lanes>
__device__ float sum_of_row(float value) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}

// The first thread has the sum, whose order of addition is fixed.
__device__ float sum_of_block(float value) {
  using Reduce = cub::BlockReduce<float, threads>;
  __shared__ typename Reduce::TempStorage room;
  return Reduce(room).Sum(value);
}

// partials [blocks]: each block's share of the loss, the mean over the rows of
// (1 - smoothing) (l - x[target]) + smoothing (l - mean(x)), l = log(sum(exp(x))). slope [rows, classes]: its gradient.
template <int lanes>
__global__ void __launch_bounds__(threads)
    cross_entropy_of_rows(const float* __restrict__ scores, const int64_t* __restrict__ targets, float* partials,
                          float* slope, int rows, int classes, float smoothing) {
  cuda_ext::let_the_next_start();
  // All lanes of a warp go on past the last row: they exchange numbers.
  const int lane = threadIdx.x % lanes, row = blockIdx.x * rows_per_block<lanes> + threadIdx.x / lanes;
  const bool is = row < rows;
  const float share = smoothing / classes, per_row = 1.0f / rows;
  const float* const x = scores + int64_t{is ? row : 0} * classes;
  const int64_t target = is ? targets[row] : 0;
  CUDA_EXT_TELL_IF(target < 0 || target >= classes,
                   "cross_entropy: target %lld of row %lld is not one of %lld classes", target, row, classes);
  if (target < 0 || target >= classes) __trap();
  float largest = -INFINITY, sum = 0, powers = 0;
  for (int c = lane; c < classes; c += lanes) largest = fmaxf(largest, x[c]);
  largest = largest_of_row<lanes>(largest);
  for (int c = lane; c < classes; c += lanes) {
    powers += expf(x[c] - largest);
    sum += x[c] - largest;
  }
  powers = sum_of_row<lanes>(powers);
  sum = sum_of_row<lanes>(sum);
  const float log_powers = logf(powers), inverse = 1 / powers;
  float loss = 0;
  if (is && lane == 0) {
    loss = (1 - smoothing) * (log_powers - (x[target] - largest));
    // Without smoothing, a masked class's score of -inf counts for nothing, and 0 x inf would be NaN.
    if (share > 0) loss += share * (classes * log_powers - sum);
  }
  for (int c = lane; is && c < classes; c += lanes) {
    const float wanted = (c == target ? 1 - smoothing : 0.0f) + share;
    slope[int64_t{row} * classes + c] = (expf(x[c] - largest) * inverse - wanted) * per_row;
  }
  loss = sum_of_block(loss);
  if (threadIdx.x == 0) partials[blockIdx.x] = loss * per_row;
}

__global__ void __launch_bounds__(threads) finish_loss(const float* partials, int blocks, float* loss) {
  cuda_ext::wait_for_the_one_before();
  float sum = 0;
  for (int block = threadIdx.x; block < blocks; block += threads) sum += partials[block];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *loss = sum;
}

// scores float32 [rows, classes], targets int64 [rows] -> loss [], slope as scores
std::tuple<Tensor, Tensor> cross_entropy(Tensor scores, Tensor targets, double smoothing) {
  STD_TORCH_CHECK(scores.is_cuda() && targets.is_cuda() && scores.get_device_index() == targets.get_device_index() &&
                      scores.scalar_type() == ScalarType::Float && targets.scalar_type() == ScalarType::Long &&
                      scores.dim() == 2 && targets.dim() == 1 && scores.size(0) == targets.size(0) &&
                      scores.numel() > 0 && scores.numel() <= INT_MAX,
                  "cross_entropy: scores [n, K] of float32 and targets [n] of int64 do not fit together");
  const torch::stable::accelerator::DeviceGuard guard(scores.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(scores.get_device_index());
  scores = torch::stable::contiguous(scores);
  targets = torch::stable::contiguous(targets);
  Tensor loss = torch::stable::new_empty(scores, {}), slope = torch::stable::empty_like(scores);
  const auto run = [&](auto lanes) {
    constexpr int together = rows_per_block<decltype(lanes)::value>;
    const int rows = static_cast<int>(scores.size(0)), blocks = (rows - 1) / together + 1;
    Tensor partials = blocks > 1 ? torch::stable::new_empty(scores, {blocks}) : loss;
    cuda_ext::launch(cross_entropy_of_rows<decltype(lanes)::value>, {dim3(blocks), dim3(threads), 0, stream},
                     static_cast<const float*>(scores.data_ptr()), static_cast<const int64_t*>(targets.data_ptr()),
                     static_cast<float*>(partials.data_ptr()), static_cast<float*>(slope.data_ptr()), rows,
                     static_cast<int>(scores.size(1)), static_cast<float>(smoothing));
    if (blocks == 1) return;
    cuda_ext::launch_early(finish_loss, dim3(1), dim3(threads), 0, stream, static_cast<const float*>(partials.data_ptr()),
                           blocks, static_cast<float*>(loss.data_ptr()));
  };
  if (scores.size(1) <= 8) run(std::integral_constant<int, 1>{});
  else if (scores.size(1) <= 64) run(std::integral_constant<int, 8>{});
  else run(std::integral_constant<int, 32>{});
  return {loss, slope};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("cross_entropy(Tensor scores, Tensor targets, float smoothing) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("cross_entropy", TORCH_BOX(&cross_entropy));
}
