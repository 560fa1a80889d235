// Small operations fused, so that a decode step is not spent in dispatch: addition, RMS norm, rotary embedding, SiLU gate.
// Each rounds where transformers' Llama rounds: arithmetic in fp32, intermediate results in the input's dtype.
#include "base/pool.h"
#include "base/simd.h"
#include "kernels.h"

#include <algorithm>

namespace tailrace {
namespace {

// Rows per task: some microseconds of work. A single decode token is one task, run by the caller at once.
inline int64_t rows_per_task(int64_t dim) { return std::max<int64_t>(1, 4096 / std::max<int64_t>(1, dim)); }

template <typename F> void over_rows(int64_t rows, int64_t dim, F &&work) {
    const int64_t step = rows_per_task(dim);
    Pool::instance().run((rows + step - 1) / step, [&](int64_t t) {
        for (int64_t r = t * step; r < std::min(rows, (t + 1) * step); ++r) work(r);
    });
}

// Sixteen partial sums: vectorises without reassociation flags, and the order is the same on every machine.
#define TAILRACE_NORM(NAME, T)                                                                              \
    TAILRACE_CLONES void NAME(const T *x, const T *weight, int64_t dim, float eps, float offset, T *y) {    \
        float part[16] = {};                                                                                \
        int64_t i = 0;                                                                                      \
        for (; i + 16 <= dim; i += 16)                                                                      \
            for (int j = 0; j < 16; ++j) part[j] += to_float(x[i + j]) * to_float(x[i + j]);                \
        for (; i < dim; ++i) part[0] += to_float(x[i]) * to_float(x[i]);                                    \
        float sum = 0.0f;                                                                                   \
        for (int j = 0; j < 16; ++j) sum += part[j];                                                        \
        const float scale = 1.0f / std::sqrt(sum / static_cast<float>(dim) + eps);                          \
        if (offset == 0.0f) {                                                                               \
            for (i = 0; i < dim; ++i)                                                                       \
                y[i] = from_float<T>(to_float(from_float<T>(to_float(x[i]) * scale)) * to_float(weight[i])); \
        } else {                                                                                            \
            for (i = 0; i < dim; ++i)                                                                       \
                y[i] = from_float<T>(to_float(x[i]) * scale * (offset + to_float(weight[i])));              \
        }                                                                                                   \
    }
TAILRACE_NORM(norm_bf16, bf16)
TAILRACE_NORM(norm_f32, float)
#undef TAILRACE_NORM

inline void norm(const bf16 *x, const bf16 *w, int64_t dim, float eps, float offset, bf16 *y) {
    norm_bf16(x, w, dim, eps, offset, y);
}
inline void norm(const float *x, const float *w, int64_t dim, float eps, float offset, float *y) {
    norm_f32(x, w, dim, eps, offset, y);
}

#define TAILRACE_ADD(NAME, T)                                             \
    TAILRACE_CLONES void NAME(const T *x, const T *delta, int64_t dim, T *y) { \
        for (int64_t i = 0; i < dim; ++i) y[i] = from_float<T>(to_float(x[i]) + to_float(delta[i])); \
    }
TAILRACE_ADD(add_bf16, bf16)
TAILRACE_ADD(add_f32, float)
#undef TAILRACE_ADD

inline void add(const bf16 *x, const bf16 *d, int64_t n, bf16 *y) { add_bf16(x, d, n, y); }
inline void add(const float *x, const float *d, int64_t n, float *y) { add_f32(x, d, n, y); }

// x·cos + rotate_half(x)·sin, each product and the sum rounded to T, as the original does it tensor by tensor.
#define TAILRACE_ROPE(NAME, T)                                                                       \
    TAILRACE_CLONES void NAME(T *x, const T *cos, const T *sin, int64_t half) {                      \
        for (int64_t i = 0; i < half; ++i) {                                                         \
            const float a = to_float(x[i]), b = to_float(x[i + half]);                               \
            const float ac = to_float(from_float<T>(a * to_float(cos[i])));                          \
            const float bs = to_float(from_float<T>(-b * to_float(sin[i])));                         \
            const float bc = to_float(from_float<T>(b * to_float(cos[i + half])));                   \
            const float as = to_float(from_float<T>(a * to_float(sin[i + half])));                   \
            x[i] = from_float<T>(ac + bs);                                                           \
            x[i + half] = from_float<T>(bc + as);                                                    \
        }                                                                                            \
    }
TAILRACE_ROPE(rope_bf16, bf16)
TAILRACE_ROPE(rope_f32, float)
#undef TAILRACE_ROPE

inline void rotate(bf16 *x, const bf16 *c, const bf16 *s, int64_t h) { rope_bf16(x, c, s, h); }
inline void rotate(float *x, const float *c, const float *s, int64_t h) { rope_f32(x, c, s, h); }

#define TAILRACE_SILU(NAME, T)                                                                           \
    TAILRACE_CLONES void NAME(const T *gate, const T *up, int64_t dim, T *y) {                           \
        for (int64_t i = 0; i < dim; ++i) {                                                              \
            const float g = to_float(gate[i]);                                                           \
            const float silu = to_float(from_float<T>(g / (1.0f + fast_exp(-g))));                       \
            y[i] = from_float<T>(silu * to_float(up[i]));                                                \
        }                                                                                                \
    }
TAILRACE_SILU(silu_bf16, bf16)
TAILRACE_SILU(silu_f32, float)
#undef TAILRACE_SILU

#if TAILRACE_X86
// The same by another formula for the exponential; subnormal results become zeros.
TAILRACE_BF16 void silu_avx512(const bf16 *gate, const bf16 *up, int64_t dim, bf16 *y) {
    for (int64_t i = 0; i < dim; i += 16) {
        const __mmask16 inside = static_cast<__mmask16>((1u << std::min<int64_t>(16, dim - i)) - 1);
        const auto load = [&](const bf16 *x) TAILRACE_BF16 { return widened(_mm256_maskz_loadu_epi16(inside, x)); };
        const __m512 g = load(gate + i), power = fast_exp2(_mm512_mul_ps(g, _mm512_set1_ps(-1.44269504088896341f)));
        const __m512 silu = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), power));
        const __m512 product = _mm512_mul_ps(widened((__m256i)_mm512_cvtneps_pbh(silu)), load(up + i));
        _mm256_mask_storeu_epi16(y + i, inside, (__m256i)_mm512_cvtneps_pbh(product));
    }
}
#endif

inline void silu(const bf16 *g, const bf16 *u, int64_t n, bf16 *y) {
#if TAILRACE_X86
    if (has_bf16()) return silu_avx512(g, u, n, y);
#endif
    silu_bf16(g, u, n, y);
}
inline void silu(const float *g, const float *u, int64_t n, float *y) { silu_f32(g, u, n, y); }

template <typename T> void add_t(const T *x, const T *delta, int64_t rows, int64_t dim, T *y) {
    over_rows(rows, dim, [&](int64_t r) { add(x + r * dim, delta + r * dim, dim, y + r * dim); });
}

template <typename T>
void rms_norm_t(const T *x, const T *weight, int64_t rows, int64_t dim, int64_t stride, float eps, float offset, T *y) {
    over_rows(rows, dim, [&](int64_t r) { norm(x + r * stride, weight, dim, eps, offset, y + r * dim); });
}

template <typename T>
void add_rms_norm_t(T *residual, const T *delta, const T *weight, int64_t rows, int64_t dim, float eps, T *y) {
    over_rows(rows, dim, [&](int64_t r) {
        add(residual + r * dim, delta + r * dim, dim, residual + r * dim);
        norm(residual + r * dim, weight, dim, eps, 0.0f, y + r * dim);
    });
}

template <typename T>
void rope_t(T *x, const T *cos, const T *sin, int64_t tokens, int64_t heads, int64_t dim, int64_t rotary,
            int64_t stride) {
    over_rows(tokens, heads * dim, [&](int64_t t) {
        for (int64_t h = 0; h < heads; ++h)
            rotate(x + t * stride + h * dim, cos + t * rotary, sin + t * rotary, rotary / 2);
    });
}

template <typename T> void silu_mul_t(const T *gate_up, int64_t rows, int64_t dim, T *y) {
    over_rows(rows, dim, [&](int64_t r) { silu(gate_up + 2 * r * dim, gate_up + (2 * r + 1) * dim, dim, y + r * dim); });
}

}  // namespace

TAILRACE_CLONES void round_row(const float *from, int64_t count, bf16 *to) {
    for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
}

void rms_norm(const void *x, const void *weight, Type type, int64_t rows, int64_t dim, int64_t stride, float eps,
              bool plus_one, void *y) {
    const float offset = plus_one ? 1.0f : 0.0f;
    if (type == Type::f32)
        rms_norm_t(static_cast<const float *>(x), static_cast<const float *>(weight), rows, dim, stride, eps, offset,
                   static_cast<float *>(y));
    else
        rms_norm_t(static_cast<const bf16 *>(x), static_cast<const bf16 *>(weight), rows, dim, stride, eps, offset,
                   static_cast<bf16 *>(y));
}

void add(const void *x, const void *delta, Type type, int64_t rows, int64_t dim, void *y) {
    if (type == Type::f32)
        add_t(static_cast<const float *>(x), static_cast<const float *>(delta), rows, dim, static_cast<float *>(y));
    else
        add_t(static_cast<const bf16 *>(x), static_cast<const bf16 *>(delta), rows, dim, static_cast<bf16 *>(y));
}

void add_rms_norm(void *residual, const void *delta, const void *weight, Type type, int64_t rows, int64_t dim, float eps,
                  void *y) {
    if (type == Type::f32)
        add_rms_norm_t(static_cast<float *>(residual), static_cast<const float *>(delta),
                       static_cast<const float *>(weight), rows, dim, eps, static_cast<float *>(y));
    else
        add_rms_norm_t(static_cast<bf16 *>(residual), static_cast<const bf16 *>(delta),
                       static_cast<const bf16 *>(weight), rows, dim, eps, static_cast<bf16 *>(y));
}

void rope(void *x, const void *cos, const void *sin, Type type, int64_t tokens, int64_t heads, int64_t dim,
          int64_t rotary, int64_t stride) {
    if (type == Type::f32)
        rope_t(static_cast<float *>(x), static_cast<const float *>(cos), static_cast<const float *>(sin), tokens, heads,
               dim, rotary, stride);
    else
        rope_t(static_cast<bf16 *>(x), static_cast<const bf16 *>(cos), static_cast<const bf16 *>(sin), tokens, heads,
               dim, rotary, stride);
}

void silu_mul(const void *gate_up, Type type, int64_t rows, int64_t dim, void *y) {
    if (type == Type::f32)
        silu_mul_t(static_cast<const float *>(gate_up), rows, dim, static_cast<float *>(y));
    else
        silu_mul_t(static_cast<const bf16 *>(gate_up), rows, dim, static_cast<bf16 *>(y));
}

}  // namespace tailrace
