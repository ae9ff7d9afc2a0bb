// The rows of a table by their numbers, and the gradient of the table.
//
// `gather` rounds each row to the result's dtype while it copies it, so that no copy of float32 is written before it is
// rounded. The gradient sorts the tokens by number, keeping their order among equal ones, so that each row of the table
// is the sum of neighbours, added in the tokens' order in float32: no atomics, and each row is written once, zeros too.
// The tokens of a frequent number are first summed in chunks, so that no thread adds thousands of rows.

#include "../batch_norm_activation/channels.cuh"
#include "../common/refuse.cuh"

#include <cub/device/device_radix_sort.cuh>

#include <climits>

namespace {

using cuda_ext::channels::Lane;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int threads = 256;
// Loads that a thread has under way at once.
constexpr int ahead = 8;

// Sorted tokens of a chunk. A number with more tokens than these is summed chunk by chunk, and the chunks one by one: of
// the most frequent word, about a tenth of a text, both then take about as long.
int chunk_of(int count) { return count < 1 << 16 ? 32 : 128; }

__device__ int64_t thread_number() { return int64_t{blockIdx.x} * threads + threadIdx.x; }

unsigned blocks_for(int64_t count) {
  const int64_t blocks = (count + threads - 1) / threads;
  STD_TORCH_CHECK(blocks <= INT_MAX, "embedding: more numbers than a grid has threads");
  return static_cast<unsigned>(blocks);
}

// A thread copies V numbers of a row. A token outside of the table stops the program, as PyTorch's own does.
template <typename From, typename To, int V, typename Index>
__global__ void __launch_bounds__(threads)
    gather(const From* __restrict__ table, const Index* __restrict__ tokens, To* __restrict__ y, int64_t count,
           int64_t rows, int width) {
  const int lanes = width / V;
  const int64_t i = thread_number();
  if (i >= count * lanes) return;
  const int64_t token = i / lanes, column = i % lanes * V;
  const int64_t row = tokens[token];
  CUDA_EXT_TELL_IF(row < 0 || row >= rows, "embedding: token %lld at place %lld is not one of %lld rows", row, token,
                   rows);
  if (row < 0 || row >= rows) __trap();
  float values[V];
  cuda_ext::channels::unpack(cuda_ext::channels::load<From, V>(table + row * width + column), values);
  cuda_ext::channels::store(y + token * width + column, cuda_ext::channels::packed<To, V>(values));
}

template <typename Index>
__global__ void __launch_bounds__(threads)
    number(const Index* __restrict__ tokens, unsigned* numbers, int* places, int count, int64_t rows) {
  const int64_t i = thread_number();
  if (i >= count) return;
  CUDA_EXT_TELL_IF(tokens[i] < 0 || tokens[i] >= rows,
                   "embedding_gradient: token %lld at place %lld is not one of %lld rows", tokens[i], i, rows);
  if (tokens[i] < 0 || tokens[i] >= rows) __trap();
  numbers[i] = static_cast<unsigned>(tokens[i]);
  places[i] = static_cast<int>(i);
}

// ranges [rows]: of the sorted tokens those of a number, (0, 0) for none; zeros beforehand.
__global__ void __launch_bounds__(threads) mark_ranges(const unsigned* __restrict__ numbers, int count, int2* ranges) {
  const int64_t at = thread_number();
  if (at >= count) return;
  const int i = static_cast<int>(at);
  const unsigned number = numbers[i];
  if (i == 0 || numbers[i - 1] != number) ranges[number].x = i;
  if (i + 1 == count || numbers[i + 1] != number) ranges[number].y = i + 1;
}

// Adds V numbers of each of `count` rows to the sum, in order; from(i): where those of row i are.
template <typename From, int V, typename Place>
__device__ __forceinline__ void add_rows(float (&sum)[V], int count, const Place& from) {
  for (int first = 0; first < count; first += ahead) {
    Lane<From, V> rows[ahead];
    // Behind the last one it is loaded again, and left out of the sum by a selection: behind a branch, each load would
    // wait for the sum before it.
#pragma unroll
    for (int i = 0; i < ahead; ++i) rows[i] = cuda_ext::channels::load<From, V>(from(min(first + i, count - 1)));
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      float values[V];
      cuda_ext::channels::unpack(rows[i], values);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += first + i < count ? values[v] : 0.0f;
    }
  }
}

// The gradient [count, width] of the result, and its tokens in sorted order.
template <typename From>
struct Sorted {
  const From* gradient;
  const int* places;
  const int2* ranges;
  int width, chunk;

  // Adds V numbers from `column` on of the sorted tokens `first` to `last`.
  template <int V>
  __device__ __forceinline__ void add(float (&sum)[V], int first, int last, int column) const {
    add_rows<From>(sum, last - first,
                   [&](int i) { return gradient + int64_t{places[first + i]} * width + column; });
  }
};

// partial [chunks, 2, width]: of each chunk the sum of the number that it begins with, and of the one that it ends with,
// where they have more than a chunk of tokens. More than these two a chunk cannot hold.
template <typename From, int V>
__global__ void __launch_bounds__(threads)
    sum_chunks(Sorted<From> sorted, const unsigned* __restrict__ numbers, int count, int64_t padding,
               float* __restrict__ partial) {
  const int lanes = sorted.width / V, chunk = sorted.chunk;
  const int64_t i = thread_number(), chunks = (count + chunk - 1) / chunk;
  if (i >= chunks * lanes) return;
  const int column = static_cast<int>(i % lanes) * V, first = static_cast<int>(i / lanes) * chunk;
  const int last = min(first + chunk, count);
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const unsigned row = numbers[side == 0 ? first : last - 1];
    const auto [begin, end] = sorted.ranges[row];
    if (end - begin <= chunk || row == padding || (side == 1 && begin <= first)) continue;
    float sum[V] = {};
    sorted.add(sum, max(begin, first), min(end, last), column);
    cuda_ext::channels::store(partial + (i / lanes * 2 + side) * sorted.width + column,
                              cuda_ext::channels::packed<float, V>(sum));
  }
}

template <typename From, typename To, int V>
__global__ void __launch_bounds__(threads)
    sum_rows(Sorted<From> sorted, const float* __restrict__ partial, int64_t padding, To* __restrict__ y,
             int64_t rows) {
  const int lanes = sorted.width / V, chunk = sorted.chunk;
  const int64_t i = thread_number();
  if (i >= rows * lanes) return;
  const int64_t row = i / lanes;
  const int column = static_cast<int>(i % lanes) * V;
  const auto [begin, end] = sorted.ranges[row];
  float sum[V] = {};
  // The vector of padding is never trained.
  if (row != padding && end - begin <= chunk) {
    sorted.add(sum, begin, end, column);
  } else if (row != padding) {
    const int first = begin / chunk;
    add_rows<float>(sum, (end - 1) / chunk - first + 1, [&, begin = begin](int at) {
      const int side = (first + at) * chunk < begin;
      return partial + (int64_t{first + at} * 2 + side) * sorted.width + column;
    });
  }
  cuda_ext::channels::store(y + row * sorted.width + column, cuda_ext::channels::packed<To, V>(sum));
}

// Calls f(table's T{}, result's T{}): of one dtype, or a table of float32 with a result of half precision.
template <typename F>
void with_dtypes(ScalarType table, ScalarType result, F&& f) {
  cuda_ext::with_dtype("embedding", result, [&](auto r) {
    if (table == result) f(r, r);
    else if (table == ScalarType::Float) f(float{}, r);
    else STD_TORCH_CHECK(false, "embedding: the result has the table's dtype, or is of half precision and it float32");
  });
}

// Calls f with as many neighbouring numbers as both dtypes move at once: 8, 4 or 1.
template <typename F>
void with_lanes(int64_t width, bool aligned, F&& f) {
  if (aligned && width % 8 == 0) f(std::integral_constant<int, 8>{});
  else if (aligned && width % 4 == 0) f(std::integral_constant<int, 4>{});
  else f(std::integral_constant<int, 1>{});
}

template <typename F>
void with_index(const Tensor& tokens, F&& f) {
  if (tokens.scalar_type() == ScalarType::Int) return f(int32_t{});
  STD_TORCH_CHECK(tokens.scalar_type() == ScalarType::Long, "embedding: tokens must be int32 or int64");
  f(int64_t{});
}

// table [V, E] and rows [M, E], and the tokens or their order.
void check_rows(const Tensor& table, const Tensor& tokens, const Tensor& rows) {
  STD_TORCH_CHECK(table.is_cuda() && tokens.is_cuda() && rows.is_cuda() && table.dim() == 2 && rows.dim() == 2 &&
                      table.is_contiguous() && tokens.is_contiguous() && rows.is_contiguous() &&
                      rows.size(1) == table.size(1) && table.size(1) <= INT_MAX && rows.size(0) < INT_MAX &&
                      table.size(0) < INT_MAX,
                  "embedding: table, tokens and rows do not fit together");
  CUDA_EXT_REFUSE_UNLESS(tokens.get_device_index() == table.get_device_index() &&
                             rows.get_device_index() == table.get_device_index(),
                         "embedding: table, tokens and rows must be on one GPU, got devices ",
                         table.get_device_index(), ", ", tokens.get_device_index(), " and ", rows.get_device_index());
}

// What embedding_order wrote.
struct Order {
  unsigned* numbers;
  int* places;
  int2* ranges;

  Order(const Tensor& order, int64_t rows) {
    const int64_t count = order.numel() / 2 - rows;
    places = static_cast<int*>(order.data_ptr()) + count;
    numbers = reinterpret_cast<unsigned*>(places - count);
    ranges = reinterpret_cast<int2*>(places + count);
  }
};

bool aligned(const Tensor& a, const Tensor& b) {
  return cuda_ext::aligned_for_packs(a.data_ptr()) && cuda_ext::aligned_for_packs(b.data_ptr());
}

void embedding(Tensor table, Tensor tokens, Tensor y) {
  check_rows(table, tokens, y);
  STD_TORCH_CHECK(y.size(0) == tokens.numel(), "embedding: as many rows as tokens, got ", y.size(0), " and ",
                  tokens.numel());
  if (y.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(table.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(table.get_device_index());
  with_dtypes(table.scalar_type(), y.scalar_type(), [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    with_index(tokens, [&](auto index) {
      with_lanes(table.size(1), aligned(table, y), [&](auto lanes) {
        constexpr int V = decltype(lanes)::value;
        cuda_ext::launch(gather<From, To, V, decltype(index)>,
                         {dim3(blocks_for(y.numel() / V)), dim3(threads), 0, stream},
                         static_cast<const From*>(table.data_ptr()),
                         static_cast<const decltype(index)*>(tokens.data_ptr()), static_cast<To*>(y.data_ptr()),
                         tokens.numel(), table.size(0), static_cast<int>(table.size(1)));
      });
    });
  });
}

// The tokens [M] sorted by number, equal ones in their order: int32 [2 M + 2 rows], first the numbers, then the place of
// each among the tokens, then where the range of each number begins and ends, (0, 0) for none.
Tensor embedding_order(Tensor tokens, int64_t rows) {
  STD_TORCH_CHECK(tokens.is_cuda() && tokens.is_contiguous() && tokens.numel() < INT_MAX && 0 <= rows && rows < INT_MAX,
                  "embedding: tokens must be contiguous, on a GPU, and fewer than 2^31, as the rows");
  const torch::stable::accelerator::DeviceGuard guard(tokens.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(tokens.get_device_index());
  const auto count = static_cast<int>(tokens.numel());
  const auto integers = [&](int64_t size) { return torch::stable::new_empty(tokens, {size}, ScalarType::Int); };
  const Tensor order = integers(2 * int64_t{count} + 2 * rows);
  const Order sorted(order, rows);
  STD_CUDA_CHECK(cudaMemsetAsync(sorted.ranges, 0, rows * sizeof(int2), stream));
  if (count == 0) return order;
  const Tensor numbers = integers(count), places = integers(count);
  auto* const unsorted = static_cast<unsigned*>(numbers.data_ptr());
  auto* const in_order = static_cast<int*>(places.data_ptr());
  with_index(tokens, [&](auto index) {
    cuda_ext::launch(number<decltype(index)>, {dim3(blocks_for(count)), dim3(threads), 0, stream},
                     static_cast<const decltype(index)*>(tokens.data_ptr()), unsorted, in_order, count, rows);
  });
  int bits = 1;
  while (int64_t{1} << bits < rows) ++bits;
  std::size_t bytes = 0;
  const auto sort = [&](void* workspace) {
    STD_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(workspace, bytes, unsorted, sorted.numbers, in_order, sorted.places,
                                                   count, 0, bits, stream));
  };
  sort(nullptr);
  const Tensor workspace = torch::stable::new_empty(tokens, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
  sort(workspace.data_ptr());
  cuda_ext::launch(mark_ranges, {dim3(blocks_for(count)), dim3(threads), 0, stream}, sorted.numbers, count,
                   sorted.ranges);
  return order;
}

// of_table [V, E] is written whole, from the gradient of the result [M, E] and the order of its tokens; row `padding` is
// zero, -1 for none.
void embedding_gradient(Tensor gradient, Tensor order, int64_t padding, Tensor of_table) {
  check_rows(of_table, order, gradient);
  STD_TORCH_CHECK(order.scalar_type() == ScalarType::Int && order.numel() == 2 * (gradient.size(0) + of_table.size(0)),
                  "embedding_gradient: the order is of other tokens or of another table");
  if (of_table.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(of_table.get_device_index());
  const cudaStream_t stream = cuda_ext::current_stream(of_table.get_device_index());
  if (gradient.numel() == 0) {
    torch::stable::zero_(of_table);
    return;
  }
  const int64_t rows = of_table.size(0), width = of_table.size(1);
  const auto count = static_cast<int>(gradient.size(0));
  const Order sorted(order, rows);
  const int chunk = chunk_of(count);
  const int64_t chunks = (count + chunk - 1) / chunk;
  const Tensor partial = torch::stable::new_empty(of_table, {chunks * 2 * width}, ScalarType::Float);
  auto* partials = static_cast<float*>(partial.data_ptr());
  with_dtypes(of_table.scalar_type(), gradient.scalar_type(), [&](auto to, auto from) {
    using From = decltype(from);
    using To = decltype(to);
    with_lanes(width, aligned(gradient, of_table), [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      const Sorted<From> of{static_cast<const From*>(gradient.data_ptr()), sorted.places, sorted.ranges,
                            static_cast<int>(width), chunk};
      cuda_ext::launch(sum_chunks<From, V>, {dim3(blocks_for(chunks * width / V)), dim3(threads), 0, stream}, of,
                       sorted.numbers, count, padding, partials);
      cuda_ext::launch(sum_rows<From, To, V>, {dim3(blocks_for(rows * width / V)), dim3(threads), 0, stream}, of,
                       static_cast<const float*>(partials), padding, static_cast<To*>(of_table.data_ptr()), rows);
    });
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(reread_kernels_compiled, m) {
  m.def("embedding(Tensor table, Tensor tokens, Tensor(a!) y) -> ()");
  m.def("embedding_order(Tensor tokens, int rows) -> Tensor");
  m.def("embedding_gradient(Tensor gradient, Tensor order, int padding, Tensor(a!) of_table) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(reread_kernels_compiled, CUDA, m) {
  m.impl("embedding", TORCH_BOX(&embedding));
  m.impl("embedding_order", TORCH_BOX(&embedding_order));
  m.impl("embedding_gradient", TORCH_BOX(&embedding_gradient));
}
