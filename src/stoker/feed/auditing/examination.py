"""The examination: all epochs of an audit, one pass each, and what they amount to together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stoker.errors import OptionError
from stoker.feed.auditing import verdict
from stoker.feed.auditing.appearance import Appearance
from stoker.feed.auditing.claims import Claims, Turn, claims_of
from stoker.feed.auditing.coverage import cover
from stoker.feed.auditing.epoch import Epoch
from stoker.feed.auditing.finding import KINDS, SEVERITIES, Finding, Kind, counted
from stoker.feed.auditing.fingerprint import Words
from stoker.feed.auditing.form import Form
from stoker.feed.auditing.known import Known
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.numbered import Ids
from stoker.feed.auditing.order_verdict import judge_order, judge_recurrence
from stoker.feed.auditing.overlap import judge_overlap
from stoker.feed.auditing.recogniser import Means, Recogniser
from stoker.feed.auditing.reference import Reference
from stoker.feed.auditing.rows import Rows, rows_of
from stoker.feed.auditing.shuffle import measure, recurrence
from stoker.feed.auditing.verdict import Promise

Progress = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done, and the samples so far."""


class Examination:
    """All that an audit knows so far."""

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        reference: Any,
        apart_from: Any,
        shuffled: bool | None,
        once: bool | None,
        ids: Ids | None,
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
        self._turn: Turn | None = None
        self._means: Means | None = None
        self._reference: Reference | None = None
        self._recogniser: Recogniser | None = None
        self.claims = Claims(name="")
        self.num_batches = 0
        self.num_samples = 0

    @property
    def basis(self) -> str:
        """How samples were recognised."""
        return self._recogniser.basis if self._recogniser is not None else "Nothing came."

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries by which samples were recognised."""
        return self._recogniser.contents.entries if self._recogniser is not None else ()

    @property
    def _promised_order(self) -> bool | None:
        return self.claims.shuffled if self._shuffled is None else self._shuffled

    def run(self, number: int, *, max_batches: int | None) -> None:
        """Follow one epoch."""
        batches = self._open(number)
        declared = _declared_length(batches)
        expected = min(declared or 0, max_batches or declared or 0)
        epoch = Epoch(number, settle=self._settle, ids=self._ids)
        for index, batch in enumerate(batches):
            rows = rows_of(batch)
            if not rows.entries:
                raise OptionError(
                    f"batch {index:,} is a {type(batch).__name__} without a tensor, array or list of one value a row."
                )
            if rows.num_rows:
                if self._means is None:
                    self._means = self._prepare(rows)
                self._appearance.add(rows, index)
                epoch.add(rows, batch, self._means.form)
            else:
                epoch.skip()
            self._progress(f"epoch {number}", (index + 1) / expected if expected else 0.0, epoch.ledger.num_rows)
            if index + 1 == max_batches:
                epoch.ledger.complete = declared is not None and declared <= max_batches
                break
        self._close(epoch, declared)

    def findings(self) -> tuple[Finding, ...]:
        """The worst of all epochs for each kind of check, faults first."""
        if self._turn is not None:
            self._turn.back()
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
        if opened is batches and self._turn is None:
            self._turn = Turn(opened)
        if self._turn is not None and number:
            self._turn.go(number)
        return opened

    def _prepare(self, rows: Rows) -> Means:
        """With the form of a first batch, read the reference."""
        means = Means(claims=self.claims, form=Form.of(rows), ids=self._ids, limit=self._limit, report=self._report)
        data = self.claims.dataset if self._given is None else self._given
        self._reference = None if data is None else means.read(data)
        return means

    def _settle(self, table: Words, numbers: Array | None) -> Recogniser:
        if self._recogniser is None:
            if self._means is None:
                raise RuntimeError("rows come after the form of a first batch")
            self._recogniser = self._means.settle(self._reference, table, numbers)
            self._reference = None  # what is needed of it, the recogniser has
        return self._recogniser

    def _report(self, share: float, count: int) -> None:
        self._progress("reference", share, count)

    def _close(self, epoch: Epoch, declared: int | None) -> None:
        self._findings += epoch.close()
        ledger = epoch.ledger
        num_batches = ledger.num_batches
        self.num_batches += num_batches
        self.num_samples += ledger.num_rows
        if declared is not None and ledger.complete and declared != num_batches:
            text = f"len() says {declared:,}, but {counted(num_batches, 'batch')} came."
            self._findings.append(Finding(kind="length", severity="note", text=text, count=abs(declared - num_batches)))
        if self._recogniser is None or not ledger.num_rows:
            text = f"Epoch {ledger.epoch} gave {counted(num_batches, 'batch')} and no sample."
            self._findings.append(Finding(kind="empty", severity="fault", text=text, count=1))
            return
        self._judge(epoch, self._recogniser)

    def _judge(self, epoch: Epoch, recogniser: Recogniser) -> None:
        ledger, contents, catalogue = epoch.ledger, recogniser.contents, recogniser.catalogue
        known = contents if isinstance(contents, Known) else None
        promise = Promise(
            claims=self.claims,
            shuffled=self._promised_order,
            once=self.claims.once if self._once is None else self._once,
            catalogue=catalogue,
            again_by_chance=known.again_by_chance(ledger.num_rows) if known is not None and recogniser.numbered is None else 0.0,
        )
        covered = cover(ledger, catalogue)
        self._findings += [verdict.judge_repeats(covered, ledger, promise), verdict.judge_absences(covered, ledger, promise)]
        self._findings += [
            verdict.judge_pairs(epoch.strangers, ledger, known),
            verdict.judge_foreign(epoch.strangers, ledger, known),
        ]
        if recogniser.numbered is not None and catalogue is not None:
            self._findings.append(verdict.judge_numbers(ledger, catalogue))
        ranks = recogniser.ranks(ledger.identities)
        order = None if ranks is None else measure(ranks[0], ledger.starts, ranks[1])
        self._findings.append(judge_order(order, promise.shuffled))
        if self._before is not None:
            again = recurrence(self._before, ledger.identities, None if catalogue is None else catalogue.counts)
            self._findings.append(judge_recurrence(again, order, promise.shuffled))
        elif self._apart_from is not None and self._means is not None:
            self._findings.append(judge_overlap(ledger, recogniser, self._means.read(self._apart_from, "apart_from")))
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
