# SPDX-License-Identifier: MIT
"""The kernel configuration checker: a dropped option must never go unnoticed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import kconfig_check
import pytest
from kconfig_check import ConfigError, State, check, merge, parse_config, parse_fragment

FRAGMENTS = sorted(Path(kconfig_check.__file__).parent.glob("*.cfg"))
VENDOR = "# kconfig: only-where-declared\n\n# Vendor trees.\nCONFIG_MLOCK=y\n"


def answers(fragment: str, config: str, symbols: set[str] | None = None) -> list[tuple[State, bool]]:
    """State and dropped flag of each line of a fragment."""
    requests = parse_fragment(fragment, "test.cfg")
    found = check(requests, parse_config(config.encode(), "config"), symbols)
    return [(answer.state, answer.dropped) for answer in found]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small kernel source tree: only its Kconfig files."""
    root = tmp_path / "linux"
    (root / "arch" / "arm64").mkdir(parents=True)
    (root / "arch" / "x86").mkdir()
    (root / "mm").mkdir()
    (root / "Kconfig").write_text('source "arch/$(SRCARCH)/Kconfig"\nsource "mm/Kconfig"\nosource "vendor/Kconfig"\n')
    (root / "arch" / "arm64" / "Kconfig").write_text("config MMU\n\tdef_bool y\n")
    (root / "arch" / "x86" / "Kconfig").write_text("config X86_ONLY\n\tbool\n")
    (root / "mm" / "Kconfig").write_text('menuconfig MEMCG\n\tbool "memory"\n\nrsource "Kconfig.debug"\n')
    (root / "mm" / "Kconfig.debug").write_text('config PAGE_OWNER\n\tbool "owner"\n')
    return root


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A fragment and a configuration that agrees with it."""
    fragment, config = tmp_path / "f.cfg", tmp_path / "config"
    fragment.write_text("# Budget.\nCONFIG_MEMCG=y\n# No core files.\n# CONFIG_COREDUMP is not set\n")
    config.write_text("CONFIG_MMU=y\nCONFIG_MEMCG=y\n")
    return fragment, config


def test_an_option_with_the_asked_value_is_set() -> None:
    assert answers("# Why.\nCONFIG_A=y\n", "CONFIG_A=y\n") == [(State.SET, False)]


def test_a_dropped_option_is_missing() -> None:
    assert answers("# Why.\nCONFIG_A=y\n", "CONFIG_B=y\n") == [(State.MISSING, True)]


def test_an_option_that_is_switched_off_is_missing() -> None:
    assert answers("# Why.\nCONFIG_A=y\n", "# CONFIG_A is not set\n") == [(State.MISSING, True)]


def test_a_module_does_not_answer_a_request_for_a_built_in_option() -> None:
    assert answers("# Why.\nCONFIG_A=y\n", "CONFIG_A=m\n") == [(State.MISSING, True)]


def test_an_unknown_name_is_no_symbol_of_this_kernel() -> None:
    assert answers("# Why.\nCONFIG_A=y\n", "CONFIG_B=y\n", {"CONFIG_B"}) == [(State.NOT_A_SYMBOL, True)]


def test_a_misspelt_line_that_switches_something_off_is_noticed() -> None:
    fragment = "# Why.\n# CONFIG_COREDUMPS is not set\n"
    assert answers(fragment, "CONFIG_B=y\n", {"CONFIG_COREDUMP"}) == [(State.NOT_A_SYMBOL, True)]


def test_an_option_asked_to_be_off_is_set_when_it_is_absent_or_off() -> None:
    fragment = "# Why.\n# CONFIG_A is not set\n"
    assert answers(fragment, "CONFIG_B=y\n", {"CONFIG_A"}) == [(State.SET, False)]
    assert answers(fragment, "# CONFIG_A is not set\n") == [(State.SET, False)]


def test_an_option_asked_to_be_off_is_missing_when_it_is_on() -> None:
    assert answers("# Why.\n# CONFIG_A is not set\n", "CONFIG_A=y\n") == [(State.MISSING, True)]


def test_mlock_on_mainline_is_met_by_the_mmu() -> None:
    assert answers(VENDOR, "CONFIG_MMU=y\n", {"CONFIG_MMU"}) == [(State.NOT_A_SYMBOL, False)]


def test_mlock_without_an_mmu_is_a_failure() -> None:
    assert answers(VENDOR, "CONFIG_NET=y\n", {"CONFIG_MMU"}) == [(State.NOT_A_SYMBOL, True)]


def test_mlock_in_a_vendor_kernel_must_be_set() -> None:
    symbols = {"CONFIG_MMU", "CONFIG_MLOCK"}
    assert answers(VENDOR, "CONFIG_MMU=y\n", symbols) == [(State.MISSING, True)]
    assert answers(VENDOR, "CONFIG_MMU=y\nCONFIG_MLOCK=y\n", symbols) == [(State.SET, False)]


def test_mlock_that_a_vendor_kernel_switches_off_is_noticed_without_its_tree() -> None:
    config = "CONFIG_MMU=y\n# CONFIG_MLOCK is not set\n"
    assert answers(VENDOR, config) == [(State.MISSING, True)]


def test_vendor_lines_reach_a_kernel_build_only_where_they_are_declared() -> None:
    requests = parse_fragment(VENDOR + "# Why.\nCONFIG_A=y\n", "v.cfg")
    assert kconfig_check.applicable(requests, {"CONFIG_A"}) == requests[1:]
    assert kconfig_check.applicable(requests, None) == []


def test_an_option_without_a_reason_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"f\.cfg:3: CONFIG_B has no reason"):
        parse_fragment("# Why.\nCONFIG_A=y\nCONFIG_B=y\n", "f.cfg")


def test_a_reason_does_not_reach_across_an_empty_line() -> None:
    with pytest.raises(ConfigError, match="has no reason"):
        parse_fragment("# A heading.\n\nCONFIG_A=y\n", "f.cfg")


def test_a_line_that_is_no_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"f\.cfg:1: 'CONFIG A=y' is neither"):
        parse_fragment("CONFIG A=y\n", "f.cfg")


def test_contradicting_fragments_are_refused() -> None:
    first = parse_fragment("# Why.\nCONFIG_A=y\n", "a.cfg")
    second = parse_fragment("# Why not.\n# CONFIG_A is not set\n", "b.cfg")
    with pytest.raises(ConfigError, match=r"b\.cfg:2: .* contradicts 'CONFIG_A=y' in a\.cfg:2"):
        merge([first, second])


def test_an_option_asked_for_twice_counts_once() -> None:
    request = parse_fragment("# Why.\nCONFIG_A=y\n", "a.cfg")
    assert len(merge([request, request])) == 1


def test_a_compressed_configuration_is_read() -> None:
    data = gzip.compress(b'CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C="x y"\n')
    assert parse_config(data, "config.gz") == {
        "CONFIG_A": "y",
        "CONFIG_B": "n",
        "CONFIG_C": '"x y"',
    }


def test_a_damaged_compressed_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"config\.gz: damaged"):
        parse_config(gzip.compress(b"CONFIG_A=y\n" * 99)[:40], "config.gz")


def test_a_file_that_is_no_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds no CONFIG_ line"):
        parse_config(b"hello\n", "notes.txt")


def test_symbols_are_those_of_the_architecture(tree: Path) -> None:
    assert kconfig_check.declared_symbols(tree, "arm64") == {
        "CONFIG_MMU",
        "CONFIG_MEMCG",
        "CONFIG_PAGE_OWNER",
    }


def test_the_command_passes_when_all_options_hold(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    fragment, config = files
    assert kconfig_check.main(["--config", str(config), str(fragment)]) == 0
    assert capsys.readouterr().out == (
        "2 options asked for: 2 set, 0 missing, 0 not a symbol of this kernel; 0 dropped\n"
    )


def test_the_command_fails_on_a_planted_dropped_option(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fragment, config = files
    config.write_text("CONFIG_MMU=y\n# CONFIG_MEMCG is not set\n")
    assert kconfig_check.main(["--config", str(config), str(fragment)]) == 1
    assert capsys.readouterr().out.startswith("DROPPED missing: CONFIG_MEMCG=y (f.cfg:2)")


def test_the_command_reports_in_json(files: tuple[Path, Path], tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fragment, config = files
    arguments = ["--json", "--config", str(config), "--kconfig-tree", str(tree), str(fragment)]
    assert kconfig_check.main(arguments) == 1  # COREDUMP is no symbol of the small tree
    report = json.loads(capsys.readouterr().out)
    assert [(line["option"], line["state"]) for line in report] == [
        ("CONFIG_MEMCG", "set"),
        ("CONFIG_COREDUMP", "not a symbol of this kernel"),
    ]


@pytest.mark.parametrize("broken", ["config", "fragment", "tree"])
def test_an_unreadable_input_is_a_usage_error(
    files: tuple[Path, Path], tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere")
    paths = {"config": str(files[1]), "fragment": str(files[0]), "tree": str(tmp_path)}
    (tmp_path / "Kconfig").write_text("config MEMCG\nconfig COREDUMP\n")
    paths[broken] = nowhere
    arguments = ["--config", paths["config"], "--kconfig-tree", paths["tree"], paths["fragment"]]
    assert kconfig_check.main(arguments) == 2
    assert nowhere in capsys.readouterr().err


def test_every_fragment_of_the_project_gives_a_reason_per_line() -> None:
    requests = kconfig_check.load_fragments(FRAGMENTS)
    assert len(requests) > 60
    assert all(len(request.reason) > 10 for request in requests)


def test_the_options_that_the_engine_needs_are_asked_for() -> None:
    folder = Path(kconfig_check.__file__).parent
    asked = {r.option: r.value for r in kconfig_check.load_fragments([folder / "colibri.cfg"])}
    needed = ("MMU", "ADVISE_SYSCALLS", "SECCOMP", "SECCOMP_FILTER", "MEMCG", "CGROUPS")
    assert {f"CONFIG_{name}": asked.get(f"CONFIG_{name}") for name in needed} == {
        f"CONFIG_{name}": "y" for name in needed
    }
