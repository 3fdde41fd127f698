/* The best candidates of rows of logits, best first: those with the highest logits, and the lowest ids among equal ones. */

#include "phases.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK_IDS = 128, DIGIT_BITS = 8, NUM_DIGITS = 1 << DIGIT_BITS };

typedef struct {
    const float *logits;       /* [rows, vocabulary], a row every `stride` numbers */
    const float *block_maxima; /* [rows, vocabulary / BLOCK_IDS], of the blocks that are full */
    int64_t *ids;              /* [rows, count] */
    float *found_logits;       /* [rows, count] */
    uint64_t *buffers;         /* [rows, 2, 2 * count + BLOCK_IDS] */
    int64_t rows, vocabulary, stride, count;
} Selection;

/* Entries that may be among the best, each a rank and, in the low half, an index. Entries of one rank are in the order of
 * their indices. */
typedef struct {
    uint64_t *entries, *spare; /* [capacity] */
    ptrdiff_t size, capacity, count;
    uint64_t limit; /* only ranks below it can still be among the best `count` */
} Shortlist;

/* Returns a number that is lower for higher logits, and the same for zeros of both signs. */
static inline uint32_t rank_of(float logit) {
    const float number = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits >> 31 ? bits : ~bits & 0x7fffffff;
}

/* Sorts the entries by their ranks, and keeps the order of those with one rank. */
static void sort_by_rank(Shortlist *list) {
    for (int shift = 32; shift < 64; shift += DIGIT_BITS) {
        ptrdiff_t starts[NUM_DIGITS] = {0}, total = 0;
        for (ptrdiff_t i = 0; i < list->size; i++) starts[list->entries[i] >> shift & (NUM_DIGITS - 1)]++;
        for (int digit = 0; digit < NUM_DIGITS; digit++) {
            const ptrdiff_t count = starts[digit];
            starts[digit] = total;
            total += count;
        }
        for (ptrdiff_t i = 0; i < list->size; i++)
            list->spare[starts[list->entries[i] >> shift & (NUM_DIGITS - 1)]++] = list->entries[i];
        uint64_t *sorted = list->spare;
        list->spare = list->entries;
        list->entries = sorted;
    }
}

static void keep_best(Shortlist *list) {
    sort_by_rank(list);
    if (list->size < list->count) return;
    list->size = list->count;
    /* Those that come later have higher indices: of one rank, those that are here are better. */
    list->limit = list->entries[list->count - 1] >> 32;
}

/* Considers numbers, at most BLOCK_IDS, with indices from `first` on. */
static void consider(Shortlist *list, const float *numbers, ptrdiff_t first, ptrdiff_t count) {
    for (ptrdiff_t i = 0; i < count; i++) {
        const uint64_t rank = rank_of(numbers[i]);
        list->entries[list->size] = rank << 32 | (uint64_t)(first + i);
        list->size += rank < list->limit;
    }
    if (list->size + BLOCK_IDS > list->capacity) keep_best(list);
}

static void select_part(const Phase *phase, ptrdiff_t row) {
    const Selection *s = phase->arguments;
    const ptrdiff_t num_blocks = s->vocabulary / BLOCK_IDS, capacity = 2 * s->count + BLOCK_IDS;
    const float *logits = s->logits + row * s->stride, *block_maxima = s->block_maxima + row * num_blocks;
    uint64_t *buffer = s->buffers + row * 2 * capacity;
    Shortlist list = {buffer, buffer + capacity, 0, capacity, s->count, UINT64_MAX};
    if (num_blocks > s->count) { /* as many blocks as are wanted have a maximum as high as the lowest of the highest */
        for (ptrdiff_t block = 0; block < num_blocks; block += BLOCK_IDS)
            consider(&list, block_maxima + block, block, num_blocks - block < BLOCK_IDS ? num_blocks - block : BLOCK_IDS);
        keep_best(&list);
        list.size = 0;
        list.limit++; /* the logits of that rank, too */
    }
    for (ptrdiff_t block = 0; block < num_blocks; block++)
        if (rank_of(block_maxima[block]) < list.limit) consider(&list, logits + block * BLOCK_IDS, block * BLOCK_IDS, BLOCK_IDS);
    consider(&list, logits + num_blocks * BLOCK_IDS, num_blocks * BLOCK_IDS, s->vocabulary % BLOCK_IDS);
    keep_best(&list);
    for (ptrdiff_t i = 0; i < s->count; i++) {
        const ptrdiff_t id = (uint32_t)list.entries[i];
        s->ids[row * s->count + i] = id;
        s->found_logits[row * s->count + i] = logits[id];
    }
}

/* As weft_prepare_product in products.c. At most as many candidates are selected as the vocabulary has. */
EXPORT int weft_prepare_selection(const Selection *selection, Phase *phases) {
    phases[0] = (Phase){select_part, selection, NULL, selection->rows};
    return 1;
}
