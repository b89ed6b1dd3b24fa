#!/bin/sh
# SPDX-License-Identifier: MIT
# post-build.sh TARGET_DIR BOARD_DIR
# Control groups (version 2) are mounted with the other file systems of /etc/fstab.

set -eu

fstab="$1/etc/fstab"
if [ -f "$fstab" ] && ! grep -q '/sys/fs/cgroup' "$fstab"; then
	printf 'cgroup2\t\t/sys/fs/cgroup\tcgroup2\tnosuid,nodev,noexec\t0\t0\n' >>"$fstab"
fi
