#include "peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu_features.h"

#if defined(__GNUC__) || defined(__clang__)
#define FARSPAN_INLINE inline __attribute__((always_inline))
#else
#define FARSPAN_INLINE inline
#endif

namespace farspan {
namespace {

// Results go here so that no loop is dead.
volatile float sink_float;
volatile std::uint32_t sink_integer;
// Unknown to the compiler, which would otherwise leave out a chain that starts at its fixed point.
volatile float source_factor = 0.5F;

constexpr int chains = 12;  // enough for two pipes of latency 4 to 5, few enough for 16 registers

template <typename V>
FARSPAN_INLINE void multiply_add(long iterations) {
  V sum[chains];
  const V factor = V{} + source_factor, term = V{} + 1.0F;
#pragma GCC unroll 12
  for (int n = 0; n < chains; ++n) sum[n] = V{} + static_cast<float>(n);
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int n = 0; n < chains; ++n) sum[n] = sum[n] * factor + term;
  }
#pragma GCC unroll 12
  for (int n = 1; n < chains; ++n) sum[0] += sum[n];
  sink_float = *reinterpret_cast<const float*>(&sum[0]);
}

template <typename V>
FARSPAN_INLINE void load(const void* memory, std::size_t bytes, long passes) {
  constexpr int ways = 8;
  const V* const first = static_cast<const V*>(memory);
  const std::size_t count = bytes / sizeof(V) / ways * ways;
  V bits[ways] = {};
  for (long pass = 0; pass < passes; ++pass) {
    for (std::size_t i = 0; i < count; i += ways) {
#pragma GCC unroll 8
      for (int n = 0; n < ways; ++n) bits[n] |= first[i + n];
    }
#if defined(__GNUC__) || defined(__clang__)
    asm volatile("" ::: "memory");  // the next pass loads again
#endif
  }
#pragma GCC unroll 8
  for (int n = 1; n < ways; ++n) bits[0] |= bits[n];
  sink_integer = *reinterpret_cast<const std::uint32_t*>(&bits[0]);
}

struct Kernels {
  int lanes;
  void (*multiply_add)(long iterations);
  void (*load)(const void* memory, std::size_t bytes, long passes);
};

#if defined(__GNUC__) || defined(__clang__)
template <int bytes>
struct Vectors {
  typedef float Float __attribute__((vector_size(bytes)));
  typedef std::uint32_t Integer __attribute__((vector_size(bytes), may_alias));
};
void multiply_add_16(long i) { multiply_add<Vectors<16>::Float>(i); }
void load_16(const void* m, std::size_t b, long p) { load<Vectors<16>::Integer>(m, b, p); }
constexpr Kernels baseline{4, multiply_add_16, load_16};
#else
void multiply_add_4(long i) { multiply_add<float>(i); }
void load_4(const void* m, std::size_t b, long p) { load<std::uint32_t>(m, b, p); }
constexpr Kernels baseline{1, multiply_add_4, load_4};
#endif

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
__attribute__((target("avx2,fma"))) void multiply_add_32(long i) { multiply_add<Vectors<32>::Float>(i); }
__attribute__((target("avx2,fma"))) void load_32(const void* m, std::size_t b, long p) {
  load<Vectors<32>::Integer>(m, b, p);
}
__attribute__((target("avx512f,fma"))) void multiply_add_64(long i) { multiply_add<Vectors<64>::Float>(i); }
__attribute__((target("avx512f,fma"))) void load_64(const void* m, std::size_t b, long p) {
  load<Vectors<64>::Integer>(m, b, p);
}
#endif

std::vector<Kernels> usable() {
  std::vector<Kernels> found{baseline};
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  for (const std::string& set : instruction_sets()) {
    if (set == "avx2") found.push_back({8, multiply_add_32, load_32});
    if (set == "avx512") found.push_back({16, multiply_add_64, load_64});
  }
#endif
  return found;
}

// Best units a second of `run`, which does `units` of work, over about `seconds`.
template <typename Run>
double best_rate(double seconds, double units, Run run) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + std::chrono::duration<double>(seconds);
  double best = 0;
  do {
    const auto began = clock::now();
    run();
    const std::chrono::duration<double> spent = clock::now() - began;
    if (spent.count() > 0) best = std::max(best, units / spent.count());
  } while (clock::now() < end);
  return best;
}

}  // namespace

double fma_peak(double seconds) {
  // About a tenth of a millisecond: shorter than a time slice, so that the best run was not interrupted.
  constexpr long iterations = 40000;
  const std::vector<Kernels> sets = usable();
  double best = 0;
  for (const Kernels& set : sets) {
    const double flops = 2.0 * chains * set.lanes * iterations;
    const double share = seconds / static_cast<double>(sets.size());
    best = std::max(best, best_rate(share, flops, [&] { set.multiply_add(iterations); }));
  }
  return best * 1e-9;
}

double load_bandwidth(std::size_t bytes, double seconds) {
  constexpr std::size_t line = 64, unit = 512;
  bytes = std::max(unit, bytes / unit * unit);
  std::unique_ptr<unsigned char[]> owner(new unsigned char[bytes + line]);
  std::fill_n(owner.get(), bytes + line, static_cast<unsigned char>(1));
  const auto address = reinterpret_cast<std::uintptr_t>(owner.get());
  const void* const memory = owner.get() + (line - address % line) % line;
  // At least 4 MiB a run, so that reading the clock costs nothing.
  const long passes = static_cast<long>(std::max<std::size_t>(1, (std::size_t{4} << 20) / bytes));
  const std::vector<Kernels> sets = usable();
  double best = 0;
  for (const Kernels& set : sets) {
    const double share = seconds / static_cast<double>(sets.size());
    const double moved = static_cast<double>(bytes) * static_cast<double>(passes);
    best = std::max(best, best_rate(share, moved, [&] { set.load(memory, bytes, passes); }));
  }
  return best * 1e-9;
}

}  // namespace farspan
