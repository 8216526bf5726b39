"""The trainer on a GPU: graphs, gates, precisions, waits and exact resume. Skipped where there is none."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.hog import hog
from tests.train.training import Kept, grouped
from torch import nn

import stoker
from stoker._device import sync_debug_mode
from stoker.errors import NonFiniteError, TrainError
from stoker.train.checkpoint import CheckpointFolder
from stoker.train.graph import Gathering

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def net(*, norm: bool = False, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    middle: list[nn.Module] = [nn.BatchNorm1d(32)] if norm else []
    return nn.Sequential(nn.Linear(8, 32), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 1)).to(DEVICE)


def pairs(num_batches: int = 12, *, rows: int = 16, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(rows, 8, generator=generator) for _ in range(num_batches)]
    return [(x.to(DEVICE), (x[:, :1] - x[:, 1:2]).to(DEVICE)) for x in made]


def feed_of(residency: str = "device", *, last_batch: Any = "drop") -> stoker.Feed:
    rng = np.random.default_rng(0)
    series = [np.cumsum(rng.standard_normal(200)).astype(np.float32) for _ in range(6)]
    store = stoker.Store.from_arrays(x=series)
    return stoker.Feed(
        store,
        stoker.Windows(8, horizon=1),
        batch_size=32,
        order=stoker.Shuffle(3),
        device=DEVICE,
        loading=stoker.feed.Loading(residency=residency),
        last_batch=last_batch,
    )


def trainer_of(model: nn.Module, loss: Any = None, **options: Any) -> stoker.Trainer:
    optimizer = options.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    given = {"precision": "fp32", "graph": False, "compile": False, "progress": False, **options}
    return stoker.Trainer(model, loss or nn.MSELoss(), optimizer, **grouped(given))


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def assert_close(one: nn.Module, other: nn.Module, rtol: float = 1e-4) -> None:
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-5)


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_grad_norm": 0.5, "ema": 0.9},
        {"grad_accum_steps": 3},
        {"grad_accum_steps": 3, "max_grad_norm": 0.5},
        {"schedule": stoker.train.Cosine(warmup=3)},
    ],
    ids=str,
)
def test_a_graph_does_what_eager_steps_do(options: dict[str, Any]) -> None:
    """Also with a short batch at the end of each epoch, which is another shape."""
    batches = [*pairs(10), *pairs(1, rows=5, seed=3)]
    eager, graph = net(), net()
    kept = Kept(), Kept()
    trainer_of(eager, callbacks=[kept[0]], log_every=1, **options).fit(batches, epochs=4)
    trainer_of(graph, graph=True, callbacks=[kept[1]], log_every=1, **options).fit(batches, epochs=4)
    assert_same(eager, graph)
    assert kept[1].losses() == kept[0].losses()


@pytest.mark.promise("P23")
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
@pytest.mark.parametrize("schedule", [None, stoker.train.Cosine(warmup=3)])
def test_a_graph_and_eager_fused_steps_give_the_same_bits(kind: str, schedule: Any) -> None:
    """Both read the learning rate from a float32 tensor: 1e-2 is another number in float64."""
    options: dict[str, Any] = {"momentum": 0.9} if kind == "SGD" else {}
    models = []
    for graph in (False, True):
        model = net(dropout=0.2)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-2, weight_decay=0.01, fused=True, **options)
        torch.manual_seed(5)
        trainer_of(model, optimizer=optimizer, graph=graph, schedule=schedule, max_grad_norm=1.0, ema=0.9).fit(pairs(), epochs=5)
        assert optimizer.param_groups[0]["lr"] == 1e-2, "the optimizer is given back as it was"
        models.append(model)
    assert_same(*models)


@pytest.mark.promise("P23")
def test_nothing_turns_a_fused_optimizer_on_unasked() -> None:
    model, plain = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epochs in (1, 30):
        result = trainer_of(model, optimizer=optimizer, graph="auto").fit(pairs(), epochs=epochs)
        assert not result.setup.fused
        assert not result.setup.graph
        assert "is not fused" in next(trial.reason for trial in result.trials if trial.name == "graph")
    told = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for epochs in (1, 30):
        trainer_of(plain, optimizer=told, graph=False).fit(pairs(), epochs=epochs)
    assert_same(model, plain)
    with pytest.raises(TrainError, match=r"AdamW is not fused, so the host has to check each update. Pass fused=True"):
        trainer_of(net(), optimizer=lambda weights: torch.optim.AdamW(weights), graph=True).fit(pairs())
    asked, made = net(), net()
    trainer_of(asked, optimizer=torch.optim.AdamW(asked.parameters(), lr=1e-2), graph=True, fused=True).fit(pairs())
    trainer_of(made, graph=True).fit(pairs())
    assert_same(asked, made)


class Ends(Exception):
    """The end of a process, for tests that stay in one."""


class Ending:
    """Batches that end the run in the middle."""

    def __init__(self, batches: list[Any], at: int | None) -> None:
        self.batches, self.left = batches, at

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        for batch in self.batches:
            if self.left is not None:
                if not self.left:
                    raise Ends
                self.left -= 1
            yield batch


@pytest.mark.promise("P23")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fused", [None, True])
def test_one_config_gives_one_set_of_bits_beside_a_cpu_hog(fused: bool | None, tmp_path: Path) -> None:
    """Ten times, and ended at ten moments: while setups are measured (0), before the first checkpoint (60) and later."""

    def train(name: str | None = None, *, at: int | None = None, resume: bool = False) -> dict[str, torch.Tensor]:
        model = net(dropout=0.2)
        torch.manual_seed(2)
        options: Any = {"folder": tmp_path / name, "save_every": 60} if name is not None else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        trainer = stoker.Trainer(
            model,
            nn.MSELoss(),
            optimizer,
            execution=stoker.train.Execution(fused=fused),
            max_grad_norm=1.0,
            ema=0.9,
            progress=False,
            **options,
        )
        trainer.fit(Ending(pairs(), at), epochs=40, resume=resume)
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    with hog():
        found = [train() for _ in range(10)]
        for moment in (0, 1, 2, 59, 60, 61, 100, 200, 300, 479):
            with pytest.raises(Ends):
                train(str(moment), at=moment)
            found.append(train(str(moment), resume=True))
    for other in found[1:]:
        for name, tensor in found[0].items():
            assert torch.equal(tensor, other[name]), name


def test_a_graph_is_not_taken_where_steps_cannot_be_repeated() -> None:
    count = iter(range(1_000_000))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1]) * (1 + 1e-3 * next(count))

    result = trainer_of(net(), loss, graph="auto").fit(pairs(), epochs=40)
    (trial,) = result.trials
    assert not result.setup.graph
    assert "other bits each time" in trial.reason


def test_running_statistics_are_kept_by_a_graph() -> None:
    eager, graph = net(norm=True), net(norm=True)
    trainer_of(eager).fit(pairs(), epochs=3)
    trainer_of(graph, graph=True).fit(pairs(), epochs=3)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        torch.testing.assert_close(eager.state_dict()[name], graph.state_dict()[name], rtol=1e-3, atol=1e-3)


def test_a_graph_draws_new_random_numbers_each_time() -> None:
    model, kept = net(dropout=0.5), Kept()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
    trainer_of(model, optimizer=optimizer, graph=True, callbacks=[kept], log_every=1).fit([pairs(1)[0]] * 12)
    assert len(set(kept.losses())) > 6


@pytest.mark.parametrize("last", ["drop", "pad"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_feed_is_gathered_within_the_graph(last: str, accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = []
    original = Gathering.micro
    monkeypatch.setattr(Gathering, "micro", lambda self, entry: (gathered.append(entry), original(self, entry)))
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
    eager, graph = net(), net()
    trainer_of(eager, loss, grad_accum_steps=accumulate).fit(feed_of(last_batch=last), epochs=3)
    trainer_of(graph, loss, graph=True, grad_accum_steps=accumulate).fit(feed_of(last_batch=last), epochs=3)
    assert_same(eager, graph)
    assert len(gathered) == 3 * len(feed_of(last_batch=last))


@pytest.mark.promise("P14")
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_limited_updates_leave_the_last_good_weights(graph: bool, accumulate: int) -> None:
    batches = pairs(40)
    batches[20] = (batches[20][0] * float("nan"), batches[20][1])
    good, ours = net(norm=accumulate == 1), net(norm=accumulate == 1)
    trainer_of(good, grad_accum_steps=accumulate, ema=0.9).fit(batches[:20])
    trainer = trainer_of(ours, grad_accum_steps=accumulate, ema=0.9, graph=graph, log_every=50)
    with pytest.raises(NonFiniteError, match=f"at update {20 // accumulate} of epoch 0"):
        trainer.fit(batches)
    assert_close(good, ours)
    assert all(torch.isfinite(one).all() for one in trainer.ema.tensors())


class Remembering(nn.Module):
    """Has a buffer of its own that a large finite value makes infinite, while the loss stays finite."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.largest += (x.abs().max() / 1e10) ** 2
        out: torch.Tensor = self.layer(x / x.abs().max().clamp(min=10.0))
        return out


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("kind", ["norm", "own"])
def test_buffers_that_overflow_drop_the_update(kind: str, graph: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        first = [nn.BatchNorm1d(8), nn.Linear(8, 1)] if kind == "norm" else [Remembering()]
        return nn.Sequential(*first).to(DEVICE)

    batches = pairs(40)
    batches[20][0][3, 2] = 1e30
    good, ours = make(), make()
    trainer_of(good).fit(batches[:20])
    with pytest.raises(NonFiniteError, match=r"a gradient or a buffer of the model .* at update 20 of epoch 0"):
        trainer_of(ours, graph=graph, log_every=50).fit(batches)
    assert_close(good, ours)
    assert all(torch.isfinite(one).all() for one in ours.state_dict().values())


@pytest.mark.parametrize("graph", [False, True])
def test_bad_updates_are_skipped(graph: bool) -> None:
    batches = pairs(20)
    batches[9] = (batches[9][0] * float("inf"), batches[9][1])
    good, ours = net(), net()
    trainer_of(good).fit(batches[:9] + batches[10:])
    with pytest.warns(UserWarning, match="The update was skipped"):
        result = trainer_of(ours, guard="skip", graph=graph).fit(batches)
    assert result.skipped == 1
    assert_close(good, ours)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_precisions_train_alike(precision: str, graph: bool) -> None:
    exact, ours = Kept(), Kept()
    trainer_of(net(), callbacks=[exact], log_every=4).fit(pairs(), epochs=6)
    trainer_of(net(), callbacks=[ours], log_every=4, precision=precision, graph=graph).fit(pairs(), epochs=6)
    np.testing.assert_allclose(ours.losses()[-6:], exact.losses()[-6:], rtol=0.25)


@pytest.mark.parametrize("graph", [False, True])
def test_an_overflow_of_fp16_is_not_an_error(graph: bool) -> None:
    """The first scale is too large for such a loss; steps are held back until it fits."""
    model = net()
    loss = lambda model, batch: 1e3 * nn.functional.mse_loss(model(batch[0]), batch[1])  # noqa: E731
    result = trainer_of(model, loss, precision="fp16", graph=graph, max_grad_norm=1.0).fit(pairs(), epochs=8)
    assert result.stopped == "finished"
    assert all(torch.isfinite(one).all() for one in model.parameters())


@pytest.mark.promise("P15")
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"max_grad_norm": 1.0, "ema": 0.9}, {"grad_accum_steps": 2}, {"precision": "fp16"}], ids=str
)
def test_the_host_never_waits_in_a_step(graph: bool, options: dict[str, Any]) -> None:
    """Counted by torch: as many waits for 3 epochs as for 9, apart from one for each epoch's last numbers."""
    counts = []
    for epochs in (3, 9):
        trainer = trainer_of(net(), graph=graph, log_every=5, **options)
        batches = pairs(20)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with sync_debug_mode("warn"):
                trainer.fit(batches, epochs=epochs)
        counts.append(sum("synchroniz" in str(one.message) for one in seen))
    assert counts[1] - counts[0] <= 6, counts


@pytest.mark.promise("P15", control=True)
def test_a_loss_that_is_read_each_step_would_be_counted() -> None:
    """Negative control of the test above."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = nn.functional.mse_loss(model(batch[0]), batch[1])
        value.detach().item()
        return value

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with sync_debug_mode("warn"):
            trainer_of(net(), loss).fit(pairs(20))
    assert sum("synchroniz" in str(one.message) for one in seen) >= 20


def test_a_feed_that_waits_for_the_device_is_not_waited_for() -> None:
    def slow(model: nn.Module, batch: Any) -> torch.Tensor:
        torch.cuda._sleep(20_000_000)  # 10 ms or more
        return model(batch["x"]).square().mean()

    feed = feed_of("host")
    result = trainer_of(net(), slow).fit(feed, epochs=1)
    assert feed.pacing.seconds > 0.005 * result.step
    assert result.wait * result.seconds < feed.pacing.seconds


def test_a_step_that_waits_is_not_captured_and_the_reason_is_reported() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = nn.functional.mse_loss(model(batch[0]), batch[1])
        if value.detach().item() < 0:
            raise ValueError("a mean of squares")
        return value

    model = net()
    result = trainer_of(model, loss, graph="auto").fit(pairs(), epochs=40)
    (trial,) = [trial for trial in result.trials if trial.name == "graph"]
    assert not trial.chosen
    assert "cannot be a graph" in trial.reason
    assert Path(__file__).name in trial.reason
    assert not result.setup.graph


def test_a_measured_setup_leaves_no_trace_and_can_be_copied() -> None:
    model, told = net(dropout=0.1), net(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(4)
    result = trainer_of(model, optimizer=optimizer, precision="auto", graph="auto", measured=True).fit(pairs(), epochs=100)
    assert {trial.name for trial in result.trials} >= {"fused", "graph", "tf32", "bf16"}
    torch.manual_seed(4)
    copied: Any = asdict(result.setup)
    again = trainer_of(told, optimizer=torch.optim.AdamW(told.parameters(), lr=1e-2), **copied).fit(pairs(), epochs=100)
    assert again.setup == result.setup
    assert_same(model, told)


@pytest.mark.promise("P13")
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("residency", ["device", "host"])
def test_a_run_that_crashes_continues_bit_for_bit(
    graph: bool, residency: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = CheckpointFolder.save
    loss_of = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")

    def train(name: str, *, crash_at: int | None = None, resume: bool = False) -> dict[str, torch.Tensor]:
        model = net(dropout=0.2)
        trainer = trainer_of(
            model, loss_of, graph=graph, max_grad_norm=1.0, ema=0.9, folder=tmp_path / name, save_every=7, log_every=5
        )
        feed = feed_of(residency)
        saves = iter(range(1, 1000))

        def save(self: CheckpointFolder, *given: Any, **options: Any) -> None:
            if next(saves) == crash_at:
                raise KeyboardInterrupt
            original(self, *given, **options)

        monkeypatch.setattr(CheckpointFolder, "save", save)
        trainer.fit(feed, epochs=3, resume=resume)
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        whole = train("whole")
        with pytest.raises(KeyboardInterrupt):
            train("crashed", crash_at=5)
        again = train("crashed", resume=True)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, tensor in whole.items():
        assert torch.equal(tensor, again[name]), name
