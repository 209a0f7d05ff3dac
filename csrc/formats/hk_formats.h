/* Weight formats: ids and properties, all generated from hk_types.def. Shared by C and CUDA. */
#ifndef HK_FORMATS_H
#define HK_FORMATS_H

#include <stddef.h>
#include <stdint.h>

typedef enum hk_type {
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_##NAME,
#include "hk_types.def"
#undef HK_TYPE
    HK_N_TYPES
} hk_type;

/* Q8_PAIR: the input of a product that is recorded as precise, in place of Q8_32 (hk_cpu.h). */
typedef enum hk_act_kind { HK_ACT_F32, HK_ACT_Q8_32, HK_ACT_Q8_PAIR, HK_N_ACT_KINDS } hk_act_kind;

typedef struct hk_type_info {
    const char *name;
    int32_t gguf_id;
    int32_t block;       /* weights per block */
    int32_t bytes;       /* bytes per block */
    int32_t scale_bytes; /* of these, in the scale plane of a packed panel */
    int32_t act;         /* hk_act_kind */
} hk_type_info;

extern const hk_type_info hk_types[HK_N_TYPES];

/* The internal type of a GGUF type id, or -1. */
int hk_type_of_gguf(int32_t gguf_id);

#endif
