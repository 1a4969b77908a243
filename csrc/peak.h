#pragma once

#include <cstddef>

namespace farspan {

// What the machine under a kernel can do at most, measured on the calling thread, so that a speed can be stated as a
// share of it. Each takes about `seconds` and returns the best of many short runs: a neighbour can only slow one down.

// GFLOP/s of fused multiply-adds on registers alone, in the widest vectors that are fastest here.
double fma_peak(double seconds);

// GB/s of loads that stream again and again through `bytes` of memory: the level of cache that holds them.
double load_bandwidth(std::size_t bytes, double seconds);

}  // namespace farspan
