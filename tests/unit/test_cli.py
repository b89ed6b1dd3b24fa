# SPDX-License-Identifier: MIT
"""The `colibri` command: exit codes, what goes to stdout, and what it needs installed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from colibri import __version__
from colibri.cli import main
from colibri.format import open_model
from colibri.plan import PlanOptions, plan_file

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = REPOSITORY / "configs" / "models"
TINY = str(MODELS / "tiny.toml")
BUILD = Path(os.environ.get("COLIBRI_NATIVE_BUILD", REPOSITORY / "build" / "host"))
COMMANDS = ("convert", "inspect", "verify", "sign", "plan", "run", "golden")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.colibri"
    assert main(["convert", TINY, "-o", str(path), "-q"]) == 0
    return path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY / "engine")}


def test_convert_prints_the_file_and_reports_errors_on_stderr(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, report = tmp_path / "m.colibri", tmp_path / "report.json"
    assert main(["convert", "--recipe", TINY, "-o", str(output), "--report", str(report)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{output}\n"
    assert "expert_down" in captured.err
    assert open_model(output).root.hex() in captured.err
    assert output.read_bytes() == tiny.read_bytes()
    table = json.loads(report.read_text())
    assert table["layer 0 expert 1 expert_up"]["dtype"] == "int4"
    assert 0 < table["layer 0 expert 1 expert_up"]["relative_rms_error"] < 0.1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.colibri", "report.json"]


def test_convert_takes_dtypes(tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    assert main(["convert", TINY, "-o", str(output), "-q", "--experts", "int8", "--router", "f16"]) == 0
    assert {t.dtype.name for t in open_model(output).tensors if t.role.name == "ROUTER"} == {"F16"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "-o", "x"], "give either SOURCE or --recipe FILE"),
        (["convert", "a", "--recipe", "b", "-o", "x"], "give either SOURCE or --recipe FILE"),
        (["convert", TINY, "-o", "x", "--context", "5"], "--context is for SOURCE"),
        (["convert", "none", "-o", "x", "--recipe-source", "b"], "--recipe-source belongs to --recipe"),
        (["convert", TINY, "-o", "x", "-j", "-1"], "-j -1"),
        (["convert", TINY, "-o", ""], "has no file name"),
        (["convert", TINY, "-o", TINY], "a file that is read"),
        (["convert", TINY, "-o", "/dev/null"], "the output /dev/null exists and is not a regular file"),
        (["convert", TINY, "-o", "x", "--report", TINY], "a file that is read"),
        (["convert", TINY, "-o", "x", "--report", "./x"], "--report and -o both name x"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("colibri: ")
    assert message in captured.err


def test_inspect_shows_tensors_plan_and_provenance(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny), "--context", "64", "--threads", "2", "--kv", "f32"]) == 0
    text = capsys.readouterr().out
    model = open_model(tiny)
    plan = plan_file(model, PlanOptions(context_tokens=64, threads=2, kv="f32"))
    for part in (model.root.hex(), f"{plan.total_bytes:,}", "expert_gate", "each of 5 experts", "source.seed: 1"):
        assert part in text


def test_inspect_escapes_what_a_terminal_would_obey(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"source": {"\x1b[2J": "\ud800 caf\u00e9"}, "name": "\x07"}
    monkeypatch.setattr("colibri.format.ModelFile.provenance", lambda model: table)
    assert main(["inspect", str(tiny)]) == 0
    text = capsys.readouterr().out
    assert text.endswith("provenance:\n  source.\\x1b[2J: \\ud800 caf\u00e9\n  name: \\x07\n")


def test_inspect_json_has_everything(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny), "--json", "--threads", "4"]) == 0
    data = json.loads(capsys.readouterr().out)
    model = open_model(tiny)
    assert data["file"]["root"] == model.root.hex()
    assert len(data["tensors"]) == len(model.tensors)
    assert [extent["hash"] for extent in data["extents"]] == [extent.hash.hex() for extent in model.extents]
    assert data["layers"][2]["ffn"]["top_k"] == 3
    per_expert, experts = 80 * 104 * 3, 3 * 5
    shared = 331 * 80 + 80 + 3 * (2 * 80 + 2 * 96 * 80 + 2 * 48 * 80 + 5 * 80)
    assert data["parameters"] == {"total": shared + per_expert * experts, "active": shared + per_expert * 3 * 3}
    assert data["plan"]["total_bytes"] == plan_file(model).total_bytes


def test_inspect_refuses_a_context_beyond_the_model(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny), "--context", "257"]) == 2
    assert "257" in capsys.readouterr().err


def test_verify_accepts_good_files_and_refuses_damaged_ones(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tiny)]) == 0
    assert capsys.readouterr().out.startswith(f"{tiny}: ok, {tiny.stat().st_size:,} bytes with 19 extents, root ")
    data = bytearray(tiny.read_bytes())
    data[open_model(tiny).extent(2, 4).offset + 100] ^= 1
    damaged = tmp_path / "damaged.colibri"
    damaged.write_bytes(data)
    assert main(["verify", str(damaged)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"colibri: {damaged}: chunk hash mismatch: chunk 0 of layer 2 expert 4 does not ")
    assert captured.err.endswith("; the file is damaged or was changed: copy it again from a source you trust\n")


def test_verify_counts_as_the_device_does(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([BUILD / "colibrictl", "verify", "--json", tiny], capture_output=True, text=True, check=True)
    device = json.loads(done.stdout)
    assert main(["verify", str(tiny)]) == 0
    counted = f"ok, {device['verified_bytes']:,} bytes with {device['verified_extents']} extents, root {device['root']}"
    assert counted in capsys.readouterr().out


@pytest.mark.parametrize("root", ["00", "g" * 64, "0" * 63])
def test_what_is_no_root_is_a_usage_error(root: str, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tiny), "--root", root]) == 2
    assert f"--root '{root}' is no root hash; give the 64 hexadecimal digits" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "inspect", "run"])
@pytest.mark.parametrize(
    ("data", "fix"),
    [
        (b"", "; copy it again; was the disk full?\n"),
        (b"a text of some length that is no model", "; give a file that `colibri convert` wrote\n"),
    ],
)
def test_a_refused_model_is_named_with_what_to_do(
    command: str, data: bytes, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.colibri"
    path.write_bytes(data)
    assert main([command, str(path), *(["-p", "x"] if command == "run" else [])]) == 3
    err = capsys.readouterr().err
    assert err.count(str(path)) == 1
    assert command == "run" or err.endswith(fix)  # the library has words of its own


def test_a_message_does_not_say_twice_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none"
    assert main(["run", str(path), "-p", "x"]) == 1
    assert capsys.readouterr().err == f"colibri: cannot open {path}: No such file or directory\n"


def test_run_takes_sizes_with_endings(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tiny), "--ids", "1", "-n", "1", "--lock", "off", "--budget", "1M"]) == 4
    assert "the budget is 1048576" in capsys.readouterr().err
    for size in ("0", "64M"):
        assert main(["run", str(tiny), "--ids", "1", "-n", "1", "--lock", "off", "--budget", size]) == 0


def test_verify_compares_the_root(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = open_model(tiny).root.hex()
    assert main(["verify", str(tiny), "--root", root.upper()]) == 0
    assert main(["verify", str(tiny), "--root", "00" * 32]) == 3
    assert root in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_missing_and_foreign_files_have_different_exit_codes(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path / "none")]) == 1
    assert "cannot open" in capsys.readouterr().err
    (tmp_path / "text").write_text("a text file that is no model")
    assert main([command, str(tmp_path / "text")]) == 3
    assert "not a .colibri file" in capsys.readouterr().err


def test_golden_computes_with_the_reference(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "g.json"
    assert main(["golden", str(tiny), "--ids", "1,2", "-n", "2", "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    data = json.loads(target.read_text())
    assert data["root"] == open_model(tiny).root.hex()
    assert len(data["cases"][0]["ids"]) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: colibri {command}")
    assert "exit codes" in text


def options_of(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Help texts by the long name of their option."""
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert "exit codes: 0 ok" in text
    parts = re.split(r"^  (?=-)", text.split("\noptions:\n")[1], flags=re.MULTILINE)[1:]
    return {re.findall(r"--[\w-]+", part)[0]: " ".join(part.split()) for part in parts}


def test_run_shows_the_default_of_every_option_with_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    options = options_of("run", capsys)
    without = {"--help", "--prompt", "--ids", "--batch-split", "--public-key"}  # nothing is what they default to
    without |= {"--chat", "--signed-only", "--ignore-end", "--print-ids", "--logits-sha256"}
    assert {name for name, text in options.items() if "(default" not in text} == without


def test_units_offers_options_of_the_memory_plan_alone(capsys: pytest.CaptureFixture[str]) -> None:
    plan, units = options_of("plan", capsys), options_of("units", capsys)
    assert set(plan) - set(units) == {
        "--storage", "--hit", "--position", "--want", "--json", "--list-boards", "--calibrate", "--storage-file",
    }  # fmt: skip
    assert {name: units[name] for name in plan if name in units} == {name: plan[name] for name in plan if name in units}


def test_help_names_every_command_and_version_is_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"colibri {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["inspect"], ["verify", "--nonsense", "x"]])
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage" in capsys.readouterr().err


WITHOUT_NUMPY = """
import sys
for name in ("numpy", "gguf", "safetensors", "tqdm", "jinja2"):
    sys.modules[name] = None
from colibri.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["inspect"], 0), (["verify"], 0), (["golden"], 5), (["convert", "-o", "x"], 5)]
)
def test_only_conversion_and_the_reference_need_packages(arguments: list[str], code: int, tiny: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY, *arguments, str(tiny)],
        env=environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    if code:
        assert "the Python package numpy, which is not installed; pip install numpy, or" in done.stderr


def test_output_to_a_closed_pipe_is_no_traceback(tiny: Path) -> None:
    script = f"'{sys.executable}' -m colibri inspect --json '{tiny}' | head -c 10"
    done = subprocess.run(
        ["sh", "-c", script], env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == '{\n "schema'
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_conversion_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    text = Path(TINY).read_text()
    for old, new in (("hidden = 80", "hidden = 512"), ("intermediate = 104", "intermediate = 2048"), ("layers = 3", "layers = 24")):  # fmt: skip # noqa: E501
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "big.toml").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "colibri", "convert", str(tmp_path / "big.toml"), "-o", str(tmp_path / "out.colibri")],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".out*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], error
    assert [path.name for path in tmp_path.iterdir()] == ["big.toml"]
