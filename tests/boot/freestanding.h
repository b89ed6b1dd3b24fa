/* SPDX-License-Identifier: MIT */
/* What programs for the AArch64 guest have in place of a C library. */
#ifndef BOOT_FREESTANDING_H
#define BOOT_FREESTANDING_H

/* A system call: its result, or -errno. */
static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory", "cc");
    return x0;
}

/* Where the program begins. function: takes the address of argc, behind which the argument pointers lie. */
#define START(function)            \
    __asm__(".globl _start\n"      \
            "_start:\n"            \
            "    mov x29, #0\n"    \
            "    mov x0, sp\n"     \
            "    bl " #function "\n")

static inline unsigned long length(const char *text)
{
    unsigned long count = 0;

    while (text[count] != '\0') {
        count++;
    }
    return count;
}

static inline int equal(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/* The number at the begin of a text, which is moved behind it. */
static inline unsigned long take_number(const char **text)
{
    unsigned long value = 0;

    for (; **text >= '0' && **text <= '9'; ++*text) {
        value = value * 10 + (unsigned long)(**text - '0');
    }
    return value;
}

static inline void print(const char *text)
{
    (void)call(64 /* write */, 1, (long)text, (long)length(text), 0, 0, 0);
}

static inline void print_number(unsigned long value)
{
    char digits[24];
    unsigned at = sizeof digits;

    digits[--at] = '\0';
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    print(&digits[at]);
}

#endif
