/* How the steps of a group of products are shared out, and where a warp's steps lie. A tile is 16 rows of one part, or
 * with `glu` 16 rows of the gate, then the same of up.
 *
 * A block has a contiguous range of the tiles of the first format's parts, and one of the second's: as many of each as
 * other blocks, but for one, and which blocks have one more of the second runs against which have one more of the
 * first. Its warps have contiguous ranges of the steps of all these. This is worked out at the start of every kernel,
 * in front of the first copy: it has to be short (general divisions by cost took 2 us).
 */
#ifndef HK_GROUP_CUH
#define HK_GROUP_CUH

#include "hk_ring.cuh"
#include "hk_step.cuh"

#define HK_SHORT_STEP 2000 /* bytes; launches.py knows it too */

template <class F, class G> struct is_same {
    static constexpr bool value = false;
};
template <class F> struct is_same<F, F> {
    static constexpr bool value = true;
};

/* n / d for n < 2^20. */
HK_FN int quotient(int n, int d) {
    int q = (int)__fdividef((float)n, (float)d);
    return q * d > n ? q - 1 : (q + 1) * d <= n ? q + 1 : q;
}

/* A tile of the block's, and one of its steps. index: among the block's tiles. */
struct step_place {
    int index, part, tile, at;
};

template <class F, class G> struct group_of_parts {
    const hk_matvec_args &a;
    int steps, per_tile;                         /* steps of a row, of a tile */
    int first, n_first, other, n_other, n_parts; /* the block's tiles of both formats */

    __device__ __forceinline__ group_of_parts(const hk_matvec_args &args) : a(args) {
        int b = blockIdx.x, r = gridDim.x - 1 - b;
        steps = ((int)a.cols + 255) / 256;
        per_tile = a.glu ? 2 * steps : steps;
        first = b * a.tiles + min(b, a.more_tiles);
        n_first = a.tiles + (b < a.more_tiles);
        other = is_same<F, G>::value ? 0 : r * a.other_tiles + min(r, a.other_more_tiles);
        n_other = is_same<F, G>::value ? 0 : a.other_tiles + (r < a.other_more_tiles);
    }
    __device__ __forceinline__ bool is_first(const step_place &p) const {
        return is_same<F, G>::value || p.index < n_first;
    }
    __device__ __forceinline__ int tiles(int part) const { return ((int)a.part[part].rows + 15) >> 4; }
    /* The tile with that index. */
    __device__ __forceinline__ step_place tile(int index) const {
        bool f = is_same<F, G>::value || index < n_first;
        int part = f ? 0 : a.n_first, t = f ? first + index : other + index - n_first;
        for (; t >= tiles(part) && part + 1 < a.n_parts; part++)
            t -= tiles(part);
        return {index, part, t, 0};
    }
    /* Behind `n` steps of the tile; n does not reach beyond it. */
    __device__ __forceinline__ step_place behind(step_place p, int n) const {
        p.at += n;
        if (p.at < per_tile)
            return p;
        p.index++;
        if (!is_same<F, G>::value && p.index == n_first)
            return tile(p.index);
        p.at = 0;
        if (++p.tile == tiles(p.part) && p.part + 1 < a.n_parts)
            p.tile = 0, p.part++;
        return p;
    }
    /* Where the range of a warp begins; n: how many steps it has. */
    __device__ __forceinline__ step_place range(int warp, int warps, int &n) const {
        int all = (n_first + n_other) * per_tile, share = quotient(all, warps), rest = all - share * warps;
        int begin = warp * share + min(warp, rest), index = quotient(begin, per_tile);
        n = share + (warp < rest);
        step_place p = tile(index);
        p.at = begin - index * per_tile;
        return p;
    }
};

/* Steps that a warp of PARTS parts of one column (N == 1) asks for and takes at once: two short ones, so that there is
 * more to do side by side, and less to do around it. */
template <class F, int N, int PARTS> HK_FN constexpr int steps_of_piece() {
    return N == 1 && PARTS == 1 && step_of<F>::BYTES <= HK_SHORT_STEP ? 2 : 1;
}

/* Where a warp's steps lie: one run of bytes after the other, each of one matrix and at most a row of tiles' records.
 */
template <class F, class G, int N, int PARTS> struct weight_runs {
    const group_of_parts<F, G> &group;
    step_place place; /* of the next run */
    int left;         /* steps from there on */
    const u8 *from;
    u32 bytes, unit; /* what is left of this run; of a piece */

    template <class H> __device__ __forceinline__ void locate(bool second, int at, int n) {
        u32 records = ((u32)group.a.cols + H::COLUMNS - 1) / H::COLUMNS, first = at * step_of<H>::RECORDS;
        from = group.a.part[place.part + second].w.at + ((s64)place.tile * records + first) * H::BYTES;
        bytes = min((u32)n * step_of<H>::RECORDS, records - first) * H::BYTES;
        unit = steps_of_piece<H, N, PARTS>() * step_of<H>::BYTES;
    }
    __device__ __forceinline__ void next() {
        bool second = place.at >= group.steps; /* of gate and up */
        int at = second ? place.at - group.steps : place.at, n = min(group.steps - at, left);
        if (group.is_first(place))
            locate<F>(second, at, n);
        else
            locate<G>(second, at, n);
        left -= n;
        if (left)
            place = group.behind(place, n);
    }
    /* Asks for the next piece; false if there is none. */
    __device__ __forceinline__ bool ask(weight_ring &ring) {
        if (bytes == 0) {
            if (left == 0)
                return false;
            next();
        }
        u32 n = min(bytes, unit);
        ring.ask(from, n);
        from += n;
        bytes -= n;
        return true;
    }
};

#endif
