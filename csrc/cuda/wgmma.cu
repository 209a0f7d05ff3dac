/* Products with many columns on Hopper's matrix instructions: weights become halves in registers (A), tokens come as
 * halves in shared memory (B). hk_halves.cuh has what this shares with matmul.cu.
 *
 * A block computes 64 or 128 rows x 32 to 256 tokens. Groups of four warps multiply, each warp the 16 rows of one tile
 * of the device layout. Other warps do nothing but ask for bulk copies: of steps of weights, as they lie, before the
 * wait for the previous kernel, and of chunks of 64 columns of the tile's tokens, which hk_rows has laid out in the
 * order and the swizzle that the instruction wants. Barriers say what is there and what is free.
 *
 * A group's conversion of a chunk of 64 x 64 weights takes about as long as the product with 256 tokens: with 256
 * tokens the other group hides it wholly and the matrix units are the limit; with 128 they wait half of the time.
 * Small products, whose tiles would not fill the chip, share out K between groups of a block (few tokens) or the two
 * blocks of a cluster; sums are added through shared memory, always in the same order.
 *
 * What lost, by measurement on the H200: 256 rows x 128 tokens; four groups for 128 x 128 (too few registers); sharing
 * the tokens of two blocks by multicast (-30 to -40 %); converting a whole chunk ahead into a second set of registers
 * (-8 % with 128 tokens, the same with 256); one copying warp for several groups along K.
 */
#include "hk_tile.cuh"

#ifdef HK_HAS_WGMMA

template <class F, class S> HK_FN void matmul(const hk_matmul_args &a) {
    extern __shared__ __align__(1024) u8 memory[];
    typedef block_memory<F, S> M;
    typedef typename step_type<F>::type W;
    constexpr int BLOCK = 64 * S::BN; /* sums of a group */
    u32 base = shared_address(memory);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    block_task w;
    w.n = a.step.counts[a.rows_are_outputs];
    w.token0 = blockIdx.y * S::BN;
    if (w.token0 >= w.n)
        return; /* all blocks of a cluster */
    int tile = blockIdx.x / S::CK, all_steps = ((int)a.cols + HK_STEP - 1) / HK_STEP;
    w.rank = S::CK == 1 ? 0 : (int)rank_in_cluster();
    w.part = &a.part[part_of_tile(a, S::ROWS, tile)];
    w.row0 = tile * S::ROWS;
    w.steps = (all_steps - w.rank + S::CK - 1) / S::CK;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::SB; i++) {
            barrier_init(M::full_b(base, i), 1);
            barrier_init(M::free_b(base, i), 4 * S::MG);
        }
        for (int i = 0; i < S::SA; i++) {
            barrier_init(M::full_a(base, i), 1);
            barrier_init(M::free_a(base, i), 4 * S::MG);
        }
        barriers_ready();
    }
    allow_next();
    __syncthreads();
    int group = warp >> 2, row_group = group % S::MG, k_group = group / S::MG;
    if (group == S::GROUPS) {
        if constexpr (S::REGISTERS != 0)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::LEFT));
        if (warp - 4 * S::GROUPS < S::KG)
            produce<F, S>(a, w, base, warp - 4 * S::GROUPS);
        if (S::CK > 1) {
            cluster_sync();
            cluster_sync();
        }
    } else { /* one branch for each role, or the compiler does not share registers out */
        if constexpr (S::REGISTERS != 0)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
        wait_for_previous();
        float *scales = (float *)(memory + M::SCALES_AT);
        for (int i = threadIdx.x; i < S::BN; i += 128 * S::GROUPS)
            scales[i] = w.token0 + i < w.n ? load_fresh(a.x_scale + w.token0 + i) * (1.0f / W::CARRIED) : 0;
        float acc[S::BN / 2];
#pragma unroll
        for (int i = 0; i < S::BN / 2; i++)
            acc[i] = 0;
        consume<F, S>(a, w, memory, base, row_group, k_group, acc);
        int row = w.row0 + 64 * row_group + 16 * (warp & 3) + (lane >> 2);
        sync_threads(1, 128 * S::GROUPS);
        if constexpr (S::KG * S::CK == 1) {
            store_blocks<S::BN / 8>(*w.part, row, w.token0, w.n, scales, acc);
        } else {
            /* Every group leaves its sums in shared memory; then each adds its share of the tokens, always in the same
             * order. */
            constexpr int ALL = S::KG * S::CK, SHARERS = S::BN >= 8 * ALL ? ALL : S::KG, SHARE = S::BN / 2 / SHARERS;
            float *sums = (float *)memory + row_group * BLOCK + (threadIdx.x & 127);
            float *mine = sums + k_group * S::MG * BLOCK;
#pragma unroll
            for (int i = 0; i < S::BN / 2; i++)
                mine[128 * i] = acc[i];
            if (S::CK > 1)
                cluster_sync();
            else
                sync_threads(1, 128 * S::GROUPS);
            int sharer = w.rank * S::KG + k_group;
            constexpr int PIECE = SHARE < 32 ? SHARE : 32;
            for (int piece = sharer * SHARE; sharer < SHARERS && piece < (sharer + 1) * SHARE; piece += PIECE) {
                float total[PIECE];
#pragma unroll
                for (int i = 0; i < PIECE; i++)
                    total[i] = 0;
#pragma unroll
                for (int r = 0; r < S::CK; r++)
#pragma unroll
                    for (int g = 0; g < S::KG; g++) {
                        const float *from = sums + g * S::MG * BLOCK + 128 * piece;
#pragma unroll
                        for (int i = 0; i < PIECE; i++)
                            total[i] += S::CK > 1 ? load_of_rank(from + 128 * i, r) : from[128 * i];
                    }
                store_blocks<PIECE / 4>(*w.part, row, w.token0 + 2 * piece, w.n, scales + 2 * piece, total);
            }
            if (S::CK > 1)
                cluster_sync(); /* nobody leaves while others still read its memory */
        }
    }
}

#define HK_WGMMA(name, S, lower)                                                                                       \
    HK_KERNEL __launch_bounds__(S::THREADS, 1) __cluster_dims__(S::CK, 1, 1)                                           \
        hk_wgmma##name##_##lower(const __grid_constant__ hk_matmul_args a) {                                           \
        matmul<unit_##lower, S>(a);                                                                                    \
    }

#ifdef HK_TRY /* experiments */
typedef shape<HK_TRY> tried;
#define HK_QUANTISED(lower) HK_WGMMA(_try, tried, lower)
#define HK_FLOATS(lower)    HK_WGMMA(_try, tried, lower)
#else
/* Mirrored, with what they cost, in kernels/cuda/tiles.py. */
typedef shape<32, 1, 4, 8, 16, 1, false> shape_32;
typedef shape<32, 1, 4, 8, 16, 2, false> shape_32s;
typedef shape<64, 1, 4, 4, 16, 1, false> shape_64;
typedef shape<64, 1, 4, 4, 16, 2, false> shape_64s;
typedef shape<128, 2, 1, 2, 6, 1, false> shape_128;
typedef shape<128, 1, 2, 2, 8, 2, true> shape_128s;
typedef shape<256, 2, 1, 2, 4, 1, true> shape_256;
typedef shape<256, 2, 1, 2, 4, 2, true> shape_256s;
typedef shape<64, 1, 2, 2, 16, 1, true> shape_64f;
typedef shape<128, 2, 1, 2, 4, 1, true> shape_128f;
#define HK_QUANTISED(lower)                                                                                            \
    HK_WGMMA(32, shape_32, lower)                                                                                      \
    HK_WGMMA(32s, shape_32s, lower)                                                                                    \
    HK_WGMMA(64, shape_64, lower)                                                                                      \
    HK_WGMMA(64s, shape_64s, lower)                                                                                    \
    HK_WGMMA(128, shape_128, lower)                                                                                    \
    HK_WGMMA(128s, shape_128s, lower)                                                                                  \
    HK_WGMMA(256, shape_256, lower)                                                                                    \
    HK_WGMMA(256s, shape_256s, lower)
#define HK_FLOATS(lower)                                                                                               \
    HK_WGMMA(64f, shape_64f, lower)                                                                                    \
    HK_WGMMA(128f, shape_128f, lower)
#endif

#ifdef HK_ONLY
#define HK_APPLY(name) HK_QUANTISED(name)
HK_APPLY(HK_ONLY)
#else
HK_FLOATS(f16)
HK_FLOATS(bf16)
#define HK_WGMMA_F32(lower)
#define HK_WGMMA_Q8_32(lower)                                    HK_QUANTISED(lower)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_WGMMA_##act(lower)
#include "../formats/hk_types.def"
#endif
#endif
