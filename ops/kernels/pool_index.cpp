// 8-bit indices of max pooling, which PyTorch has no operator for. Dense memory; the callers in ops/ check that. Loops
// run on torch's own OpenMP threads. Built with -ffp-contract=off: where a fused multiply-add is meant, it is written.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "formats.h"

extern "C" {

extern "C++" {
// A pooled tensor in memory: ``planes`` stretches of the input's cells, each cell ``inner`` numbers wide. Contiguous
// tensors have a plane a channel and inner = 1; channels-last ones a plane an image and inner = channels.
// begin: where each window begins, by dimension (depth, height, width) and output position; below 0 in the padding.
struct Windows {
  int64_t planes, inner;
  int64_t in[3], out[3], kernel[3], dilation[3];
  const int64_t* begin[3];
};

// Calls f(position in the output, position in the input of the window's first cell by dimension) for a plane.
template <class F>
static inline void each_window(const Windows& w, F f) {
  int64_t at = 0;
  for (int64_t d = 0; d < w.out[0]; ++d)
    for (int64_t h = 0; h < w.out[1]; ++h)
      for (int64_t c = 0; c < w.out[2]; ++c) f(at++, w.begin[0][d], w.begin[1][h], w.begin[2][c]);
}

// Channels are divided among threads in blocks of this many.
constexpr int64_t kBlock = 64;

// a / b for a >= 0, b > 0; most are small, and a division of 64 bits is slow.
static inline int64_t quotient(int64_t a, int64_t b) {
  if (b == 1) return a;
  return (a | b) >> 32 ? a / b : static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// Same order of additions as ATen's backward of max pooling, each rounded to the format of the numbers.
template <class Format>
static void pool_gradient(const void* gradients, const uint8_t* cells, void* result, const Windows& w) {
  using T = typename Format::Bits;
  const T* gradient = static_cast<const T*>(gradients);
  T* out = static_cast<T*>(result);
  const auto add = [](T& to, T v) { to = Format::store(Format::load(to) + Format::load(v)); };
  const int64_t size = w.out[0] * w.out[1] * w.out[2], whole = w.in[0] * w.in[1] * w.in[2];
  const int64_t blocks = (w.inner + kBlock - 1) / kBlock;
  const int64_t count = w.kernel[0] * w.kernel[1] * w.kernel[2];
  int32_t dz[256], dy[256], dx[256];  // where a cell lies in its window
  for (int64_t cell = 0; cell < 256; ++cell) {
    dz[cell] = static_cast<int32_t>(cell / (w.kernel[1] * w.kernel[2]) * w.dilation[0]);
    dy[cell] = static_cast<int32_t>(cell / w.kernel[2] % w.kernel[1] * w.dilation[1]);
    dx[cell] = static_cast<int32_t>(cell % w.kernel[2] * w.dilation[2]);
  }
#pragma omp parallel for schedule(static) collapse(2)
  for (int64_t p = 0; p < w.planes; ++p)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = block * kBlock, end = std::min(w.inner, begin + kBlock);
      T* plane = out + p * whole * w.inner;
      if (w.inner == 1)
        std::memset(plane, 0, sizeof(T) * whole);
      else
        for (int64_t j = 0; j < whole; ++j) std::memset(plane + j * w.inner + begin, 0, sizeof(T) * (end - begin));
      // The place in the plane of each cell of a window; -1 outside, which cannot come from pooling: nothing is
      // written outside memory for it.
      const auto place = [&](int cell, int64_t d, int64_t h, int64_t c) {
        const int64_t z = d + dz[cell], y = h + dy[cell], x = c + dx[cell];
        const bool inside = z >= 0 && z < w.in[0] && y >= 0 && y < w.in[1] && x >= 0 && x < w.in[2];
        return inside ? (z * w.in[1] + y) * w.in[2] + x : -1;
      };
      if (w.inner == 1) {
        each_window(w, [&](int64_t at, int64_t d, int64_t h, int64_t c) {
          const int64_t to = place(cells[p * size + at], d, h, c);
          if (to >= 0) add(plane[to], gradient[p * size + at]);
        });
        continue;
      }
      int64_t places[256];
      std::fill(places, places + 256, -1);
      each_window(w, [&](int64_t at, int64_t d, int64_t h, int64_t c) {
        for (int64_t cell = 0; cell < count; ++cell) places[cell] = place(cell, d, h, c);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t here = (p * size + at) * w.inner + i, to = places[cells[here]];
          if (to >= 0) add(plane[to * w.inner + i], gradient[here]);
        }
      });
    }
}
}  // extern "C++"

// ATen's index into the input plane becomes the cell's number in its window (row major, below 256).
void monet_pool_pack(const int64_t* indices, uint8_t* cells, const Windows* windows) {
  const Windows w = *windows;
  const int64_t size = w.out[0] * w.out[1] * w.out[2], blocks = (w.inner + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) collapse(2)
  for (int64_t p = 0; p < w.planes; ++p)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t end = std::min(w.inner, (block + 1) * kBlock);
      each_window(w, [&](int64_t at, int64_t d, int64_t h, int64_t c) {
        for (int64_t i = block * kBlock; i < end; ++i) {
          const int64_t here = (p * size + at) * w.inner + i, index = indices[here];
          const int64_t z = w.in[0] == 1 ? 0 : quotient(index, w.in[1] * w.in[2]);
          const int64_t rest = index - z * w.in[1] * w.in[2], y = quotient(rest, w.in[2]), x = rest - y * w.in[2];
          const int64_t kd = quotient(z - d, w.dilation[0]);
          const int64_t kh = quotient(y - h, w.dilation[1]);
          const int64_t kw = quotient(x - c, w.dilation[2]);
          cells[here] = static_cast<uint8_t>((kd * w.kernel[1] + kh) * w.kernel[2] + kw);
        }
      });
    }
}

void monet_pool_gradient(const void* gradient, const uint8_t* cells, void* out, const Windows* windows, int format) {
  in_format(format, [=]<typename F>(F) { pool_gradient<F>(gradient, cells, out, *windows); });
}

}  // extern "C"
