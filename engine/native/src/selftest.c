/* SPDX-License-Identifier: MIT */
/*
 * The golden vectors that are compiled into the library, run through one kernel table. Small enough
 * for a device at every start: it finds a wrong compiler option, a broken unit, or an emulator that
 * is not exact, before a model gives other logits than the ones it was signed with.
 */
#include "exact.h"

#include "colibri.h"
#include "error.h"
#include "kernels.h"
#include "sampler.h"
#include "selftest_vectors.h"
#include "spec.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Where the first difference was; operator NULL while there is none. */
struct outcome {
    const char *operator;
    size_t element;
    uint32_t got, expected;
};

static void differ(struct outcome *o, const char *operator, size_t element, uint32_t got,
                   uint32_t expected)
{
    if (o->operator)
        return;
    o->operator = operator;
    o->element = element;
    o->got = got;
    o->expected = expected;
}

static void load(float *x, const uint32_t *bits, size_t n)
{
    memcpy(x, bits, n * sizeof *x);
}

static void compare(struct outcome *o, const char *operator, const float *got,
                    const uint32_t *expected, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (cb_bits(got[i]) != expected[i])
            differ(o, operator, i, cb_bits(got[i]), expected[i]);
}

static void test_activations(const struct cb_kernels *k, struct outcome *o)
{
    static const struct {
        int activation;
        const char *name;
        const uint32_t *expected;
    } kinds[] = {
        {CB_ACT_SILU, "silu", vector_silu},
        {CB_ACT_GELU_TANH, "gelu_tanh", vector_gelu_tanh},
        {CB_ACT_RELU, "relu", vector_relu},
        {CB_ACT_SWIGLU_CLAMPED, "swiglu_clamped", vector_swiglu_clamped},
    };
    float gate[COUNT(vector_gate)], up[COUNT(vector_up)], h[COUNT(vector_gate)];
    load(gate, vector_gate, COUNT(gate));
    load(up, vector_up, COUNT(up));
    for (size_t i = 0; i < COUNT(kinds); i++) {
        k->activate(kinds[i].activation, 7.0f, 0x1.b3b646p+0f, gate, up, COUNT(gate), h);
        compare(o, kinds[i].name, h, kinds[i].expected, COUNT(h));
    }
}

static void test_quantize(const struct cb_kernels *k, struct outcome *o)
{
    enum { GROUPS = COUNT(vector_quantize_d) };
    float x[GROUPS * CB_GROUP_COLUMNS], d[GROUPS];
    int8_t q[GROUPS * CB_GROUP_COLUMNS];
    int32_t s[GROUPS];
    load(x, vector_quantize_x, COUNT(x));
    if (k->quantize(x, GROUPS, q, d, s) != 0)
        differ(o, "quantize", 0, 1, 0);
    compare(o, "quantize", d, vector_quantize_d, GROUPS);
    for (size_t i = 0; i < GROUPS; i++)
        if (s[i] != vector_quantize_s[i])
            differ(o, "quantize sum", i, (uint32_t)s[i], (uint32_t)vector_quantize_s[i]);
    for (size_t i = 0; i < COUNT(q); i++)
        if (q[i] != vector_quantize_q[i])
            differ(o, "quantize integer", i, (uint8_t)q[i], (uint8_t)vector_quantize_q[i]);
    x[37] = cb_float(CB_BITS_INFINITY);
    if (k->quantize(x, GROUPS, q, d, s) != COLIBRI_ERR_NON_FINITE)
        differ(o, "quantize of infinity", 37, 0, 1);
}

/* Long vectors are drawn, so that the library does not carry them. */
static void draw_bytes(uint8_t *bytes, size_t n, uint64_t seed, uint64_t first)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)cb_random(seed, first + i);
}

/* Binary16 numbers of either sign in 1/16..1. */
static void draw_halves(uint16_t *h, size_t n, uint64_t seed, uint64_t first)
{
    for (size_t i = 0; i < n; i++)
        h[i] = (uint16_t)((cb_random(seed, first + i) & 0x8fff) | 0x2c00);
}

/* One panel for 5 tokens that are the same: the batched and the single form. */
static void test_quantised_rows(const struct cb_kernels *k, struct outcome *o, int int8)
{
    enum { GROUPS = COUNT(vector_groups_d), TOKENS = 5, N = GROUPS * CB_GROUP_COLUMNS };
    uint8_t w[GROUPS * CB_INT8_BLOCK_BYTES];
    int8_t q[TOKENS * N];
    float d[TOKENS * GROUPS], y[TOKENS * CB_PANEL_ROWS];
    int32_t s[TOKENS * GROUPS];
    size_t block = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    size_t scales = 2 * CB_PANEL_ROWS; /* bytes at the end of a block */

    draw_bytes(w, GROUPS * block, int8 ? SEED_INT8 : SEED_INT4, 0);
    for (size_t g = 0; g < GROUPS; g++) {
        uint16_t h[CB_PANEL_ROWS];

        draw_halves(h, CB_PANEL_ROWS, SEED_SCALES, g * CB_PANEL_ROWS);
        memcpy(w + (g + 1) * block - scales, h, scales);
    }
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t i = 0; i < N; i++)
            q[t * N + i] = (int8_t)((int)(cb_random(SEED_INPUTS, i) % 255) - 127);
        load(d + t * GROUPS, vector_groups_d, GROUPS);
    }
    for (size_t g = 0; g < TOKENS * GROUPS; g++) {
        s[g] = 0;
        for (size_t i = 0; i < CB_GROUP_COLUMNS; i++)
            s[g] += q[g * CB_GROUP_COLUMNS + i];
    }
    const struct cb_quantized x = {q, d, s, GROUPS};
    if (int8)
        k->matmul_int8(w, 1, &x, TOKENS, y, CB_PANEL_ROWS);
    else
        k->matmul_int4(w, 1, &x, TOKENS, y, CB_PANEL_ROWS);
    for (size_t t = 0; t < TOKENS; t++)
        compare(o, int8 ? "matmul_int8" : "matmul_int4", y + t * CB_PANEL_ROWS,
                int8 ? vector_int8_y : vector_int4_y, CB_PANEL_ROWS);
}

static void test_float_rows(const struct cb_kernels *k, struct outcome *o)
{
    enum { COLUMNS = COUNT(vector_rows_x), VALUES = COLUMNS * CB_PANEL_ROWS };
    uint16_t h[VALUES];
    float w[VALUES], x[COLUMNS], y[CB_PANEL_ROWS];

    load(x, vector_rows_x, COLUMNS);
    draw_halves(h, VALUES, SEED_ROWS, 0);
    for (size_t i = 0; i < VALUES; i++)
        w[i] = cb_f16_to_f32(h[i]);
    k->matmul_f32(w, 1, COLUMNS, x, COLUMNS, 1, y, CB_PANEL_ROWS);
    compare(o, "matmul_f32", y, vector_rows_y, CB_PANEL_ROWS);
    k->matmul_f16(h, 1, COLUMNS, x, COLUMNS, 1, y, CB_PANEL_ROWS);
    compare(o, "matmul_f16", y, vector_rows_y, CB_PANEL_ROWS);
}

static void test_norm(const struct cb_kernels *k, struct outcome *o)
{
    float x[COUNT(vector_norm_x)], w[COUNT(vector_norm_w)], y[COUNT(vector_norm_y)];
    load(x, vector_norm_x, COUNT(x));
    load(w, vector_norm_w, COUNT(w));
    k->rmsnorm(x, w, COUNT(x), 0x1p-17f, y);
    compare(o, "rmsnorm", y, vector_norm_y, COUNT(y));
}

static void test_rope(const struct cb_kernels *k, struct outcome *o)
{
    enum { PAIRS = COUNT(vector_rope_frequency) };
    float frequency[PAIRS], c[PAIRS], s[PAIRS], x[2 * PAIRS];
    load(frequency, vector_rope_frequency, PAIRS);
    cb_rope_angles(1234, frequency, PAIRS, 1.0f, c, s);
    compare(o, "rope cosine", c, vector_rope_c, PAIRS);
    compare(o, "rope sine", s, vector_rope_s, PAIRS);
    load(x, vector_rope_x, COUNT(x));
    k->rope(x, c, s, PAIRS, CB_ROPE_HALF);
    compare(o, "rope half", x, vector_rope_half, COUNT(x));
    load(x, vector_rope_x, COUNT(x));
    k->rope(x, c, s, PAIRS, CB_ROPE_INTERLEAVED);
    compare(o, "rope interleaved", x, vector_rope_interleaved, COUNT(x));
}

static void test_attention(const struct cb_kernels *k, struct outcome *o)
{
    enum {
        DIM = COUNT(vector_attend_q),
        VALUE_DIM = COUNT(vector_attend_out),
        KEYS = ATTEND_POSITIONS * DIM,
        VALUES = ATTEND_POSITIONS * VALUE_DIM,
    };
    uint16_t half_keys[KEYS], half_values[VALUES];
    float q[DIM], scale, scores[ATTEND_POSITIONS], out[VALUE_DIM], keys[KEYS], values[VALUES];

    load(q, vector_attend_q, DIM);
    load(&scale, vector_attend_scale, 1);
    draw_halves(half_keys, KEYS, SEED_KEYS, 0);
    draw_halves(half_values, VALUES, SEED_VALUES, 0);
    k->attend_f16(q, half_keys, half_values, ATTEND_POSITIONS, DIM, VALUE_DIM, scale, NULL, scores, out);
    compare(o, "attend_f16", out, vector_attend_out, VALUE_DIM);
    for (size_t i = 0; i < KEYS; i++)
        keys[i] = cb_f16_to_f32(half_keys[i]);
    for (size_t i = 0; i < VALUES; i++)
        values[i] = cb_f16_to_f32(half_values[i]);
    k->attend_f32(q, keys, values, ATTEND_POSITIONS, DIM, VALUE_DIM, scale, NULL, scores, out);
    compare(o, "attend_f32", out, vector_attend_out, VALUE_DIM);
}

static void test_rest(const struct cb_kernels *k, struct outcome *o)
{
    float x[COUNT(vector_f16_x)];
    uint16_t h[COUNT(vector_f16_h)];
    load(x, vector_f16_x, COUNT(x));
    if (k->store_f16(x, COUNT(x), h) != 0)
        differ(o, "store_f16", 0, 1, 0);
    for (size_t i = 0; i < COUNT(h); i++)
        if (h[i] != vector_f16_h[i])
            differ(o, "store_f16", i, h[i], vector_f16_h[i]);

    float acc[COUNT(vector_add_acc)], added[COUNT(vector_add_x)], scale;
    load(acc, vector_add_acc, COUNT(acc));
    load(added, vector_add_x, COUNT(added));
    load(&scale, vector_add_scale, 1);
    k->add_scaled(acc, scale, added, COUNT(acc));
    compare(o, "add_scaled", acc, vector_add_y, COUNT(acc));

    for (size_t i = 0; i < COUNT(vector_random); i++)
        if (cb_random(42, i) != vector_random[i])
            differ(o, "random", i, (uint32_t)cb_random(42, i), (uint32_t)vector_random[i]);
}

int colibri_selftest(const char *isa, colibri_error *error)
{
    const struct cb_kernels *k = cb_kernels_select(isa);
    if (k == NULL)
        return cb_deny(error, COLIBRI_ERR_ISA,
                       "instruction set \"%s\" is not available; this CPU and build run: %s", isa,
                       cb_kernels_available());

    struct outcome o = {NULL, 0, 0, 0};
    const uint64_t control = cb_fpu_enter();
    test_activations(k, &o);
    test_quantize(k, &o);
    test_quantised_rows(k, &o, 0);
    test_quantised_rows(k, &o, 1);
    test_float_rows(k, &o);
    test_norm(k, &o);
    test_rope(k, &o);
    test_attention(k, &o);
    test_rest(k, &o);
    cb_fpu_leave(control);
    if (o.operator)
        return cb_deny(error, COLIBRI_ERR_INTERNAL,
                       "self-test: %s on \"%s\" differs from the golden vectors at element %zu: "
                       "%08x, should be %08x; build without floating-point options, or use another "
                       "instruction set (%s)",
                       o.operator, k->isa, o.element, (unsigned)o.got, (unsigned)o.expected,
                       cb_kernels_available());
    return COLIBRI_OK;
}
