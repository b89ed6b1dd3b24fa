# SPDX-License-Identifier: MIT
"""`colibri calibrate`, and the calibration section: each rule broken once, the same code from both readers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from colibri._spec import Code, Section
from colibri.calibrate import text_pieces, write_calibrated
from colibri.calibration import Profile, keep_followers
from colibri.cli import main
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.job import run_job
from colibri.recipe import load_recipe
from colibri.signing import sign_model
from forge import Forge, tree
from synthetic import Shape, write_model

RECIPE = Path(__file__).resolve().parents[2] / "configs" / "models" / "tiny.toml"
TEXT = "the cat sat on 1200 hats, and that was the end of the hats and the cat. " * 12
CALIBRATION = 5
HEAD, LAYER = 16, 16
COUNTS = HEAD + 3 * LAYER  # 3 layers of 5 experts
PAIRS = COUNTS + 4 * 15
# The private key of RFC 8032, 7.1, test 1.
KEY = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer: three layers of five experts, top 3."""
    path = tmp_path_factory.mktemp("plain") / "tiny.colibri"
    run_job(load_recipe(RECIPE), path, quiet=True)
    return path


def calibrate(model: Path, output: Path, *options: str) -> int:
    """Run the command on the text."""
    text = output.parent / "text.txt"
    text.write_text(TEXT)
    return main(["calibrate", str(model), "--text", str(text), "-o", str(output), "-q", *options])


@pytest.fixture(scope="module")
def calibrated(plain: Path, native_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a profile."""
    path = tmp_path_factory.mktemp("calibrated") / "tiny.colibri"
    assert calibrate(plain, path, "-n", "150") == 0
    return path


def profile_of(path: Path) -> Profile:
    """The profile in a file."""
    with open_model(path) as model:
        found = model.calibration()
    assert found is not None
    return found


# ---- the command ------------------------------------------------------------------------------


def test_counts_are_those_of_the_routing(plain: Path, calibrated: Path) -> None:
    profile = profile_of(calibrated)
    counts = [[0] * 5 for _ in range(3)]
    pairs: dict[tuple[int, int], int] = {}
    with Engine(plain, context_tokens=200) as engine, engine.session() as session:
        for token in engine.tokenize(TEXT)[:150]:
            session.append([token])
            chosen = [session.routing(layer)[0] for layer in range(3)]
            for layer in range(3):
                for expert in chosen[layer]:
                    counts[layer][expert] += 1
            for pair in [(a, b) for a in chosen[0] for b in chosen[1]]:
                pairs[pair] = pairs.get(pair, 0) + 1
    assert (profile.tokens, profile.layers, profile.counts) == (150, [0, 1, 2], counts)
    assert profile.followers[0] == pairs
    assert profile.followers[2] == {}


def test_the_reference_writes_the_same_bytes_as_the_library(calibrated: Path, plain: Path, tmp_path: Path) -> None:
    assert calibrate(plain, tmp_path / "new.colibri", "-n", "150", "--engine", "reference") == 0
    assert (tmp_path / "new.colibri").read_bytes() == calibrated.read_bytes()


def test_threads_do_not_change_the_file(calibrated: Path, plain: Path, tmp_path: Path) -> None:
    assert calibrate(plain, tmp_path / "new.colibri", "-n", "150", "-t", "3") == 0
    assert (tmp_path / "new.colibri").read_bytes() == calibrated.read_bytes()


def test_calibrating_again_replaces_the_profile_only(calibrated: Path, tmp_path: Path) -> None:
    assert calibrate(calibrated, tmp_path / "other.colibri", "-n", "40") == 0
    assert profile_of(tmp_path / "other.colibri").tokens == 40
    assert calibrate(tmp_path / "other.colibri", tmp_path / "again.colibri", "-n", "150") == 0
    assert (tmp_path / "again.colibri").read_bytes() == calibrated.read_bytes()


def test_weights_and_results_are_the_same(plain: Path, calibrated: Path) -> None:
    logits = []
    for path in (plain, calibrated):
        for mode in ("resident", "stream"):
            with Engine(path, residency=mode, verify="open") as engine, engine.session() as session:
                session.append([5, 6, 7, 8])
                logits.append(session.logits().tobytes())
    assert len(set(logits)) == 1
    with open_model(plain) as first, open_model(calibrated) as second:
        assert [e.hash for e in first.extents] == [e.hash for e in second.extents]
        assert second.verify().chunks == first.verify().chunks + 1
        assert first.sections.keys() | {Section.CALIBRATION} == second.sections.keys()


def test_drift_is_measured_against_the_profile(plain: Path, calibrated: Path) -> None:
    with Engine(plain) as engine:
        telemetry = engine.layer_telemetry(0)
        assert telemetry is not None
        assert telemetry.drift is None
    with Engine(calibrated, context_tokens=200) as engine, engine.session() as session:
        session.append(engine.tokenize(TEXT)[:150])
        same = engine.layer_telemetry(1)
        assert same is not None
        assert same.drift == 0.0
        session.reset()
        session.append([7] * 100)
        other = engine.layer_telemetry(1)
        assert other is not None
        assert other.drift is not None
        assert other.drift > 0.05
        counts, profile = engine.expert_counts(1), profile_of(calibrated)
        shares = [(n / sum(counts), m / sum(profile.counts[1])) for n, m in zip(counts, profile.counts[1], strict=True)]
        assert abs(other.drift - sum(abs(a - b) for a, b in shares) / 2) <= 0.001


def test_golden_results_come_along_under_the_new_root(plain: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.colibri"
    model.write_bytes(plain.read_bytes())
    with open_model(model) as file:
        root = file.root.hex()
    (tmp_path / "model.golden.json").write_text(f'{{"root": "{root}", "cases": []}}')
    assert calibrate(model, tmp_path / "new.colibri", "-n", "20") == 0
    with open_model(tmp_path / "new.colibri") as file:
        assert (tmp_path / "new.golden.json").read_text() == f'{{"root": "{file.root.hex()}", "cases": []}}'
    (tmp_path / "model.golden.json").write_text('{"root": "of another model"}')
    assert calibrate(model, tmp_path / "new.colibri", "-n", "20") == 0
    assert not (tmp_path / "new.golden.json").exists()


def test_golden_results_of_the_model_that_is_read_stay(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, golden = tmp_path / "m.colibri", tmp_path / "m.golden.json"
    model.write_bytes(plain.read_bytes())
    with open_model(model) as file:
        golden.write_text(f'{{"root": "{file.root.hex()}", "cases": []}}')
    before = golden.read_bytes()
    assert calibrate(model, tmp_path / "m.calibrated", "-n", "20") == 2
    assert "m.golden.json, those of" in capsys.readouterr().err
    assert golden.read_bytes() == before
    assert not (tmp_path / "m.calibrated").exists()


def test_a_model_without_experts_or_tokenizer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense = write_model(tmp_path / "dense.colibri", Shape(dense_layers=(0, 1, 2)))
    assert calibrate(dense, tmp_path / "new.colibri") == 2
    assert "has no experts" in capsys.readouterr().err
    ids_only = write_model(tmp_path / "ids.colibri", Shape())
    assert calibrate(ids_only, tmp_path / "new.colibri") == 2
    assert "has no tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "new.colibri").exists()


def test_the_model_and_the_text_are_never_replaced(plain: Path, tmp_path: Path) -> None:
    before = plain.read_bytes()
    assert calibrate(plain, plain) == 2
    assert plain.read_bytes() == before
    (tmp_path / "text.txt").write_text(TEXT)
    assert main(["calibrate", str(plain), "--text", str(tmp_path / "text.txt"), "-o", str(tmp_path / "text.txt")]) == 2
    assert (tmp_path / "text.txt").read_text() == TEXT


def test_a_damaged_model_gives_no_new_file(plain: Path, tmp_path: Path) -> None:
    data = bytearray(plain.read_bytes())
    with open_model(plain) as file:
        extent = file.extents[-1]
    data[extent.offset + 5] ^= 1
    (tmp_path / "bad.colibri").write_bytes(data)
    assert calibrate(tmp_path / "bad.colibri", tmp_path / "new.colibri", "-n", "30") == 3
    assert {path.name for path in tmp_path.iterdir()} == {"bad.colibri", "text.txt"}


def test_an_empty_text_is_refused(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_text("")
    assert main(["calibrate", str(plain), "--text", str(tmp_path / "empty"), "-o", str(tmp_path / "new")]) == 2
    assert "no tokens" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_pieces_of_a_text_are_the_text_and_cut_no_character() -> None:
    for text in (TEXT, "ä€😀" * 50, "word " * 30 + "\n" * 9, "x" * 100, ""):
        data = text.encode()
        pieces = list(text_pieces(data, 10))
        assert b"".join(pieces) == data
        assert all(0 < len(piece) <= 10 for piece in pieces)
        assert all(piece.decode() for piece in pieces)


def test_the_most_frequent_followers_are_kept() -> None:
    pairs = {(3, e): e % 7 for e in range(1, 30)} | {(1, 4): 1}
    pairs = {pair: count for pair, count in pairs.items() if count}
    kept = keep_followers(pairs)
    assert kept == {(1, 4): 1, **{(3, e): 6 for e in (6, 13, 20, 27)}, **{(3, e): 5 for e in (5, 12, 19, 26)}}
    assert list(kept) == sorted(kept)


# ---- the section ------------------------------------------------------------------------------


def c_code(path: Path) -> Code:
    """What the C reader says of a file."""
    try:
        with Engine(path, threads=1):
            return Code.OK
    except ColibriError as error:
        return error.code


def python_code(path: Path) -> Code:
    """What the Python reader says of a file."""
    try:
        with open_model(path) as model:
            model.verify()
    except ColibriError as error:
        return error.code
    return Code.OK


def word(at: int, value: int) -> Callable[[Forge], None]:
    """Write a u32 of the section; at < 0 counts from its end."""

    def change(f: Forge) -> None:
        offset, size = f.section(CALIBRATION)
        f.u32(offset + at + (size if at < 0 else 0), value)

    return change


def add(at: int, value: int) -> Callable[[Forge], None]:
    """Add to a u32 of the section."""

    def change(f: Forge) -> None:
        offset, _ = f.section(CALIBRATION)
        (old,) = struct.unpack_from("<I", f.data, offset + at)
        f.u32(offset + at, old + value & 0xFFFFFFFF)

    return change


def resize(by: int) -> Callable[[Forge], None]:
    """Change the size of the section in the table; it stays on its page."""

    def change(f: Forge) -> None:
        _, size = f.section(CALIBRATION)
        f.u64(f.section_entry(CALIBRATION) + 16, size + by)
        offset, _ = f.section(CALIBRATION)
        f.data[offset + size + by : offset + size] = bytes(max(0, -by))

    return change


def cut(f: Forge) -> None:
    """Leave eight bytes of the head."""
    offset, size = f.section(CALIBRATION)
    f.u64(f.section_entry(CALIBRATION) + 16, 8)
    f.data[offset + 8 : offset + size] = bytes(size - 8)


def both(*changes: Callable[[Forge], None]) -> Callable[[Forge], None]:
    """Several changes."""

    def change(f: Forge) -> None:
        for one in changes:
            one(f)

    return change


def section(tokens: int, counts: list[int], *changes: Callable[[Forge], None]) -> Callable[[Forge], None]:
    """A section without pairs, the same counts in each layer; then the changes."""

    def change(f: Forge) -> None:
        offset, size = f.section(CALIBRATION)
        data = struct.pack("<4I", 3, tokens, 0, 0)
        data += b"".join(struct.pack("<4I", layer, 5, 3, 0) for layer in range(3))
        data += 3 * struct.pack("<5I", *counts)
        f.data[offset : offset + size] = data.ljust(size, b"\0")
        f.u64(f.section_entry(CALIBRATION) + 16, len(data))
        both(*changes)(f)

    return change


def last_pair(expert: int, following: int) -> Callable[[Forge], None]:
    """The last pair of layer 0, chosen once: every other rule holds."""

    def change(f: Forge) -> None:
        offset, _ = f.section(CALIBRATION)
        (pairs,) = struct.unpack_from("<I", f.data, offset + HEAD + 12)
        f.u32(offset + PAIRS + 8 * (pairs - 1), expert << 16 | following)
        f.u32(offset + PAIRS + 8 * (pairs - 1) + 4, 1)

    return change


@dataclass(frozen=True)
class Case:
    """A change to the section; both readers refuse it."""

    name: str
    change: Callable[[Forge], None]


CASES = [
    Case("no tokens and nothing counted", section(0, [0] * 5)),
    Case("another top_k with its counts", section(4, [4, 4, 0, 0, 0], *(word(HEAD + 8 + 16 * i, 2) for i in range(3)))),
    Case("count above the tokens, right sum", section(4, [5, 4, 3, 0, 0])),
    Case("expert of a pair just beyond", last_pair(5, 0)),
    Case("next expert of a pair just beyond", last_pair(4, 5)),
    Case("fewer layers", word(0, 2)),
    Case("more layers", word(0, 4)),
    Case("layers beyond the section", word(0, 0xFFFFFFFF)),
    Case("no tokens", word(4, 0)),
    Case("more pairs than the layers have", add(8, 1)),
    Case("pairs whose bytes wrap", both(word(8, 0x20000000), word(HEAD + 12, 0x20000000))),
    Case("reserved field", word(12, 1)),
    Case("another layer", word(HEAD + LAYER, 2)),
    Case("another number of experts", word(HEAD + 4, 6)),
    Case("another top_k", word(HEAD + LAYER + 8, 2)),
    Case("pairs of the last layer", both(add(HEAD + LAYER + 12, -1), word(HEAD + 2 * LAYER + 12, 1))),
    Case("cut to less than the head", cut),
    Case("four bytes less", resize(-4)),
    Case("four bytes more", resize(4)),
    Case("count above the tokens", word(COUNTS, 151)),
    Case("sum of counts one too small", add(COUNTS + 4, -1)),
    Case("sum of counts one too large", add(COUNTS + 24, 1)),
    Case("expert of a pair", word(PAIRS, 5 << 16)),
    Case("next expert of a pair", word(PAIRS, 5)),
    Case("pairs that do not ascend", word(PAIRS + 8, 0)),
    Case("pair twice", word(PAIRS + 8, 0)),
    Case("pair of no token", word(PAIRS + 4, 0)),
    Case("pair of more tokens than its experts have", word(PAIRS + 4, 151)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_both_readers_refuse(case: Case, calibrated: Path, tmp_path: Path) -> None:
    forge = Forge(calibrated.read_bytes())
    case.change(forge)
    offset, size = forge.section(CALIBRATION)
    forge.put(forge.section_entry(CALIBRATION) + 32, tree(forge.data[offset : offset + size])[1])
    forge.rehash_root()
    path = tmp_path / "bad.colibri"
    path.write_bytes(forge.data)
    assert (python_code(path), c_code(path)) == (Code.CALIBRATION, Code.CALIBRATION)


def test_a_section_without_pairs_is_right(calibrated: Path, tmp_path: Path) -> None:
    forge = Forge(calibrated.read_bytes())
    section(4, [4, 4, 3, 1, 0])(forge)
    offset, size = forge.section(CALIBRATION)
    forge.put(forge.section_entry(CALIBRATION) + 32, tree(forge.data[offset : offset + size])[1])
    forge.rehash_root()
    path = tmp_path / "good.colibri"
    path.write_bytes(forge.data)
    assert (python_code(path), c_code(path)) == (Code.OK, Code.OK)
    assert profile_of(path).counts == [[4, 4, 3, 1, 0]] * 3


def test_a_changed_byte_is_found_by_the_hash(calibrated: Path, tmp_path: Path) -> None:
    forge = Forge(calibrated.read_bytes())
    word(COUNTS, 1)(forge)
    path = tmp_path / "bad.colibri"
    path.write_bytes(forge.data)
    assert (python_code(path), c_code(path)) == (Code.CHUNK_MISMATCH, Code.CHUNK_MISMATCH)


def test_more_followers_than_the_limit_are_refused(tmp_path: Path) -> None:
    """Eight pairs of expert 0 and one of expert 1, which becomes a ninth of expert 0."""
    plain = write_model(tmp_path / "plain.colibri", Shape(layers=2, experts=12, top_k=12))
    followers = {**{(0, e): 1 for e in range(8)}, (1, 8): 1}
    with open_model(plain) as model:
        write_calibrated(model, tmp_path / "good.colibri", Profile(9, [0, 1], [[9] * 12] * 2, [followers, {}]))
    assert profile_of(tmp_path / "good.colibri").followers[0] == followers
    assert c_code(tmp_path / "good.colibri") == Code.OK
    forge = Forge((tmp_path / "good.colibri").read_bytes())
    word(-8, 8)(forge)
    offset, size = forge.section(CALIBRATION)
    forge.put(forge.section_entry(CALIBRATION) + 32, tree(forge.data[offset : offset + size])[1])
    forge.rehash_root()
    path = tmp_path / "bad.colibri"
    path.write_bytes(forge.data)
    assert (python_code(path), c_code(path)) == (Code.CALIBRATION, Code.CALIBRATION)


def test_a_profile_that_no_reader_takes_is_not_written(plain: Path, tmp_path: Path) -> None:
    with open_model(plain) as model, pytest.raises(ColibriError, match="counts add up to 4, must be 1 x 3"):
        write_calibrated(
            model,
            tmp_path / "new.colibri",
            Profile(1, [0, 1, 2], [[1, 1, 1, 0, 0], [1] * 3 + [0] * 2, [1, 0, 1, 1, 1]], [{}] * 3),
        )
    assert list(tmp_path.iterdir()) == []


def test_a_signature_is_left_out_with_a_word(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key.pem"
    key.write_text(KEY)
    sign_model(plain, key, tmp_path / "signed.colibri")
    assert calibrate(tmp_path / "signed.colibri", tmp_path / "new.colibri", "-n", "20") == 0
    assert "new.colibri is not: sign it with `colibri sign`" in capsys.readouterr().err
    assert calibrate(plain, tmp_path / "same.colibri", "-n", "20") == 0
    assert (tmp_path / "new.colibri").read_bytes() == (tmp_path / "same.colibri").read_bytes()
