# SPDX-License-Identifier: MIT
"""What each test suite runs. tests/support/suites.py runs it, counts and prints."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build"
HOST = BUILD / "host"
AARCH64 = BUILD / "aarch64"
AARCH64_MUSL = BUILD / "aarch64-linux-musl"
ARM = BUILD / "arm"
IMAGE = BUILD / "image"
MODELS = BUILD / "models"
JUNIT = "@JUNIT@"  # replaced by the path of the step's JUnit file
WERROR = "--option=-Dwerror=true"  # for builds that only tests use: the others are shared with make
NOTE = "note: "  # lines of a step's output that are shown to the reader
PYTHON = sys.executable
SUPPORT = REPOSITORY / "tests" / "support"
CONFIG = REPOSITORY / "engine" / "pyproject.toml"
WORKERS = 2  # processes of the long test steps: most of their tests keep one core busy

EMULATED = "aarch64_programs or on_aarch64"  # names of the tests that need qemu-aarch64
# Names under which the tests find what was built.
ENVIRONMENT = {
    "COLIBRI_NATIVE_BUILD": str(HOST),
    "COLIBRI_LIBRARY": str(HOST / "libcolibri.so"),
    "COLIBRI_AARCH64_BIN": str(AARCH64),
    "COLIBRI_AARCH64_MUSL_BIN": str(AARCH64_MUSL),
    "COLIBRI_MODELS": str(MODELS),
    "PYTHONPATH": str(REPOSITORY / "engine"),
    "PYTHONDONTWRITEBYTECODE": "",  # importing the peers of the parity tests from source takes long
    "PYTHONPYCACHEPREFIX": str(BUILD / "pycache"),
}


@dataclass
class Step:
    """One command of a suite."""

    name: str
    command: list[str]
    counts: bool = True  # counts as one test when it writes no JUnit file
    needed: bool = False  # the steps behind it make no sense when it fails
    beside: bool = False  # starts with the suite, runs beside the steps before it; needs none of them
    junit: str = ""  # a JUnit file with a fixed place (meson's)
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))

    @property
    def writes_junit(self) -> bool:
        """Whether the command itself makes a JUnit file."""
        return bool(self.junit) or any(JUNIT in part for part in self.command)


def script(name: str, *arguments: str) -> list[str]:
    """A program of tests/support."""
    return [PYTHON, str(SUPPORT / name), *arguments]


def engine(folder: str, *arguments: str) -> Step:
    """Compile the engine into build/FOLDER."""
    return Step(f"build-{folder}", script("build_engine.py", "--name", folder, *arguments), counts=False, needed=True)


def pytest(name: str, *arguments: str, workers: int = 0, **environment: str) -> Step:
    """Run pytest on folders of tests/, in several processes if asked; a file's tests stay in one of them."""
    parallel = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"] if workers else []
    return Step(
        name,
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={JUNIT}", *parallel, *arguments],
        environment={**ENVIRONMENT, **environment},
    )


def meson_tests(name: str, folder: Path, *arguments: str, **environment: str) -> Step:
    """Run the C tests of a build folder."""
    meson = shutil.which("meson", path=f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}")
    return Step(
        name,
        [meson or "meson", "test", "-C", str(folder), "--no-rebuild", "--print-errorlogs", "--num-processes", "2",
         *arguments],
        junit=str(folder / "meson-logs" / "testlog.junit.xml"),
        environment={**ENVIRONMENT, **environment},
    )


def mypy(name: str, *targets: str, path: str = "") -> Step:
    """Check the types of some folders."""
    step = Step(
        name,
        [PYTHON, "-m", "mypy", "--config-file", str(CONFIG), "--cache-dir", str(BUILD / "mypy"), *targets],
    )
    folders = ["engine", *filter(None, path.split(":"))]
    step.environment["MYPYPATH"] = os.pathsep.join(str(REPOSITORY / folder) for folder in folders)
    return step


def engine_aarch64() -> Step:
    """The engine for AArch64 with glibc, static."""
    return engine(AARCH64.name, "--cross-compile=aarch64-linux-gnu-", "--ldflags=-static", WERROR)


def engine_musl() -> Step:
    """What tests use of the engine for AArch64 with musl, static: as `make engine-musl` builds all of it."""
    compiler = f"{PYTHON} -m ziglang cc -target aarch64-linux-musl"
    targets = (f"--target={name}" for name in ("libcolibri.a", "colibrictl", "sandbox_probe"))
    return engine(AARCH64_MUSL.name, "--ldflags=-static", f"--cc={compiler}", *targets)


def hardening(name: str, *files: Path, waive: str = "") -> Step:
    """What a compiler and a linker made of the hardening flags (docs/hardening.md)."""
    checker = str(REPOSITORY / "tests" / "firmware" / "elf_check.py")
    words = ["--require", "canary", *(["--waive", waive] if waive else [])]
    return Step(f"hardening-{name}", [PYTHON, checker, *words, *map(str, files)])


def models(*kinds: str) -> Step:
    """Convert models into build/models, from the cache where nothing changed."""
    return Step("models", script("models.py", *kinds), counts=False, needed=True)


def setup() -> list[Step]:
    """Machine, engine builds, models, image: everything later suites read."""
    return [
        Step("machine", script("setup_machine.py", "test"), counts=False, needed=True),
        engine("host"),
        engine_aarch64(),
        models("tiny", "demo"),
        Step("image", script("image.py"), counts=False),
    ]


def lint() -> list[Step]:
    """Checks that read the sources."""
    ruff = [PYTHON, "-m", "ruff", "check", "--no-cache", "--config", str(CONFIG)]
    typed = {
        "configs/kernel": "",
        "configs/seccomp": "",
        "tests/bench": "tests/bench:tests/unit",
        "tests/boot": "configs/kernel:tests:tests/support",
        "tests/fuzz": "tests/unit",
        "tests/firmware": "configs/kernel:tests/boot:tests/smoke:tests/support",
        "tests/parity": "engine/spec:tests:tests/support:tests/unit",
        "tests/smoke": "tests/boot",
        "tests/support": "tests/smoke",
        "tests/unit": "tests:tests/bench",
    }
    return [
        Step("ruff", [*ruff, "engine", "configs", "tests"]),
        mypy("mypy-package", "-p", "colibri"),
        *(mypy(f"mypy-{folder.replace('/', '-')}", folder, path=path) for folder, path in typed.items()),
        *check_gen(),
    ]


def check_gen() -> list[Step]:
    """Generated files are what their sources say."""
    generators = {
        "format": "engine/spec/generate.py",
        "families": "engine/spec/generate_families.py",
        "boards": "engine/spec/generate_boards.py",
        "syscalls": "configs/seccomp/generate.py",
        "unicode": "engine/spec/generate_unicode.py",
        "golden": "engine/native/tests/make_golden.py",
        "models": "tests/parity/make_document.py",
    }
    return [Step(f"generated-{name}", [PYTHON, path, "--check"]) for name, path in generators.items()]


# name, what the compiler calls it, arguments of meson test, environment. Tests of the suite `alone` start no thread.
SANITIZERS: tuple[tuple[str, str, tuple[str, ...], dict[str, str]], ...] = (
    ("asan", "address,undefined", (), {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}),
    ("tsan", "thread", ("--no-suite", "alone"), {"TSAN_OPTIONS": "halt_on_error=1"}),
)


def sanitizers() -> list[Step]:
    """The C tests under AddressSanitizer with UndefinedBehaviorSanitizer, and ThreadSanitizer."""
    steps = []
    for name, kinds, chosen, variables in SANITIZERS:
        options = [f"-Db_sanitize={kinds}", "-Ddefault_library=static", "-Dsignatures=enabled", "-Dwerror=true"]
        steps += [
            engine(name, "--cflags=-g -fno-sanitize-recover=all", *(f"--option={option}" for option in options)),
            meson_tests(f"c-tests-{name}", BUILD / name, *chosen, **variables),
        ]
    return steps


def fuzz(mutations: int = 2000) -> list[Step]:
    """Seeded mutations of small models and tokenizers, under AddressSanitizer."""
    models = sorted(str(path) for path in MODELS.glob("tiny*.colibri"))
    tests = ["tests/unit/test_tokenizer.py", "-k", "fuzz_target"]
    tokenizer = pytest("fuzz-tokenizer", *tests, COLIBRI_NATIVE_BUILD=str(BUILD / "asan"))
    model = Step("fuzz-model", [str(BUILD / "asan" / "fuzz_model"), "--mutations", str(mutations), *models])
    snapshot = Step("fuzz-snapshot", [str(BUILD / "asan" / "fuzz_snapshot"), "--mutations", str(20 * mutations)])
    golden = Step("fuzz-golden", [str(BUILD / "asan" / "fuzz_golden"), "--mutations", str(20 * mutations)])
    return [model, tokenizer, snapshot, golden]


FUZZ_NATIVE = ("golden", "model", "request", "snapshot", "tokenizer")
FUZZ_READERS = ("config", "gguf", "pickle", "quantized", "safetensors", "zip")


def fuzz_guided() -> list[Step]:
    """Coverage-guided, FUZZ_SECONDS (60) for each target: libFuzzer for C, atheris for the checkpoint readers."""
    seconds = os.environ.get("FUZZ_SECONDS", "60")
    folder = REPOSITORY / "tests" / "fuzz"
    native = [PYTHON, str(folder / "native.py")]
    steps = [Step("build-libfuzzer", [*native, "--build"], counts=False, needed=True)]
    steps += [Step(f"libfuzzer-{name}", [*native, name, "--seconds", seconds]) for name in FUZZ_NATIVE]
    # atheris has wheels for x86-64 alone; elsewhere the same targets take seeded mutations.
    there = importlib.util.find_spec("atheris") is not None
    how = ["--seconds", seconds] if there else ["--mutations", str(100 * int(seconds))]
    steps += [
        Step(f"{'atheris' if there else 'mutations'}-{name}", [PYTHON, str(folder / f"fuzz_{name}.py"), *how])
        for name in FUZZ_READERS
    ]
    return steps


def reproducible() -> list[Step]:
    """Two builds in different folders."""
    return [pytest("equal-bytes", "tests/unit/test_build.py", "-k", "equal_bytes")]


def clang() -> list[Step]:
    """The engine and its C tests, compiled by clang."""
    return [
        engine("clang", "--cc=clang", WERROR),
        meson_tests("c-tests-clang", BUILD / "clang"),
    ]


def host() -> list[Step]:
    """All that runs on the build machine."""
    return [
        *lint(),
        engine("host"),
        meson_tests("c-tests-gcc", HOST),
        *clang(),
        *sanitizers(),
        *fuzz(100),
        # zig compiles two libcs first, on half a processor: the steps above need not wait for it.
        replace(engine_musl(), beside=True),
        pytest("unit", "tests/firmware", "tests/unit", "-k", f"not ({EMULATED})", workers=WORKERS),
    ]


def parity() -> list[Step]:
    """Against transformers and torch."""
    # One file has two thirds of the work: not a process for each file.
    return [pytest("parity", "tests/parity", "--dist", "worksteal", workers=WORKERS)]


def checkkernels_on(cpu: str) -> Step:
    """The kernel checker on an emulated CPU: which instruction sets there are depends on it."""
    golden = str(REPOSITORY / "engine" / "native" / "tests" / "golden")
    return Step(f"kernels-{cpu}", ["qemu-aarch64", "-cpu", cpu, str(AARCH64 / "checkkernels"), "--golden", golden])


def qemu_user() -> list[Step]:
    """AArch64 and 32-bit ARM programs under user-mode emulation."""
    emulated = ("tests/unit/test_onebit.py", "tests/unit/test_signing.py")
    return [
        engine_aarch64(),
        meson_tests("c-tests-aarch64", AARCH64),
        engine("arm", "--cross-compile=arm-linux-gnueabihf-", "--ldflags=-static", WERROR),
        meson_tests("c-tests-arm", ARM),
        hardening("arm", ARM / "colibrictl", waive="pie"),  # its glibc has no start code for static-pie
        *(checkkernels_on(cpu) for cpu in ("cortex-a53", "cortex-a76")),
        pytest("one-bit-aarch64", *emulated, "-k", EMULATED, "--dist", "load", workers=WORKERS),
    ]


def boot_image() -> tuple[list[Step], str]:
    """What the boot tests need, and the image they are to boot: the folder in IMAGE, or the smoke image."""
    given = os.environ.get("IMAGE")
    tools = [engine_aarch64(), engine_musl()]  # programs that the tests bring into the guest
    if given:
        return [*tools, models("tiny")], os.path.abspath(given)
    return [*tools, models("tiny", "demo"), Step("image", script("image.py"), counts=False, needed=True)], str(IMAGE)


def boot() -> list[Step]:
    """Inside the booted image."""
    needed, image = boot_image()
    logs = f"--boot-logs={BUILD / 'boot-logs'}"
    return [*needed, pytest("boot", "tests/boot", f"--image={image}", logs, workers=WORKERS)]


def boot_long() -> list[Step]:
    """The boot suite with the whole matrix, fifty power cuts and the soak."""
    needed, image = boot_image()
    logs = f"--boot-logs={BUILD / 'boot-logs-long'}"
    return [*needed, pytest("boot", "tests/boot", "--boot-long", "--durations=15", f"--image={image}", logs)]


def pages() -> list[Step]:
    """Kernels with pages of 16 and 64 KiB: each builds for minutes, once (the cache keeps them)."""
    made = []
    for size in ("16k", "64k"):
        folder = BUILD / f"image-pages-{size}"
        image = [PYTHON, str(REPOSITORY / "tests" / "smoke" / "build_image.py"), "--variant", f"pages-{size}"]
        image += ["--filesystem", "ext4", "--colibrictl", str(AARCH64 / "colibrictl")]
        image += ["--model", str(MODELS / "tiny.colibri"), "--output", str(folder)]
        tests = [f"tests/boot/test_{name}_boot.py" for name in ("memory", "inference", "faults", "install")]
        made.append(Step(f"image-{size}", image, counts=False, needed=True))
        made.append(pytest(f"boot-{size}", *tests, f"--image={folder}", f"--boot-logs={BUILD / 'boot-logs'}"))
    return [engine("host"), engine_aarch64(), engine_musl(), models("tiny"), *made]


# name -> budget in minutes, steps
SUITES: dict[str, tuple[float, Callable[[], list[Step]]]] = {
    "setup": (8, setup),
    "host": (6, host),
    "parity": (4, parity),
    "qemu-user": (3, qemu_user),
    "boot": (9, boot),
}
# Parts of suites that make can run alone.
PARTS: dict[str, Callable[[], list[Step]]] = {
    "lint": lint,
    "check-gen": check_gen,
    "sanitizers": sanitizers,
    "clang": clang,
    "pages": pages,
    "long": boot_long,
    "reproducible": reproducible,
    "fuzz": lambda: [*sanitizers()[:1], *fuzz(), *fuzz_guided()],
}
