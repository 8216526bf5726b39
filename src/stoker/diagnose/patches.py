"""Patches: fixes as edits of the user's own files (`stoker diagnose --apply`), written only where a gain was measured.

1. A run of the program finds the calls to edit (source_edits.py), and `EDITS` makes the edits of each advised fix.
2. The edited program runs in turn with the baseline (trials.py): each fix alone, and then all that gain together. The files on disk stay
   as they are: the edits are applied when the program imports them.
3. A patch is written if its speed-up is measured and its losses are those of the baseline: equal, or within the tolerance of a fix
   that rounds differently.

Without a verdict, the fixes of the likely cause are tried, and some that fit most programs.
"""

from __future__ import annotations

import ast
import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stoker import _disk
from stoker._clock import now_ns
from stoker.diagnose import wording
from stoker.diagnose.advice import advise, value_of
from stoker.diagnose.division import divide
from stoker.diagnose.finding import Finding
from stoker.diagnose.fixes import FIXES
from stoker.diagnose.hooks import is_own, shown
from stoker.diagnose.measurements import Patch, TrialResult
from stoker.diagnose.source_edits import (
    SIMPLE,
    CallSite,
    Edit,
    EditSites,
    SourceFile,
    assigned_to,
    by_file,
    check_edits,
    following,
    line_after,
    torch_import,
    torch_name,
    unified_diff,
    with_keyword,
    within,
)
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.trials import (
    ALSO,
    COMPILE_SECONDS,
    LIMIT_SECONDS,
    BaselineRuns,
    Comparison,
    TrialProcess,
    judge_by,
    run_in_turn,
)
from stoker.errors import TrainError

ALL = "all"  # the name of all fixes that gain, tried together
WITHOUT_VERDICT = ("pinned", "persistent", "fused", "tf32", "cudnn")  # tried if no cause is known
MIN_SECONDS = 5.0  # time limit of a process, however little time is left
ALWAYS = ("set_to_none",)  # tried wherever its call is found: no measurement of a diagnosis shows it
EXACT = ("feed", "persistent", "pinned", "set_to_none", "workers")
"""Fixes that change no operation: their losses must be equal, if those of the baseline are from run to run."""
ROUNDING = ("autocast", "float32", "tf32")  # fixes that compute in a shorter type
DTYPES = {"torch": ("float64", "double"), "np": ("float64", "double"), "numpy": ("float64", "double")}


@dataclass(frozen=True, kw_only=True)
class EditableProgram:
    """The user's files, where to edit them, and the values of fixes (such as the number of workers)."""

    sites: EditSites
    values: dict[str, int | None]
    sources: dict[str, SourceFile] = field(default_factory=dict)  # the files that were read so far

    def source(self, path: str) -> SourceFile:
        """One of the user's files. Raises `TrainError` for any other."""
        if not is_own(path):
            raise TrainError(f"{path} belongs to an installed package")
        if path not in self.sources:
            self.sources[path] = SourceFile.read(path)
        return self.sources[path]

    def call(self, site: CallSite) -> tuple[SourceFile, ast.Call]:
        """The call at a site."""
        if not site.own:
            raise TrainError(f"it is made in {site.file}:{site.line}, which belongs to an installed package")
        source = self.source(site.file)
        return source, source.call_ending_at(site.line, site.column)

    def calls(self, sites: list[CallSite], missing: str) -> list[tuple[SourceFile, ast.Call]]:
        """The calls at all sites. Raises `TrainError` if there is none."""
        if not sites:
            raise TrainError(missing)
        return [self.call(one) for one in sites]

    def loader(self) -> tuple[SourceFile, ast.Call]:
        """The call that makes the DataLoader of the training loop."""
        if self.sites.loader_kind not in ("", "DataLoader"):
            raise TrainError(f"{self.sites.loader_kind} is not the DataLoader of torch")
        return self.calls(self.sites.loader, "the batches do not come from a DataLoader")[0]

    def refuse_if_mentioned(self, *names: str, plain: bool = False) -> None:
        """Raise `TrainError` if one of the user's files already sets what a fix would set; `plain` names count as well as attributes."""
        for path in self.sites.files:
            source = self.source(path)
            for node in ast.walk(source.tree):
                name = node.attr if isinstance(node, ast.Attribute) else node.id if plain and isinstance(node, ast.Name) else None
                if isinstance(node, ast.expr) and name in names:
                    raise TrainError(f"{shown(path)}:{node.lineno} sets it already ({name})")


def _set_flag(program: EditableProgram, code: str, *names: str) -> list[Edit]:
    program.refuse_if_mentioned(*names)
    source = program.source(program.sites.main)
    torch, importing = torch_name(source)
    return [*importing, line_after(source, torch_import(source)[1], f"{torch}.{code}")]


def _keyword(program: EditableProgram, sites: list[CallSite], name: str, missing: str) -> list[Edit]:
    return [edit for source, call in program.calls(sites, missing) for edit in with_keyword(source, call, name, "True")]


def _pinned(program: EditableProgram) -> list[Edit]:
    source, call = program.loader()
    pinning = [] if program.sites.pinned else with_keyword(source, call, "pin_memory", "True")
    copies = [edit for place in program.sites.copies for edit in with_keyword(*program.call(place), "non_blocking", "True")]
    return [*pinning, *copies]


def _persistent(program: EditableProgram) -> list[Edit]:
    source, call = program.loader()
    if not program.sites.workers or program.sites.persistent:
        raise TrainError("the DataLoader has no workers, or keeps them already")
    workers = argument(call, "num_workers", 5)
    if isinstance(workers, ast.Constant):
        return with_keyword(source, call, "persistent_workers", "True")
    if isinstance(workers, ast.Name | ast.Attribute):  # torch refuses persistent workers if there are none
        return with_keyword(source, call, "persistent_workers", f"{source.source_of(workers)} > 0")
    raise TrainError(f"line {call.lineno} computes num_workers")


def _workers(program: EditableProgram) -> list[Edit]:
    source, call = program.loader()
    if not program.sites.indexed:
        raise TrainError("the samples of the dataset are not found by index: each worker would give all of them")
    number = str(program.values.get("workers") or 2)
    return [*with_keyword(source, call, "num_workers", number), *with_keyword(source, call, "persistent_workers", "True")]


def _feed(program: EditableProgram) -> list[Edit]:
    """One lookup per batch instead of one per sample, in the same order: the sampler gives lists of indices."""
    source, call = program.loader()
    if program.sites.gathers:
        raise TrainError(program.sites.gathers)
    (torch, importing), dataset, size = torch_name(source), argument(call, "dataset", 0), argument(call, "batch_size", 1)
    shuffle, drop = argument(call, "shuffle", 2), argument(call, "drop_last", 8)
    fixed = all(one is None or isinstance(one, ast.Constant) for one in (shuffle, drop))
    if size is None or not isinstance(dataset, ast.Name | ast.Attribute) or not fixed:
        raise TrainError(f"line {call.lineno} is not DataLoader(name, batch_size, shuffle=True or False)")
    data, kind = f"{torch}.utils.data", "RandomSampler" if program.sites.shuffles else "SequentialSampler"
    drops = source.source_of(drop) if drop is not None else "False"
    sampler = f"{data}.BatchSampler({data}.{kind}({source.source_of(dataset)}), {source.source_of(size)}, drop_last={drops})"
    cleared = [(size, "None"), *((one, "False") for one in (shuffle, drop) if one is not None)]
    return [*importing, *(source.replacing(one, text) for one, text in cleared), *with_keyword(source, call, "sampler", sampler)]


def _set_to_none(program: EditableProgram) -> list[Edit]:
    edits = []
    for source, call in program.calls(program.sites.zeroing, "no line calls zero_grad(set_to_none=False)"):
        given = call.args[0] if call.args else None
        plain = isinstance(given, ast.Constant)
        edits += [source.replacing(given, "True")] if given and plain else with_keyword(source, call, "set_to_none", "True")
    return edits


def _compile(program: EditableProgram) -> list[Edit]:
    edits = []
    for place in program.sites.model:
        source = program.source(place.file)
        target, statement = assigned_to(place), source.statement_of(program.call(place)[1])
        if target is not None:
            name, mode = source.source_of(target), 'mode="reduce-overhead"' if program.values.get("compile") else ""
            if program.sites.model_kind.startswith("torch."):  # torch compiles no such module in place
                torch, importing = torch_name(source)
                edits += [*importing, line_after(source, statement, f"{name} = {torch}.compile({name}{mode and ', '}{mode})")]
            else:  # in place: the names of the weights in checkpoints stay
                edits.append(line_after(source, statement, f"{name}.compile({mode})"))
    if not edits:
        raise TrainError("no line of yours assigns the model to a name that the training still uses")
    return edits


def _autocast(program: EditableProgram) -> list[Edit]:
    """The call of the model and what follows it up to the backward pass, under `torch.autocast`."""
    program.refuse_if_mentioned("autocast", plain=True)
    found = program.calls(program.sites.forward, "the model is not called in your files")
    source = found[0][0]
    blocks = {_until_backward(one, call) for one, call in found}
    if len(blocks) > 1:
        raise TrainError(f"the model is called at several lines ({', '.join(str(call.lineno) for _, call in found)})")
    ((first, last),) = blocks
    torch, importing = torch_name(source)
    header = f'with {torch}.autocast("{program.sites.device}", dtype={torch}.bfloat16):'
    return [*importing, *within(source, first, last, header)]


def _until_backward(source: SourceFile, call: ast.Call) -> tuple[ast.stmt, ast.stmt]:
    first = source.statement_of(call)
    if not isinstance(first, SIMPLE) or _calls(first, "backward"):
        raise TrainError(f"line {call.lineno} does more than call the model")
    after = following(source, first)
    number = next((number for number, one in enumerate(after) if _calls(one, "backward")), 0)
    block: list[ast.stmt] = [first, *after[:number]]
    while len(block) > 1 and isinstance(block[-1], ast.Expr) and _calls(block[-1], "zero_grad"):
        block.pop()
    return first, block[-1]


def _calls(statement: ast.stmt, name: str) -> bool:
    found = (one.func for one in ast.walk(statement) if isinstance(one, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr == name for one in found)


def _float32(program: EditableProgram) -> list[Edit]:
    edits = []
    for path in program.sites.files:
        source = program.source(path)
        for node in ast.walk(source.tree):
            end = source.span(node)[1] if isinstance(node, ast.Attribute) else 0
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "double" and not node.args:
                end = source.span(node.func)[1]
                edits.append(Edit(file=path, start=end - len("double"), end=end, text="float"))
            elif (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in DTYPES.get(node.value.id, ())
            ):
                edits.append(Edit(file=path, start=end - len(node.attr), end=end, text="float32"))
    if not edits:
        raise TrainError("no line of yours asks for float64")
    return edits


def argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """The value of an argument; None if it is not given."""
    named = next((one.value for one in call.keywords if one.arg == name), None)
    return call.args[position] if named is None and len(call.args) > position else named


EDITS: dict[str, Callable[[EditableProgram], list[Edit]]] = {
    "autocast": _autocast,
    "compile": _compile,
    "cudnn": lambda one: _set_flag(
        one, "backends.cudnn.benchmark = True", "benchmark", "deterministic", "use_deterministic_algorithms"
    ),
    "feed": _feed,
    "float32": _float32,
    "fused": lambda one: _keyword(
        one, one.sites.optimizers, "fused", "no optimizer that has a fused implementation is made in your files"
    ),
    "persistent": _persistent,
    "pinned": _pinned,
    "set_to_none": _set_to_none,
    "sparse": lambda one: _keyword(one, one.sites.embeddings, "sparse", "no large nn.Embedding is made in your files"),
    "tf32": lambda one: _set_flag(
        one, 'set_float32_matmul_precision("high")', "set_float32_matmul_precision", "allow_tf32", "fp32_precision"
    ),
    "workers": _workers,
}
"""Functions that make the edits of each fix, by the name of its advice. They raise `TrainError` with the reason if they cannot."""


def offer_patch(
    finding: Finding,
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    path: Path,
    module: bool = False,
    quiet: bool = False,
    seconds: float = 1.5,
    at_most: float | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Finding:
    """The finding with the result of its patch, which is written to `path` if it is a gain."""
    # Steps of each trial are measured for `seconds`; after `at_most` seconds no trial starts. `tell` gets a line before each process.
    run = functools.partial(TrialProcess, program, arguments, module=module, quiet=quiet)
    patch = make_patch(finding, run, path=path, seconds=seconds, at_most=at_most, tell=tell)
    return msgspec.structs.replace(finding, patch=patch)


def make_patch(
    finding: Finding,
    run: Callable[..., TrialProcess],
    *,
    path: Path,
    seconds: float,
    at_most: float | None = None,
    tell: Callable[[str], None],
) -> Patch:
    """`offer_patch` with any way to run the program."""
    names = candidates(finding)
    left_out = {step.name: wording.PATCH["no_edit"] for step in finding.next if step.name not in EDITS}
    if finding.measurements is None:
        return Patch(left_out=left_out, why=wording.PATCH["not_measured"].format(why=finding.why))
    if not names:
        return Patch(left_out=left_out)
    unsure = wording.PATCH["no_verdict"] if finding.verdict == "none" else ""
    runs = _Runs(run, limit=LIMIT_SECONDS + 20 * seconds, at_most=at_most, tell=tell, most=len(names) + 4)
    finder = runs.start("finding the lines to edit", find_sites=True)
    finder.is_ready()
    outcome = finder.end()
    if outcome.sites is None:
        return Patch(left_out=left_out | dict.fromkeys(names, outcome.error or wording.TRIAL["ended"]), why=unsure)
    values = {name: value_of(name, finding.measurements, finding.verdict) for name in names}
    edits, sources, unclear = edits_of(names, EditableProgram(sites=outcome.sites, values=values))
    left_out |= {name: why for name, why in unclear.items() if name not in ALWAYS}
    edits = dict(sorted(edits.items(), key=lambda item: item[0] == "compile"))  # the last, as it takes as long as all others
    runs.most = len(edits) + 4  # the lines, the baseline twice, each, and all together
    joined = _Joined(edits, sources)

    def start(name: str | None, value: int | None) -> TrialProcess:
        if name is None:
            return runs.start("measuring the baseline", edits=[])
        compiles = name == "compile" or (name == ALL and "compile" in joined.names)
        text = f"running the program with the edits of {', '.join(joined.names)}" if name == ALL else f"running it with {name}"
        return runs.start(text, edits=edits[name], longer=COMPILE_SECONDS if compiles else 0.0)

    baseline, by_name = run_in_turn(list(edits), {}, start, seconds=seconds, at_most=runs.left(), more=joined.choose)
    tried = {name: judged(baseline, one, joined.tolerance(name)) for name, one in by_name.items()}
    left_out |= {name: why for name, one in tried.items() if name != ALL and (why := why_not(one)) is not None}
    gaining = [name for name in tried if name != ALL and name not in left_out]
    if not gaining:
        return Patch(left_out=left_out, why=unsure)
    best = max(gaining, key=lambda name: tried[name].speedup)
    why = why_not_together(gaining, best, tried, joined)
    if why is not None:
        left_out |= {name: wording.PATCH["apart"].format(why=why) for name in gaining if name != best}
    chosen = gaining if why is None else [best]
    result = tried[ALL if len(chosen) > 1 else best]
    folder = write_patch(path, sources, [edit for name in chosen for edit in edits[name]])
    return Patch(file=str(path), folder=folder, fixes=chosen, tried=result, left_out=left_out, why=unsure)


def why_not_together(gaining: list[str], best: str, tried: dict[str, TrialResult], joined: _Joined) -> str | None:
    """Why only the best fix is in the patch, and not all that gain; None if all are."""
    if len(gaining) == 1 or joined.why is not None:
        return joined.why
    if ALL not in tried or set(joined.names) != set(gaining):
        return wording.PATCH["together_no_time"].format(best=best)
    slower = wording.PATCH["no_more"].format(best=best) if tried[ALL].speedup <= tried[best].speedup else None
    return why_not(tried[ALL]) or slower


class _Runs:
    """Starts processes, reports each before it starts, and limits their time to what is left."""

    def __init__(
        self, run: Callable[..., TrialProcess], *, limit: float, at_most: float | None, tell: Callable[[str], None], most: int
    ) -> None:
        self._run, self._limit, self._at_most, self._tell = run, limit, at_most, tell
        self._begin, self._number = now_ns(), 0
        self.most = most

    def left(self) -> float | None:
        """Remaining seconds; None if time is not limited."""
        return None if self._at_most is None else max(0.0, self._at_most - (now_ns() - self._begin) / 1e9)

    def start(self, what: str, *, longer: float = 0.0, **options: Any) -> TrialProcess:
        """Start a process whose time limit is `longer` than that of others."""
        left = self.left()
        limit = self._limit + longer if left is None else min(self._limit + longer, max(MIN_SECONDS, left))
        self._number += 1
        of_budget = "" if self._at_most is None else f" of {self._at_most:.0f}"
        so_far = f"run {self._number} of at most {self.most}, {(now_ns() - self._begin) / 1e9:.0f}{of_budget} s so far"
        self._tell(f"{what} ({so_far})")
        return self._run(limit_seconds=limit, **options)


class _Joined:
    """All fixes that gain, tried together as the fix `ALL` after each was tried alone."""

    def __init__(self, edits: dict[str, list[Edit]], sources: dict[str, SourceFile]) -> None:
        self._edits, self._sources = edits, sources
        self.names: list[str] = []
        self.why: str | None = None  # why their edits cannot be combined

    def tolerance(self, name: str) -> float:
        """The relative difference of losses that an edit may make."""
        return max(map(tolerance_of, self.names)) if name == ALL else tolerance_of(name)

    def choose(self, baseline: BaselineRuns, by_name: dict[str, Comparison]) -> list[str]:
        """`ALL`, if several gain and their edits can be combined."""
        results = {name: judged(baseline, one, tolerance_of(name)) for name, one in by_name.items()}
        self.names = [name for name, one in results.items() if why_not(one) is None]
        if len(self.names) < 2:
            return []
        together = [edit for name in self.names for edit in self._edits[name]]
        try:
            check_edits(self._sources, together)
        except TrainError as error:
            self.why = str(error)
            return []
        self._edits[ALL] = together
        return [ALL]


def candidates(finding: Finding) -> list[str]:
    """The fixes that are tried as edits: those that are advised, and some that cannot be predicted."""
    measured = finding.measurements
    device = measured.device if measured is not None else "cpu"
    advised = [step.name for step in finding.next]
    if finding.verdict == "none" and measured is not None:
        likely = advise(measured, divide(measured), [finding.likely]) if finding.likely is not None else []
        advised = [*(step.name for step in likely), *WITHOUT_VERDICT]
    also = [*ALSO.get(finding.verdict, ()), *ALWAYS]
    names = dict.fromkeys([*advised, *(also if advised else ())])
    fits = [name for name in names if device == "cuda" or name not in FIXES or not FIXES[name].cuda_only]
    return [name for name in fits if name in EDITS][: RULE.max_trials]


def edits_of(names: Sequence[str], program: EditableProgram) -> tuple[dict[str, list[Edit]], dict[str, SourceFile], dict[str, str]]:
    """The edits of each fix, the files that they edit, and why there are none for the others."""
    edits: dict[str, list[Edit]] = {}
    unclear: dict[str, str] = {}
    for name in names:
        try:
            found = EDITS[name](program)
            if not found:
                raise TrainError(wording.PATCH["nothing"])
            check_edits(program.sources, found)
            edits[name] = found
        except TrainError as error:
            unclear[name] = str(error)
    return edits, program.sources, unclear


def tolerance_of(name: str) -> float:
    """The relative difference of losses that the edit of a fix may make."""
    return 0.0 if name in EXACT else RULE.loss_tolerance_reduced if name in ROUNDING else RULE.loss_tolerance


def judged(baseline: BaselineRuns, compared: Comparison, tolerance: float) -> TrialResult:
    """The result of an edited program. If losses of the baseline differ from run to run, a tolerance replaces equality."""
    # An interval may be wide: there is a gain if its lower end is one.
    judge = functools.partial(judge_by, baseline, compared, max_error=math.inf)
    result = judge(tolerance=tolerance)
    return judge(tolerance=RULE.loss_tolerance) if tolerance == 0.0 and result.losses == "not compared" else result


def why_not(tried: TrialResult) -> str | None:
    """Why a patch is not offered; None if it is."""
    if tried.error is not None:
        return tried.error
    if tried.losses in ("changed", "not compared"):
        return wording.PATCH[tried.losses].format(losses=wording.losses(tried))
    return None if tried.low >= RULE.trial_min_gain else wording.PATCH["no_gain"].format(measured=wording.interval(tried))


def write_patch(path: Path, sources: dict[str, SourceFile], edits: Sequence[Edit]) -> str | None:
    """Write a patch, and return the folder in which it is applied; None for the current one."""
    files = [Path(file) for file in by_file(edits)]
    for file in files:
        if file.read_bytes() != sources[str(file)].data:
            raise TrainError(f"{shown(str(file))} was changed while it was measured, so no patch was written. Run it again.")
    here = Path.cwd().resolve()
    inside = all(file.is_relative_to(here) for file in files)
    folder = here if inside else Path(os.path.commonpath([file.parent for file in files]))
    _disk.write_file(path, unified_diff(sources, edits, folder))
    return None if inside else str(folder)
