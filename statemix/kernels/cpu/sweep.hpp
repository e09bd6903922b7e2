// A recurrence R along one sequence, for a range of groups: the forward pass and its adjoint.
//
// The outer loop runs over time and the inner loop over groups, one or two at once (the width of a
// vector), so memory is accessed in order.
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
                      int64_t last_group, void* scratch) {
    const Sizes z(a);
    const Range range(first_group, last_group);
    V* states = (V*)scratch;                // (range.count, m)
    V* tile = states + range.count * z.m;  // (rows, c + 1)
    V* raw = tile + z.tile;                 // (rows, c + 1), for conversions from bfloat16
    for (int64_t i = 0; i < range.count; ++i)
      load_state<M>(a.h0, sequence, a.n, range.groups(i), z.m, states + i * z.m);
    const bool down = R::DESCEND && span.reverse;
    for (int64_t step = 0; step < span.length(); ++step) {
      const int64_t t = span.at(step);
      const bool real = !a.mask || a.mask[t];
      for (int64_t i = 0; i < range.count; ++i) {
        const int64_t own = down ? range.count - 1 - i : i;
        const Groups g = range.groups(own);
        V* h = states + own * z.m;
        const Later later = Later::make(span, step + 1, t, range, i, down);
        prefetch_outputs(a, later, a.h, z.outputs, nullptr, 0);
        if (real)
          R::forward(a.gate, z.m, z.rows, read_tile(a, z, t, g, tile, raw), h,
                     ahead_of(a, z, later, nullptr));
        write_output(a, z, t, g, h, raw);
      }
    }
    for (int64_t i = 0; i < range.count; ++i)
      store_state<M>(a.final, sequence, a.n, range.groups(i), z.m, states + i * z.m);
  }

  static void backward(const statemix_scan_gradient& a, int64_t sequence, Span span,
                       int64_t first_group, int64_t last_group, void* scratch) {
    const statemix_scan& f = a.scan;
    const Sizes z(f);
    const int64_t L = span.length();
    const Range range(first_group, last_group);
    V* k_all = (V*)scratch;                  // (range.count, m)
    V* start = k_all + range.count * z.m;    // (range.count, m): h0
    V* tile = start + range.count * z.m;     // (rows, c + 1)
    V* dtile = tile + z.tile;                // (rows, c + 1)
    V* raw = dtile + z.tile;                 // (rows, c + 1), for conversions from and to bfloat16
    for (int64_t i = 0; i < range.count; ++i) {
      load_state<M>(a.dfinal, sequence, f.n, range.groups(i), z.m, k_all + i * z.m);
      load_state<M>(f.h0, sequence, f.n, range.groups(i), z.m, start + i * z.m);
    }
    const bool down = R::DESCEND && !span.reverse;
    int64_t rank = span.real ? span.real_count : L;
    for (int64_t step = L - 1; step >= 0; --step) {
      const int64_t t = span.at(step);
      const bool real = !f.mask || f.mask[t];
      if (real) --rank;
      for (int64_t i = 0; i < range.count; ++i) {
        const int64_t own = down ? range.count - 1 - i : i;
        const Groups g = range.groups(own);
        V* k = k_all + own * z.m;
        V lambda[R::STATES];
        add_gradient(a, z, t, g, k, lambda, raw);
        if (!real) {
          for (int j = 0; j < z.m; ++j) k[j] = lambda[j];
          clear_gradients(a, z, t, g);
          continue;
        }
        const Later later = Later::make(span, step - 1, t, range, i, down);
        prefetch_outputs(f, later, a.dX, z.rows * z.c, a.dx, z.outputs);
        const Ahead ahead = ahead_of(f, z, later, a.dX);
        prefetch_states(a, z, later);
        const Tile x = read_tile(f, z, t, g, tile, raw);
        if (f.lanes) {
          V wide_before[R::STATES], wide_h[R::STATES];
          const bool half = f.half & STATEMIX_HALF_H;
          const U* previous =
              step > 0 ? vectors(f.h, span.at(step - 1) * z.G, g, z.m, half, wide_before)
                       : (const U*)(start + own * z.m);
          const U* h = vectors(f.h, t * z.G, g, z.m, half, wide_h);
          const bool half_d = f.half & STATEMIX_HALF_DX;
          const int64_t row = row_of(f, t) * z.G;
          const Sink there = sink(a.dX, row, g, z.tile);
          const bool shared = f.rows && R::KIND != Kind::weights;  // which adds to rows itself
          const Sink d = shared || half_d ? sink(dtile, z.tile) : there;
          R::backward(f.gate, z.m, z.rows, x, previous, h, lambda, k,
                      TileOut{d, d.from(z.c), z.c + 1, z.c + 1}, ahead);
          if (shared)
            add_vectors(there, source(dtile, z.tile), z.tile);
          else if (half_d)
            write_vectors(a.dX, row, g, z.tile, true, source(dtile, z.tile));
        } else {
          V previous[R::STATES], h[R::STATES];
          entering(f, z, span, step, rank, g, start + own * z.m, previous, raw);
          read_output(f.h, f.half & STATEMIX_HALF_H, f.n, z, t, g, h, raw);
          R::backward(f.gate, z.m, z.rows, x, (const U*)previous, (const U*)h, lambda, k,
                      TileOut{sink(dtile, z.tile), sink(dtile, z.tile).from(z.rows * z.c), z.c, 1},
                      ahead);
          write_gradients(a, z, t, g, dtile, raw);
        }
      }
    }
    for (int64_t i = 0; i < range.count; ++i)
      store_state<M>(a.dh0, sequence, f.n, range.groups(i), z.m, k_all + i * z.m);
  }

 private:
  static constexpr int TILE = R::ROWS * R::C;  // gates of a block, or 0
    // Vectors of groups between the one that is computed and the one that is prefetched.
  static constexpr int AHEAD = WIDTH == 2 ? 3 : 2;

  struct Sizes {
    int m, c, rows, outputs, tile;
    int64_t G;
    explicit Sizes(const statemix_scan& a)
        : m(M ? M : a.m),
          c(stored(R::KIND, m)),
          rows(R::ROWS == 1 ? 1 : R::UNROLL ? M : a.m),
          outputs(R::outputs(m)),
          tile(rows * (c + 1)),
          G((a.n + GROUP - 1) / GROUP) {}
  };

  // The groups of a task, as many at once as a vector holds.
  struct Range {
    int64_t first, last, count;
    Range(int64_t first_group, int64_t last_group)
        : first(first_group),
          last(last_group),
          count((last_group - first_group + WIDTH - 1) / WIDTH) {}
    __attribute__((always_inline)) Groups groups(int64_t i) const {
      return Groups::make(first + i * WIDTH, last);
    }
  };

  STATEMIX_INLINE int64_t row_of(const statemix_scan& a, int64_t t) {
    return a.rows ? a.rows[t] : t;
  }

  // Reads a tile in place in lane order; bfloat16 and the logical order are converted in `scratch`.
  STATEMIX_INLINE Tile read_tile(const statemix_scan& a, const Sizes& z, int64_t t, const Groups& g,
                                 V* scratch, V* raw) {
    const bool half = a.half & STATEMIX_HALF_X;
    if (a.lanes) {
      const Source x = source(a.X, row_of(a, t) * z.G, g, z.tile, half, scratch);
      return {x, x.from(z.c), z.c + 1, z.c + 1};
    }
    const int gates = z.rows * z.c;
    const Sink to = sink(scratch, z.tile);
    read_lanes<TILE>(a.X, t * a.n, a.n, g, gates, half, raw, to);
    read_lanes<R::OUTPUTS>(a.x, t * a.n, a.n, g, z.outputs, a.half & STATEMIX_HALF_DRIVER, raw,
                           to.from(gates));
    const Source x = source(scratch, z.tile);
    return {x, x.from(gates), z.c, 1};
  }

  // The step and first group that come AHEAD vectors later, possibly in the next step.
  struct Later {
    int64_t t, g;
    STATEMIX_INLINE Later make(const Span& span, int64_t next, int64_t t, const Range& range,
                               int64_t i, bool down) {
      const bool wraps = i + AHEAD >= range.count;
      const int64_t j = (i + AHEAD) % range.count;
      return {wraps && next >= 0 && next < span.length() ? span.at(next) : t,
              range.first + (down ? range.count - 1 - j : j) * WIDTH};
    }
  };

  // Vectors of one group: for one or two gates the hardware prefetchers suffice, and large tiles would
  // evict each other. Vectors of two groups read two streams, which the hardware prefetchers miss.
  static constexpr bool PREFETCHES = WIDTH == 2 ? M >= 2 : M >= 3 && M <= 5;

  // The gates that are read later, and in lane order the gradients that are written.
  STATEMIX_INLINE Ahead ahead_of(const statemix_scan& a, const Sizes& z, Later later, void* dX) {
    if (!PREFETCHES) return {nullptr, nullptr, 0};
    const int64_t block = later.t * a.n + later.g * GROUP;
    const int64_t group = row_of(a, later.t) * z.G + later.g;
    const int gates = a.lanes ? z.c + 1 : z.c;
    const int64_t size = a.half & STATEMIX_HALF_X ? sizeof(uint16_t) : sizeof(float);
    const int64_t first = size * (a.lanes ? group * GROUP : block) * gates * z.rows;
    const bool writes = WIDTH == 2 && dX && a.lanes && !a.half;
    return {(const char*)a.X + first, writes ? (char*)dX + first : nullptr, size * gates * LANES};
  }

  // In lane order a channel has as many states as gates: prefetches those before a later step, and
  // their gradients.
  STATEMIX_INLINE void prefetch_states(const statemix_scan_gradient& a, const Sizes& z, Later later) {
    if (WIDTH == 1 || R::ROWS > 1 || M < 5 || !a.scan.lanes || a.scan.half || later.t == 0) return;
    constexpr int64_t LINE = 16;  // numbers of a cache line
    const int64_t row = z.G * z.m * GROUP, first = later.t * row + later.g * z.m * GROUP;
    const float *h = (const float*)a.scan.h + first - row, *dh = (const float*)a.dh + first;
    for (int64_t i = 0; i < z.m * LANES; i += LINE) {
      __builtin_prefetch(h + i);
      __builtin_prefetch(dh + i);
    }
  }

  // Prefetches memory to write in logical order, because stores that miss the cache delay later ones.
  STATEMIX_INLINE void prefetch_outputs(const statemix_scan& a, Later later, void* outputs,
                                        int per_block, void* more, int more_per_block) {
    if (M < 3 || M > 5 || a.lanes || a.half) return;
    constexpr int64_t LINE = 16;  // numbers of a cache line
    const int64_t block = later.t * a.n + later.g * GROUP;
    for (int64_t i = 0; i < per_block * LANES; i += LINE)
      __builtin_prefetch((float*)outputs + block * per_block + i, 1);
    if (more)
      for (int64_t i = 0; i < more_per_block * LANES; i += LINE)
        __builtin_prefetch((float*)more + block * more_per_block + i, 1);
  }

  // Reads or writes the outputs of a step, or in `x` their gradients.
  STATEMIX_INLINE void read_output(const void* x, bool half, int64_t n, const Sizes& z, int64_t t,
                                   const Groups& g, V* out, V* raw) {
    read_lanes<R::OUTPUTS>(x, t * n, n, g, z.outputs, half, raw, out);
  }
  STATEMIX_INLINE void write_output(const statemix_scan& a, const Sizes& z, int64_t t,
                                    const Groups& g, const V* h, V* raw) {
    const bool half = a.half & STATEMIX_HALF_H;
    if (a.lanes)
      write_vectors(a.h, t * z.G, g, z.m, half, h);
    else
      write_lanes<R::OUTPUTS>(h, a.n, g, z.outputs, half, raw, a.h, t * a.n);
  }

  STATEMIX_INLINE void add_gradient(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                    const Groups& g, const V* k, V* lambda, V* raw) {
    const bool half = a.scan.half & STATEMIX_HALF_DH;
    if (a.scan.lanes) {
      const U* dh = vectors(a.dh, t * z.G, g, z.m, half, lambda);
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
                                int64_t step, int64_t rank, const Groups& g, const V* start,
                                V* out, V* raw) {
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

  STATEMIX_INLINE void add_vectors(const Sink& sums, const Source& d, int count) {
    for (int j = 0; j < count; ++j) sums.add(j, d[j]);
  }

  STATEMIX_INLINE void write_gradients(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                       const Groups& g, const V* dtile, V* raw) {
    const int64_t n = a.scan.n;
    const int gates = z.rows * z.c;
    const Source d = source(dtile, z.tile);
    write_lanes<TILE>(d, n, g, gates, a.scan.half & STATEMIX_HALF_DX, raw, a.dX, t * n);
    write_lanes<R::OUTPUTS>(d.from(gates), n, g, z.outputs, a.scan.half & STATEMIX_HALF_DDRIVER,
                            raw, a.dx, t * n);
  }

  STATEMIX_INLINE void clear_gradients(const statemix_scan_gradient& a, const Sizes& z, int64_t t,
                                       const Groups& g) {
    if (a.scan.lanes && a.scan.rows) return;  // nothing to add
    for (int w = 0; w < WIDTH; ++w) clear_group(a, z, t, g.of[w]);
  }

  static void clear_group(const statemix_scan_gradient& a, const Sizes& z, int64_t t, int64_t g) {
    const auto clear = [&](void* x, int64_t half, int64_t first, int64_t count) {
      const int64_t size = a.scan.half & half ? sizeof(uint16_t) : sizeof(float);
      std::memset((char*)x + first * size, 0, count * size);
    };
    const int64_t vectors = z.tile * GROUP;
    if (a.scan.lanes) return clear(a.dX, STATEMIX_HALF_DX, (t * z.G + g) * vectors, vectors);
    const int64_t block = t * a.scan.n + g * GROUP, present = lanes_of(a.scan.n, g);
    clear(a.dX, STATEMIX_HALF_DX, block * z.rows * z.c, present * z.rows * z.c);
    clear(a.dx, STATEMIX_HALF_DDRIVER, block * z.outputs, present * z.outputs);
  }
};

}  // namespace
}  // namespace statemix
