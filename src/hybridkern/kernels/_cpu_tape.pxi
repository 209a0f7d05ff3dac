# Tapes.

cdef hk_view view_of(object v):
    """(buffer, offset, width), or None."""
    cdef hk_view out
    if v is None:
        out.buf, out.offset, out.width = -1, 0, 0
    else:
        out.buf, out.offset, out.width = v
    return out


cdef class Tape:
    """Operations in C form, appended one by one. Keeps what they point to alive."""

    cdef hk_tape tape
    cdef readonly KernelTable table
    cdef readonly list owned
    cdef int32_t capacity

    def __cinit__(self, KernelTable table, *, int max_rows, int max_outputs, int max_pages):
        memset(&self.tape, 0, sizeof(self.tape))
        self.table = table
        self.owned = []
        self.tape.set = &table.table
        self.tape.logits = -1
        self.tape.max_rows, self.tape.max_outputs, self.tape.max_pages = max_rows, max_outputs, max_pages
        self.tape.pages_stride = max_pages
        self.tape.tiles = <hk_row_tile *>calloc(max_rows, sizeof(hk_row_tile))
        if self.tape.tiles == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.tape.ops)
        free(self.tape.buffers)
        free(self.tape.acts)
        free(self.tape.angles)
        free(self.tape.kv)
        free(self.tape.tiles)
        free(self.tape.bests)

    def own(self, thing):
        """Keeps an object alive as long as the tape."""
        self.owned.append(thing)
        return thing

    # tables

    def add_buffer(self, uintptr_t base, int64_t stride, bint outputs) -> int:
        """Float32 [rows][stride] at `base` (0: given by the slot)."""
        cdef int32_t i = self.tape.n_buffers
        self.tape.buffers = <hk_buffer *>realloc(self.tape.buffers, (i + 1) * sizeof(hk_buffer))
        self.tape.buffers[i].base, self.tape.buffers[i].stride = <float *>base, stride
        self.tape.buffers[i].outputs = outputs
        self.tape.n_buffers = i + 1
        if base == 0:
            self.tape.logits = i
        return i

    def add_act(self, int kind, alias, int64_t K, uintptr_t codes=0, uintptr_t scales=0, uintptr_t sums=0, uintptr_t x=0,
                int64_t codes_stride=0, int64_t scales_stride=0, int64_t sums_stride=0, int64_t x_stride=0,
                uintptr_t tiles=0, int64_t tiles_stride=0) -> int:
        """An input of products: int8 codes with scales and sums (and tiles of bf16), or float32 (of its own, or the view
        `alias`)."""
        cdef int32_t i = self.tape.n_acts
        cdef hk_act_buf a
        a.kind, a.alias = kind, view_of(alias)
        a.codes, a.scales, a.sums, a.x = <int8_t *>codes, <float *>scales, <int16_t *>sums, <float *>x
        a.codes_stride, a.scales_stride, a.sums_stride, a.x_stride = codes_stride, scales_stride, sums_stride, x_stride
        a.tiles, a.tiles_stride = <uint16_t *>tiles, tiles_stride
        self.tape.acts = <hk_act_buf *>realloc(self.tape.acts, (i + 1) * sizeof(hk_act_buf))
        self.tape.acts[i] = a
        self.tape.n_acts = i + 1
        return i

    def add_angles(self, int32_t half, uintptr_t inv_freq, double mscale, uintptr_t inv_freq_long, double mscale_long,
                   uintptr_t cs) -> int:
        """Rotary tables: float64 [half] each; cs: float32 [max_rows][half][2], filled by the operation."""
        cdef int32_t i = self.tape.n_angles
        cdef hk_angles a
        a.inv_freq, a.inv_freq_long = <const double *>inv_freq, <const double *>inv_freq_long
        a.mscale, a.mscale_long, a.half, a.cs = mscale, mscale_long, half, <float *>cs
        self.tape.angles = <hk_angles *>realloc(self.tape.angles, (i + 1) * sizeof(hk_angles))
        self.tape.angles[i] = a
        self.tape.n_angles = i + 1
        return i

    def add_kv(self, int64_t offset, int64_t k_bytes, int64_t v_bytes, int n_kv, int head_dim_k, int head_dim_v) -> int:
        """The place of one block's heads within a page."""
        cdef int32_t i = self.tape.n_kv
        cdef hk_kv_layout a
        a.offset, a.k_bytes, a.v_bytes = offset, k_bytes, v_bytes
        a.n_kv, a.head_dim_k, a.head_dim_v = n_kv, head_dim_k, head_dim_v
        self.tape.kv = <hk_kv_layout *>realloc(self.tape.kv, (i + 1) * sizeof(hk_kv_layout))
        self.tape.kv[i] = a
        self.tape.n_kv = i + 1
        return i

    def set_cache(self, int kv_type, uintptr_t base, int64_t page_bytes) -> None:
        """The pages of the KV cache."""
        self.tape.kv_type, self.tape.kv_base, self.tape.kv_page_bytes = kv_type, <uint8_t *>base, page_bytes

    def set_partial(self, uintptr_t partial, int64_t stride) -> None:
        """Memory of split attention: [HK_SPLIT_ROWS][n_head][max_pages][stride]."""
        self.tape.partial, self.tape.partial_stride = <float *>partial, stride

    # operations

    cdef hk_op *append(self, int kind, bint sync, object out, object x, object y, object emit) except NULL:
        cdef hk_op *op
        if self.tape.n_ops == self.capacity:
            self.capacity = max(64, 2 * self.capacity)
            self.tape.ops = <hk_op *>realloc(self.tape.ops, self.capacity * sizeof(hk_op))
        op = &self.tape.ops[self.tape.n_ops]
        self.tape.n_ops += 1
        memset(op, 0, sizeof(hk_op))
        op.kind, op.sync, op.out, op.x, op.y = kind, sync, view_of(out), view_of(x), view_of(y)
        for act in emit:
            if op.n_emit == HK_MAX_EMIT:
                raise KernelError("too many kinds of activations for one operation")
            op.emit[op.n_emit] = act
            op.n_emit += 1
        return op

    def embed(self, bint sync, out, int type, uintptr_t raw, int64_t row_bytes, int64_t rows, float scale):
        cdef hk_op *op = self.append(HK_OP_EMBED, sync, out, None, None, ())
        op.dequant = self.table.table.type[type].dequant
        if op.dequant == NULL:
            raise KernelError(f"no kernel dequantises {hk_types[type].name.decode()}")
        op.raw, op.row_bytes, op.table_rows, op.number = <const uint8_t *>raw, row_bytes, rows, scale
        op.K = op.out.width // hk_types[type].block

    def angles(self, bint sync, int index):
        cdef hk_op *op = self.append(HK_OP_ANGLES, sync, None, None, None, ())
        op.angles = index

    def norm(self, bint sync, out, x, add, uintptr_t weight, float eps, emit):
        cdef hk_op *op = self.append(HK_OP_NORM, sync, out, x, add, emit)
        op.vector, op.number = <const float *>weight, eps

    def matmul(self, bint sync, int64_t K, parts):
        """parts: (type, address, bytes per raw row or 0 where it is packed, rows, bias address, out, add, activation,
        staged)."""
        cdef hk_op *op = self.append(HK_OP_MATMUL, sync, None, None, None, ())
        cdef hk_part *p
        op.K = K
        if len(parts) > HK_MAX_PARTS:
            raise KernelError("too many products in one group")
        for t, address, row_bytes, rows, bias, out, add, act, staged in parts:
            p = &op.parts[op.n_parts]
            op.n_parts += 1
            p.n_panels, p.panel_bytes, p.rows, p.type = (rows + 15) // 16, hk_panel_bytes(t, K), rows, t
            if row_bytes:
                if p.panel_bytes > HK_PANEL_SCRATCH:
                    raise KernelError("rows are too long to be multiplied as they lie in the file")
                p.raw, p.row_bytes = <const uint8_t *><uintptr_t>address, row_bytes
            else:
                p.panels = <const uint8_t *><uintptr_t>address
            p.gemv, p.gemm = self.table.table.type[<int>t].gemv, self.table.table.type[<int>t].gemm
            p.gemv_raw = self.table.table.type[<int>t].gemv_raw
            if p.gemv == NULL or p.gemm == NULL:
                raise KernelError(f"no kernel multiplies {hk_types[<int>t].name.decode()}")
            p.bias, p.out, p.add = <const float *><uintptr_t>bias, view_of(out), view_of(add)
            p.act, p.staged = act, staged

    def heads(self, bint sync, int kv, streams):
        """streams: (x, n_heads, head_dim, norm address, eps, angles or -1, layout, store)."""
        cdef hk_op *op = self.append(HK_OP_HEADS, sync, None, None, None, ())
        cdef hk_stream *s
        op.kv = kv
        if len(streams) > HK_MAX_STREAMS:
            raise KernelError("too many runs of heads in one operation")
        for x, n_heads, head_dim, norm, eps, angles, layout, store in streams:
            s = &op.streams[op.n_streams]
            op.n_streams += 1
            s.x, s.n_heads, s.head_dim, s.norm, s.eps = view_of(x), n_heads, head_dim, <const float *><uintptr_t>norm, eps
            s.angles, s.layout, s.store = angles, layout, store

    def attend(self, bint sync, out, q, int kv, int n_head, float scale, int window, float softcap, emit):
        cdef hk_op *op = self.append(HK_OP_ATTEND, sync, out, q, None, emit)
        op.kv, op.n_head, op.number, op.window, op.softcap = kv, n_head, scale, window, softcap

    def elements(self, bint sync, int sub, out, x, y, float number, int act, emit):
        cdef hk_op *op = self.append(HK_OP_ELEMENTS, sync, out, x, y, emit)
        op.sub, op.number, op.act = sub, number, act

    def select(self, bint sync, out, x, emit):
        self.append(HK_OP_SELECT, sync, out, x, None, emit)

    def observe(self, bint sync, x, uintptr_t sums):
        cdef hk_op *op = self.append(HK_OP_OBSERVE, sync, None, x, None, ())
        op.sums = <double *>sums

    def argmax(self, bint sync, x):
        cdef hk_op *op = self.append(HK_OP_ARGMAX, sync, None, x, None, ())
        cdef int64_t chunks = (op.x.width + HK_ARGMAX_CHUNK - 1) // HK_ARGMAX_CHUNK
        free(self.tape.bests)
        self.tape.bests = <hk_best *>calloc(self.tape.max_outputs * chunks, sizeof(hk_best))

    def buffer(self, int index) -> tuple:
        """(address, floats from row to row) of a buffer."""
        return <uintptr_t>self.tape.buffers[index].base, self.tape.buffers[index].stride

    @property
    def n_ops(self) -> int:
        return self.tape.n_ops

    @property
    def n_syncs(self) -> int:
        """Barriers per replay."""
        return sum(self.tape.ops[i].sync for i in range(self.tape.n_ops))
