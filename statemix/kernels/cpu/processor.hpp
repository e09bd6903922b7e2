// The instruction sets of an x86 processor that the operating system also supports.
//
// The compilers' own test, __builtin_cpu_supports, needs a run-time library that Zig lacks.

#pragma once

#include <cpuid.h>

#include <cstdint>

namespace statemix {

constexpr uint32_t XSAVE_AVX = 0x06, XSAVE_AVX512 = 0xe6;  // registers that a task switch saves

// True if the processor has the features, and the system saves the registers they use.
inline bool has_features(uint32_t leaf7_ebx, uint32_t saved) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const uint32_t first = bit_FMA | bit_AVX | bit_OSXSAVE;
  if ((c & first) != first) return false;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & saved) != saved) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & leaf7_ebx) == leaf7_ebx;
}

inline bool has_avx2() { return has_features(bit_AVX2, XSAVE_AVX); }

inline bool has_avx512() {
  return has_features(bit_AVX2 | bit_AVX512F | bit_AVX512VL | bit_AVX512DQ, XSAVE_AVX512);
}

// True if the processor converts float32 to bfloat16. The registers are those of AVX-512.
inline bool has_bfloat16() {
  unsigned a, b, c, d;
  return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

}  // namespace statemix
