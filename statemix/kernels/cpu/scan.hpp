// The C interface of the CPU kernels: one structure for the scan, and one for its gradient.
//
// Tensors are contiguous, in one of two orders. States, and everything without a flag in `half`, are
// float32.
//
//   logical   X is (B, T, n, m, c) for blocks and (B, T, n, c) for channels, with c = m + 1 raw
//             gates (input gate last) or c = m given coefficients. The driver x and the outputs h
//             are (B, T, n, m) or (B, T, n).
//   lanes     X is (B, T, G, rows, c + 1, 8), with G = ceil(n / 8), and rows = m for blocks, 1 for
//             channels: eight blocks side by side, the c gates of each row (c = m for odds)
//             followed by its driver. h is (B, T, G, m, 8), the full state for channels too. x and
//             dx are unused. With `rows`, X is a table (V, G, rows, c + 1, 8), and step t reads its
//             row rows[t]. The gradient is then added to the rows of dX, which the caller
//             initialises.
//
// States are (S, n, m) in both orders.

#pragma once

#include <cstdint>

constexpr int STATEMIX_MAX_SIZE = 256;  // the largest m

// Tensors in bfloat16; a kernel converts each tile when it reads or writes it.
enum statemix_half : int64_t {
  STATEMIX_HALF_X = 1,
  STATEMIX_HALF_DRIVER = 2,  // x
  STATEMIX_HALF_H = 4,
  STATEMIX_HALF_DH = 8,
  STATEMIX_HALF_DX = 16,  // not with `rows`
  STATEMIX_HALF_DDRIVER = 32,  // dx
};

enum statemix_gate : int32_t {
  STATEMIX_GIVEN = 0,  // X contains coefficients, and x is added without a factor
  STATEMIX_SOFTMAX = 1,
  STATEMIX_SIGMOID = 2,
  STATEMIX_RELU = 3,
  STATEMIX_TANH = 4,
  STATEMIX_LINEAR = 5,
  STATEMIX_SILU = 6,
  STATEMIX_NONE = 7,  // the raw gates are the weights
  STATEMIX_ODDS = 8,  // softmax of m stored gates and an input gate of zero; only in lane order
  STATEMIX_HARDMAX = 9,  // copies the entry with the largest gate; its Jacobian is that of softmax
  STATEMIX_WEIGHTS = 10,  // coefficients and drivers of `statemix_table`; only with `rows`
};

struct statemix_scan {
  int64_t B, T, n, S;
  int32_t m, gate, reverse, threads;
  int64_t lanes;          // 0 for the logical order, 1 for lane order
  int64_t half;           // flags of statemix_half
  const int64_t* bounds;  // S + 1 positions on the flattened (B · T) time axis
  const uint8_t* mask;    // (B, T), 0 where a step is the identity; null if all steps are real
  const int64_t* rows;    // (B, T), only in lane order; null if step t reads row t
  const void *X, *x;
  const float* h0;
  void* h;
  float* final;
};

// A table in lane order, of `rows` rows with m odds and a driver each. `weights` are coefficients and
// drivers for a scan or, in the gradient, what the scan added to dX, which is replaced.
struct statemix_table {
  int64_t rows;
  int32_t m, half, threads;
  const void* X;
  float* weights;
};

// One step of a layer for decoding, y = W_o h with h the next state. With norms, it is a residual
// block: x + y, and after it an MLP W_2 (silu(W_1 z) ⊙ W_3 z), where layer and MLP read
// normalised inputs. Everything is float32; states are (B, n, m).
struct statemix_step {
  int64_t B, d, n, inner;  // the width of the MLP
  int32_t m, gate;
  float epsilon, mlp_epsilon;
  const float *x, *norm, *W_g, *c, *W_v, *W_o, *h0;  // norm is null for a layer alone
  const float *mlp_norm, *W_1, *W_3, *W_2;
  float *h, *y;
};

struct statemix_scan_gradient {
  statemix_scan scan;  // h is an input, and final is unused
  const void* dh;
  const float* dfinal;
  void *dX, *dx;
  float* dh0;
};
