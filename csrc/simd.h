#pragma once

// Vectors of floats for one instruction set, by the vector extensions of GCC and Clang: one source serves SSE2, AVX2,
// AVX-512 and NEON, and the compiler does what a SIMD library would do for the few operations used here.
//
// A file that includes this is compiled once for each instruction set, with FARSPAN_ISA naming it. Everything lies in
// a namespace of that name and nothing comes from the standard library: an inline function of <algorithm> compiled for
// AVX2 could otherwise be the copy that the linker keeps for all.

#include <cstdint>

#if !defined(FARSPAN_ISA)
#define FARSPAN_ISA baseline
#endif

// Floats in a vector. A build may ask for more than the instruction set has, and the compiler splits the vectors: so the
// code for AVX-512 is tested on any machine.
#if defined(FARSPAN_VECTOR_LENGTH)
#define FARSPAN_SPLIT_VECTORS
#elif defined(__AVX512F__)
#define FARSPAN_VECTOR_LENGTH 16
#elif defined(__AVX2__)
#define FARSPAN_VECTOR_LENGTH 8
#else
#define FARSPAN_VECTOR_LENGTH 4
#endif

#define FARSPAN_INLINE static inline __attribute__((always_inline))
#define FARSPAN_UNROLL _Pragma("GCC unroll 16")

// Keeps a loaded vector in a register. Without it GCC folds a vector that several FMAs use into a memory operand of
// each of them, and the loads become the limit.
#if defined(__x86_64__) && !defined(FARSPAN_SPLIT_VECTORS)
#define FARSPAN_PIN(x) __asm__ volatile("" : "+x"(x))
#elif defined(__aarch64__) && !defined(FARSPAN_SPLIT_VECTORS)
#define FARSPAN_PIN(x) __asm__ volatile("" : "+w"(x))
#else
#define FARSPAN_PIN(x) static_cast<void>(0)
#endif

namespace farspan::FARSPAN_ISA {

constexpr int VL = FARSPAN_VECTOR_LENGTH;

typedef float vec __attribute__((vector_size(VL * 4)));
typedef std::int32_t ivec __attribute__((vector_size(VL * 4)));
typedef std::uint32_t uvec __attribute__((vector_size(VL * 4)));
typedef std::uint16_t hvec __attribute__((vector_size(VL * 2)));
// The same, as they lie in memory. Both compilers let a vector alias its elements, and nothing else.
typedef float vec_mem __attribute__((vector_size(VL * 4), aligned(4)));
typedef std::uint16_t hvec_mem __attribute__((vector_size(VL * 2), aligned(2)));

constexpr float INF = __builtin_inff();

FARSPAN_INLINE vec splat(float x) { return x - vec{}; }
FARSPAN_INLINE vec load(const float* p) { return *reinterpret_cast<const vec_mem*>(p); }
FARSPAN_INLINE void store(float* p, vec x) { *reinterpret_cast<vec_mem*>(p) = x; }
FARSPAN_INLINE vec select(ivec mask, vec yes, vec no) {
  return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}
// `b` where either is NaN.
FARSPAN_INLINE vec max(vec a, vec b) { return a > b ? a : b; }

// Element types as they lie in memory: bfloat16 and float16 widen to float on load and round to nearest even on store.

struct F32 {
  using type = float;
  FARSPAN_INLINE vec load(const type* p) { return FARSPAN_ISA::load(p); }
  FARSPAN_INLINE void store(type* p, vec x) { FARSPAN_ISA::store(p, x); }
};

struct BF16 {
  using type = std::uint16_t;
  FARSPAN_INLINE vec load(const type* p) {
    return (vec)(__builtin_convertvector(*reinterpret_cast<const hvec_mem*>(p), uvec) << 16);
  }
  FARSPAN_INLINE void store(type* p, vec x) {
    const uvec bits = (uvec)x;
    const uvec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uvec nan = (bits >> 16) | 0x40u;
    const uvec is_nan = (uvec)(x != x);
    *reinterpret_cast<hvec_mem*>(p) = __builtin_convertvector((nan & is_nan) | (rounded & ~is_nan), hvec);
  }
};

struct F16 {
  using type = std::uint16_t;
  FARSPAN_INLINE vec load(const type* p) {
    const uvec half = __builtin_convertvector(*reinterpret_cast<const hvec_mem*>(p), uvec);
    const uvec magnitude = (half & 0x7fffu) << 13;
    // Rebiasing by a product is right for subnormal halves too; infinities and NaN keep the largest exponent.
    const uvec finite = (uvec)((vec)magnitude * 0x1p112f);
    const uvec special = (uvec)(magnitude >= 0x0f800000u);
    return (vec)(finite | (special & 0x7f800000u) | ((half & 0x8000u) << 16));
  }
  FARSPAN_INLINE void store(type* p, vec x) {
    const uvec bits = (uvec)x, sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Below 2^-14 a half is a multiple of 2^-24, the last bit of 0.5f: adding 0.5f rounds there.
    const uvec subnormal = (uvec)((vec)magnitude + 0.5f) - 0x3f000000u;
    const uvec normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uvec small = (uvec)(magnitude < 0x38800000u);
    const uvec large = (uvec)(magnitude >= 0x477ff000u);
    const uvec nan = (uvec)(magnitude > 0x7f800000u);
    uvec half = (subnormal & small) | (normal & ~small);
    half = (half & ~large) | (large & 0x7c00u) | (nan & 0x0200u);
    *reinterpret_cast<hvec_mem*>(p) = __builtin_convertvector(half | sign, hvec);
  }
};

// `n` < VL elements; the rest reads as zero.
template <class E>
FARSPAN_INLINE vec load_part(const typename E::type* p, int n) {
  typename E::type buffer[VL] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return E::load(buffer);
}
template <class E>
FARSPAN_INLINE void store_part(typename E::type* p, vec x, int n) {
  typename E::type buffer[VL];
  E::store(buffer, x);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

// x[i] = 2^x[i] for x <= 0, NaN for NaN; exactly 1 at 0 and exactly 0 from -127 down (so that a masked score weighs nothing). A
// polynomial of degree 6 on [-1/2, 1/2], fitted for the least relative error, 2e-9; with rounding 8e-8. It is one long
// chain of operations: N of them side by side keep the units busy, which looking ahead in one chain after another does
// not.
template <int N>
FARSPAN_INLINE void exp2(vec* x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  vec least = splat(-127.0f), shifted[N], p[N];
  FARSPAN_PIN(least);
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) x[i] = max(least, x[i]);
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) shifted[i] = x[i] + magic;
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) x[i] -= shifted[i] - magic;
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) p[i] = x[i] * 1.5353361959569156e-4f + 1.3398875016719103e-3f;
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) p[i] = p[i] * x[i] + 9.618436917662621e-3f;
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) p[i] = p[i] * x[i] + 5.5503323674201965e-2f;
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) p[i] = p[i] * x[i] + 2.4022647738456726e-1f;
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) p[i] = p[i] * x[i] + 6.931471824645996e-1f;
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) p[i] = p[i] * x[i] + 1.0f;
  FARSPAN_UNROLL for (int i = 0; i < N; ++i) x[i] = (vec)((ivec)p[i] + ((ivec)shifted[i] << 23));
}

// log2 of x >= 1 (a sum of weights of which the largest is 1), by the series of atanh; relative error 2e-7.
FARSPAN_INLINE vec log2(vec x) {
  const ivec bits = (ivec)x;
  // The mantissa in [3/4, 3/2).
  const ivec exponent = (bits - 0x3f400000) >> 23;
  const vec m = (vec)(bits - (exponent << 23));
  const vec s = (m - 1.0f) / (m + 1.0f), t = s * s;
  vec p = splat(2.0f / 11);
  p = p * t + (2.0f / 9);
  p = p * t + (2.0f / 7);
  p = p * t + (2.0f / 5);
  p = p * t + (2.0f / 3);
  p = p * t + 2.0f;
  return __builtin_convertvector(exponent, vec) + p * s * 1.4426950408889634f;
}

typedef float vec4 __attribute__((vector_size(16)));
typedef float vec4_mem __attribute__((vector_size(16), aligned(4)));
typedef float vec8 __attribute__((vector_size(32)));
typedef float vec8_mem __attribute__((vector_size(32), aligned(4)));

// The sums of the elements of eight vectors.
FARSPAN_INLINE void sums_of_eight(const vec* a, float* out) {
#if FARSPAN_VECTOR_LENGTH >= 8
  vec8 b[8];
#if FARSPAN_VECTOR_LENGTH == 16
  FARSPAN_UNROLL for (int i = 0; i < 8; ++i) b[i] =
      __builtin_shufflevector(a[i], a[i], 0, 1, 2, 3, 4, 5, 6, 7) +
      __builtin_shufflevector(a[i], a[i], 8, 9, 10, 11, 12, 13, 14, 15);
#else
  FARSPAN_UNROLL for (int i = 0; i < 8; ++i) b[i] = a[i];
#endif
  vec8 c[4], d[2];
  FARSPAN_UNROLL for (int i = 0; i < 4; ++i) c[i] =
      __builtin_shufflevector(b[2 * i], b[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
      __builtin_shufflevector(b[2 * i], b[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  FARSPAN_UNROLL for (int i = 0; i < 2; ++i) d[i] =
      __builtin_shufflevector(c[2 * i], c[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
      __builtin_shufflevector(c[2 * i], c[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  *reinterpret_cast<vec8_mem*>(out) = __builtin_shufflevector(d[0], d[1], 0, 1, 2, 3, 8, 9, 10, 11) +
                                      __builtin_shufflevector(d[0], d[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
  FARSPAN_UNROLL for (int half = 0; half < 2; ++half) {
    const vec* b = a + 4 * half;
    const vec4 c0 = __builtin_shufflevector(b[0], b[1], 0, 4, 1, 5) + __builtin_shufflevector(b[0], b[1], 2, 6, 3, 7);
    const vec4 c1 = __builtin_shufflevector(b[2], b[3], 0, 4, 1, 5) + __builtin_shufflevector(b[2], b[3], 2, 6, 3, 7);
    *reinterpret_cast<vec4_mem*>(out + 4 * half) =
        __builtin_shufflevector(c0, c1, 0, 1, 4, 5) + __builtin_shufflevector(c0, c1, 2, 3, 6, 7);
  }
#endif
}

// Rows of `columns` floats, one a lane, become out[column][lane].
template <int LANES>
FARSPAN_INLINE void transpose(const float* const* row, int columns, float* out) {
#if defined(__AVX2__)
  // Two blocks of four rows side by side.
  for (int l = 0; l < LANES; l += 8) {
    const float* from[8];
    FARSPAN_UNROLL for (int i = 0; i < 8; ++i) from[i] = row[l + i];
    for (int c = 0; c < columns; c += 4) {
      vec8 r[4];
      FARSPAN_UNROLL for (int i = 0; i < 4; ++i) {
        const vec4 low = *reinterpret_cast<const vec4_mem*>(from[i] + c);
        const vec4 high = *reinterpret_cast<const vec4_mem*>(from[4 + i] + c);
        r[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
      }
      const vec8 x = __builtin_shufflevector(r[0], r[1], 0, 8, 1, 9, 4, 12, 5, 13);
      const vec8 y = __builtin_shufflevector(r[2], r[3], 0, 8, 1, 9, 4, 12, 5, 13);
      const vec8 z = __builtin_shufflevector(r[0], r[1], 2, 10, 3, 11, 6, 14, 7, 15);
      const vec8 w = __builtin_shufflevector(r[2], r[3], 2, 10, 3, 11, 6, 14, 7, 15);
      float* p = out + c * LANES + l;
      *reinterpret_cast<vec8_mem*>(p) = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
      *reinterpret_cast<vec8_mem*>(p + LANES) = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
      *reinterpret_cast<vec8_mem*>(p + 2 * LANES) = __builtin_shufflevector(z, w, 0, 1, 8, 9, 4, 5, 12, 13);
      *reinterpret_cast<vec8_mem*>(p + 3 * LANES) = __builtin_shufflevector(z, w, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
#else
  for (int l = 0; l < LANES; l += 4) {
    const float* from[4];
    FARSPAN_UNROLL for (int i = 0; i < 4; ++i) from[i] = row[l + i];
    for (int c = 0; c < columns; c += 4) {
      vec4 r[4];
      FARSPAN_UNROLL for (int i = 0; i < 4; ++i) r[i] = *reinterpret_cast<const vec4_mem*>(from[i] + c);
      const vec4 x = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
      const vec4 y = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
      const vec4 z = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
      const vec4 w = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
      float* p = out + c * LANES + l;
      *reinterpret_cast<vec4_mem*>(p) = __builtin_shufflevector(x, y, 0, 1, 4, 5);
      *reinterpret_cast<vec4_mem*>(p + LANES) = __builtin_shufflevector(x, y, 2, 3, 6, 7);
      *reinterpret_cast<vec4_mem*>(p + 2 * LANES) = __builtin_shufflevector(z, w, 0, 1, 4, 5);
      *reinterpret_cast<vec4_mem*>(p + 3 * LANES) = __builtin_shufflevector(z, w, 2, 3, 6, 7);
    }
  }
#endif
}

}  // namespace farspan::FARSPAN_ISA
