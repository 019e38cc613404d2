// Attention of new tokens over a cache of slots, read where they lie.
//
// A row's result depends on what it sees and in which order, and on nothing else: not on how many
// rows a pass has, nor on where the slots are. So a token gets the same bits whether it is read
// alone, in a block that is being verified, or beside other texts.

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

namespace {

using at::Tensor;

#ifdef __AVX512F__
constexpr int64_t LANES = 16;
#else
constexpr int64_t LANES = 8;
#endif
constexpr int64_t HEADS = 4;        // Query heads that share the loading of a key or value.
constexpr int64_t WIDE = LANES / 4;  // Vectors of a value whose sums find room in registers.
constexpr int64_t GRAIN = 1 << 16;  // Products below which a second thread costs more than it helps.

// Unrolled early, or sums would live in memory.
#define EACH _Pragma("GCC unroll 4")

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Shorts __attribute__((vector_size(2 * LANES)));

Floats bits(Ints x) {
  Floats y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

// The first `count` numbers, zeros behind them.
Floats load(const float* from, int64_t count = LANES) {
  Floats x{};
  std::memcpy(&x, from, 4 * count);
  return x;
}

Floats load(const at::BFloat16* from, int64_t count = LANES) {
  Shorts half{};
  std::memcpy(&half, from, 2 * count);
  return bits(__builtin_convertvector(half, Ints) << 16);
}

float sum(Floats x) {
  float parts[LANES];
  std::memcpy(parts, &x, sizeof x);
  for (int64_t half = LANES / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
}

// The sums of each of HEADS vectors.
void sums_of(const Floats* x, float* out) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256 pairs = _mm256_hadd_ps((__m256)x[0], (__m256)x[1]);
  const __m256 more = _mm256_hadd_ps((__m256)x[2], (__m256)x[3]);
  const __m256 fours = _mm256_hadd_ps(pairs, more);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
#else
  for (int64_t g = 0; g < HEADS; ++g) out[g] = sum(x[g]);
#endif
}

// e^x for x <= 0, to a few units in the last place (Cephes' polynomial).
Floats exponential(Floats x) {
  x = x < -87.0f ? Floats{} - 87.0f : x;
  const float big = 12582912.0f;  // Adding it rounds to whole numbers.
  const Floats whole = (x * 1.44269504f + big) - big;
  const Floats rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Floats y = Floats{} + 1.9875691500e-4f;
  for (const float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                           5.0000001201e-1f})
    y = y * rest + next;
  y = y * rest * rest + rest + 1.0f;
  return y * bits((__builtin_convertvector(whole, Ints) + 127) << 23);
}

// Scores of `heads` query heads [heads, width] for one key.
template <int64_t heads, typename T>
void dots(const float* q, int64_t width, const T* key, int64_t D, float* out, int64_t stride) {
  Floats sums[HEADS] = {};
  const auto step = [&](int64_t d, int64_t count) {
    const Floats k = load(key + d, count);
    EACH for (int64_t g = 0; g < heads; ++g) sums[g] += load(q + g * width + d) * k;
  };
  int64_t d = 0;
  for (; d + LANES <= D; d += LANES) step(d, LANES);
  if (d < D) step(d, D - d);
  float found[HEADS];
  sums_of(sums, found);
  EACH for (int64_t g = 0; g < heads; ++g) out[g * stride] = found[g];
}

// Scores [n] to weights that sum to 1; a multiple of LANES is allocated.
void softmax(float* x, int64_t n, float cap) {
  if (cap > 0)
    for (int64_t i = 0; i < n; ++i) x[i] = std::tanh(x[i] / cap) * cap;
  const float most = *std::max_element(x, x + n);
  Floats total{};
  for (int64_t i = 0; i < n; i += LANES) {
    const int64_t count = std::min(LANES, n - i);
    Floats y = exponential(load(x + i) - most);
    if (count < LANES) {
      Floats kept{};
      std::memcpy(&kept, &y, 4 * count);
      y = kept;
    }
    total += y;
    std::memcpy(x + i, &y, sizeof y);
  }
  const float by = 1.0f / sum(total);
  for (int64_t i = 0; i < n; ++i) x[i] *= by;
}

// Weighted sums of values for `heads` rows of weights [heads, stride], from `d` on: of WIDE vectors,
// or of one that holds `count` numbers.
template <int64_t heads, int64_t wide, typename T>
void mix(const float* weights, int64_t stride, const T* values, int64_t row, const int32_t* seen,
         int64_t n, int64_t d, int64_t D, int64_t count, T* out) {
  Floats sums[heads][wide] = {};
  for (int64_t j = 0; j < n; ++j) {
    const T* value = values + seen[j] * row + d;
    EACH for (int64_t w = 0; w < wide; ++w) {
      const Floats v = load(value + w * LANES, count);
      EACH for (int64_t g = 0; g < heads; ++g) sums[g][w] += weights[g * stride + j] * v;
    }
  }
  EACH for (int64_t g = 0; g < heads; ++g)
    EACH for (int64_t w = 0; w < wide; ++w) {
      float each[LANES];
      std::memcpy(each, &sums[g][w], sizeof each);
      for (int64_t i = 0; i < count; ++i) out[g * D + d + w * LANES + i] = static_cast<T>(each[i]);
    }
}

// `heads` query heads, scaled [heads, width], over the slots that are `seen`: to [heads, D]. scores:
// room for [heads, stride].
template <int64_t heads, typename T>
void over(const float* q, int64_t width, const T* keys, const T* values, int64_t row,
          const int32_t* seen, int64_t n, float cap, int64_t D, float* scores, int64_t stride,
          T* out) {
  for (int64_t j = 0; j < n; ++j)
    dots<heads>(q, width, keys + seen[j] * row, D, scores + j, stride);
  for (int64_t h = 0; h < heads; ++h) softmax(scores + h * stride, n, cap);
  int64_t d = 0;
  for (; d + WIDE * LANES <= D; d += WIDE * LANES)
    mix<heads, WIDE>(scores, stride, values, row, seen, n, d, D, LANES, out);
  for (; d < D; d += LANES)
    mix<heads, 1>(scores, stride, values, row, seen, n, d, D, std::min(LANES, D - d), out);
}

// One token's query heads that share a key head: [G, D], strided by `heads`, to [G, D].
template <typename T>
void look(const T* query, int64_t heads, int64_t G, int64_t D, const T* keys, const T* values,
          int64_t row, const int32_t* seen, int64_t n, float scale, float cap, T* out) {
  thread_local std::vector<float> room;
  const int64_t width = (D + LANES - 1) / LANES * LANES, stride = (n + LANES - 1) / LANES * LANES;
  room.assign(HEADS * (width + stride), 0.0f);
  float *q = room.data(), *scores = q + HEADS * width;
  constexpr decltype(&over<1, T>) by_heads[HEADS] = {over<1, T>, over<2, T>, over<3, T>, over<4, T>};
  for (int64_t g = 0; g < G; g += HEADS) {
    const int64_t some = std::min(HEADS, G - g);
    for (int64_t h = 0; h < some; ++h)
      for (int64_t d = 0; d < D; ++d)
        q[h * width + d] = static_cast<float>(query[(g + h) * heads + d]) * scale;
    by_heads[some - 1](q, width, keys, values, row, seen, n, cap, D, scores, stride, out + g * D);
  }
}

// What each of T tokens sees: slots [M], and where each token's begin [T + 1].
//
// mask: [B, Q, S], hidden where negative. slots: [B S]. real: [T], each token's place in [B Q].
std::tuple<Tensor, Tensor> sights(const Tensor& mask, const Tensor& slots, const Tensor& real) {
  const Tensor m = mask.contiguous(), s = slots.contiguous(), r = real.contiguous();
  const int64_t Q = m.size(1), S = m.size(2), T = r.numel();
  const float* hidden = m.const_data_ptr<float>();
  const int64_t *numbers = s.const_data_ptr<int64_t>(), *places = r.const_data_ptr<int64_t>();
  std::vector<int32_t> seen;
  Tensor bounds = at::empty({T + 1}, r.options());
  int64_t* bound = bounds.data_ptr<int64_t>();
  bound[0] = 0;
  for (int64_t t = 0; t < T; ++t) {
    const float* row = hidden + places[t] * S;
    const int64_t* own = numbers + places[t] / Q * S;
    for (int64_t j = 0; j < S; ++j)
      if (row[j] >= 0) seen.push_back(static_cast<int32_t>(own[j]));
    bound[t + 1] = static_cast<int64_t>(seen.size());
  }
  Tensor all = at::empty({bound[T]}, r.options().dtype(at::kInt));
  std::memcpy(all.data_ptr<int32_t>(), seen.data(), 4 * seen.size());
  return {all, bounds};
}

template <typename T>
Tensor attended(const Tensor& query, const Tensor& key, const Tensor& value, Tensor& keys,
                Tensor& values, const Tensor& own, const Tensor& seen, const Tensor& bounds,
                float scale, float cap) {
  const int64_t heads = query.size(1), tokens = query.size(2), D = query.size(3);
  const int64_t H = keys.size(0), G = heads / H;
  const int64_t *slot = own.const_data_ptr<int64_t>(), *bound = bounds.const_data_ptr<int64_t>();
  const int32_t* numbers = seen.const_data_ptr<int32_t>();
  const auto store = [&](Tensor& cache, const Tensor& fresh) {
    T* to = cache.data_ptr<T>();
    const T* from = fresh.const_data_ptr<T>();
    for (int64_t h = 0; h < H; ++h)
      for (int64_t t = 0; t < tokens; ++t)
        std::memcpy(to + h * cache.stride(0) + slot[t] * cache.stride(1),
                    from + h * fresh.stride(1) + t * fresh.stride(2), sizeof(T) * D);
  };
  store(keys, key);
  store(values, value);
  Tensor out = at::empty({1, tokens, heads, D}, query.options());
  T* to = out.data_ptr<T>();
  const T* from = query.const_data_ptr<T>();
  const T *k = keys.const_data_ptr<T>(), *v = values.const_data_ptr<T>();
  const int64_t each = std::max<int64_t>(1, bound[tokens] / tokens * G * D);
  at::parallel_for(0, tokens * H, std::max<int64_t>(1, GRAIN / each), [&](int64_t a, int64_t z) {
    for (int64_t i = a; i < z; ++i) {
      const int64_t t = i / H, h = i % H;
      look<T>(from + h * G * query.stride(1) + t * query.stride(2), query.stride(1), G, D,
              k + h * keys.stride(0), v + h * values.stride(0), keys.stride(1),
              numbers + bound[t], bound[t + 1] - bound[t], scale, cap, to + (t * heads + h * G) * D);
    }
  });
  return out;
}

Tensor rowed(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Attention of new tokens, query [1, Hq, T, D], key and value [1, H, T, D], over what `sights` gave
// of a cache [H, N, D]; their own keys and values are put in the slots `own` [T] first. To
// [1, T, Hq, D]. cap: bounds scores softly; 0: it does not.
Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, Tensor keys,
              Tensor values, const Tensor& own, const Tensor& seen, const Tensor& bounds,
              double scale, double cap) {
  const Tensor q = rowed(query), k = rowed(key), v = rowed(value);
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(2) == 1, "caches of other shapes");
  TORCH_CHECK(q.scalar_type() == keys.scalar_type() && v.scalar_type() == keys.scalar_type(),
              "cache in ", keys.scalar_type(), ", query in ", q.scalar_type());
  if (q.scalar_type() == at::kFloat)
    return attended<float>(q, k, v, keys, values, own, seen, bounds, scale, cap);
  TORCH_CHECK(q.scalar_type() == at::kBFloat16, "float32 or bfloat16, not ", q.scalar_type());
  return attended<at::BFloat16>(q, k, v, keys, values, own, seen, bounds, scale, cap);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(antiphon, library) {
  library.def("sights(Tensor mask, Tensor slots, Tensor real) -> (Tensor, Tensor)");
  library.def(
      "attend(Tensor query, Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) values, "
      "Tensor own, Tensor seen, Tensor bounds, float scale, float cap) -> Tensor");
}

TORCH_LIBRARY_IMPL(antiphon, CPU, library) {
  library.impl("sights", sights);
  library.impl("attend", attend);
}
