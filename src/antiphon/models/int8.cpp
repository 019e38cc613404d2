// A linear over 8-bit weights and 8-bit activations, for CPUs with AVX-512 VNNI.
//
// Checking a block of tokens should cost what one token costs: the weights are read once either
// way. So each weight that was loaded meets up to six rows before the next is loaded. Sums are of
// whole numbers, and a row's result is the same in every pass.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#ifdef __AVX512VNNI__
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace {

using at::Tensor;

constexpr int64_t WIDE = 64;        // Outputs whose weights lie together.
constexpr int64_t DEEP = 4;         // Inputs whose products one instruction adds up.
constexpr int64_t ROWS = 6;         // Rows that share the loading of a weight.
constexpr int64_t GRAIN = 1 << 18;  // Products below which a second thread costs more than it helps.

// One row [K] to 8 bits, shifted by 128, zeros behind it; gives the size of a step.
float quantise(const float* x, int64_t K, int64_t padded, float least, uint8_t* to) {
  const __m512 sign = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
  __m512 most = _mm512_set1_ps(least);
  const auto some = [&](int64_t k) {
    const auto mask = static_cast<__mmask16>((1u << std::min<int64_t>(16, K - k)) - 1);
    return _mm512_maskz_loadu_ps(mask, x + k);
  };
  for (int64_t k = 0; k < K; k += 16) most = _mm512_max_ps(most, _mm512_and_ps(some(k), sign));
  const float peak = _mm512_reduce_max_ps(most);
  const __m512 by = _mm512_set1_ps(127.0f / peak);
  const __m512i middle = _mm512_set1_epi32(128);
  for (int64_t k = 0; k < padded; k += 16) {
    const __m512i whole = k < K ? _mm512_cvtps_epi32(_mm512_mul_ps(some(k), by)) : __m512i{};
    const auto mask = static_cast<__mmask16>((1u << std::min<int64_t>(16, padded - k)) - 1);
    _mm_mask_storeu_epi8(to + k, mask, _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, middle)));
  }
  return peak / 127.0f;
}

// Unrolled early, or the sums would live in memory.
#define EACH _Pragma("GCC unroll 8")

// `R` rows [R, steps DEEP] times one block of weights [steps, WIDE, DEEP], onto sums [R][4 vectors].
template <int64_t R>
void multiply(const uint8_t* x, int64_t stride, const int8_t* weights, int64_t steps,
              const __m512i* first, __m512i* out) {
  __m512i sums[R][4];
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < 4; ++i) sums[r][i] = first[i];
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
// padded]. bias: [N]. least: what a row's largest magnitude is taken for at least.
Tensor int8(const Tensor& given, const Tensor& weight, const Tensor& offsets, const Tensor& scales,
            const std::optional<Tensor>& bias, int64_t N, double least) {
  const Tensor x = given.contiguous();
  const int64_t R = x.size(0), K = x.size(1), steps = weight.size(1), padded = steps * DEEP;
  const int64_t blocks = weight.size(0);
  Tensor out = at::empty({R, N}, x.options());
  std::vector<uint8_t> quantised(R * padded);
  std::vector<float> sizes(R);
  const float* from = x.const_data_ptr<float>();
  at::parallel_for(0, R, std::max<int64_t>(1, (1 << 16) / K), [&](int64_t a, int64_t z) {
    for (int64_t r = a; r < z; ++r)
      sizes[r] = quantise(from + r * K, K, padded, static_cast<float>(least),
                          quantised.data() + r * padded);
  });
  const int8_t* w = weight.const_data_ptr<int8_t>();
  const int32_t* offset = offsets.const_data_ptr<int32_t>();
  const float* scale = scales.const_data_ptr<float>();
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  const int64_t turns = (R + ROWS - 1) / ROWS, even = (R + turns - 1) / std::max<int64_t>(1, turns);
  const int64_t grain = std::max<int64_t>(1, GRAIN / (WIDE * padded * R));
  at::parallel_for(0, blocks, grain, [&](int64_t a, int64_t z) {
    for (int64_t b = a; b < z; ++b) {
      __m512i first[4], sums[ROWS * 4];
      for (int64_t i = 0; i < 4; ++i) first[i] = _mm512_loadu_si512(offset + b * WIDE + i * 16);
      for (int64_t row = 0, some; row < R; row += some) {
        some = std::min(even, R - row);
        MULTIPLY[some - 1](quantised.data() + row * padded, padded, w + b * steps * WIDE * DEEP,
                           steps, first, sums);
        for (int64_t r = 0; r < some; ++r) {
          const __m512 size = _mm512_set1_ps(sizes[row + r]);
          for (int64_t i = 0; i < 4; ++i) {
            const int64_t n = b * WIDE + i * 16, left = std::clamp<int64_t>(N - n, 0, 16);
            const auto mask = static_cast<__mmask16>((1u << left) - 1);
            __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r * 4 + i]),
                                     _mm512_mul_ps(_mm512_loadu_ps(scale + n), size));
            if (more) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, more + n));
            _mm512_mask_storeu_ps(to + (row + r) * N + n, mask, y);
          }
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
