/* SPDX-License-Identifier: MIT */
/* The part of stdio that the commands use, for static programs: they are to fit 256 KiB, and a libc
 * carries 128-bit floating point, wide characters, locks and cancellation in its printf (about 20 KB
 * of musl's).
 *
 * What differs from libc: only the conversions d i u x X o c s p f g % exist, without the flags '+',
 * ' ', '#' and without a precision of integers; files are read or written, not both; calls from two
 * threads at once are the caller's mistake (workers never print). Digits are the same to the last
 * one: numbers are expanded exactly and rounded to even.
 *
 * tests/unit/test_small_libc.py compares every format of the sources with libc's, and refuses a
 * function of stdio that is not here: libc's would take a FILE of this file for its own. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files ------------------------------------------------------------------------------- */

#define BUFFER_BYTES 1024u

enum flush { FLUSH_FULL, FLUSH_LINE, FLUSH_CALL, FLUSH_UNKNOWN };

struct file {
    int fd;
    enum flush flush;
    bool error;
    size_t at, end; /* of what is read: the next byte and the end; of what is written: 0 and the end */
    char *buffer;   /* BUFFER_BYTES */
};

static char output_buffer[BUFFER_BYTES], errors_buffer[BUFFER_BYTES];
static struct file output = { .fd = STDOUT_FILENO, .flush = FLUSH_UNKNOWN, .buffer = output_buffer };
static struct file errors = { .fd = STDERR_FILENO, .flush = FLUSH_CALL, .buffer = errors_buffer };

FILE *const stdout = (FILE *)&output;
FILE *const stderr = (FILE *)&errors;

static struct file *inside(FILE *stream)
{
    return (struct file *)(void *)stream;
}

static void write_out(struct file *f)
{
    size_t done = 0;

    while (done < f->end) {
        ssize_t part = write(f->fd, f->buffer + done, f->end - done);

        if (part < 0 && errno != EINTR) {
            f->error = true;
            break;
        }
        done += part > 0 ? (size_t)part : 0;
    }
    f->end = 0;
}

static void put_bytes(struct file *f, const char *bytes, size_t length)
{
    if (f->flush == FLUSH_UNKNOWN) {
        f->flush = isatty(f->fd) != 0 ? FLUSH_LINE : FLUSH_FULL;
    }
    for (size_t i = 0; i < length; i++) {
        if (f->end == BUFFER_BYTES) {
            write_out(f);
        }
        f->buffer[f->end++] = bytes[i];
        if (f->flush == FLUSH_LINE && bytes[i] == '\n') {
            write_out(f);
        }
    }
}

/* The end of a call that writes. */
static int settle(struct file *f)
{
    if (f->flush == FLUSH_CALL) {
        write_out(f);
    }
    return f->error ? EOF : 0;
}

size_t fwrite(const void *restrict bytes, size_t size, size_t count, FILE *restrict stream)
{
    put_bytes(inside(stream), bytes, size * count);
    return settle(inside(stream)) == 0 ? count : 0;
}

int fputs(const char *restrict text, FILE *restrict stream)
{
    put_bytes(inside(stream), text, strlen(text));
    return settle(inside(stream));
}

int fputc(int c, FILE *stream)
{
    char byte = (char)c;

    put_bytes(inside(stream), &byte, 1);
    return settle(inside(stream)) == 0 ? (unsigned char)byte : EOF;
}

int putc(int c, FILE *stream)
{
    return fputc(c, stream);
}

int putchar(int c)
{
    return fputc(c, stdout);
}

int puts(const char *text)
{
    put_bytes(&output, text, strlen(text));
    return putchar('\n') == EOF ? EOF : 0;
}

int fflush(FILE *stream)
{
    struct file *f = stream != NULL ? inside(stream) : &output;

    write_out(f);
    return f->error ? EOF : 0;
}

int ferror(FILE *stream)
{
    return inside(stream)->error;
}

/* What nobody has flushed before the program ends. */
__attribute__((destructor)) static void finish(void)
{
    write_out(&output);
}

FILE *fdopen(int fd, const char *mode)
{
    struct file *f = malloc(sizeof *f + BUFFER_BYTES);

    (void)mode; /* the first call tells */
    if (f == NULL) {
        return NULL;
    }
    *f = (struct file){ .fd = fd, .flush = FLUSH_FULL, .buffer = (char *)(f + 1) };
    return (FILE *)f;
}

FILE *fopen(const char *restrict path, const char *restrict mode)
{
    int fd = open(path, *mode == 'r' ? O_RDONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    FILE *stream = fd >= 0 ? fdopen(fd, mode) : NULL;

    if (fd >= 0 && stream == NULL) {
        (void)close(fd);
    }
    return stream;
}

int fclose(FILE *stream)
{
    struct file *f = inside(stream);
    int code;

    if (f->at == 0) { /* written, or read and empty */
        write_out(f);
    }
    code = close(f->fd) != 0 || f->error ? EOF : 0;
    free(f);
    return code;
}

char *fgets(char *restrict line, int size, FILE *restrict stream)
{
    struct file *f = inside(stream);
    int length = 0;

    while (length < size - 1) {
        if (f->at == f->end) {
            ssize_t part = read(f->fd, f->buffer, BUFFER_BYTES);

            f->error = f->error || part < 0;
            f->at = 0;
            f->end = part > 0 ? (size_t)part : 0;
            if (part <= 0) {
                break;
            }
        }
        line[length++] = f->buffer[f->at++];
        if (line[length - 1] == '\n') {
            break;
        }
    }
    line[length] = '\0';
    return length > 0 ? line : NULL;
}

/* ---- exact decimal digits of a double ------------------------------------------------------ */

#define LIMB 1000000000u
#define LIMB_DIGITS 9
#define WHOLE_LIMBS 36  /* 2^1024 has 309 digits; two more for the 53 bits before they are shifted */
#define LIMBS (WHOLE_LIMBS + 121) /* 1,074 binary places, nine of them to a limb at least */

/* 0.d0 d1 d2 ... times ten to the power of `point`, d0 not '0'; count = 0: zero. */
struct decimal {
    int count, point;
    char digits[LIMBS * LIMB_DIGITS];
};

/* Limbs from `first` to *last: times 2^places, carried to the left. */
static int shift_left(uint32_t *limbs, int first, int last, int places)
{
    uint64_t carry = 0;

    for (int i = last; i >= first || carry != 0; i--) {
        uint64_t sum = (i >= first ? (uint64_t)limbs[i] << places : 0) + carry;

        limbs[i] = (uint32_t)(sum % LIMB);
        carry = sum / LIMB;
        first = i < first ? i : first;
    }
    return first;
}

/* Divided by 2^places, places <= 9: 10^9 is a multiple of 2^9, so every rest has a place to the right. */
static int shift_right(uint32_t *limbs, int first, int last, int places)
{
    uint32_t carry = 0;

    for (int i = first; i <= last || carry != 0; i++) {
        uint32_t limb = i <= last ? limbs[i] : 0;

        limbs[i] = (limb >> places) + carry;
        carry = (LIMB >> places) * (limb & ((1u << places) - 1));
        last = i > last ? i : last;
    }
    return last;
}

static void expand(struct decimal *d, uint64_t bits)
{
    uint32_t limbs[LIMBS] = { 0 };
    int exponent = (int)(bits >> 52 & 0x7FF);
    uint64_t mantissa = bits & ((UINT64_C(1) << 52) - 1);
    int first = WHOLE_LIMBS - 2, last = WHOLE_LIMBS - 1; /* limb WHOLE_LIMBS - 1 holds the ones */
    int skip = 0;

    mantissa |= (uint64_t)(exponent != 0) << 52;
    exponent = (exponent != 0 ? exponent : 1) - 1075;
    limbs[first] = (uint32_t)(mantissa / LIMB);
    limbs[last] = (uint32_t)(mantissa % LIMB);
    for (int step; exponent > 0; exponent -= step) {
        step = exponent < 29 ? exponent : 29;
        first = shift_left(limbs, first, last, step);
    }
    for (int step; exponent < 0; exponent += step) {
        step = exponent > -9 ? -exponent : 9;
        last = shift_right(limbs, first, last, step);
    }
    d->count = (last - first + 1) * LIMB_DIGITS;
    for (int i = d->count - 1; i >= 0; i--) {
        uint32_t *limb = &limbs[first + i / LIMB_DIGITS];

        d->digits[i] = (char)('0' + *limb % 10);
        *limb /= 10;
    }
    while (skip < d->count && d->digits[skip] == '0') {
        skip++;
    }
    d->count -= skip;
    memmove(d->digits, d->digits + skip, (size_t)d->count);
    d->point = (WHOLE_LIMBS - first) * LIMB_DIGITS - skip;
}

/* To `keep` digits, half to even. */
static void round_to(struct decimal *d, int keep)
{
    bool up = false;

    if (keep >= d->count) {
        return;
    }
    if (keep >= 0) {
        bool odd = keep > 0 && d->digits[keep - 1] % 2 != 0;
        int at = keep + 1;

        while (at < d->count && d->digits[at] == '0') {
            at++;
        }
        up = d->digits[keep] > '5' || (d->digits[keep] == '5' && (at < d->count || odd));
    }
    d->count = keep > 0 ? keep : 0;
    if (!up) {
        return;
    }
    while (d->count > 0 && d->digits[d->count - 1] == '9') {
        d->count--;
    }
    if (d->count > 0) {
        d->digits[d->count - 1]++;
    } else {
        d->digits[d->count++] = '1';
        d->point++;
    }
}

/* ---- conversions --------------------------------------------------------------------------- */

/* Where text goes: a file, or memory of `room` bytes of which the last is for the final zero. */
struct sink {
    struct file *file;
    char *memory;
    size_t room, total;
};

static void emit(struct sink *s, const char *bytes, size_t length)
{
    if (s->file != NULL) {
        put_bytes(s->file, bytes, length);
    } else if (s->total < s->room) {
        size_t left = s->room - s->total;

        memcpy(s->memory + s->total, bytes, length < left ? length : left);
    }
    s->total += length;
}

static void repeat(struct sink *s, char byte, int count)
{
    for (; count > 0; count--) {
        emit(s, &byte, 1);
    }
}

struct directive {
    bool left, zeros;
    int width, precision; /* precision -1: none */
};

/* A sign or nothing, then `length` bytes, padded to the width. */
static void emit_padded(struct sink *s, const struct directive *d, bool negative, const char *bytes, size_t length)
{
    int padding = d->width - (int)length - negative;

    if (!d->left && !d->zeros) {
        repeat(s, ' ', padding);
    }
    emit(s, "-", negative);
    if (d->zeros && !d->left) {
        repeat(s, '0', padding);
    }
    emit(s, bytes, length);
    if (d->left) {
        repeat(s, ' ', padding);
    }
}

static void emit_integer(struct sink *s, const struct directive *d, bool negative, uint64_t value,
                         unsigned base, bool capitals)
{
    const char *digits = capitals ? "0123456789ABCDEF" : "0123456789abcdef";
    char text[24];
    size_t at = sizeof text;

    do {
        text[--at] = digits[value % base];
        value /= base;
    } while (value != 0);
    emit_padded(s, d, negative, text + at, sizeof text - at);
}

/* Longest: the 309 digits before the point, or 9 zeros and those of a fraction. */
#define MAX_PRECISION 64
#define MAX_FLOAT_BYTES (309 + 2 + MAX_PRECISION)

static char digit_at(const struct decimal *d, int index)
{
    return index >= 0 && index < d->count ? d->digits[index] : '0';
}

/* `places` digits behind the point, `whole` before it; the first is digit `from`. */
static size_t lay_out(const struct decimal *d, int from, int whole, int places, char *text)
{
    size_t length = 0;

    for (int i = 0; i < whole + places; i++) {
        if (i == whole) {
            text[length++] = '.';
        }
        text[length++] = digit_at(d, from + i);
    }
    return length;
}

static void emit_double(struct sink *s, struct directive *d, double value, bool general)
{
    struct decimal decimal;
    char text[MAX_FLOAT_BYTES + 8];
    int precision = d->precision < 0 ? 6 : d->precision > MAX_PRECISION ? MAX_PRECISION : d->precision;
    bool scientific = false;
    int whole, exponent = 0;
    size_t length;
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    if ((bits >> 52 & 0x7FF) == 0x7FF) {
        d->zeros = false;
        emit_padded(s, d, bits >> 63 != 0, bits << 12 != 0 ? "nan" : "inf", 3);
        return;
    }
    expand(&decimal, bits);
    if (general) {
        precision += precision == 0;
        round_to(&decimal, precision);
        while (decimal.count > 0 && decimal.digits[decimal.count - 1] == '0') {
            decimal.count--;
        }
        exponent = decimal.count > 0 ? decimal.point - 1 : 0;
        scientific = exponent < -4 || exponent >= precision;
        precision = decimal.count - (scientific ? 1 : decimal.point);
        precision = precision > 0 && decimal.count > 0 ? precision : 0;
    } else {
        round_to(&decimal, decimal.point + precision);
    }
    if (decimal.count == 0) {
        decimal.point = 0;
    }
    whole = scientific || decimal.point < 1 ? 1 : decimal.point;
    length = lay_out(&decimal, scientific ? 0 : decimal.point - whole, whole, precision, text);
    if (scientific) {
        int magnitude = exponent < 0 ? -exponent : exponent;

        text[length++] = 'e';
        text[length++] = exponent < 0 ? '-' : '+';
        if (magnitude >= 100) {
            text[length++] = (char)('0' + magnitude / 100);
        }
        text[length++] = (char)('0' + magnitude / 10 % 10);
        text[length++] = (char)('0' + magnitude % 10);
    }
    emit_padded(s, d, bits >> 63 != 0, text, length);
}

/* A number of digits in the format, or '*': an int among the arguments. */
static int take_number(const char **format, va_list *arguments)
{
    int number = 0;

    if (**format == '*') {
        ++*format;
        return va_arg(*arguments, int);
    }
    while (**format >= '0' && **format <= '9') {
        number = number * 10 + *(*format)++ - '0';
    }
    return number;
}

static const char *take_directive(struct directive *d, const char *format, va_list *arguments)
{
    *d = (struct directive){ .precision = -1 };
    for (; *format == '-' || *format == '0'; format++) {
        *(*format == '-' ? &d->left : &d->zeros) = true;
    }
    d->width = take_number(&format, arguments);
    if (d->width < 0) {
        d->left = true;
        d->width = -d->width;
    }
    if (*format == '.') {
        format++;
        d->precision = take_number(&format, arguments);
    }
    return format;
}

static void emit_string(struct sink *s, struct directive *d, const char *text)
{
    size_t length = d->precision >= 0 ? strnlen(text, (size_t)d->precision) : strlen(text);

    d->zeros = false;
    emit_padded(s, d, false, text, length);
}

static void emit_all(struct sink *s, const char *format, va_list *arguments)
{
    for (;;) {
        const char *from = format;
        struct directive d;
        uint64_t value;
        size_t bytes = 0; /* more than 4: an argument of 64 bits */
        bool negative = false;
        char c;

        while (*format != '\0' && *format != '%') {
            format++;
        }
        emit(s, from, (size_t)(format - from));
        if (*format == '\0') {
            return;
        }
        format = take_directive(&d, format + 1, arguments);
        for (; *format == 'l' || *format == 'z' || *format == 'h'; format++) {
            bytes += *format == 'l' ? sizeof(long) : *format == 'z' ? sizeof(size_t) : 0;
        }
        switch (*format++) {
        case 'd':
        case 'i': {
            int64_t number = bytes > 4 ? va_arg(*arguments, int64_t) : va_arg(*arguments, int);

            negative = number < 0;
            value = negative ? 0 - (uint64_t)number : (uint64_t)number;
            emit_integer(s, &d, negative, value, 10, false);
            break;
        }
        case 'p':
            emit(s, "0x", 2);
            emit_integer(s, &d, false, (uintptr_t)va_arg(*arguments, void *), 16, false);
            break;
        case 'u':
        case 'x':
        case 'X':
        case 'o':
            value = bytes > 4 ? va_arg(*arguments, uint64_t) : va_arg(*arguments, unsigned);
            c = format[-1];
            emit_integer(s, &d, false, value, c == 'u' ? 10 : c == 'o' ? 8 : 16, c == 'X');
            break;
        case 'f':
        case 'g':
            emit_double(s, &d, va_arg(*arguments, double), format[-1] == 'g');
            break;
        case 'c':
            c = (char)va_arg(*arguments, int);
            emit_padded(s, &d, false, &c, 1);
            break;
        case 's':
            emit_string(s, &d, va_arg(*arguments, const char *));
            break;
        case '\0':
            return;
        default:
            emit(s, &format[-1], 1);
        }
    }
}

int vsnprintf(char *restrict memory, size_t size, const char *restrict format, va_list arguments)
{
    struct sink s = { .memory = memory, .room = size > 0 ? size - 1 : 0 };
    va_list copy;

    va_copy(copy, arguments);
    emit_all(&s, format, &copy);
    va_end(copy);
    if (size > 0) {
        memory[s.total < s.room ? s.total : s.room] = '\0';
    }
    return (int)s.total;
}

int vfprintf(FILE *restrict stream, const char *restrict format, va_list arguments)
{
    struct sink s = { .file = inside(stream) };
    va_list copy;

    va_copy(copy, arguments);
    emit_all(&s, format, &copy);
    va_end(copy);
    return settle(s.file) == 0 ? (int)s.total : -1;
}

int snprintf(char *restrict memory, size_t size, const char *restrict format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(memory, size, format, arguments);
    va_end(arguments);
    return length;
}

int fprintf(FILE *restrict stream, const char *restrict format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vfprintf(stream, format, arguments);
    va_end(arguments);
    return length;
}

int printf(const char *restrict format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vfprintf(stdout, format, arguments);
    va_end(arguments);
    return length;
}
