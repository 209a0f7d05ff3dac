/* The input of a matrix-vector product, into shared memory.
 *
 * One column: a cluster of two blocks normalises and quantises it for itself, each block half of it and for both. A
 * kernel of its own for that costs a launch and a round trip through L2; every block for itself costs 10 % of a product
 * with 11008 columns (and a cluster 10 % of one with 4096, which has less to share: over a whole model two are better
 * than one). More columns: halves made by hk_rows, copied if there is room, else read through L1.
 */
#ifndef HK_INPUT_CUH
#define HK_INPUT_CUH

#include "hk_group.cuh"
#include "hk_precise.cuh"
#include "hk_rows.cuh"

/* Of the only column, zero up to whole steps; meta2 for the second format. A thread holds E times eight values in
 * registers, so that one trip to L2 is enough for up to 8 E * threads values. Norm weights depend on nothing: they are
 * read before the wait. */
struct only_column {
    s8 *codes;
    u8 *meta, *meta2;
};
/* Eights [first, end) of a row of `eights`; zeros behind it. */
template <int E>
HK_FN void load_eights(const float *from, int eights, int first, int end, bool fresh, float (&x)[E][8]) {
#pragma unroll
    for (int k = 0; k < E; k++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int i = first + k * blockDim.x + threadIdx.x;
            f32x4 v = {};
            if (i < eights && i < end)
                v = fresh ? load_fresh4(from + 8 * i + 4 * h) : *(const f32x4 *)(from + 8 * i + 4 * h);
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[k][4 * h + j] = v.v[j];
        }
}
/* Multiplies x by the norm's weights, if it has any, and adds the squares of what x was to `sum`. */
template <int E> HK_FN float weigh_eights(float (&x)[E][8], const float (&w)[E][8], bool weights, float sum) {
#pragma unroll
    for (int k = 0; k < E; k++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum += x[k][j] * x[k][j];
            x[k][j] *= weights ? w[k][j] : 1.0f;
        }
    return sum;
}
template <class F, class G, class SUMS>
HK_FN void write_metas(const only_column &to, int eight, float scale, const SUMS &sums) {
    if ((threadIdx.x & 3) == 0)
        write_meta<F>(to.meta, eight >> 2, scale, sums);
    if (!is_same<F, G>::value && (threadIdx.x & 3) == 1)
        write_meta<G>(to.meta2, eight >> 2, scale, sums);
}
template <class F, class G, int E, int PARTS = 1>
HK_FN void quantise_eights(const float (&x)[E][8], int first, int end, const only_column &to) {
#pragma unroll
    for (int k = 0; k < E; k++) {
        int i = first + k * blockDim.x + threadIdx.x;
        if (i - (int)threadIdx.x >= end)
            break;
        float scale;
        if constexpr (PARTS == 1) {
            s32 sums[2];
            u32x2 word = quantise_eight(x[k], scale, sums);
            if (i >= end)
                continue;
            store_in_all(to.codes + 8 * i, word.v, 2);
            write_metas<F, G>(to, i, scale, sums);
        } else {
            s32 sums[2][2];
            u32x4 words;
            quantise_eight(x[k], words, scale, sums);
            if (i >= end)
                continue;
            store_in_all(to.codes + place_of_eight(i), words.v, 4);
            write_metas<F, G>(to, i, scale, sums);
        }
    }
}
/* The blocks of a cluster share the work. A norm's factor belongs to all values alike, so it is left to the sums: only
 * the squares are added here. */
template <class F, class G, int E, bool NORMALISE, int PARTS = 1>
HK_FN void prepare_input(const hk_matvec_args &a, const only_column &to, float *squares) {
    int K = (int)a.cols, eights = K / 8, share = ((K + 255) / 256 * 32 / HK_CLUSTER_SIZE + 7) & ~7;
    int first = (int)cluster_rank() * share, end = min(first + share, (K + 255) / 256 * 32);
    int weights = NORMALISE && a.norm ? eights : 0;
    float x[E][8], w[E][8], sum = 0;
    if (NORMALISE)
        load_eights<E>(a.norm, weights, first, end, false, w);
    if (HK_CLUSTER_SIZE > 1)
        cluster_wait(); /* the others are there */
    wait_for_previous();
    for (int base = first; base < end; base += E * blockDim.x) {
        load_eights<E>(a.x, eights, base, end, true, x);
        if (NORMALISE) {
            if (base > first)
                load_eights<E>(a.norm, weights, base, end, false, w);
            sum = weigh_eights<E>(x, w, a.norm, sum);
        }
        quantise_eights<F, G, E, PARTS>(x, base, end, to);
    }
    if (NORMALISE) {
        u32 total = __float_as_uint(warp_sum(sum));
        if ((threadIdx.x & 31) == 0)
            store_in_all(squares + cluster_rank() * (blockDim.x >> 5) + (threadIdx.x >> 5), &total, 1);
    }
    cluster_arrive();
    cluster_wait();
}
/* Behind a barrier. */
HK_FN float norm_factor(const hk_matvec_args &a, const float *squares) {
    int lane = threadIdx.x & 31;
    float sum = lane < HK_CLUSTER_SIZE * (int)(blockDim.x >> 5) ? squares[lane] : 0;
    return rsqrtf(warp_sum(sum) / (float)a.cols + a.eps);
}

/* The halves of up to 8 tokens into shared memory; of unused ones zeros. */
HK_FN void copy_tokens(const hk_matvec_args &a, u8 *to, int steps, int n) {
    for (int i = threadIdx.x; i < 256 * steps; i += blockDim.x)
        copy16_async(to + 16 * i, (const u8 *)a.half + (i >> 6) * 128 * a.half_stride + 16 * (i & 63),
                     (i >> 3 & 7) < n);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
}

#endif
