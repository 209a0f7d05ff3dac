/* A warp's share of all weights of a step of one token, on their way into shared memory while other things happen: the
 * queue does not end with an instruction of the tape (token.cu), it goes on with the products behind it.
 *
 * A tile is 16 rows of a part; a block has a contiguous range of those of the first format's parts, and one of the
 * second's, or with `glu` a range of the gate's and the same of up's. These are its tiles 0, 1, ..., and its warps have
 * contiguous ranges of their steps (hk_step.cuh). A piece is one step. Pieces lie one behind the other in a warp's
 * memory, and at its start again where the end has no room; a barrier each says when they are there.
 */
#ifndef HK_STREAM_CUH
#define HK_STREAM_CUH

#include "hk_args.h"
#include "hk_pieces.cuh"

#define HK_TAPE    8         /* instructions in shared memory */
#define HK_AHEAD   16        /* of a warp on their way, at most */
#define HK_RUNS    4         /* of a warp, known before they are asked for */
#define MOST_TRIES (1 << 26) /* of a wait, before it is taken for a fault */

/* What a block has to do of a group of products. */
struct block_share {
    int first, n_first, other, n_other, steps, tiles; /* steps of a tile; tiles: of all */
    bool glu;
};
HK_FN block_share share_of(const hk_matvec_args &a, int block, int blocks) {
    block_share s;
    int r = blocks - 1 - block;
    s.glu = a.glu;
    s.steps = ((int)a.cols + 255) / 256;
    s.first = block * a.tiles + min(block, a.more_tiles);
    s.n_first = a.tiles + (block < a.more_tiles);
    s.other = r * a.other_tiles + min(r, a.other_more_tiles);
    s.n_other = a.other_tiles + (r < a.other_more_tiles);
    s.tiles = s.glu ? 2 * s.n_first : s.n_first + s.n_other;
    return s;
}
/* The first step of a warp, of all of a block's. */
HK_FN int first_step(const block_share &s, int warp, int warps) {
    int all = s.tiles * s.steps, share = all / warps;
    return warp * share + min(warp, all - share * warps);
}
/* Where the block's tile v is; second: of the formats. */
struct tile_place {
    int part, tile;
    bool second;
};
HK_FN tile_place place_of(const hk_matvec_args &a, const block_share &s, int v) {
    if (s.glu) {
        int up = v >= s.n_first;
        return {up, s.first + v - (up ? s.n_first : 0), false};
    }
    bool second = v >= s.n_first;
    int part = second ? a.n_first : 0, t = second ? s.other + v - s.n_first : s.first + v;
    for (; part + 1 < a.n_parts; part++) {
        int tiles = ((int)a.part[part].rows + 15) >> 4;
        if (t < tiles)
            break;
        t -= tiles;
    }
    return {part, t, second};
}

/* Where a warp's asking has come to: the instruction, its tile, the step in it, steps left behind the run. In shared
 * memory, as it is rarely needed. */
struct feed_place {
    int at, v, step, left;
};
/* Steps that follow each other in memory. unit: bytes of one; behind: the number of an attention whose memory is taken
 * from here on, plus 1. */
struct weight_run {
    const u8 *from;
    u32 bytes;
    u16 unit, behind;
};

/* What a warp keeps of it in shared memory. offsets: of pieces; runs: the next ones, worked out while there is nothing
 * else to do. */
struct warp_queue {
    u64 barriers[HK_AHEAD];
    weight_run runs[HK_RUNS];
    u32 offsets[HK_AHEAD];
    feed_place feed;
};

/* The instructions that are in shared memory: [..., known). */
struct tape_window {
    const hk_instruction *at;
    int known;
    __device__ __forceinline__ const hk_instruction &operator[](int i) const { return at[i % HK_TAPE]; }
};

template <int N_WARPS> struct weight_stream {
    /* memory */
    u8 *data;
    warp_queue *queue;
    u32 room, area, head, tail; /* area: at the end, what attention needs of it */
    int put, got, warp, lane;
    /* what is asked for next */
    const u8 *from;
    u32 bytes, unit; /* left of a tile's run; of a step */
    int first, ready;
    int reserved; /* the attention that the end of the memory is kept free for, or -1 */
    bool outputs; /* whether products of output rows are wanted */

    /* Whether this lane writes what the warp shares. Lanes of the host's tests have it each for themselves. */
    __device__ __forceinline__ bool writes() const {
#ifdef __CUDA_ARCH__
        return lane == 0;
#else
        return true;
#endif
    }
    __device__ __forceinline__ void start() {
        head = tail = 0, put = got = 0;
        bytes = 0, reserved = -1, first = ready = 0;
        if (writes())
            queue->feed = {-1, 0, 0, 0};
        start_barriers(queue->barriers, HK_AHEAD, lane);
    }
    /* Whether a piece has room, and where. */
    __device__ __forceinline__ bool place(u32 n, u32 &to) {
        if (put - got == HK_AHEAD)
            return false;
        if (put == got) {
            to = 0;
            return true;
        }
        u32 limit = reserved >= 0 ? room - area : room;
        to = head;
        if (head <= tail)
            return head + n <= min(tail, limit);
        if (head + n <= limit)
            return true;
        to = 0;
        return n <= min(tail, limit);
    }
    __device__ __forceinline__ void ask(u32 to, u32 n) {
        int slot = put % HK_AHEAD;
        ask_piece<true>(data + to, from, n, queue->barriers + slot, lane);
        if (writes())
            queue->offsets[slot] = to;
        if (put == got)
            tail = to;
        head = to + n;
        put++;
    }
    /* Works out one more run; false if its instruction is not known yet. attends: whether the warp has a part in it. */
    template <class ATTENDS> __device__ __forceinline__ bool find(const tape_window &tape, ATTENDS attends) {
        __syncwarp();
        feed_place f = queue->feed;
        __syncwarp();
        int behind = 0;
        while (f.left == 0) {
            int next = f.at + 1;
            if (next >= tape.known) {
                if (behind) /* again, when what follows is known */
                    next = behind - 1;
                if (writes())
                    queue->feed = {next - 1, 0, 0, 0};
                return false;
            }
            const hk_instruction &i = tape[next];
            f.at = next;
            if (i.kind == HK_DO_ATTEND && attends(i))
                behind = next + 1;
            if (i.kind != HK_DO_PRODUCTS || (i.products.rows_are_outputs && !outputs))
                continue;
            block_share s = share_of(i.products, blockIdx.x, gridDim.x);
            int begin = first_step(s, warp, N_WARPS);
            f.left = first_step(s, warp + 1, N_WARPS) - begin;
            f.v = begin / s.steps;
            f.step = begin - f.v * s.steps;
        }
        const hk_instruction &i = tape[f.at];
        const hk_matvec_args &a = i.products;
        block_share s = share_of(a, blockIdx.x, gridDim.x);
        tile_place p = place_of(a, s, f.v);
        const hk_format &format = i.format[p.second];
        u32 per_step = 256 / format.columns, records = ((u32)a.cols + format.columns - 1) / format.columns;
        u32 skipped = f.step * per_step;
        int tiles = 1; /* whole steps go on in the part's next tile */
        if (((int)a.cols & 255) == 0)
            tiles = min((f.v < s.n_first ? s.n_first : s.tiles) - f.v, (((int)a.part[p.part].rows + 15) >> 4) - p.tile);
        int n = min(tiles * s.steps - f.step, f.left);
        weight_run run = {a.part[p.part].w.at + ((s64)p.tile * records + skipped) * format.record,
                          min(n * per_step, tiles * records - skipped) * format.record, (u16)(per_step * format.record),
                          (u16)behind};
        if (writes()) {
            queue->runs[(first + ready) % HK_RUNS] = run;
            queue->feed = {f.at, f.v + tiles, 0, f.left - n};
        }
        ready++;
        return true;
    }
    /* Works out one run more, before it is needed: all at once keep the next input waiting. */
    template <class ATTENDS> __device__ __forceinline__ void look_ahead(const tape_window &tape, ATTENDS attends) {
        if (ready < HK_RUNS)
            find(tape, attends);
    }
    /* The next run; false if it is not known yet, or must wait. What comes behind attention stays out of the area. */
    template <class ATTENDS> __device__ __forceinline__ bool next(const tape_window &tape, ATTENDS attends) {
        if (ready == 0 && !find(tape, attends))
            return false;
        __syncwarp();
        weight_run r = queue->runs[first % HK_RUNS];
        if (r.behind) {
            if (reserved >= 0)
                return false;
            reserved = r.behind - 1;
        }
        from = r.from, bytes = r.bytes, unit = r.unit;
        first++;
        ready--;
        return true;
    }
    /* Asks for the next step of a run, if there is room. */
    __device__ __forceinline__ bool ask_next() {
        u32 n = min(bytes, unit), to;
        if (!place(n, to))
            return false;
        ask(to, n);
        from += n;
        bytes -= n;
        return true;
    }
    /* Asks for as much as there is room for. */
    template <class ATTENDS> __device__ __forceinline__ void fill(const tape_window &tape, ATTENDS attends) {
        for (;;) {
            if (bytes == 0 && !next(tape, attends))
                return;
            if (!ask_next())
                return;
        }
    }
    /* Attention number i is over. */
    __device__ __forceinline__ void give_back(int i) {
        if (reserved == i)
            reserved = -1;
    }
    /* The oldest piece, once it is there. */
    __device__ __forceinline__ const u8 *take() {
#if __CUDA_ARCH__ >= 800
        u32 b = shared_address(queue->barriers + got % HK_AHEAD), parity = got / HK_AHEAD & 1;
        for (int tries = 0; !is_there(b, parity); tries++)
            if (tries > MOST_TRIES)
                asm volatile("trap;");
#else
        __syncwarp();
#endif
        return data + tail;
    }
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (++got != put)
            tail = queue->offsets[got % HK_AHEAD];
    }
};

#endif
