#pragma once

// Attention over Lines: what the call, the plan made for it and the kernels of each instruction set agree on.

#include <atomic>
#include <cstdint>
#include <string>

namespace farspan {

// Queries worked on at a time: `positions` consecutive positions times the heads of one group, one lane each.
constexpr int LANES = 16;
// No band or group of verticals is wider, so the scores of a tile stay in the L1 cache.
constexpr int MAX_DENSE = 256;
// Most single distances read in one step.
constexpr int MAX_SINGLES = 128;

enum class DType { f32, bf16, f16 };

// A tensor [B, H, T, D] with unit inner stride; the others in elements.
struct Strided {
  void* data;
  std::int64_t batch, head, row;
};

struct LinesCall {
  DType dtype;
  std::int64_t batch, heads, kv_heads, q_len, k_len;
  int dim, value_dim;
  float scale;
  const std::int32_t* start;  // [B, Tq] or null
  Strided q, k, v;
  Strided out;  // of `dtype`: written by the forward; in the backward the gradient of the output
  float* lse;   // forward: [B, H, Tq]
  // Backward only. Rows of grad_k and grad_v [B, Hkv, Tk, .] are padded to whole vectors.
  const float* grad_lse;  // [B, H, Tq] or null
  Strided grad_q;         // of `dtype`
  float* grad_k;
  float* grad_v;
};

// Consecutive distances lo <= d < hi, read as one dense block of keys by all lanes of a tile.
struct Band {
  std::int32_t lo, hi;
  // For a key at distance lo - (positions - 1) + i from the first position of a tile: what to add to its LANES scores
  // (0 or -inf), and whether that is all zeros.
  const float* mask;
  const std::uint8_t* whole;
};

// How the lines of one set of heads are read. Everything is sorted.
struct Plan {
  int heads;      // of one key head, at most LANES
  int positions;  // LANES / heads
  int position[LANES];  // of each lane; lanes that are left over count on
  int block;      // queries a task works on, a multiple of `positions`
  int bands;
  const Band* band;
  int singles;  // distances read row by row
  const std::int32_t* single;
  int single_step;  // how many of them at a time
  int verticals;
  const std::int32_t* vertical;
  const std::uint64_t* slash_bits;  // all distances below Tk as bits: a vertical that one of them reads is left out
};

// A block of queries. In the backward, tasks of one key head add to its gradients in the order of `number`.
struct Task {
  const Plan* plan;
  std::int64_t batch, kv_head;
  const std::int32_t* head;     // `plan->heads` query heads of this key head
  const float *packed_k, *packed_v;  // its keys and values as floats in whole vectors, or null
  std::int64_t row, end;        // query rows
  std::int64_t zero, zero_end;  // backward: rows of grad_k and grad_v that no earlier task has zeroed
  std::int64_t number;
  const std::atomic<std::int64_t>* turn;
};

struct Kernels {
  const char* name;
  int vector_length;
  // Floats of workspace that a task needs.
  std::int64_t (*workspace)(const LinesCall&, const Plan&, bool backward);
  void (*forward)(const LinesCall&, const Task&, float* workspace);
  void (*backward)(const LinesCall&, const Task&, float* workspace);
  // Copies the keys and values of one head as floats, their rows padded with zeros to whole vectors.
  void (*pack)(const LinesCall&, std::int64_t batch, std::int64_t kv_head, float* k, float* v);
};

// Waits until all tasks with a smaller number have finished with this key head's gradients.
void wait_for_turn(const Task&);

// int32 [1 | B, 1 | H, n], sorted, padded at the end with -1.
struct LineTable {
  const std::int32_t* data;
  std::int64_t batch, heads, size;
};

void lines_forward(const LinesCall&, const LineTable& slashes, const LineTable& verticals);
void lines_backward(const LinesCall&, const LineTable& slashes, const LineTable& verticals);

// The kernels in use: the fastest that this CPU runs, unless others were asked for by name (tests do). False if there
// are none of that name or this CPU cannot run them.
const Kernels& lines_kernels();
bool use_kernels(const std::string& name);

// Fills the workspace of the calling thread, so that tests see a read of what was never written.
void poison_workspace(float value);

namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

}  // namespace farspan
