// Discrete Fourier transforms of 8 and 16 complex numbers in registers, and the roots of unity between them.
//
// X[k] = sum over n of x[n] e^(-2 pi i n k / R); the inverse has a plus, and no factor. Both keep the natural order.
#pragma once

#include <cuda_runtime.h>

namespace cuda_ext::fft {

__host__ __device__ inline float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
__host__ __device__ inline float2 operator-(float2 a, float2 b) { return {a.x - b.x, a.y - b.y}; }

__host__ __device__ inline float2 product(float2 a, float2 b) {
  return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}

__host__ __device__ inline float2 product_with_conjugate(float2 a, float2 b) {
  return {a.x * b.x + a.y * b.y, a.y * b.x - a.x * b.y};
}

// a by -i, of the inverse by i: the root of four.
template <bool inverse>
__host__ __device__ inline float2 turned(float2 a) {
  return inverse ? float2{-a.y, a.x} : float2{a.y, -a.x};
}

// a by e^(-2 pi i n / 16), of the inverse by its conjugate.
template <bool inverse, int n>
__host__ __device__ inline float2 turned_by_sixteenths(float2 a) {
  constexpr float cosine = 0.92387953251128674f, sine = 0.38268343236508977f, root_half = 0.70710678118654752f;
  if constexpr (n == 0) return a;
  if constexpr (n == 2) {
    const float2 b = a + turned<inverse>(a);
    return {root_half * b.x, root_half * b.y};
  }
  if constexpr (n == 4) return turned<inverse>(a);
  if constexpr (n > 4) return turned_by_sixteenths<inverse, n - 4>(turned<inverse>(a));
  constexpr float2 root = n == 1 ? float2{cosine, sine} : float2{sine, cosine};
  return inverse ? product(a, root) : product_with_conjugate(a, root);
}

template <bool inverse>
__host__ __device__ inline void transform(float2& a, float2& b, float2& c, float2& d) {
  const float2 even = a + c, odd = b + d, first = a - c, second = turned<inverse>(b - d);
  a = even + odd;
  b = first + second;
  c = even - odd;
  d = first - second;
}

template <bool inverse>
__host__ __device__ inline void transform(float2 (&x)[8]) {
  transform<inverse>(x[0], x[2], x[4], x[6]);
  transform<inverse>(x[1], x[3], x[5], x[7]);
  const float2 odd[4] = {x[1], turned_by_sixteenths<inverse, 2>(x[3]), turned_by_sixteenths<inverse, 4>(x[5]),
                         turned_by_sixteenths<inverse, 6>(x[7])};
  const float2 even[4] = {x[0], x[2], x[4], x[6]};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    x[k] = even[k] + odd[k];
    x[k + 4] = even[k] - odd[k];
  }
}

// By four transforms of four, a turn, and four more.
template <bool inverse>
__host__ __device__ inline void transform(float2 (&x)[16]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) transform<inverse>(x[n], x[n + 4], x[n + 8], x[n + 12]);
  x[5] = turned_by_sixteenths<inverse, 1>(x[5]);
  x[6] = turned_by_sixteenths<inverse, 2>(x[6]);
  x[7] = turned_by_sixteenths<inverse, 3>(x[7]);
  x[9] = turned_by_sixteenths<inverse, 2>(x[9]);
  x[10] = turned_by_sixteenths<inverse, 4>(x[10]);
  x[11] = turned_by_sixteenths<inverse, 6>(x[11]);
  x[13] = turned_by_sixteenths<inverse, 3>(x[13]);
  x[14] = turned_by_sixteenths<inverse, 6>(x[14]);
  x[15] = turned_by_sixteenths<inverse, 9>(x[15]);
#pragma unroll
  for (int k = 0; k < 4; ++k) transform<inverse>(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
  // x[4 k + l] is that of k + 4 l.
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int l = 0; l < k; ++l) {
      const float2 other = x[4 * k + l];
      x[4 * k + l] = x[4 * l + k];
      x[4 * l + k] = other;
    }
  }
}

// e^(-2 pi i n / 128), each rounded once: by its series, at most a quarter turn from 0.
constexpr int roots_of = 128;

struct Roots {
  float2 values[roots_of]{};

  constexpr Roots() {
    for (int n = 0; n < roots_of; ++n) {
      const int quarter = n / (roots_of / 4);
      const double angle = 2 * 3.14159265358979323846 * (n % (roots_of / 4)) / roots_of;
      double cosine = 0, sine = 0, term = 1;
      for (int power = 0; power < 30; power += 2) {
        cosine += (power % 4 == 0 ? term : -term);
        term *= angle / (power + 1);
        sine += (power % 4 == 0 ? term : -term);
        term *= angle / (power + 2);
      }
      const double x = quarter == 0 ? cosine : quarter == 1 ? -sine : quarter == 2 ? -cosine : sine;
      const double y = quarter == 0 ? -sine : quarter == 1 ? -cosine : quarter == 2 ? sine : cosine;
      values[n].x = static_cast<float>(x);
      values[n].y = static_cast<float>(y);
    }
  }
};

}  // namespace cuda_ext::fft
