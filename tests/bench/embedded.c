/* SPDX-License-Identifier: MIT */
/*
 * A program with its model inside: no file but itself, no shared library (make embedded-demo).
 *
 *     embedded [TOKENS]      the ids and the text that follow PROMPT, greedily
 *
 * The library opens files, so the bytes go into one that lives in memory; sealed, nothing can change
 * or shorten it, and it is verified and mapped like any other. MODEL is the path of the model, a
 * string, when this is compiled.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "colibri.h"

#define PROMPT "the cat sat on 1200 hats, and that"
#define PROMPT_TOKENS 64
#define MOST_TOKENS 128
#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

__asm__(".section .rodata\n"
        ".balign 64\n"
        ".global embedded_model\n"
        "embedded_model: .incbin \"" MODEL "\"\n"
        ".global embedded_model_end\n"
        "embedded_model_end:\n"
        ".byte 0\n"
        ".text\n");
extern const unsigned char embedded_model[], embedded_model_end[];

static int fail(const char *what)
{
    fprintf(stderr, "embedded: %s\n", what);
    return 1;
}

/* A path under which the model can be opened, or NULL. */
static const char *model_path(void)
{
    static char path[32];
    const unsigned char *at = embedded_model;
    int fd = memfd_create("model", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return NULL;
    while (at < embedded_model_end) {
        ssize_t n = write(fd, at, (size_t)(embedded_model_end - at));

        if (n <= 0)
            return NULL;
        at += n;
    }
    if (fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        return NULL;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

static int generate(colibri_model *model, colibri_session *session, unsigned tokens, colibri_error *error)
{
    int32_t prompt[PROMPT_TOKENS], ids[MOST_TOKENS];
    size_t count = PROMPT_TOKENS, length;
    int code = colibri_tokenize(model, PROMPT, sizeof PROMPT - 1, COLIBRI_TEXT_PLAIN, prompt, &count, error);

    if (code == 0)
        code = colibri_session_append(session, prompt, count, error);
    for (unsigned i = 0; i < tokens && code == 0; i++) {
        code = colibri_session_sample(session, &ids[i], error);
        if (code == 0)
            code = colibri_session_append(session, &ids[i], 1, error);
    }
    if (code != 0)
        return code;
    for (unsigned i = 0; i < tokens; i++)
        printf("%d%c", (int)ids[i], i + 1 < tokens ? ',' : '\n');
    printf("%s", PROMPT);
    for (unsigned i = 0; i < tokens; i++) {
        const char *bytes = colibri_token_bytes(model, ids[i], &length);

        if (bytes != NULL)
            printf("%.*s", (int)length, bytes);
    }
    printf("\n");
    return 0;
}

int main(int argc, char **argv)
{
    unsigned tokens = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 32;
    colibri_model_options options;
    colibri_session *session = NULL;
    colibri_model *model = NULL;
    colibri_error error = {0};
    const char *path;
    int code;

    if (tokens < 1 || tokens > MOST_TOKENS)
        return fail("TOKENS must be 1 to 128");
    path = model_path();
    if (path == NULL)
        return fail("cannot make a file in memory: the kernel must have memfd_create (Linux 3.17)");
    colibri_model_options_default(&options);
    options.verify = COLIBRI_VERIFY_OPEN;
    code = colibri_model_open(path, &options, &model, &error);
    if (code == 0)
        code = colibri_session_create(model, &session, &error);
    if (code == 0)
        code = generate(model, session, tokens, &error);
    colibri_session_free(session);
    colibri_model_close(model);
    return code == 0 ? 0 : fail(error.message);
}
