// What one tile of LANES queries computes: scores, softmax, sums over keys, sums over queries. Knows no support.
//
// Scores lie as [key][lane], so one load of a key serves all lanes, and maximum, exponential and sum run down columns.
// Included once by each file of kernels, inside no namespace; compiled for that file's instruction set.
#pragma once

#include "lines.h"
#include "simd.h"

namespace farspan::FARSPAN_ISA {
namespace {

using std::int32_t;
using std::int64_t;

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr int VECS = LANES / VL;  // vectors that hold one number per lane
constexpr float ONES[LANES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Register tiles: keys scored at a time, and vectors of columns mixed for four lanes at a time.
#if FARSPAN_VECTOR_LENGTH == 16
constexpr int KEYS = 12, COLUMNS = 4, SUM_KEYS = 6;
#elif FARSPAN_VECTOR_LENGTH == 8
constexpr int KEYS = 6, COLUMNS = 2, SUM_KEYS = 6;
#elif defined(__aarch64__)
constexpr int KEYS = 4, COLUMNS = 4, SUM_KEYS = 4;
#else
constexpr int KEYS = 2, COLUMNS = 2, SUM_KEYS = 4;
#endif

constexpr int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int padded(int n) { return (n + VL - 1) / VL * VL; }

void fill(float* p, float value, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = value;
}

void copy(float* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// Memory that the next tile will use. It is far apart, too many streams for the hardware to follow, and asking for all
// of it at once would stall: so the scores ask for two cache lines now and then.
struct Ahead {
  static constexpr int MOST = 4 * LANES;
  const char *from[MOST], *to[MOST];
  int regions = 0, next = 0;
  const char *at = nullptr, *end = nullptr;

  void clear() {
    regions = next = 0;
    at = end;
  }

  // `rows` rows of `bytes`, `stride` bytes apart.
  void add(const void* first, int64_t rows, int64_t stride, int64_t bytes) {
    const char* row = static_cast<const char*>(first);
    if (stride == bytes && rows > 0) {
      bytes *= rows;
      rows = 1;
    }
    for (; rows > 0 && regions < MOST; --rows, ++regions, row += stride) {
      from[regions] = row;
      to[regions] = row + bytes;
    }
  }

  void ask() {
    if (at >= end) {
      if (next == regions) return;
      at = from[next];
      end = to[next++];
    }
    __builtin_prefetch(at);
    __builtin_prefetch(at + 64);
    at += 128;
  }
};

// Scores of N keys for V vectors of lanes: s[key][lane] = sum over c of k[key][c] * qt[c][lane].
template <int V, int N>
void score_block(const float* qt, const float* k, int64_t ld, int dim, float* s, Ahead& ahead) {
  vec acc[N][V];
  FARSPAN_UNROLL for (int n = 0; n < N; ++n) FARSPAN_UNROLL for (int v = 0; v < V; ++v) acc[n][v] = vec{};
  for (int c = 0; c < dim; c += 4) {
    ahead.ask();
    // The keys of the next block.
    __builtin_prefetch(k + N * (ld + c));
    __builtin_prefetch(k + N * (ld + c + 2));
    FARSPAN_UNROLL for (int u = 0; u < 4; ++u) {
      vec q[V];
      FARSPAN_UNROLL for (int v = 0; v < V; ++v) {
        q[v] = load(qt + (c + u) * LANES + v * VL);
        FARSPAN_PIN(q[v]);
      }
      FARSPAN_UNROLL for (int n = 0; n < N; ++n) {
        const vec key = splat(k[n * ld + c + u]);
        FARSPAN_UNROLL for (int v = 0; v < V; ++v) acc[n][v] += q[v] * key;
      }
    }
  }
  FARSPAN_UNROLL for (int n = 0; n < N; ++n) FARSPAN_UNROLL for (int v = 0; v < V; ++v)
      store(s + n * LANES + v * VL, acc[n][v]);
}

template <int V, int N>
FARSPAN_INLINE void score_up_to(int n, const float* qt, const float* k, int64_t ld, int dim, float* s, Ahead& ahead) {
  if (n == N) return score_block<V, N>(qt, k, ld, dim, s, ahead);
  if constexpr (N > 1) score_up_to<V, N - 1>(n, qt, k, ld, dim, s, ahead);
}

template <int V>
void score(int n, const float* qt, const float* k, int64_t ld, int dim, float* s, Ahead& ahead) {
  // A block of one key would wait for its own sums: blocks of nearly equal size instead of a short last one.
  constexpr int most = V == VECS ? KEYS : 8;
  const int blocks = (n + most - 1) / most;
  for (int b = 0; b < blocks; ++b) {
    const int size = n / blocks + (b < n % blocks);
    score_up_to<V, most>(size, qt, k, ld, dim, s, ahead);
    k += size * ld;
    s += size * LANES;
  }
}

// Rows read in turn by L lanes: dense ones shared by all lanes, then single ones.
template <class E>
struct Rows {
  int dense;
  const float* weight;  // [dense][LANES], from the first of the L lanes
  const float* row;     // [dense] rows of stride ld
  int64_t ld;
  int singles;
  const float* single_weight;  // [singles][LANES]
  const typename E::type* const* single;
};

// to[lane] = (from[lane] * rescale[lane] + sum over rows of weight * row) * factor[lane]; `from` may be null.
struct Target {
  const float* from;
  int64_t ld_from;
  const float* rescale;
  float* const* to;
  const float* factor;
};

template <int L, int N, bool PART, class E>
FARSPAN_INLINE void mix_block(const Rows<E>& rows, const Target& target, int c, int part) {
  vec acc[L][N];
  FARSPAN_UNROLL for (int l = 0; l < L; ++l) FARSPAN_UNROLL for (int n = 0; n < N; ++n) acc[l][n] =
      target.from ? load(target.from + l * target.ld_from + c + n * VL) * target.rescale[l] : vec{};
  const float* w = rows.weight;
  const float* row = rows.row + c;
  for (int r = 0; r < rows.dense; ++r, w += LANES, row += rows.ld) {
    vec x[N];
    __builtin_prefetch(row + N * VL);
    FARSPAN_UNROLL for (int n = 0; n < N; ++n) {
      x[n] = load(row + n * VL);
      FARSPAN_PIN(x[n]);
    }
    FARSPAN_UNROLL for (int l = 0; l < L; ++l) {
      const vec weight = splat(w[l]);
      FARSPAN_UNROLL for (int n = 0; n < N; ++n) acc[l][n] += weight * x[n];
    }
  }
  w = rows.single_weight;
  for (int r = 0; r < rows.singles; ++r, w += LANES) {
    vec x[N];
    FARSPAN_UNROLL for (int n = 0; n < N; ++n) {
      x[n] = PART ? load_part<E>(rows.single[r] + c, part) : E::load(rows.single[r] + c + n * VL);
      if constexpr (L > 1) FARSPAN_PIN(x[n]);
    }
    FARSPAN_UNROLL for (int l = 0; l < L; ++l) {
      const vec weight = splat(w[l]);
      FARSPAN_UNROLL for (int n = 0; n < N; ++n) acc[l][n] += weight * x[n];
    }
  }
  float* to[L];
  float factor[L];
  FARSPAN_UNROLL for (int l = 0; l < L; ++l) {
    to[l] = target.to[l] + c;
    factor[l] = target.factor[l];
  }
  FARSPAN_UNROLL for (int l = 0; l < L; ++l) FARSPAN_UNROLL for (int n = 0; n < N; ++n)
      store(to[l] + n * VL, acc[l][n] * factor[l]);
}

// Columns outside, groups of lanes inside: neighbouring groups read almost the same rows, and a few columns of those
// stay in the L1 cache.
template <int L, class E>
void mix(int groups, const Rows<E>* rows, const Target* target, int dim) {
  constexpr int N = L > 2 ? COLUMNS : L == 2 ? 2 * COLUMNS : 4 * COLUMNS;
  int c = 0;
  for (; c + N * VL <= dim; c += N * VL)
    for (int g = 0; g < groups; ++g) mix_block<L, N, false>(rows[g], target[g], c, 0);
  for (; c + VL <= dim; c += VL)
    for (int g = 0; g < groups; ++g) mix_block<L, 1, false>(rows[g], target[g], c, 0);
  if (c < dim)
    for (int g = 0; g < groups; ++g) mix_block<L, 1, true>(rows[g], target[g], c, dim - c);
}

template <class E>
void mix_lanes(int lanes, const Rows<E>& rows, const Target& target, int dim) {
  switch (lanes) {
    case 1: return mix<1>(1, &rows, &target, dim);
    case 2: return mix<2>(1, &rows, &target, dim);
    case 3: return mix<3>(1, &rows, &target, dim);
    default: return mix<4>(1, &rows, &target, dim);
  }
}

// out[key][lane] = q[lane] . k[key] for H lanes and K keys of their own.
template <int H, int K, class E>
FARSPAN_INLINE void dot_block(const float* const* q, const typename E::type* const* key, int dim, float* out) {
  vec acc[8];
  FARSPAN_UNROLL for (int i = 0; i < 8; ++i) acc[i] = vec{};
  int c = 0;
  for (; c + VL <= dim; c += VL) {
    vec x[K];
    FARSPAN_UNROLL for (int n = 0; n < K; ++n) {
      x[n] = E::load(key[n] + c);
      if constexpr (H > 1) FARSPAN_PIN(x[n]);
    }
    FARSPAN_UNROLL for (int h = 0; h < H; ++h) {
      const vec query = load(q[h] + c);
      FARSPAN_UNROLL for (int n = 0; n < K; ++n) acc[n * H + h] += query * x[n];
    }
  }
  if (c < dim) {
    FARSPAN_UNROLL for (int n = 0; n < K; ++n) {
      const vec x = load_part<E>(key[n] + c, dim - c);
      FARSPAN_UNROLL for (int h = 0; h < H; ++h) acc[n * H + h] += load(q[h] + c) * x;
    }
  }
  float sums[8];
  sums_of_eight(acc, sums);
  FARSPAN_UNROLL for (int n = 0; n < K; ++n) __builtin_memcpy(out + n * LANES, sums + n * H, H * sizeof(float));
}

// `key` and the rows of `out` may be used up to the next multiple of eight.
template <class E>
void dots(int heads, const float* const* q, int keys, const typename E::type* const* key, int dim, float* out) {
  switch (heads) {
    case 1:
      for (int n = 0; n < keys; n += 8) dot_block<1, 8, E>(q, key + n, dim, out + n * LANES);
      return;
    case 2:
      for (int n = 0; n < keys; n += 4) dot_block<2, 4, E>(q, key + n, dim, out + n * LANES);
      return;
    case 3:
      for (int n = 0; n < keys; n += 2) dot_block<3, 2, E>(q, key + n, dim, out + n * LANES);
      return;
    default:
      for (int n = 0; n < keys; n += 2) dot_block<4, 2, E>(q, key + n, dim, out + n * LANES);
  }
}

// out[key] += sum over lanes first..last of weight[key][lane] * row[lane], for K keys and N vectors of columns.
template <int K, int N>
FARSPAN_INLINE void sum_block(const float* w, int first, int last, const float* const* row, int64_t ld, int c,
                              float* out) {
  out += c;
  vec acc[K][N];
  FARSPAN_UNROLL for (int k = 0; k < K; ++k) FARSPAN_UNROLL for (int n = 0; n < N; ++n)
      acc[k][n] = load(out + k * ld + n * VL);
  for (int l = first; l < last; ++l) {
    vec x[N];
    FARSPAN_UNROLL for (int n = 0; n < N; ++n) {
      x[n] = load(row[l] + c + n * VL);
      FARSPAN_PIN(x[n]);
    }
    FARSPAN_UNROLL for (int k = 0; k < K; ++k) {
      const vec weight = splat(w[k * LANES + l]);
      FARSPAN_UNROLL for (int n = 0; n < N; ++n) acc[k][n] += weight * x[n];
    }
  }
  FARSPAN_UNROLL for (int k = 0; k < K; ++k) FARSPAN_UNROLL for (int n = 0; n < N; ++n)
      store(out + k * ld + n * VL, acc[k][n]);
}

template <int K>
void sum_up_to(int keys, const float* w, int first, int last, const float* const* row, int64_t ld, float* out) {
  if constexpr (K > 1)
    if (keys < K) return sum_up_to<K - 1>(keys, w, first, last, row, ld, out);
  int c = 0;
  for (; c + COLUMNS * VL <= ld; c += COLUMNS * VL) sum_block<K, COLUMNS>(w, first, last, row, ld, c, out);
  for (; c < ld; c += VL) sum_block<K, 1>(w, first, last, row, ld, c, out);
}

// target[single] += sum over L lanes of weight[single][lane] * row[lane]: rows of their own in the gradients of keys.
template <int L, int N>
FARSPAN_INLINE void scatter_block(int singles, const float* w, const float* const* row, float* const* target, int c) {
  vec x[L][N];
  FARSPAN_UNROLL for (int l = 0; l < L; ++l) FARSPAN_UNROLL for (int n = 0; n < N; ++n)
      x[l][n] = load(row[l] + c + n * VL);
  for (int s = 0; s < singles; ++s, w += LANES) {
    vec acc[N];
    FARSPAN_UNROLL for (int n = 0; n < N; ++n) acc[n] = load(target[s] + c + n * VL);
    FARSPAN_UNROLL for (int l = 0; l < L; ++l) {
      const vec weight = splat(w[l]);
      FARSPAN_UNROLL for (int n = 0; n < N; ++n) acc[n] += weight * x[l][n];
    }
    FARSPAN_UNROLL for (int n = 0; n < N; ++n) store(target[s] + c + n * VL, acc[n]);
  }
}

template <int L>
void scatter(int singles, const float* w, const float* const* row, int64_t ld, float* const* target) {
  constexpr int N = L > 2 ? 2 : L == 2 ? 4 : 8;
  int c = 0;
  for (; c + N * VL <= ld; c += N * VL) scatter_block<L, N>(singles, w, row, target, c);
  for (; c < ld; c += VL) scatter_block<L, 1>(singles, w, row, target, c);
}

void scatter_lanes(int lanes, int singles, const float* w, const float* const* row, int64_t ld,
                   float* const* target) {
  switch (lanes) {
    case 1: return scatter<1>(singles, w, row, ld, target);
    case 2: return scatter<2>(singles, w, row, ld, target);
    case 3: return scatter<3>(singles, w, row, ld, target);
    default: return scatter<4>(singles, w, row, ld, target);
  }
}
// What a tile knows of its softmax so far, one number per lane.
struct Stats {
  float top[LANES];    // the largest score
  float total[LANES];  // the sum of the weights
  float dot[LANES];    // backward: the sum of weights times gradients of probabilities

  void clear() {
    fill(top, -INF, LANES);
    fill(total, 0.0f, LANES);
    fill(dot, 0.0f, LANES);
  }
};
// Weights of R rows of scores, for the first V vectors of lanes.
template <int R, int V, bool BACKWARD>
FARSPAN_INLINE void soften_rows(float* s, const float* d, float scale, const vec* shift, vec* sum, vec* dot) {
  vec w[R * V];
  // The difference first: a product rounded on its own would be off by more than one where scores are huge.
  FARSPAN_UNROLL for (int i = 0; i < R * V; ++i) w[i] =
      (load(s + i / V * LANES + i % V * VL) - shift[i % V]) * scale;
  exp2<R * V>(w);
  FARSPAN_UNROLL for (int i = 0; i < R * V; ++i) store(s + i / V * LANES + i % V * VL, w[i]);
  FARSPAN_UNROLL for (int i = 0; i < R * V; ++i) sum[i % V] += w[i];
  if constexpr (BACKWARD)
    FARSPAN_UNROLL for (int i = 0; i < R * V; ++i) dot[i % V] += w[i] * load(d + i / V * LANES + i % V * VL);
}

// Weights exp2(scale * (s - top)) in place of scores, counted in `stats`; `rescale` is what to multiply earlier results
// with. In the backward, `d` holds the gradients of the probabilities.
template <int V, bool BACKWARD>
void soften_lanes(int rows, float* s, const float* d, float scale, Stats& stats, float* rescale) {
  vec most[V], sum[V], dot[V], shift[V], factor[V];
  FARSPAN_UNROLL for (int v = 0; v < V; ++v) most[v] = load(stats.top + v * VL);
  for (int r = 0; r < rows; ++r)
    FARSPAN_UNROLL for (int v = 0; v < V; ++v) most[v] = max(load(s + r * LANES + v * VL), most[v]);
  FARSPAN_UNROLL for (int v = 0; v < V; ++v) {
    // A query without keys so far has only -inf: its weights must come out 0 and not NaN.
    shift[v] = select(most[v] == -INF, vec{}, most[v]);
    sum[v] = dot[v] = vec{};
  }
  constexpr int R = V > 1 ? 2 : 4;
  int r = 0;
  for (; r + R <= rows; r += R) soften_rows<R, V, BACKWARD>(s + r * LANES, d + r * LANES, scale, shift, sum, dot);
  for (; r < rows; ++r) soften_rows<1, V, BACKWARD>(s + r * LANES, d + r * LANES, scale, shift, sum, dot);
  FARSPAN_UNROLL for (int v = 0; v < V; ++v) factor[v] = (load(stats.top + v * VL) - shift[v]) * scale;
  exp2<V>(factor);
  FARSPAN_UNROLL for (int v = 0; v < V; ++v) {
    store(rescale + v * VL, factor[v]);
    store(stats.top + v * VL, most[v]);
    store(stats.total + v * VL, load(stats.total + v * VL) * factor[v] + sum[v]);
    if constexpr (BACKWARD) store(stats.dot + v * VL, load(stats.dot + v * VL) * factor[v] + dot[v]);
  }
}

template <bool BACKWARD>
void soften(int lanes, int rows, float* s, const float* d, float scale, Stats& stats, float* rescale) {
  // A decoding step has few lanes: the other vectors keep what they hold, which nobody reads.
  if (VECS > 1 && lanes <= VL) return soften_lanes<1, BACKWARD>(rows, s, d, scale, stats, rescale);
  soften_lanes<VECS, BACKWARD>(rows, s, d, scale, stats, rescale);
}
// Probabilities in place of weights, and the gradients of the scores times `scale` in place of `d`. The gradient of lse
// joins in because d lse / d score is the probability.
void slope(int rows, float* s, float* d, float scale, const Stats& stats, const float* grad_lse) {
  vec inverse[VECS], delta[VECS];
  FARSPAN_UNROLL for (int v = 0; v < VECS; ++v) {
    const vec sum = load(stats.total + v * VL);
    inverse[v] = select(sum == 0.0f, vec{}, 1.0f / sum);
    delta[v] = load(stats.dot + v * VL) * inverse[v] - load(grad_lse + v * VL);
  }
  for (int r = 0; r < rows; ++r)
    FARSPAN_UNROLL for (int v = 0; v < VECS; ++v) {
      const int64_t at = r * LANES + v * VL;
      const vec p = load(s + at) * inverse[v];
      store(s + at, p);
      store(d + at, p * ((load(d + at) - delta[v]) * scale));
    }
}

}  // namespace
}  // namespace farspan::FARSPAN_ISA
