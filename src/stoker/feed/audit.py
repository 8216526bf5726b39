"""The audit: reads any iterable of batches as a training would, and says what would go wrong without an error.

Samples are known by their content, so a loader needs no change to be audited: a foreign `DataLoader`, a generator, a list. It
looks for samples that come twice or never, for rows whose entries belong to different samples, for an order that is not as
shuffled as it says, and for batches that change after they were handed out. Nothing is guessed: equal contents count as often
as the reference holds them, and what could not be checked is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stoker.errors import BatchesInvalid, OptionError
from stoker.feed.auditing.examination import Examination, Progress
from stoker.feed.auditing.finding import Finding, counted

REFERENCE_LIMIT = 1_000_000
"""Samples of the reference that are read; of a larger one, so many are drawn at random."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found. Batches, rows, samples and epochs are counted from 0."""

    name: str
    num_epochs: int
    num_batches: int
    num_samples: int
    """Rows of all epochs that are not masked."""
    entries: tuple[str, ...]
    """Those by which samples were recognised."""
    basis: str
    """How samples were recognised, and how far that reaches."""
    checks: tuple[Finding, ...]
    """All checks, in the order of their weight."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Faults and notes."""
        return tuple(check for check in self.checks if check.severity in ("fault", "note"))

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(check for check in self.checks if check.severity == "fault")

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, as far as it could be checked."""
        return not self.faults

    def raise_if_bad(self) -> None:
        """Raise `BatchesInvalid` with all faults, if there are any."""
        if self.faults:
            raise BatchesInvalid(f"{self.name}: " + " ".join(f"{fault.kind}: {fault.text}" for fault in self.faults))

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
            "checks": [check.to_dict() for check in self.checks],
        }

    def __str__(self) -> str:
        lines = [f"{WORDS[check.severity]:<9}  {check.kind:<14}  {check.text}" for check in self.checks]
        return "\n".join([self.headline, self.basis, *lines])


WORDS = {"fault": "FAULT", "note": "note", "passed": "ok", "unchecked": "unchecked"}
"""How a severity is printed."""


def check(
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
) -> Audit:
    """Audit an iterable of batches, or a function that returns one for each epoch.

    A batch may be a tensor, an array, or dicts, tuples and lists of them; rows where an entry `valid` is False are not samples.

    `reference` says which samples there are: a dataset with length and items, or another iterable of batches, whose rows are
    numbered as they come. Default: the loader's `dataset`, put through its `collate_fn`. `apart_from` is other data of either
    kind, validation for instance, which must have no sample in common. `shuffled` and `once` (each sample once an epoch) say
    what is promised; default: what the loader says of itself. `ids` gives the numbers of samples where content does not
    tell them apart: the name of an entry, or a function of the batch. `max_batches` bounds the batches of an epoch.
    `set_epoch` of the loader, or its sampler, is called before each epoch, where there is one.

    Reads the loader as a training does, random numbers included, and holds on to 16 batches at most. Memory: 8 bytes a row,
    and about 50 an entry for each sample of the reference. `progress` gets the phase, the share done, and the samples so far.
    """
    _at_least_one("epochs", epochs)
    _at_least_one("reference_limit", reference_limit)
    if max_batches is not None:
        _at_least_one("max_batches", max_batches)
    examination = Examination(
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
        examination.run(epoch, max_batches=max_batches)
    return Audit(
        name=examination.claims.name,
        num_epochs=epochs,
        num_batches=examination.num_batches,
        num_samples=examination.num_samples,
        entries=examination.entries,
        basis=examination.basis,
        checks=examination.findings(),
    )


def _at_least_one(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} is {value!r}; expected a whole number of at least 1.")
