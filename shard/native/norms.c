/* RMS norms of rows, after another row has been added. A row's bits follow from the row alone. */

#include "phases.h"

#include "rows.h"

enum { COLUMNS = 256 }; /* that are computed at once, a multiple of SUM_LANES */

typedef struct {
    void *x;              /* [rows, width]; the sum is written back */
    const void *delta;    /* the same, or NULL */
    const float *weights; /* [width] */
    void *results;        /* [rows, width] */
    int64_t rows, width, format, rounds_after_weight;
    float epsilon;
} Norm;

TARGET static void norm_row(const Phase *phase, ptrdiff_t row) {
    const Norm *n = phase->arguments;
    const ptrdiff_t begin = row * n->width;
    float numbers[COLUMNS], deltas[COLUMNS], sums[SUM_LANES] = {0};
    for (ptrdiff_t column = 0; column < n->width; column += COLUMNS) {
        const ptrdiff_t count = n->width - column < COLUMNS ? n->width - column : COLUMNS;
        load_numbers(n->x, begin + column, count, n->format, numbers);
        if (n->delta != NULL) {
            load_numbers(n->delta, begin + column, count, n->format, deltas);
            for (ptrdiff_t i = 0; i < count; i++) numbers[i] += deltas[i];
            round_numbers(numbers, count, n->format);
            store_numbers(numbers, n->x, begin + column, count, n->format);
        }
        add_squares(numbers, count, sums);
    }
    const float factor = scale_of_squares(sums, n->width, n->epsilon);
    for (ptrdiff_t column = 0; column < n->width; column += COLUMNS) {
        const ptrdiff_t count = n->width - column < COLUMNS ? n->width - column : COLUMNS;
        load_numbers(n->x, begin + column, count, n->format, numbers);
        apply_norm(numbers, count, factor, n->weights + column, n->rounds_after_weight, n->format);
        store_numbers(numbers, n->results, begin + column, count, n->format);
    }
}

/* As weft_prepare_product in products.c. */
EXPORT int weft_prepare_norm(const Norm *norm, Phase *phases) {
    phases[0] = (Phase){norm_row, norm, NULL, norm->rows};
    return 1;
}
