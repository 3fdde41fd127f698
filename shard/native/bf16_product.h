/* The product of bfloat16 rows with bfloat16 weights, or for AMX int8 weights, for bf16_products.c and amx_bf16_products.c.
 *
 * A panel holds the weights of 32 outputs: for every two inputs, two weights for each output. So the number of inputs is
 * even. For amx_bf16_products.c it is a multiple of 32, and the weights for what a row lacks are zeros. int8 weights lie in
 * another order: for every two inputs, the first weights of 16 outputs, their second ones, and those of the other 16.
 */

#include "phases.h"

#include <stdint.h>

enum { PANEL_OUTPUTS = 32 };

typedef struct {
    const uint16_t *x;      /* [rows, x_stride] */
    const uint16_t *weight; /* [panels, inputs / 2, 32, 2], or NULL if `codes` is not */
    const int8_t *codes;    /* [panels, inputs / 2, 2, 2, 16] weights, or NULL */
    const float *scales;    /* [panels * 32] of the codes, or NULL */
    const float *bias;      /* [panels * 32], or NULL */
    float *y;               /* [rows, y_stride], y_stride >= panels * 32; NULL for AMX if `rounded` is not */
    uint16_t *rounded;      /* the same as bfloat16, or NULL; if not NULL, y holds unfinished sums, but not for AMX */
    uint16_t *tiles;        /* [rows / 16 rounded up, inputs / 32, 16, 32], the rows in tiles, for amx_bf16_products.c */
    int64_t rows, inputs, panels, x_stride, y_stride;
    int64_t x_inputs;       /* numbers of a row, at most `inputs`; read by amx_bf16_products.c alone */
} Bf16Product;
