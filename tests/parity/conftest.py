# SPDX-License-Identifier: MIT
"""The peers import and warn as they like; what they print is not ours to judge."""

from __future__ import annotations

import os

import pytest

# The oracle is local: nothing is looked up anywhere.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of the peers' own modules are not errors."""
    for item in items:
        if "parity" in item.path.parts:
            for module in ("torch", "transformers", "huggingface_hub"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:::{module}"))
