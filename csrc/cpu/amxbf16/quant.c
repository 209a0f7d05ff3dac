/* Quantised products on AMX with bf16: matrices with many columns, everything else as amx has it. */
#include "cpu/amxbf16/gemm.h"

/* Columns up to which the exact kernels are used: what is no whole square of 32 columns costs as much. Measured, 7B
 * shape, tokens/s without and with tiles of bf16: 145 and 130 with 16 columns, in two runs 154 and 181, 172 and 154
 * with 24, 167 and 235 with 32. */
enum { HK_FEW_COLUMNS = 24 };

static hk_gemm_fn exact[HK_N_TYPES];

#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    static void hk_stage_##fmt(const uint8_t *plane, const uint8_t *codes, int n, uint8_t *out) {                      \
        hk_stage_panel(&hk_quant_##fmt, hk_sub_scales_##fmt, plane, codes, n, out);                                    \
    }                                                                                                                  \
    static void hk_gemm_##fmt##_amxbf16(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,           \
                                        int64_t n_cols, float *out, int64_t out_stride, void *scratch) {               \
        if (!a->tiles || n_cols <= HK_FEW_COLUMNS)                                                                     \
            exact[HK_##NAME](panels, n_panels, K, a, n_cols, out, out_stride, scratch);                                \
        else                                                                                                           \
            hk_bf16_gemm(&hk_quant_##fmt, HK_##NAME, hk_stage_##fmt, panels, n_panels, K, a, n_cols, out, out_stride,  \
                         scratch);                                                                                     \
    }
#include "formats/hk_quants.def"
#undef HK_QUANT

void hk_fill_quant_amxbf16(hk_cpu_set *set) {
    hk_cpu_set below;
    hk_fill_quant_amx(&below);
#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    exact[HK_##NAME] = below.type[HK_##NAME].gemm;                                                                     \
    set->type[HK_##NAME].gemm = hk_gemm_##fmt##_amxbf16;                                                               \
    set->type[HK_##NAME].gemm_isa = "amxbf16";
#include "formats/hk_quants.def"
#undef HK_QUANT
    set->batch_panels = HK_BF16_PANELS;
    set->batch_columns = HK_BF16_COLUMNS;
}
