// Linears over 8-bit weights: 8-bit activations for CPUs with AVX-512 VNNI, 16-bit ones for AVX2,
// where they cost the same.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "rows.h"

#if defined(__AVX512VNNI__) || (defined(LANES) && !defined(__AVX512F__))

namespace {

using at::Tensor;

// Whole numbers to what they stand for: times a scale for the output and one for the row.
inline Floats scaled(Ints sum, const float* scale, float size) {
  return times(floats(sum), times(load(scale), spread(size)));
}

#if defined(__AVX512VNNI__)

// Four inputs a step, in whole numbers.
struct Bytes : Whole {
  using Sum = Ints;
  static Sum add(Sum sum, Ints x, Ints weight) { return _mm512_dpbusd_epi32(sum, x, weight); }
};

// x [R, K] in float32 times a weight packed as [N / WIDE, K / 4, WIDE, 4] in int8, to [R, N].
//
// offsets: int32 [N padded], -128 times the sums of each output's weights. scales: float32 [N
// padded]. bias: [N]. least: see `quantised`.
Tensor int8(const Tensor& given, const Tensor& weight, const Tensor& offsets, const Tensor& scales,
            const std::optional<Tensor>& bias, int64_t N, double least) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), steps = weight.size(1), padded = steps * UNIT;
  Tensor out = at::empty({R, N}, x.options());
  const auto rows = quantised<uint8_t>(x.const_data_ptr<float>(), R, x.size(1), padded,
                                       static_cast<float>(least), 127, 128);
  const int32_t* offset = offsets.const_data_ptr<int32_t>();
  const float* scale = scales.const_data_ptr<float>();
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  linear<Bytes>(
      rows.values.data(), padded, R, weight.const_data_ptr(), weight.size(0), steps,
      [&](int64_t b, Ints* sums) {
        for (int64_t i = 0; i < VECTORS; ++i)
          sums[i] = load(static_cast<const void*>(offset + b * WIDE + i * LANES));
      },
      [&](int64_t row, int64_t n, Ints sum) {
        finish(to + row * N, scaled(sum, scale + n, rows.sizes[row]), more, n, N);
      });
  return out;
}

#else

// Two inputs a step: one instruction adds two products of 16 bits up in 32.
struct Pairs {
  using Sum = Ints;
  static constexpr int64_t STEP = 2 * WIDE;
  static void load(const char* from, Ints* w) {
    for (int64_t i = 0; i < VECTORS; ++i)
      w[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
  }
  static Sum add(Sum sum, Ints x, Ints weight) {
#ifdef __AVXVNNI__
    return _mm256_dpwssd_avx_epi32(sum, x, weight);
#else
    return plus(sum, _mm256_madd_epi16(x, weight));
#endif
  }
};

// x [R, K] in float32 times a weight packed as [N / WIDE, K / 2, WIDE, 2] in int8, to [R, N].
//
// levels: the largest activation in whole numbers, such that no sum overflows. scales: float32 [N
// padded]. bias: [N]. least: see `quantised`.
Tensor int8(const Tensor& given, const Tensor& weight, const Tensor& scales, int64_t levels,
            const std::optional<Tensor>& bias, int64_t N, double least) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), steps = weight.size(1), padded = 2 * steps;
  Tensor out = at::empty({R, N}, x.options());
  const auto rows = quantised<int16_t>(x.const_data_ptr<float>(), R, x.size(1), padded,
                                       static_cast<float>(least), static_cast<int>(levels), 0);
  const float* scale = scales.const_data_ptr<float>();
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  linear<Pairs>(
      rows.values.data(), padded * 2, R, weight.const_data_ptr(), weight.size(0), steps,
      [](int64_t, Ints* sums) {
        for (int64_t i = 0; i < VECTORS; ++i) sums[i] = spread(0);
      },
      [&](int64_t row, int64_t n, Ints sum) {
        finish(to + row * N, scaled(sum, scale + n, rows.sizes[row]), more, n, N);
      });
  return out;
}

#endif

}  // namespace

#if defined(__AVX512VNNI__)
#define INT8 "int8"
#define GIVEN "Tensor offsets, Tensor scales"
#else
#define INT8 "int8_by_16"
#define GIVEN "Tensor scales, int levels"
#endif

TORCH_LIBRARY_FRAGMENT(antiphon, library) {
  library.def(INT8 "(Tensor x, Tensor weight, " GIVEN
                   ", Tensor? bias, int outputs, float least) -> Tensor");
}

TORCH_LIBRARY_IMPL(antiphon, CPU, library) { library.impl(INT8, int8); }

#endif
