/* A tape: the operations of a model, lowered to C structs, replayed for every step without Python.
 *
 * Addresses are indirect through small tables (buffers, activations, angles), filled when the tape is built; only the
 * base of the logits buffer changes from step to step. Every operation is divided over the threads of the region;
 * `sync` says that an operation reads or overwrites what an earlier one since the last barrier produced.
 */
#ifndef HK_TAPE_H
#define HK_TAPE_H

#include "../cpu/hk_cpu.h"
#include "hk_pool.h"

typedef enum hk_op_kind {
    HK_OP_EMBED,
    HK_OP_ANGLES,
    HK_OP_NORM,
    HK_OP_MATMUL,
    HK_OP_HEADS, /* per head: norm, rotation, store to the KV cache */
    HK_OP_ATTEND,
    HK_OP_ELEMENTS, /* glu, add, scale, softcap, or nothing, then quantise */
    HK_OP_SELECT,
    HK_OP_OBSERVE, /* adds the squares of a buffer's columns to sums that the caller owns */
    HK_OP_ARGMAX
} hk_op_kind;

enum { HK_EL_NONE, HK_EL_GLU, HK_EL_ADD, HK_EL_SCALE, HK_EL_SOFTCAP };

/* Float32 [rows][stride], stride a multiple of 16. */
typedef struct hk_buffer {
    float *base;
    int64_t stride;
    int32_t outputs; /* rows are the step's outputs instead of its tokens */
} hk_buffer;

/* Columns [offset, offset + width) of a buffer. buf < 0: none. */
typedef struct hk_view {
    int32_t buf, offset, width;
} hk_view;

/* The input of products. Kind F32 may be an alias of a view (its rows then are 64-byte aligned), or memory of its own.
 * Kind Q8_PAIR has two rows for each of the others: its columns of a product are added in pairs.
 */
typedef struct hk_act_buf {
    int32_t kind;
    hk_view alias;
    int8_t *codes;
    float *scales;
    int16_t *sums;
    float *x;
    int64_t codes_stride, scales_stride, sums_stride, x_stride;
    uint16_t *tiles; /* of kind Q8_32, for sets that multiply them: rows as columns in bf16 (hk_to_tiles_fn), or NULL */
    int64_t tiles_stride;
} hk_act_buf;

/* float [tokens][rot / 2][2] */
typedef struct hk_angles {
    const double *inv_freq, *inv_freq_long;
    float mscale, mscale_long;
    int32_t half; /* rot / 2 */
    float *cs;
} hk_angles;

/* Where a block's heads lie within a KV page: offset + head * (k_bytes + v_bytes), K plane first. */
typedef struct hk_kv_layout {
    int64_t offset, k_bytes, v_bytes;
    int32_t n_kv, head_dim_k, head_dim_v;
} hk_kv_layout;

/* One weight of a group of products that share their input. All of a group or none have an input of kind Q8_PAIR. */
typedef struct hk_part {
    const uint8_t *panels; /* packed; NULL: the weight stays as it lies in the file, `rows` raw rows at `raw` */
    int64_t n_panels, panel_bytes;
    const uint8_t *raw;
    int64_t row_bytes, rows;
    int32_t type; /* hk_type */
    hk_gemv_fn gemv;
    hk_gemm_fn gemm;
    hk_gemv_raw_fn gemv_raw; /* or NULL */
    const float *bias;
    hk_view out, add;
    int32_t act;
    int32_t staged; /* products go to scratch first: `add` is `out`, or whole panels would overrun the view */
} hk_part;

/* One run of heads of the operation HK_OP_HEADS. */
typedef struct hk_stream {
    hk_view x;
    int32_t n_heads, head_dim;
    const float *norm; /* RMS norm weight, or NULL */
    float eps;
    int32_t angles; /* or -1 */
    int32_t layout; /* HK_ROPE_* */
    int32_t store;  /* 0 none, 1 K, 2 V */
} hk_stream;

#define HK_MAX_PARTS   8
#define HK_MAX_STREAMS 4
#define HK_MAX_EMIT    2

typedef struct hk_op {
    int32_t kind, sub; /* hk_op_kind; HK_EL_* or activation of glu */
    int32_t sync;      /* barrier before this operation */
    int32_t n_emit;    /* activations quantised from the result */
    int32_t emit[HK_MAX_EMIT];
    hk_view out, x, y; /* y: second operand, or what rmsnorm adds */
    float number;      /* eps, factor, cap, scale */
    float softcap;
    const float *vector; /* norm weight */
    double *sums;        /* observe: [width of x], then the number of rows */
    /* embed */
    const uint8_t *raw;
    int64_t row_bytes, K, table_rows;
    hk_dequant_fn dequant;
    /* matmul */
    int32_t n_parts;
    hk_part parts[HK_MAX_PARTS];
    /* heads, attend */
    int32_t n_streams;
    hk_stream streams[HK_MAX_STREAMS];
    int32_t kv, n_head, window, act;
    int32_t angles;
} hk_op;

/* Up to 32 consecutive rows of one sequence, at ascending positions. */
#define HK_TILE 32
typedef struct hk_row_tile {
    int32_t row, n, sequence;
} hk_row_tile;

#define HK_MAX_GPUS 16

/* The inputs and results of one step. */
typedef struct hk_slot {
    int32_t n, n_out;
    int32_t *tokens, *positions, *sequences, *variants; /* [n] */
    int32_t *outputs;                                   /* [n_out] */
    int32_t *pages;                                     /* [n_seq][pages_stride] */
    float *logits;                                      /* [n_out][stride of the logits buffer] */
    int32_t *best, *bad;                                /* [n_out], greedy only */
    float *best_value;
    double *best_lse;
    struct hk_device_slot *devices[HK_MAX_GPUS]; /* for steps on GPUs (hk_gpu.h), or NULL */
} hk_slot;

/* Largest value and log-sum-exp of a chunk of one row of logits. */
#define HK_ARGMAX_CHUNK 4096
typedef struct hk_best {
    int64_t index;
    double lse;
    float value;
    int32_t bad;
} hk_best;

typedef struct hk_tape {
    const hk_cpu_set *set;
    hk_op *ops;
    int32_t n_ops, n_buffers, n_acts, n_angles, n_kv;
    hk_buffer *buffers;
    hk_act_buf *acts;
    hk_angles *angles;
    hk_kv_layout *kv;
    int32_t kv_type, logits; /* index of the logits buffer, -1 none */
    int32_t max_rows, max_outputs, max_pages;
    uint8_t *kv_base;
    int64_t kv_page_bytes, pages_stride;
    /* split attention: one partial result per (row, head, page), of at most HK_SPLIT_ROWS rows */
    float *partial;
    int64_t partial_stride; /* floats per partial: padded head_dim_v + 16 */
    hk_row_tile *tiles;
    int32_t n_tiles;
    hk_best *bests;
} hk_tape;

#define HK_SPLIT_ROWS 4

typedef struct hk_counter {
    _Alignas(128) atomic_int next;
} hk_counter;

/* One replay. */
typedef struct hk_run {
    hk_tape *tape;
    hk_slot *slot;
    hk_team *team;
    atomic_int *cancel;
    int (*poll)(void); /* called by thread 0 now and then; nonzero cancels */
    int64_t last_poll;
    int32_t greedy, n_threads;
    hk_counter *counters; /* [2][HK_MAX_THREADS], */
    int parity;           /* and which of them the next dynamic operation takes */
} hk_run;

/* Replays operations [first, last) of the tape on one thread of a region, with a barrier behind them. All threads
 * return the same: HK_OK or HK_CANCELLED. */
int hk_tape_run(hk_run *run, int thread, int first, int last);

/* Dynamic division: a thread takes the items of its own contiguous part in order, then those left in the others'. */
typedef struct hk_taker {
    hk_counter *counters;
    int64_t total;
    int n, thread, victim;
} hk_taker;

/* Item to work on, or -1 when none is left or the step was cancelled. */
int64_t hk_take(hk_run *run, hk_taker *taker);

/* Static division: items [*b, *e) of thread i of n. */
static inline void hk_split(int64_t total, int i, int n, int64_t *b, int64_t *e) {
    *b = total * i / n;
    *e = total * (i + 1) / n;
}

static inline float *hk_row(const hk_tape *t, hk_view v, int64_t row) {
    const hk_buffer *b = &t->buffers[v.buf];
    return b->base + row * b->stride + v.offset;
}

static inline int64_t hk_rows(const hk_run *r, hk_view v) {
    return r->tape->buffers[v.buf].outputs ? r->slot->n_out : r->slot->n;
}

/* Quantises columns [c0, c1) of a row for every activation that the operation emits. */
void hk_emit(const hk_run *r, const hk_op *op, const float *row, int64_t row_index, int64_t c0, int64_t c1);
/* The columns of an activation from row `row` on; of kind Q8_PAIR, from row 2 * `row of the step` on. */
hk_act hk_act_from(const hk_tape *t, int32_t act, int64_t row);

void hk_op_embed(hk_run *r, const hk_op *op, int thread);
void hk_op_angles(hk_run *r, const hk_op *op, int thread);
void hk_op_norm(hk_run *r, const hk_op *op, int thread);
void hk_op_select(hk_run *r, const hk_op *op, int thread);
void hk_op_observe(hk_run *r, const hk_op *op, int thread);
void hk_op_elements(hk_run *r, const hk_op *op, int thread);
void hk_op_heads(hk_run *r, const hk_op *op, int thread);
void hk_op_matmul(hk_run *r, const hk_op *op, hk_taker *taker);
int hk_op_attend(hk_run *r, const hk_op *op, hk_taker *taker);
void hk_op_argmax(hk_run *r, const hk_op *op, int thread);
/* Combines the chunks of hk_op_argmax; after the region. */
void hk_argmax_finish(hk_run *r);

#endif
