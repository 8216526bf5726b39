"""Audit: reads any iterable of batches as a training loop would, and reports what would go wrong without an error.

`stoker.audit` is the function of this module. Functions of packages with the same name are defined in `__init__.py`: `stoker` imports them
from there, so its attribute is the function, and modules of the package are imported as `from stoker.audit.checks import ...`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.audit.auditor import AuditReport, Progress

REFERENCE_LIMIT = 1_000_000  # samples of the reference that are read; of a larger one, this many are drawn at random


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
        ids: What numbers the samples where content does not identify them: the name of an entry, or a function of the batch.
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
    from stoker._types import Count, converted
    from stoker.audit.auditor import Auditor

    epochs, reference_limit = converted("epochs", epochs, Count), converted("reference_limit", reference_limit, Count)
    max_batches = converted("max_batches", max_batches, Count | None)
    auditor = Auditor(batches, reference, apart_from, shuffled, once, ids, reference_limit, progress or (lambda *_: None))
    for epoch in range(epochs):
        auditor.run(epoch, max_batches=max_batches)
    return auditor.report(epochs)
