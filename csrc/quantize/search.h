/* Scales for a handful of weights, by importance-weighted least squares.
 *
 * The error of a block is E = sum w (x - value(q))^2. For fixed codes q the best scale (and minimum) is the solution of
 * linear equations; for a fixed scale the best codes are the nearest ones. The codes change only at finitely many
 * scales, so a grid of scales around the one that just spans the block, each followed by the linear step, finds nearly
 * the best pair, and a few turns of codes and scales in alternation, which never raise E, end in a local optimum.
 *
 * `n` weights per lane, x and w: [n] lanes. Everything is inlined with constant arguments. */
#ifndef HK_SEARCH_H
#define HK_SEARCH_H

#include "formats/hk_quants.h"
#include "lanes.h"

#define HK_POLISH 3 /* turns in alternation */

/* Symmetric: x = s q, q an integer of [low, high]. A: sum w x q, B: sum w q^2; E = sum w x^2 - A^2 / B at s = A / B. */
HK_INLINE void sums_symmetric(const hk_v8 *x, const hk_v8 *w, int n, hk_v8 t, float low, float high, hk_v8 *A,
                              hk_v8 *B) {
    hk_v8 a = v_all(0), b = v_all(0);
    for (int i = 0; i < n; i++) {
        hk_v8 q = v_round(v_clamp(x[i] * t, low, high)), wq = w[i] * q;
        a += wq * x[i];
        b += wq * q;
    }
    *A = a, *B = b;
}

/* The value of largest magnitude, with its sign. */
HK_INLINE hk_v8 extreme(const hk_v8 *x, int n) {
    hk_v8 most = v_all(0);
    for (int i = 0; i < n; i++)
        most = v_pick(v_abs(x[i]) > v_abs(most), x[i], most);
    return most;
}

typedef struct hk_scale_search {
    hk_v8 gain, s, B;
} hk_scale_search;

HK_INLINE void keep_better(hk_scale_search *best, hk_v8 A, hk_v8 B) {
    hk_v8 s = v_ratio(A, B), gain = A * s;
    hk_m8 better = gain > best->gain;
    best->gain = v_pick(better, gain, best->gain);
    best->s = v_pick(better, s, best->s);
    best->B = v_pick(better, B, best->B);
}

/* `steps` scales to each side that put the extreme value `step` codes further in or out than `low`. */
HK_INLINE hk_scale_search search_symmetric(const hk_v8 *x, const hk_v8 *w, int n, int low, int high, int inward,
                                           int outward, float step) {
    hk_v8 most = extreme(x, n), A, B;
    hk_scale_search best = {v_all(0), v_all(0), v_all(0)};
    for (int c = -inward; c <= outward; c++) {
        sums_symmetric(x, w, n, v_ratio(v_all((float)low - step * (float)c), most), (float)low, (float)high, &A, &B);
        keep_better(&best, A, B);
    }
    for (int c = 0; c < HK_POLISH; c++) {
        sums_symmetric(x, w, n, v_ratio(v_all(1), best.s), (float)low, (float)high, &A, &B);
        keep_better(&best, A, B);
    }
    return best;
}

/* The nearest entry of the table of IQ4_NL, and its index: steps are added for every midpoint that lies below. */
static const float iq4_values[16] = {HK_TABLE_IQ4};

HK_INLINE hk_v8 nearest_iq4(hk_v8 v) {
    hk_v8 value = v_all(iq4_values[0]);
    for (int k = 1; k < 16; k++) {
        hk_m8 above = v > v_all((iq4_values[k - 1] + iq4_values[k]) / 2);
        value += (hk_v8)(above & (hk_m8)v_all(iq4_values[k] - iq4_values[k - 1]));
    }
    return value;
}

HK_INLINE hk_v8 index_iq4(hk_v8 v) {
    hk_m8 index = {0};
    for (int k = 1; k < 16; k++)
        index -= v > v_all((iq4_values[k - 1] + iq4_values[k]) / 2);
    return __builtin_convertvector(index, hk_v8);
}

HK_INLINE void sums_iq4(const hk_v8 *x, const hk_v8 *w, int n, hk_v8 t, hk_v8 *A, hk_v8 *B) {
    hk_v8 a = v_all(0), b = v_all(0);
    for (int i = 0; i < n; i++) {
        hk_v8 q = nearest_iq4(x[i] * t), wq = w[i] * q;
        a += wq * x[i];
        b += wq * q;
    }
    *A = a, *B = b;
}

/* x = s table[q]. The table is not symmetric, so the extreme value is tried at both of its ends. */
HK_INLINE hk_scale_search search_iq4(const hk_v8 *x, const hk_v8 *w, int n, int steps, float step) {
    hk_v8 most = extreme(x, n), A, B;
    hk_scale_search best = {v_all(0), v_all(0), v_all(0)};
    for (int end = 0; end < 16; end += 15)
        for (int c = -steps; c <= steps; c++) {
            sums_iq4(x, w, n, v_ratio(v_all(iq4_values[end] * (1 + step * (float)c)), most), &A, &B);
            keep_better(&best, A, B);
        }
    for (int c = 0; c < HK_POLISH; c++) {
        sums_iq4(x, w, n, v_ratio(v_all(1), best.s), &A, &B);
        keep_better(&best, A, B);
    }
    return best;
}

/* Affine: x = s q - m, q an integer of [0, high]. */
typedef struct hk_affine {
    hk_v8 error, s, m, B; /* B: sum w q^2 */
} hk_affine;

typedef struct hk_moments {
    hk_v8 low, W, Y, YY; /* least value (0 at most, where m may not be negative); sums of w, w y, w y^2, y = x - low */
} hk_moments;

/* Codes q = round(t y - b), the best s and m for them, kept where their error is the least so far. */
HK_INLINE void try_affine(const hk_v8 *y, const hk_v8 *w, int n, int high, int m_positive, const hk_moments *k, hk_v8 t,
                          hk_v8 b, hk_affine *best) {
    hk_v8 q1 = v_all(0), q2 = v_all(0), qy = v_all(0);
    for (int i = 0; i < n; i++) {
        hk_v8 q = v_round(v_clamp(y[i] * t - b, 0, (float)high)), wq = w[i] * q;
        q1 += wq;
        q2 += wq * q;
        qy += wq * y[i];
    }
    hk_v8 D = k->W * q2 - q1 * q1;
    /* all codes alike: rounding leaves D near zero, and nothing can be divided by it */
    hk_m8 flat = D <= k->W * q2 * 1e-6f;
    hk_v8 safe = v_pick(flat, v_all(1), D);
    hk_v8 s = v_pick(flat, v_all(0), (k->W * qy - q1 * k->Y) / safe);
    hk_v8 c = v_pick(flat, v_ratio(k->Y, k->W), (k->Y * q2 - q1 * qy) / safe); /* y = s q + c */
    if (m_positive) {
        hk_m8 above = k->low + c > 0;
        s = v_pick(above, v_ratio(qy + k->low * q1, q2), s);
        c = v_pick(above, -k->low, c);
    }
    hk_v8 error = k->YY - 2 * (s * qy + c * k->Y) + s * s * q2 + 2 * s * c * q1 + c * c * k->W;
    hk_m8 better = (error < best->error) & (s >= 0);
    best->error = v_pick(better, error, best->error);
    best->s = v_pick(better, s, best->s);
    best->m = v_pick(better, -(k->low + c), best->m);
    best->B = v_pick(better, q2, best->B);
}

/* The grid: the block's ends at codes up to `steps` times `step` beyond, or short of, 0 and `high`. */
HK_INLINE hk_affine search_affine(const hk_v8 *x, const hk_v8 *w, int n, int high, int m_positive, int inward,
                                  int outward, float step) {
    hk_v8 top = x[0], y[32];
    hk_moments k = {m_positive ? v_min(x[0], v_all(0)) : x[0], v_all(0), v_all(0), v_all(0)};
    for (int i = 1; i < n; i++) {
        k.low = v_min(k.low, x[i]);
        top = v_max(top, x[i]);
    }
    for (int i = 0; i < n; i++) {
        y[i] = x[i] - k.low;
        hk_v8 wy = w[i] * y[i];
        k.W += w[i];
        k.Y += wy;
        k.YY += wy * y[i];
    }
    /* all weights alike but for the constant: x = -m, or x = s high where m may not be negative */
    hk_v8 span = top - k.low;
    hk_affine best = {k.YY, v_all(0), -k.low, v_all(0)};
    for (int a = -inward; a <= outward; a++)
        for (int b = -inward; b <= outward; b++) {
            float under = step * (float)b, over = step * (float)a;
            try_affine(y, w, n, high, m_positive, &k, v_ratio(v_all((float)high + over + under), span), v_all(under),
                       &best);
        }
    for (int c = 0; c < HK_POLISH; c++) {
        hk_v8 t = v_ratio(v_all(1), best.s);
        try_affine(y, w, n, high, m_positive, &k, t, (-best.m - k.low) * t, &best);
    }
    return best;
}

#endif
