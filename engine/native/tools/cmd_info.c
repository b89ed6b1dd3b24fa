/* SPDX-License-Identifier: MIT */
/* colibrictl info: the build, the facts of a model and its memory plan, for people or programs. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../src/spec.h"
#include "commands.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "verity.h"

#define NAME "info"

struct info_values {
    bool json;
};

static const struct ctl_option info_options[] = {
    { "json", 'j', CTL_FLAG, offsetof(struct info_values, json), 0, 0, NULL, NULL,
      "one JSON object on stdout" },
};

static const char info_notes[] =
    "Without MODEL only the build is described. The plan has the rows of 'colibri inspect' and the\n"
    "same numbers; 'total' is the memory that is never exceeded. Nothing is locked.\n"
    "\n"
    "Examples:\n"
    "  colibrictl info\n"
    "  colibrictl info model.colibri --context 512 --threads 4\n"
    "  colibrictl info model.colibri --json\n";

struct facts {
    const char *path;
    colibri_model_info info;
    colibri_plan plan;
    colibri_report report;
    colibri_memory_report memory;
    char root[CTL_HEX_BYTES];
};

static const char *family_name(uint32_t family)
{
    static const char *const names[] = {
        [CB_FAMILY_UNKNOWN] = "unknown",
        [CB_FAMILY_MIXTRAL] = "mixtral",
        [CB_FAMILY_GRANITE_MOE] = "granite_moe",
        [CB_FAMILY_SMALLTHINKER] = "smallthinker",
        [CB_FAMILY_OLMOE] = "olmoe",
        [CB_FAMILY_QWEN2_MOE] = "qwen2_moe",
        [CB_FAMILY_QWEN3_MOE] = "qwen3_moe",
        [CB_FAMILY_LFM2_MOE] = "lfm2_moe",
        [CB_FAMILY_GPT_OSS] = "gpt_oss",
        [CB_FAMILY_DEEPSEEK_V2] = "deepseek_v2",
        [CB_FAMILY_DEEPSEEK_V3] = "deepseek_v3",
        [CB_FAMILY_SWITCH] = "switch",
        [CB_FAMILY_DEEPSPEED_MOE] = "deepspeed_moe",
        [CB_FAMILY_FACE_MOE] = "face_moe",
        [CB_FAMILY_LLAMA_MOE] = "llama_moe",
        [CB_FAMILY_GRANITE_HYBRID] = "granite_hybrid",
        [CB_FAMILY_AFMOE] = "afmoe",
        [CB_FAMILY_GEMMA_MOE] = "gemma_moe",
        [CB_FAMILY_QWEN3_NEXT] = "qwen3_next",
        [CB_FAMILY_PHIMOE] = "phimoe",
    };

    return family < sizeof names / sizeof names[0] && names[family] != NULL ? names[family]
                                                                            : "unknown";
}

/* ---- one writer for both forms ----------------------------------------------------------- */

struct writer {
    bool json;
    bool first; /* of the current object */
};

static void begin_object(struct writer *w, const char *name)
{
    if (w->json) {
        (void)printf("%s\n \"%s\": {", w->first ? "{" : ",", name);
    } else {
        (void)printf("%s%s:\n", w->first ? "" : "\n", name);
    }
    w->first = true;
}

static void end_object(struct writer *w)
{
    if (w->json) {
        (void)printf("}");
    }
    w->first = false;
}

static void put_name(struct writer *w, const char *name)
{
    if (w->json) {
        (void)printf("%s\"%s\": ", w->first ? "" : ", ", name);
    } else {
        (void)printf("  %-18s ", name);
    }
    w->first = false;
}

static void put_text(struct writer *w, const char *name, const char *text)
{
    put_name(w, name);
    if (w->json) {
        ctl_print_json_text(text);
    } else {
        (void)printf("%s\n", text);
    }
}

static void put_number(struct writer *w, const char *name, uint64_t number)
{
    put_name(w, name);
    (void)printf("%" PRIu64 "%s", number, w->json ? "" : "\n");
}

static void put_truth(struct writer *w, const char *name, bool truth)
{
    put_name(w, name);
    if (w->json) {
        (void)printf("%s", truth ? "true" : "false");
    } else {
        (void)printf("%s\n", truth ? "yes" : "no");
    }
}

/* ---- the three objects ------------------------------------------------------------------- */

static void put_build(struct writer *w, const struct facts *facts)
{
    uint8_t key_id[32];
    char key[CTL_HEX_BYTES];
    int support = colibri_signature_support(key_id);

    begin_object(w, "build");
    put_text(w, "build_info", colibri_build_info());
    put_text(w, "version", colibri_version());
    put_number(w, "abi_version", colibri_abi_version());
    put_number(w, "format_version", CB_VERSION_MAJOR);
    put_text(w, "forced", colibri_build_forced());
    put_text(w, "signatures", support == 0 ? "no" : support == 1 ? "yes" : "yes, of one key");
    if (support == 2) {
        ctl_hex(key_id, key);
        put_text(w, "trusted_key_id", key);
    }
    put_text(w, "isas_compiled", colibri_isas_compiled());
    put_text(w, "isas_available", colibri_isas_available());
    if (facts != NULL) {
        put_text(w, "isa", facts->report.isa);
    }
    end_object(w);
}

static void put_model(struct writer *w, const struct facts *facts)
{
    const colibri_model_info *info = &facts->info;
    struct cb_verity_digest verity_digest;
    enum cb_verity verity = cb_verity_of_path(facts->path, &verity_digest);
    char key[CTL_HEX_BYTES];
    char digest[CB_VERITY_TEXT_BYTES];

    begin_object(w, "model");
    put_text(w, "file", facts->path);
    put_text(w, "root", facts->root);
    put_text(w, "signature", ctl_signature_name(facts->report.signature));
    if (facts->report.signature != COLIBRI_SIGNATURE_NONE) {
        ctl_hex(facts->report.key_id, key);
        put_text(w, "key_id", key);
    }
    put_text(w, "fs_verity", cb_verity_name(verity));
    if (verity == CB_VERITY_ON) {
        cb_verity_text(&verity_digest, digest);
        put_text(w, "fs_verity_digest", digest);
    }
    put_text(w, "family", family_name(info->family));
    put_number(w, "parameters", info->parameters);
    put_number(w, "layers", info->layers);
    put_number(w, "hidden", info->hidden);
    put_number(w, "vocabulary", info->vocabulary);
    put_number(w, "context_tokens", info->context_tokens);
    put_number(w, "heads", info->heads);
    put_number(w, "kv_heads", info->kv_heads);
    put_number(w, "head_dim", info->head_dim);
    put_number(w, "experts", info->experts);
    put_number(w, "top_k", info->top_k);
    put_number(w, "intermediate", info->intermediate);
    put_truth(w, "tokenizer", info->has_tokenizer != 0);
    put_truth(w, "chat", info->has_chat != 0);
    put_truth(w, "secure_mode", facts->memory.secure_mode != 0);
    put_number(w, "file_bytes", info->file_bytes);
    put_number(w, "trunk_bytes", info->trunk_bytes);
    put_number(w, "expert_bytes", info->expert_bytes);
    put_number(w, "extents", facts->report.extents);
    end_object(w);
}

static const char *residency_name(uint32_t residency)
{
    static const char *const names[] = { "auto", "resident", "stream", "mapped", "mapped-guarded" };

    return residency < sizeof names / sizeof names[0] ? names[residency] : "unknown";
}

/* The rows of docs/format.md, section 8. */
static void put_plan(struct writer *w, const colibri_plan *plan)
{
    begin_object(w, "plan");
    put_number(w, "context_tokens", plan->context_tokens);
    put_number(w, "batch_tokens", plan->batch_tokens);
    put_number(w, "threads", plan->threads);
    put_number(w, "max_sessions", plan->max_sessions);
    put_text(w, "kv", plan->kv == COLIBRI_KV_F32 ? "f32" : "f16");
    put_text(w, "residency", residency_name(plan->residency));
    put_number(w, "expert_slots", plan->expert_slots);
    put_number(w, "max_expert_slots", plan->max_expert_slots);
    put_number(w, "io_threads", plan->io_threads);
    put_number(w, "mapped_bytes", plan->mapped_bytes);
    put_number(w, "trunk_mapped_bytes", plan->trunk_mapped_bytes);
    put_number(w, "kv_bytes", plan->kv_bytes);
    put_number(w, "activation_bytes", plan->activation_bytes);
    put_number(w, "table_bytes", plan->table_bytes);
    put_number(w, "slot_bytes", plan->slot_bytes);
    put_number(w, "slots_bytes", plan->slots_bytes);
    put_number(w, "stack_bytes", plan->stack_bytes);
    put_number(w, "io_stack_bytes", plan->io_stack_bytes);
    put_number(w, "arena_bytes", plan->arena_bytes);
    put_number(w, "process_bytes", plan->process_bytes);
    put_number(w, "kernel_bytes", plan->kernel_bytes);
    put_number(w, "total_bytes", plan->total_bytes);
    put_number(w, "floor_bytes", plan->floor_bytes);
    put_number(w, "recommended_bytes", plan->recommended_bytes);
    end_object(w);
}

static int print_facts(bool json, const struct facts *facts)
{
    struct writer w = { .json = json, .first = true };

    put_build(&w, facts);
    if (facts != NULL) {
        put_model(&w, facts);
        put_plan(&w, &facts->plan);
    }
    if (json) {
        (void)printf("\n}\n");
    }
    return ctl_finish_stdout();
}

static int print_model(bool json, const char *path, struct ctl_model_values *values)
{
    struct facts facts = { .path = path,
                           .info = { .struct_size = sizeof facts.info },
                           .plan = { .struct_size = sizeof facts.plan },
                           .report = { .struct_size = sizeof facts.report },
                           .memory = { .struct_size = sizeof facts.memory } };
    colibri_model *model = NULL;
    int exit_code = ctl_model_open(NAME, path, values, &model);

    if (exit_code == 0) {
        (void)colibri_model_info_get(model, &facts.info);
        (void)colibri_model_plan(model, &facts.plan);
        (void)colibri_model_report(model, &facts.report);
        (void)colibri_model_memory(model, &facts.memory);
        ctl_hex(facts.info.root, facts.root);
        exit_code = print_facts(json, &facts);
    }
    colibri_model_close(model);
    return exit_code;
}

int ctl_command_info(int argc, char *const *argv)
{
    struct info_values values = { 0 };
    struct ctl_model_values model_values = { 0 };
    const struct ctl_group groups[] = {
        { "Output", info_options, sizeof info_options / sizeof info_options[0], &values },
        { "Model (as in run: the plan depends on them)", ctl_model_options, ctl_model_option_count,
          &model_values },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "[MODEL] [options]",
        .summary = "Describe this build, a model and its memory plan.",
        .notes = info_notes,
        .groups = groups,
        .group_count = 2,
        .positional_names = { "MODEL" },
        .positionals_min = 0,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    int code = ctl_parse(&command, argc, argv, positionals);

    if (code != 0) {
        return ctl_parsed(code);
    }
    model_values.never_lock = true;
    return positionals[0] == NULL ? print_facts(values.json, NULL)
                                  : print_model(values.json, positionals[0], &model_values);
}
