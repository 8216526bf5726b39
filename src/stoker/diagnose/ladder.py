"""The ladder: steps a second now, and with one cause after the other gone: data free, sync free, launch free, roofline.

Each rung is the one before without some parts of the step, so it is at least as high. The last is what the floating-point work
takes at the peak that this machine was measured to reach, and nothing climbs past it.
"""

from __future__ import annotations

from stoker.diagnose.measurements import Measurements
from stoker.diagnose.parts import Division, flops_seconds

RUNGS: dict[str, tuple[str, ...]] = {
    "data_free": ("data", "transfer"),
    "sync_free": ("sync", "host", "oversubscribed", "straggler", "communication"),
    "launch_free": ("launch", "dispatch"),
}
SHORTEST = 1e-4
"""Of a step: what is left when estimates take all of it away."""


def climb(measured: Measurements, division: Division) -> dict[str, float]:
    """Steps a second by rung; empty where no step was measured."""
    if division.step <= 0:
        return {}
    roof = flops_seconds(measured)
    least = min(division.step, max(roof, SHORTEST * division.step))
    left = max(least, measured.wall_seconds or division.step)
    ladder = {"now": 1 / left}
    # What a step takes longer by the wall clock than its parts is due to rare steps, which wait for batches or are the loop's own.
    rare, longer = measured.rare, max(0.0, left - division.step)
    gone = "data_free" if rare is not None and rare.phase in ("next", "prepare") else "sync_free"
    for rung, names in RUNGS.items():
        parts = sum(getattr(division.parts, name) for name in names)
        left = max(least, left - parts - (longer if rung == gone else 0.0))
        ladder[rung] = 1 / left
    ladder["roofline"] = 1 / least if roof > 0 else 1 / left
    return ladder
