// A tile: one step's gates of one group of eight, in either order of memory.
//
// A kernel reads a row's gates as consecutive vectors and its driver (v or b) as one more.  In lanes a tile is read where
// it stands; in the logical order it is first turned into lanes.

#pragma once

#include "kernels.hpp"

// Each instruction set compiles these templates anew: an unnamed namespace keeps the linker from merging them.
namespace statemix {
namespace {

enum class Kind { given, softmax, odds, other };

// Gates of a row as they are stored: given coefficients and odds have none for the input.
constexpr int stored(Kind kind, int m) { return m + (kind == Kind::softmax || kind == Kind::other); }

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

template <int M>
STATEMIX_INLINE void store_state(float* states, int64_t sequence, int64_t n, int64_t g, int m, const V* state) {
  from_lanes<M>(state, m, lanes_of(n, g), states + (sequence * n + g * LANES) * m);
}

// Rows of gates, `step` vectors apart, and their drivers, `driver_step` apart: to read, and to write.
// No templates over U: as a template's argument it would lose its alignment, and be read as if it were V.
struct Tile {
  const U *gates, *drivers;
  int64_t step, driver_step;
};
struct TileOut {
  U *gates, *drivers;
  int64_t step, driver_step;
};

STATEMIX_INLINE const U* at(const float* x, int64_t vector) { return (const U*)(x + vector * LANES); }
STATEMIX_INLINE U* at(float* x, int64_t vector) { return (U*)(x + vector * LANES); }

}  // namespace
}  // namespace statemix
