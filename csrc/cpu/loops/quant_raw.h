/* Matrix times one column, straight from raw GGUF rows: what decoding uses where weights stay as they lie in the file.
 *
 * Eight rows go side by side. Within a block the integers of a row are added along K, in whatever order is cheap: they
 * are exact. Eight such sums are then turned into one vector, a lane per row, and the block is closed in float exactly
 * as hk_packed.h says: the same bits as packing and multiplying. (Packing a panel into the first cache and multiplying
 * it there gives them too, and serves many columns; for one column it costs several times the product.)
 *
 * 256-bit vectors on every instruction set: a raw block holds 32 codes side by side, not more. */
#ifndef HK_QUANT_RAW_H
#define HK_QUANT_RAW_H

#include "cpu/loops/quant_unpack.h"
#include "formats/hk_blocks.h"

enum { HK_RAW_ROWS = 8 };

/* One block's activations. */
typedef struct hk_raw_act {
    const int8_t *codes;
    float d, s;     /* scale; s = d * sum of codes (Q4_1, Q5_1) */
    int32_t sum;    /* of the codes (blocks of 32) */
    vi sums;        /* int16: of 16 codes, those of even index, then those of odd */
    __m128i sums32; /* int16: of 32 codes */
} hk_raw_act;

HK_INLINE hk_raw_act hk_raw_load_act(const hk_quant *q, const hk_act *a, int64_t b) {
    const int16_t *sums = a->sums + b * (q->block / 16);
    hk_raw_act o = {.codes = a->codes + b * q->block, .d = a->scales[b]};
    if (q->block == 32) {
        o.sum = sums[0] + sums[1];
        o.s = o.d * (float)o.sum;
        return o;
    }
    const vi pick = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2,
                                     3, 6, 7, 10, 11, 14, 15);
    o.sums = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(vi_load(sums), pick), 0xd8);
    o.sums32 = _mm_add_epi16(_mm256_castsi256_si128(o.sums), _mm256_extracti128_si256(o.sums, 1));
    return o;
}

HK_INLINE uint32_t hk_raw_u32(const void *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}

/* 16 bytes of two codes each -> 32 codes. */
HK_INLINE vi hk_raw_nibbles(const uint8_t *p) {
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    return vi_and(_mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1), vi_set8(15));
}

/* Bit i of 32 -> 16 in byte i. */
HK_INLINE vi hk_raw_bits(uint32_t x) {
    const vi spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const vi bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    vi y = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)x), spread), bit);
    return vi_and(_mm256_cmpeq_epi8(y, bit), vi_set8(16));
}

/* Codes of weights 32 c .. 32 c + 31 of a block, in order, before tables and zero points. */
#define HK_RAW_CODES(fmt) HK_INLINE vi hk_raw_codes_##fmt(const hk_block_##fmt *b, int c)
HK_RAW_CODES(q4_0) { return (void)c, hk_raw_nibbles(b->qs); }
HK_RAW_CODES(q4_1) { return (void)c, hk_raw_nibbles(b->qs); }
HK_RAW_CODES(q5_0) { return (void)c, vi_or(hk_raw_nibbles(b->qs), hk_raw_bits(hk_raw_u32(b->qh))); }
HK_RAW_CODES(q5_1) { return (void)c, vi_or(hk_raw_nibbles(b->qs), hk_raw_bits(hk_raw_u32(b->qh))); }
HK_RAW_CODES(q8_0) { return (void)c, vi_load(b->qs); }
HK_RAW_CODES(iq4_nl) { return (void)c, hk_raw_nibbles(b->qs); }
HK_RAW_CODES(mxfp4) { return (void)c, hk_raw_nibbles(b->qs); }
HK_RAW_CODES(iq4_xs) { return hk_raw_nibbles(b->qs + 16 * c); }
HK_RAW_CODES(q2_k) { return hk_field(vi_load(b->qs + 32 * (c / 4)), 2 * (c % 4), 3); }
HK_RAW_CODES(q3_k) {
    vi low = hk_field(vi_load(b->qs + 32 * (c / 4)), 2 * (c % 4), 3);
    return vi_or(low, hk_field(vi_load(b->hmask), c - 2, 4));
}
HK_RAW_CODES(q4_k) { return hk_field(vi_load(b->qs + 32 * (c / 2)), 4 * (c % 2), 15); }
HK_RAW_CODES(q5_k) {
    vi low = hk_field(vi_load(b->qs + 32 * (c / 2)), 4 * (c % 2), 15);
    return vi_or(low, hk_field(vi_load(b->qh), c - 4, 16));
}
HK_RAW_CODES(q6_k) {
    vi low = hk_field(vi_load(b->ql + 64 * (c / 4) + 32 * (c % 2)), 4 * (c % 4 / 2), 15);
    return vi_or(low, hk_field(vi_load(b->qh + 32 * (c / 4)), 2 * (c % 4) - 4, 48));
}
#undef HK_RAW_CODES

/* Integer scales of a block as int16: of even sub-blocks of 16 in the low half and of odd ones in the high half, or,
 * where sub-blocks have 32 weights, the same eight in both halves. *mins: in the order of the sums that they meet. */
#define HK_RAW_SCALES(fmt) HK_INLINE vi hk_raw_scales_##fmt(const hk_block_##fmt *b, vi *mins)
HK_INLINE vi hk_raw_both(__m128i x) { return _mm256_inserti128_si256(_mm256_castsi128_si256(x), x, 1); }
HK_INLINE __m128i hk_raw_even_odd(__m128i x) {
    return _mm_shuffle_epi8(x, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
}
HK_INLINE vi hk_raw_scales_6bit(const uint8_t *s, vi *mins) {
    uint32_t x = hk_raw_u32(s), y = hk_raw_u32(s + 4), z = hk_raw_u32(s + 8);
    uint32_t s1 = (z & 0x0f0f0f0f) | (x >> 2 & 0x30303030), m1 = (z >> 4 & 0x0f0f0f0f) | (y >> 2 & 0x30303030);
    vi all = _mm256_cvtepu8_epi16(_mm_setr_epi32((int)(x & 0x3f3f3f3f), (int)s1, (int)(y & 0x3f3f3f3f), (int)m1));
    *mins = _mm256_permute2x128_si256(all, all, 0x11);
    return _mm256_permute2x128_si256(all, all, 0x00);
}
HK_RAW_SCALES(q4_k) { return hk_raw_scales_6bit(b->scales, mins); }
HK_RAW_SCALES(q5_k) { return hk_raw_scales_6bit(b->scales, mins); }
HK_RAW_SCALES(q6_k) {
    (void)mins;
    return _mm256_cvtepi8_epi16(hk_raw_even_odd(_mm_loadu_si128((const __m128i *)b->scales)));
}
HK_RAW_SCALES(q2_k) {
    __m128i x = hk_raw_even_odd(_mm_loadu_si128((const __m128i *)b->scales)), low = _mm_set1_epi8(15);
    *mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(x, 4), low));
    return _mm256_cvtepu8_epi16(_mm_and_si128(x, low));
}
HK_RAW_SCALES(q3_k) {
    uint32_t x = hk_raw_u32(b->scales), y = hk_raw_u32(b->scales + 4), t = hk_raw_u32(b->scales + 8);
    (void)mins;
    __m128i s = _mm_setr_epi32(
        (int)((x & 0x0f0f0f0f) | (t << 4 & 0x30303030)), (int)((y & 0x0f0f0f0f) | (t << 2 & 0x30303030)),
        (int)((x >> 4 & 0x0f0f0f0f) | (t & 0x30303030)), (int)((y >> 4 & 0x0f0f0f0f) | (t >> 2 & 0x30303030)));
    return _mm256_cvtepi8_epi16(hk_raw_even_odd(_mm_sub_epi8(s, _mm_set1_epi8(32))));
}
/* Nibbles, and pairs of bits, are spread to bytes by halves. */
HK_RAW_SCALES(iq4_xs) {
    uint64_t x = hk_raw_u32(b->scales_l), y = b->scales_h;
    (void)mins;
    x = (x | x << 16) & 0x0000ffff0000ffffull;
    x = (x | x << 8) & 0x00ff00ff00ff00ffull;
    x = (x | x << 4) & 0x0f0f0f0f0f0f0f0full;
    y = (y | y << 24) & 0x000000ff000000ffull;
    y = (y | y << 12) & 0x000f000f000f000full;
    y = (y | y << 6) & 0x0303030303030303ull;
    __m128i s = _mm_sub_epi8(_mm_cvtsi64_si128((long long)(x | y << 4)), _mm_set1_epi8(32));
    return hk_raw_both(_mm_cvtepi8_epi16(s));
}
#undef HK_RAW_SCALES
#define HK_RAW_NO_SCALES(fmt)                                                                                          \
    HK_INLINE vi hk_raw_scales_##fmt(const hk_block_##fmt *b, vi *mins) { return (void)b, (void)mins, vi_zero(); }
HK_RAW_NO_SCALES(q4_0)
HK_RAW_NO_SCALES(q4_1)
HK_RAW_NO_SCALES(q5_0)
HK_RAW_NO_SCALES(q5_1)
HK_RAW_NO_SCALES(q8_0)
HK_RAW_NO_SCALES(iq4_nl)
HK_RAW_NO_SCALES(mxfp4)
#undef HK_RAW_NO_SCALES

/* Products of 32 codes with activations as 16 int16: none exceeds 2 * 127 * 128. */
HK_INLINE vi hk_raw_products(const hk_quant *q, vi w, vi x) {
    w = hk_code_value(q, w);
    return hk_is_signed(q) ? vi_maddubs(vi_abs8(w), vi_sign8(x, w)) : vi_maddubs(w, x);
}

/* Lane r = the sum of the lanes of v[r]. */
HK_INLINE vi hk_raw_lanes(const vi *v) {
    vi a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    vi b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return vi_add32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* Eight fp16 numbers, `step` bytes apart. */
HK_INLINE vf hk_raw_halves(const uint8_t *p, const int64_t *row) {
    uint64_t x[2] = {0, 0};
    HK_UNROLL
    for (int r = 0; r < HK_RAW_ROWS; r++) {
        uint16_t h;
        memcpy(&h, p + row[r], 2);
        x[r / 4] |= (uint64_t)h << (16 * (r % 4));
    }
    return _mm256_cvtph_ps(_mm_set_epi64x((long long)x[1], (long long)x[0]));
}

HK_INLINE vf hk_raw_e8m0(const uint8_t *p, const int64_t *row) {
    uint64_t x = 0;
    HK_UNROLL
    for (int r = 0; r < HK_RAW_ROWS; r++)
        x |= (uint64_t)p[row[r]] << (8 * r);
    return vf_of_e8m0_half((const uint8_t *)&x);
}

typedef void (*hk_gemv_raw_group)(const uint8_t *raw, const int64_t *row, int64_t K, const hk_act *a, int64_t ahead,
                                  float *out);

/* Where the scales are in a block, and its kernel: eight rows at raw + row[r]. */
#define HK_RAW_KERNEL(NAME, fmt, d_at, m_at)                                                                           \
    static void hk_raw_group_##fmt(const uint8_t *raw, const int64_t *row, int64_t K, const hk_act *a, int64_t ahead,  \
                                   float *out) {                                                                       \
        const hk_quant *q = &hk_quant_##fmt;                                                                           \
        vf c = vf_zero();                                                                                              \
        for (int64_t b = 0; b < K / HK_BLOCK_##NAME; b++, raw += HK_BYTES_##NAME) {                                    \
            hk_raw_act x = hk_raw_load_act(q, a, b);                                                                   \
            vi sum[HK_RAW_ROWS], mins[HK_RAW_ROWS];                                                                    \
            HK_UNROLL                                                                                                  \
            for (int r = 0; r < HK_RAW_ROWS; r++) {                                                                    \
                const hk_block_##fmt *w = (const hk_block_##fmt *)(raw + row[r]);                                      \
                if (q->block == 32 ? b % 2 == 0 : 1)                                                                   \
                    _mm_prefetch((const char *)w + ahead, _MM_HINT_T1);                                                \
                if (HK_BYTES_##NAME > 64)                                                                              \
                    _mm_prefetch((const char *)w + ahead + 64, _MM_HINT_T1);                                           \
                if (HK_BYTES_##NAME > 128)                                                                             \
                    _mm_prefetch((const char *)w + ahead + 128, _MM_HINT_T1);                                          \
                if (q->block == 32) {                                                                                  \
                    vi p = hk_raw_products(q, hk_raw_codes_##fmt(w, 0), vi_load(x.codes));                             \
                    sum[r] = vi_madd16(p, vi_set16(1));                                                                \
                    continue;                                                                                          \
                }                                                                                                      \
                vi min = vi_zero(), s = hk_raw_scales_##fmt(w, &min), t = vi_zero();                                   \
                HK_UNROLL                                                                                              \
                for (int i = 0; i < 8; i++) {                                                                          \
                    vi p = hk_raw_products(q, hk_raw_codes_##fmt(w, i), vi_load(x.codes + 32 * i));                    \
                    vi scale = _mm256_shuffle_epi8(s, vi_set16(0x0100 * (2 * i + 1) + 2 * i));                         \
                    t = vi_add32(t, vi_madd16(p, scale));                                                              \
                }                                                                                                      \
                if (q->zero)                                                                                           \
                    t = _mm256_sub_epi32(t, vi_mullo32(vi_madd16(s, x.sums), _mm256_set1_epi32(q->zero)));             \
                sum[r] = t;                                                                                            \
                if (q->mins)                                                                                           \
                    mins[r] =                                                                                          \
                        q->sub == 16 ? vi_madd16(min, x.sums) : vi_madd16(min, _mm256_zextsi128_si256(x.sums32));      \
            }                                                                                                          \
            vi isum = hk_raw_lanes(sum);                                                                               \
            if (q->block == 32 && q->zero)                                                                             \
                isum = _mm256_sub_epi32(isum, _mm256_set1_epi32(q->zero * x.sum));                                     \
            vf d = q->e8m0 ? hk_raw_e8m0(raw + (d_at), row) : hk_raw_halves(raw + (d_at), row);                        \
            c = vf_fma(vf_mul(d, vf_set(x.d)), vf_of_int(isum), c);                                                    \
            if (q->mins && q->block == 32)                                                                             \
                c = vf_fma(hk_raw_halves(raw + (m_at), row), vf_set(x.s), c);                                          \
            if (q->mins && q->block == 256)                                                                            \
                c = vf_fnma(vf_mul(hk_raw_halves(raw + (m_at), row), vf_set(x.d)), vf_of_int(hk_raw_lanes(mins)), c);  \
        }                                                                                                              \
        vf_store(out, c);                                                                                              \
    }

#define HK_AT(fmt, field) offsetof(hk_block_##fmt, field)
HK_RAW_KERNEL(Q4_0, q4_0, HK_AT(q4_0, d), 0)
HK_RAW_KERNEL(Q4_1, q4_1, HK_AT(q4_1, d), HK_AT(q4_1, m))
HK_RAW_KERNEL(Q5_0, q5_0, HK_AT(q5_0, d), 0)
HK_RAW_KERNEL(Q5_1, q5_1, HK_AT(q5_1, d), HK_AT(q5_1, m))
HK_RAW_KERNEL(Q8_0, q8_0, HK_AT(q8_0, d), 0)
HK_RAW_KERNEL(Q2_K, q2_k, HK_AT(q2_k, d), HK_AT(q2_k, dmin))
HK_RAW_KERNEL(Q3_K, q3_k, HK_AT(q3_k, d), 0)
HK_RAW_KERNEL(Q4_K, q4_k, HK_AT(q4_k, d), HK_AT(q4_k, dmin))
HK_RAW_KERNEL(Q5_K, q5_k, HK_AT(q5_k, d), HK_AT(q5_k, dmin))
HK_RAW_KERNEL(Q6_K, q6_k, HK_AT(q6_k, d), 0)
HK_RAW_KERNEL(IQ4_NL, iq4_nl, HK_AT(iq4_nl, d), 0)
HK_RAW_KERNEL(IQ4_XS, iq4_xs, HK_AT(iq4_xs, d), 0)
HK_RAW_KERNEL(MXFP4, mxfp4, HK_AT(mxfp4, e), 0)
#undef HK_AT

/* Rows that do not exist are computed from the last one, and count as zero. */
static void hk_gemv_raw(hk_gemv_raw_group group, const uint8_t *raw, int64_t row_bytes, int64_t n_rows, int64_t K,
                        const hk_act *a, float *out) {
    const int64_t padded = (n_rows + HK_PANEL - 1) / HK_PANEL * HK_PANEL;
    for (int64_t r0 = 0; r0 < padded; r0 += HK_RAW_ROWS) {
        int64_t row[HK_RAW_ROWS];
        for (int64_t r = 0; r < HK_RAW_ROWS; r++)
            row[r] = (r0 + r < n_rows ? r0 + r : n_rows - 1) * row_bytes;
        group(raw, row, K, a, HK_RAW_ROWS * row_bytes, out + r0);
    }
    for (int64_t r = n_rows; r < padded; r++)
        out[r] = 0;
}

#endif
