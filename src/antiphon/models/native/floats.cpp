// Linears over float32, and over bfloat16 where the CPU has AVX-512 BF16.

#ifdef __AVX512F__

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "blocks.h"

namespace {

using at::Tensor;

void zeros(int64_t, __m512* sums) {
  for (int64_t i = 0; i < 4; ++i) sums[i] = _mm512_setzero_ps();
}

// One input a step.
struct Floats {
  using Sum = __m512;
  static Sum add(Sum sum, __m512i x, __m512i weight) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(weight), sum);
  }
};

// x [R, K] times a weight packed as [N / 64, K, 64], plus a bias [N], to [R, N].
Tensor f32(const Tensor& given, const Tensor& weight, const std::optional<Tensor>& bias,
           int64_t N) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), K = x.size(1);
  TORCH_CHECK(K == weight.size(1), "a row of ", K, " inputs, not ", weight.size(1));
  Tensor out = at::empty({R, N}, x.options());
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  linear<Floats>(x.const_data_ptr<float>(), K * UNIT, R, weight.const_data_ptr<float>(),
                 weight.size(0), K, zeros, [&](int64_t row, int64_t n, __m512 sum) {
                   finish(to + row * N, sum, more, n, N);
                 });
  return out;
}

#ifdef __AVX512BF16__

// Two inputs a step, added up in float32.
struct Halves {
  using Sum = __m512;
  static Sum add(Sum sum, __m512i x, __m512i weight) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)weight);
  }
};

// x [R, K], K even, times a weight packed as [N / 64, K / 2, 64, 2], plus a bias [N], to [R, N]; all
// in bfloat16.
Tensor bf16(const Tensor& given, const Tensor& weight, const std::optional<Tensor>& bias,
            int64_t N) {
  using at::BFloat16;
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), K = x.size(1), steps = weight.size(1);
  TORCH_CHECK(K == 2 * steps, "a row of ", K, " inputs, not ", 2 * steps);
  Tensor out = at::empty({R, N}, x.options());
  const BFloat16* more = bias ? bias->const_data_ptr<BFloat16>() : nullptr;
  BFloat16* to = out.data_ptr<BFloat16>();
  linear<Halves>(x.const_data_ptr<BFloat16>(), steps * UNIT, R, weight.const_data_ptr<BFloat16>(),
                 weight.size(0), steps, zeros, [&](int64_t row, int64_t n, __m512 sum) {
                   const __mmask16 there = first(N - n);
                   if (more)
                     sum = _mm512_add_ps(sum, widened(_mm256_maskz_loadu_epi16(there, more + n)));
                   _mm256_mask_storeu_epi16(to + row * N + n, there,
                                            (__m256i)_mm512_cvtneps_pbh(sum));
                 });
  return out;
}

#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(antiphon, library) {
  library.def("f32(Tensor x, Tensor weight, Tensor? bias, int outputs) -> Tensor");
#ifdef __AVX512BF16__
  library.def("bf16(Tensor x, Tensor weight, Tensor? bias, int outputs) -> Tensor");
#endif
}

TORCH_LIBRARY_IMPL(antiphon, CPU, library) {
  library.impl("f32", f32);
#ifdef __AVX512BF16__
  library.impl("bf16", bf16);
#endif
}

#endif
