// A warp's part of the states and the weight, as the matrix units take them, and products of the two.
//
// States come in eight rows after eight, straight into the layout of the matrix instructions' operands. Thread 4 g + q of
// a warp holds row g of each eight, and of each 16 columns the four from 4 q on, as two pairs; of 8 columns that are left,
// the pair from 2 q on. The instructions would want columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 there:
//
//   in memory             0  1  2  3 | 4  5  6  7 | 8  9 10 11 |12 13 14 15
//   held by thread q      0  0  0  0 | 1  1  1  1 | 2  2  2  2 | 3  3  3  3
//   place in the product  0  1  8  9 | 2  3 10 11 | 4  5 12 13 | 6  7 14 15
//
// As a sum over columns does not mind their order, the weight lies in shared memory with its columns, and its rows, in the
// order that makes up for it: what comes out of a product is in the layout of the states'.
#pragma once

#include "../common/functions.cuh"
#include "../common/halves.cuh"
#include "../common/wgmma.cuh"
#include "attention_pooling.cuh"

namespace cuda_ext::attention {

// What the matrix units take for a value of T: itself, or of float high and low parts in float16 (halves.cuh). (Two
// bfloat16 need no scale, but leave an error of 5e-6 in the results and 1.2e-5 in the bias's gradient.)
template <typename T>
struct Units {
  using Element = T;
  static constexpr int planes = 1;
};
template <>
struct Units<float> {
  using Element = __half;
  static constexpr int planes = 2;
};

// planes[0] is the value rounded to an element of the units, planes[1], for float, what that leaves.
template <typename T>
__device__ void split(float2 x, unsigned (&planes)[Units<T>::planes]) {
  using E = typename Units<T>::Element;
  if constexpr (Units<T>::planes == 2) {
    split_pair<E>(x, planes[0], planes[1]);
  } else {
    planes[0] = pack<E>(x);
  }
}

constexpr unsigned all_lanes = 0xffffffffu;
// So many of a block's sequences are asked for at its beginning; fewer than a forward block has threads.
constexpr int fetched_at_once = 64;

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
  // The weight in shared memory is in panels of 8 columns, 16 bytes a row, one row after the other; as many of both as
  // products of 16 take.
  static constexpr int padded = (eighths + 1) / 2 * 16;
  static constexpr int panel = padded * 8;
  static constexpr int weight_plane = padded * padded;

  // Where a column stands in shared memory.
  __device__ static int place(int column) {
    if (column >= 16 * blocks) return column;
    const int inside = column % 16;
    return column - inside + (inside / 2) % 2 * 8 + inside / 4 * 2 + inside % 2;
  }
  // Which column, or unit, that is in this place.
  __device__ static int unit(int place) {
    if (place >= 16 * blocks) return place;
    const int inside = place % 16;
    return place - inside + inside % 8 / 2 * 4 + inside / 8 * 2 + inside % 2;
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
  static constexpr int fours = Shape::padded / 4, at_once = threads / fours,
                       each = (Shape::padded + at_once - 1) / at_once;
  float values[each][4];
  float bias, context;

  // Zeros fill it up. packs: four of a row at once.
  __device__ void load(const Parameters& p, bool packs) {
    static_assert(threads >= Shape::width);
    const int row = threadIdx.x / fours, d = threadIdx.x % fours * 4;
    const auto each_four = [&](auto&& read) {
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int a = row + i * at_once;
        read(values[i], row < at_once && a < p.units && d < p.width, a * p.width + d);
      }
    };
    if (packs && (std::is_same_v<T, float> || p.single)) {
      each_four([&](float(&four)[4], bool inside, int from) {
        float4 x{};
        if (inside) x = *reinterpret_cast<const float4*>(static_cast<const float*>(p.weight) + from);
        four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
      });
    } else if (packs) {
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
      if (row < at_once && a < Shape::padded) {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          unsigned planes[Shape::planes];
          split<T>(make_float2(values[i][j] * scale, values[i][j + 1] * scale), planes);
          const int column = Shape::place(d + j);
          E* place = weight + column / 8 * Shape::panel + Shape::place(a) * 8 + column % 8;
#pragma unroll
          for (int plane = 0; plane < Shape::planes; ++plane) {
            *reinterpret_cast<unsigned*>(place + plane * Shape::weight_plane) = planes[plane];
          }
        }
      }
    }
    // The matrix units read it past the caches, if they are Hopper's.
    order_with_bulk_copies();
    return make_float2(scale, largest_context);
  }
};

template <typename T, int eighths, int threads>
__device__ float2 load_parameters(const Parameters& p, bool packs, typename Units<T>::Element* weight,
                                  Vectors<eighths>& vectors) {
  Weight<T, eighths, threads> loaded;
  loaded.load(p, packs);
  const float2 scales = loaded.store(weight, vectors);
  __syncthreads();
  return scales;
}

// out [16, 8 eighths] += a [16, 16 columns of `block`] times the weight, transposed (down = false: to the projection) or as it
// is (down = true: back to the states). The float's small products come first.
// fresh: out is written, not added to.
template <typename T, int eighths, bool down, bool fresh>
__device__ void multiply_block(float (&out)[eighths][4], const unsigned (&a)[Units<T>::planes][4], int block,
                               unsigned weight, int lane) {
  using Shape = Tile<T, eighths>;
  using E = typename Shape::Element;
  constexpr int group = 4;
  // One load brings two matrices along the sum (8 columns each) of two planes, or of two neighbours of `out`.
  const int r = lane % 8, upper = (lane >> 3) % 2, other = lane >> 4;
  const int far = Shape::planes == 2 ? other * Shape::weight_plane : 0;
  const int next = Shape::planes == 2 ? 0 : other;
#pragma unroll
  for (int first = 0; first < eighths; first += group) {
    unsigned b[group][4];
#pragma unroll
    for (int i = 0; i < group; i += 3 - Shape::planes) {
      if (first + i < eighths) {
        const int wanted = first + i, tile = wanted + (wanted + 1 < eighths ? next : 0);
        if constexpr (down) {
          load_matrices_transposed(b[i], weight + 2 * (far + tile * Shape::panel + (16 * block + 8 * upper + r) * 8));
        } else {
          load_matrices(b[i], weight + 2 * (far + (2 * block + upper) * Shape::panel + (8 * tile + r) * 8));
        }
      }
    }
    if constexpr (Shape::planes == 2) {
#pragma unroll
      for (int i = 0; i < group && first + i < eighths; ++i) multiply<E, fresh>(out[first + i], a[1], b[i][0], b[i][1]);
#pragma unroll
      for (int i = 0; i < group && first + i < eighths; ++i) multiply<E>(out[first + i], a[0], b[i][2], b[i][3]);
#pragma unroll
      for (int i = 0; i < group && first + i < eighths; ++i) multiply<E>(out[first + i], a[0], b[i][0], b[i][1]);
    } else {
#pragma unroll
      for (int i = 0; i < group && first + i < eighths; ++i) {
        multiply<E, fresh>(out[first + i], a[0], b[i - i % 2][2 * (i % 2)], b[i - i % 2][2 * (i % 2) + 1]);
      }
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
    const int wanted = first + next, tile = wanted < eighths ? wanted : eighths - 1;
    unsigned m[4];
    if constexpr (down) {
      load_matrices_transposed(m, weight + 2 * (far + tile * Shape::panel + (along + lane % 8) * 8));
    } else {
      load_matrices(m, weight + 2 * (far + 2 * Shape::blocks * Shape::panel + (8 * tile + lane % 8) * 8));
    }
#pragma unroll
    for (int i = 0; i < each && first + i < eighths; ++i) {
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

  __device__ Operands(const Row<T, eighths> (&x)[2], const float (&scales)[2]) {
#pragma unroll
    for (int pair = 0; pair < eighths; ++pair) {
      x[0].operand(pair, scales[0], parts[pair][0]);
      x[1].operand(pair, scales[1], parts[pair][1]);
    }
  }

  // Their products with the weight, transposed or as it is, as `multiply_block`. The warps of a warpgroup come together, and
  // await them.
  template <bool down>
  __device__ void multiply_all(float (&out)[eighths][4], unsigned weight, int lane) const {
    if constexpr (has_warpgroups) {
      begin_products();
      // Float's small products come first.
#pragma unroll
      for (int product = planes == 2 ? 0 : 2; product < 3; ++product) {
        const unsigned plane = weight + 2 * (product == 1 ? Shape::weight_plane : 0);
#pragma unroll
        for (int block = 0; block < Shape::padded / 16; ++block) {
          unsigned a[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int pair = 2 * block + i / 2;
            a[i] = pair < eighths ? parts[pair < eighths ? pair : 0][i % 2][product == 0 ? planes - 1 : 0] : 0;
          }
          const auto b = down ? describe_panels(plane + 256 * block, 128, 2 * Shape::panel)
                              : describe_panels(plane + 4 * Shape::panel * block, 2 * Shape::panel, 128);
          cuda_ext::multiply_rows<typename Shape::Element, down>(out, a, b, block > 0 || product > (planes == 2 ? 0 : 2));
        }
      }
      commit_products();
    } else {
#pragma unroll
      for (int block = 0; block < Shape::blocks; ++block) {
        unsigned a[planes][4];
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[plane][i] = parts[2 * block + i / 2][i % 2][plane];
        }
        if (block == 0) {
          multiply_block<T, eighths, down, true>(out, a, block, weight, lane);
        } else {
          multiply_block<T, eighths, down, false>(out, a, block, weight, lane);
        }
      }
      if constexpr (Shape::tail) {
        unsigned a[planes][2];
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
          a[plane][0] = parts[2 * Shape::blocks][0][plane];
          a[plane][1] = parts[2 * Shape::blocks][1][plane];
        }
        multiply_tail<T, eighths, down>(out, a, weight, lane);
      }
    }
  }
};

// tanh(product + bias), for float to 2e-7, and near zero to as much of itself; for half precision by the unit (relative error
// 2^-11, a rounding to half).
template <typename T>
__device__ float tangent(float product, float scale, float bias) {
  const float x = fmaf(product, scale, bias);
  if constexpr (std::is_same_v<T, float>) {
    const float square = x * x;
    // x - x^3 / 3 + 2 x^5 / 15 of x / tangent_scale.
    const float small = x * fmaf(square, fmaf(square, 6.6666669e-4f, -0.013876106f), 0.34657359f);
    return square < 0.03f ? small : fmaf(-2.0f, reciprocal(power_of_two(x) + 1.0f), 1.0f);
  } else {
    return coarse_tanh(x);
  }
}

// Ask for what lies at `from`, in the multiprocessors' common cache, before it is needed.
__device__ inline void fetch_ahead(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

__device__ inline float most_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
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

}  // namespace cuda_ext::attention
