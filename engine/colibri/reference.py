# SPDX-License-Identifier: MIT
"""The oracle: a forward pass in numpy that reads a `.colibri` file and its records, nothing else.

It shares no code with the C engine and composes the operators of `colibri.operators` in the order
of docs/arithmetic.md, so equal bits from both are evidence. Any split of a prompt into calls of
`ReferenceSession.append` gives the same bits. Weights are unpacked to int8 when first used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# Group products are small: with more threads, numpy's BLAS spends its time waiting for them.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ.get("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from colibri import _spec as spec
from colibri import layout
from colibri import operators as ops
from colibri._spec import (
    AttentionBlock,
    Code,
    DType,
    FfnBlock,
    Layout,
    MlaBlock,
    MoeBlock,
    NormKind,
    NormPlace,
    PositionKind,
    QkNormKind,
    Role,
    RouterInput,
    Scope,
    SharedBlock,
    SharedGate,
    ShortConvBlock,
)
from colibri.errors import ColibriError
from colibri.files import refuse_output, write_file
from colibri.format import ModelFile, TensorEntry, open_model
from colibri.operators import F32, I8, I32, Quantized, UnsupportedError
from colibri.records import LayerRecords
from colibri.tokenizer import TokenizerSpec
from colibri.verify import golden_path, refuse_golden_of_others

GOLDEN_FORMAT = spec.GOLDEN_VERSION
KV_NAMES = ("f16", "f32")


# ---- weights ------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuantizedMatrix:
    """int4 or int8 weights: values (groups, padded rows, 32), scales (groups, padded rows)."""

    rows: int
    columns: int
    values: I8
    scales: F32


@dataclass(frozen=True)
class FloatMatrix:
    """Weights widened to float32, transposed: (columns, rows)."""

    rows: int
    columns: int
    transposed: F32


Matrix = QuantizedMatrix | FloatMatrix


def unpack_quantized(data: bytes, dtype: DType, rows: int, columns: int) -> QuantizedMatrix:
    """An int4 or int8 matrix, groups first, so that one group of all rows is contiguous."""
    unpack = layout.unpack_int4 if dtype == DType.INT4 else layout.unpack_int8
    values, scales = unpack(data, rows, columns)
    grouped = values.reshape(len(values), -1, ops.GROUP).swapaxes(0, 1)
    wide = scales.astype(np.float32).T
    return QuantizedMatrix(rows, columns, np.ascontiguousarray(grouped), np.ascontiguousarray(wide))


def unpack_matrix(data: bytes, dtype: DType, rows: int, columns: int) -> Matrix:
    """A panel8 matrix of any dtype."""
    if dtype in (DType.INT4, DType.INT8):
        return unpack_quantized(data, dtype, rows, columns)
    if dtype == DType.MXFP4:
        raise UnsupportedError("dtype mxfp4 is reserved; convert the model with int4")
    values = layout.unpack_float(data, dtype, rows, columns)[:rows, :columns]
    return FloatMatrix(rows, columns, np.ascontiguousarray(values.T))


def matrix_rows(matrix: Matrix, rows: Sequence[int]) -> F32:
    """Some rows of a matrix as float32 (len(rows), columns): value times scale, rounded once."""
    index = np.asarray(rows, dtype=np.int64)
    if isinstance(matrix, FloatMatrix):
        return np.ascontiguousarray(matrix.transposed[:, index].T)
    values = matrix.values[:, index, :].astype(np.float32)
    scaled = values * matrix.scales[:, index][:, :, None]
    wide = scaled.transpose(1, 0, 2).reshape(len(index), -1)
    return np.ascontiguousarray(wide[:, : matrix.columns])


class Activations:
    """An input of row products; quantised at most once, when an integer matrix asks."""

    def __init__(self, x: F32) -> None:
        self.x = x
        self._quantized: Quantized | None = None

    @property
    def quantized(self) -> Quantized:
        """The int8 form of the input."""
        if self._quantized is None:
            self._quantized = ops.quantize(self.x)
        return self._quantized

    def take(self, tokens: I32) -> Activations:
        """Some of the tokens."""
        part = Activations(self.x[tokens])
        if self._quantized is not None:
            part._quantized = self._quantized.take(tokens)
        return part


def product(matrix: Matrix, x: Activations, bias: F32 | None = None) -> F32:
    """Row products (tokens, rows), then the bias where there is one."""
    if isinstance(matrix, FloatMatrix):
        y = ops.matmul_float(matrix.transposed, x.x)
    else:
        y = ops.matmul_quantized(matrix.values, matrix.scales, x.quantized)[:, : matrix.rows]
    return y if bias is None else y + bias


class Weights:
    """Tensors of a model file by role, verified and unpacked when first used."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self._matrices: dict[tuple[Role, int | None, int | None], Matrix] = {}
        self._vectors: dict[tuple[Role, int | None, int | None], F32] = {}

    def _entry(self, role: Role, layer: int | None, expert: int | None) -> TensorEntry | None:
        scope = Scope.TRUNK if expert is None else Scope.EXPERT
        return self.file.tensor(role, layer, scope)

    def matrix(self, role: Role, layer: int | None = None, expert: int | None = None) -> Matrix:
        """A panel8 matrix."""
        key = (role, layer, expert)
        if key not in self._matrices:
            entry = self._entry(*key)
            if entry is None:
                raise ColibriError(Code.MISSING_TENSOR, f"{role.name.lower()} of layer {layer}: convert again")
            data = self.file.tensor_bytes(entry, expert)
            self._matrices[key] = unpack_matrix(data, entry.dtype, entry.rows, entry.columns)
        return self._matrices[key]

    def vector(self, role: Role, layer: int | None = None, expert: int | None = None) -> F32 | None:
        """A tensor of layout rows as float32 (columns) or (rows, columns), or None where there is none."""
        key = (role, layer, expert)
        if key not in self._vectors:
            entry = self._entry(*key)
            if entry is None or entry.layout != Layout.ROWS:
                return None
            data = self.file.tensor_bytes(entry, expert)
            rows = layout.unpack_rows(data, entry.rows, entry.columns)
            vector = rows[0] if entry.rows == 1 else rows
            ops.check_finite(vector, role.name.lower())
            self._vectors[key] = vector
        return self._vectors[key]

    def bias(self, role: Role, layer: int | None, expert: int | None = None) -> F32 | None:
        """The bias that belongs to a matrix role, or None."""
        name = role.name + "_BIAS"
        return self.vector(Role[name], layer, expert) if name in Role.__members__ else None

    def needed(self, role: Role, layer: int | None) -> F32:
        """A vector that the records promise."""
        vector = self.vector(role, layer)
        if vector is None:
            raise ColibriError(Code.MISSING_TENSOR, f"{role.name.lower()} of layer {layer}: convert again")
        return vector


# ---- the model ----------------------------------------------------------------------------


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise UnsupportedError(f"{what} is not built into the numpy reference")


class ReferenceModel:
    """A `.colibri` file that can be run; keeps unpacked weights for all of its sessions."""

    def __init__(self, path: str | os.PathLike[str] | ModelFile) -> None:
        self.file = path if isinstance(path, ModelFile) else open_model(Path(path))
        self.records = self.file.records
        self.weights = Weights(self.file)
        model = self.records.model
        _refuse(model.embedding_norm_kind != NormKind.NONE, "an embedding norm")
        _refuse(bool(model.head_bias), "head_bias")
        _refuse(model.logits_softcap != 0.0, "logits_softcap")
        for index, layer in enumerate(self.records.layers):
            self._check_layer(index, layer)

    @staticmethod
    def _check_layer(index: int, layer: LayerRecords) -> None:
        where = f"layer {index}: "
        mixer = layer.mixer
        if isinstance(mixer, AttentionBlock):
            _refuse(mixer.softcap != 0.0, where + "attention softcap")
            _refuse(bool(mixer.output_gate), where + "attention output_gate")

    def session(self, kv: str = "f16") -> ReferenceSession:
        """A new sequence. kv: type of the KV cache, f16 or f32."""
        return ReferenceSession(self, kv)

    def tokenizer(self) -> TokenizerSpec | None:
        """The tokenizer of the file, or None."""
        section = self.file.tokenizer_bytes()
        if section is None:
            return None
        return TokenizerSpec.from_section(section, self.records.model.vocabulary)

    # -- pieces of a layer --------------------------------------------------------------------

    def embed(self, ids: Sequence[int], position: int) -> F32:
        """Embedding rows times the embedding multiplier, learned positions from `position` on: (tokens, hidden)."""
        model = self.records.model
        rows = matrix_rows(self.weights.matrix(Role.EMBEDDING), ids)
        x = rows * np.float32(model.embedding_multiplier)
        if model.position_kind == PositionKind.LEARNED:
            first = position + model.position_offset
            x = x + matrix_rows(self.weights.matrix(Role.POSITION_EMBEDDING), range(first, first + len(ids)))
        return x

    def norm(self, kind: int, eps: float, role: Role, layer: int | None, x: F32) -> F32:
        """A norm of the whole hidden vector."""
        if kind == NormKind.NONE:
            return x
        weight = self.weights.needed(role, layer)
        bias = self.weights.bias(role, layer)
        if kind == NormKind.LAYER:
            return ops.layernorm(x, weight, bias, eps)
        y = ops.rmsnorm(x, weight, eps)
        return y if bias is None else y + bias

    def place(self, block: spec.LayerBlock, at: NormPlace, x: F32) -> F32:
        """The norm of a layer at one of its four places, or x where it has none there."""
        if not block.norm_places & at:
            return x
        role = Role[at.name + "_NORM"]
        return self.norm(block.norm_kind, block.norm_eps, role, block.index, x)

    def project(
        self, role: Role, layer: int | None, inputs: Activations, expert: int | None = None
    ) -> F32:
        """Row products of one matrix, then its bias where there is one: (tokens, rows). Every product comes by here."""
        bias = self.weights.bias(role, layer, expert)
        return product(self.weights.matrix(role, layer, expert), inputs, bias)

    def mlp(
        self,
        block: FfnBlock | MoeBlock | SharedBlock,
        prefix: str,
        layer: int,
        x: Activations,
        expert: int | None = None,
    ) -> F32:
        """One gated or plain FFN: (tokens, hidden)."""

        def rows(part: str, inputs: Activations) -> F32:
            return self.project(Role[f"{prefix}_{part}"], layer, inputs, expert)

        up = rows("UP", x)
        gated = bool(block.gated)
        gate = rows("GATE", x) if gated else up
        hidden = ops.activate(block.activation, block.clamp, block.alpha, gate, up if gated else None)
        return rows("DOWN", Activations(hidden))

    def route(self, moe: MoeBlock, layer: int, x: Activations) -> tuple[I32, F32]:
        """Chosen experts and weights: (tokens, top_k) each."""
        logits = self.project(Role.ROUTER, layer, x)
        rule = ops.RouterRule(
            moe.top_k,
            moe.router_score,
            moe.router_normalise,
            moe.router_normalise_eps,
            moe.routed_scale,
            moe.groups,
            moe.groups_chosen,
            moe.group_score,
        )
        return ops.route(logits, rule, self.weights.vector(Role.ROUTER_SELECTION_BIAS, layer))

    def experts(self, moe: MoeBlock, layer: int, x: Activations, ids: I32, weights: F32) -> F32:
        """Weighted sum of the chosen experts, ranks ascending: (tokens, hidden)."""
        tokens, ranks = ids.shape
        outputs = np.zeros((tokens, ranks, x.x.shape[1]), dtype=np.float32)
        for expert in np.unique(ids):
            token, column = np.nonzero(ids == expert)
            part = x.take(token.astype(np.int32))
            outputs[token, column] = self.mlp(moe, "EXPERT", layer, part, int(expert))
        total: F32 = np.zeros((tokens, x.x.shape[1]), dtype=np.float32)
        for rank in range(ranks):
            weight = weights[:, rank, None]
            added = ops.add_scaled(total, weight, outputs[:, rank])
            if moe.threshold != 0.0:  # an expert below it is left out, not added with weight 0
                added = np.where(weight < np.float32(moe.threshold), total, added)
            total = added
        return total

    def shared(self, block: SharedBlock, layer: int, x: Activations, total: F32) -> F32:
        """Adds the shared expert behind the routed ones."""
        output = self.mlp(block, "SHARED", layer, x)
        gate: F32 = np.ones((len(output), 1), dtype=np.float32)
        if block.gate == SharedGate.SIGMOID:
            gate = ops.sigmoid(self.project(Role.SHARED_ROUTER, layer, x))
        return ops.add_scaled(total, gate, output)

    def head(self, x: F32) -> F32:
        """Final norm, head and logits multiplier: (tokens, vocabulary), checked finite."""
        model = self.records.model
        normed = self.norm(model.norm_kind, model.norm_eps, Role.FINAL_NORM, None, x)
        role = Role.EMBEDDING if model.tied_head else Role.HEAD
        rows = self.project(role, None, Activations(normed))
        logits: F32 = rows * np.float32(model.logits_multiplier)
        ops.check_finite(logits, "logits")
        return logits


# ---- sequences ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Forward:
    """What an append computed.

    logits: float32 (positions, vocabulary), of all positions of the call or of the last.
    routing: layer -> expert ids int32 (tokens, top_k), by rank.
    """

    logits: F32
    routing: dict[int, I32]


class Sampler(Protocol):
    """Chooses an id from logits (vocabulary); counter: tokens chosen before."""

    def __call__(self, logits: F32, counter: int) -> int:
        """The chosen id."""


def greedy(logits: F32, counter: int) -> int:
    """The highest logit, lower id on equality."""
    del counter
    return int(np.argmax(logits))


@dataclass(frozen=True)
class Generation:
    """Generated ids (with the end token, when one came) and the hash of the logits behind them."""

    ids: list[int]
    logits_sha256: str


class _LayerCache:
    """Keys and values of one layer, widened: (kv_heads, capacity, dim)."""

    def __init__(self, heads: int, key_dim: int, value_dim: int, kv: str) -> None:
        self.kv = kv
        self.keys: F32 = np.zeros((heads, 0, key_dim), dtype=np.float32)
        self.values: F32 = np.zeros((heads, 0, value_dim), dtype=np.float32)

    def _stored(self, x: F32) -> F32:
        if self.kv == "f16":
            return ops.widen_f16(ops.store_f16(x))
        ops.check_finite(x, "KV cache")
        return x

    def put(self, position: int, keys: F32, values: F32) -> None:
        """keys, values: (tokens, kv_heads, dim) of the positions from `position` on."""
        end = position + len(keys)
        if end > self.keys.shape[1]:
            extra = max(64, end)
            self.keys = np.pad(self.keys, ((0, 0), (0, extra), (0, 0)))
            self.values = np.pad(self.values, ((0, 0), (0, extra), (0, 0)))
        self.keys[:, position:end] = self._stored(keys).transpose(1, 0, 2)
        self.values[:, position:end] = self._stored(values).transpose(1, 0, 2)


def _clipped(y: F32, clip: float) -> F32:
    """Clamped to [-clip, clip]; a clip of 0 is none."""
    if clip == 0.0:
        return y
    limit = np.float32(clip)
    return ops.minimum(ops.maximum(y, -limit), limit)


class ReferenceSession:
    """One sequence. Made by `ReferenceModel.session`."""

    def __init__(self, model: ReferenceModel, kv: str) -> None:
        if kv not in KV_NAMES:
            raise ColibriError(Code.ARGUMENT, f"kv is {kv!r}; use one of {', '.join(KV_NAMES)}")
        self.model = model
        self.position = 0
        self._caches: dict[int, _LayerCache] = {}
        self._states: dict[int, F32] = {}  # of convolutions: the last inputs, (taps - 1, width)
        for index, layer in enumerate(model.records.layers):
            if isinstance(layer.mixer, AttentionBlock):
                block = layer.mixer
                self._caches[index] = _LayerCache(block.kv_heads, block.head_dim, block.value_dim, kv)
            elif isinstance(layer.mixer, MlaBlock):
                latent = layer.mixer
                dim = latent.nope_dim + latent.rope_dim
                self._caches[index] = _LayerCache(latent.heads, dim, latent.value_dim, kv)
            elif isinstance(layer.mixer, ShortConvBlock):
                self._states[index] = np.zeros((layer.mixer.taps - 1, layer.mixer.width), dtype=np.float32)

    def append(self, ids: Sequence[int], all_logits: bool = True) -> Forward:
        """Append token ids; logits of every position of the call, or only of the last."""
        vocabulary = self.model.records.model.vocabulary
        if not ids:
            raise ColibriError(Code.ARGUMENT, "no token ids; append at least one")
        for token in ids:
            if not 0 <= token < vocabulary:
                raise ColibriError(
                    Code.TOKEN_RANGE,
                    f"token id {token}; the limit is 0..{vocabulary - 1}; use ids of this model's tokenizer",
                )
        context = self.model.records.model.context_tokens
        if len(ids) > context - self.position:
            raise ColibriError(
                Code.CONTEXT_FULL,
                f"{self.position} tokens and {len(ids)} more; the limit is {context}; start a new session",
            )
        # A value that overflows is found by the contract's own checks, with a better message.
        before = dict(self._states)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                result = self._forward(ids, all_logits)
        except ColibriError:
            self._states = before
            raise
        self.position += len(ids)
        return result

    def _forward(self, ids: Sequence[int], all_logits: bool) -> Forward:
        model = self.model
        positions = np.arange(self.position, self.position + len(ids), dtype=np.int64)
        angles = [
            ops.rope_angles(positions, np.array(rope.inv_freq, dtype=np.float32), rope.attention_factor)
            for rope in model.records.ropes
        ]
        x = model.embed(ids, self.position)
        routing: dict[int, I32] = {}
        for index, layer in enumerate(model.records.layers):
            x = self._layer(index, layer, x, angles, routing)
        return Forward(model.head(x if all_logits else x[-1:]), routing)

    def _layer(
        self,
        index: int,
        layer: LayerRecords,
        x: F32,
        angles: list[tuple[F32, F32]],
        routing: dict[int, I32],
    ) -> F32:
        model, block = self.model, layer.layer
        multiplier = np.float32(block.residual_multiplier)
        before = x
        normed = model.place(block, NormPlace.PRE_MIXER, x)
        if layer.mixer is not None:
            mixed = self._mix(index, layer, Activations(normed), angles)
            mixed = model.place(block, NormPlace.POST_MIXER, mixed)
            x = ops.add_scaled(x, multiplier, mixed)
        if layer.ffn is None:
            return x
        inputs = Activations(normed if block.parallel else model.place(block, NormPlace.PRE_FFN, x))
        if isinstance(layer.ffn, MoeBlock):
            source = {
                RouterInput.FFN_INPUT: inputs,
                RouterInput.RESIDUAL_BEFORE_MIXER: Activations(before),
                RouterInput.FFN_RESIDUAL: Activations(x),
            }[RouterInput(layer.ffn.router_input)]
            ids, weights = model.route(layer.ffn, index, source)
            routing[index] = ids
            output = model.experts(layer.ffn, index, inputs, ids, weights)
            if layer.shared is not None:
                output = model.shared(layer.shared, index, inputs, output)
        else:
            output = model.mlp(layer.ffn, "FFN", index, inputs)
        output = model.place(block, NormPlace.POST_FFN, output)
        return ops.add_scaled(x, multiplier, output)

    def _mix(self, index: int, layer: LayerRecords, x: Activations, angles: list[tuple[F32, F32]]) -> F32:
        if isinstance(layer.mixer, ShortConvBlock):
            return self._short_conv(index, layer.mixer, x)
        if isinstance(layer.mixer, MlaBlock):
            return self._latent_attention(index, layer.mixer, x, angles)
        if isinstance(layer.mixer, AttentionBlock):
            return self._attention(index, layer.mixer, x, angles)
        raise UnsupportedError(f"layer {index}: mixer {layer.layer.mixer_kind} is not built into the numpy reference")

    def _short_conv(self, index: int, block: ShortConvBlock, x: Activations) -> F32:
        """A gated causal convolution over the last `taps` tokens, channel by channel; (tokens, hidden)."""
        weights, tokens = self.model.weights, len(x.x)
        b, c, inner = np.split(self.model.project(Role.CONV_IN, index, x), 3, axis=1)
        inputs = np.concatenate([self._states[index], b * inner])
        ops.check_finite(inputs, "input of a convolution")
        taps = weights.needed(Role.CONV_WEIGHT, index).reshape(block.taps, block.width)
        total: F32 = np.zeros((tokens, block.width), dtype=np.float32)
        for tap in range(block.taps):
            total = total + taps[tap] * inputs[tap : tap + tokens]
        bias = weights.vector(Role.CONV_BIAS, index)
        if bias is not None:
            total = total + bias
        self._states[index] = inputs[tokens:]
        return self.model.project(Role.CONV_OUT, index, Activations(c * total))

    def _latent_attention(
        self, index: int, block: MlaBlock, x: Activations, angles: list[tuple[F32, F32]]
    ) -> F32:
        """Keys and values from a latent vector, then plain heads: a key is [without RoPE, with RoPE]."""
        model, tokens = self.model, len(x.x)
        needed = model.weights.needed
        inputs = x
        if block.q_rank:
            low = model.project(Role.MLA_Q_A, index, x)
            inputs = Activations(ops.rmsnorm(low, needed(Role.MLA_Q_A_NORM, index), block.norm_eps))
        q = model.project(Role.MLA_Q_B, index, inputs).reshape(tokens, block.heads, -1)
        both = model.project(Role.MLA_KV_A, index, x)
        rotated = both[:, None, block.kv_rank :]
        if block.rope_table != spec.NONE_INDEX:
            cos, sin = angles[block.rope_table]
            style = model.records.ropes[block.rope_table].style
            turned = ops.rope(np.ascontiguousarray(q[:, :, block.nope_dim :]), cos, sin, style)
            q = np.concatenate([q[:, :, : block.nope_dim], turned], axis=2)
            rotated = ops.rope(np.ascontiguousarray(rotated), cos, sin, style)
        norm = needed(Role.MLA_KV_A_NORM, index)
        latent = Activations(ops.rmsnorm(np.ascontiguousarray(both[:, : block.kv_rank]), norm, block.norm_eps))
        plain = model.project(Role.MLA_K_B, index, latent).reshape(tokens, block.heads, -1)
        shared = np.broadcast_to(rotated, (tokens, block.heads, block.rope_dim))
        v = model.project(Role.MLA_V_B, index, latent).reshape(tokens, block.heads, -1)
        self._caches[index].put(self.position, np.concatenate([plain, shared], axis=2), v)
        out = self._attend(index, q, block.window_tokens, block.scale, None)
        return model.project(Role.O, index, Activations(out))

    def _attend(self, index: int, q: F32, window: int, scale: float, sinks: F32 | None) -> F32:
        """Queries (tokens, heads, dim) over the cache: (tokens, heads * value_dim)."""
        cache, rows = self._caches[index], []
        for t in range(len(q)):
            last = self.position + t
            listed = slice(max(0, last - window + 1) if window else 0, last + 1)
            rows.append(ops.attend(q[t], cache.keys[:, listed], cache.values[:, listed], scale, sinks).reshape(-1))
        return np.stack(rows)

    def _projection(self, role: Role, index: int, x: Activations, clip: float) -> F32:
        return _clipped(self.model.project(role, index, x), clip)

    def _heads(self, y: F32, role: Role, index: int, block: AttentionBlock, heads: int) -> F32:
        """Full-width or per-head QK norm; (tokens, heads, head_dim)."""
        shape = (len(y), heads, block.head_dim)
        if block.qk_norm_kind in (QkNormKind.FULL_WIDTH, QkNormKind.FULL_WIDTH_THEN_CLIP):
            y = ops.rmsnorm(y, self.model.weights.needed(role, index), block.qk_norm_eps)
        if block.qk_norm_kind == QkNormKind.FULL_WIDTH_THEN_CLIP:
            y = _clipped(y, block.clip_qkv)
        split = y.reshape(shape)
        if block.qk_norm_kind == QkNormKind.PER_HEAD:
            split = ops.rmsnorm(split, self.model.weights.needed(role, index), block.qk_norm_eps)
        return split

    def _attention(self, index: int, block: AttentionBlock, x: Activations, angles: list[tuple[F32, F32]]) -> F32:
        tokens = len(x.x)
        clip = 0.0 if block.qk_norm_kind == QkNormKind.FULL_WIDTH_THEN_CLIP else block.clip_qkv
        q = self._projection(Role.Q, index, x, clip)
        k = self._projection(Role.K, index, x, clip)
        v = self._projection(Role.V, index, x, block.clip_qkv).reshape(tokens, block.kv_heads, -1)
        queries = self._heads(q, Role.Q_NORM, index, block, block.heads)
        keys = self._heads(k, Role.K_NORM, index, block, block.kv_heads)
        if block.rope_table != spec.NONE_INDEX:
            cos, sin = angles[block.rope_table]
            style = self.model.records.ropes[block.rope_table].style
            queries = ops.rope(queries, cos, sin, style)
            keys = ops.rope(keys, cos, sin, style)
        self._caches[index].put(self.position, keys, v)
        sinks = self.model.weights.needed(Role.SINKS, index) if block.sinks else None
        out = self._attend(index, queries, block.window_tokens, block.scale, sinks)
        return self.model.project(Role.O, index, Activations(out))

    def generate(
        self,
        ids: Sequence[int],
        n: int,
        sampler: Sampler = greedy,
        is_end: Callable[[int], bool] = lambda token: False,
    ) -> Generation:
        """Append a prompt, then choose up to n tokens; stops behind an end token."""
        digest = hashlib.sha256()
        logits = self.append(ids, all_logits=False).logits[-1]
        chosen: list[int] = []
        while True:
            digest.update(np.ascontiguousarray(logits, dtype="<f4").tobytes())
            chosen.append(sampler(logits, len(chosen)))
            if is_end(chosen[-1]) or len(chosen) >= n:
                return Generation(chosen, digest.hexdigest())
            logits = self.append(chosen[-1:], all_logits=False).logits[-1]


# ---- golden results -----------------------------------------------------------------------


def golden_case(
    model: ReferenceModel,
    tokenizer: TokenizerSpec | None,
    *,
    name: str,
    prompt: str | Sequence[int],
    n: int,
    kv: str = "f16",
    chat: bool = False,
) -> dict[str, Any]:
    """One case of docs/format.md section 7, greedy. prompt: a text, or ids."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ColibriError(Code.NO_TOKENIZER, "the prompt is a text; give ids for a model without tokenizer")
        ids, text = list(tokenizer.encode(prompt, chat)), prompt
    else:
        ids, text = [int(token) for token in prompt], ""
    ends = set() if tokenizer is None else set(tokenizer.ends)
    result = model.session(kv).generate(ids, n, is_end=ends.__contains__)
    said = ""
    if tokenizer is not None:
        hidden = ends | set(tokenizer.specials)
        texts = len(tokenizer.tokens)  # a head may have more rows than the tokenizer has texts
        shown = [token for token in result.ids if token < texts and token not in hidden]
        said = tokenizer.decode(shown).decode("utf-8", "replace")
    return {
        "name": name,
        "prompt": text,
        "chat": chat,
        "prompt_ids": ids,
        "kv": kv,
        "n": n,
        "ids": result.ids,
        "text": said,
        "logits_sha256": result.logits_sha256,
    }


def write_golden(path: Path, root: bytes, cases: Sequence[dict[str, Any]]) -> None:
    """Write a golden file; it appears when it is complete."""
    document = {"format": GOLDEN_FORMAT, "root": root.hex(), "cases": list(cases)}
    text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
    if len(cases) > spec.MAX_GOLDEN_CASES or len(text.encode()) > spec.MAX_GOLDEN_BYTES:
        raise ColibriError(
            Code.LIMIT,
            f"{path}: {len(cases)} cases, {len(text.encode())} bytes; devices read {spec.MAX_GOLDEN_CASES} cases in "
            f"{spec.MAX_GOLDEN_BYTES} bytes: give fewer or shorter prompts",
        )
    write_file(path, text.encode())


def add_golden_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri golden`."""
    parser.add_argument("model", metavar="MODEL", help="a .colibri file")
    parser.add_argument("-p", "--prompt", action="append", default=[], help="a prompt; repeatable")
    parser.add_argument("--chat-prompt", action="append", default=[], help="a prompt in chat form; repeatable")
    parser.add_argument("--ids", action="append", default=[], metavar="1,2,3", help="a prompt as ids; repeatable")
    parser.add_argument("-n", "--tokens", type=int, default=32, help="tokens to generate")
    parser.add_argument("--kv", choices=KV_NAMES, default="f16", help="type of the KV cache")
    parser.add_argument("-o", "--output", help="default: MODEL.golden.json beside the model")


def golden_command(args: argparse.Namespace) -> int:
    """`colibri golden`: what every engine must answer, from the numpy reference."""
    if args.tokens < 1:
        raise ColibriError(Code.ARGUMENT, f"-n {args.tokens}; generate at least 1 token")
    prompts: list[tuple[str | list[int], bool]] = [(text, False) for text in args.prompt]
    prompts += [(text, True) for text in args.chat_prompt]
    try:
        prompts += [([int(part) for part in text.split(",")], False) for text in args.ids]
    except ValueError as error:
        raise ColibriError(Code.ARGUMENT, f"--ids: {error}; write integers with commas: 1,2,3") from None
    if not prompts:
        raise ColibriError(Code.ARGUMENT, "no prompt; give -p TEXT, --chat-prompt TEXT or --ids")
    target = Path(args.output) if args.output else golden_path(args.model)
    refuse_output(target, (Path(args.model),))
    refuse_golden_of_others(target, Path(args.model))
    model = ReferenceModel(args.model)
    tokenizer = model.tokenizer()
    cases = []
    for number, (prompt, chat) in enumerate(prompts, 1):
        case = golden_case(
            model,
            tokenizer,
            name=f"case-{number}",
            prompt=prompt,
            n=args.tokens,
            kv=args.kv,
            chat=chat,
        )
        cases.append(case)
        print(f"{case['name']}: {case['logits_sha256']} {case['text']!r}", file=sys.stderr)
    write_golden(target, model.file.root, cases)
    print(target)
    return 0
