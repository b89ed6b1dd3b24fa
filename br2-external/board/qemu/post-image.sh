#!/bin/sh
# SPDX-License-Identifier: MIT
# post-image.sh BINARIES_DIR BOARD_DIR
# Adds what the boot suite needs to know the board, and one disk image with both partitions.

set -eu

board="$2"
cp -f "$BR2_EXTERNAL_COLIBRI_PATH/shared/boards/qemu-${board##*/}.toml" "$1/board.toml" 2>/dev/null ||
	rm -f "$1/board.toml" # the boot suite knows AArch64 only
if [ -f "$1/models.erofs" ]; then
	support/scripts/genimage.sh -c "$BR2_EXTERNAL_COLIBRI_PATH/board/qemu/genimage.cfg"
fi
