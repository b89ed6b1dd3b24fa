# SPDX-License-Identifier: MIT
"""What the built library and programs are like: symbols, sizes, stack frames, paths, equal bytes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE = REPOSITORY / "engine"
INCLUDE = ENGINE / "native" / "include"
SUPPORT = REPOSITORY / "tests" / "support"

TEXT_GATE_BYTES = 128 * 1024
MUSL_GATE_BYTES = 256 * 1024
FRAME_GATE_BYTES = 16 * 1024

# All that the library may take from outside, by what it is for. Nothing that prints, exits, forks,
# changes signal handlers or locale, and nothing of libm.
ALLOWED_SYMBOLS = {
    "memory of the process": "mmap munmap mprotect mlock munlock madvise malloc calloc free getrlimit sysconf "
    "getpagesize posix_memalign aligned_alloc",
    "files": "open close fstat pread lseek read openat posix_fadvise",
    "threads": "pthread_create pthread_join pthread_attr_init pthread_attr_destroy pthread_attr_setstacksize "
    "pthread_attr_setguardsize pthread_attr_getstacksize pthread_mutex_init pthread_mutex_destroy "
    "pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock pthread_cond_init pthread_cond_destroy "
    "pthread_cond_wait pthread_cond_timedwait pthread_cond_signal pthread_cond_broadcast pthread_condattr_init "
    "pthread_condattr_setclock pthread_condattr_destroy pthread_sigmask pthread_self sigfillset sigdelset "
    "sched_yield sched_getaffinity sched_setaffinity __sched_cpucount pthread_setname_np",
    "how long storage has not answered": "clock_gettime",
    "prctl, seccomp, Landlock": "syscall",
    "strings": "memcpy memmove memset memcmp memchr strcpy strlen strcmp strncmp strchr strstr strerror strerror_r "
    "__xpg_strerror_r snprintf vsnprintf explicit_bzero",
    "processor and errors": "getauxval __errno_location __tls_get_addr",
    "compiler": "__stack_chk_fail __stack_chk_guard __cpu_model __cpu_features2 __cpu_indicator_init "
    "_GLOBAL_OFFSET_TABLE_ __ehdr_start",
}  # fmt: skip
ALLOWED = {name for names in ALLOWED_SYMBOLS.values() for name in names.split()}


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Standard output of a command that must succeed."""
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{shlex.join(map(str, command))}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def native() -> Path:
    """Build folder of the engine for this machine."""
    return folder_of("COLIBRI_NATIVE_BUILD", "host")


@pytest.fixture(scope="session")
def aarch64() -> Path:
    """Build folder of the static AArch64 programs."""
    return folder_of("COLIBRI_AARCH64_BIN", "aarch64")


def folder_of(variable: str, name: str) -> Path:
    folder = Path(os.environ.get(variable, REPOSITORY / "build" / name))
    if not (folder / "libcolibri.a").exists():
        pytest.fail(f"no libcolibri.a in {folder}: build the engine first (make engine) or set {variable}")
    return folder


def undefined_symbols(archive: Path) -> dict[str, str]:
    """Symbols that an archive needs from outside, and the first object that needs each."""
    defined: set[str] = set()
    needed: dict[str, str] = {}
    member = ""
    for line in run("nm", archive).splitlines():
        if line.endswith(":"):
            member = line[:-1]
            continue
        fields = line.split()
        if len(fields) == 2 and fields[0] in "Uw":
            needed.setdefault(fields[1], member)
        elif len(fields) == 3:
            defined.add(fields[2])
    return {name: where for name, where in needed.items() if name not in defined}


def unchecked(name: str) -> str:
    """A function of libc by its usual name: _FORTIFY_SOURCE calls `__memcpy_chk` for `memcpy`."""
    return name[2:-4] if name.startswith("__") and name.endswith("_chk") else name


def text_bytes(archive: Path, size: str) -> int:
    """Code and constants of an archive; without the notes, of which a linker keeps one for all objects."""
    total = sum(int(line.split()[0]) for line in run(size, archive).splitlines()[1:])
    sections = (line.split() for line in run(size, "-A", archive).splitlines())
    return total - sum(int(words[1]) for words in sections if words and words[0] == ".note.gnu.property")


def test_shared_library_exports_only_colibri_names(native: Path) -> None:
    lines = run("nm", "-D", "--defined-only", native / "libcolibri.so").splitlines()
    names = {line.split()[2].split("@")[0] for line in lines} - {"COLIBRI_0"}
    assert {name for name in names if not name.startswith("colibri_")} == set()
    assert "colibri_init" in names


def test_every_declared_function_is_exported(native: Path) -> None:
    header = (INCLUDE / "colibri.h").read_text()
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    declared = set(re.findall(r"COLIBRI_API[^;(]*?\b(colibri_\w+)\(", header))
    lines = run("nm", "-D", "--defined-only", native / "libcolibri.so").splitlines()
    exported = {line.split()[2].split("@")[0] for line in lines} - {"COLIBRI_0"}
    assert len(declared) > 40
    assert exported == declared


def test_soname_is_the_abi_version_of_the_header(native: Path) -> None:
    match = re.search(r"#define COLIBRI_ABI_VERSION (\d+)", (INCLUDE / "colibri.h").read_text())
    assert match is not None
    dynamic = run("readelf", "-d", native / "libcolibri.so")
    assert f"[libcolibri.so.{match[1]}]" in dynamic


@pytest.mark.parametrize("target", ["native", "aarch64"])
def test_library_takes_nothing_from_outside_but_the_allowed(target: str, request: pytest.FixtureRequest) -> None:
    # The host's build checks signatures, which is one function of libsodium; the device's does not.
    allowed = ALLOWED | ({"crypto_sign_ed25519_verify_detached"} if target == "native" else set())
    needed = undefined_symbols(request.getfixturevalue(target) / "libcolibri.a")
    # gcc's own atomics for AArch64, which choose between LL/SC and LSE at run time
    others = {name: where for name, where in needed.items() if not name.startswith("__aarch64_")}
    assert {name: where for name, where in others.items() if unchecked(name).removesuffix("64") not in allowed} == {}


def test_shared_library_needs_only_libc_and_what_checks_signatures(native: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", run("readelf", "-d", native / "libcolibri.so"))
    others = {name for name in needed if not name.startswith("libsodium.so.")}
    assert others <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@pytest.mark.parametrize("target", ["native", "aarch64"])
def test_text_of_the_library_stays_below_the_gate(
    target: str, request: pytest.FixtureRequest, note: Callable[[str], None]
) -> None:
    archive: Path = request.getfixturevalue(target) / "libcolibri.a"
    size = "aarch64-linux-gnu-size" if target == "aarch64" else "size"
    text = text_bytes(archive, size)
    note(f"libcolibri.a ({target}): {text} bytes of code and constants, gate {TEXT_GATE_BYTES}")
    assert text <= TEXT_GATE_BYTES


def test_no_stack_frame_is_larger_than_the_gate(
    native: Path, tmp_path: Path, note: Callable[[str], None]
) -> None:
    frames: list[tuple[int, str, str]] = []
    for entry in json.loads((native / "compile_commands.json").read_text()):
        if not any(part in entry["file"] for part in ("native/src/", "native/kernels/")):
            continue
        words = shlex.split(entry["command"])
        output = tmp_path / (Path(entry["output"]).name + f".{len(frames)}.o")
        words[words.index("-o") + 1] = str(output)
        run(*words, "-fstack-usage", cwd=Path(entry["directory"]))
        for line in output.with_suffix(".su").read_text().splitlines():
            where, size, kind = line.split("\t")
            frames.append((int(size), where.rsplit("/", 1)[-1], kind))
    largest = max(frames)
    note(f"largest stack frame: {largest[0]} bytes, {largest[1]} (gate {FRAME_GATE_BYTES})")
    assert [frame for frame in frames if frame[0] > FRAME_GATE_BYTES] == []
    assert [frame for frame in frames if frame[2] == "dynamic"] == []


@pytest.mark.parametrize("program", ["libcolibri.a", "libcolibri.so", "colibrictl"])
def test_binaries_name_no_folder_of_the_build_machine(native: Path, program: str) -> None:
    data = (native / program).read_bytes()
    for leak in (str(REPOSITORY), str(native), "../../engine", str(Path.home()) + "/", "native/src/"):
        assert leak.encode() not in data, f"{program} contains {leak}"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    ("source", "standard"), [("header_test.c", "c11"), ("header_test.cpp", "c++11"), ("header_test.cpp", "c++20")]
)
def test_header_compiles_alone(compiler: str, source: str, standard: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.fail(f"{compiler} is not installed; run `make setup`", pytrace=False)
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run(compiler, *(["-x", "c++"] if source.endswith("pp") else []), f"-std={standard}", *warnings, "-I", INCLUDE,
        "-c", ENGINE / "native/tests" / source, "-o", tmp_path / "out.o")  # fmt: skip


@pytest.mark.parametrize("library", ["libcolibri.a", "libcolibri.so"])
def test_smallest_program_links_with_nothing_but_the_library(native: Path, library: str, tmp_path: Path) -> None:
    shutil.copy(INCLUDE / "colibri.h", tmp_path)
    shutil.copy(ENGINE / "native/tests/test_inference.c", tmp_path)
    shutil.copy(native / library, tmp_path)
    if library.endswith(".so"):
        (tmp_path / "libcolibri.so.0").symlink_to("libcolibri.so")
    # The archive of the host's build checks signatures, so it names libsodium as its pkg-config file does.
    sodium = ["-lsodium"] if "crypto_sign_ed25519_verify_detached" in undefined_symbols(native / "libcolibri.a") else []
    extra = sodium if library.endswith(".a") else []
    run("gcc", "test_inference.c", "-L.", "-lcolibri", *extra, "-o", "test", cwd=tmp_path)
    missing = subprocess.run(
        [tmp_path / "test", "no-such.colibri"], env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert missing.returncode == 1
    assert "no-such.colibri" in missing.stderr
    tiny = Path(os.environ.get("COLIBRI_MODELS", REPOSITORY / "build" / "models")) / "tiny.colibri"
    if not tiny.exists():
        pytest.fail("no tiny.colibri: make models", pytrace=False)
    output = run(tmp_path / "test", tiny, LD_LIBRARY_PATH=str(tmp_path))
    assert re.fullmatch(r"status 0, logit of id 0: -?\d+\.\d{4}, \d+\.\d{3} ms\n", output)


def test_smallest_program_links_with_the_default_archive_alone(aarch64: Path, tmp_path: Path) -> None:
    """Without the option `signatures`, which is off unless asked for, nothing else is named."""
    source: list[str | Path] = [INCLUDE, ENGINE / "native/tests/test_inference.c"]
    run("aarch64-linux-gnu-gcc", "-static", "-I", *source, f"-L{aarch64}", "-lcolibri", "-o", tmp_path / "test")
    missing = subprocess.run(
        ["qemu-aarch64", tmp_path / "test", "no-such.colibri"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 1
    assert "no-such.colibri" in missing.stderr


def build(folder: Path, source: Path, *arguments: str) -> None:
    """Build a copy of the engine the way make does."""
    script = source / "tests" / "support" / "build_engine.py"
    run(sys.executable, script, "--name", folder.name, *arguments,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # fmt: skip


def copy_of_the_sources(target: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(ENGINE, target / "engine", ignore=ignore)
    shutil.copytree(SUPPORT, target / "tests" / "support", ignore=ignore)
    return target


def test_two_builds_in_different_folders_have_equal_bytes(tmp_path: Path) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.fail("aarch64-linux-gnu-gcc is not installed: apt-get install gcc-aarch64-linux-gnu", pytrace=False)
    programs = []
    for name in ("one", "another/folder/deeper"):
        source = copy_of_the_sources(tmp_path / name)
        build(Path("out"), source, "--cross-compile=aarch64-linux-gnu-", "--ldflags=-static", "--option=-Dtests=false")
        programs.append(source / "build" / "out")
    for file in ("libcolibri.a", "colibrictl"):
        assert (programs[0] / file).read_bytes() == (programs[1] / file).read_bytes(), file


def test_library_with_its_own_memcpy_takes_none_from_libc(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path / "copy")
    build(Path("out"), source, "--builtin-memcpy=1", "--option=-Dtests=false")
    needed = set(undefined_symbols(source / "build/out/libcolibri.a"))
    assert needed & {"memcpy", "memmove", "memset", "memcmp"} == set()
    exported = run("nm", "-D", "--defined-only", source / "build/out/libcolibri.so")
    assert not re.search(r"\bmem(cpy|move|set|cmp)\b", exported)
    assert run(source / "build/out/colibrictl", "--version")


def test_static_musl_program_stays_below_the_gate(tmp_path: Path, note: Callable[[str], None]) -> None:
    built = folder_of("COLIBRI_AARCH64_MUSL_BIN", "aarch64-linux-musl") / "colibrictl"
    program = tmp_path / "colibrictl"
    run("aarch64-linux-gnu-strip", "-o", program, built)
    size = program.stat().st_size
    note(f"colibrictl, static musl, aarch64, stripped: {size} bytes, gate {MUSL_GATE_BYTES}")
    assert "statically linked" in run("file", program) or "INTERP" not in run("readelf", "-l", program)
    assert size <= MUSL_GATE_BYTES
    # Not position independent here: -Dhardening=full makes it so, for 17 KB (docs/hardening.md).
    run(sys.executable, REPOSITORY / "tests/firmware/elf_check.py", "--waive", "pie", program)
    if emulator := shutil.which("qemu-aarch64"):
        assert run(emulator, program, "--version")


def test_the_release_tarball_makes_a_wheel_that_runs(tmp_path: Path) -> None:
    run(sys.executable, SUPPORT / "dist.py", "--output", tmp_path, SOURCE_DATE_EPOCH="1000000000")
    (tarball,) = tmp_path.glob("colibri-*.tar.gz")
    first = tarball.read_bytes()
    run(sys.executable, SUPPORT / "dist.py", "--output", tmp_path, SOURCE_DATE_EPOCH="1000000000")
    assert tarball.read_bytes() == first
    run("tar", "-xzf", tarball, "-C", tmp_path)
    source = tmp_path / tarball.name.removesuffix(".tar.gz")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source, PATH=path)
    (wheel,) = tmp_path.glob("colibri_moe-*.whl")
    run(*pip, "install", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    program = "import colibri.engine as e; e.selftest(); print(e._ffi.__file__, e.build_info())"
    program += "; print(__import__('colibri').__version__)"
    variables = {"PYTHONPATH": str(tmp_path / "site"), "COLIBRI_LIBRARY": ""}
    output = run(sys.executable, "-c", program, cwd=tmp_path, **variables).split()
    assert Path(output[0]).is_relative_to(tmp_path / "site")
    version = (ENGINE / "VERSION").read_text().strip()
    assert output[1].startswith(f"colibri_v{version}_")
    assert output[2] == version
