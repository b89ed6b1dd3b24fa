# SPDX-License-Identifier: MIT
"""The one module that knows ctypes: loads libcolibri and declares what colibri.h declares.

Private. `colibri.engine` wraps it in typed classes; nothing else imports it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from colibri._spec import ERROR_TEXT, Code
from colibri.errors import ColibriError

ABI_VERSION = 0
LIBRARY_VARIABLE = "COLIBRI_LIBRARY"
LIBRARY_NAME = "libcolibri.so"


class ErrorStruct(ctypes.Structure):
    """colibri_error."""

    _fields_ = [
        ("code", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("message", ctypes.c_char * 256),
    ]


class ModelOptions(ctypes.Structure):
    """colibri_model_options."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("context_tokens", ctypes.c_uint32),
        ("batch_tokens", ctypes.c_uint32),
        ("max_sessions", ctypes.c_uint32),
        ("kv", ctypes.c_uint32),
        ("verify", ctypes.c_uint32),
        ("lock", ctypes.c_uint32),
        ("budget_bytes", ctypes.c_uint64),
        ("max_text_bytes", ctypes.c_uint32),
        ("residency", ctypes.c_uint32),
        ("expert_slots", ctypes.c_uint32),
        ("io_threads", ctypes.c_uint32),
        ("prefetch_depth", ctypes.c_uint32),
        ("direct_io", ctypes.c_uint32),
        ("isa", ctypes.c_char_p),
        ("public_key", ctypes.c_char_p),
        ("require_signature", ctypes.c_uint32),
        ("stall_ms", ctypes.c_uint32),
        ("debug_memory", ctypes.c_uint32),
        ("secure_mode", ctypes.c_uint32),
    ]


class LayerTelemetryStruct(ctypes.Structure):
    """colibri_layer_telemetry."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("layer", ctypes.c_uint32),
        ("experts", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("choices", ctypes.c_uint64),
        ("entropy_millibits", ctypes.c_uint32),
        ("hottest", ctypes.c_uint32),
        ("hottest_percent", ctypes.c_uint32),
        ("hot", ctypes.c_uint32),
        ("has_profile", ctypes.c_uint32),
        ("drift_permille", ctypes.c_uint32),
    ]


class SamplerStruct(ctypes.Structure):
    """colibri_sampler."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("reserved", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
    ]


class Utf8Struct(ctypes.Structure):
    """colibri_utf8."""

    _fields_ = [("held", ctypes.c_uint8 * 4), ("held_bytes", ctypes.c_uint32)]


class PlanStruct(ctypes.Structure):
    """colibri_plan."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("context_tokens", ctypes.c_uint32),
        ("batch_tokens", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("max_sessions", ctypes.c_uint32),
        ("kv", ctypes.c_uint32),
        ("residency", ctypes.c_uint32),
        ("expert_slots", ctypes.c_uint32),
        ("io_threads", ctypes.c_uint32),
        ("max_expert_slots", ctypes.c_uint32),
        ("mapped_bytes", ctypes.c_uint64),
        ("trunk_mapped_bytes", ctypes.c_uint64),
        ("kv_bytes", ctypes.c_uint64),
        ("activation_bytes", ctypes.c_uint64),
        ("table_bytes", ctypes.c_uint64),
        ("slot_bytes", ctypes.c_uint64),
        ("slots_bytes", ctypes.c_uint64),
        ("stack_bytes", ctypes.c_uint64),
        ("io_stack_bytes", ctypes.c_uint64),
        ("arena_bytes", ctypes.c_uint64),
        ("process_bytes", ctypes.c_uint64),
        ("kernel_bytes", ctypes.c_uint64),
        ("total_bytes", ctypes.c_uint64),
        ("floor_bytes", ctypes.c_uint64),
        ("recommended_bytes", ctypes.c_uint64),
    ]


class ModelInfoStruct(ctypes.Structure):
    """colibri_model_info."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("family", ctypes.c_uint32),
        ("layers", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("vocabulary", ctypes.c_uint32),
        ("context_tokens", ctypes.c_uint32),
        ("heads", ctypes.c_uint32),
        ("kv_heads", ctypes.c_uint32),
        ("head_dim", ctypes.c_uint32),
        ("experts", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("intermediate", ctypes.c_uint32),
        ("has_tokenizer", ctypes.c_uint32),
        ("has_chat", ctypes.c_uint32),
        ("parameters", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),
        ("trunk_bytes", ctypes.c_uint64),
        ("expert_bytes", ctypes.c_uint64),
        ("root", ctypes.c_uint8 * 32),
    ]


class ReportStruct(ctypes.Structure):
    """colibri_report."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("locked_bytes", ctypes.c_uint64),
        ("unlocked_bytes", ctypes.c_uint64),
        ("lock_errno", ctypes.c_int32),
        ("verified_extents", ctypes.c_uint32),
        ("extents", ctypes.c_uint32),
        ("direct_io", ctypes.c_uint32),
        ("direct_io_errno", ctypes.c_int32),
        ("signature", ctypes.c_uint32),
        ("isa", ctypes.c_char_p),
        ("lock_message", ctypes.c_char * 192),
        ("residency_message", ctypes.c_char * 192),
        ("key_id", ctypes.c_uint8 * 32),
        ("golden_sha256", ctypes.c_uint8 * 32),
    ]


class ResidencyStruct(ctypes.Structure):
    """colibri_residency_stats."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("slots_used", ctypes.c_uint32),
        ("hits", ctypes.c_uint64),
        ("misses", ctypes.c_uint64),
        ("reads", ctypes.c_uint64),
        ("read_bytes", ctypes.c_uint64),
        ("failed_reads", ctypes.c_uint64),
        ("prefetch_reads", ctypes.c_uint64),
        ("prefetch_hits", ctypes.c_uint64),
        ("prefetch_wasted", ctypes.c_uint64),
        ("io_wait_ns", ctypes.c_uint64),
        ("io_idle_ns", ctypes.c_uint64),
        ("read_ns", ctypes.c_uint64),
        ("hash_ns", ctypes.c_uint64),
        ("barriers", ctypes.c_uint64),
    ]


_Handle = ctypes.c_void_p
_U32 = ctypes.c_uint32
_I32 = ctypes.c_int32
_Int = ctypes.c_int
_Size = ctypes.c_size_t
_Text = ctypes.c_char_p
_Error = ctypes.POINTER(ErrorStruct)

# name: (result, arguments); one line per function of colibri.h that the engine module uses.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "colibri_abi_version": (_U32, []),
    "colibri_version": (_Text, []),
    "colibri_build_info": (_Text, []),
    "colibri_build_forced": (_Text, []),
    "colibri_isas_compiled": (_Text, []),
    "colibri_isas_available": (_Text, []),
    "colibri_strerror": (_Text, [_Int]),
    "colibri_exit_code": (_Int, [_Int]),
    "colibri_selftest": (_Int, [_Text, _Error]),
    "colibri_model_options_default": (None, [ctypes.POINTER(ModelOptions)]),
    "colibri_model_open": (
        _Int,
        [_Text, ctypes.POINTER(ModelOptions), ctypes.POINTER(_Handle), _Error],
    ),
    "colibri_model_close": (None, [_Handle]),
    "colibri_model_plan": (_Int, [_Handle, ctypes.POINTER(PlanStruct)]),
    "colibri_model_info_get": (_Int, [_Handle, ctypes.POINTER(ModelInfoStruct)]),
    "colibri_model_report": (_Int, [_Handle, ctypes.POINTER(ReportStruct)]),
    "colibri_model_residency": (_Int, [_Handle, ctypes.POINTER(ResidencyStruct)]),
    "colibri_session_create": (_Int, [_Handle, ctypes.POINTER(_Handle), _Error]),
    "colibri_session_free": (None, [_Handle]),
    "colibri_session_reset": (None, [_Handle]),
    "colibri_session_append": (_Int, [_Handle, ctypes.POINTER(_I32), _Size, _Error]),
    "colibri_session_logits": (ctypes.POINTER(ctypes.c_float), [_Handle]),
    "colibri_session_position": (_U32, [_Handle]),
    "colibri_session_cancel": (None, [_Handle]),
    "colibri_session_set_sampler": (_Int, [_Handle, ctypes.POINTER(SamplerStruct), _Error]),
    "colibri_session_sample": (_Int, [_Handle, ctypes.POINTER(_I32), _Error]),
    "colibri_session_routing": (
        ctypes.POINTER(_I32),
        [_Handle, _U32, ctypes.POINTER(_U32), ctypes.POINTER(_U32)],
    ),
    "colibri_expert_counts": (
        ctypes.POINTER(ctypes.c_uint64),
        [_Handle, _U32, ctypes.POINTER(_U32)],
    ),
    "colibri_layer_telemetry_get": (_Int, [_Handle, _U32, ctypes.POINTER(LayerTelemetryStruct)]),
    "colibri_session_snapshot_bytes": (ctypes.c_uint64, [_Handle]),
    "colibri_session_save": (_Int, [_Handle, _Text, _Size, _Error]),
    "colibri_session_restore": (_Int, [_Handle, _Text, _Size, _Error]),
    "colibri_session_ids": (ctypes.POINTER(_I32), [_Handle, ctypes.POINTER(_U32)]),
    "colibri_sampler_default": (None, [ctypes.POINTER(SamplerStruct)]),
    "colibri_tokenize": (
        _Int,
        [_Handle, _Text, _Size, _Int, ctypes.POINTER(_I32), ctypes.POINTER(_Size), _Error],
    ),
    # The bytes may hold zeros, so the address is taken and read with the length.
    "colibri_token_bytes": (ctypes.c_void_p, [_Handle, _I32, ctypes.POINTER(_Size)]),
    "colibri_token_is_end": (_Int, [_Handle, _I32]),
    "colibri_token_is_special": (_Int, [_Handle, _I32]),
    "colibri_utf8_feed": (
        _Int,
        [ctypes.POINTER(Utf8Struct), _Text, _Size, _Text, _Size, ctypes.POINTER(_Size)],
    ),
    "colibri_utf8_flush": (_Size, [ctypes.POINTER(Utf8Struct), _Text, _Size]),
}


def library_path() -> Path:
    """$COLIBRI_LIBRARY, else the library that lies in the package."""
    override = os.environ.get(LIBRARY_VARIABLE)
    path = Path(override) if override else Path(__file__).resolve().parent / LIBRARY_NAME
    if not path.is_file():
        raise ColibriError(
            Code.OPEN,
            f"native library {path}: no such file; build the engine, or name the library in ${LIBRARY_VARIABLE}",
        )
    return path


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ColibriError(
            Code.ABI,
            f"native library {path}: {error}; it must be built for this machine",
        ) from error
    try:
        version = library.colibri_abi_version
    except AttributeError as error:
        raise ColibriError(
            Code.ABI, f"native library {path}: has no colibri_abi_version; it is not libcolibri"
        ) from error
    version.restype = _U32
    found = int(version())
    if found != ABI_VERSION:
        raise ColibriError(
            Code.ABI,
            f"native library {path}: ABI version {found}, this package needs {ABI_VERSION}; "
            "install the library and the package of one release",
        )
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ColibriError(
                Code.ABI,
                f"native library {path}: has no {name}; install the library and the package of one release",
            ) from error
        function.restype = result
        function.argtypes = arguments
    return library


_loaded: dict[Path, ctypes.CDLL] = {}


def load() -> ctypes.CDLL:
    """The library, loaded and checked once per path."""
    path = library_path()
    if path not in _loaded:
        _loaded[path] = _load(path)
    return _loaded[path]


def check(code: int, error: ErrorStruct) -> None:
    """Raise ColibriError for a negative code."""
    if code >= 0:
        return
    message = error.message.decode("utf-8", "replace")
    raise ColibriError(
        Code(code) if code in ERROR_TEXT else Code.INTERNAL,
        message or f"error code {code}",
        error.offset if error.offset >= 0 else None,
    )
