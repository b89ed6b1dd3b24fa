# SPDX-License-Identifier: MIT
"""The numpy sampler against golden vectors, and the C sampler against the numpy one."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from colibri._spec import Code
from colibri.errors import ColibriError
from colibri.operators import F32
from colibri.sampler import Sampler, random
from native_cases import REPOSITORY, assert_agrees, assert_passes, outcome

GOLDEN = REPOSITORY / "engine" / "native" / "tests" / "golden"

HALF = 0x2fedf1efce1d5545


def bits(value: float) -> str:
    return struct.pack(">f", value).hex()


def case(sampler: Sampler, counter: int, logits: F32, chosen: int) -> str:
    """One line for native/tests/test_sampler.c."""
    row = " ".join(bits(float(logit)) for logit in logits)
    return (
        f"{bits(sampler.temperature)} {sampler.top_k} {bits(sampler.top_p)} {bits(sampler.min_p)} "
        f"{sampler.seed} {counter} {len(logits)} {row} {chosen}"
    )


def draw_logits(rng: np.random.Generator) -> F32:
    """Logits of a random size, spread and number of ties."""
    count = int(rng.choice([1, 2, 3, 7, 8, 33, 257, 2000]))
    spread = float(rng.choice([0.0, 0.5, 3.0, 20.0, 200.0, 1e30, 3e38]))
    logits = np.clip(rng.standard_normal(count), -1, 1).astype(np.float32) * np.float32(spread)
    if rng.random() < 0.4:
        logits = np.round(logits).astype(np.float32)  # ties, and zeros of both signs
    return logits


def draw_sampler(rng: np.random.Generator) -> Sampler:
    """Settings over their whole ranges, exact in binary32."""
    return Sampler(
        temperature=float(np.float32(rng.choice([0.0, 1e-38, 1e-6, 0.3, 0.8, 1.0, 2.5, 1e30]))),
        top_k=int(rng.choice([0, 0, 1, 2, 5, 40, 10**6])),
        top_p=float(np.float32(rng.choice([1.0, 1.0, 1e-6, 0.3, 0.5, 0.9, 0.95, 0.999999]))),
        min_p=float(np.float32(rng.choice([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0]))),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
    )


def test_random_numbers_are_the_golden_ones() -> None:
    lines = [row for row in (GOLDEN / "random.txt").read_text().splitlines() if not row.startswith("#")]
    assert len(lines) >= 10
    for line in lines:
        seed, counter, arrow, value = line.split()
        assert arrow == "->"
        assert random(int(seed, 16), int(counter)) == int(value, 16)


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    logits = np.array([1, 5, -0.0, 5], dtype=np.float32)
    assert Sampler().choose(logits, 0) == 1
    assert Sampler().choose(np.array([-0.0, 0.0], dtype=np.float32), 0) == 0


def test_frequencies_follow_the_softmax() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32))
    sampler = Sampler(temperature=1.0, seed=7)
    counts = np.bincount([sampler.choose(logits, i) for i in range(4000)], minlength=4)
    np.testing.assert_allclose(counts / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.03)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("top_k", -1),
        ("seed", 1 << 64),
    ],
)
def test_a_setting_out_of_its_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ColibriError, match=f"sampler: {name} is") as caught:
        Sampler(**{name: value})  # type: ignore[arg-type]
    assert caught.value.code == Code.ARGUMENT


def test_the_c_tests_of_the_sampler_pass() -> None:
    assert_passes("test_sampler")


def test_the_c_sampler_chooses_what_the_numpy_one_chooses(tmp_path: Path) -> None:
    rng = np.random.default_rng(20)
    cases = []
    distinct = set()
    for _ in range(1500):
        sampler, logits, counter = draw_sampler(rng), draw_logits(rng), int(rng.integers(0, 2**40))
        chosen = sampler.choose(logits, counter)
        distinct.add(chosen)
        cases.append(case(sampler, counter, logits, chosen))
    assert len(distinct) > 50
    # random(HALF, 0) >> 40 is 2^23: u is one half, and the first of two equal weights ends exactly at the target
    sampler, logits = Sampler(temperature=1.0, seed=HALF), np.zeros(2, dtype=np.float32)
    assert sampler.choose(logits, 0) == 1
    cases.append(case(sampler, 0, logits, 1))
    assert_agrees("test_sampler", cases, tmp_path / "cases.txt")


def test_a_wrong_choice_is_seen(tmp_path: Path) -> None:
    logits = np.array([1, 2], dtype=np.float32)
    code, output = outcome("test_sampler", [case(Sampler(), 0, logits, 0)], tmp_path / "cases.txt")
    assert code == 1
    assert "chose 1, expected 0" in output
