# SPDX-License-Identifier: MIT
"""`colibrictl install` on a writable disk of the guest: fs-verity, a full disk, a read-only one."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from boot_run import BootRun
from guest_tools import (
    DATA,
    DATA_SERIAL,
    TOOLS,
    find_disk,
    guest_with,
    make_data_disk,
    make_tools_disk,
    versions,
)
from harness import Captured, Shell

SOURCE = f"{TOOLS}/tiny.colibri"
OTHER = f"{TOOLS}/tiny-mixed.colibri"
OTHER_GOLDEN = f"{TOOLS}/tiny-mixed.golden.json"
TARGET = f"{DATA}/model.colibri"


def verity_digest(data: bytes, block: int) -> str:
    """What `fsverity digest` says: SHA-256, blocks of a page, no salt (the kernel's documentation)."""

    def blocks(level: bytes) -> list[bytes]:
        return [level[at : at + block].ljust(block, b"\0") for at in range(0, len(level), block)]

    level = data
    while len(level) > block:
        level = b"".join(hashlib.sha256(piece).digest() for piece in blocks(level))
    root = hashlib.sha256(blocks(level)[0]).digest()
    descriptor = struct.pack("<BBBBIQ64s32s144s", 1, 1, block.bit_length() - 1, 0, 0, len(data), root, b"", b"")
    return "sha256:" + hashlib.sha256(descriptor).hexdigest()


@pytest.fixture(scope="module")
def guest(boot_run: BootRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A guest with an empty writable disk."""
    folder = tmp_path_factory.mktemp("data")
    disk = make_data_disk(folder / "data.ext4", boot_run.image.page_bytes)
    tools = make_tools_disk(folder, boot_run.image.page_bytes, versions())
    with guest_with(boot_run, tools=tools, data=disk) as shell:
        yield shell


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


def test_an_installed_model_is_sealed_by_the_kernel(boot_run: BootRun, shell: Shell) -> None:
    digest = verity_digest(versions()[0].path.read_bytes(), boot_run.image.page_bytes)
    said = install(shell, "--fs-verity require")
    assert (said["fs_verity"], said["fs_verity_digest"]) == ("on", digest)
    verified = json.loads(shell.output(f"colibrictl verify {TARGET} --json"))
    assert (verified["ok"], verified["fs_verity_digest"]) == (True, digest)
    assert digest in shell.output(f"colibrictl info {TARGET}")
    assert digest in shell.output(f"colibrictl doctor {TARGET}; true")
    refused = shell.capture(f"echo x >>{TARGET}")
    assert refused.exit_code != 0
    assert "Operation not permitted" in refused.messages


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
    assert "fs-verity cannot be enabled" in refused.messages
    shell.run("rm -f /run/model.colibri /run/model.golden.json", check=True)


def test_a_full_disk_leaves_the_old_model(shell: Shell) -> None:
    install(shell)
    shell.run(f"dd if=/dev/zero of={DATA}/filler bs=64k 2>/dev/null; sync", check=False)
    refused = shell.capture(f"colibrictl install {SOURCE} {TARGET}")
    assert refused.exit_code == 1
    assert "bytes are free, installing needs" in refused.messages
    assert "ok" in shell.output(f"colibrictl verify {TARGET}")
    assert shell.output(f"ls -A {DATA}").split() == ["filler", "model.colibri", "model.golden.json"]


def free_bytes(shell: Shell) -> int:
    """Of the writable disk, for everybody. From df: few images have a stat that tells of file systems."""
    line = shell.output(f"sync; df -Pk {DATA}").splitlines()[-1]
    return int(line.split()[3]) * 1024  # device, size, used, available


def fill_up(shell: Shell, free: int, block: int) -> None:
    """Leave about so many blocks free."""
    shell.run(f"rm -f {DATA}/filler", check=True)
    count = free_bytes(shell) // block - free
    shell.run(f"dd if=/dev/zero of={DATA}/filler bs={block} count={count} 2>/dev/null", check=True)


def assert_refused_as_full(shell: Shell, refused: Captured) -> None:
    """An error that names the reason; the old model, and nothing of the new one."""
    assert refused.exit_code == 1, refused.messages
    assert re.search(r"bytes are free, installing needs|No space left on device", refused.messages), refused.messages
    assert shell.output(f"ls -A {DATA}").split() == ["filler", "model.colibri", "model.golden.json"]
    assert "ok" in shell.output(f"colibrictl verify {TARGET}")
    assert shell.run(f"cmp {SOURCE} {TARGET}").exit_code == 0


def test_a_disk_that_fills_up_at_any_block_leaves_the_old_model(boot_run: BootRun, shell: Shell) -> None:
    block = boot_run.image.page_bytes
    size = int(shell.output(f"cat {OTHER} {OTHER_GOLDEN} | wc -c"))
    install(shell)
    outcomes = []
    # Around what the check before the copy asks for: some get through it and fail later.
    for free in range(size // block + 1, size // block + 9):
        fill_up(shell, free, block)
        captured = shell.capture(f"colibrictl install {OTHER} {TARGET}")
        outcomes.append(captured.exit_code)
        if captured.exit_code == 0:
            assert shell.run(f"cmp {OTHER} {TARGET}").exit_code == 0
            shell.run(f"rm {DATA}/filler", check=True)
            install(shell)
        else:
            assert_refused_as_full(shell, captured)
    assert {outcomes[0], outcomes[-1]} == {0, 1}
    assert outcomes == sorted(outcomes, reverse=True)  # once it fits, it fits


def test_a_disk_without_a_free_inode_leaves_the_old_model(shell: Shell) -> None:
    install(shell)
    shell.run(f"mkdir {DATA}/filler; i=0; while : >{DATA}/filler/$i; do i=$((i + 1)); done 2>/dev/null; sync")
    assert free_bytes(shell) > int(shell.output(f"cat {OTHER} {OTHER_GOLDEN} | wc -c"))
    assert "No space left on device" in shell.capture(f"true >{DATA}/filler/last").messages
    assert_refused_as_full(shell, shell.capture(f"colibrictl install {OTHER} {TARGET}"))
    shell.run(f"rm -r {DATA}/filler", check=True)


def test_a_read_only_disk_is_refused(shell: Shell) -> None:
    install(shell)
    shell.run(f"mount -o remount,ro {DATA}", check=True)
    refused = shell.capture(f"colibrictl install {SOURCE} {TARGET}")
    assert refused.exit_code == 1
    assert "read-only" in refused.messages.lower()
    assert "ok" in shell.output(f"colibrictl verify {TARGET}")
