/* SPDX-License-Identifier: MIT */
#include "records.h"

#include <string.h>

#include "common.h"
#include "error.h"

#define BLOCK_OPTIONAL 1u /* flag bit 0: a reader that does not know the type may skip it */
#define TYPE_END 0u

/* What one 4-byte field may hold. */
enum field_kind {
    ANY,      /* checked elsewhere */
    RANGE,    /* low..high: below is malformed, above is beyond a limit */
    ENUM,     /* 0..high; also booleans and bit sets: anything above is malformed */
    FINITE,
    RESERVED  /* zero */
};

struct field {
    const char *name;
    enum field_kind kind;
    uint32_t low, high;
};

#define ANY_(name) {name, ANY, 0, 0}
#define RANGE_(name, low, high) {name, RANGE, low, high}
#define ENUM_(name, high) {name, ENUM, 0, high}
#define BOOL_(name) {name, ENUM, 0, 1}
#define FLOAT_(name) {name, FINITE, 0, 0}
#define RESERVED_() {"reserved", RESERVED, 0, 0}

static const struct field model_fields[] = {
    ENUM_("family", CB_FAMILY_PHIMOE),
    RANGE_("hidden", 1, CB_MAX_HIDDEN),
    RANGE_("vocabulary", 1, CB_MAX_VOCABULARY),
    RANGE_("layers", 1, CB_MAX_LAYERS),
    RANGE_("context_tokens", 1, CB_MAX_CONTEXT_TOKENS),
    ENUM_("position_kind", CB_POSITION_LEARNED),
    RANGE_("position_offset", 0, CB_MAX_CONTEXT_TOKENS),
    BOOL_("tied_head"),
    FLOAT_("embedding_multiplier"),
    FLOAT_("logits_multiplier"),
    FLOAT_("logits_softcap"),
    ENUM_("norm_kind", CB_NORM_LAYER),
    FLOAT_("norm_eps"),
    ENUM_("embedding_norm_kind", CB_NORM_LAYER),
    BOOL_("head_bias"),
    RESERVED_(),
};

static const struct field rope_fields[] = {
    ENUM_("style", CB_ROPE_INTERLEAVED),
    RANGE_("pairs", 1, CB_MAX_HEAD_DIM / 2),
    FLOAT_("attention_factor"),
    RESERVED_(),
};

static const struct field layer_fields[] = {
    ANY_("index"),
    ENUM_("mixer_kind", CB_MIXER_DELTA_NET),
    ENUM_("ffn_kind", CB_FFN_MOE),
    ENUM_("norm_kind", CB_NORM_LAYER),
    FLOAT_("norm_eps"),
    ENUM_("norm_places",
          CB_NORM_AT_PRE_MIXER | CB_NORM_AT_POST_MIXER | CB_NORM_AT_PRE_FFN | CB_NORM_AT_POST_FFN),
    FLOAT_("residual_multiplier"),
    BOOL_("norm_bias"),
    BOOL_("parallel"),
    RESERVED_(),
};

static const struct field attention_fields[] = {
    RANGE_("heads", 1, CB_MAX_HEADS),
    RANGE_("kv_heads", 1, CB_MAX_HEADS),
    RANGE_("head_dim", 1, CB_MAX_HEAD_DIM),
    RANGE_("value_dim", 1, CB_MAX_HEAD_DIM),
    FLOAT_("scale"),
    RANGE_("window_tokens", 0, CB_MAX_CONTEXT_TOKENS),
    ANY_("rope_table"),
    ENUM_("qk_norm_kind", CB_QK_NORM_FULL_WIDTH_THEN_CLIP),
    FLOAT_("qk_norm_eps"),
    FLOAT_("clip_qkv"),
    FLOAT_("softcap"),
    BOOL_("q_bias"),
    BOOL_("kv_bias"),
    BOOL_("o_bias"),
    BOOL_("sinks"),
    BOOL_("output_gate"),
};

static const struct field mla_fields[] = {
    RANGE_("heads", 1, CB_MAX_HEADS),
    RANGE_("q_rank", 0, CB_MAX_HIDDEN),
    RANGE_("kv_rank", 1, CB_MAX_HIDDEN),
    RANGE_("nope_dim", 1, CB_MAX_HEAD_DIM),
    RANGE_("rope_dim", 1, CB_MAX_HEAD_DIM),
    RANGE_("value_dim", 1, CB_MAX_HEAD_DIM),
    FLOAT_("scale"),
    ANY_("rope_table"),
    FLOAT_("norm_eps"),
    RANGE_("window_tokens", 0, CB_MAX_CONTEXT_TOKENS),
};

static const struct field short_conv_fields[] = {
    RANGE_("width", 1, CB_MAX_HIDDEN),
    RANGE_("taps", 1, CB_MAX_HEAD_DIM),
    BOOL_("bias"),
    RESERVED_(),
};

static const struct field ffn_fields[] = {
    RANGE_("intermediate", 1, CB_MAX_INTERMEDIATE),
    ENUM_("activation", CB_ACT_IDENTITY),
    BOOL_("gated"),
    BOOL_("bias"),
    FLOAT_("clamp"),
    FLOAT_("alpha"),
};

static const struct field moe_fields[] = {
    RANGE_("experts", 1, CB_MAX_EXPERTS),
    RANGE_("top_k", 1, CB_MAX_TOP_K),
    RANGE_("intermediate", 1, CB_MAX_INTERMEDIATE),
    ENUM_("activation", CB_ACT_IDENTITY),
    BOOL_("gated"),
    BOOL_("bias"),
    FLOAT_("clamp"),
    FLOAT_("alpha"),
    ENUM_("router_score", CB_SCORE_LOGITS),
    ENUM_("router_normalise", CB_NORMALISE_SUM),
    FLOAT_("router_normalise_eps"),
    ENUM_("router_input", CB_ROUTER_INPUT_FFN_RESIDUAL),
    BOOL_("router_bias"),
    BOOL_("selection_bias"),
    RANGE_("groups", 0, CB_MAX_EXPERTS),
    RANGE_("groups_chosen", 0, CB_MAX_EXPERTS),
    ENUM_("group_score", CB_GROUP_SCORE_TOP2_SUM),
    FLOAT_("routed_scale"),
    FLOAT_("threshold"),
    RESERVED_(),
};

static const struct field shared_fields[] = {
    RANGE_("intermediate", 1, CB_MAX_INTERMEDIATE),
    ENUM_("activation", CB_ACT_IDENTITY),
    BOOL_("gated"),
    BOOL_("bias"),
    FLOAT_("clamp"),
    FLOAT_("alpha"),
    ENUM_("gate", CB_SHARED_GATE_SIGMOID),
    RESERVED_(),
};

struct block_type {
    const char *name;
    const struct field *fields;
    size_t count;
    int has_array;
};

#define BLOCK(id, name, array) [id] = {#name, name##_fields, sizeof name##_fields / sizeof name##_fields[0], array}
#define SAME_SIZE(name)                                                                        \
    _Static_assert(sizeof(struct cb_block_##name) == 4 * sizeof name##_fields / sizeof name##_fields[0], \
                   #name ": one rule per field")

SAME_SIZE(model);
SAME_SIZE(rope);
SAME_SIZE(layer);
SAME_SIZE(attention);
SAME_SIZE(mla);
SAME_SIZE(short_conv);
SAME_SIZE(ffn);
SAME_SIZE(moe);
SAME_SIZE(shared);

static const struct block_type block_types[] = {
    BLOCK(CB_BLOCK_MODEL, model, 0),
    BLOCK(CB_BLOCK_ROPE, rope, 1),
    BLOCK(CB_BLOCK_LAYER, layer, 0),
    BLOCK(CB_BLOCK_ATTENTION, attention, 0),
    BLOCK(CB_BLOCK_MLA, mla, 0),
    BLOCK(CB_BLOCK_SHORT_CONV, short_conv, 0),
    BLOCK(CB_BLOCK_FFN, ffn, 0),
    BLOCK(CB_BLOCK_MOE, moe, 0),
    BLOCK(CB_BLOCK_SHARED, shared, 0),
    /* reserved: known by name, without a reader */
    [CB_BLOCK_STATE_SPACE] = {"state_space", NULL, 0, 0},
    [CB_BLOCK_DELTA_NET] = {"delta_net", NULL, 0, 0},
};

static const struct block_type *find_type(uint32_t type)
{
    if (type >= sizeof block_types / sizeof block_types[0] || block_types[type].name == NULL)
        return NULL;
    return &block_types[type];
}

static int is_finite(uint32_t bits)
{
    return (bits & 0x7f800000u) != 0x7f800000u;
}

static int check_field(const struct block_type *type, const struct field *field, uint32_t value,
                       int64_t offset, colibri_error *error)
{
    switch (field->kind) {
    case RANGE:
        if (value > field->high)
            return cb_fail(error, COLIBRI_ERR_LIMIT, offset, "block %s: %s is %u, the limit is %u",
                           type->name, field->name, value, field->high);
        if (value < field->low)
            return cb_fail(error, COLIBRI_ERR_RECORD, offset, "block %s: %s is %u, must be %u..%u",
                           type->name, field->name, value, field->low, field->high);
        return 0;
    case ENUM:
        if (value > field->high)
            return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                           "block %s: %s is %u, the highest known value is %u", type->name,
                           field->name, value, field->high);
        return 0;
    case FINITE:
        if (!is_finite(value))
            return cb_fail(error, COLIBRI_ERR_RECORD, offset, "block %s: %s is not finite",
                           type->name, field->name);
        return 0;
    case RESERVED:
        if (value != 0)
            return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                           "block %s: reserved field is %u, must be 0", type->name, value);
        return 0;
    case ANY:
        break;
    }
    return 0;
}

/* Fields in file order, then the array of a rope block. */
static int check_block(const struct cb_records *r, const struct block_type *type,
                       colibri_error *error)
{
    size_t fixed = 4 * type->count;
    struct cb_cursor fields;
    size_t i;

    if (r->payload_bytes < fixed || (r->payload_bytes != fixed && !type->has_array))
        return cb_fail(error, COLIBRI_ERR_RECORD, r->offset,
                       "block %s has %zu bytes, its struct has %zu", type->name, r->payload_bytes,
                       fixed);
    cb_cursor_init(&fields, r->payload, r->payload_bytes,
                   (uint64_t)r->offset + CB_BLOCK_HEADER_BYTES);
    if (type->has_array) {
        struct cb_block_rope rope;

        memcpy(&rope, r->payload, sizeof rope);
        if ((r->payload_bytes - fixed) / 4 != rope.pairs)
            return cb_fail(error, COLIBRI_ERR_RECORD, r->offset,
                           "block rope says %u pairs and holds %zu", rope.pairs,
                           (r->payload_bytes - fixed) / 4);
    }
    for (i = 0; i < type->count; i++) {
        int64_t offset = cb_cursor_offset(&fields);
        int code = check_field(type, &type->fields[i], cb_cursor_u32(&fields), offset, error);

        if (code != 0)
            return code;
    }
    while (cb_cursor_left(&fields) > 0) {
        int64_t offset = cb_cursor_offset(&fields);
        float value;

        cb_cursor_read(&fields, &value, sizeof value);
        /* Written so that a NaN fails too. */
        if (!(value >= 0.0f && value <= 1.0f))
            return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                           "block rope: inv_freq is not within 0..1");
    }
    return 0;
}

/* Move to the next known block and check its fields; unknown optional ones are skipped. */
static int advance(struct cb_records *r, colibri_error *error)
{
    for (;;) {
        const struct block_type *type;
        uint32_t flags, size;

        r->offset = cb_cursor_offset(&r->cursor);
        if (cb_cursor_left(&r->cursor) == 0) {
            r->type = TYPE_END;
            return 0;
        }
        r->type = cb_cursor_u16(&r->cursor);
        flags = cb_cursor_u16(&r->cursor);
        size = cb_cursor_u32(&r->cursor);
        if (r->cursor.failed)
            return cb_fail(error, COLIBRI_ERR_RECORD, r->offset,
                           "the records end inside a block header of %u bytes",
                           CB_BLOCK_HEADER_BYTES);
        if ((flags & ~BLOCK_OPTIONAL) != 0)
            return cb_fail(error, COLIBRI_ERR_RECORD, r->offset, "block %u has unknown flags 0x%x",
                           r->type, flags);
        if (size % 4 != 0 || size > cb_cursor_left(&r->cursor))
            return cb_fail(error, COLIBRI_ERR_RECORD, r->offset,
                           "block %u claims %u bytes, %zu are left (multiples of 4)", r->type, size,
                           cb_cursor_left(&r->cursor));
        r->payload = cb_cursor_take(&r->cursor, size);
        r->payload_bytes = size;
        type = find_type(r->type);
        if (type != NULL && type->fields == NULL)
            return cb_fail(error, COLIBRI_ERR_UNSUPPORTED, r->offset,
                           "block %s is reserved; this version has no reader for it", type->name);
        if (type != NULL)
            return check_block(r, type, error);
        if ((flags & BLOCK_OPTIONAL) == 0)
            return cb_fail(error, COLIBRI_ERR_RECORD, r->offset,
                           "block type %u is unknown and required", r->type);
    }
}

static const char *type_name(uint32_t type)
{
    const struct block_type *known = find_type(type);

    return known != NULL ? known->name : "end of the records";
}

/* The block in front of the reader must be of `type`; copy its struct and go on. */
static int take(struct cb_records *r, uint32_t type, void *out, size_t size, int64_t *offset,
                colibri_error *error)
{
    if (r->type != type)
        return cb_fail(error, COLIBRI_ERR_RECORD, r->offset, "layer %u: %s found where %s must be",
                       r->layer, type_name(r->type), type_name(type));
    memcpy(out, r->payload, size);
    *offset = r->offset;
    return advance(r, error);
}

int cb_records_begin(struct cb_records *r, const uint8_t *bytes, size_t size, uint64_t file_offset,
                     colibri_error *error)
{
    int64_t offset;
    int code;

    memset(r, 0, sizeof *r);
    cb_cursor_init(&r->cursor, bytes, size, file_offset);
    code = advance(r, error);
    if (code == 0)
        code = take(r, CB_BLOCK_MODEL, &r->model, sizeof r->model, &offset, error);
    while (code == 0 && r->type == CB_BLOCK_ROPE) {
        struct cb_rope_table *table = &r->rope[r->ropes];

        if (r->ropes == CB_MAX_ROPE_TABLES)
            return cb_fail(error, COLIBRI_ERR_LIMIT, r->offset, "more than %u rope tables",
                           CB_MAX_ROPE_TABLES);
        table->inv_freq = (const float *)(const void *)(r->payload + sizeof table->block);
        r->ropes++;
        code = take(r, CB_BLOCK_ROPE, &table->block, sizeof table->block, &offset, error);
    }
    return code;
}

static int check_rope(const struct cb_records *r, uint32_t table, uint32_t width, int64_t offset,
                      colibri_error *error)
{
    if (table == CB_NONE_INDEX)
        return 0;
    if (table >= r->ropes)
        return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                       "layer %u: rope_table is %u, the model has %u tables", r->layer, table,
                       r->ropes);
    if (2 * r->rope[table].block.pairs > width)
        return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                       "layer %u: rope table %u rotates %u channels of %u", r->layer, table,
                       2 * r->rope[table].block.pairs, width);
    return 0;
}

static int read_mixer(struct cb_records *r, struct cb_layer_records *l, colibri_error *error)
{
    int64_t offset;
    int code;

    switch (l->layer.mixer_kind) {
    case CB_MIXER_NONE:
        return 0;
    case CB_MIXER_ATTENTION:
        code = take(r, CB_BLOCK_ATTENTION, &l->attention, sizeof l->attention, &offset, error);
        if (code != 0)
            return code;
        if (l->attention.heads % l->attention.kv_heads != 0)
            return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                           "layer %u: %u heads are no multiple of %u KV heads", r->layer,
                           l->attention.heads, l->attention.kv_heads);
        return check_rope(r, l->attention.rope_table, l->attention.head_dim, offset, error);
    case CB_MIXER_MLA:
        code = take(r, CB_BLOCK_MLA, &l->mla, sizeof l->mla, &offset, error);
        if (code != 0)
            return code;
        return check_rope(r, l->mla.rope_table, l->mla.rope_dim, offset, error);
    case CB_MIXER_SHORT_CONV:
        return take(r, CB_BLOCK_SHORT_CONV, &l->short_conv, sizeof l->short_conv, &offset, error);
    default:
        return cb_fail(error, COLIBRI_ERR_UNSUPPORTED, r->offset,
                       "layer %u: mixer kind %s is reserved; this version has no reader for it",
                       r->layer,
                       l->layer.mixer_kind == CB_MIXER_STATE_SPACE ? "state_space" : "delta_net");
    }
}

static int read_ffn(struct cb_records *r, struct cb_layer_records *l, colibri_error *error)
{
    const struct cb_block_moe *moe = &l->moe;
    int64_t offset;
    int code;

    if (l->layer.ffn_kind == CB_FFN_NONE)
        return 0;
    if (l->layer.ffn_kind == CB_FFN_DENSE)
        return take(r, CB_BLOCK_FFN, &l->ffn, sizeof l->ffn, &offset, error);
    code = take(r, CB_BLOCK_MOE, &l->moe, sizeof l->moe, &offset, error);
    if (code != 0)
        return code;
    if (moe->top_k > moe->experts)
        return cb_fail(error, COLIBRI_ERR_RECORD, offset, "layer %u: top_k is %u of %u experts",
                       r->layer, moe->top_k, moe->experts);
    if (moe->groups != 0 && moe->experts % moe->groups != 0)
        return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                       "layer %u: %u groups do not divide %u experts", r->layer, moe->groups,
                       moe->experts);
    if (moe->groups_chosen > moe->groups)
        return cb_fail(error, COLIBRI_ERR_RECORD, offset, "layer %u: %u groups chosen of %u",
                       r->layer, moe->groups_chosen, moe->groups);
    if (r->type != CB_BLOCK_SHARED)
        return 0;
    l->has_shared = 1;
    return take(r, CB_BLOCK_SHARED, &l->shared, sizeof l->shared, &offset, error);
}

int cb_records_next(struct cb_records *r, struct cb_layer_records *l, colibri_error *error)
{
    int64_t offset;
    int code;

    memset(l, 0, sizeof *l);
    code = take(r, CB_BLOCK_LAYER, &l->layer, sizeof l->layer, &offset, error);
    if (code != 0)
        return code;
    if (l->layer.index != r->layer)
        return cb_fail(error, COLIBRI_ERR_RECORD, offset, "layer %u is numbered %u", r->layer,
                       l->layer.index);
    code = read_mixer(r, l, error);
    if (code == 0)
        code = read_ffn(r, l, error);
    if (code != 0)
        return code;
    r->layer++;
    if (r->layer == r->model.layers && r->type != TYPE_END)
        return cb_fail(error, COLIBRI_ERR_RECORD, r->offset, "block %s behind the last layer",
                       type_name(r->type));
    return 0;
}
