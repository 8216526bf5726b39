"""Groups of members: the layout of their weights, and steps as graphs, as far as they can be seen without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.tune.twins import ResidualMlp, Transformer, loss, make_batches
from torch import nn

from stoker.errors import OptionError, TrainError
from stoker.train.graph import Graphs
from stoker.tune import Population

CONFIGS = [{"lr": 0.01, "width": 8}, {"lr": 0.02, "width": 5}]


def make(**given: Any) -> Population:
    return Population(lambda config: ResidualMlp(config["width"], dropout=0.2), loss, CONFIGS, **given)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Graphs on the CPU: recorded by running the body as a capture does, put back, and run again as a replay."""
    found: list[int] = []

    def record(self: Graphs, body: Callable[[], Any]) -> Any:
        restore = self._preserve()
        for _ in range(2):
            body()
            restore()
        found.append(1)
        return SimpleNamespace(replay=body)

    monkeypatch.setattr(Graphs, "_record", record)
    return found


def use_graphs(population: Population) -> Population:
    population._why_no_graph = None
    return population


def test_steps_as_graphs_give_the_same_losses(recorded: list[int]) -> None:
    batches = make_batches(8)
    eager, graph = make(), use_graphs(make())
    assert str(graph.report.graph) == "yes"
    for number, batch in enumerate(batches):
        if number == 5:
            eager.keep([1, 0])
            graph.keep([1, 0])
        assert torch.equal(graph.step(batch), eager.step(batch))
    assert len(recorded) == 2  # another one after `keep`
    state = graph.state_dict()["groups"][0]["tensors"]
    assert all(torch.equal(one, state[name]) for name, one in eager.state_dict()["groups"][0]["tensors"].items())


def test_what_a_graph_cannot_do_is_reported_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Graphs, body: Callable[[], Any]) -> Any:
        raise TrainError("the step cannot be a graph: it waits for the GPU.")

    monkeypatch.setattr(Graphs, "_record", fail)
    batches = make_batches(4)
    eager, graph = make(), use_graphs(make())
    for batch in batches:
        assert torch.equal(graph.step(batch), eager.step(batch))
    assert graph.report.graph == "no: the step cannot be a graph: it waits for the GPU"
    strict = use_graphs(make())
    strict._graph = True
    strict.step(batches[0])
    with pytest.raises(TrainError, match="it waits for the GPU"):
        strict.step(batches[1])


def test_padding_stays_zero_through_all_updates() -> None:
    population = Population(
        lambda config: nn.Sequential(nn.Flatten(1), nn.Linear(24, config["width"]), nn.Sigmoid(), nn.Linear(config["width"], 1)),
        loss,
        CONFIGS,
    )
    for batch in make_batches(10):
        population.step(batch)
    group = population._groups[0].group
    assert population.report.groups[0].how == "padded"
    assert group._mask is not None
    padding = group._mask == 0
    assert (group.weights[padding] == 0).all()
    # The negative control: the sigmoid of a padded unit is 0.5, so without the mask its weights would move.
    group._mask = None
    population.step(batch)
    assert (group.weights[padding] != 0).any()


def test_parameters_begin_at_aligned_columns() -> None:
    population = make()
    population.prepare(make_batches(1)[0])
    group = population._groups[0].group
    assert all(start % 8 == 0 for start, _ in group._columns.values())


def test_muon_updates_matrices_and_adamw_the_rest() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 6)
            self.head = nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.embedding((x[..., 0] > 0).long())).mean(1)
            return out

    population = Population(lambda _: Tokens(), loss, [{"lr": 0.1}, {"lr": 0.2}], optimizer="muon")
    population.step(make_batches(1)[0])
    group = population._groups[0].group
    assert [(one.start, one.rows, one.columns) for one in group._matrices] == [(group._columns["head.weight"][0], 1, 6)]


def test_parameters_of_two_types_are_refused() -> None:
    def make_model(config: Any) -> nn.Module:
        model = Transformer()
        model.head.double()
        return model

    population = Population(make_model, lambda model, batch: model.inp(batch["x"]).mean(), [{"lr": 0.1}, {"lr": 0.2}])
    with pytest.raises(OptionError, match=r"the parameters have the types .*; a population needs one type"):
        population.step(make_batches(1)[0])


def test_a_state_of_other_models_is_refused() -> None:
    population, other = make(), Population(lambda _: ResidualMlp(3), loss, CONFIGS)
    batch = make_batches(1)[0]
    population.step(batch)
    with pytest.raises(OptionError, match="the state is of a population with other models or another optimizer"):
        other.load_state_dict(population.state_dict())


@pytest.mark.slow
def test_a_compiled_step_gives_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: original(function, backend="aot_eager"))
    eager, compiled = make(), make(compile=True)
    for batch in make_batches(4):
        assert torch.allclose(compiled.step(batch), eager.step(batch), atol=1e-5)
