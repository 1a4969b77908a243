#pragma once

#include <cstddef>
#include <cstdint>

namespace farspan {

// Asks for huge pages in memory that nobody has touched yet: a fresh result of many megabytes otherwise spends more time
// in page faults than in the kernel that fills it. Does nothing where the system has no such thing.
void prefer_huge_pages(std::uintptr_t address, std::size_t bytes);

}  // namespace farspan
