#!/bin/sh
# SPDX-License-Identifier: MIT
# In the guest: installs one model after another until the power goes.
#
#   install_forever.sh TARGET MODEL...
target=$1
shift
count=0
while :; do
    for model in "$@"; do
        count=$((count + 1))
        echo "install $count begins"
        colibrictl install "$model" "$target" --quiet >/dev/null || exit 1
        echo "install $count is done"
    done
done
