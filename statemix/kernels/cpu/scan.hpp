// The C interface of the CPU kernels: one structure for a scan forward, one for its gradient.
//
// Tensors are contiguous float32, in one of two orders.
//
//   logical   X is (B, T, n, m, c) for blocks and (B, T, n, c) for channels, c = m + 1 raw gates (input gate last) or
//             c = m given coefficients or odds; the driver x and the outputs h are (B, T, n, m) or (B, T, n)
//   lanes     X is (B, T, G, rows, c + 1, 8), G = ceil(n / 8), rows = m for blocks and 1 for channels: eight blocks side
//             by side, each row's gates and then its driver; h is (B, T, G, m, 8), the whole state also of channels.
//             x and dx are not used.  With `rows`, X is a table (V, G, rows, c + 1, 8), and step t reads its row rows[t];
//             the gradient then adds up in the rows of dX, which is not cleared before.
//
// States are (S, n, m) in both.

#pragma once

#include <cstdint>

constexpr int STATEMIX_MAX_SIZE = 256;  // the largest m

enum statemix_gate : int32_t {
  STATEMIX_GIVEN = 0,  // X holds coefficients, x is added as it is
  STATEMIX_SOFTMAX = 1,
  STATEMIX_SIGMOID = 2,
  STATEMIX_RELU = 3,
  STATEMIX_TANH = 4,
  STATEMIX_LINEAR = 5,
  STATEMIX_SILU = 6,
  STATEMIX_NONE = 7,  // raw gates as they are, the last one times x
  STATEMIX_ODDS = 8,  // softmax of m raw gates that are stored and one, the input's, that is zero; in lanes only
};

struct statemix_scan {
  int64_t B, T, n, S;
  int32_t m, gate, reverse, threads;
  int64_t lanes;          // which of the two orders
  const int64_t* bounds;  // S + 1 positions on the flattened (B · T) time axis
  const uint8_t* mask;    // (B, T), 0 where a step is the identity; null if every step is real
  const int64_t* rows;    // (B, T), in lanes only; null if every step has a row of its own
  const float *X, *x, *h0;
  float *h, *final;
};

struct statemix_scan_gradient {
  statemix_scan scan;  // h is read here, final is not used
  const float *dh, *dfinal;
  float *dX, *dx, *dh0;
};
