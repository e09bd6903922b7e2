// Lanes of float32: arithmetic, transposes between logical and lane order, and exponentials.
//
// A group is eight blocks (or channels) side by side in memory. A vector holds entry c of one group,
// or, with sixteen lanes, of two groups. Compilers map the vector type to the registers of the
// target, so the same source serves AVX2, AVX-512, SSE and NEON.

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

#if defined(__AVX512F__)
#define STATEMIX_LANES 16
#else
#define STATEMIX_LANES 8
#endif

constexpr int LANES = STATEMIX_LANES;
constexpr int GROUP = 8, WIDTH = LANES / GROUP;  // blocks of a group, and groups of a vector
typedef float V __attribute__((vector_size(4 * STATEMIX_LANES)));
typedef int32_t VI __attribute__((vector_size(4 * STATEMIX_LANES)));
// An unaligned vector in memory.
typedef float U __attribute__((vector_size(4 * STATEMIX_LANES), aligned(4), may_alias));

STATEMIX_INLINE V load(const float* p) { return *(const U*)p; }
STATEMIX_INLINE void store(float* p, V v) { *(U*)p = v; }
typedef uint32_t VU __attribute__((vector_size(4 * STATEMIX_LANES)));
typedef uint16_t Bits __attribute__((vector_size(2 * STATEMIX_LANES)));

// Numbers in bfloat16, the upper halves of float32.
STATEMIX_INLINE V load(const uint16_t* p) {
#if defined(__AVX2__) && STATEMIX_LANES == 8
  return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#elif defined(__AVX512F__) && STATEMIX_LANES == 16
  return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
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
STATEMIX_INLINE Bits to_bfloat16(V v) {
#if defined(__AVX512VL__)
  if (ROUNDS_TO_BFLOAT16) {
    Bits b;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(b) : "v"(v));
    return b;
  }
#endif
  const VU u = (VU)v, rounded = u + 0x7fff + ((u >> 16) & 1), nan = u | 0x400000;
  const VU is_nan = (VU)(v != v);
  const VU upper = ((is_nan & nan) | (~is_nan & rounded)) >> 16;
#if defined(__AVX512F__) && STATEMIX_LANES == 16
  return (Bits)_mm512_cvtepi32_epi16((__m512i)upper);
#else
  return __builtin_convertvector(upper, Bits);
#endif
}
STATEMIX_INLINE void store(uint16_t* p, V v) {
  const Bits b = to_bfloat16(v);
  std::memcpy(p, &b, sizeof b);
}
STATEMIX_INLINE V splat(float a) {
  V v;
  for (int i = 0; i < LANES; ++i) v[i] = a;
  return v;
}
STATEMIX_INLINE V select(VI condition, V a, V b) {
#if defined(__AVX512DQ__) && STATEMIX_LANES == 16
  return (V)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)condition), (__m512)b, (__m512)a);
#endif
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
// K vectors go through each stage together. One after the other, the latency of their dependency
// chains would exceed what out-of-order execution can hide.
#if defined(__AVX512F__) && STATEMIX_LANES == 16

// With k/16 the sixteenth nearest to x log2(e) and r the remainder, the result is 2^(k/16), from a
// table, times a polynomial in r. Adding 1.5 · 2^19 leaves k in the low bits of the sum, of which the
// last four are the index into the table; the integer part goes to the exponent.
template <int K>
STATEMIX_INLINE void exponentials(V* x) {
  constexpr float LOG2_E = 1.44269504f, MAGIC = 786432.0f;
  constexpr float LOWEST = -86.6f;
  const __m512 TABLE = _mm512_setr_ps(
      1.0f, 1.04427378f, 1.09050773f, 1.13878863f, 1.18920712f, 1.24185781f, 1.29683955f,
      1.35425555f, 1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f, 1.68179283f, 1.75625216f,
      1.83400809f, 1.91520656f);
  V shifted[K], k[K], r[K], p[K];
  for (int i = 0; i < K; ++i) shifted[i] = x[i] * LOG2_E + MAGIC;
  for (int i = 0; i < K; ++i) k[i] = shifted[i] - MAGIC;
  for (int i = 0; i < K; ++i) r[i] = x[i] * LOG2_E - k[i];
  for (int i = 0; i < K; ++i) p[i] = r[i] * 5.5503324e-2f + 2.40226507e-1f;
  for (int i = 0; i < K; ++i) p[i] = p[i] * r[i] + 6.93147181e-1f;
  for (int i = 0; i < K; ++i) {
    const V power = (V)_mm512_permutexvar_ps((__m512i)shifted[i], TABLE);
    p[i] = p[i] * r[i];
    p[i] = p[i] * power + power;
  }
  for (int i = 0; i < K; ++i) {
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x[i], _mm512_set1_ps(LOWEST), _CMP_NLT_UQ);
    x[i] = (V)_mm512_maskz_scalef_ps(normal, (__m512)p[i], (__m512)k[i]);
  }
}

#else

// With k the integer nearest to x log2(e) and r the remainder, a polynomial in r is multiplied by
// 2^k. Adding 1.5 · 2^23 + 127 leaves k + 127, the exponent bits of 2^k, in the low bits of the
// sum. The product preserves NaN, which an addition to the exponent bits would not.
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

#endif

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

// Half a group, and a group.
typedef float Half __attribute__((vector_size(16)));
typedef float Group __attribute__((vector_size(32)));

STATEMIX_INLINE Half load_half(const float* p) {
  Half v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
STATEMIX_INLINE void store_half(float* p, Half v) { std::memcpy(p, &v, sizeof v); }
STATEMIX_INLINE Group join(Half low, Half high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
STATEMIX_INLINE Half low(Group v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3); }
STATEMIX_INLINE Half high(Group v) { return __builtin_shufflevector(v, v, 4, 5, 6, 7); }

// The items of the groups of a vector: where each group begins, and how many of its items exist.
template <class T>
struct Items {
  T* group[WIDTH];
  int64_t present[WIDTH];
  bool complete() const { return present[0] == GROUP && present[WIDTH - 1] == GROUP; }
};

#if STATEMIX_LANES == 16

STATEMIX_INLINE V join(Group a, Group b) {
  return (V)_mm512_insertf32x8(_mm512_castps256_ps512((__m256)a), (__m256)b, 1);
}
template <int I>
STATEMIX_INLINE Group group_of(V v) {
  return (Group)_mm512_extractf32x8_ps((__m512)v, I);
}

// One vector, of which each group is elsewhere in memory.
STATEMIX_INLINE V load_groups(const float* const* p, int64_t offset) {
  return join((Group)_mm256_loadu_ps(p[0] + offset), (Group)_mm256_loadu_ps(p[1] + offset));
}
STATEMIX_INLINE void store_groups(float* const* p, int64_t offset, V v) {
  _mm256_storeu_ps(p[0] + offset, (__m256)group_of<0>(v));
  _mm256_storeu_ps(p[1] + offset, (__m256)group_of<1>(v));
}
STATEMIX_INLINE V load_groups(const uint16_t* const* p, int64_t offset) {
  const __m256i a = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i*)(p[0] + offset)));
  const __m256i b = _mm256_inserti128_si256(a, _mm_loadu_si128((const __m128i*)(p[1] + offset)), 1);
  return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16);
}
STATEMIX_INLINE void store_groups(uint16_t* const* p, int64_t offset, V v) {
  const __m256i b = (__m256i)to_bfloat16(v);
  _mm_storeu_si128((__m128i*)(p[0] + offset), _mm256_castsi256_si128(b));
  _mm_storeu_si128((__m128i*)(p[1] + offset), _mm256_extracti128_si256(b, 1));
}

// Interleaves single entries, or pairs of entries, of two vectors, within each of their halves.
STATEMIX_INLINE V singles_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
STATEMIX_INLINE V singles_high(V a, V b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
STATEMIX_INLINE V pairs_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
STATEMIX_INLINE V pairs_high(V a, V b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

// Two entries of each of sixteen items to two vectors, and the inverse.
STATEMIX_INLINE void two_to_lanes(const Items<const float>& src, V* dst) {
  const V a = load(src.group[0]), b = load(src.group[1]);
  dst[0] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  dst[1] = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
STATEMIX_INLINE void two_from_lanes(const V* v, const Items<float>& dst) {
  store(dst.group[0], __builtin_shufflevector(v[0], v[1], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                              6, 22, 7, 23));
  store(dst.group[1], __builtin_shufflevector(v[0], v[1], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                              29, 14, 30, 15, 31));
}

#elif STATEMIX_LANES == 8

template <int>
STATEMIX_INLINE Group group_of(V v) {
  return v;
}
template <class T>
STATEMIX_INLINE V load_groups(const T* const* p, int64_t offset) {
  return load(p[0] + offset);
}
template <class T>
STATEMIX_INLINE void store_groups(T* const* p, int64_t offset, V v) {
  store(p[0] + offset, v);
}

// Interleaves single entries, or pairs of entries, of two vectors, within each of their halves.
STATEMIX_INLINE V singles_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
}
STATEMIX_INLINE V singles_high(V a, V b) {
  return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}
STATEMIX_INLINE V pairs_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
}
STATEMIX_INLINE V pairs_high(V a, V b) {
  return __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}

// Two entries of each of eight items to two vectors, and the inverse.
STATEMIX_INLINE void two_to_lanes(const Items<const float>& src, V* dst) {
  const V a = load(src.group[0]), b = load(src.group[0] + LANES);
  dst[0] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
  dst[1] = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}
STATEMIX_INLINE void two_from_lanes(const V* v, const Items<float>& dst) {
  store(dst.group[0], __builtin_shufflevector(v[0], v[1], 0, 8, 1, 9, 2, 10, 3, 11));
  store(dst.group[0] + LANES, __builtin_shufflevector(v[0], v[1], 4, 12, 5, 13, 6, 14, 7, 15));
}

#endif

// The vector of the groups part(0), and part(1) if there are two.
template <int COUNT, class Part>
STATEMIX_INLINE V both(Part part) {
  if constexpr (COUNT == 2)
    return join(part(0), part(1));
  else
    return part(0);
}

// Transposes the 4 × 4 parts of four vectors. They hold items i and i + 4 of each group side by side
// before, and one entry of all items after; applied again, it is the inverse.
STATEMIX_INLINE void transpose_parts(V* r) {
  const V a = singles_low(r[0], r[1]), b = singles_high(r[0], r[1]);
  const V c = singles_low(r[2], r[3]), d = singles_high(r[2], r[3]);
  r[0] = pairs_low(a, c);
  r[1] = pairs_high(a, c);
  r[2] = pairs_low(b, d);
  r[3] = pairs_high(b, d);
}

// Four entries, from entry c on, of items i and i + 4 of each group, and the inverse.
template <int COUNT>
STATEMIX_INLINE V four_entries(const Items<const float>& src, int i, int c) {
  const int64_t one = i * COUNT + c, other = (i + 4) * COUNT + c;
  const auto part = [&](int w) {
    return join(load_half(src.group[w] + one), load_half(src.group[w] + other));
  };
  return both<WIDTH>(part);
}
template <int COUNT>
STATEMIX_INLINE void store_four(const Items<float>& dst, int i, int c, V v) {
  const int64_t one = i * COUNT + c, other = (i + 4) * COUNT + c;
  const auto put = [&](float* to, Group part) {
    store_half(to + one, low(part));
    store_half(to + other, high(part));
  };
  put(dst.group[0], group_of<0>(v));
  if (WIDTH == 2) put(dst.group[WIDTH - 1], group_of<WIDTH - 1>(v));
}

// Consecutive vectors, of which each group is elsewhere in memory, to read and to write.
struct Source {
  const float* of[WIDTH];
  __attribute__((always_inline)) V operator[](int64_t j) const { return load_groups(of, j * GROUP); }
  __attribute__((always_inline)) Source from(int64_t j) const {
    Source later = *this;
    for (int w = 0; w < WIDTH; ++w) later.of[w] += j * GROUP;
    return later;
  }
};
struct Sink {
  float* of[WIDTH];
  __attribute__((always_inline)) void put(int64_t j, V v) const { store_groups(of, j * GROUP, v); }
  __attribute__((always_inline)) void add(int64_t j, V v) const {
    const float* at[WIDTH];
    for (int w = 0; w < WIDTH; ++w) at[w] = of[w];
    put(j, load_groups(at, j * GROUP) + v);
  }
  __attribute__((always_inline)) Sink from(int64_t j) const {
    Sink later = *this;
    for (int w = 0; w < WIDTH; ++w) later.of[w] += j * GROUP;
    return later;
  }
};
STATEMIX_INLINE void put(const Sink& dst, int64_t j, V v) { dst.put(j, v); }
STATEMIX_INLINE void put(V* dst, int64_t j, V v) { dst[j] = v; }

// Converts items of three entries. Four entries of each item are read; the last item of a group is
// read from one entry earlier.
template <class Dst>
STATEMIX_INLINE void three_to_lanes(const Items<const float>& src, Dst dst) {
  V r[4];
  for (int i = 0; i < 3; ++i) r[i] = four_entries<3>(src, i, 0);
  r[3] = both<WIDTH>([&](int w) {
    const Half end = load_half(src.group[w] + 20);
    return join(load_half(src.group[w] + 9), __builtin_shufflevector(end, end, 1, 2, 3, 3));
  });
  transpose_parts(r);
  for (int i = 0; i < 3; ++i) put(dst, i, r[i]);
}

// The inverse. Four entries of each item are written, the next item overwrites the excess entry, and
// only three entries of the last item of a group are written.
template <class Src>
STATEMIX_INLINE void three_from_lanes(Src src, const Items<float>& dst) {
  V r[4] = {src[0], src[1], src[2], src[2]};
  transpose_parts(r);
  for (int w = 0; w < WIDTH; ++w) {
    Half item[GROUP];
    for (int i = 0; i < 4; ++i) {
      const Group both = w == 0 ? group_of<0>(r[i]) : group_of<WIDTH - 1>(r[i]);
      item[i] = low(both);
      item[i + 4] = high(both);
    }
    for (int i = 0; i < GROUP - 1; ++i) store_half(dst.group[w] + 3 * i, item[i]);
    std::memcpy(dst.group[w] + 21, &item[7], 3 * sizeof(float));
  }
}

// Converts the items of complete groups, of COUNT entries each, to COUNT vectors, four entries at a
// time. If COUNT is not a multiple of four, the last four entries overlap the previous ones.
template <int COUNT, class Dst>
STATEMIX_INLINE void all_to_lanes(const Items<const float>& src, Dst dst) {
  if constexpr (COUNT == 1) {
    put(dst, 0, load_groups(src.group, 0));
  } else if constexpr (COUNT == 2) {
    V two[2];
    two_to_lanes(src, two);
    put(dst, 0, two[0]);
    put(dst, 1, two[1]);
  } else if constexpr (COUNT == 3) {
    three_to_lanes(src, dst);
  } else {
    for (int at = 0; at < COUNT; at += 4) {
      const int c = at + 4 <= COUNT ? at : COUNT - 4;
      V r[4];
      for (int i = 0; i < 4; ++i) r[i] = four_entries<COUNT>(src, i, c);
      transpose_parts(r);
      for (int i = 0; i < 4; ++i) put(dst, c + i, r[i]);
    }
  }
}

// The inverse.
template <int COUNT, class Src>
STATEMIX_INLINE void all_from_lanes(Src src, const Items<float>& dst) {
  if constexpr (COUNT == 1) {
    store_groups(dst.group, 0, src[0]);
  } else if constexpr (COUNT == 2) {
    const V two[] = {src[0], src[1]};
    two_from_lanes(two, dst);
  } else if constexpr (COUNT == 3) {
    three_from_lanes(src, dst);
  } else {
    for (int at = 0; at < COUNT; at += 4) {
      const int c = at + 4 <= COUNT ? at : COUNT - 4;
      V r[4];
      for (int i = 0; i < 4; ++i) r[i] = src[c + i];
      transpose_parts(r);
      for (int i = 0; i < 4; ++i) store_four<COUNT>(dst, i, c, r[i]);
    }
  }
}

// The same for any number of entries and items; lanes of missing items become zero. It is a function
// call, because it is rare and inlined code is large.
template <class Dst>
static __attribute__((noinline)) void some_to_lanes(const Items<const float>& src, int count,
                                                    Dst dst) {
  for (int c = 0; c < count; ++c) {
    float lanes[LANES] = {};
    for (int w = 0; w < WIDTH; ++w)
      for (int64_t i = 0; i < src.present[w]; ++i)
        lanes[w * GROUP + i] = src.group[w][i * count + c];
    put(dst, c, load(lanes));
  }
}
template <class Src>
static __attribute__((noinline)) void some_from_lanes(Src src, int count, const Items<float>& dst) {
  for (int c = 0; c < count; ++c) {
    float lanes[LANES];
    store(lanes, src[c]);
    for (int w = 0; w < WIDTH; ++w)
      for (int64_t i = 0; i < dst.present[w]; ++i)
        dst.group[w][i * count + c] = lanes[w * GROUP + i];
  }
}

// Converts items of `count` entries to `count` vectors, and back. COUNT is `count` if it is known at
// compile time, else 0.
template <int COUNT, class Dst>
STATEMIX_INLINE void to_lanes_here(const Items<const float>& src, int count, Dst dst) {
  if constexpr (COUNT > 0) {
    if (src.complete()) return all_to_lanes<COUNT>(src, dst);
  }
  some_to_lanes(src, count, dst);
}
template <int COUNT, class Src>
STATEMIX_INLINE void from_lanes_here(Src src, int count, const Items<float>& dst) {
  if constexpr (COUNT > 0) {
    if (dst.complete()) return all_from_lanes<COUNT>(src, dst);
  }
  some_from_lanes(src, count, dst);
}

// Long conversions are function calls, and short ones are inlined, which keeps the code small.
template <int COUNT, class Dst>
static __attribute__((noinline)) void to_lanes_there(const Items<const float>& src, int count,
                                                     Dst dst) {
  to_lanes_here<COUNT>(src, count, dst);
}
template <int COUNT, class Src>
static __attribute__((noinline)) void from_lanes_there(Src src, int count,
                                                       const Items<float>& dst) {
  from_lanes_here<COUNT>(src, count, dst);
}
template <int COUNT, class Dst>
STATEMIX_INLINE void to_lanes(const Items<const float>& src, int count, Dst dst) {
  if constexpr (COUNT > 0 && COUNT <= 8)
    to_lanes_here<COUNT>(src, count, dst);
  else
    to_lanes_there<COUNT>(src, count, dst);
}
template <int COUNT, class Src>
STATEMIX_INLINE void from_lanes(Src src, int count, const Items<float>& dst) {
  if constexpr (COUNT > 0 && COUNT <= 8)
    from_lanes_here<COUNT>(src, count, dst);
  else
    from_lanes_there<COUNT>(src, count, dst);
}

}  // namespace statemix
