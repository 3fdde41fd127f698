/* What turns a row of logits into logprobs, for one kind of vectors: normalizing.c includes this file once for each
 * instruction set. */

#include "reductions.h"

TARGET static float NAME(find_block_maximum)(const float *block) {
    VECTOR largest = LOAD(block);
    for (int i = LANES; i < BLOCK_IDS; i += LANES) largest = MAXIMUM(largest, LOAD(block + i));
    return NAME(find_largest_lane)(largest);
}

/* Returns the sum of e to the power of what each number of a block is above `maximum`. */
TARGET static float NAME(sum_block)(const float *block, float maximum) {
    float sums[SUM_LANES];
    for (int part = 0; part < SUM_LANES; part += LANES) {
        VECTOR sum = BROADCAST(0.0f);
        for (int i = part; i < BLOCK_IDS; i += SUM_LANES)
            sum = ADD(sum, NAME(exponential)(SUBTRACT(LOAD(block + i), BROADCAST(maximum))));
        STORE(sums + part, sum);
    }
    return NAME(sum_sixteen)(sums);
}

TARGET static void NAME(normalize_row)(const Normalizing *n, ptrdiff_t row) {
    const ptrdiff_t num_blocks = n->vocabulary / BLOCK_IDS, num_rest = n->vocabulary % BLOCK_IDS;
    const float *logits = n->logits + row * n->stride;
    float *block_maxima = n->block_maxima + row * num_blocks, rest[BLOCK_IDS];
    for (int i = 0; i < BLOCK_IDS; i++) rest[i] = i < num_rest ? logits[num_blocks * BLOCK_IDS + i] : -INFINITY;
    const float rest_maximum = NAME(find_block_maximum)(rest);
    float maximum = -INFINITY;
    ptrdiff_t best_block = 0;
    for (ptrdiff_t block = 0; block < num_blocks; block++) {
        block_maxima[block] = NAME(find_block_maximum)(logits + block * BLOCK_IDS);
        if (block_maxima[block] > maximum) {
            maximum = block_maxima[block];
            best_block = block;
        }
    }
    if (rest_maximum > maximum || num_blocks == 0) {
        maximum = rest_maximum;
        best_block = num_blocks;
    }
    double sum = NAME(sum_block)(rest, maximum);
    for (ptrdiff_t block = 0; block < num_blocks; block++) sum += NAME(sum_block)(logits + block * BLOCK_IDS, maximum);
    n->maxima[row] = maximum;
    n->sums[row] = sum;
    ptrdiff_t best = best_block * BLOCK_IDS; /* the first of equals; whatever comes first if there is NaN */
    while (best + 1 < n->vocabulary && logits[best] != maximum) best++;
    n->best_ids[row] = best;
}
