# SPDX-License-Identifier: MIT
"""pytorch_model.bin without torch: equal to torch.load for weights, a refusal for everything else."""

from __future__ import annotations

import collections
import json
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from colibri._spec import Code
from colibri.errors import ColibriError
from colibri.pickle_reader import BUDGET_BYTES, Budget, PickleReader, state_dict
from colibri.torch_reader import TorchFiles
from colibri.torch_zip import ZipArchive

REPOSITORY = Path(__file__).resolve().parents[2]
REFUSAL = "use state_dict only"
FORMS = {"zip": True, "stream": False}


# ---- what torch writes --------------------------------------------------------------------------


def weights() -> dict[str, torch.Tensor]:
    """One tensor of every dtype, and views of every kind."""
    x = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(1))
    return {
        "f64": x[0].double(),
        "f32": x[1].clone(),
        "f16": x[2].half(),
        "bf16": x[3].bfloat16(),
        "i64": torch.tensor([[-(1 << 24), 1 << 24]]),
        "i32": torch.tensor([[-5, 7]], dtype=torch.int32),
        "i16": torch.tensor([[-32768, 32767]], dtype=torch.int16),
        "i8": torch.arange(-128, 128, dtype=torch.int8).reshape(16, 16),
        "u8": torch.arange(256, dtype=torch.uint8).reshape(16, 16),
        "bool": torch.tensor([[True, False], [False, True]]),
        "stack": x,
        "vector": x[2, :, 1],
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "transposed": x[0].T,
        "every other": x[1, 1:4, ::2],
        "every other, transposed": x[0][:, ::2].T,
        "permuted": x.permute(2, 0, 1),
        "rows of a wide matrix": x.reshape(6, 20)[2:5, 3:9],
        "column": x[0, :, 2:3],
        "the same storage": x[1:3],
        "four": x.reshape(2, 3, 4, 5),
        "four permuted": x.reshape(2, 3, 4, 5).permute(3, 1, 0, 2),
        "half transposed": x[4].half().T,
        "parameter": torch.nn.Parameter(x[5].clone()),
        "wide step": torch.arange(1 << 20).reshape(4, 1 << 18)[:, :: 1 << 16],
    }


def saved(folder: Path, value: Any, form: str = "zip", protocol: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(
        value, folder / "pytorch_model.bin", pickle_protocol=protocol, _use_new_zipfile_serialization=FORMS[form]
    )
    return folder


def whole(source: TorchFiles, name: str) -> Any:
    """A tensor put together from its rows, read in two parts where there are two."""
    shape = source.shapes()[name]
    rows = shape[-2] if len(shape) > 1 else 1
    matrices = 1
    for n in shape[:-2]:
        matrices *= n
    middle = rows // 2
    parts = [
        np.concatenate([source.rows(name, 0, middle, i), source.rows(name, middle, rows, i)]) for i in range(matrices)
    ]
    return np.stack(parts).reshape(shape) if parts else np.zeros(shape, np.float32)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("form", list(FORMS))
def test_every_tensor_of_torch_save_is_read(form: str, protocol: int, tmp_path: Path) -> None:
    tensors = weights()
    saved(tmp_path, tensors, form, protocol)
    with TorchFiles(tmp_path) as source:
        assert source.shapes() == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            assert np.array_equal(whole(source, name), tensor.detach().float().numpy()), name
        assert source.dtypes()["bf16"] == "BF16"
        assert source.files() == [tmp_path / "pytorch_model.bin"]


def test_elements_far_apart_do_not_take_the_memory_of_what_lies_between(tmp_path: Path) -> None:
    saved(tmp_path, {"x": torch.arange(1 << 22)[:: 1 << 20].to(torch.int64)})
    with TorchFiles(tmp_path) as source:
        tracemalloc.start()
        try:
            assert source.rows("x", 0, 1).tolist() == [[0, 1 << 20, 2 << 20, 3 << 20]]
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("form", list(FORMS))
def test_state_dicts_of_modules_are_read_with_their_buffers(form: str, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Embedding(7, 3))
    state = module.state_dict()
    state["tied"] = state["2.weight"]
    saved(tmp_path, state, form)
    with TorchFiles(tmp_path) as source:
        assert list(source.shapes()) == list(state)
        for name, tensor in state.items():
            assert np.array_equal(whole(source, name), tensor.float().numpy()), name


@pytest.mark.parametrize("form", list(FORMS))
def test_shards_are_one_checkpoint(form: str, tmp_path: Path) -> None:
    tensors = weights()
    index: dict[str, str] = {}
    for i, names in enumerate((list(tensors)[:7], list(tensors)[7:])):
        name = f"pytorch_model-0000{i}-of-00002.bin"
        saved(tmp_path / "new", {key: tensors[key] for key in names}, form)
        (tmp_path / "new" / "pytorch_model.bin").rename(tmp_path / name)
        index |= dict.fromkeys(names, name)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    with TorchFiles(tmp_path) as source:
        for name, tensor in tensors.items():
            assert np.array_equal(whole(source, name), tensor.detach().float().numpy()), name
    (tmp_path / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(ColibriError, match=r"00001-of-00002\.bin: No such file"):
        TorchFiles(tmp_path)


def test_the_reader_imports_neither_torch_nor_pickle(tmp_path: Path) -> None:
    saved(tmp_path, weights())
    script = (
        "import sys; sys.modules['torch'] = sys.modules['_pickle'] = sys.modules['zipfile'] = None\n"
        "from pathlib import Path\n"
        "from colibri.torch_reader import TorchFiles\n"
        "source = TorchFiles(Path(sys.argv[1])); print(source.rows('f32', 0, 1).shape)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "engine")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("(1, 5)\n", 0), done.stderr
    for name in ("pickle_reader", "torch_reader", "torch_zip"):
        text = (REPOSITORY / "engine" / "colibri" / f"{name}.py").read_text()
        for word in ("import pickle", "importlib", "__import__", "getattr(", "eval(", "exec("):
            assert word not in text, (name, word)


def rewritten(folder: Path, change: Callable[[dict[str, bytes]], object], **how: Any) -> Path:
    """pytorch_model.bin with changed entries, written by Python's zipfile."""
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w", **how) as new:
        for name, data in entries.items():
            new.writestr(name, data)
    return folder


def test_the_byte_order_of_the_file_is_respected(tmp_path: Path) -> None:
    tensor = torch.randn(3, 4)
    saved(tmp_path, {"x": tensor, "b": tensor.bfloat16(), "i": torch.tensor([1, -2, 3])})

    def swap(entries: dict[str, bytes]) -> None:
        entries["pytorch_model/byteorder"] = b"big"
        for key, width in (("0", 4), ("1", 2), ("2", 8)):
            name = f"pytorch_model/data/{key}"
            entries[name] = np.frombuffer(entries[name], f"<u{width}").astype(f">u{width}").tobytes()

    rewritten(tmp_path, swap)
    with TorchFiles(tmp_path) as source:
        assert np.array_equal(whole(source, "x"), tensor.numpy())
        assert np.array_equal(whole(source, "b"), tensor.bfloat16().float().numpy())
        assert whole(source, "i").tolist() == [1, -2, 3]
    rewritten(tmp_path, lambda entries: entries.__setitem__("pytorch_model/byteorder", b"middle"))
    with pytest.raises(ColibriError, match="the byte order is b'middle', must be little or big"):
        TorchFiles(tmp_path)


def test_files_without_a_byte_order_are_little_endian(tmp_path: Path) -> None:
    saved(tmp_path, {"x": torch.ones(2, 2)})
    rewritten(tmp_path, lambda entries: entries.pop("pytorch_model/byteorder"))
    with TorchFiles(tmp_path) as source:
        assert whole(source, "x").tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_many_tensors_are_read_in_little_time(tmp_path: Path) -> None:
    saved(tmp_path, {f"model.layers.{i}.weight": torch.zeros(1) for i in range(3000)})
    start = time.process_time()
    with TorchFiles(tmp_path) as source:
        assert len(source.shapes()) == 3000
    assert time.process_time() - start < 5


# ---- what is no state_dict ----------------------------------------------------------------------


def refused(folder: Path) -> ColibriError:
    with pytest.raises(ColibriError) as caught:
        TorchFiles(folder)
    return caught.value


class Anything:
    """A class of a program that is not there when the file is read."""


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.nn.Linear(2, 2), "the name torch.nn.modules.linear.Linear"),
        (Anything(), "the name test_pickle.Anything"),
        ([torch.ones(1)], "a value of type list; save model.state_dict()"),
        (torch.ones(1), "a value of type Tensor; save model.state_dict()"),
        (3, "a value of type int"),
        ({"model": {"x": torch.ones(1)}}, "a value of type dict under the key 'model', not a tensor"),
        ({"x": torch.ones(1), "epoch": 3}, "a value of type int under the key 'epoch', not a tensor"),
        ({"x": torch.ones(1), "o": collections.OrderedDict()}, "an OrderedDict under the key 'o'"),
        ({3: torch.ones(1)}, "a value of type int as a key"),
        ({"x": np.ones(1)}, "the name "),
        ({"x": torch.ones(2).to_sparse()}, "the name torch._utils._rebuild_sparse_tensor"),
        ({"x": torch.ones(2, dtype=torch.complex64)}, "the name torch.ComplexFloatStorage"),
        ({"x": torch.ones(2, dtype=torch.float8_e4m3fn)}, "the name "),
        ({"x": torch.ones(1).expand(2, 3)}, "that repeats the 1 elements of its storage"),
        ({"x": b"bytes"}, ""),
        ({"x": {1, 2}}, ""),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_other_values_are_refused_by_what_they_are(form: str, value: Any, found: str, tmp_path: Path) -> None:
    error = refused(saved(tmp_path, value, form))
    assert error.message.startswith(f"{REFUSAL}: ")
    assert found in error.message
    assert error.code == Code.UNSUPPORTED
    assert error.exit_code == 3


def test_torchscript_archives_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, {"x": torch.ones(1)})
    rewritten(tmp_path, lambda entries: entries.__setitem__("pytorch_model/constants.pkl", b"\x80\x02)."))
    assert refused(tmp_path).message.startswith(f"{REFUSAL}: {tmp_path}/pytorch_model.bin holds a TorchScript program")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "is neither a zip file nor a pickle"),
        (b"text", "is neither a zip file nor a pickle"),
        (pickle.dumps({"x": 1}, 2), "a pickle that torch.save did not write"),
        (pickle.dumps(Anything(), 2), "the name test_pickle.Anything"),
        (pickle.dumps(0x1950A86A20F9469CFC6C, 2), "a pickle that has no end"),
    ],
)
def test_files_that_torch_did_not_write_are_refused(data: bytes, found: str, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(data)
    error = refused(tmp_path)
    assert error.message.startswith(f"{REFUSAL}: ")
    assert found in error.message


def test_the_tar_form_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(257) + b"ustar\x0000" + bytes(512))
    assert "is the tar form of torch before 0.1.10" in refused(tmp_path).message


# ---- pickles that try to execute code -----------------------------------------------------------


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def named(module: str, name: str) -> bytes:
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def called(module: str, name: str, *arguments: bytes) -> bytes:
    return named(module, name) + b"(" + b"".join(arguments) + b"tR"


def gadgets(canary: str) -> dict[str, bytes]:
    """Bodies of pickles (without STOP) that would touch the file `canary`, or lead there."""
    touch = text(f"touch '{canary}'")
    code = text(f"open({canary!r}, 'w').close()")
    shell = [b"(" + text("sh") + text("-c") + touch + b"l"]
    return {
        "os.system": called("os", "system", touch),
        "posix.system": called("posix", "system", touch),
        "system by STACK_GLOBAL": text("os") + text("system") + b"\x93(" + touch + b"tR",
        "system by a memo": text("os") + b"q\0" + text("system") + b"\x93q\1" + b"0h\1(" + touch + b"tR",
        "subprocess.Popen": called("subprocess", "Popen", *shell),
        "subprocess.check_output": called("subprocess", "check_output", *shell),
        "builtins.eval": called("builtins", "eval", code),
        "builtins.exec": called("builtins", "exec", code),
        "eval of old Python": called("__builtin__", "eval", code),
        "builtins.open": called("builtins", "open", text(canary), text("w")),
        "io.open": called("io", "open", text(canary), text("w")),
        "os.open": called("os", "open", text(canary), b"M\x41\x02"),
        "builtins.__import__": called("builtins", "__import__", text("antigravity")),
        "importlib": called("importlib", "import_module", text("antigravity")),
        "runpy": called("runpy", "_run_code", code, b"}"),
        "timeit": called("timeit", "timeit", code),
        "pickle in pickle": called("pickle", "loads", b"C" + bytes([4]) + b"cos\n"),
        "pickle.loads of text": called("_pickle", "loads", text("x")),
        "torch.load": called("torch.serialization", "load", text(canary)),
        "torch storage from bytes": called("torch.storage", "_load_from_bytes", text("x")),
        "torch.hub": called("torch.hub", "load", text("a/b"), text("c")),
        "torch dotted import": called("torch._utils", "_import_dotted_name", text("os.system")),
        "torch jit": called("torch.jit._script", "unpackage_script_module", text("x")),
        "numpy reconstruct": called("numpy.core.multiarray", "_reconstruct", named("numpy", "ndarray"), text("b")),
        "numpy reconstruct, new name": called("numpy._core.multiarray", "_reconstruct", named("numpy", "ndarray")),
        "numpy.load": called("numpy", "load", text(canary)),
        "ctypes": called("ctypes", "CDLL", text("libc.so.6")),
        "functools.partial": called("functools", "partial", named("os", "system"), touch),
        "operator.methodcaller": called("operator", "methodcaller", text("system"), touch),
        "operator.attrgetter": called("operator", "attrgetter", text("system")),
        "builtins.getattr": called("builtins", "getattr", named("os", "path"), text("join")),
        "a dotted name": text("torch._utils") + text("_rebuild_tensor_v2.__globals__") + b"\x93",
        "a dotted name of a class": text("collections") + text("OrderedDict.__init__") + b"\x93",
        "a name in another module": named("os", "OrderedDict") + b")R",
        "a function of torch in another module": named("torch", "_rebuild_tensor_v2") + b")R",
        "a storage class in another module": named("torch._utils", "FloatStorage") + b")R",
        "a storage that is called": called("torch", "FloatStorage", text(canary)),
        "webbrowser": called("webbrowser", "open", text("file:///")),
        "pty": called("pty", "spawn", text("sh")),
        "shutil": called("shutil", "rmtree", text("/nonexistent")),
        "socket": called("socket", "create_connection", text("x")),
        "multiprocessing": called("multiprocessing.util", "spawnv_passfds", text("sh")),
        "logging": called("logging.config", "listen", b"M\x00\x40"),
        "types.CodeType": called("types", "CodeType", b"K\0"),
        "marshal": called("marshal", "loads", text("x")),
        "code": called("code", "interact"),
        "copyreg": called("copyreg", "_reconstructor", named("os", "_wrap_close"), named("builtins", "object"), b"N"),
        "codecs": called("_codecs", "encode", text("x"), text("latin1")),
        "INST": b"(" + touch + b"ios\nsystem\n",
        "OBJ": b"(" + named("os", "system") + touch + b"o",
        "NEWOBJ": b"\x80\x02" + named("subprocess", "Popen") + shell[0] + b"\x85\x81",
        "NEWOBJ_EX": named("subprocess", "Popen") + shell[0] + b"\x85}\x92",
        "INST of a known class": b"(" + touch + b"icollections\nOrderedDict\n",
        "OBJ of a known class": b"(" + named("collections", "OrderedDict") + touch + b"o",
        "NEWOBJ of a known class": named("collections", "OrderedDict") + b")\x81",
        "EXT1": b"\x82\1",
        "EXT2": b"\x83\1\0",
        "EXT4": b"\x84\1\0\0\0",
        "a reduce of a text": text("os.system") + touch + b"\x85R",
        "a reduce of a reduce": called("collections", "OrderedDict") + b")R",
        "a state with a class": called("collections", "OrderedDict") + b"}" + text("a") + named("os", "system") + b"sb",
        "a state for a function": named("torch._utils", "_rebuild_tensor_v2") + b"}" + text("__code__") + b"Nsb",
        "a state for a list": b"]}b",
        "an OrderedDict of something": called("collections", "OrderedDict", b"](" + text("a") + touch + b"\x86e"),
        "a persistent id by name": b"Pstorage\n",
        "a persistent id that is a text": text("storage") + b"Q",
        "a persistent id of a foreign class": (
            b"(" + text("storage") + named("os", "system") + text("0") + text("cpu") + b"K\1tQ"
        ),
        "a persistent id of a function": (
            b"(" + text("storage") + named("collections", "OrderedDict") + text("0") + text("cpu") + b"K\1tQ"
        ),
        "a text for a class": b"(" + text("storage") + text("FloatStorage") + text("0") + text("cpu") + b"K\1tQ",
        "out-of-band buffers": b"\x97",
        "a set": b"\x8f",
        "bytes": b"C\1x",
    }  # fmt: skip


GADGETS = list(gadgets(""))
LIVE = ["os.system", "posix.system", "system by STACK_GLOBAL", "system by a memo", "subprocess.check_output",
        "builtins.eval", "builtins.exec", "builtins.open", "io.open", "os.open", "INST", "OBJ"]  # fmt: skip


def zip_with(folder: Path, pickled: bytes, **entries: bytes) -> Path:
    """pytorch_model.bin in zip form with any pickle."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("m/data.pkl", pickled)
        archive.writestr("m/byteorder", "little")
        for name, data in entries.items():
            archive.writestr(f"m/data/{name}", data)
    return folder


def stream_with(folder: Path, pickled: bytes) -> Path:
    """pytorch_model.bin as a stream with any pickle for its value."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    front = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, machine)]
    (folder / "pytorch_model.bin").write_bytes(b"".join(front) + pickled + pickle.dumps([], 2))
    return folder


@pytest.mark.parametrize("name", LIVE)
def test_these_pickles_do_execute_code_where_pickle_reads_them(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    value = pickle.loads(gadgets(str(canary))[name] + b".")
    if isinstance(value, int) and value > 2 and name == "os.open":
        os.close(value)
    elif hasattr(value, "close"):
        value.close()
    del value
    assert canary.exists()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", GADGETS)
def test_pickles_that_try_to_execute_code_do_not(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    gadget = gadgets(str(canary))[name]
    before = set(sys.modules)
    # As the value, beside a tensor, and as something that is thrown away again.
    bodies = [gadget, b"}" + text("x") + gadget + b"s", gadget + b"0}"]
    for i, body in enumerate(bodies):
        for make in (zip_with, stream_with):
            error = refused(make(tmp_path / f"{make.__name__}{i}", b"\x80\x02" + body + b"."))
            assert error.message.startswith(f"{REFUSAL}: "), (i, make)
            assert error.code == Code.UNSUPPORTED
    assert not canary.exists()
    assert set(sys.modules) == before


def test_a_gadget_in_any_of_the_pickles_of_a_stream_is_refused(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    gadget = b"\x80\x02" + gadgets(str(canary))["os.system"] + b"."
    values: list[Any] = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {}, []]
    parts = [pickle.dumps(part, 2) for part in values]
    for i in range(5):
        (tmp_path / "pytorch_model.bin").write_bytes(b"".join([*parts[:i], gadget, *parts[i + 1 :]]))
        assert refused(tmp_path).message.startswith(f"{REFUSAL}: pytorch_model.bin holds the name os.system")
    assert not canary.exists()


# ---- pickles that lie, or blow up ---------------------------------------------------------------


def loaded(data: bytes) -> Any:
    return PickleReader(data, "the file").load()


def bad_pickle(data: bytes) -> str:
    with pytest.raises(ColibriError) as caught:
        loaded(data)
    assert caught.value.message.startswith(f"{REFUSAL}: the file holds ")
    return caught.value.message.removeprefix(f"{REFUSAL}: the file holds ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a pickle that has no end"),
        (b"}", "a pickle that has no end"),
        (b".", "an instruction that needs a value"),
        (b"(.", "an instruction that needs a value"),
        (b"0.", "an instruction that needs a value"),
        (b"2.", "an instruction that needs a value"),
        (b"1.", "an instruction that needs a mark"),
        (b"t.", "an instruction that needs a mark"),
        (b"NN.", "1 values besides"),
        (b"(N.", "1 values besides"),
        (b"\xff.", "the instruction 0xff"),
        (b"\x80\x06N.", "a pickle of protocol 6"),
        (b"\x80", "1 bytes of a value in the 0 that are left"),
        (b"\x95" + b"\xff" * 8 + b"N.", "a frame of 18446744073709551615 bytes"),
        (b"X\xff\xff\xff\xffx.", "a text of 4294967295 bytes, limit 65536"),
        (b"\x8d" + b"\xff" * 8 + b"x.", "a text of 18446744073709551615 bytes"),
        (b"X\x0a\0\0\0x.", "10 bytes of a value in the 2 that are left"),
        (b"X\1\0\0\0\xff.", "a text that is not utf-8"),
        (b"U\1\xff.", "a text that is not ascii"),
        (b"\x8a\x11" + bytes(17) + b".", "an integer of 17 bytes, limit 16"),
        (b"\x8b\xff\xff\xff\xff.", "an integer of -1 bytes"),
        (b"\x8b\xff\xff\xff\x7f.", "an integer of 2147483647 bytes"),
        (b"L" + b"9" * 200 + b"L\n.", "an integer that is none"),
        (b"L" + b"9" * 5000 + b"L\n.", "a line that has no end within 256 bytes"),
        (b"Ix\n.", "an integer that is none"),
        (b"I-\n.", "an integer that is none"),
        (b"c" + b"x" * 300 + b"\ny\n.", "a line that has no end"),
        (b"c\xff\ny\n.", "a name that is not UTF-8"),
        (b"NN\x93.", "a name that is no text"),
        (b"h\0.", "a reference to the value 0, which is not there"),
        (b"j\xff\xff\xff\xff.", "a reference to the value 4294967295"),
        (b"NNa.", "an append to a value of type NoneType"),
        (b"}Na.", "an append to a value of type dict"),
        (b"N(NNu.", "an item set in a value of type NoneType"),
        (b"}(Nu.", "an item set in a value of type dict"),
        (b"}NNs.", "a value of type NoneType as a key"),
        (b"})Ns.", "a value of type tuple as a key"),
        (b"(NNd.", "a value of type NoneType as a key"),
        (b"}" + (text("a") + b"Ns") * 2 + b".", "the key 'a' twice"),
        (b"NNR.", "a call of a value of type NoneType"),
        (named("collections", "OrderedDict") + b"NR.", "a call of collections.OrderedDict"),
        (called("torch._utils", "_rebuild_tensor_v2") + b".", "_rebuild_tensor_v2 with 0 arguments"),
        (called("torch._utils", "_rebuild_parameter", b"NNN") + b".", "a parameter that is made from no tensor"),
        (named("a\x1b[2J", "b") + b".", "the name a\\x1b[2J.b"),
        (b"F1.0\n.", "the instruction FLOAT"),
        (b"S'x'\n.", "the instruction STRING"),
    ],
)
def test_malformed_pickles_are_refused(data: bytes, message: str) -> None:
    assert message in bad_pickle(data)


def test_values_that_contain_themselves_are_no_trouble() -> None:
    itself = loaded(b"]q\0h\0a.")
    assert itself[0] is itself
    with pytest.raises(ColibriError, match="holds a value of type list; save"):
        state_dict(itself, "the file")
    inside = loaded(b"}q\0" + text("a") + b"h\0s.")
    with pytest.raises(ColibriError, match="holds a value of type dict under the key 'a'"):
        state_dict(inside, "the file")
    assert "a value of type list as a key" in bad_pickle(b"}]q\0h\0aNs.")


def test_deep_values_are_no_trouble() -> None:
    depth = 50_000
    value = loaded(b")" + b"\x85" * depth + b".")
    assert type(value) is tuple
    assert type(loaded(b"]" * depth + b"a" * (depth - 1) + b".")) is list
    del value


def test_a_thousand_laughs_take_the_memory_of_their_bytes() -> None:
    # Each list holds the one before ten times: 10 ** 1000 values for anything that walks them.
    level = b"](" + b"h\0" * 10 + b"eq\0"
    laughs = b"(]q\0" + level * 1000 + b"l."
    tracemalloc.start()
    try:
        value = loaded(laughs)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(laughs)
    finally:
        tracemalloc.stop()
    assert len(value) == 1001
    assert all(item is value[-2] for item in value[-1])
    with pytest.raises(ColibriError, match="holds a value of type list; save"):
        state_dict(value, "the file")


@pytest.mark.parametrize(
    "step",
    [b"]", b"}", b")", b"N2", b"]\x94", b"N\x85", b"}" + text("a" * 9) + b"Ns", b"h\0\x94", b"K\xff" * 3 + b"\x87"],
)
def test_memory_stays_in_proportion_to_the_budget(step: bytes) -> None:
    budget = Budget(1 << 21)
    data = b"Nq\0" + step * (1 << 17)
    reader = PickleReader(data, "the file", 0, budget)
    tracemalloc.start()
    try:
        with pytest.raises(ColibriError, match=f"values that take more than {BUDGET_BYTES} bytes of memory"):
            reader.load()
        assert tracemalloc.get_traced_memory()[1] < 1.25 * (1 << 21)
    finally:
        tracemalloc.stop()


def test_every_byte_step_reference_and_key_is_charged() -> None:
    for data, cost in (
        (b"N.", 64),
        (b"NN0.", 3 * 64),
        (b"N\x94.", 2 * 64 + 104),
        (b"Nq\1.", 2 * 64 + 1 + 104),
        (b"K\5.", 64 + 1),
        (text("abc") + b".", 64 + 4 + 3),
        (b"}" + text("abc") + b"Ns.", 4 * 64 + 7 + 104),
        (b"(NNNt.", 5 * 64 + 3 * 16),
        (b"}(" + text("a") + b"Nu.", 5 * 64 + 5 + 2 * 16 + 104),
    ):
        budget = Budget(1000)
        PickleReader(data, "the file", 0, budget).load()
        assert 1000 - budget.left == cost, data


def test_the_budget_ends_a_bomb_in_time(tmp_path: Path) -> None:
    start = time.process_time()
    error = refused(zip_with(tmp_path, b"(" + b"N" * (1 << 25)))
    assert f"more than {BUDGET_BYTES} bytes" in error.message
    assert time.process_time() - start < 20


# ---- tensors that lie ---------------------------------------------------------------------------


def storage(key: str = "0", numel: bytes = b"K\4", kind: str = "FloatStorage") -> bytes:
    return b"(" + text("storage") + named("torch", kind) + text(key) + text("cpu") + numel + b"tQ"


def tensor(store: bytes, offset: bytes, shape: bytes, strides: bytes) -> bytes:
    return called("torch._utils", "_rebuild_tensor_v2", store, offset, shape, strides, b"\x89", b"N")


def bin_of(*tensors: bytes) -> bytes:
    pairs = (text(f"x{i}") + value + b"s" for i, value in enumerate(tensors))
    return b"\x80\x02}" + b"".join(pairs) + b"."


HUGE = b"\x8a\x08" + ((1 << 62) - 1).to_bytes(8, "little")  # beyond what a size may be
LARGE = b"\x8a\x08" + (1 << 59).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "message"),
    [
        (b"K\0", b"K\5\x85", b"K\1\x85", "ends at element 4 of a storage of 4"),
        (b"K\1", b"K\4\x85", b"K\1\x85", "ends at element 4 of a storage of 4"),
        (b"K\0", b"K\2K\2\x86", b"K\3K\1\x86", "ends at element 4 of a storage of 4"),
        (b"K\0", b"K\2\x85", LARGE + b"\x85", "of a storage of 4"),
        (b"K\0", LARGE + b"\x85", b"K\0\x85", "that repeats the 4 elements"),
        (b"K\0", b"K\5\x85", b"K\0\x85", "that repeats the 4 elements"),
        (b"K\0", HUGE + b"\x85", b"K\1\x85", "malformed shape or strides"),
        (b"J\xff\xff\xff\xff", b"K\1\x85", b"K\1\x85", "malformed shape or strides"),
        (b"K\0", b"J\xff\xff\xff\xff\x85", b"K\1\x85", "malformed shape or strides"),
        (b"K\3", b"K\4\x85", b"J\xff\xff\xff\xff\x85", "malformed shape or strides"),
        (b"K\0", b"K\4\x85", b"K\2K\1\x86", "malformed shape or strides"),
        (b"K\0", b"(" + b"K\1" * 9 + b"t", b"(" + b"K\1" * 9 + b"t", "malformed shape or strides"),
        (b"K\0", b"\x88\x85", b"K\1\x85", "malformed shape or strides"),
        (b"K\0", b"](K\4e", b"K\1\x85", "malformed shape or strides"),
        (b"N", b"K\4\x85", b"K\1\x85", "malformed shape or strides"),
    ],
)
def test_shapes_and_strides_that_leave_the_storage_are_refused(
    offset: bytes, shape: bytes, strides: bytes, message: str, tmp_path: Path
) -> None:
    folder = zip_with(tmp_path, bin_of(tensor(storage(), offset, shape, strides)), **{"0": bytes(16)})
    error = refused(folder)
    assert message in error.message
    assert error.message.startswith(REFUSAL)


def test_the_file_that_the_lying_ones_differ_from_is_read(tmp_path: Path) -> None:
    data = np.arange(4, dtype="<f4").tobytes()
    zip_with(tmp_path, bin_of(tensor(storage(), b"K\0", b"K\2K\2\x86", b"K\1K\2\x86")), **{"0": data})
    with TorchFiles(tmp_path) as source:
        assert whole(source, "x0").tolist() == [[0, 2], [1, 3]]


def test_storages_of_another_size_or_type_are_refused(tmp_path: Path) -> None:
    flat = (b"K\0", b"K\4\x85", b"K\1\x85")
    error = refused(zip_with(tmp_path, bin_of(tensor(storage(), *flat)), **{"0": bytes(12)}))
    assert error.message.endswith("the storage 0 has 12 bytes; 4 elements of F32 are 16")
    assert error.code == Code.TENSOR
    error = refused(zip_with(tmp_path, bin_of(tensor(storage("7"), *flat)), **{"0": bytes(16)}))
    assert error.message.endswith("the storage 7 is not there; 4 elements of F32 are 16")
    two = bin_of(tensor(storage(), *flat), tensor(storage(kind="IntStorage"), *flat))
    error = refused(zip_with(tmp_path, two, **{"0": bytes(16)}))
    assert "x1 takes the storage 0 for 4 elements of I32, another for 4 of F32" in error.message
    error = refused(zip_with(tmp_path, bin_of(tensor(storage("../data.pkl"), *flat)), **{"0": bytes(16)}))
    assert "the storage ../data.pkl is not there" in error.message


def test_views_of_storages_and_metadata_of_tensors_are_refused(tmp_path: Path) -> None:
    flat = (b"K\0", b"K\4\x85", b"K\1\x85")
    view = storage()[:-2] + b"(" + text("1") + b"K\0K\4ttQ"
    assert "a view of one" in refused(zip_with(tmp_path, bin_of(tensor(view, *flat)), **{"0": bytes(16)})).message
    metadata = b"}" + text("neg") + b"\x88s"
    conjugate = called("torch._utils", "_rebuild_tensor_v2", storage(), *flat, b"\x89", b"N", metadata)
    assert "a tensor with metadata" in refused(zip_with(tmp_path, bin_of(conjugate), **{"0": bytes(16)})).message
    old = storage()[:-2] + b"NtQ"  # old streams write an empty view
    with TorchFiles(zip_with(tmp_path, bin_of(tensor(old, *flat)), **{"0": bytes(16)})) as source:
        assert source.shapes() == {"x0": (4,)}


def stream_tail(keys: Any, data: bytes, folder: Path) -> Path:
    """A stream with one tensor of four floats and any keys and bytes behind it."""
    value = bin_of(tensor(storage(), b"K\0", b"K\4\x85", b"K\1\x85"))
    parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    (folder / "pytorch_model.bin").write_bytes(b"".join(parts) + value + pickle.dumps(keys, 2) + data)
    return folder


@pytest.mark.parametrize(
    ("keys", "data", "message"),
    [
        ([], b"", "the storage 0 is not there"),
        (["0"], b"", "ends in front of the storage 0"),
        (["0"], struct.pack("<q", 4) + bytes(15), "4 elements and 15 bytes up to the end; 4 elements of F32 are 16"),
        (["0"], struct.pack("<q", -1) + bytes(16), "has -1 elements"),
        (["0"], struct.pack("<q", 1 << 62) + bytes(16), "has 4611686018427387904 elements"),
        (["0"], struct.pack("<q", 4) + bytes(17), "1 bytes belong to no storage"),
        (["0", "0"], struct.pack("<q", 4) + bytes(16), "no list of different texts"),
        (["0", "1"], struct.pack("<q", 4) + bytes(16), "the storage 1 belongs to no tensor"),
        ([0], struct.pack("<q", 4) + bytes(16), "no list of different texts"),
        ({}, struct.pack("<q", 4) + bytes(16), "no list of different texts"),
    ],
)  # fmt: skip
def test_streams_whose_storages_are_not_there_are_refused(keys: Any, data: bytes, message: str, tmp_path: Path) -> None:
    assert message in refused(stream_tail(keys, data, tmp_path)).message


def test_the_stream_that_the_lying_ones_differ_from_is_read(tmp_path: Path) -> None:
    data = struct.pack("<q4f", 4, 0, 1, 2, 3)
    with TorchFiles(stream_tail(["0"], data, tmp_path)) as source:
        assert whole(source, "x0").tolist() == [0, 1, 2, 3]


def test_big_endian_streams_are_read(tmp_path: Path) -> None:
    value = bin_of(tensor(storage(), b"K\0", b"K\4\x85", b"K\1\x85"))
    parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": False})]
    data = struct.pack(">q4f", 4, 0, 1, 2, 3)
    (tmp_path / "pytorch_model.bin").write_bytes(b"".join(parts) + value + pickle.dumps(["0"], 2) + data)
    with TorchFiles(tmp_path) as source:
        assert whole(source, "x0").tolist() == [0, 1, 2, 3]


# ---- zip files that lie -------------------------------------------------------------------------


def plain_zip(folder: Path) -> Path:
    return zip_with(folder, bin_of(tensor(storage(), b"K\0", b"K\4\x85", b"K\1\x85")), **{"0": bytes(16)})


def patched(folder: Path, change: Callable[[bytearray], None]) -> Path:
    path = folder / "pytorch_model.bin"
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return folder


def end_of(data: bytearray) -> int:
    return len(data) - 22


def central_of(data: bytearray, name: bytes) -> int:
    """Offset of the entry of `name` in the central directory."""
    return data.rindex(name) - 46


def field(at: Callable[[bytearray], int], layout: str, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        struct.pack_into(f"<{layout}", data, at(data), value)

    return change


STORE = b"m/data/0"
ORDER = b"m/byteorder"


def renamed(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    assert len(old) == len(new)

    def change(data: bytearray) -> None:
        assert data.count(old) == 2
        data[:] = data.replace(old, new)

    return change


def central(name: bytes, at: int, layout: str, value: int) -> Callable[[bytearray], None]:
    return field(lambda data: central_of(data, name) + at, layout, value)


def local(name: bytes, at: int, layout: str, value: int) -> Callable[[bytearray], None]:
    return field(lambda data: data.index(name) - 30 + at, layout, value)


def both(name: bytes, at: int, layout: str, value: int) -> Callable[[bytearray], None]:
    """A field of the local header (`at`) and of the directory, where it is 2 bytes on."""

    def change(data: bytearray) -> None:
        struct.pack_into(f"<{layout}", data, data.index(name) - 30 + at, value)
        struct.pack_into(f"<{layout}", data, central_of(data, name) + at + 2, value)

    return change


BAD_ZIPS: dict[str, tuple[Callable[[bytearray], Any], str]] = {
    "cut": (lambda data: data.__delitem__(slice(-1, None)), "does not end with its end record"),
    "cut to its magic": (lambda data: data.__delitem__(slice(4, None)), "4 bytes are no zip file"),
    "with a comment": (lambda data: data.extend(b"more"), "does not end with its end record"),
    "with a comment that is announced": (field(lambda data: end_of(data) + 20, "H", 4), "with a comment"),
    "of several disks": (field(lambda data: end_of(data) + 4, "H", 1), "of several disks"),
    "with more entries than the directory has": (field(lambda data: end_of(data) + 8, "I", 0x00040004), "do not fit"),
    "with a directory that is cut": (central(b"m/data.pkl", 30, "H", 101), "ends inside an entry"),
    "with fewer entries than the directory has": (
        field(lambda data: end_of(data) + 8, "I", 0x00020002), "bytes of the central directory belong to no entry",
    ),
    "with 65,535 entries": (field(lambda data: end_of(data) + 8, "I", 0xFFFFFFFF), "65535 entries do not fit"),
    "whose directory is longer": (field(lambda data: end_of(data) + 12, "I", 0xFFFFFF00), "does not end at"),
    "whose directory is shorter": (field(lambda data: end_of(data) + 12, "I", 60), "does not end at"),
    "whose directory is elsewhere": (field(lambda data: end_of(data) + 16, "I", 0), "does not end at"),
    "whose directory is beyond the end": (field(lambda data: end_of(data) + 16, "I", 1 << 31), "does not end at"),
    "with an absolute name": (renamed(STORE, b"/etc/xyz"), "the entry '/etc/xyz' is no relative path"),
    "with a name that climbs": (renamed(STORE, b"m/../abc"), "the entry 'm/../abc' is no relative path"),
    "with a name that begins by climbing": (renamed(STORE, b"../../ab"), "the entry '../../ab' is no relative path"),
    "with an empty part in a name": (renamed(STORE, b"m//ata/0"), "the entry 'm//ata/0' is no relative path"),
    "with a backslash in a name": (renamed(STORE, b"m\\data\\0"), "is no relative path"),
    "with a drive in a name": (renamed(STORE, b"c:data/0"), "the entry 'c:data/0' is no relative path"),
    "with a zero byte in a name": (renamed(STORE, b"m/data\0 "), "is no relative path"),
    "with a name that is not UTF-8": (renamed(STORE, b"m/data\xff0"), "an entry's name is not UTF-8"),
    "with an encrypted entry": (both(STORE, 6, "H", 1), "m/data/0 is encrypted or patched"),
    "with a strongly encrypted entry": (both(STORE, 6, "H", 0x41), "m/data/0 is encrypted or patched"),
    "with a compressed entry": (both(STORE, 8, "H", 8), "m/data/0 is compressed (method 8), torch.save stores"),
    "with a compressed header": (local(STORE, 8, "H", 8), "the header of m/data/0 is not what the directory says"),
    "whose header has other flags": (local(STORE, 6, "H", 0x800), "is not what the directory says"),
    "whose header has another name": (local(STORE, 30, "B", ord("x")), "is not what the directory says"),
    "whose header has a longer name": (local(STORE, 26, "H", 900), "is not what the directory says"),
    "whose header has another size": (local(STORE, 22, "I", 8), "gives other sizes than the directory"),
    "whose header has no size": (local(STORE, 22, "I", 0), "gives other sizes than the directory"),
    "whose header has another CRC": (local(STORE, 14, "I", 1), "gives other sizes than the directory"),
    "whose header has a long extra field": (local(STORE, 28, "H", 65535), "runs into the directory"),
    "whose header is elsewhere": (central(STORE, 42, "I", 3), "is not what the directory says"),
    "whose header is in the directory": (central(STORE, 42, "I", 1 << 30), "is not in front of the directory"),
    "with an entry beyond the directory": (both(STORE, 22, "I", 1 << 20), "has 16 bytes stored for 1048576"),
    "with sizes that differ": (central(STORE, 20, "I", 15), "m/data/0 has 15 bytes stored for 16"),
    "with 64-bit sizes that are not there": (central(STORE, 24, "I", 0xFFFFFFFF), "m/data/0 lacks its 64-bit sizes"),
    "with an entry on another disk": (central(STORE, 34, "H", 1), "is on another disk"),
    "with a comment on an entry": (central(b"m/data.pkl", 32, "H", 1), "has a comment"),
    "with a wrong magic in the directory": (central(STORE, 0, "I", 0), "malformed entry of the central directory"),
    "with another CRC of the byte order": (both(ORDER, 14, "I", 1), "does not have the CRC"),
    "with a long name": (central(STORE, 28, "H", 60000), "malformed entry of the central directory"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD_ZIPS))
def test_lying_zip_files_are_refused(name: str, tmp_path: Path) -> None:
    change, message = BAD_ZIPS[name]
    error = refused(patched(plain_zip(tmp_path), change))
    assert message in error.message
    assert error.code in (Code.HEADER, Code.TRUNCATED)


def test_the_zip_file_that_the_lying_ones_differ_from_is_read(tmp_path: Path) -> None:
    with TorchFiles(plain_zip(tmp_path)) as source:
        assert source.shapes() == {"x0": (4,)}


def test_entries_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    plain_zip(tmp_path)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(tmp_path / "pytorch_model.bin", "a") as old:
        old.writestr("m/data/0", bytes(16))
    assert "the entry m/data/0 is there twice" in refused(tmp_path).message


def test_entries_that_overlap_are_refused(tmp_path: Path) -> None:
    # The data of one entry is the header and the data of another.
    plain_zip(tmp_path)

    def overlap(raw: bytearray) -> None:
        at = raw.index(ORDER) - 30
        size = raw.index(STORE) - 30 + 30 + len(STORE) + 16 - (at + 30 + len(ORDER))
        for where in (at + 18, at + 22, central_of(raw, ORDER) + 20, central_of(raw, ORDER) + 24):
            struct.pack_into("<I", raw, where, size)

    assert "the entries m/byteorder and m/data/0 overlap" in refused(patched(tmp_path, overlap)).message


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", bytes(100 << 20))
    assert (tmp_path / "pytorch_model.bin").stat().st_size < 200_000
    tracemalloc.start()
    try:
        assert "m/data.pkl is compressed (method 8)" in refused(tmp_path).message
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def zip64(count: int, length: int, first: int, end_size: int = 44, locator: int | None = None) -> bytes:
    """End records of a zip64 file whose directory is `length` bytes at `first`."""
    end = first + length
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", end_size, 45, 45, 0, 0, count, count, length, first)
    return record + struct.pack("<4sIQI", b"PK\6\7", 0, end if locator is None else locator, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"count": 1 << 40}, "the two end records differ"),
        ({"length": 1}, "the two end records differ"),
        ({"first": 1}, "the two end records differ"),
        ({"end_size": 45}, "is not where its locator says"),
        ({"locator": 0}, "is not where its locator says"),
        ({"locator": 1 << 63}, "is not where its locator says"),
    ],
)
def test_zip64_records_must_agree(change: dict[str, int], message: str | None, tmp_path: Path) -> None:
    def widen(data: bytearray) -> None:
        count, length, first = (struct.unpack_from("<H2I", data, end_of(data) + 10))
        values = {"count": count, "length": length, "first": first, "locator": first + length, **change}
        data[end_of(data) : end_of(data)] = zip64(**values)

    patched(plain_zip(tmp_path), widen)
    if message is None:
        with TorchFiles(tmp_path) as source:
            assert source.shapes() == {"x0": (4,)}
    else:
        assert message in refused(tmp_path).message


@pytest.mark.parametrize(("count", "length"), [(1 << 20, 64), (1, (1 << 26) + 1)])
def test_a_zip64_file_of_too_many_entries_is_refused(count: int, length: int, tmp_path: Path) -> None:
    path, first = tmp_path / "pytorch_model.bin", 64
    end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        file.seek(first + length)
        file.write(zip64(count, length, first) + end)
    tracemalloc.start()
    try:
        error = refused(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert f"{count} entries in {length} bytes, limits 262144 and 67108864" in error.message
    assert error.code == Code.LIMIT


def test_entries_of_64_bits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive, archive.open("big", "w", force_zip64=True) as file:
        file.write(b"data")
    data = bytearray(path.read_bytes())
    at = central_of(data, b"big")
    extra = struct.pack("<2H3Q", 1, 24, 4, 4, 0)
    struct.pack_into("<3I", data, at + 20, 0xFFFFFFFF, 0xFFFFFFFF, 3)
    struct.pack_into("<H", data, at + 30, len(extra))
    struct.pack_into("<I", data, at + 42, 0xFFFFFFFF)
    data[at + 49 : at + 49] = extra
    struct.pack_into("<I", data, end_of(data) + 12, 46 + 3 + len(extra))
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # The header's sizes are 2 ** 32 - 1 with an extra field of their own, which zipfile wrote.
        archive_read = ZipArchive(path, descriptor, len(data))
        assert {name: entry.size for name, entry in archive_read.entries.items()} == {"big": 4}
        assert archive_read.read("big", 10) == b"data"
        with pytest.raises(ColibriError, match="big has 4 bytes, limit 3"):
            archive_read.read("big", 3)
        with pytest.raises(ColibriError, match="there is no entry small"):
            archive_read.read("small", 3)
    finally:
        os.close(descriptor)


def test_archives_without_a_pickle_or_with_two_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, {"x": torch.ones(1)})
    rewritten(tmp_path, lambda entries: entries.pop("pytorch_model/data.pkl"))
    found = f"{REFUSAL}: {tmp_path}/pytorch_model.bin is a zip file of pytorch_model/"
    assert refused(tmp_path).message.startswith(found)
    saved(tmp_path, {"x": torch.ones(1)})
    rewritten(tmp_path, lambda entries: entries.__setitem__("other/data.pkl", b"N."))
    assert "with 2 of the one FOLDER/data.pkl" in refused(tmp_path).message


def test_bytes_behind_the_pickle_are_refused(tmp_path: Path) -> None:
    assert "holds 3 bytes behind the pickle" in refused(zip_with(tmp_path, bin_of() + b"abc")).message
