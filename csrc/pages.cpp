#include "pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace farspan {

void prefer_huge_pages([[maybe_unused]] std::uintptr_t address, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t huge = std::uintptr_t{1} << 21;
  const std::uintptr_t first = (address + huge - 1) / huge * huge, last = (address + bytes) / huge * huge;
  // A refusal changes nothing but speed.
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

}  // namespace farspan
