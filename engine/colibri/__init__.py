# SPDX-License-Identifier: MIT
"""Colibri: a Mixture-of-Experts runtime for embedded boards; this package is its host side.

Importing the package needs nothing beyond the standard library. `colibri.format` reads and
writes `.colibri` files, `colibri.engine` runs them through the C library; conversion needs
the `convert` extra, the numpy oracle the `reference` extra.
"""

from __future__ import annotations

from colibri.errors import ColibriError

__all__ = ["ColibriError", "__version__"]


def _version() -> str:
    """Version of the release: a file of the installed package, or of the source tree above it."""
    from pathlib import Path

    package = Path(__file__).resolve().parent
    for file in (package / "VERSION", package.parent / "VERSION"):
        if file.is_file():
            return file.read_text(encoding="utf-8").strip()
    return "unknown"


__version__ = _version()
