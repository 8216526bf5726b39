"""The pass over all epochs of an audit, and what becomes of its counts.

    AuditReport    its result: findings, faults first
    Auditor        all epochs of an audit: batches come in, rows become identities
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
from stoker.audit import checks, samples
from stoker.audit.checks import EXACT, AuditFinding, Coverage, EpochLog, Kind, counted, shown
from stoker.audit.fingerprints import BatchForm, BatchRows, Hashes, rows_of
from stoker.audit.samples import UNKNOWN, Catalogue, LoaderClaims, MatcherSetup, MixedRow, ReferenceIndex, SampleMatcher
from stoker.errors import BatchError, OptionError

Progress = Callable[[str, float, int], None]  # gets the phase, the share of it that is done, and the samples so far
PENDING_ROWS = 2**18
"""Rows whose fingerprints are held before they become identities. The first of them settle how samples are recognised."""


WORDS = {"fault": "FAULT", "note": "note", "passed": "ok", "unchecked": "unchecked"}  # how a severity is printed


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
    num_samples: int  # rows of all epochs that are not masked
    entries: tuple[str, ...]  # those by which samples were recognised
    basis: str  # how samples were recognised, and the limits of that
    checks: tuple[AuditFinding, ...]  # all of them, faults first

    @property
    def findings(self) -> tuple[AuditFinding, ...]:
        """Faults and notes."""
        return tuple(check for check in self.checks if check.severity in ("fault", "note"))

    @property
    def faults(self) -> tuple[AuditFinding, ...]:
        """What is wrong with the batches."""
        return tuple(check for check in self.checks if check.severity == "fault")

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
        counts = {name: getattr(self, name) for name in ("num_epochs", "num_batches", "num_samples")}
        details = {"entries": list(self.entries), "basis": self.basis, "checks": [check.to_dict() for check in self.checks]}
        return {"name": self.name, "ok": self.ok, **counts, **details}

    def __str__(self) -> str:
        lines = [f"{WORDS[check.severity]:<9}  {check.kind:<14}  {check.text}" for check in self.checks]
        return "\n".join([self.headline, self.basis, *lines])


@dataclass
class Auditor:
    """All epochs of an audit, one pass each, and the findings of all of them."""

    batches: Iterable[Any] | Callable[[], Iterable[Any]]
    reference: Any
    apart_from: Any
    shuffled: bool | None
    once: bool | None
    ids: samples.SampleIds | None
    limit: int
    progress: Progress

    def __post_init__(self) -> None:
        self.claims = LoaderClaims(name="")
        self.num_batches = self.num_samples = 0
        self.matcher: SampleMatcher | None = None
        self._findings: list[AuditFinding] = []
        self._appearance = checks.Appearance()
        self._before: Array | None = None
        self._set_epoch: Callable[[int], None] | None = None
        self._setup: MatcherSetup | None = None
        self._reference: samples.Reference | None = None

    @property
    def _promised_order(self) -> bool | None:
        return self.claims.shuffled if self.shuffled is None else self.shuffled

    def run(self, number: int, *, max_batches: int | None) -> None:
        """Follow one epoch."""
        batches = self._open(number)
        try:
            declared = len(batches)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # what has no length need not say so in advance
            declared = None
        expected = min(declared or 0, max_batches or declared or 0)
        log, held = EpochLog(number), checks.HeldBatches(number)
        tables: list[Hashes] = []
        numbers: list[Array] = []
        for index, batch in enumerate(batches):
            rows = rows_of(batch)
            if not rows.entries:
                what = f"a {type(batch).__name__} without a tensor, array or list of one value per row"
                raise OptionError(f"batch {index:,} is {what}.", parameter="batches")
            if rows.num_rows:
                self._setup = self._setup or self._prepare(rows)
                self._appearance.add(rows, index)
                tables.append(self._setup.form.table(rows))
                if self.ids is not None:
                    numbers.append(samples.numbers_of(self.ids, rows, batch))
            held.add(rows)
            log.add_batch(len(tables[-1]) if rows.num_rows else 0, rows.valid)
            if log.num_rows - log.num_identified >= PENDING_ROWS:
                self._identify(log, tables, numbers)
            self.progress(f"epoch {number}", (index + 1) / expected if expected else 0.0, log.num_rows)
            if index + 1 == max_batches:
                log.complete = declared is not None and declared <= max_batches
                break
        if tables:
            self._identify(log, tables, numbers)
        fine = AuditFinding("reused memory", "passed", "Batches that were kept did not change.")
        self._findings.append(held.close() or fine)
        self.num_batches += log.num_batches
        self.num_samples += log.num_rows
        came = counted(log.num_batches, "batch")
        if declared is not None and log.complete and declared != log.num_batches:
            text = f"len() says {declared:,}, but {came} came."
            self._findings.append(AuditFinding("length", "note", text, abs(declared - log.num_batches)))
        if self.matcher is None or not log.num_rows:
            self._findings.append(AuditFinding("empty", "fault", f"Epoch {number} gave {came} and no sample.", 1))
        else:
            self._judge(log, self.matcher)

    def report(self, num_epochs: int) -> AuditReport:
        """Return the result of all epochs."""
        matcher = self.matcher
        return AuditReport(
            name=self.claims.name,
            num_epochs=num_epochs,
            num_batches=self.num_batches,
            num_samples=self.num_samples,
            entries=() if matcher is None else matcher.contents.entries,
            basis="Nothing came." if matcher is None else matcher.basis,
            checks=self._close(),
        )

    def _close(self) -> tuple[AuditFinding, ...]:
        """The worst of all epochs for each kind of check, faults first; the loader gets its first epoch back."""
        if self._set_epoch is not None:
            self._set_epoch(0)
        alike = any(finding.kind == "same order" for finding in self._findings)
        if self.num_samples and not alike and self._promised_order is not False:
            self._findings.append(AuditFinding("same order", "unchecked", "Needs two epochs."))
        merged: dict[Kind, list[AuditFinding]] = {}
        for finding in [*self._findings, *self._appearance.findings()]:
            merged.setdefault(finding.kind, []).append(finding)
        worst = [_worst(findings) for findings in merged.values()]
        return tuple(
            sorted(worst, key=lambda finding: (checks.SEVERITIES.index(finding.severity), checks.KINDS.index(finding.kind)))
        )

    def _open(self, number: int) -> Iterable[Any]:
        batches = self.batches
        opened = batches() if callable(batches) and not hasattr(batches, "__iter__") else batches
        if not hasattr(opened, "__iter__"):
            expected = "expected an iterable of batches, or a function that returns one"
            raise OptionError(f"batches is of type {type(opened).__name__}; {expected}.", parameter="batches")
        if number and opened is batches and isinstance(opened, Iterator):
            advice = "Pass a function that returns a new one, or epochs=1."
            raise OptionError(f"a {type(opened).__name__} gives one epoch only. {advice}", parameter="batches")
        self.claims = samples.claims_of(opened)
        if opened is batches and self._set_epoch is None:
            self._set_epoch = samples.epoch_setter(opened)
        if self._set_epoch is not None and number:
            self._set_epoch(number)
        return opened

    def _prepare(self, rows: BatchRows) -> MatcherSetup:
        """With the form of a first batch, read the reference."""

        def report(share: float, count: int) -> None:
            self.progress("reference", share, count)

        setup = MatcherSetup(claims=self.claims, form=BatchForm.of(rows), ids=self.ids, limit=self.limit, report=report)
        data = self.claims.dataset if self.reference is None else self.reference
        self._reference = None if data is None else setup.read(data)
        return setup

    def _identify(self, log: EpochLog, tables: list[Hashes], numbers: list[Array]) -> None:
        """The fingerprints of rows become identities; the lists are emptied."""
        table, given = np.concatenate(tables), np.concatenate(numbers) if numbers else None
        if self.matcher is None and self._setup is not None:
            self.matcher = self._setup.settle(self._reference, table, given)
            self._reference = None  # what is needed of it, the matcher has
        if self.matcher is not None:
            log.add_identities(self.matcher.identify(table, given, log.num_identified, log.unmatched))
        tables.clear()
        numbers.clear()

    def _judge(self, log: EpochLog, matcher: SampleMatcher) -> None:
        contents, catalogue, claims = matcher.contents, matcher.catalogue, self.claims
        known = contents if isinstance(contents, ReferenceIndex) else None
        chance = known.again_by_chance(log.num_rows) if known is not None and not matcher.numbered else 0.0
        once = claims.once if self.once is None else self.once
        covered, shuffled = checks.cover(log, catalogue), self._promised_order
        findings = [
            judge_repeats(covered, log, catalogue, claims, once, chance),
            judge_absences(covered, log, catalogue, claims, once),
        ]
        findings += [judge_pairs(log, known), judge_foreign(log, known)]
        if matcher.numbered and catalogue is not None:
            findings.append(judge_numbers(log, catalogue))
        ranks = matcher.ranks(log.identities)
        order = None if ranks is None else checks.measure(ranks[0], log.starts, ranks[1])
        findings.append(checks.judge_order(order, shuffled))
        if self._before is not None:
            again = checks.recurrence(self._before, log.identities, None if catalogue is None else catalogue.counts)
            findings.append(checks.judge_recurrence(again, order, shuffled))
        elif self.apart_from is not None and self._setup is not None:
            findings.append(
                checks.judge_overlap(
                    log,
                    matcher,
                    self._setup.read(self.apart_from, "apart_from"),
                    are_measurements=self._appearance.are_measurements(matcher.contents.entries),
                )
            )
        self._before = log.identities
        self._findings += findings


def _worst(findings: list[AuditFinding]) -> AuditFinding:
    """The first of the worst findings of one kind, and in how many more epochs there was one like it."""
    worst = min(findings, key=lambda finding: checks.SEVERITIES.index(finding.severity))
    others = sum(finding.severity == worst.severity for finding in findings) - 1
    if not others or worst.severity not in ("fault", "note"):
        return worst
    return dataclasses.replace(worst, text=f"{worst.text} (And in {counted(others, 'other epoch')}.)")


# Verdicts: the counts of an epoch become findings. Breaking what a loader does not promise is not a fault.

NUM_EXAMPLES = 3
SURE = 1e-6  # chance below which the place of repeats is not an accident
MIN_SHIFTED = 12  # mixed rows, all with the same distance, that make a shift


def judge_repeats(
    cover: Coverage, log: EpochLog, catalogue: Catalogue | None, claims: LoaderClaims, once: bool, again_by_chance: float
) -> AuditFinding:
    """Samples that came more than once in an epoch; `again_by_chance` may seem so where the catalogue lists only some."""
    if not cover.num_again:
        limits = "" if catalogue is not None else f" {EXACT}"
        return AuditFinding("seen twice", "passed", f"No sample came more than once per epoch.{limits}")
    known, times = catalogue is not None, cover.times
    certain = known and cover.num_again > again_by_chance
    every = times >= 2 and (certain or (not known and cover.num_listed >= max(checks.MIN_CONTENTS, 4 * times)))
    noun = "samples" if known else "different contents"
    how = f"{cover.num_repeated:,} of {cover.num_listed:,} {noun}, up to {cover.most:,} times each"
    if every:
        how = f"{'nearly ' if cover.uneven else ''}every sample came {times} times"
    text = f"{cover.num_again:,} of {log.rows} came again: {how}. {shown(_repeats(cover, log, catalogue), cover.num_again)} "
    if every:
        if claims.iterable and claims.num_workers == times:
            text += f"Each of {times} worker processes yields everything: share it out by torch.utils.data.get_worker_info(). "
    elif log.complete and log.num_batches > 1 and np.all(cover.rows_again >= log.starts[-2]):
        text += f"All in the last batch ({log.num_batches - 1:,}): a short batch filled up with repeats? "
        # Repeats that are spread by chance would hardly all have met the last batch.
        last = log.num_rows - int(log.starts[-2])
        certain = certain or (last / log.num_rows) ** cover.num_again < SURE
    if not once:
        return AuditFinding("seen twice", "note", f"{text}That is meant to be so.", cover.num_again)
    if not certain and not every:
        unread = "Samples that were not read may be equal."
        text += unread if known else "The data may hold equal rows: give reference= to find out."
        return AuditFinding("seen twice", "note", text, cover.num_again)
    return AuditFinding("seen twice", "fault", text.rstrip(), cover.num_again)


def _repeats(cover: Coverage, log: EpochLog, catalogue: Catalogue | None) -> list[str]:
    texts = []
    for row, first in zip(cover.rows_again[:NUM_EXAMPLES].tolist(), cover.first_seen[:NUM_EXAMPLES].tolist(), strict=True):
        who = "One"
        if catalogue is not None:
            number, count = (int(values[log.identities[row]]) for values in (catalogue.numbers, catalogue.counts))
            who = f"Sample {number:,}"
            if count > 1:
                who = f"The content of sample {number:,}, which is there {count:,} times,"
        texts.append(f"{who} in {log.place(first)} and {log.place(row)}")
    return texts


def judge_absences(cover: Coverage, log: EpochLog, catalogue: Catalogue | None, claims: LoaderClaims, once: bool) -> AuditFinding:
    """Samples that never came in an epoch."""
    if catalogue is None:
        return AuditFinding("never seen", "unchecked", "Needs a reference: a dataset, or another iterable of batches.")
    if not log.complete:
        came = f"{cover.num_listed - cover.num_missing:,} of {cover.num_listed:,} samples came"
        return AuditFinding("never seen", "unchecked", f"The epoch was not followed to its end; {came}.")
    looked = counted(cover.num_listed, "sample") + (f" looked for (of {catalogue.num_samples:,})" if catalogue.partial else "")
    if not cover.num_missing:
        return AuditFinding("never seen", "passed", f"Each of {looked} came.")
    numbers = np.sort(catalogue.numbers[cover.missing])
    text = f"{cover.num_missing:,} of {looked} never came in epoch {log.epoch}: {_ranges(numbers)}"
    if claims.num_replicas > 1:
        text += f" This is one loader of {claims.num_replicas}: check the batches of all of them, one after the other."
        return AuditFinding("never seen", "unchecked", text, cover.num_missing)
    if not once:
        return AuditFinding("never seen", "note", f"{text} That is meant to be so.", cover.num_missing)
    if cover.num_missing <= claims.droppable and not catalogue.partial:
        text += " They would have made a short last batch (drop_last)."
        return AuditFinding("never seen", "note", text, cover.num_missing)
    return AuditFinding("never seen", "fault", text, cover.num_missing)


def _ranges(numbers: Array) -> str:
    """Sample numbers, the first few, with runs written as such."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    runs = np.split(numbers, cuts[:NUM_EXAMPLES])[:NUM_EXAMPLES]
    texts = [f"{run[0]:,}" if len(run) == 1 else f"{run[0]:,} to {run[-1]:,}" for run in runs]
    return f"{'sample' if len(numbers) == 1 else 'samples'} {shown(texts, len(cuts) + 1, ', ')}"


def judge_pairs(log: EpochLog, known: ReferenceIndex | None) -> AuditFinding:
    """Rows whose entries belong to different samples."""
    if known is None:
        return AuditFinding("mixed rows", "unchecked", "Needs a reference, which says what belongs together.")
    if len(known.entries) < 2:
        return AuditFinding("mixed rows", "unchecked", f"Samples are known by {known.anchor!r} alone: there is no pair to compare.")
    if not known.anchors_tell:
        text = f"Only some samples of the reference were read, and several have the same {known.anchor!r}: a row may be any other."
        return AuditFinding("mixed rows", "unchecked", text)
    unmatched = log.unmatched
    if not unmatched.num_mixed:
        return AuditFinding("mixed rows", "passed", "The entries of each row belong to one sample.")
    rows = f"{unmatched.num_mixed:,} of {log.rows}"
    if unmatched.num_mixed <= known.mixed_by_chance(unmatched):
        text = f"{rows} share {known.anchor!r} with a sample that is different; they may be samples that were not read."
        return AuditFinding("mixed rows", "unchecked", text)
    texts = [f"{log.place(mixed.row)} has {_pair(mixed, known.anchor)}" for mixed in unmatched.mixed[:NUM_EXAMPLES]]
    text = f"{rows} have entries of different samples: {shown(texts, unmatched.num_mixed)}{_shift(unmatched.mixed)}"
    return AuditFinding("mixed rows", "fault", text, unmatched.num_mixed)


def _pair(mixed: MixedRow, anchor: str) -> str:
    whose = f"{mixed.num_others:,} others" if mixed.num_others else "none that was read"
    whose = f"sample {mixed.other:,}" if mixed.num_others == 1 else whose
    return f"{anchor!r} of sample {mixed.sample:,}, {mixed.entry!r} of {whose}"


def _shift(mixed: Sequence[MixedRow]) -> str:
    """What they have in common, if the same distance lies between most."""
    clear = [(row.entry, row.other - row.sample) for row in mixed if row.num_others == 1]
    for (entry, distance), number in Counter(clear).most_common(1):
        if number >= max(MIN_SHIFTED, len(clear) / 2):
            where = f"{abs(distance):,} {'after' if distance > 0 else 'before'}"
            return f" In {number / len(clear):.0%} of them {entry!r} is that of the sample {where}."
    return ""


def judge_foreign(log: EpochLog, known: ReferenceIndex | None) -> AuditFinding:
    """Rows that the reference does not hold."""
    if known is None:
        return AuditFinding("foreign rows", "unchecked", "Needs a reference to find rows in.")
    if known.partial:
        text = "Only some samples of the reference were read: a row may be any of the others."
        return AuditFinding("foreign rows", "unchecked", text)
    number = log.unmatched.num_foreign
    if not number:
        return AuditFinding("foreign rows", "passed", "Each row is in the reference.")
    texts = [f"{log.place(row)} ({names})" for row, names in log.unmatched.foreign[:NUM_EXAMPLES]]
    text = f"{number:,} of {log.rows} have a content that is nowhere in the reference: {shown(texts, number)}"
    return AuditFinding("foreign rows", "fault", text, number)


def judge_numbers(log: EpochLog, catalogue: Catalogue) -> AuditFinding:
    """Rows whose number is none of those that there should be."""
    strange = np.flatnonzero(log.identities == UNKNOWN)
    if catalogue.partial or not len(strange):
        return AuditFinding("foreign rows", "passed", "Each number is one of the reference.")
    places = shown([log.place(row) for row in strange[:NUM_EXAMPLES].tolist()], len(strange), ", ")
    text = f"{counted(len(strange), 'row')} of epoch {log.epoch} carry a number that the reference lacks: {places}"
    return AuditFinding("foreign rows", "fault", text, len(strange))
