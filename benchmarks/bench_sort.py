"""What does sorting keys by 16-bit digits gain over NumPy's stable sort?"""

from __future__ import annotations

import time

import numpy as np

from benchmarks import record
from stoker.store.pack.blocks import stable_order

QUESTION = "How much faster is a stable order of integer keys by 16-bit digits than np.argsort(kind='stable')?"


def main() -> None:
    """Keys of several widths, in process CPU time."""
    options = record.arguments(QUESTION)
    rows, rounds = (20_000, 2) if options.small else (500_000, options.rounds or 15)
    rng = np.random.default_rng(0)
    keys = {
        "50,000 keys": rng.integers(0, 50_000, rows),
        "31 bits": rng.integers(0, 2**31, rows),
        "nanoseconds of two weeks": 1_600_000_000_000_000_000 + rng.integers(0, 2**50, rows),
        "64 bits": rng.integers(-(2**63), 2**63 - 1, rows),
    }
    answer: dict[str, object] = {"rows": rows, "rounds": rounds}
    for name, values in keys.items():
        sides = {"numpy": lambda v=values: np.argsort(v, kind="stable"), "digits": lambda v=values: stable_order(v)}
        seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
        answer[name] = {
            "times faster": record.ratio(seconds["numpy"], seconds["digits"]),
            "nanoseconds per row": round(1e9 * min(seconds["digits"]) / rows, 1),
            "equal": bool((np.argsort(values, kind="stable") == stable_order(values)).all()),
        }
    print(answer) if options.small else record.save("bench_sort", QUESTION, answer)


if __name__ == "__main__":
    main()
