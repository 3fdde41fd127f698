/* The product of float32 rows with int8 weights that have one scale per output, for int8_products.c.
 *
 * Each row is quantized to int16, with a scale for each GROUP_INPUTS inputs. Sums over a group are exact: 128 * 127 * 32767
 * is less than 2^31. A row's bits therefore do not depend on other rows, on threads, or on the instruction set. Inputs are
 * padded with zeros to whole groups.
 */

#include "phases.h"

#include "int16_rows.h"

enum { PANEL_OUTPUTS = 16, GROUP_INPUTS = 128 };

typedef struct {
    Int16Rows rows; /* first, for quantize_row; with groups of GROUP_INPUTS */
    const int8_t *weight;
    const float *scales; /* [panels * 16] */
    const float *bias;   /* [panels * 16], or NULL */
    float *y;            /* [rows, y_stride], y_stride >= panels * 16 */
    int64_t panels, y_stride;
} Int8Product;
