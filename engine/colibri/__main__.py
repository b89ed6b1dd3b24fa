# SPDX-License-Identifier: MIT
"""`python -m colibri` is the `colibri` command."""

from __future__ import annotations

import sys

from colibri.cli import main

if __name__ == "__main__":
    sys.exit(main())
