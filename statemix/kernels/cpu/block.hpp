// The block recurrence and its adjoint for one sequence and a range of groups.
//
//   forward    h_i = Σ_j w_ij h_j[t-1] + w_im v_i
//   backward   λ_i = dh_i + k_i,   p_ij = w_ij λ_i,   k_j[t] = Σ_i p_ij,
//              dg_ij = q_ij λ_i (u_j − s_ij h_i),   dv_i = p_im
//
// Time is the outer loop and groups the inner one, so memory is walked in order; states stay in cache, in lanes.

#pragma once

#include "gates.hpp"
#include "kernels.hpp"

// Each instruction set compiles these templates anew: an unnamed namespace keeps the linker from merging them.
namespace statemix {
namespace {

enum class Kind { given, softmax, other };

// How many of a group's eight lanes hold one of the n blocks.
STATEMIX_INLINE int64_t lanes_of(int64_t n, int64_t group) { return n - group * LANES < LANES ? n - group * LANES : LANES; }

// A group's state of one sequence, from (S, n, m), or zero.
template <int M>
STATEMIX_INLINE void load_state(const float* states, int64_t sequence, int64_t n, int64_t g, int m, V* out) {
  if (states)
    to_lanes<M>(states + (sequence * n + g * LANES) * m, m, lanes_of(n, g), out);
  else
    for (int i = 0; i < m; ++i) out[i] = V{};
}

template <int M, Kind KIND>
struct Block {
  static constexpr int C = M ? M + (KIND != Kind::given) : 0;  // columns, where known
  static constexpr int ROWS = M ? M : STATEMIX_MAX_SIZE, COLUMNS = M ? (C ? C : 1) : STATEMIX_MAX_SIZE + 1;

  static void forward(const statemix_scan& a, int64_t sequence, Span span, int64_t first_group, int64_t last_group, V* scratch) {
    const int m = M ? M : a.m, c = KIND == Kind::given ? m : m + 1;
    V* state = scratch;                                   // (groups, m)
    V* X = state + (last_group - first_group) * (int64_t)m;  // (m, c)
    for (int64_t g = first_group; g < last_group; ++g)
      load_state<M>(a.h0, sequence, a.n, g, m, state + (g - first_group) * m);
    for (int64_t step = 0; step < span.length(); ++step) {
      const int64_t t = span.at(step);
      const bool real = !a.mask || a.mask[t];
      for (int64_t g = first_group; g < last_group; ++g) {
        const int64_t block = t * a.n + g * LANES, rows = lanes_of(a.n, g);
        V* h = state + (g - first_group) * m;
        if (real) {
          V x[ROWS];
          to_lanes<C * M>(a.X + block * m * c, m * c, rows, X);
          to_lanes<M>(a.x + block * m, m, rows, x);
          step_forward(a.gate, m, c, X, x, h);
        }
        from_lanes<M>(h, m, rows, a.h + block * m);
      }
    }
    for (int64_t g = first_group; g < last_group; ++g)
      from_lanes<M>(state + (g - first_group) * m, m, lanes_of(a.n, g), a.final + (sequence * a.n + g * LANES) * m);
  }

  static void backward(const statemix_scan_gradient& a, int64_t sequence, Span span, int64_t first_group, int64_t last_group, V* scratch) {
    const statemix_scan& f = a.scan;
    const int m = M ? M : f.m, c = KIND == Kind::given ? m : m + 1;
    const int64_t groups = last_group - first_group;
    V* k_all = scratch;                // (groups, m): gradient of the state that enters the next step
    V* h_all = k_all + groups * m;     // (groups, m): h of this step
    V* X = h_all + groups * m;         // (m, c)
    V* dX = X + (int64_t)m * c;        // (m, c)
    const int64_t L = span.length();
    for (int64_t g = first_group; g < last_group; ++g) {
      load_state<M>(a.dfinal, sequence, f.n, g, m, k_all + (g - first_group) * m);
      if (L) to_lanes<M>(f.h + (span.at(L - 1) * f.n + g * LANES) * m, m, lanes_of(f.n, g), h_all + (g - first_group) * m);
    }
    for (int64_t step = L - 1; step >= 0; --step) {
      const int64_t t = span.at(step);
      const bool real = !f.mask || f.mask[t];
      for (int64_t g = first_group; g < last_group; ++g) {
        const int64_t block = t * f.n + g * LANES, rows = lanes_of(f.n, g);
        V *k = k_all + (g - first_group) * m, *h = h_all + (g - first_group) * m;
        V previous[ROWS], lambda[ROWS], x[ROWS];
        if (step > 0)
          to_lanes<M>(f.h + (span.at(step - 1) * f.n + g * LANES) * m, m, rows, previous);
        else
          load_state<M>(f.h0, sequence, f.n, g, m, previous);
        to_lanes<M>(a.dh + block * m, m, rows, lambda);
        for (int i = 0; i < m; ++i) lambda[i] += k[i];
        if (real) {
          to_lanes<C * M>(f.X + block * m * c, m * c, rows, X);
          if (KIND != Kind::given) to_lanes<M>(f.x + block * m, m, rows, x);
          step_backward(f.gate, m, c, X, x, previous, h, lambda, k, dX);
          from_lanes<C * M>(dX, m * c, rows, a.dX + block * m * c);
          from_lanes<M>(x, m, rows, a.dx + block * m);
        } else {
          for (int i = 0; i < m; ++i) k[i] = lambda[i];
          std::memset(a.dX + block * m * c, 0, sizeof(float) * rows * m * c);
          std::memset(a.dx + block * m, 0, sizeof(float) * rows * m);
        }
        for (int i = 0; i < m; ++i) h[i] = previous[i];
      }
    }
    for (int64_t g = first_group; g < last_group; ++g)
      from_lanes<M>(k_all + (g - first_group) * m, m, lanes_of(f.n, g), a.dh0 + (sequence * f.n + g * LANES) * m);
  }

 private:
  // X is overwritten.
  STATEMIX_INLINE void step_forward(int32_t gate, int m, int c, V* X, const V* x, V* h) {
    V sum[ROWS], Z[ROWS];
    if (KIND == Kind::softmax) softmax_numerators(X, m, c, Z);
    if (KIND == Kind::other)
      for (int i = 0; i < m; ++i) row_weights(gate, X + (int64_t)i * c, c, X + (int64_t)i * c, nullptr, nullptr);
    for (int i = 0; i < m; ++i) sum[i] = X[i * c] * h[0];
    for (int j = 1; j < m; ++j)
      for (int i = 0; i < m; ++i) sum[i] += X[i * c + j] * h[j];
    // The input is added last: it is often larger than the products, and each sum would round at its size.
    for (int i = 0; i < m; ++i) {
      sum[i] += KIND == Kind::given ? x[i] : X[i * c + m] * x[i];
      h[i] = KIND == Kind::softmax ? sum[i] / Z[i] : sum[i];
    }
  }

  // On return k holds the gradient of the state that entered the step, x that of the driver.  X is overwritten.
  STATEMIX_INLINE void step_backward(int32_t gate, int m, int c, V* X, V* x, const V* previous, const V* h, const V* lambda, V* k, V* dX) {
    V Z[ROWS];
    if (KIND == Kind::softmax) softmax_numerators(X, m, c, Z);
    for (int j = 0; j < m; ++j) k[j] = V{};
    for (int i = 0; i < m; ++i) {
      V *row = X + (int64_t)i * c, *drow = dX + (int64_t)i * c;
      if (KIND == Kind::given) {
        for (int j = 0; j < m; ++j) {
          k[j] += row[j] * lambda[i];
          drow[j] = lambda[i] * previous[j];
        }
        x[i] = lambda[i];
      } else if (KIND == Kind::softmax) {
        const V l = lambda[i] / Z[i];
        for (int j = 0; j < m; ++j) {
          const V p = row[j] * l;
          k[j] += p;
          drow[j] = p * (previous[j] - h[i]);
        }
        const V p = row[m] * l;
        drow[m] = p * (x[i] - h[i]);
        x[i] = p;
      } else {
        V q[COLUMNS], s[COLUMNS];
        row_weights(gate, row, c, row, q, s);
        for (int j = 0; j < m; ++j) {
          k[j] += row[j] * lambda[i];
          drow[j] = q[j] * lambda[i] * (previous[j] - s[j] * h[i]);
        }
        drow[m] = q[m] * lambda[i] * (x[i] - s[m] * h[i]);
        x[i] = row[m] * lambda[i];
      }
    }
  }
};

}  // namespace
}  // namespace statemix
