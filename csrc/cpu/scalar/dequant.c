/* Raw GGUF blocks -> floats, bit for bit as the formats define them: scale and sub-block scale are multiplied first,
 * then the code, then the minimum is subtracted, each step rounded to float32. Works on the codes of hk_codes.h; the
 * loops over codes vectorise, and dequantising is only used for embedding rows and by callers who ask for floats. */
#include "cpu/scalar/dequant.h"
#include "formats/hk_codes.h"
#include "formats/hk_quants.h"

static const int8_t table_iq4[16] = {HK_TABLE_IQ4}, table_mxfp4[16] = {HK_TABLE_MXFP4};

/* y = s * (code - zero), code = low | high << shift; high may be NULL */
static inline void put_scaled(const uint8_t *low, const uint8_t *high, int shift, int zero, float s, int n, float *y) {
    for (int i = 0; i < n; i++)
        y[i] = s * (float)((low[i] | (high ? high[i] << shift : 0)) - zero);
}

/* y = s * code + m */
static inline void put_affine(const uint8_t *low, const uint8_t *high, int shift, float s, float m, int n, float *y) {
    for (int i = 0; i < n; i++)
        y[i] = s * (float)(low[i] | (high ? high[i] << shift : 0)) + m;
}

static inline void put_table(const uint8_t *low, const int8_t *table, float s, int n, float *y) {
    for (int i = 0; i < n; i++)
        y[i] = s * (float)table[low[i]];
}

/* The 6-bit scale and min of sub-block j in the 12 scale bytes of Q4_K and Q5_K. */
static inline void scale_min(const uint8_t *s, int j, int *scale, int *min) {
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

static void block_q4_0(const hk_block_q4_0 *b, const uint8_t *low, const uint8_t *high, float *y) {
    (void)high;
    put_scaled(low, NULL, 0, 8, hk_half_to_float(b->d), 32, y);
}

static void block_q4_1(const hk_block_q4_1 *b, const uint8_t *low, const uint8_t *high, float *y) {
    (void)high;
    put_affine(low, NULL, 0, hk_half_to_float(b->d), hk_half_to_float(b->m), 32, y);
}

static void block_q5_0(const hk_block_q5_0 *b, const uint8_t *low, const uint8_t *high, float *y) {
    put_scaled(low, high, 4, 16, hk_half_to_float(b->d), 32, y);
}

static void block_q5_1(const hk_block_q5_1 *b, const uint8_t *low, const uint8_t *high, float *y) {
    put_affine(low, high, 4, hk_half_to_float(b->d), hk_half_to_float(b->m), 32, y);
}

static void block_q8_0(const hk_block_q8_0 *b, const uint8_t *low, const uint8_t *high, float *y) {
    float d = hk_half_to_float(b->d);
    (void)low, (void)high;
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)b->qs[i];
}

static void block_iq4_nl(const hk_block_iq4_nl *b, const uint8_t *low, const uint8_t *high, float *y) {
    (void)high;
    put_table(low, table_iq4, hk_half_to_float(b->d), 32, y);
}

static void block_mxfp4(const hk_block_mxfp4 *b, const uint8_t *low, const uint8_t *high, float *y) {
    (void)high;
    put_table(low, table_mxfp4, hk_f32_of_e8m0_half(b->e), 32, y);
}

static void block_q2_k(const hk_block_q2_k *b, const uint8_t *low, const uint8_t *high, float *y) {
    float d = hk_half_to_float(b->d), dmin = hk_half_to_float(b->dmin);
    (void)high;
    for (int j = 0; j < 16; j++) {
        float s = d * (float)(b->scales[j] & 15), m = dmin * (float)(b->scales[j] >> 4);
        put_affine(low + 16 * j, NULL, 0, s, -m, 16, y + 16 * j);
    }
}

static void block_q3_k(const hk_block_q3_k *b, const uint8_t *low, const uint8_t *high, float *y) {
    float d = hk_half_to_float(b->d);
    for (int j = 0; j < 16; j++) {
        int nibble = j < 8 ? b->scales[j] & 15 : b->scales[j - 8] >> 4;
        int top = (b->scales[8 + j % 4] >> (2 * (j / 4))) & 3;
        put_scaled(low + 16 * j, high + 16 * j, 2, 4, d * (float)((nibble | top << 4) - 32), 16, y + 16 * j);
    }
}

static void block_q4_k(const hk_block_q4_k *b, const uint8_t *low, const uint8_t *high, float *y) {
    float d = hk_half_to_float(b->d), dmin = hk_half_to_float(b->dmin);
    (void)high;
    for (int j = 0, s, m; j < 8; j++) {
        scale_min(b->scales, j, &s, &m);
        put_affine(low + 32 * j, NULL, 0, d * (float)s, -(dmin * (float)m), 32, y + 32 * j);
    }
}

static void block_q5_k(const hk_block_q5_k *b, const uint8_t *low, const uint8_t *high, float *y) {
    float d = hk_half_to_float(b->d), dmin = hk_half_to_float(b->dmin);
    for (int j = 0, s, m; j < 8; j++) {
        scale_min(b->scales, j, &s, &m);
        put_affine(low + 32 * j, high + 32 * j, 4, d * (float)s, -(dmin * (float)m), 32, y + 32 * j);
    }
}

static void block_q6_k(const hk_block_q6_k *b, const uint8_t *low, const uint8_t *high, float *y) {
    float d = hk_half_to_float(b->d);
    for (int j = 0; j < 16; j++)
        put_scaled(low + 16 * j, high + 16 * j, 4, 32, d * (float)b->scales[j], 16, y + 16 * j);
}

static void block_iq4_xs(const hk_block_iq4_xs *b, const uint8_t *low, const uint8_t *high, float *y) {
    float d = hk_half_to_float(b->d);
    (void)high;
    for (int j = 0; j < 8; j++) {
        int s = ((b->scales_l[j / 2] >> (4 * (j % 2))) & 15) | ((b->scales_h >> (2 * j)) & 3) << 4;
        put_table(low + 32 * j, table_iq4, d * (float)(s - 32), 32, y + 32 * j);
    }
}

#define HK_QUANT(NAME, fmt, low_bits, high_bits, kind, zero, sub, mins)                                                \
    void hk_dequant_##fmt##_scalar(const uint8_t *raw, int64_t n_blocks, float *out) {                                 \
        uint8_t low[HK_BLOCK_##NAME], high[HK_BLOCK_##NAME];                                                           \
        for (int64_t i = 0; i < n_blocks; i++) {                                                                       \
            const hk_block_##fmt *b = (const hk_block_##fmt *)raw + i;                                                 \
            hk_codes_##fmt(b, low, high);                                                                              \
            block_##fmt(b, low, high, out + i * HK_BLOCK_##NAME);                                                      \
        }                                                                                                              \
    }
#include "formats/hk_quants.def"
#undef HK_QUANT
