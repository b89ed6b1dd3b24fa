# SPDX-License-Identifier: MIT
"""The root file system of the smoke image: its contents, and the cpio archive that holds them.

The archive is written by Python itself in the "newc" form that the kernel unpacks. Ids, times,
device nodes and order come from the tables below, never from the machine that builds, so that
no privilege is needed and two builds give the same bytes.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MODELS_SERIAL = "colibri-models"  # the disk's serial number tells the init script what it carries
UNPRIVILEGED_UID = 1000

_FAIL_MARK = "colibri-init: FAILED:"

_INITTAB = """\
::sysinit:/etc/init.d/rcS
{console}::respawn:/sbin/getty -L {console} {baud} vt100
::ctrlaltdel:/sbin/reboot
::shutdown:/etc/init.d/rcK
"""

_RCS = """\
#!/bin/sh
# Brings up the file systems; the login follows (see /etc/inittab).
/bin/busybox --install -s
failed() {{ echo "{fail} $*"; }}
mount -t proc -o nosuid,nodev,noexec proc /proc || failed proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys || failed sysfs
mount -t devtmpfs -o nosuid devtmpfs /dev || failed devtmpfs
mkdir -p /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /dev/shm || failed /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run || failed /run
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /tmp || failed /tmp
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup || failed cgroup2
echo +memory >/sys/fs/cgroup/cgroup.subtree_control || failed "memory controller"
# Errors and worse still reach the console, where whoever watches it must see them.
echo 4 >/proc/sys/kernel/printk
hostname -F /etc/hostname
found=
for disk in /sys/block/*; do
    [ -r "$disk/serial" ] || continue
    [ "$(cat "$disk/serial")" = {serial} ] || continue
    found="/dev/${{disk##*/}}"
done
if [ -n "$found" ]; then
    mount -t {filesystem} -o ro,nosuid,nodev,noexec "$found" /models || failed "models on $found"
else
    failed "no disk with the serial number {serial}"
fi
mkdir -p /run/log
syslogd -O /run/log/messages || failed syslogd
# The login need not wait for the services.
for script in /etc/init.d/S[0-9]*; do
    "$script" start || failed "$script"
done >/run/log/services 2>&1 &
echo "colibri-init: up after $(cut -d' ' -f1 /proc/uptime) s"
"""

_RCK = """\
#!/bin/sh
# Before the machine goes off.
for script in /etc/init.d/S[0-9]*; do
    "$script" stop
done
umount -a -r
"""

# Where the templates of engine/units belong in this image.
_PLACES = {"@bindir@": "/usr/bin", "@libexecdir@": "/usr/libexec", "@sysconfdir@": "/etc"}

_CONFIGURATION = """\
# The smallest model of the image: its health gate takes the shortest time.
COLIBRI_MODEL="/models/{model}"
COLIBRI_OPTIONS=""
COLIBRI_SERVE_OPTIONS="--clients 8"
COLIBRI_HEALTH_OPTIONS=""
COLIBRI_LOCK="require"
COLIBRI_MEMORY_MAX=""
"""

_PROFILE = """\
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
export HOME="${HOME:-/root}"
"""


@dataclass(frozen=True)
class Entry:
    """One member of the archive."""

    path: str
    mode: int  # type and permission bits, as in st_mode
    data: bytes = b""
    uid: int = 0
    device: tuple[int, int] = (0, 0)


def directory(path: str, permissions: int = 0o755, uid: int = 0) -> Entry:
    """A folder."""
    return Entry(path, stat.S_IFDIR | permissions, uid=uid)


def regular(path: str, data: bytes | str, permissions: int = 0o644) -> Entry:
    """A file with its contents."""
    raw = data.encode() if isinstance(data, str) else data
    return Entry(path, stat.S_IFREG | permissions, raw)


def symlink(path: str, target: str) -> Entry:
    """A symbolic link."""
    return Entry(path, stat.S_IFLNK | 0o777, target.encode())


def character_device(path: str, major: int, minor: int, permissions: int) -> Entry:
    """A character device node."""
    return Entry(path, stat.S_IFCHR | permissions, device=(major, minor))


def write_newc(entries: list[Entry]) -> bytes:
    """The archive: members sorted by path, all times zero, inode numbers counted from 1."""
    paths = [entry.path for entry in entries]
    if len(set(paths)) != len(paths):
        twice = sorted({path for path in paths if paths.count(path) > 1})
        raise ValueError(f"initramfs: {', '.join(twice)} listed twice; keep one entry per path")
    known = {entry.path for entry in entries if stat.S_ISDIR(entry.mode)} | {"."}
    for entry in entries:
        parent = str(PurePosixPath(entry.path).parent)
        if parent not in known:
            raise ValueError(f"initramfs: {entry.path} lies in {parent}, which is not listed")
    out = bytearray()
    for inode, entry in enumerate(sorted(entries, key=lambda e: e.path), start=1):
        out += _member(entry, inode)
    out += _member(Entry("TRAILER!!!", 0), 0)
    out += bytes(-len(out) % 512)
    return bytes(out)


def _member(entry: Entry, inode: int) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (
        inode,
        entry.mode,
        entry.uid,
        entry.uid,  # the group has the number of its only user
        links,
        0,  # modification time
        len(entry.data),
        0,  # device that holds the file: major
        0,  # minor
        *entry.device,
        len(name),
        0,  # checksum, unused in this form
    )
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    head = header + name
    head += bytes(-len(head) % 4)
    return head + entry.data + bytes(-len(entry.data) % 4)


def service_entries(units: Path, model: str) -> list[Entry]:
    """The service with the engine's init scripts. units: engine/units; model: file name in /models."""

    def filled(name: str) -> str:
        text = (units / "init" / name).read_text(encoding="utf-8")
        for placeholder, place in _PLACES.items():
            text = text.replace(placeholder, place)
        if match := re.search(r"@\w+@", text):
            raise ValueError(f"{name}: {match.group(0)} has no place in the smoke image; add it to _PLACES")
        return text

    return [
        directory("etc/colibri"),
        regular("etc/colibri/colibri.conf", _CONFIGURATION.format(model=model)),
        regular("etc/init.d/S95colibri", filled("S95colibri.in"), 0o755),
        directory("usr/libexec"),
        directory("usr/libexec/colibri"),
        regular("usr/libexec/colibri/functions.sh", filled("functions.sh.in")),
    ]


def smoke_entries(
    *, busybox: bytes, colibrictl: bytes, console: str, baud: int, filesystem: str, units: Path, model: str
) -> list[Entry]:
    """Everything in the smoke image's root file system.

    console: device name without /dev/; filesystem: type of the model partition; units: the engine's
    folder of init scripts; model: the file in /models that the service runs.
    """
    folders = [
        "bin",
        "dev",
        "etc",
        "etc/init.d",
        "models",
        "proc",
        "run",
        "sbin",
        "sys",
        "usr",
        "usr/bin",
        "usr/sbin",
        "var",
    ]
    rcs = _RCS.format(fail=_FAIL_MARK, serial=MODELS_SERIAL, filesystem=filesystem)
    ids = f"{UNPRIVILEGED_UID}:{UNPRIVILEGED_UID}"
    users = f"root::0:0:root:/root:/bin/sh\ncolibri:*:{ids}:engine:/tmp:/bin/sh\nnobody:*:65534:65534::/:/bin/false\n"
    return [
        *(directory(path) for path in folders),
        directory("root", 0o700),
        directory("tmp", 0o1777),
        # The kernel opens /dev/console before any file system is mounted.
        character_device("dev/console", 5, 1, 0o600),
        character_device("dev/null", 1, 3, 0o666),
        regular("bin/busybox", busybox, 0o755),
        symlink("bin/sh", "busybox"),
        symlink("init", "bin/busybox"),
        regular("etc/inittab", _INITTAB.format(console=console, baud=baud)),
        regular("etc/init.d/rcS", rcs, 0o755),
        regular("etc/init.d/rcK", _RCK, 0o755),
        regular("etc/hostname", "colibri\n"),
        regular("etc/issue", "Colibri smoke image\n"),
        regular("etc/passwd", users),
        regular("etc/group", f"root:x:0:\ncolibri:x:{UNPRIVILEGED_UID}:\nnogroup:x:65534:\n"),
        regular("etc/profile", _PROFILE),
        regular("usr/bin/colibrictl", colibrictl, 0o755),
        symlink("usr/bin/colibri_test", "colibrictl"),
        symlink("var/run", "../run"),
        *service_entries(units, model),
    ]
