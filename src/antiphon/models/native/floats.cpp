// Linears over float32, and over bfloat16: by AVX-512 BF16, or widened to float32 where AVX2 is all
// there is.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "blocks.h"

#ifdef LANES
#if defined(__AVX512BF16__)
#define BF16 "bf16"
#elif !defined(__AVX512F__)
#define BF16 "bf16_widened"
#endif

namespace {

using at::Tensor;

void zeros(int64_t, Floats* sums) {
  for (int64_t i = 0; i < VECTORS; ++i) sums[i] = spread(0.0f);
}

// One input a step.
struct Singles : Whole {
  using Sum = Floats;
  static Sum add(Sum sum, Ints x, Ints weight) { return fused(as_floats(x), as_floats(weight), sum); }
};

// x [R, K] times a weight packed as [N / WIDE, K, WIDE], plus a bias [N], to [R, N].
Tensor f32(const Tensor& given, const Tensor& weight, const std::optional<Tensor>& bias,
           int64_t N) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), K = x.size(1);
  TORCH_CHECK(K == weight.size(1), "a row of ", K, " inputs, not ", weight.size(1));
  Tensor out = at::empty({R, N}, x.options());
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  linear<Singles>(x.const_data_ptr<float>(), K * UNIT, R, weight.const_data_ptr<float>(),
                  weight.size(0), K, zeros, [&](int64_t row, int64_t n, Floats sum) {
                    finish(to + row * N, sum, more, n, N);
                  });
  return out;
}

#ifdef BF16
using at::BFloat16;

#if defined(__AVX512BF16__)

// Two inputs a step, added up in float32.
struct Halves : Whole {
  using Sum = Floats;
  static constexpr int64_t INPUTS = 2;
  static Sum add(Sum sum, Ints x, Ints weight) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)weight);
  }
};

const Tensor& units(const Tensor& x) { return x; }

void narrowed(BFloat16* to, Floats x, int64_t count) {
  _mm256_mask_storeu_epi16(to, first(count), (__m256i)_mm512_cvtneps_pbh(x));
}

Floats widened(const BFloat16* from, int64_t count) {
  return as_floats(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(count), from)), 16));
}

#else

// One input a step, in float32; outputs i and i + LANES share 32 bits.
struct Halves {
  using Sum = Floats;
  static constexpr int64_t INPUTS = 1, STEP = sizeof(Ints);
  static void load(const char* from, Ints* w) {
    const Ints pair = ::load(static_cast<const void*>(from));
    w[0] = _mm256_slli_epi32(pair, 16);
    w[1] = both(pair, spread(static_cast<int32_t>(0xffff0000)));
  }
  static Sum add(Sum sum, Ints x, Ints weight) { return Singles::add(sum, x, weight); }
};

Tensor units(const Tensor& x) { return x.to(at::kFloat); }

void narrowed(BFloat16* to, Floats x, int64_t count) {
  float each[LANES];
  store(each, x, LANES);
  for (int64_t i = 0; i < std::min<int64_t>(count, LANES); ++i) to[i] = each[i];
}

Floats widened(const BFloat16* from, int64_t count) {
  float each[LANES] = {};
  for (int64_t i = 0; i < std::min<int64_t>(count, LANES); ++i) each[i] = from[i];
  return ::load(each);
}

#endif

// x [R, K] times a packed weight, plus a bias [N], to [R, N]; all in bfloat16. The weight:
// [N / WIDE, K / 2, WIDE, 2], K even, for AVX-512, else [N / WIDE, K, LANES, 2].
Tensor bf16(const Tensor& given, const Tensor& weight, const std::optional<Tensor>& bias,
            int64_t N) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), K = x.size(1), steps = weight.size(1);
  TORCH_CHECK(K == Halves::INPUTS * steps, "a row of ", K, " inputs, not ", Halves::INPUTS * steps);
  Tensor out = at::empty({R, N}, x.options());
  const BFloat16* more = bias ? bias->const_data_ptr<BFloat16>() : nullptr;
  BFloat16* to = out.data_ptr<BFloat16>();
  const Tensor rows = units(x);
  linear<Halves>(rows.const_data_ptr(), steps * UNIT, R, weight.const_data_ptr<BFloat16>(),
                 weight.size(0), steps, zeros, [&](int64_t row, int64_t n, Floats sum) {
                   if (more) sum = plus(sum, widened(more + n, N - n));
                   narrowed(to + row * N + n, sum, N - n);
                 });
  return out;
}

#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(antiphon, library) {
  library.def("f32(Tensor x, Tensor weight, Tensor? bias, int outputs) -> Tensor");
#ifdef BF16
  library.def(BF16 "(Tensor x, Tensor weight, Tensor? bias, int outputs) -> Tensor");
#endif
  // Outputs whose weights lie together, and how many of them a vector takes.
  library.def("blocks() -> (int, int)", []() { return std::tuple<int64_t, int64_t>(WIDE, LANES); });
}

TORCH_LIBRARY_IMPL(antiphon, CPU, library) {
  library.impl("f32", f32);
#ifdef BF16
  library.impl(BF16, bf16);
#endif
}

#endif
