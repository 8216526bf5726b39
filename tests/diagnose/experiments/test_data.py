"""Batches of another iterator in place of the loop's own, while the experiment is on."""

from __future__ import annotations

import torch

from stoker.diagnose.experiments.data import OtherBatches
from stoker.diagnose.loops import Source, WatchedIterator
from stoker.diagnose.session import Session
from stoker.diagnose.windows import measure_all


def test_other_batches_replace_those_of_the_loop_until_they_are_removed() -> None:
    session, batches = Session(measure_all, on_done=lambda: None), [torch.zeros(2)] * 3
    watched = WatchedIterator(session.sources, Source(batches, None), iter(batches), 0)
    other = OtherBatches(session, iter([torch.ones(2)]))
    assert session._next_batch(watched).sum() == 0, "negative control"
    other.on([], None, [])
    assert session._next_batch(watched).sum() == 2
    other.remove()
    assert session._next_batch(watched).sum() == 0
    session.remove()
