# SPDX-License-Identifier: MIT
"""The calibration section of a .colibri file (docs/format.md, 10): how experts were used on a text.

Standard library only. Written from the document, as the C reader is; both give the same code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from colibri import _spec as spec
from colibri._spec import CalibrationHeader, CalibrationLayer, Code, MoeBlock
from colibri.errors import ColibriError
from colibri.records import Records

_HEADER = struct.Struct(CalibrationHeader.STRUCT)
_LAYER = struct.Struct(CalibrationLayer.STRUCT)
_PAIR = struct.Struct("<II")


@dataclass
class Profile:
    """Counts of a calibration text, by layer that has experts.

    layers: index of each such layer. counts: [layer][expert], times chosen; a token chooses top_k.
    followers: [layer] -> (expert, expert of the next such layer) -> tokens that chose both; the
    most frequent ones of each expert, none for the last layer.
    """

    tokens: int
    layers: list[int]
    counts: list[list[int]]
    followers: list[dict[tuple[int, int], int]] = field(default_factory=list)


def moe_layers(records: Records) -> list[tuple[int, MoeBlock]]:
    """(index, block) of every layer that has experts."""
    return [(i, layer.ffn) for i, layer in enumerate(records.layers) if isinstance(layer.ffn, MoeBlock)]


def keep_followers(pairs: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """The most frequent followers of each expert, at most as many as the section takes; ties: lower ids."""
    best: dict[int, list[tuple[int, int]]] = {}
    for (expert, following), count in pairs.items():
        best.setdefault(expert, []).append((-count, following))
    kept = {}
    for expert in sorted(best):
        chosen = sorted(best[expert])[: spec.MAX_CALIBRATION_FOLLOWERS]
        kept.update({(expert, following): -count for count, following in sorted(chosen, key=lambda pair: pair[1])})
    return kept


def encode_profile(profile: Profile, records: Records) -> bytes:
    """The section."""
    pairs = [dict(sorted(table.items())) for table in profile.followers]
    parts = [_HEADER.pack(len(profile.layers), profile.tokens, sum(map(len, pairs)), 0)]
    for (index, moe), table in zip(moe_layers(records), pairs, strict=True):
        parts.append(_LAYER.pack(index, moe.experts, moe.top_k, len(table)))
    parts += [struct.pack(f"<{len(row)}I", *row) for row in profile.counts]
    parts += [_PAIR.pack(e << 16 | f, count) for table in pairs for (e, f), count in table.items()]
    return b"".join(parts)


class _Reading:
    """Raises with the place in the file."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def check(self, holds: bool, at: int, what: str) -> None:
        if not holds:
            raise ColibriError(
                Code.CALIBRATION, f"calibration profile: {what}; run colibri calibrate again", self.offset + at
            )


def decode_profile(data: bytes, records: Records, offset: int = 0) -> Profile:
    """The profile in a section; `offset` is its place in the file, for messages."""
    r = _Reading(offset)
    r.check(len(data) >= _HEADER.size, 0, f"{len(data)} bytes, the head alone has {_HEADER.size}")
    layers, tokens, total, reserved = _HEADER.unpack_from(data)
    r.check(tokens > 0, 4, "0 tokens, must be at least 1")
    r.check(reserved == 0, 12, f"reserved field is {reserved}, must be 0")
    wanted = moe_layers(records)
    r.check(layers == len(wanted), 0, f"{layers} layers, the model has {len(wanted)} with experts")
    room = (len(data) - _HEADER.size) // _LAYER.size
    r.check(layers <= room, 0, f"{layers} layers, there is room for {room}")
    pairs = []
    for i, (index, moe) in enumerate(wanted):
        at = _HEADER.size + i * _LAYER.size
        found = _LAYER.unpack_from(data, at)
        expected = (index, moe.experts, moe.top_k)
        r.check(found[:3] == expected, at, f"layer, experts, top_k are {found[:3]}, must be {expected}")
        pairs.append(found[3])
    r.check(total == sum(pairs), 8, f"{total} pairs, the layers have {sum(pairs)}")
    at = _HEADER.size + layers * _LAYER.size
    size = at + 4 * sum(moe.experts for _, moe in wanted) + _PAIR.size * total
    r.check(len(data) == size, 0, f"{len(data)} bytes, its head asks for {size}")
    counts: list[list[int]] = []
    for _, moe in wanted:
        counts.append(list(struct.unpack_from(f"<{moe.experts}I", data, at)))
        _check_counts(r, counts[-1], tokens, moe.top_k, at)
        at += 4 * moe.experts
    followers = []
    for i, count in enumerate(pairs):
        following = counts[i + 1] if i + 1 < len(counts) else []
        followers.append(_read_pairs(r, data, at, count, counts[i], following))
        at += _PAIR.size * count
    return Profile(tokens, [index for index, _ in wanted], counts, followers)


def _check_counts(r: _Reading, counts: Sequence[int], tokens: int, top_k: int, at: int) -> None:
    for i, count in enumerate(counts):
        r.check(count <= tokens, at + 4 * i, f"count {count} of expert {i} exceeds the {tokens} tokens")
    r.check(sum(counts) == tokens * top_k, at, f"counts add up to {sum(counts)}, must be {tokens} x {top_k}")


def _read_pairs(
    r: _Reading, data: bytes, at: int, number: int, counts: Sequence[int], following: Sequence[int]
) -> dict[tuple[int, int], int]:
    r.check(number == 0 or bool(following), at, f"the last layer has {number} pairs, must have none")
    table: dict[tuple[int, int], int] = {}
    last, run = (-1, -1), 0
    for i in range(number):
        where = at + _PAIR.size * i
        key, count = _PAIR.unpack_from(data, where)
        pair = (key >> 16, key & 0xFFFF)
        r.check(pair[0] < len(counts), where, f"expert {pair[0]} of a pair, the layer has {len(counts)}")
        r.check(pair[1] < len(following), where, f"expert {pair[1]} of a pair, the next layer has {len(following)}")
        r.check(pair > last, where, f"pair {pair} stands behind {last}; pairs ascend")
        run = run + 1 if pair[0] == last[0] else 1
        limit = spec.MAX_CALIBRATION_FOLLOWERS
        r.check(run <= limit, where, f"expert {pair[0]} has more than {limit} pairs")
        most = min(counts[pair[0]], following[pair[1]])
        r.check(1 <= count <= most, where + 4, f"count {count} of a pair, must be 1..{most}")
        table[pair] = count
        last = pair
    return table
