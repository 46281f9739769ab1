// Sparse and 16-bit storages, which PyTorch has no operator for. Dense memory of float32; the callers in ops/ check
// that. Loops run on torch's own OpenMP threads. Built with -ffp-contract=off.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats.h"

extern "C" {

// A sparse storage of n floats: ceil(n / 32) words of mask (bit j of word i: element 32 i + j is kept), then the
// kept elements in order. Kept is what is not +0 bit by bit, so -0 and NaN too.
//
// The words are cut into at most kParts stretches, so that the counts fit the stack: memory that torch's
// allocator does not see would be outside the plan. Where a stretch's values go is the sum of the
// counts before it, so the result does not depend on the number of threads.
constexpr int64_t kParts = 256;

struct Parts {
  int64_t count;
  int64_t start[kParts + 1];  // of each stretch's values; the last is the number of all values
};

static int64_t part_begin(int64_t words, const Parts& parts, int64_t p) { return words * p / parts.count; }

static void accumulate(Parts& parts) {
  int64_t total = 0;
  for (int64_t p = 0; p <= parts.count; ++p) {
    const int64_t here = p < parts.count ? parts.start[p] : 0;
    parts.start[p] = total;
    total += here;
  }
}

// Returns how many elements are kept; beyond ``capacity`` only the mask is written.
int64_t monet_sparse_pack(const uint32_t* x, uint32_t* packed, int64_t n, int64_t capacity) {
  const int64_t words = (n + 31) / 32;
  uint32_t* values = packed + words;
  Parts parts;
  parts.count = std::min(words, kParts);
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < parts.count; ++p) {
    int64_t kept = 0;
    for (int64_t w = part_begin(words, parts, p); w < part_begin(words, parts, p + 1); ++w) {
      uint32_t mask = 0;
      if (32 * w + 32 <= n)
        for (int j = 0; j < 32; ++j) mask |= static_cast<uint32_t>(x[32 * w + j] != 0) << j;
      else
        for (int64_t j = 0; j < n - 32 * w; ++j) mask |= static_cast<uint32_t>(x[32 * w + j] != 0) << j;
      packed[w] = mask;
      kept += std::popcount(mask);
    }
    parts.start[p] = kept;
  }
  accumulate(parts);
  const int64_t total = parts.start[parts.count];
  if (total > capacity) return total;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < parts.count; ++p) {
    uint32_t* to = values + parts.start[p];
    for (int64_t w = part_begin(words, parts, p); w < part_begin(words, parts, p + 1); ++w)
      for (uint32_t mask = packed[w]; mask; mask &= mask - 1) *to++ = x[32 * w + std::countr_zero(mask)];
  }
  return total;
}

// Returns how many elements the mask keeps; more than ``capacity`` cannot come from packing, and nothing is written.
int64_t monet_sparse_unpack(const uint32_t* packed, uint32_t* out, int64_t n, int64_t capacity) {
  const int64_t words = (n + 31) / 32;
  const uint32_t* values = packed + words;
  Parts parts;
  parts.count = std::min(words, kParts);
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < parts.count; ++p) {
    int64_t kept = 0;
    for (int64_t w = part_begin(words, parts, p); w < part_begin(words, parts, p + 1); ++w)
      kept += std::popcount(packed[w]);
    parts.start[p] = kept;
  }
  accumulate(parts);
  const int64_t total = parts.start[parts.count];
  if (total > capacity) return total;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < parts.count; ++p) {
    const uint32_t* from = values + parts.start[p];
    for (int64_t w = part_begin(words, parts, p); w < part_begin(words, parts, p + 1); ++w) {
      std::memset(out + 32 * w, 0, sizeof(uint32_t) * std::min<int64_t>(32, n - 32 * w));
      for (uint32_t mask = packed[w]; mask; mask &= mask - 1) out[32 * w + std::countr_zero(mask)] = *from++;
    }
  }
  return total;
}

// out: n float16 numbers x * 2^k, then k, where 2^k takes the largest finite |x| to [2^14, 2^15).
// 2^k and 2^-k must be normal floats, so k stops at 126; what is left of such small numbers still fits.
void monet_half_pack(const float* x, uint16_t* out, int64_t n) {
  int32_t largest = 0;  // magnitudes are ordered like their bits
#pragma omp parallel for simd schedule(static) reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    largest = std::max(largest, bits < (255 << 23) ? bits : 0);
  }
  const int k = largest ? std::min(141 - (largest >> 23), 126) : 0;
  const float scale = std::ldexp(1.0f, k);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) out[i] = Half::store(x[i] * scale);
  out[n] = Half::store(static_cast<float>(k));
}

void monet_half_unpack(const uint16_t* packed, float* out, int64_t n) {
  const float scale = std::ldexp(1.0f, -static_cast<int>(Half::load(packed[n])));
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) out[i] = Half::load(packed[i]) * scale;
}

}  // extern "C"
