# Declarations of the C side.

cdef extern from "cpu/hk_cpu.h" nogil:
    ctypedef enum hk_type:
        HK_N_TYPES
    enum:
        HK_ACT_F32
        HK_ACT_Q8_32
        HK_ACT_Q8_PAIR
        HK_PAGE
        HK_AMX_DENIED
    ctypedef struct hk_type_info:
        const char *name
        int32_t gguf_id, block, bytes, scale_bytes, act
    const hk_type_info hk_types[]
    ctypedef void (*hk_gemv_fn)(const uint8_t *, int64_t, int64_t, const void *, float *) noexcept nogil
    ctypedef void (*hk_gemm_fn)(const uint8_t *, int64_t, int64_t, const void *, int64_t, float *, int64_t, void *) noexcept nogil
    ctypedef void (*hk_dequant_fn)(const uint8_t *, int64_t, float *) noexcept nogil
    ctypedef void (*hk_quantize_fn)(const float *, int64_t, int8_t *, float *, int16_t *) noexcept nogil
    ctypedef void (*hk_quantize_pair_fn)(const float *, int64_t, int8_t *, float *, int16_t *, int64_t, int64_t, int64_t) noexcept nogil
    ctypedef void (*hk_to_tiles_fn)(const float *, int64_t, uint16_t *) noexcept nogil
    ctypedef void (*hk_gemv_raw_fn)(const uint8_t *, int64_t, int64_t, int64_t, const void *, int, float *, int64_t) noexcept nogil
    ctypedef struct hk_type_kernels:
        hk_gemv_fn gemv
        hk_gemm_fn gemm
        hk_dequant_fn dequant
        const char *gemv_isa
        const char *gemm_isa
        const char *dequant_isa
        hk_gemv_raw_fn gemv_raw
        const char *gemv_raw_isa
    ctypedef struct hk_float_ops:
        int64_t (*argmax)(const float *, int64_t, float *, double *, int *) noexcept nogil
        int64_t (*topk)(const float *, int64_t, int64_t, int32_t *, float *, int *) noexcept nogil
        hk_quantize_fn quantize[3]
        hk_quantize_pair_fn quantize_pair
        hk_to_tiles_fn to_tiles
    ctypedef struct hk_cpu_set:
        const char *name
        uint32_t requires
        hk_type_kernels type[64]
        hk_float_ops op
        const char *op_isa
    uint32_t hk_cpu_features()
    int hk_cpu_n_sets()
    const char *hk_cpu_set_name(int i)
    uint32_t hk_cpu_set_requires(int i)
    int hk_cpu_set_built(int i)
    int hk_cpu_set_rounds(int i)
    int hk_cpu_fill(int i, hk_cpu_set *set)
    int64_t hk_tiles_stride(int64_t K)
    int64_t hk_panel_bytes(hk_type t, int64_t cols)
    int64_t hk_kv_k_plane_bytes(int kv_type, int64_t head_dim)
    int64_t hk_kv_v_plane_bytes(int kv_type, int64_t head_dim)

cdef extern from "runtime/hk_memory.h" nogil:
    uint8_t *hk_memory_map(int64_t bytes, int huge)
    void hk_memory_unmap(uint8_t *p, int64_t bytes)
    void hk_memory_release(uint8_t *p, int64_t bytes)

cdef extern from "runtime/hk_sigbus.h" nogil:
    int hk_guard_add(void *base, size_t len)
    void hk_guard_remove(int slot)
    int hk_guard_faulted(int slot)
    int hk_guard_any_faulted()

cdef extern from "runtime/hk_pool.h" nogil:
    enum:
        HK_OK
        HK_CANCELLED
        HK_ERR_THREADS
        HK_ERR_MEMORY
        HK_ERR_ARGUMENT
        HK_ERR_DEVICE
        HK_ERR_HUNG
        HK_MAX_THREADS
        HK_PANEL_SCRATCH
    void hk_pool_set_cores(int n)
    int hk_pool_workers()

cdef extern from "runtime/hk_tape.h" nogil:
    enum:
        HK_MAX_PARTS
        HK_MAX_STREAMS
        HK_MAX_EMIT
        HK_TILE
        HK_SPLIT_ROWS
        HK_ARGMAX_CHUNK
        HK_OP_EMBED
        HK_OP_ANGLES
        HK_OP_NORM
        HK_OP_MATMUL
        HK_OP_HEADS
        HK_OP_ATTEND
        HK_OP_ELEMENTS
        HK_OP_SELECT
        HK_OP_OBSERVE
        HK_OP_ARGMAX
    ctypedef struct hk_buffer:
        float *base
        int64_t stride
        int32_t outputs
    ctypedef struct hk_view:
        int32_t buf, offset, width
    ctypedef struct hk_act_buf:
        int32_t kind
        hk_view alias
        int8_t *codes
        float *scales
        int16_t *sums
        float *x
        int64_t codes_stride, scales_stride, sums_stride, x_stride
        uint16_t *tiles
        int64_t tiles_stride
    ctypedef struct hk_angles:
        const double *inv_freq
        const double *inv_freq_long
        float mscale, mscale_long
        int32_t half
        float *cs
    ctypedef struct hk_kv_layout:
        int64_t offset, k_bytes, v_bytes
        int32_t n_kv, head_dim_k, head_dim_v
    ctypedef struct hk_part:
        const uint8_t *panels
        int64_t n_panels, panel_bytes
        const uint8_t *raw
        int64_t row_bytes, rows
        int32_t type
        hk_gemv_fn gemv
        hk_gemm_fn gemm
        hk_gemv_raw_fn gemv_raw
        const float *bias
        hk_view out
        hk_view add
        int32_t act, staged
    ctypedef struct hk_stream:
        hk_view x
        int32_t n_heads, head_dim
        const float *norm
        float eps
        int32_t angles, layout, store
    ctypedef struct hk_op:
        int32_t kind, sub, sync, n_emit
        int32_t emit[2]
        hk_view out
        hk_view x
        hk_view y
        float number, softcap
        const float *vector
        double *sums
        const uint8_t *raw
        int64_t row_bytes, K, table_rows
        hk_dequant_fn dequant
        int32_t n_parts
        hk_part parts[8]
        int32_t n_streams
        hk_stream streams[4]
        int32_t kv, n_head, window, act, angles
    ctypedef struct hk_row_tile:
        pass
    ctypedef struct hk_best:
        pass
    enum:
        HK_MAX_GPUS
    struct hk_device_slot:
        uint8_t *inputs
        int32_t *pages
        float *few
        int32_t n_few
        void *done
        int32_t queued
    ctypedef struct hk_slot:
        int32_t n, n_out
        int32_t *tokens
        int32_t *positions
        int32_t *sequences
        int32_t *variants
        int32_t *outputs
        int32_t *pages
        float *logits
        int32_t *best
        int32_t *bad
        float *best_value
        double *best_lse
        hk_device_slot *devices[16]
    ctypedef struct hk_tape:
        const hk_cpu_set *set
        hk_op *ops
        int32_t n_ops, n_buffers, n_acts, n_angles, n_kv
        hk_buffer *buffers
        hk_act_buf *acts
        hk_angles *angles
        hk_kv_layout *kv
        int32_t kv_type, logits, max_rows, max_outputs, max_pages
        uint8_t *kv_base
        int64_t kv_page_bytes, pages_stride
        float *partial
        int64_t partial_stride
        hk_row_tile *tiles
        hk_best *bests

cdef extern from "runtime/hk_cuda_driver.h" nogil:
    const char *hk_cuda_error()

cdef extern from "runtime/hk_gpu.h" nogil:
    ctypedef struct hk_gpu:
        void *context
        void *stream
        int32_t index, n_vocab, max_pages, n_seq
        uint64_t pages
        int32_t *mirror
        uint64_t logits
        int64_t logits_stride
    int64_t hk_patience
    int hk_gpu_copy(hk_gpu *g, uint64_t to, uint64_t source, int64_t bytes)
    int hk_gpu_fill(hk_gpu *g, uint64_t at, int byte, int64_t bytes)

cdef extern from "runtime/hk_graphs.h" nogil:
    enum:
        HK_N_FIELDS
        HK_MAX_CLASSES
    ctypedef struct hk_chosen:
        pass
    ctypedef struct hk_class:
        int32_t rows, outputs, linked
        void **graphs
        uint64_t inputs
        int64_t input_bytes
        int32_t at[6]
        uint64_t best
        const hk_chosen *chosen
        int32_t advances
    ctypedef struct hk_graphs:
        hk_gpu *gpu
        int32_t n_classes, n_segments
        hk_class classes[12]
        hk_class top
    int hk_graphs_queue(hk_graphs *g, hk_slot *s, const int32_t *table, int feed, int want)

cdef extern from "runtime/hk_link.h" nogil:
    enum:
        HK_LINK_PARTS
    ctypedef struct hk_end:
        float *host
        uint64_t device
        int64_t stride
    ctypedef struct hk_link_part:
        hk_end source "from"
        hk_end to
        int64_t width
        int32_t outputs
        float *linked
        float *area
    ctypedef struct hk_area:
        pass
    ctypedef struct hk_transfer:
        hk_graphs *source "from"
        hk_graphs *to
        int32_t n_parts
        hk_link_part parts[4]
        void *flag
        hk_area *area
        void *sent
        void *received

cdef extern from "runtime/hk_step.h" nogil:
    enum:
        HK_REPLAY
        HK_LAUNCH
        HK_SEND
        HK_RECEIVE
    ctypedef struct hk_command:
        int32_t kind, first, last
        hk_tape *tape
        hk_graphs *graphs
        hk_transfer *transfer
    ctypedef struct hk_program:
        hk_command *commands
        int32_t n_commands
        hk_tape *tapes[17]
        hk_graphs *graphs[16]
        int32_t n_tapes, n_graphs, alternates
        void *abort
        int (*poll)() noexcept nogil
    hk_graphs *hk_step_graphs(const hk_program *p)
    int hk_step_top(hk_program *p, hk_slot *slot, const int32_t *table)
    int hk_step_ahead(hk_program *p, hk_slot *slot, hk_slot *next, const int32_t *table, int queued)
    int hk_step_run(hk_program *p, hk_slot *slot, const int32_t *table, int32_t n_seq, int n_threads, int greedy)

cdef extern from "runtime/hk_direct.h" nogil:
    int hk_direct_pack(hk_type t, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, uint8_t *dst, int n_threads)
    int hk_direct_matmul(const hk_cpu_set *set, hk_type t, const uint8_t *panels, int64_t rows, int64_t cols, float *x,
                         int64_t x_stride, int64_t n, float *out, int64_t out_stride, int n_threads)
    double hk_direct_read_rate(const uint8_t *p, int64_t bytes, int n_threads)

cdef extern from "runtime/hk_rates.h" nogil:
    double hk_rate_int8(int set, double seconds, int n_threads)
