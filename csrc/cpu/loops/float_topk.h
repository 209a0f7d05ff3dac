/* The k largest of a row, sorted. */
#ifndef HK_FLOAT_TOPK_H
#define HK_FLOAT_TOPK_H

/* The candidates form a heap whose root is the worst: the smallest value and, among equals, the largest index. */
static int hk_topk_worse(float va, int32_t ia, float vb, int32_t ib) { return va < vb || (va == vb && ia > ib); }

/* Puts (v, id) at the root of a heap of n and lets it sink: the worse child rises. */
static void hk_topk_sink(float *vals, int32_t *ids, int64_t n, float v, int32_t id) {
    int64_t i = 0;
    for (int64_t c = 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && hk_topk_worse(vals[c + 1], ids[c + 1], vals[c], ids[c]))
            c++;
        if (!hk_topk_worse(vals[c], ids[c], v, id))
            break;
        vals[i] = vals[c], ids[i] = ids[c];
        i = c;
    }
    vals[i] = v, ids[i] = id;
}

static void hk_topk_rise(float *vals, int32_t *ids, int64_t i, float v, int32_t id) {
    for (; i > 0 && hk_topk_worse(v, id, vals[(i - 1) / 2], ids[(i - 1) / 2]); i = (i - 1) / 2)
        vals[i] = vals[(i - 1) / 2], ids[i] = ids[(i - 1) / 2];
    vals[i] = v, ids[i] = id;
}

/* Offers x[at, end) to the heap of *count <= k. Elements come in index order, so an equal one that comes later loses.
 */
static void hk_topk_offer(const float *x, int64_t at, int64_t end, int64_t k, float floor, int32_t *ids, float *vals,
                          int64_t *count) {
    for (; at < end; at += 16) {
        v16f v = end - at < 16 ? v_load_tail(x + at, end - at, -INFINITY) : v_load(x + at);
        float need = *count < k ? floor : vals[0];
        uint32_t hit = ~m_bits(v_lt(v, v_set1(need))) & 0xffff;
        for (int64_t i = at; hit && i < end; i++, hit >>= 1) {
            if (!(hit & 1))
                continue;
            if (*count < k) {
                hk_topk_rise(vals, ids, (*count)++, x[i], (int32_t)i);
            } else if (x[i] > vals[0])
                hk_topk_sink(vals, ids, k, x[i], (int32_t)i);
        }
    }
}

#define HK_TOPK_BLOCKS 1024

/* The k-th largest block maximum bounds the k-th largest element from below: only blocks that reach it are read twice.
 * A heap over the whole row would pass a slowly rising row through the heap element by element. */
static int64_t hk_topk(const float *x, int64_t n, int64_t k, int32_t *ids, float *vals, int *bad) {
    float maxima[HK_TOPK_BLOCKS], floor = -INFINITY, best = -INFINITY;
    int64_t block = (n + 16 * HK_TOPK_BLOCKS - 1) / (16 * HK_TOPK_BLOCKS) * 16, blocks = 0, count = 0;
    v16m nan = m_none();
    k = k < n ? k : n;
    for (int64_t at = 0; at < n; at += block) {
        maxima[blocks] = hk_row_max(x + at, n - at < block ? n - at : block, &nan);
        best = maxima[blocks] > best ? maxima[blocks] : best;
        blocks++;
    }
    *bad = m_bits(nan) != 0 || best == -INFINITY;
    if (*bad || k <= 0)
        return 0;
    if (k <= blocks) {
        hk_topk_offer(maxima, 0, blocks, k, -INFINITY, ids, vals, &count);
        floor = vals[0];
        count = 0;
    }
    for (int64_t b = 0; b < blocks; b++)
        if (maxima[b] >= floor)
            hk_topk_offer(x, b * block, n - b * block < block ? n : (b + 1) * block, k, floor, ids, vals, &count);
    for (int64_t left = count - 1; left > 0; left--) {
        float v = vals[left];
        int32_t id = ids[left];
        vals[left] = vals[0], ids[left] = ids[0];
        hk_topk_sink(vals, ids, left, v, id);
    }
    return count;
}

#endif
