// The kernels on the matrix units, for states of float, half and bfloat16; one .cu file each instantiates them.
//
// Both read the states once, 16 rows a warp, straight into the layout of the matrix instructions' operands. Thread 4 g + q
// of a warp holds rows g and g + 8, and of each 16 columns the four from 4 q on, as two pairs; of 8 columns that are left,
// the pair from 2 q on. The instructions would want columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 there. As a sum over
// columns does not mind their order, the weight lies in shared memory with its columns, and its rows, in the order that
// makes up for it: what comes out of one product is in the layout of the next one's operand and of the states'.
#pragma once

#include "attention_pooling.cuh"
#include "tensor_cores.cuh"

#include <algorithm>
#include <cmath>

namespace cuda_ext::attention {

constexpr unsigned all_lanes = 0xffffffffu;
constexpr int forward_threads = 384;
constexpr int backward_threads = 256;
constexpr int unit_rows = 16;
// A sequence's scores stay in shared memory up to this length, beyond it in its weights.
constexpr int kept_scores = 128;

// Widths up to 8 * eighths; `pairs` of columns a thread holds of a row.
template <typename T, int eighths>
struct Tile {
  using Element = typename Units<T>::Element;
  static constexpr int planes = Units<T>::planes;
  static constexpr int pairs = eighths;
  static constexpr int blocks = eighths / 2;
  static constexpr bool tail = eighths % 2;
  static constexpr int width = eighths * 8;
  // An odd number of 16 bytes: eight rows of a matrix lie in different banks.
  static constexpr int pitch = (eighths | 1) * 8;
  static constexpr int weight_plane = width * pitch;

  // Where a column stands in shared memory.
  __device__ static int place(int column) {
    if (column >= 16 * blocks) return column;
    const int inside = column % 16;
    return column - inside + (inside / 2) % 2 * 8 + inside / 4 * 2 + inside % 2;
  }
  // The first column of a thread's pair.
  __device__ static int column(int pair, int q) {
    return pair < 2 * blocks ? 16 * (pair / 2) + 4 * q + 2 * (pair % 2) : 16 * blocks + 2 * q;
  }
};

template <typename Pair>
struct alignas(2 * sizeof(Pair)) Two {
  Pair a, b;
};

// A thread's part of a row.
template <typename T, int eighths>
struct Row {
  using Shape = Tile<T, eighths>;
  using Pair = std::conditional_t<std::is_same_v<T, float>, float2, unsigned>;
  Pair pairs[eighths];

  __device__ float2 at(int pair) const {
    if constexpr (std::is_same_v<T, float>) {
      return pairs[pair];
    } else {
      return unpack<T>(pairs[pair]);
    }
  }

  __device__ void operand(int pair, float scale, unsigned (&planes)[Shape::planes]) const {
    if constexpr (std::is_same_v<T, float>) {
      split<T>(make_float2(pairs[pair].x * scale, pairs[pair].y * scale), planes);
    } else {
      planes[0] = pairs[pair];
    }
  }

  __device__ float largest() const {
    float most = 0;
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) most = fmaxf(most, fmaxf(fabsf(at(pair).x), fabsf(at(pair).y)));
    return most;
  }

  // Zeros stand for columns from `width` on, and for a row that is none.
  __device__ void load(const T* row, bool real, int width, bool packs, int q) {
    if (packs) {
#pragma unroll
      for (int block = 0; block < Shape::blocks; ++block) {
        Two<Pair> two{};
        if (const int c = 16 * block + 4 * q; real && c < width) two = *reinterpret_cast<const Two<Pair>*>(row + c);
        pairs[2 * block] = two.a;
        pairs[2 * block + 1] = two.b;
      }
      if constexpr (Shape::tail) {
        pairs[2 * Shape::blocks] = Pair{};
        if (const int c = 16 * Shape::blocks + 2 * q; real && c < width) {
          pairs[2 * Shape::blocks] = *reinterpret_cast<const Pair*>(row + c);
        }
      }
    } else {
#pragma unroll
      for (int pair = 0; pair < eighths; ++pair) {
        const int c = Shape::column(pair, q);
        float2 x = make_float2(0, 0);
        if (real && c < width) x.x = static_cast<float>(row[c]);
        if (real && c + 1 < width) x.y = static_cast<float>(row[c + 1]);
        if constexpr (std::is_same_v<T, float>) {
          pairs[pair] = x;
        } else {
          pairs[pair] = pack<T>(x);
        }
      }
    }
  }

  __device__ void set(int pair, float2 x) {
    if constexpr (std::is_same_v<T, float>) {
      pairs[pair] = x;
    } else {
      pairs[pair] = pack<T>(x);
    }
  }

  __device__ void store(T* row, int width, bool packs, int q) const {
    if (packs) {
#pragma unroll
      for (int block = 0; block < Shape::blocks; ++block) {
        if (const int c = 16 * block + 4 * q; c < width) {
          *reinterpret_cast<Two<Pair>*>(row + c) = Two<Pair>{pairs[2 * block], pairs[2 * block + 1]};
        }
      }
      if constexpr (Shape::tail) {
        if (const int c = 16 * Shape::blocks + 2 * q; c < width) {
          *reinterpret_cast<Pair*>(row + c) = pairs[2 * Shape::blocks];
        }
      }
    } else {
#pragma unroll
      for (int pair = 0; pair < eighths; ++pair) {
        const int c = Shape::column(pair, q);
        const float2 x = at(pair);
        if (c < width) row[c] = static_cast<T>(x.x);
        if (c + 1 < width) row[c + 1] = static_cast<T>(x.y);
      }
    }
  }
};

template <typename T>
__device__ float parameter(const void* values, bool single, int i) {
  return single ? static_cast<const float*>(values)[i] : static_cast<float>(static_cast<const T*>(values)[i]);
}

template <int eighths>
struct Vectors {
  alignas(16) float bias[8 * eighths];
  alignas(16) float context[8 * eighths];
  float largest_weight[32];
  float largest_context[32];
};

// The largest of the block's numbers, for all of its threads; `room` has a place a warp.
__device__ inline float over_warp(float x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

// The weight to shared memory, rows and columns in their places and scaled; zeros fill it up. Bias and context as
// floats. Returns the weight's scale (1 but for float) and the context's largest number. All loads are under way before
// the first is used: one after the other they would take longer than all else for a small batch.
template <typename T, int eighths, int threads>
__device__ float2 load_parameters(const Parameters& p, typename Units<T>::Element* weight, Vectors<eighths>& vectors) {
  using Shape = Tile<T, eighths>;
  using E = typename Shape::Element;
  constexpr int fours = Shape::width / 4, all = Shape::width * fours, each = (all + threads - 1) / threads;
  float values[each][4];
  const bool aligned = p.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(p.weight) % 16 == 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int at = threadIdx.x + i * threads, a = at / fours, d = at % fours * 4;
    const bool inside = at < all && a < p.units && d < p.width;
    const int from = a * p.width + d;
    if (inside && aligned && (std::is_same_v<T, float> || p.single)) {
      const float4 x = *reinterpret_cast<const float4*>(static_cast<const float*>(p.weight) + from);
      values[i][0] = x.x, values[i][1] = x.y, values[i][2] = x.z, values[i][3] = x.w;
    } else if (inside && aligned) {
      const uint2 x = *reinterpret_cast<const uint2*>(static_cast<const T*>(p.weight) + from);
      const float2 first = unpack<E>(x.x), second = unpack<E>(x.y);
      values[i][0] = first.x, values[i][1] = first.y, values[i][2] = second.x, values[i][3] = second.y;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[i][j] = inside && d + j < p.width ? parameter<T>(p.weight, p.single, from + j) : 0.0f;
      }
    }
  }
  float largest_context = 0;
  for (int a = threadIdx.x; a < Shape::width; a += threads) {
    vectors.bias[a] = a < p.units ? parameter<T>(p.bias, p.single, a) : 0.0f;
    vectors.context[a] = a < p.units ? parameter<T>(p.context, p.single, a) : 0.0f;
    largest_context = fmaxf(largest_context, fabsf(vectors.context[a]));
  }
  float scale = 1;
  if constexpr (Shape::planes == 2) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) largest = fmaxf(largest, fabsf(values[i][j]));
    }
    largest = over_warp(largest);
    largest_context = over_warp(largest_context);
    if (threadIdx.x % 32 == 0) {
      vectors.largest_weight[threadIdx.x / 32] = largest;
      vectors.largest_context[threadIdx.x / 32] = largest_context;
    }
    __syncthreads();
    for (int warp = 0; warp < threads / 32; ++warp) {
      largest = fmaxf(largest, vectors.largest_weight[warp]);
      largest_context = fmaxf(largest_context, vectors.largest_context[warp]);
    }
    scale = scale_for<30>(largest);
  }
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int at = threadIdx.x + i * threads, a = at / fours, d = at % fours * 4;
    if (at < all) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        unsigned planes[Shape::planes];
        split<T>(make_float2(values[i][j] * scale, values[i][j + 1] * scale), planes);
        E* place = weight + Shape::place(a) * Shape::pitch + Shape::place(d + j);
#pragma unroll
        for (int plane = 0; plane < Shape::planes; ++plane) {
          *reinterpret_cast<unsigned*>(place + plane * Shape::weight_plane) = planes[plane];
        }
      }
    }
  }
  __syncthreads();
  return make_float2(scale, largest_context);
}

// out [16, width] += a [16, 16 columns of `block`] times the weight, transposed (down = false: to the projection) or as it
// is (down = true: back to the states). The float's small products come first.
template <typename T, int eighths, bool down>
__device__ void multiply_block(float (&out)[eighths][4], const unsigned (&a)[Units<T>::planes][4], int block,
                               unsigned weight, int lane) {
  using Shape = Tile<T, eighths>;
  using E = typename Shape::Element;
  constexpr int group = 4;
  // One load brings two matrices along the sum (8 columns each) of two planes, or of two neighbours of `out`.
  const int along = 16 * block + (lane >> 3) % 2 * 8, other = lane >> 4;
  const int far = Shape::planes == 2 ? other * Shape::weight_plane : 0;
  const int next = Shape::planes == 2 ? 0 : other;
#pragma unroll
  for (int first = 0; first < eighths; first += group) {
    unsigned b[group][2 * Shape::planes];
#pragma unroll
    for (int i = 0; i < group; i += 3 - Shape::planes) {
      if (first + i < eighths) {
        const int tile = first + i + next < eighths ? first + i + next : eighths - 1;
        unsigned m[4];
        if constexpr (down) {
          load_matrices_transposed(m, weight + 2 * (far + (along + lane % 8) * Shape::pitch + 8 * tile));
        } else {
          load_matrices(m, weight + 2 * (far + (8 * tile + lane % 8) * Shape::pitch + along));
        }
        b[i][0] = m[0];
        b[i][1] = m[1];
        if constexpr (Shape::planes == 2) {
          b[i][2] = m[2];
          b[i][3] = m[3];
        } else {
          b[i + 1][0] = m[2];
          b[i + 1][1] = m[3];
        }
      }
    }
    if constexpr (Shape::planes == 2) {
#pragma unroll
      for (int i = 0; i < group; ++i) {
        if (first + i < eighths) multiply<E>(out[first + i], a[1], b[i][0], b[i][1]);
      }
#pragma unroll
      for (int i = 0; i < group; ++i) {
        if (first + i < eighths) multiply<E>(out[first + i], a[0], b[i][2], b[i][3]);
      }
    }
#pragma unroll
    for (int i = 0; i < group; ++i) {
      if (first + i < eighths) multiply<E>(out[first + i], a[0], b[i][0], b[i][1]);
    }
  }
}

// The same with the last 8 columns of the sum, when their number is odd.
template <typename T, int eighths, bool down>
__device__ void multiply_tail(float (&out)[eighths][4], const unsigned (&a)[Units<T>::planes][2], unsigned weight,
                              int lane) {
  using Shape = Tile<T, eighths>;
  using E = typename Shape::Element;
  constexpr int each = 4 / Shape::planes;
  constexpr int along = 16 * Shape::blocks;
  const int far = Shape::planes == 2 ? (lane >> 3) % 2 * Shape::weight_plane : 0;
  const int next = Shape::planes == 2 ? lane >> 4 : lane >> 3;
#pragma unroll
  for (int first = 0; first < eighths; first += each) {
    const int tile = first + next < eighths ? first + next : eighths - 1;
    unsigned m[4];
    if constexpr (down) {
      load_matrices_transposed(m, weight + 2 * (far + (along + lane % 8) * Shape::pitch + 8 * tile));
    } else {
      load_matrices(m, weight + 2 * (far + (8 * tile + lane % 8) * Shape::pitch + along));
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if (first + i < eighths) {
        if constexpr (Shape::planes == 2) {
          multiply<E>(out[first + i], a[1], m[2 * i]);
          multiply<E>(out[first + i], a[0], m[2 * i + 1]);
        }
        multiply<E>(out[first + i], a[0], m[Shape::planes * i]);
      }
    }
  }
}

__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The hyperbolic tangent: for float to 2e-7, and near zero to as much of itself; for half precision by the unit (relative
// error 2^-11, a rounding to half).
template <typename T>
__device__ float tangent(float x) {
  if constexpr (std::is_same_v<T, float>) {
    const float square = x * x;
    const float small = fmaf(x * square, fmaf(square, fmaf(square, -0.053968254f, 0.13333333f), -0.33333333f), x);
    const float large = fmaf(-2.0f, reciprocal(__expf(2.0f * x) + 1.0f), 1.0f);
    return square < 0.0225f ? small : large;
  } else {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
}

__device__ inline float over_quad(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}

__device__ inline float over_rows(float x) {
  x += __shfl_xor_sync(all_lanes, x, 4);
  x += __shfl_xor_sync(all_lanes, x, 8);
  return x + __shfl_xor_sync(all_lanes, x, 16);
}

template <typename T, int eighths>
struct ForwardShared {
  alignas(16) typename Units<T>::Element weight[Units<T>::planes * Tile<T, eighths>::weight_plane];
  Vectors<eighths> vectors;
  float scores[forward_threads / 32][kept_scores];
  int lengths[forward_threads];
  int before[forward_threads];
  int sums[forward_threads / 32];
  int next;
};

// The sum of `x` over the block, and over the threads before this one.
template <int threads>
__device__ int2 scan(int x, int (&sums)[threads / 32]) {
  const int lane = threadIdx.x % 32;
  int inclusive = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(all_lanes, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) sums[threadIdx.x / 32] = inclusive;
  __syncthreads();
  int before = inclusive - x, all = 0;
#pragma unroll
  for (int warp = 0; warp < threads / 32; ++warp) {
    if (warp < threadIdx.x / 32) before += sums[warp];
    all += sums[warp];
  }
  return make_int2(before, all);
}

// Each block takes a run of sequences, each warp one at a time: projection, tanh, scores, softmax and weighted sum, 16
// steps after 16, the softmax with a running maximum. It also writes the index that lets the backward pass skip padding.
template <typename T, int eighths>
__global__ void __launch_bounds__(forward_threads, 1) forward_kernel(const Forward call) {
  using Shape = Tile<T, eighths>;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<T, eighths>*>(memory);
  const Rows& rows = call.rows;
  const int width = call.parameters.width;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int64_t begin = rows.sequences * blockIdx.x / gridDim.x, end = rows.sequences * (blockIdx.x + 1) / gridDim.x;
  const float weight_scale = load_parameters<T, eighths, forward_threads>(call.parameters, shared.weight, shared.vectors).x;
  const unsigned weight = shared_address(shared.weight);

  int before = 0;
  if (!rows.ragged) {
    for (int64_t n = threadIdx.x; n < begin; n += forward_threads) before += static_cast<int>(rows.length(n));
    before = scan<forward_threads>(before, shared.sums).y;
  }
  for (int64_t base = begin; base < end; base += forward_threads) {
    const int64_t own = base + threadIdx.x;
    const int own_length = own < end ? static_cast<int>(rows.length(own)) : 0;
    const int2 sums = scan<forward_threads>(own_length, shared.sums);
    shared.lengths[threadIdx.x] = own_length;
    shared.before[threadIdx.x] = before + sums.x;
    if (threadIdx.x == 0) shared.next = 0;
    before += sums.y;
    __syncthreads();
    const int count = static_cast<int>(end - base < forward_threads ? end - base : forward_threads);
    while (true) {
      int taken = 0;
      if (lane == 0) taken = atomicAdd(&shared.next, 1);
      taken = __shfl_sync(all_lanes, taken, 0);
      if (taken >= count) break;
      const int64_t n = base + taken, first = rows.first(n);
      const int length = shared.lengths[taken];
      const T* states = static_cast<const T*>(call.states) + first * width;
      float* weights = static_cast<float*>(call.weights) + first;
      float* scores = length <= kept_scores ? shared.scores[warp] : weights;
      float largest = -INFINITY, sum = 0;
      float2 pooled[eighths];
#pragma unroll
      for (int pair = 0; pair < eighths; ++pair) pooled[pair] = make_float2(0, 0);

      for (int start = 0; start < length; start += unit_rows) {
        const int t0 = start + g, t1 = t0 + 8;
        Row<T, eighths> x0, x1;
        x0.load(states + int64_t{t0} * width, t0 < length, width, call.packs, q);
        x1.load(states + int64_t{t1} * width, t1 < length, width, call.packs, q);
        float scale = 1, inverse = 1;
        if constexpr (Shape::planes == 2) {
          scale = scale_for<60>(over_warp(fmaxf(x0.largest(), x1.largest())));
          inverse = inverse_of(scale) * inverse_of(weight_scale);
        }
        float u[eighths][4] = {};
#pragma unroll
        for (int block = 0; block < Shape::blocks; ++block) {
          unsigned a[Shape::planes][4], part[Shape::planes];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            (i % 2 ? x1 : x0).operand(2 * block + i / 2, scale, part);
#pragma unroll
            for (int plane = 0; plane < Shape::planes; ++plane) a[plane][i] = part[plane];
          }
          multiply_block<T, eighths, false>(u, a, block, weight, lane);
        }
        if constexpr (Shape::tail) {
          unsigned a[Shape::planes][2], part[Shape::planes];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            (i ? x1 : x0).operand(2 * Shape::blocks, scale, part);
#pragma unroll
            for (int plane = 0; plane < Shape::planes; ++plane) a[plane][i] = part[plane];
          }
          multiply_tail<T, eighths, false>(u, a, weight, lane);
        }
        float s0 = 0, s1 = 0;
#pragma unroll
        for (int pair = 0; pair < eighths; ++pair) {
          const int c = Shape::column(pair, q);
          const float2 bias = *reinterpret_cast<const float2*>(shared.vectors.bias + c);
          const float2 context = *reinterpret_cast<const float2*>(shared.vectors.context + c);
          s0 += tangent<T>(fmaf(u[pair][0], inverse, bias.x)) * context.x +
                tangent<T>(fmaf(u[pair][1], inverse, bias.y)) * context.y;
          s1 += tangent<T>(fmaf(u[pair][2], inverse, bias.x)) * context.x +
                tangent<T>(fmaf(u[pair][3], inverse, bias.y)) * context.y;
        }
        s0 = t0 < length ? over_quad(s0) : over_quad(s0) * 0 - INFINITY;
        s1 = t1 < length ? over_quad(s1) : over_quad(s1) * 0 - INFINITY;
        if (q == 0) {
          if (t0 < length) scores[t0] = s0;
          if (t1 < length) scores[t1] = s1;
        }
        float highest = fmaxf(s0, s1);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) highest = fmaxf(highest, __shfl_xor_sync(all_lanes, highest, step));
        highest = fmaxf(highest, largest);
        const float shrink = expf(largest - highest), p0 = expf(s0 - highest), p1 = expf(s1 - highest);
        largest = highest;
        sum = sum * shrink + p0 + p1;
#pragma unroll
        for (int pair = 0; pair < eighths; ++pair) {
          const float2 a = x0.at(pair), b = x1.at(pair);
          pooled[pair].x = pooled[pair].x * shrink + p0 * a.x + p1 * b.x;
          pooled[pair].y = pooled[pair].y * shrink + p0 * a.y + p1 * b.y;
        }
      }
      const float whole = length > 0 ? 1.0f / over_rows(sum) : 0.0f;
      T* out = static_cast<T*>(call.pooled) + n * width;
#pragma unroll
      for (int pair = 0; pair < eighths; ++pair) {
        const float x = over_rows(pooled[pair].x) * whole, y = over_rows(pooled[pair].y) * whole;
        const int c = Shape::column(pair, q);
        if (g == pair % 8) {
          if (c < width) out[c] = static_cast<T>(x);
          if (c + 1 < width) out[c + 1] = static_cast<T>(y);
        }
      }
      __syncwarp();
      for (int t = lane; t < length; t += 32) weights[t] = expf(scores[t] - largest) * whole;
      for (int64_t t = length + lane; t < rows.steps; t += 32) weights[t] = 0;
      int32_t* index = call.index + index_head;
      if (rows.ragged) {
        for (int t = lane; t < length; t += 32) index[first + t] = static_cast<int32_t>(n);
      } else {
        const int real = shared.before[taken];
        for (int t = lane; t < length; t += 32) index[real + t] = static_cast<int32_t>(first + t);
        // From the end on, as many as there is padding.
        for (int64_t t = length + lane; t < rows.steps; t += 32) {
          index[rows.total - 1 - (first - real) - (t - length)] = -1;
        }
      }
      __syncwarp();
    }
    __syncthreads();
  }
  if (rows.ragged) {
    // Rows of no sequence.
    const int64_t from = rows.first(0), to = rows.within(rows.bound(rows.sequences), rows.total);
    const int64_t stride = int64_t{gridDim.x} * forward_threads, thread = blockIdx.x * forward_threads + threadIdx.x;
    for (int64_t row = thread; row < rows.total; row += stride) {
      if (row < from || row >= to) {
        static_cast<float*>(call.weights)[row] = 0;
        call.index[index_head + row] = -1;
      }
    }
    if (thread == 0) {
      call.index[0] = static_cast<int32_t>(from);
      call.index[1] = static_cast<int32_t>(to > from ? to : from);
    }
  } else if (end == rows.sequences && threadIdx.x == 0) {
    call.index[0] = 0;
    call.index[1] = before;
  }
}

template <typename T, int eighths>
struct BackwardShared {
  using Shape = Tile<T, eighths>;
  static constexpr int tile_rows = backward_threads / 32 * unit_rows;
  static constexpr int tile_plane = tile_rows * Shape::pitch;
  alignas(16) typename Shape::Element weight[Shape::planes * Shape::weight_plane];
  alignas(16) typename Shape::Element states[Shape::planes * tile_plane];
  // A strip of 16 columns of the last row may end beyond it.
  alignas(16) typename Shape::Element slopes[Shape::planes * tile_plane + 8];
  Vectors<eighths> vectors;
  // For float, what the scales of a unit's slopes, and of these times its states, must be undone by.
  float inverses[backward_threads / 32][2];
  float contexts[backward_threads / 32][Shape::width];
};

template <typename E, int planes>
__device__ void store_operand(E* place, int plane, const unsigned (&a)[planes], const unsigned (&b)[planes]) {
#pragma unroll
  for (int i = 0; i < planes; ++i) *reinterpret_cast<uint2*>(place + i * plane) = make_uint2(a[i], b[i]);
}

// Each block takes a run of real steps, found through the index, 128 at a time and 16 a warp. A warp computes the
// projection again, the scores' gradient (softmax's needs of the rest of its sequence only gradient . pooled), its slopes
// ds (1 - u^2) context, and the states' gradient; then the block adds the tile's slopes^T states to the weight's
// gradient, 16 rows of it a warp, in registers to the end. The matrix units round towards zero when they add: each
// tile's sum begins anew and joins the others by an addition that rounds to nearest.
template <typename T, int eighths>
__global__ void __launch_bounds__(backward_threads, 1) backward_kernel(const Backward call) {
  using Shape = Tile<T, eighths>;
  using Shared = BackwardShared<T, eighths>;
  using E = typename Shape::Element;
  constexpr int warps = backward_threads / 32;
  constexpr int strips = (eighths + 1) / 2, parts = warps / strips, tiles = (eighths + parts - 1) / parts;
  constexpr int planes = Shape::planes;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const Rows& rows = call.rows;
  const int width = call.parameters.width, units = call.parameters.units;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const float2 loaded = load_parameters<T, eighths, backward_threads>(call.parameters, shared.weight, shared.vectors);
  const float weight_scale = loaded.x, largest_context = loaded.y;
  const unsigned weight = shared_address(shared.weight);
  T* const out = static_cast<T*>(call.states_gradient);

  if (!rows.ragged) {
    const int64_t begin = rows.sequences * blockIdx.x / gridDim.x, end = rows.sequences * (blockIdx.x + 1) / gridDim.x;
    for (int64_t n = begin + warp; n < end; n += warps) {
      const int64_t length = rows.length(n), count = (rows.steps - length) * width;
      T* padding = out + (n * rows.steps + length) * width;
      if (call.packs) {
        auto* fours = reinterpret_cast<uint2*>(padding);
        for (int64_t i = lane; i < count * static_cast<int64_t>(sizeof(T)) / 8; i += 32) fours[i] = make_uint2(0, 0);
      } else {
        for (int64_t i = lane; i < count; i += 32) padding[i] = static_cast<T>(0.0f);
      }
    }
  } else {
    for (int64_t row = int64_t{blockIdx.x} * warps + warp; row < rows.total; row += int64_t{gridDim.x} * warps) {
      if (row < call.index[0] || row >= call.index[1]) {
        for (int d = lane; d < width; d += 32) out[row * width + d] = static_cast<T>(0.0f);
      }
    }
  }

  const int64_t origin = call.index[0], last = call.index[1];
  const int64_t all = (last - origin + unit_rows - 1) / unit_rows;
  const int64_t from = all * blockIdx.x / gridDim.x, to = all * (blockIdx.x + 1) / gridDim.x;
  const int strip = warp % strips, part = warp / strips;
  float weight_sums[tiles][4] = {};
  float bias_sums[4] = {};
  float2 context_sums[eighths];
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) context_sums[pair] = make_float2(0, 0);

  for (int64_t tile = from; tile < to; tile += warps) {
    if (tile + warp < to) {
      int64_t place[2], sequence[2];
      bool real[2];
      float share[2], slope[2];
      Row<T, eighths> x[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = origin + (tile + warp) * unit_rows + g + 8 * i;
        real[i] = row < last;
        const int32_t entry = real[i] ? call.index[index_head + row] : 0;
        place[i] = rows.ragged ? row : entry;
        sequence[i] = rows.ragged ? entry : entry / static_cast<int32_t>(rows.steps);
        if (entry < 0 || sequence[i] >= rows.sequences) real[i] = false;
        if (!real[i]) place[i] = sequence[i] = 0;
        x[i].load(static_cast<const T*>(call.states) + place[i] * width, real[i], width, call.packs, q);
        share[i] = real[i] ? static_cast<const float*>(call.weights)[place[i]] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Row<T, eighths> gradient, pooled;
        gradient.load(static_cast<const T*>(call.gradient) + sequence[i] * width, real[i], width, call.packs, q);
        pooled.load(static_cast<const T*>(call.pooled) + sequence[i] * width, real[i], width, call.packs, q);
        float own = 0, mean = 0;
#pragma unroll
        for (int pair = 0; pair < eighths; ++pair) {
          const float2 a = gradient.at(pair), b = x[i].at(pair), c = pooled.at(pair);
          own += a.x * b.x + a.y * b.y;
          mean += a.x * c.x + a.y * c.y;
        }
        if (call.weights_gradient && real[i]) {
          const auto* weights = static_cast<const float*>(call.weights);
          const auto* gradients = static_cast<const float*>(call.weights_gradient);
          const int64_t first = rows.first(sequence[i]), beyond = first + rows.length(sequence[i]);
          for (int64_t t = first + q; t < beyond; t += 4) mean += weights[t] * gradients[t];
          if (q == 0) own += gradients[place[i]];
        }
        slope[i] = share[i] * (over_quad(own) - over_quad(mean));
      }

      // Scaled slopes, and what undoes the scales of the projection and of the states' gradient.
      float scale = 1, scaled[2] = {slope[0], slope[1]}, inverse = 1, change_inverse = 1;
      if constexpr (planes == 2) {
        scale = scale_for<60>(over_warp(fmaxf(x[0].largest(), x[1].largest())));
        const float most = over_warp(fmaxf(fabsf(slope[0]), fabsf(slope[1]))) * largest_context;
        const float slope_scale = scale_for<60>(most), weight_inverse = inverse_of(weight_scale);
        scaled[0] *= slope_scale;
        scaled[1] *= slope_scale;
        inverse = inverse_of(scale) * weight_inverse;
        change_inverse = inverse_of(slope_scale) * weight_inverse;
        if (lane == 0) {
          shared.inverses[warp][0] = inverse_of(slope_scale);
          shared.inverses[warp][1] = inverse_of(slope_scale) * inverse_of(scale);
        }
      }
      const int at = (warp * unit_rows + g) * Shape::pitch;
      float u[eighths][4] = {}, change[eighths][4] = {};
#pragma unroll
      for (int block = 0; block < Shape::blocks; ++block) {
        unsigned a[planes][4], parted[4][planes];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[i % 2].operand(2 * block + i / 2, scale, parted[i]);
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) a[plane][i] = parted[i][plane];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          store_operand(shared.states + at + 8 * i * Shape::pitch + 16 * block + 4 * q, Shared::tile_plane, parted[i],
                        parted[i + 2]);
        }
        multiply_block<T, eighths, false>(u, a, block, weight, lane);
      }
      if constexpr (Shape::tail) {
        unsigned a[planes][2], parted[planes];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          x[i].operand(2 * Shape::blocks, scale, parted);
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) {
            a[plane][i] = parted[plane];
            *reinterpret_cast<unsigned*>(shared.states + plane * Shared::tile_plane + at + 8 * i * Shape::pitch +
                                         16 * Shape::blocks + 2 * q) = parted[plane];
          }
        }
        multiply_tail<T, eighths, false>(u, a, weight, lane);
      }

      // u becomes tanh and then, a pair after the other, the operand of the product that leads back to the states.
      auto slopes = [&](int pair, unsigned (&first)[planes], unsigned (&second)[planes]) {
        const int c = Shape::column(pair, q);
        const float2 bias = *reinterpret_cast<const float2*>(shared.vectors.bias + c);
        const float2 context = *reinterpret_cast<const float2*>(shared.vectors.context + c);
        float2 t[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          t[i].x = tangent<T>(fmaf(u[pair][2 * i], inverse, bias.x));
          t[i].y = tangent<T>(fmaf(u[pair][2 * i + 1], inverse, bias.y));
          context_sums[pair].x += slope[i] * t[i].x;
          context_sums[pair].y += slope[i] * t[i].y;
          split<T>(make_float2(scaled[i] * context.x * (1 - t[i].x * t[i].x), scaled[i] * context.y * (1 - t[i].y * t[i].y)),
                   i ? second : first);
        }
      };
#pragma unroll
      for (int block = 0; block < Shape::blocks; ++block) {
        unsigned a[planes][4], parted[4][planes];
        slopes(2 * block, parted[0], parted[1]);
        slopes(2 * block + 1, parted[2], parted[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) a[plane][i] = parted[i][plane];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          store_operand(shared.slopes + at + 8 * i * Shape::pitch + 16 * block + 4 * q, Shared::tile_plane, parted[i],
                        parted[i + 2]);
        }
        multiply_block<T, eighths, true>(change, a, block, weight, lane);
      }
      if constexpr (Shape::tail) {
        unsigned a[planes][2], parted[2][planes];
        slopes(2 * Shape::blocks, parted[0], parted[1]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) {
            a[plane][i] = parted[i][plane];
            *reinterpret_cast<unsigned*>(shared.slopes + plane * Shared::tile_plane + at + 8 * i * Shape::pitch +
                                         16 * Shape::blocks + 2 * q) = parted[i][plane];
          }
        }
        multiply_tail<T, eighths, true>(change, a, weight, lane);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Row<T, eighths> gradient;
        gradient.load(static_cast<const T*>(call.gradient) + sequence[i] * width, real[i], width, call.packs, q);
#pragma unroll
        for (int pair = 0; pair < eighths; ++pair) {
          const float2 y = gradient.at(pair);
          gradient.set(pair, make_float2(fmaf(change[pair][2 * i], change_inverse, share[i] * y.x),
                                          fmaf(change[pair][2 * i + 1], change_inverse, share[i] * y.y)));
        }
        if (real[i]) gradient.store(out + place[i] * width, width, call.packs, q);
      }
    }
    __syncthreads();

    if (part < parts) {
      const int count = static_cast<int>(to - tile < warps ? to - tile : warps);
      const unsigned slopes = shared_address(shared.slopes), states = shared_address(shared.states);
      const unsigned ones = pack<E>(make_float2(1, 1));
      float sums[tiles][4] = {}, own[4] = {};
      for (int unit = 0; unit < count; ++unit) {
        unsigned a[planes][4];
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
          load_matrices_transposed(
              a[plane], slopes + 2 * (plane * Shared::tile_plane +
                                      (16 * unit + (lane >> 4) * 8 + lane % 8) * Shape::pitch + 16 * strip +
                                      (lane >> 3) % 2 * 8));
        }
        const int row = 16 * unit + (lane >> 3) % 2 * 8 + lane % 8, other = lane >> 4;
        const int next = planes == 2 ? 0 : other, from = (planes == 2 ? other * Shared::tile_plane : 0) + row * Shape::pitch;
        constexpr int group = 4;
#pragma unroll
        for (int first = 0; first < tiles; first += group) {
          unsigned b[group][4];
#pragma unroll
          for (int i = 0; i < group; i += 3 - planes) {
            if (first + i < tiles) {
              const int wanted = part * tiles + first + i + next;
              load_matrices_transposed(b[i], states + 2 * (from + 8 * (wanted < eighths ? wanted : eighths - 1)));
            }
          }
          if constexpr (planes == 2) {
#pragma unroll
            for (int i = 0; i < group && first + i < tiles; ++i) multiply<E>(sums[first + i], a[1], b[i][0], b[i][1]);
#pragma unroll
            for (int i = 0; i < group && first + i < tiles; ++i) multiply<E>(sums[first + i], a[0], b[i][2], b[i][3]);
#pragma unroll
            for (int i = 0; i < group && first + i < tiles; ++i) multiply<E>(sums[first + i], a[0], b[i][0], b[i][1]);
          } else {
#pragma unroll
            for (int i = 0; i < group && first + i < tiles; ++i) {
              multiply<E>(sums[first + i], a[0], b[i - i % 2][2 * (i % 2)], b[i - i % 2][2 * (i % 2) + 1]);
            }
          }
        }
        if constexpr (planes == 2) multiply<E>(own, a[1], ones, ones);
        multiply<E>(own, a[0], ones, ones);
        if (planes == 2 || unit == count - 1) {
          // A unit's own scales; without scales once a tile.
          const float slope_inverse = planes == 2 ? shared.inverses[unit][0] : 1.0f;
          const float inverse = planes == 2 ? shared.inverses[unit][1] : 1.0f;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            bias_sums[i] = fmaf(own[i], slope_inverse, bias_sums[i]);
            own[i] = 0;
#pragma unroll
            for (int j = 0; j < tiles; ++j) {
              weight_sums[j][i] = fmaf(sums[j][i], inverse, weight_sums[j][i]);
              sums[j][i] = 0;
            }
          }
        }
      }
    }
    __syncthreads();
  }

  float* const partial = static_cast<float*>(call.partials) + int64_t{blockIdx.x} * (units * (width + 2));
  if (part < parts) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int a = 16 * strip + g + i / 2 * 8;
      if (a < units) {
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          const int d = 8 * (part * tiles + j) + 2 * q + i % 2;
          if (d < width) partial[a * width + d] = weight_sums[j][i];
        }
        if (part == 0 && q == 0 && i % 2 == 0) partial[units * width + a] = bias_sums[i];
      }
    }
  }
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    const float x = over_rows(context_sums[pair].x), y = over_rows(context_sums[pair].y);
    if (g == 0) {
      const int c = Shape::column(pair, q);
      shared.contexts[warp][c] = x;
      shared.contexts[warp][c + 1] = y;
    }
  }
  __syncthreads();
  for (int a = threadIdx.x; a < units; a += backward_threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < warps; ++i) sum += shared.contexts[i][a];
    partial[units * (width + 1) + a] = sum;
  }
}

// The smallest kernel that takes this width.
template <typename F>
void with_eighths(int width, F&& f) {
  if (width <= 64) {
    f(std::integral_constant<int, 8>{});
  } else if (width <= 104) {
    f(std::integral_constant<int, 13>{});
  } else {
    f(std::integral_constant<int, 16>{});
  }
}

template <typename T>
bool fits(int64_t width, int64_t shared_bytes) {
  if (width > widest) return false;
  bool enough = false;
  with_eighths(static_cast<int>(width), [&](auto eighths) {
    enough = static_cast<int64_t>(sizeof(BackwardShared<T, decltype(eighths)::value>)) <= shared_bytes;
  });
  return enough;
}

template <typename T>
void launch_forward(const Forward& call, int blocks, cudaStream_t stream) {
  with_eighths(std::max(call.parameters.width, call.parameters.units), [&](auto eighths) {
    constexpr int e = decltype(eighths)::value;
    constexpr int bytes = sizeof(ForwardShared<T, e>);
    STD_CUDA_CHECK(cudaFuncSetAttribute(forward_kernel<T, e>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    forward_kernel<T, e><<<blocks, forward_threads, bytes, stream>>>(call);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

template <typename T>
void launch_backward(const Backward& call, cudaStream_t stream) {
  with_eighths(std::max(call.parameters.width, call.parameters.units), [&](auto eighths) {
    constexpr int e = decltype(eighths)::value;
    constexpr int bytes = sizeof(BackwardShared<T, e>);
    STD_CUDA_CHECK(cudaFuncSetAttribute(backward_kernel<T, e>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    backward_kernel<T, e><<<call.blocks, backward_threads, bytes, stream>>>(call);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace cuda_ext::attention
