// float32, bfloat16 and float16 as kernels read and write them: computed in float, rounded to nearest, ties to even.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

struct Single {
  using Bits = uint32_t;
  static float load(Bits b) { return std::bit_cast<float>(b); }
  static Bits store(float v) { return std::bit_cast<Bits>(v); }
};

struct Brain {
  using Bits = uint16_t;
  static float load(Bits b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }
  static Bits store(float v) {
    const uint32_t bits = std::bit_cast<uint32_t>(v);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<Bits>((bits & 0x7fffffffu) > (255u << 23) ? 0x7fc0u : rounded);
  }
};

struct Half {
  using Bits = uint16_t;
  static float load(Bits h) {
    const uint32_t bits = (h & 0x7fffu) << 13;
    const uint32_t normal = bits + (112u << 23);
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(bits + (113u << 23)) - 0x1p-14f);
    const uint32_t special = bits | (255u << 23);
    const uint32_t whole = bits >= (31u << 23) ? special : bits < (1u << 23) ? small : normal;
    return std::bit_cast<float>(whole | static_cast<uint32_t>(h & 0x8000u) << 16);
  }
  static Bits store(float v) {
    constexpr uint32_t infinity = 255u << 23, least_normal = 113u << 23;
    const uint32_t sign = (std::bit_cast<uint32_t>(v) >> 16) & 0x8000u;
    const uint32_t bits = std::bit_cast<uint32_t>(v) & 0x7fffffffu;
    const uint32_t capped = std::min(bits, 143u << 23);  // 2^16 and above round to infinity
    const uint32_t normal = std::min((capped + 0xfffu + ((capped >> 13) & 1u) - (112u << 23)) >> 13, 0x7c00u);
    // Below float16's least normal number: one unit in the last place of 0.5 is float16's least step.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
    return static_cast<Bits>(sign | (bits > infinity ? 0x7e00u : bits >= least_normal ? normal : small));
  }
};

// Calls f with the format of that number, as Python's side counts them.
template <typename F>
void in_format(int number, F f) {
  if (number == 0)
    f(Single{});
  else if (number == 1)
    f(Brain{});
  else
    f(Half{});
}
