# SPDX-License-Identifier: MIT
"""Parse one recipe of the layer with BitBake's parser and print its variables as JSON.

    python yocto_parse.py LAYER RECIPE '{"VARIABLE": "value"}'

Classes that openembedded-core brings are empty here, and the few of its variables that a recipe reads
have plain values: what is checked is the layer's own text.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

PRINTED = ("SUMMARY", "LICENSE", "PV", "PN", "EXTRA_OEMESON", "SRC_URI", "DEPENDS", "PACKAGES")
PLAIN = {
    "bindir": "/usr/bin", "sbindir": "/usr/sbin", "libdir": "/usr/lib", "base_sbindir": "/sbin",
    "datadir": "/usr/share",
    "sysconfdir": "/etc", "libexecdir": "/usr/libexec", "nonarch_libdir": "/usr/lib", "includedir": "/usr/include",
    "systemd_system_unitdir": "/usr/lib/systemd/system", "PTEST_ENABLED": "1", "PTEST_PATH": "/usr/lib/colibri/ptest",
    "DISTRO_FEATURES": "systemd seccomp ptest colibri", "TARGET_ARCH": "aarch64", "MACHINE_ARCH": "qemuarm64",
    "IMAGE_FEATURES": "", "WORKDIR": "/build", "UNPACKDIR": "/build/sources", "S": "/build/sources",
    "B": "/build/build",
    "EXTENDPKGV": "1", "PYTHON_SITEPACKAGES_DIR": "/usr/lib/python3/site-packages", "IMGDEPLOYDIR": "/build/deploy",
    "IMAGE_NAME": "image", "IMAGE_ROOTFS": "/build/rootfs", "OVERRIDES": "qemuarm64:qemuall", "FILESEXTRAPATHS": "",
}  # fmt: skip


def stub_classes(layer: Path, folder: Path) -> None:
    """An empty class for each that the layer inherits and does not have."""
    (folder / "classes").mkdir()
    own = {path.stem for path in layer.rglob("*.bbclass")}
    texts = [path.read_text() for path in layer.rglob("*") if path.suffix in {".bb", ".inc", ".bbclass"}]
    inherited = {name for text in texts for line in re.findall(r"^inherit (.*)$", text, re.M) for name in line.split()}
    for name in inherited - own:
        (folder / "classes" / f"{name}.bbclass").write_text("")


def bitbake() -> Any:
    """BitBake's package from the wheel, which has no client of the hash equivalence server: parsing asks for none."""
    for name in ("hashserv", "hashserv.client"):
        sys.modules[name] = types.ModuleType(name)
    for name in ("bb.data", "bb.parse"):
        importlib.import_module(name)
    return importlib.import_module("bb")


def main() -> int:
    """Command line."""
    bb = bitbake()
    layer, recipe, settings = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stub_classes(layer, folder)
        data = bb.data.init()
        for key, value in PLAIN.items():
            data.setVar(key, value)
        data.setVar("BBPATH", f"{layer}:{folder}")
        data.setVar("TOPDIR", name)
        data.setVar("COLIBRI_REPOSITORY", str(layer.parent))
        data.setVar("__bbclasstype", "recipe")
        data.setVar("PN", recipe.stem.split("_")[0])
        data.setVar("PV", recipe.stem.split("_")[1] if "_" in recipe.stem else "1.0")
        data.setVar("FILE", str(recipe))
        data.setVar("THISDIR", str(recipe.parent))
        for key, value in settings.items():
            data.setVar(key, value)
        bb.parse.init_parser(data)
        variants = bb.parse.handle(str(recipe), data, False)
        values = variants[""] if isinstance(variants, dict) and "" in variants else data
        keys = {*PRINTED, *(key for key in values if key.startswith(("RDEPENDS:", "RPROVIDES:", "FILES:")))}
        printed = {values.expand(key): values.getVar(key) or "" for key in keys}
    printed["BITBAKE"] = bb.__version__
    json.dump(printed, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
