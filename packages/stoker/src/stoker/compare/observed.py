"""What a run is asked for, and what was observed in it: plain values that two processes exchange."""

from __future__ import annotations

import msgspec

INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages."""


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one version of a program."""

    program: str  # a path, or the name of a module with `module=True`
    module: bool = False
    arguments: list[str] = []
    launcher: list[str] = []  # the words before the program, such as those of torchrun
    files: str | None = None  # a folder with files that replace those of the user, by their absolute paths
    removed: list[str] = []  # files of the user that this version does not have
    steps: int | None = None  # optimizer steps after which the run ends
    seconds: float | None = None  # time after the first step at which a run without `steps` ends
    until: float | None = None  # time after the first step at which a run without `steps` ends, whatever its number of steps
    whole: bool = False  # whether it runs to its own end
    seed: int = 0  # added to all seeds
    observe: bool = False  # whether fingerprints are recorded
    hooks: bool = True  # whether anything is recorded: without hooks, the extension records, and ends the run
    perturb: bool = False  # whether the initial weights are changed by one rounding error
    same_draws: bool = False  # whether persistent workers of a loader draw the seeds that others draw
    extension: str = ""  # "module:class" of an `Extension` of the run
    options: str = ""  # of the extension
    kept: bool = False  # whether all that it starts ends with it
    checkpoint: str | None = None  # a file or folder that it writes, which is handed over
    checkpoint_to: int | None = None  # the open file that gets it
    hidden: list[str] = []  # files that it cannot read
    begin_ns: int = 0


class SeenSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Fingerprints of the samples that entered the model, in their order."""

    exact: list[int] = []
    rounded: list[int] = []  # of the values in bfloat16: equal where only rounding differs
    per_step: list[int] = []  # samples seen by the end of each step
    training_mode: bool | None = None  # of the model, in the first call


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed in a run."""

    error: str | None = None
    losses: list[float] = []  # of each step, summed over its backward passes
    ends: list[float] = []  # the end of each step in seconds since the process was started
    middle: float = 0.0  # the end of the first half of the steps, when the device had finished them
    end: float = 0.0  # the same for all steps
    finished: bool = False  # whether the program came to its own end
    output: str = ""
    device: str = "cpu"
    disturbed: float | None = None  # share of the time in which other programs had the cores
    host_bytes: int = 0
    device_bytes: int = 0
    weights: list[str] = []  # shape, dtype and fingerprint of each tensor that the optimizer updates, before the first step
    parameters: int = 0
    random: dict[str, list[int]] = {}  # the state of each generator after each step
    training: SeenSamples = SeenSamples()
    evaluation: SeenSamples = SeenSamples()
    epoch_samples: int | None = None
    epsilon: float = 2.0**-23  # of the least precise type that the model computed in
    packages: dict[str, str] = {}
    modules: list[str] = []  # of installed packages, in the order of their imports
    variables: list[str] = []  # environment variables that the program has set although libraries read them when they are loaded
    inputs: list[str] = []  # files that a confined run opened to read, or moved
    code: dict[str, str] = {}  # SHA-256 of the user's files that were run
    answer: bytes = b""  # of the extension

    @property
    def step_seconds(self) -> float:
        """The mean time of a step in the second half of the run: warm-up and compilation are in the first."""
        steps = len(self.ends)
        return (self.end - self.middle) / max(1, steps - steps // 2)
