// The kernels of each instruction set, chosen at run time by size and gate function.

#pragma once

#include "scan.hpp"

namespace statemix {

// One sequence on the flattened time axis, in the order of the scan.
struct Span {
  int64_t start, stop;
  bool reverse;
  const int64_t* real;  // positions of the real steps in scan order; null if all are real
  int64_t real_count;
  int64_t length() const { return stop - start; }
  int64_t at(int64_t step) const { return reverse ? stop - 1 - step : start + step; }
};

// Scans work on `last_group - first_group` groups of eight blocks.
struct Functions {
  void (*forward)(const statemix_scan&, int64_t sequence, Span, int64_t first_group,
                  int64_t last_group, void* scratch);
  void (*backward)(const statemix_scan_gradient&, int64_t sequence, Span, int64_t first_group,
                   int64_t last_group, void* scratch);
  void (*move)(const float* src, int64_t reads, float* dst, int64_t writes, int64_t steps);
  void (*table_weights)(const statemix_table&, int64_t first_row, int64_t last_row);
  void (*table_gradient)(const statemix_table&, int64_t first_row, int64_t last_row);
};

Functions target_generic(bool block, int32_t m, int32_t gate);
Functions target_avx2(bool block, int32_t m, int32_t gate);
Functions target_avx512(bool block, int32_t m, int32_t gate);

}  // namespace statemix
