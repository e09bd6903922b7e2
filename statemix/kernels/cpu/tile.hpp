// A tile: the gates of one step and one group of eight blocks, in either memory order.
//
// A kernel reads the gates of a row as consecutive vectors, and its driver (v or b) as one more
// vector. In lane order, a tile is read in place; in logical order, it is first converted to lanes.

#pragma once

#include "kernels.hpp"

// These templates are compiled once per instruction set. The unnamed namespace keeps the linker
// from merging the copies.
namespace statemix {
namespace {

enum class Kind { given, softmax, odds, hardmax, other };

// The number of stored gates of a row; given coefficients and odds store no input gate.
constexpr int stored(Kind kind, int m) {
  return m + (kind != Kind::given && kind != Kind::odds);
}

// The number of lanes of a group that belong to one of the n blocks.
STATEMIX_INLINE int64_t lanes_of(int64_t n, int64_t group) {
  return n - group * LANES < LANES ? n - group * LANES : LANES;
}

// Loads the state of a group of one sequence from (S, n, m), or zero if `states` is null.
template <int M>
STATEMIX_INLINE void load_state(const float* states, int64_t sequence, int64_t n, int64_t g, int m,
                                V* out) {
  if (states)
    to_lanes<M>(states + (sequence * n + g * LANES) * m, m, lanes_of(n, g), out);
  else
    for (int i = 0; i < m; ++i) out[i] = V{};
}

template <int M>
STATEMIX_INLINE void store_state(float* states, int64_t sequence, int64_t n, int64_t g, int m,
                                 const V* state) {
  from_lanes<M>(state, m, lanes_of(n, g), states + (sequence * n + g * LANES) * m);
}

// Rows of gates, `step` vectors apart, and their drivers, `driver_step` vectors apart, to read and
// to write. This is not a template over U, because a template argument loses the alignment
// attribute.
struct Tile {
  const U *gates, *drivers;
  int64_t step, driver_step;
};
struct TileOut {
  U *gates, *drivers;
  int64_t step, driver_step;
};

STATEMIX_INLINE const U* at(const float* x, int64_t vector) {
  return (const U*)(x + vector * LANES);
}
STATEMIX_INLINE U* at(float* x, int64_t vector) { return (U*)(x + vector * LANES); }

}  // namespace
}  // namespace statemix
