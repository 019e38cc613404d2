// The vectors that linears are computed in: AVX-512's, or AVX2's with FMA. Neither: no LANES.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))

#include <immintrin.h>

#include <algorithm>

// Unrolled early, or sums would live in memory.
#define EACH _Pragma("GCC unroll 8")

#if defined(__AVX512F__)
#define LANES 16

namespace {

using Floats = __m512;
using Ints = __m512i;

constexpr int64_t VECTORS = 4;  // Of the outputs whose weights lie together.

inline __mmask16 first(int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, 16)) - 1);
}

inline Ints load(const void* from) { return _mm512_loadu_si512(from); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const float* from, int64_t count) {
  return _mm512_maskz_loadu_ps(first(count), from);
}
inline void store(float* to, Floats x, int64_t count) { _mm512_mask_storeu_ps(to, first(count), x); }

inline Ints spread(int32_t x) { return _mm512_set1_epi32(x); }
inline Floats spread(float x) { return _mm512_set1_ps(x); }
inline Ints spread_byte(char x) { return _mm512_set1_epi8(x); }

inline Floats as_floats(Ints x) { return _mm512_castsi512_ps(x); }
inline Ints as_ints(Floats x) { return _mm512_castps_si512(x); }
inline Floats floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints nearest(Floats x) { return _mm512_cvtps_epi32(x); }

inline Ints plus(Ints x, Ints y) { return _mm512_add_epi32(x, y); }
inline Ints both(Ints x, Ints y) { return _mm512_and_si512(x, y); }
inline Floats plus(Floats x, Floats y) { return _mm512_add_ps(x, y); }
inline Floats times(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
inline Floats fused(Floats x, Floats y, Floats sum) { return _mm512_fmadd_ps(x, y, sum); }
inline Floats larger(Floats x, Floats y) { return _mm512_max_ps(x, y); }
inline float largest(Floats x) { return _mm512_reduce_max_ps(x); }

// The upper halves of bytes, in the lower ones.
inline Ints upper(Ints x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), spread_byte(15)); }

// LANES numbers in bfloat16 as floats.
inline Floats widened(const void* from) {
  const __m256i x = _mm256_loadu_si256(static_cast<const __m256i*>(from));
  return as_floats(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// The lower bytes, signed or not.
inline void narrowed(void* to, Ints x, int64_t count) {
  _mm_mask_storeu_epi8(to, first(count), _mm512_cvtepi32_epi8(x));
}

}  // namespace

#else
#define LANES 8

#include <cstring>

namespace {

using Floats = __m256;
using Ints = __m256i;

constexpr int64_t VECTORS = 2;

inline __m256i first(int64_t count) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(std::min<int64_t>(count, 8))), places);
}

inline Ints load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline Floats load(const float* from, int64_t count) {
  return count < 8 ? _mm256_maskload_ps(from, first(count)) : load(from);
}
inline void store(float* to, Floats x, int64_t count) {
  count < 8 ? _mm256_maskstore_ps(to, first(count), x) : _mm256_storeu_ps(to, x);
}

inline Ints spread(int32_t x) { return _mm256_set1_epi32(x); }
inline Floats spread(float x) { return _mm256_set1_ps(x); }
inline Ints spread_byte(char x) { return _mm256_set1_epi8(x); }

inline Floats as_floats(Ints x) { return _mm256_castsi256_ps(x); }
inline Ints as_ints(Floats x) { return _mm256_castps_si256(x); }
inline Floats floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints nearest(Floats x) { return _mm256_cvtps_epi32(x); }

inline Ints plus(Ints x, Ints y) { return _mm256_add_epi32(x, y); }
inline Ints both(Ints x, Ints y) { return _mm256_and_si256(x, y); }
inline Floats plus(Floats x, Floats y) { return _mm256_add_ps(x, y); }
inline Floats times(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
inline Floats fused(Floats x, Floats y, Floats sum) { return _mm256_fmadd_ps(x, y, sum); }
inline Floats larger(Floats x, Floats y) { return _mm256_max_ps(x, y); }
inline float largest(Floats x) {
  float each[8];
  _mm256_storeu_ps(each, x);
  return *std::max_element(each, each + 8);
}

inline Ints upper(Ints x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), spread_byte(15)); }

inline Floats widened(const void* from) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(from));
  return as_floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

inline __m128i shorts(Ints x) {
  return _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}
inline void narrowed(int16_t* to, Ints x, int64_t count) {
  const __m128i y = shorts(x);
  std::memcpy(to, &y, 2 * std::clamp<int64_t>(count, 0, 8));
}
inline void narrowed(int8_t* to, Ints x, int64_t count) {
  const __m128i y = _mm_packs_epi16(shorts(x), _mm_setzero_si128());
  std::memcpy(to, &y, std::clamp<int64_t>(count, 0, 8));
}

}  // namespace

#endif
#endif
