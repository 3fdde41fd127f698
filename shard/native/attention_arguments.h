/* What attention computes, for attention.c and amx_attention.c. */

#include "phases.h"

#include "rows.h"

#include <math.h>

/* KEYS: of a block. MAX_ROWS: heads times tokens of a piece. */
enum { KEYS = 64, MAX_ROWS = 48, MAX_HEAD_DIM = 256 };
enum { FLOAT16 = 2 }; /* of the cache, besides FLOAT32 and BFLOAT16 */

typedef struct { /* consecutive tokens of one sequence, or none; rows count from the step's first token */
    int64_t first_row, start, length, first_block;
} Piece;

typedef struct {
    const void *queries;  /* [tokens, kv_heads * group, head_dim] of `activation_format` */
    const char *keys;     /* [slots, kv_heads, head_dim] of `format`, a slot every `slot_bytes` bytes */
    const char *values;
    void *output; /* [tokens, kv_heads * group * head_dim] of `activation_format` */
    const Piece *pieces;
    const int32_t *blocks; /* of all pieces' sequences, one after the other */
    int64_t num_pieces, kv_heads, group, head_dim, block_size, slot_bytes, item_bytes, format, query_stride,
        output_stride, window, activation_format; /* window: keys that a token attends to, 0: all */
    float scale, softcap;      /* softcap: 0: none */
} Attention;

/* What is summed for the rows of a piece. */
typedef struct {
    float *scores;           /* [rows, KEYS] */
    float *outputs;          /* [rows, width] */
    float *maxima, *totals;  /* [rows]: of the scores so far, and of the weights */
    ptrdiff_t width;         /* a multiple of 16 */
} RowSums;

/* Returns what scores are multiplied by, which divides them by the soft cap if there is one. */
static inline float find_score_factor(const Attention *a) {
    return a->softcap != 0.0f ? a->scale / a->softcap : a->scale;
}

/* Whether `attend_by_amx` computes it. */
int can_attend_by_amx(const Attention *attention, int instruction_set);

/* Computes the heads of one key/value head for the tokens of one piece. */
void attend_by_amx(const Attention *attention, const Piece *piece, ptrdiff_t kv_head);
