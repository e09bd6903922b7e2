// The exported functions: information about the library, and the scans, which run in parallel over
// sequences and groups.
//
// Each group of each sequence is computed independently, in an order that does not depend on the
// number of threads. The results are therefore bitwise the same for any number of threads.

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "dense.hpp"
#include "kernels.hpp"
#include "threads.hpp"

#if defined(STATEMIX_X86)
#include "processor.hpp"
#endif

#define STATEMIX_EXPORT extern "C" __attribute__((visibility("default")))

namespace statemix {
namespace {

enum class Target { generic, avx2, avx512 };

// The best instruction set of this processor, or the one in STATEMIX_ISA if it is among them.
Target best_target() {
  [[maybe_unused]] const auto allowed = [](const char* name) {
    const char* wish = std::getenv("STATEMIX_ISA");
    return !wish || !*wish || std::strcmp(wish, name) == 0;
  };
#if defined(STATEMIX_X86)
  if (allowed("avx512") && has_avx512()) return Target::avx512;
  if (allowed("avx2") && has_avx2()) return Target::avx2;
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

Dense choose_dense() {
#if defined(STATEMIX_X86)
  if (target == Target::avx512) return dense_avx512();
  if (target == Target::avx2) return dense_avx2();
#endif
  return dense_generic();
}

constexpr int64_t GROUP = 8;          // blocks
constexpr size_t WIDEST_VECTOR = 64;  // bytes

int64_t groups_of(int64_t n) { return (n + GROUP - 1) / GROUP; }

// Below this number of entries in X, a second thread costs more time than it saves.
constexpr int64_t SERIAL_SIZE = 1 << 15;

struct Parts {
  int64_t groups;  // groups of eight blocks
  int64_t chunks;  // ranges into which the groups of a sequence are divided
  int threads;
};

Parts divide(const statemix_scan& a, bool block) {
  Parts parts{groups_of(a.n), 1, 1};
  const int64_t size = a.B * a.T * a.n * (a.m + 1) * (block ? a.m : 1);
  if (size < SERIAL_SIZE || a.threads < 2 || a.S == 0) return parts;
  parts.threads = a.threads;
  if (a.rows || a.S % a.threads != 0)
    parts.chunks = a.threads < parts.groups ? a.threads : parts.groups;
  return parts;
}

// Bytes of scratch memory of a task: vectors for states and their gradients of all groups, X and dX
// of one, and one of the two in bfloat16's order.
size_t scratch_size(const statemix_scan& a, bool block, int64_t groups) {
  return WIDEST_VECTOR * (2 * groups * a.m + 3 * (int64_t)(block ? a.m : 1) * (a.m + 2) + 1);
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

constexpr int64_t PART = 16;

// Calls `function` with ranges that cover 0 .. count − 1, and start at multiples of PART.
template <class Function>
void in_parts(int64_t count, int threads, Function function) {
  const int64_t size = (count + threads - 1) / threads, part = (size + PART - 1) / PART * PART;
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t first = next++ * part; first < count; first = next++ * part)
      function(first, first + part < count ? first + part : count);
  };
  run_on(threads, work);
}

// A task is a range of groups of one sequence. If steps share rows of gradients, it is a range of
// groups of all sequences, which are computed one after the other.
template <class Arguments, class Function>
int run(const statemix_scan& a, const Arguments& arguments, bool block, Function function) {
  const Parts parts = divide(a, block);
  const int64_t together = a.rows ? a.S : 1, tasks = a.S / together * parts.chunks;
  const size_t bytes = scratch_size(a, block, parts.groups);
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
                 parts.groups * (chunk + 1) / parts.chunks, memory);
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
STATEMIX_EXPORT int statemix_abi_version() { return 9; }

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

// The weights of a table of softmax gates, and the gradients of its gates: see `Table`.
STATEMIX_EXPORT void statemix_table_weights(const statemix_table* a) {
  const auto f = choose(true, a->m, STATEMIX_WEIGHTS).table_weights;
  in_parts(a->rows, a->threads, [&](int64_t first, int64_t last) { f(*a, first, last); });
}

STATEMIX_EXPORT void statemix_table_gradient(const statemix_table* a) {
  const auto f = choose(true, a->m, STATEMIX_WEIGHTS).table_gradient;
  in_parts(a->rows, a->threads, [&](int64_t first, int64_t last) { f(*a, first, last); });
}

// One step of decoding on one thread; returns 1 if scratch memory could not be allocated.
STATEMIX_EXPORT int statemix_decode(const statemix_step* a, int block) {
  const auto scan_step = choose(block != 0, a->m, a->gate).forward;
  const Dense f = choose_dense();
  const int64_t rows = a->n * (block ? a->m : 1), gates = rows * (a->m + 1), states = a->n * a->m;
  const int64_t widest = gates + 2 * rows > 2 * a->inner ? gates + 2 * rows : 2 * a->inner;
  const statemix_scan sizes{1, 1, a->n, 1, a->m, a->gate, 0, 1, 0, 0, nullptr, nullptr, nullptr,
                            nullptr, nullptr, nullptr, nullptr, nullptr};
  const int64_t groups = groups_of(a->n);
  const size_t scratch = scratch_size(sizes, block != 0, groups);
  std::unique_ptr<char, void (*)(void*)> memory(nullptr, std::free);
  void* start = nullptr;
  const size_t bytes = scratch + sizeof(float) * a->B * (a->d + widest);
  if (posix_memalign(&start, 64, bytes) != 0) return 1;
  memory.reset((char*)start);
  float* z = (float*)(memory.get() + scratch);  // (B, d): normalised inputs
  float* g = z + a->B * a->d;                   // (B, gates)
  float* v = g + a->B * gates;                  // (B, rows)
  float* h = v + a->B * rows;                   // (B, rows)
  if (a->norm) f.rms_norm(a->norm, a->epsilon, a->x, z, a->B, a->d);
  const float* x = a->norm ? z : a->x;
  f.multiply(a->W_g, a->c, x, g, a->B, gates, a->d);
  f.multiply(a->W_v, nullptr, x, v, a->B, rows, a->d);
  const statemix_scan scan{a->B, 1, a->n, a->B, a->m, a->gate, 0, 1, 0, 0, nullptr, nullptr,
                           nullptr, g, v, a->h0, h, a->h};
  for (int64_t b = 0; b < a->B; ++b)
    scan_step(scan, b, Span{b, b + 1, false, nullptr, 0}, 0, groups, start);
  f.multiply(a->W_o, nullptr, a->h, a->y, a->B, a->d, states);
  if (!a->norm) return 0;
  for (int64_t i = 0; i < a->B * a->d; ++i) a->y[i] += a->x[i];
  f.rms_norm(a->mlp_norm, a->mlp_epsilon, a->y, z, a->B, a->d);
  float* up = g + a->B * a->inner;
  f.multiply(a->W_1, nullptr, z, g, a->B, a->inner, a->d);
  f.multiply(a->W_3, nullptr, z, up, a->B, a->inner, a->d);
  f.gated_activation(g, up, g, a->B * a->inner, false);
  f.multiply(a->W_2, nullptr, g, z, a->B, a->d, a->inner);
  for (int64_t i = 0; i < a->B * a->d; ++i) a->y[i] += z[i];
  return 0;
}

// The gated activation of an MLP, y = silu(a) b, and its gradients.
STATEMIX_EXPORT void statemix_gated_activation(const void* a, const void* b, void* y, int64_t count,
                                               int half, int threads) {
  const auto f = choose_dense().gated_activation;
  const int64_t size = half ? sizeof(uint16_t) : sizeof(float);
  in_parts(count, threads, [&](int64_t first, int64_t last) {
    f((const char*)a + first * size, (const char*)b + first * size, (char*)y + first * size,
      last - first, half != 0);
  });
}

STATEMIX_EXPORT void statemix_gated_activation_gradient(const void* a, const void* b,
                                                        const void* dy, void* da, void* db,
                                                        int64_t count, int half, int threads) {
  const auto f = choose_dense().gated_activation_gradient;
  const int64_t size = half ? sizeof(uint16_t) : sizeof(float);
  in_parts(count, threads, [&](int64_t first, int64_t last) {
    const int64_t at = first * size;
    f((const char*)a + at, (const char*)b + at, (const char*)dy + at, (char*)da + at, (char*)db + at,
      last - first, half != 0);
  });
}

// The losses of rows of logits, summed in the order of rows: see `cross_entropy`.
STATEMIX_EXPORT double statemix_cross_entropy(void* logits, const int64_t* targets, int64_t rows,
                                              int64_t classes, int64_t ignored, int gradient,
                                              int half, int threads) {
  const auto f = choose_dense().cross_entropy;
  const int64_t size = classes * (half ? sizeof(uint16_t) : sizeof(float));
  std::vector<double> losses(rows);
  in_parts(rows, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      losses[row] = f((char*)logits + row * size, targets[row], classes, ignored, gradient != 0,
                      half != 0);
  });
  double sum = 0;
  for (double loss : losses) sum += loss;
  return sum;
}

// A lower bound for the time of any kernel: see `move_vectors`.
STATEMIX_EXPORT void statemix_move(const float* src, int64_t reads, float* dst, int64_t writes,
                                   int64_t steps) {
  choose(true, 1, STATEMIX_GIVEN).move(src, reads, dst, writes, steps);
}
