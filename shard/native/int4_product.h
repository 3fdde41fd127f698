/* The product of float32 rows with weights of four bits that have a scale and a zero for each output and group of inputs, for
 * int4_products.c and amx_int4_products.c: a weight is (code - zero) * scale, with codes from 0 to 15.
 *
 * Each row is quantized to int16, with the same groups. Sums over a group are exact, and so is the part of the zeros. A
 * row's bits therefore do not depend on other rows, on threads, or on the instruction set.
 *
 * A panel holds the weights of 16 outputs: for every four inputs 32 bytes, whose low halves are codes of the first two
 * inputs, and whose high halves those of the other two. Bytes come in pairs of inputs, for outputs 0 to 3, 8 to 11, 4 to 7
 * and 12 to 15. Inputs are padded with zeros to whole groups.
 */

#include "phases.h"

#include "int16_rows.h"

enum { PANEL_OUTPUTS = 16, READ_AHEAD_BYTES = 2048 };

typedef struct {
    Int16Rows rows; /* first, for quantize_row */
    const uint8_t *weight;
    const float *scales; /* [panels, groups, 16] */
    const int8_t *zeros; /* [panels, groups, 16] */
    const float *bias;   /* [panels * 16], or NULL */
    float *y;            /* [rows, y_stride], y_stride >= panels * 16 */
    uint8_t *tiles;      /* as in int8_product.h, for amx_int4_products.c */
    int64_t panels, y_stride;
} Int4Product;
