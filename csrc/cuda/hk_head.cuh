/* Heads of queries, keys and values: norm, rotation, store. A warp has one at a time. */
#ifndef HK_HEAD_CUH
#define HK_HEAD_CUH

#include "hk_cache.cuh"

#define HK_MAX_HEAD 256

template <int TYPE>
HK_FN void store_token(const hk_heads_args &a, int t, int head, int store, int dim, const float *x, int lane) {
    int position = a.step.positions[t];
    int page = a.step.pages[a.step.sequences[t] * a.step.page_stride + position / HK_PAGE];
    store_head<TYPE>(plane_of<TYPE>(a.cache, page, head, store == 2), dim, position % HK_PAGE, x, lane);
}
/* Key or value y of token t into the cache. */
HK_FN void store_token(const hk_heads_args &a, int t, int head, const hk_stream &s, const float *y, int lane) {
    if (a.cache.type == HK_CACHE_F16)
        store_token<HK_CACHE_F16>(a, t, head, s.store, s.dim, y, lane);
    if (a.cache.type == HK_CACHE_Q8_0)
        store_token<HK_CACHE_Q8_0>(a, t, head, s.store, s.dim, y, lane);
    if (a.cache.type == HK_CACHE_Q4_0)
        store_token<HK_CACHE_Q4_0>(a, t, head, s.store, s.dim, y, lane);
}

/* Value i of the rotated vector; no division, which costs more than all the rest. */
HK_FN float rotated(const hk_stream &s, const float *v, const float *angles, int i) {
    if (i >= 2 * s.half)
        return v[i];
    bool second = s.neox ? i >= s.half : i & 1;
    int pair = s.neox ? (second ? i - s.half : i) : i >> 1;
    float a = v[s.neox ? pair : 2 * pair], b = v[s.neox ? pair + s.half : 2 * pair + 1];
    float c = load_fresh(angles + 2 * pair), n = load_fresh(angles + 2 * pair + 1);
    return second ? a * n + b * c : a * c - b * n;
}

/* A head at x, normalised and rotated, into y; v is as large, and of the warp's own too. */
HK_FN void turn_head(const hk_stream &s, const float *x, const float *angles, float *v, float *y, int lane) {
    float sum = 0;
    for (int i = lane; i < s.dim; i += 32) {
        v[i] = load_fresh(x + i);
        sum += v[i] * v[i];
    }
    if (s.norm) {
        float factor = rsqrtf(warp_sum(sum) / (float)s.dim + s.eps);
        for (int i = lane; i < s.dim; i += 32)
            v[i] *= factor * s.norm[i];
    }
    __syncwarp();
    for (int i = lane; i < s.dim; i += 32)
        y[i] = s.angles ? rotated(s, v, angles, i) : v[i];
    __syncwarp();
}

#endif
