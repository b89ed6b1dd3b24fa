# SPDX-License-Identifier: MIT
"""`colibri importance`: how much each input of each matrix matters, measured on a text.

What an error in a column of a matrix costs is the mean square of the activations that meet it. The
numpy reference runs the model over a text and keeps these means; `colibri convert --importance FILE`
then weights the errors of its search for int4 scales by them. The reference gives the same bits on
every machine and sums go over tokens in order, so the file is the same everywhere too.

Gate and up of a block read the same input, and so do Q, K and V: one list stands for both or all.
Inputs of a layer's experts are one list a layer; the inner activations are one list an expert,
drawn towards their mean where few tokens were seen (or one list for all, when asked for). Values are
stored as eighths of a power of two relative to the mean of their list, a byte each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colibri._spec import Code, Role
from colibri.calibrate import MAX_TEXT_BYTES, tokens_of
from colibri.errors import ColibriError, shown
from colibri.files import load_json, open_regular, read_regular, refuse_output, write_file
from colibri.format import open_model
from colibri.layout import F32
from colibri.operators import F64
from colibri.reference import Activations, ReferenceModel
from colibri.writer import Slot

IMPORTANCE_FORMAT = 1
TOKENS = 1024  # default length of the text
WINDOW_TOKENS = 512
PRIOR_TOKENS = 32  # an expert's list is drawn towards its mean as if so many tokens had been average
_STEPS = 8  # codes a power of two
_ZERO_CODE = 128
# Which list a matrix reads by, where it has none of its own.
_SAME_INPUT = {
    Role.K: Role.Q,
    Role.V: Role.Q,
    Role.EXPERT_GATE: Role.EXPERT_UP,
    Role.SHARED_GATE: Role.SHARED_UP,
    Role.FFN_GATE: Role.FFN_UP,
}
# Embeddings and heads are left out: logits of every position would double the time.
_MEASURED = frozenset({*_SAME_INPUT.values(), Role.O, Role.EXPERT_DOWN, Role.SHARED_DOWN, Role.FFN_DOWN})
# Correctly rounded and written out: pow of a fraction differs from one libm to the next.
_POWERS = tuple(
    np.float32(float.fromhex(text))
    for text in (
        "0x1.000000p+0", "0x1.172b84p+0", "0x1.306fe0p+0", "0x1.4bfdaep+0",
        "0x1.6a09e6p+0", "0x1.8ace54p+0", "0x1.ae89fap+0", "0x1.d5818ep+0",
    )
)  # fmt: skip
"""2 to the power i/8 in f32: the values of codes."""
_BOUNDS = tuple(
    float.fromhex(text)
    for text in (
        "0x1.0b5586cf9890fp+0", "0x1.2387a6e756238p+0", "0x1.3dea64c123422p+0", "0x1.5ab07dd485429p+0",
        "0x1.7a11473eb0187p+0", "0x1.9c49182a3f090p+0", "0x1.c199bdd85529cp+0", "0x1.ea4afa2a490dap+0",
    )
)  # fmt: skip
"""2 to the power (i + 1/2)/8 in f64: where one code ends and the next begins."""

Key = tuple[Role, int | None, int | None]
"""Role, layer, expert; the expert is None for a list of a layer."""


def encode_list(values: F64) -> bytes:
    """A byte for each value: the nearest eighth of a power of two relative to the mean. values: (columns)."""
    mean = math.fsum(values.tolist()) / len(values)
    if mean <= 0:
        return bytes([_ZERO_CODE]) * len(values)
    fraction, exponent = np.frexp(values / mean)  # fraction in [1/2, 1), 0 for 0
    steps = np.searchsorted(np.array(_BOUNDS), 2.0 * fraction, side="right")
    codes = (exponent.astype(np.int64) - 1) * _STEPS + steps + _ZERO_CODE
    codes[values <= 0] = 0
    return bytes(np.clip(codes, 0, 255).astype(np.uint8))


def decode_list(codes: bytes) -> F32:
    """The values of `encode_list`: (columns), 1 = the mean, never 0."""
    code = np.frombuffer(codes, dtype=np.uint8).astype(np.int64) - _ZERO_CODE
    table = np.array(_POWERS, dtype=np.float32)
    result: F32 = np.ldexp(table[code % _STEPS], code // _STEPS).astype(np.float32)
    return result


def _order(key: Key) -> tuple[int, ...]:
    """Layers ascending, in each first what all experts share."""
    role, layer, expert = key
    return (-1 if layer is None else layer, -1 if expert is None else expert, int(role))


@dataclass(frozen=True)
class Importance:
    """The lists of a model, and what they were measured on."""

    tokens: int
    model: str
    text_sha256: str
    lists: dict[Key, bytes]

    def of(self, slot: Slot) -> F32 | None:
        """Weights of the columns of a matrix: (columns), or None where nothing was measured."""
        role = _SAME_INPUT.get(slot.tensor.role, slot.tensor.role)
        expert = slot.expert if role == Role.EXPERT_DOWN else None
        layer = slot.tensor.layer
        codes = self.lists.get((role, layer, expert)) or self.lists.get((role, layer, None))
        if codes is None:
            return None
        if len(codes) != slot.tensor.columns:
            raise ColibriError(
                Code.ARGUMENT,
                f"the importance of {slot.name} has {len(codes)} columns, the model {slot.tensor.columns}; "
                "measure it with a file of this model",
            )
        return decode_list(codes)

    def document(self) -> bytes:
        """The file."""
        rows = [[role.name.lower(), layer, expert, codes.hex()] for (role, layer, expert), codes in self.lists.items()]
        lines = ",\n".join(json.dumps(row) for row in rows)
        head = {
            "format": IMPORTANCE_FORMAT, "tokens": self.tokens, "model": self.model, "text_sha256": self.text_sha256,
        }  # fmt: skip
        return f'{json.dumps(head)[:-1]}, "lists": [\n{lines}\n]}}\n'.encode()


def load_importance(path: Path) -> tuple[Importance, str]:
    """A file of `colibri importance`, and its SHA-256."""
    raw = read_regular(path)
    document = load_json(path)
    if document.get("format") != IMPORTANCE_FORMAT:
        raise ColibriError(
            Code.ARGUMENT,
            f"{path}: format {shown(repr(document.get('format')))}, this version reads {IMPORTANCE_FORMAT}; "
            "make it with `colibri importance`",
        )
    lists: dict[Key, bytes] = {}
    try:
        for name, layer, expert, codes in document["lists"]:
            if any(type(number) is not int and number is not None for number in (layer, expert)):
                raise ValueError(f"layer {layer!r}, expert {expert!r}")
            lists[(Role[name.upper()], layer, expert)] = bytes.fromhex(codes)
        found = Importance(document["tokens"], document["model"], document["text_sha256"], lists)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ColibriError(
            Code.ARGUMENT, f"{path} is no importance file: {shown(str(error))}; make it with `colibri importance`"
        ) from error
    return found, hashlib.sha256(raw).hexdigest()


class MeasuredModel(ReferenceModel):
    """The reference, which keeps the sum of squares of what every matrix reads."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sums: dict[Key, F64] = {}
        self.counts: dict[Key, int] = {}

    def project(self, role: Role, layer: int | None, inputs: Activations, expert: int | None = None) -> F32:
        """Row products; the inputs are counted first."""
        if role in _MEASURED:
            key = (role, layer, expert if role == Role.EXPERT_DOWN else None)
            total = self.sums.setdefault(key, np.zeros(inputs.x.shape[1], dtype=np.float64))
            for row in inputs.x.astype(np.float64):
                total += row * row
            self.counts[key] = self.counts.get(key, 0) + len(inputs.x)
        return super().project(role, layer, inputs, expert)

    def pool(self) -> None:
        """One list for all experts of a layer."""
        for key in [key for key in self.sums if key[2] is not None]:
            role, layer, _ = key
            total = self.sums.setdefault((role, layer, None), np.zeros_like(self.sums[key]))
            total += self.sums.pop(key)
            self.counts[(role, layer, None)] = self.counts.get((role, layer, None), 0) + self.counts.pop(key)

    def lists(self) -> dict[Key, bytes]:
        """The lists, in the order of layers."""
        found: dict[Key, bytes] = {}
        for key in sorted(self.sums, key=_order):
            values, tokens = self.sums[key] / self.counts[key], self.counts[key]
            if key[0] == Role.EXPERT_DOWN:
                mean = math.fsum(values.tolist()) / len(values)
                values = (values * tokens + mean * PRIOR_TOKENS) / (tokens + PRIOR_TOKENS)
            found[key] = encode_list(values)
        return found


def measure(
    model: MeasuredModel, text: bytes, tokens: int, window: int, pool: bool = False, quiet: bool = False
) -> Importance:
    """Run the model over the first `tokens` tokens (0: all) of a text; `pool`: experts of a layer share a list."""
    tokenizer = model.tokenizer()
    if tokenizer is None:
        raise ColibriError(Code.NO_TOKENIZER, f"{model.file.path} has no tokenizer; give a model with one")
    ids = tokens_of(lambda piece: tokenizer.encode(piece, False), text, tokens)
    ids = ids[:tokens] if tokens else ids
    if not ids:
        raise ColibriError(Code.ARGUMENT, "the text has no tokens; give a longer text")
    for at in range(0, len(ids), window):
        model.session().append(ids[at : at + window], all_logits=False)
        if not quiet:
            print(f"{min(at + window, len(ids)):,} of {len(ids):,} tokens", file=sys.stderr, flush=True)
    if pool:
        model.pool()
    return Importance(len(ids), model.file.root.hex(), hashlib.sha256(text).hexdigest(), model.lists())


# --------------------------------------------------------------------------- the command


def add_importance_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri importance`."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .colibri file with a tokenizer, of any dtypes")
    parser.add_argument("--text", metavar="FILE", type=Path, required=True, help="what the device will read: UTF-8")
    parser.add_argument("-o", "--output", metavar="NEW", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "-n", "--tokens", type=int, default=TOKENS, metavar="N", help=f"stop after N tokens; 0 = all (default {TOKENS})"
    )
    parser.add_argument(
        "--window", type=int, default=WINDOW_TOKENS, metavar="N", help=f"tokens of a sequence (default {WINDOW_TOKENS})"
    )
    parser.add_argument(
        "--pool", action="store_true", help="one list for all experts of a layer, for copies of one another"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def importance_command(args: argparse.Namespace) -> int:
    """`colibri importance`."""
    if args.tokens < 0 or args.window < 1:
        raise ColibriError(Code.ARGUMENT, f"-n {args.tokens}, --window {args.window}; give at least 0 and 1")
    os.close(open_regular(args.text))
    refuse_output(args.output, (args.model, args.text))
    text = read_regular(args.text, MAX_TEXT_BYTES)
    with open_model(args.model) as file:
        context = file.records.model.context_tokens
    found = measure(MeasuredModel(args.model), text, args.tokens, min(args.window, context), args.pool, args.quiet)
    write_file(args.output, found.document())
    print(args.output)
    return 0
