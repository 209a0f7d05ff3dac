/* The likeliest token of every output row, with the log of the sum of exponentials: partial results by chunk, combined
 * by the block that comes last. grid (chunks, outputs), 256 threads. */
#include "hk_choice.cuh"
#include "hk_rows.cuh"

#define AT_ONCE 4 /* logits whose loads a thread has on their way */

/* The best so far, the lowest index among equals; sum of exp(x - value); bad: a NaN was seen. */
struct choice {
    float value, sum;
    int index, bad;
};
HK_FN choice merged(const choice &a, const choice &b) {
    choice r;
    bool first = a.value > b.value || (a.value == b.value && a.index < b.index);
    r.value = first ? a.value : b.value;
    r.index = first ? a.index : b.index;
    r.bad = a.bad | b.bad;
    r.sum = r.value == -HK_INFINITY ? 0 : a.sum * __expf(a.value - r.value) + b.sum * __expf(b.value - r.value);
    return r;
}
HK_FN choice nothing() { return {-HK_INFINITY, 0, 0x7FFFFFFF, 0}; }

HK_FN choice block_choice(choice c, choice *shared) {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        choice other = {__shfl_xor_sync(~0u, c.value, o), __shfl_xor_sync(~0u, c.sum, o),
                        __shfl_xor_sync(~0u, c.index, o), __shfl_xor_sync(~0u, c.bad, o)};
        c = merged(c, other);
    }
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = c;
    __syncthreads();
    c = shared[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++)
        c = merged(c, shared[w]);
    __syncthreads();
    return c;
}

HK_KERNEL hk_argmax(const __grid_constant__ hk_argmax_args a) {
    __shared__ choice shared[HK_MAX_WARPS];
    __shared__ int last;
    allow_next();
    wait_for_previous();
    int row = blockIdx.y;
    if (row >= a.step.counts[1])
        return;
    choice c = nothing();
    s64 stride = (s64)gridDim.x * blockDim.x;
    for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < a.width; i += AT_ONCE * stride) {
        float x[AT_ONCE];
        choice few = nothing();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            x[k] = i + k * stride < a.width ? load_fresh(a.logits + row * a.stride + i + k * stride) : -HK_INFINITY;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            few.bad |= x[k] != x[k];
            if (x[k] > few.value) {
                few.value = x[k];
                few.index = (int)(i + k * stride);
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            few.sum += x[k] > -HK_INFINITY ? __expf(x[k] - few.value) : 0;
        c = merged(c, few);
    }
    c = block_choice(c, shared);
    float *part = a.partial + 4 * ((s64)row * gridDim.x);
    if (threadIdx.x == 0) {
        f32x4 w = {{c.value, c.sum, __int_as_float(c.index), __int_as_float(c.bad)}};
        *(f32x4 *)(part + 4 * blockIdx.x) = w;
        __threadfence();
        last = atomicAdd(a.arrived + row, 1) == (int)gridDim.x - 1;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    c = nothing();
    for (int i = threadIdx.x; i < (int)gridDim.x; i += blockDim.x) {
        f32x4 w = load_fresh4(part + 4 * i);
        choice one = {w.v[0], w.v[1], __float_as_int(w.v[2]), __float_as_int(w.v[3])};
        c = merged(c, one);
    }
    c = block_choice(c, shared);
    if (threadIdx.x)
        return;
    a.arrived[row] = 0;
    bool bad = c.bad || !(fabsf(c.value) <= HK_MAX_FLOAT);
    float nan = __uint_as_float(0x7FC00000u), lse = bad ? nan : c.value + logf(c.sum);
    a.best[row] = bad ? -1 : c.index;
    a.value[2 * row] = bad ? nan : c.value;
    a.value[2 * row + 1] = lse;
    hand_over(a.to, a.step, row, bad ? -1 : c.index, bad ? nan : c.value, lse);
}
