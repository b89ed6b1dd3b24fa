# SPDX-License-Identifier: MIT
"""Signatures: `colibri sign` and `colibri verify`, `colibrictl verify`, and what an attacker might try."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from colibri._spec import ERROR_EXIT, Code, Section
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.signature import NO_GOLDEN
from colibri.signing import load_private_key, remove_signature, sign_model
from colibri.verify import check_signature, ed25519_verify, load_public_key
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COLIBRI_NATIVE_BUILD", REPOSITORY / "build" / "host"))
TINY = REPOSITORY / "configs" / "models" / "tiny.toml"
PAGE = 4096
SECTION_BYTES = 168
# As `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them (the key of RFC 8032, 7.1, test 1).
OPENSSL_PRIVATE = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
"""
OPENSSL_PUBLIC = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=
-----END PUBLIC KEY-----
"""
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def private_pem(key: ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_raw(key: ed25519.Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def public_pem(key: ed25519.Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))


class Workshop:
    """A model, its golden results and its signed copy, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model.colibri"
        assert main(["convert", str(TINY), "-o", str(self.model), "-q"]) == 0
        with open_model(self.model) as model:
            self.root = model.root.hex()
        self.golden = folder / "model.golden.json"
        self.golden.write_text(json.dumps({"format": 1, "root": self.root, "cases": []}, indent=1) + "\n")
        self.key = folder / "key.pem"
        self.key.write_bytes(private_pem(KEY))
        self.other_key = folder / "other.pem"
        self.other_key.write_bytes(private_pem(OTHER_KEY))
        self.public = folder / "key.pub.pem"
        self.public.write_bytes(public_pem(KEY))
        self.signed = folder / "signed.colibri"
        sign_model(self.model, self.key, self.signed)
        self.bytes = self.signed.read_bytes()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("signing"))


def colibrictl(
    *arguments: str | Path, program: Path | None = None, runner: tuple[str, ...] = (), **variables: str
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLIBRI_")}
    done = subprocess.run(
        [*runner, program or BUILD / "colibrictl", *arguments], capture_output=True, text=True, check=False, timeout=60,
        env={**kept, **variables},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


native = colibrictl


def reroot(data: bytearray) -> bytearray:
    """The root that header, records and directory ask for."""
    data[48:80] = bytes(32)
    covered = bytes(data[:PAGE])
    for at in range(128, 256, 64):  # records and directory are the first two entries
        _, _, offset, size = struct.unpack_from("<IIQQ", data, at)
        covered += data[offset : offset + size]
    data[48:80] = hashlib.sha256(covered).digest()
    return data


def section_of(data: bytes | bytearray) -> int:
    """Offset of the signature section, by the table."""
    (count,) = struct.unpack_from("<I", data, 40)
    kind, _, offset, size = struct.unpack_from("<IIQQ", data, 128 + 64 * (count - 1))
    assert (kind, size) == (int(Section.SIGNATURE), SECTION_BYTES)
    return int(offset)


def resign(data: bytearray, key: ed25519.Ed25519PrivateKey, root: bytes | None = None) -> bytearray:
    """A right signature section for what the file now holds, by docs/format.md alone."""
    at = section_of(data)
    message = b"colibri model signature\0" + data[at : at + 72] + (root or bytes(data[48:80]))
    assert len(message) == 128
    data[at + 72 : at + 136] = key.sign(bytes(message))
    data[at + 136 : at + 168] = hashlib.sha256(data[at : at + 136]).digest()
    return data


def refusal(path: Path, public: bytes | None) -> Code | None:
    """How the Python reader answers; None: it accepts."""
    try:
        with open_model(path) as model:
            check_signature(model, public)
            model.verify()
    except ColibriError as error:
        return error.code
    return None


def refused_by_both(path: Path, workshop: Workshop, code: Code = Code.SIGNATURE) -> None:
    assert refusal(path, public_raw(KEY)) == code
    exit_code, out, err = colibrictl("verify", path, "--public-key", workshop.public)
    assert (exit_code, out) == (ERROR_EXIT[int(code)], "")
    assert f"(error {int(code)} {code.name.lower()}" in err


# ---- signing ------------------------------------------------------------------------------------


def test_a_removed_signature_leaves_the_first_bytes(workshop: Workshop, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped.colibri"
    remove_signature(workshop.signed, stripped)
    assert stripped.read_bytes() == workshop.model.read_bytes()
    assert stripped.with_suffix(".golden.json").read_bytes() == workshop.golden.read_bytes()
    assert workshop.bytes != workshop.model.read_bytes()


def test_signing_again_gives_equal_bytes_and_another_key_replaces(workshop: Workshop, tmp_path: Path) -> None:
    again, other, back = (tmp_path / name for name in ("again.colibri", "other.colibri", "back.colibri"))
    sign_model(workshop.model, workshop.key, again)
    assert again.read_bytes() == workshop.bytes
    sign_model(workshop.signed, workshop.other_key, other)
    pairs = zip(other.read_bytes(), workshop.bytes, strict=True)
    difference = [i for i, (one, two) in enumerate(pairs) if one != two]
    at = section_of(workshop.bytes)
    assert at + 8 <= min(difference) <= max(difference) < at + SECTION_BYTES
    sign_model(other, workshop.key, back)
    assert back.read_bytes() == workshop.bytes


def test_the_signed_file_is_the_first_one_and_a_section(workshop: Workshop) -> None:
    first = workshop.model.read_bytes()
    assert workshop.bytes[PAGE : len(first)] == first[PAGE:]
    assert len(workshop.bytes) == len(first) + PAGE
    with open_model(workshop.signed) as model:
        assert model.optional_features & 1
        assert model.signature is not None
        assert model.signature.key_id == hashlib.sha256(public_raw(KEY)).digest()
        assert workshop.bytes == bytes(resign(bytearray(workshop.bytes), KEY))


def test_golden_results_name_the_new_root_and_are_covered(workshop: Workshop, tmp_path: Path) -> None:
    golden = workshop.signed.with_suffix(".golden.json")
    with open_model(workshop.signed) as model:
        assert json.loads(golden.read_text())["root"] == model.root.hex() != workshop.root
        assert model.signature is not None
        assert model.signature.golden == hashlib.sha256(golden.read_bytes()).digest()
    bare = tmp_path / "bare.colibri"
    sign_model(workshop.model, workshop.key, bare, with_golden=False)
    with open_model(bare) as model:
        assert model.signature is not None
        assert model.signature.golden == NO_GOLDEN
    assert not bare.with_suffix(".golden.json").exists()


def test_changed_golden_results_are_reported(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "m.colibri"
    shutil.copy(workshop.signed, copy)
    golden = copy.with_suffix(".golden.json")
    golden.write_bytes(workshop.signed.with_suffix(".golden.json").read_bytes())
    assert main(["verify", str(copy), "--public-key", str(workshop.public)]) == 0
    assert "is what was signed" in capsys.readouterr().out
    golden.write_text(golden.read_text().replace("[]", "[1]"))
    assert main(["verify", str(copy), "--public-key", str(workshop.public)]) == 3
    assert "the model was signed with" in capsys.readouterr().err


@pytest.mark.parametrize("with_golden", [True, False])
def test_golden_results_of_another_model_of_the_same_stem_stay(
    workshop: Workshop, tmp_path: Path, with_golden: bool
) -> None:
    model, golden = tmp_path / "m.colibri", tmp_path / "m.golden.json"
    model.write_bytes(workshop.model.read_bytes())
    golden.write_bytes(workshop.golden.read_bytes())
    with pytest.raises(ColibriError, match=r"would replace .*m\.golden\.json, those of .*m\.colibri") as caught:
        sign_model(model, workshop.key, tmp_path / "m.signed", with_golden)
    assert caught.value.code == Code.ARGUMENT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.colibri", "m.golden.json"]
    assert golden.read_bytes() == workshop.golden.read_bytes()
    sign_model(model, workshop.key, tmp_path / "n.signed", with_golden)


def test_golden_results_of_another_model_are_not_signed(workshop: Workshop, tmp_path: Path) -> None:
    copy = tmp_path / "m.colibri"
    shutil.copy(workshop.model, copy)
    for text in ("{}", json.dumps({"root": "0" * 64}), json.dumps({"root": workshop.root, "twice": workshop.root})):
        copy.with_suffix(".golden.json").write_text(text)
        with pytest.raises(ColibriError, match="golden results of another model") as caught:
            sign_model(copy, workshop.key, tmp_path / "s.colibri")
        assert caught.value.code == Code.ARGUMENT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.colibri", "m.golden.json"]


def test_a_damaged_model_is_not_signed(workshop: Workshop, tmp_path: Path) -> None:
    data = bytearray(workshop.model.read_bytes())
    data[-5000] ^= 1
    damaged = tmp_path / "damaged.colibri"
    damaged.write_bytes(data)
    with pytest.raises(ColibriError) as caught:
        sign_model(damaged, workshop.key, tmp_path / "s.colibri")
    assert caught.value.code in (Code.CHUNK_MISMATCH, Code.PADDING)
    assert caught.value.file == damaged  # not the copy under a temporary name
    assert [p.name for p in tmp_path.iterdir()] == ["damaged.colibri"]


def test_the_output_is_a_new_file(workshop: Workshop, tmp_path: Path) -> None:
    before = workshop.model.read_bytes()
    for target in (workshop.model, workshop.key, workshop.golden):
        with pytest.raises(ColibriError, match="give the name of a new file"):
            sign_model(workshop.model, workshop.key, target)
    with pytest.raises(ColibriError, match="not a regular file"):
        sign_model(workshop.model, workshop.key, tmp_path)
    assert workshop.model.read_bytes() == before


def test_an_interrupted_sign_leaves_the_old_file(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "s.colibri"
    sign_model(workshop.model, workshop.other_key, target)
    old = target.read_bytes(), target.with_suffix(".golden.json").read_bytes()

    def fail(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        sign_model(workshop.model, workshop.key, target)
    assert (target.read_bytes(), target.with_suffix(".golden.json").read_bytes()) == old
    assert len(list(tmp_path.iterdir())) == 2


def test_removing_what_is_not_there_is_an_error(workshop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match="is not signed"):
        remove_signature(workshop.model, tmp_path / "s.colibri")
    assert list(tmp_path.iterdir()) == []


# ---- keys ---------------------------------------------------------------------------------------


def test_openssl_keys_are_read(tmp_path: Path) -> None:
    private, public = tmp_path / "key.pem", tmp_path / "pub.pem"
    private.write_text(OPENSSL_PRIVATE)
    assert public_raw(load_private_key(private)).hex() == PUBLIC
    public.write_text(OPENSSL_PUBLIC)
    assert load_public_key(public).hex() == PUBLIC


def public_forms() -> dict[str, bytes]:
    raw, pem = public_raw(KEY), public_pem(KEY)
    return {
        "raw": raw,
        "hexadecimal": raw.hex().encode(),
        "hexadecimal with a line end": raw.hex().upper().encode() + b"\n",
        "PEM": pem,
        "PEM with CR LF": pem.replace(b"\n", b"\r\n"),
    }


@pytest.mark.parametrize("form", list(public_forms()))
def test_every_form_of_a_public_key_is_read_by_both(form: str, workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(public_forms()[form])
    assert load_public_key(path) == public_raw(KEY)
    exit_code, out, _ = colibrictl("verify", workshop.signed, "--public-key", path)
    assert exit_code == 0
    assert f"signature: verified key_id={hashlib.sha256(public_raw(KEY)).hexdigest()}\n" in out


def odd_public_keys() -> dict[str, bytes]:
    pem = public_pem(KEY)
    rsa_key = rsa.generate_private_key(65537, 1024).public_key()
    der = base64.b64decode(b"".join(pem.splitlines()[1:-1]))
    x25519 = base64.b64encode(der.replace(bytes.fromhex("06032b6570"), bytes.fromhex("06032b656e")))
    return {
        "empty": b"",
        "31 bytes": bytes(31),
        "33 bytes": b"\x01" * 33,
        "63 digits": b"a" * 63,
        "not hexadecimal": b"g" * 64,
        "private key": private_pem(KEY),
        "another kind": rsa_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "another curve": b"-----BEGIN PUBLIC KEY-----\n" + x25519 + b"\n-----END PUBLIC KEY-----\n",
        "cut": pem[:-30],
        "without padding": pem.replace(b"=", b""),
        "text behind": pem + b"x",
        "no base64": pem.replace(b"MCow", b"MC*w"),
        "too long": pem + b"\n" * 5000,
    }


@pytest.mark.parametrize("name", list(odd_public_keys()))
def test_what_is_no_public_key_is_refused_by_both(name: str, workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(odd_public_keys()[name])
    with pytest.raises(ColibriError) as caught:
        load_public_key(path)
    assert caught.value.code in (Code.ARGUMENT, Code.LIMIT)
    exit_code, _, err = colibrictl("verify", workshop.signed, "--public-key", path)
    assert exit_code == 2
    assert str(path) in err


def test_a_missing_key_is_an_error(workshop: Workshop, tmp_path: Path) -> None:
    assert main(["verify", str(workshop.signed), "--public-key", str(tmp_path / "none")]) == 1
    exit_code, _, err = colibrictl("verify", workshop.signed, "--public-key", tmp_path / "none")
    assert exit_code == 1
    assert "cannot open the public key" in err


def test_what_is_no_private_key_is_named(workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    rsa_key = rsa.generate_private_key(65537, 1024)
    for data, message in (
        (public_pem(KEY), "no private key in PEM"),
        (b"junk", "no private key in PEM"),
        (rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), "another kind"),
        (KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")), "is encrypted"),
    ):
        path.write_bytes(data)
        with pytest.raises(ColibriError, match=message):
            sign_model(workshop.model, path, tmp_path / "s.colibri")


def test_the_vectors_of_rfc_8032_hold() -> None:
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
        "655141438e7a100b"
    )
    assert ed25519_verify(bytes.fromhex(PUBLIC), signature, b"")
    assert not ed25519_verify(bytes.fromhex(PUBLIC), signature, b"x")


@pytest.mark.parametrize(
    "encoded",
    [
        "00" * 32,
        "01" + "00" * 31,
        "01" + "00" * 30 + "80",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    ],
)
def test_points_of_small_order_and_odd_encodings_are_refused(encoded: str) -> None:
    neutral = b"\x01" + bytes(63)  # R = the neutral point, s = 0: right for many messages under such a key
    assert not ed25519_verify(bytes.fromhex(encoded), neutral, b"anything")
    forged = bytes.fromhex(encoded) + bytes(32)
    assert not ed25519_verify(public_raw(KEY), forged, b"anything")


# ---- verifying ----------------------------------------------------------------------------------


def test_both_readers_accept_the_signed_file_and_say_what_they_checked(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, state in (([], "unchecked"), (["--public-key", str(workshop.public), "--signed-only"], "verified")):
        assert main(["verify", str(workshop.signed), *arguments]) == 0
        assert f"signature: {state} key_id=" in capsys.readouterr().out
        exit_code, out, _ = colibrictl("verify", workshop.signed, *arguments)
        assert exit_code == 0
        assert f"signature: {state} key_id=" in out
        exit_code, out, _ = colibrictl("verify", workshop.signed, "--json", *arguments)
        assert json.loads(out)["signature"] == state
    assert main(["verify", str(workshop.model)]) == 0
    assert "signature: none\n" in capsys.readouterr().out
    assert "signature: none\n" in colibrictl("verify", workshop.model)[1]


def test_an_unsigned_model_is_refused_when_a_key_is_named(workshop: Workshop) -> None:
    refused_by_both(workshop.model, workshop)


def test_signed_only_needs_a_key(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(workshop.signed), "--signed-only"]) == 2
    assert "--public-key" in capsys.readouterr().err
    exit_code, _, err = colibrictl("verify", workshop.signed, "--signed-only")
    assert exit_code == 2
    assert "public_key" in err


def test_the_environment_only_tightens(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, exit_code in (("1", 2), ("0", 0), ("", 0), ("yes", 2)):
        monkeypatch.setenv("COLIBRI_SIGNED_ONLY", value)
        assert main(["verify", str(workshop.signed)]) == exit_code
        assert colibrictl("verify", workshop.signed, COLIBRI_SIGNED_ONLY=value)[0] == exit_code
        for command in ("info", "run"):
            arguments = ["-p", "x", "-n", "1"] if command == "run" else []
            found = colibrictl(command, workshop.signed, *arguments, COLIBRI_SIGNED_ONLY=value)
            assert found[0] == exit_code, found
    for option in ("--signed-only", "--public-key"):
        arguments = [option] if option == "--signed-only" else [option, str(workshop.public)]
        assert colibrictl("verify", workshop.model, *arguments, COLIBRI_SIGNED_ONLY="0")[0] in (2, 3)


@pytest.mark.parametrize("name", ["COLIBRI_VERIFY_MODEL_HASH", "COLIBRI_VERIFY_CHUNKS", "COLIBRI_SIGNED_ONLY"])
def test_a_misspelt_wish_is_refused_by_every_command(name: str, workshop: Workshop) -> None:
    for value, wanted in (("1", 0), ("on", 2)):
        for command in (["verify"], ["info"], ["run", "-p", "x", "-n", "1"]):
            arguments = [command[0], str(workshop.signed), *command[1:], "--public-key", str(workshop.public)]
            exit_code, _, err = colibrictl(*arguments, **{name: value})  # type: ignore[arg-type]
            assert exit_code == wanted, err
            assert wanted == 0 or f"{name} is '{value}'" in err


def test_every_flipped_bit_of_the_signature_page_is_reported(workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "flipped.colibri"
    at = section_of(workshop.bytes)
    accepted = []
    for byte in [*range(SECTION_BYTES), *range(SECTION_BYTES, PAGE, 97)]:
        for bit in range(8):
            data = bytearray(workshop.bytes)
            data[at + byte] ^= 1 << bit
            path.write_bytes(data)
            if refusal(path, None) != (Code.SIGNATURE if byte < SECTION_BYTES else Code.PADDING):
                accepted.append((byte, bit))
        if byte % 8 == 0:  # native/tests/test_signature.c flips every bit
            exit_code, _, err = colibrictl("verify", path)
            assert exit_code == 3, (byte, err)
    assert accepted == []


def test_every_flipped_bit_of_its_table_entry_is_reported(workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "flipped.colibri"
    (count,) = struct.unpack_from("<I", workshop.bytes, 40)
    entry = 128 + 64 * (count - 1)
    for byte in range(64):
        for bit in range(8):
            for root in (False, True):
                data = bytearray(workshop.bytes)
                data[entry + byte] ^= 1 << bit
                path.write_bytes(reroot(data) if root else data)
                assert refusal(path, None) is not None, (byte, bit, root)
        if byte % 8 == 0:
            assert colibrictl("verify", path)[0] == 3


def attack_other_key(data: bytearray) -> bytearray:
    at = section_of(data)
    data[at + 8 : at + 40] = hashlib.sha256(public_raw(OTHER_KEY)).digest()
    return resign(data, OTHER_KEY)


def attack_forged_id(data: bytearray) -> bytearray:
    return resign(data, OTHER_KEY)


def attack_unsigned_root(data: bytearray) -> bytearray:
    bare = bytearray(data[: section_of(data)])
    struct.pack_into("<QQI", bare, 24, 0, len(bare), struct.unpack_from("<I", bare, 40)[0] - 1)
    entry = 128 + 64 * struct.unpack_from("<I", bare, 40)[0]
    bare[entry : entry + 64] = bytes(64)
    return resign(data, KEY, root=bytes(reroot(bare)[48:80]))


def attack_other_model(data: bytearray) -> bytearray:
    """The model's provenance is another one, the signature the one of the first model."""
    at = section_of(data)
    kept = bytes(data[at : at + SECTION_BYTES])
    (count,) = struct.unpack_from("<I", data, 40)
    for entry in range(128, 128 + 64 * count, 64):
        kind, _, offset, size = struct.unpack_from("<IIQQ", data, entry)
        if kind == Section.PROVENANCE:
            data[offset] ^= 1
            assert size <= 65536  # one chunk
            chunk = hashlib.sha256(data[offset : offset + size]).digest()
            data[entry + 32 : entry + 64] = hashlib.sha256(chunk).digest()
    reroot(data)
    data[at : at + SECTION_BYTES] = kept
    return data


def attack_golden_hash(data: bytearray) -> bytearray:
    at = section_of(data)
    data[at + 40] ^= 1
    data[at + 136 : at + 168] = hashlib.sha256(data[at : at + 136]).digest()
    return data


def attack_truncated(data: bytearray) -> bytearray:
    (count,) = struct.unpack_from("<I", data, 40)
    struct.pack_into("<Q", data, 128 + 64 * (count - 1) + 16, SECTION_BYTES - 1)
    return reroot(data)


def attack_algorithm(data: bytearray) -> bytearray:
    data[section_of(data)] = 2
    return resign(data, KEY)


def attack_cleared_feature(data: bytearray) -> bytearray:
    data[24] &= 0xFE
    return resign(reroot(data), KEY)


def attack_s_plus_order(data: bytearray) -> bytearray:
    at = section_of(data) + 104
    order = 2**252 + 27742317777372353535851937790883648493
    data[at : at + 32] = (int.from_bytes(data[at : at + 32], "little") + order).to_bytes(32, "little")
    at = section_of(data)
    data[at + 136 : at + 168] = hashlib.sha256(data[at : at + 136]).digest()
    return data


ATTACKS: list[Callable[[bytearray], bytearray]] = [
    attack_other_key, attack_forged_id, attack_unsigned_root, attack_other_model, attack_golden_hash, attack_truncated,
    attack_algorithm, attack_cleared_feature, attack_s_plus_order,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_refused_by_both(
    attack: Callable[[bytearray], bytearray], workshop: Workshop, tmp_path: Path
) -> None:
    path = tmp_path / "attacked.colibri"
    path.write_bytes(attack(bytearray(workshop.bytes)))
    refused_by_both(path, workshop)


def test_the_attacks_are_refused_for_their_change_alone(workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "same.colibri"
    path.write_bytes(resign(reroot(bytearray(workshop.bytes)), KEY))
    assert path.read_bytes() == workshop.bytes
    assert refusal(path, public_raw(KEY)) is None


def test_without_cryptography_a_check_is_refused_and_reading_goes_on(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert main(["verify", str(workshop.signed)]) == 0
    assert "unchecked" in capsys.readouterr().out
    assert main(["verify", str(workshop.signed), "--public-key", str(workshop.public)]) == 5
    err = capsys.readouterr().err
    assert err.startswith("colibri: signatures need the Python package cryptography, which is not installed; pip ")
    assert main(["sign", str(workshop.model), "-k", str(workshop.key), "-o", str(tmp_path / "s")]) == 5
    assert capsys.readouterr().err == err


# ---- builds -------------------------------------------------------------------------------------


def build(folder: Path, *options: str, cflags: str = "") -> Path:
    """A colibrictl of its own; not optimised, only this test runs it."""
    script = REPOSITORY / "tests" / "support" / "build_engine.py"
    for source, target in ((REPOSITORY / "engine", "engine"), (script.parent, "tests/support")):
        shutil.copytree(source, folder / target, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    words = ["--name=out", f"--cflags={cflags}"]
    words += [f"--option=-D{option}" for option in ("tests=false", "default_library=static", "optimization=0")]
    done = subprocess.run(
        [sys.executable, folder / "tests/support/build_engine.py", *words, *options],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "out" / "colibrictl"


def test_a_key_of_the_build_and_its_floors_cannot_be_lowered(workshop: Workshop, tmp_path: Path) -> None:
    program = build(
        tmp_path / "copy", "--option=-Dsignatures=enabled", f"--option=-Dpublic_key={public_raw(KEY).hex()}",
        cflags="-DCOLIBRI_SIGNED_ONLY -DCOLIBRI_VERIFY_MODEL_HASH -DCOLIBRI_VERIFY_CHUNKS",
    )  # fmt: skip
    other = tmp_path / "other.colibri"
    sign_model(workshop.model, workshop.other_key, other)
    other_public = tmp_path / "other.pub"
    other_public.write_bytes(public_raw(OTHER_KEY))
    exit_code, out, _ = colibrictl("verify", workshop.signed, program=program)
    assert exit_code == 0
    assert "signature: verified" in out
    for wish in ("", "0"):
        variables = {"COLIBRI_SIGNED_ONLY": wish, "COLIBRI_VERIFY_MODEL_HASH": wish}
        for model in (workshop.model, other):
            for command in (["verify"], ["info"], ["run", "-p", "x", "-n", "1"], ["test"]):
                exit_code, _, err = colibrictl(command[0], model, *command[1:], program=program, runner=(), **variables)
                assert (exit_code, "(error -19 signature" in err) == (3, True), (command, err)
    exit_code, _, err = colibrictl("verify", other, "--public-key", other_public, program=program)
    assert (exit_code, "no option can replace" in err) == (3, True)
    damaged = tmp_path / "damaged.colibri"
    data = bytearray(workshop.bytes)
    data[section_of(data) - 20000] ^= 1  # an expert: nothing that `info` would touch by itself
    damaged.write_bytes(data)
    assert colibrictl("info", damaged, "--verify", "first", program=program)[0] == 3
    described = colibrictl("info", program=program)[1]
    forced = re.search(r"^ *forced +(.*)$", described, re.M)
    assert forced is not None
    assert forced[1] == "COLIBRI_SIGNED_ONLY COLIBRI_VERIFY_CHUNKS COLIBRI_VERIFY_MODEL_HASH"
    assert hashlib.sha256(public_raw(KEY)).hexdigest() in described


def test_a_build_without_libsodium_refuses_to_be_asked_on_aarch64(
    workshop: Workshop, tmp_path: Path, aarch64_colibrictl: Path
) -> None:
    def colibrictl(*arguments: str | Path, **variables: str) -> tuple[int, str, str]:
        return native(*arguments, program=aarch64_colibrictl, runner=("qemu-aarch64",), **variables)

    assert re.search(r"^ *signatures +no$", colibrictl("info")[1], re.M)
    for arguments in (["--public-key", str(workshop.public)], ["--signed-only"]):
        for command in (["verify"], ["info"], ["run", "-p", "x", "-n", "1"]):
            exit_code, _, err = colibrictl(command[0], workshop.signed, *command[1:], *arguments)
            assert (exit_code, "without libsodium" in err) == (3, True), err
    exit_code, out, _ = colibrictl("verify", workshop.signed)
    assert (exit_code, "signature: unchecked" in out) == (0, True)
    assert colibrictl("verify", workshop.signed, COLIBRI_SIGNED_ONLY="1")[0] == 3
    target = tmp_path / "installed.colibri"
    exit_code, _, err = colibrictl("install", workshop.signed, target, "--signed-only")
    assert (exit_code, target.exists()) == (3, False), err
