# SPDX-License-Identifier: MIT
"""Pickles of tensors, read without pickle: an interpreter that can build tensors and nothing else.

A pickle is a program for a stack machine whose instructions can call any function. This is another
machine for the same bytes. It knows the instructions that torch.save writes for a dictionary of
tensors; a name such as `torch._utils._rebuild_tensor_v2` is compared with a list and stands for a
case of `_reduce`, and nothing is ever imported, looked up or called. Everything else ends with
`use state_dict only` and what was found.

Bounds: every instruction and every byte it carries is charged to a budget, so memory and time are
in proportion to it; values are never walked, compared or printed, only their types are, so
recursive and nested ones (the billion laughs) cost what their bytes cost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from colibri._spec import Code
from colibri.checkpoint import MAX_RANK
from colibri.errors import ColibriError, shown

REFUSAL = "use state_dict only"
MAX_PICKLE_BYTES = 1 << 26  # of one stream; a tensor takes about 150
BUDGET_BYTES = 1 << 28  # of memory for the values of one file; a tensor takes about 4 KiB
MAX_NAME_BYTES = 1 << 16
_STEP_COST, _MEMO_COST = 64, 104
_MAX_INTEGER_BYTES = 16  # torch's magic number has 10
_MAX_LINE_BYTES = 256

# Class names of typed storages -> dtype of checkpoint.STORED.
STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_FUNCTIONS = (
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
)


class Global(NamedTuple):
    """A name out of the pickle that is on the list; it is never looked up."""

    module: str
    name: str


class Storage(NamedTuple):
    """A run of elements in the file, by its key."""

    key: str
    dtype: str
    numel: int


class Tensor(NamedTuple):
    """A view of a storage, in elements; its bounds are checked."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Ordered(dict[str, Any]):
    """An OrderedDict; unlike a plain dict it may be given attributes, which are dropped."""

    __slots__ = ()


class _Mark:
    """Where a group of values on the stack begins."""


_MARK = _Mark()


@dataclass
class Budget:
    """What the values of one file may still take."""

    left: int = BUDGET_BYTES


def _kind(value: Any) -> str:
    """A value in a message: its type, or the name when it is one."""
    if isinstance(value, Global):
        return f"{value.module}.{value.name}"
    return {Ordered: "an OrderedDict", Storage: "a storage"}.get(type(value), f"a value of type {type(value).__name__}")


def state_dict(value: Any, what: str) -> dict[str, Tensor]:
    """`value` when it is a dictionary of tensors."""
    if not isinstance(value, dict):
        raise ColibriError(Code.UNSUPPORTED, f"{REFUSAL}: {what} holds {_kind(value)}; save model.state_dict()")
    for key, item in value.items():
        if not isinstance(item, Tensor):
            raise ColibriError(
                Code.UNSUPPORTED,
                f"{REFUSAL}: {what} holds {_kind(item)} under the key {shown(key)!r}, not a tensor; "
                "save model.state_dict()",
            )
    return value


class PickleReader:
    """One pickle of `data`, from `start`; `position` is behind it after `load`."""

    def __init__(self, data: bytes, what: str, start: int = 0, budget: Budget | None = None) -> None:
        self._data, self._what = data, what
        self._at = self._begin = self.position = start
        self._budget = budget or Budget()
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The value that the pickle builds."""
        data, size, budget = self._data, len(self._data), self._budget
        steps = _STEPS
        while True:
            if self._at >= size:
                raise self._refuse("a pickle that has no end")
            self._begin = self._at
            code = data[self._at]
            self._at += 1
            if code == _STOP:
                break
            step = steps[code]
            if step is None:
                raise self._refuse(f"the instruction {_OTHERS.get(code, f'{code:#04x}')}")
            budget.left -= _STEP_COST
            if budget.left < 0:
                raise self._refuse(f"values that take more than {BUDGET_BYTES} bytes of memory")
            step(self)
        value = self._pop()
        if self._stack:
            raise self._refuse(f"{len(self._stack)} values besides the one that is asked for")
        self.position = self._at
        return value

    # ---- bytes -------------------------------------------------------------------------------

    def _refuse(self, found: str) -> ColibriError:
        return ColibriError(
            Code.UNSUPPORTED, f"{REFUSAL}: {self._what} holds {found}; save model.state_dict()", self._begin
        )

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise self._refuse(f"{size} bytes of a value in the {len(self._data) - self._at} that are left")
        self._budget.left -= size
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self._take(layout.size))[0]

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._at, self._at + _MAX_LINE_BYTES)
        if end < 0:
            raise self._refuse(f"a line that has no end within {_MAX_LINE_BYTES} bytes")
        line = self._take(end - self._at)
        self._at += 1
        return line

    def _text(self, size: int, encoding: str = "utf-8") -> None:
        if size > MAX_NAME_BYTES:
            raise self._refuse(f"a text of {size} bytes, limit {MAX_NAME_BYTES}")
        try:
            self._stack.append(self._take(size).decode(encoding))
        except UnicodeDecodeError as error:
            raise self._refuse(f"a text that is not {encoding}") from error

    # ---- stack -------------------------------------------------------------------------------

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise self._refuse("an instruction that needs a value where there is none")
        return self._stack.pop()

    def _top(self) -> Any:
        value = self._pop()
        self._stack.append(value)
        return value

    def _pop_mark(self) -> list[Any]:
        stack = self._stack
        at = len(stack) - 1
        while at >= 0 and stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise self._refuse("an instruction that needs a mark where there is none")
        values = stack[at + 1 :]
        del stack[at:]
        self._budget.left -= 16 * len(values)
        return values

    # ---- instructions ------------------------------------------------------------------------

    def _proto(self) -> None:
        version = self._take(1)[0]
        if version > 5:
            raise self._refuse(f"a pickle of protocol {version}, known up to 5")

    def _frame(self) -> None:
        size = self._number(_U64)
        if size > len(self._data) - self._at:
            raise self._refuse(f"a frame of {size} bytes in the {len(self._data) - self._at} that are left")

    def _dup(self) -> None:
        self._push(self._top())

    def _integer(self) -> None:
        """INT and LONG: decimal digits on a line; INT also has the booleans 00 and 01."""
        line = self._line()
        if line in (b"00", b"01"):
            self._push(line == b"01")
            return
        digits = line.removesuffix(b"L")
        if not digits.removeprefix(b"-").isdigit() or len(digits) > 40:
            raise self._refuse("an integer that is none")
        self._push(int(digits))

    def _long(self, size: int) -> None:
        if not 0 <= size <= _MAX_INTEGER_BYTES:
            raise self._refuse(f"an integer of {size} bytes, limit {_MAX_INTEGER_BYTES}")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def _tuple(self, size: int) -> None:
        values = [self._pop() for _ in range(size)]
        self._push(tuple(reversed(values)))

    def _append(self, values: list[Any]) -> None:
        target = self._top()
        if type(target) is not list:
            raise self._refuse(f"an append to {_kind(target)}")
        target.extend(values)

    def _append_one(self) -> None:
        value = self._pop()
        self._append([value])

    def _pairs(self, target: Any, values: list[Any]) -> None:
        if not isinstance(target, dict) or len(values) % 2:
            raise self._refuse(f"an item set in {_kind(target)}")
        for i in range(0, len(values), 2):
            key = values[i]
            if type(key) is not str:
                raise self._refuse(f"{_kind(key)} as a key")
            if key in target:
                raise self._refuse(f"the key {shown(key)!r} twice")
            target[key] = values[i + 1]
        self._budget.left -= _MEMO_COST * (len(values) // 2)

    def _set_items(self) -> None:
        values = self._pop_mark()
        self._pairs(self._top(), values)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._pairs(self._top(), [key, value])

    def _dict(self) -> None:
        values = self._pop_mark()
        target: dict[str, Any] = {}
        self._pairs(target, values)
        self._push(target)

    def _put(self, index: int) -> None:
        self._budget.left -= _MEMO_COST
        self._memo[index] = self._top()

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise self._refuse(f"a reference to the value {index}, which is not there")
        self._push(self._memo[index])

    def _global(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise self._refuse("a name that is no text")
        known = (module, name) in _FUNCTIONS or (module == "torch" and name in STORAGES)
        if not known:
            raise self._refuse(f"the name {shown(f'{module}.{name}')}")
        self._push(Global(module, name))

    def _global_lines(self) -> None:
        lines = self._line(), self._line()
        try:
            module, name = (line.decode("utf-8") for line in lines)
        except UnicodeDecodeError as error:
            raise self._refuse("a name that is not UTF-8") from error
        self._global(module, name)

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        self._global(module, name)

    def _persistent(self) -> None:
        """A storage: ('storage', class, key, device, elements), in old files with a view behind."""
        pid = self._pop()
        if type(pid) is tuple and len(pid) == 6 and pid[5] is None:
            pid = pid[:5]
        good = type(pid) is tuple and len(pid) == 5
        if good:
            word, kind, key, device, numel = pid
            good = type(word) is str and word == "storage" and isinstance(kind, Global) and kind.name in STORAGES
            good = good and type(key) is str and type(device) is str
            good = good and type(numel) is int and 0 <= numel < 1 << 60
        if not good:
            raise self._refuse("a persistent id that is no storage, or a view of one")
        self._push(Storage(key, STORAGES[kind.name], numel))

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, Global) or type(arguments) is not tuple:
            raise self._refuse(f"a call of {_kind(function)}")
        if function.name == "OrderedDict":
            if arguments:
                raise self._refuse("an OrderedDict that is made from something")
            self._push(Ordered())
        elif function.name == "_rebuild_parameter":
            if len(arguments) != 3 or not isinstance(arguments[0], Tensor):
                raise self._refuse("a parameter that is made from no tensor")
            self._push(arguments[0])
        elif function.name == "_rebuild_tensor" and len(arguments) == 4:
            self._push(self._tensor(*arguments))
        elif function.name == "_rebuild_tensor_v2" and len(arguments) in (6, 7):
            # Behind the strides: requires_grad, hooks and, in new files, metadata; none changes the values
            # but the conjugate and negative bits, which metadata carries.
            if len(arguments) == 7 and arguments[6]:
                raise self._refuse("a tensor with metadata")
            self._push(self._tensor(*arguments[:4]))
        else:
            raise self._refuse(f"a call of {_kind(function)} with {len(arguments)} arguments")

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any) -> Tensor:
        good = isinstance(storage, Storage) and type(shape) is tuple and type(strides) is tuple
        good = good and len(shape) == len(strides) <= MAX_RANK
        good = good and all(type(n) is int and 0 <= n < 1 << 60 for n in (offset, *shape, *strides))
        if not good:
            raise self._refuse("a tensor of malformed shape or strides")
        count = 1
        for n in shape:
            count *= n
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if count and last >= storage.numel:
            raise self._refuse(
                f"a tensor of shape {list(shape)} and strides {list(strides)} at {offset} that ends at element {last} "
                f"of a storage of {storage.numel}"
            )
        if count > storage.numel:
            raise self._refuse(
                f"a tensor of shape {list(shape)} that repeats the {storage.numel} elements of its storage (save it "
                "with .contiguous())"
            )
        return Tensor(storage, offset, shape, strides)

    def _build(self) -> None:
        """Attributes of an OrderedDict (`_metadata`, versions of modules): dropped."""
        self._pop()
        target = self._top()
        if not isinstance(target, Ordered):
            raise self._refuse(f"a state for {_kind(target)}")


_U16, _U32, _U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_I32, _DOUBLE, _U8 = struct.Struct("<i"), struct.Struct(">d"), struct.Struct("<B")
_STOP = ord(".")
_Step = Callable[[PickleReader], object]
# By opcode. Methods of the class are reached through lambdas, so the table can be made once.
_KNOWN: dict[int, _Step] = {
    0x80: lambda r: r._proto(),
    0x95: lambda r: r._frame(),
    ord("("): lambda r: r._push(_MARK),
    ord("0"): lambda r: r._pop(),
    ord("1"): lambda r: r._pop_mark(),
    ord("2"): lambda r: r._dup(),
    ord("N"): lambda r: r._push(None),
    0x88: lambda r: r._push(True),
    0x89: lambda r: r._push(False),
    ord("I"): lambda r: r._integer(),
    ord("L"): lambda r: r._integer(),
    ord("J"): lambda r: r._push(r._number(_I32)),
    ord("K"): lambda r: r._push(r._number(_U8)),
    ord("M"): lambda r: r._push(r._number(_U16)),
    0x8A: lambda r: r._long(r._number(_U8)),
    0x8B: lambda r: r._long(r._number(_I32)),
    ord("G"): lambda r: r._push(r._number(_DOUBLE)),
    ord("U"): lambda r: r._text(r._number(_U8), "ascii"),
    ord("T"): lambda r: r._text(r._number(_U32), "ascii"),
    ord("X"): lambda r: r._text(r._number(_U32)),
    0x8C: lambda r: r._text(r._number(_U8)),
    0x8D: lambda r: r._text(r._number(_U64)),
    ord("]"): lambda r: r._push([]),
    ord("l"): lambda r: r._push(r._pop_mark()),
    ord("a"): lambda r: r._append_one(),
    ord("e"): lambda r: r._append(r._pop_mark()),
    ord(")"): lambda r: r._push(()),
    ord("t"): lambda r: r._push(tuple(r._pop_mark())),
    0x85: lambda r: r._tuple(1),
    0x86: lambda r: r._tuple(2),
    0x87: lambda r: r._tuple(3),
    ord("}"): lambda r: r._push({}),
    ord("d"): lambda r: r._dict(),
    ord("s"): lambda r: r._set_item(),
    ord("u"): lambda r: r._set_items(),
    ord("q"): lambda r: r._put(r._number(_U8)),
    ord("r"): lambda r: r._put(r._number(_U32)),
    0x94: lambda r: r._put(len(r._memo)),
    ord("h"): lambda r: r._get(r._number(_U8)),
    ord("j"): lambda r: r._get(r._number(_U32)),
    ord("c"): lambda r: r._global_lines(),
    0x93: lambda r: r._stack_global(),
    ord("Q"): lambda r: r._persistent(),
    ord("R"): lambda r: r._reduce(),
    ord("b"): lambda r: r._build(),
}
_STEPS: list[_Step | None] = [_KNOWN.get(code) for code in range(256)]
# The other opcodes of the format by name, for messages. None is needed for tensors.
_OTHERS = {
    ord("i"): "INST (makes an object of any class)",
    ord("o"): "OBJ (makes an object of any class)",
    0x81: "NEWOBJ (makes an object of any class)",
    0x92: "NEWOBJ_EX (makes an object of any class)",
    0x82: "EXT1 (a registered name)",
    0x83: "EXT2 (a registered name)",
    0x84: "EXT4 (a registered name)",
    ord("P"): "PERSID",
    ord("S"): "STRING",
    ord("V"): "UNICODE",
    ord("F"): "FLOAT",
    ord("p"): "PUT",
    ord("g"): "GET",
    ord("C"): "SHORT_BINBYTES",
    ord("B"): "BINBYTES",
    0x8E: "BINBYTES8",
    0x8F: "EMPTY_SET",
    0x90: "ADDITEMS",
    0x91: "FROZENSET",
    0x96: "BYTEARRAY8",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}
