// Attention over Lines for one query block of one key head; compiled once for each instruction set.
//
// A tile is LANES queries: `positions` neighbouring positions times the heads that share a key head. What a tile reads
// is dense (the keys of a band or of a group of verticals, scored for all lanes at once) or single (for each position
// its own row at each distance, shared by the heads). A step is at most one dense part and one group of singles; its
// scores lie in the L1 cache as [key][lane], so maximum, exponential and sum run down columns. With more than one step
// the softmax goes on from the maximum and sum so far.
//
// The backward computes the probabilities again. Gradients of keys gather in the task's own memory
// and are added to the result when it is the task's turn, so the order of additions does not depend on the threads.

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

// Consecutive queries of a task, and the first key that each may read.
struct Tile {
  int64_t row, first, last;  // first query row; positions of the first and the last query
  int positions;
  int64_t from[LANES], from_least, from_most;
};

Tile make_tile(const LinesCall& call, const Task& task, int64_t row) {
  Tile tile;
  tile.row = row;
  tile.positions = static_cast<int>(lesser(task.plan->positions, task.end - row));
  tile.first = row + call.k_len - call.q_len;
  tile.last = tile.first + tile.positions - 1;
  tile.from_least = call.start ? call.k_len : 0;
  tile.from_most = 0;
  for (int i = 0; i < tile.positions; ++i) {
    tile.from[i] = call.start ? greater(0, call.start[task.batch * call.q_len + row + i]) : 0;
    tile.from_least = lesser(tile.from_least, tile.from[i]);
    tile.from_most = greater(tile.from_most, tile.from[i]);
  }
  return tile;
}

// Keys that all lanes of a tile score: rows of a band, or a group of verticals.
struct Dense {
  const Band* band;         // null for verticals
  const int32_t* vertical;  // null for a band
  int64_t key;              // position of row 0 of a band
  int64_t rows;
  const float *k, *v;
  int64_t ld_k, ld_v;
  float *grad_k, *grad_v;
};

struct Step {
  bool has_dense;
  Dense dense;
  int singles;
  const int32_t* single;
};

// The part of a step that one tile reads.
struct Part {
  int dense;        // rows of scores from the dense part
  int64_t row, key;  // first dense row, and its position in a band
  int singles;       // rows of scores from single distances: the most over the positions
  int single[LANES];
};

int dense_parts(const Plan& plan) { return plan.bands + (plan.verticals + MAX_DENSE - 1) / MAX_DENSE; }

int steps_of(const Plan& plan) {
  const int groups = plan.single_step ? (plan.singles + plan.single_step - 1) / plan.single_step : 0;
  return static_cast<int>(greater(1, greater(dense_parts(plan), groups)));
}

int64_t dense_rows(const Plan& plan) {
  int64_t most = lesser(plan.verticals, MAX_DENSE);
  for (int b = 0; b < plan.bands; ++b) most = greater(most, plan.band[b].hi - plan.band[b].lo - 1 + plan.block);
  return most;
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

// The workspace of a task, in floats.
struct Workspace {
  float *q, *q_t, *scores, *dense_k, *dense_v, *state, *dummy, *zeros;
  Stats* stats;
  float *g, *g_t, *products, *grad_k, *grad_v, *saved;
  int64_t size;

  Workspace(float* base, const LinesCall& call, const Plan& plan, bool backward) : size(0) {
    const auto take = [&](int64_t floats) {
      float* p = base + size;
      size += (floats + 15) / 16 * 16;
      return p;
    };
    const int dim = padded(call.dim), value_dim = padded(call.value_dim);
    const int64_t tiles = plan.block / plan.positions, states = steps_of(plan) > 1 ? tiles : 1;
    const int64_t score_rows = MAX_DENSE + LANES + plan.single_step + 8, rows = dense_rows(plan);
    q = take(LANES * dim);
    q_t = take(LANES * dim);
    scores = take(score_rows * LANES);
    dense_k = take(rows * dim);
    dense_v = take(rows * value_dim);
    state = take(states * LANES * (backward ? dim : value_dim));
    stats = reinterpret_cast<Stats*>(take(states * static_cast<int64_t>(sizeof(Stats) / sizeof(float))));
    dummy = take(greater(dim, value_dim));
    zeros = take(greater(dim, value_dim));
    if (!backward) return;
    g = take(LANES * value_dim);
    g_t = take(LANES * value_dim);
    products = take(score_rows * LANES);
    grad_k = take(rows * dim);
    grad_v = take(rows * value_dim);
    saved = take(tiles * 2 * plan.single_step * LANES);
  }
};

template <class E>
const typename E::type* head_of(const Strided& x, int64_t batch, int64_t head) {
  return static_cast<const typename E::type*>(x.data) + batch * x.batch + head * x.head;
}

// Rows widened to float and padded with zeros to whole vectors.
template <class E>
void copy_rows(const typename E::type* from, int64_t stride, int64_t rows, int dim, float* to) {
  const int ld = padded(dim);
  for (int64_t r = 0; r < rows; ++r, from += stride, to += ld) {
    // Rows of one head can lie pages apart, where the hardware does not look ahead.
    if (rows > 8)
      for (int64_t b = 0; b < dim * static_cast<int64_t>(sizeof(*from)); b += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(from + 8 * stride) + b);
    int c = 0;
    for (; c + VL <= dim; c += VL) store(to + c, E::load(from + c));
    if (c < dim) store(to + c, load_part<E>(from + c, dim - c));
  }
}

template <class E>
constexpr bool in_place(int dim) {
  return sizeof(typename E::type) == sizeof(float) && dim % VL == 0;
}

// The rows of a tile, one per lane, as floats padded to whole vectors: where they lie if that will do, else copied to
// `copies`. Lanes without a query read `zeros`. And transposed, where `transposed` is not null.
template <class E>
void load_lanes(const Strided& x, const Task& task, const Tile& tile, int dim, float* copies, const float* zeros,
                const float** lane, float* transposed) {
  const int heads = task.plan->heads, ld = padded(dim), lanes = tile.positions * heads;
  for (int h = 0; h < heads; ++h) {
    const auto* from = head_of<E>(x, task.batch, task.head[h]) + tile.row * x.row;
    for (int i = 0; i < tile.positions; ++i, from += x.row) {
      const int l = i * heads + h;
      if (in_place<E>(dim)) {
        lane[l] = reinterpret_cast<const float*>(from);
      } else {
        copy_rows<E>(from, x.row, 1, dim, copies + l * ld);
        lane[l] = copies + l * ld;
      }
    }
  }
  for (int l = lanes; l < LANES; ++l) lane[l] = zeros;
  if (transposed) transpose<LANES>(lane, ld, transposed);
}

// The rows of k or v of a task's key head, which lie in the tensor or, as floats, in a packed copy.
template <class K>
struct KeyRows {
  const typename K::type* data;
  int64_t stride;
  bool packed;
};

template <class K>
KeyRows<K> key_rows(const Strided& x, const Task& task, const float* packed, int dim) {
  if (packed) return {reinterpret_cast<const typename K::type*>(packed), padded(dim), true};
  return {head_of<K>(x, task.batch, task.kv_head), x.row, false};
}

// Rows for the dense part: in place if they lie as the kernel wants them, else copied.
template <class K>
const float* dense_operand(const KeyRows<K>& x, const Dense& dense, int dim, float* copy, int64_t& ld) {
  ld = padded(dim);
  if (!dense.band) {
    for (int64_t r = 0; r < dense.rows; ++r)
      copy_rows<K>(x.data + dense.vertical[r] * x.stride, x.stride, 1, dim, copy + r * ld);
    return copy;
  }
  if constexpr (sizeof(typename K::type) == sizeof(float))
    if (x.stride == ld && (x.packed || dim == ld)) return x.data + dense.key * x.stride;
  copy_rows<K>(x.data + dense.key * x.stride, x.stride, dense.rows, dim, copy);
  return copy;
}

template <class K>
Step make_step(const LinesCall& call, const Task& task, const KeyRows<K>& k, const KeyRows<K>& v, int number,
               const Workspace& space) {
  const Plan& plan = *task.plan;
  Step step{};
  const int group = number * plan.single_step;
  step.singles = static_cast<int>(greater(0, lesser(plan.single_step, plan.singles - group)));
  step.single = plan.single + group;
  step.has_dense = number < dense_parts(plan);
  if (!step.has_dense) return step;
  Dense& dense = step.dense;
  const int64_t offset = call.k_len - call.q_len, last = task.end - 1 + offset;
  if (number < plan.bands) {
    dense.band = plan.band + number;
    dense.key = greater(0, task.row + offset - (dense.band->hi - 1));
    dense.rows = last - dense.band->lo - dense.key + 1;
  } else {
    const int first = (number - plan.bands) * MAX_DENSE;
    dense.vertical = plan.vertical + first;
    dense.rows = lesser(MAX_DENSE, plan.verticals - first);
    while (dense.rows > 0 && dense.vertical[dense.rows - 1] > last) --dense.rows;
  }
  if (dense.rows <= 0) {
    step.has_dense = false;
    return step;
  }
  dense.k = dense_operand<K>(k, dense, call.dim, space.dense_k, dense.ld_k);
  dense.v = dense_operand<K>(v, dense, call.value_dim, space.dense_v, dense.ld_v);
  return step;
}

Part part_of(const Step& step, const Tile& tile) {
  Part part{};
  if (step.has_dense) {
    const Dense& dense = step.dense;
    if (dense.band) {
      part.key = greater(tile.from_least, tile.first - (dense.band->hi - 1));
      part.row = part.key - dense.key;
      part.dense = static_cast<int>(greater(0, tile.last - dense.band->lo - part.key + 1));
    } else {
      part.dense = static_cast<int>(dense.rows);
    }
  }
  for (int i = 0; i < tile.positions; ++i) {
    const int64_t furthest = tile.first + i - tile.from[i];
    int n = step.singles;
    while (n > 0 && step.single[n - 1] > furthest) --n;
    part.single[i] = n;
    part.singles = static_cast<int>(greater(part.singles, n));
  }
  return part;
}

// Pointers to the rows that one position reads at single distances, padded to a multiple of eight.
template <class T>
void single_rows(const Step& step, const Part& part, const Tile& tile, int i, T* base, int64_t stride, T** rows) {
  const int n = part.single[i];
  for (int s = 0; s < n; ++s) rows[s] = base + (tile.first + i - step.single[s]) * stride;
  for (int s = n; s < (n + 7) / 8 * 8; ++s) rows[s] = rows[n - 1];
}

// What the tile after this one will use: its rows of q and of `y`, and the keys that come into reach of a band.
template <class E, class K>
void look_ahead(const LinesCall& call, const Task& task, const Step& step, const Tile& tile, const Strided& y,
                int y_dim, const KeyRows<K>& k, const KeyRows<K>& v, Ahead& ahead) {
  constexpr int64_t size = sizeof(typename E::type);
  ahead.clear();
  const int64_t n = lesser(tile.positions, task.end - tile.row - tile.positions);
  const int64_t row = tile.row + tile.positions, first = tile.first + tile.positions;
  for (int h = 0; h < task.plan->heads; ++h) {
    const int head = task.head[h];
    ahead.add(head_of<E>(call.q, task.batch, head) + row * call.q.row, n, call.q.row * size, call.dim * size);
    ahead.add(head_of<E>(y, task.batch, head) + row * y.row, n, y.row * size, y_dim * size);
  }
  if (!step.has_dense || !step.dense.band) return;
  const int64_t key = first - step.dense.band->lo;
  constexpr int64_t key_size = sizeof(typename K::type);
  ahead.add(k.data + key * k.stride, n, k.stride * key_size, call.dim * key_size);
  ahead.add(v.data + key * v.stride, n, v.stride * key_size, call.value_dim * key_size);
}

// Products of the queries (or gradients) of a tile with all rows of k (or v) that it reads; `x` holds the single rows.
template <class K>
void products(const Plan& plan, const Step& step, const Part& part, const Tile& tile, const float* const* lane,
              const float* transposed, int dim, const float* dense, int64_t ld, const KeyRows<K>& x, float* s,
              Ahead& ahead) {
  const int heads = plan.heads, columns = padded(dim);
  if (part.dense) {
    const float* k = dense + part.row * ld;
    int before = 0, after = 0;
    if constexpr (VECS == 2) {
      // The oldest keys of a band are out of reach for the second half of 16 positions, the newest for the first.
      if (const Band* band = step.dense.band; band && heads == 1) {
        before = static_cast<int>(lesser(part.dense, greater(0, tile.first - (band->hi - 1) + VL - part.key)));
        after = static_cast<int>(
            lesser(part.dense - before, greater(0, part.key + part.dense - (tile.first - band->lo + VL))));
      }
      score<1>(before, transposed, k, ld, columns, s, ahead);
      for (int r = 0; r < before; ++r) store(s + r * LANES + VL, vec{});
      const int newest = part.dense - after;
      score<1>(after, transposed + VL, k + newest * ld, ld, columns, s + newest * LANES + VL, ahead);
      for (int r = newest; r < part.dense; ++r) store(s + r * LANES, vec{});
    }
    score<VECS>(part.dense - before - after, transposed, k + before * ld, ld, columns, s + before * LANES, ahead);
  }
  if (!part.singles) return;
  s += part.dense * LANES;
  // Not every position has a row at every distance; what is not computed must still be a number.
  fill(s, 0.0f, part.singles * LANES);
  const typename K::type* row[MAX_SINGLES + 8];
  for (int i = 0; i < tile.positions; ++i) {
    if (!part.single[i]) continue;
    single_rows(step, part, tile, i, x.data, x.stride, row);
    for (int h = 0; h < heads; h += 4) {
      const int l = i * heads + h;
      dots<K>(heads - h, lane + l, part.single[i], row, dim, s + l);
    }
  }
}

void forbid(float* s, const Plan& plan, int i) {
  for (int l = i * plan.heads; l < (i + 1) * plan.heads; ++l) s[l] = -INF;
}

// Sets to -inf the scores of pairs outside the support.
void mask(const Plan& plan, const Step& step, const Part& part, const Tile& tile, float* s) {
  if (part.dense && step.dense.band) {
    const Band& band = *step.dense.band;
    int64_t index = tile.first - part.key - band.lo + plan.positions - 1;
    for (int r = 0; r < part.dense; ++r, --index)
      if (!band.whole[index])
        FARSPAN_UNROLL for (int v = 0; v < VECS; ++v) {
          float* p = s + r * LANES + v * VL;
          store(p, load(p) + load(band.mask + index * LANES + v * VL));
        }
    for (int r = 0; r < lesser(part.dense, tile.from_most - part.key); ++r)
      for (int i = 0; i < tile.positions; ++i)
        if (part.key + r < tile.from[i]) forbid(s + r * LANES, plan, i);
  } else if (part.dense) {
    for (int r = 0; r < part.dense; ++r) {
      const int64_t key = step.dense.vertical[r];
      for (int i = 0; i < tile.positions; ++i) {
        const int64_t distance = tile.first + i - key;
        if (distance < 0 || key < tile.from[i] || (plan.slash_bits[distance >> 6] >> (distance & 63) & 1))
          forbid(s + r * LANES, plan, i);
      }
    }
  }
  s += part.dense * LANES;
  for (int i = 0; i < tile.positions; ++i)
    for (int r = part.single[i]; r < part.singles; ++r) forbid(s + r * LANES, plan, i);
}

// to = from * rescale + weights @ rows for all lanes of a tile; `from` is null in the first step. May use `state`.
template <class K>
void mix_tile(const Plan& plan, const Step& step, const Part& part, const Tile& tile, const float* weights, int dim,
              const float* dense, int64_t ld, const KeyRows<K>& x, const float* from,
              const float* rescale, float* state, float* const* to, const float* factor) {
  const int heads = plan.heads, lanes = tile.positions * heads, ld_state = padded(dim);
  const float* single_weights = weights + part.dense * LANES;
  const typename K::type* row[4][MAX_SINGLES + 8];
  float* states[LANES];
  // Four lanes that share a position read its single rows as well; else those come first, position by position.
  const bool together = heads % 4 == 0;
  const bool apart = !together && part.singles;
  if (apart) {
    const bool more = part.dense > 0;
    for (int l = 0; l < LANES; ++l) states[l] = state + l * ld_state;
    for (int i = 0; i < tile.positions; ++i) {
      single_rows(step, part, tile, i, x.data, x.stride, row[0]);
      for (int h = 0; h < heads; h += 4) {
        const int lane = i * heads + h;
        const Rows<K> rows{0, nullptr, nullptr, 0, part.single[i], single_weights + lane, row[0]};
        const Target target{from ? from + lane * ld_state : nullptr, ld_state, rescale + lane,
                            (more ? states : to) + lane, (more ? ONES : factor) + lane};
        mix_lanes<K>(heads - h, rows, target, dim);
      }
    }
    if (!more) return;
    from = state;
    rescale = ONES;
  }
  Rows<K> rows[LANES / 4];
  Target targets[LANES / 4];
  int groups = 0;
  for (int lane = 0; lane < lanes; lane += 4, ++groups) {
    const int i = plan.position[lane], last = plan.position[lesser(lanes - 1, lane + 3)];
    Rows<K>& group = rows[groups] = {part.dense, weights + lane, nullptr, ld, 0, single_weights + lane, nullptr};
    if (part.dense) {
      int64_t r = 0;
      if (const Band* band = step.dense.band) {
        r = greater(0, tile.first + i - (band->hi - 1) - part.key);
        group.dense = static_cast<int>(lesser(part.dense, tile.first + last - band->lo - part.key + 1) - r);
      }
      group.weight += r * LANES;
      group.row = dense + (part.row + r) * ld;
    }
    if (together) {
      if (lane == i * heads) single_rows(step, part, tile, i, x.data, x.stride, row[i]);
      group.singles = part.single[i];
      group.single = row[i];
    }
    targets[groups] = {from ? from + lane * ld_state : nullptr, ld_state, rescale + lane, to + lane, factor + lane};
  }
  mix<4>(groups, rows, targets, dim);
}

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

// Where the lanes of a tile put their results of `dim` columns: straight into `x` where that is possible, else into
// `state`; lanes without a query into `dummy`.
template <class E>
void results(const Strided& x, const Task& task, const Tile& tile, int dim, bool final, float* state, float* dummy,
             float** to) {
  const int heads = task.plan->heads, lanes = tile.positions * heads, ld = padded(dim);
  if (final && in_place<E>(dim)) {
    for (int h = 0; h < heads; ++h) {
      float* row = static_cast<float*>(x.data) + task.batch * x.batch + task.head[h] * x.head + tile.row * x.row;
      for (int l = h; l < lanes; l += heads, row += x.row) to[l] = row;
    }
  } else {
    for (int l = 0; l < lanes; ++l) to[l] = state + l * ld;
  }
  for (int l = lanes; l < LANES; ++l) to[l] = dummy;
}

// Copies finished rows from `state` to `x`, where they did not go straight there.
template <class E>
void deliver(const Strided& x, const Task& task, const Tile& tile, int dim, const float* state) {
  if (in_place<E>(dim)) return;
  const int heads = task.plan->heads;
  for (int i = 0; i < tile.positions; ++i)
    for (int h = 0; h < heads; ++h) {
      const float* from = state + (i * heads + h) * padded(dim);
      auto* to = static_cast<typename E::type*>(x.data) + task.batch * x.batch + task.head[h] * x.head +
                 (tile.row + i) * x.row;
      int c = 0;
      for (; c + VL <= dim; c += VL) E::store(to + c, load(from + c));
      if (c < dim) store_part<E>(to + c, load(from + c), dim - c);
    }
}

// Queries that stand before the first key read nothing: zeros, and lse = -inf. Returns the first row of the others.
template <class E>
int64_t skip_rows(const LinesCall& call, const Task& task, const Strided& x, int dim, float* lse) {
  const int64_t first = lesser(task.end, greater(task.row, call.q_len - call.k_len));
  for (int h = 0; h < task.plan->heads; ++h)
    for (int64_t row = task.row; row < first; ++row) {
      auto* to = static_cast<typename E::type*>(x.data) + task.batch * x.batch + task.head[h] * x.head + row * x.row;
      for (int c = 0; c < dim; ++c) to[c] = 0;
      if (lse) lse[(task.batch * call.heads + task.head[h]) * call.q_len + row] = -INF;
    }
  return first;
}

template <class E, class K>
void forward_task(const LinesCall& call, const Task& given, float* memory) {
  const Plan& plan = *given.plan;
  const Workspace space(memory, call, plan, false);
  fill(space.zeros, 0.0f, greater(padded(call.dim), padded(call.value_dim)));
  Task task = given;
  task.row = skip_rows<E>(call, given, call.out, call.value_dim, call.lse);
  if (task.row == task.end) return;
  const int steps = steps_of(plan), heads = plan.heads, ld = padded(call.value_dim);
  const auto k = key_rows<K>(call.k, task, task.packed_k, call.dim);
  const auto v = key_rows<K>(call.v, task, task.packed_v, call.value_dim);
  Ahead ahead;
  for (int number = 0; number < steps; ++number) {
    const Step step = make_step<K>(call, task, k, v, number, space);
    const bool final = number + 1 == steps;
    for (int64_t row = task.row; row < task.end; row += plan.positions) {
      const Tile tile = make_tile(call, task, row);
      const Part part = part_of(step, tile);
      const int64_t slot = steps > 1 ? (row - task.row) / plan.positions : 0;
      float* state = space.state + slot * LANES * ld;
      Stats& stats = space.stats[slot];
      if (number == 0) stats.clear();
      const float* q[LANES];
      load_lanes<E>(call.q, task, tile, call.dim, space.q, space.zeros, q, part.dense ? space.q_t : nullptr);
      look_ahead<E, K>(call, task, step, tile, call.out, call.value_dim, k, v, ahead);
      products<K>(plan, step, part, tile, q, space.q_t, call.dim, step.dense.k, step.dense.ld_k, k,
                  space.scores, ahead);
      mask(plan, step, part, tile, space.scores);
      float rescale[LANES], inverse[LANES];
      soften<false>(tile.positions * heads, part.dense + part.singles, space.scores, space.scores, call.scale * LOG2_E, stats, rescale);
      FARSPAN_UNROLL for (int u = 0; u < VECS; ++u) {
        const vec sum = load(stats.total + u * VL);
        store(inverse + u * VL, select(sum > 0.0f, 1.0f / sum, vec{}));
      }
      float* to[LANES];
      results<E>(call.out, task, tile, call.value_dim, final, state, space.dummy, to);
      mix_tile<K>(plan, step, part, tile, space.scores, call.value_dim, step.dense.v, step.dense.ld_v, v,
                  number ? state : nullptr, rescale, state, to, final ? inverse : ONES);
      if (!final) continue;
      deliver<E>(call.out, task, tile, call.value_dim, state);
      float lse[LANES];
      FARSPAN_UNROLL for (int u = 0; u < VECS; ++u) {
        const vec sum = load(stats.total + u * VL);
        const vec value = load(stats.top + u * VL) * call.scale + log2(max(sum, splat(1.0f))) * LN_2;
        store(lse + u * VL, select(sum == 0.0f, splat(-INF), value));
      }
      for (int h = 0; h < heads; ++h) {
        float* to_lse = call.lse + (task.batch * call.heads + task.head[h]) * call.q_len + row;
        for (int i = 0; i < tile.positions; ++i) to_lse[i] = lse[i * heads + h];
      }
    }
  }
}

// Adds weights^T @ rows of a tile to the task's own gradients of dense keys.
void sum_dense(const Plan& plan, const Step& step, const Part& part, const Tile& tile, const float* weights,
               const float* const* lane, int64_t ld, float* grad) {
  const int blocks = (part.dense + SUM_KEYS - 1) / SUM_KEYS;
  grad += part.row * ld;
  for (int b = 0, r = 0; b < blocks; ++b) {
    const int keys = part.dense / blocks + (b < part.dense % blocks);
    int64_t first = 0, last = tile.positions - 1;
    if (const Band* band = step.dense.band) {
      first = greater(first, part.key + r + band->lo - tile.first);
      last = lesser(last, part.key + r + keys - 1 + band->hi - 1 - tile.first);
    }
    sum_up_to<SUM_KEYS>(keys, weights + r * LANES, static_cast<int>(first) * plan.heads,
                        static_cast<int>(last + 1) * plan.heads, lane, ld, grad + r * ld);
    r += keys;
  }
}

// Adds the task's own gradients of dense keys to the result.
void add_dense(const Dense& dense, int64_t ld, const float* from, float* to) {
  for (int64_t r = 0; r < dense.rows; ++r) {
    float* target = to + (dense.band ? dense.key + r : dense.vertical[r]) * ld;
    for (int64_t c = 0; c < ld; c += VL) store(target + c, load(target + c) + load(from + r * ld + c));
  }
}

// Probabilities in place of weights, and the gradients of the scores times `scale` in place of `d`. The gradient of lse
// joins in because d lse / d score is the probability.
void slope(int rows, float* s, float* d, float scale, const Stats& stats, const float* grad_lse) {
  vec inverse[VECS], delta[VECS];
  FARSPAN_UNROLL for (int v = 0; v < VECS; ++v) {
    const vec sum = load(stats.total + v * VL);
    inverse[v] = select(sum > 0.0f, 1.0f / sum, vec{});
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

// Adds what the queries of a task give to the gradients of the rows they read at single distances.
template <class E>
void scatter_singles(const LinesCall& call, const Task& task, const Step& step, const Workspace& space, float* grad_k,
                     float* grad_v) {
  const Plan& plan = *task.plan;
  const int heads = plan.heads, ld_k = padded(call.dim), ld_v = padded(call.value_dim);
  const float* probability = space.saved;
  const float* gradient = probability + plan.single_step * LANES;
  float* target[MAX_SINGLES + 8];
  for (int64_t row = task.row; row < task.end; row += plan.positions) {
    const Tile tile = make_tile(call, task, row);
    const Part part = part_of(step, tile);
    const float *q[LANES], *g[LANES];
    load_lanes<E>(call.q, task, tile, call.dim, space.q, space.zeros, q, nullptr);
    load_lanes<E>(call.out, task, tile, call.value_dim, space.g, space.zeros, g, nullptr);
    for (int i = 0; i < tile.positions; ++i) {
      const int n = part.single[i];
      if (!n) continue;
      for (int h = 0; h < heads; h += 4) {
        const int lane = i * heads + h;
        single_rows(step, part, tile, i, grad_v, ld_v, target);
        scatter_lanes(heads - h, n, probability + lane, g + lane, ld_v, target);
        single_rows(step, part, tile, i, grad_k, ld_k, target);
        scatter_lanes(heads - h, n, gradient + lane, q + lane, ld_k, target);
      }
    }
    probability += 2 * plan.single_step * LANES;
    gradient += 2 * plan.single_step * LANES;
  }
}

template <class E, class K>
void backward_task(const LinesCall& call, const Task& given, float* memory) {
  const Plan& plan = *given.plan;
  const Workspace space(memory, call, plan, true);
  fill(space.zeros, 0.0f, greater(padded(call.dim), padded(call.value_dim)));
  Task task = given;
  const int heads = plan.heads, ld_k = padded(call.dim), ld_v = padded(call.value_dim);
  const Strided& grad_q = call.grad_q;
  task.row = skip_rows<E>(call, given, grad_q, call.dim, nullptr);
  const int64_t kv = (task.batch * call.kv_heads + task.kv_head) * call.k_len;
  float* const grad_k = call.grad_k + kv * ld_k;
  float* const grad_v = call.grad_v + kv * ld_v;
  const auto k = key_rows<K>(call.k, task, task.packed_k, call.dim);
  const auto v = key_rows<K>(call.v, task, task.packed_v, call.value_dim);
  const int steps = steps_of(plan);
  Ahead ahead;
  bool mine = false;
  const auto take_turn = [&] {
    if (mine) return;
    mine = true;
    wait_for_turn(task);
    fill(grad_k + task.zero * ld_k, 0.0f, (task.zero_end - task.zero) * ld_k);
    fill(grad_v + task.zero * ld_v, 0.0f, (task.zero_end - task.zero) * ld_v);
  };
  const bool two_passes = steps > 1;
  // With several steps the sums over all keys are needed before the gradients of any: one pass for each.
  for (int pass = two_passes ? 0 : 1; pass < 2 && task.row < task.end; ++pass)
    for (int number = 0; number < steps; ++number) {
      Step step = make_step<K>(call, task, k, v, number, space);
      const bool final = number + 1 == steps;
      if (pass == 1 && step.has_dense) {
        step.dense.grad_k = space.grad_k;
        step.dense.grad_v = space.grad_v;
        fill(space.grad_k, 0.0f, step.dense.rows * ld_k);
        fill(space.grad_v, 0.0f, step.dense.rows * ld_v);
      }
      int64_t count = 0;
      for (int64_t row = task.row; row < task.end; row += plan.positions, ++count) {
        const Tile tile = make_tile(call, task, row);
        const Part part = part_of(step, tile);
        const int64_t slot = two_passes ? count : 0;
        float* state = space.state + slot * LANES * ld_k;
        Stats& stats = space.stats[slot];
        const float *q[LANES], *g[LANES];
        load_lanes<E>(call.q, task, tile, call.dim, space.q, space.zeros, q, part.dense ? space.q_t : nullptr);
        load_lanes<E>(call.out, task, tile, call.value_dim, space.g, space.zeros, g, part.dense ? space.g_t : nullptr);
        look_ahead<E, K>(call, task, step, tile, call.out, call.value_dim, k, v, ahead);
        products<K>(plan, step, part, tile, q, space.q_t, call.dim, step.dense.k, step.dense.ld_k, k,
                    space.scores, ahead);
        mask(plan, step, part, tile, space.scores);
        products<K>(plan, step, part, tile, g, space.g_t, call.value_dim, step.dense.v, step.dense.ld_v, v,
                    space.products, ahead);
        const int rows = part.dense + part.singles;
        const bool counting = pass == 0 || !two_passes;
        if (counting && number == 0) stats.clear();
        // In the second pass the sums are known, and what is counted again goes nowhere.
        Stats counted = stats;
        float rescale[LANES];
        soften<true>(tile.positions * heads, rows, space.scores, space.products, call.scale * LOG2_E, counted, rescale);
        if (counting) stats = counted;
        if (pass == 0) continue;
        float grad_lse[LANES] = {};
        if (call.grad_lse)
          for (int h = 0; h < heads; ++h) {
            const float* from = call.grad_lse + (task.batch * call.heads + task.head[h]) * call.q_len + row;
            for (int i = 0; i < tile.positions; ++i) grad_lse[i * heads + h] = from[i];
          }
        slope(rows, space.scores, space.products, call.scale, stats, grad_lse);
        if (step.has_dense) {
          sum_dense(plan, step, part, tile, space.scores, g, ld_v, step.dense.grad_v);
          sum_dense(plan, step, part, tile, space.products, q, ld_k, step.dense.grad_k);
        }
        float* saved = space.saved + count * 2 * plan.single_step * LANES;
        copy(saved, space.scores + part.dense * LANES, part.singles * LANES);
        copy(saved + plan.single_step * LANES, space.products + part.dense * LANES, part.singles * LANES);
        float* to[LANES];
        results<E>(grad_q, task, tile, call.dim, final, state, space.dummy, to);
        mix_tile<K>(plan, step, part, tile, space.products, call.dim, step.dense.k, step.dense.ld_k, k,
                    number ? state : nullptr, ONES, state, to, ONES);
        if (final) deliver<E>(grad_q, task, tile, call.dim, state);
      }
      if (pass == 0) continue;
      take_turn();
      if (step.singles) scatter_singles<E>(call, task, step, space, grad_k, grad_v);
      if (step.has_dense) {
        add_dense(step.dense, ld_k, step.dense.grad_k, grad_k);
        add_dense(step.dense, ld_v, step.dense.grad_v, grad_v);
      }
    }
  take_turn();
}

std::int64_t workspace(const LinesCall& call, const Plan& plan, bool backward) {
  return Workspace(nullptr, call, plan, backward).size;
}

// `run` is called with the element types of queries and of keys.
template <class F>
void with_types(const LinesCall& call, const Task& task, F run) {
  const bool packed = task.packed_k;
  switch (call.dtype) {
    case DType::f32: return run(F32{}, F32{});
    case DType::bf16: return packed ? run(BF16{}, F32{}) : run(BF16{}, BF16{});
    case DType::f16: return packed ? run(F16{}, F32{}) : run(F16{}, F16{});
  }
}

void forward(const LinesCall& call, const Task& task, float* memory) {
  with_types(call, task, [&](auto q, auto k) { forward_task<decltype(q), decltype(k)>(call, task, memory); });
}

void backward(const LinesCall& call, const Task& task, float* memory) {
  with_types(call, task, [&](auto q, auto k) { backward_task<decltype(q), decltype(k)>(call, task, memory); });
}

template <class E>
void pack_rows(const LinesCall& call, int64_t batch, int64_t kv_head, float* k, float* v) {
  copy_rows<E>(head_of<E>(call.k, batch, kv_head), call.k.row, call.k_len, call.dim, k);
  copy_rows<E>(head_of<E>(call.v, batch, kv_head), call.v.row, call.k_len, call.value_dim, v);
}

void pack(const LinesCall& call, int64_t batch, int64_t kv_head, float* k, float* v) {
  switch (call.dtype) {
    case DType::f32: return pack_rows<F32>(call, batch, kv_head, k, v);
    case DType::bf16: return pack_rows<BF16>(call, batch, kv_head, k, v);
    case DType::f16: return pack_rows<F16>(call, batch, kv_head, k, v);
  }
}

#define FARSPAN_TEXT_OF(x) #x
#define FARSPAN_TEXT(x) FARSPAN_TEXT_OF(x)

}  // namespace

extern const Kernels kernels;
const Kernels kernels{FARSPAN_TEXT(FARSPAN_ISA), VL, workspace, forward, backward, pack};

}  // namespace farspan::FARSPAN_ISA
