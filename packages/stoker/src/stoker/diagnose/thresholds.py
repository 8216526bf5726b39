"""Every threshold of the diagnosis rule: what decides a verdict, a NO VERDICT or an advice. `stoker diagnose --thresholds` prints them.

`RULE` holds the values that are used. Where a value comes from a measurement, its meaning says so. "Share" means a share of a
step's time unless another whole is named. Settings of the measuring itself (how long a window lasts) are not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _limit(value: float, meaning: str) -> Any:
    """Return a field with its default and its meaning."""
    return field(default=value, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """The numbers of the rule, by the question they decide. `table` lists them with their meaning."""

    # Is there a verdict at all? Otherwise NO VERDICT.
    min_steps: int = _limit(12, "clean steps needed for a verdict")
    max_wait_for_cores: float = _limit(0.10, "share of the time that other programs had the cores; measured: 0.05 alone, 0.22 else")
    max_gpu_taken: float = _limit(0.15, "share of the GPU's time that other programs had")

    # Which steps are rare (a checkpoint, a validation, an upload), and when are they the verdict?
    slow_step: float = _limit(1.5, "times the median from which a step may be rare; those of quiet benchmark programs reach 2.7")
    max_slow_fraction: float = _limit(1 / 3, "share of all steps: slow steps that are more frequent are not rare")
    rare_min_span: float = _limit(0.3, "share of a window from its first slow step to its last for them to have a period")
    rare_periods: int = _limit(3, "periods between rare steps that a window waits for")
    rare_min_share: float = _limit(0.05, "share of all time from which rare steps are measured further")
    rare_verdict_share: float = _limit(0.15, "share of all time above which rare steps are a cause of their own")
    rare_clear_ratio: float = _limit(3.0, "times a usual step from which a rare step has a cause, also without a line of its own")
    max_spread_cpu: float = _limit(0.10, "spread of a CPU's steps above which a period of long and short ones is looked for")
    level_min_steps: int = _limit(8, "steps of a window whose median gives the machine's speed")
    level_max_change: float = _limit(0.15, "change of speed across a window above which the window is left out")
    level_min_windows: int = _limit(2, "steady windows needed to leave out the others")

    # How is the time of a step divided among causes?
    loader_slowdown: float = _limit(1.25, "times its time alone that a loader takes next to the training (shared caches and cores)")
    min_forward: float = _limit(0.02, "share in modules below which the forward pass is functions and lies in `prepare`")
    issue_cost: float = _limit(10.0, "times a launch (GPU) or a dispatch (CPU) that an operation takes at most; more is Python")
    inside_small: float = _limit(
        0.5, "share of a dispatch (CPU) inside the operation, where a profile shows it as work; measured: 0.55"
    )
    uncrowded_gain: float = _limit(
        0.33,
        "share of a step that fewer threads must save where each thread has a core; measured: 0.22 on two hyperthreads of a core",
    )
    short_pause_us: float = _limit(100.0, "microseconds between operations that modules of torch need for themselves")
    page_return: float = _limit(0.2, "share of what a page from the system costs that its return takes; measured: 0.10-0.14")
    float32_gain: float = _limit(0.5, "share of work in float64 (matmuls, memory, updates) that float32 saves: half the bytes")

    # Which cause is the verdict? Waste comes before work.
    waste_first: float = _limit(0.10, "share from which waste (data, transfer, sync, host, launch, …) comes before work")
    optimizer_first: float = _limit(0.40, "share of the work from which the optimizer comes before the rest of it")
    removal_first: float = _limit(
        0.25, "share that a removal must save to come before launches, of which only the idle time is known"
    )
    removal_of_launch: float = _limit(
        2 / 3, "part of that idle time that it must save for this; measured: 0.75, and 0.55 of launches"
    )
    straggler_first: float = _limit(
        0.5,
        "times the all-reduce from which a straggler comes first: ranks that sleep until it arrives wake up late; measured: 0.7-1.0",
    )
    same_share: float = _limit(0.05, "difference of a share from what its removal saved up to which the verdict names the latter")
    min_cause_share: float = _limit(0.005, "share below which a cause is not listed after the second")

    # How sure is it?
    close_causes: float = _limit(1.25, "ratio of the first two shares below which they could change places")
    max_spread: float = _limit(0.25, "spread of the steps above which confidence is low")
    high_confidence_spread: float = _limit(0.05, "spread up to which confidence can be high")
    high_confidence_steps: int = _limit(20, "steps from which confidence can be high")
    high_confidence_rare: float = _limit(0.3, "share of all time from which a rare step with a known line has high confidence")
    mention: float = _limit(0.05, "share of all time between epochs, or of a step on memory from the system, that is mentioned")

    # What is advised, and what is predicted of it?
    min_gain: float = _limit(1.02, "speed-up below which nothing is advised")
    same_gain: float = _limit(1.05, "ratio of two speed-ups below which they are as good")
    max_speedup: float = _limit(1000.0, "speed-up above which noise decides")
    advise_share: float = _limit(0.10, "share from which a cause other than the first is advised on")
    run_to_run: float = _limit(0.01, "difference from process to process, as a share of a step")
    run_to_run_memory: float = _limit(0.08, "the same for what a CPU moves through memory: pages lie elsewhere in each process")
    run_to_run_launch: float = _limit(0.06, "the same for steps whose GPU waits for its host")
    max_prediction_range: float = _limit(
        1.5, "high over low up to which a prediction is a number; measured: errors of 3.1 % (p90: 10 %)"
    )
    min_rounds: int = _limit(3, "windows with a fix from which their differences say how sure its gain is")
    unused_rows: float = _limit(4.0, "rows of an embedding per row that a step looks up, from which sparse gradients are advised")
    malloc_share: float = _limit(0.10, "share of a step spent on memory from the system from which `malloc` is measured")
    max_workers: int = _limit(8, "most worker processes that are advised")
    compile_share: float = _limit(
        0.5, "share of a step that compiling can join from which it is advised; measured: 0.7-1.2x below, 1.6-15x above"
    )
    autocast_ratio: float = _limit(1.3, "bf16 peak over the peak in use from which autocast is advised")

    # What is said of a trial (`--try`)?
    max_trials: int = _limit(8, "fixes that are tried")
    trial_min_gain: float = _limit(1.02, "lower end of the speed-up from which an unpredicted fix is listed")
    trial_speed_change: float = _limit(0.10, "log ratio of baseline steps, diagnosed against tried, above which a note says so")
    loss_tolerance: float = _limit(1e-3, "relative difference of losses allowed to a fix in the same precision")
    loss_tolerance_reduced: float = _limit(5e-2, "the same for a fix that computes in a shorter type")

    def table(self) -> list[tuple[str, str, str]]:
        """Return name, value and meaning of each threshold, in order."""
        return [(limit.name, f"{getattr(self, limit.name):.4g}", limit.metadata["meaning"]) for limit in fields(self)]


RULE = Thresholds()  # the thresholds in use
