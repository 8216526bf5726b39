"""A comparison that is judged by an evaluator: what is held out, what breaks the judgement, and the line in the ledger.

`Evaluation` is what the user asks for. `Judging` is one such comparison: it evaluates the checkpoints of runs, and at the end states the
facts that the verdict needs. A fact named `judge` that is not the same in both versions breaks the judgement: AFTER is then not better.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from stoker import _disk
from stoker._clock import now_utc
from stoker.compare.checkpoint import WEIGHTS, copies_of, files_of, unpack_checkpoint
from stoker.compare.evaluator import Evaluated, evaluate, hashes_of, metric_of, named_files, words_of
from stoker.compare.facts import Fact
from stoker.compare.holdout import HeldOut, ReadWatch, held_out, tree_of
from stoker.compare.ledger import append_to_ledger, read_ledger
from stoker.compare.observed import Observed
from stoker.compare.sides import Side
from stoker.errors import OptionError

MOST_SHARED = 0.01
"""Share of the evaluated samples that may be trained on: a few rows may be equal by chance."""
SHOWN_PATHS = 3
CODE = (".py", ".pyc", ".so")
USUAL_SEEDS = 6  # the fewest for which an exact test can say that a difference is not chance


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How the checkpoints of both versions are judged.

    Example:
        >>> Evaluation(command="python evaluate.py {checkpoint}", checkpoint="model.pt", hold_out=("data/valid.pt",)).checkpoint
        'model.pt'
    """

    command: str
    """Run for each checkpoint, whose path replaces `{checkpoint}`. It prints the metric last, as JSON, or what `metric` matches."""
    checkpoint: str
    """The file or folder that the training program writes."""
    hold_out: Sequence[str | Path] = ()
    """Files and folders that the training program cannot read."""
    log: str | Path | None = None
    """A file to which each judgement is added as a line of JSON."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """How a comparison was judged."""

    command: str
    checkpoint: str
    files: dict[str, str]
    """SHA-256 of each file of the user that the evaluator ran or read."""
    held_out: list[str]
    protected: str
    """What kept held-out files from being read: `overlay`, `landlock`, or `watched` where nothing did and reads were recorded."""
    read: list[str]
    """Held-out files that were opened by a run, where nothing prevented it."""
    number: int | None = None
    """The number of this judgement in the ledger."""


class Judging:
    """The evaluations of one comparison, as a context manager."""

    def __init__(self, asked: Evaluation, pattern: str | None, folder: Path) -> None:
        self.words = words_of(asked.command)
        if asked.log is not None and not Path(asked.log).absolute().parent.is_dir():
            raise OptionError(f"{asked.log} cannot be written: its folder does not exist.", parameter="log")
        self.asked, self._pattern, self._folder = asked, pattern, folder
        self.held: HeldOut = held_out(asked.hold_out, folder)
        self._earlier = [] if asked.log is None else read_ledger(Path(asked.log))
        self._tree = list(tree_of(folder))
        named = {*named_files(self.words), *map(str, self.held.files())}
        self._at_start = hashes_of(sorted(named))
        self._sides: tuple[Side, Side] | None = None
        self._evaluated: dict[str, list[Evaluated]] = {"BEFORE": [], "AFTER": []}
        self._broken: dict[str, None] = {}  # sentences, each once
        self._read: set[str] = set()
        self._inputs: dict[str, set[str]] = {"BEFORE": set(), "AFTER": set()}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._handed = self._open.enter_context(_disk.temporary_folder())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def start(self, before: Side, after: Side) -> None:
        """Judge these two sides from now on."""
        self._sides = before, after

    def _name(self, side: Side) -> str:
        assert self._sides is not None
        return "BEFORE" if side is self._sides[0] else "AFTER"

    def run(self, side: Side, arguments: list[str], **options: Any) -> tuple[Observed, float]:
        """Run a side to its end, and return what was observed and the metric of its checkpoint."""
        assert self._sides is not None
        name = self._name(side)
        number = sum(map(len, self._evaluated.values()))
        folder = self._handed / str(number)
        _disk.make_folder(folder)
        packed = folder / "packed"
        descriptor = _disk.disk.create(packed)
        try:
            handing = {"checkpoint": self.asked.checkpoint, "checkpoint_to": descriptor}
            observed = self.watch(side, arguments, whole=True, **handing, **options)
        finally:
            os.close(descriptor)
        checkpoint = unpack_checkpoint(packed, folder, Path(self.asked.checkpoint).name)
        _disk.remove_file(packed)
        weights = [file for file in files_of(checkpoint) if file.stat().st_size >= WEIGHTS]
        for _, path in copies_of(weights, self._tree):
            self._broken[f"the checkpoint of {name} is a copy of {self._shown(str(path))}, which was there before the run"] = None
        evaluated = evaluate(self.words, checkpoint, self._sides[0].request)
        self._evaluated[name].append(evaluated)
        _disk.remove_folder(folder)
        return observed, metric_of(evaluated.output, self._pattern)

    def watch(self, side: Side, arguments: list[str], **options: Any) -> Observed:
        """Run a side, and record who reads held-out files if nothing prevents it."""
        with ReadWatch(self.held) as watch:
            observed = side.run(arguments, **options)
        if side.mode == "off":
            self._read |= watch.read
        self._inputs[self._name(side)].update(observed.inputs)
        return observed

    def facts(self, first: Observed, second: Observed) -> list[Fact]:
        """Return what is to be said of the judgement: what breaks it, and whether evaluated samples were trained on."""
        self._check_files()
        facts = [Fact(name="judge", same=False, text=text) for text in self._broken]
        return [*facts, *self._other_inputs(), *self._leaks(first, second)]

    def _other_inputs(self) -> list[Fact]:
        """Say which files of the tree AFTER alone reads: another run's weights, or other data."""
        there = {str(path) for path in self._tree if path.suffix not in CODE}
        more = sorted((self._inputs["AFTER"] - self._inputs["BEFORE"]) & there)
        return [Fact(name="inputs", same=False, text=f"AFTER reads {self._list(more)}, which BEFORE does not")] if more else []

    def _check_files(self) -> None:
        """Note what differs in the files of the evaluator."""
        assert self._sides is not None
        every = [evaluated for side in self._evaluated.values() for evaluated in side]
        known = every[0].files if every else {}
        for path, digest in hashes_of(self._at_start).items():
            if digest != self._at_start[path]:
                self._broken[f"{self._shown(path)} changed while versions were compared"] = None
        for evaluated in every[1:]:
            for path in sorted(known.keys() & evaluated.files.keys()):
                if known[path] != evaluated.files[path]:
                    self._broken[f"{self._shown(path)} changed from one evaluation to the next"] = None
        used = {path for evaluated in every for path in evaluated.files} | self._at_start.keys()
        programs = {os.path.realpath(side.version.program) for side in self._sides if not side.version.module}
        changed = [path for path in sorted(used) if self._sides[0].content(path) != self._sides[1].content(path)]
        if changed:
            self._broken[f"AFTER changes {self._list(changed)}, which the evaluator uses: it ran as in BEFORE"] = None
        if judged := sorted(programs & {path for evaluated in every for path in evaluated.modules}):
            self._broken[f"the evaluator runs {self._list(judged)}, the program that it judges"] = None
        modules = {path for evaluated in every for path in evaluated.modules}
        if hiding := [
            path for path in sorted(modules) if Path(path).stem in sys.stdlib_module_names and Path(path).stem != "__init__"
        ]:
            self._broken[f"{self._list(hiding)} hides a module of Python from the evaluator"] = None
        if self._read:
            self._broken[f"{self._list(sorted(self._read))} was opened while the training program ran"] = None
        self._check_earlier(known)

    def _check_earlier(self, known: Mapping[str, str]) -> None:
        """Note files of the evaluator that are not as in the last judgement with this command."""
        same = [line for line in self._earlier if line.get("command") == self.asked.command]
        if not same:
            return
        before = same[-1].get("files", {})
        if changed := [path for path in sorted(before.keys() & known.keys()) if before[path] != known[path]]:
            self._broken[
                f"{self._list(changed)} changed since judgement {same[-1]['number']}: start a new log for another evaluator"
            ] = None
        if added := [path for path in sorted(known.keys() - before.keys()) if path.endswith(".py")]:
            self._broken[f"the evaluator runs {self._list(added)}, which it did not in judgement {same[-1]['number']}"] = None

    def _leaks(self, first: Observed, second: Observed) -> list[Fact]:
        rows = {row for side in self._evaluated.values() for evaluated in side for row in evaluated.rows.exact}
        if not rows:
            return []
        shared = [len(rows & set(observed.training.exact)) for observed in (first, second)]
        if shared[1] <= shared[0] + MOST_SHARED * len(rows):
            text = f"{shared[1]:,} of {len(rows):,} samples of the evaluator are trained on" + (" in both" if shared[1] else "")
            return [Fact(name="leak", same=None if shared[1] > MOST_SHARED * len(rows) else True, text=text)]
        text = f"{shared[1]:,} of {len(rows):,} samples of the evaluator are trained on, instead of {shared[0]:,}"
        return [Fact(name="leak", same=False, text=text)]

    def judgement(self) -> Judgement:
        """Return how the comparison was judged, for the receipt."""
        modes = {side.mode for side in self._sides or ()}
        files = next((evaluated.files for side in self._evaluated.values() for evaluated in side), {})
        return Judgement(
            command=self.asked.command,
            checkpoint=self.asked.checkpoint,
            files={**self._at_start, **files},
            held_out=[self._shown(path) for path in self.held.hidden],
            protected="watched" if modes & {"off", None} else "overlay" if "overlay" in modes else "landlock",
            read=sorted(map(self._shown, self._read)),
            number=None if self.asked.log is None else len(self._earlier) + 1,
        )

    def record(self, values: Mapping[str, Any]) -> None:
        """Add a line to the ledger."""
        if self.asked.log is not None:
            judgement = msgspec.to_builtins(self.judgement())
            judgement.pop("number")
            append_to_ledger(Path(self.asked.log), {"date": now_utc(), **judgement, **values})

    def _shown(self, path: str) -> str:
        return os.path.relpath(path, self._folder.resolve()) if path.startswith(f"{self._folder.resolve()}/") else path

    def _list(self, paths: Sequence[str]) -> str:
        more = f" and {len(paths) - SHOWN_PATHS} more" if len(paths) > SHOWN_PATHS else ""
        return ", ".join(map(self._shown, paths[:SHOWN_PATHS])) + more
