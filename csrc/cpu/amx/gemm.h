/* Matrix times many columns with tiles.
 *
 *   for each block of 8 panels, for each block of 512 columns, for each piece of 256 weights:
 *     stage the panels (L2) and the columns' scales and sums
 *     for each two panels, for each 16 columns, for each half of the piece: a unit of products
 *
 * A unit leaves int32 results in memory, 16 x 16 for every 32 weights; later the vector units scale these into float
 * sums (`close`). That is what limits the kernel: 3 or 4 operations and 3 loads for each vector of results, of which a
 * tile product makes one in a cycle. Both go on at once, which takes some care: results stay in the tiles for a step,
 * until they are ready, and in memory for another before they are read.
 *
 * The sums of a block of columns stay in scratch memory: rows of the output may lie a power of two apart, and would
 * fall into few cache sets. Pieces ascend and each block closes with the steps of hk_packed.h: the bits are those of
 * the matrix-vector product.
 *
 * Why it is far from the peak: 48 operations of the vector units on registers take 28 cycles, and 50 as soon as one
 * tile instruction stands among them, be it a product (16 alone), a store (16) or a zeroing; a product behind a zeroing
 * takes 54. Sums of 16 x 16 x 32 products are 48 operations, minima 16 more. To do better the sums must become fewer,
 * and activations with one scale per 32 leave none out.
 *
 * What lost (cycles for 16 x 16 x 32 products, Q4_K, one core): closing a unit after its products, or after all four
 * tiles of a step were stored: 48 for the tiles and 41 for the sums became 91, nothing overlapped (today, 16 threads: 4
 * % slower by two tiles, 15 % by four). A load of zeros in place of the zeroing: 10 % slower. The panels of a block in
 * the inner loop, columns in the outer: weights then come from the second cache for every product. Activations with one
 * scale per 256 let products run for 256 weights with scales in the weights, and were 1.5 to 3 times as fast; the
 * format of the inputs (hk_types.def) is worth more than that. */
#ifndef HK_AMX_GEMM_H
#define HK_AMX_GEMM_H

#include "cpu/amx/stage.h"
#include "cpu/amx/tile.h"

enum { HK_AMX_PANELS = 8, HK_AMX_COLUMNS = 512, HK_GROUP = 16, HK_HALF = HK_N32 / 2 };

typedef float hk_row16[HK_PANEL];

/* Results of two units in turn, per 32 weights and operand. A load that has the low 12 bits of its address in common
 * with a store under way waits for it: one unit has the lower, the other the upper half of each page. */
typedef int32_t hk_results[HK_HALF][2][2][HK_GROUP][HK_PANEL];
enum { HK_BLOCK_RESULTS = 2 * 2 * HK_GROUP * HK_PANEL };

/* Products whose results wait to be closed: n columns with two panels, or one, over half of a piece, of which n32 * 32
 * weights exist (at the end of a row; the scales of others are zero). */
typedef struct hk_unit {
    const hk_amx_panel *w;
    const hk_amx_column *a;
    hk_row16 *sums[2]; /* per panel */
    int n_panels, n, half, n32, turn;
} hk_unit;

typedef struct hk_amx_scratch {
    _Alignas(64) hk_row16 sums[HK_AMX_PANELS][HK_AMX_COLUMNS];
    hk_amx_panel panels[HK_AMX_PANELS];
    hk_amx_column columns[HK_AMX_COLUMNS];
    _Alignas(64) hk_results results;
    hk_row16 partial[2][HK_GROUP]; /* sums of the first half of a block of 256 */
} hk_amx_scratch;
_Static_assert(sizeof(hk_amx_scratch) <= HK_GEMM_SCRATCH, "staging must fit the scratch memory");

/* What is under way: the two units to be closed, and products whose results are in tiles. */
typedef struct hk_pipeline {
    hk_unit before, older;
    hk_products in_tiles;
} hk_pipeline;

/* Columns t0 .. t1 of one panel, closed over half of a piece. */
typedef struct hk_closing {
    const hk_amx_panel *w;
    const hk_amx_column *a;
    hk_row16 *sums, *partial;
    const int32_t *r; /* results of the first block and this operand */
    vf scale[HK_HALF], mins[HK_PIECE / 16], d[HK_HALF], m[HK_HALF];
} hk_closing;

HK_INLINE void hk_closing_of(const hk_quant *q, const hk_unit *u, int h, int half, hk_amx_scratch *s, hk_closing *o) {
    const hk_amx_panel *w = u->w + h;
    o->a = u->a;
    o->sums = u->sums[h];
    o->partial = s->partial[h];
    o->r = s->results[0][u->turn][h][0];
    const int n_scales = q->block == 32 ? HK_HALF : 1, first = q->block == 32 ? HK_HALF * half : 0;
    const int n_mins = q->block == 256 && q->mins && half ? HK_PIECE / q->sub : 0;
    HK_UNROLL
    for (int j = 0; j < n_scales; j++) {
        o->d[j] = w->d[first + j];
        o->m[j] = q->mins ? w->m[first + j] : vf_zero();
    }
    HK_UNROLL
    for (int j = 0; j < HK_HALF; j++)
        o->scale[j] = q->block == 32 || hk_is_folded(q) ? vf_zero() : w->scale[HK_HALF * half + j];
    HK_UNROLL
    for (int j = 0; j < n_mins; j++)
        o->mins[j] = w->mins[j];
}

/* Column t: half of a block of 256. */
HK_INLINE void hk_close_256(const hk_quant *q, const hk_closing *o, int half, int t) {
    const hk_amx_column *a = o->a + t;
    vf f = half ? vf_load(o->partial[t]) : vf_zero(), g = vf_zero(), x;
    HK_UNROLL
    for (int j = 0; j < HK_HALF; j++) {
        const int32_t *r = o->r + HK_BLOCK_RESULTS * j + HK_PANEL * t;
        vi sum = vi_load(r);
        if (hk_is_halved(q))
            sum = vi_add32(vi_shl32(sum, 8), vi_load(r + HK_GROUP * HK_PANEL));
        x = vf_of_int(sum);
        if (!hk_is_folded(q))
            x = vf_mul(x, o->scale[j]);
        vf da = vf_set(a->d[HK_HALF * half + j]);
        f = hk_is_negated(q) ? vf_fnma(da, x, f) : vf_fma(da, x, f);
    }
    if (!half) {
        vf_store(o->partial[t], f);
        return;
    }
    const int n_mins = q->mins ? HK_PIECE / q->sub : 0;
    HK_UNROLL
    for (int j = 0; j < n_mins; j++)
        g = vf_fma(o->mins[j], vf_set(a->s[j]), g);
    x = vf_fma(o->d[0], f, vf_load(o->sums[t]));
    vf_store(o->sums[t], q->mins ? vf_fnma(o->m[0], g, x) : x);
}

/* Column t: four blocks of 32. */
HK_INLINE void hk_close_32(const hk_quant *q, const hk_closing *o, int half, int t) {
    const hk_amx_column *a = o->a + t;
    const int j0 = HK_HALF * half;
    vf x = vf_load(o->sums[t]);
    HK_UNROLL
    for (int j = 0; j < HK_HALF; j++) {
        x = vf_fma(vf_mul(o->d[j], vf_set(a->d[j0 + j])),
                   vf_of_int(vi_load(o->r + HK_BLOCK_RESULTS * j + HK_PANEL * t)), x);
        if (q->mins)
            x = vf_fma(o->m[j], vf_set(a->s[j0 + j]), x);
    }
    vf_store(o->sums[t], x);
}

HK_INLINE void hk_close_columns(const hk_quant *q, const hk_closing *o, int half, int t0, int t1) {
    for (int t = t0; t < t1; t++) {
        if (q->block == 256)
            hk_close_256(q, o, half, t);
        else
            hk_close_32(q, o, half, t);
    }
}

/* Starts products, stores those before, and closes `part` of a unit: one of its panels, or half of the columns of its
 * only one. A tile at a time: 16 stores fill the processor's queue of them, and 64 would stop everything behind. */
HK_INLINE void hk_step_half(const hk_quant *q, hk_pipeline *l, const hk_products *next, const hk_unit *u, int part,
                            int half, hk_amx_scratch *s) {
    const int h = hk_is_halved(q) ? 0 : part, quarter = hk_is_halved(q) ? HK_GROUP / 8 : HK_GROUP / 4;
    const int t0 = hk_is_halved(q) ? HK_GROUP / 2 * part : 0, n = h < u->n_panels ? u->n : 0;
    hk_closing o;
    hk_closing_of(q, u, h, half, s, &o);
#define HK_PART(R)                                                                                                     \
    hk_tiles_##R(&l->in_tiles, next, hk_is_halved(q));                                                                 \
    {                                                                                                                  \
        const int first = t0 + R * quarter;                                                                            \
        if (n >= first + quarter)                                                                                      \
            hk_close_columns(q, &o, half, first, first + quarter);                                                     \
        else                                                                                                           \
            hk_close_columns(q, &o, half, first, n);                                                                   \
    }
    HK_PART(0)
    HK_PART(1)
    HK_PART(2)
    HK_PART(3)
#undef HK_PART
    l->in_tiles = *next;
}

typedef void (*hk_step_fn)(hk_pipeline *l, const hk_products *next, const hk_unit *u, int part, hk_amx_scratch *s);

HK_INLINE void hk_step(const hk_quant *q, hk_pipeline *l, const hk_products *next, const hk_unit *u, int part,
                       hk_amx_scratch *s) {
    if (u->half)
        hk_step_half(q, l, next, u, part, 1, s);
    else
        hk_step_half(q, l, next, u, part, 0, s);
}

/* Multiplies a unit and closes what is due, in two steps of two blocks each. codes: column 0 at the first weight. */
HK_INLINE void hk_run_unit(const hk_quant *q, hk_step_fn step_fn, const hk_unit *u, const int8_t *codes, int64_t stride,
                           hk_pipeline *l, hk_amx_scratch *s) {
    const int g0 = 8 * HK_HALF * u->half; /* k-group */
    const uint8_t *b0 = u->w->codes[0][g0];
    const uint8_t *b1 = hk_is_halved(q) ? u->w->codes[1][g0] : u->w[u->n_panels - 1].codes[0][g0];
    for (int step = 0; step < 2; step++) {
        const int left = u->n32 - 2 * step;
        hk_products next = {codes + 64 * step,
                            stride,
                            {b0 + 1024 * step, b1 + 1024 * step},
                            s->results[2 * step][u->turn][0][0],
                            left > 1   ? 2
                            : left > 0 ? 1
                                       : 0};
        step_fn(l, &next, step == 0 ? &l->older : &l->before, 1 - step, s);
    }
    l->older = l->before;
    l->before = *u;
}

/* Nothing under way: units of no columns. */
HK_INLINE hk_pipeline hk_idle(const hk_amx_scratch *s) {
    return (hk_pipeline){.before = {.w = s->panels}, .older = {.w = s->panels}};
}

/* Ends what is under way. */
HK_INLINE void hk_drain(hk_step_fn step, hk_pipeline *l, hk_amx_scratch *s) {
    const hk_products none = {.n_blocks = 0};
    step(l, &none, &l->older, 1, s);
    step(l, &none, &l->before, 0, s);
    step(l, &none, &l->before, 1, s);
}

/* n columns from column `at` of the staged ones on, with n_panels (1 or 2) staged panels from p on, over a piece. */
HK_INLINE void hk_run_group(const hk_quant *q, hk_step_fn step, const int8_t *codes, int64_t stride, int p,
                            int n_panels, int n32, int n, hk_amx_scratch *s, int64_t at, hk_pipeline *l) {
    for (int half = 0; HK_HALF * half < n32; half++) {
        for (int i = 0; i < HK_GROUP; i++) /* of the next columns; reading past the last is no harm */
            for (int x = 0; x < HK_PIECE / 2; x += 64)
                __builtin_prefetch(codes + (HK_GROUP + i) * stride + HK_PIECE / 2 * half + x);
        const int left = n32 - HK_HALF * half;
        hk_unit u = {.w = s->panels + p,
                     .a = s->columns + at,
                     .sums = {s->sums[p] + at, s->sums[p + n_panels - 1] + at},
                     .n_panels = n_panels,
                     .n = n,
                     .half = half,
                     .n32 = left < HK_HALF ? left : HK_HALF,
                     .turn = 1 - l->before.turn};
        hk_run_unit(q, step, &u, codes + HK_PIECE / 2 * half, stride, l, s);
    }
}

/* Stages n_panels panels and n columns from column n0 on for the piece at k. */
HK_INLINE void hk_stage_piece(const hk_quant *q, hk_type t, hk_sub_scales_fn sub_scales, const uint8_t *panels,
                              int n_panels, int64_t K, int64_t k, int n32, const hk_act *a, int64_t n0, int64_t n,
                              hk_amx_scratch *s) {
    const int64_t panel_bytes = hk_panel_bytes(t, K), block = k / q->block;
    const uint8_t *plane = panels + block * 16 * q->scale_bytes;
    const uint8_t *codes = panels + hk_scale_plane_bytes(t, K) + block * 16 * q->code_bytes;
    for (int p = 0; p < n_panels; p++)
        hk_stage_panel(q, sub_scales, plane + p * panel_bytes, codes + p * panel_bytes, n32, s->panels + p);
    for (int64_t i = 0; i < n; i++)
        hk_stage_column(q, a, n0 + i, k, n32, s->columns + i);
}

HK_INLINE void hk_amx_gemm(const hk_quant *q, hk_type t, hk_step_fn step, hk_sub_scales_fn sub_scales,
                           const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a, int64_t n_cols,
                           float *out, int64_t stride, hk_amx_scratch *s) {
    int configured = 0;
    for (int64_t p0 = 0; p0 < n_panels; p0 += HK_AMX_PANELS)
        for (int64_t n0 = 0; n0 < n_cols; n0 += HK_AMX_COLUMNS) {
            const int64_t n = n_cols - n0 < HK_AMX_COLUMNS ? n_cols - n0 : HK_AMX_COLUMNS;
            const int np = n_panels - p0 < HK_AMX_PANELS ? (int)(n_panels - p0) : HK_AMX_PANELS;
            for (int p = 0; p < np; p++)
                memset(s->sums[p], 0, (size_t)n * sizeof(hk_row16));
            for (int64_t k = 0; k < K; k += HK_PIECE) {
                const int n32 = K - k < HK_PIECE ? (int)(K - k) / 32 : HK_N32;
                hk_pipeline l = hk_idle(s);
                hk_stage_piece(q, t, sub_scales, panels + p0 * hk_panel_bytes(t, K), np, K, k, n32, a, n0, n, s);
                const int together = hk_is_halved(q) ? 1 : 2;
                for (int p = 0; p < np; p += together)
                    for (int64_t i = 0; i < n; i += HK_GROUP) {
                        const int in_group = n - i < HK_GROUP ? (int)(n - i) : HK_GROUP;
                        const int8_t *codes = a->codes + (n0 + i) * a->codes_stride + k;
                        if (in_group != configured) {
                            hk_drain(step, &l, s); /* configuring clears the tiles */
                            l = hk_idle(s);
                            hk_tiles_configure(configured = in_group, 32);
                        }
                        hk_run_group(q, step, codes, a->codes_stride, p, np - p < together ? 1 : together, n32,
                                     in_group, s, i, &l);
                    }
                hk_drain(step, &l, s);
            }
            for (int64_t i = 0; i < n; i++)
                for (int p = 0; p < np; p++)
                    vf_store(out + (n0 + i) * stride + (p0 + p) * HK_PANEL, vf_load(s->sums[p][i]));
        }
    _tile_release();
}

#endif
