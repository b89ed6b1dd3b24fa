# SPDX-License-Identifier: MIT
"""Board files: the boards of the project, and every way a file can be wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from colibri._spec import Code
from colibri.boards import Board, BoardError, board_text, find_board, known_boards, parse_board, read_board

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "boards"
NAMES = (
    "imx8m-plus",
    "jetson-orin-nano",
    "qemu-aarch64",
    "raspberry-pi-4",
    "raspberry-pi-5",
    "raspberry-pi-zero-2-w",
    "rk3399",
    "rk3566",
    "rk3588",
)


def data() -> dict[str, Any]:
    """The tables of a good board file."""
    return tomllib.loads((CONFIGS / "rk3588.toml").read_text())


def test_the_boards_of_the_project_are_packaged() -> None:
    assert tuple(known_boards()) == NAMES
    assert sorted(path.stem for path in CONFIGS.glob("*.toml")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_packaged_board_is_the_file_of_configs(name: str) -> None:
    board = find_board(name)
    assert board == read_board(CONFIGS / f"{name}.toml")
    assert board.name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_board_has_speeds_with_a_basis_and_a_source(name: str) -> None:
    board = find_board(name)
    assert board.has_speeds
    assert board.storages
    for part in (board.bandwidth, board.compute, *board.storages.values()):
        assert part is not None
        assert part.basis in ("measured", "published", "estimate")
        assert len(part.source) > 20


@pytest.mark.parametrize("name", NAMES)
def test_a_board_that_is_written_reads_back_equal(name: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.toml"
    path.write_text(board_text(find_board(name)))
    assert read_board(path) == find_board(name)


def test_more_threads_than_listed_read_what_the_last_one_reads() -> None:
    bandwidth = find_board("rk3588").bandwidth
    assert bandwidth is not None
    assert [bandwidth.bytes_per_second(n) for n in (1, 2, 4, 64)] == [14.8e9, 18e9, 18e9, 18e9]


def test_storages_are_found_by_name_and_the_first_is_the_default() -> None:
    board = find_board("rk3588")
    assert board.storage(None)[0] == "emmc"
    assert board.storage("nvme")[1].read_mbps == 3000
    with pytest.raises(BoardError, match=r"rk3588: has no storage 'tape'; it has emmc, sd, nvme"):
        board.storage("tape")


def test_a_board_without_speeds_is_valid_and_says_so() -> None:
    tables = data()
    for name in ("compute", "storages"):
        del tables[name]
    del tables["memory"]["bandwidth"]
    board = parse_board(tables, "x.toml")
    assert not board.has_speeds
    with pytest.raises(BoardError, match=r"has no \[storages.NAME\] table"):
        board.storage(None)


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(tables: dict[str, Any]) -> None:
        *folders, key = path.split("/")
        for folder in folders:
            tables = tables[folder]
        tables[key] = value

    return change


def _drop(path: str) -> Callable[[dict[str, Any]], None]:
    def change(tables: dict[str, Any]) -> None:
        *folders, key = path.split("/")
        for folder in folders:
            tables = tables[folder]
        del tables[key]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("schema", 2), "schema is 2; this reads schema 1"),
        (_drop("schema"), "schema is missing"),
        (_set("schema", True), "schema is True; this reads schema 1"),
        (_set("name", "Rock 5"), "name is 'Rock 5'; use small letters, digits, dot and dash"),
        (_drop("name"), "name is missing"),
        (_set("description", ""), "description is ''; it must be a text"),
        (_set("description", "a\x1b[2J"), "description is 'a\\x1b[2J'; it must be a text"),
        (_set("arch", "riscv64"), "arch is 'riscv64'; it must be one of aarch64, arm, x86_64"),
        (_set("memory", 5), "memory is 5; it must be a table"),
        (_drop("memory"), "memory is missing"),
        (_drop("memory/ram_mib"), "[memory] ram_mib is missing"),
        (_set("memory/ram_mib", 0), "[memory] ram_mib is 0; it must be a whole number in 1..4194304"),
        (_set("memory/ram_mib", 2.5), "[memory] ram_mib is 2.5; it must be a whole number"),
        (_set("memory/ram_mib", True), "[memory] ram_mib is True; it must be a whole number"),
        (_set("memory/ram_sizes_mib", [1]), "ram_sizes_mib is [1]; it must hold ram_mib, which is 8192"),
        (_set("memory/ram_sizes_mib", ["a"]), "ram_sizes_mib is ['a']; it must be a list of whole numbers"),
        (_set("memory/ram_sizes_mib", []), "ram_sizes_mib is []; it must be a list of 1..64"),
        (_set("memory/ram_mb", 5), "[memory] ram_mb is unknown; did you mean ram_mib?"),
        (_set("memory/bandwidth/read_mbps", []), "[memory.bandwidth] read_mbps is []; it must be a list of 1..64"),
        (_set("memory/bandwidth/read_mbps", 5), "[memory.bandwidth] read_mbps is 5; it must be a list of 1..64"),
        (_set("memory/bandwidth/read_mbps", [9.0, 5.0]), "it must not fall"),
        (_set("memory/bandwidth/read_mbps", [-1]), "is -1; it must be a number above 0"),
        (_set("memory/bandwidth/read_mbps", [1e9]), "it must be a number above 0, at most 1e+07"),
        (_set("memory/bandwidth/read_mbps", [float("nan")]), "is nan; it must be a number above 0"),
        (_set("memory/bandwidth/basis", "guess"), "basis is 'guess'; it must be one of measured, published, estimate"),
        (_drop("memory/bandwidth/source"), "[memory.bandwidth] source is missing"),
        (_set("cpu/cores", 65), "[cpu] cores is 65; it must be a whole number in 1..64"),
        (_set("cpu/features", ["a", 1]), "[cpu] features is ['a', 1]; it must be a list of names"),
        (_set("cpu/speed", 1), "[cpu] speed is unknown"),
        (_drop("compute/decode_gmacs"), "[compute] decode_gmacs is missing"),
        (_drop("compute/decode_gmacs/int8"), "[compute.decode_gmacs] int8 is missing"),
        (_set("compute/prompt_gmacs/int44", 1), "[compute.prompt_gmacs] int44 is unknown; did you mean int4?"),
        (_set("compute/hash_mbps", "fast"), "[compute] hash_mbps is 'fast'; it must be a number above 0"),
        (_set("compute/step_us", 0), "[compute] step_us is 0; it must be a number above 0"),
        (_set("storages/emmc/read_mbps", 0), "[storages.emmc] read_mbps is 0; it must be a number above 0"),
        (_set("storages/emmc/write_mbps", 1), "[storages.emmc] write_mbps is unknown; did you mean read_mbps?"),
        (_set("storages/e MMC", {}), "[storages] 'e MMC' is no name"),
        (_set("storages/ssd", 7), "storages.ssd is 7; it must be a table"),
        (_set("consoles", {}), "consoles is unknown; did you mean console?"),
    ],
)
def test_a_bad_board_file_is_refused_with_the_key(change: Callable[[dict[str, Any]], None], message: str) -> None:
    tables = data()
    change(tables)
    with pytest.raises(BoardError) as caught:
        parse_board(tables, "x.toml")
    assert caught.value.message.startswith("board x.toml: ")
    assert message in caught.value.message
    assert caught.value.code == Code.ARGUMENT


def test_files_that_are_no_boards_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    with pytest.raises(BoardError, match=r"b.toml: cannot be read \(No such file"):
        read_board(path)
    path.write_text("schema = ")
    with pytest.raises(BoardError, match=r"b.toml: is not a TOML file: "):
        read_board(path)
    path.write_bytes(b"\xff")
    with pytest.raises(BoardError, match=r"b.toml: is not UTF-8 text \(byte 0\)"):
        read_board(path)


def test_a_name_finds_a_board_and_a_path_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((CONFIGS / "rk3566.toml").read_text())
    assert find_board(str(path)) == find_board("rk3566")
    with pytest.raises(BoardError, match=r"'rk3599' is unknown; did you mean rk3\d+\?"):
        find_board("rk3599")
    with pytest.raises(BoardError, match=r"'zzz' is unknown; known: imx8m-plus, "):
        find_board("zzz")


def test_tables_of_the_image_builders_are_not_looked_at() -> None:
    tables = data()
    tables["qemu"] = {"anything": object()}
    board: Board = parse_board(tables, "x.toml")
    assert board.name == "rk3588"
