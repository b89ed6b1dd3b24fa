# SPDX-License-Identifier: MIT
"""`colibrictl install`: an old model or a new one, whatever happens in between.

A small library between the command and libc ends the process before its N-th file operation, lets the
N-th one fail, or answers as a kernel with fs-verity would. What a power cut does to a disk is tried in
the booted image.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from colibri._spec import ERROR_EXIT, Code
from colibri.cli import main
from colibri.format import open_model
from colibri.signing import sign_model
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COLIBRI_NATIVE_BUILD", REPOSITORY / "build" / "host"))
RECIPES = REPOSITORY / "configs" / "models"
NAME = "model.colibri"
GOLDEN = "model.golden.json"
TEMPORARY = ".model.colibri.installing"
LEFTOVERS = {TEMPORARY, ".model.colibri.golden.installing", ".model.colibri.golden.replaced"}
LARGE_BYTES = 256 << 20
KILL_ROUNDS = 60

SHIM = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* FAULT=NAME:N:kill, NAME:N:term or NAME:N:ERRNO; NAME "any" counts every operation here, N+ is every one
 * from the N-th on. */
static int strikes(const char *name)
{
    static int count;
    const char *fault = getenv("FAULT");
    const char *colon = fault != NULL ? strchr(fault, ':') : NULL;
    const char *action;
    int from;

    if (colon == NULL || (strncmp(fault, "any:", 4) != 0 &&
                          (strlen(name) != (size_t)(colon - fault) || strncmp(fault, name, strlen(name)) != 0))) {
        return 0;
    }
    from = atoi(colon + 1);
    action = strchr(colon + 1, ':') + 1;
    if (++count != from && (count < from || action[-2] != '+')) {
        return 0;
    }
    if (strcmp(action, "term") == 0) {
        (void)kill(getpid(), SIGTERM);
        action = "4";
    }
    if (strcmp(action, "kill") == 0) {
        (void)kill(getpid(), SIGKILL);
    }
    errno = atoi(action);
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t n) { return fd > 2 && strikes("write") ? -1 : REAL(write)(fd, data, n); }
/* "wait": the signal comes right in front of the call, which then waits. */
ssize_t read(int fd, void *data, size_t n) { return fd == 0 && strikes("wait"), REAL(read)(fd, data, n); }
int poll(struct pollfd *fds, nfds_t n, int ms) { return strikes("wait"), REAL(poll)(fds, n, ms); }
int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *t, const sigset_t *set)
{
    return strikes("wait"), REAL(ppoll)(fds, n, t, set);
}
DIR *opendir(const char *p) { return strikes("opendir") ? NULL : REAL(opendir)(p); }
int fsync(int fd) { return strikes("fsync") ? -1 : REAL(fsync)(fd); }
int fchmod(int fd, mode_t mode) { return strikes("fchmod") ? -1 : REAL(fchmod)(fd, mode); }
int fchown(int fd, uid_t u, gid_t g) { return strikes("fchown") ? -1 : REAL(fchown)(fd, u, g); }
int unlinkat(int fd, const char *p, int f) { return strikes("unlinkat") ? -1 : REAL(unlinkat)(fd, p, f); }
int renameat(int a, const char *p, int b, const char *q)
{
    return strikes("renameat") ? -1 : REAL(renameat)(a, p, b, q);
}
int fallocate64(int fd, int mode, off64_t at, off64_t n)
{
    return strikes("fallocate") ? -1 : REAL(fallocate64)(fd, mode, at, n);
}
int openat64(int fd, const char *path, int flags, ...)
{
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    return strikes("openat") ? -1 : REAL(openat64)(fd, path, flags, mode);
}
/* NO_ACCESS: what the last part of a path begins with that this user may not read. */
int open64(const char *path, int flags, ...)
{
    const char *hidden = getenv("NO_ACCESS");
    const char *slash = strrchr(path, '/');
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (hidden != NULL && strncmp(slash != NULL ? slash + 1 : path, hidden, strlen(hidden)) == 0) {
        errno = EACCES;
        return -1;
    }
    return REAL(open64)(path, flags, mode);
}
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int fstatvfs64(int fd, struct statvfs64 *s)
{
    int result = REAL(fstatvfs64)(fd, s);

    if (getenv("FREE_BYTES") != NULL) {
        s->f_bavail = (fsblkcnt64_t)atoll(getenv("FREE_BYTES")) / s->f_frsize;
    }
    if (getenv("READ_ONLY") != NULL) {
        s->f_flag |= ST_RDONLY;
    }
    return result;
}
int ioctl(int fd, unsigned long request, ...)
{
    static int sealed;
    const char *verity = getenv("VERITY");
    va_list args;
    uint8_t *argument;

    va_start(args, request);
    argument = va_arg(args, uint8_t *);
    va_end(args);
    if (verity == NULL || ((request >> 8) & 0xff) != 'f') {
        return REAL(ioctl)(fd, request, argument);
    }
    if ((request & 0xff) == 133) {
        int number = atoi(verity);

        sealed = number == 0 && argument[0] == 1 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
        errno = number;
        return sealed ? 0 : -1;
    }
    if (!sealed) {
        errno = ENODATA;
        return -1;
    }
    memcpy(argument, "\1\0\40\0", 4);
    memset(argument + 4, 0xab, 32);
    return 0;
}
"""


@dataclass
class Outcome:
    """What a command left behind."""

    exit_code: int
    out: str
    err: str

    def fails(self, code: Code, *fragments: str) -> None:
        assert f"(error {int(code)} {code.name.lower()}" in self.err, self.err
        assert (self.exit_code, self.out) == (ERROR_EXIT[int(code)], "")
        for fragment in fragments:
            assert fragment in self.err


class Models:
    """Two models with golden results, a signed one, and the library in between."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.old, self.new = (self.convert(name, recipe) for name, recipe in (("old", "tiny"), ("new", "tiny-mixed")))
        key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
        (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.public = folder / "key.pub"
        self.public.write_bytes(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        self.signed = folder / "signed.colibri"
        sign_model(self.new, folder / "key.pem", self.signed)
        (folder / "shim.c").write_text(SHIM)
        self.shim = folder / "shim.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-w", "-o", self.shim, folder / "shim.c", "-ldl"], check=True, cwd=folder
        )

    def convert(self, name: str, recipe: str) -> Path:
        path = self.folder / f"{name}.colibri"
        assert main(["convert", str(RECIPES / f"{recipe}.toml"), "-o", str(path), "-q"]) == 0
        with open_model(path) as model:
            text = json.dumps({"format": 1, "root": model.root.hex(), "cases": [name]}, indent=1)
        path.with_suffix(".golden.json").write_text(text + "\n")
        return path

    def run(self, *arguments: str | Path, **variables: str) -> Outcome:
        done = subprocess.run(
            [BUILD / "colibrictl", *arguments], capture_output=True, text=True, check=False, timeout=120,
            env=self.environment(variables),
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout, done.stderr)

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COLIBRI_")}
        return {**kept, "LD_PRELOAD": str(self.shim), **variables} if variables else kept


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("install"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where models are installed; nothing is there yet."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / NAME


def names(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def is_model(target: Path, source: Path, with_golden: bool = True) -> bool:
    """Whether the folder holds exactly this model."""
    same = target.read_bytes() == source.read_bytes()
    golden = target.with_suffix(".golden.json")
    if with_golden:
        same = same and golden.read_bytes() == source.with_suffix(".golden.json").read_bytes()
    return same and names(target) == ([NAME, GOLDEN] if with_golden else [NAME])


# ---- what works ---------------------------------------------------------------------------------


def test_a_model_is_installed_with_its_golden_results(models: Models, target: Path) -> None:
    outcome = models.run("install", models.new, target)
    assert (outcome.exit_code, outcome.err) == (0, "")
    assert is_model(target, models.new)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert f"sha256: {hashlib.sha256(models.new.read_bytes()).hexdigest()}\n" in outcome.out
    with open_model(target) as model:
        assert f"root: {model.root.hex()}\n" in outcome.out
    assert models.run("verify", target).exit_code == 0


def test_a_model_is_replaced_and_keeps_its_permissions(models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    target.chmod(0o640)
    owner = (12345, 54321) if os.geteuid() == 0 else (target.stat().st_uid, target.stat().st_gid)
    os.chown(target, *owner)
    with target.open("rb") as held:
        outcome = models.run("install", models.new, target, "--json")
        assert held.read() == models.old.read_bytes()  # who has the old one open keeps it
    assert outcome.exit_code == 0
    said = json.loads(outcome.out)
    assert (said["installed"], said["golden"], said["signature"]) == (str(target), "installed", "none")
    assert is_model(target, models.new)
    found = target.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, *owner)
    assert stat.S_IMODE(target.with_suffix(".golden.json").stat().st_mode) == 0o640


def test_execution_and_set_user_bits_are_not_kept(models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    target.chmod(0o4755)
    assert models.run("install", models.new, target).exit_code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_old_golden_results_do_not_stay_beside_a_new_model(models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    assert models.run("install", models.new, target, "--no-golden").exit_code == 0
    assert is_model(target, models.new, with_golden=False)


def test_names_without_a_folder_and_with_dots_work(models: Models, tmp_path: Path) -> None:
    done = subprocess.run(
        [BUILD / "colibrictl", "install", models.new, "a.b.c"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b.c", "a.b.golden.json"]


def test_golden_results_of_a_model_beside_are_not_taken_from_it(models: Models, tmp_path: Path) -> None:
    first, golden = tmp_path / "model-1.0", tmp_path / "model-1.golden.json"
    assert models.run("install", models.old, first).exit_code == 0
    before = golden.read_bytes()
    for words in ([], ["--no-golden"]):
        outcome = models.run("install", models.new, tmp_path / "model-1.1", *words)
        outcome.fails(Code.ARGUMENT, "model-1.golden.json, those of model-1.0, which lies beside it", "another folder")
    assert golden.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.name, golden.name]
    assert models.run("install", models.new, first).exit_code == 0  # its own ones go with it
    assert golden.read_bytes() == models.new.with_suffix(".golden.json").read_bytes()


def test_a_damaged_model_is_replaced(models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    target.write_bytes(bytes(8192))
    assert models.run("install", models.new, target).exit_code == 0
    assert is_model(target, models.new)


def test_a_copy_beside_the_target_keeps_its_golden_results(models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    copy = target.with_suffix(".bak")
    shutil.copy(target, copy)
    for words in ([], ["--no-golden"]):
        models.run("install", models.new, target, *words).fails(Code.ARGUMENT, "those of model.bak, which lies beside")
    assert models.run("install", models.old, target).exit_code == 0  # the same ones stay
    copy.unlink()
    assert is_model(target, models.old)
    assert models.run("install", models.new, target).exit_code == 0
    assert is_model(target, models.new)


def test_whose_golden_results_are_there_is_never_guessed(models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    for variables, what in (
        ({"NO_ACCESS": GOLDEN}, f"cannot read {GOLDEN} to see"),
        ({"FAULT": f"opendir:1:{errno.EACCES}"}, f"cannot read {target.parent} to see"),
        ({"FAULT": f"openat:1:{errno.EACCES}"}, "cannot read model.bak to see"),
    ):
        beside = target.with_suffix(".bak")
        if "bak" in what:
            beside.write_bytes(b"")
        outcome = models.run("install", models.new, target, **variables)
        outcome.fails(Code.OPEN, what, "Permission denied")
        beside.unlink(missing_ok=True)
        assert is_model(target, models.old)


def test_a_source_beside_its_target_keeps_its_golden_results(models: Models, target: Path) -> None:
    source, golden = target.with_suffix(".new"), target.with_suffix(".golden.json")
    shutil.copy(models.new, source)
    shutil.copy(models.new.with_suffix(".golden.json"), golden)
    inode = golden.stat().st_ino
    models.run("install", source, target, "--no-golden").fails(Code.ARGUMENT, "those of model.new, which lies beside")
    models.run("install", source, golden).fails(Code.ARGUMENT, "is the same file as", "model.golden.json")
    models.run("install", source, golden, "--no-golden").fails(Code.ARGUMENT, "is the same file as")
    assert names(target) == [GOLDEN, "model.new"]
    for _ in range(2):
        assert "golden: installed\n" in models.run("install", source, target).out
        assert golden.stat().st_ino == inode
        models.run("install", source, target, "--no-golden").fails(Code.ARGUMENT, "those of model.new")
    source.unlink()
    assert is_model(target, models.new)


def test_a_signed_model_is_installed_by_its_key(models: Models, target: Path) -> None:
    outcome = models.run("install", models.signed, target, "--public-key", models.public, "--signed-only")
    assert outcome.exit_code == 0
    assert "signature: verified key_id=" in outcome.out
    assert is_model(target, models.signed)
    models.run("install", models.new, target, "--public-key", models.public).fails(Code.SIGNATURE, "not signed")
    assert is_model(target, models.signed)


def test_a_model_is_sealed_before_it_gets_its_name(models: Models, target: Path) -> None:
    outcome = models.run("install", models.new, target, VERITY="0")
    assert outcome.exit_code == 0
    assert f"fs_verity: on sha256:{'ab' * 32}\n" in outcome.out
    outcome = models.run("install", models.new, target, "--fs-verity", "off", VERITY="0")
    assert "fs_verity: off\n" in outcome.out
    for number in (errno.EOPNOTSUPP, errno.ENOTTY):
        assert models.run("install", models.new, target, VERITY=str(number)).exit_code == 0
        outcome = models.run("install", models.old, target, "--fs-verity", "require", VERITY=str(number))
        outcome.fails(Code.IO, "fs-verity cannot be enabled", "--fs-verity off")
        assert is_model(target, models.new)
    models.run("install", models.old, target, VERITY=str(errno.EIO)).fails(Code.IO, "fs-verity cannot be enabled")
    assert is_model(target, models.new)


# ---- what is refused ----------------------------------------------------------------------------


def damaged(data: bytearray) -> bytes:
    data[-5000] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (damaged, Code.CHUNK_MISMATCH),
        (lambda data: bytes(data[:-4096]), Code.TRUNCATED),
        (lambda data: bytes(data[:100]), Code.TRUNCATED),
        (lambda data: b"", Code.EMPTY),
        (lambda data: b"x" * 5000, Code.BAD_MAGIC),
    ],
    ids=["flipped bit", "cut", "cut in the header", "empty", "no model"],
)
def test_a_bad_model_leaves_the_old_one(
    change: Callable[[bytearray], bytes], code: Code, models: Models, target: Path, tmp_path: Path
) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    bad = tmp_path / "bad.colibri"
    bad.write_bytes(change(bytearray(models.new.read_bytes())))
    outcome = models.run("install", bad, target)
    outcome.fails(code, f"{bad}: ")
    assert ".installing: " not in outcome.err  # a name that the user never gave
    assert is_model(target, models.old)


def test_golden_results_of_another_model_are_refused(models: Models, target: Path, tmp_path: Path) -> None:
    source = tmp_path / "m.colibri"
    shutil.copy(models.signed, source)
    beside = source.with_suffix(".golden.json")
    for text in ("", "{}", models.old.with_suffix(".golden.json").read_text(), '{"root": "'):
        beside.write_text(text)
        models.run("install", source, target).fails(Code.ARGUMENT, "another model", "--no-golden")
    right = models.signed.with_suffix(".golden.json").read_text()
    beside.write_text(right.replace("new", "bad"))
    models.run("install", source, target).fails(Code.SIGNATURE, "not those that were signed")
    assert names(target) == []
    beside.write_text(right)
    assert models.run("install", source, target).exit_code == 0


def test_targets_that_are_no_files_are_refused(models: Models, target: Path) -> None:
    folder = target.parent
    models.run("install", models.new, folder).fails(Code.ARGUMENT, "data is there and is a folder")
    models.run("install", models.new, f"{folder}/").fails(Code.ARGUMENT, "names a folder")
    models.run("install", models.new, f"{folder}/.").fails(Code.ARGUMENT, "names a folder")
    missing = folder / "none" / NAME
    models.run("install", models.new, missing).fails(Code.OPEN, f"{missing}: cannot write into its folder")
    models.run("install", models.new, folder / ("x" * 201)).fails(Code.ARGUMENT, "the name has 201 bytes")
    target.symlink_to(models.old)
    models.run("install", models.new, target).fails(Code.ARGUMENT, "symbolic link")
    target.unlink()
    os.mkfifo(target)
    models.run("install", models.new, target).fails(Code.ARGUMENT, "device or the like")
    target.unlink()
    (folder / GOLDEN).mkdir()
    models.run("install", models.new, target).fails(Code.ARGUMENT, "model.golden.json is there and is a folder")
    (folder / GOLDEN).rmdir()
    assert names(target) == []
    assert models.old.stat().st_nlink == 1


def test_sources_that_are_no_files_are_refused(models: Models, target: Path, tmp_path: Path) -> None:
    models.run("install", tmp_path / "none", target).fails(Code.OPEN, "No such file")
    models.run("install", tmp_path, target).fails(Code.OPEN, "not a regular file")
    os.mkfifo(tmp_path / "pipe")
    models.run("install", tmp_path / "pipe", target).fails(Code.OPEN, "not a regular file")
    assert names(target) == []


def test_a_model_is_not_installed_over_itself(models: Models, target: Path) -> None:
    shutil.copy(models.new, target)
    link = target.parent / "link.colibri"
    link.hardlink_to(target)
    for source in (target, link):
        models.run("install", source, target).fails(Code.ARGUMENT, "is the same file as")
    assert names(target) == ["link.colibri", NAME]


def test_a_second_install_waits_for_nobody(models: Models, target: Path) -> None:
    folder = os.open(target.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        models.run("install", models.new, target).fails(Code.BUSY, "another colibrictl writes into this folder")
    finally:
        os.close(folder)
    assert models.run("install", models.new, target).exit_code == 0


def test_leftovers_are_removed_and_nothing_else_is(models: Models, target: Path) -> None:
    others = [".other.colibri.installing", ".model.colibri.installing2", "model.colibri.installing"]
    for name in (*LEFTOVERS, *others):
        (target.parent / name).write_text("left over")
    outcome = models.run("install", models.new, target)
    assert outcome.exit_code == 0
    assert outcome.err.count("left by an interrupted run") == 3
    assert names(target) == sorted([NAME, GOLDEN, *others])


def set_aside(target: Path) -> Path:
    """Golden results under the name that they have while the model is replaced."""
    return target.with_suffix(".golden.json").rename(target.parent / ".model.colibri.golden.replaced")


def test_golden_results_set_aside_get_their_name_back_when_they_are_of_the_model_there(
    models: Models, target: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.colibri"
    bad.write_bytes(damaged(bytearray(models.new.read_bytes())))
    assert models.run("install", models.old, target).exit_code == 0
    set_aside(target)
    outcome = models.run("install", bad, target)
    outcome.fails(Code.CHUNK_MISMATCH, "named .model.colibri.golden.replaced model.golden.json again")
    assert is_model(target, models.old)
    set_aside(target)
    shutil.copy(models.old.with_suffix(".golden.json"), target.with_suffix(".golden.json"))
    models.run("install", bad, target).fails(Code.CHUNK_MISMATCH, "removed .model.colibri.golden.replaced")
    assert is_model(target, models.old)
    set_aside(target).write_bytes(models.new.with_suffix(".golden.json").read_bytes())
    models.run("install", bad, target).fails(Code.CHUNK_MISMATCH, "removed .model.colibri.golden.replaced")
    assert is_model(target, models.old, with_golden=False)


def test_golden_results_whose_name_cannot_be_given_back_are_not_lost(models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    outcome = models.run("install", models.new, target, FAULT=f"renameat:2+:{errno.EIO}")
    outcome.fails(Code.IO, "the old golden results have another name now, with .replaced at its end")
    assert names(target) == [".model.colibri.golden.replaced", NAME]
    outcome = models.run("install", models.new, target, FAULT=f"renameat:1:{errno.EIO}")
    outcome.fails(Code.IO, "cannot name .model.colibri.golden.replaced model.golden.json again")
    assert names(target) == [".model.colibri.golden.replaced", NAME]
    models.run("install", models.new, target, FREE_BYTES="40960").fails(Code.IO, "40960 bytes are free")
    assert is_model(target, models.old)


def test_what_an_install_never_left_is_not_removed(models: Models, target: Path) -> None:
    (target.parent / TEMPORARY).symlink_to(models.old)
    models.run("install", models.new, target).fails(Code.ARGUMENT, "symbolic link")
    (target.parent / TEMPORARY).unlink()
    (target.parent / TEMPORARY).mkdir()
    models.run("install", models.new, target).fails(Code.ARGUMENT, "is a folder")
    assert names(target) == [TEMPORARY]


def test_too_little_space_is_refused_with_the_numbers(models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    outcome = models.run("install", models.new, target, FREE_BYTES="40960")
    outcome.fails(Code.IO, "40960 bytes are free, installing needs ")
    found = re.search(r"needs (\d+) .*free (\d+) more", outcome.err)
    assert found is not None
    assert int(found[1]) - int(found[2]) == 40960
    assert models.new.stat().st_size < int(found[1]) < models.new.stat().st_size * 1.05
    models.run("install", models.new, target, READ_ONLY="1").fails(Code.IO, "mounted read-only")
    assert is_model(target, models.old)


# ---- what goes wrong in between -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "number", "message"),
    [
        ("fallocate:1", errno.ENOSPC, "cannot reserve"),
        ("write:1", errno.ENOSPC, "model.colibri: cannot write: No space left on device"),
        ("write:3", errno.EDQUOT, "cannot write"),
        ("write:2", errno.EFBIG, "cannot write: File too large"),
        ("openat:1", errno.EROFS, "model.colibri: cannot make a file beside it: Read-only file system"),
        ("openat:1", errno.EACCES, "model.colibri: cannot make a file beside it: Permission denied"),
        ("fsync:1", errno.EIO, "cannot bring it to the disk"),
        ("fsync:2", errno.EIO, "cannot bring it to the disk"),
        ("fchmod:1", errno.EPERM, "cannot set permissions 644"),
        ("renameat:1", errno.EPERM, "cannot put the new files in place: Operation not permitted: nothing was changed"),
        ("renameat:2", errno.EBUSY, "cannot put the new files in place: Device or resource busy: nothing was changed"),
        ("fsync:3", errno.EIO, "cannot put the new files in place: Input/output error: nothing was changed"),
    ],
)
def test_a_failing_operation_leaves_the_old_model(
    fault: str, number: int, message: str, models: Models, target: Path
) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    outcome = models.run("install", models.new, target, FAULT=f"{fault}:{number}")
    assert outcome.exit_code == 1
    assert message in outcome.err
    assert is_model(target, models.old)


def test_golden_results_that_cannot_be_put_in_place_leave_the_new_model(models: Models, target: Path) -> None:
    for fault in ("renameat:3", "fsync:4"):
        assert models.run("install", models.old, target).exit_code == 0
        outcome = models.run("install", models.new, target, FAULT=f"{fault}:{errno.EIO}")
        outcome.fails(Code.IO, "cannot put the new files in place", "the new file has its name; run the command again")
        assert is_model(target, models.new, with_golden=False), fault
    assert models.run("install", models.old, target).exit_code == 0
    outcome = models.run("install", models.new, target, FAULT=f"unlinkat:1:{errno.EIO}")
    outcome.fails(Code.IO, "the new file has its name")
    assert set(names(target)) == {NAME, ".model.colibri.golden.replaced"}
    assert models.run("install", models.new, target).exit_code == 0
    assert is_model(target, models.new)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("mounted", [NAME, GOLDEN])
def test_a_file_that_cannot_be_replaced_loses_nothing(mounted: str, models: Models, target: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    place = target.parent / mounted
    subprocess.run(["mount", "--bind", place, place], check=True)
    try:
        for words in ([], ["--no-golden"]):
            models.run("install", models.new, target, *words).fails(Code.IO, "nothing was changed")
    finally:
        subprocess.run(["umount", place], check=True)
    assert is_model(target, models.old)


def test_a_file_system_that_cannot_reserve_is_no_obstacle(models: Models, target: Path) -> None:
    assert models.run("install", models.new, target, FAULT=f"fallocate:1:{errno.EOPNOTSUPP}").exit_code == 0
    assert is_model(target, models.new)


def consistent(target: Path, models: Models) -> Path:
    """Which of the two models is there; golden results, when there are some, are its own."""
    found = [source for source in (models.old, models.new) if target.read_bytes() == source.read_bytes()]
    assert len(found) == 1
    golden = target.with_suffix(".golden.json")
    if golden.exists():
        assert golden.read_bytes() == found[0].with_suffix(".golden.json").read_bytes()
    return found[0]


def test_killed_before_any_operation_it_is_the_old_model_or_the_new(models: Models, target: Path) -> None:
    states = []
    for n in range(1, 200):
        assert models.run("install", models.old, target).exit_code == 0
        outcome = models.run("install", models.new, target, FAULT=f"any:{n}:kill")
        states.append(consistent(target, models))
        if outcome.exit_code == 0:
            break
        assert outcome.exit_code == -signal.SIGKILL
        extra = set(names(target)) - {NAME, GOLDEN}
        assert extra <= LEFTOVERS
        assert models.run("install", models.new, target).exit_code == 0
        assert is_model(target, models.new)
    else:
        pytest.fail("the install never ended by itself")
    assert len(states) > 12
    assert states == sorted(states, key=lambda path: path == models.new)
    assert states[0] == models.old


def test_killed_at_random_it_is_the_old_model_or_the_new(
    models: Models, target: Path, note: Callable[[str], None]
) -> None:
    generator = random.Random(20)
    start = time.monotonic()
    assert models.run("install", models.old, target).exit_code == 0
    usual = time.monotonic() - start
    seen = {models.old: 0, models.new: 0}
    leftovers = 0
    for _ in range(KILL_ROUNDS):
        present = consistent(target, models)
        other = models.new if present == models.old else models.old
        process = subprocess.Popen(
            [BUILD / "colibrictl", "install", other, target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(generator.uniform(0, usual * 1.2))
        process.kill()
        process.wait()
        seen[consistent(target, models)] += 1
        leftovers += TEMPORARY in names(target)
    assert models.run("install", models.new, target).exit_code == 0
    assert is_model(target, models.new)
    note(
        f"install killed {KILL_ROUNDS} times at random: {seen[models.old]} times the one model, "
        f"{seen[models.new]} times the other, {leftovers} leftovers"
    )
    assert min(seen.values()) > 0


def start_large(models: Models, source: Path, target: Path) -> subprocess.Popen[str]:
    """An install that takes a while, stopped in the middle of copying."""
    process = subprocess.Popen(
        [BUILD / "colibrictl", "install", source, target], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=models.environment({}),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while TEMPORARY not in names(target):
        assert process.poll() is None
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGSTOP)
    return process


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file that is copied for a while and then is no model."""
    path = tmp_path / "large.colibri"
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES)
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cleans_up(number: signal.Signals, models: Models, target: Path, large: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    process = start_large(models, large, target)
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "interrupted; nothing was changed (error -62 cancelled)" in err
    assert is_model(target, models.old)


def test_a_source_that_changes_while_it_is_read_is_refused(models: Models, target: Path, large: Path) -> None:
    assert models.run("install", models.old, target).exit_code == 0
    for change in (lambda: large.write_bytes(b"short"), lambda: os.utime(large), lambda: os.truncate(large, 1 << 28)):
        os.truncate(large, LARGE_BYTES)
        process = start_large(models, large, target)
        change()
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        assert "changed while it was read" in err
        assert is_model(target, models.old)


def test_long_work_shows_progress(models: Models, target: Path, large: Path) -> None:
    process = start_large(models, large, target)
    time.sleep(2.1)
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert re.search(r"^install: copied \d+ of 256 MiB$", err, re.MULTILINE)
    assert "not a .colibri file" in err
    assert names(target) == []
