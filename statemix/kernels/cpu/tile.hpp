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

STATEMIX_INLINE const U* at(const void* x, int64_t vector) {
  return (const U*)((const float*)x + vector * LANES);
}
STATEMIX_INLINE U* at(void* x, int64_t vector) { return (U*)((float*)x + vector * LANES); }
STATEMIX_INLINE const uint16_t* half_at(const void* x, int64_t number) {
  return (const uint16_t*)x + number;
}
STATEMIX_INLINE uint16_t* half_at(void* x, int64_t number) { return (uint16_t*)x + number; }

// `count` vectors in lane order, from vector `first` of x on: in place, or converted to `scratch`.
STATEMIX_INLINE const U* vectors(const void* x, int64_t first, int count, bool half, V* scratch) {
  if (!half) return at(x, first);
  const uint16_t* src = half_at(x, first * LANES);
  for (int i = 0; i < count; ++i) scratch[i] = load(src + i * LANES);
  return (const U*)scratch;
}

// Converts the `count` entries of each of `present` items, from number `first` of x on, to `count`
// vectors. `raw` has space for them in float32.
template <int COUNT>
STATEMIX_INLINE void read_lanes(const void* x, int64_t first, int count, int64_t present, bool half,
                                V* raw, V* dst) {
  const float* src = (const float*)x + first;
  if (half) {
    widen(half_at(x, first), count * present, (float*)raw);
    src = (const float*)raw;
  }
  to_lanes<COUNT>(src, count, present, dst);
}

template <int COUNT>
STATEMIX_INLINE void write_lanes(const V* src, int count, int64_t present, bool half, V* raw,
                                 void* x, int64_t first) {
  from_lanes<COUNT>(src, count, present, half ? (float*)raw : (float*)x + first);
  if (half) narrow((const float*)raw, count * present, half_at(x, first));
}

}  // namespace
}  // namespace statemix
