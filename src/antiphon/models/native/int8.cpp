// A linear over 8-bit weights and 8-bit activations, for CPUs with AVX-512 VNNI.
//
// Checking a block of tokens should cost what one token costs: the weights are read once either
// way. So each weight that was loaded meets up to six rows before the next is loaded. Sums are of
// whole numbers, and a row's result is the same in every pass.

#ifdef __AVX512VNNI__

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstring>
#include <optional>

#include "rows.h"

namespace {

using at::Tensor;

constexpr int64_t ROWS = 6;  // That share the loading of a weight.

// `R` rows [R, stride] times one block of weights [steps, WIDE, DEEP], onto sums [R][4 vectors].
template <int64_t R>
void multiply(const uint8_t* x, int64_t stride, const int8_t* weights, int64_t steps,
              const int32_t* offsets, __m512i* out) {
  __m512i sums[R][4];
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) sums[r][i] = _mm512_loadu_si512(offsets + i * 16);
  for (int64_t k = 0; k < steps; ++k) {
    __m512i w[4];
    EACH for (int64_t i = 0; i < 4; ++i) w[i] = _mm512_loadu_si512(weights + (k * 4 + i) * WIDE);
    EACH for (int64_t r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * stride + k * DEEP, DEEP);
      const __m512i a = _mm512_set1_epi32(four);
      EACH for (int64_t i = 0; i < 4; ++i) sums[r][i] = _mm512_dpbusd_epi32(sums[r][i], a, w[i]);
    }
  }
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) out[r * 4 + i] = sums[r][i];
}

constexpr decltype(&multiply<1>) MULTIPLY[ROWS] = {multiply<1>, multiply<2>, multiply<3>,
                                                   multiply<4>, multiply<5>, multiply<6>};

// x [R, K] in float32 times a weight packed as [N / 64, K / 4, 64, 4] in int8, to [R, N].
//
// offsets: int32 [N padded], -128 times the sums of each output's weights. scales: float32 [N
// padded]. bias: [N]. least: see `quantised`.
Tensor int8(const Tensor& given, const Tensor& weight, const Tensor& offsets, const Tensor& scales,
            const std::optional<Tensor>& bias, int64_t N, double least) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), steps = weight.size(1), padded = steps * DEEP;
  Tensor out = at::empty({R, N}, x.options());
  const Rows rows = quantised(x.const_data_ptr<float>(), R, x.size(1), padded,
                              static_cast<float>(least), 128);
  const int8_t* w = weight.const_data_ptr<int8_t>();
  const int32_t* offset = offsets.const_data_ptr<int32_t>();
  const float* scale = scales.const_data_ptr<float>();
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  const int64_t turns = (R + ROWS - 1) / ROWS, even = (R + turns - 1) / std::max<int64_t>(1, turns);
  const int64_t grain = std::max<int64_t>(1, GRAIN / (WIDE * padded * std::max<int64_t>(1, R)));
  at::parallel_for(0, weight.size(0), grain, [&](int64_t a, int64_t z) {
    for (int64_t b = a; b < z; ++b) {
      __m512i sums[ROWS * 4];
      for (int64_t row = 0, some; row < R; row += some) {
        some = std::min(even, R - row);
        MULTIPLY[some - 1](rows.values.data() + row * padded, padded, w + b * padded * WIDE, steps,
                           offset + b * WIDE, sums);
        for (int64_t r = 0; r < some; ++r)
          for (int64_t i = 0; i < 4; ++i) {
            const int64_t n = b * WIDE + i * 16;
            const __m512 size = _mm512_set1_ps(rows.sizes[row + r]);
            finish(to + (row + r) * N,
                   _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r * 4 + i]),
                                 _mm512_mul_ps(_mm512_loadu_ps(scale + n), size)),
                   more, n, N);
          }
      }
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(antiphon, library) {
  library.def(
      "int8(Tensor x, Tensor weight, Tensor offsets, Tensor scales, Tensor? bias, int outputs, "
      "float least) -> Tensor");
}

TORCH_LIBRARY_IMPL(antiphon, CPU, library) { library.impl("int8", int8); }

#endif
