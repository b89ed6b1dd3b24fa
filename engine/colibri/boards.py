# SPDX-License-Identifier: MIT
"""Board files: what the planner knows about a machine. Standard library only.

A board file (configs/boards/*.toml, or one that `colibri plan --calibrate` wrote) is read strictly:
a key that is misspelt must not pass for a figure that is missing. The tables of the image builders
(`console`, `kernel`, `qemu`, and `models` and `filesystem` of `storage`) belong to them; their names
are known here, their contents are not looked at. The boards of the project are in `_boards.py`,
generated from configs/boards, so that an installed package needs no TOML file.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from colibri._spec import Code
from colibri.errors import ColibriError

SCHEMA = 1
MIB = 1 << 20
MAX_CORES = 64
MAX_RAM_MIB = 1 << 22  # 4 TiB
MAX_RATE = 1e7  # MB/s and GMAC/s
BASES = ("measured", "published", "estimate")
ARCHITECTURES = ("aarch64", "arm", "x86_64")
DTYPE_RATES = ("int4", "int8", "f32")
BUILDER_TABLES = ("console", "kernel", "qemu", "storage")
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


class BoardError(ColibriError):
    """A board file, or the name of a board, that cannot be used; the message says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.ARGUMENT, f"board {message}")


@dataclass(frozen=True)
class Bandwidth:
    """Streaming reads of DRAM."""

    read_mbps: tuple[float, ...]  # with 1, 2, ... threads; more threads get the last one
    basis: str
    source: str

    def bytes_per_second(self, threads: int) -> float:
        """What `threads` threads read together."""
        return self.read_mbps[min(threads, len(self.read_mbps)) - 1] * 1e6


@dataclass(frozen=True)
class Compute:
    """What one thread computes with the kernels of this board, weights in cache."""

    decode_gmacs: dict[str, float]  # 10^9 multiply-accumulates per second, one token
    prompt_gmacs: dict[str, float]  # the same, four tokens and more at a time
    hash_mbps: float  # SHA-256, one thread
    step_us: float  # handing one piece of work to the threads and collecting them
    basis: str
    source: str


@dataclass(frozen=True)
class Storage:
    """Reads of one expert at a time."""

    read_mbps: float
    request_us: float  # of one read, besides its bytes
    basis: str
    source: str


@dataclass(frozen=True)
class Board:
    """A machine. Speeds are None when the file has none: then only memory is planned."""

    name: str
    description: str
    arch: str
    ram_mib: int
    ram_sizes_mib: tuple[int, ...]
    cores: int
    features: tuple[str, ...]
    core: str = ""
    bandwidth: Bandwidth | None = None
    compute: Compute | None = None
    storages: dict[str, Storage] = field(default_factory=dict)

    @property
    def has_speeds(self) -> bool:
        """Enough is known to predict tokens per second."""
        return self.bandwidth is not None and self.compute is not None

    def storage(self, name: str | None) -> tuple[str, Storage]:
        """A storage by name, or the first one."""
        if not self.storages:
            raise BoardError(f"{self.name}: has no [storages.NAME] table; add one with read_mbps, or calibrate")
        if name is None:
            name = next(iter(self.storages))
        if name not in self.storages:
            raise BoardError(f"{self.name}: has no storage {name!r}; it has {', '.join(self.storages)}")
        return name, self.storages[name]


# --------------------------------------------------------------------------- reading


class _Table:
    """One table of a board file; every key must be asked for, the rest is refused by `done`."""

    def __init__(self, where: str, path: str, values: object) -> None:
        self.where = where
        self.path = path
        if not isinstance(values, Mapping):
            raise BoardError(f"{where}: {path} is {values!r}; it must be a table")
        self.values: Mapping[str, Any] = values
        self.asked: set[str] = set()

    def fail(self, key: str, problem: str) -> NoReturn:
        raise BoardError(f"{self.where}: {self._name(key)} {problem}")

    def _name(self, key: str) -> str:
        return f"[{self.path}] {key}" if self.path else key

    def has(self, key: str) -> bool:
        self.asked.add(key)
        return key in self.values

    def take(self, key: str) -> Any:
        if not self.has(key):
            self.fail(key, "is missing; docs/plan.md lists the keys")
        return self.values[key]

    def text(self, key: str, limit: int = 400) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
            self.fail(key, f"is {value!r}; it must be a text of 1..{limit} printable characters")
        return value

    def choice(self, key: str, words: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in words:
            self.fail(key, f"is {value!r}; it must be one of {', '.join(words)}")
        return value

    def integer(self, key: str, limit: int) -> int:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
            self.fail(key, f"is {value!r}; it must be a whole number in 1..{limit}")
        return value

    def number(self, key: str, limit: float = MAX_RATE, low: float = 0.0) -> float:
        return self.as_number(key, self.take(key), limit, low)

    def as_number(self, key: str, value: object, limit: float = MAX_RATE, low: float = 0.0) -> float:
        """`low` itself is allowed only when it is not the 0 of a rate."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= limit:
            self.fail(key, f"is {value!r}; it must be a number above {low:g}, at most {limit:g}")
        return float(value)

    def list_of(self, key: str) -> list[Any]:
        value = self.take(key)
        if not isinstance(value, list) or not 0 < len(value) <= MAX_CORES:
            self.fail(key, f"is {value!r}; it must be a list of 1..{MAX_CORES}")
        return value

    def table(self, key: str) -> _Table:
        return _Table(self.where, f"{self.path}.{key}" if self.path else key, self.take(key))

    def basis(self) -> tuple[str, str]:
        """Where the figures of this table come from."""
        return self.choice("basis", BASES), self.text("source")

    def done(self) -> None:
        for key in self.values:
            if key not in self.asked:
                close = difflib.get_close_matches(key, sorted(self.asked), 1)
                hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(self.asked))}"
                self.fail(key, f"is unknown{hint}")


def _rates(table: _Table, key: str) -> dict[str, float]:
    rates = table.table(key)
    found = {name: rates.number(name) for name in DTYPE_RATES}
    rates.done()
    return found


def _bandwidth(table: _Table) -> Bandwidth:
    rates = [table.as_number("read_mbps", value) for value in table.list_of("read_mbps")]
    if rates != sorted(rates):
        table.fail("read_mbps", f"is {rates}; more threads never read less: it must not fall")
    found = Bandwidth(tuple(rates), *table.basis())
    table.done()
    return found


def _compute(table: _Table) -> Compute:
    found = Compute(
        _rates(table, "decode_gmacs"),
        _rates(table, "prompt_gmacs"),
        table.number("hash_mbps"),
        table.number("step_us"),
        *table.basis(),
    )
    table.done()
    return found


def _storages(table: _Table) -> dict[str, Storage]:
    found: dict[str, Storage] = {}
    for name in table.values:
        if not _NAME.fullmatch(name):
            table.fail(repr(name), "is no name: use small letters, digits, dot and dash")
        entry = table.table(name)
        found[name] = Storage(entry.number("read_mbps"), entry.number("request_us"), *entry.basis())
        entry.done()
    return found


def parse_board(data: Mapping[str, Any], where: str) -> Board:
    """A board from the tables of its file; `where` names the file in errors."""
    top = _Table(where, "", data)
    schema = top.take("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        top.fail("schema", f"is {schema!r}; this reads schema {SCHEMA}")
    name = top.text("name")
    if not _NAME.fullmatch(name):
        top.fail("name", f"is {name!r}; use small letters, digits, dot and dash")
    for table in BUILDER_TABLES:
        top.has(table)
    memory, cpu = top.table("memory"), top.table("cpu")
    ram = memory.integer("ram_mib", MAX_RAM_MIB)
    sizes = [ram]
    if memory.has("ram_sizes_mib"):
        sizes = memory.list_of("ram_sizes_mib")
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
            memory.fail("ram_sizes_mib", f"is {sizes}; it must be a list of whole numbers")
        if ram not in sizes:
            memory.fail("ram_sizes_mib", f"is {sizes}; it must hold ram_mib, which is {ram}")
    bandwidth = _bandwidth(memory.table("bandwidth")) if memory.has("bandwidth") else None
    memory.done()
    features = cpu.list_of("features") if cpu.has("features") and cpu.values["features"] else []
    if not all(isinstance(feature, str) for feature in features):
        cpu.fail("features", f"is {features}; it must be a list of names")
    board = Board(
        name=name,
        description=top.text("description"),
        arch=top.choice("arch", ARCHITECTURES),
        ram_mib=ram,
        ram_sizes_mib=tuple(sizes),
        cores=cpu.integer("cores", MAX_CORES),
        features=tuple(features),
        core=cpu.text("core") if cpu.has("core") else "",
        bandwidth=bandwidth,
        compute=_compute(top.table("compute")) if top.has("compute") else None,
        storages=_storages(top.table("storages")) if top.has("storages") else {},
    )
    cpu.done()
    top.done()
    return board


def read_board(path: Path) -> Board:
    """A board from a TOML file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BoardError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BoardError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise BoardError(f"{path}: is not a TOML file: {error}") from error
    return parse_board(data, str(path))


def known_boards() -> dict[str, Board]:
    """The boards that come with the package, by name."""
    from colibri._boards import BOARDS

    return {name: parse_board(data, f"{name} of this package") for name, data in BOARDS.items()}


def find_board(name: str) -> Board:
    """A board of the package by its name, or a file: whatever ends in .toml or holds a slash."""
    if name.endswith(".toml") or "/" in name:
        return read_board(Path(name))
    boards = known_boards()
    if name not in boards:
        close = difflib.get_close_matches(name, boards, 1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(boards)}"
        raise BoardError(f"{name!r} is unknown; {hint} A file must end in .toml (colibri plan --list-boards)")
    return boards[name]


# --------------------------------------------------------------------------- writing


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return repr(value)


def board_text(board: Board) -> str:
    """A board as a TOML file that `read_board` reads back equal."""
    lines = [
        "# SPDX-License-Identifier: MIT",
        "# Sizes are in MiB, speeds in MB/s (10^6 bytes), rates in 10^9 multiply-accumulates per second and thread.",
        f"schema = {SCHEMA}",
    ]
    lines += [f"{key} = {_toml(getattr(board, key))}" for key in ("name", "description", "arch")]
    tables: list[tuple[str, dict[str, Any]]] = [
        ("memory", {"ram_mib": board.ram_mib, "ram_sizes_mib": list(board.ram_sizes_mib)})
    ]
    if board.bandwidth is not None:
        tables.append(("memory.bandwidth", asdict(board.bandwidth)))
    cpu: dict[str, Any] = {"cores": board.cores, "features": list(board.features)}
    tables.append(("cpu", {**cpu, "core": board.core} if board.core else cpu))
    if board.compute is not None:
        tables.append(("compute", asdict(board.compute)))
    tables += [(f"storages.{name}", asdict(storage)) for name, storage in board.storages.items()]
    for name, values in tables:
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
