# SPDX-License-Identifier: MIT
"""The conversion in two steps: `colibri quantize` and `colibri pack`, also as `colibri_quantize` and `colibri_pack`.

    colibri_quantize --input pytorch_model.bin --output model.quant.bin --quant-type int4
    colibri_pack --weights model.quant.bin --config config.json --output model.colibri --target-arch arm64

The file between them is a safetensors file, whatever it is called: every tensor of the model as the
bytes that the `.colibri` file will hold, under the names of `colibri inspect`, with the records and the
provenance as metadata. So packing rounds nothing again: both ways to a model give the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from colibri._spec import Code, DType
from colibri.checkpoint import read_exactly, shard_names
from colibri.convert import (
    TOKENIZER_FILES,
    checkpoint_job,
    container,
    limit_context,
    tokenizer_files,
    tokenizer_section,
)
from colibri.errors import ColibriError, printable, shown
from colibri.files import create_temporary, load_json, refuse_output, sync_folder, writing
from colibri.job import Job, Precision, encoded, part_count, run_job
from colibri.provenance import digests
from colibri.quantize import ErrorStats
from colibri.recipe import change_job
from colibri.records import Records, Shape, encode_records, parse_records
from colibri.safetensors_reader import Safetensors
from colibri.tokenizer import TokenizerSpec
from colibri.weights import check_weights
from colibri.writer import ModelWriter, Slot

FORMAT = "colibri-quantized-1"
QUANT_TYPES = ("int4", "int8")
# One layout of the weights serves every processor; the option is there for those who give it.
TARGETS = ("arm64", "aarch64", "arm", "armv7", "x86_64")


# --------------------------------------------------------------------------- quantize


def _header(job: Job, slots: Sequence[Slot]) -> bytes:
    """Length and JSON object in front of the tensors."""
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "records": encode_records(job.records).hex(),
            "dtypes": json.dumps({slot.tensor.name: slot.tensor.dtype.name.lower() for slot in slots}),
            "provenance": json.dumps(job.provenance, sort_keys=True),
        }
    }
    end = 0
    for slot in slots:
        size = slot.tensor.size
        entries[slot.name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_quantized(job: Job, output: Path, threads: int = 0) -> None:
    """Write the file between the steps; it appears when it is complete."""
    refuse_output(output)
    slots = ModelWriter(output, job.records, job.precision.choose, None, job.provenance).slots
    errors: dict[str, tuple[DType, ErrorStats]] = {}
    with writing(output):
        descriptor, temporary = create_temporary(output)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_header(job, slots))
                with closing(encoded(job, slots, threads, errors)) as stream:
                    for slot in slots:
                        for data in islice(stream, part_count(slot)):
                            file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, output)
            sync_folder(output)
        finally:
            temporary.unlink(missing_ok=True)


# --------------------------------------------------------------------------- pack


class QuantizedFile(Safetensors):
    """A file of `colibri quantize`: any name, tensors of bytes."""

    def __init__(self, path: Path) -> None:
        self.single = path.name
        super().__init__(path.parent)
        self.path = path
        if self.metadata.get("format") != FORMAT:
            self.close()
            raise ColibriError(
                Code.UNSUPPORTED,
                f"{path} is not a file of `colibri quantize`: its format is "
                f"{shown(repr(self.metadata.get('format')))}, this version reads {FORMAT}",
            )
        try:
            self.records = parse_records(bytes.fromhex(self.metadata["records"]))
            self.provenance: dict[str, Any] = dict(json.loads(self.metadata["provenance"]))
            names = json.loads(self.metadata["dtypes"])
            self.stored_dtypes = {str(name): DType[text.upper()] for name, text in names.items()}
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            self.close()
            raise ColibriError(Code.HEADER, f"{path}: malformed metadata: {shown(str(error))}") from error

    def stored(self, slot: Slot) -> bytes:
        """The bytes of one tensor, checked as `colibri verify` checks them."""
        tensor, place = slot.tensor, self._places.get(slot.name)
        if place is None:
            raise ColibriError(Code.MISSING_TENSOR, f"{self.path} has no {slot.name}")
        if place.dtype != "U8" or place.shape != (tensor.size,):
            raise ColibriError(
                Code.TENSOR,
                f"{self.path}: {slot.name} is {place.dtype} {list(place.shape)}, must be U8 [{tensor.size}]",
            )
        data = bytes(read_exactly(place.descriptor, tensor.size, place.offset, f"{self.path}: {slot.name}"))
        shape = Shape(tensor.rows, tensor.columns, tensor.layout)
        check_weights(memoryview(data), tensor.dtype, shape, slot.name, place.offset)
        return data

    def choice(self) -> Callable[[Any, int | None, Any], DType]:
        """The dtype of each matrix, for the writer."""

        def choose(scope: Any, layer: int | None, role: Any) -> DType:
            del scope
            name = f"{'global' if layer is None else f'layer {layer}'} {role.name.lower()}"
            if name not in self.stored_dtypes:
                raise ColibriError(Code.MISSING_TENSOR, f"{self.path} has no {name}")
            return self.stored_dtypes[name]

        return choose


def is_quantized(path: Path) -> bool:
    """Whether a file begins as those of `colibri quantize` do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return FORMAT.encode() in file.read(8 + 512)


def _check_config(records: Records, config: Path) -> None:
    """Refuse a config.json that is not of the model whose weights are packed."""
    table = load_json(config)
    model = records.model
    known = {"hidden_size": model.hidden, "vocab_size": model.vocabulary, "num_hidden_layers": model.layers}
    for key, value in known.items():
        if key in table and table[key] != value:
            raise ColibriError(
                Code.ARGUMENT, f"{config}: {key} is {shown(repr(table[key]))}, the weights are of a model of {value}"
            )


def pack(
    weights: Path,
    config: Path,
    output: Path,
    context_tokens: int | None = None,
    chat: bool = True,
    drop_nfc: bool = False,
) -> str:
    """Write the `.colibri` file of quantised weights; its root."""
    if config.name != "config.json":
        raise ColibriError(Code.ARGUMENT, f"--config {config}: must be the config.json of the checkpoint")
    folder = config.parent
    refuse_output(output, (weights, config, *(folder / name for name in TOKENIZER_FILES)))
    with QuantizedFile(weights) as source:
        _check_config(source.records, config)
        limit_context(source.records, context_tokens)
        section = None
        if read := tokenizer_files(folder):
            section = tokenizer_section(
                lambda: TokenizerSpec.from_huggingface(folder, chat=chat, drop_nfc=drop_nfc), source.records
            )
        origin = {**source.provenance, "packed": digests(folder, ["config.json", *read[:1]])}
        writer = ModelWriter(output, source.records, source.choice(), section, origin)
        known = {slot.name for slot in writer.slots}
        surplus = sorted(name for name in source.shapes() if name not in known)
        if surplus:
            raise ColibriError(Code.UNSUPPORTED, f"{weights} has {shown(surplus[0])}, which no record of it asks for")
        with writer:
            for slot in writer.slots:
                writer.write(slot, source.stored(slot))
    return writer.root.hex()


# --------------------------------------------------------------------------- the commands


def add_quantize_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri quantize`."""
    parser.add_argument(
        "--input", type=Path, required=True, metavar="SOURCE",
        help="a checkpoint folder, its pytorch_model.bin or model.safetensors, or a GGUF file",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the file to write, of any name")
    parser.add_argument(
        "--quant-type", choices=QUANT_TYPES, default="int4", help="of the experts; the rest is int8 (default int4)"
    )
    parser.add_argument("--quant-scale-factor", type=float, metavar="F", help="multiply every scale (default 1)")
    parser.add_argument("--expert-prune-ratio", metavar="R", help="leave floor(R x experts) of every layer out")
    parser.add_argument("--prune-by", type=Path, metavar="FILE", help="a .colibri file with a calibration profile")
    parser.add_argument("--importance", type=Path, metavar="FILE", help="a file of `colibri importance`")
    parser.add_argument("-j", "--jobs", type=int, default=0, metavar="N", help="threads (0: processors, at most 4)")


def _refuse_unread(path: Path) -> None:
    """Refuse a named file of a checkpoint beside another one that a conversion would read in its place."""
    folder, kind = path.parent, container(path.parent)
    if kind is None:
        return
    names, index = shard_names(folder, kind.single)
    first = kind.single if index is None else f"{kind.single}.index.json"
    if path.name not in (first, *names):
        raise ColibriError(
            Code.ARGUMENT,
            f"{path} would not be read: {folder / first} comes first; give that one, or move it out of the folder",
        )


def _source(path: Path) -> Path:
    """The folder of a checkpoint's file, or the path itself."""
    names = ("pytorch_model.bin", "model.safetensors", "pytorch_model.bin.index.json", "model.safetensors.index.json")
    if path.is_file() and path.suffix != ".gguf":
        if path.name not in names:
            raise ColibriError(
                Code.ARGUMENT, f"{path}: give a checkpoint folder, or its file of the name {' or '.join(names[:2])}"
            )
        _refuse_unread(path)
        return path.parent
    return path


def quantize_command(args: argparse.Namespace) -> int:
    """`colibri quantize`."""
    if args.prune_by is not None and args.expert_prune_ratio is None:
        raise ColibriError(Code.ARGUMENT, "--prune-by belongs to --expert-prune-ratio")
    names: dict[str, Any] = {"experts": args.quant_type}
    if args.quant_scale_factor is not None:
        names["quant_scale_factor"] = args.quant_scale_factor
    source = _source(args.input)
    options = [path for path in (args.importance, args.prune_by) if path is not None]
    refuse_output(args.output, [*(source.iterdir() if source.is_dir() else (source,)), *options])
    job = checkpoint_job(source, Precision.from_names(names), tokenizer=False)
    job.print_notes()
    for line in change_job(job, args.importance, args.expert_prune_ratio, args.prune_by):
        print(printable(line), file=sys.stderr)
    write_quantized(job, args.output, args.jobs)
    print(args.output)
    return 0


def add_pack_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri pack`."""
    parser.add_argument(
        "--weights", type=Path, required=True, metavar="FILE",
        help="a file of `colibri quantize`; weights of a checkpoint are quantised on the way, as by `colibri convert`",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="config.json; tokenizer.json beside it is packed too"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the .colibri file to write")
    parser.add_argument(
        "--target-arch", choices=TARGETS, default="arm64", help="accepted; one layout serves every processor"
    )
    parser.add_argument(
        "--quant-scale-factor", type=float, metavar="F", help="for weights that are not quantised yet (default 1)"
    )
    parser.add_argument("--context", type=int, metavar="N", help="store a context of N tokens")
    parser.add_argument("--no-chat", action="store_true", help="leave the chat form out")
    parser.add_argument("--drop-nfc", action="store_true", help="accept a tokenizer that normalises to NFC")


def pack_command(args: argparse.Namespace) -> int:
    """`colibri pack`."""
    if is_quantized(args.weights):
        if args.quant_scale_factor is not None:
            raise ColibriError(
                Code.ARGUMENT,
                f"--quant-scale-factor: {args.weights} is quantised already, and other scales would round its weights "
                "a second time; give it to colibri_quantize",
            )
        root = pack(args.weights, args.config, args.output, args.context, not args.no_chat, args.drop_nfc)
    else:
        for path in (args.weights, args.config):
            if not path.exists():
                raise ColibriError(Code.OPEN, f"{path}: no such file")
        source = _source(args.weights)
        if not source.is_dir() or args.config.resolve() != (source / "config.json").resolve():
            raise ColibriError(
                Code.ARGUMENT, f"--config {args.config} is not beside {args.weights}; a checkpoint needs its own"
            )
        names = {} if args.quant_scale_factor is None else {"quant_scale_factor": args.quant_scale_factor}
        refuse_output(args.output, source.iterdir())
        tokenizer = bool(tokenizer_files(source))
        precision = Precision.from_names(names)
        job = checkpoint_job(source, precision, args.context, tokenizer, not args.no_chat, args.drop_nfc)
        job.print_notes()
        root = run_job(job, args.output, quiet=True).root
    print(f"root {root}", file=sys.stderr)
    print(args.output)
    return 0


def quantize_main() -> int:
    """The command `colibri_quantize`."""
    from colibri.cli import main

    return main(["quantize", *sys.argv[1:]])


def pack_main() -> int:
    """The command `colibri_pack`."""
    from colibri.cli import main

    return main(["pack", *sys.argv[1:]])
