# SPDX-License-Identifier: MIT
"""Leaving experts out: the rounding rule, both rankings, and that the others stay what they were."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from colibri._spec import Code, MoeBlock, Role, Scope
from colibri.calibration import Profile
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.format import ModelFile, open_model
from colibri.job import run_job
from colibri.prune import kept_experts, parse_ratio
from colibri.prune import prune as leave_out
from colibri.recipe import load_recipe
from colibri.reference import ReferenceModel

RECIPE = Path(__file__).resolve().parents[2] / "configs" / "models" / "tiny.toml"
TEXT = "the cat sat on 1200 hats, and that was the end of the hats and the cat. " * 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model: three layers of five experts, top 3."""
    path = tmp_path_factory.mktemp("whole") / "tiny.colibri"
    run_job(load_recipe(RECIPE), path, quiet=True)
    return path


def prune(path: Path, *options: str) -> int:
    return main(["convert", str(RECIPE), "-o", str(path), "-q", *options])


def kept_ids(whole: ModelFile, part: ModelFile, layer: int) -> list[int]:
    """Which experts of the whole model the other one has, compared byte by byte."""
    up, other = (file.tensor(Role.EXPERT_UP, layer, Scope.EXPERT) for file in (whole, part))
    assert up is not None
    assert other is not None
    moe = part.records.layers[layer].ffn
    assert isinstance(moe, MoeBlock)
    stored = [whole.tensor_bytes(up, expert) for expert in range(5)]
    return [stored.index(part.tensor_bytes(other, expert)) for expert in range(moe.experts)]


def test_a_ratio_is_what_is_written() -> None:
    assert parse_ratio("0.29") * 100 == 29
    assert parse_ratio("1/3") == Fraction(1, 3)


def test_groups_of_experts_stay_whole() -> None:
    job = load_recipe(RECIPE)
    for layer in job.records.layers:
        assert isinstance(layer.ffn, MoeBlock)
        layer.ffn.groups, layer.ffn.groups_chosen = 5, 4
    with pytest.raises(ColibriError, match="layer 0 chooses 4 of 5 groups of experts first") as caught:
        leave_out(job, Fraction(1, 5))
    assert caught.value.code == Code.UNSUPPORTED
    leave_out(job, Fraction(1, 10))  # of five experts none


def test_of_equal_experts_the_lower_id_stays() -> None:
    assert kept_experts([1.0, 3.0, 1.0, 1.0], 2) == [0, 1]
    assert kept_experts([1.0, 3.0, 1.0, 2.0], 0) == [0, 1, 2, 3]


def test_the_experts_of_largest_norm_stay_in_their_order(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pruned.colibri"
    assert prune(path, "--expert-prune-ratio", "0.4") == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "pruning: every layer loses floor(0.4 x experts), ranked by sum of squares of the weights"
    )
    job = load_recipe(RECIPE)
    from colibri.writer import Slot

    with open_model(whole) as a, open_model(path) as b:
        b.verify()
        for layer in range(3):
            sums = np.zeros(5)
            for entry in a.tensors:
                if entry.layer == layer and entry.scope == Scope.EXPERT:
                    for expert in range(5):
                        sums[expert] += (job.rows(Slot(entry, expert), 0, entry.rows).astype(np.float64) ** 2).sum()
            ids = sorted(np.argsort(-sums)[:3].tolist())
            assert kept_ids(a, b, layer) == ids
            assert lines[1 + layer].startswith(f"layer {layer}: 3 experts stay, without ")
            assert b.provenance()["pruned"]["kept"][layer] == ids
            router, rows = a.tensor(Role.ROUTER, layer, Scope.TRUNK), b.tensor(Role.ROUTER, layer, Scope.TRUNK)
            assert router is not None
            assert rows is not None
            full = np.frombuffer(a.tensor_bytes(router, None), np.float32).reshape(-1, 8)[:, :5]
            less = np.frombuffer(b.tensor_bytes(rows, None), np.float32).reshape(-1, 8)[:, :3]
            assert np.array_equal(full[:, ids], less)


@pytest.mark.usefixtures("native_library")
def test_the_experts_that_a_text_chose_least_go(whole: Path, tmp_path: Path) -> None:
    text, calibrated, path = (tmp_path / name for name in ("text.txt", "calibrated.colibri", "pruned.colibri"))
    text.write_text(TEXT)
    assert main(["calibrate", str(whole), "--text", str(text), "-o", str(calibrated), "-q"]) == 0
    assert prune(path, "--expert-prune-ratio", "0.2", "--prune-by", str(calibrated)) == 0
    with open_model(whole) as a, open_model(path) as b, open_model(calibrated) as c:
        profile = c.calibration()
        assert isinstance(profile, Profile)
        for layer, counts in enumerate(profile.counts):
            assert kept_ids(a, b, layer) == kept_experts([float(n) for n in counts], 1)


@pytest.mark.usefixtures("native_library")
def test_a_pruned_model_has_the_same_bits_in_c(tmp_path: Path) -> None:
    from colibri.engine import Engine

    path = tmp_path / "pruned.colibri"
    assert prune(path, "--expert-prune-ratio", "0.25") == 0
    ids = list(range(40, 60))
    with Engine(path, lock="off") as engine, engine.session() as session:
        assert engine.info.experts == 4
        session.append(ids)
        ours = session.logits_array()
    assert ours.tobytes() == ReferenceModel(path).session().append(ids).logits[-1].tobytes()


@pytest.mark.parametrize("ratio", ["0", "0.19"])
def test_a_ratio_below_one_expert_removes_none(whole: Path, tmp_path: Path, ratio: str) -> None:
    path = tmp_path / "pruned.colibri"
    assert prune(path, "--expert-prune-ratio", ratio) == 0
    with open_model(whole) as a, open_model(path) as b:
        assert [kept_ids(a, b, layer) for layer in range(3)] == [list(range(5))] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--expert-prune-ratio", "0.6"], "leaves 2 of 5 experts in layer 0, of which a token uses 3; give"),
        (["--expert-prune-ratio", "1"], "must be from 0 to below 1"),
        (["--expert-prune-ratio", "-0.1"], "must be from 0 to below 1"),
        (["--expert-prune-ratio", "half"], "give a number"),
        (["--expert-prune-ratio", "1/0"], "give a number"),
        (["--prune-by", "x"], "--prune-by belongs to --expert-prune-ratio"),
    ],
)
def test_ratios_that_leave_too_few_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert prune(tmp_path / "m.colibri", *options) == 2
    assert message in capsys.readouterr().err


def test_a_file_without_a_profile_ranks_nothing(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prune(tmp_path / "m.colibri", "--expert-prune-ratio", "0.2", "--prune-by", str(whole)) == 2
    assert "has no calibration profile" in capsys.readouterr().err


def test_a_profile_of_another_model_is_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, part, calibrated = (tmp_path / name for name in ("text.txt", "part.colibri", "calibrated.colibri"))
    text.write_text(TEXT)
    assert prune(part, "--expert-prune-ratio", "0.2") == 0
    options = ["--text", str(text), "-o", str(calibrated), "-q", "-n", "20", "--engine", "reference"]
    assert main(["calibrate", str(part), *options]) == 0
    assert prune(tmp_path / "m.colibri", "--expert-prune-ratio", "0.2", "--prune-by", str(calibrated)) == 2
    assert "has 4 experts in layer 0, the model 5" in capsys.readouterr().err


def importance_of_each_expert(path: Path) -> None:
    """A file in which the lists of no two experts are alike."""
    from colibri.importance import Importance

    lists: dict[tuple[Role, int | None, int | None], bytes] = {}
    for layer in range(3):
        for expert in range(5):
            codes = np.random.default_rng(10 * layer + expert).integers(90, 160, 104)
            lists[(Role.EXPERT_DOWN, layer, expert)] = bytes(codes.astype(np.uint8))
    path.write_bytes(Importance(1, "00", "00", lists).document())


@pytest.mark.parametrize("ratio_in", ["option", "recipe"])
def test_an_expert_that_stays_keeps_its_importance(tmp_path: Path, ratio_in: str) -> None:
    importance, whole, part = (tmp_path / name for name in ("importance.json", "whole.colibri", "part.colibri"))
    importance_of_each_expert(importance)
    options = ["--importance", str(importance), "-q"]
    assert main(["convert", str(RECIPE), "-o", str(whole), *options]) == 0
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(('expert_prune_ratio = "0.4"\n' if ratio_in == "recipe" else "") + RECIPE.read_text())
    ratio = ["--expert-prune-ratio", "0.4"] if ratio_in == "option" else []
    assert main(["convert", str(recipe), "-o", str(part), *options, *ratio]) == 0
    with open_model(whole) as a, open_model(part) as b:
        for layer in range(3):
            down, other = (file.tensor(Role.EXPERT_DOWN, layer, Scope.EXPERT) for file in (a, b))
            assert down is not None
            assert other is not None
            for expert, original in enumerate(kept_ids(a, b, layer)):
                assert b.tensor_bytes(other, expert) == a.tensor_bytes(down, original)
