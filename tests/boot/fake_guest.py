#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Stands in for QEMU and its guest in the harness's own tests.

Plays a boot log and a login, then becomes a real shell on the same terminal. The first argument
chooses what goes wrong:

    healthy  nothing                    silent   never prints anything
    panic    the kernel panics at boot  dies     ends before the login
    echo     repeats what is typed, but runs nothing
"""

from __future__ import annotations

import os
import sys
import time


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
    os.execvp("sh", ["sh"])


if __name__ == "__main__":
    main()
