"""Ordered sums: any number of ranks leaves the bits of one process that does all batches of an update in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness import Zygote
from tests.train import elastic
from tests.train.training import trainer_of
from torch import nn

import stoker
from stoker.errors import OptionError

pytestmark = [pytest.mark.scale, pytest.mark.promise("P33")]

ROOT = Path(__file__).parents[2]
WORLDS = (1, 2, 4)


def together(torch_zygote: Zygote, where: Path, world: int, name: str, **options: Any) -> list[dict[str, Any]]:
    """What each rank of a run is left with."""
    meeting = where / f"meeting-{name}-{world}"
    given: Any = {"world": world, "meeting": meeting, "seconds": 120, "work_folder": ROOT, **options}
    for case in [torch_zygote.start(elastic.be_one, rank=rank, **given) for rank in range(world)]:
        case.wait().check()
    return [json.loads(Path(f"{meeting}-{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def runs(torch_zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    return {world: together(torch_zygote, folder, world, "whole") for world in WORLDS}


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_times_accumulation_is_equal_to_the_last_bit(world: int, runs: dict[int, list[dict[str, Any]]]) -> None:
    """1 x 4 = 2 x 2 = 4 x 1: weights, EMA, optimizer and losses, with dropout, clipping and a short last update."""
    alone = runs[1][0]
    assert alone["step"] == 2 * 20
    assert {one["digest"] for one in runs[world]} == {alone["digest"]}
    assert runs[world][0]["losses"] == alone["losses"]


@pytest.mark.slow
def test_a_number_of_ranks_that_does_not_divide_the_batches_is_equal_to_the_last_bit(
    torch_zygote: Zygote, tmp_path: Path, runs: dict[int, list[dict[str, Any]]]
) -> None:
    found = together(torch_zygote, tmp_path, 3, "three")
    assert {one["digest"] for one in found} == {runs[1][0]["digest"]}


@pytest.mark.slow
def test_negative_control_ddp_rounds_otherwise(torch_zygote: Zygote, tmp_path: Path, runs: dict[int, list[dict[str, Any]]]) -> None:
    found = together(torch_zygote, tmp_path, 4, "ddp", kind="ddp")
    assert len({one["digest"] for one in found}) == 1
    assert found[0]["digest"] != runs[1][0]["digest"]
    torch.testing.assert_close(torch.tensor(found[0]["losses"]), torch.tensor(runs[1][0]["losses"]), rtol=2e-2, atol=1e-2)


@pytest.mark.slow
def test_four_then_two_then_three_ranks_amid_an_epoch(
    torch_zygote: Zygote, tmp_path: Path, runs: dict[int, list[dict[str, Any]]]
) -> None:
    """Each continues what the one before has saved: the end is that of one process that was never stopped."""
    folder = str(tmp_path / "run")
    first = together(torch_zygote, tmp_path, 4, "first", folder=folder, stop_at=7)
    second = together(torch_zygote, tmp_path, 2, "second", folder=folder, stop_at=25, resume=True)
    third = together(torch_zygote, tmp_path, 3, "third", folder=folder, resume=True)
    assert [first[0]["step"], second[0]["step"], third[0]["step"]] == [7, 25, 40]
    assert {one["digest"] for one in third} == {runs[1][0]["digest"]}
    assert first[0]["losses"] + second[0]["losses"] + third[0]["losses"] == runs[1][0]["losses"]


def test_a_global_batch_and_accumulation_are_two_answers_to_one_question() -> None:
    model = elastic.Network()
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
    trainer = trainer_of(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), grad_accum_steps=2)
    with pytest.raises(OptionError, match="grad_accum_steps is 2, but the feed has a global batch"):
        trainer.fit(elastic.feed(rank=0, world=1))
