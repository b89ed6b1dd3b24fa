# SPDX-License-Identifier: MIT
"""What verification demands of stored weights: finite values, zero padding (docs/format.md 4).

Standard library only, so that `colibri verify` needs no numpy: bytes are filtered with
translate and strided slices, padding is compared as one large integer per block.
"""

from __future__ import annotations

from colibri import _spec as spec
from colibri._spec import Code, DType, Layout
from colibri.errors import ColibriError
from colibri.records import Shape, round_up

# Top bytes whose exponent bits are all ones: f16 for certain, f32 and bf16 when the next
# byte has its highest bit set too.
_NOT_F16_SPECIAL = bytes(b for b in range(256) if b & 0x7C != 0x7C)
_NOT_F32_SPECIAL = bytes(b for b in range(256) if b & 0x7F != 0x7F)


def _check_f16(high: bytes, name: str, offset: int) -> None:
    """`high`: the top bytes of f16 values."""
    if high.translate(None, _NOT_F16_SPECIAL):
        raise ColibriError(Code.WEIGHTS, f"{name} holds a value that is not finite", offset)


def _check_wide(data: memoryview, width: int, name: str, offset: int) -> None:
    """f32 (`width` 4) or bf16 (2): exponent bits in the two top bytes."""
    high = bytes(data[width - 1 :: width])
    if not high.translate(None, _NOT_F32_SPECIAL):
        return
    below = bytes(data[width - 2 :: width])
    for i, (top, next_byte) in enumerate(zip(high, below, strict=True)):
        if top & 0x7F == 0x7F and next_byte & 0x80:
            raise ColibriError(Code.WEIGHTS, f"{name} holds a value that is not finite", offset + i * width)


def _padding_error(name: str, offset: int) -> ColibriError:
    return ColibriError(Code.PADDING, f"padded rows or columns of {name}", offset)


def _block_mask(dtype: DType, rows: int, columns: int) -> tuple[int, int]:
    """(mask, value) of a quantised block with `rows` real rows and `columns` real columns.

    A bit of the mask is one where the block must equal the value.
    """
    int4 = dtype == DType.INT4
    size = spec.INT4_BLOCK_BYTES if int4 else spec.INT8_BLOCK_BYTES
    mask, value = bytearray(size), bytearray(size)
    for row in range(spec.PANEL_ROWS):
        for column in range(spec.GROUP_COLUMNS):
            if row < rows and column < columns:
                continue
            within = column % 16 if int4 else column
            at = within // 4 * 32 + row * 4 + within % 4
            if not int4:
                mask[at] = 0xFF
            elif column < 16:
                mask[at] |= 0x0F
                value[at] |= 0x08
            else:
                mask[at] |= 0xF0
                value[at] |= 0x80
        if row >= rows:
            scale = size - 16 + 2 * row
            mask[scale : scale + 2] = b"\xff\xff"
    return int.from_bytes(mask, "little"), int.from_bytes(value, "little")


def _check_quantized(data: memoryview, dtype: DType, shape: Shape, name: str, offset: int) -> None:
    size = spec.INT4_BLOCK_BYTES if dtype == DType.INT4 else spec.INT8_BLOCK_BYTES
    for row in range(spec.PANEL_ROWS):
        _check_f16(bytes(data[size - 15 + 2 * row :: size]), f"a scale of {name}", offset)
    blocks = -(-shape.columns // spec.GROUP_COLUMNS)
    panels = -(-shape.rows // spec.PANEL_ROWS)
    last_rows = shape.rows - (panels - 1) * spec.PANEL_ROWS
    last_columns = shape.columns - (blocks - 1) * spec.GROUP_COLUMNS

    def check(panel: int, block: int, mask: int, value: int) -> None:
        at = (panel * blocks + block) * size
        if (int.from_bytes(data[at : at + size], "little") ^ value) & mask:
            raise _padding_error(name, offset + at)

    if last_columns != spec.GROUP_COLUMNS:
        edge = _block_mask(dtype, spec.PANEL_ROWS, last_columns)
        for panel in range(panels):
            check(panel, blocks - 1, *edge)
    if last_rows != spec.PANEL_ROWS:
        inner = _block_mask(dtype, last_rows, spec.GROUP_COLUMNS)
        for block in range(blocks):
            check(panels - 1, block, *inner)


def _check_float_panels(data: memoryview, width: int, shape: Shape, name: str, offset: int) -> None:
    """Zero columns at the end of each panel, zero lanes in the last panel."""
    panel_bytes = round_up(shape.columns, spec.GROUP_COLUMNS) * spec.PANEL_ROWS * width
    used = shape.columns * spec.PANEL_ROWS * width
    panels = -(-shape.rows // spec.PANEL_ROWS)
    if used != panel_bytes:
        for panel in range(panels):
            at = panel * panel_bytes
            if any(data[at + used : at + panel_bytes]):
                raise _padding_error(name, offset + at + used)
    last = (panels - 1) * panel_bytes
    step = spec.PANEL_ROWS * width
    for row in range(shape.rows - (panels - 1) * spec.PANEL_ROWS, spec.PANEL_ROWS):
        for byte in range(width):
            if any(data[last + row * width + byte :: step]):
                raise _padding_error(name, offset + last)


def check_weights(data: memoryview, dtype: DType, shape: Shape, name: str, offset: int) -> None:
    """Check the stored bytes of one tensor; `offset` is where they lie in the file."""
    if dtype in (DType.INT4, DType.INT8):
        _check_quantized(data, dtype, shape, name, offset)
    elif dtype == DType.MXFP4:
        raise ColibriError(Code.UNSUPPORTED, f"{name} is mxfp4, which is reserved", offset)
    else:
        width = 4 if dtype == DType.F32 else 2
        if dtype == DType.F16:
            _check_f16(bytes(data[1::2]), name, offset)
        else:
            _check_wide(data, width, name, offset)
        if shape.layout == Layout.PANEL8:
            _check_float_panels(data, width, shape, name, offset)
        else:
            row_bytes = round_up(shape.columns, spec.GROUP_COLUMNS) * 4
            for row in range(shape.rows):
                at = row * row_bytes
                if any(data[at + shape.columns * 4 : at + row_bytes]):
                    raise _padding_error(name, offset + at)
