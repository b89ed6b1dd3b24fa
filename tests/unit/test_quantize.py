# SPDX-License-Identifier: MIT
"""Panels, quantisers and seeded numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from colibri._spec import Code, DType, Layout
from colibri.errors import ColibriError
from colibri.layout import (
    F16,
    F32,
    I8,
    from_bf16_bits,
    pack_float,
    pack_int4,
    pack_int8,
    pack_rows,
    to_bf16_bits,
    unpack,
    unpack_float,
    unpack_int4,
    unpack_int8,
)
from colibri.noise import coarse_normal, normal, splitmix64, stream_seed
from colibri.numbers import attention_scale, inverse_frequencies, round_to_f32
from colibri.quantize import encode, part_rows, quantize_int4, quantize_int8
from colibri.records import tensor_bytes

ODD = [(8, 32), (1, 1), (9, 33), (16, 80), (331, 80), (5, 104)]


def integers(rows: int, columns: int, low: int, high: int) -> tuple[I8, F16]:
    """Quantised values and scales, all different from each other where possible."""
    rng = np.random.default_rng(rows * 1000 + columns)
    q = rng.integers(low, high + 1, (rows, columns)).astype(np.int8)
    scales = rng.standard_normal((rows, -(-columns // 32))).astype(np.float16)
    return q, scales


def gaussian(rows: int, columns: int, seed: int = 1) -> F32:
    return normal(seed, 0, rows * columns).reshape(rows, columns) * np.float32(0.05)


# ---- layout ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), ODD)
def test_int4_bytes_are_where_the_document_puts_them(rows: int, columns: int) -> None:
    q, scales = integers(rows, columns, -8, 7)
    data = pack_int4(q, scales)
    blocks = -(-columns // 32)
    assert len(data) == -(-rows // 8) * blocks * 144
    for panel in range(-(-rows // 8)):
        for block in range(blocks):
            part = data[(panel * blocks + block) * 144 :][:144]
            for r in range(8):
                row = panel * 8 + r
                scale = scales[row, block] if row < rows else np.float16(0)
                assert part[128 + 2 * r : 130 + 2 * r] == scale.tobytes()
                for i in range(4):
                    for b in range(4):
                        low, high = block * 32 + 4 * i + b, block * 32 + 16 + 4 * i + b
                        byte = part[32 * i + 4 * r + b]
                        assert byte & 15 == (q[row, low] + 8 if row < rows and low < columns else 8)
                        assert byte >> 4 == (q[row, high] + 8 if row < rows and high < columns else 8)


@pytest.mark.parametrize(("rows", "columns"), ODD)
def test_int8_bytes_are_where_the_document_puts_them(rows: int, columns: int) -> None:
    q, scales = integers(rows, columns, -127, 127)
    data = pack_int8(q, scales)
    blocks = -(-columns // 32)
    assert len(data) == -(-rows // 8) * blocks * 272
    for panel in range(-(-rows // 8)):
        for block in range(blocks):
            part = data[(panel * blocks + block) * 272 :][:272]
            for r in range(8):
                row = panel * 8 + r
                scale = scales[row, block] if row < rows else np.float16(0)
                assert part[256 + 2 * r : 258 + 2 * r] == scale.tobytes()
                for i in range(8):
                    for b in range(4):
                        column = block * 32 + 4 * i + b
                        value = q[row, column] if row < rows and column < columns else 0
                        assert part[32 * i + 4 * r + b] == int(value) & 0xFF


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_float_panels_are_columns_of_eight_rows(dtype: DType) -> None:
    values: F32 = np.arange(1, 9 * 33 + 1, dtype=np.float32).reshape(9, 33) / np.float32(4)  # exact in f16; bf16 rounds
    data = pack_float(values, dtype)
    width = 4 if dtype == DType.F32 else 2
    assert len(data) == 16 * 64 * width
    kind = {DType.F32: "<f4", DType.F16: "<f2", DType.BF16: "<u2"}[dtype]
    stored = np.frombuffer(data, dtype=kind).reshape(2, 64, 8)
    wide = from_bf16_bits(stored.astype(np.uint16)) if dtype == DType.BF16 else stored.astype(np.float32)
    for row in range(16):
        for column in range(64):
            value = values[row, column] if row < 9 and column < 33 else np.float32(0)
            rounded = from_bf16_bits(to_bf16_bits(value.reshape(1))) if dtype == DType.BF16 else value
            assert wide[row // 8, column, row % 8] == rounded


@pytest.mark.parametrize(("rows", "columns"), ODD)
def test_unpacking_undoes_packing(rows: int, columns: int) -> None:
    for low, high, pack, undo in ((-8, 7, pack_int4, unpack_int4), (-127, 127, pack_int8, unpack_int8)):
        q, scales = integers(rows, columns, low, high)
        values, found = undo(pack(q, scales), rows, columns)
        assert np.array_equal(values[:rows, :columns], q)
        assert np.array_equal(found[:rows], scales)
        assert not values[rows:].any()
        assert not values[:, columns:].any()
        assert not found[rows:].any()
    x = gaussian(rows, columns)
    assert np.array_equal(unpack_float(pack_float(x, DType.F32), DType.F32, rows, columns)[:rows, :columns], x)
    assert np.array_equal(unpack(pack_rows(x), DType.F32, Layout.ROWS, rows, columns), x)


def test_bf16_rounds_to_nearest_even() -> None:
    cases = {1.0: 1.0, 1.00390625: 1.0, 1.01171875: 1.015625, 1.003907: 1.0078125, -1.00390625: -1.0}
    values = np.array(list(cases), dtype=np.float32)
    assert from_bf16_bits(to_bf16_bits(values)).tolist() == list(cases.values())


@pytest.mark.parametrize("dtype", [DType.INT4, DType.INT8, DType.F16, DType.BF16, DType.F32])
@pytest.mark.parametrize(("rows", "columns"), ODD)
def test_encoding_has_the_size_of_the_entry_and_the_error_it_reports(dtype: DType, rows: int, columns: int) -> None:
    w = gaussian(rows, columns)
    data, stats = encode(w, dtype, Layout.PANEL8)
    assert len(data) == tensor_bytes(dtype, Layout.PANEL8, rows, columns)
    error = unpack(data, dtype, Layout.PANEL8, rows, columns).astype(np.float64) - w
    assert stats.elements == w.size
    assert stats.largest == pytest.approx(np.abs(error).max(), rel=1e-6)
    relative = math.sqrt((error**2).sum() / (w.astype(np.float64) ** 2).sum())
    assert stats.relative == pytest.approx(relative, rel=1e-5, abs=1e-12)


def test_parts_of_a_matrix_are_the_matrix() -> None:
    w = gaussian(331, 80)
    for dtype in (DType.INT4, DType.INT8, DType.BF16):
        whole, _ = encode(w, dtype, Layout.PANEL8)
        parts = [encode(w[at : at + 24], dtype, Layout.PANEL8)[0] for at in range(0, 331, 24)]
        assert b"".join(parts) == whole
    assert part_rows(80) % 8 == 0
    assert part_rows(1 << 30) == 8


# ---- quantisers -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mse", "absmax"])
def test_weights_of_a_q4_0_file_are_stored_without_loss(method: str) -> None:
    q, scales = integers(64, 96, -8, 7)
    q.reshape(-1, 32)[:, 5] = -8  # Q4_0 maps the value of largest magnitude to -8
    w = (q.reshape(64, 3, 32) * scales.astype(np.float32)[:, :, None]).reshape(64, 96)
    data, stats = encode(w, DType.INT4, Layout.PANEL8, int4_method=method)
    assert stats.squared_error == 0.0
    assert np.array_equal(unpack(data, DType.INT4, Layout.PANEL8, 64, 96), w)


def test_weights_of_a_q8_0_file_are_stored_without_loss() -> None:
    q, scales = integers(64, 96, -127, 127)
    q.reshape(-1, 32)[:, 5] = 127
    w = (q.reshape(64, 3, 32) * scales.astype(np.float32)[:, :, None]).reshape(64, 96)
    data, stats = encode(w, DType.INT8, Layout.PANEL8)
    assert stats.squared_error == 0.0
    assert np.array_equal(unpack(data, DType.INT8, Layout.PANEL8, 64, 96), w)


def test_the_search_beats_the_rule() -> None:
    w = gaussian(256, 512)
    _, searched = encode(w, DType.INT4, Layout.PANEL8, int4_method="mse")
    _, rule = encode(w, DType.INT4, Layout.PANEL8, int4_method="absmax")
    assert searched.relative < 0.96 * rule.relative
    assert searched.relative < 0.0815


def test_the_search_finds_nearly_the_best_scale_of_any() -> None:
    w = gaussian(4, 32, seed=9)
    q, scales, _ = quantize_int4(w)
    for row in range(4):
        x = w[row].astype(np.float64)
        candidates = np.linspace(-1, 1, 20001) * np.abs(x).max() / 6
        steps = np.clip(np.rint(x / np.where(candidates == 0, 1, candidates)[:, None]), -8, 7)
        best = ((x - steps * candidates[:, None]) ** 2).sum(axis=1).min()
        found = ((x - q[row].astype(np.float64) * float(scales[row, 0])) ** 2).sum()
        assert found < 1.1 * best


def test_negative_scales_use_the_long_side_of_the_range() -> None:
    w = np.zeros((1, 32), dtype=np.float32)
    w[0, :9] = np.arange(9, dtype=np.float32)  # 8 is the extreme, positive
    q, scales, stats = quantize_int4(w)
    assert scales[0, 0] == np.float16(-1.0)
    assert q[0, :9].tolist() == [-x for x in range(9)]
    assert stats.squared_error == 0.0


def test_groups_of_zeros_are_zero() -> None:
    w = np.zeros((8, 64), dtype=np.float32)
    w[:, 32:] = 127 / 128
    for quantise in (quantize_int4, quantize_int8):
        q, scales, _ = quantise(w)
        assert not q[:, :32].any()
        assert not scales[:, 0].any()
        assert np.array_equal(q[:, 32:].astype(np.float32) * scales[:, 1:].astype(np.float32), w[:, 32:])


@pytest.mark.parametrize("size", [1e-8, 3e-7, 1e-6, 1e-5, 1e-3, 1.0, 1e4])
def test_int8_never_cuts_a_value_off(size: float) -> None:
    w = gaussian(64, 64) * np.float32(20 * size)
    q, scales, _ = quantize_int8(w)
    stored = (q.reshape(64, 2, 32) * scales.astype(np.float32)[:, :, None]).reshape(64, 64)
    step = np.repeat(scales.astype(np.float32), 32, axis=1)
    # Half a step, and what the rounding of the scale to f16 adds at the end of the range.
    assert (np.abs(stored - w) <= 0.57 * step + (step == 0) * 2.0**-17).all()
    assert np.abs(q.astype(int)).max() <= 127


def test_int4_scale_that_does_not_fit_f16_is_refused_by_name() -> None:
    w = np.full((8, 32), 1e6, dtype=np.float32)
    with pytest.raises(ColibriError, match="layer 3 q: a scale of 125000 does not fit f16") as caught:
        encode(w, DType.INT4, Layout.PANEL8, "layer 3 q", "absmax")
    assert caught.value.code == Code.WEIGHTS
    with pytest.raises(ColibriError, match="does not fit f16; store it as f32"):
        encode(w, DType.F16, Layout.PANEL8, "layer 3 q")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [DType.INT4, DType.INT8, DType.F16, DType.BF16, DType.F32])
def test_values_that_are_not_finite_are_refused_with_their_place(value: float, dtype: DType) -> None:
    w = gaussian(8, 32)
    w[3, 7] = value
    with pytest.raises(ColibriError, match=r"head: the value at \[3\]\[7\]") as caught:
        encode(w, dtype, Layout.PANEL8, "head")
    assert caught.value.code == Code.WEIGHTS


def test_unknown_int4_method_is_refused() -> None:
    with pytest.raises(ColibriError, match="known: mse, absmax"):
        quantize_int4(gaussian(8, 32), "absmax/7")


STORED = {
    DType.INT4: "36df430fcc9ee29981763288e54ef74721efcd2d79589771cb3cefec53731051",
    DType.INT8: "a9856464b206e3543fd2d672030f891e4050517e4ba2fee912b5f8043d5335dc",
}


@pytest.mark.parametrize("dtype", list(STORED))
def test_stored_bytes_are_equal_on_every_machine(dtype: DType) -> None:
    data, _ = encode(normal(7, 0, 96 * 200).reshape(96, 200), dtype, Layout.PANEL8)
    assert hashlib.sha256(data).hexdigest() == STORED[dtype]


# ---- seeded numbers ---------------------------------------------------------------------------


def test_splitmix64_gives_the_published_sequence() -> None:
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert splitmix64(0, 0, 4).tolist() == expected
    assert splitmix64(0, 2, 2).tolist() == expected[2:]


def test_noise_does_not_depend_on_how_it_is_cut() -> None:
    whole, coarse = normal(5, 0, 1000), coarse_normal(5, 0, 200_000)
    assert np.array_equal(np.concatenate([normal(5, 0, 333), normal(5, 333, 667)]), whole)
    cut = [coarse_normal(5, 0, 70_000), coarse_normal(5, 70_000, 130_000)]
    assert np.array_equal(np.concatenate(cut), coarse)


@pytest.mark.parametrize("generate", [normal, coarse_normal])
def test_noise_has_mean_0_and_deviation_1(generate: Callable[[int, int, int], F32]) -> None:
    x = generate(3, 0, 1 << 20).astype(np.float64)
    assert abs(x.mean()) < 0.005
    assert abs(x.std() - 1) < 0.005
    assert abs((x**3).mean()) < 0.01


def test_streams_of_other_names_and_seeds_are_others() -> None:
    seeds = {stream_seed(seed, name) for seed in (1, 2) for name in ("layer 0 q", "layer 1 q", "head")}
    assert len(seeds) == 6


# ---- constants --------------------------------------------------------------------------------


def test_rounding_to_f32_is_to_nearest_even() -> None:
    one_ulp = Fraction(1, 1 << 23)
    assert round_to_f32(1 + one_ulp / 2) == 1.0
    assert round_to_f32(1 + 3 * one_ulp / 2) == 1.0 + 2 * 2.0**-23
    assert round_to_f32(1 + one_ulp / 2 + Fraction(1, 1 << 80)) == 1.0 + 2.0**-23
    assert round_to_f32(-Fraction(1, 3)) == float(np.float32(-1 / 3))
    rng = np.random.default_rng(1)
    for value in rng.standard_normal(1000) * 10.0 ** rng.integers(-20, 20, 1000):
        assert round_to_f32(Fraction(float(value))) == float(np.float32(value))


@pytest.mark.parametrize(("theta", "dim"), [(10000.0, 24), (100000.0, 64), (1000000.0, 128), (1500000.0, 80)])
def test_inverse_frequencies_are_the_powers_in_f32(theta: float, dim: int) -> None:
    found = np.array(inverse_frequencies(theta, dim), dtype=np.float32)
    exact = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    assert found[0] == 1.0
    assert np.abs(found / exact - 1).max() <= 2.0**-24


def test_attention_scale_is_rounded_once() -> None:
    assert [attention_scale(dim) for dim in (64, 16)] == [0.125, 0.25]
    for dim in (24, 80, 96, 128):
        assert attention_scale(dim) == float(np.float32(1 / math.sqrt(dim)))
