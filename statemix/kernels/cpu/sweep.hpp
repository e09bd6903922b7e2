// A recurrence R along one sequence, for a range of groups: the forward pass and its adjoint.
//
// The outer loop runs over time and the inner loop over groups, so memory is accessed in order.
// States stay in cache, in lane order. In the backward pass, k is the gradient of the state before
// the next step, and λ = k + dh.

#pragma once

#include "tile.hpp"

namespace statemix {
namespace {

template <class R>
struct Sweep {
  static constexpr int M = R::SIZE;

  static void forward(const statemix_scan& a, int64_t sequence, Span span, int64_t first_group,
                      int64_t last_group, V* scratch) {
    const Sizes z(a);
    const int64_t groups = last_group - first_group;
    V* states = scratch;              // (groups, m)
    V* tile = states + groups * z.m;  // (rows, c + 1)
    for (int64_t i = 0; i < groups; ++i)
      load_state<M>(a.h0, sequence, a.n, first_group + i, z.m, states + i * z.m);
    const bool down = R::DESCEND && span.reverse;
    for (int64_t step = 0; step < span.length(); ++step) {
      const int64_t t = span.at(step);
      const bool real = !a.mask || a.mask[t];
      for (int64_t i = 0; i < groups; ++i) {
        const int64_t own = down ? groups - 1 - i : i, g = first_group + own;
        V* h = states + own * z.m;
        prefetch(a, z, Later::make(span, step + 1, t, first_group, groups, i, down), a.h, z.outputs,
                 nullptr, 0);
        if (real) R::forward(a.gate, z.m, z.rows, read_tile(a, z, t, g, tile), h);
        if (a.lanes)
          for (int j = 0; j < z.m; ++j) at(a.h, (t * z.G + g) * z.m)[j] = h[j];
        else
          from_lanes<R::OUTPUTS>(h, z.outputs, lanes_of(a.n, g),
                                 a.h + (t * a.n + g * LANES) * z.outputs);
      }
    }
    for (int64_t i = 0; i < groups; ++i)
      store_state<M>(a.final, sequence, a.n, first_group + i, z.m, states + i * z.m);
  }

  static void backward(const statemix_scan_gradient& a, int64_t sequence, Span span,
                       int64_t first_group, int64_t last_group, V* scratch) {
    const statemix_scan& f = a.scan;
    const Sizes z(f);
    const int64_t groups = last_group - first_group, L = span.length();
    V* k_all = scratch;                  // (groups, m)
    V* start = k_all + groups * z.m;     // (groups, m): h0
    V* tile = start + groups * z.m;      // (rows, c + 1)
    V* dtile = tile + z.tile;            // (rows, c + 1)
    for (int64_t i = 0; i < groups; ++i) {
      load_state<M>(a.dfinal, sequence, f.n, first_group + i, z.m, k_all + i * z.m);
      load_state<M>(f.h0, sequence, f.n, first_group + i, z.m, start + i * z.m);
    }
    const bool down = R::DESCEND && !span.reverse;
    int64_t rank = span.real ? span.real_count : L;
    for (int64_t step = L - 1; step >= 0; --step) {
      const int64_t t = span.at(step);
      const bool real = !f.mask || f.mask[t];
      if (real) --rank;
      for (int64_t i = 0; i < groups; ++i) {
        const int64_t own = down ? groups - 1 - i : i, g = first_group + own;
        V* k = k_all + own * z.m;
        V lambda[R::STATES];
        add_gradient(a, z, t, g, k, lambda);
        if (!real) {
          for (int j = 0; j < z.m; ++j) k[j] = lambda[j];
          clear_gradients(a, z, t, g);
          continue;
        }
        prefetch(f, z, Later::make(span, step - 1, t, first_group, groups, i, down), a.dX,
                 z.rows * z.c, a.dx, z.outputs);
        const Tile x = read_tile(f, z, t, g, tile);
        if (f.lanes) {
          const U* previous = step > 0 ? at(f.h, (span.at(step - 1) * z.G + g) * z.m)
                                       : (const U*)(start + own * z.m);
          U* own_row = at(a.dX, (row_of(f, t) * z.G + g) * z.tile);
          U* d = f.rows ? (U*)dtile : own_row;
          R::backward(f.gate, z.m, z.rows, x, previous, at(f.h, (t * z.G + g) * z.m), lambda, k,
                      TileOut{d, d + z.c, z.c + 1, z.c + 1});
          if (f.rows)
            for (int j = 0; j < z.tile; ++j) own_row[j] += dtile[j];
        } else {
          V previous[R::STATES], h[R::STATES];
          entering(f, z, span, step, rank, g, start + own * z.m, previous);
          read_output(f.h, z, f.n, t, g, h);
          R::backward(f.gate, z.m, z.rows, x, (const U*)previous, (const U*)h, lambda, k,
                      TileOut{(U*)dtile, (U*)(dtile + z.rows * z.c), z.c, 1});
          write_gradients(a, z, t, g, dtile);
        }
      }
    }
    for (int64_t i = 0; i < groups; ++i)
      store_state<M>(a.dh0, sequence, f.n, first_group + i, z.m, k_all + i * z.m);
  }

 private:
  static constexpr int TILE = R::ROWS * R::C;  // gates of a block, or 0
  static constexpr int AHEAD = 2;

  struct Sizes {
    int m, c, rows, outputs, tile;
    int64_t G;
    explicit Sizes(const statemix_scan& a)
        : m(M ? M : a.m),
          c(stored(R::KIND, m)),
          rows(R::ROWS == 1 ? 1 : R::UNROLL ? M : a.m),
          outputs(R::outputs(m)),
          tile(rows * (c + 1)),
          G((a.n + LANES - 1) / LANES) {}
  };

  STATEMIX_INLINE int64_t row_of(const statemix_scan& a, int64_t t) {
    return a.rows ? a.rows[t] : t;
  }

  // Reads a tile in place in lane order; in logical order, converts it to lanes in `scratch`.
  STATEMIX_INLINE Tile read_tile(const statemix_scan& a, const Sizes& z, int64_t t, int64_t g,
                                 V* scratch) {
    if (a.lanes) {
      const U* x = at(a.X, (row_of(a, t) * z.G + g) * z.tile);
      return {x, x + z.c, z.c + 1, z.c + 1};
    }
    const int64_t block = t * a.n + g * LANES, gates = z.rows * z.c, present = lanes_of(a.n, g);
    to_lanes<TILE>(a.X + block * gates, gates, present, scratch);
    to_lanes<R::OUTPUTS>(a.x + block * z.outputs, z.outputs, present, scratch + gates);
    return {(const U*)scratch, (const U*)(scratch + gates), z.c, 1};
  }

  // The step and group that come AHEAD groups later, possibly in the next step.
  struct Later {
    int64_t t, g;
    STATEMIX_INLINE Later make(const Span& span, int64_t next, int64_t t, int64_t first_group,
                               int64_t groups, int64_t i, bool down) {
      const bool wraps = i + AHEAD >= groups;
      const int64_t j = wraps ? 0 : i + AHEAD;
      return {wraps && next >= 0 && next < span.length() ? span.at(next) : t,
              first_group + (down ? groups - 1 - j : j)};
    }
  };

  // Prefetches gates to read and memory to write, because stores that miss the cache delay later
  // stores. For m < 3 the hardware prefetchers suffice, and large tiles would evict each other.
  STATEMIX_INLINE void prefetch(const statemix_scan& a, const Sizes& z, Later later, float* outputs,
                                int per_block, float* more, int more_per_block) {
    if (M < 3 || M > 5) return;
    const int64_t block = later.t * a.n + later.g * LANES;
    const int64_t group = row_of(a, later.t) * z.G + later.g;
    const int gates = a.lanes ? z.tile : z.rows * z.c;
    const float* X = a.X + (a.lanes ? group * LANES : block) * gates;
    for (int i = 0; i < gates; i += 2) __builtin_prefetch(X + i * LANES);
    if (a.lanes) return;
    for (int i = 0; i < per_block; i += 2)
      __builtin_prefetch(outputs + block * per_block + i * LANES, 1);
    if (more)
      for (int i = 0; i < more_per_block; i += 2)
        __builtin_prefetch(more + block * more_per_block + i * LANES, 1);
  }

  STATEMIX_INLINE void read_output(const float* h, const Sizes& z, int64_t n, int64_t t, int64_t g,
                                   V* out) {
    to_lanes<R::OUTPUTS>(h + (t * n + g * LANES) * z.outputs, z.outputs, lanes_of(n, g), out);
  }

  STATEMIX_INLINE void add_gradient(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                    int64_t g, const V* k, V* lambda) {
    if (a.scan.lanes) {
      const U* dh = at(a.dh, (t * z.G + g) * z.m);
      for (int j = 0; j < z.m; ++j) lambda[j] = k[j] + dh[j];
      return;
    }
    read_output(a.dh, z, a.scan.n, t, g, lambda);
    for (int j = 0; j < z.outputs; ++j) lambda[j] += k[j];
    for (int j = z.outputs; j < z.m; ++j) lambda[j] = k[j];
  }

  // The state before a step. Channels store one output per step; their lags count real steps and
  // reach into h0.
  STATEMIX_INLINE void entering(const statemix_scan& f, const Sizes& z, const Span& span,
                                int64_t step, int64_t rank, int64_t g, const V* start, V* out) {
    if constexpr (R::OUTPUTS == M) {
      if (step > 0) return read_output(f.h, z, f.n, span.at(step - 1), g, out);
      for (int j = 0; j < z.m; ++j) out[j] = start[j];
    } else {
      for (int j = 0; j < z.m; ++j) {
        const int64_t back = rank - 1 - j;
        if (back >= 0)
          read_output(f.h, z, f.n, span.real ? span.real[back] : span.at(back), g, &out[j]);
        else
          out[j] = start[j - rank];
      }
    }
  }

  STATEMIX_INLINE void write_gradients(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                       int64_t g, const V* dtile) {
    const int64_t block = t * a.scan.n + g * LANES, present = lanes_of(a.scan.n, g);
    from_lanes<TILE>(dtile, z.rows * z.c, present, a.dX + block * z.rows * z.c);
    from_lanes<R::OUTPUTS>(dtile + z.rows * z.c, z.outputs, present, a.dx + block * z.outputs);
  }

  STATEMIX_INLINE void clear_gradients(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                       int64_t g) {
    if (a.scan.lanes) {
      if (a.scan.rows) return;  // nothing to add
      std::memset(a.dX + (t * z.G + g) * z.tile * LANES, 0, sizeof(V) * z.tile);
      return;
    }
    const int64_t block = t * a.scan.n + g * LANES, present = lanes_of(a.scan.n, g);
    std::memset(a.dX + block * z.rows * z.c, 0, sizeof(float) * present * z.rows * z.c);
    std::memset(a.dx + block * z.outputs, 0, sizeof(float) * present * z.outputs);
  }
};

}  // namespace
}  // namespace statemix
