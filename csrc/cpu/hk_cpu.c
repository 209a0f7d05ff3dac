/* Which kernel sets this CPU can run, and how a set is put together. */
#define _GNU_SOURCE
#include "hk_cpu.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* The register states that the operating system saves: XCR0, or 0 without OSXSAVE. */
static uint64_t enabled_states(void) {
    uint32_t a, b, c, d, lo, hi;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Linux lends a process the tile state, 8 KB in the signal frames of the threads that have used it, only when asked,
 * and not when the alternate signal stack of some thread is too small for that. Asked once, for all threads. */
static int tiles_granted(void) {
#if defined(__linux__)
    enum { UNKNOWN, GRANTED, DENIED, ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    static atomic_int answer;
    int known = atomic_load_explicit(&answer, memory_order_relaxed);
    if (known == UNKNOWN) { /* asking twice at once does no harm: the answer is the same */
        known = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 ? GRANTED : DENIED;
        atomic_store_explicit(&answer, known, memory_order_relaxed);
    }
    return known == GRANTED;
#else
    return 0;
#endif
}

uint32_t hk_cpu_features(void) {
    enum { YMM = 0x6, ZMM = 0xe6, TILE = 0x60000 };
    uint64_t states = enabled_states();
    uint32_t a, b, c, d, a1 = 0, unused, leaf1_c = 0, f = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    if (a >= 1)
        __get_cpuid_count(7, 1, &a1, &unused, &unused, &unused);
    __get_cpuid(1, &unused, &unused, &leaf1_c, &unused);
    uint32_t need = bit_AVX | bit_FMA | bit_F16C;
    if ((states & YMM) == YMM && (b & bit_AVX2) && (leaf1_c & need) == need) {
        f |= HK_HAS_AVX2;
        if (a1 & (1u << 4))
            f |= HK_HAS_AVXVNNI;
    }
    need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((f & HK_HAS_AVX2) && (states & ZMM) == ZMM && (b & need) == need) {
        f |= HK_HAS_AVX512;
        if (c & bit_AVX512VNNI)
            f |= HK_HAS_AVX512VNNI;
    }
    /* AMX-TILE and AMX-INT8 */
    if ((f & HK_HAS_AVX512VNNI) && (states & TILE) == TILE && (d & (3u << 24)) == 3u << 24)
        f |= tiles_granted() ? HK_HAS_AMX : HK_AMX_DENIED;
    /* AMX-BF16 and AVX512_BF16 */
    if ((f & HK_HAS_AMX) && (d & (1u << 22)) && (a1 & (1u << 5)))
        f |= HK_HAS_AMXBF16;
    return f;
}
#else
uint32_t hk_cpu_features(void) { return 0; }
#endif

typedef void (*fill_fn)(hk_cpu_set *set);

/* A set is its own kernels over those of the sets in `below` (a mask of indices), lowest first. */
typedef struct set_info {
    const char *name;
    uint32_t requires, below;
    fill_fn quant, floats;
    int rounds; /* whether its results may differ from those of the other sets */
} set_info;

enum { SCALAR, AVX2, AVXVNNI, AVX512, AVX512VNNI, AMX, AMXBF16, N_SETS };

#define FILLS(isa) hk_fill_quant_##isa, hk_fill_float_##isa

static const set_info sets[N_SETS] = {
    [SCALAR] = {"scalar", 0, 0, FILLS(scalar)},
    [AVX2] = {"avx2", HK_HAS_AVX2, 1 << SCALAR,
#ifdef HK_BUILT_AVX2
              FILLS(avx2)
#endif
    },
    [AVXVNNI] = {"avxvnni", HK_HAS_AVX2 | HK_HAS_AVXVNNI, 1 << SCALAR | 1 << AVX2,
#ifdef HK_BUILT_AVXVNNI
                 FILLS(avxvnni)
#endif
    },
    [AVX512] = {"avx512", HK_HAS_AVX2 | HK_HAS_AVX512, 1 << SCALAR | 1 << AVX2,
#ifdef HK_BUILT_AVX512
                FILLS(avx512)
#endif
    },
    [AVX512VNNI] = {"avx512vnni", HK_HAS_AVX2 | HK_HAS_AVX512 | HK_HAS_AVX512VNNI,
                    1 << SCALAR | 1 << AVX2 | 1 << AVX512,
#ifdef HK_BUILT_AVX512VNNI
                    FILLS(avx512vnni)
#endif
    },
    [AMX] = {"amx", HK_HAS_AVX2 | HK_HAS_AVX512 | HK_HAS_AVX512VNNI | HK_HAS_AMX,
             1 << SCALAR | 1 << AVX2 | 1 << AVX512 | 1 << AVX512VNNI,
#ifdef HK_BUILT_AMX
             FILLS(amx)
#endif
    },
    [AMXBF16] = {"amxbf16", HK_HAS_AVX2 | HK_HAS_AVX512 | HK_HAS_AVX512VNNI | HK_HAS_AMX | HK_HAS_AMXBF16,
                 1 << SCALAR | 1 << AVX2 | 1 << AVX512 | 1 << AVX512VNNI | 1 << AMX,
#ifdef HK_BUILT_AMXBF16
                 FILLS(amxbf16),
#else
                 NULL, NULL,
#endif
                 1},
};

int hk_cpu_n_sets(void) { return N_SETS; }
const char *hk_cpu_set_name(int i) { return sets[i].name; }
uint32_t hk_cpu_set_requires(int i) { return sets[i].requires; }
int hk_cpu_set_built(int i) { return sets[i].quant != NULL; }
int hk_cpu_set_rounds(int i) { return sets[i].rounds; }

int hk_cpu_fill(int i, hk_cpu_set *set) {
    if (i < 0 || i >= N_SETS || !sets[i].quant || (sets[i].requires & ~hk_cpu_features()))
        return -1;
    memset(set, 0, sizeof *set);
    for (int j = 0; j <= i; j++)
        if ((j == i || (sets[i].below >> j & 1)) && sets[j].quant) {
            sets[j].quant(set);
            sets[j].floats(set);
        }
    set->name = sets[i].name;
    set->requires = sets[i].requires;
    return 0;
}
