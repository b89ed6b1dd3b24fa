# SPDX-License-Identifier: MIT
"""The numpy operators against the golden vectors that every kernel reads, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri import layout
from colibri import operators as ops
from colibri._spec import Activation, Code, RouterNormalise, RouterScore
from colibri.errors import ColibriError
from colibri.operators import F32

GOLDEN = Path(__file__).resolve().parents[2] / "engine" / "native" / "tests" / "golden"


class Fields:
    """The fields of one side of a case, taken from left to right."""

    def __init__(self, text: str) -> None:
        self._fields = text.split()
        self._next = 0

    def take(self, count: int) -> list[str]:
        """The next fields."""
        taken = self._fields[self._next : self._next + count]
        assert len(taken) == count, f"{count} fields wanted, {len(taken)} left"
        self._next += count
        return taken

    def floats(self, count: int) -> F32:
        """Binary32 values."""
        return np.array([float.fromhex(text) for text in self.take(count)], dtype=np.float32)

    def number(self) -> float:
        """One binary32 value."""
        return float(self.floats(1)[0])

    def integers(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Decimal integers."""
        return np.array([int(text) for text in self.take(count)], dtype=np.int64)

    def integer(self) -> int:
        """One decimal integer."""
        return int(self.integers(1)[0])

    def halves(self, count: int) -> ops.U16:
        """Sixteen bits in hexadecimal."""
        return np.array([int(text, 16) for text in self.take(count)], dtype=np.uint16)

    def end(self) -> None:
        """Nothing is left."""
        assert self._next == len(self._fields), f"{self._fields[self._next :]} left over"


def cases(name: str) -> Iterator[tuple[Fields, Fields]]:
    """(inputs, outputs) of every case of a golden file; a file without a case is an error."""
    count = 0
    for line in (GOLDEN / f"{name}.txt").read_text(encoding="ascii").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        left, arrow, right = line.partition("->")
        assert arrow, line
        count += 1
        yield Fields(left), Fields(right)
    assert count > 0, f"{name}.txt has no cases"


def same_bits(found: Any, expected: Any) -> None:
    """Equality of float32 bits: distinguishes -0 from +0."""
    a = np.ascontiguousarray(found, dtype=np.float32).view(np.uint32)
    b = np.ascontiguousarray(expected, dtype=np.float32).view(np.uint32)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(a, b)


def test_every_golden_file_is_read_by_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    files = sorted(path.stem for path in GOLDEN.glob("*.txt"))
    assert len(files) >= 20
    read_elsewhere = {"random"}  # the sampler's
    assert [name for name in files if f'"{name}"' not in source and name not in read_elsewhere] == []


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("exp", ops.exp),
        ("sigmoid", ops.sigmoid),
        ("silu", ops.silu),
        ("gelu_tanh", ops.gelu_tanh),
        ("gelu_erf", ops.gelu_erf),
        ("relu", ops.relu),
    ],
)
def test_scalar_functions_equal_their_vectors(name: str, function: Callable[[F32], F32]) -> None:
    inputs, outputs = zip(*cases(name), strict=True)
    x = np.concatenate([fields.floats(1) for fields in inputs])
    y = np.concatenate([fields.floats(1) for fields in outputs])
    same_bits(function(x), y)


def test_swiglu_clamped_equals_its_vectors() -> None:
    for inputs, outputs in cases("swiglu_clamped"):
        clamp, alpha = inputs.number(), inputs.number()
        gate, up = inputs.floats(1), inputs.floats(1)
        found = ops.activate(Activation.SWIGLU_CLAMPED, clamp, alpha, gate, up)
        same_bits(found, outputs.floats(1))


def test_reduce8_equals_its_vectors() -> None:
    for inputs, outputs in cases("reduce8"):
        same_bits(ops.reduce8(inputs.floats(inputs.integer())), outputs.floats(1)[0])


def test_reduce8_works_on_every_row_alone() -> None:
    v = np.random.default_rng(1).standard_normal((3, 4, 21)).astype(np.float32)
    whole = ops.reduce8(v)
    for i in range(3):
        for j in range(4):
            same_bits(whole[i, j], ops.reduce8(v[i, j]))


def test_reduce8_of_a_long_vector_equals_its_definition() -> None:
    v = np.random.default_rng(6).standard_normal(1003).astype(np.float32)
    p = [np.float32(0)] * 8
    for i, value in enumerate(v):
        p[i % 8] = p[i % 8] + value
    expected = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
    same_bits(ops.reduce8(v), expected)
    squares = ops.reduce8(v * v) / np.float32(1003) + np.float32(1e-5)
    r = np.float32(1) / np.sqrt(squares)
    same_bits(ops.rmsnorm(v, np.ones_like(v), 1e-5), v * r)


def test_rmsnorm_equals_its_vectors() -> None:
    for inputs, outputs in cases("rmsnorm"):
        n, eps = inputs.integer(), inputs.number()
        x, w = inputs.floats(n), inputs.floats(n)
        same_bits(ops.rmsnorm(x[None], w, eps)[0], outputs.floats(n))


def test_layernorm_equals_its_vectors() -> None:
    for inputs, outputs in cases("layernorm"):
        n, eps = inputs.integer(), inputs.number()
        x, w, b = inputs.floats(n), inputs.floats(n), inputs.floats(n)
        same_bits(ops.layernorm(x[None], w, b, eps)[0], outputs.floats(n))


def test_quantize_equals_its_vectors() -> None:
    for inputs, outputs in cases("quantize"):
        groups = inputs.integer()
        found = ops.quantize(inputs.floats(32 * groups)[None])
        same_bits(found.d[0], outputs.floats(groups))
        np.testing.assert_array_equal(found.s[0], outputs.integers(groups))
        np.testing.assert_array_equal(found.q[0].reshape(-1), outputs.integers(32 * groups))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_quantize_refuses_values_that_are_not_finite(bad: float) -> None:
    x = np.ones((2, 40), dtype=np.float32)
    x[1, 37] = bad
    with pytest.raises(ColibriError) as caught:
        ops.quantize(x)
    assert caught.value.code == Code.NON_FINITE


@pytest.mark.parametrize("name", ["dot_int4", "dot_int8"])
def test_quantized_row_products_equal_their_vectors(name: str) -> None:
    unpack = layout.unpack_int4 if name == "dot_int4" else layout.unpack_int8
    for inputs, outputs in cases(name):
        groups = inputs.integer()
        panel = bytes.fromhex(inputs.take(1)[0])
        q = inputs.integers(32 * groups).astype(np.int8).reshape(1, groups, 32)
        d = inputs.floats(groups)[None]
        values, scales = unpack(panel, 8, 32 * groups)
        found = ops.matmul_quantized(
            values.reshape(8, groups, 32).swapaxes(0, 1),
            scales.astype(np.float32).T,
            ops.Quantized(q, d, q.sum(axis=2, dtype=np.int32)),
        )
        same_bits(found[0], outputs.floats(8))


@pytest.mark.parametrize("name", ["dot_f32", "dot_f16", "dot_bf16"])
def test_float_row_products_equal_their_vectors(name: str) -> None:
    for inputs, outputs in cases(name):
        columns = inputs.integer()
        if name == "dot_f32":
            w = inputs.floats(8 * columns)
        elif name == "dot_f16":
            w = ops.widen_f16(inputs.halves(8 * columns))
        else:
            w = ops.widen_bf16(inputs.halves(8 * columns))
        found = ops.matmul_float(w.reshape(columns, 8), inputs.floats(columns)[None])
        same_bits(found[0], outputs.floats(8))


def test_row_products_of_a_batch_equal_those_of_its_tokens() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(-8, 8, (5, 24, 32)).astype(np.int8)
    scales = rng.standard_normal((5, 24)).astype(np.float16).astype(np.float32)
    x = ops.quantize(rng.standard_normal((7, 150)).astype(np.float32))
    batch = ops.matmul_quantized(values, scales, x)
    for token in range(7):
        one = x.take(np.array([token]))
        same_bits(ops.matmul_quantized(values, scales, one)[0], batch[token])


def test_rope_equals_its_vectors() -> None:
    for inputs, outputs in cases("rope"):
        style, pairs = inputs.integer(), inputs.integer()
        x = inputs.floats(2 * pairs)
        c, s = inputs.floats(pairs), inputs.floats(pairs)
        found = ops.rope(x[None, None], c[None], s[None], style)
        same_bits(found[0, 0], outputs.floats(2 * pairs))


def test_rope_leaves_the_channels_behind_its_pairs_alone() -> None:
    x = np.arange(12, dtype=np.float32)[None, None]
    c, s = np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32)
    same_bits(ops.rope(x, c, s, 0)[..., 6:], x[..., 6:])


def test_rope_angles_equal_their_vectors() -> None:
    for inputs, outputs in cases("rope_angles"):
        position, frequency = inputs.integers(1), inputs.floats(1)
        cos, sin = ops.rope_angles(position, frequency, inputs.number())
        same_bits(cos[0], outputs.floats(1))
        same_bits(sin[0], outputs.floats(1))


def test_attend_equals_its_vectors() -> None:
    for inputs, outputs in cases("attend"):
        positions, dim, value_dim = (inputs.integer() for _ in range(3))
        scale, q = inputs.number(), inputs.floats(dim)
        k = ops.widen_f16(inputs.halves(positions * dim)).reshape(1, positions, dim)
        v = ops.widen_f16(inputs.halves(positions * value_dim)).reshape(1, positions, value_dim)
        same_bits(ops.attend(q[None], k, v, scale)[0], outputs.floats(value_dim))


def test_attend_of_grouped_heads_equals_each_head_alone() -> None:
    rng = np.random.default_rng(3)
    q = rng.standard_normal((6, 16)).astype(np.float32)
    k = rng.standard_normal((2, 11, 16)).astype(np.float32)
    v = rng.standard_normal((2, 11, 12)).astype(np.float32)
    together = ops.attend(q, k, v, 0.25)
    for head in range(6):
        group = slice(head // 3, head // 3 + 1)
        same_bits(together[head], ops.attend(q[head : head + 1], k[group], v[group], 0.25)[0])


def test_a_sink_takes_weight_and_adds_no_value() -> None:
    rng = np.random.default_rng(4)
    q = rng.standard_normal((1, 8)).astype(np.float32)
    k = rng.standard_normal((1, 3, 8)).astype(np.float32)
    v = np.ones((1, 3, 8), dtype=np.float32)
    with_sink = ops.attend(q, k, v, 1.0, np.array([2.0], dtype=np.float32))
    assert np.all(with_sink < ops.attend(q, k, v, 1.0))


def test_a_sink_is_the_last_element_of_the_list() -> None:
    rng = np.random.default_rng(7)
    q = rng.standard_normal((1, 8)).astype(np.float32)
    k = rng.standard_normal((1, 12, 8)).astype(np.float32)
    v = rng.standard_normal((1, 12, 4)).astype(np.float32)
    sink = np.array([0.3], dtype=np.float32)
    s = np.append(ops.reduce8(q * k[0]) * np.float32(0.5), sink)
    e = ops.exp(s - s.max())
    out = np.zeros(4, dtype=np.float32)
    for j in range(12):
        out = out + e[j] * v[0, j]
    same_bits(ops.attend(q, k, v, 0.5, sink)[0], out / ops.reduce8(e))


def test_f16_conversions_equal_their_vectors() -> None:
    for inputs, outputs in cases("f16_round"):
        x, bits = inputs.floats(1), outputs.halves(1)
        if int(bits[0]) & 0x7C00 == 0x7C00:
            with pytest.raises(ColibriError) as caught:
                ops.store_f16(x)
            assert caught.value.code == Code.NON_FINITE
        else:
            assert ops.store_f16(x)[0] == bits[0]
    for inputs, outputs in cases("f16_widen"):
        same_bits(ops.widen_f16(inputs.halves(1)), outputs.floats(1))


# ---- router ---------------------------------------------------------------------------------


def _rule(score: RouterScore, normalise: bool, k: int = 2, scale: float = 1.0) -> ops.RouterRule:
    chosen = RouterNormalise.SUM if normalise else RouterNormalise.NONE
    return ops.RouterRule(k, score, chosen, 0.0, scale)


def test_equal_scores_choose_the_lower_expert() -> None:
    logits = np.array([[0.0, 3.0, 3.0, -0.0, 3.0]], dtype=np.float32)
    ids, _ = ops.route(logits, _rule(RouterScore.SOFTMAX_ALL, True, k=4))
    assert ids.tolist() == [[1, 2, 4, 0]]
    many = np.zeros((1, 200), dtype=np.float32)
    many[0, ::2] = 1.0
    ids, _ = ops.route(many, _rule(RouterScore.SOFTMAX_ALL, True, k=32))
    assert ids.tolist() == [list(range(0, 64, 2))]


@pytest.mark.parametrize("score", list(RouterScore))
@pytest.mark.parametrize("normalise", [False, True])
def test_router_weights_are_close_to_their_formula(score: RouterScore, normalise: bool) -> None:
    logits = np.random.default_rng(5).standard_normal((9, 12)).astype(np.float32) + 1
    ids, weights = ops.route(logits, _rule(score, normalise, k=3, scale=2.5))
    wide = logits.astype(np.float64)
    best = np.argsort(-wide, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(ids, best)
    chosen = np.take_along_axis(wide, best, axis=1)
    if score == RouterScore.SOFTMAX_ALL:
        expected = np.exp(chosen) / np.exp(wide).sum(axis=1, keepdims=True)
    elif score == RouterScore.SOFTMAX_CHOSEN:
        expected = np.exp(chosen)
    elif score == RouterScore.SIGMOID:
        expected = 1 / (1 + np.exp(-chosen))
    else:
        expected = chosen
    if normalise or score == RouterScore.SOFTMAX_CHOSEN:
        expected = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, expected * 2.5, rtol=2e-6)


def test_a_selection_bias_chooses_but_does_not_weigh() -> None:
    logits = np.array([[1.0, 0.0, -1.0]], dtype=np.float32)
    bias = np.array([0.0, 0.0, 5.0], dtype=np.float32)
    ids, weights = ops.route(logits, _rule(RouterScore.SIGMOID, False), bias)
    assert ids.tolist() == [[2, 0]]
    same_bits(weights[0], ops.sigmoid(np.array([-1.0, 1.0], dtype=np.float32)))


def test_selection_scores_that_are_not_finite_are_refused() -> None:
    largest = np.full(4, 3e38, dtype=np.float32)
    with pytest.raises(ops.NonFiniteError, match="selection scores"), np.errstate(over="ignore"):
        ops.route(largest[None, :], _rule(RouterScore.SOFTMAX_ALL, True), largest)


def test_router_logits_that_are_not_finite_are_refused() -> None:
    logits = np.array([[1.0, np.nan, -1.0]], dtype=np.float32)
    with pytest.raises(ColibriError) as caught:
        ops.route(logits, _rule(RouterScore.SOFTMAX_ALL, True))
    assert caught.value.code == Code.NON_FINITE


def test_an_activation_without_a_definition_is_refused() -> None:
    x = np.ones((1, 4), dtype=np.float32)
    with pytest.raises(ColibriError) as caught:
        ops.activate(max(Activation) + 1, 0.0, 0.0, x, x)
    assert caught.value.code == Code.UNSUPPORTED
