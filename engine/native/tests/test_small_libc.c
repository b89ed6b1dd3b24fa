/* SPDX-License-Identifier: MIT */
/* tools/small_stdio.c and small_libc.c beside the libc of this build: the same text, digit for digit,
 * and the same answers. Here their functions are named small_*; tests/unit/test_small_libc.py loads
 * this file as a shared library too and compares every format of the sources. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"


/* What a test needs of libc while the names below mean ours. */
static int libc_text(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(text, size, format, arguments);
    va_end(arguments);
    return length;
}

static const char *libc_strchr(const char *text, int c)
{
    return strchr(text, c);
}

static const char *libc_strrchr(const char *text, int c)
{
    return strrchr(text, c);
}

static int libc_strncmp(const char *a, const char *b, size_t length)
{
    return strncmp(a, b, length);
}

static size_t libc_span(const char *text, const char *set, bool wanted)
{
    return wanted ? strspn(text, set) : strcspn(text, set);
}

static const void *libc_memmem(const void *bytes, size_t size, const void *wanted, size_t length)
{
    return memmem(bytes, size, wanted, length);
}

static const char *libc_getenv(const char *name)
{
    return getenv(name);
}

static long libc_sysconf(int name)
{
    return sysconf(name);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#undef stdout
#undef stderr
#undef putc
#undef putchar
#undef strchr
#undef strrchr
#undef strcmp
#undef strncmp
#undef strspn
#undef strcspn
#undef strstr
#define stdout small_stdout
#define stderr small_stderr
#define fwrite small_fwrite
#define fputs small_fputs
#define fputc small_fputc
#define putc small_putc
#define putchar small_putchar
#define puts small_puts
#define fflush small_fflush
#define ferror small_ferror
#define fdopen small_fdopen
#define fopen small_fopen
#define fclose small_fclose
#define fgets small_fgets
#undef vsnprintf /* FORTIFY of clang makes macros of these */
#undef vfprintf
#undef snprintf
#undef fprintf
#undef printf
#define vsnprintf small_vsnprintf
#define vfprintf small_vfprintf
#define snprintf small_snprintf
#define fprintf small_fprintf
#define printf small_printf
#define strchr small_strchr
#define strrchr small_strrchr
#define strcmp small_strcmp
#define strncmp small_strncmp
#define strspn small_strspn
#define strcspn small_strcspn
#define memmem small_memmem
#define strstr small_strstr
#define getenv small_getenv
#define sysconf small_sysconf
#define setrlimit small_setrlimit
#define malloc small_malloc
#define free small_free
#define calloc small_calloc
#define realloc small_realloc
#define aligned_alloc small_aligned_alloc
#define posix_memalign small_posix_memalign
#include "../tools/small_libc.c"
#include "../tools/small_stdio.c"
#undef printf

static int numbers = 20000; /* random ones of a test; the first argument gives another count */
static uint64_t state = 88172645463325252u;

/* xorshift */
static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* The same arguments through both; a difference is shown once in a while, not a million times. */
#define COMPARE(format, ...)                                                                       \
    do {                                                                                           \
        char ours[1500], theirs[1500];                                                             \
        int length = libc_text(theirs, sizeof theirs, format, __VA_ARGS__);                        \
        bool same = small_snprintf(ours, sizeof ours, format, __VA_ARGS__) == length &&            \
                    memcmp(ours, theirs, (size_t)length + 1) == 0;                                 \
        if (!same && check_failures < 20)                                                          \
            (void)small_printf("'%s' gives '%s', must be '%s'\n", format, ours, theirs);           \
        check_failures += !same;                                                                   \
    } while (0)

static double from_bits(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static void compare_double(double value)
{
    int precision = (int)(draw() % 20);

    COMPARE("%f", value);
    COMPARE("%.0f", value);
    COMPARE("%.1f", value);
    COMPARE("%.3f", value);
    COMPARE("%g", value);
    COMPARE("%.*g", precision, value);
    COMPARE("%-12.2f|%12g|%012.2f|%012g", value, value, value, value);
}

static void test_doubles_of_any_bits_have_the_digits_of_libc(void)
{
    for (int i = 0; i < numbers; i++) {
        uint64_t bits = draw();

        compare_double(from_bits(bits));
        if (i % 16 == 0) {
            compare_double(from_bits(bits & 0x800FFFFFFFFFFFFFu)); /* subnormal */
            compare_double(from_bits(bits | 0x7FE0000000000000u)); /* huge, infinite or no number */
        }
    }
}

static void test_doubles_that_people_print_have_the_digits_of_libc(void)
{
    static const double scales[] = { 1, 1e-3, 1e-6, 1.0 / 1024, 1.0 / 3, 1e6, 0.5, 0.25, 0.125, 0.0625 };

    for (int i = 0; i < numbers; i++) {
        double value = (double)(int64_t)(draw() % 2000001 - 1000000) * scales[draw() % 10];

        compare_double(value); /* ties between two decimals are among them */
        COMPARE("%.*f", i % 12, value);
    }
    for (int i = -330; i <= 310; i++) {
        double value = 1;

        for (int k = 0; k < (i < 0 ? -i : i); k++) {
            value = i < 0 ? value / 10 : value * 10;
        }
        compare_double(value);
        compare_double(-value);
        compare_double(value - value / 1e7);
        compare_double(value * 9.9999949999);
        COMPARE("%.64f", value);
    }
    compare_double(0.0);
    compare_double(-0.0);
    compare_double(0.5);
    compare_double(1.5);
    compare_double(2.5);
    compare_double(9.5);
    compare_double(99.5);
    compare_double(999999.5);
    compare_double(0.00001);
    compare_double(0.0000999999500001);
}

static void test_whole_numbers_are_those_of_libc(void)
{
    for (int i = 0; i < numbers / 10; i++) {
        uint64_t bits = draw() >> draw() % 64;
        int width = i % 40 - 20;

        COMPARE("%d %i %u %x %X %o", (int)bits, (int)bits, (unsigned)bits, (unsigned)bits, (unsigned)bits,
                (unsigned)bits);
        COMPARE("%ld %lu %lx", (long)bits, (unsigned long)bits, (unsigned long)bits);
        COMPARE("%lld %llu %llx %llX", (long long)bits, (unsigned long long)bits, (unsigned long long)bits,
                (unsigned long long)bits);
        COMPARE("%zu %hu %hhu", (size_t)bits, (unsigned short)bits, (unsigned char)bits);
        COMPARE("%08x|%-8d|%5d|%020lld|%*d", (unsigned)bits, (int)bits, (int)bits, (long long)bits,
                width, (int)bits);
    }
    COMPARE("%lld %d", (long long)INT64_MIN, INT32_MIN);
    COMPARE("%p", (void *)&state);
}

static void test_texts_are_cut_and_padded_as_libc_does(void)
{
    const char *text = "humming-bird";

    for (int width = -20; width <= 20; width++) {
        for (int precision = -1; precision <= 20; precision++) {
            COMPARE("[%*.*s]", width, precision, text);
        }
        COMPARE("[%*c]%%", width, 'x');
    }
    COMPARE("%.4s|%-30s|%s", text, text, "");
    COMPARE("%s", "100 %d"); /* what is printed is no format */
    for (size_t size = 0; size < 20; size++) {
        char ours[24], theirs[24];

        memset(ours, '#', sizeof ours);
        memset(theirs, '#', sizeof theirs);
        CHECK_EQUAL(small_snprintf(ours, size, "%s %u", text, 7u), libc_text(theirs, size, "%s %u", text, 7u));
        CHECK(memcmp(ours, theirs, sizeof ours) == 0);
    }
    CHECK_EQUAL(small_snprintf(NULL, 0, "%s", text), 12);
}

/* ---- files ------------------------------------------------------------------------------- */

static size_t read_file(const char *path, char *bytes, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t part = 1;
    size_t length = 0;

    while (CHECK(fd >= 0) && part > 0) {
        part = read(fd, bytes + length, room - length);
        length += part > 0 ? (size_t)part : 0;
    }
    (void)close(fd);
    return length;
}

static void test_what_is_written_is_read_back_line_by_line(void)
{
    char path[] = "/tmp/small-stdio-XXXXXX", line[700], long_line[640];
    static char bytes[8192], wanted[8192];
    size_t length = 0;
    int fd = mkstemp(path);
    FILE *f = small_fdopen(fd, "w");

    memset(long_line, 'y', sizeof long_line - 1);
    long_line[sizeof long_line - 1] = '\0';
    for (int i = 0; i < 10; i++) {
        CHECK_EQUAL(small_fprintf(f, "%d %s\n", i, long_line), 642);
        length += (size_t)libc_text(wanted + length, sizeof wanted - length, "%d %s\n", i, long_line);
    }
    CHECK_EQUAL(small_fwrite("ab\0c", 1, 4, f), 4);
    CHECK(small_fputs("de", f) >= 0);
    CHECK_EQUAL(small_fputc('\n', f), '\n');
    CHECK_EQUAL(small_putc(0xFF, f), 0xFF);
    CHECK_EQUAL(small_fclose(f), 0);
    memcpy(wanted + length, "ab\0cde\n\xFF", 8);
    length += 8;
    CHECK_EQUAL(read_file(path, bytes, sizeof bytes), length);
    CHECK(memcmp(bytes, wanted, length) == 0);

    f = small_fopen(path, "re");
    for (int i = 0; i < 10; i++) {
        CHECK(small_fgets(line, sizeof line, f) == line);
        CHECK_EQUAL(strlen(line), 642);
        CHECK_EQUAL(line[0], '0' + i);
    }
    CHECK(small_fgets(line, 3, f) == line);
    CHECK_EQUAL(strlen(line), 2);
    CHECK(small_fgets(line, sizeof line, f) == line);
    CHECK_EQUAL(line[1], 'c');
    CHECK(small_fgets(line, sizeof line, f) == line);
    CHECK_EQUAL((unsigned char)line[0], 0xFF);
    CHECK(small_fgets(line, sizeof line, f) == NULL);
    CHECK_EQUAL(small_ferror(f), 0);
    CHECK_EQUAL(small_fclose(f), 0);
    CHECK_EQUAL(unlink(path), 0);
    CHECK(small_fopen(path, "r") == NULL);
    CHECK_EQUAL(errno, ENOENT);
}

static void test_what_a_full_device_does_not_take_is_an_error(void)
{
    FILE *f = small_fopen("/dev/full", "w");

    CHECK(f != NULL);
    CHECK_EQUAL(small_fprintf(f, "text"), 4);
    CHECK_EQUAL(small_ferror(f), 0);
    CHECK_EQUAL(small_fflush(f), EOF);
    CHECK_EQUAL(errno, ENOSPC);
    CHECK(small_ferror(f) != 0);
    CHECK_EQUAL(small_fclose(f), EOF);
}

static void test_errors_leave_with_their_call_and_the_rest_when_asked(void)
{
    char path[] = "/tmp/small-stdio-XXXXXX", bytes[64];
    int fd = mkstemp(path), kept_output = dup(STDOUT_FILENO), kept_errors = dup(STDERR_FILENO);

    (void)fflush(NULL);
    (void)dup2(fd, STDOUT_FILENO);
    (void)dup2(fd, STDERR_FILENO);
    (void)small_printf("out %d\n", 1);
    (void)small_fprintf(small_stderr, "error\n");
    (void)small_puts("put");
    (void)small_putchar('c');
    (void)small_fflush(small_stdout);
    (void)dup2(kept_output, STDOUT_FILENO);
    (void)dup2(kept_errors, STDERR_FILENO);
    (void)close(kept_output);
    (void)close(kept_errors);
    CHECK_EQUAL(read_file(path, bytes, sizeof bytes), 17);
    CHECK(memcmp(bytes, "error\nout 1\nput\nc", 17) == 0);
    (void)close(fd);
    (void)unlink(path);
}

/* ---- small_libc.c ------------------------------------------------------------------------ */

static void test_searches_find_what_those_of_libc_find(void)
{
    for (int i = 0; i < numbers / 10; i++) {
        char text[12], wanted[4], set[4];
        size_t length = (size_t)(draw() % sizeof text), part = (size_t)(draw() % sizeof wanted);

        for (size_t k = 0; k < sizeof text; k++) {
            text[k] = (char)("abc\xE9"[draw() % 4]);
        }
        for (size_t k = 0; k < sizeof wanted; k++) {
            wanted[k] = (char)("abc\xE9"[draw() % 4]);
            set[k] = (char)("abc\xE9"[draw() % 4]);
        }
        text[length] = wanted[part] = set[draw() % 4] = '\0';
        set[3] = '\0';
        CHECK(small_strchr(text, *wanted) == libc_strchr(text, *wanted));
        CHECK(small_strrchr(text, *wanted) == libc_strrchr(text, *wanted));
        CHECK_EQUAL(small_strspn(text, set), libc_span(text, set, true));
        CHECK_EQUAL(small_strcspn(text, set), libc_span(text, set, false));
        CHECK(small_memmem(text, length, wanted, part) == libc_memmem(text, length, wanted, part));
        CHECK(small_strstr(text, wanted) == libc_memmem(text, length, wanted, part));
        for (size_t n = 0; n < 5; n++) {
            int ours = small_strncmp(text, wanted, n), theirs = libc_strncmp(text, wanted, n);

            CHECK_EQUAL((ours > 0) - (ours < 0), (theirs > 0) - (theirs < 0));
        }
        CHECK_EQUAL(small_strcmp(text, wanted) == 0, libc_strncmp(text, wanted, 4) == 0);
    }
}

static void test_environment_and_system_answer_as_libc_does(void)
{
    (void)setenv("SMALL_TEST", "value", 1);
    (void)setenv("SMALL_TEST_LONGER", "", 1);
    CHECK(small_getenv("SMALL_TEST") == libc_getenv("SMALL_TEST"));
    CHECK(small_getenv("SMALL_TEST_LONGER") == libc_getenv("SMALL_TEST_LONGER"));
    CHECK(small_getenv("SMALL_TES") == NULL);
    CHECK_EQUAL(small_sysconf(_SC_PAGESIZE), libc_sysconf(_SC_PAGESIZE));
    CHECK(small_sysconf(_SC_NPROCESSORS_ONLN) > 0);
    CHECK_EQUAL(small_sysconf(_SC_ARG_MAX), -1);
    CHECK_EQUAL(errno, EINVAL);
}

static void test_a_limit_that_is_set_holds(void)
{
    struct rlimit wanted, found;

    CHECK_EQUAL(getrlimit(RLIMIT_CORE, &wanted), 0);
    wanted.rlim_cur = wanted.rlim_max > 4096 ? 4096 : 0;
    CHECK_EQUAL(small_setrlimit(RLIMIT_CORE, &wanted), 0);
    CHECK_EQUAL(getrlimit(RLIMIT_CORE, &found), 0);
    CHECK_EQUAL(found.rlim_cur, wanted.rlim_cur);
    CHECK_EQUAL(found.rlim_max, wanted.rlim_max);
}

static void test_memory_is_aligned_zeroed_and_kept_when_moved(void)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 4095, 4096, 4097, 1 << 20 };
    void *memory = NULL;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *bytes = small_calloc(1, sizes[i]);

        CHECK(bytes != NULL && (uintptr_t)bytes % 64 == 0);
        for (size_t k = 0; k < sizes[i]; k++) {
            check_failures += bytes[k] != 0;
            bytes[k] = (unsigned char)k;
        }
        bytes = small_realloc(bytes, 2 * sizes[i] + 1);
        for (size_t k = 0; k < sizes[i]; k++) {
            check_failures += bytes[k] != (unsigned char)k;
        }
        bytes[2 * sizes[i]] = 1;
        small_free(bytes);
        for (size_t align = 64; align <= 2u << 20; align *= 2) {
            CHECK_EQUAL(small_posix_memalign(&memory, align, sizes[i]), 0);
            CHECK_EQUAL((uintptr_t)memory % align, 0);
            memset(memory, 1, sizes[i]);
            small_free(memory);
        }
    }
    memory = small_aligned_alloc(4096, 4096);
    CHECK(memory != NULL && (uintptr_t)memory % 4096 == 0);
    small_free(memory);
    small_free(NULL);
    errno = 0;
    CHECK(small_malloc(SIZE_MAX) == NULL && small_malloc(SIZE_MAX - 100) == NULL);
    CHECK(small_calloc(SIZE_MAX / 2, 4) == NULL && small_calloc(1, PTRDIFF_MAX) == NULL);
    CHECK_EQUAL(errno, ENOMEM);
}

int main(int argc, char **argv)
{
    numbers = argc > 1 ? atoi(argv[1]) : numbers;
    RUN(test_doubles_of_any_bits_have_the_digits_of_libc);
    RUN(test_doubles_that_people_print_have_the_digits_of_libc);
    RUN(test_whole_numbers_are_those_of_libc);
    RUN(test_texts_are_cut_and_padded_as_libc_does);
    RUN(test_what_is_written_is_read_back_line_by_line);
    RUN(test_what_a_full_device_does_not_take_is_an_error);
    RUN(test_errors_leave_with_their_call_and_the_rest_when_asked);
    RUN(test_searches_find_what_those_of_libc_find);
    RUN(test_environment_and_system_answer_as_libc_does);
    RUN(test_a_limit_that_is_set_holds);
    RUN(test_memory_is_aligned_zeroed_and_kept_when_moved);
    return RESULT();
}
