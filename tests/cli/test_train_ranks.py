"""`torchrun -m stoker train`: two processes train what one does with batches of twice the size, and only the first one speaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.calling import call, stoker_command
from tests.cli.training_folder import make_folder


def last_line(run: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return found


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    make_folder(tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["-m", "stoker", "train", "c.yaml", "--set", "folder=two", "--set", "batch_size=16"]
    two = call([*torchrun, *arguments], tmp_path, OMP_NUM_THREADS="1")
    assert two.code == 0, two.err
    assert two.out.count("run: two\n") == 1
    assert two.out.count("feed of waves.stoker") == 1
    one = call(stoker_command("train", "c.yaml", "--quiet", "--set", "folder=one"), tmp_path)
    assert one.code == 0, one.err
    together, alone = last_line(tmp_path / "two"), last_line(tmp_path / "one")
    assert together["step"] == alone["step"] == 12
    for name in ("epoch_loss", "val_loss", "val_mae"):
        assert together[name] == pytest.approx(alone[name], rel=1e-5)
