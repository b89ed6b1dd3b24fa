# SPDX-License-Identifier: MIT
"""The Yocto layer without its upstream trees: recipes in BitBake's own parser, linter, kas schema, one source each.

The tools are in an environment of their own (yocto_tools.py).
Classes of openembedded-core are stubs here; `make yocto-check` parses with the real ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yocto_tools

REPOSITORY = Path(__file__).resolve().parents[2]
LAYER = REPOSITORY / "meta-colibri"
VERSION = (REPOSITORY / "engine" / "VERSION").read_text().strip()
RECIPES = sorted(LAYER.rglob("*.bb"))
METADATA = sorted(path for path in LAYER.rglob("*") if path.suffix in {".bb", ".bbappend", ".bbclass", ".inc", ".conf"})
OVERLAYS = sorted((REPOSITORY / "configs" / "kas").glob("*.yml"))
# Rules of the linter that do not fit, each with its reason.
NOT_APPLIED = {
    "oelint.bbclass.underscores": "upstream names its classes with dashes",
    "oelint.vars.noncoreoverride": "a bbappend here does nothing without the distro feature",
    "oelint.vars.fileextrapaths": "the engine lies beside the layer, its path is absolute",
    "oelint.vars.fileextrapathsop": "the folder of a model is set in local.conf, after parsing the class",
    "oelint.vars.outofcontext": "as above",
    "oelint.vars.layerconf": "the repository is where the layer is",
    "oelint.vars.mispell.unknown": "the layer's own variables",
    "oelint.var.mandatoryvar.HOMEPAGE": "there is no public address",
    "oelint.var.licenseremotefile": "the licence is the repository's",
    "oelint.var.filesoverride": "packages that only this layer has",
    "oelint.var.badimagefeature": "the development image is for that",
    "oelint.task.noanonpython": "a recipe that cannot be built is skipped with a reason",
    "oelint.vars.dependsordered": "in the order of their meaning",
    "oelint.vars.dependsappend": "no compiler is needed",
    "oelint.var.order": "package by package",
}


@pytest.fixture(scope="session")
def tools() -> Path:
    """bin/ of the environment with BitBake's parser, oelint-adv and kas."""
    try:
        return yocto_tools.environment()
    except yocto_tools.ToolsError as error:
        pytest.fail(str(error), pytrace=False)


def parsed(tools: Path, recipe: Path, **settings: str) -> dict[str, str]:
    """Variables of a recipe as BitBake's parser leaves them."""
    command = [str(tools / "python"), str(Path(__file__).with_name("yocto_parse.py")), str(LAYER), str(recipe)]
    result = subprocess.run([*command, json.dumps(settings)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_bitbakes_parser_takes_the_recipe(tools: Path, recipe: Path) -> None:
    values = parsed(tools, recipe, COLIBRI_MODEL_DIR="/models-of-a-test", COLIBRI_CUSTOM_MODEL="own")
    print(f"note: parsed {recipe.relative_to(REPOSITORY)} with BitBake {values['BITBAKE']}")
    assert values["SUMMARY"]
    assert values["LICENSE"] or "packagegroups" in recipe.parts  # the class of packagegroups has its own
    if recipe.parent.name not in {"images", "packagegroups"}:
        assert values["PV"] == VERSION


def test_a_folder_of_models_changes_no_recipe_that_converts(tools: Path) -> None:
    models = LAYER / "recipes-colibri" / "models"
    settings = {"COLIBRI_MODEL_DIR": "/models-of-a-test", "COLIBRI_CUSTOM_MODEL": "own"}
    tiny = models / f"colibri-model-tiny_{VERSION}.bb"
    without, beside = parsed(tools, tiny), parsed(tools, tiny, **settings)
    assert beside["SRC_URI"].split() == without["SRC_URI"].split()
    assert "file://configs/models/tiny.toml" in beside["SRC_URI"].split()
    assert "python3-numpy-native" in beside["DEPENDS"]
    own = parsed(tools, models / f"colibri-model-custom_{VERSION}.bb", **settings)
    assert {"file://own.colibri", "file://own.golden.json"} <= set(own["SRC_URI"].split())
    assert "python3-numpy-native" not in own["DEPENDS"]


def test_a_recipe_with_a_mistake_is_not_taken(tools: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "broken_1.0.bb"
    recipe.write_text('SUMMARY = "no end\n')
    with pytest.raises(AssertionError, match=r"[Pp]arse"):
        parsed(tools, recipe)


def test_production_forces_the_four_macros(tools: Path) -> None:
    values = parsed(tools, LAYER / "recipes-colibri" / "colibri" / f"colibri_{VERSION}.bb")
    forced = re.search(r"-Dforced=(\S*)", values["EXTRA_OEMESON"])
    assert forced is not None
    assert set(forced[1].split(",")) == {
        "COLIBRI_SECURE_MODE", "COLIBRI_NO_LOGGING", "COLIBRI_VERIFY_MODEL_HASH", "COLIBRI_RESTRICTED_SYSCALLS",
    }  # fmt: skip
    assert "colibri-forced-security" in values["RPROVIDES:colibri-tools"]


def test_a_build_without_one_macro_is_none_for_production(tools: Path) -> None:
    recipe = LAYER / "recipes-colibri" / "colibri" / f"colibri_{VERSION}.bb"
    values = parsed(tools, recipe, PACKAGECONFIG="secure-mode no-logging sandbox")
    assert "COLIBRI_VERIFY_MODEL_HASH" not in values["EXTRA_OEMESON"]
    assert "colibri-forced-security" not in values["RPROVIDES:colibri-tools"]
    folder = LAYER / "recipes-core" / "packagegroups"
    group = parsed(tools, folder / "packagegroup-colibri-production.bb")
    assert "colibri-forced-security" in group["RDEPENDS:packagegroup-colibri-production"].split()
    # Whatever a recipe of the development image needs, such a build must provide.
    assert "colibri-forced-security" not in str(parsed(tools, folder / "packagegroup-colibri.bb"))


def test_python_on_the_device_needs_no_numpy(tools: Path) -> None:
    values = parsed(tools, LAYER / "recipes-colibri" / "colibri" / f"python3-colibri_{VERSION}.bb")
    assert "numpy" not in values["RDEPENDS:python3-colibri"]


def test_the_kernel_gets_nothing_without_the_feature() -> None:
    text = (LAYER / "recipes-kernel" / "linux" / "linux-yocto_%.bbappend").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 1
    assert lines[0].startswith("require ${@bb.utils.contains('DISTRO_FEATURES', 'colibri', ")


def test_every_fragment_that_is_demanded_is_applied_and_exists() -> None:
    folder = LAYER / "recipes-kernel" / "linux" / "colibri"
    text = (LAYER / "classes-recipe" / "colibri-kernel.bbclass").read_text()
    for scc, setting in (("colibri", r"COLIBRI_KERNEL_FRAGMENTS \?="), ("colibri-qemu", r"FRAGMENTS:append:qemuall =")):
        named = re.search(setting + r' "([^"]*)"', text)
        assert named is not None
        applied = re.findall(r"^kconf (?:non-)?hardware (\S+)\.cfg$", (folder / f"{scc}.scc").read_text(), re.MULTILINE)
        assert sorted(applied) == sorted(named[1].split())
        assert all((REPOSITORY / "configs" / "kernel" / f"{name}.cfg").is_file() for name in applied)


def test_the_layer_has_what_layers_must_have() -> None:
    conf = (LAYER / "conf" / "layer.conf").read_text()
    assert 'LAYERSERIES_COMPAT_colibri = "wrynose"' in conf
    assert 'LAYERDEPENDS_colibri = "core"' in conf
    readme = (LAYER / "README.md").read_text()
    assert "## Maintainers and patches" in readme
    assert "git format-patch" in readme
    assert "@" in readme  # yocto-check-layer wants an address
    assert re.search(r"@example\.|@[\w.]+\.invalid", readme) is None  # and nobody gets mail there
    assert (LAYER / "SECURITY.md").is_file()
    assert (LAYER / "COPYING.MIT").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    digest = hashlib.md5((REPOSITORY / "LICENSE").read_bytes(), usedforsecurity=False).hexdigest()
    sources = [path for path in METADATA if "LIC_FILES_CHKSUM" in path.read_text()]
    assert sources
    assert all(digest in path.read_text() for path in sources)


def test_the_root_hash_in_the_recipe_is_that_of_the_conversion(tmp_path: Path) -> None:
    recipe = (LAYER / "recipes-colibri" / "models" / f"colibri-model-tiny_{VERSION}.bb").read_text()
    pinned = re.search(r'COLIBRI_MODEL_ROOT = "([0-9a-f]{64})"', recipe)
    assert pinned is not None
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "engine")}
    for words in (("convert", "configs/models/tiny.toml", "-o"), ("inspect", "--json")):
        command = [sys.executable, "-m", "colibri", *words, str(tmp_path / "tiny.colibri")]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file"]["root"] == pinned[1]


def test_the_linter_finds_nothing(tools: Path) -> None:
    command = [str(tools / "oelint-adv"), "--release", "wrynose", "--quiet", *map(str, METADATA)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    found = []
    for line in (result.stdout + result.stderr).splitlines():
        match = re.search(r":(error|warning):(oelint\.[\w.-]+):", line)
        if match is not None and not any(match[2].startswith(rule) for rule in NOT_APPLIED):
            found.append(line)
    assert found == []
    print(f"note: oelint-adv looked at {len(METADATA)} files")


def kas(tools: Path, folder: Path, *files: Path) -> dict[str, object]:
    """A kas configuration after its schema was checked; no repository is fetched."""
    skipped = ("--skip", "finish_setup_repos", "--skip", "repos_checkout")
    command = [str(tools / "kas"), "dump", "--format", "json", *skipped]
    result = subprocess.run(
        [*command, ":".join(map(str, files))], env={**os.environ, "KAS_WORK_DIR": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("overlay", [None, *OVERLAYS], ids=lambda path: path.stem if path else "alone")
def test_kas_takes_the_file(tools: Path, tmp_path: Path, overlay: Path | None) -> None:
    data = kas(tools, tmp_path, REPOSITORY / "kas.yml", *([overlay] if overlay else []))
    repositories = data["repos"]
    assert isinstance(repositories, dict)
    for name in ("openembedded-core", "bitbake"):
        assert re.fullmatch(r"[0-9a-f]{40}", repositories[name]["commit"])
        assert repositories[name]["tag"] == "yocto-6.0.2"
    assert "colibri" in str(data["local_conf_header"])


def test_the_version_is_the_engines() -> None:
    versioned = [path for path in RECIPES if "_" in path.stem]
    assert len(versioned) >= 5
    assert {path.stem.rsplit("_", 1)[1] for path in versioned} == {VERSION}
    board = tomllib.loads((REPOSITORY / "configs" / "boards" / "qemu-aarch64.toml").read_text())
    assert board["name"] == "qemu-aarch64"
