// The weights of one row of raw gates, and the factors of its gradient.
//
//   w_j = f(g_j) / Z        dg_j = q_j λ (u_j − s_j h),    h = Σ_j w_j u_j
//
// The row's dot product in the Jacobian equals h, so the gradient needs no additional sum. The
// exception is hardmax: its h is a single entry u_j, but its Jacobian is that of softmax.

#pragma once

#include "lanes.hpp"
#include "scan.hpp"

namespace statemix {

constexpr int BATCH = 3;  // exponentials that are interleaved
constexpr float RELU_EPSILON = 1e-3f, SIGNED_FLOOR = 1e-3f;

// Replaces e_j = g_j − max(g) by exp(e_j), and computes their sum Z: softmax without the division.
STATEMIX_INLINE void exponentials_and_sum(V* e, int c, V* Z) {
  if (c == 2) {  // one of the two is zero, so one exponential suffices; NaN propagates to the sum
    const V other = exponential(e[0] + e[1]);
    const VI first = e[0] < e[1];
    e[0] = select(first, other, splat(1.0f));
    e[1] = select(first, splat(1.0f), other);
    *Z = 1.0f + other;
    return;
  }
  const int rest = c % BATCH;
  for (int j = 0; j + BATCH <= c; j += BATCH) exponentials<BATCH>(e + j);
  if (rest == 1) exponentials<1>(e + c - 1);
  if (rest == 2) exponentials<2>(e + c - 2);
  V sum = e[0];
  for (int j = 1; j < c; ++j) sum += e[j];
  *Z = sum;
}

// The largest of c gates. A NaN may be lost, but not in the differences of gates from the result.
STATEMIX_INLINE V largest(const Source& g, int c) {
  V top = g[0];
  for (int j = 1; j < c; ++j) top = larger(top, g[j]);
  return top;
}

// e_j = exp(g_j − top), with top = max(g), and their sum Z.
STATEMIX_INLINE void softmax_numerators(const Source& g, int c, V top, V* e, V* Z) {
  for (int j = 0; j < c; ++j) e[j] = g[j] - top;
  exponentials_and_sum(e, c, Z);
}
STATEMIX_INLINE void softmax_numerators(const Source& g, int c, V* e, V* Z) {
  softmax_numerators(g, c, largest(g, c), e, Z);
}

// The same for m stored gates and the input gate, which comes last, is zero and is not stored.
STATEMIX_INLINE void odds_numerators(const Source& g, int m, V* e, V* Z) {
  V top{};
  for (int j = 0; j < m; ++j) top = larger(top, g[j]);
  for (int j = 0; j < m; ++j) e[j] = g[j] - top;
  e[m] = -top;
  exponentials_and_sum(e, m + 1, Z);
}

// Hardmax: the entry of (u_0 .. u_{m-1}, v) with the largest gate, the first among equals. NaN if
// the softmax of the gates is NaN. Entries that are not chosen have no effect, even if NaN.
STATEMIX_INLINE V chosen_entry(const Source& g, int m, const V* u, V v) {
  const V top = largest(g, m + 1);
  V chosen = v, below = g[m] - top;  // the sum of g_j − top, which preserves NaN
  for (int j = m - 1; j >= 0; --j) {
    chosen = select(g[j] == top, u[j], chosen);
    below += g[j] - top;
  }
  return (V)((VI)chosen | (below != below));
}

// The gradients of hardmax: dg_j = w_j λ (u_j − Σ_l w_l u_l) with the softmax w, and du_j, which is
// λ for the chosen entry and zero for others. Returns a mask of lanes where the softmax is NaN.
STATEMIX_INLINE VI hardmax_gradients(const Source& g, int m, const U* u, V v, V lambda,
                                     const Sink& dg, V* du) {
  const V top = largest(g, m + 1);
  V e[STATEMIX_MAX_SIZE + 1], Z;
  softmax_numerators(g, m + 1, top, e, &Z);
  V y = e[m] * v;
  for (int j = 0; j < m; ++j) y += e[j] * u[j];
  const V scale = 1.0f / Z, scaled = lambda * scale;
  y *= scale * scaled;
  for (int j = 0; j < m; ++j) {
    const VI is_top = g[j] == top;
    du[j] = zero_unless(is_top, lambda);
    lambda = zero_unless(~is_top, lambda);  // no later entry can be the first
    dg.put(j, e[j] * (u[j] * scaled - y));
  }
  du[m] = lambda;
  dg.put(m, e[m] * (v * scaled - y));
  return Z != Z;
}

// f(g) of a signed gate function, and its derivative.
STATEMIX_INLINE void signed_function(int32_t gate, V g, V* f, V* slope) {
  V s, t;
  switch (gate) {
    case STATEMIX_TANH:
      *f = hyperbolic_tangent(g);
      *slope = 1.0f - *f * *f;
      break;
    case STATEMIX_SILU:
      logistic(g, &s, &t);
      *f = g * s;
      *slope = s * (1.0f + g * t);
      break;
    default:
      *f = g;
      *slope = splat(1.0f);
  }
}

// The weights of a row for any gate function except softmax and hardmax, and q and s unless they
// are null. Dividing by Z, instead of multiplying by its reciprocal, gives exactly one if a single
// gate is nonzero, so permutations are exact.
__attribute__((noinline)) static void row_weights(int32_t gate, const Source& g, int c, V* w, V* q,
                                                  V* s) {
  V total{};
  switch (gate) {
    case STATEMIX_SIGMOID: {
      V top = g[0];
      for (int j = 1; j < c; ++j) top = larger(top, g[j]);
      top = select(top > 0.0f, V{}, top);
      for (int j = 0; j < c; ++j) {
        const V e = exponential(-absolute(g[j])), below = select(g[j] > 0.0f, V{}, g[j]);
        const V closed = select(g[j] > 0.0f, e, splat(1.0f)) / (1.0f + e);
        w[j] = exponential(below - top) / (1.0f + e);
        total += w[j];
        if (q) q[j] = closed;
      }
      for (int j = 0; j < c; ++j) {
        w[j] /= total;
        if (q) {
          q[j] *= w[j];
          s[j] = splat(1.0f);
        }
      }
      return;
    }
    case STATEMIX_RELU: {
      for (int j = 0; j < c; ++j) {
        w[j] = select(g[j] < 0.0f, V{}, g[j]);
        total += w[j] + RELU_EPSILON;
      }
      const V scale = 1.0f / total;
      for (int j = 0; j < c; ++j) {
        if (q) {
          q[j] = select(w[j] > 0.0f, scale, V{});
          s[j] = splat(1.0f);
        }
        w[j] *= scale;
      }
      return;
    }
    case STATEMIX_NONE:
      for (int j = 0; j < c; ++j) {
        w[j] = g[j];
        if (q) {
          q[j] = splat(1.0f);
          s[j] = V{};
        }
      }
      return;
    default: {
      for (int j = 0; j < c; ++j) {
        V f, slope;
        signed_function(gate, g[j], &f, &slope);
        w[j] = f;
        total += absolute(f);
        if (q) q[j] = slope;
      }
      const VI low = total < SIGNED_FLOOR;
      const V Z = select(low, splat(SIGNED_FLOOR), total), scale = 1.0f / Z;
      for (int j = 0; j < c; ++j) {
        if (q) {
          const V sign = select(w[j] > 0.0f, splat(1.0f), select(w[j] < 0.0f, splat(-1.0f), V{}));
          s[j] = select(low, V{}, sign);
          q[j] *= scale;
        }
        w[j] /= Z;
      }
    }
  }
}

}  // namespace statemix
