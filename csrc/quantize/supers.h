/* Quantisers of the formats with blocks of 256 weights: sub-blocks of 16 or 32 weights with small integer scales (and
 * mins), and one scale (two) for all of them.
 *
 * First every sub-block finds its own best real scale; the block's scale d is the one whose multiples come nearest to
 * them, each weighted by how fast the error grows around it (sum w q^2). Then what is stored is improved as a whole,
 * with d as fp16 has it: every sub-block tries the neighbours of its integers with the codes that belong to them, and d
 * is solved for again; what does not lower the error of the block is dropped. */
#ifndef HK_SUPERS_H
#define HK_SUPERS_H

#include "blocks.h"

enum { KIND_PLAIN, KIND_IQ4 };

typedef struct hk_super {
    hk_v8 x[32], w[32], q[32]; /* 8 sub-blocks of 32: [32] lanes; 16 of 16: [2][16] lanes */
    hk_v8 k[2], l[2];          /* integer scales and mins, by group of 8 sub-blocks */
    float d, dmin, error;
    uint16_t d_half, dmin_half;
} hk_super;

HK_INLINE float to_half(float f, uint16_t *half) {
    *half = hk_float_to_half(f);
    return hk_half_to_float(*half);
}

/* The nearest multiple d k to the scales s, k of [low, high], weighted by B; the extreme one at `end` and around it. */
HK_INLINE float best_step(const hk_v8 *s, const hk_v8 *B, int groups, float low, float high, float end, float reach,
                          float step) {
    float most = 0, best = 0, gain = 0;
    for (int g = 0; g < groups; g++)
        for (int l = 0; l < HK_LANES; l++)
            if (s[g][l] * s[g][l] > most * most)
                most = s[g][l];
    if (most == 0)
        return 0;
    for (float at = end - reach; at <= end + reach; at += step) {
        hk_v8 t = v_all(at / most), a = v_all(0), b = v_all(0);
        for (int g = 0; g < groups; g++) {
            hk_v8 k = v_round(v_clamp(s[g] * t, low, high));
            a += B[g] * k * s[g];
            b += B[g] * k * k;
        }
        float A = v_sum(a), D = v_sum(b);
        if (D > 0 && A * A > gain * D) {
            gain = A * A / D;
            best = A / D;
        }
    }
    return best;
}

/* Symmetric: x = d k q. */
HK_INLINE hk_v8 codes_of(int kind, hk_v8 v, float low, float high) {
    return kind == KIND_IQ4 ? nearest_iq4(v) : v_round(v_clamp(v, low, high));
}

HK_INLINE hk_v8 error_symmetric(int kind, const hk_v8 *x, const hk_v8 *w, int n, hk_v8 s, float low, float high) {
    hk_v8 t = v_ratio(v_all(1), s), error = v_all(0);
    for (int i = 0; i < n; i++) {
        hk_v8 e = x[i] - s * codes_of(kind, x[i] * t, low, high);
        error += w[i] * e * e;
    }
    return error;
}

/* Each sub-block's best integer among k - 1, k, k + 1 for the scale d; codes in b->q. */
HK_INLINE void settle_symmetric(int kind, hk_super *b, int groups, int n, float low, float high, float k_low,
                                float k_high) {
    hk_v8 total = v_all(0);
    for (int g = 0; g < groups; g++) {
        const hk_v8 *x = b->x + g * n, *w = b->w + g * n;
        hk_v8 best = v_clamp(b->k[g], k_low, k_high), from = b->k[g];
        hk_v8 least = error_symmetric(kind, x, w, n, b->d * best, low, high);
        for (int step = -1; step <= 1; step += 2) {
            hk_v8 k = v_clamp(from + (float)step, k_low, k_high);
            hk_v8 error = error_symmetric(kind, x, w, n, b->d * k, low, high);
            hk_m8 better = error < least;
            least = v_pick(better, error, least);
            best = v_pick(better, k, best);
        }
        hk_v8 t = v_ratio(v_all(1), b->d * best);
        for (int i = 0; i < n; i++)
            b->q[g * n + i] = codes_of(kind, x[i] * t, low, high);
        b->k[g] = best;
        total += least;
    }
    b->error = v_sum(total);
}

/* The best d for codes and integers as they are. */
HK_INLINE float solve_symmetric(const hk_super *b, int groups, int n) {
    hk_v8 A = v_all(0), B = v_all(0);
    for (int g = 0; g < groups; g++)
        for (int i = g * n; i < (g + 1) * n; i++) {
            hk_v8 u = b->k[g] * b->q[i], wu = b->w[i] * u;
            A += wu * b->x[i];
            B += wu * u;
        }
    float below = v_sum(B);
    return below > 0 ? v_sum(A) / below : 0;
}

HK_INLINE void super_symmetric(int kind, hk_super *b, int groups, int low, int high, int k_low, int k_high, int inward,
                               int outward, float step, float reach, float k_step) {
    int n = 32 / groups;
    hk_v8 s[2], B[2];
    for (int g = 0; g < groups; g++) {
        const hk_v8 *x = b->x + g * n, *w = b->w + g * n;
        hk_scale_search found = kind == KIND_IQ4 ? search_iq4(x, w, n, inward, step)
                                                 : search_symmetric(x, w, n, low, high, inward, outward, step);
        s[g] = found.s, B[g] = found.B;
    }
    b->d = to_half(best_step(s, B, groups, (float)k_low, (float)k_high, (float)k_low, reach, k_step), &b->d_half);
    for (int g = 0; g < groups; g++)
        b->k[g] = v_round(v_clamp(v_ratio(s[g], v_all(b->d)), (float)k_low, (float)k_high));
    settle_symmetric(kind, b, groups, n, (float)low, (float)high, (float)k_low, (float)k_high);
    for (int turn = 0; turn < 2; turn++) {
        hk_super other = *b;
        other.d = to_half(solve_symmetric(b, groups, n), &other.d_half);
        if (other.d == b->d)
            break;
        settle_symmetric(kind, &other, groups, n, (float)low, (float)high, (float)k_low, (float)k_high);
        if (!(other.error < b->error))
            break;
        *b = other;
    }
}

/* Affine: x = d k q - dmin l. */
HK_INLINE hk_v8 error_affine(const hk_v8 *x, const hk_v8 *w, int n, hk_v8 s, hk_v8 m, float high) {
    hk_v8 t = v_ratio(v_all(1), s), error = v_all(0);
    for (int i = 0; i < n; i++) {
        hk_v8 y = x[i] + m, e = y - s * v_round(v_clamp(y * t, 0, high));
        error += w[i] * e * e;
    }
    return error;
}

/* Each sub-block's best integers among its own and their neighbours for the scales d and dmin; codes in b->q. */
HK_INLINE void settle_affine(hk_super *b, int groups, int n, float high, float k_high) {
    hk_v8 total = v_all(0);
    for (int g = 0; g < groups; g++) {
        const hk_v8 *x = b->x + g * n, *w = b->w + g * n;
        hk_v8 k0 = b->k[g], l0 = b->l[g], best_k = k0, best_l = l0;
        hk_v8 least = error_affine(x, w, n, b->d * k0, b->dmin * l0, high);
        for (int step = 1; step < 9; step++) {
            int at = (step + 4) % 9;
            hk_v8 k = v_clamp(k0 + (float)(at / 3 - 1), 0, k_high), l = v_clamp(l0 + (float)(at % 3 - 1), 0, k_high);
            hk_v8 error = error_affine(x, w, n, b->d * k, b->dmin * l, high);
            hk_m8 better = error < least;
            least = v_pick(better, error, least);
            best_k = v_pick(better, k, best_k);
            best_l = v_pick(better, l, best_l);
        }
        hk_v8 m = b->dmin * best_l, t = v_ratio(v_all(1), b->d * best_k);
        for (int i = 0; i < n; i++)
            b->q[g * n + i] = v_round(v_clamp((x[i] + m) * t, 0, high));
        b->k[g] = best_k;
        b->l[g] = best_l;
        total += least;
    }
    b->error = v_sum(total);
}

/* The best d and dmin for codes and integers as they are: u = k q, v = l; d sum w u^2 - dmin sum w u v = sum w u x,
 * d sum w u v - dmin sum w v^2 = sum w v x. */
HK_INLINE void solve_affine(hk_super *b, int groups, int n) {
    hk_v8 uu = v_all(0), uv = uu, vv = uu, ux = uu, vx = uu;
    for (int g = 0; g < groups; g++)
        for (int i = g * n; i < (g + 1) * n; i++) {
            hk_v8 u = b->k[g] * b->q[i], v = b->l[g], wu = b->w[i] * u, wv = b->w[i] * v;
            uu += wu * u, uv += wu * v, vv += wv * v, ux += wu * b->x[i], vx += wv * b->x[i];
        }
    double a = v_sum(uu), c = v_sum(uv), e = v_sum(vv), p = v_sum(ux), r = v_sum(vx), D = a * e - c * c;
    float d = b->d, dmin = b->dmin;
    if (D > 1e-6 * a * e) {
        d = (float)((p * e - r * c) / D);
        dmin = (float)((p * c - r * a) / D);
    } else if (a > 0) {
        d = (float)((p + (double)dmin * c) / a);
    }
    if (d >= 0 && dmin >= 0) {
        b->d = to_half(d, &b->d_half);
        b->dmin = to_half(dmin, &b->dmin_half);
    }
}

HK_INLINE void super_affine(hk_super *b, int groups, int high, int k_high, int inward, int outward, float step,
                            float reach, float k_step) {
    int n = 32 / groups;
    hk_v8 s[2], B[2], m[2], W[2];
    for (int g = 0; g < groups; g++) {
        const hk_v8 *x = b->x + g * n, *w = b->w + g * n;
        hk_affine found = search_affine(x, w, n, high, 1, inward, outward, step);
        s[g] = found.s, B[g] = found.B, m[g] = found.m, W[g] = v_all(0);
        for (int i = 0; i < n; i++)
            W[g] += w[i];
    }
    float top = (float)k_high;
    b->d = to_half(best_step(s, B, groups, 0, top, top, reach, k_step), &b->d_half);
    b->dmin = to_half(best_step(m, W, groups, 0, top, top, reach, k_step), &b->dmin_half);
    for (int g = 0; g < groups; g++) {
        b->k[g] = v_round(v_clamp(v_ratio(s[g], v_all(b->d)), 0, top));
        b->l[g] = v_round(v_clamp(v_ratio(m[g], v_all(b->dmin)), 0, top));
    }
    settle_affine(b, groups, n, (float)high, top);
    for (int turn = 0; turn < 2; turn++) {
        hk_super other = *b;
        solve_affine(&other, groups, n);
        if (other.d == b->d && other.dmin == b->dmin)
            break;
        settle_affine(&other, groups, n, (float)high, top);
        if (!(other.error < b->error))
            break;
        *b = other;
    }
}

#endif
