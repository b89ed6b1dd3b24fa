# SPDX-License-Identifier: MIT
"""One bit pattern: the numpy reference and every engine give the same ids and the same logits.

The hash is over the float32 logits that chose each token, so one differing bit anywhere in the
forward pass turns a test red. Engines: C reference and vector kernels of this machine, threads,
batch sizes, prompt splits, KV types; and the AArch64 program under qemu-aarch64.
"""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri._spec import Code
from colibri.engine import Engine, Session, isas_available, split_prompt
from colibri.errors import ColibriError
from colibri.reference import ReferenceModel
from colibri.sampler import Sampler
from colibri.verify import golden_path
from synthetic import REFERENCE_ONLY, SHAPES, write_model

TOKENS = 12
PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 101, 40)]
SPLITS = ("", "each", "5")
BATCHES = (1, 7, 32)
THREADS = (1, 2, 3, 4)
KV = ("f16", "f32")
RUN_SHAPES = tuple(name for name in SHAPES if name not in REFERENCE_ONLY)
QEMU = "qemu-aarch64"
# What each emulated CPU must be offered, and nothing else.
CPUS = {
    "cortex-a53": ["ref", "neon"],
    "cortex-a72": ["ref", "neon"],
    "cortex-a76": ["ref", "neon", "dotprod"],
    "max": ["ref", "neon", "dotprod", "i8mm"],
}
QEMU_SHAPES = ("mixtral", "mixtral_f32", "window_tied", "f16_trunk", "qwen2", "olmoe", "deepspeed")


@dataclass(frozen=True)
class Answer:
    """What a prompt gives."""

    ids: tuple[int, ...]
    logits_sha256: str


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """models(name): the path of a synthetic model, written once."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def path(name: str) -> Path:
        return write_model(folder / f"{name}.colibri", SHAPES[name])

    return path


@pytest.fixture(scope="session")
def expected(models: Any) -> Any:
    """expected(name, kv): the answer of the numpy reference, computed once."""

    @functools.cache
    def answer(name: str, kv: str) -> Answer:
        result = ReferenceModel(models(name)).session(kv).generate(PROMPT, TOKENS)
        return Answer(tuple(result.ids), result.logits_sha256)

    return answer


def generate(session: Session, prompt: Sequence[int], split: str, tokens: int) -> Answer:
    """The answer of the C engine."""
    session.reset()
    for piece in split_prompt(prompt, split):
        session.append(piece)
    digest = hashlib.sha256()
    ids = tuple(session.generate(tokens, stop_at_end=False, on_logits=digest.update))
    return Answer(ids, digest.hexdigest())


def isas() -> list[str]:
    """Instruction sets of this machine, or the word that makes the test name the missing library."""
    try:
        return isas_available()
    except ColibriError:
        return ["ref"]


Way = tuple[str, int, int]  # kv, threads, batch
EVERY_WAY: list[Way] = [(kv, threads, batch) for kv in KV for threads in THREADS for batch in BATCHES]
# For records beside Mixtral's: each value of each option once; the full product runs on two models.
SOME_WAYS: list[Way] = [("f16", 1, 32), ("f32", 3, 7), ("f16", 2, 1)]


def check_ways(path: Path, isa: str, ways: list[Way], expected: Callable[[str], Answer]) -> None:
    """Every way of running gives the expected answer. expected: kv -> answer."""
    for kv, threads, batch in ways:
        with (
            Engine(path, isa=isa, threads=threads, batch_tokens=batch, kv=kv, lock="off") as engine,
            engine.session() as session,
        ):
            assert engine.report().isa == isa
            for split in SPLITS:
                found = generate(session, PROMPT, split, TOKENS)
                assert found == expected(kv), f"kv {kv}, {threads} threads, batch {batch}, split {split!r}"


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", ["mixtral", "window_tied"])
def test_threads_batches_splits_and_kv_types_change_no_bit(
    models: Any, expected: Any, ran: dict[str, set[str]], name: str, isa: str
) -> None:
    check_ways(models(name), isa, EVERY_WAY, functools.partial(expected, name))
    ran.setdefault("this machine", {"numpy"}).add(isa)


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", RUN_SHAPES)
def test_every_kind_of_records_gives_the_bits_of_the_reference(models: Any, expected: Any, name: str, isa: str) -> None:
    check_ways(models(name), isa, SOME_WAYS, functools.partial(expected, name))


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", RUN_SHAPES)
def test_every_position_has_the_logits_and_the_experts_of_the_reference(models: Any, name: str, isa: str) -> None:
    reference = ReferenceModel(models(name)).session().append(PROMPT)
    with Engine(models(name), isa=isa, threads=2, lock="off") as engine, engine.session() as session:
        for position, token in enumerate(PROMPT):
            session.append([token])
            np.testing.assert_array_equal(
                session.logits_array().view(np.uint32), reference.logits[position].view(np.uint32)
            )
            for layer, ids in reference.routing.items():
                assert session.routing(layer) == [ids[position].tolist()]


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("name", REFERENCE_ONLY)
def test_records_the_engine_cannot_run_are_refused_as_unsupported(models: Any, name: str) -> None:
    with pytest.raises(ColibriError) as caught:
        Engine(models(name))
    assert caught.value.code == Code.UNSUPPORTED


def test_the_comparison_sees_a_single_changed_logit(models: Any) -> None:
    """The hash has teeth: the last bit of one logit changes it."""
    logits = ReferenceModel(models("mixtral")).session().append(PROMPT[:4]).logits[-1]
    changed = logits.copy()
    changed.view(np.uint32)[7] ^= 1
    assert hashlib.sha256(logits.tobytes()).digest() != hashlib.sha256(changed.tobytes()).digest()


@pytest.mark.usefixtures("native_library")
def test_sampled_tokens_are_those_of_the_reference(models: Any) -> None:
    sampler = Sampler(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, seed=77)
    expected = ReferenceModel(models("mixtral")).session().generate(PROMPT, 30, sampler.choose)
    assert len(set(expected.ids)) > 10
    with Engine(models("mixtral"), lock="off") as engine, engine.session() as session:
        session.set_sampler(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, seed=77)
        session.append(PROMPT)
        assert list(session.generate(30, stop_at_end=False)) == expected.ids


# ---- AArch64 --------------------------------------------------------------------------------


def aarch64_run(program: Path, cpu: str, model: Path, *arguments: str) -> dict[str, str]:
    """Run colibrictl for AArch64 under qemu-user; "name: value" lines of its stderr."""
    command = [QEMU, "-cpu", cpu, str(program), "run", str(model), "--lock", "off", "--print-ids", "--logits-sha256"]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, f"{' '.join(command)}: exit {result.returncode}\n{result.stderr}"
    lines = (line.partition(": ") for line in result.stderr.splitlines())
    return {name: value for name, colon, value in lines if colon}


def aarch64_isas(program: Path, cpu: str) -> list[str]:
    """Instruction sets that the program offers on an emulated CPU."""
    command = [QEMU, "-cpu", cpu, str(program), "info", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return str(json.loads(result.stdout)["build"]["isas_available"]).split()


def as_answer(fields: dict[str, str]) -> Answer:
    return Answer(tuple(int(token) for token in fields["ids"].split()), fields["logits-sha256"])


@pytest.fixture
def aarch64(request: pytest.FixtureRequest) -> Path:
    """The AArch64 program; with --host-only the test is skipped, and the summary says so."""
    if request.config.getoption("--host-only"):
        pytest.skip("--host-only")
    program: Path = request.getfixturevalue("aarch64_colibrictl")
    return program


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", QEMU_SHAPES)
def test_aarch64_programs_give_the_bits_of_the_reference(
    models: Any, expected: Any, ran: dict[str, set[str]], aarch64: Path, name: str, cpu: str
) -> None:
    ids = ",".join(map(str, PROMPT))
    assert aarch64_isas(aarch64, cpu) == CPUS[cpu]
    for isa in CPUS[cpu]:
        for kv, threads, batch in (("f16", 1, 32), ("f32", 3, 7)):
            fields = aarch64_run(
                aarch64, cpu, models(name), "--ids", ids, "-n", str(TOKENS), "--ignore-end", "--isa", isa,
                "--kv", kv, "--threads", str(threads), "--batch", str(batch), "--batch-split", "5",
            )  # fmt: skip
            assert as_answer(fields) == expected(name, kv), f"{isa}, kv {kv}, {threads} threads"
        ran.setdefault(f"qemu-aarch64 {cpu}", set()).add(isa)


# ---- converted models and their golden results ------------------------------------------------


def golden_cases(model: Path) -> Iterator[dict[str, Any]]:
    """The golden cases beside a model; they must be those of this very file."""
    document = json.loads(golden_path(model).read_text(encoding="utf-8"))
    assert document["cases"]
    with Engine(model, lock="off") as engine:
        assert document["root"] == engine.info.root.hex(), f"{golden_path(model)} belongs to another file; make models"
    yield from document["cases"]


def golden_answer(case: dict[str, Any]) -> Answer:
    return Answer(tuple(case["ids"]), case["logits_sha256"])


def check_golden(model: Path, isa: str) -> None:
    """Prompt ids, generated ids, text and logits of every case."""
    for case in golden_cases(model):
        with Engine(model, isa=isa, kv=case["kv"], lock="off") as engine, engine.session() as session:
            ids = engine.tokenize(case["prompt"], chat=case["chat"]) if case["prompt"] else case["prompt_ids"]
            assert ids == case["prompt_ids"]
            session.append(ids)
            digest = hashlib.sha256()
            generated = tuple(session.generate(case["n"], on_logits=digest.update))
            assert Answer(generated, digest.hexdigest()) == golden_answer(case), case["name"]
            shown = [token for token in generated if not (engine.is_end(token) or engine.is_special(token))]
            assert engine.detokenize(shown) == case["text"]


def check_golden_aarch64(model: Path, case: dict[str, Any], program: Path, cpu: str, isa: str) -> None:
    """One case, tokenized and run by the AArch64 program."""
    prompt = ["-p", case["prompt"]] if case["prompt"] else ["--ids", ",".join(map(str, case["prompt_ids"]))]
    chat = ["--chat"] if case["chat"] else []
    fields = aarch64_run(
        program, cpu, model, *prompt, *chat, "-n", str(case["n"]), "--isa", isa, "--kv", case["kv"], "--threads", "2"
    )
    assert fields["prompt-ids"] == " ".join(map(str, case["prompt_ids"]))
    assert as_answer(fields) == golden_answer(case), case["name"]


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("isa", isas())
def test_the_tiny_models_give_their_golden_results(tiny_models: list[Path], isa: str) -> None:
    for model in tiny_models:
        check_golden(model, isa)


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("cpu", ["cortex-a72", "max"])
def test_the_tiny_models_give_their_golden_results_on_aarch64(tiny_models: list[Path], aarch64: Path, cpu: str) -> None:
    best = aarch64_isas(aarch64, cpu)[-1]
    for model in tiny_models:
        for case in golden_cases(model):
            check_golden_aarch64(model, case, aarch64, cpu, best)


@pytest.mark.demo
@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("isa", isas())
def test_the_demo_model_gives_its_golden_results(demo_model: Path, isa: str) -> None:
    check_golden(demo_model, isa)


@pytest.mark.demo
@pytest.mark.usefixtures("native_library")
def test_the_demo_model_gives_its_golden_results_on_aarch64(demo_model: Path, aarch64: Path) -> None:
    shortest = min(golden_cases(demo_model), key=lambda case: len(case["prompt_ids"]) + int(case["n"]))
    check_golden_aarch64(demo_model, shortest, aarch64, "cortex-a72", "neon")
