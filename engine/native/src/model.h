/* SPDX-License-Identifier: MIT */
/* An open model: what the files of the forward pass share. Everything lives in the arena. */
#ifndef CB_MODEL_H
#define CB_MODEL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "calibration.h"
#include "colibri.h"
#include "directory.h"
#include "format.h"
#include "kernels.h"
#include "plan.h"
#include "platform.h"
#include "records.h"
#include "residency.h"
#include "sampler.h"
#include "signature.h"
#include "spec.h"
#include "threads.h"
#include "tokenizer.h"

/* A matrix in the mapped file: y = W x + b. data NULL: not there, or the template of an expert. */
struct cb_matrix {
    const uint8_t *data; /* panels */
    size_t offset;       /* of an expert template, in the expert's extent */
    uint32_t bias;       /* from data to b, in units of the tensors' alignment; 0: none */
    uint32_t rows, columns; /* b is f32 and padded as the rows are */
    uint32_t dtype;
};

/* Of the hidden vector. weight NULL: none; bias NULL: none. */
struct cb_norm {
    const float *weight, *bias;
    uint32_t kind;
    float eps;
};

/* gate (when gated), up, down, and what lies between them. */
struct cb_mlp {
    struct cb_matrix gate, up, down;
    uint32_t intermediate;
    uint32_t activation;
    uint32_t gated;
    float clamp, alpha;
};

enum cb_norm_place { CB_PRE_MIXER, CB_POST_MIXER, CB_PRE_FFN, CB_POST_FFN, CB_NORM_PLACES };

struct cb_layer {
    struct cb_layer_records r;
    struct cb_norm norms[CB_NORM_PLACES];
    /* Latent attention: q, k and v read what q_a and kv_a gave, behind these norms. A convolution reads
     * q and writes o. */
    struct cb_matrix q, k, v, o, q_a, kv_a;
    const float *q_norm, *k_norm;
    const float *sinks; /* [heads]; NULL: none */
    const float *conv_weight, *conv_bias; /* [taps][width padded], [width] */
    size_t k_offset, v_offset; /* in the KV cache of a session; of a convolution, in its states */
    struct cb_matrix router, shared_router;
    const float *selection_bias;
    struct cb_mlp mlp;         /* dense, or the template of expert 0 */
    struct cb_mlp shared;
    const uint8_t *experts;    /* extent of expert 0 in the mapped file; NULL: streamed */
    uint64_t expert_offset;    /* ... in the file */
    uint64_t expert_stride;    /* bytes from one expert's extent to the next */
    uint32_t trunk_extent;
    uint32_t expert_extent;    /* of expert 0 */
    uint32_t trunk_tensors[2]; /* first, count in the directory */
    uint32_t expert_tensors[2];
};
_Static_assert(sizeof(struct cb_layer) <= CB_PLAN_LAYER_BYTES, "the plan holds a layer descriptor");

/* Buffers of one forward pass, shared by all sessions; sizes in docs/format.md, 8. */
struct cb_scratch {
    float *x, *normed;   /* [B][H] */
    float *q, *kv, *o;   /* [B][Q], [B][K], [B][O] */
    float *cos, *sin;    /* [B][P] */
    struct cb_quantized input;  /* [B][D] */
    float *scores[CB_MAX_THREADS]; /* [T] each */
    float *router;       /* [B][up(X, 8)] */
    int32_t *ids;        /* [B][R] chosen experts */
    float *weights;      /* [B][R] */
    uint32_t *slots;     /* [B][R] slot of a choice, CB_NONE_INDEX: skipped */
    uint32_t *tokens;    /* [B * R] token of a slot */
    uint32_t *starts;    /* [X + 1] first slot of an expert */
    float *gate, *up;    /* [B * R][F] */
    struct cb_quantized inner;  /* [B * R][F] */
    float *outputs;      /* [B * R][H]; before that the grouped inputs */
    float *accumulator;  /* [B][H] */
};

struct colibri_ctx {
    colibri_model *model;
    colibri_session *session;
    uint32_t flags;
    colibri_ctx_t *next; /* list of open contexts */
};

struct colibri_session {
    colibri_model *model;
    uint8_t *kv;
    uint8_t *states, *kept;         /* of convolutions; as they were before the call */
    float *logits;                  /* [V] */
    struct cb_candidate *candidates; /* [V]; the head writes its logits here first */
    int32_t *routing;               /* [L][B * R] */
    int32_t *ids;                   /* [T] of the sequence */
    uint32_t position;
    uint32_t written;               /* positions whose rows of the cache may hold something */
    uint32_t batch;                 /* tokens of the last batch, for colibri_session_routing */
    uint64_t sampled;               /* tokens sampled since the start or a reset */
    colibri_sampler sampler;
    atomic_int cancel;
    int in_use;
    int has_logits;
};
_Static_assert(sizeof(struct colibri_session) <= CB_PLAN_SESSION_BYTES, "the plan holds a session");

struct colibri_model {
    atomic_flag busy;
    struct cb_mapping file;   /* from its beginning: all of it, or (stream) up to the experts */
    struct cb_mapping tail;   /* stream: what lies behind the experts */
    struct cb_arena arena;
    struct cb_container container;
    struct cb_signed signature;
    struct cb_block_model block;
    struct cb_rope_table rope[CB_MAX_ROPE_TABLES];
    uint32_t ropes;
    struct cb_directory directory;
    struct cb_shape shape;
    colibri_plan plan;
    uint32_t max_text_bytes;
    uint32_t has_tokenizer;
    struct cb_tokenizer tokenizer;
    struct cb_calibration calibration; /* layer_count 0: there is none */
    void *merge_scratch;
    const struct cb_kernels *kernels;
    struct cb_pool pool;
    uint8_t *layers;          /* [L], CB_PLAN_LAYER_BYTES plus guard apart */
    uint8_t *verified;        /* [extents] */
    uint32_t verified_count;
    uint64_t *counts;         /* [L][X] */
    uint8_t *sessions;        /* [S] */
    struct cb_scratch scratch;
    struct cb_residency residency;
    struct cb_matrix embedding, positions, head;
    struct cb_norm final_norm;
    uint32_t global_tensors;  /* tensors of the global trunk extent */
    uint64_t parameters;
    struct cb_lock_state lock;
    uint32_t lock_policy;     /* enum colibri_lock */
    uint32_t secure_mode;
    struct colibri_ctx compat;
};
_Static_assert(sizeof(struct colibri_model) <= CB_PLAN_MODEL_BYTES, "the plan holds a model");

static inline struct cb_layer *cb_model_layer(const colibri_model *m, uint32_t index)
{
    size_t apart = (size_t)CB_PLAN_LAYER_BYTES + CB_BUFFER_GUARD;

    return (struct cb_layer *)(void *)(m->layers + index * apart);
}

static inline colibri_session *cb_model_session(const colibri_model *m, uint32_t index)
{
    size_t apart = (size_t)CB_PLAN_SESSION_BYTES + CB_BUFFER_GUARD;

    return (colibri_session *)(void *)(m->sessions + index * apart);
}

static inline int cb_is_streamed(const colibri_model *m)
{
    return m->plan.residency == COLIBRI_RESIDENCY_STREAM;
}

/* Enter and leave a call; BUSY when another one is running. */
int cb_model_enter(colibri_model *m, const char *call, colibri_error *error);
void cb_model_leave(colibri_model *m);
/* debug_memory: INTERNAL when a call wrote behind a buffer. Before cb_model_leave. */
int cb_model_check_guards(colibri_model *m, colibri_error *error);
/* Lock arena and file as far as the system allows. */
void cb_model_lock(colibri_model *m);
/* Buffers of `tokens` rows of quantised activations. */
void cb_take_quantized(struct cb_arena *a, struct cb_quantized *q, uint64_t tokens, uint64_t columns);

/* Fill in defaults and check ranges (options.c). options may be NULL. */
int cb_options_resolve(colibri_model_options *out, const colibri_model_options *options,
                       colibri_error *error);
/* Point the layers at their tensors (bind.c). The directory has been checked. */
void cb_model_bind(colibri_model *m);
/* UNSUPPORTED, naming the kind, when this build cannot run the model (support.c). */
int cb_model_check_support(const colibri_model *m, colibri_error *error);

#endif
