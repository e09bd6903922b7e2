// A tile: the gates of one step and one group of eight blocks, in either memory order.
//
// A kernel reads the gates of a row as consecutive vectors, and its driver (v or b) as one more
// vector. In lane order, a tile is read in place; in logical order, it is first converted to lanes.

#pragma once

#include "kernels.hpp"
#include "lanes.hpp"

// These templates are compiled once per instruction set. The unnamed namespace keeps the linker
// from merging the copies.
namespace statemix {
namespace {

enum class Kind { given, weights, softmax, odds, hardmax, other };

// The rows are coefficients, and the driver is added without a factor.
constexpr bool normalised(Kind kind) { return kind == Kind::given || kind == Kind::weights; }

// The number of stored gates of a row; coefficients and odds store no input gate.
constexpr int stored(Kind kind, int m) {
  return m + (!normalised(kind) && kind != Kind::odds);
}

// The groups that a vector holds. With sixteen lanes, a last group without a neighbour is its own:
// the upper lanes then compute and write the same numbers again.
struct Groups {
  int64_t of[WIDTH];
  STATEMIX_INLINE Groups make(int64_t first, int64_t last_group) {
    Groups g;
    for (int w = 0; w < WIDTH; ++w) g.of[w] = first + w < last_group ? first + w : first;
    return g;
  }
};

// The number of lanes of a group that belong to one of the n blocks.
STATEMIX_INLINE int64_t lanes_of(int64_t n, int64_t group) {
  return n - group * GROUP < GROUP ? n - group * GROUP : GROUP;
}

// The items of some groups in a tensor (.., n, count) from number `first` on.
template <class T>
STATEMIX_INLINE Items<T> items(T* x, int64_t first, int64_t n, const Groups& g, int count) {
  Items<T> found;
  for (int w = 0; w < WIDTH; ++w) {
    found.group[w] = x + (first + g.of[w] * GROUP) * count;
    found.present[w] = lanes_of(n, g.of[w]);
  }
  return found;
}

// Loads the states of groups of one sequence from (S, n, m), or zero if `states` is null.
template <int M>
STATEMIX_INLINE void load_state(const float* states, int64_t sequence, int64_t n, const Groups& g,
                                int m, V* out) {
  if (states)
    to_lanes<M>(items(states, sequence * n, n, g, m), m, out);
  else
    for (int i = 0; i < m; ++i) out[i] = V{};
}

template <int M>
STATEMIX_INLINE void store_state(float* states, int64_t sequence, int64_t n, const Groups& g,
                                 int m, const V* state) {
  from_lanes<M>(state, m, items(states, sequence * n, n, g, m));
}

// Rows of gates, `step` vectors apart, and their drivers, `driver_step` vectors apart, to read and
// to write.
struct Tile {
  Source gates, drivers;
  int64_t step, driver_step;
};
struct TileOut {
  Sink gates, drivers;
  int64_t step, driver_step;
};

STATEMIX_INLINE const uint16_t* half_at(const void* x, int64_t number) {
  return (const uint16_t*)x + number;
}
STATEMIX_INLINE uint16_t* half_at(void* x, int64_t number) { return (uint16_t*)x + number; }

// Rows of memory that a later step reads and writes, to be prefetched. Large tiles are prefetched row
// by row: all at once, the misses would fill the queues of the cache.
struct Ahead {
  const char *read, *write;
  int64_t size;  // bytes of a row; zero for no prefetch

  __attribute__((always_inline)) void all(int rows) const {
    if (WIDTH == 1) fetch(0, rows * size);
  }
  __attribute__((always_inline)) void row(int i) const {
    if (WIDTH == 2) fetch(i * size, (i + 1) * size);
  }

 private:
  __attribute__((always_inline)) void fetch(int64_t first, int64_t last) const {
    constexpr int64_t LINE = 64;  // bytes of a cache line
    for (int64_t at = first; at < last; at += LINE) {
      __builtin_prefetch(read + at);
      if (WIDTH == 2 && write) __builtin_prefetch(write + at, 1);
    }
  }
};

// `count` vectors in scratch memory, the groups of each `count` vectors apart.
STATEMIX_INLINE Sink sink(V* scratch, int count) {
  Sink found;
  for (int w = 0; w < WIDTH; ++w) found.of[w] = (float*)scratch + w * count * GROUP;
  return found;
}
STATEMIX_INLINE Source source(const V* scratch, int count) {
  Source found;
  for (int w = 0; w < WIDTH; ++w) found.of[w] = (const float*)scratch + w * count * GROUP;
  return found;
}

// Where the vectors of some groups begin in lane order, `count` vectors for each group of a step
// whose first group has number `first`.
template <class T>
struct Streams {
  T* of[WIDTH];
};
template <class T>
STATEMIX_INLINE Streams<T> streams(T* x, int64_t first, const Groups& g, int count) {
  Streams<T> found;
  for (int w = 0; w < WIDTH; ++w) found.of[w] = x + (first + g.of[w]) * count * GROUP;
  return found;
}
STATEMIX_INLINE Sink sink(void* x, int64_t first, const Groups& g, int count) {
  Sink found;
  for (int w = 0; w < WIDTH; ++w) found.of[w] = (float*)x + (first + g.of[w]) * count * GROUP;
  return found;
}

// `count` vectors in lane order, in place or converted from bfloat16 in `scratch`.
STATEMIX_INLINE Source source(const void* x, int64_t first, const Groups& g, int count, bool half,
                              V* scratch) {
  if (half) {
    const auto src = streams((const uint16_t*)x, first, g, count);
    const Sink wide = sink(scratch, count);
    for (int i = 0; i < count; ++i) wide.put(i, load_groups(src.of, i * GROUP));
    return source(scratch, count);
  }
  Source found;
  for (int w = 0; w < WIDTH; ++w)
    found.of[w] = (const float*)x + (first + g.of[w]) * count * GROUP;
  return found;
}

// `count` vectors in lane order: in place if a vector is one group of float32, or in `scratch`.
STATEMIX_INLINE const U* vectors(const void* x, int64_t first, const Groups& g, int count,
                                 bool half, V* scratch) {
  if (half) {
    const auto src = streams((const uint16_t*)x, first, g, count);
    for (int i = 0; i < count; ++i) scratch[i] = load_groups(src.of, i * GROUP);
    return (const U*)scratch;
  }
  const auto src = streams((const float*)x, first, g, count);
  if (WIDTH == 1) return (const U*)src.of[0];
  for (int i = 0; i < count; ++i) scratch[i] = load_groups(src.of, i * GROUP);
  return (const U*)scratch;
}

// Writes `count` vectors in lane order.
template <class Src>
STATEMIX_INLINE void write_vectors(void* x, int64_t first, const Groups& g, int count, bool half,
                                   Src v) {
  if (half) {
    const auto dst = streams((uint16_t*)x, first, g, count);
    for (int i = 0; i < count; ++i) store_groups(dst.of, i * GROUP, v[i]);
  } else {
    const auto dst = streams((float*)x, first, g, count);
    for (int i = 0; i < count; ++i) store_groups(dst.of, i * GROUP, v[i]);
  }
}

// Converts `count` numbers between bfloat16 and float32.
__attribute__((noinline)) void widen(const uint16_t* src, int64_t count, float* dst) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(dst + i, load(src + i));
  for (; i < count; ++i) {
    const uint32_t bits = (uint32_t)src[i] << 16;
    std::memcpy(dst + i, &bits, sizeof bits);
  }
}
__attribute__((noinline)) void narrow(const float* src, int64_t count, uint16_t* dst) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(dst + i, load(src + i));
  if (i == count) return;
  float rest[LANES] = {};
  uint16_t bits[LANES];
  std::memcpy(rest, src + i, sizeof(float) * (count - i));
  store(bits, load(rest));
  std::memcpy(dst + i, bits, sizeof(uint16_t) * (count - i));
}

// Converts the `count` entries of the items of some groups in a tensor (.., n, count), from item
// number `first` on, to `count` vectors. `raw` has space for them in float32.
template <int COUNT, class Dst>
STATEMIX_INLINE void read_lanes(const void* x, int64_t first, int64_t n, const Groups& g, int count,
                                bool half, V* raw, Dst dst) {
  if (!half) return to_lanes<COUNT>(items((const float*)x, first, n, g, count), count, dst);
  const auto src = items((const uint16_t*)x, first, n, g, count);
  Items<const float> wide;
  for (int w = 0; w < WIDTH; ++w) {
    float* place = (float*)raw + w * count * GROUP;
    widen(src.group[w], count * src.present[w], place);
    wide.group[w] = place;
    wide.present[w] = src.present[w];
  }
  to_lanes<COUNT>(wide, count, dst);
}

template <int COUNT, class Src>
STATEMIX_INLINE void write_lanes(Src src, int64_t n, const Groups& g, int count, bool half,
                                 V* raw, void* x, int64_t first) {
  if (!half) return from_lanes<COUNT>(src, count, items((float*)x, first, n, g, count));
  const auto dst = items((uint16_t*)x, first, n, g, count);
  Items<float> wide;
  for (int w = 0; w < WIDTH; ++w) {
    wide.group[w] = (float*)raw + w * count * GROUP;
    wide.present[w] = dst.present[w];
  }
  from_lanes<COUNT>(src, count, wide);
  for (int w = 0; w < WIDTH; ++w)
    narrow(wide.group[w], count * wide.present[w], dst.group[w]);
}

}  // namespace
}  // namespace statemix
