# SPDX-License-Identifier: MIT
"""`colibrictl install` on a writable disk of the guest: fs-verity, a full disk, a read-only one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from boot_run import BootRun
from guest_tools import disk_arguments, find_disk
from harness import MODELS_SERIAL, Machine, Shell

DATA_SERIAL = "colibri-data"
DATA = "/run/data"
MODELS = "/run/sources"  # the image mounts its models where it likes
SOURCE = f"{MODELS}/tiny.colibri"
TARGET = f"{DATA}/model.colibri"
BLOCK = 4096
DISK_BYTES = 8 << 20


def verity_digest(data: bytes) -> str:
    """What `fsverity digest` says: SHA-256, blocks of 4096 bytes, no salt (the kernel's documentation)."""

    def blocks(level: bytes) -> list[bytes]:
        return [level[at : at + BLOCK].ljust(BLOCK, b"\0") for at in range(0, len(level), BLOCK)]

    level = data
    while len(level) > BLOCK:
        level = b"".join(hashlib.sha256(block).digest() for block in blocks(level))
    root = hashlib.sha256(blocks(level)[0]).digest()
    descriptor = struct.pack("<BBBBIQ64s32s144s", 1, 1, 12, 0, 0, len(data), root, b"", b"")
    return "sha256:" + hashlib.sha256(descriptor).hexdigest()


def make_disk(folder: Path) -> Path:
    """An empty ext4 file system that can seal files."""
    path = folder / "data.ext4"
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    mkfs = shutil.which("mkfs.ext4", path=search)
    if mkfs is None:
        pytest.fail("mkfs.ext4 is missing: apt-get install e2fsprogs", pytrace=False)
    with path.open("wb") as file:
        file.truncate(DISK_BYTES)
    options = ["-q", "-F", "-O", "verity", "-b", str(BLOCK), "-m", "0", "-E", "lazy_itable_init=0"]
    subprocess.run([mkfs, *options, str(path)], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def guest(boot_run: BootRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A guest with an empty writable disk."""
    disk = make_disk(tmp_path_factory.mktemp("data"))
    extra = disk_arguments(disk, DATA_SERIAL, writable=True)
    options = replace(boot_run.options, qemu_args=(*boot_run.options.qemu_args, *extra))
    machine: Machine = boot_run.machine(options)
    shell = machine.start()
    for serial, folder, kind in ((DATA_SERIAL, DATA, "ext4"), (MODELS_SERIAL, MODELS, "erofs -o ro")):
        shell.run(f"mkdir -p {folder} && mount -t {kind} /dev/{find_disk(shell, serial)} {folder}", check=True)
    yield shell
    shell.prove_alive()
    boot_run.proofs += 1
    machine.close()


@pytest.fixture
def shell(guest: Shell) -> Shell:
    """The guest with an empty disk, whatever the test before left."""
    guest.run(f"mount -o remount,rw {DATA} && rm -rf {DATA}/* {DATA}/.model*", check=True)
    return guest


def install(shell: Shell, options: str = "") -> dict[str, Any]:
    """Install the tiny model; what the command said."""
    value = json.loads(shell.output(f"colibrictl install {SOURCE} {TARGET} --json {options}"))
    assert isinstance(value, dict)
    return value


def test_an_installed_model_is_sealed_by_the_kernel(shell: Shell) -> None:
    digest = verity_digest(shell.read_file(SOURCE))
    said = install(shell, "--fs-verity require")
    assert (said["fs_verity"], said["fs_verity_digest"]) == ("on", digest)
    verified = json.loads(shell.output(f"colibrictl verify {TARGET} --json"))
    assert (verified["ok"], verified["fs_verity_digest"]) == (True, digest)
    assert digest in shell.output(f"colibrictl info {TARGET}")
    assert digest in shell.output(f"colibrictl doctor {TARGET}; true")
    refused = shell.capture(f"echo x >>{TARGET}")
    assert refused.exit_code != 0
    assert "Operation not permitted" in refused.stderr


def test_a_sealed_model_is_replaced_and_survives_a_remount(shell: Shell) -> None:
    install(shell, "--fs-verity require")
    said = install(shell)
    assert said["fs_verity"] == "on"
    shell.run(f"sync; umount {DATA} && mount -t ext4 /dev/{find_disk(shell, DATA_SERIAL)} {DATA}", check=True)
    assert shell.output(f"ls -A {DATA}").split() == ["model.colibri", "model.golden.json"]
    assert "ok" in shell.output(f"colibrictl verify {TARGET}")
    assert shell.output(f"cmp {SOURCE} {TARGET} && echo same") == "same"


def test_a_model_on_a_file_system_without_seals_says_so(shell: Shell) -> None:
    said = json.loads(shell.output(f"colibrictl install {SOURCE} /run/model.colibri --json"))
    assert said["fs_verity"] == "unsupported"
    refused = shell.capture(f"colibrictl install {SOURCE} /run/model.colibri --fs-verity require")
    assert refused.exit_code == 1
    assert "fs-verity cannot be enabled" in refused.stderr
    shell.run("rm -f /run/model.colibri /run/model.golden.json", check=True)


def test_a_full_disk_leaves_the_old_model(shell: Shell) -> None:
    install(shell)
    shell.run(f"dd if=/dev/zero of={DATA}/filler bs=64k 2>/dev/null; sync", check=False)
    refused = shell.capture(f"colibrictl install {SOURCE} {TARGET}")
    assert refused.exit_code == 1
    assert "bytes are free, installing needs" in refused.stderr
    assert "ok" in shell.output(f"colibrictl verify {TARGET}")
    assert shell.output(f"ls -A {DATA}").split() == ["filler", "model.colibri", "model.golden.json"]


def test_a_read_only_disk_is_refused(shell: Shell) -> None:
    install(shell)
    shell.run(f"mount -o remount,ro {DATA}", check=True)
    refused = shell.capture(f"colibrictl install {SOURCE} {TARGET}")
    assert refused.exit_code == 1
    assert "read-only" in refused.stderr.lower()
    assert "ok" in shell.output(f"colibrictl verify {TARGET}")
