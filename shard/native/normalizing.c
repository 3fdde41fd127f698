/* Sampling's passes over logits: what turns a row into logprobs, and its best candidates. A row's result follows from the
 * row alone, and is the same with every instruction set. */

#include "phases.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK_IDS = 128, SUM_LANES = 16 }; /* BLOCK_IDS: as IDS_PER_BLOCK in normalized_logits.py */

typedef struct {
    const float *logits; /* [rows, vocabulary], a row every `stride` numbers */
    float *block_maxima; /* [rows, vocabulary / BLOCK_IDS], of the blocks that are full */
    float *maxima;       /* [rows] */
    double *sums;        /* [rows], of e to the power of what each logit is above the maximum; NaN if a logit is */
    int64_t *best_ids;   /* [rows], the lowest id of the highest logit */
    int64_t rows, vocabulary, stride;
} Normalizing;

#define USE_AVX512 0
#include "vectors.h"
#include "normalizing.h"

#undef USE_AVX512
#define USE_AVX512 1
#include "vectors.h"
#include "normalizing.h"

typedef void (*NormalizeRow)(const Normalizing *, ptrdiff_t);

static void normalize_part(const Phase *phase, ptrdiff_t row) {
    (*(const NormalizeRow *)phase->kernels)(phase->arguments, row);
}

/* As weft_prepare_product in products.c. */
EXPORT int weft_prepare_normalizing(const Normalizing *normalizing, int instruction_set, Phase *phases) {
    static const NormalizeRow normalize[] = {normalize_row_avx2, normalize_row_avx512};
    phases[0] = (Phase){normalize_part, normalizing, normalize + (instruction_set > AVX2_VNNI), normalizing->rows};
    return 1;
}
