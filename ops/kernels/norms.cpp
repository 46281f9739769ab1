// Normalizations from what was kept: the output from the input and saved statistics, and gradients from the output.
// Dense contiguous memory (channel norms: channels-last too); computed in float; sums do not depend on the number of
// threads. Built with -ffp-contract=off: where a fused multiply-add is meant, it is written.
// Compiled once for each format of data that is met, MONET_DATA by its number in formats.h: all take 15 seconds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "formats.h"

namespace {

using Data = std::tuple_element_t<MONET_DATA, std::tuple<Single, Brain, Half>>;
using Word = Data::Bits;

// Calls f with the format of parameters and statistics, which is float32 or the data's.
template <typename F>
void in_parameters(int parameters, F f) {
  if (parameters == MONET_DATA)
    f(Data{});
  else
    f(Single{});
}

template <typename P>
float at(const typename P::Bits* values, int64_t i, float absent) {
  return values ? P::load(values[i]) : absent;
}

inline float multiply_add(float a, float b, float c, bool fused) { return fused ? std::fma(a, b, c) : a * b + c; }

// Calls f with the value as a constant, so that loops have no branches.
template <typename F>
void constant(bool value, F f) {
  if (value)
    f(std::true_type{});
  else
    f(std::false_type{});
}

constexpr int64_t kBlock = 64;  // columns, or rows, that are summed in float before double takes over

}  // namespace

extern "C" {

// y = x * alpha + beta per channel, alpha = rstd * weight, beta = bias - mean * alpha (batch and group norm).
// Statistic of channel c of image i: c, or where ``per_image`` (i * channels + c) / group. ``variant``: which products
// are fused, so that the result can equal ATen's bit by bit.
void monet_channel_norm_apply(const void* x, const void* weight, const void* bias, const void* mean, const void* rstd,
                              void* y, int64_t images, int64_t channels, int64_t cells, int64_t group, int per_image,
                              int channels_last, int variant, int parameters) {
  in_parameters(parameters, [=]<typename P>(P) {
    using Number = typename P::Bits;
    const auto* w = static_cast<const Number*>(weight);
    const auto* b = static_cast<const Number*>(bias);
    const auto* m = static_cast<const Number*>(mean);
    const auto* r = static_cast<const Number*>(rstd);
    const auto* from = static_cast<const Word*>(x);
    auto* to = static_cast<Word*>(y);
    const bool first = variant & 1, second = variant & 2;
    const auto alpha_of = [=](int64_t i, int64_t c) {
      const int64_t s = per_image ? (i * channels + c) / group : c;
      return w ? P::load(r[s]) * P::load(w[c]) : P::load(r[s]);
    };
    const auto beta_of = [=](int64_t i, int64_t c, float alpha) {
      const int64_t s = per_image ? (i * channels + c) / group : c;
      return multiply_add(-P::load(m[s]), alpha, at<P>(b, c, 0.0f), first);
    };
    if (channels_last) {
      constant(first, [=](auto fused) {
        constant(second, [=](auto fused_too) {
          constant(w != nullptr, [=](auto scaled) {
#pragma omp parallel for schedule(static)
            for (int64_t p = 0; p < images * cells; ++p)
              for (int64_t c = 0; c < channels; c += group) {
                const int64_t s = per_image ? (p / cells * channels + c) / group : c, step = per_image ? 0 : 1;
                for (int64_t k = 0; k < group; ++k) {
                  const float rate = P::load(r[s + step * k]);
                  const float alpha = scaled ? rate * P::load(w[c + k]) : rate;
                  const float offset = b ? P::load(b[c + k]) : 0.0f;
                  const float beta = multiply_add(-P::load(m[s + step * k]), alpha, offset, fused);
                  const int64_t i = p * channels + c + k;
                  to[i] = Data::store(multiply_add(Data::load(from[i]), alpha, beta, fused_too));
                }
              }
          });
        });
      });
      return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < images * channels; ++p) {
      const float alpha = alpha_of(p / channels, p % channels), beta = beta_of(p / channels, p % channels, alpha);
      const Word* row = from + p * cells;
      Word* out = to + p * cells;
      if (second)
        for (int64_t j = 0; j < cells; ++j) out[j] = Data::store(std::fma(Data::load(row[j]), alpha, beta));
      else
        for (int64_t j = 0; j < cells; ++j) out[j] = Data::store(Data::load(row[j]) * alpha + beta);
    }
  });
}

// y = (x * rstd - mean * rstd) * weight + bias over rows of n (layer norm). ``variant`` as above; with 4 added the first
// product is (x - mean) * rstd. Only loops that differ in a bit are built: fusing changes nothing where the first product
// is no product, nor where there is no weight or no bias to fuse.
void monet_row_norm_apply(const void* x, const void* weight, const void* bias, const void* mean, const void* rstd,
                          void* y, int64_t rows, int64_t n, int variant, int parameters) {
  in_parameters(parameters, [=]<typename P>(P) {
    using Number = typename P::Bits;
    const auto* w = static_cast<const Number*>(weight);
    const auto* b = static_cast<const Number*>(bias);
    const auto apply = [=](auto centred, auto first, auto second, auto scaled, auto shifted) {
#pragma omp parallel for schedule(static)
      for (int64_t i = 0; i < rows; ++i) {
        const float scale = P::load(static_cast<const Number*>(rstd)[i]);
        const float average = P::load(static_cast<const Number*>(mean)[i]), shift = -average * scale;
        const auto* from = static_cast<const Word*>(x) + i * n;
        auto* to = static_cast<Word*>(y) + i * n;
        for (int64_t j = 0; j < n; ++j) {
          const float v = Data::load(from[j]);
          const float xhat = centred ? (v - average) * scale : multiply_add(v, scale, shift, first);
          const float weight_j = scaled ? P::load(w[j]) : 1.0f, bias_j = shifted ? P::load(b[j]) : 0.0f;
          to[j] = Data::store(multiply_add(xhat, weight_j, bias_j, second));
        }
      }
    };
    constexpr std::true_type yes;
    constexpr std::false_type no;
    const auto with_parameters = [=](auto centred, auto first) {
      if (w && b)
        constant(variant & 2, [=](auto second) { apply(centred, first, second, yes, yes); });
      else if (w)
        apply(centred, first, no, yes, no);
      else
        constant(b != nullptr, [=](auto shifted) { apply(centred, first, no, no, shifted); });
    };
    if (variant & 4)
      with_parameters(yes, no);
    else
      constant(variant & 1, [=](auto first) { with_parameters(no, first); });
  });
}

// From the output of layer norm, with xhat = (y - bias) * inverse and h = gradient * weight, for each row of n:
//   dx = rstd * (h - mean(h) - xhat * mean(h * xhat)).
// ``inverse``: 1 / weight in float32. weight, inverse and bias may be null: 1, 1 and 0. dx may be gradient itself.
void monet_row_norm_gradient(const void* gradient, const void* y, const void* weight, const float* inverse,
                             const void* bias, const void* rstd, void* dx, int64_t rows, int64_t n, int parameters) {
  in_parameters(parameters, [=]<typename P>(P) {
    using Number = typename P::Bits;
    const auto* w = static_cast<const Number*>(weight);
    const auto* b = static_cast<const Number*>(bias);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const Word* g = static_cast<const Word*>(gradient) + i * n;
      const Word* out = static_cast<const Word*>(y) + i * n;
      Word* to = static_cast<Word*>(dx) + i * n;
      const auto h = [=](int64_t j) { return Data::load(g[j]) * at<P>(w, j, 1.0f); };
      const auto xhat = [=](int64_t j) {
        return (Data::load(out[j]) - at<P>(b, j, 0.0f)) * (inverse ? inverse[j] : 1.0f);
      };
      float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
      for (int64_t j = 0; j < n; ++j) {
        sum += h(j);
        product += h(j) * xhat(j);
      }
      sum /= static_cast<float>(n);
      product /= static_cast<float>(n);
      const float scale = P::load(static_cast<const Number*>(rstd)[i]);
      for (int64_t j = 0; j < n; ++j) to[j] = Data::store(scale * (h(j) - sum - xhat(j) * product));
    }
  });
}

// Over rows: dweight = sum(gradient * xhat), dbias = sum(gradient). Either may be null.
void monet_row_norm_parameters(const void* gradient, const void* y, const float* inverse, const void* bias,
                               void* dweight, void* dbias, int64_t rows, int64_t n, int parameters) {
  in_parameters(parameters, [=]<typename P>(P) {
    using Number = typename P::Bits;
    const auto* b = static_cast<const Number*>(bias);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < (n + kBlock - 1) / kBlock; ++block) {
      const int64_t begin = block * kBlock, width = std::min(kBlock, n - begin);
      double total[kBlock] = {}, total_product[kBlock] = {};
      float shift[kBlock] = {}, scale[kBlock] = {};
      for (int64_t j = 0; j < width; ++j) {
        shift[j] = at<P>(b, begin + j, 0.0f);
        scale[j] = inverse ? inverse[begin + j] : 1.0f;
      }
      for (int64_t row = 0; row < rows; row += kBlock) {
        float sum[kBlock] = {}, product[kBlock] = {};
        for (int64_t i = row; i < std::min(row + kBlock, rows); ++i) {
          const Word* g = static_cast<const Word*>(gradient) + i * n + begin;
          const Word* out = static_cast<const Word*>(y) + i * n + begin;
          for (int64_t j = 0; j < width; ++j) {
            sum[j] += Data::load(g[j]);
            product[j] += Data::load(g[j]) * ((Data::load(out[j]) - shift[j]) * scale[j]);
          }
        }
        for (int64_t j = 0; j < width; ++j) {
          total[j] += sum[j];
          total_product[j] += product[j];
        }
      }
      for (int64_t j = 0; j < width; ++j) {
        if (dbias) static_cast<Number*>(dbias)[begin + j] = P::store(static_cast<float>(total[j]));
        if (dweight) static_cast<Number*>(dweight)[begin + j] = P::store(static_cast<float>(total_product[j]));
      }
    }
  });
}

// From the output of group norm (images, channels, cells), as for rows, a row being one group of one image and its
// parameters those of its channels. ``sums``: room for 2 * images * channels floats, the sums of gradient and of
// gradient * xhat over each plane. dx may be null, or gradient itself; so may dweight and dbias be null.
void monet_group_norm_gradient(const void* gradient, const void* y, const void* weight, const void* bias,
                               const void* rstd, float* sums, void* dx, void* dweight, void* dbias, int64_t images,
                               int64_t channels, int64_t cells, int64_t groups, int parameters) {
  in_parameters(parameters, [=]<typename P>(P) {
    using Number = typename P::Bits;
    const auto* w = static_cast<const Number*>(weight);
    const auto* b = static_cast<const Number*>(bias);
    const int64_t planes = images * channels, width = channels / groups;
    float* products = sums + planes;
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < planes; ++p) {
      const float shift = at<P>(b, p % channels, 0.0f), inverse = 1.0f / at<P>(w, p % channels, 1.0f);
      const Word* g = static_cast<const Word*>(gradient) + p * cells;
      const Word* out = static_cast<const Word*>(y) + p * cells;
      float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
      for (int64_t j = 0; j < cells; ++j) {
        sum += Data::load(g[j]);
        product += Data::load(g[j]) * ((Data::load(out[j]) - shift) * inverse);
      }
      sums[p] = sum;
      products[p] = product;
    }
    if (dweight || dbias)
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0.0, product = 0.0;
        for (int64_t i = 0; i < images; ++i) {
          sum += sums[i * channels + c];
          product += products[i * channels + c];
        }
        if (dbias) static_cast<Number*>(dbias)[c] = P::store(static_cast<float>(sum));
        if (dweight) static_cast<Number*>(dweight)[c] = P::store(static_cast<float>(product));
      }
    if (!dx) return;
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < planes; ++p) {
      const int64_t row = p / width;
      double sum = 0.0, product = 0.0;
      for (int64_t k = 0; k < width; ++k) {
        const float scale = at<P>(w, (row % groups) * width + k, 1.0f);
        sum += scale * sums[row * width + k];
        product += scale * products[row * width + k];
      }
      const float mean = static_cast<float>(sum / static_cast<double>(width * cells));
      const float slope = static_cast<float>(product / static_cast<double>(width * cells));
      const float rate = P::load(static_cast<const Number*>(rstd)[row]);
      const float scale = at<P>(w, p % channels, 1.0f), shift = at<P>(b, p % channels, 0.0f), inverse = 1.0f / scale;
      const Word* g = static_cast<const Word*>(gradient) + p * cells;
      const Word* out = static_cast<const Word*>(y) + p * cells;
      Word* to = static_cast<Word*>(dx) + p * cells;
      for (int64_t j = 0; j < cells; ++j)
        to[j] = Data::store(rate * (Data::load(g[j]) * scale - mean - (Data::load(out[j]) - shift) * inverse * slope));
    }
  });
}

}  // extern "C"
