# SPDX-License-Identifier: MIT
"""Make the build programs under test importable."""

from __future__ import annotations

import sys
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
for _folder in ("configs/kernel", "tests/smoke", "tests/support"):
    sys.path.insert(0, str(_REPOSITORY / _folder))
