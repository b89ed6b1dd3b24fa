#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare kernel configuration fragments with the configuration a kernel really has.

A kernel build drops an option whose dependencies are not met, or whose name it does not know,
without a word. This program gives one of three answers for each line of the fragments:

* ``set``: the final configuration has the value that was asked for;
* ``missing``: it has another value, or none;
* ``not a symbol of this kernel``: its Kconfig files declare no option of that name
  (needs the Kconfig tree; without it such a line counts as missing).

Exit codes: 0 all lines hold, 1 a line was dropped, 2 usage or unreadable input.

A fragment may carry the line ``# kconfig: only-where-declared``. Its options belong to vendor
kernels: where the Kconfig tree does not declare them they are skipped, not failed. Some of them
state a requirement that a mainline kernel meets in another way; ``REQUIREMENTS`` says how.

Only the standard library is used, so that Yocto, Buildroot and the tests can all call it.
"""

from __future__ import annotations

import argparse
import enum
import gzip
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ONLY_WHERE_DECLARED = "# kconfig: only-where-declared"
GZIP_MAGIC = b"\x1f\x8b"
MAX_CONFIG_BYTES = 16 << 20
MAX_KCONFIG_FILES = 20_000

_ASSIGNMENT = re.compile(r"^(CONFIG_[A-Za-z0-9_]+)=(.*)$")
_DISABLED = re.compile(r"^# (CONFIG_[A-Za-z0-9_]+) is not set$")
_DECLARATION = re.compile(r"^\s*(?:menu)?config\s+([A-Za-z0-9_]+)\s*(?:#.*)?$")
_SOURCE = re.compile(r'^\s*(o?r?source)\s+"?([^"\s]+)"?\s*(?:#.*)?$')


@dataclass(frozen=True)
class Requirement:
    """A requirement named like an option that a mainline kernel meets under another name."""

    option: str
    value: str
    proof: str


# The written requirement asks for CONFIG_MLOCK. No mainline Kconfig declares it: mlock() is built
# whenever there is an MMU. What the requirement means is that locking works, and only a lock that
# was made and then seen in /proc/self/status shows that.
REQUIREMENTS: dict[str, Requirement] = {
    "CONFIG_MLOCK": Requirement(
        option="CONFIG_MMU",
        value="y",
        proof="a lock verified at run time (VmLck): tests/boot/test_boot.py",
    ),
}


class ConfigError(Exception):
    """An input that cannot be read or does not follow the rules of a fragment."""


class State(enum.Enum):
    """The three answers."""

    SET = "set"
    MISSING = "missing"
    NOT_A_SYMBOL = "not a symbol of this kernel"


@dataclass(frozen=True)
class Request:
    """One line of a fragment."""

    option: str
    value: str  # "n" for "is not set"
    reason: str
    file: str
    line: int
    only_where_declared: bool

    @property
    def text(self) -> str:
        """The line as a .config file spells it."""
        return f"# {self.option} is not set" if self.value == "n" else f"{self.option}={self.value}"


@dataclass(frozen=True)
class Answer:
    """What became of one request."""

    request: Request
    state: State
    actual: str | None
    dropped: bool
    note: str

    def as_dict(self) -> dict[str, object]:
        """A plain form for ``--json``."""
        return {
            "option": self.request.option,
            "asked": self.request.value,
            "actual": self.actual,
            "state": self.state.value,
            "dropped": self.dropped,
            "note": self.note,
            "reason": self.request.reason,
            "where": f"{self.request.file}:{self.request.line}",
        }


def parse_fragment(text: str, name: str) -> list[Request]:
    """Read one fragment; every option needs a comment directly above it that says why."""
    lines = text.splitlines()
    only_where_declared = ONLY_WHERE_DECLARED in lines
    requests: list[Request] = []
    reason: list[str] = []
    for number, raw in enumerate(lines, start=1):
        line = raw.rstrip()
        match = _ASSIGNMENT.match(line) or _DISABLED.match(line)
        if match is not None:
            value = match.group(2) if match.re is _ASSIGNMENT else "n"
            if not reason:
                raise ConfigError(
                    f"{name}:{number}: {match.group(1)} has no reason; "
                    "write a comment directly above it that says why it is there"
                )
            requests.append(Request(match.group(1), value, " ".join(reason), name, number, only_where_declared))
            reason = []
        elif line.startswith("#"):
            reason.append(line.lstrip("# "))
        elif not line:
            reason = []
        else:
            raise ConfigError(
                f"{name}:{number}: {line!r} is neither an option nor a comment; "
                "write CONFIG_NAME=value or '# CONFIG_NAME is not set'"
            )
    return requests


def merge(fragments: Iterable[list[Request]]) -> list[Request]:
    """All requests in order, each option once; two values for one option are an error."""
    merged: dict[str, Request] = {}
    for requests in fragments:
        for request in requests:
            first = merged.setdefault(request.option, request)
            if first.value != request.value:
                raise ConfigError(
                    f"{request.file}:{request.line}: {request.text!r} contradicts "
                    f"{first.text!r} in {first.file}:{first.line}; keep one of them"
                )
    return list(merged.values())


def override(requests: list[Request], replacements: list[Request]) -> list[Request]:
    """The requests with those of a variant in their place; a line that replaces nothing is added."""
    by_option = {request.option: request for request in replacements}
    kept = [by_option.pop(request.option, request) for request in requests]
    return [*kept, *by_option.values()]


def parse_config(data: bytes, name: str) -> dict[str, str]:
    """Options of a .config file, plain or gzip-compressed as in /proc/config.gz.

    An option that the file says "is not set" has the value "n".
    """
    if data.startswith(GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise ConfigError(f"{name}: damaged gzip data ({error}); copy it again") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{name}: {len(data)} bytes; a .config has at most {MAX_CONFIG_BYTES}")
    options: dict[str, str] = {}
    for line in data.decode("utf-8", errors="replace").splitlines():
        if match := _ASSIGNMENT.match(line):
            options[match.group(1)] = match.group(2)
        elif match := _DISABLED.match(line):
            options[match.group(1)] = "n"
    if not options:
        raise ConfigError(f"{name}: holds no CONFIG_ line; give the .config of a built kernel or /proc/config.gz")
    return options


def declared_symbols(tree: Path, arch: str) -> set[str]:
    """Names (with CONFIG_ in front) that the Kconfig files of a kernel tree declare.

    Follows ``source`` from the top Kconfig file, so that other architectures do not count.
    """
    top = tree / "Kconfig"
    if not top.is_file():
        raise ConfigError(f"{tree}: has no Kconfig file; give the top folder of a kernel source")
    symbols: set[str] = set()
    waiting = [top]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > MAX_KCONFIG_FILES:
            raise ConfigError(f"{tree}: more than {MAX_KCONFIG_FILES} Kconfig files")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if match := _DECLARATION.match(line):
                symbols.add("CONFIG_" + match.group(1))
            elif match := _SOURCE.match(line):
                keyword, target = match.groups()
                target = target.replace("$(SRCARCH)", arch).replace("$SRCARCH", arch)
                if "$" in target:
                    continue
                base = path.parent if keyword.endswith("rsource") else tree
                waiting.extend(sorted(p for p in base.glob(target) if p.is_file()))
    return symbols


def applicable(requests: Iterable[Request], symbols: set[str] | None) -> list[Request]:
    """The requests to hand to a kernel build: vendor options only where they are declared."""
    return [
        request
        for request in requests
        if not request.only_where_declared or (symbols is not None and request.option in symbols)
    ]


def check(requests: Iterable[Request], config: dict[str, str], symbols: set[str] | None = None) -> list[Answer]:
    """One answer per request."""
    return [_check_one(request, config, symbols) for request in requests]


def _check_one(request: Request, config: dict[str, str], symbols: set[str] | None) -> Answer:
    actual = config.get(request.option)
    known = actual is not None or (symbols is not None and request.option in symbols)
    # An absent option is off; without the tree nobody can tell that its name is wrong.
    off_as_asked = request.value == "n" and actual is None and (known or symbols is None)
    if actual == request.value or off_as_asked:
        return Answer(request, State.SET, actual, dropped=False, note="")
    state = State.MISSING if known or symbols is None else State.NOT_A_SYMBOL
    if request.only_where_declared and not known:
        return _check_requirement(request, config, state)
    if state is State.NOT_A_SYMBOL:
        note = "no Kconfig file declares it; correct the name or remove the line"
    elif actual is None:
        note = "not in the final configuration; a dependency is not met, or the name is wrong"
    else:
        note = f"the final configuration has {actual!r}"
    return Answer(request, state, actual, dropped=True, note=note)


def _check_requirement(request: Request, config: dict[str, str], state: State) -> Answer:
    requirement = REQUIREMENTS.get(request.option)
    if requirement is None:
        return Answer(request, state, None, dropped=False, note="vendor option, skipped here")
    actual = config.get(requirement.option)
    if actual != requirement.value:
        note = f"the requirement needs {requirement.option}={requirement.value}, the final configuration has {actual!r}"
        return Answer(request, state, None, dropped=True, note=note)
    note = f"the requirement is met by {requirement.option}={requirement.value} and {requirement.proof}"
    return Answer(request, state, None, dropped=False, note=note)


def format_answers(answers: Sequence[Answer], *, verbose: bool) -> str:
    """A line per answer worth reading, then the counts."""
    lines = []
    for answer in answers:
        if not (verbose or answer.dropped or answer.note):
            continue
        mark = "DROPPED " if answer.dropped else ""
        note = f": {answer.note}" if answer.note else ""
        where = f"{answer.request.file}:{answer.request.line}"
        lines.append(f"{mark}{answer.state.value}: {answer.request.text} ({where}){note}")
    counts = {state: sum(a.state is state for a in answers) for state in State}
    dropped = sum(a.dropped for a in answers)
    summary = ", ".join(f"{count} {state.value}" for state, count in counts.items())
    lines.append(f"{len(answers)} options asked for: {summary}; {dropped} dropped")
    return "\n".join(lines)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def load_fragments(paths: Iterable[Path], variant: Path | None = None) -> list[Request]:
    """Parse and merge fragment files; the lines of a variant's file replace theirs."""
    requests = merge(parse_fragment(_read(path).decode("utf-8"), path.name) for path in paths)
    return requests if variant is None else override(requests, load_fragments([variant]))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description="Check that a kernel configuration has every option the fragments ask for.",
        epilog="exit codes: 0 all hold, 1 an option was dropped, 2 usage or unreadable input",
    )
    parser.add_argument("fragments", nargs="+", type=Path, metavar="FRAGMENT.cfg")
    parser.add_argument("--override", type=Path, metavar="VARIANT.cfg", help="its lines replace the fragments'")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a built .config, or a copy of /proc/config.gz")
    parser.add_argument("--kconfig-tree", type=Path, metavar="DIR", help="kernel source: tells unknown names apart")
    parser.add_argument("--arch", default="arm64", help="SRCARCH of the tree (default: arm64)")
    parser.add_argument(
        "--write-applicable",
        type=Path,
        metavar="FILE",
        help="write the merged lines for this kernel (vendor options only where declared)",
    )
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument("--verbose", action="store_true", help="print the options that hold, too")
    options = parser.parse_args(argv)
    if options.config is None and options.write_applicable is None:
        parser.error("give --config FILE to check, --write-applicable FILE to merge, or both")
    try:
        requests = load_fragments(options.fragments, options.override)
        tree: Path | None = options.kconfig_tree
        symbols = declared_symbols(tree, options.arch) if tree is not None else None
        if options.write_applicable is not None:
            lines = [request.text for request in applicable(requests, symbols)]
            options.write_applicable.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if options.config is None:
            return 0
        config = parse_config(_read(options.config), str(options.config))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        print(f"kconfig_check: {error}", file=sys.stderr)
        return 2
    answers = check(requests, config, symbols)
    if options.json:
        print(json.dumps([answer.as_dict() for answer in answers], indent=2))
    else:
        print(format_answers(answers, verbose=options.verbose))
    return 1 if any(answer.dropped for answer in answers) else 0


if __name__ == "__main__":
    sys.exit(main())
