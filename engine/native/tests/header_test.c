/* SPDX-License-Identifier: MIT */
/* colibri.h is the first and only include: it must compile alone as C11, and its pinned numbers hold. */
#include "colibri.h"

_Static_assert(COLIBRI_OK == 0, "0 is success");
_Static_assert(COLIBRI_ERR_OPEN == -1 && COLIBRI_ERR_BAD_MAGIC == -2, "the first codes are pinned");
_Static_assert(offsetof(colibri_error, code) == 0 && offsetof(colibri_error, offset) == 8 &&
                   offsetof(colibri_error, message) == 16 && sizeof(colibri_error) == 272,
               "colibri_error has no hidden padding");
_Static_assert(offsetof(colibri_model_options, struct_size) == 0, "option structs begin with their size");
_Static_assert(offsetof(colibri_sampler, struct_size) == 0, "option structs begin with their size");
_Static_assert(offsetof(colibri_plan, struct_size) == 0, "option structs begin with their size");
_Static_assert(offsetof(colibri_model_info, struct_size) == 0, "option structs begin with their size");
_Static_assert(offsetof(colibri_report, struct_size) == 0, "option structs begin with their size");
_Static_assert(offsetof(colibri_model_options, budget_bytes) == 32, "eight 32-bit fields, then the budget");
_Static_assert(offsetof(colibri_sampler, seed) == 24 && sizeof(colibri_sampler) == 32,
               "colibri_sampler has no hidden padding");
_Static_assert(offsetof(colibri_plan, mapped_bytes) == 40 && sizeof(colibri_plan) == 40 + 15 * sizeof(uint64_t),
               "colibri_plan has no hidden padding");
_Static_assert(offsetof(colibri_sandbox, struct_size) == 0 && offsetof(colibri_sandbox_report, struct_size) == 0,
               "option structs begin with their size");
_Static_assert(sizeof(colibri_sandbox_report) == sizeof(size_t) + 6 * sizeof(uint32_t),
               "colibri_sandbox_report has no hidden padding");
_Static_assert(sizeof(colibri_utf8) == 8, "colibri_utf8 has no hidden padding");

int header_test(void);
int header_test(void)
{
    colibri_error error = {0};
    return error.code;
}
