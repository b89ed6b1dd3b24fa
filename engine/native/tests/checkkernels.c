/* SPDX-License-Identifier: MIT */
/*
 * checkkernels: every operator of every instruction set this CPU runs, compared bit by bit with the
 * C reference, and all of them with the golden vectors.
 *
 *   checkkernels [--isa NAME] [--seed N] [--rounds N] [--golden DIR] [--bench]
 *
 * The golden folder may also be named by COLIBRI_GOLDEN; without it only the reference is compared.
 *
 * Buffers end at an unreadable page and begin after a canary, so a kernel that reads or writes past
 * its operands fails too. An ISA that was asked for and is missing is an error, not a skip. Other
 * cores are tried with an emulator: qemu-aarch64 -cpu cortex-a53 checkkernels.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "exact.h"

#include "checkkernels.h"
#include "colibri.h"
#include "kernels.h"
#include "spec.h"

/* ---- failures ------------------------------------------------------------------------------ */

static unsigned long cases, failures;

void check_count(void)
{
    cases++;
}

void check_fail(const char *isa, const char *format, ...)
{
    va_list arguments;
    failures++;
    if (failures > 20) /* enough to see a pattern */
        return;
    printf("FAIL %s: ", isa);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

/* A kernel that runs past a buffer meets the unreadable page: say which, then die of it. */
static const char *running_isa = "?", *running = "?";
static unsigned long long running_seed;

static void on_fault(int number)
{
    char text[200];
    int n = snprintf(text, sizeof text, "FAIL %s: %s ran past a buffer; repeat with --seed %llu\n",
                     running_isa, running, running_seed);
    if (n > 0)
        (void)!write(1, text, (size_t)n);
    signal(number, SIG_DFL);
    raise(number);
}

static void run(const char *isa, const char *what)
{
    running_isa = isa;
    running = what;
}

/* ---- guarded buffers ----------------------------------------------------------------------- */

#define CANARY_BYTES 64
#define CANARY 0xa5
#define MAX_BUFFERS 16

struct buffer {
    uint8_t *map, *data;
    size_t map_bytes, bytes;
};

static struct buffer buffers[MAX_BUFFERS];
static size_t buffer_count;

/* `bytes` bytes, filled with the canary, that end at an unreadable page. Freed by release_all. */
static void *guarded(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (bytes + CANARY_BYTES + page - 1) / page * page;
    if (buffer_count == MAX_BUFFERS)
        abort();
    struct buffer *b = &buffers[buffer_count++];
    b->map_bytes = body + page;
    b->map = mmap(NULL, b->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED || mprotect(b->map + body, page, PROT_NONE) != 0) {
        perror("checkkernels: mmap");
        exit(1);
    }
    b->bytes = bytes;
    b->data = b->map + body - bytes;
    memset(b->map, CANARY, body);
    return b->data;
}

static void release_all(const char *isa, const char *what)
{
    for (size_t i = 0; i < buffer_count; i++) {
        struct buffer *b = &buffers[i];
        for (uint8_t *p = b->map; p < b->data; p++)
            if (*p != CANARY) {
                check_fail(isa, "%s wrote %zu bytes before a buffer", what, (size_t)(b->data - p));
                break;
            }
        munmap(b->map, b->map_bytes);
    }
    buffer_count = 0;
}

/* ---- random numbers ------------------------------------------------------------------------ */

static uint64_t rng_state;

static uint64_t rng(void)
{
    uint64_t z = (rng_state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t between(size_t low, size_t high)
{
    return low + (size_t)(rng() % (high - low + 1));
}

/* Roughly normal, sigma about 1, never zero. */
static float normal(void)
{
    uint64_t z = rng();
    float x = (float)(int16_t)z + (float)(int16_t)(z >> 16) + (float)(int16_t)(z >> 32);
    return (x + 0.5f) * 0x1p-15f;
}

/* Random bits with an exponent between the powers of two given. */
static float spread(int low, int high)
{
    uint32_t exponent = (uint32_t)((int)between(0, (size_t)(high - low)) + low + 127);
    return cb_float(((uint32_t)rng() & 0x807fffffu) | (exponent << 23));
}

static void fill_normal(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = normal();
}

static void fill_bytes(void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] = (uint8_t)rng();
}

/* A finite f16: ordinary weights mostly, with the extremes. */
static uint16_t random_scale(void)
{
    switch (rng() % 12) {
    case 0:
        return 0;
    case 1:
        return 0x8000;
    case 2:
        return (uint16_t)(rng() & 0x83ffu); /* subnormal */
    case 3:
        return 0x7bff;
    case 4:
        return 0xfbff;
    case 5:
        return 1;
    default:
        return (uint16_t)((rng() & 0x83ffu) | (uint16_t)(between(1, 18) << 10));
    }
}

/* ---- comparisons --------------------------------------------------------------------------- */

/* NaNs are equal to one another: which NaN an operation makes differs between CPUs. */
int check_floats(const char *isa, const char *what, const char *shape, const float *expected,
                 const float *got, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a = cb_bits(expected[i]), b = cb_bits(got[i]);
        int both_nan =
            (a & CB_BITS_ABS) > CB_BITS_INFINITY && (b & CB_BITS_ABS) > CB_BITS_INFINITY;
        if (a != b && !both_nan) {
            check_fail(isa, "%s %s: element %zu is %a (%08x), should be %a (%08x)", what, shape, i,
                       (double)got[i], (unsigned)b, (double)expected[i], (unsigned)a);
            return 0;
        }
    }
    return 1;
}

static int check_bytes(const char *isa, const char *what, const char *shape, const void *expected,
                       const void *got, size_t n)
{
    const uint8_t *a = expected, *b = got;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) {
            check_fail(isa, "%s %s: byte %zu is %02x, should be %02x", what, shape, i, b[i], a[i]);
            return 0;
        }
    return 1;
}

static char shape_text[128];

static const char *shape(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *shape(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(shape_text, sizeof shape_text, format, arguments);
    va_end(arguments);
    return shape_text;
}

/* ---- quantisation -------------------------------------------------------------------------- */

static void fill_group(float *x)
{
    const unsigned kind = (unsigned)(rng() % 10);
    const int exponent = (int)between(0, 180) - 62; /* the smallest straddles the zero rule */
    for (size_t i = 0; i < 32; i++) {
        switch (kind) {
        case 0:
            x[i] = 0.0f;
            break;
        case 1: /* all tiny, subnormals among them */
            x[i] = cb_float((uint32_t)rng() & 0x9f7fffffu);
            break;
        case 2: /* the edge of the zero rule */
            x[i] = cb_float((CB_TINY_AMAX_BITS - 1 + (uint32_t)(rng() % 3)) |
                            ((uint32_t)rng() & 0x80000000u));
            break;
        case 3: /* largest */
            x[i] = spread(120, 127);
            break;
        case 4: /* ties: halves of the unit when amax is 127 */
            x[i] = i == 7 ? 127.0f : (float)((int)between(0, 253) - 126) + 0.5f;
            break;
        case 5: /* everything at the limit */
            x[i] = cb_float(((uint32_t)rng() & 0x80000000u) | cb_bits(127.0f));
            break;
        case 6:
            x[i] = spread(exponent, exponent + 8);
            break;
        default:
            x[i] = normal();
            break;
        }
    }
}

static void check_quantize(const struct cb_kernels *k)
{
    run(k->isa, "quantize");
    const size_t groups = between(1, 9);
    float *x = guarded(groups * 32 * sizeof *x);
    int8_t *q = guarded(groups * 32), *q2 = guarded(groups * 32);
    float *d = guarded(groups * sizeof *d), *d2 = guarded(groups * sizeof *d);
    int32_t *s = guarded(groups * sizeof *s), *s2 = guarded(groups * sizeof *s);
    for (size_t g = 0; g < groups; g++)
        fill_group(x + 32 * g);
    int expected = cb_quantize_ref(x, groups, q, d, s);
    int got = k->quantize(x, groups, q2, d2, s2);
    const char *text = shape("groups=%zu", groups);
    if (expected != 0 || got != 0)
        check_fail(k->isa, "quantize %s: finite input gave %d and %d", text, expected, got);
    check_bytes(k->isa, "quantize q", text, q, q2, groups * 32);
    check_floats(k->isa, "quantize d", text, d, d2, groups);
    check_bytes(k->isa, "quantize s", text, s, s2, groups * sizeof *s);

    /* any non-finite value at any place is found */
    static const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xff800001u};
    const size_t at = between(0, groups * 32 - 1);
    x[at] = cb_float(bad[rng() % 4]);
    if (k->quantize(x, groups, q2, d2, s2) != COLIBRI_ERR_NON_FINITE)
        check_fail(k->isa, "quantize %s: non-finite element %zu was not reported", text, at);
    release_all(k->isa, "quantize");
    check_count();
}

/* ---- quantised row products ---------------------------------------------------------------- */

#define MAX_TOKENS 19 /* above two of the largest batches */

static void check_matmul_quantised(const struct cb_kernels *k, int int8, size_t groups,
                                   size_t tokens)
{
    run(k->isa, int8 ? "matmul_int8" : "matmul_int4");
    const size_t block = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    const size_t scales = block - 16;
    const size_t panels = between(1, 5);
    const size_t stride = panels * 8 + between(0, 5);
    uint8_t *w = guarded(panels * groups * block);
    int8_t *q = guarded(tokens * groups * 32);
    float *d = guarded(tokens * groups * sizeof *d);
    int32_t *s = guarded(tokens * groups * sizeof *s);
    const size_t outputs = (tokens - 1) * stride + panels * 8;
    float *y = guarded(outputs * sizeof *y), *y2 = guarded(outputs * sizeof *y);
    const int extreme = rng() % 4 == 0; /* the largest sums the 16-bit arithmetic can meet */

    fill_bytes(w, panels * groups * block);
    for (size_t b = 0; b < panels * groups; b++) {
        uint8_t *start = w + b * block;
        if (extreme)
            memset(start, int8 ? (rng() & 1 ? 0x80 : 0x7f) : (rng() & 1 ? 0xff : 0), scales);
        for (size_t r = 0; r < 8; r++) {
            uint16_t h = random_scale();
            memcpy(start + scales + 2 * r, &h, sizeof h);
        }
    }
    for (size_t g = 0; g < tokens * groups; g++) {
        int32_t sum = 0;
        for (size_t i = 0; i < 32; i++) {
            int value = (int)(rng() % 255) - 127;
            if (extreme)
                value = rng() % 8 == 0 ? -127 : 127;
            q[g * 32 + i] = (int8_t)value;
            sum += value;
        }
        s[g] = sum;
        d[g] = rng() % 16 == 0 ? 0.0f : cb_float(cb_bits(spread(-70, 20)) & CB_BITS_ABS);
    }
    const struct cb_quantized x = {q, d, s, groups};
    if (int8) {
        cb_matmul_int8_ref(w, panels, &x, tokens, y, stride);
        k->matmul_int8(w, panels, &x, tokens, y2, stride);
    } else {
        cb_matmul_int4_ref(w, panels, &x, tokens, y, stride);
        k->matmul_int4(w, panels, &x, tokens, y2, stride);
    }
    check_floats(k->isa, int8 ? "matmul_int8" : "matmul_int4",
                 shape("panels=%zu groups=%zu tokens=%zu stride=%zu", panels, groups, tokens,
                       stride),
                 y, y2, outputs); /* the gaps of the stride hold the canary in both */
    release_all(k->isa, int8 ? "matmul_int8" : "matmul_int4");
    check_count();
}

/* ---- float row products -------------------------------------------------------------------- */

static void check_matmul_float(const struct cb_kernels *k, int dtype)
{
    run(k->isa, "a float row product");
    const size_t panels = between(1, 6), columns = 32 * between(1, 4), tokens = between(1, 9);
    const size_t stride = panels * 8 + between(0, 5), x_stride = columns + between(0, 3);
    const size_t elements = panels * columns * 8;
    const size_t outputs = (tokens - 1) * stride + panels * 8;
    float *x = guarded(((tokens - 1) * x_stride + columns) * sizeof *x);
    float *y = guarded(outputs * sizeof *y), *y2 = guarded(outputs * sizeof *y);
    fill_normal(x, (tokens - 1) * x_stride + columns);
    const char *text = shape("panels=%zu columns=%zu tokens=%zu strides=%zu,%zu", panels, columns,
                             tokens, x_stride, stride);
    if (dtype == CB_DTYPE_F32) {
        float *w = guarded(elements * sizeof *w);
        fill_normal(w, elements);
        cb_matmul_f32_ref(w, panels, columns, x, x_stride, tokens, y, stride);
        k->matmul_f32(w, panels, columns, x, x_stride, tokens, y2, stride);
        check_floats(k->isa, "matmul_f32", text, y, y2, outputs);
    } else {
        uint16_t *w = guarded(elements * sizeof *w);
        for (size_t i = 0; i < elements; i++)
            w[i] = dtype == CB_DTYPE_F16 ? random_scale() : (uint16_t)(cb_bits(normal()) >> 16);
        if (dtype == CB_DTYPE_F16) {
            cb_matmul_f16_ref(w, panels, columns, x, x_stride, tokens, y, stride);
            k->matmul_f16(w, panels, columns, x, x_stride, tokens, y2, stride);
            check_floats(k->isa, "matmul_f16", text, y, y2, outputs);
        } else {
            cb_matmul_bf16_ref(w, panels, columns, x, x_stride, tokens, y, stride);
            k->matmul_bf16(w, panels, columns, x, x_stride, tokens, y2, stride);
            check_floats(k->isa, "matmul_bf16", text, y, y2, outputs);
        }
    }
    release_all(k->isa, "float rows");
    check_count();
}

/* ---- norm, rotation ------------------------------------------------------------------------ */

static void check_rmsnorm(const struct cb_kernels *k)
{
    run(k->isa, "rmsnorm");
    static const size_t models[] = {64, 576, 1024, 1536, 2048};
    const size_t n = rng() % 4 ? between(1, 70) : models[rng() % 5];
    float *x = guarded(n * sizeof *x), *w = guarded(n * sizeof *w);
    float *y = guarded(n * sizeof *y), *y2 = guarded(n * sizeof *y);
    fill_normal(w, n);
    for (size_t i = 0; i < n; i++)
        x[i] = rng() % 8 ? normal() : 0.0f;
    const float eps = rng() & 1 ? 1e-5f : 1e-6f;
    cb_rmsnorm_ref(x, w, n, eps, y);
    k->rmsnorm(x, w, n, eps, y2);
    check_floats(k->isa, "rmsnorm", shape("n=%zu", n), y, y2, n);
    k->rmsnorm(x, w, n, eps, x);
    check_floats(k->isa, "rmsnorm in place", shape("n=%zu", n), y, x, n);
    release_all(k->isa, "rmsnorm");
    check_count();
}

static void check_rope(const struct cb_kernels *k)
{
    run(k->isa, "rope");
    const size_t pairs = between(1, 70);
    const int style = rng() & 1 ? CB_ROPE_HALF : CB_ROPE_INTERLEAVED;
    float *x = guarded(2 * pairs * sizeof *x), *x2 = guarded(2 * pairs * sizeof *x);
    float *c = guarded(pairs * sizeof *c), *s = guarded(pairs * sizeof *s);
    fill_normal(x, 2 * pairs);
    fill_normal(c, pairs);
    fill_normal(s, pairs);
    memcpy(x2, x, 2 * pairs * sizeof *x);
    cb_rope_ref(x, c, s, pairs, style);
    k->rope(x2, c, s, pairs, style);
    check_floats(k->isa, "rope", shape("pairs=%zu style=%d", pairs, style), x, x2, 2 * pairs);
    release_all(k->isa, "rope");
    check_count();
}

/* ---- attention ----------------------------------------------------------------------------- */

static void check_attend(const struct cb_kernels *k, int f16)
{
    run(k->isa, f16 ? "attend_f16" : "attend_f32");
    static const size_t dims[] = {32, 64, 80, 96, 128, 192};
    const size_t positions = rng() % 8 ? between(1, 20) : between(21, 150);
    const size_t dim = rng() & 1 ? dims[rng() % 6] : between(1, 80);
    const size_t value_dim = rng() & 1 ? dim : between(1, 160);
    const float scale = normal(), size = rng() % 4 ? 1.0f : 12.0f; /* sharp softmax: zero terms */
    float *q = guarded(dim * sizeof *q);
    const float sinks[1] = {normal() * size}, *sink = rng() & 1 ? sinks : NULL;
    float *scores = guarded((positions + (sink != NULL)) * sizeof *scores);
    float *out = guarded(value_dim * sizeof *out), *out2 = guarded(value_dim * sizeof *out);
    const char *text =
        shape("positions=%zu dim=%zu value_dim=%zu sink=%d", positions, dim, value_dim, sink != NULL);
    for (size_t i = 0; i < dim; i++)
        q[i] = normal() * size;
    if (f16) {
        uint16_t *key = guarded(positions * dim * sizeof *key);
        uint16_t *value = guarded(positions * value_dim * sizeof *value);
        for (size_t i = 0; i < positions * dim; i++)
            key[i] = cb_f16_from_f32(normal());
        for (size_t i = 0; i < positions * value_dim; i++)
            value[i] = random_scale();
        cb_attend_f16_ref(q, key, value, positions, dim, value_dim, scale, sink, scores, out);
        k->attend_f16(q, key, value, positions, dim, value_dim, scale, sink, scores, out2);
    } else {
        float *key = guarded(positions * dim * sizeof *key);
        float *value = guarded(positions * value_dim * sizeof *value);
        fill_normal(key, positions * dim);
        fill_normal(value, positions * value_dim);
        cb_attend_f32_ref(q, key, value, positions, dim, value_dim, scale, sink, scores, out);
        k->attend_f32(q, key, value, positions, dim, value_dim, scale, sink, scores, out2);
    }
    check_floats(k->isa, f16 ? "attend_f16" : "attend_f32", text, out, out2, value_dim);
    release_all(k->isa, "attend");
    check_count();
}

/* Any finite value, and around the limits of f16: subnormal, ties, overflow. */
static float near_f16(void)
{
    switch (rng() % 6) {
    case 0: /* a tie between two f16 or a step beside it */
        return cb_float((cb_bits(cb_f16_to_f32((uint16_t)(rng() % 0x7bff))) | 0x1000u) +
                        (uint32_t)(rng() % 3) - 1);
    case 1:
        return -spread(-27, -13);
    case 2:
        return spread(-126, -20);
    case 3:
        return cb_float((uint32_t)rng() & 0x80001fffu); /* subnormal */
    default:
        return spread(-14, 14);
    }
}

static void check_store_f16(const struct cb_kernels *k)
{
    run(k->isa, "store_f16");
    static const uint32_t bad[] = {0x477ff000u, 0xc77ff000u, 0x7f800000u, 0xff800000u,
                                   0x7fc00000u, 0x7f7fffffu};
    const size_t n = between(1, 70);
    float *x = guarded(n * sizeof *x);
    uint16_t *h = guarded(n * sizeof *h), *h2 = guarded(n * sizeof *h);
    for (size_t i = 0; i < n; i++)
        x[i] = near_f16();
    if (rng() % 4 == 0)
        x[rng() % n] = cb_float(0x477fefffu); /* the largest that still rounds down to 65504 */
    int expected = cb_store_f16_ref(x, n, h), got = k->store_f16(x, n, h2);
    if (expected != 0 || got != 0)
        check_fail(k->isa, "store_f16 n=%zu: finite input gave %d and %d", n, expected, got);
    check_bytes(k->isa, "store_f16", shape("n=%zu", n), h, h2, n * sizeof *h);
    const size_t at = between(0, n - 1), which = between(0, 5);
    x[at] = cb_float(bad[which]);
    if (k->store_f16(x, n, h2) != COLIBRI_ERR_NON_FINITE)
        check_fail(k->isa, "store_f16 n=%zu: element %zu = %a was not reported", n, at,
                   (double)x[at]);
    release_all(k->isa, "store_f16");
    check_count();
}

/* ---- activations --------------------------------------------------------------------------- */

static float any_input(void)
{
    switch (rng() % 8) {
    case 0:
        return rng() & 1 ? 0.0f : -0.0f;
    case 1: /* around the end of exp's domain */
        return cb_float(cb_bits(rng() & 1 ? 40.0f : -40.0f) + (uint32_t)(rng() % 3) - 1);
    case 2:
        return spread(-60, 60);
    case 3:
        return normal() * 30.0f;
    default:
        return normal() * 4.0f;
    }
}

static void check_activate(const struct cb_kernels *k)
{
    run(k->isa, "activate");
    static const int kinds[] = {CB_ACT_SILU, CB_ACT_GELU_TANH, CB_ACT_RELU, CB_ACT_SWIGLU_CLAMPED,
                                CB_ACT_IDENTITY};
    const int kind = kinds[rng() % 5];
    const size_t n = rng() % 4 ? between(1, 40) : between(41, 600);
    const int plain = rng() % 3 == 0;
    float *gate = guarded(n * sizeof *gate), *up = guarded(n * sizeof *up);
    float *h = guarded(n * sizeof *h), *h2 = guarded(n * sizeof *h);
    for (size_t i = 0; i < n; i++) {
        gate[i] = any_input();
        up[i] = kind == CB_ACT_SWIGLU_CLAMPED ? any_input() : normal();
    }
    const float clamp = 7.0f, alpha = 1.702f;
    const char *text = shape("kind=%d n=%zu%s", kind, n, plain ? " without up" : "");
    cb_activate_ref(kind, clamp, alpha, gate, plain ? NULL : up, n, h);
    k->activate(kind, clamp, alpha, gate, plain ? NULL : up, n, h2);
    check_floats(k->isa, "activate", text, h, h2, n);
    memcpy(h2, gate, n * sizeof *h2);
    k->activate(kind, clamp, alpha, h2, plain ? NULL : up, n, h2);
    check_floats(k->isa, "activate in place", text, h, h2, n);
    k->activate(CB_ACT_GELU_ERF, clamp, alpha, gate, up, n, h2);
    for (size_t i = 0; i < n; i++)
        if ((cb_bits(h2[i]) & CB_BITS_ABS) <= CB_BITS_INFINITY) {
            check_fail(k->isa, "activate: an activation without a definition gave a number");
            break;
        }
    release_all(k->isa, "activate");
    check_count();
}

static void check_add_scaled(const struct cb_kernels *k)
{
    run(k->isa, "add_scaled");
    const size_t n = between(1, 80);
    float *acc = guarded(n * sizeof *acc), *acc2 = guarded(n * sizeof *acc);
    float *x = guarded(n * sizeof *x);
    const float scale = normal();
    fill_normal(acc, n);
    fill_normal(x, n);
    memcpy(acc2, acc, n * sizeof *acc);
    cb_add_scaled_ref(acc, scale, x, n);
    k->add_scaled(acc2, scale, x, n);
    check_floats(k->isa, "add_scaled", shape("n=%zu", n), acc, acc2, n);
    release_all(k->isa, "add_scaled");
    check_count();
}

/* Few values, so that many are equal; zeros of both signs and infinities among them. */
static float tied_score(void)
{
    static const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, 0x1p-140f, HUGE_VALF, -HUGE_VALF, 2.0f};
    return values[rng() % 8];
}

static void check_top_k(const struct cb_kernels *k, size_t n)
{
    run(k->isa, "top_k");
    const size_t wanted = between(1, n < CB_MAX_TOP_K ? n : CB_MAX_TOP_K);
    const unsigned kind = (unsigned)(rng() % 4);
    float *scores = guarded(n * sizeof *scores), *copy = guarded(n * sizeof *copy);
    int32_t *ids = guarded(wanted * sizeof *ids), *ids2 = guarded(wanted * sizeof *ids2);
    for (size_t i = 0; i < n; i++)
        scores[i] = kind == 0   ? tied_score()
                    : kind == 1 ? (float)(rng() % 9)
                    : kind == 2 ? (rng() % 16 ? -HUGE_VALF : tied_score())
                                : normal();
    memcpy(copy, scores, n * sizeof *copy);
    cb_top_k_ref(scores, n, wanted, ids);
    k->top_k(copy, n, wanted, ids2);
    check_bytes(k->isa, "top_k", shape("n=%zu k=%zu kind=%u", n, wanted, kind), ids, ids2,
                wanted * sizeof *ids);
    release_all(k->isa, "top_k");
    check_count();
}

/* The reference alone: it is the definition of the order. */
static void check_order_of_equals(void)
{
    float scores[] = {1.0f, 3.0f, -0.0f, 3.0f, 0.0f, 1.0f, 7.0f};
    static const int32_t expected[] = {6, 1, 3, 0, 5, 2, 4};
    int32_t ids[7];
    cb_top_k_ref(scores, 7, 7, ids);
    check_bytes("ref", "top_k", "of seven", expected, ids, sizeof expected);
    check_count();
}

/* ---- one instruction set ------------------------------------------------------------------- */

static void check_complete(const struct cb_kernels *k)
{
    if (!k->isa || !k->quantize || !k->matmul_int4 || !k->matmul_int8 || !k->matmul_f32 ||
        !k->matmul_f16 || !k->matmul_bf16 || !k->rmsnorm || !k->rope || !k->attend_f16 ||
        !k->attend_f32 || !k->store_f16 || !k->activate || !k->add_scaled || !k->top_k) {
        printf("FAIL: a table has an empty entry\n");
        exit(1);
    }
}

static void check_isa(const struct cb_kernels *k, unsigned rounds)
{
    check_complete(k);
    for (size_t groups = 126; groups <= 131; groups++) /* around the pieces a long row is cut into */
        for (size_t more = 0; more <= 128; more += 128) {
            check_matmul_quantised(k, 0, groups + more, 1);
            check_matmul_quantised(k, 1, groups + more, 1);
        }
    for (size_t tokens = 1; tokens <= MAX_TOKENS; tokens++) {
        check_matmul_quantised(k, 0, 3, tokens);
        check_matmul_quantised(k, 1, 3, tokens);
    }
    for (unsigned i = 0; i < rounds; i++) {
        check_quantize(k);
        check_matmul_quantised(k, 0, 1 + i % 9, between(1, MAX_TOKENS));
        check_matmul_quantised(k, 1, 1 + i % 9, between(1, MAX_TOKENS));
        if (i % 16 == 0) {
            check_matmul_quantised(k, 0, 33, between(1, MAX_TOKENS));
            check_matmul_quantised(k, 1, 33, between(1, MAX_TOKENS));
        }
        check_matmul_float(k, CB_DTYPE_F32);
        check_matmul_float(k, CB_DTYPE_F16);
        check_matmul_float(k, CB_DTYPE_BF16);
        check_rmsnorm(k);
        check_rope(k);
        check_attend(k, 1);
        check_attend(k, 0);
        check_store_f16(k);
        check_activate(k);
        check_add_scaled(k);
        check_top_k(k, 1 + i % 65);
        check_top_k(k, between(60, 300));
    }
}

/* The control word: nearest even and no flushing inside, whatever the caller had, restored after. */
static void check_fpu(void)
{
    volatile float tiny = 0x1p-130f, one = 1.0f, half_ulp = 0x1.8p-24f;
    uint64_t outer = cb_fpu_enter();
#if defined(__x86_64__)
    const uint32_t strange = 0x1f80u | 0x8040u | 0x6000u; /* FTZ, DAZ, toward zero */
    __builtin_ia32_ldmxcsr(strange);
    uint64_t saved = cb_fpu_enter();
#elif defined(__aarch64__)
    const uint64_t strange = (UINT64_C(1) << 24) | (UINT64_C(3) << 22); /* FZ, toward zero */
    __asm__ volatile("msr fpcr, %0" : : "r"(strange));
    uint64_t saved = cb_fpu_enter();
#else
    uint64_t saved = cb_fpu_enter();
#endif
    if (tiny * one == 0.0f)
        check_fail("ref", "cb_fpu_enter: subnormals are flushed");
    if (one + half_ulp == 1.0f)
        check_fail("ref", "cb_fpu_enter: rounding is not to nearest");
    cb_fpu_leave(saved);
#if defined(__x86_64__)
    if ((__builtin_ia32_stmxcsr() & 0xffc0u) != strange)
        check_fail("ref", "cb_fpu_leave: MXCSR was not restored");
#elif defined(__aarch64__)
    uint64_t now;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    if (now != strange)
        check_fail("ref", "cb_fpu_leave: FPCR was not restored");
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)));
#endif
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(0x1f80u);
#endif
    cb_fpu_leave(outer);
    check_count();
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#define BENCH_BYTES ((size_t)256 << 20) /* far beyond any cache */

static uint64_t bench_sink;

static void bench_stream(const uint8_t *w)
{
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double start = now_seconds();
        uint64_t sum[8] = {0};
        const uint64_t *p = (const uint64_t *)(const void *)w;
        for (size_t j = 0; j < BENCH_BYTES / 8; j += 8)
            for (size_t l = 0; l < 8; l++)
                sum[l] += p[j + l];
        for (size_t l = 0; l < 8; l++)
            bench_sink += sum[l];
        double t = now_seconds() - start;
        best = t < best ? t : best;
    }
    printf("  read 256 MiB                 %7.2f GB/s\n", (double)BENCH_BYTES / best * 1e-9);
}

static void bench_matmul(const struct cb_kernels *k, uint8_t *w, int int8, size_t groups,
                         size_t tokens, size_t bytes)
{
    static int8_t q[16 * 64 * 32];
    static float d[16 * 64];
    static int32_t s[16 * 64];
    const size_t block = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    const size_t panels = bytes / (groups * block);
    const struct cb_quantized x = {q, d, s, groups};
    float *y = malloc(tokens * panels * 8 * sizeof *y);
    double best = 1e9;
    if (!y)
        return;
    fill_bytes(q, sizeof q);
    memset(y, 0, tokens * panels * 8 * sizeof *y);
    const int repeat = bytes < BENCH_BYTES ? 10 : 1, runs = bytes < BENCH_BYTES ? 60 : 5;
    for (int i = 0; i < runs; i++) {
        double start = now_seconds();
        for (int j = 0; j < repeat; j++) {
            if (int8)
                k->matmul_int8(w, panels, &x, tokens, y, panels * 8);
            else
                k->matmul_int4(w, panels, &x, tokens, y, panels * 8);
        }
        double t = (now_seconds() - start) / repeat;
        best = t < best ? t : best;
    }
    bench_sink += cb_bits(y[panels]);
    free(y);
    const double weights = (double)(panels * groups) * 256.0;
    printf("  matmul_%s %3zu token%s %7s  %7.2f GB/s %8.2f GMAC/s\n", int8 ? "int8" : "int4",
           tokens, tokens == 1 ? " " : "s", bytes < BENCH_BYTES ? "cached" : "memory",
           (double)(panels * groups * block) / best * 1e-9, weights * (double)tokens / best * 1e-9);
}

static void bench_small(const struct cb_kernels *k)
{
    enum { N = 1024, POSITIONS = 512, DIM = 64, REPEAT = 20 };
    static float x[N], y[N], z[N], scores[POSITIONS], out[DIM];
    static uint16_t key[POSITIONS * DIM], value[POSITIONS * DIM], half[N];
    static int8_t q[N];
    static float d[N / 32];
    static int32_t s[N / 32];
    fill_normal(x, N);
    fill_normal(y, N);
    for (size_t i = 0; i < POSITIONS * DIM; i++) {
        key[i] = cb_f16_from_f32(normal());
        value[i] = cb_f16_from_f32(normal());
    }
    static const char *const names[] = {"quantize 1024", "rmsnorm 1024", "silu 1024",
                                        "add_scaled 1024", "store_f16 1024",
                                        "attend_f16 512x64"};
    for (int which = 0; which < 6; which++) {
        double best = 1e9;
        for (int i = 0; i < 60; i++) {
            double start = now_seconds();
            for (int j = 0; j < REPEAT; j++) {
                switch (which) {
                case 0:
                    k->quantize(x, N / 32, q, d, s);
                    break;
                case 1:
                    k->rmsnorm(x, y, N, 1e-5f, z);
                    break;
                case 2:
                    k->activate(CB_ACT_SILU, 0.0f, 0.0f, x, y, N, z);
                    break;
                case 3:
                    k->add_scaled(z, 0.5f, x, N);
                    break;
                case 4:
                    k->store_f16(x, N, half);
                    break;
                default:
                    k->attend_f16(x, key, value, POSITIONS, DIM, DIM, 0.125f, NULL, scores, out);
                    break;
                }
            }
            double t = (now_seconds() - start) / (double)REPEAT;
            best = t < best ? t : best;
        }
        printf("  %-24s %10.2f us\n", names[which], best * 1e6);
    }
    bench_sink += (uint64_t)q[0] + cb_bits(z[0]) + cb_bits(out[0]) + half[0];
}

static void bench(const struct cb_kernels *k)
{
    uint8_t *w = mmap(NULL, BENCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w == MAP_FAILED) {
        perror("checkkernels: mmap");
        exit(1);
    }
    (void)madvise(w, BENCH_BYTES, MADV_HUGEPAGE); /* as the engine asks for its weights */
    memset(w, 0x11, BENCH_BYTES);
    printf("%s:\n", k->isa);
    bench_stream(w);
    for (int int8 = 0; int8 < 2; int8++) {
        bench_matmul(k, w, int8, 32, 1, BENCH_BYTES);
        bench_matmul(k, w, int8, 32, 1, 128 << 10);
        bench_matmul(k, w, int8, 32, 4, 128 << 10);
        bench_matmul(k, w, int8, 32, 16, 128 << 10);
    }
    bench_small(k);
    munmap(w, BENCH_BYTES);
}

/* ---- command ------------------------------------------------------------------------------- */

static void usage(void)
{
    fprintf(stderr, "usage: checkkernels [--isa NAME] [--seed N] [--rounds N] [--golden DIR] "
                    "[--bench]\n");
    exit(2);
}

static uint64_t number(const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (errno != 0 || end == text || *end != 0) {
        fprintf(stderr, "checkkernels: '%s' is not a number\n", text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    const char *isa = NULL, *golden = getenv("COLIBRI_GOLDEN");
    uint64_t seed = (uint64_t)time(NULL) ^ ((uint64_t)getpid() << 32);
    unsigned rounds = 300;
    int benchmark = 0;

    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--bench") == 0) {
            benchmark = 1;
            continue;
        }
        if (value == NULL)
            usage();
        if (strcmp(argv[i], "--isa") == 0)
            isa = value;
        else if (strcmp(argv[i], "--seed") == 0)
            seed = number(value);
        else if (strcmp(argv[i], "--rounds") == 0)
            rounds = (unsigned)number(value);
        else if (strcmp(argv[i], "--golden") == 0)
            golden = value;
        else
            usage();
        i++;
    }
    if (isa && !cb_kernels_select(isa)) {
        fprintf(stderr, "checkkernels: instruction set '%s' is not available; compiled: %s; this "
                        "CPU runs: %s\n",
                isa, cb_kernels_compiled(), cb_kernels_available());
        return 1;
    }
    if (cb_kernels_select("no-such-isa") != NULL)
        check_fail("dispatch", "an unknown name selected a table");
    printf("checkkernels: compiled: %s; available: %s; seed %llu\n", cb_kernels_compiled(),
           cb_kernels_available(), (unsigned long long)seed);
    fflush(stdout);

    running_seed = seed;
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    const uint64_t control = cb_fpu_enter();
    char names[256], *rest = names;
    snprintf(names, sizeof names, "%s", isa ? isa : cb_kernels_available());
    check_fpu();
    check_order_of_equals();
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        const struct cb_kernels *k = cb_kernels_select(name);
        const unsigned long before = cases, failed = failures;
        if (!k || strcmp(k->isa, name) != 0) {
            check_fail(name, "the table was not selected by its name");
            continue;
        }
        if (benchmark) {
            bench(k);
            continue;
        }
        rng_state = seed;
        check_isa(k, rounds);
        if (golden)
            check_golden(k, golden);
        printf("%s: %lu cases, %lu failures%s\n", name, cases - before, failures - failed,
               golden ? ", golden vectors read" : "");
        fflush(stdout);
    }
#if defined(CB_HAVE_AVX512)
    if (!isa && !benchmark && cb_kernels_select("avx2")) {
        const unsigned long before = cases, failed = failures;
        rng_state = seed;
        check_isa(&check_emulated_avx512, rounds);
        if (golden)
            check_golden(&check_emulated_avx512, golden);
        printf("avx512, emulated: %lu cases, %lu failures\n", cases - before, failures - failed);
    }
#endif
    cb_fpu_leave(control);
    if (failures) {
        printf("FAILED: %lu failures; repeat with --seed %llu\n", failures,
               (unsigned long long)seed);
        return 1;
    }
    printf("%s\n", benchmark ? "done" : "ok");
    return 0;
}
