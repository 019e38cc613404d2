// Rows times a weight that lies in blocks of a few vectors of outputs.
//
// Checking a block of tokens should cost what one token costs: the weights are read once either
// way. So what was loaded of a weight meets up to six rows before the next is loaded. A row's products
// are added up in the order of its inputs, whatever the number of rows, so its result is the same in
// every pass.
#pragma once

#include <ATen/Parallel.h>

#include <cstring>

#include "lanes.h"

#ifdef LANES

namespace {

constexpr int64_t WIDE = VECTORS * LANES;  // Outputs whose weights lie together.
constexpr int64_t ROWS = 6;                // Rows that share the loading of a weight.
constexpr int64_t FEW = ROWS / 2;          // Rows that leave registers for a second block,
constexpr bool PAIRED = LANES == 8;        // without which sums would wait for one another.
constexpr int64_t UNIT = 4;         // Bytes of a row that one step takes: an input, or several.
constexpr int64_t GRAIN = 1 << 18;  // Bytes of work below which a second thread costs more.

// `R` rows, `stride` bytes apart, times `B` blocks of weights, each `steps` times `Kind::STEP` bytes;
// onto sums that begin as `start`. Kind says what a sum is, how a step's weights are loaded and how
// a product is added.
template <class Kind, int64_t R, int64_t B>
void multiply(const char* x, int64_t stride, const char* weights, int64_t steps,
              const typename Kind::Sum* start, typename Kind::Sum* out) {
  constexpr int64_t V = B * VECTORS;
  typename Kind::Sum sums[R][V];
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < V; ++i) sums[r][i] = start[i];
  for (int64_t k = 0; k < steps; ++k) {
    Ints w[V];
    EACH for (int64_t b = 0; b < B; ++b)
      Kind::load(weights + (b * steps + k) * Kind::STEP, w + b * VECTORS);
    EACH for (int64_t r = 0; r < R; ++r) {
      int32_t unit;
      std::memcpy(&unit, x + r * stride + k * UNIT, UNIT);
      const Ints a = spread(unit);
      EACH for (int64_t i = 0; i < V; ++i) sums[r][i] = Kind::add(sums[r][i], a, w[i]);
    }
  }
  EACH for (int64_t r = 0; r < R; ++r)
    EACH for (int64_t i = 0; i < V; ++i) out[r * V + i] = sums[r][i];
}

// A step's weights as they lie.
struct Whole {
  static constexpr int64_t STEP = VECTORS * sizeof(Ints);
  static void load(const char* from, Ints* w) {
    EACH for (int64_t i = 0; i < VECTORS; ++i) w[i] = ::load(static_cast<const void*>(from + i * sizeof(Ints)));
  }
};

// All `R` rows times all blocks. `start(b, sums)` fills the sums a block begins with; `finish(row,
// n, sum)` takes the sum of LANES outputs from `n` on.
template <class Kind, class Start, class Finish>
void linear(const void* x, int64_t stride, int64_t R, const void* weights, int64_t blocks,
            int64_t steps, const Start& start, const Finish& finish) {
  using Sum = typename Kind::Sum;
  using Multiply = decltype(&multiply<Kind, 1, 1>);
  constexpr Multiply one_block[ROWS] = {multiply<Kind, 1, 1>, multiply<Kind, 2, 1>,
                                        multiply<Kind, 3, 1>, multiply<Kind, 4, 1>,
                                        multiply<Kind, 5, 1>, multiply<Kind, 6, 1>};
  constexpr Multiply two_blocks[FEW] = {multiply<Kind, 1, 2>, multiply<Kind, 2, 2>,
                                        multiply<Kind, 3, 2>};
  if (!R) return;
  const auto *from = static_cast<const char*>(x), *w = static_cast<const char*>(weights);
  const int64_t turns = (R + ROWS - 1) / ROWS, even = (R + turns - 1) / turns;
  const int64_t grain = std::max<int64_t>(1, GRAIN / (WIDE * UNIT * steps * R));
  at::parallel_for(0, blocks, grain, [&](int64_t a, int64_t z) {
    for (int64_t b = a, many; b < z; b += many) {
      many = PAIRED && R <= FEW && b + 1 < z ? 2 : 1;
      Sum begin[2 * VECTORS], sums[ROWS * VECTORS];
      for (int64_t i = 0; i < many; ++i) start(b + i, begin + i * VECTORS);
      for (int64_t row = 0, some; row < R; row += some) {
        some = std::min(even, R - row);
        const Multiply call = many == 2 ? two_blocks[some - 1] : one_block[some - 1];
        call(from + row * stride, stride, w + b * Kind::STEP * steps, steps, begin, sums);
        for (int64_t r = 0; r < some; ++r)
          for (int64_t i = 0; i < many * VECTORS; ++i)
            finish(row + r, b * WIDE + i * LANES, sums[r * many * VECTORS + i]);
      }
    }
  });
}

// Adds a bias [N] and stores LANES outputs from `n` on, as many as there are.
inline void finish(float* row, Floats y, const float* bias, int64_t n, int64_t N) {
  if (bias) y = plus(y, load(bias + n, N - n));
  store(row + n, y, N - n);
}

}  // namespace

#endif
