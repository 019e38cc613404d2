// A linear over 4-bit weights in groups and 8-bit activations, for CPUs with AVX-512 VNNI.
//
// Rows meet weights as in `blocks.h`. Here a weight is low + code * scale, with one low and one scale for 32 inputs of an
// output: the products of codes are summed up in whole numbers group by group, and groups in floats,
// in order, so that a row's result is the same in every pass.

#ifdef __AVX512VNNI__

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "rows.h"

namespace {

using at::Tensor;

constexpr int64_t GROUP = 32;
constexpr int64_t FEW = 3;                   // Rows that share the loading of a weight.
constexpr int64_t PAIRS = GROUP / UNIT / 2;  // Two steps' codes share a byte.

inline __m512 wide(const at::BFloat16* from) {
  return widened(_mm256_loadu_si256((const __m256i*)from));
}

// `R` rows [R, stride] times one block: codes [groups, PAIRS, WIDE, UNIT], scales and lows [groups,
// WIDE]. totals: sums of each row's groups [R, groups]. To sums [R][4 vectors].
template <int64_t R>
void multiply4(const uint8_t* x, int64_t stride, const float* totals, const uint8_t* codes,
              const at::BFloat16* scales, const at::BFloat16* lows, int64_t groups, __m512* out) {
  const __m512i low_half = _mm512_set1_epi8(15);
  __m512 sums[R][4];
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) sums[r][i] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    __m512i dots[R][4];
    EACH for (int64_t r = 0; r < R; ++r)
      EACH for (int64_t i = 0; i < 4; ++i) dots[r][i] = _mm512_setzero_si512();
    for (int64_t p = 0; p < PAIRS; ++p, codes += 4 * WIDE) {
      __m512i a[R], b[R];
      EACH for (int64_t r = 0; r < R; ++r) {
        int32_t four[2];
        std::memcpy(four, x + r * stride + (g * PAIRS + p) * 2 * UNIT, 2 * UNIT);
        a[r] = _mm512_set1_epi32(four[0]);
        b[r] = _mm512_set1_epi32(four[1]);
      }
      EACH for (int64_t i = 0; i < 4; ++i) {
        const __m512i both = _mm512_loadu_si512(codes + i * WIDE);
        const __m512i even = _mm512_and_si512(both, low_half);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
        EACH for (int64_t r = 0; r < R; ++r) {
          dots[r][i] = _mm512_dpbusd_epi32(dots[r][i], even, a[r]);
          dots[r][i] = _mm512_dpbusd_epi32(dots[r][i], odd, b[r]);
        }
      }
    }
    EACH for (int64_t i = 0; i < 4; ++i) {
      const __m512 scale = wide(scales + g * WIDE + i * 16), low = wide(lows + g * WIDE + i * 16);
      EACH for (int64_t r = 0; r < R; ++r) {
        const __m512 total = _mm512_set1_ps(totals[r * groups + g]);
        sums[r][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][i]), scale, sums[r][i]);
        sums[r][i] = _mm512_fmadd_ps(total, low, sums[r][i]);
      }
    }
  }
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) out[r * 4 + i] = sums[r][i];
}

constexpr decltype(&multiply4<1>) MULTIPLY[FEW] = {multiply4<1>, multiply4<2>, multiply4<3>};

// x [R, K] in float32 times a weight whose codes are packed as [N / 64, K / 8, 64, 4], input k in the
// lower halves of bytes and input k + 4 in the upper ones, to [R, N].
//
// scales, lows: bfloat16 [N / 64, K / 32, 64]. bias: [N]. least: see `quantised`.
Tensor int4(const Tensor& given, const Tensor& codes, const Tensor& scales, const Tensor& lows,
            const std::optional<Tensor>& bias, int64_t N, double least) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), K = x.size(1), groups = K / GROUP;
  Tensor out = at::empty({R, N}, x.options());
  const Rows rows = quantised(x.const_data_ptr<float>(), R, K, K, static_cast<float>(least), 0);
  std::vector<float> totals(R * groups);
  for (int64_t i = 0; i < R * groups; ++i) {
    int32_t total = 0;
    for (int64_t k = 0; k < GROUP; ++k)
      total += static_cast<int8_t>(rows.values[i * GROUP + k]);
    totals[i] = static_cast<float>(total);
  }
  const uint8_t* code = codes.const_data_ptr<uint8_t>();
  const at::BFloat16 *scale = scales.const_data_ptr<at::BFloat16>(),
                     *low = lows.const_data_ptr<at::BFloat16>();
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, GRAIN / (WIDE * K * std::max<int64_t>(1, R)));
  at::parallel_for(0, codes.size(0), grain, [&](int64_t a, int64_t z) {
    for (int64_t b = a; b < z; ++b) {
      __m512 sums[FEW * 4];
      for (int64_t row = 0; row < R; row += FEW) {
        const int64_t some = std::min(FEW, R - row);
        MULTIPLY[some - 1](rows.values.data() + row * K, K, totals.data() + row * groups,
                           code + b * K / 2 * WIDE, scale + b * groups * WIDE,
                           low + b * groups * WIDE, groups, sums);
        for (int64_t r = 0; r < some; ++r)
          for (int64_t i = 0; i < 4; ++i)
            finish(to + (row + r) * N,
                   _mm512_mul_ps(sums[r * 4 + i], _mm512_set1_ps(rows.sizes[row + r])), more,
                   b * WIDE + i * 16, N);
      }
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(antiphon, library) {
  library.def(
      "int4(Tensor x, Tensor codes, Tensor scales, Tensor lows, Tensor? bias, int outputs, "
      "float least) -> Tensor");
}

TORCH_LIBRARY_IMPL(antiphon, CPU, library) { library.impl("int4", int4); }

#endif
