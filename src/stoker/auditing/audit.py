"""Audit: reads any iterable of batches as a training loop would, and reports what would go wrong without an error.

    audit          the entry point, `stoker.audit`
    AuditReport    its result: findings, faults first
    Auditor        all epochs of an audit
    EpochAudit     one epoch: batches come in, rows become identities
    judge_…        the counts of an epoch become findings

Samples are recognised by their content, so a loader needs no change to be audited: a DataLoader, a generator, a list. Equal
contents count as often as the reference holds them, and what could not be checked is reported as unchecked.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker._types import Array
from stoker.auditing.checks import (
    MIN_CONTENTS,
    Appearance,
    Coverage,
    HeldBatches,
    cover,
    judge_order,
    judge_overlap,
    judge_recurrence,
    measure,
    recurrence,
)
from stoker.auditing.findings import KINDS, SEVERITIES, UNKNOWN, Catalogue, EpochLog, Finding, Kind, counted, shown
from stoker.auditing.fingerprints import BatchForm, Hashes, Rows, rows_of
from stoker.auditing.samples import (
    EpochSetter,
    LoaderClaims,
    MatcherSetup,
    MixedRow,
    Reference,
    ReferenceIndex,
    SampleIds,
    SampleMatcher,
    UnmatchedRows,
    claims_of,
    numbers_of,
)
from stoker.errors import BatchError, OptionError

Progress = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done, and the samples so far."""

REFERENCE_LIMIT = 1_000_000
"""Samples of the reference that are read; of a larger one, this many are drawn at random."""


def audit(
    batches: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    reference: Any = None,
    apart_from: Any = None,
    epochs: int = 1,
    max_batches: int | None = None,
    shuffled: bool | None = None,
    once: bool | None = None,
    ids: str | Callable[[Any], Any] | None = None,
    reference_limit: int = REFERENCE_LIMIT,
    progress: Progress | None = None,
) -> AuditReport:
    """Audit an iterable of batches: read it as a training loop would, and report what would go wrong without an error.

    It finds samples that come twice or never, rows whose entries belong to different samples, an order that is not as shuffled as
    the loader says, batches that change after they were handed out, and non-finite values. A batch may be a tensor, an array, or
    dicts, tuples, lists and dataclasses of them; rows where an entry `valid` is False are not samples.

    The loader is read as a training loop reads it, random numbers included, and at most 16 batches are held. Memory: 8 bytes per
    row, and about 50 per entry and sample of the reference.

    Args:
        batches: An iterable of batches, or a function that returns one for each epoch.
        reference: The samples that there are: a dataset with length and items, or another iterable of batches, whose rows are
            numbered as they come. By default the loader's `dataset`, passed through its `collate_fn`.
        apart_from: Other data of either kind, such as validation, that must have no sample in common.
        epochs: Epochs to read; 2 compares their orders. `set_epoch` of the loader or its sampler is called before each.
        max_batches: At most this many batches per epoch.
        shuffled: Whether the order should be random; by default what the loader says.
        once: Whether each sample should come once per epoch; by default what the loader says.
        ids: What numbers the samples where content does not tell them apart: the name of an entry, or a function of the batch.
        reference_limit: Samples of the reference to read; of a larger one, this many are drawn at random.
        progress: Called with the phase, the share that is done, and the samples so far.

    Returns:
        An `AuditReport`: `print` it, or test `report.ok`.

    Raises:
        OptionError: An option is invalid, or a batch has no rows to compare.

    Example:
        >>> import stoker, torch
        >>> x = torch.arange(8.0)
        >>> report = stoker.audit([x[:4], x[2:6], x[6:]], reference=[x])
        >>> report.ok, [fault.kind for fault in report.faults]
        (False, ['seen twice'])
    """
    _at_least_one("epochs", epochs)
    _at_least_one("reference_limit", reference_limit)
    if max_batches is not None:
        _at_least_one("max_batches", max_batches)
    auditor = Auditor(
        batches,
        reference=reference,
        apart_from=apart_from,
        shuffled=shuffled,
        once=once,
        ids=ids,
        reference_limit=reference_limit,
        progress=progress,
    )
    for epoch in range(epochs):
        auditor.run(epoch, max_batches=max_batches)
    return AuditReport(
        name=auditor.claims.name,
        num_epochs=epochs,
        num_batches=auditor.num_batches,
        num_samples=auditor.num_samples,
        entries=auditor.entries,
        basis=auditor.basis,
        checks=auditor.findings(),
    )


def _at_least_one(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} is {value!r}; expected an integer from 1.")


WORDS = {"fault": "FAULT", "note": "note", "passed": "ok", "unchecked": "unchecked"}
"""How a severity is printed."""


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What an audit found. Batches, rows, samples and epochs are counted from 0.

    Example:
        >>> import stoker, torch
        >>> report = stoker.audit([torch.arange(4.0)])
        >>> report.ok, report.headline
        (True, 'list: 1 batch with 4 samples')
    """

    name: str
    num_epochs: int
    num_batches: int
    num_samples: int
    """Rows of all epochs that are not masked."""
    entries: tuple[str, ...]
    """Those by which samples were recognised."""
    basis: str
    """How samples were recognised, and the limits of that."""
    checks: tuple[Finding, ...]
    """All checks, faults first."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Faults and notes."""
        return tuple(one for one in self.checks if one.severity in ("fault", "note"))

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong with the batches."""
        return tuple(one for one in self.checks if one.severity == "fault")

    @property
    def ok(self) -> bool:
        """Whether no check found a fault; some may be unchecked."""
        return not self.faults

    def raise_if_bad(self) -> None:
        """Raise `BatchError` with all faults, if there are any."""
        if self.faults:
            raise BatchError(f"{self.name}: " + " ".join(f"{fault.kind}: {fault.text}" for fault in self.faults))

    @property
    def headline(self) -> str:
        """What was read, in a line."""
        epochs = f" in {counted(self.num_epochs, 'epoch')}" if self.num_epochs > 1 else ""
        return f"{self.name}: {counted(self.num_batches, 'batch')} with {counted(self.num_samples, 'sample')}{epochs}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.name,
            "ok": self.ok,
            "num_epochs": self.num_epochs,
            "num_batches": self.num_batches,
            "num_samples": self.num_samples,
            "entries": list(self.entries),
            "basis": self.basis,
            "checks": [one.to_dict() for one in self.checks],
        }

    def __str__(self) -> str:
        lines = [f"{WORDS[one.severity]:<9}  {one.kind:<14}  {one.text}" for one in self.checks]
        return "\n".join([self.headline, self.basis, *lines])


# The auditor: all epochs of an audit, one pass each, and the worst findings of all of them.


class Auditor:
    """All that an audit knows so far."""

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        reference: Any,
        apart_from: Any,
        shuffled: bool | None,
        once: bool | None,
        ids: SampleIds | None,
        reference_limit: int,
        progress: Progress | None,
    ) -> None:
        self._batches = batches
        self._given = reference
        self._apart_from = apart_from
        self._shuffled = shuffled
        self._once = once
        self._ids = ids
        self._limit = reference_limit
        self._progress: Progress = progress or (lambda phase, share, count: None)
        self._appearance = Appearance()
        self._findings: list[Finding] = []
        self._before: Array | None = None
        self._epoch_setter: EpochSetter | None = None
        self._setup: MatcherSetup | None = None
        self._reference: Reference | None = None
        self._matcher: SampleMatcher | None = None
        self.claims = LoaderClaims(name="")
        self.num_batches = 0
        self.num_samples = 0

    @property
    def basis(self) -> str:
        """How samples were recognised."""
        return self._matcher.basis if self._matcher is not None else "Nothing came."

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries by which samples were recognised."""
        return self._matcher.contents.entries if self._matcher is not None else ()

    @property
    def _promised_order(self) -> bool | None:
        return self.claims.shuffled if self._shuffled is None else self._shuffled

    def run(self, number: int, *, max_batches: int | None) -> None:
        """Follow one epoch."""
        batches = self._open(number)
        declared = _declared_length(batches)
        expected = min(declared or 0, max_batches or declared or 0)
        epoch = EpochAudit(number, settle=self._settle, ids=self._ids)
        for index, batch in enumerate(batches):
            rows = rows_of(batch)
            if not rows.entries:
                raise OptionError(
                    f"batch {index:,} is a {type(batch).__name__} without a tensor, array or list of one value per row."
                )
            if rows.num_rows:
                if self._setup is None:
                    self._setup = self._prepare(rows)
                self._appearance.add(rows, index)
                epoch.add(rows, batch, self._setup.form)
            else:
                epoch.skip()
            self._progress(f"epoch {number}", (index + 1) / expected if expected else 0.0, epoch.ledger.num_rows)
            if index + 1 == max_batches:
                epoch.ledger.complete = declared is not None and declared <= max_batches
                break
        self._close(epoch, declared)

    def findings(self) -> tuple[Finding, ...]:
        """The worst of all epochs for each kind of check, faults first."""
        if self._epoch_setter is not None:
            self._epoch_setter.back()
        alike = any(finding.kind == "same order" for finding in self._findings)
        if self.num_samples and not alike and self._promised_order is not False:
            self._findings.append(Finding(kind="same order", severity="unchecked", text="Needs two epochs."))
        merged: dict[Kind, list[Finding]] = {}
        for finding in [*self._findings, *self._appearance.findings()]:
            merged.setdefault(finding.kind, []).append(finding)
        worst = [_worst(findings) for findings in merged.values()]
        return tuple(sorted(worst, key=lambda finding: (SEVERITIES.index(finding.severity), KINDS.index(finding.kind))))

    def _open(self, number: int) -> Iterable[Any]:
        batches = self._batches
        opened = batches() if callable(batches) and not hasattr(batches, "__iter__") else batches
        if not hasattr(opened, "__iter__"):
            raise OptionError(
                f"batches is of type {type(opened).__name__}; expected an iterable of batches, or a function that returns one."
            )
        if number and opened is batches and isinstance(opened, Iterator):
            raise OptionError(
                f"a {type(opened).__name__} gives one epoch only. Pass a function that returns a new one, or epochs=1."
            )
        self.claims = claims_of(opened)
        if opened is batches and self._epoch_setter is None:
            self._epoch_setter = EpochSetter(opened)
        if self._epoch_setter is not None and number:
            self._epoch_setter.go(number)
        return opened

    def _prepare(self, rows: Rows) -> MatcherSetup:
        """With the form of a first batch, read the reference."""
        setup = MatcherSetup(claims=self.claims, form=BatchForm.of(rows), ids=self._ids, limit=self._limit, report=self._report)
        data = self.claims.dataset if self._given is None else self._given
        self._reference = None if data is None else setup.read(data)
        return setup

    def _settle(self, table: Hashes, numbers: Array | None) -> SampleMatcher:
        if self._matcher is None:
            if self._setup is None:
                raise RuntimeError("rows come after the form of a first batch")
            self._matcher = self._setup.settle(self._reference, table, numbers)
            self._reference = None  # what is needed of it, the matcher has
        return self._matcher

    def _report(self, share: float, count: int) -> None:
        self._progress("reference", share, count)

    def _close(self, epoch: EpochAudit, declared: int | None) -> None:
        self._findings += epoch.close()
        ledger = epoch.ledger
        num_batches = ledger.num_batches
        self.num_batches += num_batches
        self.num_samples += ledger.num_rows
        if declared is not None and ledger.complete and declared != num_batches:
            text = f"len() says {declared:,}, but {counted(num_batches, 'batch')} came."
            self._findings.append(Finding(kind="length", severity="note", text=text, count=abs(declared - num_batches)))
        if self._matcher is None or not ledger.num_rows:
            text = f"Epoch {ledger.epoch} gave {counted(num_batches, 'batch')} and no sample."
            self._findings.append(Finding(kind="empty", severity="fault", text=text, count=1))
            return
        self._judge(epoch, self._matcher)

    def _judge(self, epoch: EpochAudit, matcher: SampleMatcher) -> None:
        ledger, contents, catalogue = epoch.ledger, matcher.contents, matcher.catalogue
        known = contents if isinstance(contents, ReferenceIndex) else None
        promise = Expectation(
            claims=self.claims,
            shuffled=self._promised_order,
            once=self.claims.once if self._once is None else self._once,
            catalogue=catalogue,
            again_by_chance=known.again_by_chance(ledger.num_rows) if known is not None and matcher.numbered is None else 0.0,
        )
        covered = cover(ledger, catalogue)
        self._findings += [judge_repeats(covered, ledger, promise), judge_absences(covered, ledger, promise)]
        self._findings += [judge_pairs(epoch.unmatched, ledger, known), judge_foreign(epoch.unmatched, ledger, known)]
        if matcher.numbered is not None and catalogue is not None:
            self._findings.append(judge_numbers(ledger, catalogue))
        ranks = matcher.ranks(ledger.identities)
        order = None if ranks is None else measure(ranks[0], ledger.starts, ranks[1])
        self._findings.append(judge_order(order, promise.shuffled))
        if self._before is not None:
            again = recurrence(self._before, ledger.identities, None if catalogue is None else catalogue.counts)
            self._findings.append(judge_recurrence(again, order, promise.shuffled))
        elif self._apart_from is not None and self._setup is not None:
            self._findings.append(judge_overlap(ledger, matcher, self._setup.read(self._apart_from, "apart_from")))
        self._before = ledger.identities


def _declared_length(batches: Any) -> int | None:
    try:
        return len(batches)
    except (TypeError, NotImplementedError):  # what has no length need not say so in advance
        return None


def _worst(findings: list[Finding]) -> Finding:
    """The first of the worst findings of one kind, and in how many more epochs there was one like it."""
    worst = min(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    others = sum(finding.severity == worst.severity for finding in findings) - 1
    if not others or worst.severity not in ("fault", "note"):
        return worst
    return dataclasses.replace(worst, text=f"{worst.text} (And in {counted(others, 'other epoch')}.)")


# One epoch under audit.

PENDING_ROWS = 2**18
"""Rows whose fingerprints are held before they become identities. The first of them settle how samples are recognised."""

Settle = Callable[[Hashes, Array | None], SampleMatcher]


class EpochAudit:
    """What came in one epoch."""

    def __init__(self, number: int, *, settle: Settle, ids: SampleIds | None) -> None:
        self.ledger = EpochLog(number)
        self.unmatched = UnmatchedRows()
        self._kept = HeldBatches(number)
        self._settle = settle
        self._ids = ids
        self._tables: list[Hashes] = []
        self._numbers: list[Array] = []
        self._num_pending = 0
        self._num_identified = 0

    def add(self, rows: Rows, batch: Any, form: BatchForm) -> None:
        """Take a batch."""
        table = form.table(rows)
        self._kept.add(rows)
        self._tables.append(table)
        if self._ids is not None:
            self._numbers.append(numbers_of(self._ids, rows, batch))
        self.ledger.add_batch(len(table), rows.valid)
        self._num_pending += len(table)
        if self._num_pending >= PENDING_ROWS:
            self._identify()

    def skip(self) -> None:
        """Take a batch without rows."""
        self._kept.skip()
        self.ledger.add_batch(0, None)

    def close(self) -> list[Finding]:
        """Identify the last rows; findings about memory, which need the batches themselves."""
        if self._tables:
            self._identify()
        found = self._kept.close()
        fine = Finding(kind="reused memory", severity="passed", text="Batches that were kept did not change.")
        return [found or fine]

    def _identify(self) -> None:
        table = np.concatenate(self._tables)
        numbers = np.concatenate(self._numbers) if self._numbers else None
        matcher = self._settle(table, numbers)
        self.ledger.add_identities(matcher.identify(table, numbers, self._num_identified, self.unmatched))
        self._num_identified += len(table)
        self._num_pending = 0
        self._tables.clear()
        self._numbers.clear()


# Verdicts: the counts of an epoch become findings. Breaking what a loader does not promise is not a fault.

NUM_EXAMPLES = 3
SURE = 1e-6
"""Chance below which the place of repeats is no accident."""
MIN_SHIFTED = 12
"""Mixed rows, all with the same distance, that make a shift."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What an epoch is held to."""

    claims: LoaderClaims
    shuffled: bool | None
    once: bool
    catalogue: Catalogue | None
    again_by_chance: float = 0.0
    """Rows that may seem to have come again, at most, where the catalogue lists only some samples."""


def judge_repeats(cover: Coverage, ledger: EpochLog, promise: Expectation) -> Finding:
    """Samples that came more than once in an epoch."""
    if not cover.num_again:
        return Finding(kind="seen twice", severity="passed", text="No sample came more than once per epoch.")
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
        text += (
            "Samples that were not read may be equal." if known else "The data may hold equal rows: give reference= to find out."
        )
        return Finding(kind="seen twice", severity="note", text=text, count=cover.num_again)
    return Finding(kind="seen twice", severity="fault", text=text.rstrip(), count=cover.num_again)


def _workers(cover: Coverage, promise: Expectation) -> str:
    if not (promise.claims.iterable and promise.claims.num_workers == cover.times):
        return ""
    return f"Each of {cover.times} worker processes yields everything: share it out by torch.utils.data.get_worker_info(). "


def _is_filled(cover: Coverage, ledger: EpochLog) -> bool:
    return ledger.complete and ledger.num_batches > 1 and bool(np.all(cover.rows_again >= ledger.starts[-2]))


def _unlikely(cover: Coverage, ledger: EpochLog) -> bool:
    """Whether repeats that are spread by chance would not all have met the last batch."""
    last = ledger.num_rows - int(ledger.starts[-2])
    return (last / ledger.num_rows) ** cover.num_again < SURE


def _repeats(cover: Coverage, ledger: EpochLog, catalogue: Catalogue | None) -> list[str]:
    texts = []
    for row, first in zip(cover.rows_again[:NUM_EXAMPLES].tolist(), cover.first_seen[:NUM_EXAMPLES].tolist(), strict=True):
        identity = int(ledger.identities[row])
        who = "One in " if catalogue is None else f"Sample {catalogue.numbers[identity]:,} in "
        if catalogue is not None and catalogue.counts[identity] > 1:
            who = f"The content of sample {catalogue.numbers[identity]:,}, which is there {catalogue.counts[identity]:,} times, in "
        texts.append(f"{who}{ledger.place(first)} and {ledger.place(row)}")
    return texts


def judge_absences(cover: Coverage, ledger: EpochLog, promise: Expectation) -> Finding:
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


def judge_pairs(unmatched: UnmatchedRows, ledger: EpochLog, known: ReferenceIndex | None) -> Finding:
    """Rows whose entries belong to different samples."""
    if known is None:
        return Finding(kind="mixed rows", severity="unchecked", text="Needs a reference, which says what belongs together.")
    if len(known.entries) < 2:
        text = f"Samples are known by {known.anchor!r} alone: there is no pair to compare."
        return Finding(kind="mixed rows", severity="unchecked", text=text)
    if not known.anchors_tell:
        text = f"Only some samples of the reference were read, and several have the same {known.anchor!r}: a row may be any other."
        return Finding(kind="mixed rows", severity="unchecked", text=text)
    if not unmatched.num_mixed:
        return Finding(kind="mixed rows", severity="passed", text="The entries of each row belong to one sample.")
    texts = [f"{ledger.place(mixed.row)} has {_pair(mixed, known.anchor)}" for mixed in unmatched.mixed[:NUM_EXAMPLES]]
    rows = f"{unmatched.num_mixed:,} of {counted(ledger.num_rows, 'row')} of epoch {ledger.epoch}"
    text = f"{rows} have entries of different samples: {shown(texts, unmatched.num_mixed)}{_shift(unmatched.mixed)}"
    if unmatched.num_mixed <= known.mixed_by_chance(unmatched):
        text = f"{rows} share {known.anchor!r} with a sample that is different; they may be samples that were not read."
        return Finding(kind="mixed rows", severity="unchecked", text=text)
    return Finding(kind="mixed rows", severity="fault", text=text, count=unmatched.num_mixed)


def _pair(mixed: MixedRow, anchor: str) -> str:
    if mixed.num_others == 1:
        whose = f"of sample {mixed.other:,}"
    elif mixed.num_others:
        whose = f"of {mixed.num_others:,} others"
    else:
        whose = "of none that was read"
    return f"{anchor!r} of sample {mixed.sample:,}, {mixed.entry!r} {whose}"


def _shift(mixed: Sequence[MixedRow]) -> str:
    """What they have in common, if the same distance lies between most."""
    clear = [(one.entry, one.other - one.sample) for one in mixed if one.num_others == 1]
    for (entry, distance), number in Counter(clear).most_common(1):
        if number >= max(MIN_SHIFTED, len(clear) / 2):
            where = f"{abs(distance):,} {'after' if distance > 0 else 'before'}"
            return f" In {number / len(clear):.0%} of them {entry!r} is that of the sample {where}."
    return ""


def judge_foreign(unmatched: UnmatchedRows, ledger: EpochLog, known: ReferenceIndex | None) -> Finding:
    """Rows that the reference does not hold."""
    if known is None:
        return Finding(kind="foreign rows", severity="unchecked", text="Needs a reference to find rows in.")
    if known.partial:
        text = "Only some samples of the reference were read: a row may be any of the others."
        return Finding(kind="foreign rows", severity="unchecked", text=text)
    if not unmatched.num_foreign:
        return Finding(kind="foreign rows", severity="passed", text="Each row is in the reference.")
    texts = [f"{ledger.place(row)} ({names})" for row, names in unmatched.foreign[:NUM_EXAMPLES]]
    rows = f"{unmatched.num_foreign:,} of {counted(ledger.num_rows, 'row')} of epoch {ledger.epoch}"
    text = f"{rows} have a content that is nowhere in the reference: {shown(texts, unmatched.num_foreign)}"
    return Finding(kind="foreign rows", severity="fault", text=text, count=unmatched.num_foreign)


def judge_numbers(ledger: EpochLog, catalogue: Catalogue) -> Finding:
    """Rows whose number is none of those that there should be."""
    strange = np.flatnonzero(ledger.identities == UNKNOWN)
    if catalogue.partial or not len(strange):
        return Finding(kind="foreign rows", severity="passed", text="Each number is one of the reference.")
    texts = [ledger.place(row) for row in strange[:NUM_EXAMPLES].tolist()]
    rows = f"{counted(len(strange), 'row')} of epoch {ledger.epoch}"
    text = f"{rows} carry a number that the reference lacks: {shown(texts, len(strange), ', ')}"
    return Finding(kind="foreign rows", severity="fault", text=text, count=len(strange))
