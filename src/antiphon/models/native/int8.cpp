// A linear over 8-bit weights and 8-bit activations, for CPUs with AVX-512 VNNI.

#ifdef __AVX512VNNI__

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "rows.h"

namespace {

using at::Tensor;

// Four inputs a step, in whole numbers.
struct Bytes {
  using Sum = __m512i;
  static Sum add(Sum sum, __m512i x, __m512i weight) { return _mm512_dpbusd_epi32(sum, x, weight); }
};

// x [R, K] in float32 times a weight packed as [N / 64, K / 4, 64, 4] in int8, to [R, N].
//
// offsets: int32 [N padded], -128 times the sums of each output's weights. scales: float32 [N
// padded]. bias: [N]. least: see `quantised`.
Tensor int8(const Tensor& given, const Tensor& weight, const Tensor& offsets, const Tensor& scales,
            const std::optional<Tensor>& bias, int64_t N, double least) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), steps = weight.size(1), padded = steps * UNIT;
  Tensor out = at::empty({R, N}, x.options());
  const Rows rows = quantised(x.const_data_ptr<float>(), R, x.size(1), padded,
                              static_cast<float>(least), 128);
  const int32_t* offset = offsets.const_data_ptr<int32_t>();
  const float* scale = scales.const_data_ptr<float>();
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  linear<Bytes>(
      rows.values.data(), padded, R, weight.const_data_ptr(), weight.size(0), steps,
      [&](int64_t b, __m512i* sums) {
        for (int64_t i = 0; i < 4; ++i) sums[i] = _mm512_loadu_si512(offset + b * WIDE + i * 16);
      },
      [&](int64_t row, int64_t n, __m512i sum) {
        const __m512 by = _mm512_mul_ps(_mm512_loadu_ps(scale + n), _mm512_set1_ps(rows.sizes[row]));
        finish(to + row * N, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), by), more, n, N);
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
