# SPDX-License-Identifier: MIT
"""What engine/native/tests/session_driver.c prints, on the host and in the guest."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One line of the session driver."""

    command: str
    code: int
    text: str

    def field(self, name: str) -> str:
        """The value of name=value."""
        match = re.search(rf"\b{name}=(\S+)", self.text)
        assert match is not None, f"no {name}= in {self.text!r}"
        return match.group(1)
