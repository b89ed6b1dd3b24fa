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
    """Version of the release: installed metadata, or engine/VERSION in a source tree."""
    from pathlib import Path

    source = Path(__file__).resolve().parent.parent / "VERSION"
    if source.is_file():
        return source.read_text(encoding="utf-8").strip()
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("colibri-moe")
    except PackageNotFoundError:
        return "unknown"


__version__ = _version()
