# SPDX-License-Identifier: MIT
"""Where a model comes from, and under which licence: what is stored of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from colibri._spec import Code
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.files import inside
from colibri.format import open_model
from colibri.provenance import MAX_LICENSE_BYTES, card_license, digests, gguf_license, license_of
from test_convert import checkpoint, converted, mixtral_weights, refusal, write_gguf

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- licences ---------------------------------------------------------------------------------


def test_licence_notice_and_model_card_travel_with_the_model(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    (source / "LICENSE.txt").write_text("the terms\n")
    (source / "NOTICE").write_text("made by somebody\n")
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    (source / "other.md").write_text("not read")
    data = converted(source).provenance()
    assert data["license"] == {"id": "apache-2.0", "notice": "made by somebody\n", "text": "the terms\n"}
    assert data["source"]["sha256"] == {
        name: sha256((source / name).read_bytes())
        for name in ("LICENSE.txt", "NOTICE", "README.md", "config.json", "model.safetensors")
    }


def test_several_licence_files_are_kept_each_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("one")
    (tmp_path / "LICENSE-data.md").write_text("two")
    (tmp_path / "licenses").mkdir()
    (tmp_path / "UNLICENSED").write_text("no licence file")
    table, read = license_of(tmp_path)
    assert table == {"text": "==== LICENSE ====\none\n==== LICENSE-data.md ====\ntwo"}
    assert read == ["LICENSE", "LICENSE-data.md"]


def test_a_folder_without_a_licence_has_none(tmp_path: Path) -> None:
    assert license_of(tmp_path) == ({}, [])
    (tmp_path / "README.md").write_text("# no front matter\nlicense: mit\n")
    assert license_of(tmp_path) == ({}, [])
    assert converted(checkpoint(tmp_path / "hf")).provenance()["license"] == {}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("---\nlicense: mit\n---\n", {"license": "mit"}),
        ("---\r\nlicense: 'mit'\r\n---\r\n", {"license": "mit"}),
        ('---\nlicense: "other"\nlicense_name: own\nlicense_link: LICENSE\n---\n',
         {"license": "other", "license_name": "own", "license_link": "LICENSE"}),
        ("---\nlicense:\n- mit\n- apache-2.0\ntags:\n- moe\n---\n", {"license": "mit, apache-2.0"}),
        ("---\ntags:\n- moe\n---\nlicense: mit\n", {}),
        ("---\nlicense: mit\n", {}),
        ("license: mit\n---\n", {}),
        ("---\nmy_license: mit\nmodel:\n  license: mit\n---\n", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_the_licence_of_a_model_card_is_the_one_of_its_front_matter(text: str, fields: dict[str, str]) -> None:
    assert card_license(text) == fields


def test_the_licence_fields_of_a_gguf_file_are_kept(tmp_path: Path) -> None:
    fields = {"general.license": "apache-2.0", "general.license.link": "LICENSE", "general.license.name": 3}
    assert gguf_license(fields.get) == {"id": "apache-2.0", "link": "LICENSE"}
    data = converted(write_gguf(tmp_path / "m.gguf")).provenance()
    assert data["license"] == {}
    assert data["source"] == {
        "kind": "gguf", "name": "tiny", "sha256": {"m.gguf": sha256((tmp_path / "m.gguf").read_bytes())},
    }  # fmt: skip


def test_a_licence_file_that_is_a_link_out_of_the_folder_is_not_copied(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a file of this machine")
    source = checkpoint(tmp_path / "hf")
    (source / "LICENSE").symlink_to(secret)
    error = refusal(source)
    assert "LICENSE is a link to" in error.message
    assert error.code == Code.OPEN


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "config.json"])
def test_no_file_of_the_checkpoint_is_read_through_a_link_out_of_the_folder(name: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    (source / "tokenizer.json").touch()
    (tmp_path / "outside").write_text("{}")
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(tmp_path / "outside")
    error = refusal(source, tokenizer=True)
    assert f"{name} is a link to" in error.message


def test_a_licence_beyond_the_limit_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_bytes(b"x" * (MAX_LICENSE_BYTES + 1))
    with pytest.raises(ColibriError, match="LICENSE has 262145 bytes, limit 262144") as caught:
        license_of(tmp_path)
    assert caught.value.code == Code.LIMIT


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\0b"])
def test_only_plain_names_are_files_of_a_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match="is not the name of a file in"):
        inside(tmp_path, name)


# ---- sources and options ------------------------------------------------------------------------


def test_digests_are_of_the_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"abc")
    assert digests(tmp_path, ["b", "a", "b"]) == {"b": sha256(b"abc")}


def test_options_of_the_conversion_are_kept(tmp_path: Path) -> None:
    model = converted(checkpoint(tmp_path / "hf", mixtral_weights()), context_tokens=64)
    data = model.provenance()
    assert data["options"] == {"context_tokens": 64, "tokenizer": False, "chat": False}
    assert set(data) == {"converter", "dtypes", "license", "options", "source"}


def test_a_recipe_is_named_by_its_digest(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_bytes((MODELS / "tiny.toml").read_bytes() + b"# changed\n")
    assert main(["convert", str(recipe), "-o", str(tmp_path / "m.colibri"), "-q"]) == 0
    data: dict[str, Any] = open_model(tmp_path / "m.colibri").provenance()
    assert data["recipe"] == {"file": "mine.toml", "sha256": sha256(recipe.read_bytes())}
    assert data["name"] == "tiny"
    assert str(tmp_path) not in json.dumps(data)


def test_the_recipe_of_the_demo_has_the_licence_of_its_weights() -> None:
    import tomllib

    recipe = tomllib.loads((MODELS / "smollm2-moe.toml").read_text())
    assert recipe["license"]["id"] == "Apache-2.0"
    assert "SmolLM2-135M-Instruct by Hugging Face TB, modified" in recipe["license"]["notice"]
    text = (MODELS / recipe["license"]["file"]).read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_nothing_that_is_stored_comes_from_numpys_generators() -> None:
    package = MODELS.parents[1] / "engine" / "colibri"
    users = [path.name for path in package.glob("*.py") if "np.random" in path.read_text()]
    assert users == []


def test_licence_text_that_is_not_utf8_is_kept_readable(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_bytes(b"\xff terms")
    assert license_of(tmp_path)[0] == {"text": "\ufffd terms"}
