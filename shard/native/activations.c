/* Gated activations of float32 numbers: activation(gate) * up. A result's bits follow from its two numbers alone. */

#include "phases.h"

#include <stdint.h>
#include <string.h>

enum { SILU, GELU_TANH };
enum { COLUMNS_PER_PART = 1024 };

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

typedef void (*Gate)(const Gating *, ptrdiff_t, ptrdiff_t, ptrdiff_t);

static void gate_part(const Phase *phase, ptrdiff_t part) {
    const Gating *g = phase->arguments;
    const ptrdiff_t parts_per_row = divide_up(g->width, COLUMNS_PER_PART);
    const ptrdiff_t first = part % parts_per_row * COLUMNS_PER_PART, end = first + COLUMNS_PER_PART;
    (*(const Gate *)phase->kernels)(g, part / parts_per_row, first, end < g->width ? end : g->width);
}

/* As weft_prepare_product in products.c. */
EXPORT int weft_prepare_gating(const Gating *gating, int instruction_set, Phase *phases) {
    static const Gate gates[] = {gate_avx2, gate_avx512};
    phases[0] = (Phase){gate_part, gating, gates + (instruction_set > AVX2_VNNI),
                        gating->rows * divide_up(gating->width, COLUMNS_PER_PART)};
    return 1;
}
