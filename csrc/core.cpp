// The Python module `farspan._core`. Knows nothing of torch: tensors arrive as raw pointers.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu_features.h"
#include "peak.h"

namespace nb = nanobind;

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
}
