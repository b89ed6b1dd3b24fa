# SPDX-License-Identifier: MIT
"""The Python face of the C engine: options, errors, sessions, and the run command."""

from __future__ import annotations

import argparse
import array
import ctypes
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from colibri import _ffi
from colibri._spec import Code
from colibri.engine import (
    Engine,
    Utf8Decoder,
    add_run_arguments,
    build_info,
    isas_available,
    isas_compiled,
    parse_ids,
    run_command,
    selftest,
    split_prompt,
)
from colibri.errors import ColibriError
from synthetic import SHAPES, Shape, write_model

pytestmark = pytest.mark.usefixtures("native_library")
PROMPT = [3, 14, 15, 92, 65, 35]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without a tokenizer."""
    return write_model(tmp_path_factory.mktemp("engine") / "m.colibri", SHAPES["mixtral"])


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    """The model, open."""
    with Engine(model, threads=2, lock="off") as opened:
        yield opened


def code_of(caught: pytest.ExceptionInfo[ColibriError]) -> Code:
    return caught.value.code


# ---- the library ----------------------------------------------------------------------------


def test_structs_have_the_sizes_of_the_header(tmp_path: Path) -> None:
    """A C program prints sizeof and the offset of the last field of each struct."""
    pairs = {
        "colibri_error": (_ffi.ErrorStruct, "message"),
        "colibri_model_options": (_ffi.ModelOptions, "isa"),
        "colibri_sampler": (_ffi.SamplerStruct, "seed"),
        "colibri_utf8": (_ffi.Utf8Struct, "held_bytes"),
        "colibri_plan": (_ffi.PlanStruct, "total_bytes"),
        "colibri_model_info": (_ffi.ModelInfoStruct, "root"),
        "colibri_layer_telemetry": (_ffi.LayerTelemetryStruct, "drift_permille"),
        "colibri_report": (_ffi.ReportStruct, "lock_message"),
    }
    lines = [f'printf("%zu %zu\\n", sizeof({n}), offsetof({n}, {last}));' for n, (_, last) in pairs.items()]
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <stdio.h>\n#include <colibri.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    include = Path(__file__).resolve().parents[2] / "engine" / "native" / "include"
    subprocess.run(["gcc", "-I", str(include), "-o", str(tmp_path / "sizes"), str(source)], check=True)
    printed = subprocess.run([str(tmp_path / "sizes")], capture_output=True, text=True, check=True).stdout
    expected = [f"{ctypes.sizeof(cls)} {getattr(cls, last).offset}" for cls, last in pairs.values()]
    assert printed.split("\n")[:-1] == expected


def test_available_instruction_sets_are_compiled_ones_and_pass_the_selftest() -> None:
    assert isas_available()[0] == "ref"
    assert set(isas_available()) <= set(isas_compiled())
    for isa in isas_available():
        selftest(isa)


def test_build_info_names_version_machine_and_compiler() -> None:
    assert build_info().startswith("colibri_v0.")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLIBRI_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(ColibriError, match=r"none\.so: no such file; build the engine"):
        _ffi.load()


def test_a_library_of_another_abi_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text("unsigned colibri_abi_version(void) { return 7; }\n")
    library = tmp_path / "other.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "other.c")], check=True)
    monkeypatch.setenv("COLIBRI_LIBRARY", str(library))
    with pytest.raises(ColibriError, match="ABI version 7, this package needs 0") as caught:
        _ffi.load()
    assert code_of(caught) == Code.ABI


def test_a_library_that_is_not_ours_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text("int other(void) { return 7; }\n")
    library = tmp_path / "other.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "other.c")], check=True)
    monkeypatch.setenv("COLIBRI_LIBRARY", str(library))
    with pytest.raises(ColibriError, match="it is not libcolibri"):
        _ffi.load()


# ---- models ---------------------------------------------------------------------------------


def test_info_shows_the_records(engine: Engine, model: Path) -> None:
    info = engine.info
    assert (info.layers, info.hidden, info.vocabulary, info.context_tokens) == (3, 72, 101, 128)
    assert (info.heads, info.kv_heads, info.head_dim) == (4, 2, 16)
    assert (info.experts, info.top_k, info.intermediate) == (5, 2, 88)
    assert not info.has_tokenizer
    assert info.file_bytes == model.stat().st_size


def test_report_says_what_was_had(engine: Engine) -> None:
    report = engine.report()
    assert report.threads == 2
    assert report.isa == isas_available()[-1]
    assert report.extents == 1 + 3 + 3 * 5


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"isa": "mmx"}, Code.ISA),
        ({"budget_bytes": 4096}, Code.BUDGET),
        ({"threads": 65}, Code.ARGUMENT),
        ({"threads": -1}, Code.ARGUMENT),
        ({"max_text_bytes": 1 << 32}, Code.ARGUMENT),
        ({"budget_bytes": 1 << 64}, Code.ARGUMENT),
        ({"context_tokens": 129}, Code.ARGUMENT),
        ({"batch_tokens": 513}, Code.ARGUMENT),
        ({"kv": "int8"}, Code.ARGUMENT),
        ({"verify": "never"}, Code.ARGUMENT),
    ],
)
def test_options_that_cannot_be_met_are_refused(model: Path, options: dict[str, object], code: Code) -> None:
    with pytest.raises(ColibriError) as caught:
        Engine(model, **options)  # type: ignore[arg-type]
    assert code_of(caught) == code


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match=r"none\.colibri") as caught:
        Engine(tmp_path / "none.colibri")
    assert code_of(caught) == Code.OPEN


def test_a_changed_byte_of_a_weight_is_found(model: Path, tmp_path: Path) -> None:
    data = bytearray(model.read_bytes())
    data[-5 * 4096] ^= 1
    changed = tmp_path / "changed.colibri"
    changed.write_bytes(data)
    with pytest.raises(ColibriError) as caught:
        Engine(changed, verify="open")
    assert code_of(caught) == Code.CHUNK_MISMATCH


def test_a_closed_engine_says_so(model: Path) -> None:
    engine = Engine(model, lock="off")
    session = engine.session()
    engine.close()
    engine.close()
    for use in (engine.plan, lambda: session.append([1]), engine.session):
        with pytest.raises(ColibriError, match="closed"):
            use()


def test_no_more_sessions_than_planned(model: Path) -> None:
    with Engine(model, max_sessions=2, lock="off") as engine:
        first, second = engine.session(), engine.session()
        with pytest.raises(ColibriError):
            engine.session()
        first.close()
        third = engine.session()
        third.append(PROMPT)
        second.append(PROMPT)
        assert third.logits().tobytes() == second.logits().tobytes()


# ---- sessions -------------------------------------------------------------------------------


def test_logits_are_a_read_only_float_view(engine: Engine) -> None:
    session = engine.session()
    session.append(PROMPT)
    logits = session.logits()
    assert (logits.format, logits.shape, logits.readonly) == ("f", (101,), True)
    assert array.array("f", logits).tolist() == session.logits_array().tolist()


def test_logits_before_the_first_token_are_an_error(engine: Engine) -> None:
    with pytest.raises(ColibriError, match="no logits yet"):
        engine.session().logits()


@pytest.mark.parametrize("token", [-1, 101, 2**31, -(2**40)])
def test_an_id_outside_the_vocabulary_is_refused_and_the_sequence_stays(engine: Engine, token: int) -> None:
    session = engine.session()
    session.append(PROMPT)
    before = session.logits().tobytes()
    with pytest.raises(ColibriError) as caught:
        session.append([5, token])
    assert code_of(caught) == Code.TOKEN_RANGE
    assert session.position == len(PROMPT)
    session.reset()
    session.append(PROMPT)
    assert session.logits().tobytes() == before


def test_a_full_context_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.colibri", Shape(context=16))
    with Engine(path, lock="off") as engine, engine.session() as session:
        session.append([1] * 16)
        with pytest.raises(ColibriError) as caught:
            session.append([1])
        assert code_of(caught) == Code.CONTEXT_FULL


def test_reset_starts_over(engine: Engine) -> None:
    session = engine.session()
    session.append(PROMPT)
    first = session.logits().tobytes()
    session.append([1, 2])
    assert session.position == len(PROMPT) + 2
    session.reset()
    assert session.position == 0
    session.append(PROMPT)
    assert session.logits().tobytes() == first


def test_a_seed_gives_the_same_tokens_and_another_seed_others(engine: Engine) -> None:
    def tokens(seed: int) -> list[int]:
        with engine.session() as session:
            session.set_sampler(temperature=1.5, seed=seed)
            session.append(PROMPT)
            return list(session.generate(20, stop_at_end=False))

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


@pytest.mark.parametrize("field", [{"temperature": -1.0}, {"top_k": -1}, {"seed": 1 << 64}, {"top_p": 0.0}])
def test_a_sampler_out_of_range_is_refused(engine: Engine, field: dict[str, float]) -> None:
    with engine.session() as session, pytest.raises(ColibriError) as caught:
        session.set_sampler(**field)  # type: ignore[arg-type]
    assert code_of(caught) == Code.ARGUMENT


def test_expert_counts_add_up(engine: Engine) -> None:
    session = engine.session()
    session.append(PROMPT)
    for layer in range(3):
        counts = engine.expert_counts(layer)
        assert len(counts) == 5
        assert sum(counts) == 2 * len(PROMPT)
        chosen = [expert for row in session.routing(layer) for expert in row]
        assert [chosen.count(expert) for expert in range(5)] == counts


def test_text_needs_a_tokenizer(engine: Engine) -> None:
    with pytest.raises(ColibriError) as caught:
        engine.tokenize("hello")
    assert code_of(caught) == Code.NO_TOKENIZER
    assert engine.token_bytes(5) == b""


def test_the_engine_needs_nothing_but_the_standard_library(model: Path) -> None:
    """A process in which importing numpy fails still runs a model."""
    program = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "from colibri.engine import Engine\n"
        "with Engine(sys.argv[1], lock='off') as engine, engine.session() as session:\n"
        "    session.append([1, 2, 3])\n"
        "    print(session.sample(), len(session.logits()))\n"
    )
    result = subprocess.run([sys.executable, "-c", program, str(model)], capture_output=True, text=True, check=True)
    assert result.stdout.split()[1] == "101"


# ---- text -----------------------------------------------------------------------------------


def test_a_character_is_held_back_until_it_is_complete() -> None:
    decoder = Utf8Decoder()
    data = "aé€😀".encode()
    pieces = [decoder.feed(data[i : i + 1]) for i in range(len(data))]
    assert pieces == ["a", "", "é", "", "", "€", "", "", "", "😀"]
    assert decoder.feed(b"\xe2\x82") == ""
    assert decoder.flush() == "\ufffd"


# ---- the run command ------------------------------------------------------------------------


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    return run_command(parser.parse_args(list(arguments)))


def test_run_prints_ids_and_hash_on_stderr(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = ",".join(map(str, PROMPT))
    assert run(str(model), "--ids", ids, "-n", "4", "--print-ids", "--logits-sha256", "--batch-split", "2,1") == 0
    out, err = capsys.readouterr()
    assert out == ""
    with Engine(model, lock="off") as engine, engine.session() as session:
        session.append(PROMPT)
        digest = hashlib.sha256()
        expected = list(session.generate(4, on_logits=digest.update))
    lines = [line for line in err.splitlines() if not line.startswith("warning:")]
    assert lines == [
        "prompt-ids: " + " ".join(map(str, PROMPT)),
        "ids: " + " ".join(map(str, expected)),
        "logits-sha256: " + digest.hexdigest(),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the prompt either with -p TEXT or with --ids"),
        (["-p", "a", "--ids", "1"], "give the prompt either with -p TEXT or with --ids"),
        (["--ids", "1,x"], "--ids '1,x'; write integers"),
        (["--ids", "1", "-n", "0"], "generate at least 1 token"),
        (["--ids", "1", "--batch-split", "0"], "write sizes of at least 1"),
    ],
)
def test_run_refuses_arguments_with_the_fix(model: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ColibriError, match=message) as caught:
        run(str(model), *arguments)
    assert code_of(caught) == Code.ARGUMENT


def test_run_refuses_a_budget_that_is_too_small(model: Path) -> None:
    with pytest.raises(ColibriError) as caught:
        run(str(model), "--ids", "1", "--budget", "4096")
    assert code_of(caught) == Code.BUDGET


def test_a_prompt_is_cut_as_told() -> None:
    assert split_prompt([1, 2, 3], "") == [[1, 2, 3]]
    assert split_prompt([1, 2, 3], "each") == [[1], [2], [3]]
    assert split_prompt([1, 2, 3, 4], "1,2") == [[1], [2, 3], [4]]
    assert split_prompt([1, 2], "5") == [[1, 2]]
    assert parse_ids("1,22,3") == [1, 22, 3]
