// Rows of activations in whole numbers, one scale per row.
#pragma once

#include <vector>

#include "blocks.h"

#ifdef LANES

namespace {

// Rows [R, padded], shifted by `shift`, and the size of a step in each.
template <typename T>
struct Rows {
  std::vector<T> values;
  std::vector<float> sizes;
};

// x [R, K] in steps from -levels to levels; what a row's largest magnitude is taken for is `least` at
// least.
template <typename T>
Rows<T> quantised(const float* x, int64_t R, int64_t K, int64_t padded, float least, int levels,
                  int shift) {
  Rows<T> rows{std::vector<T>(R * padded), std::vector<float>(R)};
  const Ints unsigned_bits = spread(0x7fffffff), more = spread(shift);
  const auto most = static_cast<float>(levels);
  at::parallel_for(0, R, std::max<int64_t>(1, (1 << 16) / K), [&](int64_t a, int64_t z) {
    for (int64_t r = a; r < z; ++r) {
      const float* row = x + r * K;
      Floats peaks = spread(least);
      for (int64_t k = 0; k < K; k += LANES)
        peaks = larger(peaks, as_floats(both(as_ints(load(row + k, K - k)), unsigned_bits)));
      const float peak = largest(peaks);
      const Floats by = spread(most / peak);
      T* to = rows.values.data() + r * padded;
      for (int64_t k = 0; k < padded; k += LANES)
        narrowed(to + k, plus(nearest(times(load(row + k, K - k), by)), more), padded - k);
      rows.sizes[r] = peak / most;
    }
  });
  return rows;
}

}  // namespace

#endif
