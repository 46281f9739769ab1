// Kernels that PyTorch has no operator for: sign bits, 8-bit pool indices, batch norm from saved
// statistics. float32, dense memory; the callers in ops/ check that. Loops run on torch's own
// OpenMP threads. Built with -ffp-contract=off: where a fused multiply-add is meant, it is written.
#include <cmath>
#include <cstdint>

extern "C" {

// bit = the gradient passes: !(x <= low) and, with a high end, !(x >= high). NaN passes, as in ATen.
void monet_pass_bits(const float* x, uint8_t* bits, int64_t n, float low, float high, int bounded) {
  const int64_t whole = n / 8;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < whole; ++i) {
    uint8_t byte = 0;
    for (int j = 0; j < 8; ++j) {
      const float v = x[8 * i + j];
      byte |= static_cast<uint8_t>(!(v <= low) & !(bounded & (v >= high))) << j;
    }
    bits[i] = byte;
  }
  if (n % 8) {
    uint8_t byte = 0;
    for (int64_t j = 8 * whole; j < n; ++j)
      byte |= static_cast<uint8_t>(!(x[j] <= low) & !(bounded & (x[j] >= high))) << (j % 8);
    bits[whole] = byte;
  }
}

// out = gradient where the bit is set, else 0. out may be gradient itself.
// On the floats' bits: a masked load without branches.
void monet_pass_gradient(const uint32_t* gradient, const uint8_t* bits, uint32_t* out, int64_t n) {
  const int64_t whole = n / 8;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < whole; ++i) {
    const uint8_t byte = bits[i];
    for (int j = 0; j < 8; ++j) out[8 * i + j] = gradient[8 * i + j] & (0u - ((byte >> j) & 1u));
  }
  for (int64_t j = 8 * whole; j < n; ++j) out[j] = gradient[j] & (0u - ((bits[j / 8] >> (j % 8)) & 1u));
}

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

// y = x * alpha + beta per channel, alpha = invstd * weight, beta = bias - mean * alpha.
// ``variant`` picks which of the products are fused, so that the result can equal ATen's bit by bit.
void monet_batch_norm_apply(const float* x, const float* weight, const float* bias, const float* mean,
                            const float* invstd, float* y, int64_t images, int64_t channels, int64_t cells,
                            int variant) {
#pragma omp parallel for schedule(static) collapse(2)
  for (int64_t i = 0; i < images; ++i)
    for (int64_t c = 0; c < channels; ++c) {
      const float alpha = weight ? invstd[c] * weight[c] : invstd[c];
      const float offset = bias ? bias[c] : 0.0f;
      const float beta = variant & 1 ? std::fma(-mean[c], alpha, offset) : offset - mean[c] * alpha;
      const float* from = x + (i * channels + c) * cells;
      float* to = y + (i * channels + c) * cells;
      if (variant & 2)
        for (int64_t j = 0; j < cells; ++j) to[j] = std::fma(from[j], alpha, beta);
      else
        for (int64_t j = 0; j < cells; ++j) to[j] = from[j] * alpha + beta;
    }
}

}  // extern "C"
