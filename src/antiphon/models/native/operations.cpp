// What modeling code spells out in many steps, each as one operation on CPU tensors.
//
// Every row is computed by itself and always in the same order, so it does not depend on the rows
// beside it. bfloat16 is rounded where PyTorch's separate operations round.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

namespace {

using at::Tensor;

constexpr int64_t GRAIN = 1 << 15;  // Elements below which a second thread costs more than it helps.

template <typename F>
void over_rows(int64_t rows, int64_t width, const F& f) {
  const int64_t grain = std::max<int64_t>(1, GRAIN / std::max<int64_t>(width, 1));
  at::parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) f(row);
  });
}

// Calls f with a value of the tensor's type: float32 or bfloat16.
template <typename F>
void by_type(const Tensor& x, const F& f) {
  if (x.scalar_type() == at::kFloat) return f(float{});
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, "float32 or bfloat16, not ", x.scalar_type());
  f(at::BFloat16{});
}

// What is left of a float in a type.
template <typename T>
float rounded(float x) {
  return static_cast<float>(static_cast<T>(x));
}

// x [..., N] divided by the root of its mean square, in float32, times weight [N].
Tensor rms_norm(const Tensor& given, const Tensor& weight, double eps) {
  const Tensor x = given.contiguous();
  Tensor out = at::empty_like(x);
  const int64_t width = x.size(-1);
  by_type(x, [&](auto type) {
    using T = decltype(type);
    const T *in = x.const_data_ptr<T>(), *scale = weight.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    over_rows(x.numel() / width, width, [&](int64_t row) {
      const T* from = in + row * width;
      T* put = to + row * width;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; ++i) sum += static_cast<float>(from[i]) * static_cast<float>(from[i]);
      const float by = 1.0f / std::sqrt(sum / width + static_cast<float>(eps));
#pragma omp simd
      for (int64_t i = 0; i < width; ++i)
        put[i] = static_cast<T>(static_cast<float>(scale[i]) * rounded<T>(static_cast<float>(from[i]) * by));
    });
  });
  return out;
}

// Heads [1, H, T, D] turned by cos and sin [1, T, D], halves against each other; contiguous.
template <typename T>
Tensor turned(const Tensor& x, const T* cos, const T* sin) {
  const int64_t H = x.size(1), tokens = x.size(2), D = x.size(3), half = D / 2;
  Tensor out = at::empty({1, H, tokens, D}, x.options());
  const T* in = x.const_data_ptr<T>();
  T* to = out.data_ptr<T>();
  const int64_t head = x.stride(1), token = x.stride(2);
  over_rows(H * tokens, D, [&](int64_t row) {
    const int64_t h = row / tokens, t = row % tokens;
    const T *from = in + h * head + t * token, *c = cos + t * D, *s = sin + t * D;
    T* put = to + row * D;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float low = from[i], high = from[i + half];
      put[i] = static_cast<T>(rounded<T>(low * static_cast<float>(c[i])) -
                              rounded<T>(high * static_cast<float>(s[i])));
      put[i + half] = static_cast<T>(rounded<T>(high * static_cast<float>(c[i + half])) +
                                     rounded<T>(low * static_cast<float>(s[i + half])));
    }
  });
  return out;
}

std::tuple<Tensor, Tensor> rotate(const Tensor& q, const Tensor& k, const Tensor& cos,
                                  const Tensor& sin) {
  const Tensor c = cos.contiguous(), s = sin.contiguous();
  std::tuple<Tensor, Tensor> out;
  by_type(q, [&](auto type) {
    using T = decltype(type);
    const T *cosines = c.const_data_ptr<T>(), *sines = s.const_data_ptr<T>();
    out = {turned<T>(q, cosines, sines), turned<T>(k, cosines, sines)};
  });
  return out;
}

// Rows [R, N] in float32 divided by their largest magnitudes, and those [R, 1].
std::tuple<Tensor, Tensor> shrink(const Tensor& given, double least) {
  const Tensor x = given.contiguous();
  const int64_t rows = x.size(0), width = x.size(1);
  Tensor out = at::empty_like(x), peaks = at::empty({rows, 1}, x.options());
  const float* in = x.const_data_ptr<float>();
  float *to = out.data_ptr<float>(), *peak = peaks.data_ptr<float>();
  over_rows(rows, width, [&](int64_t row) {
    const float* from = in + row * width;
    float* put = to + row * width;
    float most = static_cast<float>(least);
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < width; ++i) most = std::max(most, std::fabs(from[i]));
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) put[i] = from[i] / most;
    peak[row] = most;
  });
  return {out, peaks};
}

// Rows [R, N] in float32 multiplied by [R, 1], a bias [N] added; in place.
Tensor stretch(Tensor x, const Tensor& peaks, const std::optional<Tensor>& bias) {
  const int64_t rows = x.size(0), width = x.size(1);
  float* all = x.data_ptr<float>();
  const float* peak = peaks.const_data_ptr<float>();
  const float* more = bias ? bias->const_data_ptr<float>() : nullptr;
  over_rows(rows, width, [&](int64_t row) {
    float* put = all + row * width;
    const float by = peak[row];
    if (more) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) put[i] = put[i] * by + more[i];
    } else {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) put[i] *= by;
    }
  });
  return x;
}

// A weight in oneDNN's own layout, which no graph could hold as a constant by itself.
struct Weight : torch::CustomClassHolder {
  explicit Weight(Tensor packed) : packed(std::move(packed)) {}
  Tensor packed;
};

Tensor onednn(const Tensor& x, const c10::intrusive_ptr<Weight>& weight,
              const std::optional<Tensor>& bias) {
  using Call = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                      c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto call = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                               .typed<Call>();
  return call.call(x, weight->packed, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace

TORCH_LIBRARY(antiphon, library) {
  library.class_<Weight>("Weight").def(torch::init<Tensor>());
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("rotate(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)");
  library.def("shrink(Tensor x, float least) -> (Tensor, Tensor)");
  library.def("stretch(Tensor(a!) x, Tensor peaks, Tensor? bias) -> Tensor(a!)");
  library.def(
      "onednn(Tensor x, __torch__.torch.classes.antiphon.Weight weight, Tensor? bias) -> Tensor");
}

TORCH_LIBRARY_IMPL(antiphon, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("rotate", rotate);
  library.impl("shrink", shrink);
  library.impl("stretch", stretch);
  library.impl("onednn", onednn);
}
