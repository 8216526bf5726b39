"""The start of a run that fails or is killed leaves a folder that the same command, --resume and --overwrite can use."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.training_folder import make_folder
from tests.faults.starting import count_operations, start, start_and_die, start_on_full_disk
from tests.harness import Zygote

WAYS: dict[str, dict[str, Any]] = {"again": {}, "overwrite": {"overwrite": True}, "resume": {"resume": True}}


def assert_usable(zygote: Zygote, folder: Path, moment: str, ways: list[str]) -> None:
    """Each way to go on works; where the run has its run.json already, the same command says so in one line."""
    is_run = (folder / "run" / "run.json").exists()
    for name, options in ((name, WAYS[name]) for name in ways):
        copy = folder.with_name(f"{folder.name}-{name}")
        shutil.copytree(folder, copy)
        outcome = zygote.run(start, folder=str(copy), **options)
        if name == "again" and is_run:
            assert "has a run already. Resume it" in str(outcome.error), moment
        elif name != "resume" or (folder / "run" / "config.yaml").exists():
            assert outcome.check() > 0, moment
        shutil.rmtree(copy)


@pytest.fixture
def small(quick_path: Path) -> Path:
    folder = quick_path / "clean"
    folder.mkdir()
    make_folder(folder)
    config = (folder / "c.yaml").read_text().replace("epochs: 2", "epochs: 1").replace("  metrics: [mae]\n", "")
    (folder / "c.yaml").write_text(config)
    return folder


def copied(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder, folder.with_name(name)))


@pytest.mark.promise("P13")
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["full", "killed"])
def test_any_moment_of_a_start_leaves_a_folder_that_can_be_used(torch_zygote: Zygote, small: Path, how: str, every: int) -> None:
    total = torch_zygote.run(count_operations, folder=str(copied(small, "count"))).check()
    assert total > 8, "config.yaml, inputs.json, metrics.jsonl and run.json"
    for moment in range(total - 1, -1, -every):  # the last one is that of run.json
        folder = copied(small, f"{how}-{moment}")
        if how == "full":
            outcome = torch_zygote.run(start_on_full_disk, folder=str(folder), full_at=moment)
            assert outcome.error is not None
        else:
            outcome = torch_zygote.run(start_and_die, folder=str(folder), kill_at=moment)
            assert outcome.signal == signal.SIGKILL
        assert_usable(
            torch_zygote, folder, f"{how} at operation {moment}", ways=[[*WAYS][moment % 3], "again"] if moment % 3 else ["again"]
        )


@pytest.mark.promise("P13", control=True)
def test_negative_control_a_leftover_of_another_program_is_refused(torch_zygote: Zygote, small: Path) -> None:
    (small / "run").mkdir()
    (small / "run" / "inputs.json").write_text('{"mine": true}')
    for options in WAYS.values():
        assert torch_zygote.run(start, folder=str(small), **options).error is not None
    assert (small / "run" / "inputs.json").read_text() == '{"mine": true}'
