/* The float operations of one instruction set: csrc/cpu/<isa>/float.c includes its vec_float.h, then this. Everything
 * is static, so each translation unit has its own copy, compiled with its own flags. */
#ifndef HK_FLOAT_FILL_H
#define HK_FLOAT_FILL_H

#include <math.h>
#include <string.h>

#include "../hk_cpu.h"

#include "float_math.h"
#include "float_rows.h"
#include "float_topk.h"
#include "float_outer.h"
#include "float_matmul.h"
#include "float_kv.h"
#include "float_attend.h"

static void hk_fill_float(hk_cpu_set *set, const char *isa) {
    const hk_type_kernels f32 = {hk_gemv_f32, hk_gemm_f32, hk_dequant_f32, isa, isa, isa, NULL, NULL};
    const hk_type_kernels f16 = {hk_gemv_f16, hk_gemm_f16, hk_dequant_f16, isa, isa, isa, NULL, NULL};
    const hk_type_kernels bf16 = {hk_gemv_bf16, hk_gemm_bf16, hk_dequant_bf16, isa, isa, isa, NULL, NULL};
    set->type[HK_F32] = f32;
    set->type[HK_F16] = f16;
    set->type[HK_BF16] = bf16;
    set->op_isa = isa;
    set->op = (hk_float_ops){
        .rmsnorm = hk_rmsnorm,
        .add = hk_add,
        .scale = hk_scale,
        .glu = hk_glu,
        .softcap = hk_softcap,
        .rope = hk_rope,
        .max = hk_max,
        .argmax = hk_argmax,
        .topk = hk_topk,
        .quantize = {[HK_ACT_Q8_32] = hk_quantize_q8_32},
        .quantize_pair = hk_quantize_pair,
        .kv_store_k = hk_kv_store_k,
        .kv_store_v = hk_kv_store_v,
        .attend_page = hk_attend_page,
    };
}

#endif
