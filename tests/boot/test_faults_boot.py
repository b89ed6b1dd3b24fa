# SPDX-License-Identifier: MIT
"""Storage that fails under a running session: read errors, one bad extent, late answers, no answer.

The models' disk is put behind the guest kernel's device mapper, whose table a test exchanges while
the engine streams experts from it. What the engine reads, it reads with O_DIRECT, so that no page
cache hides the fault. Every test ends with the disk healed and the same logits as in memory.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from boot_run import BootRun
from guest_tools import TOOLS, GuestSession, disk_arguments, find_disk, make_tools_disk, mount_tools, stop_service
from harness import MODELS_SERIAL, Machine, MachineOptions, Shell
from session_answer import Answer

IO, OK = -54, 0
RESIDENT, STREAM = 1, 2
SECTOR = 512
MODEL = "/run/models/tiny.colibri"
LATE_MS = 700
STALL_SECONDS = 90.0  # how late reads come; the engine waits for STALL_MS
STALL_MS = 2000


@dataclass
class Storage:
    """The models' disk behind a table that can be exchanged."""

    shell: Shell
    disk: str
    sectors: int

    def table(self, *lines: str) -> None:
        """Exchange the table."""
        words = " ".join(shlex.quote(line) for line in lines)
        self.shell.run(f"{TOOLS}/dm load models {words}", check=True)

    def heal(self) -> None:
        """Every read works again."""
        self.table(f"0 {self.sectors} linear /dev/{self.disk} 0")

    def fail_all(self) -> None:
        """Every read fails."""
        self.table(f"0 {self.sectors} error")

    def fail(self, first: int, count: int) -> None:
        """Reads that touch these sectors fail."""
        end = first + count
        lines = [f"0 {first} linear /dev/{self.disk} 0", f"{first} {count} error"]
        self.table(*lines, f"{end} {self.sectors - end} linear /dev/{self.disk} {end}")

    def delay(self, milliseconds: int) -> None:
        """Every read comes late."""
        self.table(f"0 {self.sectors} delay /dev/{self.disk} 0 {milliseconds}")


@pytest.fixture(scope="module")
def machine(boot_run: BootRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Shell]]:
    """A machine of its own with the tools disk."""
    if boot_run.image.models_disk is None:
        pytest.skip("the image has no models disk")
    disk = make_tools_disk(tmp_path_factory.mktemp("faults"), boot_run.image.page_bytes)
    running = boot_run.machine(MachineOptions(cores=2, qemu_args=disk_arguments(disk, "colibri-tools")))
    shell = running.start()
    mount_tools(shell)
    yield running, shell
    running.close()


@pytest.fixture(scope="module")
def storage(machine: tuple[Machine, Shell]) -> Storage:
    """The models' file system, mounted through the device mapper."""
    shell = machine[1]
    stop_service(shell)
    disk = find_disk(shell, MODELS_SERIAL)
    sectors = int(shell.output(f"cat /sys/block/{disk}/size"))
    kind = shell.output("sed -n 's/^[^ ]* \\/models \\([^ ]*\\) .*/\\1/p' /proc/mounts")
    shell.run(f"umount /models && {TOOLS}/dm create models '0 {sectors} linear /dev/{disk} 0'", check=True)
    shell.run(f"mkdir -p /run/models && mount -t {kind} -o ro /dev/dm-0 /run/models", check=True)
    return Storage(shell, disk, sectors)


@pytest.fixture
def session(machine: tuple[Machine, Shell], storage: Storage) -> Iterator[GuestSession]:
    """A program in the guest that keeps a model open; afterwards the disk works again."""
    opened = GuestSession(*machine)
    yield opened
    storage.heal()
    opened.close()


@pytest.fixture(scope="module")
def prompt(storage: Storage) -> list[int]:
    """The ids of the model's first golden case, prompt and answer."""
    golden = json.loads(storage.shell.read_file(MODEL.removesuffix(".colibri") + ".golden.json"))
    case = golden["cases"][0]
    return [*case["prompt_ids"], *case["ids"]]


@pytest.fixture(scope="module")
def expected(machine: tuple[Machine, Shell], storage: Storage, prompt: list[int]) -> list[str]:
    """Hash of the logits after each id, everything in memory."""
    resident = GuestSession(*machine)
    assert resident.ask(f"open {MODEL} residency={RESIDENT}").code == OK
    hashes = [resident.ask(f"append {token}").field("logits") for token in prompt]
    resident.close()
    return hashes


def open_streaming(session: GuestSession, options: str = "") -> None:
    """Few slots, so that most experts are read again and again."""
    answer = session.ask(f"open {MODEL} residency={STREAM} slots=2 prefetch=0 {options}")
    assert answer.code == OK, answer
    assert answer.field("direct_io") == "1", answer  # erofs reads past the page cache


def append_until_failure(session: GuestSession, prompt: list[int], start: int) -> tuple[int, Answer]:
    """The index of the id that could not be appended, and why."""
    for index in range(start, len(prompt)):
        answer = session.ask(f"append {prompt[index]}")
        if answer.code != OK:
            return index, answer
    raise AssertionError("no read failed")


def assert_goes_on(session: GuestSession, prompt: list[int], expected: list[str], start: int) -> None:
    """The rest of the sequence gives the logits of the model in memory."""
    for index in range(start, len(prompt)):
        answer = session.ask(f"append {prompt[index]}")
        assert (answer.code, answer.field("position")) == (OK, str(index + 1)), answer
        assert answer.field("logits") == expected[index], f"id {index}"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_read_error_names_the_extent_and_the_session_goes_on(
    session: GuestSession, storage: Storage, prompt: list[int], expected: list[str], threads: int
) -> None:
    open_streaming(session, f"threads={threads}")
    for index in range(4):
        assert session.ask(f"append {prompt[index]}").field("logits") == expected[index]
    storage.fail_all()
    failed, answer = append_until_failure(session, prompt, 4)
    assert answer.code == IO
    assert "in the expert extent of layer" in answer.text
    assert "Input/output error" in answer.text
    again = session.ask(f"append {prompt[failed]}")
    assert again.code == IO  # still away, still an error, still the same sequence
    storage.heal()
    assert_goes_on(session, prompt, expected, failed)


def test_one_bad_place_of_the_disk_is_an_error_at_that_offset(
    boot_run: BootRun, session: GuestSession, storage: Storage, prompt: list[int], expected: list[str]
) -> None:
    head = storage.shell.read_file_part(MODEL, 4096)
    assert boot_run.image.models_disk is not None
    begin = boot_run.image.models_disk.read_bytes().find(head)
    assert begin % 4096 == 0
    open_streaming(session)
    first = session.ask(f"append {prompt[0]}")
    assert first.field("logits") == expected[0]
    # The last expert extents of the file: whichever of them is needed first.
    size = int(storage.shell.output(f"stat -c %s {MODEL}"))
    bad, length = (size // 2 + 4095) // 4096 * 4096, 64 << 10
    storage.fail((begin + bad) // SECTOR, length // SECTOR)
    failed, answer = append_until_failure(session, prompt, 1)
    assert answer.code == IO
    offset = int(answer.field("offset"))
    assert bad - (1 << 20) <= offset < bad + length
    storage.heal()
    assert_goes_on(session, prompt, expected, failed)


def test_late_answers_change_no_bit(
    session: GuestSession, storage: Storage, prompt: list[int], expected: list[str]
) -> None:
    open_streaming(session, "io=1")
    storage.delay(LATE_MS)
    began = float(storage.shell.output("cut -d' ' -f1 /proc/uptime"))
    assert session.ask(f"append {prompt[0]}").field("logits") == expected[0]
    assert float(storage.shell.output("cut -d' ' -f1 /proc/uptime")) - began >= LATE_MS / 1000
    storage.heal()
    assert_goes_on(session, prompt, expected, 1)


def test_storage_that_does_not_answer_is_an_error_and_not_a_hang(
    session: GuestSession, storage: Storage, prompt: list[int], expected: list[str]
) -> None:
    open_streaming(session, f"stall={STALL_MS}")
    assert session.ask(f"append {prompt[0]}").code == OK
    storage.delay(int(1000 * STALL_SECONDS))
    failed, answer = append_until_failure(session, prompt, 1)
    assert answer.code == IO
    assert "does not answer" in answer.text
    assert "in the expert extent of layer" in answer.text
    storage.heal()  # takes over what waits in the old table
    assert_goes_on(session, prompt, expected, failed)
