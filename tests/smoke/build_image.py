#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Build the smoke image: a folder that tests/boot and ``make demo`` can boot.

The folder holds

    Image           the kernel, from Debian's source with the fragments of configs/kernel/
    Image.VARIANT   kernels that differ by the lines of configs/kernel/variants/VARIANT.cfg (no-advise)
    kernel.config   its configuration
    rootfs.cpio     the root file system: busybox, colibrictl, an init script (no compression)
    models.erofs    the models and their golden results, on a read-only disk of their own
    board.toml      a copy of the board file
    manifest.json   hashes of all of these and of what they were made from

Only Debian packages are needed. Everything expensive is cached under content keys in
${XDG_CACHE_HOME:-~/.cache}/colibri; the same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "boot"))

from busybox import fetch_busybox
from harness import page_bytes
from initramfs import smoke_entries, write_newc
from kernel import FRAGMENT_FOLDER, Kernel, build_kernels
from support import (
    REPOSITORY,
    BuildError,
    Tool,
    require_tools,
    sha256_file,
    write_atomically,
)

MANIFEST_SCHEMA = 1
DEFAULT_BOARD = REPOSITORY / "configs" / "boards" / "qemu-aarch64.toml"
UNITS = REPOSITORY / "engine" / "units"
MODEL_PERMISSIONS = 0o644
ELF_MAGIC = b"\x7fELF"
FILESYSTEMS = ("erofs", "ext4")  # the second where pages are larger: erofs of Linux 6.1 has blocks of one page
VARIANT_FOLDER = FRAGMENT_FOLDER / "variants"
VARIANTS = ("no-advise",)  # small enough to be built in every run of the tests
# Any fixed value will do; it is the same for all our model disks.
MODELS_UUID = "c011b410-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class Board:
    """What an image builder needs of a board file."""

    path: Path
    name: str
    fragments: list[Path]
    vendor_fragments: list[Path]
    console: str
    baud: int
    filesystem: str


def load_board(path: Path) -> Board:
    """Read a board file; a missing key is named."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(f"{path}: cannot read the board file ({error.strerror})") from error
    except tomllib.TOMLDecodeError as error:
        raise BuildError(f"{path}: not a TOML file: {error}") from error

    def get(table: str, key: str, kind: type) -> Any:
        value = data.get(table, {}).get(key)
        if not isinstance(value, kind):
            raise BuildError(f"{path}: [{table}] {key} must be a {kind.__name__}, is {value!r}")
        return value

    if data.get("schema") != 1:
        raise BuildError(f"{path}: schema is {data.get('schema')!r}; this program reads schema 1")
    if data.get("arch") != "aarch64":
        raise BuildError(f"{path}: arch is {data.get('arch')!r}; the smoke image is for aarch64")
    filesystem = get("storage", "filesystem", str)
    if filesystem not in FILESYSTEMS:
        raise BuildError(
            f"{path}: [storage] filesystem is {filesystem!r}; the smoke image makes {' or '.join(FILESYSTEMS)}"
        )
    return Board(
        path=path,
        name=str(data.get("name", path.stem)),
        fragments=[FRAGMENT_FOLDER / f"{n}.cfg" for n in get("kernel", "fragments", list)],
        vendor_fragments=[FRAGMENT_FOLDER / f"{n}.cfg" for n in data["kernel"].get("vendor_fragments", [])],
        console=get("console", "device", str),
        baud=get("console", "baud", int),
        filesystem=filesystem,
    )


def golden_file(model: Path) -> Path | None:
    """The golden results beside a model: NAME.golden.json or NAME.colibri.golden.json."""
    for candidate in (
        model.with_suffix(".golden.json"),
        model.with_name(model.name + ".golden.json"),
    ):
        if candidate.is_file():
            return candidate
    return None


def build_models_disk(output: Path, files: list[Path], block: int = 4096) -> None:
    """Make the read-only disk: no compression, fixed identity, owners and times. Its ending is its type.

    block: of ext4, bytes: the page size of the kernel, which before Linux 6.3 fs-verity insists on.
    """
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".models-") as name:
        folder = Path(name) / "models"
        folder.mkdir(mode=0o755)
        for file in files:
            target = folder / file.name
            _link_or_copy(file.resolve(), target)
        image = Path(name) / output.name
        make = {".erofs": _erofs_command, ".ext4": _ext4_command}[output.suffix]
        # With SOURCE_DATE_EPOCH set, mkfs.erofs keeps older times in spite of -T0.
        environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
        result = subprocess.run(
            make(image, folder, block), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment,
        )  # fmt: skip
        if result.returncode != 0:
            raise BuildError(f"{result.stdout}\nmkfs ended with code {result.returncode}")
        with image.open("rb") as file_handle:
            os.fsync(file_handle.fileno())
        image.replace(output)


def _program(name: str, package: str) -> str:
    require_tools([Tool(name, package)])
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return shutil.which(name, path=search) or name


def _erofs_command(image: Path, folder: Path, _block: int) -> list[str]:
    return [
        _program("mkfs.erofs", "erofs-utils"),
        "--quiet",
        "--all-root",
        "-x-1",  # no extended attributes
        "-T0",
        f"-U{MODELS_UUID}",
        "-Enoinline_data",  # whole blocks: files can be mapped and read with O_DIRECT
        str(image),
        str(folder),
    ]


def _ext4_command(image: Path, folder: Path, block: int) -> list[str]:
    size = sum(file.stat().st_size for file in folder.iterdir())
    # -F: mke2fs asks before it makes blocks larger than a page of this machine.
    options = ["-q", "-F", "-t", "ext4", "-b", str(block), "-O", "verity,^has_journal", "-m", "0", "-U", MODELS_UUID]
    kib = size * 11 // 10 // 1024 + block  # 1,024 blocks: tables and bitmaps
    return [_program("mke2fs", "e2fsprogs"), *options, "-E", f"hash_seed={MODELS_UUID},root_owner=0:0",
            "-d", str(folder), str(image), f"{kib}k"]  # fmt: skip


def _link_or_copy(source: Path, target: Path) -> None:
    """Put a file into the disk's folder with the permissions that every build gives it."""
    if source.stat().st_mode & 0o7777 == MODEL_PERMISSIONS:
        try:
            os.link(source, target)  # saves a copy of hundreds of megabytes
        except OSError:  # another file system
            pass
        else:
            return
    shutil.copyfile(source, target)
    target.chmod(MODEL_PERMISSIONS)


def model_files(models: list[Path]) -> list[Path]:
    """The models and their golden results; every name once."""
    files: list[Path] = []
    for model in models:
        if not model.is_file():
            raise BuildError(f"{model}: no such model file; make it with: colibri convert")
        files.append(model)
        golden = golden_file(model)
        if golden is None:
            print(
                f"warning: {model.name} has no golden results beside it; the boot tests cannot check its answers",
                file=sys.stderr,
            )
        else:
            files.append(golden)
    names = [file.name for file in files]
    for name in names:
        if names.count(name) > 1:
            raise BuildError(f"{name}: two files of this name; models lie in one folder, rename it")
    return files


def build(
    *, colibrictl: Path, models: list[Path], board_path: Path, output: Path, jobs: int, variant: str = "",
    filesystem: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Bring the image folder up to date and return its manifest.

    variant: build the kernel with these lines in place of the board's; filesystem: of the models, not the board's.
    """
    board = load_board(board_path)
    if filesystem is not None:
        board = replace(board, filesystem=filesystem)
    if not colibrictl.is_file():
        raise BuildError(f"{colibrictl}: no such file; build it with: make")
    program = colibrictl.read_bytes()
    if not program.startswith((ELF_MAGIC, b"#!")):
        raise BuildError(f"{colibrictl}: neither an ELF program nor a script")
    files = model_files(models)
    kernels = image_kernels(board, (variant,) if variant else ("", *VARIANTS), jobs)
    kernel = kernels.pop(variant)
    busybox = fetch_busybox()

    output.mkdir(parents=True, exist_ok=True)
    manifest_path = output / "manifest.json"
    previous = _previous_manifest(manifest_path)
    inputs = {
        "kernel_source": kernel.source.name,
        "kernel_key": kernel.key,
        "compiler": kernel.compiler,
        "busybox": busybox.version,
        "colibrictl": sha256_file(colibrictl),
        "models": {file.name: sha256_file(file) for file in files},
    }
    disk = output / f"models.{board.filesystem}"
    old_models = previous.get("inputs", {}).get("models")
    old_disk = previous.get("files", {}).get(disk.name, {})
    # Without a manifest the folder is not an image; it comes back as the last step.
    manifest_path.unlink(missing_ok=True)
    write_atomically(output / "Image", kernel.image.read_bytes())
    for name, other in kernels.items():
        write_atomically(output / f"Image.{name}", other.image.read_bytes())
    write_atomically(output / "kernel.config", kernel.config.read_bytes())
    write_atomically(output / "board.toml", board_path.read_bytes())
    entries = smoke_entries(
        busybox=busybox.path.read_bytes(),
        colibrictl=program,
        console=board.console,
        baud=board.baud,
        filesystem=board.filesystem,
        units=UNITS,
        model=min(models, key=lambda model: model.stat().st_size).name,
    )
    write_atomically(output / "rootfs.cpio", write_newc(entries))
    unchanged = (
        disk.is_file()
        and old_models == inputs["models"]
        and old_disk.get("bytes") == disk.stat().st_size
        and old_disk.get("sha256") == sha256_file(disk)
    )
    if not unchanged:
        print(f"models: writing {disk.name} with {len(files)} files", flush=True)
        build_models_disk(disk, files, page_bytes(kernel.config.read_text(encoding="utf-8")))

    names = ["Image", *(f"Image.{name}" for name in kernels), "board.toml", "kernel.config", disk.name, "rootfs.cpio"]
    manifest: dict[str, Any] = {
        "schema": MANIFEST_SCHEMA,
        "board": board.name,
        "files": {
            name: {
                "bytes": (output / name).stat().st_size,
                "sha256": sha256_file(output / name),
            }
            for name in names
        },
        "inputs": inputs,
    }
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    write_atomically(manifest_path, text.encode())
    return manifest


def image_kernels(board: Board, names: Sequence[str], jobs: int) -> dict[str, Kernel]:
    """The kernel of the board (name "") and variants of it."""
    variants = {name: VARIANT_FOLDER / f"{name}.cfg" if name else None for name in names}
    kernels = build_kernels(board.fragments, board.vendor_fragments, variants, jobs)
    for name, kernel in kernels.items():
        if kernel.built_seconds is None:
            print(f"kernel: {name or board.name} from the cache ({kernel.key})", flush=True)
    return kernels


def _previous_manifest(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description="Build the smoke image: kernel, busybox, colibrictl and models for QEMU."
    )
    parser.add_argument("--colibrictl", type=Path, metavar="FILE", help="static AArch64 program")
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a .colibri file (repeatable); its .golden.json is taken along",
    )
    parser.add_argument("--board", type=Path, default=DEFAULT_BOARD, metavar="FILE.toml")
    parser.add_argument("--output", type=Path, metavar="DIR", help="the image folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel compiler runs")
    parser.add_argument("--variant", default="", metavar="NAME", help="a kernel of configs/kernel/variants/ instead")
    parser.add_argument("--filesystem", choices=FILESYSTEMS, help="of the models disk (default: the board's)")
    parser.add_argument("--kernel-only", action="store_true", help="only fill the cache with kernel and busybox")
    options = parser.parse_args(argv)
    if not options.kernel_only:
        for name in ("colibrictl", "output"):
            if getattr(options, name) is None:
                parser.error(f"--{name} is required")
        if not options.model:
            parser.error("give at least one --model FILE")
    started = time.monotonic()
    try:
        if options.kernel_only:
            board = load_board(options.board)
            kernels = image_kernels(board, ("", *VARIANTS), options.jobs)
            fetch_busybox()
            print(f"kernel: {kernels[''].image}")
            return 0
        manifest = build(
            colibrictl=options.colibrictl,
            models=options.model,
            board_path=options.board,
            output=options.output,
            jobs=options.jobs,
            variant=options.variant,
            filesystem=options.filesystem,
        )
    except BuildError as error:
        print(f"build_image: {error}", file=sys.stderr)
        return 1
    for name, facts in manifest["files"].items():
        print(f"image: {name:<14} {facts['bytes']:>12} bytes")
    print(f"image: {options.output} ready after {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
