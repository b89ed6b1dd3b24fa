# SPDX-License-Identifier: MIT
# What is read over a serial console has no colours in it.
export LS_COLORS=none
