# SPDX-License-Identifier: MIT
"""The replay of write logs, on the host: what a power cut may leave, and nothing else."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
import writelog
from writelog import DISCARD, FLUSH, FUA, MARK, SECTOR, LogError, State

DISK_BYTES = 16 * SECTOR
A, B, C = (letter * SECTOR for letter in (b"a", b"b", b"c"))


def make_log(path: Path, *entries: tuple[int, bytes, int], counted: int | None = None, sectors: int = 0) -> Path:
    """A log with these entries (sector, data, flags); sectors: of a discard."""
    parts = []
    for sector, data, flags in entries:
        count = sectors if flags & DISCARD else len(data) // SECTOR
        parts.append(struct.pack("<QQQQ", sector, count, flags, 0).ljust(SECTOR, b"\0") + data)
    number = len(entries) if counted is None else counted
    head = struct.pack("<QQQI", writelog.MAGIC, 1, number, SECTOR).ljust(SECTOR, b"\0")
    path.write_bytes(head + b"".join(parts) + bytes(4 * SECTOR))
    return path


def all_states(path: Path, cuts: int = 0, seed: int = 1, whole: range = range(0)) -> list[State]:
    """The states of a log on a disk of zeros."""
    return list(writelog.states(bytes(DISK_BYTES), writelog.read(path), random.Random(seed), cuts, whole))


def sectors(state: State) -> str:
    """One character per sector."""
    return "".join(chr(state.disk[at] or ord(".")) for at in range(0, DISK_BYTES, SECTOR)).rstrip(".")


def test_every_flush_is_a_state_with_all_that_came_before_it(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", (0, A, 0), (0, b"", FLUSH), (1, B, 0), (2, C, 0), (0, b"", FLUSH), (0, C, 0))
    found = all_states(log)
    assert [sectors(state) for state in found] == ["", "a", "abc", "cbc"]
    # What came back as done before entry `until` must be there; of entry `since` nothing is.
    assert [(state.since, state.until) for state in found] == [(0, 1), (2, 4), (5, 6), (6, 6)]


def test_data_of_a_flush_is_written_behind_it(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", (0, A, 0), (1, B, FLUSH), (0, b"", FLUSH))
    assert [sectors(state) for state in all_states(log)] == ["", "a", "ab"]


def test_a_forced_write_is_a_state_of_its_own(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", (0, A, 0), (1, B, FUA), (2, C, 0))
    found = all_states(log)
    assert [sectors(state) for state in found] == ["", "ab", "abc"]
    assert found[1].name == "behind forced write 1"
    # Without the forced write the power went before it was done.
    assert [(state.since, state.until) for state in found] == [(0, 1), (2, 3), (3, 3)]


def test_a_discard_leaves_zeros_and_a_mark_nothing(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", (0, A + B + C, 0), (1, b"", DISCARD), (0, b"", MARK), (0, b"", FLUSH), sectors=2)
    assert [sectors(state) for state in all_states(log)] == ["", "a"]


def test_cuts_hold_parts_of_one_group_alone(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", (0, A, 0), (0, b"", FLUSH), (1, B, 0), (2, C, 0), (3, A, FUA), (0, b"", FLUSH))
    seen = set()
    for seed in range(40):
        for state in all_states(log, cuts=4, seed=seed):
            if state.name.startswith("after flush 0"):
                seen.add(sectors(state))
                assert (state.since - 1, state.until) in {(2, 4), (3, 4), (4, 5)}
    # Everything up to flush 0, then each run and each subset that keeps the forced write.
    assert seen == {"ab", "abc", "abca", "ab.a", "a.ca", "a..a"}


def test_a_torn_write_ends_at_a_sector(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", (0, A + B + C, 0), (0, b"", FLUSH))
    seen = {sectors(state) for seed in range(80) for state in all_states(log, cuts=2, seed=seed)}
    assert seen == {"", "a", "ab", "abc"}


def test_no_write_is_torn_inside_the_bytes_that_arrive_whole(tmp_path: Path) -> None:
    whole = range(2 * SECTOR, 4 * SECTOR)
    for at, data, expected in ((1, A + B + C + A, {"", ".a", ".abc", ".abca"}), (2, B + C, {"", "..bc"})):
        log = make_log(tmp_path / "log", (at, data, 0), (0, b"", FLUSH))
        seen = {sectors(state) for seed in range(80) for state in all_states(log, cuts=2, seed=seed, whole=whole)}
        assert seen == expected


def test_the_same_seed_gives_the_same_states(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", *((n % 8, bytes([65 + n]) * SECTOR, 0) for n in range(20)))
    assert all_states(log, cuts=10, seed=7) == all_states(log, cuts=10, seed=7)
    assert all_states(log, cuts=10, seed=7) != all_states(log, cuts=10, seed=8)


def test_entries_beyond_the_count_of_the_head_are_read(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", (0, A, 0), (1, B, 0), counted=1)
    assert len(writelog.read(log)) == 2


def test_a_log_before_its_first_flush_has_no_head(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", (0, A, 0), (1, B, 0))
    path.write_bytes(bytes(SECTOR) + path.read_bytes()[SECTOR:])
    assert len(writelog.read(path)) == 2
    path.write_bytes(bytes(4 * SECTOR))
    assert writelog.read(path) == []


def test_a_log_that_counts_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", (0, A, 0), counted=2)
    with pytest.raises(LogError, match="1 entries, sector 0 counts 2"):
        writelog.read(log)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes, the head of a log has 28"),
        (b"x" * SECTOR, "magic 0x7878787878787878"),
        (struct.pack("<QQQI", writelog.MAGIC, 1, 0, 100), "sectors of 100 bytes"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    with pytest.raises(LogError, match=message):
        writelog.read(path)


def test_unknown_flags_and_missing_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="flags 0x20 are unknown"):
        writelog.read(make_log(tmp_path / "flags", (0, A, 32)))
    path = make_log(tmp_path / "short", (0, A, 0))
    path.write_bytes(path.read_bytes()[: 2 * SECTOR + 10])
    with pytest.raises(LogError, match="512 bytes of data from 1024, the file has 1034"):
        writelog.read(path)


def test_a_write_beyond_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="ends at byte 8704, the disk has 8192"):
        all_states(make_log(tmp_path / "log", (16, A, 0)))
