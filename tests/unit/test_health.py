# SPDX-License-Identifier: MIT
"""A model that is whole and still wrong: zero logits, scales that are no numbers, too many tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from colibri._spec import ERROR_TEXT, Code, Role
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.job import Job, run_job
from colibri.layout import F32
from colibri.writer import Slot
from synthetic import SHAPES, records_of, tensor_values
from tiny_file import SHAPE, tokenizer

SHAPE_UNTIED = SHAPES["mixtral"]


def model(path: Path, zeros: Role | None = None, zero_rows: tuple[int, ...] = ()) -> Path:
    """A model whose `zeros` tensor is zero, or some rows of its embedding."""

    def rows(slot: Slot, first: int, end: int) -> F32:
        values = tensor_values(slot, 5)
        if slot.tensor.role == zeros:
            values = np.zeros_like(values)
        if slot.tensor.role == Role.EMBEDDING:
            values[list(zero_rows)] = 0
        return values[first:end]

    run_job(Job(records_of(SHAPE_UNTIED), rows, SHAPE_UNTIED.precision), path, threads=1, quiet=True)
    return path


@pytest.mark.parametrize("zeros", [Role.HEAD, Role.FINAL_NORM])
def test_a_model_whose_output_logits_are_all_zero_is_refused(zeros: Role, tmp_path: Path, native_library: Path) -> None:
    with Engine(model(tmp_path / "zero.colibri", zeros), threads=2) as engine, engine.session() as session:
        with pytest.raises(ColibriError, match="output logits all zero") as caught:
            session.append([1, 2, 3])
        assert caught.value.code == Code.ZERO_LOGITS
        assert session.position == 0
    assert ERROR_TEXT[Code.ZERO_LOGITS] == "output logits all zero"


def test_a_padding_token_without_an_embedding_is_no_broken_model(tmp_path: Path, native_library: Path) -> None:
    path = model(tmp_path / "padding.colibri", zero_rows=(7,))
    with Engine(path, threads=1) as engine, engine.session() as session:
        session.append([7])
        assert not np.any(session.logits())
        session.append([1, 7])
        session.append([3])
        assert np.any(session.logits())


def test_scales_that_are_no_numbers_are_found_when_the_model_is_verified(tmp_path: Path, native_library: Path) -> None:
    from corpus import CASES

    case = next(case for case in CASES if case.name == "weights.scale,int8")
    path = tmp_path / "scale.colibri"
    path.write_bytes(case.make())
    with pytest.raises(ColibriError, match="not finite") as caught:
        Engine(path, threads=1, verify="open")
    assert caught.value.code == Code.WEIGHTS


def test_a_tokenizer_with_more_tokens_than_the_vocabulary_is_refused(tmp_path: Path, native_library: Path) -> None:
    from dataclasses import replace

    shape = replace(SHAPE, vocabulary=12)  # the tokenizer has 13 tokens
    path = tmp_path / "mismatch.colibri"
    job = Job(records_of(shape), lambda s, a, b: tensor_values(s, 1)[a:b], shape.precision, tokenizer())
    run_job(job, path, threads=1, quiet=True)
    with pytest.raises(ColibriError, match="13 tokens, the model's vocabulary is 12") as caught:
        Engine(path, threads=1, verify="first")
    assert caught.value.code == Code.TOKENIZER
    with open_model(path) as file, pytest.raises(ColibriError, match="13 tokens"):
        file.verify()
