/* SPDX-License-Identifier: MIT */
#include "records.h"

#include <string.h>

#include "common.h"
#include "error.h"

#define BLOCK_OPTIONAL 1u /* flag bit 0: a reader that does not know the type may skip it */
#define TYPE_END 0u

/* What one 4-byte field may hold. */
enum field_kind {
    ANY,     /* checked elsewhere */
    RANGE,   /* low..high: below is malformed, above is beyond a limit */
    ENUM,    /* 0..high; also booleans and bit sets: anything above is malformed */
    FINITE,
    RESERVED /* zero */
};

struct rule {
    uint32_t high;
    uint8_t kind, low;
};

/* A rule is a byte in front of a field's name, an index into `rules`: a table of names, kinds and
 * limits for every field would have three times the size. */
static const struct rule rules[] = {
    {0, ANY, 0},
    {0, FINITE, 0},
    {0, RESERVED, 0},
    {1, ENUM, 0},
    {CB_FAMILY_PHIMOE, ENUM, 0},
    {CB_POSITION_LEARNED, ENUM, 0},
    {CB_NORM_LAYER, ENUM, 0},
    {CB_ROPE_INTERLEAVED, ENUM, 0},
    {CB_MIXER_DELTA_NET, ENUM, 0},
    {CB_FFN_MOE, ENUM, 0},
    {CB_NORM_AT_PRE_MIXER | CB_NORM_AT_POST_MIXER | CB_NORM_AT_PRE_FFN | CB_NORM_AT_POST_FFN, ENUM, 0},
    {CB_QK_NORM_FULL_WIDTH_THEN_CLIP, ENUM, 0},
    {CB_ACT_IDENTITY, ENUM, 0},
    {CB_SCORE_LOGITS, ENUM, 0},
    {CB_NORMALISE_SUM, ENUM, 0},
    {CB_ROUTER_INPUT_FFN_RESIDUAL, ENUM, 0},
    {CB_GROUP_SCORE_TOP2_SUM, ENUM, 0},
    {CB_SHARED_GATE_SIGMOID, ENUM, 0},
    {CB_MAX_HIDDEN, RANGE, 1},
    {CB_MAX_HIDDEN, RANGE, 0},
    {CB_MAX_VOCABULARY, RANGE, 1},
    {CB_MAX_LAYERS, RANGE, 1},
    {CB_MAX_CONTEXT_TOKENS, RANGE, 1},
    {CB_MAX_CONTEXT_TOKENS, RANGE, 0},
    {CB_MAX_HEAD_DIM / 2, RANGE, 1},
    {CB_MAX_HEADS, RANGE, 1},
    {CB_MAX_HEAD_DIM, RANGE, 1},
    {CB_MAX_INTERMEDIATE, RANGE, 1},
    {CB_MAX_EXPERTS, RANGE, 1},
    {CB_MAX_EXPERTS, RANGE, 0},
    {CB_MAX_TOP_K, RANGE, 1},
};
/* In the order of `rules`. */
#define ANY_ "\000"
#define FLOAT_ "\001"
#define RESERVED_ "\002reserved\0"
#define BOOL_ "\003"
#define FAMILY_ "\004"
#define POSITION_ "\005"
#define NORM_ "\006"
#define STYLE_ "\007"
#define MIXER_ "\010"
#define FFN_ "\011"
#define PLACES_ "\012"
#define QK_NORM_ "\013"
#define ACTIVATION_ "\014"
#define SCORE_ "\015"
#define NORMALISE_ "\016"
#define INPUT_ "\017"
#define GROUP_SCORE_ "\020"
#define SHARED_GATE_ "\021"
#define WIDTH_ "\022"
#define WIDTH0_ "\023"
#define VOCABULARY_ "\024"
#define LAYERS_ "\025"
#define TOKENS_ "\026"
#define TOKENS0_ "\027"
#define PAIRS_ "\030"
#define HEADS_ "\031"
#define HEAD_DIM_ "\032"
#define INTERMEDIATE_ "\033"
#define EXPERTS_ "\034"
#define EXPERTS0_ "\035"
#define TOP_K_ "\036"
_Static_assert(sizeof rules / sizeof rules[0] == 037, "a rule for each of the bytes above");

/* The fields of a block in file order, one after another. */
static const char model_fields[] =
    FAMILY_ "family\0" WIDTH_ "hidden\0" VOCABULARY_ "vocabulary\0" LAYERS_ "layers\0"
    TOKENS_ "context_tokens\0" POSITION_ "position_kind\0" TOKENS0_ "position_offset\0"
    BOOL_ "tied_head\0" FLOAT_ "embedding_multiplier\0" FLOAT_ "logits_multiplier\0"
    FLOAT_ "logits_softcap\0" NORM_ "norm_kind\0" FLOAT_ "norm_eps\0"
    NORM_ "embedding_norm_kind\0" BOOL_ "head_bias\0" RESERVED_;
static const char rope_fields[] =
    STYLE_ "style\0" PAIRS_ "pairs\0" FLOAT_ "attention_factor\0" RESERVED_;
static const char layer_fields[] =
    ANY_ "index\0" MIXER_ "mixer_kind\0" FFN_ "ffn_kind\0" NORM_ "norm_kind\0" FLOAT_ "norm_eps\0"
    PLACES_ "norm_places\0" FLOAT_ "residual_multiplier\0" BOOL_ "norm_bias\0" BOOL_ "parallel\0"
    RESERVED_;
static const char attention_fields[] =
    HEADS_ "heads\0" HEADS_ "kv_heads\0" HEAD_DIM_ "head_dim\0" HEAD_DIM_ "value_dim\0"
    FLOAT_ "scale\0" TOKENS0_ "window_tokens\0" ANY_ "rope_table\0" QK_NORM_ "qk_norm_kind\0"
    FLOAT_ "qk_norm_eps\0" FLOAT_ "clip_qkv\0" FLOAT_ "softcap\0" BOOL_ "q_bias\0"
    BOOL_ "kv_bias\0" BOOL_ "o_bias\0" BOOL_ "sinks\0" BOOL_ "output_gate\0";
static const char mla_fields[] =
    HEADS_ "heads\0" WIDTH0_ "q_rank\0" WIDTH_ "kv_rank\0" HEAD_DIM_ "nope_dim\0"
    HEAD_DIM_ "rope_dim\0" HEAD_DIM_ "value_dim\0" FLOAT_ "scale\0" ANY_ "rope_table\0"
    FLOAT_ "norm_eps\0" TOKENS0_ "window_tokens\0";
static const char short_conv_fields[] =
    WIDTH_ "width\0" HEAD_DIM_ "taps\0" BOOL_ "bias\0" RESERVED_;
#define MLP_ ACTIVATION_ "activation\0" BOOL_ "gated\0" BOOL_ "bias\0" FLOAT_ "clamp\0" FLOAT_ "alpha\0"
static const char moe_fields[] =
    EXPERTS_ "experts\0" TOP_K_ "top_k\0" INTERMEDIATE_ "intermediate\0" MLP_
    SCORE_ "router_score\0" NORMALISE_ "router_normalise\0" FLOAT_ "router_normalise_eps\0"
    INPUT_ "router_input\0" BOOL_ "router_bias\0" BOOL_ "selection_bias\0" EXPERTS0_ "groups\0"
    EXPERTS0_ "groups_chosen\0" GROUP_SCORE_ "group_score\0" FLOAT_ "routed_scale\0"
    FLOAT_ "threshold\0" RESERVED_;
/* ffn has the fields of shared up to its gate. */
#define ffn_fields shared_fields
static const char shared_fields[] =
    INTERMEDIATE_ "intermediate\0" MLP_ SHARED_GATE_ "gate\0" RESERVED_;

struct block_type {
    const char *name;
    const char *fields;
    uint16_t bytes; /* of the struct, 4 for each field */
    uint16_t has_array;
};

#define BLOCK(id, name, array) [id] = {#name, name##_fields, sizeof(struct cb_block_##name), array}

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

/* field: the byte of its rule and its name. */
static int check_field(const char *block, const char *field, uint32_t value, int64_t offset,
                       colibri_error *error)
{
    const struct rule *rule = &rules[(unsigned char)field[0]];
    const char *name = field + 1;

    switch (rule->kind) {
    case RANGE:
        if (value > rule->high)
            return cb_fail(error, COLIBRI_ERR_LIMIT, offset, "block %s: %s is %u, the limit is %u",
                           block, name, value, rule->high);
        if (value < rule->low)
            return cb_fail(error, COLIBRI_ERR_RECORD, offset, "block %s: %s is %u, must be %u..%u",
                           block, name, value, (unsigned)rule->low, rule->high);
        return 0;
    case ENUM:
        if (value > rule->high)
            return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                           "block %s: %s is %u, the highest known value is %u", block, name, value,
                           rule->high);
        return 0;
    case FINITE:
        if (!cb_is_finite(&value))
            return cb_fail(error, COLIBRI_ERR_RECORD, offset, "block %s: %s is not finite", block,
                           name);
        return 0;
    case RESERVED:
        if (value != 0)
            return cb_fail(error, COLIBRI_ERR_RECORD, offset,
                           "block %s: reserved field is %u, must be 0", block, value);
        return 0;
    default:
        return 0;
    }
}

/* Fields in file order, then the array of a rope block. */
static int check_block(const struct cb_records *r, const struct block_type *type,
                       colibri_error *error)
{
    size_t fixed = type->bytes;
    const char *field = type->fields;
    struct cb_cursor fields;

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
    while (cb_cursor_left(&fields) > r->payload_bytes - fixed) {
        int64_t offset = cb_cursor_offset(&fields);
        int code = check_field(type->name, field, cb_cursor_u32(&fields), offset, error);

        if (code != 0)
            return code;
        field += strlen(field + 1) + 2;
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
        l->attention.heads = l->attention.kv_heads = l->mla.heads;
        l->attention.head_dim = l->mla.nope_dim + l->mla.rope_dim;
        l->attention.value_dim = l->mla.value_dim;
        l->attention.scale = l->mla.scale;
        l->attention.window_tokens = l->mla.window_tokens;
        l->attention.rope_table = l->mla.rope_table;
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
    if (moe->groups_chosen > moe->groups ||
        (moe->groups_chosen != 0 && moe->top_k > moe->groups_chosen * (moe->experts / moe->groups)))
        return cb_fail(error, COLIBRI_ERR_RECORD, offset, "layer %u: %u groups chosen of %u, top_k %u",
                       r->layer, moe->groups_chosen, moe->groups, moe->top_k);
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
