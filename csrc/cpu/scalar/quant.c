/* Quantised products in plain C: the reference of every instruction set, and all that other architectures get.
 *
 * Per panel and block the codes become int8 values [k][row] once; then each column is multiplied with exact integers
 * and closed with the floating-point steps of hk_packed.h. */
#include "cpu/hk_cpu.h"
#include "cpu/scalar/dequant.h"
#include "formats/hk_fma.h"
#include "formats/hk_scales.h"

#define INLINE static inline __attribute__((always_inline))

static const int8_t table_iq4[16] = {HK_TABLE_IQ4}, table_mxfp4[16] = {HK_TABLE_MXFP4};

/* Code of weight k of row r in a plane of `bits` bits. */
INLINE int plane_code(const uint8_t *plane, int bits, int k, int r) {
    int per = 8 / bits, g = k / 4;
    return (plane[64 * (g / per) + 4 * r + k % 4] >> (bits * (g % per))) & ((1 << bits) - 1);
}

INLINE void decode_values(const hk_quant *q, const uint8_t *codes, int8_t (*v)[16]) {
    const uint8_t *high = codes + q->block * 2 * q->low;
    for (int k = 0; k < q->block; k++)
        for (int r = 0; r < 16; r++) {
            int c = plane_code(codes, q->low, k, r);
            if (q->high)
                c |= plane_code(high, q->high, k, r) << q->low;
            v[k][r] = q->codes == HK_CODES_PLAIN    ? (int8_t)(c - q->zero)
                      : q->codes == HK_CODES_SIGNED ? (int8_t)c
                      : q->codes == HK_CODES_IQ4    ? table_iq4[c]
                                                    : table_mxfp4[c];
        }
}

INLINE float scale_at(const hk_quant *q, const uint8_t *plane, int i) {
    uint16_t h;
    if (q->e8m0)
        return hk_f32_of_e8m0_half(plane[i]);
    memcpy(&h, plane + 2 * i, 2);
    return hk_half_to_float(h);
}

/* dot[r] = sum over n weights of v * a */
static void dot16(const int8_t (*v)[16], const int8_t *a, int n, int32_t *dot) {
    for (int r = 0; r < 16; r++)
        dot[r] = 0;
    for (int k = 0; k < n; k++)
        for (int r = 0; r < 16; r++)
            dot[r] += v[k][r] * a[k];
}

/* c[r] += one block of 256, with integer scales (and mins) per sub-block. */
INLINE void block_256(const hk_quant *q, const int8_t (*v)[16], const hk_sub_scales *s, const uint8_t *plane,
                      const int8_t *a, const int16_t *sums, const float *da, float *c) {
    float f[16] = {0}, m[16] = {0};
    int32_t isum[16], dot[16];
    for (int j = 0; j < 256 / q->sub; j++) {
        int first = j * q->sub % 32 == 0, last = (j + 1) * q->sub % 32 == 0, i = j * q->sub / 32;
        float sum = da[i] * (float)(q->sub == 16 ? sums[j] : sums[2 * j] + sums[2 * j + 1]);
        dot16(v + j * q->sub, a + j * q->sub, q->sub, dot);
        for (int r = 0; r < 16; r++) {
            isum[r] = s->s[j][r] * dot[r] + (first ? 0 : isum[r]);
            if (last)
                f[r] = hk_fma(da[i], (float)isum[r], f[r]);
            if (q->mins)
                m[r] = hk_fma((float)s->m[j][r], sum, m[r]);
        }
    }
    for (int r = 0; r < 16; r++) {
        c[r] = hk_fma(scale_at(q, plane, r), f[r], c[r]);
        if (q->mins)
            c[r] = hk_fma(-scale_at(q, plane, 16 + r), m[r], c[r]);
    }
}

/* c[r] += one block of 32 with a float scale (and offset). */
INLINE void block_32(const hk_quant *q, const int8_t (*v)[16], const uint8_t *plane, const int8_t *a,
                     const int16_t *sums, float da, float *c) {
    int32_t dot[16];
    dot16(v, a, 32, dot);
    for (int r = 0; r < 16; r++) {
        c[r] = hk_fma(scale_at(q, plane, r) * da, (float)dot[r], c[r]);
        if (q->mins)
            c[r] = hk_fma(scale_at(q, plane, 16 + r), da * (float)(sums[0] + sums[1]), c[r]);
    }
}

typedef void (*sub_scales_fn)(const uint8_t *plane, hk_sub_scales *o);

INLINE void gemm(const hk_quant *q, hk_type t, sub_scales_fn sub_scales, const uint8_t *panels, int64_t n_panels,
                 int64_t K, const hk_act *a, int64_t n_cols, float *out, int64_t out_stride) {
    int8_t v[256][16];
    hk_sub_scales s;
    for (int64_t p = 0; p < n_panels; p++) {
        const uint8_t *plane = panels + p * hk_panel_bytes(t, K), *codes = plane + hk_scale_plane_bytes(t, K);
        for (int64_t n = 0; n < n_cols; n++)
            memset(out + n * out_stride + p * 16, 0, 16 * sizeof(float));
        for (int64_t b = 0; b < K / q->block; b++) {
            const uint8_t *scales = plane + b * 16 * q->scale_bytes;
            decode_values(q, codes + b * 16 * q->code_bytes, v);
            sub_scales(scales, &s);
            for (int64_t n = 0; n < n_cols; n++) {
                const int8_t *x = a->codes + n * a->codes_stride + b * q->block;
                const int16_t *sums = a->sums + n * a->sums_stride + b * q->block / 16;
                const float *da = a->scales + n * a->scales_stride + b * (q->block / 32);
                float *c = out + n * out_stride + p * 16;
                if (q->block == 256)
                    block_256(q, (const int8_t (*)[16])v, &s, scales, x, sums, da, c);
                else
                    block_32(q, (const int8_t (*)[16])v, scales, x, sums, *da, c);
            }
        }
    }
}

#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    static void hk_gemm_##fmt##_scalar(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,            \
                                       int64_t n_cols, float *out, int64_t out_stride, void *scratch) {                \
        (void)scratch;                                                                                                 \
        gemm(&hk_quant_##fmt, HK_##NAME, hk_sub_scales_##fmt, panels, n_panels, K, a, n_cols, out, out_stride);        \
    }                                                                                                                  \
    static void hk_gemv_##fmt##_scalar(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,            \
                                       float *out) {                                                                   \
        hk_gemm_##fmt##_scalar(panels, n_panels, K, a, 1, out, 0, NULL);                                               \
    }
#include "formats/hk_quants.def"
#undef HK_QUANT

void hk_fill_quant_scalar(hk_cpu_set *set) {
#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    set->type[HK_##NAME] = (hk_type_kernels){.gemv = hk_gemv_##fmt##_scalar,                                           \
                                             .gemm = hk_gemm_##fmt##_scalar,                                           \
                                             .dequant = hk_dequant_##fmt##_scalar,                                     \
                                             .gemv_isa = "scalar",                                                     \
                                             .gemm_isa = "scalar",                                                     \
                                             .dequant_isa = "scalar"};
#include "formats/hk_quants.def"
#undef HK_QUANT
}
