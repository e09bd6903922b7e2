// The weights of a table of raw gates, computed once per row instead of at every step that reads it.
//
//   w = softmax(g_1 .. g_m, 0),    A_j = w_j,    b = w_m v
//   dg_j = w_j S_j,    dv = w_m db,    with S_j = Σ λ (u_j − h) and db = Σ λ over the steps
//
// The scan sums differences of states, which are small where a row averages nearly equal states.

#pragma once

#include "gates.hpp"
#include "tile.hpp"

namespace statemix {
namespace {

// Rows in lane order: m differences of gates and a driver each.
template <int M>
struct Table {
  static constexpr int GATES = (M ? M : STATEMIX_MAX_SIZE) + 1;

  static void weights(const statemix_table& a, int64_t first, int64_t last) {
    const int m = M ? M : a.m;
    V raw[GATES], e[GATES], Z;
    for (int64_t row = first; row < last; row += WIDTH) {
      const Groups g = Groups::make(row, last);
      const Source x = source(a.X, 0, g, m + 1, a.half != 0, raw);
      const Sink w = sink(a.weights, 0, g, m + 1);
      odds_numerators(x, m, e, &Z);
      // Rounded once: every step that reads the row repeats its error.
      for (int j = 0; j < m; ++j) w.put(j, e[j] / Z);
      w.put(m, e[m] / Z * x[m]);
    }
  }

  // Replaces S and db in `weights` by the gradients of the gates and drivers.
  static void gradient(const statemix_table& a, int64_t first, int64_t last) {
    const int m = M ? M : a.m;
    V raw[GATES], e[GATES], Z;
    for (int64_t row = first; row < last; row += WIDTH) {
      const Groups g = Groups::make(row, last);
      const Source x = source(a.X, 0, g, m + 1, a.half != 0, raw);
      const Source sums = source(a.weights, 0, g, m + 1, false, raw);
      const Sink d = sink(a.weights, 0, g, m + 1);
      odds_numerators(x, m, e, &Z);
      const V scale = 1.0f / Z;
      for (int j = 0; j <= m; ++j) d.put(j, e[j] * scale * sums[j]);
    }
  }
};

}  // namespace
}  // namespace statemix
