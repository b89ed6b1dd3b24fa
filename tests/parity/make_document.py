# SPDX-License-Identifier: MIT
"""Make docs/models.md from engine/spec/families.toml and tests/parity/results.json.

    python tests/parity/make_document.py           # write it
    python tests/parity/make_document.py --check   # exit 1 when it differs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "engine" / "spec"), str(REPOSITORY / "engine")]

from colibri._families import ACTIVATIONS, FAMILIES  # noqa: E402
from generated import write_or_check  # noqa: E402

RESULTS = Path(__file__).with_name("results.json")
DOCUMENT = REPOSITORY / "docs/models.md"
HEAD = """\
# Model families

Made by tests/parity/make_document.py from engine/spec/families.toml and tests/parity/results.json; do not edit.

## What is converted
`colibri convert FOLDER -o MODEL.colibri` reads config.json and takes the family from `architectures` (else
`model_type`). Dimensions come from the checkpoint alone. Activations: {activations}. RoPE scaling: none, linear,
llama3, YaRN (as `rope_scaling` or `rope_parameters`); dynamic, LongRoPE and partial rotation are refused by name.
Anything in the checkpoint that the records have no place for is refused, never left out.

| family | `architectures` | router | attention |
|---|---|---|---|
"""
MIDDLE = """
Known and refused by name (a conversion says what the router is and which families are ready): {refused}.

## Tokenizers
| kind | from | compared with |
|---|---|---|
| byte-level BPE (pre-tokenizers below) | tokenizer.json; GGUF `gpt2` | `tokenizers` |
| BPE of characters with byte_fallback (Mixtral, LLaMA-MoE) | tokenizer.json | `tokenizers`; chats with `transformers` |
| the same by scores | SentencePiece file of type BPE; GGUF `llama` | `sentencepiece`; GGUF with the file |

Equal ids for texts in some twenty scripts, emoji with joiners and skin tones, code, runs of white space, control
characters, a word of 100,000 characters and an empty text, with vocabularies trained in the test
(tests/parity/test_tokenizer_corpus.py; published ones are not to be had there, but for SmolLM2's). Texts that are not
UTF-8, which the peers do not take, are compared between our two tokenizers. Refused by name: Unigram, WordPiece, NFKC,
and NFC unless --drop-nfc is given; docs/convert.md has the whole list, and what holds for chat templates.
Pre-tokenizers: gpt2, smollm, llama3 (LFM2-MoE has it too), qwen2, o200k (gpt-oss), deepseek_v2 (V2, V2-Lite, Coder V2;
llama.cpp's name is deepseek-llm), deepseek_v3 (V3, R1); that of the first DeepSeek-Coder is refused. The patterns are
the published ones, character by character: a test has their digests. By hand, once: the published files of gpt-oss and
DeepSeek-V3 gave the ids of `tokenizers` for all of 993 such texts.

## What was measured
Each row is a checkpoint with random weights, written by the family's own code ({oracles}), converted, and run over
{tokens} tokens. The standard deviation of its logits is 2. *f32*: the largest difference of a logit with f32 weights
and KV cache, in parts of the largest logit, rounded up to 1, 2 or 5 times a power of ten; the limit is 1e-4, and the
chosen experts of every layer and token are the same. *int8*, *int4*: every matrix int8 (experts int4), routers and
norms f32, KV cache f16: root mean square of the difference in parts of that of the logits, and how many choices of
experts and best tokens stay the same. Random weights are the worst case for quantisation and routing (no structure,
small margins): the figures compare families and find mistakes, they do not predict quality. For every row the numpy
reference and the C engine give the same bits, with every instruction set of the machine, token by token and in one
batch; and every planted fault of the records (frequencies, eps, scales, norms, multipliers, window, gate, activation,
scores, RMSNorm for LayerNorm, positions off by one, the other form of GELU, other pairs of RoPE, no sinks, no clamp,
alpha, no groups, the other worth of a group, taps in the other order) gives an error above 1e-4, as does every bias
that is left out, but for that of keys without RoPE, which adds the same to all scores of a query.

Weights of gpt-oss in MXFP4 give the file that their floats give (tests/unit/test_mxfp4.py). The KV cache of DeepSeek
holds plain heads, which the plan counts: docs/format.md says what that costs. No published checkpoint was read.

A dense model as one expert: SmolLM2-135M-Instruct in f16 gives the greedy text of `transformers`' Llama in float32,
token for token, for 10 prompts of 64 tokens each; no logit differs by more than 2e-4 (`make eval`). The test
allows 5e-4, and takes two logits of `transformers` within 1e-3 for a tie, of which either may be chosen; it names
each such choice.

| family | configuration | f32 | int8 | int4 | same experts int8 / int4 | same best token int8 / int4 |
|---|---|---:|---:|---:|---:|---:|
"""


def document() -> str:
    """The text."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    ready = {key: family for key, family in FAMILIES.items() if family["converter"]}
    rows = [
        f"| {key} | {', '.join(f'`{name}`' for name in family['architectures'])} | {family['router']} "
        f"| {family['attention']} |"
        for key, family in ready.items()
    ]
    refused = ", ".join(f"{key} ({family['router']})" for key, family in FAMILIES.items() if not family["converter"])
    figures = []
    for case, row in results.items():
        family, name = case.split("-", 1)
        small, tiny = row["int8"], row["int4"]
        figures.append(
            f"| {family} | {name} | {row['f32']['error']:.0e} | {small['rms']:.1%} | {tiny['rms']:.1%} "
            f"| {small['same_experts']:.0%} / {tiny['same_experts']:.0%} "
            f"| {small['same_best_token']:.0%} / {tiny['same_best_token']:.0%} |"
        )
    middle = MIDDLE.format(
        refused=refused, tokens=64, oracles="`transformers`; short torch modules of the tests where it has none"
    )
    return HEAD.format(activations=", ".join(ACTIVATIONS)) + "\n".join(rows) + "\n" + middle + "\n".join(figures) + "\n"


def write() -> int:
    """Write docs/models.md."""
    DOCUMENT.write_text(document(), encoding="utf-8")
    return 0


def main() -> int:
    """Write, or compare."""
    return write_or_check(__doc__, DOCUMENT, document(), "families.toml and results.json")


if __name__ == "__main__":
    sys.exit(main())
