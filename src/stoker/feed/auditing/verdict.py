"""Verdicts on samples: counts of an epoch become sentences. What a loader does not promise is no fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.feed.auditing.catalogue import Catalogue
from stoker.feed.auditing.claims import Claims
from stoker.feed.auditing.coverage import MIN_CONTENTS, Coverage
from stoker.feed.auditing.finding import Finding, counted, shown
from stoker.feed.auditing.known import Known, Mixed, Strangers
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.ledger import UNKNOWN, Ledger

NUM_EXAMPLES = 3
SURE = 1e-6
"""Chance below which the place of repeats is no accident."""
MIN_SHIFTED = 12
"""Mixed rows, all with the same distance, that make a shift."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What an epoch is held to."""

    claims: Claims
    shuffled: bool | None
    once: bool
    catalogue: Catalogue | None
    again_by_chance: float = 0.0
    """Rows that may seem to have come again, at most, where the catalogue lists only some samples."""


def judge_repeats(cover: Coverage, ledger: Ledger, promise: Promise) -> Finding:
    """Samples that came more than once in an epoch."""
    if not cover.num_again:
        return Finding(kind="seen twice", severity="passed", text="No sample came more than once an epoch.")
    known = promise.catalogue is not None
    certain = known and cover.num_again > promise.again_by_chance
    every = cover.times >= 2 and (certain or (not known and cover.num_listed >= max(MIN_CONTENTS, 4 * cover.times)))
    rows = f"{cover.num_again:,} of {counted(ledger.num_rows, 'row')} of epoch {ledger.epoch} came again"
    noun = "samples" if known else "different contents"
    how = f"{cover.num_repeated:,} of {cover.num_listed:,} {noun}, up to {cover.most:,} times each"
    if every:
        how = f"{'nearly ' if cover.uneven else ''}every sample came {cover.times} times"
    text = f"{rows}: {how}. {shown(_repeats(cover, ledger, promise.catalogue), cover.num_again)} "
    if every:
        text += _workers(cover, promise)
    elif _is_filled(cover, ledger):
        text += f"All in the last batch ({ledger.num_batches - 1:,}): a short batch filled up with repeats? "
        certain = certain or _unlikely(cover, ledger)
    if not promise.once:
        return Finding(kind="seen twice", severity="note", text=f"{text}That is meant to be so.", count=cover.num_again)
    if not certain and not every:
        text += "Samples that were not read may be equal." if known else "The data may hold equal rows: a reference would tell."
        return Finding(kind="seen twice", severity="note", text=text, count=cover.num_again)
    return Finding(kind="seen twice", severity="fault", text=text.rstrip(), count=cover.num_again)


def _workers(cover: Coverage, promise: Promise) -> str:
    if not (promise.claims.iterable and promise.claims.num_workers == cover.times):
        return ""
    return f"Each of {cover.times} worker processes yields everything: share it out by torch.utils.data.get_worker_info(). "


def _is_filled(cover: Coverage, ledger: Ledger) -> bool:
    return ledger.complete and ledger.num_batches > 1 and bool(np.all(cover.rows_again >= ledger.starts[-2]))


def _unlikely(cover: Coverage, ledger: Ledger) -> bool:
    """Whether repeats that are spread by chance would not all have met the last batch."""
    last = ledger.num_rows - int(ledger.starts[-2])
    return (last / ledger.num_rows) ** cover.num_again < SURE


def _repeats(cover: Coverage, ledger: Ledger, catalogue: Catalogue | None) -> list[str]:
    texts = []
    for row, first in zip(cover.rows_again[:NUM_EXAMPLES].tolist(), cover.first_seen[:NUM_EXAMPLES].tolist(), strict=True):
        identity = int(ledger.identities[row])
        who = "One in " if catalogue is None else f"Sample {catalogue.numbers[identity]:,} in "
        if catalogue is not None and catalogue.counts[identity] > 1:
            who = f"The content of sample {catalogue.numbers[identity]:,}, which is there {catalogue.counts[identity]:,} times, in "
        texts.append(f"{who}{ledger.place(first)} and {ledger.place(row)}")
    return texts


def judge_absences(cover: Coverage, ledger: Ledger, promise: Promise) -> Finding:
    """Samples that never came in an epoch."""
    catalogue, claims = promise.catalogue, promise.claims
    if catalogue is None:
        text = "Needs a reference: a dataset, or another iterable of batches."
        return Finding(kind="never seen", severity="unchecked", text=text)
    if not ledger.complete:
        text = (
            f"The epoch was not followed to its end; {cover.num_listed - cover.num_missing:,} of {cover.num_listed:,} samples came."
        )
        return Finding(kind="never seen", severity="unchecked", text=text)
    looked = counted(cover.num_listed, "sample") + (f" looked for (of {catalogue.num_samples:,})" if catalogue.partial else "")
    if not cover.num_missing:
        return Finding(kind="never seen", severity="passed", text=f"Each of {looked} came.")
    numbers = np.sort(catalogue.numbers[cover.missing])
    text = f"{cover.num_missing:,} of {looked} never came in epoch {ledger.epoch}: {_ranges(numbers)}"
    if claims.num_replicas > 1:
        text += f" This is one loader of {claims.num_replicas}: check the batches of all of them, one after the other."
        return Finding(kind="never seen", severity="unchecked", text=text, count=cover.num_missing)
    if not promise.once:
        text += " That is meant to be so."
    elif cover.num_missing <= claims.droppable and not catalogue.partial:
        text += " They would have made a short last batch (drop_last)."
    else:
        return Finding(kind="never seen", severity="fault", text=text, count=cover.num_missing)
    return Finding(kind="never seen", severity="note", text=text, count=cover.num_missing)


def _ranges(numbers: Array) -> str:
    """Sample numbers, the first few, with runs written as such."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    runs = np.split(numbers, cuts[:NUM_EXAMPLES])[:NUM_EXAMPLES]
    texts = [f"{run[0]:,}" if len(run) == 1 else f"{run[0]:,} to {run[-1]:,}" for run in runs]
    return f"{'sample' if len(numbers) == 1 else 'samples'} {shown(texts, len(cuts) + 1, ', ')}"


def judge_pairs(strangers: Strangers, ledger: Ledger, known: Known | None) -> Finding:
    """Rows whose entries belong to different samples."""
    if known is None:
        return Finding(kind="mixed rows", severity="unchecked", text="Needs a reference, which says what belongs together.")
    if len(known.entries) < 2:
        text = f"Samples are known by {known.anchor!r} alone: there is no pair to compare."
        return Finding(kind="mixed rows", severity="unchecked", text=text)
    if not known.anchors_tell:
        text = f"Only some samples of the reference were read, and several have the same {known.anchor!r}: a row may be any other."
        return Finding(kind="mixed rows", severity="unchecked", text=text)
    if not strangers.num_mixed:
        return Finding(kind="mixed rows", severity="passed", text="The entries of each row belong to one sample.")
    texts = [f"{ledger.place(mixed.row)} has {_pair(mixed, known.anchor)}" for mixed in strangers.mixed[:NUM_EXAMPLES]]
    rows = f"{strangers.num_mixed:,} of {counted(ledger.num_rows, 'row')} of epoch {ledger.epoch}"
    text = f"{rows} have entries of different samples: {shown(texts, strangers.num_mixed)}{_shift(strangers.mixed)}"
    if strangers.num_mixed <= known.mixed_by_chance(strangers):
        text = f"{rows} share {known.anchor!r} with a sample that is different; they may be samples that were not read."
        return Finding(kind="mixed rows", severity="unchecked", text=text)
    return Finding(kind="mixed rows", severity="fault", text=text, count=strangers.num_mixed)


def _pair(mixed: Mixed, anchor: str) -> str:
    if mixed.num_others == 1:
        whose = f"of sample {mixed.other:,}"
    elif mixed.num_others:
        whose = f"of {mixed.num_others:,} others"
    else:
        whose = "of none that was looked at"
    return f"{anchor!r} of sample {mixed.sample:,}, {mixed.entry!r} {whose}"


def _shift(mixed: Sequence[Mixed]) -> str:
    """What they have in common, if the same distance lies between most."""
    clear = [(one.entry, one.other - one.sample) for one in mixed if one.num_others == 1]
    for (entry, distance), number in Counter(clear).most_common(1):
        if number >= max(MIN_SHIFTED, len(clear) / 2):
            where = f"{abs(distance):,} {'after' if distance > 0 else 'before'}"
            return f" In {number / len(clear):.0%} of them {entry!r} is that of the sample {where}."
    return ""


def judge_foreign(strangers: Strangers, ledger: Ledger, known: Known | None) -> Finding:
    """Rows that the reference does not hold."""
    if known is None:
        return Finding(kind="foreign rows", severity="unchecked", text="Needs a reference to find rows in.")
    if known.partial:
        text = "Only some samples of the reference were read: a row may be any of the others."
        return Finding(kind="foreign rows", severity="unchecked", text=text)
    if not strangers.num_foreign:
        return Finding(kind="foreign rows", severity="passed", text="Each row is in the reference.")
    texts = [f"{ledger.place(row)} ({names})" for row, names in strangers.foreign[:NUM_EXAMPLES]]
    rows = f"{strangers.num_foreign:,} of {counted(ledger.num_rows, 'row')} of epoch {ledger.epoch}"
    text = f"{rows} have a content that is nowhere in the reference: {shown(texts, strangers.num_foreign)}"
    return Finding(kind="foreign rows", severity="fault", text=text, count=strangers.num_foreign)


def judge_numbers(ledger: Ledger, catalogue: Catalogue) -> Finding:
    """Rows whose number is none of those that there should be."""
    strange = np.flatnonzero(ledger.identities == UNKNOWN)
    if catalogue.partial or not len(strange):
        return Finding(kind="foreign rows", severity="passed", text="Each number is one of the reference.")
    texts = [ledger.place(row) for row in strange[:NUM_EXAMPLES].tolist()]
    rows = f"{counted(len(strange), 'row')} of epoch {ledger.epoch}"
    text = f"{rows} carry a number that the reference lacks: {shown(texts, len(strange), ', ')}"
    return Finding(kind="foreign rows", severity="fault", text=text, count=len(strange))
