/* Packing of weights of 16 bits, or pairs of eight, into panels, and of codes of four bits into those of int4_product.h. */

#include "phases.h"

#include <emmintrin.h>
#include <string.h>

typedef struct {
    const uint16_t *weight; /* [outputs, inputs], rows weight_stride apart */
    uint16_t *packed;       /* [panels, inputs, panel_outputs], panel_stride apart, zeros before; panel_outputs is a
                             * multiple of 8 */
    int64_t outputs, inputs, panels, panel_outputs, weight_stride, panel_stride; /* strides in values */
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
    uint16_t *const to = p->packed + panel * p->panel_stride;
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

enum { INT4_PANEL_OUTPUTS = 16, MAX_GROUP_INPUTS = 128, QUAD = 4 /* inputs whose codes are next to one another */ };

typedef struct {
    const int8_t *codes; /* [outputs, inputs], rows code_stride apart; those of a group differ by 15 at most */
    uint8_t *packed;     /* [panels, groups * group_inputs / QUAD, INT4_PANEL_OUTPUTS, 2], zeros before */
    int8_t *zeros;       /* [panels, groups, INT4_PANEL_OUTPUTS]: what codes count from, negated; zeros before */
    int64_t outputs, inputs, panels, groups, group_inputs, code_stride;
} Int4Packing;

/* Copies the codes of a group, counted from the least, which is returned. Codes behind the inputs are the last one. */
__attribute__((target("avx2"))) static int8_t copy_group(const Int4Packing *p, ptrdiff_t output, ptrdiff_t group,
                                                         uint8_t *to) {
    const ptrdiff_t first = group * p->group_inputs, left = p->inputs - first;
    const ptrdiff_t count = left < p->group_inputs ? left : p->group_inputs;
    const int8_t *codes = p->codes + output * p->code_stride + first;
    int8_t least = codes[0];
    for (ptrdiff_t i = 1; i < count; i++) least = codes[i] < least ? codes[i] : least;
    for (ptrdiff_t i = 0; i < count; i++) to[i] = (uint8_t)(codes[i] - least);
    memset(to + count, to[count - 1], (size_t)(p->group_inputs - count));
    return least;
}

static void pack_int4_panel(const Int4Packing *p, ptrdiff_t panel) {
    static const int output_order[INT4_PANEL_OUTPUTS] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
    const ptrdiff_t quads = p->group_inputs / QUAD;
    for (ptrdiff_t group = 0; group < p->groups; group++) {
        uint8_t *const to = p->packed + (panel * p->groups + group) * quads * INT4_PANEL_OUTPUTS * 2;
        int8_t *const zeros = p->zeros + (panel * p->groups + group) * INT4_PANEL_OUTPUTS;
        for (int place = 0; place < INT4_PANEL_OUTPUTS; place++) {
            const ptrdiff_t output = panel * INT4_PANEL_OUTPUTS + output_order[place];
            if (output >= p->outputs) continue;
            uint8_t codes[MAX_GROUP_INPUTS];
            zeros[output_order[place]] = (int8_t)-copy_group(p, output, group, codes);
            for (ptrdiff_t quad = 0; quad < quads; quad++)
                for (int i = 0; i < 2; i++)
                    to[(quad * INT4_PANEL_OUTPUTS + place) * 2 + i] =
                        (uint8_t)(codes[quad * QUAD + i] | codes[quad * QUAD + 2 + i] << 4);
        }
    }
}

static void pack_int4_part(const Phase *phase, ptrdiff_t part) {
    const Int4Packing *packing = phase->arguments;
    const PartRange range = cut_panels(packing->panels, 1, part, phase->num_parts);
    for (ptrdiff_t panel = range.first; panel < range.end; panel++) pack_int4_panel(packing, panel);
}

EXPORT int weft_prepare_int4_packing(const Int4Packing *packing, unsigned threads, Phase *phases) {
    phases[0] = (Phase){pack_int4_part, packing, NULL, count_parts(packing->panels, threads)};
    return 1;
}
