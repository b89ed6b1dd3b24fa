# SPDX-License-Identifier: MIT
"""Generated from engine/spec/format.toml by engine/spec/generate.py; do not edit."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import ClassVar

MAGIC = bytes.fromhex("434f4c494252491a")
SIGNATURE_DOMAIN = b"colibri model signature\0"
VERSION_MAJOR = 1
VERSION_MINOR = 0
VERSION_OLDEST = 1
HEADER_BYTES = 4096
ROOT_OFFSET = 48
HEADER_RESERVED_OFFSET = 80
SECTION_TABLE_OFFSET = 128
SECTION_ENTRY_BYTES = 64
MIN_SECTIONS = 5
CHUNK_BYTES = 65536
EXTENT_ALIGN_BYTES = 4096
TRUNK_ALIGN_BYTES = 65536
SECTION_ALIGN_BYTES = 4096
SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER_BYTES = 112
TENSOR_ALIGN_BYTES = 64
HASH_BYTES = 32
EXTENT_ENTRY_BYTES = 64
TENSOR_ENTRY_BYTES = 48
DIRECTORY_HEADER_BYTES = 16
BLOCK_HEADER_BYTES = 8
NONE_INDEX = 4294967295
GROUP_COLUMNS = 32
PANEL_ROWS = 8
INT4_BLOCK_BYTES = 144
INT8_BLOCK_BYTES = 272
MXFP4_BLOCK_BYTES = 136
SIGNATURE_SECTION_BYTES = 168
GOLDEN_VERSION = 1
MAX_CODE_POINT = 1114111

MAX_SECTIONS = 16  # the table fits the header page
MAX_LAYERS = 512  # larger than any published decoder; bounds the directory
MAX_EXPERTS = 1024  # requirement A2
MAX_TOP_K = 32  # requirement A2; bounds per-token stacks in the router
MAX_HIDDEN = 65536  # row buffers stay below 256 KiB per token
MAX_INTERMEDIATE = 262144  # four times the widest hidden size
MAX_VOCABULARY = 1048576  # four times the largest published vocabulary
MAX_HEADS = 512  # bounds per-head loops
MAX_HEAD_DIM = 1024  # bounds per-head buffers
MAX_CONTEXT_TOKENS = 1048576  # positions stay exact in binary32 and in the angle product
MAX_ROPE_TABLES = 8  # one per attention pattern; published models need two
MAX_TENSORS = 65536  # 512 layers with 128 tensors each
MAX_EXTENTS = 524801  # 512 layers x 1024 experts + 512 layer trunks + 1
MAX_RECORDS_BYTES = 16777216  # 512 layers need 100 KiB; inv_freq tables the rest
MAX_TOKENIZER_BYTES = 134217728  # 1 M tokens of 64 bytes and their merges
MAX_TOKEN_BYTES = 1024  # bounds the detokenizer's pending buffer
MAX_PROVENANCE_BYTES = 1048576  # licence texts and digests; never parsed on the device
MAX_CALIBRATION_BYTES = 67108864  # counts and co-occurrence of 512 x 1024 experts, sparse
MAX_CALIBRATION_FOLLOWERS = 8  # pairs per expert: 512 x 1024 experts then need 36 MB; what a look-ahead may fetch is fewer
MAX_SIGNATURE_BYTES = 4096  # one page
MAX_GOLDEN_BYTES = 1048576  # MODEL.golden.json: with the ids in it 3 MiB on the device, inside the 4 MiB of a process
MAX_GOLDEN_CASES = 64  # prompts of MODEL.golden.json; a boot gate runs them all
MAX_FILE_BYTES = 4611686018427387904  # 2^62: sums of two offsets cannot overflow u64 or i64

MAX_THREADS = 64  # cores of the largest board; bounds per-thread tables in the model
MAX_BATCH_TOKENS = 512  # activations grow with it; larger batches gain nothing on small boards
MAX_SESSIONS = 64  # each has its own KV cache in the plan
MAX_TEXT_BYTES = 268435456  # merge scratch is 24 bytes per byte of text: 6 GiB
MAX_COMMAND_TEXT_BYTES = 262144  # a prompt of the command; far above any context
MAX_IO_THREADS = 16  # queue depth at which flash of boards is saturated
DEFAULT_THREADS = 4  # memory bandwidth of boards ends there
DEFAULT_BATCH_TOKENS = 32  # weights are read once per batch; activations stay small
DEFAULT_TEXT_BYTES = 65536  # 1.5 MiB of merge scratch
DEFAULT_IO_THREADS = 4  # eMMC and NVMe of boards are near their best there
DEFAULT_PREFETCH_DEPTH = 3  # experts of the next layer that are worth a guess
DEFAULT_CONTEXT_TOKENS = 2048  # a KV cache that a board can hold

REQUIRED_MLA = 1 << 0
REQUIRED_SHORT_CONV = 1 << 1
REQUIRED_STATE_SPACE = 1 << 2
REQUIRED_MXFP4 = 1 << 3
REQUIRED_ATTENTION_SINKS = 1 << 4
REQUIRED_DELTA_NET = 1 << 5
OPTIONAL_SIGNED = 1 << 0
OPTIONAL_CALIBRATED = 1 << 1
REQUIRED_KNOWN = 63


class Section(enum.IntEnum):
    """section_kinds of format.toml."""

    RECORDS = 1
    DIRECTORY = 2
    TOKENIZER = 3
    PROVENANCE = 4
    CALIBRATION = 5
    TRUNK = 6
    EXPERTS = 7
    SIGNATURE = 8


class SignatureAlgorithm(enum.IntEnum):
    """signature_algorithms of format.toml."""

    ED25519 = 1


class DType(enum.IntEnum):
    """dtypes of format.toml."""

    F32 = 0
    F16 = 1
    BF16 = 2
    INT8 = 3
    INT4 = 4
    MXFP4 = 5


class Layout(enum.IntEnum):
    """layouts of format.toml."""

    ROWS = 0
    PANEL8 = 1


class ExtentKind(enum.IntEnum):
    """extent_kinds of format.toml."""

    TRUNK = 1
    EXPERT = 2


class Scope(enum.IntEnum):
    """tensor_scopes of format.toml."""

    TRUNK = 0
    EXPERT = 1


class KvType(enum.IntEnum):
    """kv_dtypes of format.toml."""

    F16 = 1
    F32 = 0
    INT8 = 3


class Role(enum.IntEnum):
    """tensor_roles of format.toml."""

    EMBEDDING = 1
    POSITION_EMBEDDING = 2
    FINAL_NORM = 3
    FINAL_NORM_BIAS = 4
    HEAD = 5
    HEAD_BIAS = 6
    EMBEDDING_NORM = 7
    EMBEDDING_NORM_BIAS = 8
    PRE_MIXER_NORM = 16
    PRE_MIXER_NORM_BIAS = 17
    POST_MIXER_NORM = 18
    POST_MIXER_NORM_BIAS = 19
    PRE_FFN_NORM = 20
    PRE_FFN_NORM_BIAS = 21
    POST_FFN_NORM = 22
    POST_FFN_NORM_BIAS = 23
    Q = 32
    Q_BIAS = 33
    K = 34
    K_BIAS = 35
    V = 36
    V_BIAS = 37
    O = 38
    O_BIAS = 39
    Q_NORM = 40
    K_NORM = 41
    SINKS = 42
    ATTENTION_GATE = 43
    MLA_Q_A = 48
    MLA_Q_A_NORM = 49
    MLA_Q_B = 50
    MLA_KV_A = 51
    MLA_KV_A_NORM = 52
    MLA_K_B = 53
    MLA_V_B = 54
    CONV_IN = 64
    CONV_IN_BIAS = 65
    CONV_WEIGHT = 66
    CONV_BIAS = 67
    CONV_OUT = 68
    CONV_OUT_BIAS = 69
    FFN_GATE = 80
    FFN_GATE_BIAS = 81
    FFN_UP = 82
    FFN_UP_BIAS = 83
    FFN_DOWN = 84
    FFN_DOWN_BIAS = 85
    SHARED_GATE = 96
    SHARED_GATE_BIAS = 97
    SHARED_UP = 98
    SHARED_UP_BIAS = 99
    SHARED_DOWN = 100
    SHARED_DOWN_BIAS = 101
    SHARED_ROUTER = 102
    ROUTER = 112
    ROUTER_BIAS = 113
    ROUTER_SELECTION_BIAS = 114
    EXPERT_GATE = 128
    EXPERT_GATE_BIAS = 129
    EXPERT_UP = 130
    EXPERT_UP_BIAS = 131
    EXPERT_DOWN = 132
    EXPERT_DOWN_BIAS = 133
    STATE_SPACE_FIRST = 160
    STATE_SPACE_LAST = 191


class NormKind(enum.IntEnum):
    """norm_kinds of format.toml."""

    NONE = 0
    RMS = 1
    LAYER = 2


class NormPlace(enum.IntEnum):
    """norm_places of format.toml."""

    PRE_MIXER = 1
    POST_MIXER = 2
    PRE_FFN = 4
    POST_FFN = 8


class PositionKind(enum.IntEnum):
    """position_kinds of format.toml."""

    NONE = 0
    ROPE = 1
    LEARNED = 2


class RopeStyle(enum.IntEnum):
    """rope_styles of format.toml."""

    HALF = 0
    INTERLEAVED = 1


class MixerKind(enum.IntEnum):
    """mixer_kinds of format.toml."""

    NONE = 0
    ATTENTION = 1
    MLA = 2
    SHORT_CONV = 3
    STATE_SPACE = 4
    DELTA_NET = 5


class FfnKind(enum.IntEnum):
    """ffn_kinds of format.toml."""

    NONE = 0
    DENSE = 1
    MOE = 2


class QkNormKind(enum.IntEnum):
    """qk_norm_kinds of format.toml."""

    NONE = 0
    PER_HEAD = 1
    FULL_WIDTH = 2
    FULL_WIDTH_THEN_CLIP = 3


class Activation(enum.IntEnum):
    """activations of format.toml."""

    SILU = 0
    GELU_TANH = 1
    RELU = 2
    GELU_ERF = 3
    SWIGLU_CLAMPED = 4
    IDENTITY = 5


class RouterScore(enum.IntEnum):
    """router_scores of format.toml."""

    SOFTMAX_ALL = 0
    SOFTMAX_CHOSEN = 1
    SIGMOID = 2
    LOGITS = 3


class RouterNormalise(enum.IntEnum):
    """router_normalise of format.toml."""

    NONE = 0
    SUM = 1


class RouterInput(enum.IntEnum):
    """router_inputs of format.toml."""

    FFN_INPUT = 0
    RESIDUAL_BEFORE_MIXER = 1
    FFN_RESIDUAL = 2


class GroupScore(enum.IntEnum):
    """router_group_scores of format.toml."""

    NONE = 0
    MAX = 1
    TOP2_SUM = 2


class SharedGate(enum.IntEnum):
    """shared_gates of format.toml."""

    NONE = 0
    SIGMOID = 1


class Family(enum.IntEnum):
    """families of format.toml."""

    UNKNOWN = 0
    MIXTRAL = 1
    GRANITE_MOE = 2
    SMALLTHINKER = 3
    OLMOE = 4
    QWEN2_MOE = 5
    QWEN3_MOE = 6
    LFM2_MOE = 7
    GPT_OSS = 8
    DEEPSEEK_V2 = 9
    DEEPSEEK_V3 = 10
    SWITCH = 11
    DEEPSPEED_MOE = 12
    FACE_MOE = 13
    LLAMA_MOE = 14
    GRANITE_HYBRID = 15
    AFMOE = 16
    GEMMA_MOE = 17
    QWEN3_NEXT = 18
    PHIMOE = 19


class TokenizerKind(enum.IntEnum):
    """tokenizer_kinds of format.toml."""

    NONE = 0
    BYTE_BPE = 1
    SENTENCEPIECE_BPE = 2
    UNIGRAM = 3


class Pretokenizer(enum.IntEnum):
    """pretokenizers of format.toml."""

    NONE = 0
    GPT2 = 1
    SMOLLM = 2
    LLAMA3 = 3
    QWEN2 = 4
    O200K = 5
    DEEPSEEK_V2 = 6
    DEEPSEEK_V3 = 7


class Normalizer(enum.IntEnum):
    """normalizers of format.toml."""

    NONE = 0
    NFC = 1
    NFKC = 2


class CharacterClass(enum.IntEnum):
    """character_classes of format.toml."""

    OTHER = 0
    LETTER = 1
    NUMBER = 2
    SPACE = 3
    MARK = 4
    UPPER = 5
    LOWER = 6
    PUNCTUATION = 7
    ASIAN = 8
    BASIC = 16


class TokenizerFlag(enum.IntEnum):
    """tokenizer_flags of format.toml."""

    ADD_BOS = 1
    IGNORE_MERGES = 2
    BYTE_FALLBACK = 4
    ADD_PREFIX_SPACE = 8
    KEEP_PREFIX_SPACE = 16
    CHAT_PREFIX_SPACE = 32


@dataclass
class ModelBlock:
    """Block `model`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 1
    STRUCT: ClassVar[str] = "<IIIIIIIIfffIfIII"
    ARRAY: ClassVar[str] = ""
    family: int = 0
    hidden: int = 0
    vocabulary: int = 0
    layers: int = 0
    context_tokens: int = 0
    position_kind: int = 0
    position_offset: int = 0
    tied_head: int = 0
    embedding_multiplier: float = 0.0
    logits_multiplier: float = 0.0
    logits_softcap: float = 0.0
    norm_kind: int = 0
    norm_eps: float = 0.0
    embedding_norm_kind: int = 0
    head_bias: int = 0
    reserved: int = 0


@dataclass
class RopeBlock:
    """Block `rope`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 2
    STRUCT: ClassVar[str] = "<IIfI"
    ARRAY: ClassVar[str] = "inv_freq"
    style: int = 0
    pairs: int = 0
    attention_factor: float = 0.0
    reserved: int = 0
    inv_freq: list[float] = field(default_factory=list)


@dataclass
class LayerBlock:
    """Block `layer`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 3
    STRUCT: ClassVar[str] = "<IIIIfIfIII"
    ARRAY: ClassVar[str] = ""
    index: int = 0
    mixer_kind: int = 0
    ffn_kind: int = 0
    norm_kind: int = 0
    norm_eps: float = 0.0
    norm_places: int = 0
    residual_multiplier: float = 0.0
    norm_bias: int = 0
    parallel: int = 0
    reserved: int = 0


@dataclass
class AttentionBlock:
    """Block `attention`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 4
    STRUCT: ClassVar[str] = "<IIIIfIIIfffIIIII"
    ARRAY: ClassVar[str] = ""
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    scale: float = 0.0
    window_tokens: int = 0
    rope_table: int = 0
    qk_norm_kind: int = 0
    qk_norm_eps: float = 0.0
    clip_qkv: float = 0.0
    softcap: float = 0.0
    q_bias: int = 0
    kv_bias: int = 0
    o_bias: int = 0
    sinks: int = 0
    output_gate: int = 0


@dataclass
class MlaBlock:
    """Block `mla`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 5
    STRUCT: ClassVar[str] = "<IIIIIIfIfI"
    ARRAY: ClassVar[str] = ""
    heads: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    scale: float = 0.0
    rope_table: int = 0
    norm_eps: float = 0.0
    window_tokens: int = 0


@dataclass
class ShortConvBlock:
    """Block `short_conv`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 6
    STRUCT: ClassVar[str] = "<IIII"
    ARRAY: ClassVar[str] = ""
    width: int = 0
    taps: int = 0
    bias: int = 0
    reserved: int = 0


@dataclass
class FfnBlock:
    """Block `ffn`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 7
    STRUCT: ClassVar[str] = "<IIIIff"
    ARRAY: ClassVar[str] = ""
    intermediate: int = 0
    activation: int = 0
    gated: int = 0
    bias: int = 0
    clamp: float = 0.0
    alpha: float = 0.0


@dataclass
class MoeBlock:
    """Block `moe`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 8
    STRUCT: ClassVar[str] = "<IIIIIIffIIfIIIIIIffI"
    ARRAY: ClassVar[str] = ""
    experts: int = 0
    top_k: int = 0
    intermediate: int = 0
    activation: int = 0
    gated: int = 0
    bias: int = 0
    clamp: float = 0.0
    alpha: float = 0.0
    router_score: int = 0
    router_normalise: int = 0
    router_normalise_eps: float = 0.0
    router_input: int = 0
    router_bias: int = 0
    selection_bias: int = 0
    groups: int = 0
    groups_chosen: int = 0
    group_score: int = 0
    routed_scale: float = 0.0
    threshold: float = 0.0
    reserved: int = 0


@dataclass
class SharedBlock:
    """Block `shared`: fixed fields of 4 bytes each."""

    ID: ClassVar[int] = 9
    STRUCT: ClassVar[str] = "<IIIIffII"
    ARRAY: ClassVar[str] = ""
    intermediate: int = 0
    activation: int = 0
    gated: int = 0
    bias: int = 0
    clamp: float = 0.0
    alpha: float = 0.0
    gate: int = 0
    reserved: int = 0


@dataclass
class TokenizerHeader:
    """Block `tokenizer_header`: fixed fields of 4 bytes each."""

    STRUCT: ClassVar[str] = "<IIIIIIIIIIIIIIII"
    ARRAY: ClassVar[str] = ""
    kind: int = 0
    pretokenizer: int = 0
    normalizer: int = 0
    flags: int = 0
    unicode_version: int = 0
    tokens: int = 0
    merges: int = 0
    specials: int = 0
    ends: int = 0
    class_ranges: int = 0
    chat_prefix: int = 0
    chat_suffix: int = 0
    text_bytes: int = 0
    bos_id: int = 0
    unk_id: int = 0
    literals: int = 0


@dataclass
class CalibrationHeader:
    """Block `calibration_header`: fixed fields of 4 bytes each."""

    STRUCT: ClassVar[str] = "<IIII"
    ARRAY: ClassVar[str] = ""
    layers: int = 0
    tokens: int = 0
    pairs: int = 0
    reserved: int = 0


@dataclass
class CalibrationLayer:
    """Block `calibration_layer`: fixed fields of 4 bytes each."""

    STRUCT: ClassVar[str] = "<IIII"
    ARRAY: ClassVar[str] = ""
    layer: int = 0
    experts: int = 0
    top_k: int = 0
    pairs: int = 0


RESERVED_BLOCKS: dict[int, str] = {10: "state_space", 11: "delta_net"}


class Code(enum.IntEnum):
    """Pinned error codes, the same as in colibri.h."""

    OK = 0
    OPEN = -1
    BAD_MAGIC = -2
    VERSION = -3
    TRUNCATED = -4
    EMPTY = -5
    FEATURE = -6
    HEADER = -7
    SECTION = -8
    RECORD = -9
    DIRECTORY = -10
    EXTENT = -11
    TENSOR = -12
    ROOT_MISMATCH = -13
    CHUNK_MISMATCH = -14
    PADDING = -15
    LIMIT = -16
    UNSUPPORTED = -17
    TOKENIZER = -18
    SIGNATURE = -19
    MISSING_TENSOR = -20
    WEIGHTS = -21
    CALIBRATION = -22
    SNAPSHOT = -23
    SNAPSHOT_OTHER = -24
    ARGUMENT = -40
    STRUCT_SIZE = -41
    TOKEN_RANGE = -42
    CONTEXT_FULL = -43
    PROMPT_LONG = -44
    TEXT_LONG = -45
    NO_TOKENIZER = -46
    NO_CHAT = -47
    ISA = -48
    BUDGET = -50
    MEMORY = -51
    LOCK = -52
    THREAD = -53
    IO = -54
    SANDBOX = -55
    NON_FINITE = -60
    BUSY = -61
    CANCELLED = -62
    ABI = -63
    INTERNAL = -64
    ZERO_LOGITS = -65


ERROR_TEXT: dict[int, str] = {
    -1: "cannot open",
    -2: "not a .colibri file",
    -3: "unsupported format version",
    -4: "file is shorter than it says",
    -5: "file is empty",
    -6: "invalid required feature",
    -7: "malformed header",
    -8: "malformed section table",
    -9: "malformed record",
    -10: "malformed directory",
    -11: "malformed extent",
    -12: "malformed tensor entry",
    -13: "root hash mismatch",
    -14: "chunk hash mismatch",
    -15: "padding is not zero",
    -16: "limit exceeded",
    -17: "valid file, but this build cannot run it",
    -18: "malformed tokenizer",
    -19: "signature missing or wrong",
    -20: "a tensor the records need is missing",
    -21: "non-finite scale or weight",
    -22: "malformed calibration profile",
    -23: "malformed or damaged snapshot",
    -24: "snapshot of another model or KV type",
    -40: "invalid argument",
    -41: "option struct of an unknown size",
    -42: "token id out of range",
    -43: "context is full",
    -44: "prompt is longer than the context",
    -45: "text is longer than the limit",
    -46: "the model has no tokenizer",
    -47: "the model has no chat form",
    -48: "instruction set not available",
    -50: "memory budget is below the model's floor",
    -51: "memory could not be had",
    -52: "memory could not be locked",
    -53: "thread could not be started",
    -54: "read failed",
    -55: "sandbox could not be entered",
    -60: "non-finite value during inference",
    -61: "another call is running",
    -62: "cancelled",
    -63: "library and header versions differ",
    -64: "internal error",
    -65: "output logits all zero",
}
ERROR_EXIT: dict[int, int] = {
    -1: 1,
    -2: 3,
    -3: 3,
    -4: 3,
    -5: 3,
    -6: 3,
    -7: 3,
    -8: 3,
    -9: 3,
    -10: 3,
    -11: 3,
    -12: 3,
    -13: 3,
    -14: 3,
    -15: 3,
    -16: 3,
    -17: 3,
    -18: 3,
    -19: 3,
    -20: 3,
    -21: 3,
    -22: 3,
    -23: 3,
    -24: 2,
    -40: 2,
    -41: 2,
    -42: 2,
    -43: 1,
    -44: 2,
    -45: 2,
    -46: 2,
    -47: 2,
    -48: 5,
    -50: 4,
    -51: 5,
    -52: 5,
    -53: 5,
    -54: 1,
    -55: 5,
    -60: 1,
    -61: 1,
    -62: 1,
    -63: 5,
    -64: 1,
    -65: 1,
}
