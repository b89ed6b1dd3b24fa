/* SPDX-License-Identifier: MIT */
/* The measuring rounds that bench and test share. */
#ifndef CTL_BENCH_H
#define CTL_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "model.h"

struct ctl_bench_values {
    uint32_t prompt_tokens, tokens, rounds, warm_tokens;
    uint32_t feed; /* enum ctl_feed */
    bool control, bandwidth, json;
};

enum ctl_feed { CTL_FEED_RANDOM, CTL_FEED_GREEDY };

#define CTL_BENCH_PROMPT "16"
#define CTL_BENCH_TOKENS "100"
#define CTL_BENCH_ROUNDS "5"

/* Opens the model, measures, prints; 0, or the exit code after printing why. */
int ctl_bench(const char *command, const char *path, struct ctl_model_values *model,
              const struct ctl_bench_values *values);

#endif
