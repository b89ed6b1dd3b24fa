/* SPDX-License-Identifier: MIT */
/* One matrix, any dtype. */
#include "common.h"
#include "pass.h"

size_t cb_matrix_panels(const struct cb_matrix *w)
{
    return cb_up32(w->rows, CB_PANEL_ROWS) / CB_PANEL_ROWS;
}

void cb_matmul(const struct cb_kernels *k, const struct cb_matrix *w, size_t first, size_t last,
               const struct cb_input *in, size_t token, size_t tokens, float *y, size_t stride)
{
    size_t columns = cb_up32(w->columns, CB_GROUP_COLUMNS), groups = columns / CB_GROUP_COLUMNS;
    const uint8_t *data = w->data + first * cb_panel_bytes(w->dtype, w->columns);
    const void *panels = data;
    const float *x = in->x + token * in->stride;
    struct cb_quantized q = in->q;

    size_t t;

    if (first >= last)
        return;
    if (cb_is_quantized(w->dtype)) {
        q.q += token * columns;
        q.d += token * groups;
        q.s += token * groups;
        q.groups = groups;
    }
    y += first * CB_PANEL_ROWS;
    switch (w->dtype) {
    case CB_DTYPE_INT4:
        k->matmul_int4(data, last - first, &q, tokens, y, stride);
        break;
    case CB_DTYPE_INT8:
        k->matmul_int8(data, last - first, &q, tokens, y, stride);
        break;
    case CB_DTYPE_F16:
        k->matmul_f16(panels, last - first, columns, x, in->stride, tokens, y, stride);
        break;
    case CB_DTYPE_BF16:
        k->matmul_bf16(panels, last - first, columns, x, in->stride, tokens, y, stride);
        break;
    default: /* f32: cb_model_check_support refuses everything else */
        k->matmul_f32(panels, last - first, columns, x, in->stride, tokens, y, stride);
        break;
    }
    if (w->bias == 0)
        return;
    panels = w->data + (size_t)w->bias * CB_TENSOR_ALIGN_BYTES;
    for (t = 0; t < tokens; t++) /* a product with 1 changes nothing */
        k->add_scaled(y + t * stride, 1.0f, (const float *)panels + first * CB_PANEL_ROWS,
                      (last - first) * CB_PANEL_ROWS);
}
