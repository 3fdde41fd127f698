/* Rows of numbers in the type of a model's activations, as float32. AVX2 with every instruction set: these are short. */

#include <stdint.h>
#include <string.h>

#define USE_AVX512 0
#include "vectors.h"

enum { FLOAT32, BFLOAT16 }; /* of activations */
enum { SUM_LANES = 16 };

/* Reads `count` numbers from index `first` on. */
TARGET static inline void load_numbers(const void *from, ptrdiff_t first, ptrdiff_t count, int64_t format, float *to) {
    if (format == FLOAT32) {
        memcpy(to, (const float *)from + first, (size_t)count * sizeof(float));
        return;
    }
    const uint16_t *rounded = (const uint16_t *)from + first;
    ptrdiff_t i = 0;
    for (; i + LANES <= count; i += LANES) STORE(to + i, LOAD_BFLOAT16(rounded + i));
    for (; i < count; i++) {
        const uint32_t word = (uint32_t)rounded[i] << 16;
        memcpy(to + i, &word, sizeof word);
    }
}

/* Writes `count` numbers, rounded to their type, from index `first` on. */
TARGET static inline void store_numbers(const float *from, void *to, ptrdiff_t first, ptrdiff_t count, int64_t format) {
    if (format == FLOAT32) {
        memcpy((float *)to + first, from, (size_t)count * sizeof(float));
        return;
    }
    uint16_t *rounded = (uint16_t *)to + first;
    ptrdiff_t i = 0;
    for (; i + LANES <= count; i += LANES) STORE_BFLOAT16(rounded + i, LOAD(from + i));
    if (i == count) return;
    float padded[LANES] = {0};
    uint16_t part[LANES];
    memcpy(padded, from + i, (size_t)(count - i) * sizeof(float));
    STORE_BFLOAT16(part, LOAD(padded));
    memcpy(rounded + i, part, (size_t)(count - i) * sizeof *part);
}

/* Rounds numbers as `store_numbers` would. */
TARGET static inline void round_numbers(float *numbers, ptrdiff_t count, int64_t format) {
    if (format == FLOAT32) return;
    for (ptrdiff_t i = 0; i < count; i += LANES) {
        uint16_t part[LANES];
        const ptrdiff_t left = count - i < LANES ? count - i : LANES;
        store_numbers(numbers + i, part, 0, left, format);
        load_numbers(part, 0, left, format, numbers + i);
    }
}

/* Adds squares to sixteen sums, each of the numbers whose index leaves the same rest; `numbers` begins at a multiple. */
TARGET static inline void add_squares(const float *numbers, ptrdiff_t count, float *sums) {
    VECTOR low = LOAD(sums), high = LOAD(sums + LANES);
    for (ptrdiff_t i = 0; i < count; i += SUM_LANES) {
        float padded[SUM_LANES] = {0};
        const float *from = numbers + i;
        if (count - i < SUM_LANES) from = memcpy(padded, from, (size_t)(count - i) * sizeof(float));
        const VECTOR first = LOAD(from), second = LOAD(from + LANES);
        low = MULTIPLY_ADD(first, first, low);
        high = MULTIPLY_ADD(second, second, high);
    }
    STORE(sums, low);
    STORE(sums + LANES, high);
}

/* Returns the factor of an RMS norm. */
static inline float scale_of_squares(float *sums, ptrdiff_t width, float epsilon) {
    for (int count = SUM_LANES / 2; count > 0; count /= 2)
        for (int lane = 0; lane < count; lane++) sums[lane] += sums[lane + count];
    const __m128 mean = _mm_set_ss(sums[0] / (float)width + epsilon);
    return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean));
}

/* Multiplies by factor and weights, rounded before the weights and, unless `rounds_after_weight`, in between, too. */
TARGET static inline void apply_norm(float *numbers, ptrdiff_t count, float factor, const float *weights,
                                     int64_t rounds_after_weight, int64_t format) {
    for (ptrdiff_t i = 0; i < count; i++) numbers[i] *= factor;
    if (!rounds_after_weight) round_numbers(numbers, count, format);
    for (ptrdiff_t i = 0; i < count; i++) numbers[i] *= weights[i];
}
