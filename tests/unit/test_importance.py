# SPDX-License-Identifier: MIT
"""Weighted scale search, `colibri importance`, overrides and the scale factor."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from colibri._spec import Code, DType, Role, Scope
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.importance import _BOUNDS, _POWERS, decode_list, encode_list, load_importance
from colibri.job import Precision, run_job
from colibri.layout import F32
from colibri.noise import normal
from colibri.quantize import quantize_int4, quantize_int8
from colibri.recipe import load_recipe

RECIPE = Path(__file__).resolve().parents[2] / "configs" / "models" / "tiny.toml"
TEXT = "the cat sat on 1200 hats, and that was the end of the hats and the cat. " * 3


def gaussian(rows: int, columns: int, seed: int = 1) -> F32:
    return normal(seed, 0, rows * columns).reshape(rows, columns)


def stored(w: F32, importance: F32 | None = None, factor: float = 1.0) -> F32:
    """What quantize_int4 keeps of w."""
    q, scales, _ = quantize_int4(w, importance=importance, factor=factor)
    wide = q.reshape(len(w), -1, 32) * scales.astype(np.float32)[:, :, None]
    return np.asarray(wide.reshape(len(w), -1)[:, : w.shape[1]])


# ---- the search -----------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [32, 80, 96])
def test_weights_lower_the_weighted_error(columns: int) -> None:
    w, importance = gaussian(64, columns), np.exp(gaussian(1, columns, 2)[0] * np.float32(1.5))
    plain, weighted = (((stored(w, by) - w) ** 2 * importance).sum() for by in (None, importance))
    assert weighted < 0.97 * plain


def test_equal_weights_search_as_well_as_none() -> None:
    w = gaussian(40, 80)
    plain, equal = (((stored(w, by) - w) ** 2).sum() for by in (None, np.full(80, 0.25, dtype=np.float32)))
    assert 0.97 * plain < equal <= plain  # the same measure, a finer grid


def test_the_part_of_a_matrix_sees_the_weights_of_its_columns() -> None:
    w, importance = gaussian(1100, 160), np.exp(gaussian(1, 160, 2)[0])  # more groups than one pass takes
    whole = stored(w, importance)
    assert whole[1000:].tobytes() == stored(w[1000:], importance).tobytes()


def test_the_scale_factor_multiplies_every_scale() -> None:
    w = gaussian(16, 64)
    for quantize in (quantize_int4, quantize_int8):
        one, less = (quantize(w, factor=factor)[1].astype(np.float32) for factor in (1.0, 0.9))
        assert np.allclose(less / one, 0.9, rtol=1e-3)


# ---- lists ----------------------------------------------------------------------------------


def test_a_list_keeps_ratios_to_a_sixteenth_of_an_octave() -> None:
    values = np.exp(gaussian(1, 500)[0].astype(np.float64) * 3)
    decoded = decode_list(encode_list(values)).astype(np.float64)
    assert np.abs(np.log2(decoded * values.mean() / values)).max() <= 1 / 16 + 1e-6


def test_a_list_of_zeros_says_nothing() -> None:
    assert decode_list(encode_list(np.zeros(5))).tolist() == [1.0] * 5


def test_a_zero_in_a_list_stays_above_zero() -> None:
    decoded = decode_list(encode_list(np.array([0.0, 1.0, 1e-30])))
    assert 0 < decoded[0] <= decoded[2] < 1e-4


def rounded(power: Fraction, bits: int) -> float:
    """2 to a power from 0 to 1, correctly rounded to a significand of `bits` bits, without libm."""
    with localcontext(prec=60):
        exact = Decimal(2) ** (Decimal(power.numerator) / Decimal(power.denominator))
    return float(Fraction(round(Fraction(exact) * 2 ** (bits - 1)), 2 ** (bits - 1)))


def test_steps_and_bounds_of_a_list_are_correctly_rounded() -> None:
    assert [float(power) for power in _POWERS] == [rounded(Fraction(i, 8), 24) for i in range(8)]
    assert list(_BOUNDS) == [rounded(Fraction(2 * i + 1, 16), 53) for i in range(8)]


# ---- the command ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny model and its importance."""
    folder = tmp_path_factory.mktemp("importance")
    model, text, output = (folder / name for name in ("tiny.colibri", "text.txt", "importance.json"))
    run_job(load_recipe(RECIPE), model, quiet=True)
    text.write_text(TEXT)
    assert main(["importance", str(model), "--text", str(text), "-o", str(output), "-n", "60", "-q"]) == 0
    return model, output


def test_every_matrix_of_the_experts_has_a_list(measured: tuple[Path, Path]) -> None:
    found, _ = load_importance(measured[1])
    assert found.tokens == 60
    for layer in range(3):
        assert len(found.lists[(Role.Q, layer, None)]) == 80
        assert len(found.lists[(Role.O, layer, None)]) == 96
        assert len(found.lists[(Role.EXPERT_UP, layer, None)]) == 80
        assert {len(found.lists[(Role.EXPERT_DOWN, layer, expert)]) for expert in range(5)} == {104}


def test_measuring_again_gives_the_same_bytes(measured: tuple[Path, Path], tmp_path: Path) -> None:
    model, first = measured
    for name in ("a", "b"):
        options = ["--text", str(first.with_name("text.txt")), "-n", "60", "-q", "-o", str(tmp_path / name)]
        assert main(["importance", str(model), *options]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == first.read_bytes()


def test_pooled_experts_share_a_list(measured: tuple[Path, Path], tmp_path: Path) -> None:
    model, first = measured
    path = tmp_path / "pooled.json"
    options = ["--text", str(first.with_name("text.txt")), "-n", "60", "-q", "--pool", "-o", str(path)]
    assert main(["importance", str(model), *options]) == 0
    pooled, apart = load_importance(path)[0].lists, load_importance(first)[0].lists
    assert {key: codes for key, codes in apart.items() if key[0] != Role.EXPERT_DOWN} == {
        key: codes for key, codes in pooled.items() if key[0] != Role.EXPERT_DOWN
    }
    assert [key for key in pooled if key[0] == Role.EXPERT_DOWN] == [(Role.EXPERT_DOWN, n, None) for n in range(3)]
    output = tmp_path / "m.colibri"
    assert main(["convert", str(RECIPE), "--importance", str(path), "-o", str(output), "-q"]) == 0
    with open_model(output) as file:
        file.verify()


def test_conversion_with_importance_changes_int4_alone(measured: tuple[Path, Path], tmp_path: Path) -> None:
    model, importance = measured
    path = tmp_path / "weighted.colibri"
    assert main(["convert", str(RECIPE), "--importance", str(importance), "-o", str(path), "-q"]) == 0
    with open_model(model) as plain, open_model(path) as weighted:
        weighted.verify()
        for entry in plain.tensors:
            experts = range(5) if entry.scope == Scope.EXPERT else (None,)
            for expert in experts:
                same = plain.tensor_bytes(entry, expert) == weighted.tensor_bytes(entry, expert)
                assert same == (entry.dtype != DType.INT4), entry.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "this version reads 1"),
        ({"lists": [["expert_up", 0, None, "80"]]}, "has 1 columns, the model 80"),
        ({"lists": [["expert_up", 0, None, "xy"]]}, "no importance file"),
        ({"lists": [["nothing", 0, None, "80"]]}, "no importance file"),
        ({"lists": [["expert_up", 0.5, None, "80"]]}, "no importance file"),
        ({"lists": 7}, "no importance file"),
    ],
)
def test_a_file_that_is_not_of_the_model_is_refused(
    measured: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    message: str,
) -> None:
    path = tmp_path / "importance.json"
    path.write_text(json.dumps({**json.loads(measured[1].read_text()), **change}))
    assert main(["convert", str(RECIPE), "--importance", str(path), "-o", str(tmp_path / "m.colibri"), "-q"]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m.colibri").exists()


# ---- overrides ------------------------------------------------------------------------------


def dtypes(path: Path) -> dict[str, DType]:
    with open_model(path) as model:
        model.verify()
        return {entry.name: entry.dtype for entry in model.tensors}


def test_overrides_name_single_tensors(tmp_path: Path) -> None:
    recipe, path = tmp_path / "tiny.toml", tmp_path / "m.colibri"
    recipe.write_text(RECIPE.read_text() + '\n[overrides]\n"layer 1 expert_*" = "int8"\n"global *" = "f16"\n')
    options = ["--override", "layer 1 expert_up=bf16", "--quant-scale-factor", "0.95"]
    assert main(["convert", str(recipe), "-o", str(path), "-q", *options]) == 0
    found = dtypes(path)
    assert found["layer 1 expert_down"] == found["layer 1 expert_gate"] == DType.INT8
    assert found["layer 1 expert_up"] == DType.BF16
    assert found["layer 0 expert_up"] == DType.INT4
    assert found["global embedding"] == DType.F16
    assert found["layer 0 q"] == DType.INT8
    with open_model(path) as model:
        said = model.provenance()["dtypes"]
    assert said["quant_scale_factor"] == 0.95
    assert said["overrides"] == {"layer 1 expert_*": "int8", "global *": "f16", "layer 1 expert_up": "bf16"}


def test_a_pattern_that_is_given_again_counts_where_it_is_given_last(tmp_path: Path) -> None:
    path, recipe = tmp_path / "m.colibri", tmp_path / "tiny.toml"
    again = ["--override", "layer 1 *=int8", "--override", "layer 1 expert_up=f16", "--override", "layer 1 *=bf16"]
    assert main(["convert", str(RECIPE), "-o", str(path), "-q", *again]) == 0
    assert dtypes(path)["layer 1 expert_up"] == DType.BF16
    recipe.write_text(RECIPE.read_text() + '\n[overrides]\n"layer 1 *" = "int8"\n"layer 1 expert_up" = "f16"\n')
    assert main(["convert", str(recipe), "-o", str(path), "-q", "--override", "layer 1 *=bf16"]) == 0
    assert dtypes(path)["layer 1 expert_up"] == DType.BF16


@pytest.mark.parametrize("pattern", ["layer 9 *", "expert_down", "* pre_ffn_norm", "global final_norm"])
def test_a_pattern_that_changes_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    path = tmp_path / "m.colibri"
    assert main(["convert", str(RECIPE), "-o", str(path), "-q", "--override", f"{pattern}=int8"]) == 2
    assert f"override {pattern!r} matches no matrix of the model" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.usefixtures("native_library")
def test_a_model_with_overrides_has_the_same_bits_in_c(tmp_path: Path) -> None:
    from colibri.engine import Engine
    from colibri.reference import ReferenceModel

    path = tmp_path / "m.colibri"
    overrides = {"layer 1 expert_*": "int8", "layer 2 expert_down": "f16", "layer 0 [qk]": "int4"}
    run_job(load_recipe(RECIPE, overrides=overrides), path, quiet=True)
    ids = list(range(40, 60))
    with Engine(path, lock="off") as engine, engine.session() as session:
        session.append(ids)
        ours = session.logits_array()
    theirs = ReferenceModel(path).session().append(ids).logits[-1]
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    ("names", "overrides", "message"),
    [
        ({"quant_scale_factor": 0.4}, {}, "must be 0.5 to 1.5"),
        ({"quant_scale_factor": "1"}, {}, "must be 0.5 to 1.5"),
        ({}, {"*": "int3"}, "dtype 'int3', known: int4"),
        ({"overrides": "int4"}, {}, "dtype of 'overrides' asked for"),
    ],
)
def test_unknown_dtypes_and_factors_are_refused(
    names: dict[str, object], overrides: dict[str, str], message: str
) -> None:
    with pytest.raises(ColibriError, match=r"quant_scale_factor|dtype") as caught:
        Precision.from_names(names, overrides)
    assert caught.value.code == Code.ARGUMENT
    assert message in caught.value.message


def test_an_override_needs_a_name_and_a_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(RECIPE), "-o", str(tmp_path / "m.colibri"), "--override", "int8"]) == 2
    assert "write NAME=DTYPE" in capsys.readouterr().err
