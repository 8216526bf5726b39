"""A TFA run or an export that is killed at any operation of the disk: the same command again ends as if nothing had happened."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness import FaultyFiles, Zygote
from tests.recipes.tfa.training_folder import make_folder, settings_of

from stoker.errors import OptionError
from stoker_recipes.tfa import train, verify_bundle, write_bundle


def train_in_child(folder: str, name: str, kill_at: int | None = None) -> tuple[str, int]:
    """The weights that a run ends with, by their hash, and the operations of the disk; a run that has begun is resumed."""
    torch.set_num_threads(1)
    settings, run = settings_of(Path(folder), epochs=2), Path(folder) / name
    with FaultyFiles(kill_at=kill_at) as disk:
        try:
            done = train(settings, run)
        except OptionError as error:
            if "has a run already" not in str(error):
                raise
            done = train(settings, run, resume=True)
    weights = b"".join(tensor.detach().numpy().tobytes() for tensor in done.model.parameters())
    return hashlib.sha256(weights).hexdigest(), disk.operations


def export_in_child(folder: str, name: str, kill_at: int | None = None) -> int:
    torch.set_num_threads(1)
    with FaultyFiles(kill_at=kill_at) as disk:
        write_bundle(Path(folder) / "whole", Path(folder) / name)
    return disk.operations


@pytest.fixture(scope="module")
def whole(torch_zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """A folder with a run that nobody killed, its weights, and its operations."""
    folder = tmp_path_factory.mktemp("tfa")
    make_folder(folder, num_bars=1500)
    weights, operations = torch_zygote.run(train_in_child, folder=str(folder), name="whole", seconds=200).check()
    return folder, weights, operations


def killed_and_again(torch_zygote: Zygote, whole: tuple[Path, str, int], kill_at: int) -> None:
    folder, weights, _ = whole
    where: dict[str, Any] = {"folder": str(folder), "name": f"killed-{kill_at}", "seconds": 200}
    assert torch_zygote.run(train_in_child, kill_at=kill_at, **where).signal == signal.SIGKILL
    assert torch_zygote.run(train_in_child, **where).check()[0] == weights


@pytest.mark.promise("P24")
@pytest.mark.slow
@pytest.mark.parametrize("part", [0.02, 0.7])
def test_a_run_that_was_killed_ends_with_the_same_weights(torch_zygote: Zygote, whole: tuple[Path, str, int], part: float) -> None:
    killed_and_again(torch_zygote, whole, int(part * whole[2]))


@pytest.mark.promise("P24")
@pytest.mark.slow
def test_an_export_that_was_killed_is_made_again(torch_zygote: Zygote, whole: tuple[Path, str, int]) -> None:
    folder = whole[0]
    operations = torch_zygote.run(export_in_child, folder=str(folder), name="bundle", seconds=200).check()
    expected = sorted(path.name for path in (folder / "bundle").iterdir())
    for kill_at in (1, operations // 2, operations - 4):
        where: dict[str, Any] = {"folder": str(folder), "name": f"bundle-{kill_at}", "seconds": 200}
        assert torch_zygote.run(export_in_child, kill_at=kill_at, **where).signal == signal.SIGKILL
        torch_zygote.run(export_in_child, **where).check()
        assert sorted(path.name for path in (folder / f"bundle-{kill_at}").iterdir()) == expected
        assert verify_bundle(folder / f"bundle-{kill_at}").logits == 64
