// The higher-order recurrence and its adjoint: one step of one group, O(m).
//
//   forward    h = Σ_j w_j s_j + w_m v,   s ← (h, s_1, .., s_{m-1})
//   backward   k_j = w_j λ_1 + λ_{j+1},   dg_j = q_j λ_1 (u_j − s_j h),   dv = w_m λ_1
//
// u is the state before the step: the last m outputs, newest first.

#pragma once

#include "gates.hpp"
#include "tile.hpp"

namespace statemix {
namespace {

template <int M, Kind KIND_>
struct Companion {
  static constexpr Kind KIND = KIND_;
  static constexpr int SIZE = M;
  static constexpr int ROWS = 1, OUTPUTS = 1;
  static constexpr int C = M ? stored(KIND, M) : 0;
  static constexpr int STATES = M ? M : STATEMIX_MAX_SIZE, GATES = STATES + 1;
  static constexpr bool EXPONENTIAL = KIND == Kind::softmax || KIND == Kind::odds;
  static constexpr bool DESCEND = M > 0 && M <= 8;

  static constexpr bool UNROLL = true;

  static int outputs(int) { return 1; }

  STATEMIX_INLINE void forward(int32_t gate, int m, int, Tile x, V* s, const Ahead& ahead) {
    ahead.all(1);
    ahead.row(0);
    const V h = output(gate, m, x, s);
    for (int j = m - 1; j > 0; --j) s[j] = s[j - 1];
    s[0] = h;
  }

  STATEMIX_INLINE void backward(int32_t gate, int m, int, Tile x, const U* previous,
                                const U* h, const V* lambda, V* k, TileOut d,
                                const Ahead& ahead) {
    ahead.all(1);
    ahead.row(0);
    const V l = lambda[0];
    if (KIND == Kind::hardmax) {
      V du[GATES];
      const VI nan = hardmax_gradients(x.gates, m, previous, x.drivers[0], l, d.gates, du);
      for (int j = 0; j < m; ++j)
        k[j] = (V)((VI)(du[j] + (j + 1 < m ? lambda[j + 1] : V{})) | nan);
      d.drivers.put(0, (V)((VI)du[m] | nan));
      return;
    }
    V w[GATES], q[GATES], s[GATES];
    weights(gate, m, x.gates, w, q, s);
    for (int j = 0; j < m; ++j) k[j] = w[j] * l + (j + 1 < m ? lambda[j + 1] : V{});
    if (KIND == Kind::given) {
      for (int j = 0; j < m; ++j) d.gates.put(j, l * previous[j]);
      d.drivers.put(0, l);
      return;
    }
    const V driver = x.drivers[0], h_0 = h[0];
    if (KIND == Kind::weights) {  // added to the row of a table: see `Table`
      for (int j = 0; j < m; ++j) d.gates.add(j, l * (previous[j] - h_0));
      d.drivers.add(0, l);
      return;
    }
    for (int j = 0; j < m; ++j)
      d.gates.put(j, EXPONENTIAL ? w[j] * l * (previous[j] - h_0)
                               : q[j] * l * (previous[j] - s[j] * h_0));
    if (KIND != Kind::odds)
      d.gates.put(m, EXPONENTIAL ? w[m] * l * (driver - h_0) : q[m] * l * (driver - s[m] * h_0));
    d.drivers.put(0, w[m] * l);
  }

 private:
  STATEMIX_INLINE V output(int32_t gate, int m, Tile x, const V* s) {
    if (KIND == Kind::hardmax) return chosen_entry(x.gates, m, s, x.drivers[0]);
    V w[GATES];
    weights(gate, m, x.gates, w, nullptr, nullptr);
    V h = w[0] * s[0];
    for (int j = 1; j < m; ++j) h += w[j] * s[j];
    return h + (normalised(KIND) ? (V)x.drivers[0] : w[m] * x.drivers[0]);
  }

  STATEMIX_INLINE void weights(int32_t gate, int m, const Source& g, V* w, V* q, V* s) {
    if (normalised(KIND))
      for (int j = 0; j < m; ++j) w[j] = g[j];
    if (EXPONENTIAL) {
      V Z;
      if (KIND == Kind::odds)
        odds_numerators(g, m, w, &Z);
      else
        softmax_numerators(g, m + 1, w, &Z);
      const V scale = 1.0f / Z;
      for (int j = 0; j <= m; ++j) w[j] *= scale;
    }
    if (KIND == Kind::other) row_weights(gate, g, m + 1, w, q, s);
  }
};

}  // namespace
}  // namespace statemix
