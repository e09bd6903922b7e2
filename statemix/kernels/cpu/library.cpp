// The exported functions: information about the library, and the scans, which run in parallel over
// sequences and groups.
//
// Each group of each sequence is computed independently, in an order that does not depend on the
// number of threads. The results are therefore bitwise the same for any number of threads.

#include <atomic>
#include <cstdlib>
#include <vector>

#include "kernels.hpp"
#include "threads.hpp"

#if defined(STATEMIX_X86)
#include "processor.hpp"
#endif

#define STATEMIX_EXPORT extern "C" __attribute__((visibility("default")))

namespace statemix {
namespace {

enum class Target { generic, avx2, avx512 };

Target best_target() {
#if defined(STATEMIX_X86)
  if (has_avx512()) return Target::avx512;
  if (has_avx2()) return Target::avx2;
#endif
  return Target::generic;
}

const Target target = best_target();

Functions choose(bool block, int32_t m, int32_t gate) {
#if defined(STATEMIX_X86)
  if (target == Target::avx512) return target_avx512(block, m, gate);
  if (target == Target::avx2) return target_avx2(block, m, gate);
#endif
  return target_generic(block, m, gate);
}

// Below this number of entries in X, a second thread costs more time than it saves.
constexpr int64_t SERIAL_SIZE = 1 << 15;

struct Parts {
  int64_t groups;  // groups of eight blocks
  int64_t chunks;  // ranges into which the groups of a sequence are divided
  int threads;
};

Parts divide(const statemix_scan& a, bool block) {
  Parts parts{(a.n + LANES - 1) / LANES, 1, 1};
  const int64_t size = a.B * a.T * a.n * (a.m + 1) * (block ? a.m : 1);
  if (size < SERIAL_SIZE || a.threads < 2 || a.S == 0) return parts;
  parts.threads = a.threads;
  if (a.rows || a.S % a.threads != 0)
    parts.chunks = a.threads < parts.groups ? a.threads : parts.groups;
  return parts;
}

// Number of scratch vectors of a task: states and their gradients for all groups, X and dX for one.
int64_t scratch_size(const statemix_scan& a, bool block, int64_t groups) {
  return 2 * groups * a.m + 2 * (int64_t)(block ? a.m : 1) * (a.m + 2) + 1;
}

// The positions of the real steps of all sequences, concatenated, in the order of the scan.
struct RealSteps {
  std::vector<int64_t> positions, offsets;

  explicit RealSteps(const statemix_scan& a) {
    if (!a.mask) return;
    offsets.push_back(0);
    for (int64_t s = 0; s < a.S; ++s) {
      const Span span{a.bounds[s], a.bounds[s + 1], a.reverse != 0, nullptr, 0};
      for (int64_t step = 0; step < span.length(); ++step)
        if (a.mask[span.at(step)]) positions.push_back(span.at(step));
      offsets.push_back((int64_t)positions.size());
    }
  }

  Span span(const statemix_scan& a, int64_t s) const {
    if (!a.mask) return {a.bounds[s], a.bounds[s + 1], a.reverse != 0, nullptr, 0};
    return {a.bounds[s], a.bounds[s + 1], a.reverse != 0, positions.data() + offsets[s],
            offsets[s + 1] - offsets[s]};
  }
};

// A task is a range of groups of one sequence. If steps share rows of gradients, it is a range of
// groups of all sequences, which are computed one after the other.
template <class Arguments, class Function>
int run(const statemix_scan& a, const Arguments& arguments, bool block, Function function) {
  const Parts parts = divide(a, block);
  const int64_t together = a.rows ? a.S : 1, tasks = a.S / together * parts.chunks;
  const size_t bytes = sizeof(V) * scratch_size(a, block, parts.groups);
  const RealSteps real(a);
  std::atomic<int64_t> next{0};
  std::atomic<int> failed{0};
  const auto work = [&] {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) {
      failed = 1;
      return;
    }
    for (int64_t task = next++; task < tasks; task = next++) {
      const int64_t first = task / parts.chunks * together, chunk = task % parts.chunks;
      for (int64_t s = first; s < first + together; ++s)
        function(arguments, s, real.span(a, s), parts.groups * chunk / parts.chunks,
                 parts.groups * (chunk + 1) / parts.chunks, (V*)memory);
    }
    std::free(memory);
  };
  run_on(parts.threads, work);
  return failed;
}

}  // namespace
}  // namespace statemix

using namespace statemix;

// Increased with every change of a signature; the loader rejects a library of any other version.
STATEMIX_EXPORT int statemix_abi_version() { return 7; }

// The instruction set that the kernels use on this processor.
STATEMIX_EXPORT const char* statemix_instruction_set() {
  return target == Target::avx512 ? "avx512" : target == Target::avx2 ? "avx2" : "generic";
}

// Work on the threads of an OpenMP runtime from now on, or on the library's own if it is null.
STATEMIX_EXPORT void statemix_use_openmp(OpenMP runtime) { openmp = runtime; }

STATEMIX_EXPORT int statemix_max_size() { return STATEMIX_MAX_SIZE; }

// Both return 0, or 1 if scratch memory could not be allocated.
STATEMIX_EXPORT int statemix_forward(const statemix_scan* a, int block) {
  return run(*a, *a, block != 0, choose(block != 0, a->m, a->gate).forward);
}

STATEMIX_EXPORT int statemix_backward(const statemix_scan_gradient* a, int block) {
  return run(a->scan, *a, block != 0, choose(block != 0, a->scan.m, a->scan.gate).backward);
}

// A lower bound for the time of any kernel: see `move_vectors`.
STATEMIX_EXPORT void statemix_move(const float* src, int64_t reads, float* dst, int64_t writes,
                                   int64_t steps) {
  choose(true, 1, STATEMIX_GIVEN).move(src, reads, dst, writes, steps);
}
