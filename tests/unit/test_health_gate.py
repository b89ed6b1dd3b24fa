# SPDX-License-Identifier: MIT
"""colibrictl health: each finding has its exit code, golden results are compared to the last bit, and
the result file is there whole or not at all.

Needs the native build ($COLIBRI_NATIVE_BUILD, default build/host) and the reference: the model is
configs/models/tiny.toml.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import resource
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from colibri._spec import MAX_CONTEXT_TOKENS, MAX_GOLDEN_BYTES, MAX_GOLDEN_CASES, MAX_VOCABULARY
from colibri.cli import main
from colibri.signing import sign_model
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from native_cases import assert_passes, run_native
from native_cases import program as native_program
from test_colibrictl import environment, program
from test_install import SHIM

REPOSITORY = Path(__file__).resolve().parents[2]
OK, RUN, USAGE, TAMPERED, BUDGET, ENVIRONMENT = 0, 1, 2, 3, 4, 5
KEYS = {"version", "status", "exit_code", "root", "build", "plan_bytes", "peak_bytes", "seconds", "checks"}
ORDINARY_ID = 1000
HASH = "0123456789abcdef" * 4


@dataclass(frozen=True)
class Answer:
    """What one run of the gate left behind."""

    exit_code: int
    result: dict[str, Any]  # empty: there is none
    err: str
    text: str

    def check(self, name: str) -> tuple[str, str]:
        """Status and detail of a check."""
        found = [check for check in self.result["checks"] if check["name"] == name]
        assert len(found) == 1, self.result["checks"]
        return found[0]["status"], found[0]["detail"]

    def failed(self) -> list[str]:
        return [check["name"] for check in self.result["checks"] if check["status"] == "fail"]


class Place:
    """A folder that every user may enter, with the command, the model and its golden results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "tiny.colibri"
        self.golden = folder / "tiny.golden.json"
        self.command = folder / "colibrictl"
        shutil.copy(program(), self.command)
        recipe = REPOSITORY / "configs" / "models" / "tiny.toml"
        assert main(["convert", str(recipe), "-o", str(self.model), "-q"]) == 0
        cases = []
        for kv, prompts in (("f16", ("--ids=1,330,7,0,200", "--prompt=the cat sat")), ("f32", ("--prompt=.",))):
            assert main(["golden", str(self.model), *prompts, "-n", "6", "--kv", kv]) == 0
            document = json.loads(self.golden.read_text())
            cases += document["cases"]
        self.document: dict[str, Any] = {**document, "cases": cases}
        self.golden.write_text(json.dumps(self.document, indent=1))
        for path in folder.iterdir():
            path.chmod(0o755 if path == self.command else 0o644)

    def run(
        self, *arguments: str | Path, model: Path | None = None, variables: dict[str, str] | None = None, **how: Any
    ) -> Answer:
        """The gate, its result on standard output."""
        done = subprocess.run(
            [self.command, "health", model or self.model, "--output", "-", *arguments], capture_output=True, text=True,
            check=False, timeout=120, env=environment(variables), **how,
        )  # fmt: skip
        result = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if result:
            assert set(result) == KEYS
            assert (result["version"], result["exit_code"]) == (1, done.returncode)
            assert result["status"] in (("fail",) if done.returncode else ("ok", "warn"))
            assert all(set(check) == {"name", "status", "detail", "fix"} for check in result["checks"])
        return Answer(done.returncode, result, done.stderr, done.stdout)

    def plan_bytes(self, kv: str) -> int:
        """What the model needs with this KV type."""
        command: list[str | Path] = [self.command, "info", self.model, "--json", "--kv", kv]
        info = subprocess.run(command, capture_output=True, check=True, env=environment())
        return int(json.loads(info.stdout)["plan"]["total_bytes"])

    def of_kv(self, kv: str) -> dict[str, Any]:
        """The golden results of this KV type alone."""
        return {**self.document, "cases": [case for case in self.document["cases"] if case["kv"] == kv]}

    def with_golden(self, document: object, path: Path, *arguments: str) -> Answer:
        """The gate with other golden results: a text, bytes, or what json writes."""
        if isinstance(document, bytes):
            path.write_bytes(document)
        else:
            path.write_text(document if isinstance(document, str) else json.dumps(document))
        return self.run("--golden", path, *arguments)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="health-"))
    folder.chmod(0o755)
    yield Place(folder)
    shutil.rmtree(folder)


# ---- what is in order -------------------------------------------------------------------------------


def test_a_machine_that_gives_the_right_bits_passes(place: Place) -> None:
    answer = place.run()
    assert (answer.exit_code, answer.err) == (OK, "")
    assert answer.result["root"] == place.document["root"]
    assert answer.check("golden") == ("ok", "3 of 3 cases are right")
    assert answer.check("verify") == ("ok", f"{place.model.stat().st_size} bytes, root {place.document['root']}")
    assert 0 < answer.result["peak_bytes"] <= answer.result["plan_bytes"]
    assert answer.check("peak")[0] == "ok"
    assert answer.result["build"].startswith("colibri_v")


@pytest.mark.parametrize("residency", ["resident", "stream", "mapped", "mapped-guarded"])
def test_every_residency_passes(residency: str, place: Place) -> None:
    assert place.run("--residency", residency, "--kv", "f32").check("golden") == ("ok", "3 of 3 cases are right")


def test_the_result_is_a_file_that_every_service_may_read(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "made" / "health.json"
    command: list[str | Path] = [place.command, "health", place.model, "--output", target, "--json"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment())
    assert done.returncode == OK
    assert target.read_bytes() == done.stdout
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o755
    assert list(target.parent.iterdir()) == [target]
    done = subprocess.run(command[:-1], capture_output=True, check=False, env=environment())
    verdict = done.stdout.splitlines()[-1]
    assert re.fullmatch(rb"(ok|warn) \(exit code 0\): ok \d+, info \d+, warning \d+, error 0", verdict)
    assert json.loads(target.read_text())["exit_code"] == OK


# ---- wrong bits -------------------------------------------------------------------------------------


def flipped(place: Place, offset: int, path: Path) -> Path:
    """A copy of the model with one other bit; its golden results lie beside it."""
    data = bytearray(place.model.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    shutil.copy(place.golden, path.with_suffix(".golden.json"))
    return path


def test_one_flipped_bit_is_found_wherever_it_is(place: Place, tmp_path: Path) -> None:
    for offset in (9, 100, 4100, -5000):
        answer = place.run(model=flipped(place, offset, tmp_path / "bad.colibri"))
        assert answer.exit_code == TAMPERED, offset
        assert "verify" in answer.failed()
        assert answer.check("golden") == ("skipped", "not run")


def test_a_tampered_model_stays_one_when_there_is_no_room_for_it(place: Place, tmp_path: Path) -> None:
    answer = place.run("--budget", "1M", model=flipped(place, -5000, tmp_path / "bad.colibri"))
    assert answer.exit_code == TAMPERED
    assert answer.failed() == ["model", "verify"]


def changed(place: Place, case: int, **values: object) -> dict[str, Any]:
    """The golden results with other values in a case."""
    cases = [dict(item) for item in place.document["cases"]]
    cases[case] |= values
    return {**place.document, "cases": cases}


@pytest.mark.parametrize("case", [0, 1, 2])
def test_a_wrong_token_fails_in_every_case(case: int, place: Place, tmp_path: Path) -> None:
    ids = list(place.document["cases"][case]["ids"])
    ids[2] ^= 1
    answer = place.with_golden(changed(place, case, ids=ids), tmp_path / "g.json")
    assert (answer.exit_code, answer.failed()) == (TAMPERED, ["golden"])
    found, expected = ids[2] ^ 1, ids[2]
    detail = f"2 of 3 cases are right; case {case + 1}: token 3 is {found}, expected {expected}"
    assert answer.check("golden")[1] == detail


def test_every_case_is_compared_behind_a_wrong_one(place: Place, tmp_path: Path) -> None:
    document = place.document
    for case in (0, 2):
        ids = list(place.document["cases"][case]["ids"])
        ids[case + 1] ^= 1
        document = {**document, "cases": [*document["cases"][:case], {**document["cases"][case], "ids": ids},
                                          *document["cases"][case + 1 :]]}  # fmt: skip
    answer = place.with_golden(document, tmp_path / "g.json")
    assert (answer.exit_code, answer.failed()) == (TAMPERED, ["golden"])
    assert answer.check("golden")[1].startswith("1 of 3 cases are right; case ")


@pytest.mark.parametrize("case", [0, 1, 2])
def test_one_other_bit_of_the_logits_hash_fails_in_every_case(case: int, place: Place, tmp_path: Path) -> None:
    digest = bytearray.fromhex(place.document["cases"][case]["logits_sha256"])
    digest[31] ^= 1
    answer = place.with_golden(changed(place, case, logits_sha256=digest.hex()), tmp_path / "g.json")
    assert (answer.exit_code, answer.failed()) == (TAMPERED, ["golden"])
    assert "other logits chose them" in answer.check("golden")[1]


def test_tokens_too_few_and_too_many_fail(place: Place, tmp_path: Path) -> None:
    ids = place.document["cases"][0]["ids"]
    for other in (ids[:-1], [*ids, 0]):
        answer = place.with_golden(changed(place, 0, ids=other, n=max(6, len(other))), tmp_path / "g.json")
        assert answer.exit_code == TAMPERED
    answer = place.with_golden(changed(place, 0, prompt_ids=[MAX_VOCABULARY - 1]), tmp_path / "g.json")
    assert answer.exit_code == TAMPERED


def test_golden_results_of_another_model_are_refused(place: Place, tmp_path: Path) -> None:
    answer = place.with_golden({**place.document, "root": HASH}, tmp_path / "g.json")
    assert (answer.exit_code, answer.failed()) == (TAMPERED, ["golden"])
    assert "of another model" in answer.check("golden")[1]


def test_golden_results_that_a_signature_covers_cannot_be_exchanged(place: Place, tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public, other = tmp_path / "key.pub", tmp_path / "other.pub"
    public.write_bytes(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    other.write_bytes(ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    signed = tmp_path / "signed.colibri"
    sign_model(place.model, tmp_path / "key.pem", signed)
    assert place.run(model=signed).check("signature") == ("warn", "unchecked")
    answer = place.run("--public-key", public, model=signed)
    assert (answer.exit_code, answer.check("signature")) == (OK, ("ok", "verified"))
    assert place.run("--public-key", other, model=signed).exit_code == TAMPERED
    assert place.run("--public-key", public).exit_code == TAMPERED  # not signed
    golden = signed.with_suffix(".golden.json")
    golden.write_text(golden.read_text() + " ")
    assert place.run("--public-key", public, model=signed).failed() == ["golden"]


# ---- golden results that are hostile ------------------------------------------------------------------


def member(name: str, value: str) -> str:
    """A golden text whose one case has this text as the value of a key."""
    case = {
        "name": '"a"', "prompt": '""', "chat": "false", "prompt_ids": "[1]", "kv": '"f16"', "n": "2", "ids": "[1, 2]",
        "text": '""', "logits_sha256": f'"{HASH}"',
    }  # fmt: skip
    case[name] = value
    inner = ", ".join(f'"{key}": {text}' for key, text in case.items() if text)
    return f'{{"format": 1, "root": "{HASH}", "cases": [{{{inner}}}]}}'


WHOLE = member("name", '"a"')
ACCEPTED = [
    WHOLE, f" \r\n\t{WHOLE}\n ", member("name", r'"\u00e9\ud83d\n\"\\\/"'), member("n", "1048576"),
    member("prompt_ids", f"[ {MAX_VOCABULARY - 1} ,0 ]"), member("text", '"\x7fé€😀"'), member("chat", "true"),
    member("kv", '"f32"'),
]  # fmt: skip
REFUSED = [
    "", "{", "[]", "null", WHOLE[:-1], WHOLE + "x", WHOLE + WHOLE, WHOLE.replace('"format": 1', '"format": 2'),
    WHOLE.replace('"format": 1, ', ""), WHOLE.replace("[{", "["), f'{{"format": 1, "root": "{HASH}", "cases": []}}',
    WHOLE.replace('"format"', '"format": 1, "format"'), WHOLE.replace('"format"', '"extra": 1, "format"'),
    WHOLE.replace("}]", "},]"), WHOLE.replace(HASH, HASH[:-1], 1), WHOLE.replace(HASH, HASH.upper(), 1),
    WHOLE.replace(HASH, HASH[:-1] + "\\u0061", 1), WHOLE.replace(", ", ";", 1), WHOLE.replace('"', "'"),
    "\ufeff" + WHOLE,
    member("n", ""), member("n", "0"), member("n", "-1"), member("n", "02"), member("n", "2.0"), member("n", "2e0"),
    member("n", '"2"'), member("n", str(MAX_CONTEXT_TOKENS + 1)), member("n", "4294967298"), member("n", "1" * 400),
    member("n", "1"), member("ids", "[]"), member("ids", "[1,]"), member("ids", "[,1]"), member("ids", "[[1]]"),
    member("ids", "[1 2]"), member("ids", f"[{MAX_VOCABULARY}]"), member("ids", "[-1]"), member("ids", "[null]"),
    member("ids", "[1"), member("ids", "1"), member("prompt_ids", "[]"), member("kv", '"f64"'),
    member("kv", '"\\u0066"'),
    member("kv", "16"), member("chat", "0"), member("chat", "True"), member("chat", "tru"), member("name", "1"),
    member("name", '"\n"'), member("name", '"\\x"'), member("name", '"\\u12"'), member("name", '"'),
    member("text", "[" * 5000),
    member("logits_sha256", '""'), member("extra", "1"), member("name", '"a", "name": "a"'),
]  # fmt: skip


def answers(texts: list[bytes], folder: Path) -> list[str]:
    """What the reader makes of each text: the line of its program."""
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.json")
        paths[-1].write_bytes(text)
    done = run_native("fuzz_golden", *paths)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def whole(text: str) -> int:
    if not text.isdigit():
        raise ValueError(text)
    return int(text)


def digest(value: object) -> str:
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise ValueError(value)
    return value


def ids_of(value: object) -> str:
    if (
        not isinstance(value, list)
        or not value
        or any(type(i) is not int or not 0 <= i < MAX_VOCABULARY for i in value)
    ):
        raise ValueError(value)
    return " " + ",".join(map(str, value))


def expected(text: bytes) -> str:
    """The line that Python's json gives; words of hashes and kv may not be escaped, and are not here."""
    try:
        document = json.loads(
            text.decode("utf-8", "surrogateescape"), object_pairs_hook=once, parse_int=whole, parse_float=whole,
            parse_constant=whole,
        )  # fmt: skip
        if (
            set(document) != {"format", "root", "cases"}
            or type(document["format"]) is not int
            or document["format"] != 1
        ):
            return "refused"
        parts = [f"read {digest(document['root'])}"]
        if not 0 < len(document["cases"]) <= MAX_GOLDEN_CASES or not isinstance(document["cases"], list):
            return "refused"
        for case in document["cases"]:
            keys = {"name", "prompt", "chat", "prompt_ids", "kv", "n", "ids", "text", "logits_sha256"}
            if set(case) != keys or case["kv"] not in ("f16", "f32") or type(case["chat"]) is not bool:
                return "refused"
            if any(type(case[name]) is not str for name in ("name", "prompt", "text")) or type(case["n"]) is not int:
                return "refused"
            if not len(case["ids"]) <= case["n"] <= MAX_CONTEXT_TOKENS:
                return "refused"
            numbers = ids_of(case["prompt_ids"]) + ids_of(case["ids"])
            parts.append(f"{int(case['kv'] == 'f32')} {case['n']} {digest(case['logits_sha256'])}{numbers}")
        return " | ".join(parts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "refused"


def test_golden_texts_that_the_format_allows_are_read(tmp_path: Path) -> None:
    texts = [text.encode() for text in ACCEPTED]
    assert answers(texts, tmp_path) == [expected(text) for text in texts]
    assert all(expected(text).startswith("read") for text in texts)


def test_golden_texts_that_the_format_does_not_allow_are_refused(tmp_path: Path) -> None:
    got = answers([text.encode() for text in REFUSED], tmp_path)
    assert [text for text, line in zip(REFUSED, got, strict=True) if not line.startswith("refused: golden")] == []


def test_mutated_golden_texts_are_read_as_python_reads_them(tmp_path: Path) -> None:
    chosen = random.Random(6)
    texts = []
    for _ in range(600):
        text = bytearray(chosen.choice(ACCEPTED).encode())
        for _ in range(chosen.randrange(3)):
            at = chosen.randrange(len(text))
            text[at : at + chosen.randrange(2)] = bytes([chosen.choice(b'{}[]",:0123456789abcf\\u \n-.e')])
        texts.append(bytes(text))
    wanted = [expected(text) for text in texts]
    got = [line if line.startswith("read") else "refused" for line in answers(texts, tmp_path)]
    differ = [(text, a, b) for text, a, b in zip(texts, wanted, got, strict=True) if a != b and b"\\u" not in text]
    assert differ == []
    assert 100 < sum(line.startswith("read") for line in wanted) < 500


def test_the_fuzz_target_of_golden_results_finds_nothing() -> None:
    assert_passes("fuzz_golden", "--mutations", "50000", "--seed", "5")


def test_the_gate_stays_shut_for_golden_results_that_nobody_wrote(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    for text in ("", WHOLE[:-1], member("ids", "[" * 100000), "\0" * 100):
        answer = place.with_golden(text, path)
        assert (answer.exit_code, answer.failed()) == (TAMPERED, ["golden"])
    case = place.document["cases"][0]
    answer = place.with_golden({**place.document, "cases": [case] * (MAX_GOLDEN_CASES + 1)}, path)
    assert (answer.exit_code, "too many cases" in answer.check("golden")[1]) == (TAMPERED, True)
    path.write_bytes(b" " * (MAX_GOLDEN_BYTES + 1))
    assert place.run("--golden", path).exit_code == TAMPERED
    path.unlink()
    os.mkfifo(path)
    assert place.run("--golden", path).exit_code == TAMPERED
    assert place.run("--golden", tmp_path, "--sandbox", "off").exit_code == RUN
    assert place.run("--golden", "/dev/zero", "--sandbox", "off").exit_code == TAMPERED


def test_golden_results_without_a_case_say_so(place: Place, tmp_path: Path) -> None:
    answer = place.with_golden({**place.document, "cases": []}, tmp_path / "g.json")
    assert answer.exit_code == TAMPERED
    assert re.fullmatch(rf"{tmp_path}/g.json: golden results, byte \d+: there is no case", answer.check("golden")[1])


def test_missing_golden_results_fail_unless_nobody_asks_for_them(place: Place, tmp_path: Path) -> None:
    alone = tmp_path / "alone.colibri"
    shutil.copy(place.model, alone)
    answer = place.run(model=alone)
    assert (answer.exit_code, answer.failed()) == (RUN, ["golden"])
    assert "--no-golden" in answer.check("golden")[1]
    answer = place.run("--golden", "no-such.json")
    assert answer.check("golden")[1].startswith("no-such.json: there are no golden results: ")
    answer = place.run("--no-golden", model=alone)
    assert (answer.exit_code, answer.check("golden")) == (OK, ("skipped", "not asked for"))
    assert place.run("--no-golden", "--golden", "g.json").exit_code == USAGE


# ---- memory and environment -------------------------------------------------------------------------


def test_a_budget_below_the_plan_fails(place: Place) -> None:
    answer = place.run("--budget", "1M")
    assert (answer.exit_code, answer.failed()) == (BUDGET, ["model"])
    assert answer.check("golden") == ("skipped", "not run")
    assert answer.check("verify")[0] == "ok"  # with the smallest plan


def test_golden_results_that_the_budget_does_not_hold_are_reported(place: Place) -> None:
    answer = place.run("--kv", "f16", "--budget", str(place.plan_bytes("f16")))
    detail = "2 of 3 cases are right; the budget does not hold the KV type of the others"
    assert answer.check("golden") == ("warn", detail)
    assert (answer.exit_code, answer.result["status"]) == (OK, "warn")


def test_golden_results_of_the_other_kv_type_alone_are_a_warning(place: Place, tmp_path: Path) -> None:
    answer = place.with_golden(place.of_kv("f32"), tmp_path / "other.json")
    assert answer.check("golden") == ("warn", "1 of 1 cases are right; none has the KV type of the service")
    assert (answer.exit_code, answer.result["status"]) == (OK, "warn")


def test_a_budget_that_holds_no_golden_case_fails(place: Place, tmp_path: Path) -> None:
    budget = ("--budget", str(place.plan_bytes("f16")))
    answer = place.with_golden(place.of_kv("f32"), tmp_path / "other.json", *budget)
    assert (answer.exit_code, answer.failed()) == (BUDGET, ["golden"])
    assert answer.check("golden")[1].startswith("0 of 1 cases are right: ")


GREEDY = """
#include <stdlib.h>
#include <string.h>
static __attribute__((constructor)) void take(void)
{
    char *bytes = malloc(64 << 20);
    memset(bytes, 1, 64 << 20);
}
"""


def test_a_peak_above_the_plan_fails(place: Place, tmp_path: Path) -> None:
    (tmp_path / "greedy.c").write_text(GREEDY)
    shim = tmp_path / "greedy.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, tmp_path / "greedy.c"], check=True)
    answer = place.run(variables={"LD_PRELOAD": str(shim)})
    assert (answer.exit_code, answer.failed()) == (BUDGET, ["peak"])
    assert answer.result["peak_bytes"] > 64 << 20
    assert "preloaded libraries" in next(row["fix"] for row in answer.result["checks"] if row["name"] == "peak")


def test_a_context_that_golden_results_do_not_fit_fails(place: Place) -> None:
    assert place.run("--context", "8").exit_code == RUN


def limited(place: Place, kib: int, *arguments: str, **variables: str) -> Answer:
    """The gate as an ordinary user who may lock so much."""

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (kib * 1024, kib * 1024))

    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        who = {"user": ORDINARY_ID, "group": ORDINARY_ID, "extra_groups": []}
    return place.run(*arguments, variables=variables, preexec_fn=lower, **who)


def test_memory_that_cannot_be_locked_fails_when_a_lock_is_required(place: Place) -> None:
    answer = limited(place, 64, "--lock", "require")
    assert answer.exit_code == ENVIRONMENT
    assert answer.failed() == ["memlock", "lock", "verify"]
    assert limited(place, 64, COLIBRI_LOCK="require").exit_code == ENVIRONMENT
    answer = limited(place, 64)
    assert (answer.exit_code, answer.check("locked")[0], answer.check("memlock")[0]) == (OK, "warn", "warn")
    answer = limited(place, 64, "--lock", "off")
    assert (answer.exit_code, answer.check("locked")[0], answer.check("memlock")[0]) == (OK, "skipped", "skipped")


def test_an_instruction_set_that_is_missing_is_the_environment(place: Place) -> None:
    assert place.run("--isa", "nothing").exit_code == ENVIRONMENT


def test_the_exit_code_is_that_of_the_worst_finding(place: Place) -> None:
    answer = limited(place, 64, "--lock", "require", "--budget", "1M")
    assert answer.failed() == ["model", "memlock", "lock"]  # the first one is the worse one
    assert answer.exit_code == BUDGET
    answer = place.run("--context", "8", "--golden", "/nonexistent", "--isa", "nothing")
    assert answer.exit_code == ENVIRONMENT


# ---- the result file --------------------------------------------------------------------------------


def test_an_output_that_cannot_be_written_fails(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for output in ("/proc/health.json", "/nonexistent/a/health.json", str(folder), str(tmp_path / "x" / "y" / "z")):
        done = subprocess.run(
            [place.command, "health", place.model, "--output", output], capture_output=True, check=False,
            env=environment(),
        )  # fmt: skip
        assert done.returncode in (RUN, USAGE), output
        assert done.stderr.startswith(b"colibrictl: ")
        assert done.stdout == b""
        assert b"--output FILE puts the result elsewhere" in done.stderr
        assert b".installing" not in done.stderr


def test_the_result_never_replaces_what_is_checked(place: Place) -> None:
    before = place.model.read_bytes(), place.golden.read_bytes()
    for output in (place.model, place.golden):
        done = subprocess.run([place.command, "health", place.model, "-o", output], capture_output=True, check=False)
        assert done.returncode == USAGE
        assert b"is the same file" in done.stderr
    assert (place.model.read_bytes(), place.golden.read_bytes()) == before


def test_a_kill_at_any_file_operation_leaves_the_new_result_or_none_once_the_gate_has_begun(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", shim, tmp_path / "shim.c", "-ldl"], check=True)
    target = tmp_path / "run" / "health.json"
    target.parent.mkdir()
    seen = set()
    for number in range(1, 100):
        target.write_text("old")
        done = subprocess.run(
            [place.command, "health", place.model, "--output", target, "--sandbox", "off"], capture_output=True,
            check=False, env=environment({"LD_PRELOAD": str(shim), "FAULT": f"any:{number}:kill"}),
        )  # fmt: skip
        text = target.read_text() if target.exists() else "none"
        seen.add((done.returncode, text if text in ("old", "none") else "new"))
        assert text in ("old", "none") or json.loads(text)["exit_code"] == OK
        if done.returncode == OK:
            break
    assert seen == {(-9, "old"), (-9, "none"), (-9, "new"), (OK, "new")}
    assert list(target.parent.iterdir()) == [target]  # the next run removes what a killed one left


def test_a_full_disk_is_named_with_the_file(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "health.json"
    done = subprocess.run(
        [place.command, "health", place.model, "-o", target], capture_output=True, text=True, check=False,
        env=environment(), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )  # fmt: skip
    assert done.returncode == RUN
    assert f"{target}: cannot write: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_made_in_the_root_folder_of_a_sandbox(place: Place) -> None:
    for name, option, path in (("health", "-o", "/test-health.json"), ("serve", "--socket", "/test.sock")):
        command: list[str | Path] = [place.command, name, place.model, option, path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=60)
        assert done.returncode == USAGE
        assert "a file would be made in /" in done.stderr
    assert [path for path in Path("/").iterdir() if "test" in path.name and not path.name.endswith(".lock")] == []
    Path("/test.sock.lock").unlink(missing_ok=True)


NAMESPACE = 'mount -t tmpfs -o mode="$1" t "$2"; shift 2; exec "$@"'
ORDINARY = ["setpriv", f"--reuid={ORDINARY_ID}", f"--regid={ORDINARY_ID}", "--clear-groups"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("hidden", ["/sys", "/sys/fs/cgroup"])
def test_a_sys_that_cannot_be_read_is_no_obstacle(hidden: str, place: Place) -> None:
    command = ["unshare", "-m", "sh", "-c", NAMESPACE, "sh", "000", hidden, *ORDINARY]
    done = subprocess.run(
        [*command, place.command, "health", place.model, "-o", "-"], capture_output=True, text=True, check=False,
        env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (OK, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_the_result_is_written_without_dev_and_with_closed_descriptors(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "health.json"
    command = ["unshare", "-m", "sh", "-c", f"exec <&- >&- 2>&-; {NAMESPACE}", "sh", "755", "/dev"]
    subprocess.run([*command, place.command, "health", place.model, "-o", target], check=False, env=environment())
    assert json.loads(target.read_text())["exit_code"] == OK
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("output", [["--output", "FILE"], ["--output=FILE"], ["-o", "FILE"], ["-oFILE"]])
def test_a_gate_that_fails_early_leaves_no_result_of_an_earlier_one(
    output: list[str], place: Place, tmp_path: Path
) -> None:
    target = tmp_path / "health.json"
    words = [word.replace("FILE", str(target)) for word in output]
    (tmp_path / "result").write_text(place.run().text)
    failures: list[tuple[list[str], dict[str, str]]] = [
        (["--budgt", "5M"], {}), (["--kv"], {}), (["again"], {}), (["--no-golden", "--golden", "g"], {}),
        ([], {"COLIBRI_LOCK": "required"}), ([], {"COLIBRI_SANDBOX": "KILL"}), ([], {"COLIBRI_NO_LOGGING": "yes"}),
        ([], {}),
    ]  # fmt: skip
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # the last one: somebody writes there
    for further, variables in failures:
        shutil.copy(tmp_path / "result", target)
        done = subprocess.run(
            [place.command, "health", place.model, *words, *further], capture_output=True, check=False,
            env=environment(variables),
        )  # fmt: skip
        assert done.returncode in (RUN, USAGE), (further, variables)
        assert not target.exists(), (further, variables)
    os.close(folder)


def test_an_early_failure_removes_results_alone(place: Place, tmp_path: Path) -> None:
    (tmp_path / "result").write_text(place.run().text)
    (tmp_path / "link").symlink_to(tmp_path / "result")
    before = place.golden.read_bytes()
    for words in (["-o", place.golden], ["-o", "link"], ["-o", "result", "--help"], ["--", "-oresult"], ["-o"]):
        command = [place.command, "health", place.model, "--nonsense", *words]
        subprocess.run(command, capture_output=True, check=False, env=environment(), cwd=tmp_path)
    assert place.golden.read_bytes() == before
    assert (tmp_path / "result").read_text() == (tmp_path / "link").read_text() != ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_result_that_cannot_be_removed_fails_the_gate_before_it_begins(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "health.json"
    target.write_text("old")
    subprocess.run(["mount", "--bind", target, target], check=True)
    try:
        done = subprocess.run([place.command, "health", place.model, "-o", target], capture_output=True, check=False)
    finally:
        subprocess.run(["umount", target], check=True)
    assert (done.returncode, done.stdout) == (RUN, b"")
    assert b"cannot remove the result of an earlier check" in done.stderr
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_of_the_result_stays_and_needs_no_call_that_the_sandbox_refuses(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "health.json"
    target.write_text("old")
    os.chown(target, ORDINARY_ID, ORDINARY_ID)
    done = subprocess.run(
        [place.command, "health", place.model, "--output", target], capture_output=True, check=False, env=environment()
    )
    assert done.returncode == OK, done.stderr
    assert json.loads(target.read_text())["exit_code"] == OK
    assert (target.stat().st_uid, target.stat().st_gid) == (ORDINARY_ID, ORDINARY_ID)


def test_results_say_what_is_wrong_in_plain_characters(place: Place, tmp_path: Path) -> None:
    strange = tmp_path / 'a"b\\c\x1b\u00e9.colibri'
    strange.write_bytes(b"no model")
    answer = place.run(model=strange)
    assert answer.exit_code == TAMPERED
    assert native_program("fuzz_golden").is_file()
