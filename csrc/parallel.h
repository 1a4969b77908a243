#pragma once

#include <cstdint>

namespace farspan {

// Work runs on torch's own threads: a second pool would fight torch's for the cores, and `torch.set_num_threads` must
// hold for us too. The pool is reached through two C functions of torch's stable interface, without linking to torch.

// Addresses of torch's exported C symbols; zero where this torch lacks them. Called once from Python at import.
void use_torch_pool(std::uintptr_t parallel_for, std::uintptr_t get_num_threads);

// How many workers a call may use now: torch.get_num_threads(), 1 without the pool, 1 in a forked child.
int available_threads();

// Runs body(context, worker) once for each worker = 0..workers-1 on torch's pool (serially for workers == 1, and where
// there is no pool). Returns when all have. Workers must not wait for one another: inside another parallel region the
// pool runs them one after the other. `body` must not throw.
void run_parallel(int workers, void (*body)(void* context, int worker), void* context);

}  // namespace farspan
