/* The packed layout: 16 rows side by side, so that a vector lane is a row.
 *
 * A packed matrix is a sequence of panels of HK_PANEL = 16 rows (the last one padded with zero bytes, which decode to
 * zero or are never stored). The product of a panel with a column then needs no horizontal sum, every scale is a
 * vector, and one 64-byte line feeds one AVX-512 register or two AVX2 registers. The same bytes serve every
 * instruction set and can be read by a device kernel. No format grows: a panel has exactly 16 times the bytes of a row,
 * plus the padding of the scale plane to 64 bytes.
 *
 * panel = scale plane | code plane
 *   scale plane: for each block b along the row: 16 rows x scale_bytes, as below; its total is padded to 64 bytes
 *   code plane:  for each block b: the codes, as below (offset of block b: b * 16 * (bytes - scale_bytes))
 *
 * Codes. A k-group is 4 consecutive weights of one row (k = 4g .. 4g+3) as 4 bytes; a group vector is the 16 rows'
 * k-group g, 64 bytes: byte 4*r + i is row r, weight 4g + i. Each plane packs several group vectors into one
 * 64-byte vector bytewise:
 *   8 bits (Q8_0)                vector v         = group v                                          (two's complement)
 *   4 bits (Q4_*, IQ4_*, MXFP4)  vector v         = group 2v in the low, group 2v+1 in the high nibble
 *   2 bits (Q2_K)                vector v         = groups 4v .. 4v+3 in bits 0-1, 2-3, 4-5, 6-7
 *   1 bit                        vector v         = groups 8v .. 8v+7 in bits 0 .. 7
 * Formats with split codes store, within each block, all vectors of the low plane, then all of the high plane:
 *   Q5_0, Q5_1, Q5_K             4-bit plane, then 1-bit plane (code = low | high << 4)
 *   Q6_K                         4-bit plane, then 2-bit plane (code = low | high << 4)
 *   Q3_K                         2-bit plane, then 1-bit plane (code = low | high << 2)
 * The value of a code before scaling: Q4_0 q-8, Q5_0 q-16, Q3_K q-4, Q6_K q-32, Q2_K/Q4_1/Q4_K/Q5_1/Q5_K q, Q8_0 int8,
 * IQ4_* and MXFP4 the table of the format at q.
 *
 * Scale plane of one block, each array over the 16 rows (row r at index r), fp16 unless said otherwise:
 *   Q4_0, Q5_0, Q8_0, IQ4_NL     d[16]
 *   Q4_1, Q5_1                   d[16], m[16]
 *   MXFP4                        e[16] (uint8, E8M0)
 *   Q4_K, Q5_K                   d[16], dmin[16], s[12][16] (byte i of the file's 12 scale bytes, for 16 rows)
 *   Q2_K                         d[16], dmin[16], s[16][16] (byte j: scale in the low, min in the high nibble of
 * sub-block j) Q3_K                         d[16], s[12][16] (byte i of the file's 12 scale bytes) Q6_K d[16],
 * s[16][16] (int8 scale of sub-block j) IQ4_XS                       d[16], h[16] (uint16 scales_h), s[4][16] (byte i
 * of scales_l)
 *
 * Float formats have no scale plane: F32, F16 and BF16 panels hold, for each k, the 16 rows' values (64 or 32 bytes).
 *
 * Arithmetic, the same on every instruction set so that results agree to the bit:
 *   blocks of 256: per 32 weights i, isum = the sum of scale_j * dot_j over their sub-blocks, exact (at most 24 bits,
 *     zero points folded in by the sums of the activation), F = fma(d_a[i], (float)isum, F) from +0; with mins: per
 *     sub-block j, s_j = d_a[i] * (float)asum_j, M = fma(min_j, s_j, M) from +0; then per block C = fma(d_w, F, C), and
 *     C = fma(-dmin_w, M, C).
 *   blocks of 32: isum exact in int32 (zero point folded in), f = d_w * d_a, C = fma(f, (float)isum, C);
 *     Q4_1, Q5_1: s = d_a * (float)asum, then C = fma(m_w, s, C).
 *   Float formats: C = fma(w_k, x_k, C) for k = 0, 1, ...
 * C starts at +0 and blocks are taken in ascending order, so a column's result depends neither on the other columns
 * nor on the number of threads.
 */
#ifndef HK_PACKED_H
#define HK_PACKED_H

#include "hk_formats.h"

#define HK_PANEL 16

/* Bytes of the scale plane of a panel with `cols` columns, padded to 64. */
static inline int64_t hk_scale_plane_bytes(hk_type t, int64_t cols) {
    int64_t n = cols / hk_types[t].block * HK_PANEL * hk_types[t].scale_bytes;
    return (n + 63) & ~(int64_t)63;
}

/* Bytes of one panel, a multiple of 16 (of 64 for most shapes). */
static inline int64_t hk_panel_bytes(hk_type t, int64_t cols) {
    int64_t codes = cols / hk_types[t].block * HK_PANEL * (hk_types[t].bytes - hk_types[t].scale_bytes);
    return hk_scale_plane_bytes(t, cols) + ((codes + 63) & ~(int64_t)63);
}

/* Packs rows [16*p0, 16*p1) of a matrix of `rows` raw GGUF rows (row_bytes apart) into panels p0..p1 of dst (the
 * start of the packed matrix, 64-byte aligned). */
void hk_pack(hk_type t, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, int64_t p0, int64_t p1,
             uint8_t *dst);

#endif
