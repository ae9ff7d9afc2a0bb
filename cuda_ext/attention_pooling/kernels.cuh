// The kernels on the matrix units, for states of float, half and bfloat16; one .cu file each instantiates them.
//
// Both read the states once, eight rows after eight, straight into the layout of the matrix instructions' operands. Thread
// 4 g + q of a warp holds row g of each eight, and of each 16 columns the four from 4 q on, as two pairs; of 8 columns that
// are left, the pair from 2 q on. The instructions would want columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 there. As a sum over
// columns does not mind their order, the weight lies in shared memory with its columns, and its rows, in the order that
// makes up for it: what comes out of a product is in the layout of the states'.
#pragma once

#include "attention_pooling.cuh"
#include "tensor_cores.cuh"

#include <algorithm>
#include <cmath>

namespace cuda_ext::attention {

constexpr unsigned all_lanes = 0xffffffffu;
// As many as registers allow; backward so many that each warp has one or two of the strips of the weight's gradient.
template <typename T>
constexpr int forward_threads = Units<T>::planes == 2 ? 384 : 512;
template <typename T, int eighths>
constexpr int backward_threads = Units<T>::planes == 2 ? (eighths == 8 ? 384 : 256)
                                 : eighths == 8        ? 512
                                 : eighths == 13       ? 448
                                                       : 256;
// So many of a block's sequences are asked for at its beginning; fewer than a forward block has threads.
constexpr int fetched_at_once = 64;
// Float: a sequence's scores stay in shared memory up to this length, beyond it in its weights.
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

// The largest of a warp's numbers.
__device__ inline float most_of_warp(float x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

// Float's bias and projection come times this: the exponential's base is 2.
template <typename T>
constexpr float tangent_scale = std::is_same_v<T, float> ? 2.8853900817779268f : 1.0f;

// The weight on its way to shared memory. All loads are under way before the first is used: one after the other they would
// take longer than all else for a small batch.
template <typename T, int eighths, int threads>
struct Weight {
  using Shape = Tile<T, eighths>;
  using E = typename Shape::Element;
  static constexpr int fours = Shape::width / 4, at_once = threads / fours, each = (Shape::width + at_once - 1) / at_once;
  float values[each][4];
  float bias, context;

  // Zeros fill it up.
  __device__ void load(const Parameters& p) {
    static_assert(threads >= Shape::width);
    const bool aligned = p.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(p.weight) % 16 == 0;
    const int row = threadIdx.x / fours, d = threadIdx.x % fours * 4;
    const auto each_four = [&](auto&& read) {
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int a = row + i * at_once;
        read(values[i], row < at_once && a < p.units && d < p.width, a * p.width + d);
      }
    };
    if (aligned && (std::is_same_v<T, float> || p.single)) {
      each_four([&](float(&four)[4], bool inside, int from) {
        float4 x{};
        if (inside) x = *reinterpret_cast<const float4*>(static_cast<const float*>(p.weight) + from);
        four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
      });
    } else if (aligned) {
      each_four([&](float(&four)[4], bool inside, int from) {
        uint2 x{};
        if (inside) x = *reinterpret_cast<const uint2*>(static_cast<const T*>(p.weight) + from);
        const float2 first = unpack<E>(x.x), second = unpack<E>(x.y);
        four[0] = first.x, four[1] = first.y, four[2] = second.x, four[3] = second.y;
      });
    } else {
      each_four([&](float(&four)[4], bool inside, int from) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          four[j] = inside && d + j < p.width ? parameter<T>(p.weight, p.single, from + j) : 0.0f;
        }
      });
    }
    const int a = threadIdx.x;
    bias = a < p.units ? parameter<T>(p.bias, p.single, a) : 0.0f;
    context = a < p.units ? parameter<T>(p.context, p.single, a) : 0.0f;
  }

  // Rows and columns in their places, scaled. Returns the scale (1 but for float) and the context's largest number. The
  // block must meet before it reads what this wrote.
  __device__ float2 store(E* weight, Vectors<eighths>& vectors) const {
    if (threadIdx.x < Shape::width) {
      vectors.bias[threadIdx.x] = bias * tangent_scale<T>;
      vectors.context[threadIdx.x] = context;
    }
    float scale = 1, largest_context = fabsf(context);
    if constexpr (Shape::planes == 2) {
      float largest = 0;
#pragma unroll
      for (int i = 0; i < each; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) largest = fmaxf(largest, fabsf(values[i][j]));
      }
      largest = most_of_warp(largest);
      largest_context = most_of_warp(largest_context);
      if (threadIdx.x % 32 == 0) {
        vectors.largest_weight[threadIdx.x / 32] = largest;
        vectors.largest_context[threadIdx.x / 32] = largest_context;
      }
      __syncthreads();
#pragma unroll
      for (int warp = 0; warp < threads / 32; ++warp) {
        largest = fmaxf(largest, vectors.largest_weight[warp]);
        largest_context = fmaxf(largest_context, vectors.largest_context[warp]);
      }
      scale = scale_for<30>(largest);
    }
    const int row = threadIdx.x / fours, d = threadIdx.x % fours * 4;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int a = row + i * at_once;
      if (row < at_once && a < Shape::width) {
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
    return make_float2(scale, largest_context);
  }
};

template <typename T, int eighths, int threads>
__device__ float2 load_parameters(const Parameters& p, typename Units<T>::Element* weight, Vectors<eighths>& vectors) {
  Weight<T, eighths, threads> loaded;
  loaded.load(p);
  const float2 scales = loaded.store(weight, vectors);
  __syncthreads();
  return scales;
}

// out [16, 8 count] += a [16, 16 columns of `block`] times the weight, transposed (down = false: to the projection) or as it
// is (down = true: back to the states), for its tiles of 8 from `start` on. The float's small products come first.
// fresh: out is written, not added to.
template <typename T, int eighths, bool down, bool fresh, int count>
__device__ void multiply_block(float (&out)[count][4], const unsigned (&a)[Units<T>::planes][4], int block, int start,
                               unsigned weight, int lane) {
  using Shape = Tile<T, eighths>;
  using E = typename Shape::Element;
  constexpr int group = 4;
  // One load brings two matrices along the sum (8 columns each) of two planes, or of two neighbours of `out`.
  const int r = lane % 8, upper = (lane >> 3) % 2, other = lane >> 4;
  const int far = Shape::planes == 2 ? other * Shape::weight_plane : 0;
  const int next = Shape::planes == 2 ? 0 : other;
#pragma unroll
  for (int first = 0; first < count; first += group) {
    unsigned b[group][4];
#pragma unroll
    for (int i = 0; i < group; i += 3 - Shape::planes) {
      if (first + i < count) {
        const int wanted = start + first + i, tile = wanted + (wanted + 1 < eighths ? next : 0);
        if constexpr (down) {
          load_matrices_transposed(b[i], weight + 2 * (far + (16 * block + 8 * upper + r) * Shape::pitch + 8 * tile));
        } else {
          load_matrices(b[i], weight + 2 * (far + (8 * tile + r) * Shape::pitch + 16 * block + 8 * upper));
        }
      }
    }
    if constexpr (Shape::planes == 2) {
#pragma unroll
      for (int i = 0; i < group && first + i < count; ++i) multiply<E, fresh>(out[first + i], a[1], b[i][0], b[i][1]);
#pragma unroll
      for (int i = 0; i < group && first + i < count; ++i) multiply<E>(out[first + i], a[0], b[i][2], b[i][3]);
#pragma unroll
      for (int i = 0; i < group && first + i < count; ++i) multiply<E>(out[first + i], a[0], b[i][0], b[i][1]);
    } else {
#pragma unroll
      for (int i = 0; i < group && first + i < count; ++i) {
        multiply<E, fresh>(out[first + i], a[0], b[i - i % 2][2 * (i % 2)], b[i - i % 2][2 * (i % 2) + 1]);
      }
    }
  }
}

// The same with the last 8 columns of the sum, when their number is odd.
template <typename T, int eighths, bool down, int count>
__device__ void multiply_tail(float (&out)[count][4], const unsigned (&a)[Units<T>::planes][2], int start, unsigned weight,
                              int lane) {
  using Shape = Tile<T, eighths>;
  using E = typename Shape::Element;
  constexpr int each = 4 / Shape::planes;
  constexpr int along = 16 * Shape::blocks;
  const int far = Shape::planes == 2 ? (lane >> 3) % 2 * Shape::weight_plane : 0;
  const int next = Shape::planes == 2 ? lane >> 4 : lane >> 3;
#pragma unroll
  for (int first = 0; first < count; first += each) {
    const int wanted = start + first + next, tile = wanted < eighths ? wanted : eighths - 1;
    unsigned m[4];
    if constexpr (down) {
      load_matrices_transposed(m, weight + 2 * (far + (along + lane % 8) * Shape::pitch + 8 * tile));
    } else {
      load_matrices(m, weight + 2 * (far + (8 * tile + lane % 8) * Shape::pitch + along));
    }
#pragma unroll
    for (int i = 0; i < each && first + i < count; ++i) {
      if constexpr (Shape::planes == 2) {
        multiply<E>(out[first + i], a[1], m[2 * i]);
        multiply<E>(out[first + i], a[0], m[2 * i + 1]);
      }
      multiply<E>(out[first + i], a[0], m[Shape::planes * i]);
    }
  }
}

// Two rows of a thread, scaled and in the planes of the products' operands.
template <typename T, int eighths>
struct Operands {
  using Shape = Tile<T, eighths>;
  static constexpr int planes = Shape::planes;
  unsigned parts[eighths][2][planes];

  __device__ Operands(const Row<T, eighths> (&x)[2], float scale, unsigned nothing = 0) {
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      x[0].operand(pair, scale, parts[pair][0]);
      x[1].operand(pair, scale, parts[pair][1]);
      // Registers of its own, in the order of the instructions': else they are moved there again for every product.
      if constexpr (planes == 1) {
        parts[pair][0][0] ^= nothing;
        parts[pair][1][0] ^= nothing;
      }
    }
  }

  // The projection's tiles from `start` on.
  template <int count>
  __device__ void project(float (&out)[count][4], int start, unsigned weight, int lane) const {
#pragma unroll
    for (int block = 0; block < Shape::blocks; ++block) {
      unsigned a[planes][4];
#pragma unroll
      for (int plane = 0; plane < planes; ++plane) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[plane][i] = parts[2 * block + i / 2][i % 2][plane];
      }
      if (block == 0) {
        multiply_block<T, eighths, false, true>(out, a, block, start, weight, lane);
      } else {
        multiply_block<T, eighths, false, false>(out, a, block, start, weight, lane);
      }
    }
    if constexpr (Shape::tail) {
      unsigned a[planes][2];
#pragma unroll
      for (int plane = 0; plane < planes; ++plane) {
        a[plane][0] = parts[2 * Shape::blocks][0][plane];
        a[plane][1] = parts[2 * Shape::blocks][1][plane];
      }
      multiply_tail<T, eighths, false>(out, a, start, weight, lane);
    }
  }
};

// tanh(product + bias), for float to 2e-7, and near zero to as much of itself; for half precision by the unit (relative error
// 2^-11, a rounding to half).
template <typename T>
__device__ float tangent(float product, float scale, float bias) {
  const float x = fmaf(product, scale, bias);
  float y;
  if constexpr (std::is_same_v<T, float>) {
    const float square = x * x;
    // x - x^3 / 3 + 2 x^5 / 15 of x / tangent_scale.
    const float small = x * fmaf(square, fmaf(square, 6.6666669e-4f, -0.013876106f), 0.34657359f);
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(y + 1.0f));
    return square < 0.03f ? small : fmaf(-2.0f, y, 1.0f);
  } else {
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
}

// Ask for what lies at `from`, in the multiprocessors' common cache, before it is needed.
__device__ inline void fetch_ahead(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

__device__ inline float over_quad(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}

__device__ inline float over_rows(float x) {
  x += __shfl_xor_sync(all_lanes, x, 4);
  x += __shfl_xor_sync(all_lanes, x, 8);
  return x + __shfl_xor_sync(all_lanes, x, 16);
}

// Sums over the eight lanes of a column, scattered: of `count` numbers a lane keeps an eighth at the array's beginning, the
// half, quarter and eighth that bits 16, 8 and 4 of its number say.
template <int count, int bit = 16, int size>
__device__ void scatter_over_rows(float (&x)[size], int lane) {
  constexpr int kept = (count + 1) / 2;
  const bool upper = lane & bit;
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    const float other = i + kept < count ? x[i + kept] : 0.0f, give = upper ? x[i] : other;
    x[i] = (upper ? other : x[i]) + __shfl_xor_sync(all_lanes, give, bit);
  }
  if constexpr (bit > 4) scatter_over_rows<kept, bit / 2>(x, lane);
}

// The pooled vector of a sequence: a thread's sums over its rows, times `whole`.
template <typename T, int eighths>
__device__ void store_pooled(const Forward& call, float (&sums)[2 * eighths], float whole, int64_t n, int lane) {
  constexpr int half = eighths, quarter = (half + 1) / 2, eighth = (quarter + 1) / 2;
  const int width = call.parameters.width;
  scatter_over_rows<2 * eighths>(sums, lane);
  T* out = static_cast<T*>(call.pooled) + n * width;
  const int second = lane & 8 ? quarter : 0, third = lane & 4 ? eighth : 0;
#pragma unroll
  for (int i = 0; i < eighth; ++i) {
    // Which of the sums this one is, unless it is the padding of a half.
    const int inner = third + i, middle = second + inner, which = (lane & 16 ? half : 0) + middle;
    if (inner < quarter && middle < half) {
      const int c = Tile<T, eighths>::column(which / 2, lane % 4) + which % 2;
      if (c < width) out[c] = static_cast<T>(sums[i] * whole);
    }
  }
}

template <typename T, int eighths>
struct ForwardShared {
  alignas(16) typename Units<T>::Element weight[Units<T>::planes * Tile<T, eighths>::weight_plane];
  Vectors<eighths> vectors;
  float scores[Units<T>::planes == 2 ? forward_threads<T> / 32 : 1][kept_scores];
  int lengths[forward_threads<T>];
  int before[forward_threads<T>];
  short order[forward_threads<T>];
  int sums[forward_threads<T> / 32];
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

// What a warp makes of a sequence: the pooled vector and the weights, softmax with a running maximum. Float: 16 steps at a
// time. `scores`: room for the sequence's scores.
template <typename T, int eighths>
__device__ void pool_float(const Forward& call, const Vectors<eighths>& vectors, unsigned weight, float weight_scale,
                           float* scores, int64_t n, int64_t first, int length, int lane) {
  using Shape = Tile<T, eighths>;
  const int width = call.parameters.width, g = lane / 4, q = lane % 4;
  const T* states = static_cast<const T*>(call.states) + first * width;
  float* weights = static_cast<float*>(call.weights) + first;
  float largest = -INFINITY, sum = 0;
  float pooled[2 * eighths] = {};
  for (int start = 0; start < length; start += unit_rows) {
    const int t0 = start + g, t1 = t0 + 8;
    Row<T, eighths> x[2];
    x[0].load(states + int64_t{t0} * width, t0 < length, width, call.packs, q);
    x[1].load(states + int64_t{t1} * width, t1 < length, width, call.packs, q);
    const float scale = scale_for<60>(most_of_warp(fmaxf(x[0].largest(), x[1].largest())));
    const float inverse = tangent_scale<T> * (inverse_of(scale) * inverse_of(weight_scale));
    const Operands<T, eighths> operands(x, scale);
    float s0 = 0, s1 = 0;
    float u[eighths][4];
    operands.project(u, 0, weight, lane);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      const int c = Shape::column(pair, q);
      const float2 bias = *reinterpret_cast<const float2*>(vectors.bias + c);
      const float2 context = *reinterpret_cast<const float2*>(vectors.context + c);
      s0 = fmaf(tangent<T>(u[pair][0], inverse, bias.x), context.x, s0);
      s0 = fmaf(tangent<T>(u[pair][1], inverse, bias.y), context.y, s0);
      s1 = fmaf(tangent<T>(u[pair][2], inverse, bias.x), context.x, s1);
      s1 = fmaf(tangent<T>(u[pair][3], inverse, bias.y), context.y, s1);
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
      const float2 a = x[0].at(pair), b = x[1].at(pair);
      pooled[2 * pair] = pooled[2 * pair] * shrink + p0 * a.x + p1 * b.x;
      pooled[2 * pair + 1] = pooled[2 * pair + 1] * shrink + p0 * a.y + p1 * b.y;
    }
  }
  const float whole = length > 0 ? 1.0f / over_rows(sum) : 0.0f;
  store_pooled<T, eighths>(call, pooled, whole, n, lane);
  __syncwarp();
  for (int t = lane; t < length; t += 32) weights[t] = expf(scores[t] - largest) * whole;
  __syncwarp();
}

// Half precision: up to 32 steps at a time, in eights, the scores of `tiles` eights by a product with the units along its
// rows: its second operand is the states' registers as they were loaded. Returns to lane 4 g + q the score of step
// 8 (g / 2) + 2 q + g % 2.
template <typename T, int eighths, int tiles>
__device__ float scores_in_eights(const Row<T, eighths> (&x)[4], const Vectors<eighths>& vectors, unsigned weight, int lane) {
  using Shape = Tile<T, eighths>;
  constexpr int strips = (eighths + 1) / 2;
  const int g = lane / 4;
  float s[8] = {};
#pragma unroll 1
  for (int strip = 0; strip < strips; ++strip) {
    // The last strip may have 8 units only; the rows beyond are the last one's, and come times 0.
    const bool whole = strip < Shape::blocks;
    const int unit = 16 * strip + (whole ? g / 2 * 4 + g % 2 : g);
    const float bias[2] = {vectors.bias[unit], whole ? vectors.bias[unit + 2] : 0.0f};
    const float context[2] = {vectors.context[unit], whole ? vectors.context[unit + 2] : 0.0f};
    const float start[4] = {bias[0], bias[0], bias[1], bias[1]};
    const int row = min(16 * strip + lane % 16, Shape::width - 1);
    const unsigned from = weight + 2 * (row * Shape::pitch + (lane >> 4) * 8);
    float u[tiles][4];
#pragma unroll
    for (int block = 0; block < Shape::blocks; ++block) {
      unsigned a[4];
      load_matrices(a, from + 32 * block);
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        if (block == 0) {
          multiply<T>(u[j], a, x[j].pairs[0], x[j].pairs[1], start);
        } else {
          multiply<T>(u[j], a, x[j].pairs[2 * block], x[j].pairs[2 * block + 1]);
        }
      }
    }
    if constexpr (Shape::tail) {
      unsigned m[4];
      load_matrices(m, from + 32 * Shape::blocks);
      const unsigned a[2] = {m[0], m[1]};
#pragma unroll
      for (int j = 0; j < tiles; ++j) multiply<T>(u[j], a, x[j].pairs[eighths - 1]);
    }
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[2 * j + i] = fmaf(tangent<T>(u[j][i], 1.0f, 0.0f), context[0], s[2 * j + i]);
        s[2 * j + i] = fmaf(tangent<T>(u[j][2 + i], 1.0f, 0.0f), context[1], s[2 * j + i]);
      }
    }
  }
  scatter_over_rows<8>(s, lane);
  return s[0];
}

// Adds to the pooled vectors of a thread's columns `tiles` eights of steps; `power` is that of the step of `scores_in_eights`.
template <typename T, int eighths, int tiles>
__device__ void pool_eights(float (&pooled)[2 * eighths], const Row<T, eighths> (&x)[4], float power, int lane) {
  const int g = lane / 4;
#pragma unroll
  for (int j = 0; j < tiles; ++j) {
    const float p = __shfl_sync(all_lanes, power, (2 * j + g % 2) * 4 + g / 2);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      const float2 a = x[j].at(pair);
      pooled[2 * pair] = fmaf(p, a.x, pooled[2 * pair]);
      pooled[2 * pair + 1] = fmaf(p, a.y, pooled[2 * pair + 1]);
    }
  }
}

// f(number of eights that hold `count` steps, 4 at most), a constant.
template <typename F>
__device__ void with_tiles(int count, F&& f) {
  if (count > 24) {
    f(std::integral_constant<int, 4>{});
  } else if (count > 16) {
    f(std::integral_constant<int, 3>{});
  } else if (count > 8) {
    f(std::integral_constant<int, 2>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

template <typename T, int eighths>
__device__ void pool_half(const Forward& call, const Vectors<eighths>& vectors, unsigned weight, int64_t n, int64_t first,
                          int length, int lane) {
  const int width = call.parameters.width, g = lane / 4, q = lane % 4;
  const T* states = static_cast<const T*>(call.states) + first * width;
  float* weights = static_cast<float*>(call.weights) + first;
  const int own = 8 * (g / 2) + 2 * q + g % 2;
  float largest = -INFINITY, sum = 0, score = 0;
  float pooled[2 * eighths] = {};
  for (int start = 0; start < length; start += 32) {
    Row<T, eighths> x[4];
    with_tiles(length - start, [&](auto tiles) {
#pragma unroll
      for (int j = 0; j < decltype(tiles)::value; ++j) {
        const int t = start + 8 * j + g;
        x[j].load(states + int64_t{t} * width, t < length, width, call.packs, q);
      }
      score = scores_in_eights<T, eighths, decltype(tiles)::value>(x, vectors, weight, lane);
      // A score that is not a number makes all of its sequence so.
      const bool real = start + own < length;
      score = real ? score : score * 0 - INFINITY;
      const float highest = fmaxf(largest, most_of_warp(score)), power = expf(score - highest);
      if (start > 0) {
        const float shrink = expf(largest - highest);
        sum *= shrink;
#pragma unroll
        for (int i = 0; i < 2 * eighths; ++i) pooled[i] *= shrink;
      }
      largest = highest;
      sum += power;
      pool_eights<T, eighths, decltype(tiles)::value>(pooled, x, power, lane);
    });
    // Kept until the sum is known; the last ones in registers.
    if (start + 32 < length) weights[start + own] = score;
  }
  const float whole = length > 0 ? 1.0f / over_rows(over_quad(sum)) : 0.0f;
  for (int t = own; t < length; t += 32) weights[t] = expf((t + 32 - own < length ? weights[t] : score) - largest) * whole;
  store_pooled<T, eighths>(call, pooled, whole, n, lane);
}

// Each block takes a run of sequences, each warp one at a time. It also writes the index that lets the backward pass skip
// padding.
template <typename T, int eighths>
__global__ void __launch_bounds__(forward_threads<T>, 1) forward_kernel(const Forward call) {
  after_the_kernel_before();
  constexpr int threads = forward_threads<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<T, eighths>*>(memory);
  const Rows& rows = call.rows;
  const int width = call.parameters.width, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = rows.sequences * blockIdx.x / gridDim.x, end = rows.sequences * (blockIdx.x + 1) / gridDim.x;
  // Ask for a sequence's states before they are needed.
  const auto fetch = [&](int64_t n, int length) {
    const auto* states = reinterpret_cast<const char*>(static_cast<const T*>(call.states) + rows.first(n) * width);
    const int64_t bytes = int64_t{length} * width * static_cast<int64_t>(sizeof(T));
    for (int64_t at = lane * 128; at < bytes; at += 32 * 128) fetch_ahead(states + at);
  };
  Weight<T, eighths, threads> loaded;
  loaded.load(call.parameters);
  const int64_t early = begin + threadIdx.x;
  shared.lengths[threadIdx.x] = early < end ? static_cast<int>(rows.length(early)) : 0;
  int before = 0;
  if (!rows.ragged) {
    // Many loads under way, for they are on the way to everything else.
    for (int64_t n = threadIdx.x; n < begin; n += 12 * threads) {
      int lengths[12];
#pragma unroll
      for (int i = 0; i < 12; ++i) {
        const int64_t other = n + i * threads;
        lengths[i] = other < begin ? static_cast<int>(rows.length(other)) : 0;
      }
#pragma unroll
      for (int length : lengths) before += length;
    }
  }
  __syncthreads();
  for (int i = warp; i < fetched_at_once && begin + i < end; i += threads / 32) fetch(begin + i, shared.lengths[i]);
  const float weight_scale = loaded.store(shared.weight, shared.vectors).x;
  const unsigned weight = shared_address(shared.weight);
  if (!rows.ragged) before = scan<threads>(before, shared.sums).y;
  for (int64_t base = begin; base < end; base += threads) {
    const int64_t own = base + threadIdx.x;
    const int own_length = own < end ? static_cast<int>(rows.length(own)) : 0;
    const int2 sums = scan<threads>(own_length, shared.sums);
    // The longest first, in three classes, for the warps to end together: a count of ten bits for each.
    static_assert(threads < 1024);
    const int shift = own_length > 24 ? 0 : own_length > 16 ? 10 : 20;
    const int2 classes = scan<threads>(own < end ? 1 << shift : 0, shared.sums);
    const int longer = shift == 0 ? 0 : (classes.y & 1023) + (shift == 20 ? classes.y >> 10 & 1023 : 0);
    shared.lengths[threadIdx.x] = own_length;
    shared.before[threadIdx.x] = before + sums.x;
    if (own < end) shared.order[longer + (classes.x >> shift & 1023)] = static_cast<short>(threadIdx.x);
    if (threadIdx.x == 0) shared.next = 0;
    before += sums.y;
    __syncthreads();
    const int count = static_cast<int>(end - base < threads ? end - base : threads);
    const auto take = [&] {
      int turn = 0;
      if (lane == 0) turn = atomicAdd(&shared.next, 1);
      return __shfl_sync(all_lanes, turn, 0);
    };
    for (int turn = take(), then; turn < count; turn = then) {
      // Its own next sequence, too.
      then = take();
      if (then < count && (base > begin || shared.order[then] >= fetched_at_once)) {
        fetch(base + shared.order[then], shared.lengths[shared.order[then]]);
      }
      const int taken = shared.order[turn];
      const int64_t n = base + taken, first = rows.first(n);
      const int length = shared.lengths[taken];
      float* weights = static_cast<float*>(call.weights) + first;
      if constexpr (Units<T>::planes == 1) {
        pool_half<T, eighths>(call, shared.vectors, weight, n, first, length, lane);
      } else {
        float* scores = length <= kept_scores ? shared.scores[warp] : weights;
        pool_float<T, eighths>(call, shared.vectors, weight, weight_scale, scores, n, first, length, lane);
      }
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
    }
    __syncthreads();
  }
  if (rows.ragged) {
    // Rows of no sequence.
    const int64_t from = rows.first(0), to = rows.within(rows.bound(rows.sequences), rows.total);
    const int64_t stride = int64_t{gridDim.x} * threads, thread = int64_t{blockIdx.x} * threads + threadIdx.x;
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

template <typename T, int eighths, int threads>
struct BackwardShared {
  using Shape = Tile<T, eighths>;
  // So many threads that they have too few registers each.
  static constexpr bool crowded = eighths == 13 && Shape::planes == 1 && threads > 256;
  static constexpr int tile_rows = threads / 32 * unit_rows;
  static constexpr int tile_plane = tile_rows * Shape::pitch;
  alignas(16) typename Shape::Element weight[Shape::planes * Shape::weight_plane];
  alignas(16) typename Shape::Element states[Shape::planes * tile_plane];
  // A strip of 16 columns of the last row may end beyond it.
  alignas(16) typename Shape::Element slopes[Shape::planes * tile_plane + 8];
  Vectors<eighths> vectors;
  // For float, what the scales of a unit's slopes, and of these times its states, must be undone by.
  float inverses[threads / 32][2];
  float contexts[threads / 32][Shape::width];
  // Each thread's own sums of the context's gradient and of the weight's, where registers are short.
  static constexpr int strips = (eighths + 1) / 2, parts = threads / 32 / strips;
  static constexpr int tiles = (eighths + parts - 1) / parts;
  float2 context_sums[crowded ? eighths : 1][crowded ? threads : 1];
  float4 weight_sums[crowded ? tiles : 1][crowded ? threads : 1];
};

// Columns c and c + 1 of a row, of which there are `width`.
__device__ inline void store_two(float* row, int c, int width, float2 two) {
  if (width % 2 == 0) {
    if (c < width) *reinterpret_cast<float2*>(row + c) = two;
  } else {
    if (c < width) row[c] = two.x;
    if (c + 1 < width) row[c + 1] = two.y;
  }
}

template <typename E, int planes>
__device__ void store_operand(E* place, int plane, const unsigned (&a)[planes], const unsigned (&b)[planes]) {
#pragma unroll
  for (int i = 0; i < planes; ++i) *reinterpret_cast<uint2*>(place + i * plane) = make_uint2(a[i], b[i]);
}

// A thread's part of a row to shared memory, columns in their own order.
template <typename T, int eighths>
__device__ void store_row(typename Units<T>::Element* place, int plane, const Row<T, eighths>& x, float scale, int q) {
  using Shape = Tile<T, eighths>;
#pragma unroll
  for (int block = 0; block < Shape::blocks; ++block) {
    unsigned a[Shape::planes], b[Shape::planes];
    x.operand(2 * block, scale, a);
    x.operand(2 * block + 1, scale, b);
    store_operand(place + 16 * block + 4 * q, plane, a, b);
  }
  if constexpr (Shape::tail) {
    unsigned a[Shape::planes];
    x.operand(2 * Shape::blocks, scale, a);
#pragma unroll
    for (int i = 0; i < Shape::planes; ++i) {
      *reinterpret_cast<unsigned*>(place + i * plane + 16 * Shape::blocks + 2 * q) = a[i];
    }
  }
}

// The gradient of a row's score: softmax needs of the rest of its sequence only the gradient times the pooled vector.
template <typename T, int eighths>
__device__ float score_gradient(const Backward& call, const Row<T, eighths>& x, int64_t place, int64_t sequence, bool real,
                                float share, int q) {
  const int width = call.parameters.width;
  Row<T, eighths> gradient, pooled;
  gradient.load(static_cast<const T*>(call.gradient) + sequence * width, real, width, call.packs, q);
  pooled.load(static_cast<const T*>(call.pooled) + sequence * width, real, width, call.packs, q);
  float own = 0, mean = 0;
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    const float2 a = gradient.at(pair), b = x.at(pair), c = pooled.at(pair);
    own += a.x * b.x + a.y * b.y;
    mean += a.x * c.x + a.y * c.y;
  }
  if (call.weights_gradient && real) {
    const auto* weights = static_cast<const float*>(call.weights);
    const auto* gradients = static_cast<const float*>(call.weights_gradient);
    const int64_t first = call.rows.first(sequence), beyond = first + call.rows.length(sequence);
    for (int64_t t = first + q; t < beyond; t += 4) mean += weights[t] * gradients[t];
    if (q == 0) own += gradients[place];
  }
  return share * (over_quad(own) - over_quad(mean));
}

// The same of two rows of half precision, by the matrix units: of the products of 16 rows with 8 gradients those of a row
// with its own.
template <typename T, int eighths>
__device__ void score_gradients(float (&slope)[2], const Backward& call, const Row<T, eighths> (&x)[2],
                                const Row<T, eighths> (&gradient)[2], const Row<T, eighths> (&pooled)[2],
                                const int (&place)[2], const int (&sequence)[2], const bool (&real)[2],
                                const float (&share)[2], int lane) {
  using Shape = Tile<T, eighths>;
  const int g = lane / 4;
  float found[2][2];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const Row<T, eighths>(&rows)[2] = side ? pooled : x;
    float products[2][4] = {};
#pragma unroll
    for (int block = 0; block < Shape::blocks; ++block) {
      const unsigned a[4] = {rows[0].pairs[2 * block], rows[1].pairs[2 * block], rows[0].pairs[2 * block + 1],
                             rows[1].pairs[2 * block + 1]};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply<T>(products[i], a, gradient[i].pairs[2 * block], gradient[i].pairs[2 * block + 1]);
      }
    }
    if constexpr (Shape::tail) {
      const unsigned a[2] = {rows[0].pairs[eighths - 1], rows[1].pairs[eighths - 1]};
#pragma unroll
      for (int i = 0; i < 2; ++i) multiply<T>(products[i], a, gradient[i].pairs[eighths - 1]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float own = g % 2 ? products[i][2 * i + 1] : products[i][2 * i];
      found[side][i] = __shfl_sync(all_lanes, own, lane - lane % 4 + g / 2);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float own = found[0][i], mean = found[1][i];
    if (call.weights_gradient) {
      float others = 0;
      if (real[i]) {
        const auto* weights = static_cast<const float*>(call.weights);
        const auto* gradients = static_cast<const float*>(call.weights_gradient);
        const int64_t first = call.rows.first(sequence[i]), beyond = first + call.rows.length(sequence[i]);
        for (int64_t t = first + lane % 4; t < beyond; t += 4) others += weights[t] * gradients[t];
        own += gradients[place[i]];
      }
      mean += over_quad(others);
    }
    slope[i] = share[i] * (own - mean);
  }
}

// Float's numbers that are split together share a scale, which takes from a row that is much smaller than the largest
// all of its bits, where that is of another sequence, and may be infinite. Such a row's gradient is computed apart.
__device__ inline bool stands_apart(float most_of_row, float most_of_all) {
  return most_of_row > 0 && most_of_row < most_of_all * 0x1p-30f;
}

__device__ inline float most_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

// The gradient of one row of states by a warp, without matrix units: slow, and seldom wanted.
__device__ __noinline__ void gradient_of_row(const Backward& call, int64_t place, int64_t sequence, float share,
                                             float slope) {
  constexpr int each = widest / 32;
  const Parameters& p = call.parameters;
  const int lane = threadIdx.x % 32;
  const auto* weight = static_cast<const float*>(p.weight);
  const auto* bias = static_cast<const float*>(p.bias);
  const auto* context = static_cast<const float*>(p.context);
  float x[each], sum[each];
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int c = lane + 32 * j;
    x[j] = c < p.width ? static_cast<const float*>(call.states)[place * p.width + c] : 0.0f;
    sum[j] = c < p.width ? share * static_cast<const float*>(call.gradient)[sequence * p.width + c] : 0.0f;
  }
  for (int a = 0; a < p.units; ++a) {
    float w[each], product = 0;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int c = lane + 32 * j;
      w[j] = c < p.width ? weight[a * p.width + c] : 0.0f;
      product = fmaf(w[j], x[j], product);
    }
    const float u = tanhf(over_rows(over_quad(product)) + bias[a]), most = slope * context[a];
    const float change = fmaf(-u, u * most, most);
#pragma unroll
    for (int j = 0; j < each; ++j) sum[j] = fmaf(change, w[j], sum[j]);
  }
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int c = lane + 32 * j;
    if (c < p.width) static_cast<float*>(call.states_gradient)[place * p.width + c] = sum[j];
  }
}

// Zeros to the gradient of what is no step of any sequence.
template <typename T>
__device__ void clear_padding(const Backward& call, int warp, int warps, int lane) {
  const Rows& rows = call.rows;
  const int width = call.parameters.width;
  T* const out = static_cast<T*>(call.states_gradient);
  if (rows.ragged) {
    for (int64_t row = int64_t{blockIdx.x} * warps + warp; row < rows.total; row += int64_t{gridDim.x} * warps) {
      if (row < call.index[0] || row >= call.index[1]) {
        for (int d = lane; d < width; d += 32) out[row * width + d] = static_cast<T>(0.0f);
      }
    }
    return;
  }
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
}

// Each block takes a run of real steps, found through the index, 16 a warp at a time. A warp computes the projection again,
// the scores' gradient (softmax's needs of the rest of its sequence only gradient . pooled), its slopes ds (1 - u^2) context,
// and, with these for an operand from shared memory, the states' gradient; then the block adds the tile's slopes^T states to
// the weight's gradient, 16 rows of it a warp. The matrix units round towards zero when they add: each tile's sum begins anew
// and joins the others by an addition that rounds to nearest.
template <typename T, int eighths, int threads>
__global__ void __launch_bounds__(threads, 1) backward_kernel(const __grid_constant__ Backward call) {
  after_the_kernel_before();
  using Shape = Tile<T, eighths>;
  using Shared = BackwardShared<T, eighths, threads>;
  using E = typename Shape::Element;
  constexpr int warps = threads / 32;
  constexpr int strips = Shared::strips, parts = Shared::parts, tiles = Shared::tiles;
  constexpr int planes = Shape::planes;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const Rows& rows = call.rows;
  const int width = call.parameters.width, units = call.parameters.units;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  T* const out = static_cast<T*>(call.states_gradient);
  const int64_t origin = call.index[0], last = call.index[1];
  const int64_t all = (last - origin + unit_rows - 1) / unit_rows;
  const int64_t from = all * blockIdx.x / gridDim.x, to = all * (blockIdx.x + 1) / gridDim.x;
  // The index's entries of this thread's two rows, of the next tile when this one's are in use, and what they lead to.
  const auto entry_of = [&](int64_t unit, int i) {
    const int64_t row = origin + unit * unit_rows + g + 8 * i;
    return unit < to && row < last ? call.index[index_head + row] : -1;
  };
  const auto fetch = [&](int64_t unit, const int32_t(&entries)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t sequence = rows.ragged ? entries[i] : entries[i] / static_cast<int>(rows.steps);
      if (entries[i] >= 0 && sequence < rows.sequences) {
        const int64_t row = rows.ragged ? origin + unit * unit_rows + g + 8 * i : entries[i];
        const auto* states = reinterpret_cast<const char*>(static_cast<const T*>(call.states) + row * width);
        const auto* gradient = reinterpret_cast<const char*>(static_cast<const T*>(call.gradient) + sequence * width);
        const auto* pooled = reinterpret_cast<const char*>(static_cast<const T*>(call.pooled) + sequence * width);
        for (int at = 128 * q; at < width * static_cast<int>(sizeof(T)); at += 512) {
          fetch_ahead(states + at);
          fetch_ahead(gradient + at);
          fetch_ahead(pooled + at);
        }
        if (q == 3) fetch_ahead(static_cast<const float*>(call.weights) + row);
      }
    }
  };
  int32_t entries[2] = {entry_of(from + warp, 0), entry_of(from + warp, 1)};
  fetch(from + warp, entries);
  const float2 loaded =
      load_parameters<T, eighths, threads>(call.parameters, shared.weight, shared.vectors);
  const float weight_scale = loaded.x, largest_context = loaded.y;
  const unsigned weight = shared_address(shared.weight);

  clear_padding<T>(call, warp, warps, lane);
  const int strip = warp % strips, part = warp / strips;
  float4 own_sums[Shared::crowded ? 1 : tiles];
  const auto weight_sum = [&](int tile) -> float4& {
    if constexpr (Shared::crowded) {
      return shared.weight_sums[tile][threadIdx.x];
    } else {
      return own_sums[tile];
    }
  };
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) weight_sum(tile) = make_float4(0, 0, 0, 0);
  float bias_sums[4] = {};
  float2 context_sums[eighths];
  const auto context_sum = [&](int pair) -> float2& {
    if constexpr (Shared::crowded) {
      return shared.context_sums[pair][threadIdx.x];
    } else {
      return context_sums[pair];
    }
  };
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) context_sum(pair) = make_float2(0, 0);

  for (int64_t tile = from; tile < to; tile += warps) {
    const int32_t then[2] = {entry_of(tile + warps + warp, 0), entry_of(tile + warps + warp, 1)};
    if (tile + warp < to) {
      int place[2], sequence[2];
      bool real[2];
      float share[2], slope[2];
      Row<T, eighths> x[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = origin + (tile + warp) * unit_rows + g + 8 * i;
        real[i] = row < last;
        const int32_t entry = entries[i];
        place[i] = rows.ragged ? static_cast<int>(row) : entry;
        sequence[i] = rows.ragged ? entry : entry / static_cast<int>(rows.steps);
        if (entry < 0 || sequence[i] >= rows.sequences) real[i] = false;
        if (!real[i]) place[i] = sequence[i] = 0;
        x[i].load(static_cast<const T*>(call.states) + int64_t{place[i]} * width, real[i], width, call.packs, q);
        share[i] = real[i] ? static_cast<const float*>(call.weights)[place[i]] : 0.0f;
      }
      // The direct part of the states' gradient, which the product joins; float adds it at the end.
      float change[eighths][4] = {};
      if constexpr (planes == 1) {
        Row<T, eighths> gradient[2], pooled[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t from = int64_t{sequence[i]} * width;
          gradient[i].load(static_cast<const T*>(call.gradient) + from, real[i], width, call.packs, q);
          pooled[i].load(static_cast<const T*>(call.pooled) + from, real[i], width, call.packs, q);
        }
        score_gradients<T, eighths>(slope, call, x, gradient, pooled, place, sequence, real, share, lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int pair = 0; pair < eighths; ++pair) {
            const float2 y = gradient[i].at(pair);
            change[pair][2 * i] = share[i] * y.x;
            change[pair][2 * i + 1] = share[i] * y.y;
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          slope[i] = score_gradient<T, eighths>(call, x[i], place[i], sequence[i], real[i], share[i], q);
        }
      }

      // Scaled slopes, and what undoes the scales of the projection and of the states' gradient.
      float scale = 1, scaled[2] = {slope[0], slope[1]}, inverse = tangent_scale<T>, change_inverse = 1;
      bool apart[2] = {};
      if constexpr (planes == 2) {
        const float largest = most_of_warp(fmaxf(x[0].largest(), x[1].largest()));
        const float largest_slope = most_of_warp(fmaxf(fabsf(slope[0]), fabsf(slope[1])));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          apart[i] = real[i] && (stands_apart(most_of_quad(x[i].largest()), largest) ||
                                 stands_apart(fabsf(slope[i]), largest_slope));
        }
        scale = scale_for<60>(largest);
        const float slope_scale = scale_for<60>(largest_slope * largest_context);
        const float weight_inverse = inverse_of(weight_scale);
        scaled[0] *= slope_scale;
        scaled[1] *= slope_scale;
        inverse *= inverse_of(scale) * weight_inverse;
        change_inverse = inverse_of(slope_scale) * weight_inverse;
        if (lane == 0) {
          shared.inverses[warp][0] = inverse_of(slope_scale);
          shared.inverses[warp][1] = inverse_of(slope_scale) * inverse_of(scale);
        }
      }
      const int at = (warp * unit_rows + g) * Shape::pitch;
      const Operands<T, eighths> operands(x, scale, static_cast<unsigned>(width) >> 31);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_row<T, eighths>(shared.states + at + 8 * i * Shape::pitch, Shared::tile_plane, x[i], scale, q);
      }
      // The projection becomes tanh, and slopes, which go to shared memory in the order of the weight's rows.
      const auto slopes_of = [&](int pair, const float(&u)[4], unsigned(&parted)[2][planes]) {
        const int c = Shape::column(pair, q);
        const float2 bias = *reinterpret_cast<const float2*>(shared.vectors.bias + c);
        const float2 context = *reinterpret_cast<const float2*>(shared.vectors.context + c);
        float2 sum = context_sum(pair);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float a = tangent<T>(u[2 * k], inverse, bias.x), b = tangent<T>(u[2 * k + 1], inverse, bias.y);
          sum.x = fmaf(slope[k], a, sum.x);
          sum.y = fmaf(slope[k], b, sum.y);
          const float x = scaled[k] * context.x, y = scaled[k] * context.y;
          split<T>(make_float2(fmaf(-a, a * x, x), fmaf(-b, b * y, y)), parted[k]);
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) {
            *reinterpret_cast<unsigned*>(shared.slopes + plane * Shared::tile_plane + at + 8 * k * Shape::pitch + 8 * pair +
                                         2 * q) = parted[k][plane];
          }
        }
        context_sum(pair) = sum;
      };
      if constexpr (planes == 1) {
        // Two tiles of them at a time are the operand of the product back to the states.
#pragma unroll(Shared::crowded ? 1 : Shape::blocks)
        for (int block = 0; block < Shape::blocks; ++block) {
          float u[2][4];
          unsigned parted[2][2][planes];
          operands.project(u, 2 * block, weight, lane);
#pragma unroll
          for (int i = 0; i < 2; ++i) slopes_of(2 * block + i, u[i], parted[i]);
          const unsigned a[planes][4] = {{parted[0][0][0], parted[0][1][0], parted[1][0][0], parted[1][1][0]}};
          multiply_block<T, eighths, true, false>(change, a, block, 0, weight, lane);
        }
        if constexpr (Shape::tail) {
          float u[1][4];
          unsigned parted[2][planes];
          operands.project(u, eighths - 1, weight, lane);
          slopes_of(eighths - 1, u[0], parted);
          const unsigned a[planes][2] = {{parted[0][0], parted[1][0]}};
          multiply_tail<T, eighths, true>(change, a, 0, weight, lane);
        }
      } else {
        // Float has no registers for both products at once: the second one reads them.
        constexpr int final = 4 + eighths % 4;
#pragma unroll
        for (int first = 0; first < eighths - final; first += 4) {
          float u[4][4];
          unsigned parted[2][planes];
          operands.project(u, first, weight, lane);
#pragma unroll
          for (int i = 0; i < 4; ++i) slopes_of(first + i, u[i], parted);
        }
        {
          float u[final][4];
          unsigned parted[2][planes];
          operands.project(u, eighths - final, weight, lane);
#pragma unroll
          for (int i = 0; i < final; ++i) slopes_of(eighths - final + i, u[i], parted);
        }
        __syncwarp();
        const unsigned slopes_of_rows = shared_address(shared.slopes) +
                                        2 * ((warp * unit_rows + lane % 16) * Shape::pitch + (lane >> 4) * 8);
#pragma unroll
        for (int block = 0; block < Shape::blocks; ++block) {
          unsigned a[planes][4];
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) {
            load_matrices(a[plane], slopes_of_rows + 2 * (plane * Shared::tile_plane + 16 * block));
          }
          multiply_block<T, eighths, true, false>(change, a, block, 0, weight, lane);
        }
        if constexpr (Shape::tail) {
          unsigned a[planes][2], m[4];
#pragma unroll
          for (int plane = 0; plane < planes; ++plane) {
            load_matrices(m, slopes_of_rows + 2 * (plane * Shared::tile_plane + 16 * Shape::blocks));
            a[plane][0] = m[0];
            a[plane][1] = m[1];
          }
          multiply_tail<T, eighths, true>(change, a, 0, weight, lane);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Row<T, eighths> result;
        if constexpr (planes == 2) {
          result.load(static_cast<const T*>(call.gradient) + int64_t{sequence[i]} * width, real[i], width, call.packs, q);
        }
#pragma unroll
        for (int pair = 0; pair < eighths; ++pair) {
          float2 y = make_float2(change[pair][2 * i], change[pair][2 * i + 1]);
          if constexpr (planes == 2) {
            const float2 direct = result.at(pair);
            y = make_float2(fmaf(y.x, change_inverse, share[i] * direct.x), fmaf(y.y, change_inverse, share[i] * direct.y));
          }
          result.set(pair, y);
        }
        if (real[i] && !apart[i]) result.store(out + int64_t{place[i]} * width, width, call.packs, q);
      }
      if constexpr (planes == 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          for (unsigned lanes = __ballot_sync(all_lanes, apart[i] && q == 0); lanes != 0; lanes &= lanes - 1) {
            const int from = __ffs(lanes) - 1;
            gradient_of_row(call, __shfl_sync(all_lanes, place[i], from), __shfl_sync(all_lanes, sequence[i], from),
                            __shfl_sync(all_lanes, share[i], from), __shfl_sync(all_lanes, slope[i], from));
          }
        }
      }
    }
    entries[0] = then[0];
    entries[1] = then[1];
    fetch(tile + warps + warp, entries);
    __syncthreads();

    if (part < parts) {
      const int count = static_cast<int>(to - tile < warps ? to - tile : warps);
      const unsigned slopes = shared_address(shared.slopes), states = shared_address(shared.states);
      const unsigned ones = pack<E>(make_float2(1, 1));
      float sums[tiles][4] = {}, own[4] = {};
      const auto join = [&](float slope_inverse, float inverse) {
#pragma unroll
        for (int i = 0; i < 4; ++i) bias_sums[i] = fmaf(own[i], slope_inverse, bias_sums[i]);
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          float4 sum = weight_sum(j);
          sum.x = fmaf(sums[j][0], inverse, sum.x);
          sum.y = fmaf(sums[j][1], inverse, sum.y);
          sum.z = fmaf(sums[j][2], inverse, sum.z);
          sum.w = fmaf(sums[j][3], inverse, sum.w);
          weight_sum(j) = sum;
        }
      };
#pragma unroll(planes == 1 ? 2 : 1)
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
            for (int i = 0; i < group && first + i < tiles; ++i) {
              multiply<E, true>(sums[first + i], a[1], b[i][0], b[i][1]);
            }
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
        if (part == 0) {
          if constexpr (planes == 2) multiply<E, true>(own, a[1], ones, ones);
          multiply<E>(own, a[0], ones, ones);
        }
        // A unit's own scales; without scales once a tile.
        if constexpr (planes == 2) join(shared.inverses[unit][0], shared.inverses[unit][1]);
      }
      if constexpr (planes == 1) join(1.0f, 1.0f);
    }
    __syncthreads();
  }

  float* const partial = static_cast<float*>(call.partials) + int64_t{blockIdx.x} * call.parameters.part();
  if (part < parts) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Which unit's slopes stand in this place.
      const int a = 16 * strip + (strip < Shape::blocks ? g / 2 * 4 + g % 2 + 2 * i : g + 8 * i);
      if (a < units) {
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          const int d = 8 * (part * tiles + j) + 2 * q;
          const float4 sum = weight_sum(j);
          store_two(partial + a * width, d, width, i ? make_float2(sum.z, sum.w) : make_float2(sum.x, sum.y));
        }
        if (part == 0 && q == 0) partial[units * width + a] = bias_sums[2 * i];
      }
    }
  }
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    const float2 sum = context_sum(pair);
    const float x = over_rows(sum.x), y = over_rows(sum.y);
    if (g == 0) {
      const int c = Shape::column(pair, q);
      shared.contexts[warp][c] = x;
      shared.contexts[warp][c + 1] = y;
    }
  }
  __syncthreads();
  for (int a = threadIdx.x; a < units; a += threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < warps; ++i) sum += shared.contexts[i][a];
    partial[units * (width + 1) + a] = sum;
  }
}

constexpr int few_warps = 8;
constexpr int few_threads = 32 * few_warps;
constexpr int few_steps = 32;

// For small batches, when time is latency: no weight in shared memory, but in each warp's registers the 16 rows of it that
// are the warp's, two a thread, straight from memory.
template <typename T, int eighths>
struct Strip {
  using Shape = Tile<T, eighths>;
  static constexpr int count = (eighths + 1) / 2;
  Row<T, eighths> rows[2];
  float scale = 1;

  // Rows `first` + g and `first` + g + 8; zeros beyond the last.
  __device__ void load(const Parameters& p, int first, int lane) {
    const int g = lane / 4, q = lane % 4;
    const auto at = reinterpret_cast<std::uintptr_t>(p.weight);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + g + 8 * i;
      const bool real = row < p.units;
      if (std::is_same_v<T, float> || !p.single) {
        rows[i].load(static_cast<const T*>(p.weight) + row * p.width, real, p.width,
                     p.width % 4 == 0 && at % (4 * sizeof(T)) == 0, q);
      } else {
        Row<float, eighths> wide;
        wide.load(static_cast<const float*>(p.weight) + row * p.width, real, p.width, p.width % 4 == 0 && at % 16 == 0, q);
#pragma unroll
        for (int pair = 0; pair < eighths; ++pair) rows[i].set(pair, wide.pairs[pair]);
      }
    }
  }

  // Once what was loaded may be waited for.
  __device__ void find_scale() {
    if constexpr (Shape::planes == 2) scale = scale_for<30>(most_of_warp(fmaxf(rows[0].largest(), rows[1].largest())));
  }
};

// A product whose parts for float are summed apart, for more of them to be under way.
template <typename T>
struct Sums {
  using E = typename Units<T>::Element;
  static constexpr int planes = Units<T>::planes;
  float parts[2 * planes - 1][4] = {};

  __device__ float at(int i) const {
    float sum = parts[0][i];
#pragma unroll
    for (int k = 1; k < 2 * planes - 1; ++k) sum += parts[k][i];
    return sum;
  }

  __device__ void add(const unsigned (&a)[planes][4], const unsigned (&b0)[planes], const unsigned (&b1)[planes]) {
    multiply<E>(parts[0], a[0], b0[0], b1[0]);
    if constexpr (planes == 2) {
      multiply<E>(parts[1], a[0], b0[1], b1[1]);
      multiply<E>(parts[2], a[1], b0[0], b1[0]);
    }
  }

  __device__ void add(const unsigned (&a)[planes][2], const unsigned (&b)[planes]) {
    multiply<E>(parts[0], a[0], b[0]);
    if constexpr (planes == 2) {
      multiply<E>(parts[1], a[0], b[1]);
      multiply<E>(parts[2], a[1], b[0]);
    }
  }
};

// sum += a b, float's small products first.
template <typename T>
__device__ void multiply_parts(float (&sum)[4], const unsigned (&a)[Units<T>::planes][4],
                               const unsigned (&b0)[Units<T>::planes], const unsigned (&b1)[Units<T>::planes]) {
  using E = typename Units<T>::Element;
  if constexpr (Units<T>::planes == 2) {
    multiply<E>(sum, a[1], b0[0], b1[0]);
    multiply<E>(sum, a[0], b0[1], b1[1]);
  }
  multiply<E>(sum, a[0], b0[0], b1[0]);
}

// A thread's part of some rows, scaled, as operands.
template <typename T, int eighths, int count>
struct Parts {
  static constexpr int planes = Units<T>::planes;
  unsigned parts[eighths][count][planes];

  __device__ void set(const Row<T, eighths> (&rows)[count], float scale) {
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
#pragma unroll
      for (int i = 0; i < count; ++i) rows[i].operand(pair, scale, parts[pair][i]);
    }
  }
};

// sums[j] += a b_j over the columns of 16 rows of the first operand and 8 of each second one.
template <typename T, int eighths, int count>
__device__ void multiply_rows(Sums<T> (&sums)[count], const Parts<T, eighths, 2>& a, const Parts<T, eighths, count>& b) {
  using Shape = Tile<T, eighths>;
  constexpr int planes = Shape::planes;
#pragma unroll
  for (int block = 0; block < Shape::blocks; ++block) {
    unsigned quad[planes][4];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
#pragma unroll
      for (int i = 0; i < 4; ++i) quad[plane][i] = a.parts[2 * block + i / 2][i % 2][plane];
    }
#pragma unroll
    for (int j = 0; j < count; ++j) sums[j].add(quad, b.parts[2 * block][j], b.parts[2 * block + 1][j]);
  }
  if constexpr (Shape::tail) {
    unsigned two[planes][2];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
#pragma unroll
      for (int i = 0; i < 2; ++i) two[plane][i] = a.parts[eighths - 1][i][plane];
    }
#pragma unroll
    for (int j = 0; j < count; ++j) sums[j].add(two, b.parts[eighths - 1][j]);
  }
}

template <typename T, int eighths>
struct ForwardFewShared {
  float scores[Strip<T, eighths>::count][few_steps];
  int before[few_warps];
};

// For small batches of short sequences: a block takes one sequence, a warp 16 units of the projection of all of its steps.
// Padding may be loaded, but what is loaded is dropped.
template <typename T, int eighths>
__global__ void __launch_bounds__(few_threads) forward_few_kernel(const Forward call) {
  after_the_kernel_before();
  using Shape = Tile<T, eighths>;
  constexpr int strips = Strip<T, eighths>::count;
  __shared__ ForwardFewShared<T, eighths> shared;
  const Rows& rows = call.rows;
  const Parameters& p = call.parameters;
  const int width = p.width, steps = static_cast<int>(rows.steps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int64_t n = blockIdx.x, first = n * steps;
  // Which step's score and weight a lane has, as `scatter_over_rows` leaves them.
  const int own = 8 * (g / 2) + 2 * q + g % 2;

  Strip<T, eighths> strip;
  strip.load(p, 16 * warp, lane);
  Row<T, eighths> x[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int t = 8 * j + g;
    x[j].load(static_cast<const T*>(call.states) + (first + t) * width, t < steps, width, call.packs, q);
  }
  float bias[2], context[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int unit = 16 * warp + g + 8 * i;
    bias[i] = unit < p.units ? parameter<T>(p.bias, p.single, unit) * tangent_scale<T> : 0.0f;
    context[i] = unit < p.units ? parameter<T>(p.context, p.single, unit) : 0.0f;
  }
  const int length = static_cast<int>(rows.length(n));
  int before = 0;
  for (int64_t i = threadIdx.x; i < n; i += few_threads) before += static_cast<int>(rows.length(i));
  before = __reduce_add_sync(all_lanes, before);
  if (lane == 0) shared.before[warp] = before;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      if (8 * j + g >= length) x[j].pairs[pair] = {};
    }
  }

  if (warp < strips) {
    strip.find_scale();
    float scale = 1, inverse = tangent_scale<T>;
    if constexpr (Shape::planes == 2) {
      scale = scale_for<60>(
          most_of_warp(fmaxf(fmaxf(x[0].largest(), x[1].largest()), fmaxf(x[2].largest(), x[3].largest()))));
      inverse *= inverse_of(scale) * inverse_of(strip.scale);
    }
    Sums<T> u[4];
    Parts<T, eighths, 2> units;
    Parts<T, eighths, 4> of_steps;
    units.set(strip.rows, strip.scale);
    of_steps.set(x, scale);
    multiply_rows<T, eighths, 4>(u, units, of_steps);
    float s[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[2 * j + i] = tangent<T>(u[j].at(i), inverse, bias[0]) * context[0] +
                       tangent<T>(u[j].at(2 + i), inverse, bias[1]) * context[1];
      }
    }
    scatter_over_rows<8>(s, lane);
    shared.scores[warp][own] = s[0];
  }
  __syncthreads();

  float weight = -INFINITY;
  if (own < length) {
    weight = 0;
#pragma unroll
    for (int k = 0; k < strips; ++k) weight += shared.scores[k][own];
  }
  const float largest = most_of_warp(weight);
  weight = own < length ? expf(weight - largest) : 0.0f;
  const float whole = length > 0 ? 1.0f / over_rows(over_quad(weight)) : 0.0f;
  weight *= whole;
  float share[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) share[j] = __shfl_sync(all_lanes, weight, (2 * j + g % 2) * 4 + g / 2);
#pragma unroll
  for (int pair = 0; pair < eighths; ++pair) {
    if (pair % few_warps == warp) {
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 a = x[j].at(pair);
        sum.x = fmaf(share[j], a.x, sum.x);
        sum.y = fmaf(share[j], a.y, sum.y);
      }
      sum = make_float2(over_rows(sum.x), over_rows(sum.y));
      const int c = Shape::column(pair, q);
      T* const out = static_cast<T*>(call.pooled) + n * width;
      if (g == 0 && c < width) out[c] = static_cast<T>(sum.x);
      if (g == 0 && c + 1 < width) out[c + 1] = static_cast<T>(sum.y);
    }
  }
  if (warp == few_warps - 1) {
    before = 0;
#pragma unroll
    for (int i = 0; i < few_warps; ++i) before += shared.before[i];
    int32_t* index = call.index + index_head;
    if (own < steps) {
      static_cast<float*>(call.weights)[first + own] = weight;
      if (own < length) {
        index[before + own] = static_cast<int32_t>(first + own);
      } else {
        index[rows.total - 1 - (first - before) - (own - length)] = -1;
      }
    }
    if (n == rows.sequences - 1 && lane == 0) {
      call.index[0] = 0;
      call.index[1] = before + length;
    }
  }
}

template <typename T, int eighths>
struct BackwardFewShared {
  static constexpr int strips = Strip<T, eighths>::count;
  // A warp's part of the states' gradient: of each pair of columns and each of its two rows a thread's own.
  float2 change[strips][eighths][2][32];
  // A warp's part of the gradient of the scores of 16 rows.
  float scores[few_warps][unit_rows];
};

// For few real steps: a block takes 16 of them, a warp 16 units of the projection, and all that is made of these: their
// part of the states' gradient, which the warps then add up, and of the parameters'. What one product leaves in a warp's
// registers, transposed there, is the operand of the next.
template <typename T, int eighths>
__global__ void __launch_bounds__(few_threads) backward_few_kernel(const __grid_constant__ Backward call) {
  after_the_kernel_before();
  using Shape = Tile<T, eighths>;
  using Shared = BackwardFewShared<T, eighths>;
  using E = typename Shape::Element;
  // Warps that have no units fill the padding with zeros.
  constexpr int planes = Shape::planes, strips = Shared::strips, idle = few_warps - strips;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const Rows& rows = call.rows;
  const Parameters& p = call.parameters;
  const int width = p.width, units = p.units;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  // The index of padded rows begins at 0, so that its entry need not wait for its head.
  const int64_t origin = rows.ragged ? call.index[0] : 0, last = call.index[1];
  int32_t entries[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = origin + int64_t{blockIdx.x} * unit_rows + g + 8 * i;
    entries[i] = row < rows.total ? call.index[index_head + row] : -1;
  }
  Strip<T, eighths> strip;
  strip.load(p, 16 * warp, lane);
  float bias[2][2], context[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int unit = 16 * warp + 8 * i + 2 * q + k;
      bias[i][k] = unit < units ? parameter<T>(p.bias, p.single, unit) * tangent_scale<T> : 0.0f;
      context[i][k] = unit < units ? parameter<T>(p.context, p.single, unit) : 0.0f;
    }
  }
  const bool some = origin + int64_t{blockIdx.x} * unit_rows < last;
  if (idle == 0 || warp >= strips) {
    clear_padding<T>(call, idle == 0 ? warp : warp - strips, idle == 0 ? few_warps : idle, lane);
  }
  if (!some) return;

  int64_t place[2], sequence[2];
  bool real[2];
  float share[2];
  Row<T, eighths> x[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = origin + int64_t{blockIdx.x} * unit_rows + g + 8 * i;
    real[i] = row < last;
    const int32_t entry = real[i] ? entries[i] : 0;
    place[i] = rows.ragged ? row : entry;
    sequence[i] = rows.ragged ? entry : entry / static_cast<int32_t>(rows.steps);
    if (entry < 0 || sequence[i] >= rows.sequences) real[i] = false;
    if (!real[i]) place[i] = sequence[i] = 0;
    x[i].load(static_cast<const T*>(call.states) + place[i] * width, real[i], width, call.packs, q);
    share[i] = real[i] ? static_cast<const float*>(call.weights)[place[i]] : 0.0f;
  }
  // The scores' gradient: softmax needs of the rest of a sequence only the gradient times the pooled vector. Each warp
  // takes some columns of it.
  const auto gradient_at = [&](int i, int c) {
    const T* const at = static_cast<const T*>(call.gradient) + sequence[i] * width;
    return make_float2(c < width ? static_cast<float>(at[c]) : 0.0f, c + 1 < width ? static_cast<float>(at[c + 1]) : 0.0f);
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = 0;
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      if (pair % few_warps == warp && real[i]) {
        const int c = Shape::column(pair, q);
        const float2 a = gradient_at(i, c), b = x[i].at(pair);
        const T* const pooled = static_cast<const T*>(call.pooled) + sequence[i] * width;
        if (c < width) sum += a.x * (b.x - static_cast<float>(pooled[c]));
        if (c + 1 < width) sum += a.y * (b.y - static_cast<float>(pooled[c + 1]));
      }
    }
    if (call.weights_gradient && warp == 0 && real[i]) {
      const auto* weights = static_cast<const float*>(call.weights);
      const auto* gradients = static_cast<const float*>(call.weights_gradient);
      const int64_t first = rows.first(sequence[i]), beyond = first + rows.length(sequence[i]);
      for (int64_t t = first + q; t < beyond; t += 4) sum -= weights[t] * gradients[t];
      if (q == 0) sum += gradients[place[i]];
    }
    sum = over_quad(sum);
    if (q == 0) shared.scores[warp][g + 8 * i] = sum;
  }

  const bool busy = warp < strips;
  float scale = 1, slope_scale = 1, largest_context = 0, largest = 0;
  Sums<T> u[2];
  Parts<T, eighths, 2> of_rows, of_units;
  if constexpr (planes == 2) largest = most_of_warp(fmaxf(x[0].largest(), x[1].largest()));
  if (busy) {
    strip.find_scale();
    if constexpr (planes == 2) {
      scale = scale_for<60>(largest);
      largest_context = most_of_warp(fmaxf(fmaxf(fabsf(context[0][0]), fabsf(context[0][1])),
                                           fmaxf(fabsf(context[1][0]), fabsf(context[1][1]))));
    }
    of_rows.set(x, scale);
    of_units.set(strip.rows, strip.scale);
    multiply_rows<T, eighths, 2>(u, of_rows, of_units);
  }
  __syncthreads();

  float slope[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < few_warps; ++k) sum += shared.scores[k][g + 8 * i];
    slope[i] = share[i] * sum;
  }
  bool apart[2] = {};
  float largest_slope = 0;
  if constexpr (planes == 2) {
    largest_slope = most_of_warp(fmaxf(fabsf(slope[0]), fabsf(slope[1])));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      apart[i] = real[i] && (stands_apart(most_of_quad(x[i].largest()), largest) ||
                             stands_apart(fabsf(slope[i]), largest_slope));
    }
  }
  if (busy) {
    if constexpr (planes == 2) slope_scale = scale_for<60>(largest_slope * largest_context);
    const float inverse = tangent_scale<T> * (inverse_of(scale) * inverse_of(strip.scale));
    float* const partial = static_cast<float*>(call.partials) + int64_t{blockIdx.x} * call.parameters.part();
    // Slopes as an operand of rows and units, and transposed.
    unsigned slopes[planes][4], across[planes][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float of_context[2] = {}, of_bias[2] = {};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float two[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float a = tangent<T>(u[i].at(2 * k + j), inverse, bias[i][j]), most = slope[k] * slope_scale * context[i][j];
          two[j] = fmaf(-a, a * most, most);
          of_context[j] = fmaf(slope[k], a, of_context[j]);
          of_bias[j] += two[j];
        }
        unsigned part[planes];
        split<T>(make_float2(two[0], two[1]), part);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
          slopes[plane][2 * i + k] = part[plane];
          across[plane][2 * k + i] = transposed(part[plane]);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float bias_sum = over_rows(of_bias[j]) * inverse_of(slope_scale), context_sum = over_rows(of_context[j]);
        const int unit = 16 * warp + 8 * i + 2 * q + j;
        if (g == 0 && unit < units) {
          partial[units * width + unit] = bias_sum;
          partial[units * (width + 1) + unit] = context_sum;
        }
      }
    }
    const float change_inverse = inverse_of(slope_scale) * inverse_of(strip.scale);
    const float weight_inverse = inverse_of(slope_scale) * inverse_of(scale);
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      unsigned w[2][planes], s[2][planes];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
          w[i][plane] = transposed(of_units.parts[pair][i][plane]);
          s[i][plane] = transposed(of_rows.parts[pair][i][plane]);
        }
      }
      float change[4] = {}, of_weight[4] = {};
      multiply_parts<T>(change, slopes, w[0], w[1]);
      multiply_parts<T>(of_weight, across, s[0], s[1]);
      const int c = Shape::column(pair, q);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        shared.change[warp][pair][i][lane] =
            make_float2(change[2 * i] * change_inverse, change[2 * i + 1] * change_inverse);
        const int unit = 16 * warp + g + 8 * i;
        const float2 two = make_float2(of_weight[2 * i] * weight_inverse, of_weight[2 * i + 1] * weight_inverse);
        if (unit < units) store_two(partial + unit * width, c, width, two);
      }
    }
  }
  __syncthreads();

  for (int pair = warp; pair < eighths; pair += few_warps) {
    const int c = Shape::column(pair, q);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 direct = gradient_at(i, c);
      float2 sum = make_float2(share[i] * direct.x, share[i] * direct.y);
#pragma unroll
      for (int k = 0; k < strips; ++k) {
        const float2 part = shared.change[k][pair][i][lane];
        sum.x += part.x;
        sum.y += part.y;
      }
      if (real[i] && !apart[i]) {
        T* const out = static_cast<T*>(call.states_gradient) + place[i] * width;
        if (c < width) out[c] = static_cast<T>(sum.x);
        if (c + 1 < width) out[c + 1] = static_cast<T>(sum.y);
      }
    }
  }
  if constexpr (planes == 2) {
    // A warp takes the two rows of its number, which four lanes hold.
    const int from = 4 * warp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool own = __shfl_sync(all_lanes, static_cast<int>(apart[i]), from);
      const int64_t own_place = __shfl_sync(all_lanes, place[i], from);
      const int64_t own_sequence = __shfl_sync(all_lanes, sequence[i], from);
      const float own_share = __shfl_sync(all_lanes, share[i], from);
      const float own_slope = __shfl_sync(all_lanes, slope[i], from);
      if (own) gradient_of_row(call, own_place, own_sequence, own_share, own_slope);
    }
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

// As many threads as there is use for, and, of dtypes and widths for which a GPU may have too little shared memory for
// so many, 256.
template <typename T, int eighths>
constexpr int least_backward_threads =
    sizeof(BackwardShared<T, eighths, backward_threads<T, eighths>>) <= 99 * 1024 ? backward_threads<T, eighths> : 256;

// Bytes of shared memory of a block that a GPU must have: SHARED_MEMORY in library.py holds the same numbers.
template <typename T, int eighths>
constexpr std::size_t needed_shared_memory = sizeof(BackwardShared<T, eighths, least_backward_threads<T, eighths>>);
static_assert(needed_shared_memory<__half, 8> == 87984);
static_assert(needed_shared_memory<__half, 13> == 79408);
static_assert(needed_shared_memory<__half, 16> == 109936);
static_assert(needed_shared_memory<float, 8> == 95088);
static_assert(needed_shared_memory<float, 13> == 154288);
static_assert(needed_shared_memory<float, 16> == 214384);

template <typename T>
void launch_forward(const Forward& call, int processors, cudaStream_t stream) {
  const int64_t sequences = call.rows.sequences;
  with_eighths(std::max(call.parameters.width, call.parameters.units), [&](auto eighths) {
    constexpr int e = decltype(eighths)::value;
    if (!call.rows.ragged && call.rows.steps <= few_steps && sequences <= 2 * processors) {
      launch(forward_few_kernel<T, e>, sequences, few_threads, 0, stream, call);
      return;
    }
    const int64_t blocks = std::min<int64_t>(sequences, processors);
    launch(forward_kernel<T, e>, blocks, forward_threads<T>, sizeof(ForwardShared<T, e>), stream, call);
  });
}

template <typename T>
void launch_backward(const Backward& call, cudaStream_t stream) {
  with_eighths(std::max(call.parameters.width, call.parameters.units), [&](auto eighths) {
    constexpr int e = decltype(eighths)::value;
    // A block for 16 rows: few enough of them to share the rows of each among its warps.
    if (call.blocks == (call.rows.total + unit_rows - 1) / unit_rows) {
      launch(backward_few_kernel<T, e>, call.blocks, few_threads, sizeof(BackwardFewShared<T, e>), stream, call);
      return;
    }
    constexpr int most = backward_threads<T, e>, least = least_backward_threads<T, e>;
    constexpr std::size_t bytes = sizeof(BackwardShared<T, e, most>);
    if constexpr (least < most) {
      if (bytes > static_cast<std::size_t>(cuda_ext::shared_memory_of_a_block())) {
        launch(backward_kernel<T, e, least>, call.blocks, least, needed_shared_memory<T, e>, stream, call);
        return;
      }
    }
    launch(backward_kernel<T, e, most>, call.blocks, most, bytes, stream, call);
  });
}

}  // namespace cuda_ext::attention
