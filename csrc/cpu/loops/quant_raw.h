/* Matrix times one or two columns, straight from raw GGUF rows: what decoding uses where weights stay as they lie in
 * the file.
 *
 * Sixteen rows go side by side, as in a panel. Their scales are transposed to the scale plane of hk_packed.h, block by
 * block, and decoded as a panel's are; their codes are multiplied where they lie, 32 at a time along K, and the sums of
 * eight rows are turned into one vector with a lane per row. From there on everything is as hk_packed.h says: the bits
 * are those of packing and multiplying. (Packing a panel into the first cache and multiplying it there gives them too,
 * and serves many columns; for one column it costs several times the product.)
 *
 * 256-bit vectors on every instruction set: a raw block holds 32 codes side by side, not more. */
#ifndef HK_QUANT_RAW_H
#define HK_QUANT_RAW_H

#include "cpu/loops/quant_gemv.h"
#include "formats/hk_blocks.h"

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

/* Products of 32 values with activations as 8 int32: the first four of weights 0 .. 15, the others of 16 .. 31. */
HK_INLINE vi hk_raw_products(const hk_quant *q, vi w, vi x) {
    vi p = hk_is_signed(q) ? vi_maddubs(vi_abs8(w), vi_sign8(x, w)) : vi_maddubs(w, x);
    return vi_madd16(p, vi_set16(1));
}

/* Lane r = the sum of the lower and of the upper four lanes of v[r]. */
HK_INLINE void hk_raw_lanes(const vi *v, vi *lower, vi *upper) {
    vi a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    vi b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    *lower = _mm256_permute2x128_si256(a, b, 0x20);
    *upper = _mm256_permute2x128_si256(a, b, 0x31);
}

/* 16-bit numbers at p of 16 rows, side by side. */
HK_INLINE void hk_raw_halves(const uint8_t *const *row, int64_t at, uint8_t *dst) {
    uint64_t x[4] = {0};
    HK_UNROLL
    for (int r = 0; r < 16; r++) {
        uint16_t h;
        memcpy(&h, row[r] + at, 2);
        x[r / 4] |= (uint64_t)h << (16 * (r % 4));
    }
    /* one vector, since it is loaded as one */
    _mm256_storeu_si256((__m256i *)dst,
                        _mm256_setr_epi64x((long long)x[0], (long long)x[1], (long long)x[2], (long long)x[3]));
}

/* Bytes at .. at + 15 of 16 rows: line i of dst takes byte `skip` + i, for n of them. */
HK_INLINE void hk_raw_transpose(const uint8_t *const *row, int64_t at, int skip, int n, uint8_t *dst) {
    __m128i a[16], b[16];
    HK_UNROLL
    for (int r = 0; r < 16; r++)
        a[r] = _mm_loadu_si128((const __m128i *)(row[r] + at));
#define HK_RAW_STAGE(from, to)                                                                                         \
    HK_UNROLL                                                                                                          \
    for (int i = 0; i < 8; i++) {                                                                                      \
        to[2 * i] = _mm_unpacklo_epi8(from[i], from[i + 8]);                                                           \
        to[2 * i + 1] = _mm_unpackhi_epi8(from[i], from[i + 8]);                                                       \
    }
    HK_RAW_STAGE(a, b)
    HK_RAW_STAGE(b, a)
    HK_RAW_STAGE(a, b)
    HK_RAW_STAGE(b, a)
#undef HK_RAW_STAGE
    HK_UNROLL
    for (int i = 0; i < n; i++)
        _mm_storeu_si128((__m128i *)(dst + 16 * i), a[skip + i]);
}

/* The scale plane of one block of 16 rows; no byte behind a block is touched. */
#define HK_RAW_AT(fmt, field) offsetof(hk_block_##fmt, field)
#define HK_RAW_PLANE(fmt)     HK_INLINE void hk_raw_plane_##fmt(const uint8_t *const *row, int64_t at, uint8_t *plane)
#define HK_RAW_PLANE_D(fmt)                                                                                            \
    HK_RAW_PLANE(fmt) { hk_raw_halves(row, at + HK_RAW_AT(fmt, d), plane); }
#define HK_RAW_PLANE_DM(fmt)                                                                                           \
    HK_RAW_PLANE(fmt) {                                                                                                \
        hk_raw_halves(row, at + HK_RAW_AT(fmt, d), plane);                                                             \
        hk_raw_halves(row, at + HK_RAW_AT(fmt, m), plane + 32);                                                        \
    }
#define HK_RAW_PLANE_DMINS(fmt, n)                                                                                     \
    HK_RAW_PLANE(fmt) {                                                                                                \
        hk_raw_halves(row, at + HK_RAW_AT(fmt, d), plane);                                                             \
        hk_raw_halves(row, at + HK_RAW_AT(fmt, dmin), plane + 32);                                                     \
        hk_raw_transpose(row, at + HK_RAW_AT(fmt, scales), 0, n, plane + 64);                                          \
    }
HK_RAW_PLANE_D(q4_0)
HK_RAW_PLANE_D(q5_0)
HK_RAW_PLANE_D(q8_0)
HK_RAW_PLANE_D(iq4_nl)
HK_RAW_PLANE_DM(q4_1)
HK_RAW_PLANE_DM(q5_1)
HK_RAW_PLANE_DMINS(q4_k, 12)
HK_RAW_PLANE_DMINS(q5_k, 12)
HK_RAW_PLANE_DMINS(q2_k, 16)
HK_RAW_PLANE(q6_k) {
    hk_raw_halves(row, at + HK_RAW_AT(q6_k, d), plane);
    hk_raw_transpose(row, at + HK_RAW_AT(q6_k, scales), 0, 16, plane + 32);
}
HK_RAW_PLANE(q3_k) {
    hk_raw_halves(row, at + HK_RAW_AT(q3_k, d), plane);
    hk_raw_transpose(row, at + HK_RAW_AT(q3_k, scales) - 2, 2, 12, plane + 32);
}
HK_RAW_PLANE(iq4_xs) {
    hk_raw_halves(row, at + HK_RAW_AT(iq4_xs, d), plane);
    hk_raw_halves(row, at + HK_RAW_AT(iq4_xs, scales_h), plane + 32);
    hk_raw_transpose(row, at + HK_RAW_AT(iq4_xs, scales_l), 0, 4, plane + 64);
}
HK_RAW_PLANE(mxfp4) {
    uint64_t x[2] = {0};
    HK_UNROLL
    for (int r = 0; r < 16; r++)
        x[r / 8] |= (uint64_t)row[r][at] << (8 * (r % 8));
    _mm_storeu_si128((__m128i *)plane, _mm_set_epi64x((long long)x[1], (long long)x[0]));
}

typedef void (*hk_gemv_raw_panel)(const uint8_t *const *row, int64_t K, const hk_act *a, int n, const uint8_t *next,
                                  float *out, int64_t stride);

/* Sixteen rows. They are read in 16 places at once, which hardware follows badly; but they are one piece of memory, and
 * so are the next 16 rows at `next`: these are asked for in order, a part with every 32 weights of eight rows. */
HK_INLINE void hk_raw_prefetch(const uint8_t *next, int bytes, int part) {
    HK_UNROLL
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)next + part * bytes + i, _MM_HINT_T1);
}

/* n is a constant, 1 or 2 columns: codes are unpacked once for both. */
#define HK_RAW_KERNEL(NAME, fmt)                                                                                       \
    HK_INLINE void hk_raw_chunk_##fmt(const uint8_t *const *row, int64_t at, const hk_block_act *x,                    \
                                      const int16_t *const *all_sums, const hk_sub_scales *s, int i, int half, int n,  \
                                      vf *t) {                                                                         \
        const hk_quant *q = &hk_quant_##fmt;                                                                           \
        vi w[8];                                                                                                       \
        HK_UNROLL                                                                                                      \
        for (int r = 0; r < 8; r++)                                                                                    \
            w[r] = hk_code_value(q, hk_raw_codes_##fmt((const hk_block_##fmt *)(row[r] + at), i));                     \
        HK_UNROLL                                                                                                      \
        for (int c = 0; c < n; c++) {                                                                                  \
            const int16_t *sums = all_sums[c];                                                                         \
            vi v[8], lower, upper, codes = vi_load(x[c].codes + 32 * i);                                               \
            HK_UNROLL                                                                                                  \
            for (int r = 0; r < 8; r++)                                                                                \
                v[r] = hk_raw_products(q, w[r], codes);                                                                \
            hk_raw_lanes(v, &lower, &upper);                                                                           \
            if (q->block == 256 && q->sub == 16) {                                                                     \
                if (q->zero) {                                                                                         \
                    lower = _mm256_sub_epi32(lower, _mm256_set1_epi32(q->zero * sums[2 * i]));                         \
                    upper = _mm256_sub_epi32(upper, _mm256_set1_epi32(q->zero * sums[2 * i + 1]));                     \
                }                                                                                                      \
                lower = _mm256_mullo_epi32(lower, vi_rows32(s->s[2 * i], half));                                       \
                upper = _mm256_mullo_epi32(upper, vi_rows32(s->s[2 * i + 1], half));                                   \
                t[c] = vf_of_int(vi_add32(lower, upper));                                                              \
                continue;                                                                                              \
            }                                                                                                          \
            lower = vi_add32(lower, upper);                                                                            \
            if (q->zero)                                                                                               \
                lower = _mm256_sub_epi32(lower, _mm256_set1_epi32(q->zero * (sums[2 * i] + sums[2 * i + 1])));         \
            t[c] = vf_of_int(q->block == 256 ? _mm256_mullo_epi32(lower, vi_rows32(s->s[i], half)) : lower);           \
        }                                                                                                              \
    }                                                                                                                  \
    HK_INLINE void hk_raw_columns_##fmt(const uint8_t *const *row, int64_t K, const hk_act *a, int n,                  \
                                        const uint8_t *next, float *out, int64_t stride) {                             \
        const hk_quant *q = &hk_quant_##fmt;                                                                           \
        vf c[2][2] = {{vf_zero(), vf_zero()}, {vf_zero(), vf_zero()}};                                                 \
        for (int64_t b = 0, at = 0; b < K / HK_BLOCK_##NAME; b++, at += HK_BYTES_##NAME) {                             \
            const int16_t *sums[2];                                                                                    \
            float sum[2][16];                                                                                          \
            hk_block_act x[2];                                                                                         \
            _Alignas(32) uint8_t plane[16 * 20];                                                                       \
            hk_sub_scales s;                                                                                           \
            HK_UNROLL                                                                                                  \
            for (int j = 0; j < n; j++) {                                                                              \
                sums[j] = a->sums + j * a->sums_stride + b * (q->block / 16);                                          \
                x[j] = (hk_block_act){a->codes + j * a->codes_stride + b * q->block,                                   \
                                      a->scales + j * a->scales_stride + b * (q->block / 32), sum[j], NULL};           \
                if (q->mins)                                                                                           \
                    hk_scaled_sums(q, x[j].d, sums[j], q->block / 32, sum[j]);                                         \
            }                                                                                                          \
            hk_raw_plane_##fmt(row, at, plane);                                                                        \
            hk_sub_scales_##fmt(plane, &s);                                                                            \
            for (int h = 0; h < 2; h++) {                                                                              \
                vf f[2] = {vf_zero(), vf_zero()}, t[2];                                                                \
                HK_UNROLL                                                                                              \
                for (int i = 0; i < q->block / 32; i++) {                                                              \
                    hk_raw_prefetch(next + 16 * at, q->block == 32 ? 8 * HK_BYTES_##NAME : HK_BYTES_##NAME,            \
                                    q->block == 32 ? h : 8 * h + i);                                                   \
                    hk_raw_chunk_##fmt(row + 8 * h, at, x, sums, &s, i, h, n, t);                                      \
                    HK_UNROLL                                                                                          \
                    for (int j = 0; j < n; j++)                                                                        \
                        f[j] = q->block == 32 ? t[j] : vf_fma(vf_set(x[j].d[i]), t[j], f[j]);                          \
                }                                                                                                      \
                HK_UNROLL                                                                                              \
                for (int j = 0; j < n; j++)                                                                            \
                    c[j][h] = hk_close_block(q, plane, x + j, &s, h, f[j], c[j][h]);                                   \
            }                                                                                                          \
        }                                                                                                              \
        HK_UNROLL                                                                                                      \
        for (int j = 0; j < n; j++) {                                                                                  \
            vf_store(out + j * stride, c[j][0]);                                                                       \
            vf_store(out + j * stride + 8, c[j][1]);                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    static void hk_raw_panel_##fmt(const uint8_t *const *row, int64_t K, const hk_act *a, int n, const uint8_t *next,  \
                                   float *out, int64_t stride) {                                                       \
        if (n == 1)                                                                                                    \
            hk_raw_columns_##fmt(row, K, a, 1, next, out, stride);                                                     \
        else                                                                                                           \
            hk_raw_columns_##fmt(row, K, a, 2, next, out, stride);                                                     \
    }

#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins) HK_RAW_KERNEL(NAME, fmt)
#include "formats/hk_quants.def"
#undef HK_QUANT

/* Rows that do not exist are computed from the last one, and count as zero. */
static void hk_gemv_raw(hk_gemv_raw_panel panel, const uint8_t *raw, int64_t row_bytes, int64_t n_rows, int64_t K,
                        const hk_act *a, int n, float *out, int64_t stride) {
    for (int64_t r0 = 0; r0 < n_rows; r0 += HK_PANEL) {
        const uint8_t *row[HK_PANEL];
        for (int64_t r = 0; r < HK_PANEL; r++)
            row[r] = raw + (r0 + r < n_rows ? r0 + r : n_rows - 1) * row_bytes;
        panel(row, K, a, n, raw + (r0 + HK_PANEL) * row_bytes, out + r0, stride);
        for (int64_t r = n_rows - r0; r < HK_PANEL; r++)
            for (int c = 0; c < n; c++)
                out[c * stride + r0 + r] = 0;
    }
}

#endif
