// The C++ kernels against plain loops in fp64, without Python and torch: for instruction sets that only an emulator or
// a bare machine runs. `make portable` builds and runs it. Prints one line for each set of kernels, and what is wrong.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "../../csrc/cpu_features.h"
#include "../../csrc/lines.h"
#include "../../csrc/parallel.h"

namespace {

using farspan::DType;
using Line = std::vector<std::int32_t>;

struct Case {
  const char* name;
  DType dtype;
  std::int64_t batch, heads, kv_heads, q_len, k_len;
  int dim, value_dim;
  std::vector<Line> slashes, verticals;  // sorted; one for all heads, or one for each
  bool start;
  int gap;  // elements between the rows of all tensors
  std::uint32_t threads;
};

Line range(int lo, int hi, int step = 1) {
  Line line;
  for (int i = lo; i < hi; i += step) line.push_back(i);
  return line;
}

Line join(Line a, const Line& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<Case> cases() {
  const Line fibonacci = join(range(0, 14), {18, 31, 52, 86, 141, 230});
  const Line sinks{0, 1, 2, 3};
  const DType f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
  return {
      {"window", f32, 1, 1, 1, 130, 130, 64, 64, {range(0, 33)}, {{}}, false, 0, 1},
      {"window as wide as several bands", f32, 1, 2, 1, 350, 350, 16, 24, {range(0, 300)}, {{}}, false, 0, 1},
      {"far distances", f32, 1, 1, 1, 270, 270, 40, 40, {{1, 40, 77, 150, 230}}, {{}}, false, 0, 1},
      {"140 far distances", f32, 1, 1, 1, 900, 900, 8, 8, {range(3, 843, 6)}, {{}}, false, 0, 1},
      {"window and far distances, 2 heads", f32, 2, 4, 2, 250, 250, 48, 32, {fibonacci}, {{}}, false, 0, 1},
      {"3 heads, odd sizes", f32, 1, 3, 1, 251, 251, 13, 21, {fibonacci}, {sinks}, false, 3, 1},
      {"4 heads, two threads", f32, 1, 4, 1, 500, 500, 64, 64, {fibonacci}, {{5, 90}}, false, 0, 2},
      {"5 heads, start", f32, 2, 5, 1, 150, 150, 24, 17, {fibonacci}, {sinks}, true, 0, 1},
      {"17 heads", f32, 1, 17, 1, 40, 40, 20, 20, {fibonacci}, {{}}, false, 0, 1},
      {"verticals", f32, 1, 2, 1, 60, 330, 32, 32, {{0}}, {range(0, 300)}, false, 0, 1},
      {"lines of their own for each head", f32, 1, 4, 2, 200, 200, 36, 36,
       {range(0, 20), fibonacci, {9, 60}, fibonacci}, {{}, sinks, {}, sinks}, true, 1, 1},
      {"more keys than queries", f32, 1, 4, 1, 21, 300, 64, 64, {fibonacci}, {sinks}, false, 0, 1},
      {"one query", f32, 2, 4, 2, 1, 300, 65, 63, {fibonacci}, {sinks}, false, 0, 1},
      {"more queries than keys", f32, 1, 2, 2, 90, 50, 12, 12, {fibonacci}, {sinks}, false, 0, 1},
      {"bf16", bf16, 1, 4, 1, 200, 200, 64, 64, {fibonacci}, {sinks}, false, 0, 1},
      {"bf16, odd sizes", bf16, 1, 1, 1, 77, 90, 13, 5, {fibonacci}, {sinks}, true, 5, 1},
      {"fp16", f16, 1, 2, 1, 200, 200, 64, 64, {fibonacci}, {sinks}, false, 0, 1},
      {"fp16, odd sizes", f16, 1, 3, 1, 90, 77, 13, 5, {fibonacci}, {sinks}, true, 5, 1},
  };
}

// Numbers of one type in memory, and what they mean. `epsilon` is the distance from 1 to the next number, `least` the
// smallest number above zero.
struct Format {
  DType dtype;
  int size;
  double epsilon, least;

  explicit Format(DType type)
      : dtype(type),
        size(type == DType::f32 ? 4 : 2),
        epsilon(std::ldexp(1.0, type == DType::f32 ? -23 : type == DType::bf16 ? -7 : -10)),
        least(std::ldexp(1.0, type == DType::f32 ? -149 : type == DType::bf16 ? -133 : -24)) {}

  double read(const unsigned char* p) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, p, size);
    if (dtype == DType::f16) {
      const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
      const double size_of = exponent == 31 ? (mantissa ? NAN : HUGE_VAL)
                             : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                            : std::ldexp(mantissa, -24);
      return bits >> 15 ? -size_of : size_of;
    }
    if (dtype == DType::bf16) bits <<= 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }

  // Cuts off digits that the type lacks; only for numbers around 1 or smaller.
  void write(unsigned char* p, float value) const {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (dtype == DType::bf16) bits >>= 16;
    if (dtype == DType::f16)
      bits = (bits >> 16 & 0x8000u) | static_cast<std::uint32_t>(std::ldexp(std::fabs(value), 24) < 1024
                                                                    ? std::ldexp(std::fabs(value), 24)
                                                                    : ((bits & 0x7fffffffu) - 0x38000000u) >> 13);
    std::memcpy(p, &bits, size);
  }
};

// A tensor [B, H, T, D] with `gap` elements after each row, in which nobody may write.
struct Tensor {
  Format format;
  std::int64_t batch, heads, rows, dim, gap;
  std::vector<unsigned char> bytes;

  Tensor(DType dtype, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d, std::int64_t space)
      : format(dtype), batch(b), heads(h), rows(t), dim(d), gap(space), bytes(b * h * t * (d + space) * format.size, 255) {}

  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return ((b * heads + h) * rows + t) * (dim + gap) * format.size;
  }
  double get(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t c) const {
    return format.read(bytes.data() + at(b, h, t) + c * format.size);
  }
  farspan::Strided strided() {
    return {bytes.data(), heads * rows * (dim + gap), rows * (dim + gap), dim + gap};
  }
  // Sums of uniform numbers, of variance 1.
  void randomize(std::uint64_t seed) {
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t t = 0; t < rows; ++t)
          for (std::int64_t c = 0; c < dim; ++c) {
            float sum = 0;
            for (int i = 0; i < 4; ++i) {
              seed = seed * 6364136223846793005u + 1442695040888963407u;
              sum += static_cast<float>(seed >> 40) * 0x1p-24f - 0.5f;
            }
            format.write(bytes.data() + at(b, h, t) + c * format.size, sum * 1.7320508f);
          }
  }
  bool gaps_are_untouched() const {
    for (std::int64_t row = 0; row < batch * heads * rows; ++row)
      for (std::int64_t i = dim * format.size; i < (dim + gap) * format.size; ++i)
        if (bytes[row * (dim + gap) * format.size + i] != 255) return false;
    return true;
  }
};

// A result in fp64, and how far from it fp32 may end.
struct Bounded {
  double value = 0, error = 0;
};

// Roundings to fp32 have random signs: n of them add up to about sqrt(n) units of 2^-24, and hardly to twice that.
double roundings(double n) { return 2 * std::sqrt(n) * std::ldexp(1.0, -24); }

// What the kernels should write, [B, H, T, D] without gaps.
struct Expected {
  std::vector<Bounded> out, lse, grad_q, grad_k, grad_v;
};

Expected expect(const Case& c, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad_out,
                const std::vector<float>& grad_lse, const std::vector<std::int32_t>& start, double scale) {
  const std::int64_t keys = c.batch * c.kv_heads * c.k_len, queries = c.batch * c.heads * c.q_len;
  Expected e{std::vector<Bounded>(queries * c.value_dim), std::vector<Bounded>(queries),
             std::vector<Bounded>(queries * c.dim), std::vector<Bounded>(keys * c.dim),
             std::vector<Bounded>(keys * c.value_dim)};
  // Most terms of a sum over the queries that read one key.
  const double readers = double(c.q_len) * c.heads / c.kv_heads;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.q_len; ++i) {
        const Line& slashes = c.slashes[c.slashes.size() > 1 ? h : 0];
        const Line& verticals = c.verticals[c.verticals.size() > 1 ? h : 0];
        const std::int64_t kv = h / (c.heads / c.kv_heads), query = (b * c.heads + h) * c.q_len + i;
        const std::int64_t position = i + c.k_len - c.q_len, from = c.start ? start[b * c.q_len + i] : 0;
        std::vector<std::int64_t> read;
        for (std::int64_t j = std::max<std::int64_t>(0, from); j <= position; ++j)
          if (std::binary_search(slashes.begin(), slashes.end(), position - j) ||
              std::binary_search(verticals.begin(), verticals.end(), j))
            read.push_back(j);
        const std::size_t n = read.size();
        // Scores, and what they and the gradients of the probabilities may be off by.
        std::vector<Bounded> score(n), d(n);
        double top = -HUGE_VAL, off = 0, total = 0;
        for (std::size_t r = 0; r < n; ++r) {
          double size = 0, size_d = 0;
          for (int x = 0; x < c.dim; ++x) {
            const double term = q.get(b, h, i, x) * k.get(b, kv, read[r], x) * scale;
            score[r].value += term;
            size += std::fabs(term);
          }
          for (int x = 0; x < c.value_dim; ++x) {
            const double term = grad_out.get(b, h, i, x) * v.get(b, kv, read[r], x);
            d[r].value += term;
            size_d += std::fabs(term);
          }
          score[r].error = roundings(c.dim) * size;
          d[r].error = roundings(c.value_dim) * size_d;
          top = std::max(top, score[r].value);
          off = std::max(off, score[r].error);
        }
        for (const Bounded& s : score) total += std::exp(s.value - top);
        e.lse[query] = {n ? top + std::log(total) : -HUGE_VAL,
                        n ? off + roundings(n + 4) * (1 + std::fabs(top)) : 0};
        // Of a probability, relative: its score, the one subtracted, the exponential, the sum, their ratio.
        std::vector<double> p(n), p_off(n);
        double delta = 0, delta_off = 0;
        for (std::size_t r = 0; r < n; ++r) {
          p[r] = std::exp(score[r].value - top) / total;
          p_off[r] = 2 * off + roundings(n + 4) + roundings(4) * std::fabs(score[r].value - top);
          delta += p[r] * d[r].value;
          delta_off += p[r] * (p_off[r] * std::fabs(d[r].value) + d[r].error);
        }
        delta -= grad_lse[query];
        for (std::size_t r = 0; r < n; ++r) {
          const double slope = p[r] * (d[r].value - delta) * scale;
          const double slope_off = p[r] * scale *
                                   (p_off[r] * (std::fabs(d[r].value) + std::fabs(delta)) + d[r].error + delta_off);
          const auto add = [&](Bounded& to, double a, double a_off, double terms, double x) {
            to.value += a * x;
            to.error += (a_off + roundings(terms) * std::fabs(a)) * std::fabs(x);
          };
          const std::int64_t key = (b * c.kv_heads + kv) * c.k_len + read[r];
          for (int x = 0; x < c.value_dim; ++x) {
            add(e.out[query * c.value_dim + x], p[r], p[r] * p_off[r], n, v.get(b, kv, read[r], x));
            add(e.grad_v[key * c.value_dim + x], p[r], p[r] * p_off[r], readers, grad_out.get(b, h, i, x));
          }
          for (int x = 0; x < c.dim; ++x) {
            add(e.grad_q[query * c.dim + x], slope, slope_off, n, k.get(b, kv, read[r], x));
            add(e.grad_k[key * c.dim + x], slope, slope_off, readers, q.get(b, h, i, x));
          }
        }
      }
  return e;
}

farspan::LineTable table(const std::vector<Line>& lines, Line& memory) {
  std::size_t size = 0;
  for (const Line& line : lines) size = std::max(size, line.size());
  for (const Line& line : lines) {
    memory.insert(memory.end(), line.begin(), line.end());
    memory.insert(memory.end(), size - line.size(), -1);
  }
  return {memory.data(), 1, static_cast<std::int64_t>(lines.size()), static_cast<std::int64_t>(size)};
}

// Threads in place of torch's.
std::uint32_t threads = 1;
std::int32_t get_num_threads(std::uint32_t* number) {
  *number = threads;
  return 0;
}
std::int32_t parallel_for(std::int64_t begin, std::int64_t end, std::int64_t,
                          void (*range)(std::int64_t, std::int64_t, void*), void* context) {
  std::vector<std::thread> pool;
  for (std::int64_t i = begin; i < end; ++i) pool.emplace_back(range, i, i + 1, context);
  for (std::thread& thread : pool) thread.join();
  return 0;
}

// How far the worst number is off, in parts of what is allowed; infinite for NaN.
struct Check {
  const Case& c;
  double worst = 0;

  // `rounding` is what the type of the result itself may lose.
  void one(const char* what, std::size_t number, double found, const Bounded& expected, double rounding = 0) {
    const double distance = std::fabs(found - expected.value) - rounding;
    if (found == expected.value || distance <= 0) return;
    double part = distance / expected.error;
    if (!(part <= 1)) {
      if (worst <= 1)
        std::printf("farspan: FAULT in '%s' (%s kernels): %s[%zu] is %.9g and should be %.9g, within %.2g\n", c.name,
                    farspan::lines_kernels().name, what, number, found, expected.value, expected.error + rounding);
      part = HUGE_VAL;
    }
    worst = std::max(worst, part);
  }

  void rounded(const char* what, const Tensor& found, const std::vector<Bounded>& expected) {
    if (!found.gaps_are_untouched()) one("a number after the end of a row", 0, NAN, {});
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const std::int64_t row = n / found.dim;
      const double value = found.format.read(found.bytes.data() +
                                             (row * (found.dim + found.gap) + n % found.dim) * found.format.size);
      const double rounding =
          std::max(found.format.epsilon * (std::fabs(expected[n].value) + expected[n].error), found.format.least) / 2;
      one(what, n, value, expected[n], rounding);
    }
  }

  void floats(const char* what, const std::vector<float>& found, std::int64_t dim, std::int64_t ld,
              const std::vector<Bounded>& expected) {
    for (std::size_t n = 0; n < expected.size(); ++n)
      one(what, n, found[n / dim * ld + n % dim], expected[n]);
  }
};

double run(const Case& c) {
  threads = c.threads;
  Tensor q(c.dtype, c.batch, c.heads, c.q_len, c.dim, c.gap), k(c.dtype, c.batch, c.kv_heads, c.k_len, c.dim, c.gap);
  Tensor v(c.dtype, c.batch, c.kv_heads, c.k_len, c.value_dim, c.gap);
  Tensor grad_out(c.dtype, c.batch, c.heads, c.q_len, c.value_dim, c.gap), out(grad_out), grad_q(q);
  q.randomize(1);
  k.randomize(2);
  v.randomize(3);
  grad_out.randomize(4);
  Tensor gradients_of_lse(DType::f32, c.batch, c.heads, c.q_len, 1, 0);
  gradients_of_lse.randomize(5);
  std::vector<float> lse(c.batch * c.heads * c.q_len, NAN), grad_lse(lse.size());
  std::memcpy(grad_lse.data(), gradients_of_lse.bytes.data(), gradients_of_lse.bytes.size());
  // Two documents, cut elsewhere in each batch row.
  std::vector<std::int32_t> start(c.batch * c.q_len);
  for (std::int64_t i = 0; i < c.batch * c.q_len; ++i) {
    const std::int64_t position = i % c.q_len + c.k_len - c.q_len, cut = c.k_len / 2 + 7 * (i / c.q_len);
    start[i] = static_cast<std::int32_t>(position >= cut ? cut : 3);
  }
  const std::int64_t unit = farspan::lines_kernels().vector_length;
  const std::int64_t ld_k = (c.dim + unit - 1) / unit * unit, ld_v = (c.value_dim + unit - 1) / unit * unit;
  std::vector<float> grad_k(c.batch * c.kv_heads * c.k_len * ld_k, NAN);
  std::vector<float> grad_v(c.batch * c.kv_heads * c.k_len * ld_v, NAN);
  Line slash_memory, vertical_memory;
  const auto slashes = table(c.slashes, slash_memory), verticals = table(c.verticals, vertical_memory);

  farspan::LinesCall call{};
  call.dtype = c.dtype;
  call.batch = c.batch;
  call.heads = c.heads;
  call.kv_heads = c.kv_heads;
  call.q_len = c.q_len;
  call.k_len = c.k_len;
  call.dim = c.dim;
  call.value_dim = c.value_dim;
  call.scale = 1 / std::sqrt(static_cast<float>(c.dim));
  call.start = c.start ? start.data() : nullptr;
  call.q = q.strided();
  call.k = k.strided();
  call.v = v.strided();
  call.grad_q = grad_q.strided();
  call.grad_lse = grad_lse.data();
  call.lse = lse.data();
  call.grad_k = grad_k.data();
  call.grad_v = grad_v.data();
  farspan::poison_workspace(NAN);
  call.out = out.strided();
  farspan::lines_forward(call, slashes, verticals);
  farspan::poison_workspace(NAN);
  call.out = grad_out.strided();
  farspan::lines_backward(call, slashes, verticals);

  const Expected expected = expect(c, q, k, v, grad_out, grad_lse, start, call.scale);
  Check check{c};
  check.rounded("out", out, expected.out);
  check.floats("lse", lse, 1, 1, expected.lse);
  check.rounded("grad_q", grad_q, expected.grad_q);
  check.floats("grad_k", grad_k, c.dim, ld_k, expected.grad_k);
  check.floats("grad_v", grad_v, c.value_dim, ld_v, expected.grad_v);
  return check.worst;
}

}  // namespace

int main() {
  farspan::use_torch_pool(reinterpret_cast<std::uintptr_t>(parallel_for),
                          reinterpret_cast<std::uintptr_t>(get_num_threads));
  bool right = true;
  for (const std::string& name : farspan::instruction_sets()) {
    if (!farspan::use_kernels(name)) continue;
    const std::vector<Case> all = cases();
    double worst = 0;
    for (const Case& c : all) worst = std::max(worst, run(c));
    right = right && worst <= 1;
    std::printf("farspan: %s kernels on %s, vectors of %d: %s\n", name.c_str(), farspan::architecture().c_str(),
                farspan::lines_kernels().vector_length,
                worst <= 1 ? (std::to_string(all.size()) + " cases agree with plain loops; the largest error is " +
                              std::to_string(std::lround(100 * worst)) + "% of what fp32 allows")
                                 .c_str()
                           : "WRONG");
  }
  return right ? 0 : 1;
}
