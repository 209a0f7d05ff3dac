/* Attention of up to n_q query rows of one KV head to one page, as one step of an online softmax.
 *
 * Per row, in this order whatever the other rows are: score of a token = fma chain over the head dimensions; soft cap;
 * the maximum over [lo, hi); p = exp(s - max), summed in 16 lanes over ascending tokens, then v_hsum; l and acc scaled
 * by exp(old max - new max) when the maximum moved; acc = fma chain over ascending tokens.
 *
 * Memory of tokens that a row does not see never reaches it, be it NaN: in scores a token is a lane, replaced by -inf
 * before anything crosses lanes; in sums the token loop itself ends at the row's range (0 * NaN would be NaN).
 */
#ifndef HK_FLOAT_ATTEND_H
#define HK_FLOAT_ATTEND_H

#define HK_ATTEND_ROWS 128 /* rows per pass: their scores take 64 KB of the scratch, a tile of K or V the rest */

typedef struct hk_attend {
    int kv;
    int64_t dim_k, dim_v;
    const float *q;
    int64_t q_stride, n;
    const int32_t *lo, *hi;
    float cap, *m, *l, *acc;
    int64_t acc_stride;
    float *scores;                       /* [n][HK_PAGE] */
    float *tile;                         /* K or V as floats */
    int64_t first;                       /* token at which the operand V starts */
    const uint16_t *k_scales, *v_scales; /* of quantised caches, else NULL */
    const uint8_t *next;                 /* K plane of the page that follows, or NULL */
} hk_attend;

HK_INLINE v16f hk_mask_vec(v16f s, int64_t lo, int64_t hi) {
    return lo <= 0 && hi >= 16 ? s : v_select(m_range(lo, hi), s, v_set1(-INFINITY));
}

/* Scores -> probabilities in place. A row whose scores are all -inf takes 0 as its maximum: p = 0, but a NaN stays. */
static void hk_attend_softmax(const hk_attend *w, int64_t r) {
    int64_t lo = w->lo[r], hi = w->hi[r], v0 = lo / 16, v1 = (hi + 15) / 16;
    float *s = w->scores + r * HK_PAGE, *acc = w->acc + r * w->acc_stride, old = w->m[r];
    v16f top = v_set1(old), sum = v_zero(), cap = v_set1(w->cap);
    for (int64_t v = v0; v < v1; v++) {
        v16f x = v_load(s + 16 * v);
        if (w->cap > 0)
            x = v_mul(cap, v_tanh(v_div(x, cap)));
        x = hk_mask_vec(x, lo - 16 * v, hi - 16 * v);
        v_store(s + 16 * v, x);
        top = v_max(x, top);
    }
    float max = v_hmax(top);
    v16f base = v_set1(max == -INFINITY ? 0.0f : max);
    for (int64_t v = v0; v < v1; v++) {
        v16f p = v_exp(v_sub(v_load(s + 16 * v), base));
        v_store(s + 16 * v, p);
        sum = v_add(sum, p);
    }
    if (max > old) {
        v16f scale = v_exp(v_sub(v_set1(old), base));
        float lane[16];
        v_store(lane, scale);
        HK_MAP(w->dim_v, acc, acc, acc, v_mul(vx, scale));
        w->l[r] *= lane[0];
        w->m[r] = max;
    }
    w->l[r] += v_hsum(sum);
}

/* Scores of rows from quantised K: a block of 32 dimensions is a chain of its own over the codes, which then meets its
 * tokens' scales. Vectors from v0 on. */
static void hk_attend_scaled(const hk_attend *w, hk_b k, int64_t v0, int64_t n_vecs) {
    float part[HK_TILE_ROWS * HK_PAGE];
    for (int64_t r = 0; r < w->n; r += HK_TILE_ROWS) {
        const int64_t n = w->n - r < HK_TILE_ROWS ? w->n - r : HK_TILE_ROWS;
        float *c = w->scores + r * HK_PAGE + 16 * v0;
        for (int64_t d = 0; d < w->dim_k; d += 32) {
            const uint16_t *scales = w->k_scales + d / 32 * HK_PAGE + 16 * v0;
            hk_b b = k;
            b.base += (k.kind == HK_B_N4 ? d / 2 : d) * k.k * hk_b_size(k.kind);
            b.ahead += d * n_vecs * k.ahead_step;
            hk_outer(b, n_vecs, w->q + r * w->q_stride + d, w->q_stride, n, 32, part, HK_PAGE, 0);
            for (int64_t v = 0; v < n_vecs; v++) {
                const v16f scale = v_load_f16(scales + 16 * v);
                for (int64_t i = 0; i < n; i++) {
                    float *o = c + i * HK_PAGE + 16 * v;
                    v_store(o, v_fma(v_load(part + i * HK_PAGE + 16 * v), scale, d ? v_load(o) : v_zero()));
                }
            }
        }
    }
}

/* acc += P V with V's scales in P: the scale of a token goes with its probability, once for 32 dimensions. */
static void hk_attend_sum_scaled(const hk_attend *w, hk_b v, int64_t r, int64_t n, int64_t t0, int64_t t1) {
    const int64_t blocks = w->dim_v / 32;
    float p[HK_TILE_ROWS * HK_PAGE], all[HK_PAGE * 28], scale[HK_PAGE]; /* 28 blocks are 896 dimensions */
    for (int64_t i = t0 * blocks / 16 * 16; i < t1 * blocks; i += 16)
        v_store(all + i, v_load_f16(w->v_scales + i));
    for (int64_t b = 0; b < blocks; b++) {
        hk_b codes = v;
        codes.base += 2 * b * v.v * hk_b_size(v.kind);
        codes.ahead += 2 * b * (t1 - t0) * v.ahead_step;
        for (int64_t t = t0; t < t1; t++)
            scale[t] = all[t * blocks + b];
        for (int64_t i = r; i < r + n; i += HK_TILE_ROWS) {
            const int64_t m = r + n - i < HK_TILE_ROWS ? r + n - i : HK_TILE_ROWS;
            for (int64_t j = 0; j < m; j++)
                HK_MAP(t1 - t0, w->scores + (i + j) * HK_PAGE + t0, scale + t0, p + j * HK_PAGE, v_mul(vx, vz));
            hk_outer(codes, 2, p, HK_PAGE, m, t1 - t0, w->acc + i * w->acc_stride + 32 * b, w->acc_stride, 1);
        }
    }
}

/* acc += P V for rows [r, r + n) and tokens [t0, t1); v starts at token w->first. */
static void hk_attend_sum(const hk_attend *w, hk_b v, int64_t r, int64_t n, int64_t t0, int64_t t1) {
    if (t1 <= t0)
        return;
    const float *p = w->scores + r * HK_PAGE + t0;
    float *acc = w->acc + r * w->acc_stride;
    int64_t full = w->dim_v / 16, rest = w->dim_v % 16;
    v.base += (t0 - w->first) * v.k * hk_b_size(v.kind);
    if (w->v_scales) {
        hk_attend_sum_scaled(w, v, r, n, t0, t1);
        return;
    }
    if (full)
        hk_outer(v, full, p, HK_PAGE, n, t1 - t0, acc, w->acc_stride, 1);
    if (rest) {
        float tail[HK_ATTEND_ROWS][16];
        v.base += full * v.v * hk_b_size(v.kind);
        for (int64_t i = 0; i < n; i++)
            v_store(tail[i], v_load_tail(acc + i * w->acc_stride + 16 * full, rest, 0.0f));
        hk_outer(v, 1, p, HK_PAGE, n, t1 - t0, tail[0], 16, 1);
        for (int64_t i = 0; i < n; i++)
            v_store_tail(acc + i * w->acc_stride + 16 * full, rest, v_load(tail[i]));
    }
}

/* Rows with the same range go together; else tiles share the range that all of their rows see, and each row does what
 * it sees before and after it alone: a causal edge costs each row a few tokens, and order stays ascending. */
static void hk_attend_sums(const hk_attend *w, hk_b v) {
    int same = 1;
    for (int64_t r = 1; r < w->n; r++)
        same &= w->lo[r] == w->lo[0] && w->hi[r] == w->hi[0];
    int64_t step = same ? w->n : HK_TILE_ROWS;
    for (int64_t r = 0; r < w->n; r += step) {
        int64_t n = w->n - r < step ? w->n - r : step, first = w->lo[r], last = w->hi[r];
        for (int64_t i = r; i < r + n; i++) {
            first = w->lo[i] > first ? w->lo[i] : first;
            last = w->hi[i] < last ? w->hi[i] : last;
        }
        if (first >= last) {
            for (int64_t i = r; i < r + n; i++)
                hk_attend_sum(w, v, i, 1, w->lo[i], w->hi[i]);
            continue;
        }
        for (int64_t i = r; i < r + n; i++)
            hk_attend_sum(w, v, i, 1, w->lo[i], first);
        hk_attend_sum(w, v, r, n, first, last);
        for (int64_t i = r; i < r + n; i++)
            hk_attend_sum(w, v, i, 1, last, w->hi[i]);
    }
}

/* A plane of `bytes` bytes is fetched while b is multiplied in n steps. */
static void hk_fetch_ahead(hk_b *b, const uint8_t *plane, int64_t bytes, int64_t n) {
    if (!n)
        return;
    b->ahead = plane;
    b->ahead_step = (bytes + n - 1) / n;
}

/* A single tile of rows reads the planes as they are, converted in registers, and fetches the next page meanwhile: of a
 * cache in memory that doubles what a thread reads (f16, 4 heads of 64, Zen 3: 7.7 to 13.5 GB/s, 15.5 where it was in
 * the caches already). Quantised planes need as many operations to become floats as to be multiplied: 5.2 GB/s of
 * q8_0, 2.5 of q4_0, so a page takes longer than one of f16. Staging them as floats, in pieces of 64 steps, was no
 * faster (4.5, 2.2). For more, the seen part of the page is turned to floats once, in panels of 16 lanes: a plane's own
 * stride of 128 tokens would fall on 1/8 of the cache's sets.
 */
static void hk_attend_rows(hk_attend *w, const void *k_plane, const void *v_plane) {
    int64_t first = HK_PAGE, last = 0;
    for (int64_t r = 0; r < w->n; r++)
        if (w->lo[r] < w->hi[r]) {
            first = w->lo[r] < first ? w->lo[r] : first;
            last = w->hi[r] > last ? w->hi[r] : last;
        }
    if (first >= last)
        return;
    int64_t v0 = first / 16, v1 = (last + 15) / 16;
    int direct = w->n <= HK_TILE_ROWS;
    hk_b k = hk_kv_view_k(w->kv, k_plane), v = hk_kv_view_v(w->kv, v_plane, w->dim_v);
    if (direct) {
        k.base += 16 * v0 * hk_b_size(k.kind);
        if (w->next) {
            const int64_t bytes = (const uint8_t *)v_plane - (const uint8_t *)k_plane;
            hk_fetch_ahead(&k, w->next, bytes, (v1 - v0) * w->dim_k);
            hk_fetch_ahead(&v, w->next + bytes, hk_kv_v_plane_bytes(w->kv, w->dim_v), w->dim_v / 16 * (last - first));
        }
    } else {
        hk_b_tile(k, v0, v1, 0, w->dim_k, w->tile, w->dim_k);
        k = (hk_b){(const uint8_t *)w->tile, 16, 16 * w->dim_k, HK_B_F32, 0, 0};
    }
    if (w->k_scales)
        hk_attend_scaled(w, k, v0, v1 - v0);
    else
        hk_outer(k, v1 - v0, w->q, w->q_stride, w->n, w->dim_k, w->scores + 16 * v0, HK_PAGE, 0);
    for (int64_t r = 0; r < w->n; r++)
        if (w->lo[r] < w->hi[r])
            hk_attend_softmax(w, r);
    w->first = 0;
    if (!direct || w->dim_v % 16) {
        w->first = first;
        hk_kv_tile_v(w->kv, v_plane, w->dim_v, first, last, w->tile);
        v = (hk_b){(const uint8_t *)w->tile, 16, 16 * HK_PAGE, HK_B_F32, 0, 0};
    }
    hk_attend_sums(w, v);
}

static void hk_attend_page(int kv, const void *k_plane, const void *v_plane, int64_t dim_k, int64_t dim_v,
                           const float *q, int64_t q_stride, int64_t n_q, const int32_t *lo, const int32_t *hi,
                           float cap, float *m, float *l, float *acc, int64_t acc_stride, const void *next,
                           void *scratch) {
    float *scores = scratch;
    for (int64_t r = 0; r < n_q; r += HK_ATTEND_ROWS) {
        int64_t n = n_q - r < HK_ATTEND_ROWS ? n_q - r : HK_ATTEND_ROWS;
        hk_attend w = {.kv = kv,
                       .dim_k = dim_k,
                       .dim_v = dim_v,
                       .n = n,
                       .q = q + r * q_stride,
                       .q_stride = q_stride,
                       .lo = lo + r,
                       .hi = hi + r,
                       .cap = cap,
                       .m = m + r,
                       .l = l + r,
                       .acc = acc + r * acc_stride,
                       .acc_stride = acc_stride,
                       .scores = scores,
                       .k_scales = hk_kv_has_scales(kv) ? hk_kv_scales(kv, k_plane, dim_k) : NULL,
                       .v_scales = hk_kv_has_scales(kv) ? hk_kv_scales(kv, v_plane, dim_v) : NULL,
                       .next = next,
                       .tile = scores + HK_ATTEND_ROWS * HK_PAGE};
        hk_attend_rows(&w, k_plane, v_plane);
    }
}

#endif
