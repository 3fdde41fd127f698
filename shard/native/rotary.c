/* Queries, keys and values of a step's tokens between their linear and attention: norms of heads, rotary embedding, and
 * the write to the paged cache. A head's bits follow from the head and its token's position alone. */

#include "phases.h"

#include "rows.h"

enum { MAX_HEAD_DIM = 256 };

typedef struct {
    const void *qkv;          /* [tokens, heads + 2 * kv_heads, head_dim], a token every `qkv_stride` numbers */
    const float *weights;     /* of the norms, [heads + kv_heads, head_dim], or NULL */
    const float *cos_sin;     /* [positions, num_rotated]: cosines, then sines */
    const int64_t *positions; /* [tokens] */
    const int64_t *slots;     /* [tokens] */
    void *queries;            /* [tokens, heads, head_dim] */
    char *keys, *values;      /* of the cache, a slot every `slot_bytes` bytes */
    int64_t tokens, heads, kv_heads, head_dim, num_rotated, interleaved, rounds_after_weight, qkv_stride, slot_bytes, format;
    float epsilon;
} Rotation;

/* Rotates pairs of the first `num_rotated` values; a pair is adjacent, or half of these values apart. */
TARGET static void rotate(const float *head, const float *cos_sin, ptrdiff_t num_rotated, int64_t interleaved, float *to) {
    const ptrdiff_t pairs = num_rotated / 2;
    const float *cosines = cos_sin, *sines = cos_sin + pairs;
    if (interleaved)
        for (ptrdiff_t i = 0; i < pairs; i++) {
            to[2 * i] = head[2 * i] * cosines[i] - head[2 * i + 1] * sines[i];
            to[2 * i + 1] = head[2 * i + 1] * cosines[i] + head[2 * i] * sines[i];
        }
    else
        for (ptrdiff_t i = 0; i < pairs; i++) {
            to[i] = head[i] * cosines[i] - head[i + pairs] * sines[i];
            to[i + pairs] = head[i + pairs] * cosines[i] + head[i] * sines[i];
        }
}

TARGET static void rotate_token(const Phase *phase, ptrdiff_t token) {
    const Rotation *r = phase->arguments;
    const ptrdiff_t head_dim = r->head_dim;
    const float *cos_sin = r->cos_sin + r->positions[token] * r->num_rotated;
    char *keys = r->keys + r->slots[token] * r->slot_bytes, *values = r->values + r->slots[token] * r->slot_bytes;
    for (ptrdiff_t head = 0; head < r->heads + 2 * r->kv_heads; head++) {
        float numbers[MAX_HEAD_DIM], rotated[MAX_HEAD_DIM];
        const ptrdiff_t kv_head = head - r->heads, value_head = kv_head - r->kv_heads;
        load_numbers(r->qkv, token * r->qkv_stride + head * head_dim, head_dim, r->format, numbers);
        if (value_head >= 0) {
            store_numbers(numbers, values, value_head * head_dim, head_dim, r->format);
            continue;
        }
        if (r->weights != NULL) {
            float sums[SUM_LANES] = {0};
            add_squares(numbers, head_dim, sums);
            apply_norm(numbers, head_dim, scale_of_squares(sums, head_dim, r->epsilon), r->weights + head * head_dim,
                       r->rounds_after_weight, r->format);
            round_numbers(numbers, head_dim, r->format);
        }
        memcpy(rotated, numbers, (size_t)head_dim * sizeof(float));
        rotate(numbers, cos_sin, r->num_rotated, r->interleaved, rotated);
        if (kv_head < 0) store_numbers(rotated, r->queries, (token * r->heads + head) * head_dim, head_dim, r->format);
        else store_numbers(rotated, keys, kv_head * head_dim, head_dim, r->format);
    }
}

/* As weft_prepare_product in products.c. */
EXPORT int weft_prepare_rotation(const Rotation *rotation, Phase *phases) {
    phases[0] = (Phase){rotate_token, rotation, NULL, rotation->tokens};
    return 1;
}
