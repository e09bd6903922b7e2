// All kernels for one instruction set. The build compiles this file once per instruction set, with
// its flags and STATEMIX_TARGET.

#include "kernels.hpp"

#include "block.hpp"
#include "companion.hpp"
#include "sweep.hpp"
#include "table.hpp"

namespace statemix {
namespace {

// A lower bound for the time of any kernel: a loop that reads `reads` and writes `writes` groups of
// eight numbers per step, at ascending addresses.
void move_vectors(const float* src, int64_t reads, float* dst, int64_t writes, int64_t steps) {
  constexpr int WAYS = 4;  // independent sums, so that no addition waits for the previous one
  for (int64_t step = 0; step < steps; ++step, src += reads * GROUP, dst += writes * GROUP) {
    V sum[WAYS] = {};
    int64_t i = 0;
    for (; i + WAYS * WIDTH <= reads; i += WAYS * WIDTH)
      for (int way = 0; way < WAYS; ++way) sum[way] += load(src + i * GROUP + way * LANES);
    V total = sum[0] + sum[1] + sum[2] + sum[3];
    for (; i < reads; ++i) {
      const float* const same[] = {src + i * GROUP, src + i * GROUP};
      total += load_groups(same, 0);
    }
    for (i = 0; i + WIDTH <= writes; i += WIDTH) store(dst + i * GROUP, total);
    if (i < writes) std::memcpy(dst + i * GROUP, &total, sizeof(float) * GROUP);
  }
}

template <template <int, Kind> class Scan, int M, Kind KIND>
Functions functions() {
  return {&Sweep<Scan<M, KIND>>::forward, &Sweep<Scan<M, KIND>>::backward, &move_vectors,
          &Table<M>::weights, &Table<M>::gradient};
}

template <template <int, Kind> class Scan, int M>
Functions by_kind(int32_t gate) {
  if (gate == STATEMIX_GIVEN) return functions<Scan, M, Kind::given>();
  if (gate == STATEMIX_SOFTMAX) return functions<Scan, M, Kind::softmax>();
  if (gate == STATEMIX_WEIGHTS) return functions<Scan, M, Kind::weights>();
  if (gate == STATEMIX_ODDS) return functions<Scan, M, Kind::odds>();
  if (gate == STATEMIX_HARDMAX) return functions<Scan, M, Kind::hardmax>();
  return functions<Scan, M <= 4 ? M : 0, Kind::other>();  // for size: row_weights takes most of its time
}

template <template <int, Kind> class Scan>
Functions by_size([[maybe_unused]] int32_t m, int32_t gate) {
#if !defined(STATEMIX_UNSPECIALISED)
  switch (m) {
    case 1: return by_kind<Scan, 1>(gate);
    case 2: return by_kind<Scan, 2>(gate);
    case 3: return by_kind<Scan, 3>(gate);
    case 4: return by_kind<Scan, 4>(gate);
    case 5: return by_kind<Scan, 5>(gate);
    case 6: return by_kind<Scan, 6>(gate);
    case 8: return by_kind<Scan, 8>(gate);
    case 16: return by_kind<Scan, 16>(gate);
    default: break;
  }
#endif
  return by_kind<Scan, 0>(gate);
}

}  // namespace

Functions STATEMIX_TARGET(bool block, int32_t m, int32_t gate) {
  return block ? by_size<Block>(m, gate) : by_size<Companion>(m, gate);
}

}  // namespace statemix
