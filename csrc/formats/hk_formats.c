/* The format table, generated from hk_types.def. */
#include "hk_formats.h"

const hk_type_info hk_types[HK_N_TYPES] = {
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) {#NAME, id, block, bytes, scale_bytes, HK_ACT_##act},
#include "hk_types.def"
#undef HK_TYPE
};

int hk_type_of_gguf(int32_t gguf_id) {
    for (int t = 0; t < HK_N_TYPES; t++)
        if (hk_types[t].gguf_id == gguf_id)
            return t;
    return -1;
}
