# SPDX-License-Identifier: MIT
"""Measure every case of the parity tests and write results.json, then docs/models.md.

    PYTHONPATH=engine:tests:tests/parity python tests/parity/record.py [part of a case's id …]
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import make_document
from checkpoints import CASES, make_checkpoint
from figures import FLOAT, INT4, INT8, RESULTS, converted, float_error, measure, recorded, run_reference


def rounded_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten: what a machine's own sums do not change."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * (1 + 1e-9))


def main() -> int:
    """Measure, write."""
    results = recorded() if RESULTS.exists() else {}
    for case in CASES:
        if len(sys.argv) > 1 and not any(part in case.id for part in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
            folder, target = Path(name), Path(other)
            oracle = make_checkpoint(case, folder)
            error = float_error(run_reference(converted(folder, target, FLOAT), oracle.ids, "f32"), oracle)
            figures = {"f32": {"error": rounded_up(error)}}
            for kind, precision in (("int8", INT8), ("int4", INT4)):
                found = run_reference(converted(folder, target, precision), oracle.ids, "f16")
                figures[kind] = {key: round(value, 4) for key, value in asdict(measure(found, oracle)).items()}
        results[case.id] = figures
        print(f"{case.id}: {error:.1e}, int8 {figures['int8']['rms']}, int4 {figures['int4']['rms']}", flush=True)
    kept = {case.id: results[case.id] for case in CASES if case.id in results}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return make_document.write()


if __name__ == "__main__":
    sys.exit(main())
