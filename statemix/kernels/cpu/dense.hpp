// Functions of vectors and rows that are no scans.

#pragma once

#include <cstdint>

namespace statemix {

// The functions of dense.cpp for each instruction set.
struct Dense {
  void (*multiply)(const float* W, const float* c, const float* x, float* y, int64_t B,
                   int64_t rows, int64_t d);
  void (*rms_norm)(const float* w, float epsilon, const float* x, float* y, int64_t B, int64_t d);
  void (*gated_activation)(const void* a, const void* b, void* y, int64_t count, bool half);
  void (*gated_activation_gradient)(const void* a, const void* b, const void* dy, void* da,
                                    void* db, int64_t count, bool half);
  double (*cross_entropy)(void* logits, int64_t target, int64_t classes, int64_t ignored,
                          bool gradient, bool half);
};

Dense dense_generic();
Dense dense_avx2();
Dense dense_avx512();

}  // namespace statemix
