#include "hk_cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* The part of the driver's ABI that is used here; the names carry the ABI's own version suffixes. */
typedef int cu_status;
typedef struct cu_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int number;
    } value;
} cu_attribute;
typedef struct cu_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    cu_attribute *attributes;
    unsigned n_attributes;
} cu_config;

typedef struct cu_plane {
    size_t x, y;
    int32_t kind;
    void *host;
    uint64_t device;
    void *array;
    size_t pitch;
} cu_plane;
typedef struct cu_copy {
    cu_plane from, to;
    size_t width, height;
} cu_copy;

enum {
    CU_MEMORY_HOST = 1,
    CU_MEMORY_DEVICE = 2,
    CU_SHARED_LIMIT = 8,
    CU_TOGETHER = 2,
    CU_EARLY_START = 6,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_NO_TIMING = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_NOT_READY = 600
};
enum { CU_HOST_PORTABLE = 1, CU_HOST_MAPPED = 2, CU_HOST_READ_ONLY = 8 };

#define HK_CUDA_FUNCTIONS(X)                                                                                           \
    X(cuInit, (unsigned))                                                                                              \
    X(cuDriverGetVersion, (int *))                                                                                     \
    X(cuGetErrorName, (cu_status, const char **))                                                                      \
    X(cuGetErrorString, (cu_status, const char **))                                                                    \
    X(cuDeviceGetCount, (int *))                                                                                       \
    X(cuDeviceGet, (int *, int))                                                                                       \
    X(cuDeviceGetName, (char *, int, int))                                                                             \
    X(cuDeviceTotalMem_v2, (size_t *, int))                                                                            \
    X(cuCtxGetCurrent, (void **))                                                                                      \
    X(cuCtxPushCurrent_v2, (void *))                                                                                   \
    X(cuCtxPopCurrent_v2, (void **))                                                                                   \
    X(cuCtxGetDevice, (int *))                                                                                         \
    X(cuDeviceGetAttribute, (int *, int, int))                                                                         \
    X(cuModuleLoadData, (void **, const void *))                                                                       \
    X(cuModuleUnload, (void *))                                                                                        \
    X(cuModuleGetFunction, (void **, void *, const char *))                                                            \
    X(cuFuncSetAttribute, (void *, int, int))                                                                          \
    X(cuFuncGetAttribute, (int *, int, void *))                                                                        \
    X(cuLaunchKernelEx, (const cu_config *, void *, void **, void **))                                                 \
    X(cuMemAlloc_v2, (uint64_t *, size_t))                                                                             \
    X(cuMemFree_v2, (uint64_t))                                                                                        \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                           \
    X(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *))                                                  \
    X(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *))                                                        \
    X(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *))                                                      \
    X(cuMemcpy2DAsync_v2, (const cu_copy *, void *))                                                                   \
    X(cuMemsetD8Async, (uint64_t, unsigned char, size_t, void *))                                                      \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                                     \
    X(cuMemFreeHost, (void *))                                                                                         \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                                \
    X(cuMemHostUnregister, (void *))                                                                                   \
    X(cuStreamCreate, (void **, unsigned))                                                                             \
    X(cuStreamCreateWithPriority, (void **, unsigned, int))                                                            \
    X(cuStreamWaitEvent, (void *, void *, unsigned))                                                                   \
    X(cuLaunchHostFunc, (void *, void (*)(void *), void *))                                                            \
    X(cuStreamDestroy_v2, (void *))                                                                                    \
    X(cuStreamSynchronize, (void *))                                                                                   \
    X(cuEventCreate, (void **, unsigned))                                                                              \
    X(cuEventDestroy_v2, (void *))                                                                                     \
    X(cuEventRecord, (void *, void *))                                                                                 \
    X(cuEventSynchronize, (void *))                                                                                    \
    X(cuEventQuery, (void *))                                                                                          \
    X(cuEventElapsedTime, (float *, void *, void *))                                                                   \
    X(cuStreamBeginCapture_v2, (void *, int))                                                                          \
    X(cuStreamEndCapture, (void *, void **))                                                                           \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                              \
    X(cuGraphLaunch, (void *, void *))                                                                                 \
    X(cuGraphDestroy, (void *))                                                                                        \
    X(cuGraphExecDestroy, (void *))

static struct {
#define X(name, parameters) cu_status(*name) parameters;
    HK_CUDA_FUNCTIONS(X)
#undef X
} cu;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static int open_status;
static char open_error[256];
static _Thread_local char error[512];

static void open_library(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        open_status = HK_CUDA_NO_LIBRARY;
        snprintf(open_error, sizeof open_error, "no NVIDIA driver: %s", why ? why : "libcuda.so.1 cannot be opened");
        return;
    }
#define X(name, parameters)                                                                                            \
    {                                                                                                                  \
        void *symbol = dlsym(library, #name);                                                                          \
        memcpy(&cu.name, &symbol, sizeof symbol);                                                                      \
        if (symbol == NULL && open_status == 0) {                                                                      \
            open_status = HK_CUDA_NO_SYMBOL;                                                                           \
            snprintf(open_error, sizeof open_error, "the NVIDIA driver is too old: it has no %s", #name);              \
        }                                                                                                              \
    }
    HK_CUDA_FUNCTIONS(X)
#undef X
    if (open_status == 0) {
        open_status = cu.cuInit(0);
        if (open_status)
            snprintf(open_error, sizeof open_error, "cuInit failed with status %d: no usable GPU", open_status);
    }
}

int hk_cuda_open(void) {
    pthread_once(&opened, open_library);
    if (open_status)
        snprintf(error, sizeof error, "%s", open_error);
    return open_status;
}

const char *hk_cuda_error(void) { return error; }

static int check(cu_status status, const char *what) {
    const char *name = NULL, *text = NULL;
    if (status == 0)
        return 0;
    cu.cuGetErrorName(status, &name);
    cu.cuGetErrorString(status, &text);
    /* From 700 on (an illegal address, a failed launch, ...) the context is of no use any more. */
    snprintf(error, sizeof error, "%s: %s (%d): %s%s", what, name ? name : "unknown error", status, text ? text : "",
             status >= 700 && status < 720 ? "; the GPU can be used again by a new process only" : "");
    return status;
}

#define CALL(name, ...)                                                                                                \
    do {                                                                                                               \
        int status_ = hk_cuda_open();                                                                                  \
        return status_ ? status_ : check(cu.name(__VA_ARGS__), #name);                                                 \
    } while (0)

int hk_cuda_driver_version(int *version) { CALL(cuDriverGetVersion, version); }
int hk_cuda_device_attribute(int attribute, int *value) {
    int device, status = hk_cuda_open();
    if (status || (status = check(cu.cuCtxGetDevice(&device), "cuCtxGetDevice")))
        return status;
    CALL(cuDeviceGetAttribute, value, attribute, device);
}
int hk_cuda_device_count(int *count) { CALL(cuDeviceGetCount, count); }
int hk_cuda_device_facts(int number, char *name, int name_bytes, size_t *total_bytes, int *major, int *minor) {
    enum { MAJOR = 75, MINOR = 76 };
    int device, status = hk_cuda_open();
    if (status || (status = check(cu.cuDeviceGet(&device, number), "cuDeviceGet")) ||
        (status = check(cu.cuDeviceGetName(name, name_bytes, device), "cuDeviceGetName")) ||
        (status = check(cu.cuDeviceTotalMem_v2(total_bytes, device), "cuDeviceTotalMem")) ||
        (status = check(cu.cuDeviceGetAttribute(major, MAJOR, device), "cuDeviceGetAttribute")))
        return status;
    CALL(cuDeviceGetAttribute, minor, MINOR, device);
}

int hk_cuda_context(void **context) { CALL(cuCtxGetCurrent, context); }
int hk_cuda_enter(void *context) { CALL(cuCtxPushCurrent_v2, context); }
int hk_cuda_leave(void) {
    void *left;
    CALL(cuCtxPopCurrent_v2, &left);
}

int hk_cuda_module_load(const void *image, void **module) { CALL(cuModuleLoadData, module, image); }
int hk_cuda_module_unload(void *module) { CALL(cuModuleUnload, module); }
int hk_cuda_function(void *module, const char *name, uint32_t shared_bytes, void **function) {
    int status = hk_cuda_open();
    if (status)
        return status;
    if ((status = cu.cuModuleGetFunction(function, module, name)))
        return check(status, name);
    if (shared_bytes <= 48 * 1024)
        return 0;
    CALL(cuFuncSetAttribute, *function, CU_SHARED_LIMIT, (int)shared_bytes);
}
int hk_cuda_function_attribute(void *function, int attribute, int *value) {
    CALL(cuFuncGetAttribute, value, attribute, function);
}

int hk_cuda_launch(const hk_launch *l, void *stream) {
    int status = hk_cuda_open();
    if (status)
        return status;
    cu_attribute wanted[2];
    unsigned n = 0;
    if (l->early)
        wanted[n++] = (cu_attribute){.id = CU_EARLY_START, .value.number = 1};
    if (l->together)
        wanted[n++] = (cu_attribute){.id = CU_TOGETHER, .value.number = 1};
    size_t bytes = l->args_bytes;
    /* A cooperative launch takes no buffer, the others' way, but pointers to parameters: here the only one. */
    void *parameters[] = {(void *)l->args};
    void *extra[] = {(void *)1, (void *)l->args, (void *)2, &bytes, (void *)0}; /* buffer pointer, buffer size, end */
    cu_config config = {.shared_bytes = l->shared_bytes, .stream = stream, .attributes = wanted, .n_attributes = n};
    memcpy(config.grid, l->grid, sizeof config.grid);
    memcpy(config.block, l->block, sizeof config.block);
    return check(cu.cuLaunchKernelEx(&config, l->function, l->together ? parameters : NULL, l->together ? NULL : extra),
                 "cuLaunchKernelEx");
}
int hk_cuda_launch_all(const hk_launch *launches, int n, void *stream) {
    for (int i = 0; i < n; i++) {
        int status = hk_cuda_launch(launches + i, stream);
        if (status)
            return status;
    }
    return 0;
}

int hk_cuda_alloc(size_t bytes, uint64_t *address) { CALL(cuMemAlloc_v2, address, bytes); }
int hk_cuda_free(uint64_t address) { CALL(cuMemFree_v2, address); }
int hk_cuda_memory_info(size_t *free_bytes, size_t *total_bytes) { CALL(cuMemGetInfo_v2, free_bytes, total_bytes); }
int hk_cuda_copy_to_device(uint64_t to, const void *from, size_t bytes, void *stream) {
    CALL(cuMemcpyHtoDAsync_v2, to, from, bytes, stream);
}
int hk_cuda_copy_to_host(void *to, uint64_t from, size_t bytes, void *stream) {
    CALL(cuMemcpyDtoHAsync_v2, to, from, bytes, stream);
}
int hk_cuda_copy_on_device(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    CALL(cuMemcpyDtoDAsync_v2, to, from, bytes, stream);
}
int hk_cuda_copy_rows(void *host, uint64_t device, size_t width, size_t pitch, size_t n, int to_host, void *stream) {
    cu_plane here = {.kind = CU_MEMORY_HOST, .host = host, .pitch = width};
    cu_plane there = {.kind = CU_MEMORY_DEVICE, .device = device, .pitch = pitch};
    cu_copy copy = {.from = to_host ? there : here, .to = to_host ? here : there, .width = width, .height = n};
    CALL(cuMemcpy2DAsync_v2, &copy, stream);
}
int hk_cuda_fill(uint64_t at, uint8_t byte, size_t bytes, void *stream) {
    CALL(cuMemsetD8Async, at, byte, bytes, stream);
}
int hk_cuda_host_alloc(size_t bytes, void **memory) {
    CALL(cuMemHostAlloc, memory, bytes, CU_HOST_PORTABLE | CU_HOST_MAPPED);
}
int hk_cuda_host_free(void *memory) { CALL(cuMemFreeHost, memory); }
int hk_cuda_host_register(void *memory, size_t bytes, int read_only) {
    CALL(cuMemHostRegister_v2, memory, bytes, CU_HOST_PORTABLE | CU_HOST_MAPPED | (read_only ? CU_HOST_READ_ONLY : 0));
}
int hk_cuda_host_unregister(void *memory) { CALL(cuMemHostUnregister, memory); }

int hk_cuda_stream_create(void **stream) { CALL(cuStreamCreate, stream, CU_STREAM_NON_BLOCKING); }
int hk_cuda_stream_create_urgent(void **stream) {
    enum { MOST_URGENT = -1000 }; /* which the driver cuts to what it has */
    CALL(cuStreamCreateWithPriority, stream, CU_STREAM_NON_BLOCKING, MOST_URGENT);
}
int hk_cuda_stream_after(void *stream, void *event) { CALL(cuStreamWaitEvent, stream, event, 0); }
int hk_cuda_stream_call(void *stream, void (*function)(void *), void *argument) {
    CALL(cuLaunchHostFunc, stream, function, argument);
}
int hk_cuda_stream_destroy(void *stream) { CALL(cuStreamDestroy_v2, stream); }
int hk_cuda_stream_wait(void *stream) { CALL(cuStreamSynchronize, stream); }
int hk_cuda_event_create(int timed, void **event) { CALL(cuEventCreate, event, timed ? 0 : CU_NO_TIMING); }
int hk_cuda_event_destroy(void *event) { CALL(cuEventDestroy_v2, event); }
int hk_cuda_event_record(void *event, void *stream) { CALL(cuEventRecord, event, stream); }
int hk_cuda_event_wait(void *event) { CALL(cuEventSynchronize, event); }
int hk_cuda_event_ready(void *event, int *ready) {
    int status = hk_cuda_open();
    if (status)
        return status;
    status = cu.cuEventQuery(event);
    *ready = status == 0;
    return status == CU_NOT_READY ? 0 : check(status, "cuEventQuery");
}
int hk_cuda_event_elapsed(void *start, void *end, float *milliseconds) {
    CALL(cuEventElapsedTime, milliseconds, start, end);
}

int hk_cuda_capture_begin(void *stream) { CALL(cuStreamBeginCapture_v2, stream, CU_CAPTURE_THREAD_LOCAL); }
int hk_cuda_capture_end(void *stream, void **graph) {
    void *recorded = NULL;
    int status = hk_cuda_open();
    *graph = NULL;
    if (status || (status = check(cu.cuStreamEndCapture(stream, &recorded), "cuStreamEndCapture")))
        return status;
    status = check(cu.cuGraphInstantiateWithFlags(graph, recorded, 0), "cuGraphInstantiateWithFlags");
    cu.cuGraphDestroy(recorded);
    return status;
}
int hk_cuda_graph_launch(void *graph, void *stream) { CALL(cuGraphLaunch, graph, stream); }
int hk_cuda_graph_destroy(void *graph) { CALL(cuGraphExecDestroy, graph); }
