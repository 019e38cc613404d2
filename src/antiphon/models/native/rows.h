// Rows of activations in 8 bits, one scale per row; for the kernels with AVX-512 VNNI.
#pragma once

#include <ATen/Parallel.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t WIDE = 64;  // Outputs whose weights lie together.
constexpr int64_t DEEP = 4;   // Inputs whose products one instruction adds up.
constexpr int64_t GRAIN = 1 << 18;  // Products below which a second thread costs more than it helps.

// Unrolled early, or the sums would live in memory.
#define EACH _Pragma("GCC unroll 8")

inline __mmask16 first(int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, 16)) - 1);
}

// Rows [R, padded], shifted by `shift`, and the size of a step in each.
struct Rows {
  std::vector<uint8_t> values;
  std::vector<float> sizes;
};

// x [R, K]; what a row's largest magnitude is taken for is `least` at least.
inline Rows quantised(const float* x, int64_t R, int64_t K, int64_t padded, float least, int shift) {
  Rows rows{std::vector<uint8_t>(R * padded), std::vector<float>(R)};
  const __m512i unsigned_bits = _mm512_set1_epi32(0x7fffffff), more = _mm512_set1_epi32(shift);
  at::parallel_for(0, R, std::max<int64_t>(1, (1 << 16) / K), [&](int64_t a, int64_t z) {
    for (int64_t r = a; r < z; ++r) {
      const float* row = x + r * K;
      __m512i most = _mm512_castps_si512(_mm512_set1_ps(least));
      // Floats without their signs are in the order of their bits.
      for (int64_t k = 0; k < K; k += 16)
        most = _mm512_max_epi32(most, _mm512_and_epi32(_mm512_maskz_loadu_epi32(first(K - k), row + k),
                                                       unsigned_bits));
      const float peak = _mm512_reduce_max_ps(_mm512_castsi512_ps(most));
      const __m512 by = _mm512_set1_ps(127.0f / peak);
      uint8_t* to = rows.values.data() + r * padded;
      for (int64_t k = 0; k < padded; k += 16) {
        const __m512 some = _mm512_maskz_loadu_ps(first(K - k), row + k);
        const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(some, by)), more);
        _mm_mask_storeu_epi8(to + k, first(padded - k), _mm512_cvtepi32_epi8(whole));
      }
      rows.sizes[r] = peak / 127.0f;
    }
  });
  return rows;
}

// Adds a bias [N] and stores 16 outputs from `n` on, as many as there are.
inline void finish(float* row, __m512 y, const float* bias, int64_t n, int64_t N) {
  const __mmask16 there = first(N - n);
  if (bias) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(there, bias + n));
  _mm512_mask_storeu_ps(row + n, there, y);
}

}  // namespace
