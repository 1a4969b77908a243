// The Python module `farspan._core`. Knows nothing of torch: tensors arrive as raw pointers.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu_features.h"
#include "lines.h"
#include "pages.h"
#include "parallel.h"
#include "peak.h"

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

template <class T>
T* pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// A tensor [B, H, T, D]: its address, strides in elements and shape; Python has checked them.
using Four = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
// An int32 tensor [1 | B, 1 | H, n]: its address and shape.
using Table = std::tuple<std::uintptr_t, std::int64_t, std::int64_t, std::int64_t>;

farspan::Strided strided(std::uintptr_t address, const Four& strides) {
  return {pointer<void>(address), std::get<0>(strides), std::get<1>(strides), std::get<2>(strides)};
}

farspan::LineTable table(const Table& t) {
  return {pointer<const std::int32_t>(std::get<0>(t)), std::get<1>(t), std::get<2>(t), std::get<3>(t)};
}

farspan::LinesCall call_of(int dtype, const Four& q_shape, const Four& v_shape, float scale, std::uintptr_t start,
                           std::uintptr_t q, const Four& q_strides, std::uintptr_t k, const Four& k_strides,
                           std::uintptr_t v, const Four& v_strides, std::uintptr_t out, const Four& out_strides) {
  farspan::LinesCall call{};
  call.dtype = static_cast<farspan::DType>(dtype);
  std::int64_t dim, value_dim, batch;
  std::tie(call.batch, call.heads, call.q_len, dim) = q_shape;
  std::tie(batch, call.kv_heads, call.k_len, value_dim) = v_shape;
  call.dim = static_cast<int>(dim);
  call.value_dim = static_cast<int>(value_dim);
  call.scale = scale;
  call.start = pointer<const std::int32_t>(start);
  call.q = strided(q, q_strides);
  call.k = strided(k, k_strides);
  call.v = strided(v, v_strides);
  call.out = strided(out, out_strides);
  return call;
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
  m.def("fma_peak", &farspan::fma_peak, nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>(),
        "GFLOP/s of fused multiply-adds on registers, one thread: the best of many runs within `seconds`.");
  m.def("load_bandwidth", &farspan::load_bandwidth, nb::arg("bytes"), nb::arg("seconds"),
        nb::call_guard<nb::gil_scoped_release>(),
        "GB/s of one thread loading the same `bytes` again and again: the best of many runs within `seconds`.");
  m.def("use_torch_pool", &farspan::use_torch_pool, "parallel_for"_a, "get_num_threads"_a,
        "Run on torch's threads, given the addresses of torch_parallel_for and torch_get_num_threads; zero for none.");
  m.def("available_threads", &farspan::available_threads,
        "How many threads a kernel may use now: torch's number; 1 without torch's pool and in a forked child.");
  m.def("parallel_self_test", &parallel_self_test, "workers"_a, "nested"_a = 1,
        nb::call_guard<nb::gil_scoped_release>(), "For tests: how often each work item ran, and on how many threads.");
  m.def("vector_length", [] { return farspan::lines_kernels().vector_length; }, "Floats in a vector of the kernels.");
  m.def("kernel_instruction_set", [] { return farspan::lines_kernels().name; }, "What the kernels in use are made for.");
  m.def("use_kernels", &farspan::use_kernels, "name"_a,
        "For tests: use the kernels made for this instruction set; false if this CPU cannot run them.");
  m.def("prefer_huge_pages", &farspan::prefer_huge_pages, "address"_a, "bytes"_a);
  m.def("poison_workspace", &farspan::poison_workspace);
  m.def(
      "lines_forward",
      [](int dtype, const Four& q_shape, const Four& v_shape, float scale, std::uintptr_t start, std::uintptr_t q,
         const Four& q_strides, std::uintptr_t k, const Four& k_strides, std::uintptr_t v, const Four& v_strides,
         const Table& slashes, const Table& verticals, std::uintptr_t out, const Four& out_strides,
         std::uintptr_t lse) {
        auto call = call_of(dtype, q_shape, v_shape, scale, start, q, q_strides, k, k_strides, v, v_strides, out,
                            out_strides);
        call.lse = pointer<float>(lse);
        nb::gil_scoped_release release;
        farspan::lines_forward(call, table(slashes), table(verticals));
      });
  m.def(
      "lines_backward",
      [](int dtype, const Four& q_shape, const Four& v_shape, float scale, std::uintptr_t start, std::uintptr_t q,
         const Four& q_strides, std::uintptr_t k, const Four& k_strides, std::uintptr_t v, const Four& v_strides,
         const Table& slashes, const Table& verticals, std::uintptr_t grad_out, const Four& grad_out_strides,
         std::uintptr_t grad_lse, std::uintptr_t grad_q, const Four& grad_q_strides,
         std::uintptr_t grad_k, std::uintptr_t grad_v) {
        auto call = call_of(dtype, q_shape, v_shape, scale, start, q, q_strides, k, k_strides, v, v_strides, grad_out,
                            grad_out_strides);
        call.grad_lse = pointer<const float>(grad_lse);
        call.grad_q = strided(grad_q, grad_q_strides);
        call.grad_k = pointer<float>(grad_k);
        call.grad_v = pointer<float>(grad_v);
        nb::gil_scoped_release release;
        farspan::lines_backward(call, table(slashes), table(verticals));
      });
}
