#include "cpu_features.h"

namespace farspan {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> sets{"baseline"};
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  // The builtin also asks the operating system (XGETBV) whether it saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.emplace_back("avx2");
  // F, BW, DQ and VL together: what x86-64-v4 promises and what a 512-bit kernel may use freely.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    sets.emplace_back("avx512");
#elif defined(__aarch64__) || defined(_M_ARM64)
  sets.emplace_back("neon");
#endif
  return sets;
}

std::string compiler() {
#if defined(__clang__)
  return "Clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__) + "." +
         std::to_string(__clang_patchlevel__);
#elif defined(__GNUC__)
  return "GCC " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__) + "." +
         std::to_string(__GNUC_PATCHLEVEL__);
#elif defined(_MSC_VER)
  return "MSVC " + std::to_string(_MSC_VER);
#else
  return "unknown";
#endif
}

std::string architecture() {
#if defined(__x86_64__) || defined(_M_X64)
  return "x86_64";
#elif defined(__aarch64__) || defined(_M_ARM64)
  return "aarch64";
#else
  return "other";
#endif
}

}  // namespace farspan
