// Functions of vectors and rows, compiled once per instruction set: products of a matrix and a few
// vectors, RMS norm, the gated activation of an MLP and its gradient, and cross-entropy. With AVX-512,
// vectors have sixteen lanes.

#include <cmath>

#include "dense.hpp"
#include "lanes.hpp"

namespace statemix {
namespace {

STATEMIX_INLINE float sum_of(V v) {
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  return v[0];
}

// Dot products of ROWS rows of W with COUNT vectors of x: enough independent sums to hide the
// latency of an addition.
template <int ROWS, int COUNT>
STATEMIX_INLINE void dot_products(const float* W, const float* x, int64_t d, float* sums) {
  V partial[ROWS][COUNT] = {};
  int64_t k = 0;
  for (; k + LANES <= d; k += LANES)
    for (int i = 0; i < ROWS; ++i) {
      const V w = load(W + i * d + k);
      for (int b = 0; b < COUNT; ++b) partial[i][b] += w * load(x + b * d + k);
    }
  for (int i = 0; i < ROWS; ++i)
    for (int b = 0; b < COUNT; ++b) {
      float sum = sum_of(partial[i][b]);
      for (int64_t j = k; j < d; ++j) sum += W[i * d + j] * x[b * d + j];
      sums[i * COUNT + b] = sum;
    }
}

template <int ROWS, int COUNT>
STATEMIX_INLINE void some_rows(const float* W, const float* c, const float* x, float* y,
                               int64_t rows, int64_t d, int64_t i) {
  float sums[ROWS * COUNT];
  dot_products<ROWS, COUNT>(W + i * d, x, d, sums);
  for (int j = 0; j < ROWS; ++j)
    for (int b = 0; b < COUNT; ++b)
      y[b * rows + i + j] = sums[j * COUNT + b] + (c ? c[i + j] : 0.0f);
}

template <int COUNT>
void all_rows(const float* W, const float* c, const float* x, float* y, int64_t rows, int64_t d) {
  constexpr int ROWS = 8 / COUNT;
  int64_t i = 0;
  for (; i + ROWS <= rows; i += ROWS) some_rows<ROWS, COUNT>(W, c, x, y, rows, d, i);
  for (; i < rows; ++i) some_rows<1, COUNT>(W, c, x, y, rows, d, i);
}

// y = W x + c for B vectors, with W (rows, d), x (B, d), y (B, rows), and c or null for zero.
void multiply(const float* W, const float* c, const float* x, float* y, int64_t B, int64_t rows,
              int64_t d) {
  for (; B >= 4; B -= 4, x += 4 * d, y += 4 * rows) all_rows<4>(W, c, x, y, rows, d);
  for (; B >= 2; B -= 2, x += 2 * d, y += 2 * rows) all_rows<2>(W, c, x, y, rows, d);
  if (B) all_rows<1>(W, c, x, y, rows, d);
}

// y = w x / rms(x), for B vectors.
void rms_norm(const float* w, float epsilon, const float* x, float* y, int64_t B, int64_t d) {
  for (int64_t b = 0; b < B; ++b, x += d, y += d) {
    float square;
    dot_products<1, 1>(x, x, d, &square);
    const float scale = 1.0f / std::sqrt(square / d + epsilon);
    for (int64_t i = 0; i < d; ++i) y[i] = x[i] * scale * w[i];
  }
}

// Up to LANES numbers, in float32 or bfloat16; missing lanes are zero.
template <class T>
STATEMIX_INLINE V read(const T* x, int64_t count) {
  if (count >= LANES) return load(x);
  T some[LANES] = {};
  std::memcpy(some, x, sizeof(T) * count);
  return load(some);
}
template <class T>
STATEMIX_INLINE void write(V v, T* x, int64_t count) {
  if (count >= LANES) return store(x, v);
  T some[LANES];
  store(some, v);
  std::memcpy(x, some, sizeof(T) * count);
}

// y = silu(a) b.
template <class T>
void activate(const T* a, const T* b, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) {
    const V g = read(a + i, count - i);
    V open, closed;
    logistic(g, &open, &closed);
    write(g * open * read(b + i, count - i), y + i, count - i);
  }
}
void gated_activation(const void* a, const void* b, void* y, int64_t count, bool half) {
  half ? activate((const uint16_t*)a, (const uint16_t*)b, (uint16_t*)y, count)
       : activate((const float*)a, (const float*)b, (float*)y, count);
}

// da = σ(a) (1 + a σ(−a)) b dy,    db = silu(a) dy.
template <class T>
void activate_gradient(const T* a, const T* b, const T* dy, T* da, T* db, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) {
    const int64_t rest = count - i;
    const V g = read(a + i, rest), d = read(dy + i, rest);
    V open, closed;
    logistic(g, &open, &closed);
    write(open * (1.0f + g * closed) * read(b + i, rest) * d, da + i, rest);
    write(g * open * d, db + i, rest);
  }
}
void gated_activation_gradient(const void* a, const void* b, const void* dy, void* da, void* db,
                               int64_t count, bool half) {
  half ? activate_gradient((const uint16_t*)a, (const uint16_t*)b, (const uint16_t*)dy,
                           (uint16_t*)da, (uint16_t*)db, count)
       : activate_gradient((const float*)a, (const float*)b, (const float*)dy, (float*)da,
                           (float*)db, count);
}

// The largest entry of a row; NaN if an entry is.
template <class T>
float largest_of(const T* x, int64_t count) {
  V top = splat(-INFINITY);
  VI bad{};
  for (int64_t i = 0; i < count; i += LANES) {
    const V v = read(x + (i + LANES <= count || count < LANES ? i : count - LANES), count);
    top = larger(top, v);
    bad |= (VI)(v != v);
  }
  float most = -INFINITY;
  for (int64_t j = 0; j < (count < LANES ? count : LANES); ++j) {
    if (bad[j]) return NAN;
    most = top[j] > most ? top[j] : most;
  }
  return most;
}

// −log softmax(x)[target] of a row; with `gradient`, overwrites the row with softmax − onehot.
template <class T>
double loss_of(T* x, int64_t target, int64_t classes, bool gradient) {
  const float top = largest_of(x, classes), chosen = read(x + target, 1)[0];
  V totals{};
  for (int64_t i = 0; i < classes; i += LANES) {
    V e = exponential(read(x + i, classes - i) - top);
    for (int64_t j = classes - i; j < LANES; ++j) e[j] = 0;
    totals += e;
  }
  const float total = sum_of(totals);
  if (gradient) {
    const V scale = splat(1.0f / total);
    const V at_target = exponential(splat(chosen - top)) * scale - 1.0f;
    for (int64_t i = 0; i < classes; i += LANES)
      write(exponential(read(x + i, classes - i) - top) * scale, x + i, classes - i);
    write(at_target, x + target, 1);
  }
  return std::log((double)total) + top - chosen;
}

// The loss of a row of logits. If its target is `ignored`, loss and gradient are zero.
double cross_entropy(void* logits, int64_t target, int64_t classes, int64_t ignored, bool gradient,
                     bool half) {
  if (target == ignored) {
    if (gradient) std::memset(logits, 0, classes * (half ? sizeof(uint16_t) : sizeof(float)));
    return 0;
  }
  return half ? loss_of((uint16_t*)logits, target, classes, gradient)
              : loss_of((float*)logits, target, classes, gradient);
}

}  // namespace

Dense STATEMIX_DENSE() {
  return {&multiply, &rms_norm, &gated_activation, &gated_activation_gradient, &cross_entropy};
}

}  // namespace statemix
