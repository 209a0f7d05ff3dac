/* Sizes of KV planes; what lies in them: hk_cpu.h. */
#include "hk_cpu.h"

/* K and V planes hold the same number of bytes, in another order. */
static int64_t plane_bytes(int kv_type, int64_t head_dim) {
    int64_t n = head_dim * HK_PAGE, scales = n / 32 * 2, bytes = 0;
    switch (kv_type) {
    case HK_KV_F32:
        bytes = 4 * n;
        break;
    case HK_KV_F16:
        bytes = 2 * n;
        break;
    case HK_KV_Q8_0:
        bytes = n + scales;
        break;
    case HK_KV_Q4_0:
        bytes = n / 2 + scales;
        break;
    }
    return (bytes + 63) & ~(int64_t)63;
}

int64_t hk_kv_k_plane_bytes(int kv_type, int64_t head_dim) { return plane_bytes(kv_type, head_dim); }
int64_t hk_kv_v_plane_bytes(int kv_type, int64_t head_dim) { return plane_bytes(kv_type, head_dim); }
