#include "lines.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_features.h"
#include "parallel.h"

namespace farspan {
namespace {

using Line = std::vector<std::int32_t>;

// Those that this CPU runs, the fastest first.
std::vector<const Kernels*> usable_kernels() {
  std::vector<const Kernels*> found;
#if defined(FARSPAN_X86_KERNELS)
  const auto sets = instruction_sets();
  for (const Kernels* kernels : {&avx512::kernels, &avx2::kernels})
    if (std::find(sets.begin(), sets.end(), kernels->name) != sets.end()) found.push_back(kernels);
#endif
  found.push_back(&baseline::kernels);
  return found;
}

std::atomic<const Kernels*>& chosen_kernels() {
  static std::atomic<const Kernels*> chosen{usable_kernels().front()};
  return chosen;
}

// A plan and the memory that it points into.
struct OwnedPlan {
  Plan plan{};
  std::vector<Band> bands;
  Line singles, verticals;
  std::vector<std::uint64_t> slash_bits;
  std::vector<float> masks;
  std::vector<std::uint8_t> whole;
};

// What reading one line costs a tile, in keys scored densely by all lanes: dense keys run at the speed of a matrix
// product, a single distance loads a row for each position. A band also scores keys beyond its ends.
struct Price {
  double single, edge;
};

Price price(int heads) {
  if (heads >= 4) return {1.5, 1.5};
  if (heads >= 2) return {2.0, 4.0};
  return {2.5, 5.0};
}

// The cheapest way to cut `slashes` into bands (returned) and singles (left in `singles`).
std::vector<std::pair<int, int>> cut(const Line& slashes, Price price, Line& singles) {
  const std::size_t n = slashes.size();
  // Least cost of the first i slashes, when the last of them is the end of a band, and of either kind.
  std::vector<double> best(n + 1, 0.0);
  std::vector<std::uint8_t> in_band(n + 1), extends(n + 1);
  double band = HUGE_VAL;
  for (std::size_t i = 1; i <= n; ++i) {
    const double extended = i > 1 ? band + (slashes[i - 1] - slashes[i - 2]) : HUGE_VAL;
    const double opened = best[i - 1] + price.edge + 1;
    extends[i] = extended <= opened;
    band = std::min(extended, opened);
    in_band[i] = band <= best[i - 1] + price.single;
    best[i] = std::min(band, best[i - 1] + price.single);
  }
  std::vector<std::pair<int, int>> bands;
  for (std::size_t i = n; i > 0;) {
    if (!in_band[i]) {
      singles.push_back(slashes[--i]);
      continue;
    }
    const int hi = slashes[i - 1] + 1;
    while (extends[i]) --i;
    bands.emplace_back(slashes[--i], hi);
  }
  std::reverse(singles.begin(), singles.end());
  std::reverse(bands.begin(), bands.end());
  return bands;
}

std::unique_ptr<OwnedPlan> make_plan(const LinesCall& call, const Line& slashes, const Line& verticals, int heads,
                                     bool backward) {
  auto owned = std::make_unique<OwnedPlan>();
  Plan& plan = owned->plan;
  plan.heads = heads;
  plan.positions = LANES / heads;
  for (int l = 0; l < LANES; ++l) plan.position[l] = l / heads;
  // With few queries most lanes of a dense tile would be idle: every key is then a row of its own.
  const bool few = call.q_len * heads < 12;
  // Dense operands, and in the backward their gradients, stay in a core's own cache.
  const int columns = (call.dim + call.value_dim) * (backward ? 2 : 1);
  const int rows = std::clamp((1 << 17) / columns, 96, MAX_DENSE + 128);
  const int widest = std::min(MAX_DENSE, rows / 2);
  plan.block = std::max(1, std::min(128, rows / 2) / plan.positions) * plan.positions;
  std::vector<std::pair<int, int>> ranges;
  if (few)
    owned->singles = slashes;
  else
    ranges = cut(slashes, price(heads), owned->singles);
  std::vector<std::pair<int, int>> bands;
  for (auto [lo, hi] : ranges)
    for (const int parts = (hi - lo + widest - 1) / widest, size = (hi - lo + parts - 1) / parts; lo < hi; lo += size)
      bands.emplace_back(lo, std::min(hi, lo + size));
  std::size_t entries = 0;
  for (const auto& [lo, hi] : bands) entries += hi - lo + plan.positions - 1;
  owned->masks.assign(entries * LANES, 0.0f);
  owned->whole.assign(entries, 1);
  std::size_t entry = 0;
  for (const auto& [lo, hi] : bands) {
    Band band{lo, hi, owned->masks.data() + entry * LANES, owned->whole.data() + entry};
    std::vector<std::uint8_t> member(hi - lo);
    for (auto d = std::lower_bound(slashes.begin(), slashes.end(), lo); d != slashes.end() && *d < hi; ++d)
      member[*d - lo] = 1;
    for (int i = 0; i < hi - lo + plan.positions - 1; ++i, ++entry)
      for (int position = 0; position < plan.positions; ++position) {
        const int distance = i - (plan.positions - 1) + position;
        if (distance >= 0 && distance < hi - lo && member[distance]) continue;
        owned->whole[entry] = 0;
        std::fill_n(owned->masks.begin() + entry * LANES + position * heads, heads, -HUGE_VALF);
      }
    owned->bands.push_back(band);
  }
  if (!verticals.empty()) {
    owned->slash_bits.assign(call.k_len / 64 + 1, 0);
    for (const auto d : slashes) owned->slash_bits[d >> 6] |= std::uint64_t{1} << (d & 63);
  }
  owned->verticals = verticals;
  plan.bands = static_cast<int>(owned->bands.size());
  plan.band = owned->bands.data();
  plan.singles = static_cast<int>(owned->singles.size());
  plan.single = owned->singles.data();
  plan.single_step = std::min(plan.singles, backward ? 32 : MAX_SINGLES);
  plan.verticals = static_cast<int>(verticals.size());
  plan.vertical = owned->verticals.data();
  plan.slash_bits = owned->slash_bits.data();
  return owned;
}

Line line_of(const LineTable& table, std::int64_t batch, std::int64_t head, std::int64_t k_len) {
  const std::int64_t b = table.batch > 1 ? batch : 0, h = table.heads > 1 ? head : 0;
  const std::int32_t* first = table.data + (b * table.heads + h) * table.size;
  Line line;
  for (std::int64_t i = 0; i < table.size && first[i] >= 0 && first[i] < k_len; ++i) line.push_back(first[i]);
  return line;
}

// Floats on a cache line's boundary.
class Scratch {
 public:
  float* at_least(std::int64_t floats) {
    if (floats > size_) {
      memory_.reset(static_cast<float*>(::operator new(floats * sizeof(float), std::align_val_t{64})));
      size_ = floats;
    }
    return memory_.get();
  }
  void free() { memory_.reset(), size_ = 0; }
  void poison(float value) { std::fill_n(memory_.get(), size_, value); }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> memory_;
  std::int64_t size_ = 0;
};

// Query heads of one key head that share their lines.
struct Group {
  const Plan* plan;
  std::vector<std::int32_t> heads;
};

// The tasks of one key head, handed out in order: the blocks of its first group of heads, then of the next.
struct Stream {
  std::int64_t batch, kv_head;
  std::vector<Group> groups;
  std::int64_t tasks = 0;
  std::atomic<std::int64_t> next{0}, turn{0}, done{0};
  std::once_flag once;
  Scratch packed;  // keys, then values
};

struct Work {
  std::vector<std::unique_ptr<OwnedPlan>> plans;
  std::deque<Stream> streams;
  std::int64_t workspace = 0;
  std::int64_t packed_k = 0, packed_v = 0;  // floats of a packed head; zero if heads are read where they lie
  double products = 0;  // pairs times columns, roughly
};

std::int64_t blocks(const LinesCall& call, const Plan& plan) { return (call.q_len + plan.block - 1) / plan.block; }

Work divide(const LinesCall& call, const LineTable& slashes, const LineTable& verticals, bool backward) {
  Work work;
  std::map<std::pair<std::pair<Line, Line>, int>, const Plan*> known;
  const std::int64_t size = call.heads / call.kv_heads;
  const bool same_heads = slashes.heads == 1 && verticals.heads == 1;
  const bool same_rows = slashes.batch == 1 && verticals.batch == 1;
  for (std::int64_t b = 0; b < call.batch; ++b)
    for (std::int64_t kv = 0; kv < call.kv_heads; ++kv) {
      Stream& stream = work.streams.emplace_back();
      stream.batch = b;
      stream.kv_head = kv;
      if (same_heads && same_rows && work.streams.size() > 1) {
        stream.groups = work.streams.front().groups;
        for (Group& group : stream.groups)
          for (auto& head : group.heads) head += static_cast<std::int32_t>(kv * size);
      } else {
        std::map<std::pair<Line, Line>, Line> members;
        for (std::int64_t h = kv * size; h < (kv + 1) * size; ++h)
          members[{line_of(slashes, b, h, call.k_len), line_of(verticals, b, h, call.k_len)}].push_back(
              static_cast<std::int32_t>(h));
        for (const auto& [lines, heads] : members)
          for (std::size_t first = 0; first < heads.size(); first += LANES) {
            const std::size_t last = std::min(heads.size(), first + LANES);
            const int count = static_cast<int>(last - first);
            const Plan*& plan = known[{lines, count}];
            if (!plan) {
              work.plans.push_back(make_plan(call, lines.first, lines.second, count, backward));
              plan = &work.plans.back()->plan;
              work.workspace = std::max(work.workspace, lines_kernels().workspace(call, *plan, backward));
            }
            stream.groups.push_back({plan, {heads.begin() + first, heads.begin() + last}});
            work.products += double(call.batch) * call.kv_heads * count * call.q_len *
                             (lines.first.size() + lines.second.size()) * (call.dim + call.value_dim);
          }
      }
      for (const Group& group : stream.groups) stream.tasks += blocks(call, *group.plan);
    }
  return work;
}

// Rows that are not whole vectors of floats side by side are copied, a block of queries at a time or, where that copies
// less in the end and the copy stays small, the whole head at once.
constexpr std::int64_t MOST_PACKED = std::int64_t{8} << 20;

void choose_packing(const LinesCall& call, Work& work) {
  const std::int64_t unit = lines_kernels().vector_length;
  const auto in_place = [&](const Strided& x, int dim) {
    return call.dtype == DType::f32 && x.row == dim && dim % unit == 0;
  };
  const auto floats = [&](int dim) { return call.k_len * ((dim + unit - 1) / unit * unit); };
  const std::int64_t k = floats(call.dim), v = floats(call.value_dim);
  if ((in_place(call.k, call.dim) && in_place(call.v, call.value_dim)) || 2 * call.q_len < call.k_len) return;
  if ((k + v) * static_cast<std::int64_t>(sizeof(float)) > MOST_PACKED) return;
  work.packed_k = k;
  work.packed_v = v;
}

Task task_of(const LinesCall& call, Stream& stream, std::int64_t number) {
  std::size_t g = 0;
  std::int64_t block = number;
  while (block >= blocks(call, *stream.groups[g].plan)) block -= blocks(call, *stream.groups[g++].plan);
  const Group& group = stream.groups[g];
  Task task{};
  task.plan = group.plan;
  task.batch = stream.batch;
  task.kv_head = stream.kv_head;
  task.head = group.heads.data();
  task.row = block * group.plan->block;
  task.end = std::min(call.q_len, task.row + group.plan->block);
  const std::int64_t offset = call.k_len - call.q_len;
  if (g == 0) {
    task.zero = block ? std::max<std::int64_t>(0, task.row + offset) : 0;
    task.zero_end = std::max<std::int64_t>(0, task.end + offset);
  }
  task.number = number;
  task.turn = &stream.turn;
  return task;
}

// Kept by each thread for its next call.
thread_local Scratch scratch;

struct Run {
  const LinesCall& call;
  Work& work;
  bool backward;
  int workers;
};

void run_stream(const Run& run, Stream& stream, float* memory) {
  for (;;) {
    const std::int64_t number = stream.next.fetch_add(1, std::memory_order_relaxed);
    if (number >= stream.tasks) return;
    Task task = task_of(run.call, stream, number);
    if (run.work.packed_k) {
      const std::int64_t k = run.work.packed_k, v = run.work.packed_v;
      std::call_once(stream.once, [&] {
        float* memory_of_head = stream.packed.at_least(k + v);
        lines_kernels().pack(run.call, stream.batch, stream.kv_head, memory_of_head, memory_of_head + k);
      });
      task.packed_k = stream.packed.at_least(0);
      task.packed_v = task.packed_k + k;
    }
    if (run.backward) {
      lines_kernels().backward(run.call, task, memory);
      stream.turn.store(number + 1, std::memory_order_release);
    } else {
      lines_kernels().forward(run.call, task, memory);
    }
    if (stream.done.fetch_add(1, std::memory_order_acq_rel) + 1 == stream.tasks) stream.packed.free();
  }
}

// Each worker starts on key heads of its own, so that their rows stay in its cache, and then helps the others.
void work_on(void* context, int worker) {
  Run& run = *static_cast<Run*>(context);
  float* memory = scratch.at_least(run.work.workspace);
  const std::size_t count = run.work.streams.size();
  for (std::size_t s = worker; s < count; s += run.workers) run_stream(run, run.work.streams[s], memory);
  for (std::size_t s = 0; s < count; ++s) run_stream(run, run.work.streams[s], memory);
}

void run(const LinesCall& call, const LineTable& slashes, const LineTable& verticals, bool backward) {
  Work work = divide(call, slashes, verticals, backward);
  choose_packing(call, work);
  // Waking a thread costs microseconds: worth it from about a tenth of a millisecond of work.
  const bool small = work.products < 4e6;
  Run run{call, work, backward, small ? 1 : available_threads()};
  if (run.workers == 1)
    work_on(&run, 0);
  else
    run_parallel(run.workers, work_on, &run);
}

}  // namespace

const Kernels& lines_kernels() { return *chosen_kernels(); }

bool use_kernels(const std::string& name) {
  for (const Kernels* kernels : usable_kernels())
    if (kernels->name == name) {
      chosen_kernels() = kernels;
      return true;
    }
  return false;
}

void wait_for_turn(const Task& task) {
  while (task.turn->load(std::memory_order_acquire) != task.number) std::this_thread::yield();
}

void poison_workspace(float value) { scratch.poison(value); }

void lines_forward(const LinesCall& call, const LineTable& slashes, const LineTable& verticals) {
  run(call, slashes, verticals, false);
}

void lines_backward(const LinesCall& call, const LineTable& slashes, const LineTable& verticals) {
  if (call.q_len == 0) {
    // No task, and so nobody to zero the gradients.
    const std::int64_t rows = call.batch * call.kv_heads * call.k_len, unit = lines_kernels().vector_length;
    std::fill_n(call.grad_k, rows * ((call.dim + unit - 1) / unit * unit), 0.0f);
    std::fill_n(call.grad_v, rows * ((call.value_dim + unit - 1) / unit * unit), 0.0f);
  }
  run(call, slashes, verticals, true);
}

}  // namespace farspan
