"""Loaders apart: those of a program that its training loop does not go through, which is where validation data comes from.

A diagnosis ends a training within its first epoch, so a validation behind it never runs. But its loader is there already, or what
makes it. The law: data that is trained on by intent, in another loop or stage, or looked at once more for its own numbers, is not
taken for validation data.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import math
import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from stoker._clock import now_ns
from stoker.auditing.audit import AuditReport, audit
from stoker.auditing.findings import Finding
from stoker.auditing.fingerprints import BatchForm, Rows, rows_of
from stoker.auditing.samples import LoaderClaims, claims_of
from stoker.diagnose.fixes import kept_seeds
from stoker.diagnose.loaders import Sources
from stoker.errors import OptionError, StokerError

MOST_LOADERS = 8


def loaders_apart(loader: Any, sources: Sources) -> list[Any]:
    """Loaders of this process whose data should not be trained on, those that were gone through first."""
    claims, is_loader = claims_of(loader), isinstance(loader, _kinds())
    found: list[Any] = []
    known: list[LoaderClaims] = []
    through = [*sources.stepless, *sources.passed]
    for other in [*through, *_alive()]:
        if any(other is one for one in (loader, *sources.trained, *found)):
            continue
        seen = any(other is one for one in through)
        if seen and not is_loader and isinstance(other, _kinds()):
            continue  # perhaps what the batches were made of that are trained on
        theirs = claims_of(other)
        if _is_apart(claims, theirs, seen=seen) and not any(_are_same(theirs, one) for one in known):
            found.append(other)
            known.append(theirs)
    return found[:MOST_LOADERS]


def comparable(loader: Any, others: list[Any]) -> list[Any]:
    """Those whose batches have some entry in common with those of the loader; loops go through other things than samples, too."""
    ours = _rows(loader) if others else None
    if ours is None:
        return []
    form, found = BatchForm.of(ours), []
    for other in others:
        rows = _rows(other)
        if rows is not None and len(form.lacking(form.adapt(rows))) < len(form.names):
            found.append(other)
    return found


def _rows(loader: Any) -> Rows | None:
    """Those of the first batch."""
    try:
        rows = rows_of(next(iter(loader)))
    except Exception:  # the user's, or nothing: there is nothing to compare, and the audit of a loader tells of its faults
        return None
    return rows if rows.entries and rows.num_rows else None


def _is_apart(ours: LoaderClaims, theirs: LoaderClaims, *, seen: bool) -> bool:
    if ours.dataset is not None and theirs.dataset is ours.dataset:
        # The same data as a whole is the training's own, for its numbers or for another stage; two parts of it are a split.
        return ours.expected is not None and theirs.expected is not None and not _are_same(ours, theirs)
    return seen or theirs.shuffled is False  # who shuffles what nobody has gone through yet means to train on it


def _are_same(one: LoaderClaims, other: LoaderClaims) -> bool:
    """Whether two loaders give the same samples, as one does that was prepared by a trainer, and the one it was made of."""
    if one.dataset is None or one.dataset is not other.dataset:
        return False
    wholes = [claims.expected for claims in (one, other)]
    return np.array_equal(wholes[0], wholes[1]) if wholes[0] is not None and wholes[1] is not None else wholes[0] is wholes[1]


def _alive() -> Iterator[Any]:
    """Loaders that are there, and those that the trainers of others would make."""
    kinds, trainers = _kinds(), sys.modules.get("transformers.trainer")
    for one in gc.get_objects():
        kind = type(one)  # proxies have a __class__ that may raise
        if issubclass(kind, kinds):
            yield one
        elif trainers is not None and issubclass(kind, trainers.Trainer) and one.eval_dataset is not None:
            yield one.get_eval_dataloader()


def _kinds() -> tuple[type, ...]:
    feeds = sys.modules.get("stoker.feed.feed")
    return (DataLoader, feeds.Feed) if feeds is not None else (DataLoader,)


def in_process(loader: Any) -> Any:
    """The same loader without worker processes, where these would have to import all of the program first."""
    if type(loader) is not DataLoader or not loader.num_workers or claims_of(loader).iterable:
        return loader
    context = loader.multiprocessing_context
    if (context.get_start_method() if context is not None else multiprocessing.get_start_method()) == "fork":
        return loader
    same: Any = copy.copy(loader)
    same.num_workers, same.timeout, same._iterator = 0, 0, None
    return same


# Correctness: what is wrong with the batches of a training, beside its speed, found within a given time.
#
# The audit of `stoker.feed` does the looking: it reads the loader as a training would, and knows samples by their content. Here
# is
# decided how much of it there is time for. It comes when all times are taken, so it can disturb none. The law: the loader, its
# epoch
# and all random numbers are afterwards as they were, and a loader that can be read only once is not read at all.

SECONDS = 10.0
PROBED_BATCHES = 4
"""By which it is known how long a batch takes."""
PROBED_SAMPLES = 64
"""By which it is known how long a sample of the dataset takes."""
PROBING = 0.25
"""Share of the time that these may take."""
TOO_LONG = 2.0
"""Times the given seconds after which reading is broken off."""
TITLES = {
    "empty": "no samples",
    "seen twice": "samples repeated",
    "never seen": "samples missed",
    "mixed rows": "entries of different samples in a row",
    "foreign rows": "rows that the dataset does not hold",
    "order": "not shuffled",
    "same order": "the same order in every epoch",
    "reused memory": "batches that change after they were handed out",
    "shared samples": "validation data seen in training",
    "not finite": "values that are not finite",
}
"""What is told, and how; shapes and lengths are no fault of a training."""


class _TimeUp(Exception):
    """Reading takes far longer than it was given."""


class _First:
    """The first batches of a loader."""

    def __init__(self, loader: Iterable[Any], num_batches: int) -> None:
        self._loader = loader
        self._num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._loader, self._num_batches)


class _Together:
    """Loaders one after the other."""

    def __init__(self, loaders: Sequence[Iterable[Any]]) -> None:
        self._loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self._loaders)


def wrong_in(sources: Sources, losses: Sequence[float], *, seconds: float) -> list[str]:
    """What is wrong with the batches of a program whose training loop is known, and with its losses."""
    source = sources.found
    loader = None if source is None else source.loader if source.loader is not None else source.iterable
    wrong = wrong_losses(losses)
    if source is None or loader is None or not source.gives_batches:
        return wrong
    others = [in_process(other) for other in loaders_apart(loader, sources)]
    loader = in_process(loader)
    others = comparable(loader, others)
    return [*audit_loaders(loader, _Together(others) if others else None, seconds=seconds), *wrong]


def wrong_losses(losses: Sequence[float]) -> list[str]:
    """Losses of the first steps that are no numbers."""
    bad = sum(not math.isfinite(loss) for loss in losses)
    return [f"losses that are not finite: {bad:,} of the first {len(losses):,}."] if bad else []


def audit_loaders(train_loader: Iterable[Any], valid_loader: Iterable[Any] | None = None, *, seconds: float = SECONDS) -> list[str]:
    """What is wrong with the batches of a training, one sentence each; empty where nothing was found.

    Takes about `seconds`. Of a loader that is too large for that a part is read, and the sentence says so.
    """
    if not seconds > 0:
        raise OptionError(f"seconds is {seconds!r}; expected more than 0.")
    if isinstance(train_loader, Iterator):
        return []
    valid_loader = None if isinstance(valid_loader, Iterator) else valid_loader
    try:
        with _as_it_was(train_loader), _as_it_was(valid_loader):
            report = _audit(train_loader, valid_loader, seconds)
    except OptionError:  # batches that hold nothing to compare
        return audit_loaders(train_loader, seconds=seconds) if valid_loader is not None else []
    except _TimeUp:
        return _said(train_loader)
    except StokerError:
        raise
    except Exception as error:  # the user's: what reads the samples one by one found one that cannot be read
        if getattr(train_loader, "num_workers", 0):  # perhaps because the dataset needs to be in a worker
            return []
        return [f"samples that cannot be read: {type(error).__name__}: {' '.join(str(error).split())}"]
    num_batches = _declared_length(train_loader)
    whole = num_batches is None or report.num_batches >= num_batches
    aside = "" if whole else f" ({report.num_batches:,} of {num_batches:,} batches were looked at.)"
    given = isinstance(train_loader, list | tuple)  # what stands there twice was put there twice
    wrong = [
        f"{TITLES[found.kind]}: {_reworded(found)}{aside}"
        for found in report.checks
        if _is_wrong(found) and not (given and found.kind in ("seen twice", "reused memory"))
    ]
    unjudged = any(found.kind == "order" and found.severity == "unchecked" for found in report.checks)
    return [*wrong, *_said(train_loader)] if unjudged else wrong


def _said(loader: Any) -> list[str]:
    """What need not be looked at to be known."""
    in_order = claims_of(loader).shuffled is False
    return [f"{TITLES['order']}: the loader says that it takes samples in order."] if in_order else []


def _is_wrong(found: Finding) -> bool:
    if found.kind not in TITLES:
        return False
    # An order that is not shuffled, as its loader says, is right for validation, but seldom for a training.
    unshuffled = found.kind == "order" and found.text.startswith("Not shuffled")
    return found.severity == "fault" or unshuffled or (found.kind in ("not finite", "same order") and found.severity == "note")


def _reworded(found: Finding) -> str:
    if found.kind == "shared samples":
        return found.text.replace("in apart_from", "in the validation data")
    return found.text.removeprefix("Not shuffled, as it says. ").removeprefix("Not shuffled. ")


def _audit(train_loader: Any, valid_loader: Any, seconds: float) -> AuditReport:
    """Audit as much as there is time for: a little at first, to know how long a sample takes."""
    start = now_ns()

    def stop(phase: str, share: float, count: int) -> None:
        if now_ns() - start > TOO_LONG * seconds * 1e9:
            raise _TimeUp

    probed = _affordable(train_loader, seconds * PROBING)
    apart = _First(valid_loader, PROBED_BATCHES) if valid_loader is not None else None
    probe = audit(train_loader, max_batches=PROBED_BATCHES, reference_limit=probed, apart_from=apart, progress=stop)
    spent = (now_ns() - start) / 1e9
    rows = probe.num_samples * (1 if valid_loader is None else 2) + 2 * probed  # those of the dataset are read twice
    parts = 2 if valid_loader is None else 3
    samples = int((seconds - spent) / parts * rows / spent)
    batches = samples * probe.num_batches // max(probe.num_samples, 1)
    if batches <= PROBED_BATCHES:
        return probe
    apart = _First(valid_loader, batches) if valid_loader is not None else None
    return audit(train_loader, max_batches=batches, reference_limit=samples, apart_from=apart, progress=stop)


def _affordable(loader: Any, seconds: float) -> int:
    """Samples of the dataset that can be read twice in a time, as far as one of them tells."""
    dataset = claims_of(loader).dataset
    if dataset is None or not len(dataset):
        return PROBED_SAMPLES
    start = now_ns()
    dataset[len(dataset) // 2]
    number = int(seconds / 2 / max((now_ns() - start) / 1e9, 1e-9))
    if not number:
        raise _TimeUp
    return min(number, PROBED_SAMPLES)


@contextlib.contextmanager
def _as_it_was(loader: Any) -> Iterator[None]:
    """Put random numbers, and where the loader is, back to what they were."""
    with kept_seeds():
        sampler = getattr(loader, "sampler", None)
        owners = [getattr(place, "generator", None) for place in (loader, sampler)]
        generators = [(one, one.get_state()) for one in owners if isinstance(one, torch.Generator)]
        resumes = callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))
        state = loader.state_dict() if resumes else None
        try:
            yield
        finally:
            for generator, before in generators:
                generator.set_state(before)
            if resumes:
                loader.load_state_dict(state)


def _declared_length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # what has no length need not say so in advance
        return None
