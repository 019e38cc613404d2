// A linear over 4-bit weights in groups and 8-bit activations, for CPUs with AVX-512 VNNI or AVX2.
//
// Rows meet weights as in `blocks.h`. Here a weight is low + code * scale, with one low and one scale for 32 inputs of an
// output: the products of codes are summed up in whole numbers group by group, and groups in floats,
// in order, so that a row's result is the same in every pass.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "rows.h"

#if defined(__AVX512VNNI__) || (defined(LANES) && !defined(__AVX512F__))

namespace {

using at::BFloat16;
using at::Tensor;

constexpr int64_t GROUP = 32;
constexpr int64_t PAIRS = GROUP / UNIT / 2;  // Two steps' codes share a byte.

#if defined(__AVX512VNNI__)
inline Ints add(Ints sum, Ints codes, Ints x) { return _mm512_dpbusd_epi32(sum, codes, x); }
inline Ints whole(Ints sum) { return sum; }
#elif defined(__AVXVNNI__)
inline Ints add(Ints sum, Ints codes, Ints x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
inline Ints whole(Ints sum) { return sum; }
#else
// A group's 16 products of 15 and 127 at most fit into 16 bits.
inline Ints add(Ints sum, Ints codes, Ints x) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
}
inline Ints whole(Ints sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
#endif

// `R` rows [R, stride] times one block: codes [groups, PAIRS, WIDE, UNIT], scales and lows [groups,
// WIDE]. totals: sums of each row's groups [R, groups]. To sums [R][VECTORS].
template <int64_t R>
void multiply4(const int8_t* x, int64_t stride, const float* totals, const uint8_t* codes,
               const BFloat16* scales, const BFloat16* lows, int64_t groups, Floats* out) {
  const Ints low_half = spread_byte(15);
  Floats sums[R][VECTORS];
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < VECTORS; ++i) sums[r][i] = spread(0.0f);
  for (int64_t g = 0; g < groups; ++g) {
    Ints dots[R][VECTORS];
    EACH for (int64_t r = 0; r < R; ++r)
      EACH for (int64_t i = 0; i < VECTORS; ++i) dots[r][i] = spread(0);
    for (int64_t p = 0; p < PAIRS; ++p, codes += UNIT * WIDE)
      EACH for (int64_t half = 0; half < 2; ++half) {
        Ints w[VECTORS];
        EACH for (int64_t i = 0; i < VECTORS; ++i) {
          const Ints pair = load(static_cast<const void*>(codes + i * sizeof(Ints)));
          w[i] = half ? upper(pair) : both(pair, low_half);
        }
        EACH for (int64_t r = 0; r < R; ++r) {
          int32_t four;
          std::memcpy(&four, x + r * stride + ((g * PAIRS + p) * 2 + half) * UNIT, UNIT);
          const Ints a = spread(four);
          EACH for (int64_t i = 0; i < VECTORS; ++i) dots[r][i] = add(dots[r][i], w[i], a);
        }
      }
    EACH for (int64_t i = 0; i < VECTORS; ++i) {
      const Floats scale = widened(scales + g * WIDE + i * LANES);
      const Floats low = widened(lows + g * WIDE + i * LANES);
      EACH for (int64_t r = 0; r < R; ++r) {
        const Floats total = spread(totals[r * groups + g]);
        sums[r][i] = fused(floats(whole(dots[r][i])), scale, sums[r][i]);
        sums[r][i] = fused(total, low, sums[r][i]);
      }
    }
  }
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < VECTORS; ++i) out[r * VECTORS + i] = sums[r][i];
}

constexpr decltype(&multiply4<1>) MULTIPLY[FEW] = {multiply4<1>, multiply4<2>, multiply4<3>};

// x [R, K] in float32 times a weight whose codes are packed as [N / WIDE, K / 8, WIDE, 4], input k in
// the lower halves of bytes and input k + 4 in the upper ones, to [R, N].
//
// scales, lows: bfloat16 [N / WIDE, K / 32, WIDE]. bias: [N]. least: see `quantised`.
Tensor int4(const Tensor& given, const Tensor& codes, const Tensor& scales, const Tensor& lows,
            const std::optional<Tensor>& bias, int64_t N, double least) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), K = x.size(1), groups = K / GROUP;
  Tensor out = at::empty({R, N}, x.options());
  const auto rows = quantised<int8_t>(x.const_data_ptr<float>(), R, K, K,
                                       static_cast<float>(least), 127, 0);
  std::vector<float> totals(R * groups);
  for (int64_t i = 0; i < R * groups; ++i) {
    int32_t total = 0;
    for (int64_t k = 0; k < GROUP; ++k)
      total += rows.values[i * GROUP + k];
    totals[i] = static_cast<float>(total);
  }
  const uint8_t* code = codes.const_data_ptr<uint8_t>();
  const BFloat16 *scale = scales.const_data_ptr<BFloat16>(), *low = lows.const_data_ptr<BFloat16>();
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, GRAIN / (WIDE * K * std::max<int64_t>(1, R)));
  at::parallel_for(0, codes.size(0), grain, [&](int64_t a, int64_t z) {
    for (int64_t b = a; b < z; ++b) {
      Floats sums[FEW * VECTORS];
      for (int64_t row = 0; row < R; row += FEW) {
        const int64_t some = std::min(FEW, R - row);
        MULTIPLY[some - 1](rows.values.data() + row * K, K, totals.data() + row * groups,
                           code + b * K / 2 * WIDE, scale + b * groups * WIDE,
                           low + b * groups * WIDE, groups, sums);
        for (int64_t r = 0; r < some; ++r)
          for (int64_t i = 0; i < VECTORS; ++i)
            finish(to + (row + r) * N, times(sums[r * VECTORS + i], spread(rows.sizes[row + r])),
                   more, b * WIDE + i * LANES, N);
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
