# SPDX-License-Identifier: MIT
"""Times llama.cpp through the low-level interface of llama-cpp-python: runs in the peer's own Python.

Commands and answers are JSON, one object a line, on standard input and output:

    {"op": "decode", "tokens": 64, "threads": 1}    -> {"times": [seconds of each token]}
    {"op": "prefill", "tokens": 512, "threads": 2}  -> {"seconds": ...}
    {"op": "status"}                                -> {"VmRSS": bytes, ..., "major_faults": ...}

Standard library and llama_cpp only. The answer to the start is {"load_seconds": ...}.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import random
import resource
import sys
import time
from typing import Any

llama_cpp: Any = importlib.import_module("llama_cpp")  # where types are checked it is not installed


def log_errors(level: int, text: bytes, data: object) -> None:
    """All else that llama.cpp has to say is of no use here."""
    if level >= 4:
        os.write(2, text)


LOG = llama_cpp.llama_log_callback(log_errors)


class Model:
    """One model and one context."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        start = time.perf_counter()
        llama_cpp.llama_log_set(LOG, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
        # Without them weights are used where they are mapped; with them they are copied and repacked.
        params.use_extra_bufts = arguments.repack
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(arguments.model), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {arguments.model}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = arguments.context
        context.n_batch = context.n_ubatch = 512
        context.n_threads = context.n_threads_batch = 1
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.random = random.Random(1)
        self.load_seconds = time.perf_counter() - start

    def clear(self) -> None:
        """Forget the sequence."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def step(self, count: int) -> float:
        """Seconds to append `count` random tokens."""
        ids = (llama_cpp.llama_token * count)(*(self.random.randrange(self.vocabulary) for _ in range(count)))
        start = time.perf_counter()
        code = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(ids, count))
        llama_cpp.llama_synchronize(self.context)
        if code:
            raise SystemExit(f"llama_decode: {code}")
        return time.perf_counter() - start

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command."""
        if command["op"] == "status":
            with open("/proc/self/status") as file:
                rows = dict(line.split(":", 1) for line in file)
            status = {key: int(rows[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM", "RssAnon", "RssFile")}
            return {**status, "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt}
        llama_cpp.llama_set_n_threads(self.context, command["threads"], command["threads"])
        self.clear()
        if command["op"] == "prefill":
            return {"seconds": self.step(command["tokens"])}
        for _ in range(command.get("warm", 0)):
            self.step(1)
        return {"times": [self.step(1) for _ in range(command["tokens"])]}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--repack", action="store_true")
    model = Model(parser.parse_args())
    print(json.dumps({"load_seconds": model.load_seconds}), flush=True)
    for line in sys.stdin:
        print(json.dumps(model.answer(json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
