// One bit an element for gradients that have two branches: activations of two or three straight pieces, and dropout.
// Dense memory of any float format; the callers in ops/ check that. Loops run on torch's own OpenMP threads.
#include <bit>
#include <cstdint>
#include <cstring>

#include "formats.h"

namespace {

constexpr int64_t kBlock = 64;

// In two steps, as compilers vectorize them: flags of 0 or 1, and eight of them multiplied into one byte.
template <typename Bit>
void pack(uint8_t* bits, int64_t n, Bit bit) {
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < (n + kBlock - 1) / kBlock; ++block) {
    uint8_t flags[kBlock] = {};
    const int64_t begin = block * kBlock;
    if (begin + kBlock <= n)
      for (int64_t j = 0; j < kBlock; ++j) flags[j] = bit(begin + j);
    else
      for (int64_t j = 0; j < n - begin; ++j) flags[j] = bit(begin + j);
    for (int64_t byte = 0; byte < kBlock / 8 && begin + 8 * byte < n; ++byte) {
      uint64_t eight;
      std::memcpy(&eight, flags + 8 * byte, 8);
      if constexpr (std::endian::native == std::endian::big) eight = __builtin_bswap64(eight);
      bits[begin / 8 + byte] = static_cast<uint8_t>((eight * 0x0102040810204080u) >> 56);  // flag i to bit 56 + i
    }
  }
}

// out[i] = of(gradient[i], bit i). out may be gradient itself.
template <typename Word, typename Of>
void unpack(const Word* gradient, const uint8_t* bits, Word* out, int64_t n, Of of) {
  const int64_t whole = n / 8;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < whole; ++i) {
    const uint8_t byte = bits[i];
    for (int j = 0; j < 8; ++j) out[8 * i + j] = of(gradient[8 * i + j], (byte >> j) & 1u);
  }
  for (int64_t j = 8 * whole; j < n; ++j) out[j] = of(gradient[j], (bits[j / 8] >> (j % 8)) & 1u);
}

}  // namespace

extern "C" {

// bit = low < x and, if bounded, x < high; for NaN what ``nan`` says.
void monet_inside_bits(const void* x, uint8_t* bits, int64_t n, float low, float high, int bounded, int nan,
                       int format) {
  in_format(format, [=]<typename F>(F) {
    const auto* from = static_cast<const typename F::Bits*>(x);
    if (nan)
      pack(bits, n, [=](int64_t i) {
        const float v = F::load(from[i]);
        return !(v <= low) & !(bounded & (v >= high));
      });
    else
      pack(bits, n, [=](int64_t i) {
        const float v = F::load(from[i]);
        return (v > low) & (!bounded | (v < high));
      });
  });
}

// bit = the byte is not 0.
void monet_mask_bits(const uint8_t* mask, uint8_t* bits, int64_t n) {
  pack(bits, n, [=](int64_t i) { return mask[i] != 0; });
}

// out = gradient where the bit is set, else +0: a masked load, with no arithmetic.
void monet_pass_gradient(const void* gradient, const uint8_t* bits, void* out, int64_t n, int format) {
  in_format(format, [=]<typename F>(F) {
    using Word = typename F::Bits;
    unpack(static_cast<const Word*>(gradient), bits, static_cast<Word*>(out), n,
           [](Word g, unsigned bit) { return static_cast<Word>(g & (Word{0} - static_cast<Word>(bit))); });
  });
}

// out = gradient * inside where the bit is set, else gradient * outside, or +0 where ``zero``.
void monet_scale_gradient(const void* gradient, const uint8_t* bits, void* out, int64_t n, float inside, float outside,
                          int zero, int format) {
  in_format(format, [=]<typename F>(F) {
    using Word = typename F::Bits;
    const auto* from = static_cast<const Word*>(gradient);
    auto* to = static_cast<Word*>(out);
    if (zero)
      unpack(from, bits, to, n, [=](Word g, unsigned bit) {
        return static_cast<Word>(F::store(F::load(g) * inside) & (Word{0} - static_cast<Word>(bit)));
      });
    else
      unpack(from, bits, to, n,
             [=](Word g, unsigned bit) { return F::store(F::load(g) * (bit ? inside : outside)); });
  });
}

}  // extern "C"
