// Rows times a weight that lies in blocks of 64 outputs, for CPUs with AVX-512.
//
// Checking a block of tokens should cost what one token costs: the weights are read once either
// way. So what was loaded of a weight meets up to six rows before the next is loaded. A row's products
// are added up in the order of its inputs, whatever the number of rows, so its result is the same in
// every pass.
#pragma once

#include <ATen/Parallel.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t WIDE = 64;        // Outputs whose weights lie together.
constexpr int64_t ROWS = 6;         // Rows that share the loading of a weight.
constexpr int64_t UNIT = 4;         // Bytes of a row that one step takes: an input, or several.
constexpr int64_t GRAIN = 1 << 18;  // Bytes of work below which a second thread costs more.

// Unrolled early, or the sums would live in memory.
#define EACH _Pragma("GCC unroll 8")

inline __mmask16 first(int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, 16)) - 1);
}

// 16 numbers in bfloat16 as floats.
inline __m512 widened(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// `R` rows, `stride` bytes apart, times one block of weights, `steps` times 64 outputs of 4 bytes;
// onto sums that begin as `start`. Kind says what a sum is and how a product is added to it.
template <class Kind, int64_t R>
void multiply(const char* x, int64_t stride, const char* weights, int64_t steps,
              const typename Kind::Sum* start, typename Kind::Sum* out) {
  typename Kind::Sum sums[R][4];
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) sums[r][i] = start[i];
  for (int64_t k = 0; k < steps; ++k) {
    __m512i w[4];
    EACH for (int64_t i = 0; i < 4; ++i) w[i] = _mm512_loadu_si512(weights + (k * 4 + i) * 64);
    EACH for (int64_t r = 0; r < R; ++r) {
      int32_t unit;
      std::memcpy(&unit, x + r * stride + k * UNIT, UNIT);
      const __m512i a = _mm512_set1_epi32(unit);
      EACH for (int64_t i = 0; i < 4; ++i) sums[r][i] = Kind::add(sums[r][i], a, w[i]);
    }
  }
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) out[r * 4 + i] = sums[r][i];
}

// All `R` rows times all blocks. `start(b, sums)` fills the 4 sums a block begins with; `finish(row,
// n, sum)` takes the sum of 16 outputs from `n` on.
template <class Kind, class Start, class Finish>
void linear(const void* x, int64_t stride, int64_t R, const void* weights, int64_t blocks,
            int64_t steps, const Start& start, const Finish& finish) {
  using Sum = typename Kind::Sum;
  constexpr decltype(&multiply<Kind, 1>) some_rows[ROWS] = {
      multiply<Kind, 1>, multiply<Kind, 2>, multiply<Kind, 3>,
      multiply<Kind, 4>, multiply<Kind, 5>, multiply<Kind, 6>};
  if (!R) return;
  const auto *from = static_cast<const char*>(x), *w = static_cast<const char*>(weights);
  const int64_t turns = (R + ROWS - 1) / ROWS, even = (R + turns - 1) / turns;
  const int64_t grain = std::max<int64_t>(1, GRAIN / (WIDE * UNIT * steps * R));
  at::parallel_for(0, blocks, grain, [&](int64_t a, int64_t z) {
    for (int64_t b = a; b < z; ++b) {
      Sum begin[4], sums[ROWS * 4];
      start(b, begin);
      for (int64_t row = 0, some; row < R; row += some) {
        some = std::min(even, R - row);
        some_rows[some - 1](from + row * stride, stride, w + b * WIDE * UNIT * steps, steps, begin,
                            sums);
        for (int64_t r = 0; r < some; ++r)
          for (int64_t i = 0; i < 4; ++i) finish(row + r, b * WIDE + i * 16, sums[r * 4 + i]);
      }
    }
  });
}

// Adds a bias [N] and stores 16 outputs from `n` on, as many as there are.
inline void finish(float* row, __m512 y, const float* bias, int64_t n, int64_t N) {
  const __mmask16 there = first(N - n);
  if (bias) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(there, bias + n));
  _mm512_mask_storeu_ps(row + n, there, y);
}

}  // namespace
