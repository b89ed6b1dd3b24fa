# SPDX-License-Identifier: MIT
"""The memory plan of docs/format.md section 8, worked out by hand once and against the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from colibri._spec import Code
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.plan import FileSizes, PlanOptions, buffer_bytes, plan, plan_file, up
from synthetic import REFERENCE_ONLY, SHAPES, Shape, records_of, write_model

SIZES = FileSizes(file_bytes=1_000_001, records_bytes=777, directory_bytes=5000, has_tokenizer=True)


def test_a_buffer_is_aligned_and_guarded_even_when_empty() -> None:
    assert [buffer_bytes(x) for x in (0, 1, 64, 65)] == [128, 192, 192, 256]


def test_the_rows_of_a_small_model_are_those_of_the_document() -> None:
    shape = Shape(layers=2, dense_layers=(0,), shared={"intermediate": 300})
    found = plan(records_of(shape).blocks(), SIZES, PlanOptions(10, 4, 3, 2, "f32", 1000))

    def buf(x: int) -> int:
        return up(x, 64) + 128

    # hidden 72, q and o 64, k and v 32 each, vocabulary 101, 5 experts of 88, top 2, ffn 120
    assert found.kv_bytes == 3 * 2 * (2 * buf(2 * 10 * 16 * 4))
    session = buf(4 * 104) + buf(8 * 104) + buf(4 * 2 * 4 * 2)
    scratch = (
        2 * buf(4 * 4 * 96) + buf(4 * 4 * 64) + buf(4 * 4 * 64) + buf(4 * 4 * 64) + 2 * buf(4 * 4 * 8)
        + buf(4 * 96) + 2 * buf(4 * 4 * 3) + 2 * buf(4 * 10) + buf(4 * 4 * 8) + 4 * buf(4 * 4 * 2) + buf(4 * 6)
        + 2 * buf(4 * 4 * 320) + buf(4 * 320) + 2 * buf(4 * 4 * 10) + buf(4 * 4 * 2 * 96)
        + buf(4 * 4 * 96)
    )  # fmt: skip
    assert found.activation_bytes == 3 * session + scratch
    assert found.table_bytes == (
        buf(16384) + 3 * buf(512) + buf(777) + buf(5000) + 2 * buf(1024) + buf(1 + 2 + 5) + buf(8 * 2 * 5)
        + buf(24 * 1000)
    )  # fmt: skip
    assert found.stack_bytes == 262144
    assert found.mapped_bytes == 1_003_520
    assert found.arena_bytes == up(found.kv_bytes + found.activation_bytes + found.table_bytes, 4096)
    assert found.total_bytes == found.mapped_bytes + found.arena_bytes + 262144 + 4194304
    names = ["mapped", "kv", "activation", "table", "stack", "arena", "process", "total"]
    assert [name for name, _ in found.rows()] == names


def test_defaults_are_those_of_the_header() -> None:
    found = plan(records_of(Shape(context=4096)).blocks(), SIZES, PlanOptions())
    assert (found.context_tokens, found.batch_tokens, found.max_sessions, found.threads) == (2048, 32, 1, 4)
    assert plan(records_of(Shape(context=99)).blocks(), SIZES, PlanOptions()).context_tokens == 99


def test_a_model_without_tokenizer_needs_no_merge_scratch() -> None:
    blocks = list(records_of(Shape()).blocks())
    with_tokenizer = plan(blocks, SIZES, PlanOptions()).table_bytes
    without = plan(blocks, replace(SIZES, has_tokenizer=False), PlanOptions()).table_bytes
    assert with_tokenizer - without == 24 * 65536 + 128


@pytest.mark.parametrize(
    "options",
    [
        PlanOptions(context_tokens=129),
        PlanOptions(context_tokens=-1),
        PlanOptions(batch_tokens=513),
        PlanOptions(max_sessions=65),
        PlanOptions(threads=65),
        PlanOptions(kv="int8"),
    ],
)
def test_options_out_of_range_are_refused(options: PlanOptions) -> None:
    with pytest.raises(ColibriError) as caught:
        plan(records_of(Shape()).blocks(), SIZES, options)
    assert caught.value.code == Code.ARGUMENT


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("name", [name for name in SHAPES if name not in REFERENCE_ONLY])
def test_the_engine_plans_the_same_bytes(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES[name])
    with open_model(path) as file:
        for options in (
            PlanOptions(threads=1),
            PlanOptions(context_tokens=33, batch_tokens=7, max_sessions=3, threads=3, kv="f32"),
        ):
            expected = plan_file(file, options)
            with Engine(
                path,
                context_tokens=options.context_tokens,
                batch_tokens=options.batch_tokens,
                max_sessions=options.max_sessions,
                threads=options.threads,
                kv=options.kv,
            ) as engine:
                assert engine.plan() == expected
