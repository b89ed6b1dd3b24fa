/* SPDX-License-Identifier: MIT */
/* Hashes, padding and values of sections and extents (docs/format.md, 4 and 5). */
#ifndef CB_VERIFY_H
#define CB_VERIFY_H

#include "colibri.h"
#include "model.h"

/* Hash of a section that the table binds: tokenizer, provenance, calibration. */
int cb_verify_section(const struct cb_container *c, uint32_t kind, colibri_error *error);
/* An extent, on all threads; remembered, so that it is done once. */
int cb_verify_extent(colibri_model *m, uint32_t index, colibri_error *error);
/* Every section and every extent. */
int cb_verify_all(colibri_model *m, colibri_error *error);

#endif
