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
    V* raw = tile + z.tile;           // (rows, c + 1), for conversions from bfloat16
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
        if (real) R::forward(a.gate, z.m, z.rows, read_tile(a, z, t, g, tile, raw), h);
        write_output(a, z, t, g, h, raw);
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
    V* raw = dtile + z.tile;             // (rows, c + 1), for conversions from and to bfloat16
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
        add_gradient(a, z, t, g, k, lambda, raw);
        if (!real) {
          for (int j = 0; j < z.m; ++j) k[j] = lambda[j];
          clear_gradients(a, z, t, g);
          continue;
        }
        prefetch(f, z, Later::make(span, step - 1, t, first_group, groups, i, down), a.dX,
                 z.rows * z.c, a.dx, z.outputs);
        const Tile x = read_tile(f, z, t, g, tile, raw);
        if (f.lanes) {
          V wide_before[R::STATES], wide_h[R::STATES];
          const bool half = f.half & STATEMIX_HALF_H;
          const U* previous =
              step > 0 ? vectors(f.h, (span.at(step - 1) * z.G + g) * z.m, z.m, half, wide_before)
                       : (const U*)(start + own * z.m);
          const U* h = vectors(f.h, (t * z.G + g) * z.m, z.m, half, wide_h);
          const bool in_place = !f.rows && !(f.half & STATEMIX_HALF_DX);
          const int64_t row = (row_of(f, t) * z.G + g) * z.tile;
          U* d = in_place ? at(a.dX, row) : (U*)dtile;
          R::backward(f.gate, z.m, z.rows, x, previous, h, lambda, k,
                      TileOut{d, d + z.c, z.c + 1, z.c + 1});
          if (f.rows)
            for (int j = 0; j < z.tile; ++j) at(a.dX, row)[j] += dtile[j];
          else if (!in_place)
            for (int j = 0; j < z.tile; ++j) store(half_at(a.dX, (row + j) * LANES), dtile[j]);
        } else {
          V previous[R::STATES], h[R::STATES];
          entering(f, z, span, step, rank, g, start + own * z.m, previous, raw);
          read_output(f.h, f.half & STATEMIX_HALF_H, f.n, z, t, g, h, raw);
          R::backward(f.gate, z.m, z.rows, x, (const U*)previous, (const U*)h, lambda, k,
                      TileOut{(U*)dtile, (U*)(dtile + z.rows * z.c), z.c, 1});
          write_gradients(a, z, t, g, dtile, raw);
        }
      }
    }
    for (int64_t i = 0; i < groups; ++i)
      store_state<M>(a.dh0, sequence, f.n, first_group + i, z.m, k_all + i * z.m);
  }

 private:
  static constexpr int TILE = R::ROWS * R::C;  // gates of a block, or 0
  static constexpr int AHEAD = 2;
  static constexpr int64_t LINE = 64;  // bytes of a cache line

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

  // Reads a tile in place in lane order; bfloat16 and the logical order are converted in `scratch`.
  STATEMIX_INLINE Tile read_tile(const statemix_scan& a, const Sizes& z, int64_t t, int64_t g,
                                 V* scratch, V* raw) {
    const bool half = a.half & STATEMIX_HALF_X;
    if (a.lanes) {
      const U* x = vectors(a.X, (row_of(a, t) * z.G + g) * z.tile, z.tile, half, scratch);
      return {x, x + z.c, z.c + 1, z.c + 1};
    }
    const int64_t block = t * a.n + g * LANES, gates = z.rows * z.c, present = lanes_of(a.n, g);
    read_lanes<TILE>(a.X, block * gates, gates, present, half, raw, scratch);
    read_lanes<R::OUTPUTS>(a.x, block * z.outputs, z.outputs, present,
                           a.half & STATEMIX_HALF_DRIVER, raw, scratch + gates);
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
  STATEMIX_INLINE void prefetch(const statemix_scan& a, const Sizes& z, Later later, void* outputs,
                                int per_block, void* more, int more_per_block) {
    if (M < 3 || M > 5) return;
    const int64_t block = later.t * a.n + later.g * LANES;
    const int64_t group = row_of(a, later.t) * z.G + later.g;
    const int gates = a.lanes ? z.tile : z.rows * z.c;
    const int64_t size = a.half & STATEMIX_HALF_X ? sizeof(uint16_t) : sizeof(float);
    const char* X = (const char*)a.X + size * (a.lanes ? group * LANES : block) * gates;
    for (int64_t i = 0; i < size * gates * LANES; i += LINE) __builtin_prefetch(X + i);
    if (a.lanes || a.half) return;
    for (int i = 0; i < per_block; i += 2)
      __builtin_prefetch((float*)outputs + block * per_block + i * LANES, 1);
    if (more)
      for (int i = 0; i < more_per_block; i += 2)
        __builtin_prefetch((float*)more + block * more_per_block + i * LANES, 1);
  }

  // Reads or writes the outputs of a step, or in `x` their gradients.
  STATEMIX_INLINE void read_output(const void* x, bool half, int64_t n, const Sizes& z, int64_t t,
                                   int64_t g, V* out, V* raw) {
    read_lanes<R::OUTPUTS>(x, (t * n + g * LANES) * z.outputs, z.outputs, lanes_of(n, g), half, raw,
                           out);
  }
  STATEMIX_INLINE void write_output(const statemix_scan& a, const Sizes& z, int64_t t, int64_t g,
                                    const V* h, V* raw) {
    const bool half = a.half & STATEMIX_HALF_H;
    const int64_t row = (t * z.G + g) * z.m;
    if (!a.lanes)
      write_lanes<R::OUTPUTS>(h, z.outputs, lanes_of(a.n, g), half, raw, a.h,
                              (t * a.n + g * LANES) * z.outputs);
    else if (half)
      for (int j = 0; j < z.m; ++j) store(half_at(a.h, (row + j) * LANES), h[j]);
    else
      for (int j = 0; j < z.m; ++j) at(a.h, row)[j] = h[j];
  }

  STATEMIX_INLINE void add_gradient(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                    int64_t g, const V* k, V* lambda, V* raw) {
    const bool half = a.scan.half & STATEMIX_HALF_DH;
    if (a.scan.lanes) {
      const U* dh = vectors(a.dh, (t * z.G + g) * z.m, z.m, half, lambda);
      for (int j = 0; j < z.m; ++j) lambda[j] = k[j] + dh[j];
      return;
    }
    read_output(a.dh, half, a.scan.n, z, t, g, lambda, raw);
    for (int j = 0; j < z.outputs; ++j) lambda[j] += k[j];
    for (int j = z.outputs; j < z.m; ++j) lambda[j] = k[j];
  }

  // The state before a step. Channels store one output per step; their lags count real steps and
  // reach into h0.
  STATEMIX_INLINE void entering(const statemix_scan& f, const Sizes& z, const Span& span,
                                int64_t step, int64_t rank, int64_t g, const V* start, V* out,
                                V* raw) {
    const bool half = f.half & STATEMIX_HALF_H;
    if constexpr (R::OUTPUTS == M) {
      if (step > 0) return read_output(f.h, half, f.n, z, span.at(step - 1), g, out, raw);
      for (int j = 0; j < z.m; ++j) out[j] = start[j];
    } else {
      for (int j = 0; j < z.m; ++j) {
        const int64_t back = rank - 1 - j;
        if (back >= 0)
          read_output(f.h, half, f.n, z, span.real ? span.real[back] : span.at(back), g, &out[j],
                      raw);
        else
          out[j] = start[j - rank];
      }
    }
  }

  STATEMIX_INLINE void write_gradients(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                       int64_t g, const V* dtile, V* raw) {
    const int64_t block = t * a.scan.n + g * LANES, present = lanes_of(a.scan.n, g);
    const int gates = z.rows * z.c;
    write_lanes<TILE>(dtile, gates, present, a.scan.half & STATEMIX_HALF_DX, raw, a.dX,
                      block * gates);
    write_lanes<R::OUTPUTS>(dtile + gates, z.outputs, present, a.scan.half & STATEMIX_HALF_DDRIVER,
                            raw, a.dx, block * z.outputs);
  }

  STATEMIX_INLINE void clear_gradients(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                       int64_t g) {
    const auto clear = [&](void* x, int64_t half, int64_t first, int64_t count) {
      const int64_t size = a.scan.half & half ? sizeof(uint16_t) : sizeof(float);
      std::memset((char*)x + first * size, 0, count * size);
    };
    if (a.scan.lanes) {
      if (a.scan.rows) return;  // nothing to add
      return clear(a.dX, STATEMIX_HALF_DX, (t * z.G + g) * z.tile * LANES, z.tile * LANES);
    }
    const int64_t block = t * a.scan.n + g * LANES, present = lanes_of(a.scan.n, g);
    clear(a.dX, STATEMIX_HALF_DX, block * z.rows * z.c, present * z.rows * z.c);
    clear(a.dx, STATEMIX_HALF_DDRIVER, block * z.outputs, present * z.outputs);
  }
};

}  // namespace
}  // namespace statemix
