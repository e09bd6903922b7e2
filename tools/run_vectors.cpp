// Runs a compiled library on the calls that `write_vectors.py` wrote, and compares the results.
//
//   run_vectors LIBRARY FILE
//
// The library and the results may come from different processors: rounding differs, nothing else.

#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "statemix/kernels/cpu/scan.hpp"

using Floats = std::vector<float>;

constexpr double TOLERANCE = 1e-5;  // of the norm of the difference, relative to the norm

static FILE* file;

static bool read(void* to, size_t bytes) { return std::fread(to, 1, bytes, file) == bytes; }

static Floats read_floats() {
  int64_t count = 0;
  if (!read(&count, sizeof count)) std::exit(2);
  Floats values(count);
  if (!read(values.data(), count * sizeof(float))) std::exit(2);
  return values;
}

static double difference(const Floats& ours, const Floats& theirs) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    error += std::pow((double)ours[i] - theirs[i], 2);
    norm += std::pow((double)theirs[i], 2);
  }
  return std::sqrt(error / (norm > 0 ? norm : 1));
}

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  file = std::fopen(arguments[2], "rb");
  if (!library || !file) {
    std::printf("cannot open: %s\n", library ? arguments[2] : dlerror());
    return 2;
  }
  const auto forward = (int (*)(const statemix_scan*, int))dlsym(library, "statemix_forward");
  const auto backward =
      (int (*)(const statemix_scan_gradient*, int))dlsym(library, "statemix_backward");
  int calls = 0, wrong = 0;
  double worst = 0;
  for (int64_t head[9]; read(head, sizeof head); ++calls) {
    const auto [B, T, n, S, m, gate, reverse, block, masked] = head;
    const Floats X = read_floats(), x = read_floats(), h0 = read_floats();
    const Floats h = read_floats(), final = read_floats(), dh = read_floats();
    const Floats dfinal = read_floats(), dX = read_floats(), dx = read_floats();
    const Floats dh0 = read_floats();
    std::vector<uint8_t> mask(B * T);
    if (masked && !read(mask.data(), mask.size())) return 2;
    std::vector<int64_t> bounds;
    for (int64_t s = 0; s <= S; ++s) bounds.push_back(s * T);
    Floats our_h(h.size()), our_final(final.size()), our_dX(dX.size()), our_dx(dx.size());
    Floats our_dh0(dh0.size());
    statemix_scan scan{};
    scan.B = B, scan.T = T, scan.n = n, scan.S = S;
    scan.m = (int32_t)m, scan.gate = (int32_t)gate, scan.reverse = (int32_t)reverse;
    scan.threads = 2;
    scan.bounds = bounds.data();
    scan.mask = masked ? mask.data() : nullptr;
    scan.X = X.data(), scan.x = x.data(), scan.h0 = h0.data();
    scan.h = our_h.data(), scan.final = our_final.data();
    int failed = forward(&scan, (int)block);
    statemix_scan_gradient gradient{};
    gradient.scan = scan;
    gradient.scan.h = const_cast<float*>(h.data());
    gradient.dh = dh.data(), gradient.dfinal = dfinal.data();
    gradient.dX = our_dX.data(), gradient.dx = our_dx.data(), gradient.dh0 = our_dh0.data();
    failed += backward(&gradient, (int)block);
    const double errors[] = {difference(our_h, h), difference(our_final, final),
                             difference(our_dX, dX), difference(our_dx, dx),
                             difference(our_dh0, dh0)};
    for (double error : errors) {
      worst = error > worst ? error : worst;
      failed += !(error <= TOLERANCE);
    }
    if (failed) {
      ++wrong;
      std::printf("block %d, m %d, gate %d: h %.1e, final %.1e, dX %.1e, dx %.1e, dh0 %.1e\n",
                  (int)block, (int)m, (int)gate, errors[0], errors[1], errors[2], errors[3],
                  errors[4]);
    }
  }
  std::printf("%d calls, %d differ; the largest relative difference is %.1e\n", calls, wrong,
              worst);
  return wrong > 0 || calls == 0;
}
