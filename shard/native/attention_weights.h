/* Weights of attention, and the sums that they are part of, for one kind of vectors: included after vectors.h, once for
 * each instruction set. */

#include "reductions.h"

/* Turns scores of one row into weights, and returns their sum. Keys from `first` to `end` - 1 of the block count. */
TARGET static float NAME(make_weights)(float *scores, ptrdiff_t first, ptrdiff_t end, float softcap, float *maximum) {
    if (softcap != 0.0f) /* softcap * tanh(score / softcap); the scores are divided by it */
        for (int key = 0; key < KEYS; key += LANES) {
            const VECTOR power = NAME(exponential)(MULTIPLY(LOAD(scores + key), BROADCAST(2.0f)));
            const VECTOR tanh = SUBTRACT(BROADCAST(1.0f), DIVIDE(BROADCAST(2.0f), ADD(power, BROADCAST(1.0f))));
            STORE(scores + key, MULTIPLY(tanh, BROADCAST(softcap)));
        }
    if (first > 0 || end < KEYS) {
        float mask[KEYS];
        for (int key = 0; key < KEYS; key++) mask[key] = key >= first && key < end ? 0.0f : -INFINITY;
        for (int key = 0; key < KEYS; key += LANES) STORE(scores + key, ADD(LOAD(scores + key), LOAD(mask + key)));
    }
    VECTOR largest = BROADCAST(*maximum);
    for (int key = 0; key < KEYS; key += LANES) largest = MAXIMUM(largest, LOAD(scores + key));
    const float largest_score = NAME(find_largest_lane)(largest);
    if (largest_score > *maximum) *maximum = largest_score;
    float sums[SUM_LANES];
    for (int part = 0; part < SUM_LANES; part += LANES) {
        VECTOR sum = BROADCAST(0.0f);
        for (int key = part; key < KEYS; key += SUM_LANES) {
            const VECTOR weight = NAME(exponential)(SUBTRACT(LOAD(scores + key), BROADCAST(*maximum)));
            STORE(scores + key, weight);
            sum = ADD(sum, weight);
        }
        STORE(sums + part, sum);
    }
    return NAME(sum_sixteen)(sums);
}

/* Turns the scores of a piece's rows for the keys from `position` on into weights, adds these to the totals, and shrinks
 * what was summed where a maximum grows. */
TARGET static void NAME(weigh_keys)(const Attention *a, const Piece *piece, ptrdiff_t position, const RowSums *sums) {
    for (ptrdiff_t row = 0; row < piece->length * a->group; row++) {
        const ptrdiff_t own = piece->start + row / a->group; /* the token's position */
        const ptrdiff_t seen = own + 1 - position < KEYS ? own + 1 - position : KEYS;
        const ptrdiff_t first = a->window != 0 && own - a->window + 1 > position ? own - a->window + 1 - position : 0;
        float *scores = sums->scores + row * KEYS, *outputs = sums->outputs + row * sums->width;
        if (seen <= first) { /* it sees none of these keys */
            memset(scores, 0, KEYS * sizeof(float));
            continue;
        }
        const float before = sums->maxima[row];
        const float total = NAME(make_weights)(scores, first, seen, a->softcap, &sums->maxima[row]);
        if (sums->maxima[row] != before) {
            float shrink[LANES];
            STORE(shrink, NAME(exponential)(BROADCAST(before - sums->maxima[row])));
            sums->totals[row] *= shrink[0];
            for (ptrdiff_t d = 0; d < sums->width; d += LANES)
                STORE(outputs + d, MULTIPLY(LOAD(outputs + d), BROADCAST(shrink[0])));
        }
        sums->totals[row] += total;
    }
}

/* Writes the outputs of a piece's rows, which are sums of weighted values over the totals. */
TARGET static void NAME(store_outputs)(const Attention *a, const Piece *piece, ptrdiff_t kv_head, const RowSums *sums) {
    for (ptrdiff_t row = 0; row < piece->length * a->group; row++) {
        float *output = sums->outputs + row * sums->width;
        for (ptrdiff_t d = 0; d < a->head_dim; d++) output[d] /= sums->totals[row];
        store_numbers(output, a->output, (piece->first_row + row / a->group) * a->output_stride
                                             + (kv_head * a->group + row % a->group) * a->head_dim,
                      a->head_dim, a->activation_format);
    }
}
