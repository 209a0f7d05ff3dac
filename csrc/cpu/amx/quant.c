/* Quantised products on AMX: matrices with many columns by tiles of int8, everything else as avx512vnni has it. */
#include "cpu/amx/gemm.h"

/* Columns up to which the vector kernels are as fast: they unpack into registers, and tiles of 16 columns that are not
 * full cost as much as full ones. Measured: equal at 32, half again as fast at 8; Q6_K, which takes two products, is a
 * tenth slower at 64 and a twentieth faster at 128, Q4_K 8 and Q8_0 29 % faster at 48. */
HK_INLINE int64_t hk_few_columns(const hk_quant *q) { return hk_is_halved(q) ? 64 : 32; }

static hk_gemm_fn few[HK_N_TYPES];

#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    static __attribute__((noinline)) void hk_step_##fmt(hk_pipeline *l, const hk_products *next, const hk_unit *u,     \
                                                        int part, hk_amx_scratch *s) {                                 \
        hk_step(&hk_quant_##fmt, l, next, u, part, s);                                                                 \
    }                                                                                                                  \
    static void hk_gemm_##fmt##_amx(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,               \
                                    int64_t n_cols, float *out, int64_t out_stride, void *scratch) {                   \
        if (n_cols <= hk_few_columns(&hk_quant_##fmt))                                                                 \
            few[HK_##NAME](panels, n_panels, K, a, n_cols, out, out_stride, scratch);                                  \
        else                                                                                                           \
            hk_amx_gemm(&hk_quant_##fmt, HK_##NAME, hk_step_##fmt, hk_sub_scales_##fmt, panels, n_panels, K, a,        \
                        n_cols, out, out_stride, scratch);                                                             \
    }
#include "formats/hk_quants.def"
#undef HK_QUANT

void hk_fill_quant_amx(hk_cpu_set *set) {
    hk_cpu_set below;
    hk_fill_quant_avx512vnni(&below);
#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    few[HK_##NAME] = below.type[HK_##NAME].gemm;                                                                       \
    set->type[HK_##NAME].gemm = hk_gemm_##fmt##_amx;                                                                   \
    set->type[HK_##NAME].gemm_isa = "amx";
#include "formats/hk_quants.def"
#undef HK_QUANT
}
