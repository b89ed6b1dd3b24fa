/* SPDX-License-Identifier: MIT */
/* The calibration section (docs/format.md, 10): how experts were used on a text, read in place. */
#ifndef CB_CALIBRATION_H
#define CB_CALIBRATION_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "spec.h"

struct cb_calibration {
    const struct cb_calibration_layer *layers; /* [layer_count], those that have experts */
    const uint32_t *counts;                    /* [sum of experts] */
    uint32_t layer_count;
    uint32_t tokens;
};

/* data: 4-byte aligned, outlives *c. Its layers must be those of the model that have experts. */
int cb_calibration_open(struct cb_calibration *c, const void *data, size_t bytes,
                        uint64_t file_offset, const colibri_model *m, colibri_error *error);
/* Times each expert of a layer was chosen: [experts]; NULL for a layer without experts. */
const uint32_t *cb_calibration_counts(const struct cb_calibration *c, uint32_t layer);

#endif
