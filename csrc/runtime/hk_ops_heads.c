/* Per head: RMS norm, rotation, and the store of keys and values, fused so that a head is touched once while it is in
 * the first-level cache. Items are (head, tile of tokens), heads outermost: a thread then fills whole planes of the KV
 * cache, whose K rows hold neighbouring tokens in one cache line. */
#include "hk_tape.h"

static void store(const hk_run *r, const hk_op *op, const hk_stream *st, int32_t head, int64_t row, const float *x) {
    const hk_tape *t = r->tape;
    const hk_slot *s = r->slot;
    const hk_kv_layout *kv = &t->kv[op->kv];
    int32_t pos = s->positions[row];
    int32_t page = s->pages[s->sequences[row] * t->pages_stride + pos / HK_PAGE];
    uint8_t *k = t->kv_base + page * t->kv_page_bytes + kv->offset + head * (kv->k_bytes + kv->v_bytes);
    if (st->store == 1)
        t->set->op.kv_store_k(t->kv_type, k, st->head_dim, pos % HK_PAGE, x);
    else
        t->set->op.kv_store_v(t->kv_type, k + kv->k_bytes, st->head_dim, pos % HK_PAGE, x);
}

static void one_head(const hk_run *r, const hk_op *op, const hk_stream *st, int32_t head, int64_t row) {
    const hk_float_ops *f = &r->tape->set->op;
    float *x = hk_row(r->tape, st->x, row) + (int64_t)head * st->head_dim;
    if (st->norm)
        f->rmsnorm(x, st->norm, st->head_dim, st->eps, x);
    if (st->angles >= 0) {
        const hk_angles *a = &r->tape->angles[st->angles];
        f->rope(x, 2 * a->half, a->cs + row * 2 * a->half, st->layout);
    }
    if (st->store)
        store(r, op, st, head, row, x);
}

void hk_op_heads(hk_run *r, const hk_op *op, int thread) {
    int64_t n = r->slot->n, tiles = (n + HK_TILE - 1) / HK_TILE, heads = 0, b, e;
    for (int i = 0; i < op->n_streams; i++)
        heads += op->streams[i].n_heads;
    hk_split(heads * tiles, thread, r->n_threads, &b, &e);
    for (; b < e; b++) {
        int64_t head = b / tiles, row = b % tiles * HK_TILE;
        const hk_stream *st = op->streams;
        for (; head >= st->n_heads; st++)
            head -= st->n_heads;
        for (int64_t end = row + HK_TILE < n ? row + HK_TILE : n; row < end; row++)
            one_head(r, op, st, (int32_t)head, row);
    }
}
