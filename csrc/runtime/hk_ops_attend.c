/* Attention over the paged KV cache.
 *
 * A page is the unit of the computation: its (max m, sum l, weighted values acc) start from nothing, and pages are
 * merged in ascending order, M' = max(M, m);  L' = L e^(M - M') + l e^(m - M');  A' = A e^(M - M') + acc e^(m - M');
 * result A / L. Page edges are positions, so the order of the additions depends on a token's position and window alone:
 * the result is the same to the bit whether the pages of a token are computed by one thread after the other (many
 * tokens) or in parallel and merged afterwards (few tokens, long context), and whatever other tokens share the step.
 *
 * Query rows of one KV head go together (the heads that share it, for up to 32 tokens), so that a page is read once for
 * all of them. Rows of a tile have ascending positions: those that see something of a page are consecutive.
 */
#include <math.h>
#include <string.h>

#include "hk_tape.h"

#define MAX_ROWS 128 /* query rows per call */

typedef struct job {
    const hk_run *r;
    const hk_op *op;
    const hk_kv_layout *kv;
    int32_t group;        /* query heads per KV head */
    int32_t tokens;       /* per task, a power of two */
    int64_t dv;           /* head_dim_v padded to 16 */
    int32_t row, n, head; /* the task: rows [row, row + n), KV head */
    const int32_t *pages;
    float *q, *acc, *sum; /* [MAX_ROWS][head_dim_k], [MAX_ROWS][dv], [MAX_ROWS][dv] */
    float m[MAX_ROWS], l[MAX_ROWS], top[MAX_ROWS], total[MAX_ROWS];
    int32_t lo[MAX_ROWS], hi[MAX_ROWS], page_lo[MAX_ROWS], page_hi[MAX_ROWS];
    uint8_t *scratch;
} job;

static void merge(float *top, float *total, float *sum, float m, float l, const float *acc, int64_t n) {
    if (l == 0.0f && m == -INFINITY)
        return; /* saw nothing */
    if (*top == -INFINITY && *total == 0.0f) {
        *top = m;
        *total = l;
        memcpy(sum, acc, n * sizeof(float));
        return;
    }
    float t = m > *top ? m : *top, a = expf(*top - t), b = expf(m - t);
    *top = t;
    *total = *total * a + l * b;
    for (int64_t i = 0; i < n; i++)
        sum[i] = sum[i] * a + acc[i] * b;
}

/* Row and visible positions of every query row of the task; queries gathered, scaled. */
static void gather(job *j) {
    const hk_slot *s = j->r->slot;
    int64_t dk = j->kv->head_dim_k;
    for (int32_t t = 0; t < j->n; t++) {
        int32_t pos = s->positions[j->row + t], w = j->op->window;
        const float *q = hk_row(j->r->tape, j->op->x, j->row + t) + (int64_t)j->head * j->group * dk;
        for (int32_t g = 0; g < j->group; g++) {
            int32_t i = t * j->group + g;
            j->lo[i] = w > 0 && pos + 1 > w ? pos + 1 - w : 0;
            j->hi[i] = pos + 1;
        }
        j->r->tape->set->op.scale(j->q + (int64_t)t * j->group * dk, q, j->op->number, j->group * dk);
    }
}

static void start_task(job *j, int64_t item, int64_t per_tile) {
    const hk_tape *t = j->r->tape;
    const hk_row_tile *tile = &t->tiles[item / per_tile];
    int32_t first = (int32_t)(item % per_tile) * j->tokens;
    j->row = tile->row + first;
    j->n = tile->n - first < j->tokens ? tile->n - first : j->tokens;
    j->pages = j->r->slot->pages + tile->sequence * t->pages_stride;
    if (j->n > 0)
        gather(j);
}

/* The K plane of a page of the task. */
static const uint8_t *plane_of(const job *j, int32_t page) {
    const hk_tape *t = j->r->tape;
    return t->kv_base + j->pages[page] * t->kv_page_bytes + j->kv->offset + j->head * (j->kv->k_bytes + j->kv->v_bytes);
}

/* One page for the rows that see some of it: [*b, *e) of the task, results in m, l, acc. `last`: of the task. */
static void one_page(job *j, int32_t page, int32_t last, int32_t *b, int32_t *e) {
    const hk_tape *t = j->r->tape;
    int32_t rows = j->n * j->group, start = page * HK_PAGE, dk = j->kv->head_dim_k, dv = j->kv->head_dim_v;
    for (*b = 0; *b < rows && j->hi[*b] <= start; ++*b) {
    }
    for (*e = *b; *e < rows && j->lo[*e] < start + HK_PAGE; ++*e) {
        int32_t i = *e, lo = j->lo[i] - start, hi = j->hi[i] - start;
        j->page_lo[i] = lo > 0 ? lo : 0;
        j->page_hi[i] = hi < HK_PAGE ? hi : HK_PAGE;
        j->m[i] = -INFINITY;
        j->l[i] = 0;
        memset(j->acc + i * j->dv, 0, j->dv * sizeof(float));
    }
    if (*b == *e)
        return;
    const uint8_t *k = plane_of(j, page);
    t->set->op.attend_page(t->kv_type, k, k + j->kv->k_bytes, dk, dv, j->q + (int64_t)*b * dk, dk, *e - *b,
                           j->page_lo + *b, j->page_hi + *b, j->op->softcap, j->m + *b, j->l + *b, j->acc + *b * j->dv,
                           j->dv, page < last ? plane_of(j, page + 1) : NULL, j->scratch + HK_SCRATCH_ATTN);
}

static void write_row(const job *j, int64_t row, int32_t head, const float *sum, float total) {
    int64_t dv = j->kv->head_dim_v;
    float *out = hk_row(j->r->tape, j->op->out, row) + head * dv;
    for (int64_t i = 0; i < dv; i++)
        out[i] = sum[i] / total;
}

/* All pages of the task, merged as they come. */
static void whole_task(job *j) {
    int32_t rows = j->n * j->group, b, e;
    for (int32_t i = 0; i < rows; i++) {
        j->top[i] = -INFINITY;
        j->total[i] = 0;
    }
    const int32_t last = (j->hi[rows - 1] - 1) / HK_PAGE;
    for (int32_t p = j->lo[0] / HK_PAGE; p <= last; p++) {
        one_page(j, p, last, &b, &e);
        for (int32_t i = b; i < e; i++)
            merge(&j->top[i], &j->total[i], j->sum + i * j->dv, j->m[i], j->l[i], j->acc + i * j->dv,
                  j->kv->head_dim_v);
    }
    int64_t width = j->group * j->kv->head_dim_v;
    for (int32_t t = 0; t < j->n; t++) {
        for (int32_t g = 0; g < j->group; g++) {
            int32_t i = t * j->group + g;
            write_row(j, j->row + t, j->head * j->group + g, j->sum + i * j->dv, j->total[i]);
        }
        if (j->op->n_emit)
            hk_emit(j->r, j->op, hk_row(j->r->tape, j->op->out, j->row + t), j->row + t, j->head * width,
                    (j->head + 1) * width);
    }
}

/* Partial result of (row, query head, page): head_dim_v padded to 16, then m, l. */
static float *partial_of(const job *j, int64_t row, int64_t head, int64_t page) {
    const hk_tape *t = j->r->tape;
    return t->partial + ((row * j->op->n_head + head) * t->max_pages + page) * t->partial_stride;
}

static void split_task(job *j, int32_t page) {
    int32_t b, e;
    int64_t dv = j->kv->head_dim_v;
    one_page(j, page, (j->hi[j->n * j->group - 1] - 1) / HK_PAGE, &b, &e);
    for (int32_t i = b; i < e; i++) {
        float *p = partial_of(j, j->row + i / j->group, j->head * j->group + i % j->group, page);
        memcpy(p, j->acc + i * j->dv, dv * sizeof(float));
        p[j->dv] = j->m[i];
        p[j->dv + 1] = j->l[i];
    }
}

/* Merges the partial results of one row for the query heads of one KV head. */
static void merge_pages(job *j, int64_t row, int32_t head) {
    int32_t pos = j->r->slot->positions[row], w = j->op->window, lo = w > 0 && pos + 1 > w ? pos + 1 - w : 0;
    int64_t dv = j->kv->head_dim_v, width = j->group * dv;
    for (int32_t g = 0; g < j->group; g++) {
        float top = -INFINITY, total = 0;
        for (int32_t p = lo / HK_PAGE; p <= pos / HK_PAGE; p++) {
            const float *part = partial_of(j, row, head * j->group + g, p);
            merge(&top, &total, j->sum, part[j->dv], part[j->dv + 1], part, dv);
        }
        write_row(j, row, head * j->group + g, j->sum, total);
    }
    if (j->op->n_emit)
        hk_emit(j->r, j->op, hk_row(j->r->tape, j->op->out, row), row, head * width, (head + 1) * width);
}

static int split_attend(job *j, hk_run *r, hk_taker *taker, int64_t per_tile, int32_t pages) {
    int64_t b, e, tasks = r->tape->n_tiles * per_tile * j->kv->n_kv;
    taker->total = tasks * pages;
    for (int64_t item, held = -1; (item = hk_take(r, taker)) >= 0;) {
        int64_t task = item / pages;
        if (task != held) {
            j->head = (int32_t)(task % j->kv->n_kv);
            start_task(j, task / j->kv->n_kv, per_tile);
            held = task;
        }
        int32_t page = (int32_t)(item % pages);
        if (j->n > 0 && page * HK_PAGE < j->hi[j->n * j->group - 1])
            split_task(j, page);
    }
    if (hk_team_sync(r->team))
        return HK_CANCELLED;
    hk_split((int64_t)r->slot->n * j->kv->n_kv, taker->thread, r->n_threads, &b, &e);
    for (; b < e; b++)
        merge_pages(j, b / j->kv->n_kv, (int32_t)(b % j->kv->n_kv));
    return HK_OK;
}

/* Few rows and several pages are split by page; the choice changes no result. */
static int32_t pages_to_split(const hk_run *r, const job *j) {
    const hk_slot *s = r->slot;
    if (r->n_threads == 1 || s->n > HK_SPLIT_ROWS)
        return 0;
    int32_t last = 0;
    for (int32_t i = 0; i < s->n; i++)
        if (s->positions[i] > last)
            last = s->positions[i];
    int32_t pages = last / HK_PAGE + 1;
    return pages > 1 && s->n * j->kv->n_kv < 8 * r->n_threads ? pages : 0;
}

int hk_op_attend(hk_run *r, const hk_op *op, hk_taker *taker) {
    const hk_kv_layout *kv = &r->tape->kv[op->kv];
    job j = {.r = r, .op = op, .kv = kv, .group = op->n_head / kv->n_kv, .tokens = HK_TILE};
    j.dv = (kv->head_dim_v + 15) & ~15;
    while (j.tokens > 1 && j.tokens * j.group > MAX_ROWS)
        j.tokens /= 2;
    int64_t per_tile = HK_TILE / j.tokens;
    j.scratch = hk_pool_scratch(taker->thread);
    j.q = (float *)(j.scratch + HK_SCRATCH_HEADS);
    j.acc = j.q + MAX_ROWS * ((kv->head_dim_k + 15) & ~15);
    j.sum = j.acc + MAX_ROWS * j.dv;
    int32_t pages = pages_to_split(r, &j);
    if (pages)
        return split_attend(&j, r, taker, per_tile, pages);
    /* KV heads outermost: a thread stays with the pages of one head; late tiles see more and are left to be taken over.
     */
    int64_t tasks = r->tape->n_tiles * per_tile;
    taker->total = tasks * kv->n_kv;
    for (int64_t item; (item = hk_take(r, taker)) >= 0;) {
        j.head = (int32_t)(item / tasks);
        start_task(&j, item % tasks, per_tile);
        if (j.n > 0)
            whole_task(&j);
    }
    return HK_OK;
}
