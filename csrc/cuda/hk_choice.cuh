/* What becomes of the choice of a row: the host sees it without a copy, and the next step's slot is ready for a graph
 * that is queued already. */
#ifndef HK_CHOICE_CUH
#define HK_CHOICE_CUH

#include "hk_args.h"
#include "hk_device.cuh"

/* One thread, in the last kernel of a step. What this thread wrote before is visible to whoever sees the choice. */
HK_FN void hand_over(const hk_handover &to, const hk_step &step, int row, int best, float value, float lse) {
    int position = step.positions[step.outputs[row]];
    if (to.host) {
        hk_choice *at = to.host + (position & (HK_CHOICES - 1)) * to.host_stride + row;
        __threadfence_system();
        asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(best), "r"(position),
                     "r"(__float_as_uint(value)), "r"(__float_as_uint(lse))
                     : "memory");
    }
    if (to.next_tokens) {
        to.next_tokens[row] = best;
        to.next_positions[row] = position + 1;
    }
}

#endif
