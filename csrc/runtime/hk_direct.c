#include "hk_direct.h"

#include <time.h>

#include "hk_memory.h"
#include "hk_step.h"

typedef struct pack_job {
    hk_type t;
    const uint8_t *raw;
    int64_t row_bytes, rows, cols;
    uint8_t *dst;
} pack_job;

static void pack_part(void *arg, int thread, hk_team *team) {
    const pack_job *j = arg;
    int64_t b, e;
    hk_split((j->rows + HK_PANEL - 1) / HK_PANEL, thread, team->n, &b, &e);
    if (b < e)
        hk_pack(j->t, j->raw, j->row_bytes, j->rows, j->cols, b, e, j->dst);
}

int hk_direct_pack(hk_type t, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, uint8_t *dst,
                   int n_threads) {
    pack_job j = {t, raw, row_bytes, rows, cols, dst};
    return hk_pool_run(n_threads, NULL, pack_part, &j);
}

/* Codes, scales and sums of n columns, and tiles where the set reads them, in one mapping. Returns its size. */
static int64_t map_act(const hk_cpu_set *set, hk_act_buf *a, int64_t n, int64_t K, int kind, uint8_t **memory) {
    a->kind = kind;
    a->alias.buf = -1;
    a->codes_stride = ((K + 63) / 64 | 1) * 64; /* an odd number of cache lines, as the tape builder has it */
    a->scales_stride = (K / 32 + 15) & ~(int64_t)15;
    a->sums_stride = (K / 16 + 31) & ~(int64_t)31;
    a->tiles_stride = hk_tiles_stride(K);
    int64_t tiles = set->op.to_tiles ? (n + 15) / 16 * a->tiles_stride * 2 : 0, codes = n * a->codes_stride,
            scales = n * a->scales_stride * 4, bytes = tiles + codes + scales + n * a->sums_stride * 2;
    if (!(*memory = hk_memory_map(bytes, 0)))
        return 0;
    a->tiles = tiles ? (uint16_t *)*memory : NULL;
    a->codes = (int8_t *)*memory + tiles;
    a->scales = (float *)(*memory + tiles + codes);
    a->sums = (int16_t *)(*memory + tiles + codes + scales);
    return bytes;
}

/* A tape of one or two operations: quantise the input where the format wants it, multiply. */
int hk_direct_matmul(const hk_cpu_set *set, hk_type t, const uint8_t *panels, int64_t rows, int64_t cols, float *x,
                     int64_t x_stride, int64_t n, float *out, int64_t out_stride, int n_threads) {
    hk_buffer buffers[2] = {{x, x_stride, 0}, {out, out_stride, 0}};
    hk_view none = {-1, 0, 0}, in = {0, 0, (int32_t)cols}, result = {1, 0, (int32_t)rows};
    hk_act_buf act = {.kind = HK_ACT_F32, .alias = in};
    uint8_t *memory = NULL;
    int64_t bytes = 0;
    if (hk_types[t].act != HK_ACT_F32 && !(bytes = map_act(set, &act, n, cols, hk_types[t].act, &memory)))
        return HK_ERR_MEMORY;
    hk_op ops[2] = {{.kind = HK_OP_ELEMENTS, .sub = HK_EL_NONE, .x = in, .y = none, .out = none, .n_emit = bytes > 0},
                    {.kind = HK_OP_MATMUL, .sync = 1, .x = none, .y = none, .out = none, .K = cols, .n_parts = 1}};
    ops[1].parts[0] = (hk_part){.panels = panels,
                                .n_panels = (rows + HK_PANEL - 1) / HK_PANEL,
                                .panel_bytes = hk_panel_bytes(t, cols),
                                .gemv = set->type[t].gemv,
                                .gemm = set->type[t].gemm,
                                .out = result,
                                .add = none};
    hk_row_tile tiles[1];
    hk_tape tape = {.set = set,
                    .ops = ops,
                    .n_ops = 2,
                    .n_buffers = 2,
                    .buffers = buffers,
                    .acts = &act,
                    .n_acts = 1,
                    .logits = -1,
                    .max_rows = (int32_t)n,
                    .max_pages = 1,
                    .tiles = tiles};
    hk_command replay = {.kind = HK_REPLAY, .last = tape.n_ops, .tape = &tape};
    hk_program program = {.commands = &replay, .n_commands = 1};
    hk_slot slot = {.n = (int32_t)n};
    int rc = hk_program_run(&program, &slot, n_threads);
    if (memory)
        hk_memory_unmap(memory, bytes);
    return rc;
}

typedef struct read_job {
    const uint8_t *p;
    int64_t bytes;
    atomic_ullong sum;
} read_job;

static void read_part(void *arg, int thread, hk_team *team) {
    read_job *j = arg;
    int64_t b, e;
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    hk_split(j->bytes / 64, thread, team->n, &b, &e);
    for (const uint64_t *p = (const uint64_t *)(j->p + 64 * b), *end = (const uint64_t *)(j->p + 64 * e); p < end;
         p += 8) {
        s0 += p[0] ^ p[1];
        s1 += p[2] ^ p[3];
        s2 += p[4] ^ p[5];
        s3 += p[6] ^ p[7];
    }
    atomic_fetch_add(&j->sum, s0 + s1 + s2 + s3);
}

double hk_direct_read_rate(const uint8_t *p, int64_t bytes, int n_threads) {
    read_job j = {.p = p, .bytes = bytes};
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    if (hk_pool_run(n_threads, NULL, read_part, &j) != HK_OK)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &b);
    return bytes / (b.tv_sec - a.tv_sec + 1e-9 * (b.tv_nsec - a.tv_nsec));
}
