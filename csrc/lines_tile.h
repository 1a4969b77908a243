// What a tile of a Lines task reads, and where: the rows of its bands, verticals and single distances, and the products
// with all of them.
#pragma once

#include "tiles.h"

namespace farspan::FARSPAN_ISA {
namespace {

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

}  // namespace
}  // namespace farspan::FARSPAN_ISA
