/* Packing of weights of 16 bits into the panels of products.c. */

#include "phases.h"

#include <emmintrin.h>

typedef struct {
    const uint16_t *weight; /* [outputs, inputs], rows weight_stride apart */
    uint16_t *packed;       /* [panels, inputs, panel_outputs], zeros before; panel_outputs is a multiple of 8 */
    int64_t outputs, inputs, panels, panel_outputs, weight_stride;
    int64_t shares_words; /* whether the two vectors of a panel share 32-bit words, or follow one another */
} Packing;

enum { SQUARE = 8 }; /* places and inputs that are transposed at once */

/* Transposes 8 rows of 8 values of 16 bits; the results are `stride` values apart. */
static void transpose_square(const uint16_t *const *rows, ptrdiff_t start, uint16_t *to, ptrdiff_t stride) {
    __m128i pairs[SQUARE], fours[SQUARE];
    for (int i = 0; i < SQUARE; i += 2) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(rows[i] + start));
        const __m128i b = _mm_loadu_si128((const __m128i *)(rows[i + 1] + start));
        pairs[i] = _mm_unpacklo_epi16(a, b);
        pairs[i + 1] = _mm_unpackhi_epi16(a, b);
    }
    for (int i = 0; i < SQUARE; i += 4)
        for (int half = 0; half < 2; half++) {
            fours[i + 2 * half] = _mm_unpacklo_epi32(pairs[i + half], pairs[i + 2 + half]);
            fours[i + 2 * half + 1] = _mm_unpackhi_epi32(pairs[i + half], pairs[i + 2 + half]);
        }
    for (int i = 0; i < 4; i++) {
        _mm_storeu_si128((__m128i *)(to + 2 * i * stride), _mm_unpacklo_epi64(fours[i], fours[i + 4]));
        _mm_storeu_si128((__m128i *)(to + (2 * i + 1) * stride), _mm_unpackhi_epi64(fours[i], fours[i + 4]));
    }
}

/* Returns the row of the weight at a place of the panel, or NULL: missing outputs keep their zeros. */
static const uint16_t *find_row(const Packing *p, ptrdiff_t panel, ptrdiff_t place) {
    const ptrdiff_t lanes = p->panel_outputs / 2;
    const ptrdiff_t output = panel * p->panel_outputs + (p->shares_words ? place / 2 + place % 2 * lanes : place);
    return output < p->outputs ? p->weight + output * p->weight_stride : NULL;
}

static void pack_panel(const Packing *p, ptrdiff_t panel) {
    uint16_t *const to = p->packed + panel * p->inputs * p->panel_outputs;
    for (ptrdiff_t first = 0; first < p->panel_outputs; first += SQUARE) {
        const uint16_t *rows[SQUARE];
        int num_missing = 0;
        for (int i = 0; i < SQUARE; i++) num_missing += (rows[i] = find_row(p, panel, first + i)) == NULL;
        ptrdiff_t k = 0;
        if (num_missing == 0)
            for (; k + SQUARE <= p->inputs; k += SQUARE)
                transpose_square(rows, k, to + k * p->panel_outputs + first, p->panel_outputs);
        for (; k < p->inputs; k++)
            for (int i = 0; i < SQUARE; i++)
                if (rows[i] != NULL) to[k * p->panel_outputs + first + i] = rows[i][k];
    }
}

static void pack_part(const Phase *phase, ptrdiff_t part) {
    const Packing *packing = phase->arguments;
    const PartRange range = cut_panels(packing->panels, 1, part, phase->num_parts);
    for (ptrdiff_t panel = range.first; panel < range.end; panel++) pack_panel(packing, panel);
}

EXPORT int weft_prepare_packing(const Packing *packing, unsigned threads, Phase *phases) {
    phases[0] = (Phase){pack_part, packing, NULL, count_parts(packing->panels, threads)};
    return 1;
}
