/* A tile of wgmma.cu: its shape, the rings in shared memory that feed it, and the loops of those who ask for copies and
 * of those who multiply. */
#ifndef HK_TILE_CUH
#define HK_TILE_CUH

#include "hk_halves.cuh"
#include "hk_wgmma.cuh"

#ifdef HK_HAS_WGMMA

/* What a kernel is made of. BN: tokens of a tile. MG: groups of 4 warps along the rows, 64 rows each. KG: such groups
 * along K, by steps. SA, SB: steps of weights and chunks of tokens on their way. CK: blocks of a cluster that share out
 * K. FINE: weights become halves between the instructions of a chunk, not in front of them. */
template <int BN_, int MG_, int KG_, int SA_, int SB_, int CK_, bool FINE_> struct shape {
    static constexpr int BN = BN_, MG = MG_, KG = KG_, SA = SA_, SB = SB_, CK = CK_;
    static constexpr bool FINE = FINE_;
    static constexpr int ROWS = 64 * MG, CHUNK = BN * 128, GROUPS = MG * KG;
    /* Registers for those who multiply, where the equal share is too few: the copying warp then comes with three idle
     * ones, as registers are handed over by groups. */
    static constexpr int REGISTERS = GROUPS == 4 ? 112 : BN == 256 ? 232 : 0, LEFT = GROUPS == 4 ? 32 : 40;
    static constexpr int THREADS = 128 * GROUPS + (REGISTERS ? 128 : 32 * KG);
    /* A slot always belongs to the same group: parities would not tell two phases apart. */
    static_assert(SA % KG == 0 && SB % (KG == 1 ? 1 : 4 * KG) == 0, "slots");
};

template <class F, class S> struct block_memory {
    static constexpr int STEP = S::ROWS / 16 * step_type<F>::type::BYTES;
    static constexpr int A_AT = S::SB * S::CHUNK, BARRIERS_AT = A_AT + S::SA * STEP;
    static constexpr int SCALES_AT = BARRIERS_AT + 16 * (S::SA + S::SB), BYTES = SCALES_AT + 4 * S::BN;
    static_assert(S::KG * S::CK == 1 || S::GROUPS * 64 * S::BN * 4 <= BARRIERS_AT, "sums do not fit");
    static_assert(BYTES <= 227 << 10, "more shared memory than a block can have");
    static __device__ __forceinline__ u32 full_b(u32 base, int i) { return base + BARRIERS_AT + 8 * i; }
    static __device__ __forceinline__ u32 free_b(u32 base, int i) { return full_b(base, S::SB + i); }
    static __device__ __forceinline__ u32 full_a(u32 base, int i) { return full_b(base, 2 * S::SB + i); }
    static __device__ __forceinline__ u32 free_a(u32 base, int i) { return full_b(base, 2 * S::SB + S::SA + i); }
};

/* Where a block works: the tile, and the steps that are its own: first, first + CK, ... */
struct block_task {
    int row0, token0, n, rank, steps; /* steps of its own */
    const hk_part *part;
};

/* A slot of a ring of N, and the parity of the barrier phase in which it fills. */
template <int N> struct ring_place {
    int slot;
    u32 parity = 0;

    __device__ __forceinline__ void advance(int by) {
        slot += by;
        if (slot >= N)
            slot -= N, parity ^= 1;
    }
};

/* Asks for step number i of the block's own. All lanes. */
template <class F, class S>
HK_FN void ask_weights(const hk_matmul_args &a, const block_task &w, u32 base, int slot, int i) {
    typedef block_memory<F, S> M;
    typedef typename step_type<F>::type W;
    int lane = threadIdx.x & 31, step = i * S::CK + w.rank;
    u32 to = base + M::A_AT + slot * M::STEP, full = M::full_a(base, slot);
    if constexpr (W::STAYS) {
        int rows = min(S::ROWS, max(0, (int)w.part->rows - w.row0)), left = 2 * ((int)a.cols - step * HK_STEP);
        u32 bytes = min(left, 2 * HK_STEP);
        if (lane == 0)
            barrier_expect(full, bytes * rows);
        __syncwarp();
        const u8 *from = w.part->w.at + ((s64)w.row0 * a.cols + step * HK_STEP) * 2;
        for (int r = lane; r < rows; r += 32)
            copy_bulk(to + r * W::PITCH, from + 2 * r * a.cols, bytes, full);
    } else {
        int all = ((int)a.cols + F::COLUMNS - 1) / F::COLUMNS, first = step * W::RECORDS;
        int tiles = min(S::ROWS / 16, max(0, ((int)w.part->rows + 15 - w.row0) / 16));
        u32 bytes = min(W::RECORDS, all - first) * F::BYTES;
        if (lane == 0)
            barrier_expect(full, bytes * tiles);
        __syncwarp();
        const u8 *from = w.part->w.at + ((s64)(w.row0 / 16) * all + first) * F::BYTES;
        if (lane < tiles)
            copy_bulk(to + lane * W::BYTES, from + (s64)lane * all * F::BYTES, bytes, full);
    }
}

/* Asks for what its group along K takes, in order. A warp for every group: they would wait for each other's slots if
 * they shared one. */
template <class F, class S> HK_FN void produce(const hk_matmul_args &a, const block_task &w, u32 base, int group) {
    typedef block_memory<F, S> M;
    ring_place<S::SA> weights = {group};
    ring_place<S::SB> tokens = {4 * group % S::SB};
    int asked = group;
    for (; asked < S::SA && asked < w.steps; asked += S::KG, weights.advance(S::KG))
        ask_weights<F, S>(a, w, base, weights.slot, asked);
    wait_for_previous();
    u32 bytes = 128 * min(S::BN, (int)a.x_stride - w.token0);
    for (int i = group; i < w.steps; i += S::KG) {
        if (i != group && asked < w.steps) {
            barrier_wait(M::free_a(base, weights.slot), weights.parity ^ 1);
            ask_weights<F, S>(a, w, base, weights.slot, asked);
            asked += S::KG;
            weights.advance(S::KG);
        }
        for (int j = 0; j < 4; j++) {
            barrier_wait(M::free_b(base, tokens.slot), tokens.parity ^ 1);
            if ((threadIdx.x & 31) == 0) {
                u32 full = M::full_b(base, tokens.slot);
                const u8 *from = (const u8 *)a.x + ((4 * (i * S::CK + w.rank) + j) * a.x_stride + w.token0) * 128;
                barrier_expect(full, bytes);
                copy_bulk(base + tokens.slot * S::CHUNK, from, bytes, full);
            }
            __syncwarp();
            tokens.advance(1);
        }
        tokens.advance(4 * (S::KG - 1));
    }
}

/* A group's part of the products; group: along K. */
template <class F, class S>
HK_FN void consume(const hk_matmul_args &a, const block_task &w, u8 *memory, u32 base, int row_group, int group,
                   float (&acc)[S::BN / 2]) {
    typedef block_memory<F, S> M;
    typedef typename step_type<F>::type W;
    int lane = threadIdx.x & 31;
    const u8 *tile = memory + M::A_AT + (4 * row_group + (threadIdx.x >> 5 & 3)) * W::BYTES;
    W weights;
    u32 f[4][4];
    ring_place<S::SA> of_weights = {group};
    ring_place<S::SB> tokens = {4 * group % S::SB};
    auto free_slot = [&](u32 barrier) {
        if (lane == 0)
            barrier_arrive(barrier);
    };
    auto load = [&](int i) {
        int step = i * S::CK + w.rank;
        const u8 *at = tile + of_weights.slot * M::STEP;
        barrier_wait(M::full_a(base, of_weights.slot), of_weights.parity);
        if constexpr (W::STAYS) {
            const u8 *row = at + (lane >> 2) * W::PITCH;
            weights.load(row, row + 8 * W::PITCH, (int)a.cols / 32 - 8 * step, lane);
        } else {
            weights.load(at, ((int)a.cols + F::COLUMNS - 1) / F::COLUMNS - step * W::RECORDS, lane);
            __syncwarp();
            free_slot(M::free_a(base, of_weights.slot));
            of_weights.advance(S::KG);
        }
    };
    if (group >= w.steps)
        return;
    load(group);
    u32 before = 0; /* the barrier of the chunk before */
    for (int i = group; i < w.steps; i += S::KG) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u64 b = columns_at(base + tokens.slot * S::CHUNK);
            u32 full = M::full_b(base, tokens.slot), free = M::free_b(base, tokens.slot);
            if (S::FINE) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    wgmma_wait<3>(); /* these registers are free again */
                    if (k == 3 && before)
                        free_slot(before);
                    weights.fragment(j, k, lane, f[k]);
                    if (k == 0)
                        barrier_wait(full, tokens.parity);
                    wgmma_begin();
                    wgmma(acc, f[k], b + 2 * k);
                    wgmma_commit();
                }
                before = free;
            } else {
                weights.fragments(j, lane, f);
                barrier_wait(full, tokens.parity);
                wgmma_begin();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    wgmma(acc, f[k], b + 2 * k);
                wgmma_commit();
            }
            tokens.advance(1);
            if (j == 3 && i + S::KG < w.steps) {
                if (W::STAYS) {
                    __syncwarp();
                    free_slot(M::free_a(base, of_weights.slot));
                    of_weights.advance(S::KG);
                }
                load(i + S::KG);
            }
            if (!S::FINE) {
                wgmma_wait<0>();
                free_slot(free);
            }
        }
        tokens.advance(4 * (S::KG - 1));
    }
    wgmma_wait<0>();
}

#endif
#endif
