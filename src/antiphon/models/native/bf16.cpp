// A linear over bfloat16 weights and activations, for CPUs with AVX-512 BF16.
//
// See `int8.cpp`. A row's products are added up in float32 in the order of the inputs, whatever the
// number of rows, so its result is the same in every pass.

#ifdef __AVX512BF16__

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstring>
#include <optional>

#include "rows.h"

namespace {

using at::BFloat16;
using at::Tensor;

constexpr int64_t ROWS = 6;  // That share the loading of a weight.
constexpr int64_t PAIR = 2;  // Inputs whose products one instruction adds up.

// `R` rows [R, stride] times one block of weights [steps, WIDE, PAIR], to sums [R][4 vectors].
template <int64_t R>
void multiply(const BFloat16* x, int64_t stride, const BFloat16* weights, int64_t steps,
              __m512* out) {
  __m512 sums[R][4];
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) sums[r][i] = _mm512_setzero_ps();
  for (int64_t k = 0; k < steps; ++k) {
    __m512bh w[4];
    EACH for (int64_t i = 0; i < 4; ++i)
      w[i] = (__m512bh)_mm512_loadu_si512(weights + k * WIDE * PAIR + i * 32);
    EACH for (int64_t r = 0; r < R; ++r) {
      int32_t two;
      std::memcpy(&two, x + r * stride + k * PAIR, 4);
      const auto a = (__m512bh)_mm512_set1_epi32(two);
      EACH for (int64_t i = 0; i < 4; ++i) sums[r][i] = _mm512_dpbf16_ps(sums[r][i], a, w[i]);
    }
  }
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) out[r * 4 + i] = sums[r][i];
}

constexpr decltype(&multiply<1>) MULTIPLY[ROWS] = {multiply<1>, multiply<2>, multiply<3>,
                                                   multiply<4>, multiply<5>, multiply<6>};

__m512 widened(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// x [R, K], K even, times a weight packed as [N / 64, K / 2, 64, 2], plus a bias [N], to [R, N]; all
// in bfloat16, added up in float32.
Tensor bf16(const Tensor& given, const Tensor& weight, const std::optional<Tensor>& bias,
            int64_t N) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), K = x.size(1), steps = K / PAIR;
  TORCH_CHECK(steps == weight.size(1) && K % PAIR == 0, "a row of ", K, " inputs");
  Tensor out = at::empty({R, N}, x.options());
  const BFloat16 *from = x.const_data_ptr<BFloat16>(), *w = weight.const_data_ptr<BFloat16>();
  const BFloat16* more = bias ? bias->const_data_ptr<BFloat16>() : nullptr;
  BFloat16* to = out.data_ptr<BFloat16>();
  const int64_t turns = (R + ROWS - 1) / ROWS, even = (R + turns - 1) / std::max<int64_t>(1, turns);
  const int64_t grain = std::max<int64_t>(1, GRAIN / (WIDE * K * std::max<int64_t>(1, R)));
  at::parallel_for(0, weight.size(0), grain, [&](int64_t a, int64_t z) {
    for (int64_t b = a; b < z; ++b) {
      __m512 sums[ROWS * 4];
      for (int64_t row = 0, some; row < R; row += some) {
        some = std::min(even, R - row);
        MULTIPLY[some - 1](from + row * K, K, w + b * WIDE * K, steps, sums);
        for (int64_t r = 0; r < some; ++r)
          for (int64_t i = 0; i < 4; ++i) {
            const int64_t n = b * WIDE + i * 16;
            const __mmask16 there = first(N - n);
            __m512 y = sums[r * 4 + i];
            if (more) y = _mm512_add_ps(y, widened(_mm256_maskz_loadu_epi16(there, more + n)));
            _mm256_mask_storeu_epi16(to + (row + r) * N + n, there, (__m256i)_mm512_cvtneps_pbh(y));
          }
      }
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(antiphon, library) {
  library.def("bf16(Tensor x, Tensor weight, Tensor? bias, int outputs) -> Tensor");
}

TORCH_LIBRARY_IMPL(antiphon, CPU, library) { library.impl("bf16", bf16); }

#endif
