/* What kernels take: one struct by value each, so that a launch is (function, grid, block, bytes). All pointers are
 * device addresses. Host code packs the same structs (src/hybridkern/kernels/cuda/arguments.py). */
#ifndef HK_ARGS_H
#define HK_ARGS_H

/* The step slot: everything that changes from step to step. The addresses stay, the contents are written before a step,
 * so one captured graph serves every position. */
typedef struct hk_step {
    const int *counts;                                    /* [0] tokens, [1] outputs */
    const int *tokens, *positions, *sequences, *variants; /* [tokens] */
    const int *outputs;                                   /* [outputs] rows of the step */
    const int *pages;                                     /* [sequences][page_stride] page ids */
    long long page_stride;
} hk_step;

/* A matrix in device layout (hk_unit.cuh). */
typedef struct hk_matrix {
    const unsigned char *at;
} hk_matrix;

typedef struct hk_convert_args {
    const unsigned char *raw; /* rows as the file holds them */
    hk_matrix to;
    long long rows, cols;
} hk_convert_args;

/* One product of a group: out[t][r] = w[r] . x[t] (+ bias[r]) (+ add[t][r]). */
typedef struct hk_part {
    hk_matrix w;
    float *out;
    const float *bias, *add;
    long long rows, out_stride, add_stride;
} hk_part;

#define HK_MAX_PARTS 4
enum { HK_GLU_NONE, HK_GLU_SILU, HK_GLU_GELU_TANH };

typedef struct hk_matvec_args {
    /* What the first copies need lies together: every line of arguments is a miss of the constant cache. */
    long long cols;
    int n_parts, n_first; /* parts in the first of two formats */
    int tiles, more_tiles, other_tiles,
        other_more_tiles; /* 16 rows of both formats for every block; blocks with one more */
    int slots;            /* steps of 256 columns that a warp has on their way */
    int glu, rows_are_outputs, normalise;
    float eps;
    int pad;
    hk_part part[HK_MAX_PARTS]; /* with glu: gate, up; the result goes to part[0].out */
    /* One column: float input, normalised by `norm` if that is given, quantised by every CTA for itself. */
    const float *x, *norm;
    /* More columns: halves, see hk_rows.cuh, and what the results must be multiplied by. */
    const unsigned short *half;
    const float *half_scale; /* [tokens] */
    long long half_stride;   /* tokens of a chunk */
    long long staged;        /* whether halves are copied to shared memory */
    hk_step step;
} hk_matvec_args;

typedef struct hk_matmul_args {
    hk_step step;
    hk_part part[HK_MAX_PARTS];
    const unsigned short *x;  /* halves as hk_rows.cuh says */
    const float *x_scale;     /* [tokens] what x must be multiplied by */
    const float *x32;         /* the float kernels' input instead */
    long long cols, x_stride; /* of x: tokens of a chunk; of x32: values of a row */
    int n_parts, rows_are_outputs;
} hk_matmul_args;

enum { HK_ROW_COPY, HK_ROW_GLU_SILU, HK_ROW_GLU_GELU_TANH, HK_ROW_ADD, HK_ROW_SCALE, HK_ROW_SOFTCAP, HK_ROW_SELECT };

/* out = f(x, y) by row, normalised if asked, and handed on in the forms that products take. */
typedef struct hk_rows_args {
    hk_step step;
    const float *x, *y, *norm, *add;
    float *out;           /* f32, or NULL */
    unsigned short *half; /* f16 and its scale, or NULL */
    float *half_scale;
    long long half_stride; /* tokens of a chunk */
    long long width, x_stride, y_stride, add_stride, out_stride;
    int mode, rows_are_outputs, normalise;
    float eps, number;
    int pad;
} hk_rows_args;

/* Squares of x, by column, are added to sums [width], the number of rows to sums[width]. */
typedef struct hk_observe_args {
    hk_step step;
    const float *x;
    double *sums;
    long long width, x_stride;
    int rows_are_outputs, pad;
} hk_observe_args;

typedef struct hk_embed_args {
    hk_step step;
    hk_matrix table;
    float *out;
    long long rows, cols, out_stride;
    float scale;
    int pad;
} hk_embed_args;

typedef struct hk_angles_args {
    hk_step step;
    const double *inv_freq, *inv_freq_long; /* [half] */
    float *out;                             /* [tokens][half][2] cos, sin */
    long long half;
    float mscale, mscale_long;
} hk_angles_args;

enum { HK_CACHE_F16, HK_CACHE_Q8_0, HK_CACHE_Q4_0 };

/* Where a block's keys and values lie. A page holds 128 tokens of all blocks; the plane of one KV head is
 * codes [128][dim] then scales f16 [128][dim / 32]: K plane, then V plane (hk_cache.cuh). */
typedef struct hk_cache {
    unsigned char *pages;
    long long page_bytes, block_offset; /* of page 0's plane of head 0 */
    int n_kv, dim_k, dim_v, type;
} hk_cache;

/* One head per warp: norm, rotation, store. */
typedef struct hk_stream {
    float *x;
    const float *norm, *angles; /* or NULL */
    long long stride;
    int n_heads, dim, half, neox; /* half: pairs that are rotated */
    int store;                    /* 0 no, 1 keys, 2 values */
    float eps;
} hk_stream;

#define HK_MAX_STREAMS 3
typedef struct hk_heads_args {
    hk_step step;
    hk_cache cache;
    hk_stream stream[HK_MAX_STREAMS];
    int n_streams, pad;
} hk_heads_args;

typedef struct hk_attend_args {
    hk_step step;
    hk_cache cache;
    const float *q;
    float *out, *partial; /* partial [tokens][heads][splits][dim_v + 2] floats */
    int *arrived;         /* [tokens][kv heads * tiles of 8 heads], zero between steps */
    long long q_stride, out_stride;
    int n_head, window, splits, pad;
    float scale, softcap;
} hk_attend_args;

/* Where the host finds a row's choice without any copy, entry.position being the row's position once it is there. */
typedef struct hk_choice {
    int best, position; /* best: -1 where nothing could be chosen */
    float value, lse;
} hk_choice;
#define HK_CHOICES 8 /* entries of a ring by position */

/* What becomes of a choice. next: the slot's tokens and positions, where every row is the only token of its sequence
 * (outputs[i] == i): the next step then needs no word from the host. */
typedef struct hk_handover {
    hk_choice *host; /* [HK_CHOICES][host_stride], or NULL */
    int *next_tokens, *next_positions;
    long long host_stride;
} hk_handover;

typedef struct hk_argmax_args {
    hk_step step;
    const float *logits;
    float *partial; /* [outputs][chunks][4] */
    int *arrived;   /* [outputs], zero between steps */
    int *best;      /* [outputs] */
    float *value;   /* [outputs][2] best logit, log of the sum of exponentials; NaN where none can be chosen */
    long long width, stride;
    hk_handover to;
} hk_argmax_args;

typedef struct hk_topk_args {
    hk_step step;
    const float *logits;
    unsigned int *peaks; /* [outputs][64 chunks][256] */
    float *partial;      /* [outputs][64 chunks][4] */
    int *arrived;        /* [outputs], zero between steps */
    int *ids;            /* [outputs][k], -1 behind the last one */
    float *values;       /* [outputs][k] */
    float *total;        /* [outputs][2] as value above */
    long long width, stride;
    hk_handover to;
    int k, pad;
} hk_topk_args;

/* Rows of a buffer that pass through mapped host memory. */
typedef struct hk_link_rows {
    float *at;
    long long stride;
    float *host; /* [rows][width] */
    int width, outputs;
} hk_link_rows;

#define HK_LINK_ROWS 4
typedef struct hk_link_args {
    hk_step step; /* counts[2]: the number of the step */
    hk_link_rows rows[HK_LINK_ROWS];
    int *flag;         /* the number of the step whose rows are there */
    const int *abort;  /* the number of the step that nobody waits for any more */
    int n_rows, quads; /* quads: everything is a multiple of 4 values */
} hk_link_args;

/* The step of one token as one kernel (token.cu): a tape of instructions, in order. */
enum { HK_DO_PRODUCTS, HK_DO_ROWS, HK_DO_ATTEND };

/* A quantised format. id: as in a file; columns: of a record, of so many bytes; meta: bytes for a unit of the input. */
typedef struct hk_format {
    int id, columns, record, meta;
} hk_format;

#define HK_INSTRUCTION_BYTES 512
typedef struct hk_instruction {
    int kind, waits;     /* waits: until blocks have met so many times; 0: not */
    hk_format format[2]; /* of products: of the first parts, of the others */
    union {
        hk_matvec_args products;
        hk_rows_args rows;
        struct {
            hk_heads_args heads; /* streams: queries, then keys and values where they are stored */
            hk_attend_args attend;
        };
        unsigned char bytes[HK_INSTRUCTION_BYTES - 2 * sizeof(int) - 2 * sizeof(hk_format)];
    };
} hk_instruction;

typedef struct hk_token_args {
    hk_step step;
    const hk_instruction *tape;
    int *arrived;               /* [2], zero between steps: blocks at barriers, blocks that are done */
    unsigned long long *stamps; /* only where HK_STAMPS is defined: [n][6] times of block 0 */
    int n;                      /* instructions */
    int ring, tiles, input;     /* bytes of a warp's weights; most tiles of a block; bytes of the input's memory */
} hk_token_args;

#endif
