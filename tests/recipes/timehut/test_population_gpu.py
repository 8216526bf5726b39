"""On a GPU: the graph makes the same updates as single steps on a CPU, also after compaction; runs are reproducible."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.recipes.timehut.sets import files
from tests.recipes.timehut.test_population import DATA, MEMBERS, TARGETS

from stoker_recipes.timehut.population import make_population
from stoker_recipes.timehut.training import train

pytestmark = pytest.mark.gpu


@pytest.mark.promise("P29")
def test_the_graph_makes_the_updates_of_a_cpu() -> None:
    cpu, gpu = (make_population(DATA, MEMBERS, targets=TARGETS, device=device) for device in ("cpu", "cuda"))
    for updates in (3, 8):
        expected, found = cpu.advance(updates), gpu.advance(updates, precision="fp32")
        assert torch.allclose(found.cpu(), expected, rtol=1e-3)
        assert float((gpu.average().cpu() - cpu.average()).abs().max()) < 1e-3
        assert gpu.updates == updates
        cpu.keep([0, 1])
        gpu.keep([0, 1])


def test_the_same_seed_gives_the_same_bits_on_a_gpu() -> None:
    one, other = (make_population(DATA, MEMBERS, targets=TARGETS, device="cuda") for _ in range(2))
    assert torch.equal(one.advance(8), other.advance(8))
    assert torch.equal(one.weights, other.weights)


@pytest.mark.promise("P29")
def test_the_same_seed_gives_the_same_score_on_a_gpu(tmp_path: Path) -> None:
    data, test = files("UnitTest")
    one, other = (train(data, test=test, folder=tmp_path / name, epochs=20, device="cuda") for name in ("one", "other"))
    assert one.scores == other.scores
    assert torch.equal(one.encoder.row, other.encoder.row)
    third = train(data, test=test, folder=tmp_path / "third", epochs=20, device="cuda", seed=1)
    assert not torch.equal(one.encoder.row, third.encoder.row)  # negative control
