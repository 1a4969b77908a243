// The Python module `farspan._core`. Knows nothing of torch: tensors arrive as raw pointers.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_features.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

struct SelfTest {
  int nested;
  std::vector<std::atomic<int>> runs;
  std::vector<std::thread::id> threads;
};

struct OuterWorker {
  SelfTest& test;
  int index;
};

void inner_body(void* context, int inner) {
  auto& [test, index] = *static_cast<OuterWorker*>(context);
  const int item = index * test.nested + inner;
  ++test.runs[item];
  test.threads[item] = std::this_thread::get_id();
}

void outer_body(void* context, int index) {
  OuterWorker outer{*static_cast<SelfTest*>(context), index};
  farspan::run_parallel(outer.test.nested, inner_body, &outer);
}

// Each of `workers` starts a run of `nested` of its own. Returns how often each item ran, and on how many threads.
std::pair<std::vector<int>, int> parallel_self_test(int workers, int nested) {
  const int items = workers * nested;
  SelfTest test{nested, std::vector<std::atomic<int>>(items), std::vector<std::thread::id>(items)};
  farspan::run_parallel(workers, outer_body, &test);
  const std::set<std::thread::id> threads(test.threads.begin(), test.threads.end());
  return {{test.runs.begin(), test.runs.end()}, static_cast<int>(threads.size())};
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of farspan.";
  m.def("instruction_sets", &farspan::instruction_sets,
        "Instruction sets usable on this CPU and operating system, plainest first; starts with \"baseline\".");
  m.def(
      "build_info",
      [] {
        nb::dict info;
        info["compiler"] = farspan::compiler();
        info["flags"] = FARSPAN_BUILD_FLAGS;
        info["architecture"] = farspan::architecture();
        return info;
      },
      nb::sig("def build_info() -> dict[str, str]"),
      "How this module was built: compiler, flags, architecture.");
  m.def("use_torch_pool", &farspan::use_torch_pool, "parallel_for"_a, "get_num_threads"_a,
        "Run on torch's threads, given the addresses of torch_parallel_for and torch_get_num_threads; zero for none.");
  m.def("available_threads", &farspan::available_threads,
        "How many threads a kernel may use now: torch's number; 1 without torch's pool and in a forked child.");
  m.def("parallel_self_test", &parallel_self_test, "workers"_a, "nested"_a = 1,
        nb::call_guard<nb::gil_scoped_release>(), "For tests: how often each work item ran, and on how many threads.");
}
