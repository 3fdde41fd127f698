/* Rounding of float32 rows to bfloat16. */

#include "phases.h"

#include "rows.h"

typedef struct {
    const float *numbers; /* [rows, width], a row every `stride` numbers */
    uint16_t *rounded;    /* [rows, width] */
    int64_t rows, width, stride;
} Rounding;

static void round_row(const Phase *phase, ptrdiff_t row) {
    const Rounding *r = phase->arguments;
    store_numbers(r->numbers + row * r->stride, r->rounded, row * r->width, r->width, BFLOAT16);
}

/* As weft_prepare_product in products.c. */
EXPORT int weft_prepare_rounding(const Rounding *rounding, Phase *phases) {
    phases[0] = (Phase){round_row, rounding, NULL, rounding->rows};
    return 1;
}
