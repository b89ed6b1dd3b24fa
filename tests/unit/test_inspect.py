# SPDX-License-Identifier: MIT
"""`colibri inspect`: what it shows by default, with --tensors and with --json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from colibri._spec import Code, Section
from colibri.calibration import Profile
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.format import ModelFile, chunk_hashes, open_model, sha256
from colibri.inspect_model import as_json, as_text
from colibri.plan import PlanOptions
from colibri.signature import Signature

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"
KEYS = [
    "schema", "file", "signature", "calibration", "parameters", "bytes_by_dtype", "sections", "model", "ropes",
    "layers", "extents", "tensors", "provenance", "plan",
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "tiny.colibri"
    assert main(["convert", str(MODELS / "tiny.toml"), "-o", str(path), "-q"]) == 0
    return path


@pytest.fixture
def tiny(tiny_file: Path) -> ModelFile:
    return open_model(tiny_file)


def text_of(model: ModelFile, every: bool = False) -> list[str]:
    return list(as_text(model, PlanOptions(threads=1), every))


def json_of(model: ModelFile) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(as_json(model, PlanOptions(threads=1)), allow_nan=False))
    return value


def test_the_default_output_fits_a_page_and_folds_equal_layers(tiny: ModelFile) -> None:
    lines = text_of(tiny)
    assert len(lines) < 80
    assert lines[1] == f"root {tiny.root.hex()}"
    assert lines[2:4] == ["signature: none", "calibration: none"]
    at = lines.index("tensors:")
    assert lines[at + 1] == "  global"
    assert lines[at + 2].split() == ["embedding", "int8", "panel8", "331", "x", "80", "34,272"]
    assert lines[at + 4] == "  layer 0 .. layer 2"
    assert "    each of 5 experts" in lines
    gate = next(line for line in lines if "expert_gate" in line)
    assert gate.split() == ["expert_gate", "int4", "panel8", "104", "x", "80", "5,616"]
    assert sum("expert_gate" in line for line in lines) == 1


def test_tensors_shows_every_layer_and_the_hash_of_every_extent(tiny: ModelFile) -> None:
    lines = text_of(tiny, every=True)
    assert sum("expert_gate" in line for line in lines) == 3
    assert [line for line in lines if line.startswith("  layer ")] == ["  layer 0", "  layer 1", "  layer 2"]
    shown = {line.split("sha256 ")[1].split()[0] for line in lines if "sha256 " in line and " bytes at " in line}
    assert shown == {extent.hash.hex() for extent in tiny.extents}
    # The hash of an extent is that of the hashes of its chunks: what is shown is what the bytes say.
    expert = tiny.extent(2, 4)
    assert sha256(*chunk_hashes(tiny.read_extent(expert))) == expert.hash
    at = next(i for i, line in enumerate(lines) if line.startswith("  layer 2"))
    assert any(f"expert 4     sha256 {expert.hash.hex()} {expert.size:,} bytes at" in line for line in lines[at:])


def test_layers_of_different_dtypes_are_not_folded(tiny: ModelFile) -> None:
    last = max(i for i, t in enumerate(tiny.tensors) if t.layer == 1)
    tiny.tensors[last] = replace(tiny.tensors[last], size=tiny.tensors[last].size + 1)
    layers = [line for line in text_of(tiny) if line.startswith("  layer ")]
    assert layers == ["  layer 0", "  layer 1", "  layer 2"]


def test_json_is_complete_and_its_keys_are_pinned(tiny: ModelFile) -> None:
    data = json_of(tiny)
    assert list(data) == KEYS
    assert data["schema"] == 1
    assert (data["signature"], data["calibration"]) == (None, None)
    assert data["file"]["bytes"] == tiny.path.stat().st_size
    assert sum(data["bytes_by_dtype"].values()) == sum(
        t.size * (5 if t.role.name.startswith("EXPERT") else 1) for t in tiny.tensors
    )
    assert [set(item) for item in data["tensors"]] == [
        {"scope", "layer", "role", "dtype", "layout", "rows", "columns", "offset", "size"}
    ] * len(tiny.tensors)
    provenance = tiny.section_bytes(Section.PROVENANCE)
    assert data["provenance"] == json.loads(provenance)
    section = next(item for item in data["sections"] if item["kind"] == "provenance")
    assert section["hash"] == hashlib.sha256(hashlib.sha256(provenance).digest()).hexdigest()


def test_the_state_of_a_signature_is_shown(tiny: ModelFile) -> None:
    tiny.signature = Signature(b"\x11" * 32)
    assert f"signature: ed25519, without golden results, key id {'11' * 32} (colibri verify checks it)" in text_of(tiny)
    assert json_of(tiny)["signature"] == {"algorithm": "ed25519", "key_id": "11" * 32, "golden_sha256": None}
    tiny.signature = Signature(b"\x11" * 32, b"\x22" * 32)
    assert any("ed25519, with its golden results" in line for line in text_of(tiny))
    assert json_of(tiny)["signature"]["golden_sha256"] == "22" * 32


def calibrated(tiny: ModelFile, monkeypatch: pytest.MonkeyPatch, counts: list[list[int]]) -> None:
    profile = Profile(100, [0, 1, 2], counts, [{(0, 1): 7}, {}, {}])
    monkeypatch.setattr(tiny, "calibration", lambda: profile)


def test_a_calibration_profile_is_summed_up(tiny: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated(tiny, monkeypatch, [[60, 60, 60, 60, 60], [0, 100, 150, 50, 0], [60, 60, 60, 60, 60]])
    assert (
        "calibration: 100 tokens, 2 of 15 experts never chosen; busiest: layer 1 expert 2, 250% of the mean"
        in text_of(tiny)
    )
    data = json_of(tiny)["calibration"]
    assert data["tokens"] == 100
    assert data["layers"][1] == {"layer": 1, "counts": [0, 100, 150, 50, 0], "unused": 2}
    assert data["followers"] == 1
    assert data["busiest"] == {"layer": 1, "expert": 2, "of_the_mean": 2.5}


def test_a_calibration_profile_of_nothing_has_no_busiest_expert(
    tiny: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(tiny, monkeypatch, [[0] * 5] * 3)
    assert "calibration: 100 tokens, 15 of 15 experts never chosen" in text_of(tiny)
    assert json_of(tiny)["calibration"]["busiest"] is None


def provenance_of(tiny: ModelFile, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[str]]:
    def lines(value: Any) -> list[str]:
        monkeypatch.setattr(tiny, "provenance", lambda: value)
        found = text_of(tiny)
        return found[found.index("provenance:") + 1 :]

    return lines


def test_licence_and_digests_are_shown_and_long_texts_are_counted(
    tiny: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n   Apache License\n" + "terms\n" * 100
    value = {
        "license": {"id": "Apache-2.0", "notice": "by somebody\n", "text": text},
        "source": {"sha256": {"model.safetensors": "00ff"}, "names": ["a", "b"]},
    }
    assert provenance_of(tiny, monkeypatch)(value) == [
        "  license.id: Apache-2.0",
        "  license.notice: by somebody",
        f"  license.text: {len(text)} characters: Apache License ...",
        "  source.sha256.model.safetensors: 00ff",
        "  source.names: ['a', 'b']",
    ]
    assert json_of(tiny)["provenance"] == value
    assert provenance_of(tiny, monkeypatch)({"x": "y" * 161}) == [f"  x: 161 characters: {'y' * 60} ..."]


def test_numbers_that_json_does_not_have_become_words(tiny: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "provenance", lambda: json.loads('{"a": [NaN, Infinity, 1.5]}'))
    assert json_of(tiny)["provenance"] == {"a": ["nan", "inf", 1.5]}


def test_a_provenance_that_is_nested_deeply_is_an_error(tiny: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "provenance", lambda: json.loads('{"a":' * 500 + "1" + "}" * 500))
    for show in (text_of, json_of):
        with pytest.raises(ColibriError, match="nested more than 32 deep") as caught:
            show(tiny)
        assert caught.value.code == Code.SECTION


def test_the_command_shows_all_tensors_when_asked(tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_file), "-t", "1"]) == 0
    short = capsys.readouterr().out
    assert main(["inspect", str(tiny_file), "-t", "1", "--tensors"]) == 0
    long = capsys.readouterr().out
    assert short.splitlines() == text_of(open_model(tiny_file))
    assert long.splitlines() == text_of(open_model(tiny_file), every=True)
    assert len(long.splitlines()) > len(short.splitlines())


@pytest.mark.demo
def test_the_demo_carries_the_licence_of_its_checkpoint(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_model(demo_model) as model:
        terms = model.provenance()["license"]
    assert terms["id"] == "Apache-2.0"
    assert "Hugging Face TB, modified" in terms["notice"]
    assert terms["text"] == (MODELS / "licenses" / "Apache-2.0.txt").read_text()
    assert main(["inspect", str(demo_model)]) == 0
    assert "license.text: 11358 characters: Apache License" in capsys.readouterr().out
