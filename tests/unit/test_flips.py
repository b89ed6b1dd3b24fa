# SPDX-License-Identifier: MIT
"""No byte of a file is free: every single-bit flip is reported before a token that depends on it.

A C program flips and opens, through the library as it is: a million opens take seconds there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from native_cases import run_native
from tiny_file import everything

PARTS = 2  # processes; the machines that run this have as many cores


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flips") / "tiny.colibri"
    path.write_bytes(everything(layers=1))
    return path


def judged(mode: str, tiny: Path, pattern: str) -> list[int]:
    """The numbers of the closing line, summed over the parts."""
    with ThreadPoolExecutor(PARTS) as pool:
        runs = list(pool.map(lambda part: run_native("judge", mode, f"{part}/{PARTS}", tiny), range(PARTS)))
    counts = []
    for run in runs:
        match = re.search(pattern, run.stdout)
        assert match is not None, run.stdout + run.stderr
        assert "missed:" not in run.stdout, run.stdout
        assert "wrong token:" not in run.stdout, run.stdout
        assert run.returncode == 0, run.stdout + run.stderr
        counts.append([int(number) for number in match.groups()])
    return [sum(column) for column in zip(*counts, strict=True)]


def test_every_bit_of_a_file_with_every_section_is_checked_at_open(tiny: Path, note: Callable[[str], None]) -> None:
    found, missed = judged("--flips", tiny, r"flips found (\d+) missed (\d+)")
    assert (found, missed) == (8 * tiny.stat().st_size, 0)
    note(f"{found} single-bit flips of {tiny.stat().st_size} bytes, all refused at open")


def test_in_mode_first_no_flip_changes_a_token(tiny: Path) -> None:
    found, harmless, wrong = judged("--first", tiny, r"run found (\d+) harmless (\d+) wrong (\d+)")
    assert wrong == 0
    assert found + harmless == tiny.stat().st_size
    # what mode first need not look at: the texts of the provenance
    assert harmless < 200


def test_in_mode_always_no_flip_of_a_streamed_model_changes_a_token(tiny: Path) -> None:
    found, harmless, wrong = judged("--always", tiny, r"run found (\d+) harmless (\d+) wrong (\d+)")
    assert wrong == 0
    assert found > tiny.stat().st_size // 7 - 100
    assert harmless < 30


def test_sampled_flips_of_the_demo_model_are_found(demo_model: Path, note: Callable[[str], None]) -> None:
    run = run_native("judge", "--sample", "2000", "20261129", demo_model)
    assert run.returncode == 0, run.stdout + run.stderr
    match = re.search(r"sampled (\d+) found (\d+), before the weights (\d+)", run.stdout)
    assert match is not None
    sampled, found, head = map(int, match.groups())
    assert sampled == found == 2000
    assert head > 150
    note(run.stdout.strip())
