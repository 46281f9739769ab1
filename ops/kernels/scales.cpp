// What a guard of a plan asks of a normalization's parameters before each step.
#include <cmath>
#include <cstdint>
#include <limits>

#include "formats.h"

extern "C" {

// The smallest |scale| / max(1, |shift|) of n elements; infinity of none, NaN where one is NaN. ``shift``: null for 0.
// ``step``: numbers from an element to the next.
float monet_smallest_scale(const void* scale, const void* shift, int64_t n, int64_t scale_step, int64_t shift_step,
                           int scale_format, int shift_format) {
  float least = std::numeric_limits<float>::infinity();
  in_format(scale_format, [&]<typename S>(S) {
    in_format(shift_format, [&]<typename T>(T) {
      const auto* scales = static_cast<const typename S::Bits*>(scale);
      const auto* shifts = static_cast<const typename T::Bits*>(shift);
      for (int64_t i = 0; i < n; ++i) {
        const float magnitude = std::fabs(S::load(scales[i * scale_step]));
        const float over = std::fabs(shifts ? T::load(shifts[i * shift_step]) : 0.0f);
        const float ratio = magnitude / (over <= 1.0f ? 1.0f : over);  // a NaN stays
        if (!(ratio >= least)) least = ratio;
        if (std::isnan(least)) return;
      }
    });
  });
  return least;
}

}  // extern "C"
