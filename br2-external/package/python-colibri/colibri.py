#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The command `colibri`."""

import sys

from colibri.cli import main

if __name__ == "__main__":
    sys.exit(main())
