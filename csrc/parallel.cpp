#include "parallel.h"

#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define FARSPAN_HAS_FORK 1
#endif

namespace farspan {
namespace {

// torch/csrc/stable/c/shim.h declares these since torch 2.10; they return zero on success.
using Range = void (*)(std::int64_t begin, std::int64_t end, void* context);
using ParallelFor = std::int32_t (*)(std::int64_t begin, std::int64_t end, std::int64_t grain, Range, void* context);
using GetNumThreads = std::int32_t (*)(std::uint32_t* threads);

ParallelFor torch_parallel_for = nullptr;
GetNumThreads torch_get_num_threads = nullptr;

// The threads of an OpenMP pool do not survive a fork, and a child that asks for them waits for ever.
bool forked = false;

bool pool_is_usable() { return torch_parallel_for && torch_get_num_threads && !forked; }

struct Run {
  void (*body)(void* context, int worker);
  void* context;
  std::vector<char> done;  // not vector<bool>: threads write neighbours at the same time
};

void run_those_not_done(std::int64_t begin, std::int64_t end, void* context) {
  Run& run = *static_cast<Run*>(context);
  for (std::int64_t worker = begin; worker < end; ++worker) {
    if (run.done[worker]) continue;
    run.body(run.context, static_cast<int>(worker));
    run.done[worker] = 1;
  }
}

}  // namespace

void use_torch_pool(std::uintptr_t parallel_for, std::uintptr_t get_num_threads) {
  torch_parallel_for = reinterpret_cast<ParallelFor>(parallel_for);
  torch_get_num_threads = reinterpret_cast<GetNumThreads>(get_num_threads);
#ifdef FARSPAN_HAS_FORK
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  if (registered != 0) torch_parallel_for = nullptr;  // out of memory: slow is better than a child that hangs
#endif
}

int available_threads() {
  std::uint32_t threads = 1;
  if (!pool_is_usable() || torch_get_num_threads(&threads) != 0) return 1;
  return static_cast<int>(threads);
}

void run_parallel(int workers, void (*body)(void* context, int worker), void* context) {
  Run run{body, context, std::vector<char>(workers)};
  if (workers > 1 && pool_is_usable()) torch_parallel_for(0, workers, 1, run_those_not_done, &run);
  // All of them where there is no pool, and what is left where the pool failed.
  run_those_not_done(0, workers, &run);
}

}  // namespace farspan
