#pragma once

#include <string>
#include <vector>

namespace farspan {

// Instruction sets this CPU *and* its operating system let us use, plainest first.
// Always starts with "baseline": what the compiler may assume on this architecture (SSE2 on x86-64).
std::vector<std::string> instruction_sets();

// "GCC 12.2.0", "Clang 17.0.6", "MSVC 1940": what compiled this module.
std::string compiler();

// "x86_64", "aarch64", ...: what this module was compiled for.
std::string architecture();

}  // namespace farspan
