"""Patches: fixes as edits of the user's own files (`stoker diagnose --apply`), written only where a gain was measured.

1. A run of the program finds the calls to edit (edit_sites.py). `EDITS` makes the changes of each fix (source_edits.py). Where a framework
   runs the loop and has a switch for a fix (frameworks.py), that argument is the edit.
2. The edited program is compared with the program by the engine of `stoker.compare`. Each fix is tried together with those that gained
   before it, so what the patch contains has run. The files on disk stay as they are: the sandbox shows the edited ones to the program.
3. A patch is written if its speed-up is measured and its losses are those of the program: equal, or within rounding or the tolerance of a
   fix that rounds differently. Fixes with equal losses are tried first.

Without a verdict, the fixes of the likely cause are tried.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import libcst as cst
import msgspec
from libcst import matchers as m

from stoker import _disk
from stoker.compare.engine import Comparisons
from stoker.compare.sides import Version, prepared
from stoker.diagnose import wording
from stoker.diagnose.advice import advise, value_of
from stoker.diagnose.division import divide
from stoker.diagnose.edit_sites import EditSites
from stoker.diagnose.experiments.table import FIXES
from stoker.diagnose.finding import Finding
from stoker.diagnose.frameworks import CLASSES, SWITCHES
from stoker.diagnose.hooks import is_own, shown
from stoker.diagnose.measurements import Patch, TrialResult
from stoker.diagnose.source_edits import (
    Change,
    SourceFile,
    argument,
    edited,
    line_after,
    torch_name,
    unified_diff,
    with_keyword,
    with_value,
)
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.trials import TRIAL_SECONDS, ProgramWithFix, Trials, tried_of
from stoker.errors import TrainError

FINDING_SECONDS = 180.0  # of the run in which lines to edit are found
AS_EDITS = {"feed": ("gather", "workers"), "sync": ("reads",), "host": ("callbacks",)}
"""Advice that is more than an edit of lines, with the edits that do a part of it."""
EXACT = ("callbacks", "gather", "persistent", "pinned", "reads", "workers")
"""Fixes that change no operation: their losses must be equal, if those of the baseline are from run to run."""
ROUNDING = ("autocast", "float32", "tf32")  # fixes that compute in a shorter type
MISSING = {
    "loader": "the batches do not come from a DataLoader",
}
"""Why there is no call of a kind."""
KEYWORDS = {
    "fused": [("optimizers", "fused", "True")],
    "persistent": [("loader", "persistent_workers", "True")],
    "pinned": [("loader", "pin_memory", "True"), ("copies", "non_blocking", "True")],
    "workers": [("loader", "num_workers", "{value}")],
}
"""Fixes that are arguments of calls of torch: the kind of the call (`EditSites`), the name and the value."""
OTHER_BATCHES = ("sampler", "batch_sampler", "collate_fn", "generator")
"""Arguments of a DataLoader whose batches a dataset does not make alone."""
DOUBLE = m.Call(func=m.Attribute(attr=m.Name("double")), args=[])
FLOAT64 = m.Attribute(value=m.Name("torch") | m.Name("np") | m.Name("numpy"), attr=m.Name("float64") | m.Name("double"))

MARK = b"# written by stoker diagnose --apply\n"
"""The first line of a patch. `patch` and `git apply` skip it; a later diagnosis may replace the file."""


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

    def calls(self, kind: str) -> list[tuple[SourceFile, cst.Call]]:
        """All calls of a kind. Raises `TrainError` if there is none, or if an installed package makes one."""
        sites = self.sites.calls.get(kind, [])
        if kind == "loader" and self.sites.loader_kind not in ("", "DataLoader"):
            raise TrainError(f"{self.sites.loader_kind} is not the DataLoader of torch")
        for site in sites:
            if not site.own:
                raise TrainError(f"it is made in {site.file}:{site.line}, which belongs to an installed package")
        if not sites:
            raise TrainError(MISSING.get(kind, f"no line of yours calls {kind}"))
        return [(source := self.source(site.file), source.call_at(site)) for site in sites]

    def refuse_if_mentioned(self, *names: str) -> None:
        """Raise `TrainError` if one of the user's files already sets an attribute of these names."""
        for source in map(self.source, self.sites.files):
            for node in source.positions:
                if isinstance(node, cst.Attribute) and node.attr.value in names:
                    raise TrainError(f"{shown(source.path)}:{source.line_of(node)} sets it already ({node.attr.value})")


def _arguments(fix: str, program: EditableProgram) -> list[tuple[str, str, str]]:
    """Return the arguments that are a fix: the kind of a call, the name and the value. Those of a framework come before torch's."""
    sites, value = program.sites, program.values.get(fix)
    names = [fix, "persistent"] if fix == "workers" and value != 0 else [fix]
    switches = [switch for name in names if (switch := SWITCHES.get(name, {}).get(sites.framework or "")) is not None]
    wanted = [switch[:3] for switch in switches if switch.callable in CLASSES.values()]
    if wanted and fix == "compile" and value:
        wanted.append((wanted[0][0], "torch_compile_mode", '"reduce-overhead"'))
    wanted = wanted or [argument for name in names for argument in KEYWORDS.get(name, [])]
    if sites.pinned:
        wanted = [part for part in wanted if not part[1].endswith("pin_memory")]
    if not sites.calls.get("copies"):
        wanted = [part for part in wanted if part[0] != "copies"]
    return [(kind, keyword, text.format(value=2 if value is None else value)) for kind, keyword, text in wanted]


def _keywords(fix: str, program: EditableProgram) -> list[Change]:
    """Return the changes of calls whose arguments are a fix."""
    changes = list[Change]()
    for kind, keyword, value in _arguments(fix, program):
        for source, call in program.calls(kind):
            workers = argument(call, keyword.replace("persistent", "num"), 5 if kind == "loader" else None)
            computed = "persistent" in keyword and workers is not None and not source.is_literal(workers.value)
            # torch refuses to keep workers if there are none
            text = f"bool({source.text_of(workers.value)})" if computed and workers is not None else value
            other = argument(call, keyword)
            if keyword == "optim" and other is not None and "adamw_torch" not in source.text_of(other.value):
                raise TrainError(f"line {source.line_of(other)} sets another optimizer")
            changes += with_keyword(source, call, keyword, text)
    return changes


def _gather(program: EditableProgram) -> list[Change]:
    """One lookup per batch instead of one per sample, in the same order: the sampler gives lists of indices.

    A dataset that does not take a list, or gives another batch for it, fails or changes the losses when it is measured.
    """
    ((source, call),) = program.calls("loader")
    made = next((name for name in OTHER_BATCHES if argument(call, name) is not None), None)
    if made is not None:
        raise TrainError(f"line {source.line_of(call)} sets {made}")
    torch, importing, _ = torch_name(source)
    dataset, size = argument(call, "dataset", 0), argument(call, "batch_size", 1)
    flags = [argument(call, "shuffle", 2), argument(call, "drop_last", 8)]
    fixed = all(flag is None or source.is_literal(flag.value) for flag in flags)
    if size is None or dataset is None or not isinstance(dataset.value, cst.Name | cst.Attribute) or not fixed:
        raise TrainError(f"line {source.line_of(call)} is not DataLoader(name, batch_size, shuffle=True or False)")
    data, kind = f"{torch}.utils.data", "RandomSampler" if program.sites.shuffles else "SequentialSampler"
    drops = source.text_of(flags[1].value) if flags[1] is not None else "False"
    sampler = (
        f"{data}.BatchSampler({data}.{kind}({source.text_of(dataset.value)}), {source.text_of(size.value)}, drop_last={drops})"
    )
    cleared = [with_value(source, size, "None"), *(with_value(source, flag, "False") for flag in flags if flag is not None)]
    return [*importing, *cleared, *with_keyword(source, call, "sampler", sampler)]


def _compile(program: EditableProgram) -> list[Change]:
    changes = []
    mode = 'mode="reduce-overhead"' if program.values.get("compile") else ""
    for sites in program.sites.models:
        calls = ((source := program.source(site.file), source.call_at(site)) for site in sites)
        for source, statement, name in itertools.islice(filter(None, itertools.starmap(_assigned, calls)), 1):
            if program.sites.model_kind.startswith("torch."):  # torch compiles no such module in place
                torch, importing, _ = torch_name(source)
                changes += [*importing, line_after(source, statement, f"{name} = {torch}.compile({name}{mode and ', '}{mode})")]
            else:  # in place: the names of the weights in checkpoints stay
                changes.append(line_after(source, statement, f"{name}.compile({mode})"))
    if not changes:
        raise TrainError("no line of yours assigns the model to a name")
    return changes


def _assigned(source: SourceFile, call: cst.Call) -> tuple[SourceFile, cst.SimpleStatementLine, str] | None:
    """The statement that assigns the value of a call, or of methods of this value such as `.to`, to a name or attribute."""
    node: cst.CSTNode = call
    while m.matches(source.parents[node], m.Attribute()) and isinstance(source.parents[source.parents[node]], cst.Call):
        node = source.parents[source.parents[node]]
    statement = source.parents[node]
    if not isinstance(statement, cst.Assign) or len(statement.targets) > 1:
        return None
    target = statement.targets[0].target
    return (source, source.statement_of(call), source.text_of(target)) if isinstance(target, cst.Name | cst.Attribute) else None


def _tf32(program: EditableProgram) -> list[Change]:
    """A line after the imports of the main file, unless the program sets the precision of its matmuls."""
    program.refuse_if_mentioned("set_float32_matmul_precision", "allow_tf32", "fp32_precision")
    source = program.source(program.sites.main)
    torch, importing, last = torch_name(source)
    return [*importing, line_after(source, last, f'{torch}.set_float32_matmul_precision("high")')]


def _float32(program: EditableProgram) -> list[Change]:
    changes: list[Change] = []
    for source in map(program.source, program.sites.files):
        calls: Any = m.findall(source.module, DOUBLE)
        types: Any = m.findall(source.module, FLOAT64)
        changes += [with_value(source, call.func.attr, "float") for call in calls]
        changes += [with_value(source, kind.attr, "float32") for kind in types]
    if not changes:
        raise TrainError("no line of yours asks for float64")
    return changes


EDITS: dict[str, Callable[[EditableProgram], list[Change]]] = {
    "compile": _compile,
    "float32": _float32,
    "gather": _gather,
    "tf32": _tf32,
}
"""Functions that make the changes of other fixes. They raise `TrainError` with the reason if they cannot."""
KNOWN = {*EDITS, *KEYWORDS, *SWITCHES}


def changes_of(fix: str, program: EditableProgram) -> list[Change]:
    """The changes of a fix. Raises `TrainError` with the reason if there are none."""
    sites = program.sites
    if fix == "persistent" and (not sites.workers or sites.persistent):
        raise TrainError("the DataLoader has no workers, or keeps them already")
    if fix == "workers" and not sites.indexed:
        raise TrainError("the samples of the dataset are not found by index: each worker would give all of them")
    if fix == "fused" and not sites.calls.get("optimizers"):
        raise TrainError("no optimizer has a fused implementation that it does not use")
    edit = EDITS.get(fix)
    changes = _keywords(fix, program) if edit is None or _arguments(fix, program) else edit(program)
    if not changes:
        switched = sites.framework in SWITCHES.get(fix, {})
        raise TrainError(wording.PATCH["nothing" if switched or fix in KEYWORDS else "no_edit"])
    edited(program.sources, changes)
    return changes


def find_sites(version: Version, arguments: Sequence[str], *, quiet: bool) -> EditSites:
    """Run the program until its training loop is known, and return the calls to edit. Raises `TrainError` if it fails."""
    finding = replace(version, extension=f"{ProgramWithFix.__module__}:{ProgramWithFix.__name__}", options="{}")
    with prepared(finding) as side:
        run = side.run([str(word) for word in arguments], quiet=quiet, hooks=False, time_limit=FINDING_SECONDS)
    return msgspec.msgpack.decode(run.answer, type=EditSites)


def offer_patch(
    finding: Finding, program: str | Path, arguments: Sequence[str] = (), *, path: Path, module: bool = False, quiet: bool = True,
    seconds: float = TRIAL_SECONDS, at_most: float | None = None, tell: Callable[[str], None] = lambda text: None,
    engine: Callable[..., Comparisons] = Comparisons, find: Callable[..., EditSites] = find_sites,
) -> Finding:  # fmt: skip
    """The finding with the result of its patch, which is written to `path` if it is a gain.

    Rounds of each trial start for `seconds`; after `at_most` seconds no trial starts. `tell` gets a line before each run.
    """
    trials = Trials(program, arguments, module=module, quiet=quiet, seconds=seconds, at_most=at_most, tell=tell, engine=engine)

    def sites() -> EditSites:
        tell("finding the lines to edit")
        return find(trials.version(), arguments, quiet=quiet)

    return msgspec.structs.replace(finding, patch=_make_patch(finding, trials, sites, path))


def _make_patch(finding: Finding, trials: Trials, find: Callable[[], EditSites], path: Path) -> Patch:
    names, measured = candidates(finding), finding.measurements
    left_out = {step.name: wording.PATCH["no_edit"] for step in finding.next if step.name not in KNOWN}
    if measured is None:
        return Patch(left_out=left_out, why=wording.PATCH["not_measured"].format(why=finding.why))
    if not names:
        return Patch(left_out=left_out)
    unsure = wording.PATCH["no_verdict"] if finding.verdict == "none" else ""
    try:
        sites = find()
    except TrainError as error:
        return Patch(left_out=left_out | dict.fromkeys(names, str(error).rstrip(".")), why=unsure)
    program = EditableProgram(sites=sites, values={name: value_of(name, measured, finding.verdict) for name in names})
    changes = {}
    for name in names:
        try:
            changes[name] = changes_of(name, program)
        except TrainError as error:
            left_out[name] = str(error)
    for name in AS_EDITS.keys() & left_out.keys():
        if instead := " and ".join(edit for edit in AS_EDITS[name] if edit in changes):
            left_out[name] = wording.PATCH["instead"].format(edits=instead)
    fixes, best, without = _measure(trials, program.sources, changes)
    if not fixes:
        return Patch(left_out=left_out | without, why=unsure)
    folder = write_patch(path, program.sources, [change for name in fixes for change in changes[name]])
    return Patch(file=str(path), folder=folder, fixes=fixes, tried=best, left_out=left_out | without, why=unsure)


def _measure(
    trials: Trials, sources: Mapping[str, SourceFile], changes: Mapping[str, list[Change]]
) -> tuple[list[str], TrialResult | None, dict[str, str]]:
    """Try each fix together with those that gained before it. Returns the fixes that gain, their result, and why others do not."""
    fixes: list[str] = []
    best: TrialResult | None = None
    left_out: dict[str, str] = {}
    if not changes:
        return fixes, best, left_out
    with trials:
        # What must not change losses is tried before what may. Compiling takes as long as all others.
        for name in sorted(changes, key=lambda name: (tolerance_of(name), name == "compile")):
            names = [*fixes, name]
            edits = edited(sources, [change for fix in names for change in changes[fix]])
            version = trials.version(edits=edits, title=f"with {' and '.join(names)}")
            result = tried_of(functools.partial(trials.compare, version, tolerance_of(name) or None))
            why = why_not(result, best, exact=name in EXACT)
            if why is None:
                fixes, best = names, result
            else:
                left_out[name] = why
    return fixes, best, left_out


def candidates(finding: Finding) -> list[str]:
    """The fixes that are tried as edits: those that are advised."""
    measured = finding.measurements
    device = measured.device if measured is not None else "cpu"
    advised = [step.name for step in finding.next]
    if finding.verdict == "none" and finding.likely is not None and measured is not None:
        advised = [step.name for step in advise(measured, divide(measured), [finding.likely])]
    names = dict.fromkeys(edit for name in advised for edit in AS_EDITS.get(name, (name,)))
    fits = [name for name in names if device == "cuda" or name not in FIXES or not FIXES[name].cuda_only]
    return [name for name in fits if name in KNOWN][: RULE.max_trials]


def tolerance_of(name: str) -> float:
    """The relative difference of losses that the edit of a fix may make."""
    return 0.0 if name in EXACT else RULE.loss_tolerance_reduced if name in ROUNDING else RULE.loss_tolerance


def why_not(tried: TrialResult, before: TrialResult | None = None, *, exact: bool = False) -> str | None:
    """Why a fix is not in the patch, which without it has the result `before`; None if it is.

    With `exact`, losses must be the same bits, if those of the program are from run to run.
    """
    if tried.error is not None:
        return tried.error
    if tried.losses in ("changed", "not compared") or (exact and tried.losses != "equal" and tried.repeats):
        return wording.PATCH["not compared" if tried.losses == "not compared" else "changed"].format(losses=wording.losses(tried))
    measured = wording.interval(tried)
    if before is not None and not tried.low >= before.speedup * RULE.trial_min_gain:
        return wording.PATCH["no_more"].format(measured=measured, before=wording.interval(before))
    return None if tried.low >= RULE.trial_min_gain else wording.PATCH["no_gain"].format(measured=measured)


def write_patch(path: Path, sources: Mapping[str, SourceFile], changes: Sequence[Change]) -> str | None:
    """Write a patch, and return the folder in which it is applied; None for the current one."""
    after = edited(sources, changes)
    files = [Path(file) for file in after]
    for file in files:
        if file.read_bytes() != sources[str(file)].data:
            raise TrainError(f"{shown(str(file))} was changed while it was measured, so no patch was written. Run it again.")
    here = Path.cwd().resolve()
    inside = all(file.is_relative_to(here) for file in files)
    folder = here if inside else Path(os.path.commonpath([file.parent for file in files]))
    _disk.write_file(path, MARK + unified_diff(sources, after, folder))
    return None if inside else str(folder)
