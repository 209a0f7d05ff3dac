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

/* Value i of the rotated vector; no division, which costs more than all the rest. FRESH: whether angles were written by
 * what may still run. */
template <bool FRESH> HK_FN float rotated(const hk_stream &s, const float *v, const float *angles, int i) {
    if (i >= 2 * s.half)
        return v[i];
    bool second = s.neox ? i >= s.half : i & 1;
    int pair = s.neox ? (second ? i - s.half : i) : i >> 1;
    float a = v[s.neox ? pair : 2 * pair], b = v[s.neox ? pair + s.half : 2 * pair + 1];
    f32x2 angle = FRESH ? load_fresh2(angles + 2 * pair) : *(const f32x2 *)(angles + 2 * pair);
    float c = angle.v[0], n = angle.v[1];
    return second ? a * n + b * c : a * c - b * n;
}

/* A head of up to 32 N values at x, normalised and rotated, into y; v is as large, and of the warp's own too. Loads go
 * out together: one behind the other, each took its way to memory and back. */
template <int N, bool FRESH>
HK_FN void turn_head(const hk_stream &s, const float *x, const float *angles, float *v, float *y, int lane) {
    float sum = 0, t[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        t[k] = lane + 32 * k < s.dim ? load_fresh(x + lane + 32 * k) : 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
        sum += t[k] * t[k];
        if (lane + 32 * k < s.dim)
            v[lane + 32 * k] = t[k];
    }
    if (s.norm) {
        float factor = rsqrtf(warp_sum(sum) / (float)s.dim + s.eps);
        for (int i = lane; i < s.dim; i += 32)
            v[i] *= factor * s.norm[i];
    }
    __syncwarp();
    for (int i = lane; i < s.dim; i += 32)
        y[i] = s.angles ? rotated<FRESH>(s, v, angles, i) : v[i];
    __syncwarp();
}

#endif
