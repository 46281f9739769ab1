// Kernels that PyTorch has no operator for: 8-bit pool indices, sparse and 16-bit
// storages. float32, dense memory; the callers in ops/ check that. Loops run on torch's own
// OpenMP threads. Built with -ffp-contract=off: where a fused multiply-add is meant, it is written.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" {

struct Window {
  int64_t planes, height, width, out_height, out_width;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
};

// ATen's index into the input plane becomes the cell's number in its window (row major, below 256).
void monet_pool_pack(const int64_t* indices, uint8_t* cells, const Window* window) {
  const Window w = *window;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < w.planes; ++p)
    for (int64_t oh = 0; oh < w.out_height; ++oh)
      for (int64_t ow = 0; ow < w.out_width; ++ow) {
        const int64_t at = (p * w.out_height + oh) * w.out_width + ow;
        const int64_t row = indices[at] / w.width, column = indices[at] % w.width;
        const int64_t kh = (row - (oh * w.stride_h - w.pad_h)) / w.dilation_h;
        const int64_t kw = (column - (ow * w.stride_w - w.pad_w)) / w.dilation_w;
        cells[at] = static_cast<uint8_t>(kh * w.kernel_w + kw);
      }
}

// Same order of additions as ATen's max_pool2d_with_indices_backward on dense planes.
void monet_pool_gradient(const float* gradient, const uint8_t* cells, float* out, const Window* window) {
  const Window w = *window;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < w.planes; ++p) {
    float* plane = out + p * w.height * w.width;
    for (int64_t i = 0; i < w.height * w.width; ++i) plane[i] = 0.0f;
    for (int64_t oh = 0; oh < w.out_height; ++oh)
      for (int64_t ow = 0; ow < w.out_width; ++ow) {
        const int64_t at = (p * w.out_height + oh) * w.out_width + ow;
        const int64_t kh = cells[at] / w.kernel_w, kw = cells[at] % w.kernel_w;
        const int64_t row = oh * w.stride_h - w.pad_h + kh * w.dilation_h;
        const int64_t column = ow * w.stride_w - w.pad_w + kw * w.dilation_w;
        // A cell outside the plane cannot come from pooling; never write outside memory for it.
        if (row >= 0 && row < w.height && column >= 0 && column < w.width)
          plane[row * w.width + column] += gradient[at];
      }
  }
}

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

// The float16 nearest to v, ties to even, for |v| < 2^15 (no overflow), infinities and NaN (payloads are lost).
static inline uint16_t half_of(float v) {
  constexpr uint32_t infinity = 255u << 23, least_normal = 113u << 23;
  const uint32_t sign = (std::bit_cast<uint32_t>(v) >> 16) & 0x8000u;
  const uint32_t bits = std::bit_cast<uint32_t>(v) & 0x7fffffffu;
  const uint32_t normal = (bits + 0xfffu + ((bits >> 13) & 1u) - (112u << 23)) >> 13;
  // Below float16's least normal number: one unit in the last place of 0.5 is float16's least step.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t special = bits > infinity ? 0x7e00u : 0x7c00u;
  return static_cast<uint16_t>(sign | (bits >= infinity ? special : bits >= least_normal ? normal : small));
}

static inline float float_of(uint16_t h) {
  const uint32_t bits = (h & 0x7fffu) << 13;
  const uint32_t normal = bits + (112u << 23);
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(bits + (113u << 23)) - 0x1p-14f);
  const uint32_t special = bits | (255u << 23);
  const uint32_t whole = bits >= (31u << 23) ? special : bits < (1u << 23) ? small : normal;
  return std::bit_cast<float>(whole | static_cast<uint32_t>(h & 0x8000u) << 16);
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
  for (int64_t i = 0; i < n; ++i) out[i] = half_of(x[i] * scale);
  out[n] = half_of(static_cast<float>(k));
}

void monet_half_unpack(const uint16_t* packed, float* out, int64_t n) {
  const float scale = std::ldexp(1.0f, -static_cast<int>(float_of(packed[n])));
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) out[i] = float_of(packed[i]) * scale;
}

}  // extern "C"
