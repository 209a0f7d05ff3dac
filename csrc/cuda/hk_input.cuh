/* The input of a matrix-vector product, into shared memory.
 *
 * One column: a cluster of two blocks normalises and quantises it for itself, each block half of it and for both. A
 * kernel of its own for that costs a launch and a round trip through L2; every block for itself costs 6 to 9 % of a
 * product with 11008 columns and more of one with 4096, a cluster of four 30 %. More columns: halves made by hk_rows,
 * copied if there is room, else read through L1.
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
    u64 *ready; /* counts bytes of all these and of the squares */
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
    u32 rank = threadIdx.x & 3; /* the four lanes of a unit send to a block each */
    if (rank >= HK_CLUSTER_SIZE)
        return;
    write_meta<F>(to.meta, eight >> 2, scale, sums, to.ready, rank);
    if (!is_same<F, G>::value)
        write_meta<G>(to.meta2, eight >> 2, scale, sums, to.ready, rank);
}
/* The first N of a thread's E eights, side by side: no branch in between. */
template <class F, class G, int E, int PARTS, int N>
HK_FN void quantise_some(const float (&x)[E][8], int first, int end, const only_column &to) {
    float scale[N];
    s32 sums[N][2], sums2[N][2][2];
    u32x2 word[N];
    u32x4 words[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        if constexpr (PARTS == 1)
            word[k] = quantise_eight(x[k], scale[k], sums[k]);
        else
            quantise_eight(x[k], words[k], scale[k], sums2[k]);
#pragma unroll
    for (int k = 0; k < N; k++) {
        int i = first + k * blockDim.x + threadIdx.x;
        if (i >= end)
            break;
        if constexpr (PARTS == 1) {
            send_to_all(to.codes + 8 * i, word[k].v, 2, to.ready);
            write_metas<F, G>(to, i, scale[k], sums[k]);
        } else {
            send_to_all(to.codes + place_of_eight(i), words[k].v, 4, to.ready);
            write_metas<F, G>(to, i, scale[k], sums2[k]);
        }
    }
}
template <class F, class G, int E, int PARTS = 1>
HK_FN void quantise_eights(const float (&x)[E][8], int first, int end, const only_column &to) {
    if (E > 1 && end - first <= (int)blockDim.x)
        quantise_some<F, G, E, PARTS, 1>(x, first, end, to);
    else
        quantise_some<F, G, E, PARTS, E>(x, first, end, to);
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
            send_to_all(squares + cluster_rank() * (blockDim.x >> 5) + (threadIdx.x >> 5), &total, 1, to.ready);
    }
    wait_for_bytes(to.ready);
}
/* Bytes that every block gets of an input of `steps` steps. */
template <class F, class G, int PARTS> HK_FN u32 bytes_of_input(int steps, bool normalise) {
    u32 metas = step_of<F, PARTS>::META + (is_same<F, G>::value ? 0 : step_of<G, PARTS>::META);
    return steps * (step_of<F, PARTS>::CODES + 8 * metas) + (normalise ? HK_CLUSTER_SIZE * (blockDim.x >> 5) * 4 : 0);
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
