// The block recurrence and its adjoint: one step of one group.
//
//   forward    h_i = Σ_j w_ij h_j[t-1] + w_im v_i
//   backward   p_ij = w_ij λ_i,  k_j = Σ_i p_ij,  dg_ij = q_ij λ_i (u_j − s_ij h_i),  dv_i = p_im
//
// Hardmax copies one entry instead: see `chosen_entry` and `hardmax_gradients`.

#pragma once

#include "gates.hpp"
#include "tile.hpp"

namespace statemix {
namespace {

template <int M, Kind KIND_>
struct Block {
  static constexpr Kind KIND = KIND_;
  // States, rows of gates, and outputs of a block; 0 if known only at run time.
  static constexpr int SIZE = M, ROWS = M, OUTPUTS = M;
  static constexpr int C = M ? stored(KIND, M) : 0;  // gates of a row
  static constexpr int STATES = M ? M : STATEMIX_MAX_SIZE, GATES = STATES + 1;
  // For small tiles, one direction in memory helps the prefetcher more than ascending groups do.
  static constexpr bool DESCEND = M > 0 && M <= 5;
  // The rows of larger blocks stay a loop; unrolled, they would not fit in the instruction cache.
  static constexpr bool UNROLL = M > 0 && M <= (WIDTH == 2 ? 5 : 8);

  static int outputs(int m) { return m; }

  STATEMIX_INLINE void forward(int32_t gate, int m, int rows, Tile x, V* h, const Ahead& ahead) {
    V next[STATES];
    ahead.all(rows);
    for (int i = 0; i < rows; ++i) {
      ahead.row(i);
      const Source g = x.gates.from(i * x.step);
      const V driver = x.drivers[i * x.driver_step];
      // The input is added last: it is often the largest term, and rounding errors scale with the
      // partial sums.
      if (KIND == Kind::softmax || KIND == Kind::odds) {
        V e[GATES], Z;
        numerators(g, m, e, &Z);
        next[i] = (dot(m, e, h) + e[m] * driver) / Z;
      } else if (KIND == Kind::hardmax) {
        next[i] = chosen_entry(g, m, h, driver);
      } else if (normalised(KIND)) {
        next[i] = dot(m, g, h) + driver;
      } else {
        V w[GATES];
        row_weights(gate, g, m + 1, w, nullptr, nullptr);
        next[i] = dot(m, w, h) + w[m] * driver;
      }
    }
    for (int i = 0; i < m; ++i) h[i] = next[i];
  }

  // Writes the gradient of the state before the step to k.
  STATEMIX_INLINE void backward(int32_t gate, int m, int rows, Tile x, const U* previous,
                                const U* h, const V* lambda, V* k, TileOut d, const Ahead& ahead) {
    VI nan{};
    ahead.all(rows);
    for (int j = 0; j < m; ++j) k[j] = V{};
    for (int i = 0; i < rows; ++i) {
      ahead.row(i);
      const Source g = x.gates.from(i * x.step);
      const Sink dg = d.gates.from(i * d.step);
      const V l = lambda[i], driver = x.drivers[i * x.driver_step];
      if (KIND == Kind::given) {
        for (int j = 0; j < m; ++j) {
          k[j] += g[j] * l;
          dg.put(j, l * previous[j]);
        }
        d.drivers.put(i * d.driver_step, l);
      } else if (KIND == Kind::weights) {  // added to the row of a table: see `Table`
        const V h_i = h[i];
        for (int j = 0; j < m; ++j) {
          k[j] += g[j] * l;
          dg.add(j, l * (previous[j] - h_i));
        }
        d.drivers.add(i * d.driver_step, l);
      } else if (KIND == Kind::softmax || KIND == Kind::odds) {
        V e[GATES], Z;
        numerators(g, m, e, &Z);
        const V scaled = l / Z, h_i = h[i];
        for (int j = 0; j < m; ++j) {
          const V p = e[j] * scaled;
          k[j] += p;
          dg.put(j, p * (previous[j] - h_i));
        }
        const V p = e[m] * scaled;
        if (KIND == Kind::softmax) dg.put(m, p * (driver - h_i));
        d.drivers.put(i * d.driver_step, p);
      } else if (KIND == Kind::hardmax) {
        V du[GATES];
        const VI bad = hardmax_gradients(g, m, previous, driver, l, dg, du);
        for (int j = 0; j < m; ++j) k[j] += du[j];
        d.drivers.put(i * d.driver_step, (V)((VI)du[m] | bad));
        nan |= bad;
      } else {
        V w[GATES], q[GATES], s[GATES];
        row_weights(gate, g, m + 1, w, q, s);
        for (int j = 0; j < m; ++j) {
          k[j] += w[j] * l;
          dg.put(j, q[j] * l * (previous[j] - s[j] * h[i]));
        }
        dg.put(m, q[m] * l * (driver - s[m] * h[i]));
        d.drivers.put(i * d.driver_step, w[m] * l);
      }
    }
    if (KIND == Kind::hardmax)
      for (int j = 0; j < m; ++j) k[j] = (V)((VI)k[j] | nan);
  }

 private:
  STATEMIX_INLINE void numerators(const Source& g, int m, V* e, V* Z) {
    KIND == Kind::odds ? odds_numerators(g, m, e, Z) : softmax_numerators(g, m + 1, e, Z);
  }

  template <class Weights>
  STATEMIX_INLINE V dot(int m, const Weights& w, const V* h) {
    V sum = w[0] * h[0];
    for (int j = 1; j < m; ++j) sum += w[j] * h[j];
    return sum;
  }
};

}  // namespace
}  // namespace statemix
