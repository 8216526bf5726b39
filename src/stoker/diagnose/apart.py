"""Loaders apart: those of a program that its training loop does not go through, which is where validation data comes from.

A diagnosis ends a training within its first epoch, so a validation behind it never runs. But its loader is there already, or what
makes it. The law: data that is trained on by intent, in another loop or stage, or looked at once more for its own numbers, is not
taken for validation data.
"""

from __future__ import annotations

import copy
import gc
import multiprocessing
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from stoker.diagnose.watched import Sources
from stoker.feed.auditing.claims import Claims, claims_of
from stoker.feed.auditing.form import Form
from stoker.feed.auditing.rows import Rows, rows_of

MOST_LOADERS = 8


def loaders_apart(loader: Any, sources: Sources) -> list[Any]:
    """Loaders of this process whose data should not be trained on, those that were gone through first."""
    claims, is_loader = claims_of(loader), isinstance(loader, _kinds())
    found: list[Any] = []
    known: list[Claims] = []
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
    form, found = Form.of(ours), []
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


def _is_apart(ours: Claims, theirs: Claims, *, seen: bool) -> bool:
    if ours.dataset is not None and theirs.dataset is ours.dataset:
        # The same data as a whole is the training's own, for its numbers or for another stage; two parts of it are a split.
        return ours.expected is not None and theirs.expected is not None and not _are_same(ours, theirs)
    return seen or theirs.shuffled is False  # who shuffles what nobody has gone through yet means to train on it


def _are_same(one: Claims, other: Claims) -> bool:
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
