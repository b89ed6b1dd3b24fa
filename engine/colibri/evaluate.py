# SPDX-License-Identifier: MIT
"""`colibri eval`: what a text costs a model, and what quantisation changed.

Perplexity is exp of the mean of -ln p(next token). Against another file of the same model (f32, say)
the mean Kullback-Leibler divergence of every next-token distribution and the share of positions with
the same best token are given too. Both models read the same tokens in step: with the C engine memory
holds two rows of logits, and three numbers a token. Without the library the numpy reference computes,
with the same bits; it keeps the logits of a whole window of each model. Sums are float64.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from colibri._spec import Code
from colibri.calibrate import MAX_TEXT_BYTES, has_library, tokens_of
from colibri.errors import ColibriError
from colibri.files import open_regular, read_regular
from colibri.format import ModelFile, open_model
from colibri.operators import F32, F64

WINDOW_TOKENS = 512  # a sequence begins anew after so many


@dataclass(frozen=True)
class Score:
    """What one model says of a text; sums over the predicted tokens."""

    tokens: int
    loss: float  # sum of -ln p
    correct: int  # predictions whose best token is the one that follows

    @property
    def perplexity(self) -> float:
        """Exp of the mean loss."""
        return math.exp(self.loss / self.tokens)


@dataclass(frozen=True)
class Comparison:
    """A model against a base."""

    model: Score
    base: Score
    divergence: float  # mean over positions of KL(base || model), in nats
    divergence_error: float  # standard error of that mean
    same_best: float  # share of positions with the same best token


class Predictor:
    """A model that gives the logits of every position, by the C engine or the numpy reference."""

    def __init__(self, path: Path, engine: str, threads: int, window: int, kv: str) -> None:
        self.path = path
        self._stack: list[Callable[[], None]] = []
        self.tokenize: Callable[[bytes], list[int]]
        self.logits: Callable[[Sequence[int]], Iterator[F32]]
        if engine == "reference" or (engine == "auto" and not has_library()):
            self.name = "reference"
            self._open_reference(kv)
        else:
            self.name = "library"
            self._open_library(threads, window, kv)

    def _open_library(self, threads: int, window: int, kv: str) -> None:
        from colibri.engine import Engine

        engine = Engine(self.path, threads=threads, context_tokens=window, kv=kv, lock="off")
        self._stack.append(engine.close)
        session = engine.session()
        self.tokenize = engine.tokenize

        def logits(ids: Sequence[int]) -> Iterator[F32]:
            session.reset()
            for token in ids:
                session.append([token])
                yield session.logits_array()

        self.logits = logits

    def _open_reference(self, kv: str) -> None:
        from colibri.reference import ReferenceModel

        file = open_model(self.path)
        self._stack.append(file.close)
        model = ReferenceModel(file)
        tokenizer = model.tokenizer()

        def tokenize(text: bytes) -> list[int]:
            if tokenizer is None:
                raise ColibriError(Code.NO_TOKENIZER, f"{self.path} has no tokenizer; give a model with one")
            return list(tokenizer.encode(text, False))

        def logits(ids: Sequence[int]) -> Iterator[F32]:
            yield from model.session(kv).append(ids).logits

        self.tokenize, self.logits = tokenize, logits

    def close(self) -> None:
        """Free the engine."""
        while self._stack:
            self._stack.pop()()


def windows(ids: Sequence[int], size: int, limit: int = 0) -> list[list[int]]:
    """The first `limit` tokens (0: all) in sequences of `size`; one that predicts nothing is left out."""
    wanted = list(ids[:limit] if limit else ids)
    parts = [wanted[at : at + size] for at in range(0, len(wanted), size)]
    return [part for part in parts if len(part) > 1]


def log_probabilities(logits: F32) -> F64:
    """Natural logarithms of the softmax. logits: (vocabulary)."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide


class Meter:
    """Sums over positions; `add` takes the logits of one."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._base_losses: list[float] = []
        self._divergences: list[float] = []
        self._correct = self._base_correct = self._same = 0

    def add(self, following: int, logits: F32, base: F32 | None = None) -> None:
        """`following`: the token that comes next; logits and base: (vocabulary)."""
        ours, best = log_probabilities(logits), int(np.argmax(logits))
        self._losses.append(-float(ours[following]))
        self._correct += best == following
        if base is None:
            return
        theirs, other = log_probabilities(base), int(np.argmax(base))
        self._base_losses.append(-float(theirs[following]))
        self._base_correct += other == following
        self._same += best == other
        self._divergences.append(float(np.sum(np.exp(theirs) * (theirs - ours))))

    def score(self) -> Score:
        """Of the model alone."""
        return Score(len(self._losses), math.fsum(self._losses), self._correct)

    def comparison(self) -> Comparison:
        """Of the model against the base."""
        n = len(self._divergences)
        mean = math.fsum(self._divergences) / n
        spread = math.fsum((value - mean) ** 2 for value in self._divergences)
        error = math.sqrt(spread / max(n - 1, 1) / n)
        base = Score(n, math.fsum(self._base_losses), self._base_correct)
        return Comparison(self.score(), base, mean, error, self._same / n)


def measure(
    model: Callable[[Sequence[int]], Iterator[F32]],
    base: Callable[[Sequence[int]], Iterator[F32]] | None,
    parts: Sequence[Sequence[int]],
    progress: Callable[[int], None] = lambda done: None,
) -> Meter:
    """Runs both over the same sequences; the last position of each predicts nothing that is known."""
    meter = Meter()
    done = 0
    for part in parts:
        rows = model(part[:-1])
        others = base(part[:-1]) if base is not None else None
        for following, row in zip(part[1:], rows, strict=True):
            meter.add(following, row, next(others) if others is not None else None)
            done += 1
            progress(done)
    return meter


def same_vocabulary(model: ModelFile, base: ModelFile) -> None:
    """Refuse two files that do not give the same numbers to the same words."""
    ours, theirs = model.records.model.vocabulary, base.records.model.vocabulary
    if ours != theirs:
        raise ColibriError(
            Code.ARGUMENT, f"{model.path} has {ours} tokens, {base.path} {theirs}; compare files of one model"
        )
    if base.has_tokenizer and model.tokenizer_bytes() != base.tokenizer_bytes():
        raise ColibriError(
            Code.ARGUMENT, f"{model.path} and {base.path} have different tokenizers; compare files of one model"
        )


# --------------------------------------------------------------------------- the command


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri eval`."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .colibri file with a tokenizer")
    parser.add_argument("--text", metavar="FILE", type=Path, required=True, help="what the model reads: UTF-8")
    parser.add_argument(
        "--against",
        metavar="BASE",
        type=Path,
        help="compare with another file of the model; a checkpoint (folder, GGUF file) or a recipe is converted "
        "with f32 weights into a temporary file first (4 bytes a weight, in $TMPDIR)",
    )
    parser.add_argument("-n", "--tokens", type=int, default=0, metavar="N", help="stop after N tokens; 0 = all")
    parser.add_argument(
        "--window",
        type=int,
        default=WINDOW_TOKENS,
        metavar="N",
        help=f"tokens of a sequence (default {WINDOW_TOKENS}), at most the context of the model",
    )
    parser.add_argument("-t", "--threads", type=int, default=0, help="0 = CPUs, at most 4")
    parser.add_argument("--kv", choices=("f16", "f32"), default="f16", help="KV cache of MODEL; that of BASE is f32")
    parser.add_argument(
        "--engine",
        choices=("auto", "library", "reference"),
        default="auto",
        help="the C library, the numpy reference (same result, slow), or the first that is here",
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def convert_base(source: Path, folder: Path, quiet: bool) -> Path:
    """The checkpoint or recipe `source` with f32 weights, as a file in `folder`."""
    from colibri.convert import convert
    from colibri.job import Precision, run_job
    from colibri.recipe import load_recipe

    target = folder / "base.colibri"
    names = dict.fromkeys(("experts", "trunk", "head", "embeddings", "router"), "f32")
    if source.suffix == ".toml":
        run_job(load_recipe(source, names, overrides={"*": "f32"}), target, quiet=quiet)
    else:
        # Only the tokenizer of MODEL reads the text; that of the base may need options that nobody can give here.
        convert(source, target, Precision.from_names(names), tokenizer=False, quiet=quiet)
    return target


def report(result: Comparison | Score, tokens: int, engine: str) -> Iterator[str]:
    """The result as lines of text."""
    score = result.model if isinstance(result, Comparison) else result
    yield f"tokens          {tokens}, {score.tokens} predicted, by the {engine}"
    yield f"perplexity      {score.perplexity:.4f}"
    if isinstance(result, Comparison):
        change = score.perplexity / result.base.perplexity - 1
        yield f"base perplexity {result.base.perplexity:.4f} ({change:+.2%})"
        yield f"KL divergence   {result.divergence:.5f} nats (standard error {result.divergence_error:.5f})"
        yield f"same best token {result.same_best:.2%}"


def as_json(result: Comparison | Score, tokens: int, engine: str) -> str:
    """The result for programs; keys are only added."""
    document: dict[str, object] = {"tokens": tokens, "engine": engine}
    score = result.model if isinstance(result, Comparison) else result
    document["model"] = {**asdict(score), "perplexity": score.perplexity}
    if isinstance(result, Comparison):
        document["base"] = {**asdict(result.base), "perplexity": result.base.perplexity}
        document["kl_divergence"] = result.divergence
        document["kl_standard_error"] = result.divergence_error
        document["same_best_token"] = result.same_best
    return json.dumps(document, indent=1)


class _Progress:
    """A line on stderr that is written over where that is a terminal, else a line for every tenth."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._total, self._quiet, self._shown = total, quiet, 0
        self._terminal = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        line, tenth = f"{done:,} of {self._total:,} tokens", done * 10 // self._total
        if self._quiet:
            return
        if not self._terminal:
            if tenth > self._shown:
                self._shown = tenth
                print(line, file=sys.stderr, flush=True)
        elif done % 64 == 0 or done == self._total:
            print(f"\r{line}", end="\n" if done == self._total else "", file=sys.stderr, flush=True)


def _run(args: argparse.Namespace, text: bytes, base_path: Path | None) -> tuple[Comparison | Score, int, str]:
    with open_model(args.model) as file:
        context = file.records.model.context_tokens
        if not file.has_tokenizer:
            raise ColibriError(Code.NO_TOKENIZER, f"{args.model} has no tokenizer; give a model with one")
        if base_path is not None:
            with open_model(base_path) as other:
                same_vocabulary(file, other)
                context = min(context, other.records.model.context_tokens)
    window = min(args.window, context)
    predictors: list[Predictor] = []
    try:
        model = Predictor(args.model, args.engine, args.threads, window, args.kv)
        predictors.append(model)
        base = None
        if base_path is not None:
            base = Predictor(base_path, args.engine, args.threads, window, "f32")
            predictors.append(base)
        parts = windows(tokens_of(model.tokenize, text, args.tokens), window, args.tokens)
        if not parts:
            raise ColibriError(Code.ARGUMENT, f"{args.text} has fewer than 2 tokens; give a longer text")
        progress = _Progress(sum(len(part) - 1 for part in parts), args.quiet)
        meter = measure(model.logits, None if base is None else base.logits, parts, progress)
        result = meter.score() if base is None else meter.comparison()
        return result, sum(map(len, parts)), model.name
    finally:
        for predictor in predictors:
            predictor.close()


def eval_command(args: argparse.Namespace) -> int:
    """`colibri eval`."""
    if args.tokens < 0 or args.tokens == 1 or args.window < 2:
        raise ColibriError(
            Code.ARGUMENT, f"-n {args.tokens}, --window {args.window}; give 0 or at least 2, and at least 2"
        )
    os.close(open_regular(args.text))
    text = read_regular(args.text, MAX_TEXT_BYTES)
    base: Path | None = args.against
    with tempfile.TemporaryDirectory(prefix="colibri-eval-") as folder:
        if base is not None and base.suffix != ".colibri":
            base = convert_base(base, Path(folder), args.quiet)
        result, tokens, engine = _run(args, text, base)
    if args.json:
        print(as_json(result, tokens, engine))
    else:
        for line in report(result, tokens, engine):
            print(line)
    return 0
