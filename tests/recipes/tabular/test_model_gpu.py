"""On a GPU: graphs train as eager steps do, and generation does not wait for the device at each step."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.recipes.tabular.frames import make_events, make_users

import stoker
from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss, mean_events
from stoker_recipes.tabular.generation import GivenCodes, generate_codes
from stoker_recipes.tabular.layout import make_layout
from stoker_recipes.tabular.model import TabularModel

pytestmark = pytest.mark.gpu
COLUMNS = [{"cat": 5}, {"bin": 33, "fine": 32}, {"nan": 2, "year": 3, "month": 12, "day": 31}]


def losses(*, graph: bool) -> list[float]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 12, 256)
    layout = make_layout(COLUMNS, context=[{"cat": 7}], max_length=12, median_length=5, size="s", feeds_context=True)
    codes = np.stack([rng.integers(0, sub.num_classes, lengths.sum()) for sub in layout.subs[3:]], 1).astype(np.int16)
    data = EncodedSubjects.of(codes, np.cumsum(lengths) - lengths, lengths, rng.integers(0, 7, (256, 1)), torch.device("cuda"))
    batches = SubjectBatches(data, layout, np.arange(256), lengths=lengths, batch_size=32, seed=0)
    whole = SubjectLoss(TabularModel(layout).cuda().eval(), data, mean_events(lengths, 100))
    found: list[float] = []

    class Keep:
        def on_epoch_end(self, report: Any) -> None:
            found.append(report.metrics["loss"])

    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-3, weight_decay=0.01)
    trainer = stoker.Trainer(
        whole, lambda model, batch: model(batch), optimizer,
        execution=stoker.train.Execution(fused=True, graph=graph, compile=False), callbacks=[Keep()], seed=0,
        progress=False,
    )  # fmt: skip
    whole.model.lstm.dropout = 0.0
    trainer.fit(batches, epochs=6)
    return found


def test_graphs_train_as_eager_steps_do() -> None:
    eager, graph = losses(graph=False), losses(graph=True)
    assert graph[-1] < graph[0]
    assert graph == pytest.approx(eager, rel=0.02)  # dropout draws other numbers


@pytest.mark.parametrize("feeds", [False, True])
def test_a_device_generates_what_another_does(feeds: bool) -> None:
    layout = make_layout(COLUMNS, context=[{"cat": 7}], max_length=12, median_length=5, size="s", feeds_context=feeds)
    model, context = TabularModel(layout, seed=1), np.arange(500)[:, None] % 7
    ours, theirs = (generate_codes(model.to(device), 500, seed=3, context=context) for device in ("cpu", "cuda"))
    assert (ours.lengths == theirs.lengths).mean() > 0.99  # a rounding may move a draw at the edge of a class
    if (ours.lengths == theirs.lengths).all():
        assert (ours.codes == theirs.codes).all(1).mean() > 0.98


@pytest.mark.promise("P30")
def test_a_subject_is_the_same_in_any_batch() -> None:
    layout = make_layout(COLUMNS, context=[{"cat": 7}], max_length=30, median_length=5, size="m", feeds_context=True)
    model, context = TabularModel(layout, seed=1).cuda(), np.arange(20_000)[:, None] % 7
    whole, few = (generate_codes(model, count, seed=3, context=context[:count]) for count in (20_000, 500))
    assert (few.lengths == whole.lengths[:500]).all()
    assert (few.codes == whole.codes[: len(few.codes)]).all()
    assert (few.uniform == whole.uniform[: len(few.codes)]).all()


def test_given_events_are_kept_before_graphs_continue() -> None:
    model = TabularModel(make_layout(COLUMNS, max_length=12, median_length=5, size="s"), seed=1).cuda()
    first = generate_codes(model, 300, seed=9, lengths=(3, 12))
    starts = np.cumsum(first.lengths) - first.lengths
    codes = first.codes[starts[:, None] + np.arange(2)].astype(np.int64)
    is_given = np.ones((300, 2, 3), bool)
    given = GivenCodes(codes=codes, is_given=is_given, lengths=np.full(300, 2))
    found = generate_codes(model, 300, seed=4, given=given)
    begins = np.cumsum(found.lengths) - found.lengths
    assert (found.codes[begins[:, None] + np.arange(2)] == codes).all()
    cpu = generate_codes(model.cpu(), 300, seed=4, given=given)
    assert (cpu.lengths == found.lengths).mean() > 0.99


@pytest.mark.promise("P30")
def test_the_host_waits_once_per_batch() -> None:
    waits = []
    for length in (10, 60):
        model = TabularModel(make_layout(COLUMNS, max_length=length, median_length=5, size="s"), seed=1).cuda()
        generate_codes(model, 300, seed=3)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            generate_codes(model, 300, seed=3)
            torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchroniz" in str(one.message) for one in found))
    assert waits[0] == waits[1]


def test_a_synthesizer_learns_and_samples() -> None:
    model = Synthesizer(size="s", epochs=3, seed=0).fit(make_events(200), key="user", context=make_users(200), device="cuda")
    assert set(model.sample(50)["user"]) <= set(range(50))
