# SPDX-License-Identifier: MIT
"""Messages whose wording is a requirement: what looks for them in a log must find them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from colibri._spec import Code
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.format import open_model
from forge import Forge

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COLIBRI_NATIVE_BUILD", REPOSITORY / "build" / "host"))
# Where each text is made. What it is printed for, the tests of storage and of checkpoints try.
REQUIRED = {
    "Prefetch failed: invalid chunk offset": "native/src/residency.c",
    "weight chunk offset misaligned: 0x%llx": "native/src/directory.c",
    "use state_dict only": "colibri/pickle_reader.py",
}


@pytest.mark.parametrize("text", list(REQUIRED))
def test_the_wording_is_kept(text: str) -> None:
    assert text in (REPOSITORY / "engine" / REQUIRED[text]).read_text()


def test_a_misaligned_extent_is_named_by_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "m.colibri"
    assert main(["convert", str(REPOSITORY / "configs" / "models" / "tiny.toml"), "-o", str(path), "-q"]) == 0
    forge = Forge(path.read_bytes())
    extent = forge.extents()[-1]
    forge.u64(extent.at + 16, extent.offset + 512)
    forge.rehash_root()
    path.write_bytes(forge.data)
    text = f"weight chunk offset misaligned: {extent.offset + 512:#x}"
    with pytest.raises(ColibriError, match=re.escape(text)) as caught:
        open_model(path)
    assert caught.value.code == Code.EXTENT
    done = subprocess.run([BUILD / "colibrictl", "verify", path], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert text in done.stderr
    assert "(error -11 extent, file offset" in done.stderr
