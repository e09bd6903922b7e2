// The higher-order recurrence and its adjoint for one sequence and a range of groups, O(m) a step.
//
//   forward    h = Σ_j w_j s_j + w_m v,   s ← (h, s_1, .., s_{m-1})
//   backward   λ = dh + k_1,   k_j ← w_j λ + k_{j+1},   dg_j = q_j λ (u_j − s_j h),   dv = w_m λ
//
// u are the m outputs before the step, read back from h: lags count real steps, and reach into h0 at the start.

#pragma once

#include "block.hpp"

namespace statemix {
namespace {

template <int M, Kind KIND>
struct Companion {
  static constexpr int C = M ? M + (KIND != Kind::given) : 0;
  static constexpr int ROWS = M ? M : STATEMIX_MAX_SIZE, COLUMNS = M ? C : STATEMIX_MAX_SIZE + 1;

  static void forward(const statemix_scan& a, int64_t sequence, Span span, int64_t first_group, int64_t last_group, V* scratch) {
    const int m = M ? M : a.m, c = KIND == Kind::given ? m : m + 1;
    V* state = scratch;  // (groups, m)
    for (int64_t g = first_group; g < last_group; ++g) load_state<M>(a.h0, sequence, a.n, g, m, state + (g - first_group) * m);
    for (int64_t step = 0; step < span.length(); ++step) {
      const int64_t t = span.at(step);
      const bool real = !a.mask || a.mask[t];
      for (int64_t g = first_group; g < last_group; ++g) {
        const int64_t channel = t * a.n + g * LANES, rows = lanes_of(a.n, g);
        V* s = state + (g - first_group) * m;
        if (real) {
          V w[COLUMNS], x;
          to_lanes<C>(a.X + channel * c, c, rows, w);
          to_lanes<1>(a.x + channel, 1, rows, &x);
          normalise(a.gate, w, c, nullptr, nullptr);
          V h = w[0] * s[0];
          for (int j = 1; j < m; ++j) h += w[j] * s[j];
          h += KIND == Kind::given ? x : w[m] * x;
          for (int j = m - 1; j > 0; --j) s[j] = s[j - 1];
          s[0] = h;
        }
        from_lanes<1>(s, 1, rows, a.h + channel);
      }
    }
    for (int64_t g = first_group; g < last_group; ++g)
      from_lanes<M>(state + (g - first_group) * m, m, lanes_of(a.n, g), a.final + (sequence * a.n + g * LANES) * m);
  }

  static void backward(const statemix_scan_gradient& a, int64_t sequence, Span span, int64_t first_group, int64_t last_group, V* scratch) {
    const statemix_scan& f = a.scan;
    const int m = M ? M : f.m, c = KIND == Kind::given ? m : m + 1;
    const int64_t groups = last_group - first_group, L = span.length();
    V* k_all = scratch;               // (groups, m): gradient of the state that enters the next step
    V* start_all = k_all + groups * m;  // (groups, m): h0
    for (int64_t g = first_group; g < last_group; ++g) {
      load_state<M>(a.dfinal, sequence, f.n, g, m, k_all + (g - first_group) * m);
      load_state<M>(f.h0, sequence, f.n, g, m, start_all + (g - first_group) * m);
    }
    int64_t rank = span.real ? span.real_count : L;
    for (int64_t step = L - 1; step >= 0; --step) {
      const int64_t t = span.at(step);
      const bool real = !f.mask || f.mask[t];
      if (real) --rank;
      for (int64_t g = first_group; g < last_group; ++g) {
        const int64_t channel = t * f.n + g * LANES, rows = lanes_of(f.n, g);
        V* k = k_all + (g - first_group) * m;
        V dh;
        to_lanes<1>(a.dh + channel, 1, rows, &dh);
        const V lambda = k[0] + dh;
        if (!real) {
          k[0] = lambda;
          std::memset(a.dX + channel * c, 0, sizeof(float) * rows * c);
          std::memset(a.dx + channel, 0, sizeof(float) * rows);
          continue;
        }
        V u[ROWS];
        for (int j = 0; j < m; ++j) {
          const int64_t back = rank - 1 - j;
          if (back >= 0)
            to_lanes<1>(f.h + (span.real ? span.real[back] : span.at(back)) * f.n + g * LANES, 1, rows, &u[j]);
          else
            u[j] = start_all[(g - first_group) * m + (j - rank)];
        }
        step_backward(f, a, m, c, channel, rows, lambda, u, k);
      }
    }
    for (int64_t g = first_group; g < last_group; ++g)
      from_lanes<M>(k_all + (g - first_group) * m, m, lanes_of(f.n, g), a.dh0 + (sequence * f.n + g * LANES) * m);
  }

 private:
  // Raw gates to weights, in place.
  STATEMIX_INLINE void normalise(int32_t gate, V* w, int c, V* q, V* s) {
    if (KIND == Kind::softmax) {
      V Z;
      softmax_numerators(w, 1, c, &Z);
      const V scale = 1.0f / Z;
      for (int j = 0; j < c; ++j) w[j] *= scale;
    }
    if (KIND == Kind::other) row_weights(gate, w, c, w, q, s);
  }

  STATEMIX_INLINE void step_backward(const statemix_scan& f, const statemix_scan_gradient& a, int m, int c, int64_t channel, int64_t rows,
                                   V lambda, const V* u, V* k) {
    V w[COLUMNS], q[COLUMNS], s[COLUMNS], x, h;
    to_lanes<C>(f.X + channel * c, c, rows, w);
    normalise(f.gate, w, c, q, s);
    if (KIND == Kind::given) {
      for (int j = 0; j < m; ++j) q[j] = lambda * u[j];
      x = lambda;
    } else {
      to_lanes<1>(f.x + channel, 1, rows, &x);
      to_lanes<1>(f.h + channel, 1, rows, &h);
      for (int j = 0; j < c; ++j) {
        const V u_j = j < m ? u[j] : x;
        q[j] = KIND == Kind::softmax ? w[j] * lambda * (u_j - h) : q[j] * lambda * (u_j - s[j] * h);
      }
      x = w[m] * lambda;
    }
    for (int j = 0; j < m; ++j) k[j] = w[j] * lambda + (j + 1 < m ? k[j + 1] : V{});
    from_lanes<C>(q, c, rows, a.dX + channel * c);
    from_lanes<1>(&x, 1, rows, a.dx + channel);
  }
};

}  // namespace
}  // namespace statemix
