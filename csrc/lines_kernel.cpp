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

#include "lines_tile.h"

namespace farspan::FARSPAN_ISA {
namespace {

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
        store(inverse + u * VL, select(sum == 0.0f, vec{}, 1.0f / sum));
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
        store(lse + u * VL, select(sum == 0.0f, splat(-INF), select(sum == sum, value, sum)));
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
