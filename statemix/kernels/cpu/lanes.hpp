// Eight lanes of float32: arithmetic, transposes between the logical order and lanes, and the exponential.
//
// A group is eight blocks (or channels) side by side; entry c of all eight is one vector.  Compilers turn the vector type
// into whatever registers the target has, so the same source serves AVX2, AVX-512, SSE and NEON.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

// Everything inside a step is one stretch of code, so that the processor can overlap its rows.
#define STATEMIX_INLINE static inline __attribute__((always_inline))

namespace statemix {

constexpr int LANES = 8;
typedef float V __attribute__((vector_size(32)));
typedef int32_t VI __attribute__((vector_size(32)));

STATEMIX_INLINE V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
STATEMIX_INLINE void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
STATEMIX_INLINE V splat(float a) { return V{a, a, a, a, a, a, a, a}; }
STATEMIX_INLINE V select(VI condition, V a, V b) { return (V)((condition & (VI)a) | (~condition & (VI)b)); }
STATEMIX_INLINE V absolute(V a) { return (V)((VI)a & 0x7fffffff); }
STATEMIX_INLINE V with_sign(V magnitude, V sign) { return (V)((VI)magnitude | ((VI)sign & (int32_t)0x80000000)); }
STATEMIX_INLINE V zero_unless(VI condition, V a) { return (V)(condition & (VI)a); }

// a > b ? a : b, so a NaN in b is returned and one in a is not.
STATEMIX_INLINE V larger(V a, V b) {
#if defined(__AVX__)
  return (V)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return select(a > b, a, b);
#endif
}

// exp(x) for x <= 0 (NaN stays NaN): exactly 1 at 0, exactly 0 where it would leave the normal numbers.
// With k the integer nearest to x log2(e) and r the rest, 2^k comes from the exponent bits and 2^r from a polynomial.
STATEMIX_INLINE V exponential(V x) {
  const V shifted = x * 1.44269504f + 12582912.0f;
  const V r = x * 1.44269504f - (shifted - 12582912.0f);
  V p = splat(1.535335036e-4f);
  p = p * r + 1.339887455e-3f;
  p = p * r + 9.618437393e-3f;
  p = p * r + 5.550332471e-2f;
  p = p * r + 2.402264791e-1f;
  p = p * r + 6.931472029e-1f;
  p = p * r + 1.0f;
  return zero_unless(~(x < -86.5f), (V)((VI)p + ((VI)shifted << 23)));
}

// The logistic function of g and of -g, from one exponential of -|g|.
STATEMIX_INLINE void logistic(V g, V* of_g, V* of_minus_g) {
  const V e = exponential(-absolute(g));
  const V big = 1.0f / (1.0f + e), small = e * big;
  const VI negative = g < 0.0f;
  *of_g = select(negative, small, big);
  *of_minus_g = select(negative, big, small);
}

STATEMIX_INLINE V hyperbolic_tangent(V g) {
  const V a = absolute(g), z = g * g;
  V p = splat(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const V near_zero = p * z * g + g;
  const V e = exponential(-2.0f * a);
  const V far = with_sign((1.0f - e) / (1.0f + e), g);
  return select(a < 0.625f, near_zero, far);
}

// Rows r[0..7] of eight become columns.
STATEMIX_INLINE void transpose(V* r) {
  V a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    a[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      b[i + j] = __builtin_shufflevector(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      b[i + j + 2] = __builtin_shufflevector(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int j = 0; j < 4; ++j) {
    r[j] = __builtin_shufflevector(b[j], b[j + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[j + 4] = __builtin_shufflevector(b[j], b[j + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// `count` entries of each of `rows` <= 8 items, an item after the other, into `count` vectors; missing lanes become zero.
// COUNT is `count` where it is known at compile time, else 0.
template <int COUNT>
STATEMIX_INLINE void to_lanes_here(const float* src, int count, int64_t rows, V* dst) {
  if (COUNT == 1 && rows == LANES) {
    dst[0] = load(src);
    return;
  }
  if (COUNT == 2 && rows == LANES) {
    const V a = load(src), b = load(src + LANES);
    dst[0] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
    dst[1] = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
    return;
  }
  if (COUNT > 0 && rows == LANES) {
    constexpr int whole = COUNT / LANES * LANES, rest = COUNT % LANES;
    for (int c = 0; c < whole; c += LANES) {
      for (int i = 0; i < LANES; ++i) dst[c + i] = load(src + i * COUNT + c);
      transpose(dst + c);
    }
    if constexpr (rest > 0) {
      V r[LANES];
      for (int i = 0; i < LANES; ++i) {
        r[i] = V{};
        std::memcpy(&r[i], src + i * COUNT + whole, rest * sizeof(float));
      }
      transpose(r);
      for (int i = 0; i < rest; ++i) dst[whole + i] = r[i];
    }
    return;
  }
  for (int c = 0; c < count; ++c) {
    V v{};
    for (int64_t i = 0; i < rows; ++i) v[i] = src[i * count + c];
    dst[c] = v;
  }
}

template <int COUNT>
STATEMIX_INLINE void from_lanes_here(const V* src, int count, int64_t rows, float* dst) {
  if (COUNT == 1 && rows == LANES) {
    store(dst, src[0]);
    return;
  }
  if (COUNT == 2 && rows == LANES) {
    store(dst, __builtin_shufflevector(src[0], src[1], 0, 8, 1, 9, 2, 10, 3, 11));
    store(dst + LANES, __builtin_shufflevector(src[0], src[1], 4, 12, 5, 13, 6, 14, 7, 15));
    return;
  }
  if (COUNT > 0 && rows == LANES) {
    constexpr int whole = COUNT / LANES * LANES, rest = COUNT % LANES;
    V r[LANES];
    for (int c = 0; c < whole; c += LANES) {
      for (int i = 0; i < LANES; ++i) r[i] = src[c + i];
      transpose(r);
      for (int i = 0; i < LANES; ++i) store(dst + i * COUNT + c, r[i]);
    }
    if constexpr (rest > 0) {
      for (int i = 0; i < LANES; ++i) r[i] = i < rest ? src[whole + i] : V{};
      transpose(r);
      for (int i = 0; i < LANES; ++i) std::memcpy(dst + i * COUNT + whole, &r[i], rest * sizeof(float));
    }
    return;
  }
  for (int c = 0; c < count; ++c)
    for (int64_t i = 0; i < rows; ++i) dst[i * count + c] = src[c][i];
}

// Long conversions are calls, short ones are not: code for both sizes of block stays small.
template <int COUNT>
static __attribute__((noinline)) void to_lanes_there(const float* src, int count, int64_t rows, V* dst) {
  to_lanes_here<COUNT>(src, count, rows, dst);
}
template <int COUNT>
static __attribute__((noinline)) void from_lanes_there(const V* src, int count, int64_t rows, float* dst) {
  from_lanes_here<COUNT>(src, count, rows, dst);
}
template <int COUNT>
STATEMIX_INLINE void to_lanes(const float* src, int count, int64_t rows, V* dst) {
  if constexpr (COUNT > 0 && COUNT <= 8)
    to_lanes_here<COUNT>(src, count, rows, dst);
  else
    to_lanes_there<COUNT>(src, count, rows, dst);
}
template <int COUNT>
STATEMIX_INLINE void from_lanes(const V* src, int count, int64_t rows, float* dst) {
  if constexpr (COUNT > 0 && COUNT <= 8)
    from_lanes_here<COUNT>(src, count, rows, dst);
  else
    from_lanes_there<COUNT>(src, count, rows, dst);
}

}  // namespace statemix
