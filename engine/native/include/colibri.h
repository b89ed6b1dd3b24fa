/* SPDX-License-Identifier: MIT */
/*
 * libcolibri: a Mixture-of-Experts inference runtime for small Linux boards.
 *
 * Two opaque nouns. A colibri_model holds the mapped weights, the memory plan, the arena and the
 * worker threads; a colibri_session holds one sequence: KV cache, position, sampler. The library
 * never prints, exits, forks, or changes signal handlers or locale; after colibri_session_create
 * it makes no heap call. Every function that can fail returns 0 or a negative code of
 * enum colibri_code and fills the caller's colibri_error (may be NULL) with a message that names
 * the thing, the value, the limit and the fix.
 *
 * One call per model at a time: a second concurrent call that computes, creates, samples or
 * tokenises returns COLIBRI_ERR_BUSY. Free, reset and the getters must not be called while another
 * call on the model runs; colibri_session_cancel may, by any thread or signal handler. Handles must
 * not be NULL unless it is said; the calls that fill a colibri_error check theirs.
 *
 * The mapped file must neither shrink nor be rewritten while a model is open: the kernel answers an
 * access beyond its end with SIGBUS, which the library does not catch (it is a guest), and weights
 * that were verified are not hashed again. Replace files by rename.
 */
#ifndef COLIBRI_H
#define COLIBRI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COLIBRI_ABI_VERSION 0

#if defined(__GNUC__)
#define COLIBRI_API __attribute__((visibility("default")))
#else
#define COLIBRI_API
#endif

/* begin generated: error codes */
/* from engine/spec/format.toml: pinned, never reused */
enum colibri_code {
    COLIBRI_OK = 0,
    COLIBRI_ERR_OPEN = -1, /* cannot open */
    COLIBRI_ERR_BAD_MAGIC = -2, /* not a .colibri file */
    COLIBRI_ERR_VERSION = -3, /* unsupported format version */
    COLIBRI_ERR_TRUNCATED = -4, /* file is shorter than it says */
    COLIBRI_ERR_EMPTY = -5, /* file is empty */
    COLIBRI_ERR_FEATURE = -6, /* invalid required feature */
    COLIBRI_ERR_HEADER = -7, /* malformed header */
    COLIBRI_ERR_SECTION = -8, /* malformed section table */
    COLIBRI_ERR_RECORD = -9, /* malformed record */
    COLIBRI_ERR_DIRECTORY = -10, /* malformed directory */
    COLIBRI_ERR_EXTENT = -11, /* malformed extent */
    COLIBRI_ERR_TENSOR = -12, /* malformed tensor entry */
    COLIBRI_ERR_ROOT_MISMATCH = -13, /* root hash mismatch */
    COLIBRI_ERR_CHUNK_MISMATCH = -14, /* chunk hash mismatch */
    COLIBRI_ERR_PADDING = -15, /* padding is not zero */
    COLIBRI_ERR_LIMIT = -16, /* limit exceeded */
    COLIBRI_ERR_UNSUPPORTED = -17, /* valid file, but this build cannot run it */
    COLIBRI_ERR_TOKENIZER = -18, /* malformed tokenizer */
    COLIBRI_ERR_SIGNATURE = -19, /* signature missing or wrong */
    COLIBRI_ERR_MISSING_TENSOR = -20, /* a tensor the records need is missing */
    COLIBRI_ERR_WEIGHTS = -21, /* non-finite scale or weight */
    COLIBRI_ERR_CALIBRATION = -22, /* malformed calibration profile */
    COLIBRI_ERR_SNAPSHOT = -23, /* malformed or damaged snapshot */
    COLIBRI_ERR_SNAPSHOT_OTHER = -24, /* snapshot of another model or KV type */
    COLIBRI_ERR_ARGUMENT = -40, /* invalid argument */
    COLIBRI_ERR_STRUCT_SIZE = -41, /* option struct of an unknown size */
    COLIBRI_ERR_TOKEN_RANGE = -42, /* token id out of range */
    COLIBRI_ERR_CONTEXT_FULL = -43, /* context is full */
    COLIBRI_ERR_PROMPT_LONG = -44, /* prompt is longer than the context */
    COLIBRI_ERR_TEXT_LONG = -45, /* text is longer than the limit */
    COLIBRI_ERR_NO_TOKENIZER = -46, /* the model has no tokenizer */
    COLIBRI_ERR_NO_CHAT = -47, /* the model has no chat form */
    COLIBRI_ERR_ISA = -48, /* instruction set not available */
    COLIBRI_ERR_BUDGET = -50, /* memory budget is below the model's floor */
    COLIBRI_ERR_MEMORY = -51, /* memory could not be had */
    COLIBRI_ERR_LOCK = -52, /* memory could not be locked */
    COLIBRI_ERR_THREAD = -53, /* thread could not be started */
    COLIBRI_ERR_IO = -54, /* read failed */
    COLIBRI_ERR_SANDBOX = -55, /* sandbox could not be entered */
    COLIBRI_ERR_NON_FINITE = -60, /* non-finite value during inference */
    COLIBRI_ERR_BUSY = -61, /* another call is running */
    COLIBRI_ERR_CANCELLED = -62, /* cancelled */
    COLIBRI_ERR_ABI = -63, /* library and header versions differ */
    COLIBRI_ERR_INTERNAL = -64, /* internal error */
    COLIBRI_ERR_ZERO_LOGITS = -65, /* output logits all zero */
};
/* end generated: error codes */

/* Caller-owned, always terminated. `offset` is a byte offset in the model file, or -1. */
typedef struct colibri_error {
    int32_t code;
    int32_t reserved;
    int64_t offset;
    char message[256];
} colibri_error;

/* ---- simple part ------------------------------------------------------------------------- */

typedef struct colibri_model colibri_model;
typedef struct colibri_session colibri_session;

/* Where the experts are. The rest of the model is mapped in every mode. */
enum colibri_residency {
    COLIBRI_RESIDENCY_AUTO = 0,    /* resident when the plan fits the budget, else stream */
    COLIBRI_RESIDENCY_RESIDENT = 1, /* the whole file mapped and locked */
    COLIBRI_RESIDENCY_STREAM = 2,  /* read from storage into slots of the arena as they are needed */
    COLIBRI_RESIDENCY_MAPPED = 3,  /* the whole file mapped, not locked: the kernel may drop pages */
    COLIBRI_RESIDENCY_MAPPED_GUARDED = 4 /* mapped; an expert that is not in use cannot be read */
};

/* Header, records and directory are verified at open in every mode. */
enum colibri_verify {
    COLIBRI_VERIFY_AUTO = 0,   /* always in stream, else first */
    COLIBRI_VERIFY_OPEN = 1,   /* every byte before colibri_model_open returns; else as always */
    COLIBRI_VERIFY_FIRST = 2,  /* an extent when it is first touched */
    COLIBRI_VERIFY_ALWAYS = 3  /* also an expert that comes from storage again; what is mapped and not locked is hashed once */
};

enum colibri_direct_io {
    COLIBRI_DIRECT_IO_AUTO = 0, /* O_DIRECT when the file system allows it; colibri_report says so */
    COLIBRI_DIRECT_IO_OFF = 1   /* through the page cache, which is told to forget what was read */
};

enum colibri_lock {
    COLIBRI_LOCK_TRY = 0,    /* lock memory; what could not be locked is reported in colibri_report */
    COLIBRI_LOCK_REQUIRE = 1, /* refuse with COLIBRI_ERR_LOCK when it cannot be locked */
    COLIBRI_LOCK_OFF = 2
};

enum colibri_kv { COLIBRI_KV_F16 = 0, COLIBRI_KV_F32 = 1 };

typedef struct colibri_model_options {
    uint32_t struct_size;
    uint32_t threads;         /* 1..64; 0 = number of CPUs this process may use (mask, quota of its
                                 control groups), at most 4 */
    uint32_t context_tokens;  /* 0 = the model's own, at most 2048; KV cache is sized by it */
    uint32_t batch_tokens;    /* tokens per prompt batch, 1..512; 0 = 32 */
    uint32_t max_sessions;    /* 1..64; 0 = 1 */
    uint32_t kv;              /* enum colibri_kv */
    uint32_t verify;          /* enum colibri_verify */
    uint32_t lock;            /* enum colibri_lock */
    uint64_t budget_bytes;    /* COLIBRI_ERR_BUDGET when the plan exceeds it; 0 = no limit, and where
                                 the library chooses, what the memory cgroup or the system leaves */
    uint32_t max_text_bytes;  /* longest text one colibri_tokenize call takes; 0 = 65536 */
    uint32_t residency;       /* enum colibri_residency */
    uint32_t expert_slots;    /* experts in memory in stream mode; 0 = as many as the budget holds */
    uint32_t io_threads;      /* threads that read experts in stream mode, 1..16; 0 = 4 */
    uint32_t prefetch_depth;  /* experts of the next layer read ahead, at most 32; 0 = none */
    uint32_t direct_io;       /* enum colibri_direct_io */
    const char *isa;          /* NULL = best available; "ref", "neon", ... ; missing = error */
    const uint8_t *public_key; /* ed25519, [32], read during the call: a model that this key did not
                                 sign, or nobody, is refused; NULL = the key of the build, if any */
    uint32_t require_signature; /* 1: refuse a model without a signature of the trusted key */
    uint32_t stall_ms;        /* stream: COLIBRI_ERR_IO when storage does not answer for so long, at most
                                 3,600,000; 0 = 30,000 */
    uint32_t debug_memory;    /* 1: guards between all buffers, checked after every call; memory that
                                 holds nothing is poisoned. COLIBRI_ERR_INTERNAL names what was overrun.
                                 Takes some memory that the plan does not count */
    uint32_t secure_mode;     /* 1: what a sequence left in memory (KV cache, activations, logits, ids, the
                                 tokenizer's scratch) is zeroed by free, reset and close, and the arena is
                                 not part of core dumps */
} colibri_model_options;

COLIBRI_API void colibri_model_options_default(colibri_model_options *options);

/* Open, verify, plan, map and lock a model; start its threads. options may be NULL. */
COLIBRI_API int colibri_model_open(const char *path, const colibri_model_options *options,
                                   colibri_model **model, colibri_error *error);
/* Sessions of the model must have been freed. NULL is allowed. */
COLIBRI_API void colibri_model_close(colibri_model *model);

/*
 * Binds the calling thread, and the threads that it makes from now on (those of a model that it opens), to
 * the CPUs of its mask whose cpu_capacity in sysfs is at least 3/4 of the largest. Nothing else binds a
 * thread. The default of options.threads follows. Before colibri_sandbox_enter's STEADY. Errors: THREAD,
 * and nothing has changed: a capacity is not known, or there are fewer such CPUs than `threads` (0: any).
 */
COLIBRI_API int colibri_bind_big_cores(uint32_t threads, colibri_error *error);

COLIBRI_API int colibri_session_create(colibri_model *model, colibri_session **session,
                                       colibri_error *error);
COLIBRI_API void colibri_session_free(colibri_session *session);
/* Forget the sequence (position 0); buffers stay. */
COLIBRI_API void colibri_session_reset(colibri_session *session);

/*
 * Append `count` token ids to the sequence and compute. Any split of a prompt over calls gives
 * the same bits. On error the sequence is as before the call.
 * Errors: TOKEN_RANGE, CONTEXT_FULL, NON_FINITE, ZERO_LOGITS, CHUNK_MISMATCH, CANCELLED, BUSY, ARGUMENT.
 */
COLIBRI_API int colibri_session_append(colibri_session *session, const int32_t *ids, size_t count,
                                       colibri_error *error);
/* Logits of the last appended position: f32, [vocabulary]; valid until the next call. */
COLIBRI_API const float *colibri_session_logits(const colibri_session *session);
COLIBRI_API uint32_t colibri_session_position(const colibri_session *session);
/* Async-signal-safe: makes the running append of this session, or else its next one, return
 * COLIBRI_ERR_CANCELLED once. colibri_session_reset forgets it. */
COLIBRI_API void colibri_session_cancel(colibri_session *session);

typedef struct colibri_sampler {
    uint32_t struct_size;
    uint32_t top_k;     /* 0 = all */
    float temperature;  /* 0 = greedy */
    float top_p;        /* 1 = all */
    float min_p;        /* 0 = all */
    uint32_t reserved;
    uint64_t seed;
} colibri_sampler;

COLIBRI_API void colibri_sampler_default(colibri_sampler *sampler);
COLIBRI_API int colibri_session_set_sampler(colibri_session *session, const colibri_sampler *sampler,
                                            colibri_error *error);
/* Choose the next id from the current logits (does not append it). */
COLIBRI_API int colibri_session_sample(colibri_session *session, int32_t *id, colibri_error *error);

/* ---- text -------------------------------------------------------------------------------- */

enum colibri_text {
    COLIBRI_TEXT_PLAIN = 0,   /* special tokens in the text are ordinary characters */
    COLIBRI_TEXT_CHAT = 1     /* wrapped in the model's chat prefix and suffix */
};

/* text: any bytes, length in bytes. *count: capacity in, number of ids out. */
COLIBRI_API int colibri_tokenize(colibri_model *model, const char *text, size_t length,
                                 enum colibri_text form, int32_t *ids, size_t *count,
                                 colibri_error *error);
/* Bytes of one token (not terminated); *length out. NULL for an id out of range. */
COLIBRI_API const char *colibri_token_bytes(const colibri_model *model, int32_t id, size_t *length);
/* 1 when the id ends a text (end of sequence, end of turn). */
COLIBRI_API int colibri_token_is_end(const colibri_model *model, int32_t id);
COLIBRI_API int colibri_token_is_special(const colibri_model *model, int32_t id);

/* Streaming detokenizer: keeps an incomplete UTF-8 sequence back until it is complete. */
typedef struct colibri_utf8 {
    uint8_t held[4];
    uint32_t held_bytes;
} colibri_utf8;
/* Feed one token; writes at most capacity bytes of whole characters to out, *length out. Bytes
 * that can never become valid UTF-8 come out as U+FFFD. capacity >= 3 * token length + 16. */
COLIBRI_API int colibri_utf8_feed(colibri_utf8 *state, const char *bytes, size_t length, char *out,
                                  size_t capacity, size_t *written);
/* End of text: an incomplete sequence that is still held comes out as U+FFFD. */
COLIBRI_API size_t colibri_utf8_flush(colibri_utf8 *state, char *out, size_t capacity);

/* ---- information ------------------------------------------------------------------------- */

/* The memory plan, in bytes; docs/format.md, section 8, says how each row is computed. */
typedef struct colibri_plan {
    uint32_t struct_size;
    uint32_t context_tokens, batch_tokens, threads, max_sessions, kv;
    uint32_t residency;         /* what was chosen, never AUTO */
    uint32_t expert_slots;      /* 0 but in stream mode, like the next one */
    uint32_t io_threads;
    uint32_t max_expert_slots;  /* one for each expert of each layer */
    uint64_t mapped_bytes;      /* the file, in stream mode without its experts */
    uint64_t trunk_mapped_bytes; /* the file without its experts */
    uint64_t kv_bytes;          /* all sessions */
    uint64_t activation_bytes;  /* all sessions and scratch */
    uint64_t table_bytes;       /* records, directory, tokenizer lookups, state of experts */
    uint64_t slot_bytes;        /* one expert slot */
    uint64_t slots_bytes;       /* all of them */
    uint64_t stack_bytes;       /* worker thread stacks */
    uint64_t io_stack_bytes;    /* stacks of the threads that read */
    uint64_t arena_bytes;       /* kv + activation + table + slots, the one anonymous mapping */
    uint64_t process_bytes;     /* allowance for code, libc and the main stack */
    uint64_t kernel_bytes;      /* page tables and what else a control group is charged for it */
    uint64_t total_bytes;       /* mapped + arena + stacks + process + kernel: the peak, never exceeded */
    uint64_t floor_bytes;       /* the smallest budget that runs with these options */
    uint64_t recommended_bytes; /* the budget that keeps every expert in memory */
} colibri_plan;

typedef struct colibri_model_info {
    uint32_t struct_size;
    uint32_t family, layers, hidden, vocabulary, context_tokens;
    uint32_t heads, kv_heads, head_dim, experts, top_k, intermediate; /* of the first such layer */
    uint32_t has_tokenizer, has_chat;
    uint64_t parameters;
    uint64_t file_bytes, trunk_bytes, expert_bytes;
    uint8_t root[32];           /* the file's root hash */
} colibri_model_info;

enum colibri_signature {
    COLIBRI_SIGNATURE_NONE = 0,
    COLIBRI_SIGNATURE_UNCHECKED = 1, /* there is one, but no key was given to check it with */
    COLIBRI_SIGNATURE_VERIFIED = 2   /* by the trusted key, over the root of this file */
};

/* What could not be had at open: nothing degrades silently. */
typedef struct colibri_report {
    uint32_t struct_size;
    uint32_t threads;
    uint64_t locked_bytes, unlocked_bytes;
    int32_t lock_errno;         /* 0, or why locking stopped */
    uint32_t verified_extents, extents;
    uint32_t direct_io;         /* 1: experts are read with O_DIRECT */
    int32_t direct_io_errno;    /* 0, or why not */
    uint32_t signature;         /* enum colibri_signature */
    const char *isa;            /* the kernels in use */
    char lock_message[192];     /* empty, or what to do */
    char residency_message[192]; /* empty, or what the residency mode had to do without */
    uint8_t key_id[32];         /* SHA-256 of the public key that the signature names, or zero */
    uint8_t golden_sha256[32];  /* of the golden results that it covers, or zero */
} colibri_report;

/* What streaming did since the model was opened; zero in the other modes. */
typedef struct colibri_residency_stats {
    uint32_t struct_size;
    uint32_t slots_used;        /* slots that hold an expert */
    uint64_t hits, misses;      /* experts that a layer of a batch needed: in a slot, or not */
    uint64_t reads, read_bytes; /* finished reads, read ahead or not */
    uint64_t failed_reads;
    uint64_t prefetch_reads;    /* reads that were begun ahead */
    uint64_t prefetch_hits;     /* ... whose expert was needed before its slot was given away */
    uint64_t prefetch_wasted;   /* ... whose expert was not */
    uint64_t io_wait_ns;        /* the compute thread waited for storage */
    uint64_t io_idle_ns;        /* nothing was being read */
    uint64_t read_ns;           /* sum over all reads: in the system call */
    uint64_t hash_ns;           /* sum over all reads: verifying */
    uint64_t barriers;          /* times the compute threads met */
} colibri_residency_stats;

COLIBRI_API int colibri_model_plan(const colibri_model *model, colibri_plan *plan);
COLIBRI_API int colibri_model_info_get(const colibri_model *model, colibri_model_info *info);
COLIBRI_API int colibri_model_report(const colibri_model *model, colibri_report *report);
/* Not while a call on the model runs. */
COLIBRI_API int colibri_model_residency(const colibri_model *model, colibri_residency_stats *stats);
typedef struct colibri_memory_report {
    uint32_t struct_size;
    uint32_t guards;            /* buffers with a guard behind them; 0: debug_memory is off */
    uint32_t sessions_in_use;   /* not freed yet: before colibri_model_close, a leak */
    uint32_t secure_mode;       /* as the options and the build have it */
    uint64_t guard_bytes;       /* looked at by each check */
    uint64_t checks, check_ns;  /* how often, and the time it took in all */
    uint64_t poisoned_bytes;
} colibri_memory_report;

/* What debug_memory did since the model was opened, and whether memory is wiped. Not while a call on the
 * model runs. */
COLIBRI_API int colibri_model_memory(const colibri_model *model, colibri_memory_report *report);

typedef struct colibri_defrag_report {
    uint32_t struct_size;
    uint32_t moved_slots;       /* experts that were copied into a lower slot */
    uint32_t used_slots;        /* experts in memory: they are in the slots 0..used_slots - 1 now */
    uint32_t reserved;
    uint64_t moved_bytes;
    uint64_t locked_bytes, unlocked_bytes;
    uint64_t relocked_bytes;    /* locked now, and not before the call */
} colibri_defrag_report;

/*
 * Compacts the pool of experts (stream mode), one slot at a time and without further memory, and
 * locks everything again, verified. Results do not depend on it. report may be NULL.
 * Errors: BUSY, IO (a read that is under way does not end), LOCK (with COLIBRI_LOCK_REQUIRE).
 */
COLIBRI_API int colibri_model_defrag(colibri_model *model, colibri_defrag_report *report,
                                     colibri_error *error);
/* Times each expert of a layer was chosen by this model's sessions, batches of calls that failed
 * later included: [experts]. NULL when none. */
COLIBRI_API const uint64_t *colibri_expert_counts(const colibri_model *model, uint32_t layer,
                                                  uint32_t *experts);
/* Routed ids of the last append, for tests: [tokens of the last batch][top_k]; NULL when none
 * or when the last append failed. */
COLIBRI_API const int32_t *colibri_session_routing(const colibri_session *session, uint32_t layer,
                                                   uint32_t *tokens, uint32_t *top_k);

/* ---- telemetry --------------------------------------------------------------------------- */

/* How the experts of a layer were used since the model was opened; integers, the same everywhere. */
typedef struct colibri_layer_telemetry {
    uint32_t struct_size;
    uint32_t layer, experts, top_k;
    uint64_t choices;           /* sum of the counts: tokens x top_k */
    uint32_t entropy_millibits; /* of the choices: log2(experts) x 1000 when all are used alike */
    uint32_t hottest;           /* the expert chosen most often */
    uint32_t hottest_percent;   /* ... of the mean: 100 x experts / top_k at most */
    uint32_t hot;               /* experts above 300 % of the mean; 0 before 8 uses per expert */
    uint32_t has_profile;       /* the file has a calibration profile */
    uint32_t drift_permille;    /* half the sum of the differences of the shares: 0 as calibrated */
} colibri_layer_telemetry;

/* t->struct_size must be set. ARGUMENT for a layer without experts. Not while a call runs. */
COLIBRI_API int colibri_layer_telemetry_get(const colibri_model *model, uint32_t layer,
                                            colibri_layer_telemetry *t);
/* One count of colibri_expert_counts; 0 for a layer or expert that does not exist. */
COLIBRI_API uint64_t colibri_expert_call_count(const colibri_model *model, uint32_t layer,
                                               uint32_t expert);

/* ---- snapshots --------------------------------------------------------------------------- */

/*
 * The state of a session in memory: ids, logits, KV cache. The library touches no file. Restored,
 * a session continues with the same bits as if it had computed the tokens itself; the sampler is
 * not part of it, the number of tokens it has chosen is. docs/format.md has the layout.
 */
/* Bytes that colibri_session_save needs now; 0 without logits: append at least one token. */
COLIBRI_API uint64_t colibri_session_snapshot_bytes(const colibri_session *session);
/* Errors: ARGUMENT (nothing to save, capacity too small), BUSY. */
COLIBRI_API int colibri_session_save(colibri_session *session, void *memory, size_t capacity,
                                     colibri_error *error);
/*
 * memory: any bytes, any alignment; everything is checked before the session changes. Errors:
 * SNAPSHOT (malformed, damaged), SNAPSHOT_OTHER (another model or KV type), CONTEXT_FULL, BUSY.
 */
COLIBRI_API int colibri_session_restore(colibri_session *session, const void *memory, size_t bytes,
                                        colibri_error *error);
/* Ids of the sequence: [*count], valid until the next call on the session. */
COLIBRI_API const int32_t *colibri_session_ids(const colibri_session *session, uint32_t *count);

/* ---- sandbox ----------------------------------------------------------------------------- */

/*
 * System calls that are not on a list are refused for the rest of the life of the process, in all of
 * its threads (seccomp with TSYNC, no_new_privs); files are closed to it with Landlock where the kernel
 * has it. Phases stack and cannot be left. docs/sandbox.md lists what each allows, and why.
 */
enum colibri_sandbox_phase {
    COLIBRI_SANDBOX_START = 1, /* before a model is open: files, locks and threads; never exec, fork,
                                  ptrace, executable memory, new sockets, owner or mode of files */
    COLIBRI_SANDBOX_STEADY = 2 /* models, sessions, threads and descriptors are there: nothing new */
};

enum colibri_sandbox_action {     /* what happens to a call that is not on the list */
    COLIBRI_SANDBOX_KILL = 0,  /* the process ends with SIGSYS */
    COLIBRI_SANDBOX_ERRNO = 1, /* the call fails with EPERM */
    COLIBRI_SANDBOX_LOG = 2    /* audit: it is made, and the kernel's log names it; Landlock stays off */
};

typedef struct colibri_sandbox {
    size_t struct_size;
    uint32_t phase;  /* enum colibri_sandbox_phase */
    uint32_t action; /* enum colibri_sandbox_action */
    /* Landlock, START only: files and folders that may still be opened for reading, and those where files
     * may also be written, made and removed; one that is not there is left out. Both NULL: no Landlock. */
    const char *const *read_paths;
    size_t read_path_count;
    const char *const *write_paths;
    size_t write_path_count;
} colibri_sandbox;

#define COLIBRI_SANDBOX_DEFAULT \
    { sizeof(colibri_sandbox), COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_KILL, NULL, 0, NULL, 0 }

typedef struct colibri_sandbox_report {
    size_t struct_size;
    uint32_t filter;         /* 1: installed */
    uint32_t landlock_abi;   /* of the restriction that holds now for the calling thread and those that
                                it starts; 0: none, the kernel has no Landlock or it was not asked for */
    uint32_t threads_synced; /* 1: every thread of the process has the filter */
    uint32_t no_new_privs;   /* 1: set */
    uint32_t allowed_calls;  /* system calls that the phase allows on this architecture */
    uint32_t reserved;
} colibri_sandbox_report;

/*
 * No heap, no file is kept open. options: begin with COLIBRI_SANDBOX_DEFAULT. report may be NULL, else
 * its struct_size must be set. Errors: ARGUMENT, STRUCT_SIZE (nothing has changed), SANDBOX (the
 * process may be restricted in part: end it). A build that forces COLIBRI_RESTRICTED_SYSCALLS kills.
 * In STEADY the library opens no file either: a read that failed is not tried on a replaced model.
 */
COLIBRI_API int colibri_sandbox_enter(const colibri_sandbox *options, colibri_sandbox_report *report,
                                      colibri_error *error);

/* ---- about the library -------------------------------------------------------------------- */

COLIBRI_API const char *colibri_strerror(int code);
/* The exit code a command gives for an error code. */
COLIBRI_API int colibri_exit_code(int code);
COLIBRI_API uint32_t colibri_abi_version(void);
COLIBRI_API const char *colibri_version(void);
/* colibri_v<version>_<arch>_<compiler><version>; no date, no path. */
COLIBRI_API const char *colibri_build_info(void);
/* Whether this build checks signatures: 0 no (made without libsodium), 1 yes, 2 yes, and it trusts one
 * key that no option replaces. key_id (may be NULL): 32 bytes, SHA-256 of that key, or zero. */
COLIBRI_API int colibri_signature_support(uint8_t *key_id);
/* Space-separated macros that the build forces and run time cannot lower, e.g.
 * "COLIBRI_SIGNED_ONLY COLIBRI_VERIFY_MODEL_HASH"; "" when none. */
COLIBRI_API const char *colibri_build_forced(void);
/* Space-separated ISA names compiled into the library; and the subset this CPU runs. */
COLIBRI_API const char *colibri_isas_compiled(void);
COLIBRI_API const char *colibri_isas_available(void);
/* SHA-256, for hashes of logits. out: 32 bytes. */
typedef struct colibri_sha256 {
    uint64_t opaque[16];
} colibri_sha256;
COLIBRI_API void colibri_sha256_init(colibri_sha256 *state);
COLIBRI_API void colibri_sha256_update(colibri_sha256 *state, const void *data, size_t length);
COLIBRI_API void colibri_sha256_final(colibri_sha256 *state, uint8_t out[32]);
/* Run the built-in golden vectors of every operator on one ISA ("ref", ...; NULL = selected). */
COLIBRI_API int colibri_selftest(const char *isa, colibri_error *error);

/* ---- compatibility API ------------------------------------------------------------------- */

typedef struct colibri_ctx colibri_ctx_t;

#define COLIBRI_ALL_POSITIONS 1u /* flags of colibri_init: write the logits of every position */

/* NULL on error; colibri_last_error() has the reason. One thread, context 2048 or the model's. */
COLIBRI_API colibri_ctx_t *colibri_init(const char *path, uint32_t flags);
/* Validates a model file: 0 or a negative code (-1 cannot open, -2 bad magic, ...). */
COLIBRI_API int colibri_load_model(const char *path, uint32_t flags);
/*
 * Appends seq_len ids (any alignment) and writes the logits of the last position, Q16.16 fixed
 * point (round to nearest even, saturated), output_logits[vocabulary]; with
 * COLIBRI_ALL_POSITIONS [seq_len][vocabulary]. Calls continue the same sequence.
 */
COLIBRI_API int colibri_run_inference(colibri_ctx_t *ctx, const int32_t *input_ids,
                                      int32_t *output_logits, size_t seq_len);
COLIBRI_API void colibri_reset(colibri_ctx_t *ctx);
COLIBRI_API void colibri_free(colibri_ctx_t *ctx);
/* Vocabulary size of an open model, to size output_logits. */
COLIBRI_API size_t colibri_vocabulary(const colibri_ctx_t *ctx);
/* colibri_model_defrag for every model opened by colibri_init; bytes that are locked, or < 0. */
COLIBRI_API int64_t colibri_defrag_memory(void);
/* Error of the last failed compatibility call in this thread. */
COLIBRI_API const colibri_error *colibri_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
