# SPDX-License-Identifier: MIT
"""The state of short convolutions: it is part of a session, of its snapshots, and of what a failed call takes back."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from colibri import _spec as spec
from colibri._spec import Code, Role
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.job import Job, run_job
from colibri.layout import F32
from colibri.reference import ReferenceModel
from colibri.writer import Slot
from synthetic import FLOAT, SHAPES, records_of, tensor_values, write_model

pytestmark = pytest.mark.usefixtures("native_library")

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79]
NEXT = [32, 38]
BAD = 7  # its embedding is so large that nothing is left behind a norm


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model whose convolutions reach 1, 2 and 5 tokens back, with room for two sessions."""
    path = write_model(tmp_path_factory.mktemp("model") / "m.colibri", SHAPES["short_conv"])
    with Engine(path, threads=2, lock="off", batch_tokens=3, max_sessions=2) as opened:
        yield opened


def bits(logits: F32) -> list[int]:
    """Logits for a comparison of every bit."""
    return [int(value) for value in np.ascontiguousarray(logits).view(np.uint32)]


@pytest.mark.parametrize("length", range(1, len(PROMPT) + 1))
def test_a_restored_session_goes_on_with_the_same_bits(engine: Engine, length: int) -> None:
    with engine.session() as session, engine.session() as other:
        session.append(PROMPT[:length])
        saved = session.save()
        other.append(PROMPT[::-1])
        other.restore(saved)
        assert other.save() == saved
        session.append(NEXT)
        other.append(NEXT)
        assert bits(session.logits_array()) == bits(other.logits_array())


def test_a_state_that_is_not_finite_is_refused(engine: Engine) -> None:
    with engine.session() as session:
        session.append(PROMPT)
        saved = bytearray(session.save())
        states = sum(4 * (taps - 1) * width for taps, width in ((3, 72), (6, 40), (1, 200)))
        at = spec.SNAPSHOT_HEADER_BYTES + 4 * len(PROMPT) + 4 * 101 + states - 4
        for value, refused in ((1.5, False), (float("inf"), True)):
            saved[at : at + 4] = struct.pack("<f", value)
            saved[80:112] = bytes(32)
            saved[80:112] = hashlib.sha256(saved).digest()
            if not refused:
                session.restore(bytes(saved))
                continue
            with pytest.raises(ColibriError, match="number of finite logits and states") as caught:
                session.restore(bytes(saved))
            assert caught.value.code == Code.SNAPSHOT


def test_a_reset_forgets_the_state(engine: Engine) -> None:
    with engine.session() as session:
        session.append(NEXT)
        first = bits(session.logits_array())
        session.append(PROMPT)
        session.reset()
        session.append(NEXT)
        assert bits(session.logits_array()) == first


def test_a_call_that_fails_behind_its_first_batch_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    shape = SHAPES["short_conv"]

    def rows(slot: Slot, first: int, end: int) -> F32:
        values = tensor_values(slot, 1)
        if slot.tensor.role == Role.EMBEDDING:
            values[BAD] = 3e38
        return values[first:end]

    path = tmp_path / "m.colibri"
    run_job(Job(records_of(shape), rows, FLOAT), path, threads=1, quiet=True)
    with Engine(path, lock="off", batch_tokens=3) as opened, opened.session() as session:
        session.append(PROMPT)
        with pytest.raises(ColibriError) as caught:
            session.append([*PROMPT[::-1], BAD])
        assert caught.value.code == Code.ZERO_LOGITS
        assert session.position == len(PROMPT)
        session.append(NEXT)
        found = bits(session.logits_array())
    reference = ReferenceModel(path).session()
    reference.append(PROMPT)
    assert found == bits(reference.append(NEXT).logits[-1])


def test_the_plan_counts_the_states(engine: Engine) -> None:
    states = sum(4 * (taps - 1) * width for taps, width in ((3, 72), (6, 40), (1, 200)))
    plane = 2 * 128 * 16 * 2  # heads, context, width, bytes of f16
    sessions = 2
    assert engine.plan().kv_bytes == sessions * (2 * (plane + 128) + 2 * (-(-states // 64) * 64 + 128))
