"""Faults in the batches of a training run, found by `stoker.audit` within a limited time after the speed is measured.

`find_faults` audits as many batches of the training loader as there is time for, and searches the other loaders of the program for
validation data (`validation_loaders`). `faults_of` does the same for two loaders.
"""

from __future__ import annotations

import copy
import gc
import itertools
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from stoker._clock import now_ns
from stoker.audit import audit
from stoker.audit.auditor import AuditReport
from stoker.audit.fingerprints import BatchForm, BatchRows, rows_of
from stoker.audit.samples import LoaderClaims, claims_of
from stoker.diagnose.loops import Sources, length_of
from stoker.errors import OptionError, StokerError

PROBED_BATCHES = 4  # to estimate how long a batch takes
PROBED_SAMPLES = 64  # to estimate how long a sample of the dataset takes
PROBING = 0.25  # share of the time for these estimates
TOO_LONG = 2.0  # reading stops after this many times the given seconds
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
"""Titles of the faults that are reported; shapes and lengths are not faults of a training run."""


class _TimeUp(Exception):
    """Reading takes far longer than the given time."""


@dataclass(frozen=True)
class Repeatable:
    """An iterable that calls a function for each pass."""

    make: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.make()


def find_faults(sources: Sources, losses: Sequence[float], *, seconds: float) -> list[str]:
    """Faults of the batches and losses of a program whose training loop is known."""
    source = sources.training
    loader = None if source is None else source.loader if source.loader is not None else source.iterable
    wrong = wrong_losses(losses)
    if source is None or loader is None or not source.gives_batches:
        return wrong
    loader, others = with_validation(loader, sources)
    return [*faults_of(loader, joined(others), seconds=seconds), *wrong]


def wrong_losses(losses: Sequence[float]) -> list[str]:
    """Losses of the first steps that are NaN or Inf."""
    bad = sum(not math.isfinite(loss) for loss in losses)
    return [f"losses that are not finite: {bad:,} of the first {len(losses):,}."] if bad else []


def faults_of(train_loader: Any, valid_loader: Any = None, *, seconds: float) -> list[str]:
    """Return one sentence per fault of the batches; `valid_loader` must share no sample with them.

    If there is not enough time for all batches, a part of them is read, and the sentences say so. An iterator is not read.
    """
    if isinstance(train_loader, Iterator):
        return []
    valid_loader = None if isinstance(valid_loader, Iterator) else valid_loader
    try:
        report = _audit(train_loader, valid_loader, seconds)
    except OptionError:  # batches without anything to compare
        return faults_of(train_loader, seconds=seconds) if valid_loader is not None else []
    except _TimeUp:
        return _declared(train_loader)
    except StokerError:
        raise
    except Exception as error:  # the user's: a sample cannot be read
        if getattr(train_loader, "num_workers", 0):  # perhaps the dataset works only in a worker
            return []
        return [f"samples that cannot be read: {type(error).__name__}: {' '.join(str(error).split())}"]
    num_batches = length_of(train_loader)
    whole = num_batches is None or report.num_batches >= num_batches
    aside = "" if whole else f" ({report.num_batches:,} of {num_batches:,} batches were read.)"
    repeats = isinstance(train_loader, list | tuple)  # batches that are repeated on purpose
    wrong = []
    for check in report.checks:
        # An unshuffled order is right for validation, but seldom for training.
        unshuffled = check.kind == "order" and check.text.startswith("Not shuffled")
        noted = check.kind in ("not finite", "same order") and check.severity == "note"
        intended = repeats and check.kind in ("seen twice", "reused memory")
        if check.kind in TITLES and (check.severity == "fault" or unshuffled or noted) and not intended:
            text = check.text.removeprefix("Not shuffled, as it says. ").removeprefix("Not shuffled. ")
            text = text.replace("in apart_from", "in the validation data") if check.kind == "shared samples" else text
            wrong.append(f"{TITLES[check.kind]}: {text}{aside}")
    unjudged = any(check.kind == "order" and check.severity == "unchecked" for check in report.checks)
    return [*wrong, *_declared(train_loader)] if unjudged else wrong


def _declared(loader: Any) -> list[str]:
    """Faults that the loader itself declares."""
    in_order = claims_of(loader).shuffled is False
    return [f"{TITLES['order']}: the loader says that it takes samples in order."] if in_order else []


def _audit(train_loader: Any, valid_loader: Any, seconds: float) -> AuditReport:
    """Audit as many batches as there is time for: first a few, to estimate how long a sample takes."""
    start = now_ns()

    def stop(phase: str, share: float, count: int) -> None:
        if now_ns() - start > TOO_LONG * seconds * 1e9:
            raise _TimeUp

    def audit_some(batches: int, samples: int) -> AuditReport:
        apart = Repeatable(lambda: itertools.islice(valid_loader, batches)) if valid_loader is not None else None
        return audit(train_loader, max_batches=batches, reference_limit=samples, apart_from=apart, progress=stop)

    probed, dataset = PROBED_SAMPLES, claims_of(train_loader).dataset
    if dataset is not None and len(dataset):  # as many samples as can be read twice, estimated from one
        begin = now_ns()
        dataset[len(dataset) // 2]
        probed = min(int(seconds * PROBING / 2 / max((now_ns() - begin) / 1e9, 1e-9)), PROBED_SAMPLES)
        if not probed:
            raise _TimeUp
    probe = audit_some(PROBED_BATCHES, probed)
    spent = (now_ns() - start) / 1e9
    rows = probe.num_samples * (1 if valid_loader is None else 2) + 2 * probed  # samples of the dataset are read twice
    parts = 2 if valid_loader is None else 3
    samples = int((seconds - spent) / parts * rows / spent)
    batches = samples * probe.num_batches // max(probe.num_samples, 1)
    return probe if batches <= PROBED_BATCHES else audit_some(batches, samples)


# ---- loaders of a program that its training loop does not iterate: its validation data ----
#
# A diagnosis usually ends a program within its first epoch, before a validation. But the validation loader, or the trainer that creates
# it, exists already. Data that is trained on by intent, in another loop or stage, is not taken for validation data.

MOST_LOADERS = 8


def with_validation(loader: Any, sources: Sources) -> tuple[Any, list[Any]]:
    """Return a training loader, and the loaders of validation data that it can be compared with."""
    others = [in_process(other) for other in validation_loaders(loader, sources)]
    return in_process(loader), comparable(in_process(loader), others)


def joined(loaders: list[Any]) -> Repeatable | None:
    """Return the batches of several loaders, one after the other; None without any."""
    return Repeatable(lambda: itertools.chain.from_iterable(loaders)) if loaders else None


def validation_loaders(loader: Any, sources: Sources) -> list[Any]:
    """Return the loaders of this process whose data should not be trained on; those that were iterated come first."""
    claims = claims_of(loader)
    iterated = [*sources.stepless, *sources.passed]
    others: list[Any] = []
    known: list[LoaderClaims] = []
    for other in [*iterated, *_alive()]:
        if not isinstance(other, _kinds()) or any(other is training for training in (loader, *sources.trained)):
            continue
        theirs = claims_of(other)
        if claims.dataset is not None and theirs.dataset is claims.dataset:
            # The same dataset as a whole is training data, for its metrics or another stage; two parts of it are a split.
            is_apart = claims.expected is not None and theirs.expected is not None and not _are_same(claims, theirs)
        elif any(other is passed for passed in iterated):
            is_apart = isinstance(loader, _kinds())  # else perhaps the source of the batches that are trained on
        else:
            is_apart = theirs.shuffled is False  # a shuffled loader that was not iterated yet is meant for training
        if is_apart and not any(other is another for another in others) and not any(_are_same(theirs, claim) for claim in known):
            others.append(other)
            known.append(theirs)
    return others[:MOST_LOADERS]


def comparable(loader: Any, others: list[Any]) -> list[Any]:
    """The loaders whose batches share an entry with those of `loader`: loops iterate other things than samples, too."""
    ours = _rows(loader) if others else None
    if ours is None:
        return []
    form, fitting = BatchForm.of(ours), []
    for other in others:
        rows = _rows(other)
        if rows is not None and len(form.lacking(form.adapt(rows))) < len(form.names):
            fitting.append(other)
    return fitting


def _rows(loader: Any) -> BatchRows | None:
    """The rows of the first batch."""
    try:
        rows = rows_of(next(iter(loader)))
    except Exception:  # the user's, or no batch: there is nothing to compare, and the audit reports it
        return None
    return rows if rows.entries and rows.num_rows else None


def _are_same(one: LoaderClaims, other: LoaderClaims) -> bool:
    """Whether two loaders give the same samples, as a loader and the one that a trainer prepared from it."""
    if one.dataset is None or one.dataset is not other.dataset:
        return False
    wholes = [claims.expected for claims in (one, other)]
    return np.array_equal(wholes[0], wholes[1]) if wholes[0] is not None and wholes[1] is not None else wholes[0] is wholes[1]


def _alive() -> Iterator[Any]:
    """Loaders that exist, and those that trainers of transformers would create."""
    kinds, trainers = _kinds(), sys.modules.get("transformers.trainer")
    for one in gc.get_objects():
        kind = type(one)  # a proxy's __class__ may raise
        if issubclass(kind, kinds):
            yield one
        elif trainers is not None and issubclass(kind, trainers.Trainer) and one.eval_dataset is not None:
            yield one.get_eval_dataloader()


def _kinds() -> tuple[type, ...]:
    feeds = sys.modules.get("stoker.feed.feed")
    return (DataLoader, feeds.Feed) if feeds is not None else (DataLoader,)


def in_process(loader: Any) -> Any:
    """The same loader without worker processes, if these would have to import the whole program first."""
    if type(loader) is not DataLoader or not loader.num_workers or claims_of(loader).iterable:
        return loader
    context = loader.multiprocessing_context
    if (context.get_start_method() if context is not None else multiprocessing.get_start_method()) == "fork":
        return loader
    same: Any = copy.copy(loader)
    same.num_workers, same.timeout, same._iterator = 0, 0, None
    return same
