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
    max_spread_cpu: float = _limit(0.10, "spread of the loop's steps on a CPU")
    max_spread_cuda: float = _limit(0.25, "spread on a GPU: thousands of kernels issued one by one jitter by themselves")
    max_spread_ranks: float = _limit(
        0.20, "spread with several processes: a woken process waits for the scheduler's next tick, 4 ms on some systems"
    )
    spread_slack: float = _limit(2.5, "factor on the CPU spreads where it is known that no other program had the cores")
    quiet_cores: float = _limit(0.01, "share of the time that other programs had the cores, up to which a program varies by itself")
    one_cause: float = _limit(0.8, "share of a cause from which it is the first one however much the steps vary on quiet cores")
    max_wait_for_cores: float = _limit(
        0.10,
        "share of the time that other programs had the cores; measured: at most 0.05 alone, at least 0.27 beside noisy programs",
    )
    max_gpu_taken: float = _limit(0.15, "share of the GPU's time that other programs had")
    self_crowding: float = _limit(0.25, "share lost to more threads than cores from which the spread is the program's own")
    max_mean_off_median: float = _limit(0.15, "distance of the mean step (wall clock) from the median step, as a share of it")

    # Which steps are rare (a checkpoint, a validation, an upload), and when are they the verdict?
    slow_step: float = _limit(1.5, "times the median from which a step may be rare; those of quiet benchmark programs reach 2.7")
    max_slow_fraction: float = _limit(1 / 3, "share of all steps: slow steps that are more frequent are not rare")
    rare_min_span: float = _limit(0.3, "share of a window from its first slow step to its last for them to have a period")
    rare_periods: int = _limit(3, "periods between rare steps that a window waits for")
    rare_min_share: float = _limit(0.05, "share of all time from which rare steps are measured further")
    rare_verdict_share: float = _limit(0.15, "share of all time above which rare steps are a cause of their own")
    rare_clear_ratio: float = _limit(3.0, "times a usual step from which a rare step has a cause, also without a line of its own")
    level_min_steps: int = _limit(8, "steps of a window whose median gives the machine's speed")
    level_max_change: float = _limit(0.15, "change of speed across a window above which the window is left out")
    level_min_windows: int = _limit(2, "steady windows needed to leave out the others")

    # How is the time of a step divided among causes?
    min_fraction: float = _limit(1e-4, "least share of a step that is left when estimates take all of it away")
    loader_slowdown: float = _limit(1.25, "times its time alone that a loader takes beside the training (shared caches and cores)")
    min_forward: float = _limit(0.02, "share in modules below which the forward pass is functions and lies in `prepare`")
    min_threads_gain: float = _limit(0.05, "gain by fewer threads below which it is noise")
    near_peak: float = _limit(0.35, "share of a measured peak (FLOP/s, bandwidth) from which operations count as reaching it")
    mostly_matmul: float = _limit(0.6, "share of kernel time in matmuls from which a low rate does not make them `kernel`")
    faster_dtype: float = _limit(2.0, "times faster that a shorter type must be for `precision` to be a cause")
    long_kernel_seconds: float = _limit(20e-6, "mean kernel time from which kernels without a profile count as memory-bound")
    device_limits: float = _limit(0.8, "kernel time over a step without its suspects from which the GPU is the limit, not the host")
    issue_cost: float = _limit(
        10.0, "times a launch (GPU) or a dispatch (CPU) that an operation takes at most, more is Python; measured: up to 3 and 3.3"
    )
    inside_small: float = _limit(
        0.5, "share of a dispatch (CPU) inside the operation, where a profile shows it as work; measured: 0.55"
    )
    short_pause_us: float = _limit(100.0, "microseconds between operations that modules of torch need for themselves")
    float32_gain: float = _limit(0.5, "share of work in float64 (matmuls, memory, updates) that float32 saves: half the bytes")

    # Which cause is the verdict? Waste comes before work.
    waste_first: float = _limit(0.10, "share from which waste (data, transfer, sync, host, launch, …) comes before work")
    optimizer_first: float = _limit(0.40, "share of the work from which the optimizer comes before the rest of it")
    dispatch_first: float = _limit(0.50, "share of the work from which operations are too small")
    same_share: float = _limit(
        0.05, "difference of a cause's share from what its removal saved up to which the verdict names the latter"
    )
    min_cause_share: float = _limit(0.005, "share below which a cause is not listed after the second")

    # How sure is it?
    busy_thread: float = _limit(0.2, "share of the time that another Python thread computes, from which it can hold up the loop")
    busy_process: float = _limit(0.1, "cores that other processes of the program use, from which they compete with its threads")
    close_causes: float = _limit(1.25, "ratio of the first two shares below which they could change places")
    clear_majority: float = _limit(0.5, "share from which the first cause is clear whatever the second has")
    high_confidence_spread: float = _limit(0.05, "spread up to which confidence can be high")
    high_confidence_steps: int = _limit(20, "steps from which confidence can be high")
    high_confidence_share: float = _limit(0.15, "share of the first cause from which confidence can be high")
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
        1.5,
        "high over low (four standard errors) up to which a prediction is one number, not a range; "
        "measured: errors of 3.1 % (median) and 10 % (p90), the same as with 1.3",
    )
    max_range: float = _limit(4.0, "high over low above which no range is given")
    min_rounds: int = _limit(3, "windows with a fix from which their differences say how sure its gain is")
    unused_rows: float = _limit(4.0, "rows of an embedding per row that a step looks up, from which sparse gradients are advised")
    malloc_share: float = _limit(0.10, "share of a step spent on memory from the system from which `malloc` is measured")
    max_workers: int = _limit(8, "most worker processes that are advised")
    compile_share: float = _limit(
        0.5,
        "share of a step on a CPU in small operations and memory traffic from which compiling is advised, if all other work takes less; "
        "measured: 0.7 to 1.2 times as fast with 0.04 to 0.4, 1.6 to 15 with 0.54 and more",
    )
    autocast_ratio: float = _limit(1.3, "bf16 peak over the peak in use from which autocast is advised")

    # What is said of a trial (`--try`)?
    max_trials: int = _limit(8, "fixes that are tried")
    trial_max_error: float = _limit(0.35, "half interval of the log speed-up above which a range (a factor 2) is given instead")
    trial_sure: float = _limit(0.05, "half interval of the log speed-up up to which no further windows are measured")
    trial_processes: float = _limit(
        0.015,
        "least difference of processes, as a log ratio; where two of the baseline differ by twice as much, a fix has a second one",
    )
    trial_min_gain: float = _limit(1.02, "lower end of the speed-up from which an unpredicted fix is listed")
    trial_speed_change: float = _limit(0.10, "log ratio of baseline steps, diagnosed against tried, above which a note says so")
    loss_tolerance: float = _limit(1e-3, "relative difference of losses allowed to a fix in the same precision")
    loss_tolerance_reduced: float = _limit(5e-2, "the same for a fix that computes in a shorter type")

    def table(self) -> list[tuple[str, str, str]]:
        """Return name, value and meaning of each threshold, in order."""
        return [(limit.name, f"{getattr(self, limit.name):.4g}", limit.metadata["meaning"]) for limit in fields(self)]


RULE = Thresholds()  # the thresholds in use
