#!/bin/sh
# SPDX-License-Identifier: MIT
# In the guest: what a disk holds after a power cut, in one line of key=value.
#
#   check_disk.sh NAME DEVICE [MODEL]
#
# Mounts DEVICE, which lets the kernel recover it, verifies model.colibri, and installs MODEL over it.
name=$1
device=$2
next=$3
folder=/run/state
error=/run/state.err
said=/run/state.json

list() { ls -A "$folder" | tr '\n' ','; }
root_in() { sed -n 's/.*"root": *"\([0-9a-f]*\)".*/\1/p' "$1"; }

mkdir -p "$folder"
if ! mount -t ext4 "$device" "$folder" 2>"$error"; then
    echo "$name mounted=no error=$(tr ' \n' '__' <"$error")"
    exit 0
fi
files=$(list)
verified=none root=none golden=none installed=none after=
if [ -e "$folder/model.colibri" ]; then
    colibrictl verify "$folder/model.colibri" --json >"$said" 2>"$error"
    verified=$?
    root=$(root_in "$said")
fi
if [ -e "$folder/model.golden.json" ]; then
    golden=$(root_in "$folder/model.golden.json")
fi
if [ -n "$next" ]; then
    colibrictl install "$next" "$folder/model.colibri" --quiet >"$said" 2>"$error"
    installed=$?
    after=$(list)
fi
umount "$folder" || echo "$name cannot be unmounted"
echo "$name mounted=yes files=$files verified=$verified root=$root golden=$golden installed=$installed after=$after"
