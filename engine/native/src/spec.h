/* SPDX-License-Identifier: MIT */
/* Generated from engine/spec/format.toml by engine/spec/generate.py; do not edit. */
#ifndef CB_SPEC_H
#define CB_SPEC_H

#include <stdint.h>

#define CB_MAGIC_BYTES { 0x43, 0x4f, 0x4c, 0x49, 0x42, 0x52, 0x49, 0x1a }
#define CB_SIGNATURE_DOMAIN "colibri model signature" /* its zero byte is part of it */
#define CB_VERSION_MAJOR 1u
#define CB_VERSION_MINOR 0u
#define CB_VERSION_OLDEST 1u
#define CB_HEADER_BYTES 4096u
#define CB_ROOT_OFFSET 48u
#define CB_HEADER_RESERVED_OFFSET 80u
#define CB_SECTION_TABLE_OFFSET 128u
#define CB_SECTION_ENTRY_BYTES 64u
#define CB_MIN_SECTIONS 5u
#define CB_CHUNK_BYTES 65536u
#define CB_EXTENT_ALIGN_BYTES 4096u
#define CB_TRUNK_ALIGN_BYTES 65536u
#define CB_SECTION_ALIGN_BYTES 4096u
#define CB_SNAPSHOT_VERSION 1u
#define CB_SNAPSHOT_HEADER_BYTES 112u
#define CB_TENSOR_ALIGN_BYTES 64u
#define CB_HASH_BYTES 32u
#define CB_EXTENT_ENTRY_BYTES 64u
#define CB_TENSOR_ENTRY_BYTES 48u
#define CB_DIRECTORY_HEADER_BYTES 16u
#define CB_BLOCK_HEADER_BYTES 8u
#define CB_NONE_INDEX 4294967295u
#define CB_GROUP_COLUMNS 32u
#define CB_PANEL_ROWS 8u
#define CB_INT4_BLOCK_BYTES 144u
#define CB_INT8_BLOCK_BYTES 272u
#define CB_MXFP4_BLOCK_BYTES 136u
#define CB_SIGNATURE_SECTION_BYTES 168u
#define CB_GOLDEN_VERSION 1u
#define CB_MAX_CODE_POINT 1114111u

#define CB_MAX_SECTIONS 16u
#define CB_MAX_LAYERS 512u
#define CB_MAX_EXPERTS 1024u
#define CB_MAX_TOP_K 32u
#define CB_MAX_HIDDEN 65536u
#define CB_MAX_INTERMEDIATE 262144u
#define CB_MAX_VOCABULARY 1048576u
#define CB_MAX_HEADS 512u
#define CB_MAX_HEAD_DIM 1024u
#define CB_MAX_CONTEXT_TOKENS 1048576u
#define CB_MAX_ROPE_TABLES 8u
#define CB_MAX_TENSORS 65536u
#define CB_MAX_EXTENTS 524801u
#define CB_MAX_RECORDS_BYTES 16777216u
#define CB_MAX_TOKENIZER_BYTES 134217728u
#define CB_MAX_TOKEN_BYTES 1024u
#define CB_MAX_PROVENANCE_BYTES 1048576u
#define CB_MAX_CALIBRATION_BYTES 67108864u
#define CB_MAX_CALIBRATION_FOLLOWERS 8u
#define CB_MAX_SIGNATURE_BYTES 4096u
#define CB_MAX_GOLDEN_BYTES 1048576u
#define CB_MAX_GOLDEN_CASES 64u
#define CB_MAX_FILE_BYTES UINT64_C(4611686018427387904)

#define CB_MAX_THREADS 64u
#define CB_MAX_BATCH_TOKENS 512u
#define CB_MAX_SESSIONS 64u
#define CB_MAX_TEXT_BYTES 268435456u
#define CB_MAX_COMMAND_TEXT_BYTES 262144u
#define CB_MAX_IO_THREADS 16u
#define CB_DEFAULT_THREADS 4u
#define CB_DEFAULT_BATCH_TOKENS 32u
#define CB_DEFAULT_TEXT_BYTES 65536u
#define CB_DEFAULT_IO_THREADS 4u
#define CB_DEFAULT_PREFETCH_DEPTH 3u
#define CB_DEFAULT_CONTEXT_TOKENS 2048u

#define CB_REQUIRED_MLA (UINT64_C(1) << 0)
#define CB_REQUIRED_SHORT_CONV (UINT64_C(1) << 1)
#define CB_REQUIRED_STATE_SPACE (UINT64_C(1) << 2)
#define CB_REQUIRED_MXFP4 (UINT64_C(1) << 3)
#define CB_REQUIRED_ATTENTION_SINKS (UINT64_C(1) << 4)
#define CB_REQUIRED_DELTA_NET (UINT64_C(1) << 5)
#define CB_OPTIONAL_SIGNED (UINT64_C(1) << 0)
#define CB_OPTIONAL_CALIBRATED (UINT64_C(1) << 1)
#define CB_REQUIRED_KNOWN UINT64_C(63)

/* section_kinds */
enum {
    CB_SECTION_RECORDS = 1,
    CB_SECTION_DIRECTORY = 2,
    CB_SECTION_TOKENIZER = 3,
    CB_SECTION_PROVENANCE = 4,
    CB_SECTION_CALIBRATION = 5,
    CB_SECTION_TRUNK = 6,
    CB_SECTION_EXPERTS = 7,
    CB_SECTION_SIGNATURE = 8,
};

/* signature_algorithms */
enum {
    CB_SIGNATURE_ED25519 = 1,
};

/* dtypes */
enum {
    CB_DTYPE_F32 = 0,
    CB_DTYPE_F16 = 1,
    CB_DTYPE_BF16 = 2,
    CB_DTYPE_INT8 = 3,
    CB_DTYPE_INT4 = 4,
    CB_DTYPE_MXFP4 = 5,
};

/* layouts */
enum {
    CB_LAYOUT_ROWS = 0,
    CB_LAYOUT_PANEL8 = 1,
};

/* extent_kinds */
enum {
    CB_EXTENT_TRUNK = 1,
    CB_EXTENT_EXPERT = 2,
};

/* tensor_scopes */
enum {
    CB_SCOPE_TRUNK = 0,
    CB_SCOPE_EXPERT = 1,
};

/* kv_dtypes */
enum {
    CB_KV_F16 = 1,
    CB_KV_F32 = 0,
    CB_KV_INT8 = 3,
};

/* tensor_roles */
enum {
    CB_ROLE_EMBEDDING = 1,
    CB_ROLE_POSITION_EMBEDDING = 2,
    CB_ROLE_FINAL_NORM = 3,
    CB_ROLE_FINAL_NORM_BIAS = 4,
    CB_ROLE_HEAD = 5,
    CB_ROLE_HEAD_BIAS = 6,
    CB_ROLE_EMBEDDING_NORM = 7,
    CB_ROLE_EMBEDDING_NORM_BIAS = 8,
    CB_ROLE_PRE_MIXER_NORM = 16,
    CB_ROLE_PRE_MIXER_NORM_BIAS = 17,
    CB_ROLE_POST_MIXER_NORM = 18,
    CB_ROLE_POST_MIXER_NORM_BIAS = 19,
    CB_ROLE_PRE_FFN_NORM = 20,
    CB_ROLE_PRE_FFN_NORM_BIAS = 21,
    CB_ROLE_POST_FFN_NORM = 22,
    CB_ROLE_POST_FFN_NORM_BIAS = 23,
    CB_ROLE_Q = 32,
    CB_ROLE_Q_BIAS = 33,
    CB_ROLE_K = 34,
    CB_ROLE_K_BIAS = 35,
    CB_ROLE_V = 36,
    CB_ROLE_V_BIAS = 37,
    CB_ROLE_O = 38,
    CB_ROLE_O_BIAS = 39,
    CB_ROLE_Q_NORM = 40,
    CB_ROLE_K_NORM = 41,
    CB_ROLE_SINKS = 42,
    CB_ROLE_ATTENTION_GATE = 43,
    CB_ROLE_MLA_Q_A = 48,
    CB_ROLE_MLA_Q_A_NORM = 49,
    CB_ROLE_MLA_Q_B = 50,
    CB_ROLE_MLA_KV_A = 51,
    CB_ROLE_MLA_KV_A_NORM = 52,
    CB_ROLE_MLA_K_B = 53,
    CB_ROLE_MLA_V_B = 54,
    CB_ROLE_CONV_IN = 64,
    CB_ROLE_CONV_IN_BIAS = 65,
    CB_ROLE_CONV_WEIGHT = 66,
    CB_ROLE_CONV_BIAS = 67,
    CB_ROLE_CONV_OUT = 68,
    CB_ROLE_CONV_OUT_BIAS = 69,
    CB_ROLE_FFN_GATE = 80,
    CB_ROLE_FFN_GATE_BIAS = 81,
    CB_ROLE_FFN_UP = 82,
    CB_ROLE_FFN_UP_BIAS = 83,
    CB_ROLE_FFN_DOWN = 84,
    CB_ROLE_FFN_DOWN_BIAS = 85,
    CB_ROLE_SHARED_GATE = 96,
    CB_ROLE_SHARED_GATE_BIAS = 97,
    CB_ROLE_SHARED_UP = 98,
    CB_ROLE_SHARED_UP_BIAS = 99,
    CB_ROLE_SHARED_DOWN = 100,
    CB_ROLE_SHARED_DOWN_BIAS = 101,
    CB_ROLE_SHARED_ROUTER = 102,
    CB_ROLE_ROUTER = 112,
    CB_ROLE_ROUTER_BIAS = 113,
    CB_ROLE_ROUTER_SELECTION_BIAS = 114,
    CB_ROLE_EXPERT_GATE = 128,
    CB_ROLE_EXPERT_GATE_BIAS = 129,
    CB_ROLE_EXPERT_UP = 130,
    CB_ROLE_EXPERT_UP_BIAS = 131,
    CB_ROLE_EXPERT_DOWN = 132,
    CB_ROLE_EXPERT_DOWN_BIAS = 133,
    CB_ROLE_STATE_SPACE_FIRST = 160,
    CB_ROLE_STATE_SPACE_LAST = 191,
};

/* norm_kinds */
enum {
    CB_NORM_NONE = 0,
    CB_NORM_RMS = 1,
    CB_NORM_LAYER = 2,
};

/* norm_places */
enum {
    CB_NORM_AT_PRE_MIXER = 1,
    CB_NORM_AT_POST_MIXER = 2,
    CB_NORM_AT_PRE_FFN = 4,
    CB_NORM_AT_POST_FFN = 8,
};

/* position_kinds */
enum {
    CB_POSITION_NONE = 0,
    CB_POSITION_ROPE = 1,
    CB_POSITION_LEARNED = 2,
};

/* rope_styles */
enum {
    CB_ROPE_HALF = 0,
    CB_ROPE_INTERLEAVED = 1,
};

/* mixer_kinds */
enum {
    CB_MIXER_NONE = 0,
    CB_MIXER_ATTENTION = 1,
    CB_MIXER_MLA = 2,
    CB_MIXER_SHORT_CONV = 3,
    CB_MIXER_STATE_SPACE = 4,
    CB_MIXER_DELTA_NET = 5,
};

/* ffn_kinds */
enum {
    CB_FFN_NONE = 0,
    CB_FFN_DENSE = 1,
    CB_FFN_MOE = 2,
};

/* qk_norm_kinds */
enum {
    CB_QK_NORM_NONE = 0,
    CB_QK_NORM_PER_HEAD = 1,
    CB_QK_NORM_FULL_WIDTH = 2,
    CB_QK_NORM_FULL_WIDTH_THEN_CLIP = 3,
};

/* activations */
enum {
    CB_ACT_SILU = 0,
    CB_ACT_GELU_TANH = 1,
    CB_ACT_RELU = 2,
    CB_ACT_GELU_ERF = 3,
    CB_ACT_SWIGLU_CLAMPED = 4,
    CB_ACT_IDENTITY = 5,
};

/* router_scores */
enum {
    CB_SCORE_SOFTMAX_ALL = 0,
    CB_SCORE_SOFTMAX_CHOSEN = 1,
    CB_SCORE_SIGMOID = 2,
    CB_SCORE_LOGITS = 3,
};

/* router_normalise */
enum {
    CB_NORMALISE_NONE = 0,
    CB_NORMALISE_SUM = 1,
};

/* router_inputs */
enum {
    CB_ROUTER_INPUT_FFN_INPUT = 0,
    CB_ROUTER_INPUT_RESIDUAL_BEFORE_MIXER = 1,
    CB_ROUTER_INPUT_FFN_RESIDUAL = 2,
};

/* router_group_scores */
enum {
    CB_GROUP_SCORE_NONE = 0,
    CB_GROUP_SCORE_MAX = 1,
    CB_GROUP_SCORE_TOP2_SUM = 2,
};

/* shared_gates */
enum {
    CB_SHARED_GATE_NONE = 0,
    CB_SHARED_GATE_SIGMOID = 1,
};

/* families */
enum {
    CB_FAMILY_UNKNOWN = 0,
    CB_FAMILY_MIXTRAL = 1,
    CB_FAMILY_GRANITE_MOE = 2,
    CB_FAMILY_SMALLTHINKER = 3,
    CB_FAMILY_OLMOE = 4,
    CB_FAMILY_QWEN2_MOE = 5,
    CB_FAMILY_QWEN3_MOE = 6,
    CB_FAMILY_LFM2_MOE = 7,
    CB_FAMILY_GPT_OSS = 8,
    CB_FAMILY_DEEPSEEK_V2 = 9,
    CB_FAMILY_DEEPSEEK_V3 = 10,
    CB_FAMILY_SWITCH = 11,
    CB_FAMILY_DEEPSPEED_MOE = 12,
    CB_FAMILY_FACE_MOE = 13,
    CB_FAMILY_LLAMA_MOE = 14,
    CB_FAMILY_GRANITE_HYBRID = 15,
    CB_FAMILY_AFMOE = 16,
    CB_FAMILY_GEMMA_MOE = 17,
    CB_FAMILY_QWEN3_NEXT = 18,
    CB_FAMILY_PHIMOE = 19,
};

/* tokenizer_kinds */
enum {
    CB_TOKENIZER_NONE = 0,
    CB_TOKENIZER_BYTE_BPE = 1,
    CB_TOKENIZER_SENTENCEPIECE_BPE = 2,
    CB_TOKENIZER_UNIGRAM = 3,
};

/* pretokenizers */
enum {
    CB_PRETOKENIZER_NONE = 0,
    CB_PRETOKENIZER_GPT2 = 1,
    CB_PRETOKENIZER_SMOLLM = 2,
    CB_PRETOKENIZER_LLAMA3 = 3,
    CB_PRETOKENIZER_QWEN2 = 4,
    CB_PRETOKENIZER_O200K = 5,
    CB_PRETOKENIZER_DEEPSEEK_V2 = 6,
    CB_PRETOKENIZER_DEEPSEEK_V3 = 7,
};

/* normalizers */
enum {
    CB_NORMALIZER_NONE = 0,
    CB_NORMALIZER_NFC = 1,
    CB_NORMALIZER_NFKC = 2,
};

/* character_classes */
enum {
    CB_CLASS_OTHER = 0,
    CB_CLASS_LETTER = 1,
    CB_CLASS_NUMBER = 2,
    CB_CLASS_SPACE = 3,
    CB_CLASS_MARK = 4,
    CB_CLASS_UPPER = 5,
    CB_CLASS_LOWER = 6,
    CB_CLASS_PUNCTUATION = 7,
    CB_CLASS_ASIAN = 8,
    CB_CLASS_BASIC = 16,
};

/* tokenizer_flags */
enum {
    CB_TOKENIZER_FLAG_ADD_BOS = 1,
    CB_TOKENIZER_FLAG_IGNORE_MERGES = 2,
    CB_TOKENIZER_FLAG_BYTE_FALLBACK = 4,
    CB_TOKENIZER_FLAG_ADD_PREFIX_SPACE = 8,
    CB_TOKENIZER_FLAG_KEEP_PREFIX_SPACE = 16,
    CB_TOKENIZER_FLAG_CHAT_PREFIX_SPACE = 32,
};

/* blocks of the records section */
enum {
    CB_BLOCK_MODEL = 1,
    CB_BLOCK_ROPE = 2,
    CB_BLOCK_LAYER = 3,
    CB_BLOCK_ATTENTION = 4,
    CB_BLOCK_MLA = 5,
    CB_BLOCK_SHORT_CONV = 6,
    CB_BLOCK_FFN = 7,
    CB_BLOCK_MOE = 8,
    CB_BLOCK_SHARED = 9,
    CB_BLOCK_STATE_SPACE = 10,
    CB_BLOCK_DELTA_NET = 11,
};

struct cb_block_model {
    uint32_t family;
    uint32_t hidden;
    uint32_t vocabulary;
    uint32_t layers;
    uint32_t context_tokens;
    uint32_t position_kind;
    uint32_t position_offset;
    uint32_t tied_head;
    float embedding_multiplier;
    float logits_multiplier;
    float logits_softcap;
    uint32_t norm_kind;
    float norm_eps;
    uint32_t embedding_norm_kind;
    uint32_t head_bias;
    uint32_t reserved;
};
_Static_assert(sizeof(struct cb_block_model) == 64, "cb_block_model: no padding");

struct cb_block_rope {
    uint32_t style;
    uint32_t pairs;
    float attention_factor;
    uint32_t reserved;
};
/* followed by inv_freq[] up to the end of the block */
_Static_assert(sizeof(struct cb_block_rope) == 16, "cb_block_rope: no padding");

struct cb_block_layer {
    uint32_t index;
    uint32_t mixer_kind;
    uint32_t ffn_kind;
    uint32_t norm_kind;
    float norm_eps;
    uint32_t norm_places;
    float residual_multiplier;
    uint32_t norm_bias;
    uint32_t parallel;
    uint32_t reserved;
};
_Static_assert(sizeof(struct cb_block_layer) == 40, "cb_block_layer: no padding");

struct cb_block_attention {
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t value_dim;
    float scale;
    uint32_t window_tokens;
    uint32_t rope_table;
    uint32_t qk_norm_kind;
    float qk_norm_eps;
    float clip_qkv;
    float softcap;
    uint32_t q_bias;
    uint32_t kv_bias;
    uint32_t o_bias;
    uint32_t sinks;
    uint32_t output_gate;
};
_Static_assert(sizeof(struct cb_block_attention) == 64, "cb_block_attention: no padding");

struct cb_block_mla {
    uint32_t heads;
    uint32_t q_rank;
    uint32_t kv_rank;
    uint32_t nope_dim;
    uint32_t rope_dim;
    uint32_t value_dim;
    float scale;
    uint32_t rope_table;
    float norm_eps;
    uint32_t window_tokens;
};
_Static_assert(sizeof(struct cb_block_mla) == 40, "cb_block_mla: no padding");

struct cb_block_short_conv {
    uint32_t width;
    uint32_t taps;
    uint32_t bias;
    uint32_t reserved;
};
_Static_assert(sizeof(struct cb_block_short_conv) == 16, "cb_block_short_conv: no padding");

struct cb_block_ffn {
    uint32_t intermediate;
    uint32_t activation;
    uint32_t gated;
    uint32_t bias;
    float clamp;
    float alpha;
};
_Static_assert(sizeof(struct cb_block_ffn) == 24, "cb_block_ffn: no padding");

struct cb_block_moe {
    uint32_t experts;
    uint32_t top_k;
    uint32_t intermediate;
    uint32_t activation;
    uint32_t gated;
    uint32_t bias;
    float clamp;
    float alpha;
    uint32_t router_score;
    uint32_t router_normalise;
    float router_normalise_eps;
    uint32_t router_input;
    uint32_t router_bias;
    uint32_t selection_bias;
    uint32_t groups;
    uint32_t groups_chosen;
    uint32_t group_score;
    float routed_scale;
    float threshold;
    uint32_t reserved;
};
_Static_assert(sizeof(struct cb_block_moe) == 80, "cb_block_moe: no padding");

struct cb_block_shared {
    uint32_t intermediate;
    uint32_t activation;
    uint32_t gated;
    uint32_t bias;
    float clamp;
    float alpha;
    uint32_t gate;
    uint32_t reserved;
};
_Static_assert(sizeof(struct cb_block_shared) == 32, "cb_block_shared: no padding");

struct cb_tokenizer_header {
    uint32_t kind;
    uint32_t pretokenizer;
    uint32_t normalizer;
    uint32_t flags;
    uint32_t unicode_version;
    uint32_t tokens;
    uint32_t merges;
    uint32_t specials;
    uint32_t ends;
    uint32_t class_ranges;
    uint32_t chat_prefix;
    uint32_t chat_suffix;
    uint32_t text_bytes;
    uint32_t bos_id;
    uint32_t unk_id;
    uint32_t literals;
};
_Static_assert(sizeof(struct cb_tokenizer_header) == 64, "cb_tokenizer_header: no padding");

struct cb_calibration_header {
    uint32_t layers;
    uint32_t tokens;
    uint32_t pairs;
    uint32_t reserved;
};
_Static_assert(sizeof(struct cb_calibration_header) == 16, "cb_calibration_header: no padding");

struct cb_calibration_layer {
    uint32_t layer;
    uint32_t experts;
    uint32_t top_k;
    uint32_t pairs;
};
_Static_assert(sizeof(struct cb_calibration_layer) == 16, "cb_calibration_layer: no padding");

#define CB_ERROR_TABLE(X) \
    X(-1, 1, "open", "cannot open") \
    X(-2, 3, "bad_magic", "not a .colibri file") \
    X(-3, 3, "version", "unsupported format version") \
    X(-4, 3, "truncated", "file is shorter than it says") \
    X(-5, 3, "empty", "file is empty") \
    X(-6, 3, "feature", "invalid required feature") \
    X(-7, 3, "header", "malformed header") \
    X(-8, 3, "section", "malformed section table") \
    X(-9, 3, "record", "malformed record") \
    X(-10, 3, "directory", "malformed directory") \
    X(-11, 3, "extent", "malformed extent") \
    X(-12, 3, "tensor", "malformed tensor entry") \
    X(-13, 3, "root_mismatch", "root hash mismatch") \
    X(-14, 3, "chunk_mismatch", "chunk hash mismatch") \
    X(-15, 3, "padding", "padding is not zero") \
    X(-16, 3, "limit", "limit exceeded") \
    X(-17, 3, "unsupported", "valid file, but this build cannot run it") \
    X(-18, 3, "tokenizer", "malformed tokenizer") \
    X(-19, 3, "signature", "signature missing or wrong") \
    X(-20, 3, "missing_tensor", "a tensor the records need is missing") \
    X(-21, 3, "weights", "non-finite scale or weight") \
    X(-22, 3, "calibration", "malformed calibration profile") \
    X(-23, 3, "snapshot", "malformed or damaged snapshot") \
    X(-24, 2, "snapshot_other", "snapshot of another model or KV type") \
    X(-40, 2, "argument", "invalid argument") \
    X(-41, 2, "struct_size", "option struct of an unknown size") \
    X(-42, 2, "token_range", "token id out of range") \
    X(-43, 1, "context_full", "context is full") \
    X(-44, 2, "prompt_long", "prompt is longer than the context") \
    X(-45, 2, "text_long", "text is longer than the limit") \
    X(-46, 2, "no_tokenizer", "the model has no tokenizer") \
    X(-47, 2, "no_chat", "the model has no chat form") \
    X(-48, 5, "isa", "instruction set not available") \
    X(-50, 4, "budget", "memory budget is below the model's floor") \
    X(-51, 5, "memory", "memory could not be had") \
    X(-52, 5, "lock", "memory could not be locked") \
    X(-53, 5, "thread", "thread could not be started") \
    X(-54, 1, "io", "read failed") \
    X(-55, 5, "sandbox", "sandbox could not be entered") \
    X(-60, 1, "non_finite", "non-finite value during inference") \
    X(-61, 1, "busy", "another call is running") \
    X(-62, 1, "cancelled", "cancelled") \
    X(-63, 5, "abi", "library and header versions differ") \
    X(-64, 1, "internal", "internal error") \
    X(-65, 1, "zero_logits", "output logits all zero")

#endif
