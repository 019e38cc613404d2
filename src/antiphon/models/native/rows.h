// Rows of activations in 8 bits, one scale per row.
#pragma once

#include <vector>

#include "blocks.h"

namespace {

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

}  // namespace
