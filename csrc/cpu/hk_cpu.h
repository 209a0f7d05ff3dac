/* The CPU kernel set: one table of functions, filled from scalar upwards by every instruction set that this CPU can
 * run.
 *
 * Kernels do not print, allocate, or exit, and check nothing: callers guarantee the shapes. Every translation unit
 * under csrc/cpu/<isa>/ is compiled with that instruction set's flags and defines the same functions under its own
 * suffix.
 */
#ifndef HK_CPU_H
#define HK_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "../formats/hk_formats.h"
#include "../formats/hk_packed.h"

/* What a CPU and its operating system offer: CPUID and XGETBV together. */
enum {
    HK_HAS_AVX2 = 1 << 0,       /* AVX2, FMA, F16C, ymm state enabled */
    HK_HAS_AVXVNNI = 1 << 1,    /* AVX-VNNI (VEX dpbusd) */
    HK_HAS_AVX512 = 1 << 2,     /* F, BW, DQ, VL, zmm state enabled */
    HK_HAS_AVX512VNNI = 1 << 3, /* and VNNI */
    HK_HAS_AMX = 1 << 4,        /* AMX tile and int8, tile state enabled and granted */
    HK_AMX_DENIED = 1 << 5,     /* the processor has them, the operating system refused this process */
    HK_HAS_AMXBF16 = 1 << 6     /* AMX bf16 beside, and AVX-512 BF16 */
};

/* n columns of activations, quantised or float. Strides count elements of the array that they belong to. Rows of codes
 * and of x are 64-byte aligned; K is a multiple of the format's block. */
typedef struct hk_act {
    const int8_t *codes; /* [n][K] in [-127, 127] */
    const float *scales; /* [n][K / 32] */
    const int16_t *sums; /* [n][K / 16] sums of 16 codes */
    const float *x;      /* [n][K] for the float formats */
    int64_t codes_stride, scales_stride, sums_stride, x_stride;
    const uint16_t *tiles; /* the floats behind the codes in bf16, as hk_to_tiles_fn has them, or NULL */
    int64_t tiles_stride;  /* from 16 columns to the next 16 */
} hk_act;

/* out[r] = row r . column 0, for the 16 * n_panels rows of the panels; out is padded to that many. */
typedef void (*hk_gemv_fn)(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a, float *out);
/* out[c * out_stride + r] = row r . column c. scratch: HK_GEMM_SCRATCH bytes, 64-byte aligned, private to the thread.
 * Bit-identical to gemv for every column, unless it multiplies tiles. */
typedef void (*hk_gemm_fn)(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a, int64_t n_cols,
                           float *out, int64_t out_stride, void *scratch);
/* gemv of n_rows raw GGUF rows, row_bytes apart, for one or two columns, with the bits that packing them would give;
 * out is padded to 16 rows, out_stride from column to column, and the rest of it 0. */
typedef void (*hk_gemv_raw_fn)(const uint8_t *raw, int64_t row_bytes, int64_t n_rows, int64_t K, const hk_act *a,
                               int n_cols, float *out, int64_t out_stride);
/* n_blocks raw GGUF blocks -> floats in file order, bit for bit what the format's definition gives in float32. */
typedef void (*hk_dequant_fn)(const uint8_t *raw, int64_t n_blocks, float *out);

#define HK_GEMM_SCRATCH (512 * 1024)

typedef struct hk_type_kernels {
    hk_gemv_fn gemv;
    hk_gemm_fn gemm;
    hk_dequant_fn dequant;
    const char *gemv_isa, *gemm_isa, *dequant_isa; /* which set each came from */
    hk_gemv_raw_fn gemv_raw;                       /* NULL: raw rows are packed on the way, panel by panel */
    const char *gemv_raw_isa;
} hk_type_kernels;

/* Quantises K floats: per block of 32 d = max|x| / 127, code = round-half-even(x * (127 / max|x|)), all zero
 * when max|x| is below 1e-36 (the quotient would overflow); a block with a NaN or an infinity gets d = NaN and codes 0,
 * so that the fault stays visible. */
typedef void (*hk_quantize_fn)(const float *x, int64_t K, int8_t *codes, float *scales, int16_t *sums);

/* The same to two rows of codes, each of which is a column of a product; strides are from one to the other. Per block
 * of 32 d = max|x| / 16256, and x = d * (128 * first + second) to half of d, |second| <= 64. The rows' scales are 128 *
 * d and d: both results together are the product with an input of 15 bits. All zero when max|x| is below 1e-34. */
typedef void (*hk_quantize_pair_fn)(const float *x, int64_t K, int8_t *codes, float *scales, int16_t *sums,
                                    int64_t codes_stride, int64_t scales_stride, int64_t sums_stride);

/* K floats rounded to bf16 (to the nearest, ties to even) as one column of a sequence of tiles of 16 columns times 32
 * values: value k goes to out[HK_COLUMN_TILE * (k / 32) + k % 32]. The tiles of 16 columns lie side by side. */
typedef void (*hk_to_tiles_fn)(const float *x, int64_t K, uint16_t *out);
#define HK_COLUMN_TILE 512
/* Elements from 16 columns to the next 16: an odd number of 32 KB. The second cache has 2048 sets, which 128 KB fill
 * once: 512 columns of 4096 values would meet in an eighth of them when a kernel takes 1024 values of each at a time.
 */
static inline int64_t hk_tiles_stride(int64_t K) { return ((16 * K + 16383) / 16384 | 1) * 16384; }

enum { HK_ACT_SILU, HK_ACT_GELU_TANH };
enum { HK_ROPE_NORM, HK_ROPE_NEOX };
enum { HK_KV_F16, HK_KV_Q8_0, HK_KV_Q4_0, HK_KV_F32, HK_N_KV };
#define HK_PAGE 128 /* tokens per KV page */

/* One KV head of one page, see kv_layout below. */
typedef struct hk_float_ops {
    /* y = x * rsqrt(mean(x^2) + eps) * w (w may be NULL); the sum of squares in float64 or compensated float32 */
    void (*rmsnorm)(const float *x, const float *w, int64_t n, float eps, float *y);
    /* y = (x - mean) / sqrt(var + eps) * w + b: not used by today's architectures, may be NULL */
    void (*add)(float *y, const float *a, const float *b, int64_t n); /* y = a + b */
    void (*scale)(float *y, const float *a, float s, int64_t n);      /* y = a * s */
    void (*glu)(float *y, const float *gate, const float *up, int64_t n,
                int act);                                            /* y = act(gate) * up, error <= 2e-6 relative */
    void (*softcap)(float *y, const float *x, float cap, int64_t n); /* y = cap * tanh(x / cap) */
    /* rotates one head vector x[head_dim] in place by cos/sin pairs cs[rot/2][2]; layout norm: pairs (2i, 2i+1), neox:
     * (i, i + rot/2); elements from rot on are left alone */
    void (*rope)(float *x, int64_t rot, const float *cs, int layout);
    float (*max)(const float *x, int64_t n);
    /* index of the largest (lowest index on ties), its value, and log(sum exp(x)): *bad is set when an element is NaN
     * or all are -inf. lse may be NULL. */
    int64_t (*argmax)(const float *x, int64_t n, float *value, double *lse, int *bad);
    /* The k largest (k < n, else n), descending, the lower index first among equals; returns how many. *bad as above,
     * then the result is 0. ids and vals hold k. */
    int64_t (*topk)(const float *x, int64_t n, int64_t k, int32_t *ids, float *vals, int *bad);
    hk_quantize_fn quantize[HK_N_ACT_KINDS]; /* by hk_act_kind; only Q8_32 is not NULL */
    hk_quantize_pair_fn quantize_pair;
    hk_to_tiles_fn to_tiles; /* NULL where no product of the set reads tiles */

    /* KV pages. A page of one KV head has a K plane and a V plane. K is stored transposed, so that tokens are lanes
     * when scores are computed; V by token, so that head dimensions are lanes when they are summed: f16/f32: K
     * [head_dim][HK_PAGE], V [HK_PAGE][head_dim] q8_0:    K codes int8 [head_dim][HK_PAGE], then fp16 scales [head_dim
     * / 32][HK_PAGE]; V codes int8 [HK_PAGE][head_dim], then fp16 scales [HK_PAGE][head_dim / 32] q4_0:    the same
     * with two codes a byte: K byte [i][t] holds dimensions 2i (low nibble) and 2i + 1; V byte [t][i] holds dimensions
     * 2i and 2i + 1; code + 8 is stored quantisation as GGUF's Q8_0 and Q4_0 define it: codes come from the scale
     * before it is rounded to fp16; a block with a NaN or an infinity gets a NaN scale. head_dim is a multiple of 32
     * for q8_0 and q4_0, any number for f16 and f32. */
    void (*kv_store_k)(int kv_type, void *plane, int64_t head_dim, int64_t slot, const float *k);
    void (*kv_store_v)(int kv_type, void *plane, int64_t head_dim, int64_t slot, const float *v);
    /* Scores and sums of n_q query vectors of one KV head against one page: continues the running
     * (max, sum, acc) of an online softmax. Row i sees only tokens t in [lo[i], hi[i]) of the page. q is pre-scaled;
     * cap > 0 applies cap * tanh(s / cap). acc [n_q][head_dim_v], m and l [n_q]; at first m = -inf, l = 0, acc = 0.
     * Rows are independent of each other to the bit, a row with lo >= hi is left as it is, and memory of tokens that no
     * row sees may hold anything. Head dimensions up to 896. next: the K plane of the page that comes next, its V
     * plane as far behind as here, or NULL: fetched while few rows are computed. scratch: HK_ATTN_SCRATCH bytes,
     * 64-byte aligned. */
    void (*attend_page)(int kv_type, const void *k_plane, const void *v_plane, int64_t head_dim_k, int64_t head_dim_v,
                        const float *q, int64_t q_stride, int64_t n_q, const int32_t *lo, const int32_t *hi, float cap,
                        float *m, float *l, float *acc, int64_t acc_stride, const void *next, void *scratch);
} hk_float_ops;

#define HK_ATTN_SCRATCH (512 * 1024)

/* Bytes of the K and of the V plane of one head in one page, multiples of 64. */
int64_t hk_kv_k_plane_bytes(int kv_type, int64_t head_dim);
int64_t hk_kv_v_plane_bytes(int kv_type, int64_t head_dim);

typedef struct hk_cpu_set {
    const char *name;
    uint32_t
        requires; /* HK_HAS_* mask */
    hk_type_kernels type[HK_N_TYPES];
    hk_float_ops op;
    const char *op_isa; /* the highest set that filled op */
    /* Panels and columns that a call with many columns should get, at most; 0: as the runtime likes. */
    int32_t batch_panels, batch_columns;
} hk_cpu_set;

/* What this CPU has. The first call asks Linux for the use of AMX tiles. */
uint32_t hk_cpu_features(void);
/* Number of sets in the list, and their names in ascending order: scalar, avx2, avxvnni, avx512, avx512vnni, amx,
 * amxbf16. */
int hk_cpu_n_sets(void);
const char *hk_cpu_set_name(int i);
uint32_t hk_cpu_set_requires(int i);
/* 1 when kernels of that set were compiled in. */
int hk_cpu_set_built(int i);
/* 1 when its products with many columns are rounded otherwise than those of all other sets: only for who asks for it.
 */
int hk_cpu_set_rounds(int i);
/* Fills *set with the kernels of set i over those below it. Returns 0, or -1 when this CPU cannot run it or it was not
 * built. */
int hk_cpu_fill(int i, hk_cpu_set *set);

/* Each ISA folder defines these two under its own suffix: they override the entries that they have. */
#define HK_DECLARE_ISA(isa)                                                                                            \
    void hk_fill_quant_##isa(hk_cpu_set *set);                                                                         \
    void hk_fill_float_##isa(hk_cpu_set *set);
HK_DECLARE_ISA(scalar)
HK_DECLARE_ISA(avx2)
HK_DECLARE_ISA(avxvnni)
HK_DECLARE_ISA(avx512)
HK_DECLARE_ISA(avx512vnni)
HK_DECLARE_ISA(amx)
HK_DECLARE_ISA(amxbf16)

#endif
