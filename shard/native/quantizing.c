/* Quantization of weights to int8 with one scale per output, and to four bits with one for each output and group of
 * inputs: the same bits as by torch in weight_quantization.py. */

#include "phases.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define USE_AVX512 0
#include "vectors.h"

enum { FLOAT32, BFLOAT16, FLOAT16 }; /* of weights */
enum { MAX_CODE = 127, NUM_INT4_STEPS = 15 };
static const float RANGE_FRACTIONS[] = {0.9375f, 0.875f}; /* of a group's range that are tried as well */

typedef struct {
    const void *weight; /* [rows, inputs] */
    int8_t *codes;      /* [rows, columns]: those of the inputs from first_column on */
    float *scales;      /* [rows], or of four bits [rows, columns / group_inputs] */
    int64_t rows, inputs, first_column, columns, format, group_inputs; /* a group is a multiple of LANES; 0: int8 */
} Quantizing;

/* Reads `count` numbers, at most LANES, from index `first` on; missing ones are zeros. */
TARGET static inline VECTOR load_weights(const Quantizing *q, ptrdiff_t first, ptrdiff_t count) {
    if (q->format == FLOAT32) {
        float padded[LANES] = {0};
        const float *from = (const float *)q->weight + first;
        if (count < LANES) from = memcpy(padded, from, (size_t)count * sizeof *padded);
        return LOAD(from);
    }
    uint16_t padded[LANES] = {0};
    const uint16_t *from = (const uint16_t *)q->weight + first;
    if (count < LANES) from = memcpy(padded, from, (size_t)count * sizeof *padded);
    return q->format == BFLOAT16 ? LOAD_BFLOAT16(from) : LOAD_FLOAT16(from);
}

/* Returns the largest absolute value; NaN if one is not finite. */
TARGET static float find_largest(const Quantizing *q, ptrdiff_t row) {
    const VECTOR zero = BROADCAST(0.0f);
    VECTOR largest = zero, not_finite = zero;
    for (ptrdiff_t i = 0; i < q->inputs; i += LANES) {
        const VECTOR weights = load_weights(q, row * q->inputs + i, q->inputs - i);
        largest = MAXIMUM(largest, MAXIMUM(weights, SUBTRACT(zero, weights)));
        not_finite = MULTIPLY_ADD(weights, zero, not_finite); /* stays zero until a number is not finite */
    }
    float lanes[LANES], sums[LANES], result = 0.0f;
    STORE(lanes, largest);
    STORE(sums, not_finite);
    for (int lane = 0; lane < LANES; lane++) {
        if (sums[lane] != 0.0f) return NAN;
        if (lanes[lane] > result) result = lanes[lane];
    }
    return result;
}

/* Writes the codes of at most LANES numbers that are whole. */
TARGET static inline void store_codes(int8_t *codes, VECTOR numbers, ptrdiff_t count) {
    const __m256i rounded = _mm256_cvtps_epi32(numbers); /* ties to even */
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
    int8_t octets[2 * LANES];
    _mm_storeu_si128((__m128i *)octets, _mm_packs_epi16(words, words));
    memcpy(codes, octets, count < LANES ? (size_t)count : LANES);
}

TARGET static void quantize_row(const Quantizing *q, ptrdiff_t row) {
    const float largest = find_largest(q, row), scale = largest == 0.0f ? 1.0f : largest / MAX_CODE;
    int8_t *const codes = q->codes + row * q->columns;
    q->scales[row] = scale;
    for (ptrdiff_t i = 0; i < q->columns; i += LANES) {
        const ptrdiff_t left = q->columns - i;
        const VECTOR weights = load_weights(q, row * q->inputs + q->first_column + i, left);
        store_codes(codes + i, DIVIDE(weights, BROADCAST(scale)), left);
    }
}

/* The codes of a group: whole multiples of the scale. */
typedef struct {
    float scale;
    VECTOR divisor, least_code, largest_code; /* divisor: the scale in all lanes */
} GroupCodes;

TARGET static GroupCodes make_group_codes(float least, float largest) {
    GroupCodes codes = {.scale = (largest - least) / NUM_INT4_STEPS};
    if (codes.scale == 0.0f) codes.scale = 1.0f;
    codes.divisor = BROADCAST(codes.scale);
    codes.least_code = ROUND(DIVIDE(BROADCAST(least), codes.divisor));
    codes.largest_code = ADD(codes.least_code, BROADCAST((float)NUM_INT4_STEPS));
    return codes;
}

TARGET static inline VECTOR round_to_codes(const GroupCodes *codes, VECTOR weights) {
    return MINIMUM(MAXIMUM(ROUND(DIVIDE(weights, codes->divisor)), codes->least_code), codes->largest_code);
}

/* Returns the sum of squares of what rounding changes. */
TARGET static float sum_squared_errors(const Quantizing *q, ptrdiff_t first, const GroupCodes *codes) {
    VECTOR sums = BROADCAST(0.0f);
    for (ptrdiff_t i = 0; i < q->group_inputs; i += LANES) {
        const VECTOR weights = load_weights(q, first + i, LANES);
        const VECTOR error = SUBTRACT(MULTIPLY(round_to_codes(codes, weights), codes->divisor), weights);
        sums = ADD(sums, MULTIPLY(error, error));
    }
    float lanes[LANES], sum = 0.0f;
    STORE(lanes, sums);
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

/* Quantizes a group to four bits: codes go from a fraction of its least weight to that of its largest, whichever fraction
 * has the least error, and one of them stands for zero. Returns the scale; NaN if a number is not finite. */
TARGET static float quantize_group(const Quantizing *q, ptrdiff_t first, int8_t *codes) {
    const VECTOR zero = BROADCAST(0.0f);
    VECTOR least = zero, largest = zero, not_finite = zero;
    for (ptrdiff_t i = 0; i < q->group_inputs; i += LANES) {
        const VECTOR weights = load_weights(q, first + i, LANES);
        least = MINIMUM(least, weights);
        largest = MAXIMUM(largest, weights);
        not_finite = MULTIPLY_ADD(weights, zero, not_finite);
    }
    float low[LANES], high[LANES], sums[LANES];
    STORE(low, least);
    STORE(high, largest);
    STORE(sums, not_finite);
    for (int lane = 0; lane < LANES; lane++) {
        if (sums[lane] != 0.0f) return NAN;
        if (low[lane] < low[0]) low[0] = low[lane];
        if (high[lane] > high[0]) high[0] = high[lane];
    }
    GroupCodes best = make_group_codes(low[0], high[0]);
    float least_error = sum_squared_errors(q, first, &best);
    for (size_t i = 0; i < sizeof RANGE_FRACTIONS / sizeof *RANGE_FRACTIONS; i++) {
        const GroupCodes narrower = make_group_codes(low[0] * RANGE_FRACTIONS[i], high[0] * RANGE_FRACTIONS[i]);
        const float error = sum_squared_errors(q, first, &narrower);
        if (error < least_error) {
            least_error = error;
            best = narrower;
        }
    }
    for (ptrdiff_t i = 0; i < q->group_inputs; i += LANES)
        store_codes(codes + i, round_to_codes(&best, load_weights(q, first + i, LANES)), LANES);
    return best.scale;
}

static void quantize_row_in_groups(const Quantizing *q, ptrdiff_t row) {
    for (ptrdiff_t i = 0; i < q->columns; i += q->group_inputs)
        q->scales[(row * q->columns + i) / q->group_inputs] = quantize_group(
            q, row * q->inputs + q->first_column + i, q->codes + row * q->columns + i);
}

static void quantize_part(const Phase *phase, ptrdiff_t part) {
    const Quantizing *quantizing = phase->arguments;
    const PartRange range = cut_panels(quantizing->rows, 1, part, phase->num_parts);
    for (ptrdiff_t row = range.first; row < range.end; row++)
        if (quantizing->group_inputs == 0) quantize_row(quantizing, row);
        else quantize_row_in_groups(quantizing, row);
}

EXPORT int weft_prepare_quantizing(const Quantizing *quantizing, unsigned threads, Phase *phases) {
    phases[0] = (Phase){quantize_part, quantizing, NULL, count_parts(quantizing->rows, threads)};
    return 1;
}
