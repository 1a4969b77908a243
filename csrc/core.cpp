// The Python module `farspan._core`. Knows nothing of torch: tensors arrive as raw pointers.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu_features.h"

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
}
