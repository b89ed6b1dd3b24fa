/* SPDX-License-Identifier: MIT */
/* The golden vectors of make_golden.py, which says how their lines are written. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "exact.h"

#include "checkkernels.h"
#include "spec.h"

#define MAX_VALUES 4096
#define MAX_LINE 65536

/* ---- reading ------------------------------------------------------------------------------- */

struct reader {
    FILE *file;
    char name[64];
    char line[MAX_LINE];
    unsigned number;
    char *rest;
};

static void bad_file(const struct reader *r, const char *what)
{
    fprintf(stderr, "checkkernels: %s.txt, line %u: %s\n", r->name, r->number, what);
    exit(1);
}

static void open_golden(struct reader *r, const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.txt", folder, name);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->number = 0;
    r->file = fopen(path, "r");
    if (!r->file) {
        fprintf(stderr, "checkkernels: cannot open %s; make_golden.py writes it\n", path);
        exit(1);
    }
}

/* The next case; 0 at the end, which is an error when there was none. */
static int next_case(struct reader *r, unsigned *count)
{
    while (fgets(r->line, sizeof r->line, r->file)) {
        size_t length = strlen(r->line);
        r->number++;
        if (r->line[0] == '#')
            continue;
        if (length == 0 || r->line[length - 1] != '\n')
            bad_file(r, "line is cut off or too long");
        r->line[length - 1] = 0;
        r->rest = r->line;
        (*count)++;
        check_count();
        return 1;
    }
    fclose(r->file);
    if (*count == 0)
        bad_file(r, "no case");
    return 0;
}

static char *word(struct reader *r)
{
    if (!r->rest)
        bad_file(r, "a field is missing");
    char *start = r->rest, *space = strchr(start, ' ');
    if (space)
        *space = 0;
    r->rest = space ? space + 1 : NULL;
    return start;
}

static float read_float(struct reader *r)
{
    char *text = word(r), *end;
    float x = strtof(text, &end);
    if (end == text || *end)
        bad_file(r, "not a number");
    return x;
}

static long read_integer(struct reader *r)
{
    char *text = word(r), *end;
    long x = strtol(text, &end, 10);
    if (end == text || *end)
        bad_file(r, "not an integer");
    return x;
}

static uint16_t read_half(struct reader *r)
{
    char *text = word(r), *end;
    unsigned long x = strtoul(text, &end, 16);
    if (end != text + 4 || *end)
        bad_file(r, "not a binary16");
    return (uint16_t)x;
}

static size_t read_size(struct reader *r, size_t limit)
{
    long n = read_integer(r);
    if (n < 1 || (size_t)n > limit)
        bad_file(r, "size out of range");
    return (size_t)n;
}

static void read_floats(struct reader *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = read_float(r);
}

static void read_halves(struct reader *r, uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = read_half(r);
}

static void read_bytes(struct reader *r, uint8_t *x, size_t n)
{
    const char *text = word(r);
    if (strlen(text) != 2 * n)
        bad_file(r, "wrong number of bytes");
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], 0}, *end;
        x[i] = (uint8_t)strtoul(pair, &end, 16);
        if (end != pair + 2)
            bad_file(r, "not a byte");
    }
}

static void read_arrow(struct reader *r)
{
    if (strcmp(word(r), "->") != 0)
        bad_file(r, "-> expected");
}

static void read_end(struct reader *r)
{
    if (r->rest)
        bad_file(r, "too many fields");
}

static char line_text[32];

static const char *line_of(const struct reader *r)
{
    snprintf(line_text, sizeof line_text, "line %u", r->number);
    return line_text;
}

/* ---- operators ----------------------------------------------------------------------------- */

static struct reader reader;
static float in_a[MAX_VALUES], in_b[MAX_VALUES], in_c[MAX_VALUES], expected[MAX_VALUES],
    got[MAX_VALUES];
static uint16_t half_a[MAX_VALUES], half_b[MAX_VALUES];
static uint8_t bytes[16 * CB_INT8_BLOCK_BYTES];

/* activation: one of CB_ACT_*, or -1: cb_exp, -2: cb_sigmoid. All cases go through in one vector. */
static void golden_unary(const struct cb_kernels *k, const char *folder, const char *name,
                         int activation)
{
    struct reader *r = &reader;
    unsigned n = 0;
    open_golden(r, folder, name);
    while (next_case(r, &n)) {
        if (n > MAX_VALUES)
            bad_file(r, "too many cases");
        in_a[n - 1] = read_float(r);
        read_arrow(r);
        expected[n - 1] = read_float(r);
        read_end(r);
    }
    if (activation >= 0)
        k->activate(activation, 0.0f, 0.0f, in_a, NULL, n, got);
    else
        for (unsigned i = 0; i < n; i++)
            got[i] = activation == -1 ? cb_exp(in_a[i]) : cb_sigmoid(in_a[i]);
    check_floats(k->isa, name, "(element: case)", expected, got, n);
}

static void golden_swiglu(const struct cb_kernels *k, const char *folder)
{
    struct reader *r = &reader;
    unsigned n = 0;
    float clamp = 0.0f, alpha = 0.0f;
    open_golden(r, folder, "swiglu_clamped");
    while (next_case(r, &n)) {
        if (n > MAX_VALUES)
            bad_file(r, "too many cases");
        clamp = read_float(r);
        alpha = read_float(r);
        in_a[n - 1] = read_float(r);
        in_b[n - 1] = read_float(r);
        read_arrow(r);
        expected[n - 1] = read_float(r);
        read_end(r);
    }
    k->activate(CB_ACT_SWIGLU_CLAMPED, clamp, alpha, in_a, in_b, n, got);
    check_floats(k->isa, "swiglu_clamped", "(element: case)", expected, got, n);
}

static void golden_reduce8(const struct cb_kernels *k, const char *folder)
{
    struct reader *r = &reader;
    unsigned count = 0;
    open_golden(r, folder, "reduce8");
    while (next_case(r, &count)) {
        const size_t n = read_size(r, MAX_VALUES);
        read_floats(r, in_a, n);
        read_arrow(r);
        expected[0] = read_float(r);
        read_end(r);
        got[0] = cb_reduce8(in_a, n);
        check_floats(k->isa, "reduce8", line_of(r), expected, got, 1);
    }
}

static void golden_rmsnorm(const struct cb_kernels *k, const char *folder)
{
    struct reader *r = &reader;
    unsigned count = 0;
    open_golden(r, folder, "rmsnorm");
    while (next_case(r, &count)) {
        const size_t n = read_size(r, MAX_VALUES);
        const float eps = read_float(r);
        read_floats(r, in_a, n);
        read_floats(r, in_b, n);
        read_arrow(r);
        read_floats(r, expected, n);
        read_end(r);
        k->rmsnorm(in_a, in_b, n, eps, got);
        check_floats(k->isa, "rmsnorm", line_of(r), expected, got, n);
    }
}

static void golden_quantize(const struct cb_kernels *k, const char *folder)
{
    static int8_t q[MAX_VALUES];
    static float d[MAX_VALUES / 32];
    static int32_t s[MAX_VALUES / 32];
    struct reader *r = &reader;
    unsigned count = 0;
    open_golden(r, folder, "quantize");
    while (next_case(r, &count)) {
        const size_t groups = read_size(r, MAX_VALUES / 32);
        read_floats(r, in_a, groups * 32);
        read_arrow(r);
        if (k->quantize(in_a, groups, q, d, s) != 0)
            check_fail(k->isa, "quantize %s: refused", line_of(r));
        read_floats(r, expected, groups);
        check_floats(k->isa, "quantize d", line_of(r), expected, d, groups);
        for (size_t g = 0; g < groups; g++)
            if (read_integer(r) != s[g])
                check_fail(k->isa, "quantize %s: sum of group %zu differs", line_of(r), g);
        for (size_t i = 0; i < groups * 32; i++)
            if (read_integer(r) != q[i])
                check_fail(k->isa, "quantize %s: integer %zu differs", line_of(r), i);
        read_end(r);
    }
}

static void golden_quantised_rows(const struct cb_kernels *k, const char *folder, int int8)
{
    static int8_t q[16 * 32];
    static int32_t s[16];
    const char *name = int8 ? "dot_int8" : "dot_int4";
    const size_t block = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    struct reader *r = &reader;
    unsigned count = 0;
    open_golden(r, folder, name);
    while (next_case(r, &count)) {
        const size_t groups = read_size(r, 16);
        read_bytes(r, bytes, groups * block);
        for (size_t g = 0; g < groups; g++) {
            s[g] = 0;
            for (size_t i = 0; i < 32; i++) {
                q[32 * g + i] = (int8_t)read_integer(r);
                s[g] += q[32 * g + i];
            }
        }
        read_floats(r, in_a, groups);
        read_arrow(r);
        read_floats(r, expected, 8);
        read_end(r);
        const struct cb_quantized x = {q, in_a, s, groups};
        if (int8)
            k->matmul_int8(bytes, 1, &x, 1, got, 8);
        else
            k->matmul_int4(bytes, 1, &x, 1, got, 8);
        check_floats(k->isa, name, line_of(r), expected, got, 8);
    }
}

static void golden_float_rows(const struct cb_kernels *k, const char *folder, const char *name,
                              int dtype)
{
    struct reader *r = &reader;
    unsigned count = 0;
    open_golden(r, folder, name);
    while (next_case(r, &count)) {
        const size_t columns = read_size(r, MAX_VALUES / 8);
        if (dtype == CB_DTYPE_F32)
            read_floats(r, in_a, columns * 8);
        else
            read_halves(r, half_a, columns * 8);
        read_floats(r, in_b, columns);
        read_arrow(r);
        read_floats(r, expected, 8);
        read_end(r);
        if (dtype == CB_DTYPE_F32)
            k->matmul_f32(in_a, 1, columns, in_b, columns, 1, got, 8);
        else if (dtype == CB_DTYPE_F16)
            k->matmul_f16(half_a, 1, columns, in_b, columns, 1, got, 8);
        else
            k->matmul_bf16(half_a, 1, columns, in_b, columns, 1, got, 8);
        check_floats(k->isa, name, line_of(r), expected, got, 8);
    }
}

static void golden_f16(const struct cb_kernels *k, const char *folder)
{
    struct reader *r = &reader;
    unsigned count = 0;
    open_golden(r, folder, "f16_widen");
    while (next_case(r, &count)) {
        const uint16_t h = read_half(r);
        read_arrow(r);
        expected[0] = read_float(r);
        got[0] = cb_f16_to_f32(h);
        check_floats(k->isa, "f16_widen", line_of(r), expected, got, 1);
    }
    unsigned n = 0;
    open_golden(r, folder, "f16_round");
    while (next_case(r, &n)) {
        if (n > MAX_VALUES)
            bad_file(r, "too many cases");
        in_a[n - 1] = read_float(r);
        read_arrow(r);
        half_a[n - 1] = read_half(r);
        if (cb_f16_from_f32(in_a[n - 1]) != half_a[n - 1])
            check_fail(k->isa, "f16_round %s: the scalar conversion differs", line_of(r));
    }
    if (k->store_f16(in_a, n, half_b) == 0) /* the file has overflows */
        check_fail(k->isa, "f16_round: overflow was not reported");
    for (unsigned i = 0; i < n; i++)
        if (half_a[i] != half_b[i])
            check_fail(k->isa, "f16_round: case %u is %04x, should be %04x", i, half_b[i],
                       half_a[i]);
}

static void golden_rope(const struct cb_kernels *k, const char *folder)
{
    struct reader *r = &reader;
    unsigned count = 0;
    open_golden(r, folder, "rope_angles");
    while (next_case(r, &count)) {
        const uint32_t position = (uint32_t)read_integer(r);
        const float inv_freq = read_float(r), factor = read_float(r);
        read_arrow(r);
        read_floats(r, expected, 2);
        read_end(r);
        cb_rope_angles(position, &inv_freq, 1, factor, &got[0], &got[1]);
        check_floats(k->isa, "rope_angles", line_of(r), expected, got, 2);
    }
    count = 0;
    open_golden(r, folder, "rope");
    while (next_case(r, &count)) {
        const int style = (int)read_integer(r);
        const size_t pairs = read_size(r, MAX_VALUES / 2);
        read_floats(r, in_a, 2 * pairs);
        read_floats(r, in_b, pairs);
        read_floats(r, in_c, pairs);
        read_arrow(r);
        read_floats(r, expected, 2 * pairs);
        read_end(r);
        k->rope(in_a, in_b, in_c, pairs, style);
        check_floats(k->isa, "rope", line_of(r), expected, in_a, 2 * pairs);
    }
}

static void golden_attend(const struct cb_kernels *k, const char *folder)
{
    static float scores[MAX_VALUES];
    struct reader *r = &reader;
    unsigned count = 0;
    open_golden(r, folder, "attend");
    while (next_case(r, &count)) {
        const size_t positions = read_size(r, 64), dim = read_size(r, 64),
                     value_dim = read_size(r, 64);
        const float scale = read_float(r);
        read_floats(r, in_a, dim);
        read_halves(r, half_a, positions * dim);
        read_halves(r, half_b, positions * value_dim);
        read_arrow(r);
        read_floats(r, expected, value_dim);
        read_end(r);
        k->attend_f16(in_a, half_a, half_b, positions, dim, value_dim, scale, NULL, scores, got);
        check_floats(k->isa, "attend_f16", line_of(r), expected, got, value_dim);
        for (size_t i = 0; i < positions * dim; i++)
            in_b[i] = cb_f16_to_f32(half_a[i]);
        for (size_t i = 0; i < positions * value_dim; i++)
            in_c[i] = cb_f16_to_f32(half_b[i]);
        k->attend_f32(in_a, in_b, in_c, positions, dim, value_dim, scale, NULL, scores, got);
        check_floats(k->isa, "attend_f32", line_of(r), expected, got, value_dim);
    }
}

/* cb_panel_row against the row products: a row times the unit vectors gives the row. */
static void check_panel_row(const struct cb_kernels *k, const char *folder)
{
    struct reader *r = &reader;
    unsigned count = 0;
    for (int int8 = 0; int8 < 2; int8++) {
        open_golden(r, folder, int8 ? "dot_int8" : "dot_int4");
        while (next_case(r, &count)) {
            const size_t groups = read_size(r, 16);
            const size_t block = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
            read_bytes(r, bytes, groups * block);
            for (size_t c = 0; c < groups * 32; c++) {
                static int8_t q[16 * 32];
                static float d[16];
                static int32_t s[16];
                memset(q, 0, sizeof q);
                for (size_t g = 0; g < groups; g++) {
                    d[g] = g == c / 32 ? 1.0f : 0.0f;
                    s[g] = g == c / 32;
                }
                q[c] = 1;
                const struct cb_quantized x = {q, d, s, groups};
                if (int8)
                    k->matmul_int8(bytes, 1, &x, 1, got, 8);
                else
                    k->matmul_int4(bytes, 1, &x, 1, got, 8);
                for (size_t row = 0; row < 8; row++) {
                    cb_panel_row(bytes, int8 ? CB_DTYPE_INT8 : CB_DTYPE_INT4, row, c + 1, in_a);
                    /* columns beyond c + 1 may need fewer groups than the file has */
                    if ((c + 32) / 32 == groups && in_a[c] != got[row])
                        check_fail(k->isa, "panel_row %s: row %zu column %zu differs", line_of(r),
                                   row, c);
                }
            }
        }
    }
}

void check_golden(const struct cb_kernels *k, const char *folder)
{
    golden_unary(k, folder, "exp", -1);
    golden_unary(k, folder, "sigmoid", -2);
    golden_unary(k, folder, "silu", CB_ACT_SILU);
    golden_unary(k, folder, "gelu_tanh", CB_ACT_GELU_TANH);
    golden_unary(k, folder, "relu", CB_ACT_RELU);
    golden_swiglu(k, folder);
    golden_reduce8(k, folder);
    golden_rmsnorm(k, folder);
    golden_quantize(k, folder);
    golden_quantised_rows(k, folder, 0);
    golden_quantised_rows(k, folder, 1);
    golden_float_rows(k, folder, "dot_f32", CB_DTYPE_F32);
    golden_float_rows(k, folder, "dot_f16", CB_DTYPE_F16);
    golden_float_rows(k, folder, "dot_bf16", CB_DTYPE_BF16);
    golden_f16(k, folder);
    golden_rope(k, folder);
    golden_attend(k, folder);
    check_panel_row(k, folder);
}
