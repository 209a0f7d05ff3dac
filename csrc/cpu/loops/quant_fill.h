/* The kernels of every quantised format for the instruction set of the including file, which has included its vec_int.h
 * and one of mac_madd.h and mac_dot.h, and has defined HK_ISA               its name HK_NC_LIST(X, f, r)  X(nc, f, r)
 * for each width of its micro-kernels, descending, the last one 1 HK_NC_MAX            the largest of them */
#include "cpu/loops/quant_gemm.h"
#include "cpu/loops/quant_gemv.h"
#ifdef HK_FEW_COLUMNS
#include "cpu/loops/quant_few.h"
#endif
#ifdef HK_RAW_ROWS_KERNELS
#include "cpu/loops/quant_raw.h"
#endif

#define HK_NAME__(op, fmt, isa) hk_##op##_##fmt##_##isa
#define HK_NAME_(op, fmt, isa)  HK_NAME__(op, fmt, isa)
#define HK_NAME(op, fmt)        HK_NAME_(op, fmt, HK_ISA)
#define HK_FILL__(isa)          hk_fill_quant_##isa
#define HK_FILL_(isa)           HK_FILL__(isa)
#define HK_STR_(x)              #x
#define HK_STR(x)               HK_STR_(x)

/* Operand classes, each named after one of its formats; the others of a class differ only in staging. */
#define HK_CLASS_q4_0   q4_0
#define HK_CLASS_q4_1   q4_1
#define HK_CLASS_q5_0   q4_0
#define HK_CLASS_q5_1   q5_1
#define HK_CLASS_q8_0   q8_0
#define HK_CLASS_q2_k   q2_k
#define HK_CLASS_q3_k   q6_k
#define HK_CLASS_q4_k   q4_k
#define HK_CLASS_q5_k   q5_k
#define HK_CLASS_q6_k   q6_k
#define HK_CLASS_iq4_nl q8_0
#define HK_CLASS_iq4_xs iq4_xs
#define HK_CLASS_mxfp4  q4_0

#if HK_PV == 1 /* an odd last panel leaves a tile of one vector */
#define HK_CLASS(fmt)                                                                                                  \
    HK_MICRO_TABLE(fmt, 1)                                                                                             \
    HK_MICRO_TABLE(fmt, 2)
#define HK_MICRO_1(fmt) hk_micro_##fmt##_1
#else
#define HK_CLASS(fmt)   HK_MICRO_TABLE(fmt, 2)
#define HK_MICRO_1(fmt) 0
#endif
#define HK_MICRO_2(fmt)     hk_micro_##fmt##_2
#define HK_MICRO_OF(n, fmt) HK_MICRO_##n(fmt)

HK_CLASS(q4_0)
HK_CLASS(q4_1)
HK_CLASS(q5_1)
HK_CLASS(q8_0)
HK_CLASS(q2_k)
HK_CLASS(q4_k)
HK_CLASS(q5_k)
HK_CLASS(q6_k)
HK_CLASS(iq4_xs)

#ifdef HK_FEW_COLUMNS
#define HK_TRY_FEW(fmt)                                                                                                \
    if (hk_is_few(&hk_quant_##fmt, n_cols, K)) {                                                                       \
        hk_gemm_few_##fmt(panels, n_panels, K, a, n_cols, out, out_stride, scratch);                                   \
        return;                                                                                                        \
    }
#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    static void hk_gemm_few_##fmt(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a, int64_t n_cols, \
                                  float *out, int64_t out_stride, void *scratch) {                                     \
        hk_gemm_few(&hk_quant_##fmt, HK_##NAME, hk_sub_scales_##fmt, panels, n_panels, K, a, n_cols, out, out_stride,  \
                    scratch);                                                                                          \
    }
#include "formats/hk_quants.def"
#undef HK_QUANT
#else
#define HK_TRY_FEW(fmt)
#endif

#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    static void hk_stage_codes_##fmt(const uint8_t *src, int n32, const hk_sub_scales *s, vi *dst, int rv) {           \
        hk_stage_codes(&hk_quant_##fmt, src, n32, s, dst, rv);                                                         \
    }                                                                                                                  \
    static const hk_gemm_plan hk_plan_##fmt = {&hk_quant_##fmt,                                                        \
                                               HK_##NAME,                                                              \
                                               hk_sub_scales_##fmt,                                                    \
                                               hk_stage_codes_##fmt,                                                   \
                                               {0, HK_MICRO_OF(1, HK_CLASS_##fmt), HK_MICRO_OF(2, HK_CLASS_##fmt)}};   \
    static void HK_NAME(gemm, fmt)(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,                \
                                   int64_t n_cols, float *out, int64_t out_stride, void *scratch) {                    \
        HK_TRY_FEW(fmt)                                                                                                \
        hk_gemm_quant(&hk_plan_##fmt, panels, n_panels, K, a, n_cols, out, out_stride, scratch);                       \
    }                                                                                                                  \
    static void HK_NAME(gemv, fmt)(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a, float *out) {  \
        hk_gemv_quant(&hk_quant_##fmt, HK_##NAME, hk_sub_scales_##fmt, panels, n_panels, K, a, out);                   \
    }
#include "formats/hk_quants.def"
#undef HK_QUANT

#ifdef HK_RAW_ROWS_KERNELS
#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    static void HK_NAME(gemv_raw, fmt)(const uint8_t *raw, int64_t row_bytes, int64_t n_rows, int64_t K,               \
                                       const hk_act *a, int n, float *out, int64_t stride) {                           \
        hk_gemv_raw(hk_raw_panel_##fmt, raw, row_bytes, n_rows, K, a, n, out, stride);                                 \
    }
#include "formats/hk_quants.def"
#undef HK_QUANT
#endif

void HK_FILL_(HK_ISA)(hk_cpu_set *set) {
#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    set->type[HK_##NAME].gemv = HK_NAME(gemv, fmt);                                                                    \
    set->type[HK_##NAME].gemm = HK_NAME(gemm, fmt);                                                                    \
    set->type[HK_##NAME].gemv_isa = set->type[HK_##NAME].gemm_isa = HK_STR(HK_ISA);
#include "formats/hk_quants.def"
#undef HK_QUANT
#ifdef HK_RAW_ROWS_KERNELS
#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    set->type[HK_##NAME].gemv_raw = HK_NAME(gemv_raw, fmt);                                                            \
    set->type[HK_##NAME].gemv_raw_isa = HK_STR(HK_ISA);
#include "formats/hk_quants.def"
#undef HK_QUANT
#endif
}
