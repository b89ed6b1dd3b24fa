# SPDX-License-Identifier: MIT
"""Power cuts during `colibrictl install`: what the disk holds is the old model or the new one, verified.

Two ways to cut the power. QEMU is killed at a random moment while the guest installs; what it has
written until then is there. And every write of the guest's disk is logged with QEMU's blklogwrites,
from which writelog.py makes the disks that a volatile cache may leave: at every flush, and between
two flushes any part of the writes. Each disk is mounted by the guest's kernel, which replays the
journal; there the model is verified and the next one installed; e2fsck judges the file system.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import writelog
from boot_run import BootRun
from guest_tools import (
    DATA,
    DATA_SERIAL,
    SOURCES,
    TOOLS,
    Version,
    boot_with,
    disk_arguments,
    disk_names,
    find_disk,
    host_program,
    logged_disk_arguments,
    make_data_disk,
    make_tools_disk,
    mount_data,
    versions,
)
from harness import ConsoleTimeout, Machine, Shell

LOG_BYTES = 1 << 30  # sparse
TARGET = f"{DATA}/model.colibri"
SHORT_ROUNDS, LONG_ROUNDS = 3, 50
SHORT_INSTALLS, LONG_INSTALLS = 2, 9  # the first one fills an empty disk, the others replace
SHORT_CUTS, LONG_CUTS = 1, 6  # disks between two flushes
SHORT_NEXT_INSTALLS = 4  # the short run installs over every fourth disk, the long one over each
# ext4 counts on its superblock arriving whole: it is written in place, and behind half of it, with the wrong
# checksum, no kernel mounts the file system.
SUPERBLOCK = range(1024, 2048)
DISKS_PER_BOOT = 24  # QEMU's virt machine has 32 places for them
KILL_INSTALLS = 2.5  # the power goes within the time of so many installs
RECOVERIES_CUT = 0.25  # of the rounds
INSTALL_SECONDS = 240.0
FILES = {"model.colibri", "model.golden.json", "lost+found"}
LEFTOVERS = {".model.colibri.installing", ".model.colibri.golden.installing", ".model.colibri.golden.replaced"}


@dataclass(frozen=True)
class Found:
    """What check_disk.sh said about a disk."""

    name: str
    fields: dict[str, str]

    def files(self, key: str = "files") -> set[str]:
        """Names in the folder."""
        return set(filter(None, self.fields[key].split(",")))


@dataclass(frozen=True)
class Rig:
    """Machines with the tools disk and disks that are checked."""

    run: BootRun
    tools: Path
    versions: list[Version]

    def boot(self, arguments: Sequence[str]) -> tuple[Machine, Shell]:
        """A machine with these further QEMU arguments; the tools are mounted."""
        return boot_with(self.run, *arguments, tools=self.tools)

    def version(self, count: int) -> Version:
        """The model of the installation with this number, from 1 on."""
        return self.versions[(count - 1) % len(self.versions)]


@pytest.fixture(scope="module")
def rig(boot_run: BootRun, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """The tools disk with the models that are installed in turn."""
    found = versions()
    scripts = [SOURCES / "check_disk.sh", SOURCES / "install_forever.sh"]
    folder = tmp_path_factory.mktemp("tools")
    return Rig(boot_run, make_tools_disk(folder, boot_run.image.page_bytes, found, scripts), found)


def check(shell: Shell, serial: str, disk: str, install: Version | None) -> Found:
    """Look at one disk of the guest and install a model there (None: only look)."""
    command = f"sh {TOOLS}/check_disk.sh {serial} /dev/{disk} {install.guest_path if install else ''}"
    seen = shell.run(f"{command} >/run/found && cat /run/found", timeout=INSTALL_SECONDS, check=True, noise=True)
    line = seen.output.strip()
    if not line.startswith(f"{serial} ") or "[" in line or "\n" in line:  # a busy host makes the guest's kernel warn
        line = shell.read_file("/run/found").decode().strip()
    name, _, rest = line.partition(" ")
    assert name == serial, line
    return Found(serial, dict(word.partition("=")[::2] for word in rest.split()))


def judge(
    found: Found, allowed: Sequence[Version], *, may_be_empty: bool, note: str = "", installed: bool = True
) -> None:
    """One of the allowed models, whole, with its own golden results; the next install has worked."""
    says = f"{note} {found}"
    assert found.fields["mounted"] == "yes", says
    assert found.files() <= FILES | LEFTOVERS, says
    if "model.colibri" in found.files():
        assert found.fields["verified"] == "0", says
        assert found.fields["root"] in {version.root for version in allowed}, says
        assert found.fields["golden"] in {"none", found.fields["root"]}, says
    else:
        assert may_be_empty, says
        assert found.fields["golden"] == "none", says
    if not installed:
        return
    assert found.fields["installed"] == "0", says
    assert found.files("after") - {"lost+found"} == {"model.colibri", "model.golden.json"}, says


def check_file_system(disk: Path) -> None:
    """What e2fsck says: a journal to replay, files without a name; nothing that the journal did not hold."""
    e2fsck = host_program("e2fsck", "e2fsprogs")
    copy = disk.with_suffix(".fsck")
    shutil.copyfile(disk, copy)
    repaired = subprocess.run([e2fsck, "-fy", str(copy)], capture_output=True, text=True, check=False)
    assert repaired.returncode in (0, 1), f"{disk.name}: e2fsck -fy: {repaired.stdout}{repaired.stderr}"
    again = subprocess.run([e2fsck, "-fn", str(copy)], capture_output=True, text=True, check=False)
    assert again.returncode == 0, f"{disk.name}: e2fsck -fn: {again.stdout}{again.stderr}"
    copy.unlink()


def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new_model(
    rig: Rig, tmp_path: Path, request: pytest.FixtureRequest, note: Callable[[str], None]
) -> None:
    run = rig.run
    rounds = request.config.getoption("--boot-rounds") or (LONG_ROUNDS if run.long else SHORT_ROUNDS)
    source = run.random("power cuts")
    disk = make_data_disk(tmp_path / "data.ext4", rig.run.image.page_bytes)
    arguments = disk_arguments(disk, DATA_SERIAL, writable=True)
    leftovers = recoveries = installed = 0
    seconds = 0.0  # of one look at the disk with one install
    for number in range(rounds + 1):
        machine, shell = rig.boot(arguments)
        if number > 0:
            check_file_system(disk)
            if source.random() < RECOVERIES_CUT and number < rounds:  # the recovery is cut off, too
                recoveries += 1
                shell.console.send(f"mkdir -p {DATA}; mount -t ext4 /dev/{find_disk(shell, DATA_SERIAL)} {DATA}\n")
                time.sleep(source.uniform(0.0, seconds / 4))
                machine.cut_power()
                machine, shell = rig.boot(arguments)
        began = time.monotonic()
        found = check(shell, DATA_SERIAL, find_disk(shell, DATA_SERIAL), rig.version(1))
        judge(found, rig.versions, may_be_empty=number == 0, note=f"round {number}, seed {run.seed}:")
        seconds = time.monotonic() - began
        leftovers += bool(found.files() & LEFTOVERS)
        shell.prove_alive()
        run.proofs += 1
        if number == rounds:
            machine.power_off()
            break
        mount_data(shell)
        models = " ".join(version.guest_path for version in rig.versions[1:] + rig.versions[:1])
        shell.console.send(f"sh {TOOLS}/install_forever.sh {TARGET} {models}\n")
        shell.console.expect(r"install 1 begins\r*\n", timeout=INSTALL_SECONDS, what="the first install")
        installed += cut_after(machine, source.uniform(0.0, KILL_INSTALLS * seconds))
    check_file_system(disk)
    note(
        f"power cuts: {rounds} rounds with seed {run.seed}, {installed} installs went through, {leftovers} cuts left "
        f"a temporary file, {recoveries} cut off the recovery too; always one verified model"
    )


def cut_after(machine: Machine, seconds: float) -> int:
    """Let the guest install for some time, then cut the power; how many installs were done."""
    deadline = time.monotonic() + seconds
    count = 0
    while (left := deadline - time.monotonic()) > 0:
        try:
            match = machine.console.expect(r"install (\d+) is done\r*\n", timeout=left, what="an install")
        except ConsoleTimeout:  # nothing came in the time that was left
            break
        count = int(match.group(1))
    assert machine.alive(), f"the machine went before its power was cut; console log: {machine.log_path}"
    machine.cut_power()
    return count


@dataclass(frozen=True)
class Logged:
    """A logged run of installs."""

    initial: bytes
    entries: list[writelog.Entry]
    begins: list[int]  # entries in the log when install 1, 2, … began
    ends: list[int]  # and when it had come back

    def allowed(self, state: writelog.State) -> range:
        """Numbers of the installs whose model the disk may hold; 0: none yet."""
        least = sum(end <= state.until for end in self.ends)
        most = sum(begin < state.since for begin in self.begins)
        return range(least, max(least, most) + 1)


@pytest.fixture(scope="module")
def logged(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """Installs on an empty disk, every write of which is logged."""
    folder = tmp_path_factory.mktemp("logged")
    disk, log = make_data_disk(folder / "data.ext4", rig.run.image.page_bytes), folder / "writes.log"
    initial = disk.read_bytes()
    writelog.create(log, LOG_BYTES)
    machine, shell = rig.boot(logged_disk_arguments(disk, log, DATA_SERIAL))
    mount_data(shell)
    begins, ends = [], []
    for count in range(1, (LONG_INSTALLS if rig.run.long else SHORT_INSTALLS) + 1):
        begins.append(len(writelog.read(log)))
        source = rig.version(count).guest_path
        shell.run(f"colibrictl install {source} {TARGET} --quiet", check=True, timeout=INSTALL_SECONDS)
        ends.append(len(writelog.read(log)))
    shell.prove_alive()
    rig.run.proofs += 1
    shell.run(f"umount {DATA}", check=True)
    machine.power_off()
    entries = writelog.read(log)
    replayed = bytearray(initial)
    for entry in entries:
        writelog.apply(replayed, entry)
    assert bytes(replayed) == disk.read_bytes(), "the log does not hold every write of the disk"
    return Logged(initial, entries, begins, ends)


def batches(states: Iterator[writelog.State]) -> Iterator[list[writelog.State]]:
    """As many as one machine takes; never all of them, which are gigabytes."""
    while batch := list(itertools.islice(states, DISKS_PER_BOOT)):
        yield batch


def test_every_disk_that_a_volatile_cache_may_leave_holds_the_old_or_the_new_model(
    rig: Rig, logged: Logged, tmp_path: Path, note: Callable[[str], None]
) -> None:
    cuts = LONG_CUTS if rig.run.long else SHORT_CUTS
    source = rig.run.random("write log")
    flushes = partial = 0
    held: dict[int, int] = {}
    for number, batch in enumerate(
        batches(writelog.states(logged.initial, logged.entries, source, cuts, whole=SUPERBLOCK))
    ):
        disks = {f"state-{place}": tmp_path / f"{number}-{place}.ext4" for place in range(len(batch))}
        arguments: list[str] = []
        for (serial, path), state in zip(disks.items(), batch, strict=True):
            path.write_bytes(state.disk)
            check_file_system(path)
            arguments += disk_arguments(path, serial, writable=True)
        machine, shell = rig.boot(arguments)
        names = disk_names(shell)
        for place, (serial, state) in enumerate(zip(disks, batch, strict=True)):
            whole = re.match(r"at flush|before the first|at the end", state.name) is not None
            flushes, partial = flushes + whole, partial + (not whole)
            allowed = logged.allowed(state)
            installs = rig.run.long or place % SHORT_NEXT_INSTALLS == 0
            following = rig.version(allowed[-1] + 1) if installs else None
            found = check(shell, serial, names[serial], following)
            models = [rig.version(count) for count in allowed if count > 0]
            says = f"{state.name}, seed {rig.run.seed}:"
            judge(found, models, may_be_empty=allowed[0] == 0, note=says, installed=installs)
            count = next((c for c in allowed if c > 0 and rig.version(c).root == found.fields["root"]), 0)
            held[count] = held.get(count, 0) + 1
        shell.prove_alive()
        rig.run.proofs += 1
        machine.power_off()
        for path in disks.values():
            check_file_system(path)
            path.unlink()
    assert set(held) == set(range(len(logged.ends) + 1)), held  # every model was seen, and the empty disk
    assert flushes > 3 * len(logged.ends)  # each install flushes the model, its golden results, the folder
    note(
        f"write log: {len(logged.ends)} installs, {len(logged.entries)} entries, {flushes} flush boundaries and "
        f"{partial} partial caches, seed {rig.run.seed}; disks that held model 0, 1, …: "
        f"{[held[count] for count in sorted(held)]}; none held anything else"
    )
