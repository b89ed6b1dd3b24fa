# SPDX-License-Identifier: MIT
"""The Buildroot external tree, as far as it can be judged without a Buildroot tree."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import kconfig_check
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXTERNAL = REPOSITORY / "br2-external"
PACKAGES = sorted(path.name for path in (EXTERNAL / "package").iterdir())
DEFCONFIGS = sorted((EXTERNAL / "configs").glob("*_defconfig"))
VARIABLE = "$(BR2_EXTERNAL_COLIBRI_PATH)"
FORCED = ("SECURE_MODE", "NO_LOGGING", "VERIFY_MODEL_HASH", "RESTRICTED_SYSCALLS")
SCRIPTS = (
    "utils/check-kconfig", "board/common/post-build.sh", "board/qemu/post-image.sh",
    "board/common/overlay/etc/init.d/S10cgroups", "utils/build", "utils/check",
)  # fmt: skip


def settings(defconfig: Path) -> dict[str, str]:
    """BR2 variable -> value without quotes."""
    pairs = (line.split("=", 1) for line in defconfig.read_text().splitlines() if line.startswith("BR2_"))
    return {name: value.strip('"') for name, value in pairs}


def in_tree(text: str) -> list[Path]:
    """Files that a value names in the external tree."""
    return [Path(word.replace(VARIABLE, str(EXTERNAL))) for word in text.split() if VARIABLE in word]


def blocks(package: str) -> list[tuple[str, list[str]]]:
    """(config name, words of its lines before the help) of a Config.in."""
    found: list[tuple[str, list[str]]] = []
    for part in re.split(r"^config ", (EXTERNAL / "package" / package / "Config.in").read_text(), flags=re.M)[1:]:
        name, _, rest = part.partition("\n")
        body = re.split(r"^\thelp$", rest, flags=re.M)[0]
        found.append((name, [line.split()[0] for line in body.splitlines() if line.startswith("\t") and line.split()]))
    return found


def run_checker(tree: Path, *fragments: Path) -> subprocess.CompletedProcess[str]:
    command = [str(EXTERNAL / "utils" / "check-kconfig"), str(tree), "arm64", *map(str, fragments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_tree_has_the_name_that_its_files_use() -> None:
    lines = dict(line.split(": ", 1) for line in (EXTERNAL / "external.desc").read_text().splitlines())
    assert lines["name"] == "COLIBRI"
    assert 0 < len(lines["desc"]) <= 60


def test_every_package_is_in_the_menu_and_has_its_files() -> None:
    menu = (EXTERNAL / "Config.in").read_text()
    assert PACKAGES == ["colibri", "colibri-model", "python-colibri"]
    for package in PACKAGES:
        assert f"package/{package}/Config.in" in menu
        for ending in ("Config.in", f"{package}.mk"):
            assert (EXTERNAL / "package" / package / ending).is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_packages_have_the_version_of_the_engine(package: str) -> None:
    text = (EXTERNAL / "package" / package / f"{package}.mk").read_text()
    version = (REPOSITORY / "engine" / "VERSION").read_text().strip()
    stated = re.findall(rf"^{package.upper().replace('-', '_')}_VERSION = (.+)$", text, re.M)
    assert stated == [version]


@pytest.mark.parametrize("package", ["colibri", "python-colibri"])
def test_the_licence_has_the_hash_that_the_package_states(package: str) -> None:
    text = (EXTERNAL / "package" / package / f"{package}.hash").read_text()
    digest = hashlib.sha256((REPOSITORY / "LICENSE").read_bytes()).hexdigest()
    assert f"sha256  {digest}  LICENSE\n" in text


@pytest.mark.parametrize("package", PACKAGES)
def test_options_depend_before_they_select_and_explain_themselves(package: str) -> None:
    text = (EXTERNAL / "package" / package / "Config.in").read_text()
    for name, words in blocks(package):
        order = [word for word in words if word in ("depends", "select")]
        assert order == sorted(order), f"{name}: depends on before select"
        part = text.split(f"config {name}\n", 1)[1].split("\nconfig ", 1)[0]
        prompt = re.search(r'^\t(bool|string|int) "', part, re.M)
        assert not prompt or "\thelp\n" in part, f"{name} has no help text"
    assert re.search(r'^comment "\S+ needs ', text, re.M)


def test_production_macros_are_forced_by_default() -> None:
    text = (EXTERNAL / "package" / "colibri" / "Config.in").read_text()
    makefile = (EXTERNAL / "package" / "colibri" / "colibri.mk").read_text()
    meson = (REPOSITORY / "engine" / "meson.build").read_text()
    for macro in FORCED:
        assert re.search(rf"config BR2_PACKAGE_COLIBRI_FORCE_{macro}\n\tbool .*\n\tdefault y\n", text)
        assert f"$(if $(BR2_PACKAGE_COLIBRI_FORCE_{macro}),COLIBRI_{macro})" in makefile
        assert f"'COLIBRI_{macro}'" in meson


def test_the_development_fragment_forces_nothing_and_names_options_that_exist() -> None:
    lines = (EXTERNAL / "board" / "common" / "development.config").read_text().splitlines()
    known = {name for name, _ in blocks("colibri")}
    off = [found[1] for found in (re.fullmatch(r"# (BR2_\w+) is not set", line) for line in lines) if found]
    on = [line.partition("=")[0] for line in lines if line.startswith("BR2_")]
    assert sorted(off) == sorted(f"BR2_PACKAGE_COLIBRI_FORCE_{macro}" for macro in FORCED)
    assert set(off + on) <= known


def test_meson_knows_the_options_that_the_packages_give() -> None:
    known = set(re.findall(r"^option\('(\w+)'", (REPOSITORY / "engine" / "meson.options").read_text(), re.M))
    for package in ("colibri", "python-colibri"):
        given = set(re.findall(r"-D(\w+)=", (EXTERNAL / "package" / package / f"{package}.mk").read_text()))
        assert given - known - {"optimization", "b_pie", "sysconfdir"} == set()


@pytest.mark.parametrize("defconfig", DEFCONFIGS, ids=lambda path: path.name)
def test_defconfigs_name_files_that_exist_and_check_hashes(defconfig: Path) -> None:
    values = settings(defconfig)
    assert values["BR2_DOWNLOAD_FORCE_CHECK_HASHES"] == "y"
    named = [path for value in values.values() for path in in_tree(value)]
    assert named
    assert [path for path in named if not path.exists()] == []
    kernel = f"linux-{values['BR2_LINUX_KERNEL_CUSTOM_VERSION_VALUE']}.tar.xz"
    for package in ("linux", "linux-headers"):
        assert kernel in (EXTERNAL / "patches" / package / f"{package}.hash").read_text()
    assert not any(re.search(r"/(root|home)/", value) for value in values.values())


def test_the_aarch64_kernel_has_the_fragments_of_its_board() -> None:
    values = settings(EXTERNAL / "configs" / "colibri_qemu_aarch64_defconfig")
    board = tomllib.loads((REPOSITORY / "configs" / "boards" / "qemu-aarch64.toml").read_text())
    fragments = [path.stem for path in in_tree(values["BR2_LINUX_KERNEL_CONFIG_FRAGMENT_FILES"])]
    assert fragments == board["kernel"]["fragments"]


def test_the_fragments_are_the_projects_own() -> None:
    assert os.readlink(EXTERNAL / "shared") == "../configs"


def test_a_kernel_that_lacks_an_option_is_refused(tmp_path: Path) -> None:
    fragment = EXTERNAL / "shared" / "kernel" / "colibri.cfg"
    lines = [request.text for request in kconfig_check.load_fragments([fragment])]
    (tmp_path / "Kconfig").write_text("".join(f"config {line[7:].split('=')[0]}\n\tbool\n" for line in lines))
    (tmp_path / ".config").write_text("\n".join(lines) + "\n")
    complete = run_checker(tmp_path, fragment)
    assert complete.returncode == 0, complete.stdout + complete.stderr
    (tmp_path / ".config").write_text("\n".join(line for line in lines if line != "CONFIG_SECCOMP=y") + "\n")
    refused = run_checker(tmp_path, fragment)
    assert refused.returncode == 1
    assert "DROPPED missing: CONFIG_SECCOMP=y" in refused.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_programs_that_a_posix_shell_understands(name: str) -> None:
    path = EXTERNAL / name
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/bin/sh\n# SPDX-License-Identifier: MIT\n")
    for shell in ("dash", "busybox"):
        assert shutil.which(shell), f"{shell} is missing: make setup installs it"
        command = [shell, *(["sh"] if shell == "busybox" else []), "-n", str(path)]
        assert subprocess.run(command, check=False).returncode == 0


def test_the_control_groups_are_mounted_once(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    fstab = tmp_path / "etc" / "fstab"
    fstab.write_text("sysfs\t/sys\tsysfs\tdefaults\t0\t0\n")
    for _ in range(2):
        subprocess.run([str(EXTERNAL / "board/common/post-build.sh"), str(tmp_path), "board"], check=True)
    assert fstab.read_text().count("/sys/fs/cgroup") == 1


@pytest.mark.parametrize("name", ["image", "test_colibri", "test_python_colibri"])
def test_the_runtime_tests_can_be_compiled(name: str) -> None:
    source = EXTERNAL / "support" / "testing" / "colibri_tests" / f"{name}.py"
    compile(source.read_text(), str(source), "exec")
