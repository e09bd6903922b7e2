// Lanes of float32, eight in all scans: arithmetic, transposes between logical and lane order, and exponentials.
//
// A group is eight blocks (or channels) side by side; entry c of all eight is one vector. Compilers
// map the vector type to the registers of the target, so the same source serves AVX2, AVX-512, SSE
// and NEON.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>

#include "processor.hpp"
#endif

// All code of a step is inlined, so that the processor can overlap the rows.
#define STATEMIX_INLINE static inline __attribute__((always_inline))

namespace statemix {

#if !defined(STATEMIX_LANES)
#define STATEMIX_LANES 8
#endif

constexpr int LANES = STATEMIX_LANES;
typedef float V __attribute__((vector_size(4 * STATEMIX_LANES)));
typedef int32_t VI __attribute__((vector_size(4 * STATEMIX_LANES)));
// An unaligned vector in memory.
typedef float U __attribute__((vector_size(4 * STATEMIX_LANES), aligned(4), may_alias));

STATEMIX_INLINE V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
STATEMIX_INLINE void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
typedef uint32_t VU __attribute__((vector_size(4 * STATEMIX_LANES)));
typedef uint16_t Bits __attribute__((vector_size(2 * STATEMIX_LANES)));

// Numbers in bfloat16, the upper halves of float32.
STATEMIX_INLINE V load(const uint16_t* p) {
#if defined(__AVX2__) && STATEMIX_LANES == 8
  return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
  Bits b;
  std::memcpy(&b, p, sizeof b);
  return (V)(__builtin_convertvector(b, VU) << 16);
#endif
}

#if defined(__AVX512VL__)
// True if the processor has an instruction for the conversion, which also flushes subnormal numbers
// to zero. It is not in the instruction set that this code is compiled for.
static const bool ROUNDS_TO_BFLOAT16 = has_bfloat16();
#endif

// Rounds to nearest, ties to even; NaN stays NaN.
STATEMIX_INLINE void store(uint16_t* p, V v) {
#if defined(__AVX512VL__)
  if (ROUNDS_TO_BFLOAT16) {
    Bits b;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(b) : "v"(v));
    std::memcpy(p, &b, sizeof b);
    return;
  }
#endif
  const VU u = (VU)v, rounded = u + 0x7fff + ((u >> 16) & 1), nan = u | 0x400000;
  const VU is_nan = (VU)(v != v);
  const VU upper = ((is_nan & nan) | (~is_nan & rounded)) >> 16;
#if defined(__AVX512VL__) && STATEMIX_LANES == 8
  _mm_storeu_si128((__m128i*)p, _mm256_cvtepi32_epi16((__m256i)upper));
#else
  const Bits b = __builtin_convertvector(upper, Bits);
  std::memcpy(p, &b, sizeof b);
#endif
}
STATEMIX_INLINE V splat(float a) {
  V v;
  for (int i = 0; i < LANES; ++i) v[i] = a;
  return v;
}
STATEMIX_INLINE V select(VI condition, V a, V b) {
  return (V)((condition & (VI)a) | (~condition & (VI)b));
}
STATEMIX_INLINE V absolute(V a) { return (V)((VI)a & 0x7fffffff); }
STATEMIX_INLINE V with_sign(V magnitude, V sign) {
  return (V)((VI)magnitude | ((VI)sign & (int32_t)0x80000000));
}
STATEMIX_INLINE V zero_unless(VI condition, V a) { return (V)(condition & (VI)a); }

// a > b ? a : b, which returns a NaN in b but not a NaN in a.
STATEMIX_INLINE V larger(V a, V b) {
#if defined(__AVX512F__) && STATEMIX_LANES == 16
  return (V)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && STATEMIX_LANES == 8
  return (V)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return select(a > b, a, b);
#endif
}

// exp(x) in place, for x <= 0: exactly 1 at 0, exactly 0 below the normal numbers; NaN is
// preserved.
//
// With k the integer nearest to x log2(e) and r the remainder, a polynomial in r is multiplied by
// 2^k. Adding 1.5 · 2^23 + 127 leaves k + 127, the exponent bits of 2^k, in the low bits of the
// sum. The product preserves NaN, which an addition to the exponent bits would not.
//
// K vectors go through each stage together. One after the other, the latency of their dependency
// chains would exceed what out-of-order execution can hide.
template <int K>
STATEMIX_INLINE void exponentials(V* x) {
  constexpr float COEFFICIENTS[] = {1.339887455e-3f, 9.618437393e-3f, 5.550332471e-2f,
                                    2.402264791e-1f, 6.931472029e-1f, 1.0f};
  constexpr float LOG2_E = 1.44269504f, MAGIC = 12583039.0f;
  constexpr float LOWEST = -86.6f;  // above it, k is at least -125
  V shifted[K], r[K], p[K];
  for (int i = 0; i < K; ++i) shifted[i] = x[i] * LOG2_E + MAGIC;
  for (int i = 0; i < K; ++i) r[i] = x[i] * LOG2_E - (shifted[i] - MAGIC);
  for (int i = 0; i < K; ++i) p[i] = splat(1.535335036e-4f);
  for (float c : COEFFICIENTS)
    for (int i = 0; i < K; ++i) p[i] = p[i] * r[i] + c;
  for (int i = 0; i < K; ++i)
    x[i] = zero_unless(~(x[i] < LOWEST), p[i] * (V)((VI)shifted[i] << 23));
}

STATEMIX_INLINE V exponential(V x) {
  exponentials<1>(&x);
  return x;
}

// The logistic function at g and at -g, from one exponential of -|g|.
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

// Converts `count` numbers between bfloat16 and float32.
STATEMIX_INLINE void widen(const uint16_t* src, int64_t count, float* dst) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(dst + i, load(src + i));
  for (; i < count; ++i) {
    const uint32_t bits = (uint32_t)src[i] << 16;
    std::memcpy(dst + i, &bits, sizeof bits);
  }
}
STATEMIX_INLINE void narrow(const float* src, int64_t count, uint16_t* dst) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(dst + i, load(src + i));
  if (i == count) return;
  float rest[LANES] = {};
  uint16_t bits[LANES];
  std::memcpy(rest, src + i, sizeof(float) * (count - i));
  store(bits, load(rest));
  std::memcpy(dst + i, bits, sizeof(uint16_t) * (count - i));
}

#if STATEMIX_LANES == 8

typedef float Half __attribute__((vector_size(16)));

STATEMIX_INLINE Half load_half(const float* p) {
  Half v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
STATEMIX_INLINE V join(Half low, Half high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
STATEMIX_INLINE Half low(V v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3); }
STATEMIX_INLINE Half high(V v) { return __builtin_shufflevector(v, v, 4, 5, 6, 7); }

// Transposes the left and the right 4 × 4 half of four vectors, which hold items i and i + 4 side
// by side before, and one entry of all eight items after; applied again, it is the inverse.
STATEMIX_INLINE void transpose_halves(V* r) {
  const V a = __builtin_shufflevector(r[0], r[1], 0, 8, 1, 9, 4, 12, 5, 13);
  const V b = __builtin_shufflevector(r[0], r[1], 2, 10, 3, 11, 6, 14, 7, 15);
  const V c = __builtin_shufflevector(r[2], r[3], 0, 8, 1, 9, 4, 12, 5, 13);
  const V d = __builtin_shufflevector(r[2], r[3], 2, 10, 3, 11, 6, 14, 7, 15);
  r[0] = __builtin_shufflevector(a, c, 0, 1, 8, 9, 4, 5, 12, 13);
  r[1] = __builtin_shufflevector(a, c, 2, 3, 10, 11, 6, 7, 14, 15);
  r[2] = __builtin_shufflevector(b, d, 0, 1, 8, 9, 4, 5, 12, 13);
  r[3] = __builtin_shufflevector(b, d, 2, 3, 10, 11, 6, 7, 14, 15);
}

// Converts eight consecutive items of COUNT entries to COUNT vectors, four entries at a time. If
// COUNT is not a multiple of four, the last four entries overlap the previous ones. If COUNT is
// three, four entries of each item are read, and the last item is read from one entry earlier.
template <int COUNT>
STATEMIX_INLINE void eight_to_lanes(const float* src, V* dst) {
  if constexpr (COUNT == 1) {
    dst[0] = load(src);
  } else if constexpr (COUNT == 2) {
    const V a = load(src), b = load(src + LANES);
    dst[0] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
    dst[1] = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
  } else if constexpr (COUNT == 3) {
    const Half end = load_half(src + 20);
    V r[4];
    for (int i = 0; i < 3; ++i) r[i] = join(load_half(src + 3 * i), load_half(src + 3 * (i + 4)));
    r[3] = join(load_half(src + 9), __builtin_shufflevector(end, end, 1, 2, 3, 3));
    transpose_halves(r);
    for (int i = 0; i < 3; ++i) dst[i] = r[i];
  } else {
    for (int at = 0; at < COUNT; at += 4) {
      const int c = at + 4 <= COUNT ? at : COUNT - 4;
      V r[4];
      for (int i = 0; i < 4; ++i)
        r[i] = join(load_half(src + i * COUNT + c), load_half(src + (i + 4) * COUNT + c));
      transpose_halves(r);
      for (int i = 0; i < 4; ++i) dst[c + i] = r[i];
    }
  }
}

// The inverse. If COUNT is three, four entries of each item are written, the next item overwrites
// the excess entry, and only three entries of the last item are written.
template <int COUNT>
STATEMIX_INLINE void eight_from_lanes(const V* src, float* dst) {
  if constexpr (COUNT == 1) {
    store(dst, src[0]);
  } else if constexpr (COUNT == 2) {
    store(dst, __builtin_shufflevector(src[0], src[1], 0, 8, 1, 9, 2, 10, 3, 11));
    store(dst + LANES, __builtin_shufflevector(src[0], src[1], 4, 12, 5, 13, 6, 14, 7, 15));
  } else if constexpr (COUNT == 3) {
    V r[4] = {src[0], src[1], src[2], src[2]};
    transpose_halves(r);
    Half item[LANES];
    for (int i = 0; i < 4; ++i) {
      item[i] = low(r[i]);
      item[i + 4] = high(r[i]);
    }
    for (int i = 0; i < LANES - 1; ++i) std::memcpy(dst + 3 * i, &item[i], sizeof(Half));
    std::memcpy(dst + 21, &item[7], 3 * sizeof(float));
  } else {
    for (int at = 0; at < COUNT; at += 4) {
      const int c = at + 4 <= COUNT ? at : COUNT - 4;
      V r[4];
      for (int i = 0; i < 4; ++i) r[i] = src[c + i];
      transpose_halves(r);
      for (int i = 0; i < 4; ++i) {
        const Half one = low(r[i]), other = high(r[i]);
        std::memcpy(dst + i * COUNT + c, &one, sizeof one);
        std::memcpy(dst + (i + 4) * COUNT + c, &other, sizeof other);
      }
    }
  }
}

// Converts `rows` <= 8 items of `count` entries to `count` vectors; missing lanes become zero.
// COUNT is `count` if it is known at compile time, else 0.
template <int COUNT>
STATEMIX_INLINE void to_lanes_here(const float* src, int count, int64_t rows, V* dst) {
  if constexpr (COUNT > 0) {
    if (rows == LANES) return eight_to_lanes<COUNT>(src, dst);
  }
  for (int c = 0; c < count; ++c) {
    V v{};
    for (int64_t i = 0; i < rows; ++i) v[i] = src[i * count + c];
    dst[c] = v;
  }
}

template <int COUNT>
STATEMIX_INLINE void from_lanes_here(const V* src, int count, int64_t rows, float* dst) {
  if constexpr (COUNT > 0) {
    if (rows == LANES) return eight_from_lanes<COUNT>(src, dst);
  }
  for (int c = 0; c < count; ++c)
    for (int64_t i = 0; i < rows; ++i) dst[i * count + c] = src[c][i];
}

// Long conversions are function calls, and short ones are inlined, which keeps the code small.
template <int COUNT>
static __attribute__((noinline)) void to_lanes_there(const float* src, int count, int64_t rows,
                                                     V* dst) {
  to_lanes_here<COUNT>(src, count, rows, dst);
}
template <int COUNT>
static __attribute__((noinline)) void from_lanes_there(const V* src, int count, int64_t rows,
                                                       float* dst) {
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

#endif

}  // namespace statemix
