/* SPDX-License-Identifier: MIT */
/* The smallest program: one call, timed.  gcc test_inference.c -L. -lcolibri -o test && ./test MODEL.colibri */
#include "colibri.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "model.colibri";
    int32_t input_ids[] = {1, 2, 3, 4};
    struct timespec begin, end;

    colibri_ctx_t *ctx = colibri_init(path, 0);
    if (ctx == NULL) {
        fprintf(stderr, "%s\n", colibri_last_error()->message);
        return 1;
    }
    int32_t *output_logits = malloc(colibri_vocabulary(ctx) * sizeof *output_logits);
    if (output_logits == NULL)
        return 1;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    int status = colibri_run_inference(ctx, input_ids, output_logits, sizeof input_ids / sizeof *input_ids);
    clock_gettime(CLOCK_MONOTONIC, &end);

    printf("status %d, logit of id 0: %.4f, %.3f ms\n", status, output_logits[0] / 65536.0,
           (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6);
    free(output_logits);
    colibri_free(ctx);
    return status != 0;
}
