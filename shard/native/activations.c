/* Gated activations of float32 numbers: activation(gate) * up. A result's bits follow from its two numbers alone. */

#include "parallel.h"

#include <stdint.h>
#include <string.h>

enum { SILU, GELU_TANH };
enum { COLUMNS_PER_PART = 1024, MIN_NUMBERS_FOR_THREADS = 16384 };

typedef struct {
    const float *gates_and_ups; /* [rows, 2 * width], a row every `stride` numbers */
    float *results;             /* [rows, width] */
    uint16_t *rounded;          /* if not NULL, the results go here as bfloat16 */
    int64_t rows, width, stride, activation;
} Gating;

#define USE_AVX512 0
#include "vectors.h"
#include "activations.h"

#undef USE_AVX512
#define USE_AVX512 1
#include "vectors.h"
#include "activations.h"

typedef struct {
    const Gating *gating;
    void (*gate)(const Gating *, ptrdiff_t, ptrdiff_t, ptrdiff_t);
    ptrdiff_t parts_per_row;
} Job;

static void run_part(const void *data, ptrdiff_t part) {
    const Job *job = data;
    const ptrdiff_t first = part % job->parts_per_row * COLUMNS_PER_PART, width = job->gating->width;
    job->gate(job->gating, part / job->parts_per_row, first,
              first + COLUMNS_PER_PART < width ? first + COLUMNS_PER_PART : width);
}

EXPORT void weft_gate(const Gating *gating, int instruction_set, Parallel parallel, unsigned threads) {
    const ptrdiff_t parts_per_row = (gating->width + COLUMNS_PER_PART - 1) / COLUMNS_PER_PART;
    const Job job = {gating, instruction_set == 1 ? gate_avx2 : gate_avx512, parts_per_row};
    const int takes_threads = gating->rows * gating->width >= MIN_NUMBERS_FOR_THREADS;
    run_parts(run_part, &job, gating->rows * parts_per_row, parallel, takes_threads ? threads : 1);
}
