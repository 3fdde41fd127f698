/* Parts of a job on the threads of an OpenMP library that the caller has loaded. */

#include <stddef.h>

/* Whether the compiler knows the instructions for bfloat16. */
#if defined(__clang__) || __GNUC__ >= 10
#define HAS_BFLOAT16 1
#else
#define HAS_BFLOAT16 0
#endif

#define EXPORT __attribute__((visibility("default")))

static inline ptrdiff_t divide_up(ptrdiff_t count, ptrdiff_t divisor) { return (count + divisor - 1) / divisor; }

/* Returns into how many parts a product is cut: a few for each thread. */
static inline ptrdiff_t count_parts(ptrdiff_t panels, unsigned threads) {
    const ptrdiff_t most_parts = threads <= 1 ? 1 : (ptrdiff_t)threads * 8;
    return panels < most_parts ? panels : most_parts;
}

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */

typedef struct {
    void (*run)(const void *data, ptrdiff_t part);
    const void *data;
    ptrdiff_t num_parts;
    ptrdiff_t next_part; /* atomic: a thread whose core is taken away holds up no more than one part */
} Parts;

static void run_next_parts(void *data) {
    Parts *parts = data;
    for (ptrdiff_t part; (part = __atomic_fetch_add(&parts->next_part, 1, __ATOMIC_RELAXED)) < parts->num_parts;)
        parts->run(parts->data, part);
}

static inline void run_parts(void (*run)(const void *, ptrdiff_t), const void *data, ptrdiff_t num_parts, Parallel parallel,
                      unsigned threads) {
    Parts parts = {run, data, num_parts, 0};
    if (threads <= 1 || num_parts <= 1)
        run_next_parts(&parts);
    else
        parallel(run_next_parts, &parts, threads, 0);
}
