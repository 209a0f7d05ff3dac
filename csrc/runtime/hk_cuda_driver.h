/* The CUDA driver without a link dependency: libcuda.so.1 is opened at run time, its functions looked up by name.
 * Everything works in the context that is current in the calling thread.
 *
 * Functions return 0, or a status: the driver's error code, or HK_CUDA_* below. hk_cuda_error() then says what failed
 * in this thread, with the driver's name and text for it. Nothing prints or exits.
 */
#ifndef HK_CUDA_DRIVER_H
#define HK_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifndef HK_CUDA_API
#define HK_CUDA_API __attribute__((visibility("default")))
#endif

enum { HK_CUDA_NO_LIBRARY = -1, HK_CUDA_NO_SYMBOL = -2, HK_CUDA_NO_CONTEXT = -3 };

typedef struct hk_launch {
    void *function;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    int32_t early;    /* may start before the kernel in front of it has ended (programmatic dependent launch, sm_90) */
    int32_t together; /* all blocks must be there at the same time (cooperative launch), or the launch fails */
    const void *args; /* the kernel's only parameter, by value; read during the call */
    size_t args_bytes;
} hk_launch;

HK_CUDA_API int hk_cuda_open(void); /* finds the library; later calls return the first one's status */
HK_CUDA_API const char *hk_cuda_error(void);
HK_CUDA_API int hk_cuda_driver_version(int *version);
HK_CUDA_API int hk_cuda_device_attribute(int attribute, int *value); /* of the current context's device */
/* What can be known about a device without using it. */
HK_CUDA_API int hk_cuda_device_count(int *count);
HK_CUDA_API int hk_cuda_device_facts(int number, char *name, int name_bytes, size_t *total_bytes, int *major,
                                     int *minor);
/* The context that is current in this thread; making one current, and the one before it again. */
HK_CUDA_API int hk_cuda_context(void **context);
HK_CUDA_API int hk_cuda_enter(void *context);
HK_CUDA_API int hk_cuda_leave(void);

HK_CUDA_API int hk_cuda_module_load(const void *image, void **module);
HK_CUDA_API int hk_cuda_module_unload(void *module);
/* Finds a kernel and lets it use up to shared_bytes of dynamic shared memory. */
HK_CUDA_API int hk_cuda_function(void *module, const char *name, uint32_t shared_bytes, void **function);
HK_CUDA_API int hk_cuda_function_attribute(void *function, int attribute, int *value);
HK_CUDA_API int hk_cuda_launch(const hk_launch *launch, void *stream);
HK_CUDA_API int hk_cuda_launch_all(const hk_launch *launches, int n, void *stream);

HK_CUDA_API int hk_cuda_alloc(size_t bytes, uint64_t *address);
HK_CUDA_API int hk_cuda_free(uint64_t address);
HK_CUDA_API int hk_cuda_memory_info(size_t *free_bytes, size_t *total_bytes);
HK_CUDA_API int hk_cuda_copy_to_device(uint64_t to, const void *from, size_t bytes, void *stream);
HK_CUDA_API int hk_cuda_copy_to_host(void *to, uint64_t from, size_t bytes, void *stream);
HK_CUDA_API int hk_cuda_copy_on_device(uint64_t to, uint64_t from, size_t bytes, void *stream);
/* n rows of `width` bytes, one behind the other in host memory, `pitch` bytes apart on the device. */
HK_CUDA_API int hk_cuda_copy_rows(void *host, uint64_t device, size_t width, size_t pitch, size_t n, int to_host,
                                  void *stream);
HK_CUDA_API int hk_cuda_fill(uint64_t at, uint8_t byte, size_t bytes, void *stream);
HK_CUDA_API int hk_cuda_host_alloc(size_t bytes, void **memory); /* page-locked, mapped */
HK_CUDA_API int hk_cuda_host_free(void *memory);
HK_CUDA_API int hk_cuda_host_register(void *memory, size_t bytes, int read_only);
HK_CUDA_API int hk_cuda_host_unregister(void *memory);

HK_CUDA_API int hk_cuda_stream_create(void **stream);
/* One whose kernels are placed before those of others. */
HK_CUDA_API int hk_cuda_stream_create_urgent(void **stream);
HK_CUDA_API int hk_cuda_stream_destroy(void *stream);
/* What is queued from now on waits for an event; in a capture that makes the stream part of it. */
HK_CUDA_API int hk_cuda_stream_after(void *stream, void *event);
HK_CUDA_API int hk_cuda_stream_call(void *stream, void (*function)(void *), void *argument);
HK_CUDA_API int hk_cuda_stream_wait(void *stream); /* for the host: until everything in it is done */
HK_CUDA_API int hk_cuda_event_create(int timed, void **event);
HK_CUDA_API int hk_cuda_event_destroy(void *event);
HK_CUDA_API int hk_cuda_event_record(void *event, void *stream);
HK_CUDA_API int hk_cuda_event_wait(void *event);
HK_CUDA_API int hk_cuda_event_ready(void *event, int *ready); /* without waiting */
HK_CUDA_API int hk_cuda_event_elapsed(void *start, void *end, float *milliseconds);

HK_CUDA_API int hk_cuda_capture_begin(void *stream);
HK_CUDA_API int hk_cuda_capture_end(void *stream, void **graph); /* an executable graph; NULL when it failed */
HK_CUDA_API int hk_cuda_graph_launch(void *graph, void *stream);
HK_CUDA_API int hk_cuda_graph_destroy(void *graph);

#endif
