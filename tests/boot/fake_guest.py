#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Stands in for QEMU and its guest in the harness's own tests.

Plays a boot log and a login, then becomes a real shell on the same terminal. The first argument
chooses what goes wrong:

    healthy  nothing                    silent   never prints anything
    panic    the kernel panics at boot  dies     ends before the login
    echo     repeats what is typed, but runs nothing
    noisy    healthy, with kernel messages, garbage and old output between all characters
    busybox  healthy, with the shell that small images have
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

NOISE = (
    b"\r\n[   12.345678] virtio_blk virtio0: [vda] 16384 512-byte logical blocks\r\n",
    b"0123456789abcdef0123456789abcdef>0.\r\n",  # what the end of a command looks like
    b"deadbeefdeadbeef[1 2]deadbeefdeadbeef\r\n",
    b"QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=\r\n",
    b"login: ",
    b"# ",
)


def make_noise() -> None:
    """Write rubbish to the terminal until the guest has ended."""
    source = random.Random(1)
    try:
        while os.getppid() != 1:
            os.write(1, source.choice((*NOISE, source.randbytes(12))))
            time.sleep(source.uniform(0.002, 0.02))
    except OSError:
        pass


def main() -> None:
    """Play the part."""
    behaviour = sys.argv[1]
    if behaviour == "silent":
        time.sleep(60)
        return
    print("[    0.000000] Booting Linux on physical CPU 0x0", flush=True)
    if behaviour == "panic":
        print("[    0.500000] Kernel panic - not syncing: VFS: no root", flush=True)
        time.sleep(60)
        return
    if behaviour == "dies":
        sys.exit(7)
    print("fake login: ", end="", flush=True)
    sys.stdin.readline()
    print("# ", end="", flush=True)
    if behaviour == "echo":
        # The terminal itself echoes too; this repeats every line a second time.
        for line in sys.stdin:
            print(line, end="", flush=True)
        return
    if behaviour == "noisy" and os.fork() == 0:
        make_noise()
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs ignore it, and a shell keeps that
    shell = ["busybox", "sh"] if behaviour == "busybox" else ["sh"]
    os.execvp(shell[0], shell)


if __name__ == "__main__":
    main()
