"""`stoker tabular generate`, killed by a real signal: each of its files is the old or the whole new one, and the command ends later."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from benchmarks.tabular.known_tables import make_shop
from click.testing import CliRunner
from tests.harness import FaultyFiles, Zygote

from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.commands import generate

OLD = {"events.parquet": b"an earlier table", "users.csv": b"earlier users"}


def train_in_child(folder: str) -> None:
    users, events = make_shop(40, seed=1)
    Synthesizer(size="s", epochs=1).fit(events, key="user_id", context=users, folder=Path(folder) / "run", device="cpu")


def generate_in_child(folder: str, subjects: int = 30, kill_at: int | None = None) -> int:
    """Replaces both files of a folder; returns the operations of the disk."""
    place = Path(folder)
    command = [
        str(place.parent / "run"),
        str(place / "events.parquet"),
        "--subjects",
        str(subjects),
        "--device",
        "cpu",
        "--overwrite",
    ]
    command += ["--context-out", str(place / "users.csv")]
    with FaultyFiles(kill_at=kill_at) as disk:
        found = CliRunner().invoke(generate, command, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return disk.operations


def with_old_files(folder: Path) -> Path:
    folder.mkdir()
    for name, content in OLD.items():
        (folder / name).write_bytes(content)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(torch_zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], int]:
    """A folder with a run, the files that it generates, and the operations of the disk."""
    folder = tmp_path_factory.mktemp("generate")
    torch_zygote.run(train_in_child, folder=str(folder), seconds=100).check()
    operations = torch_zygote.run(generate_in_child, folder=str(with_old_files(folder / "whole")), seconds=100).check()
    return folder, contents(folder / "whole"), operations


def assert_old_or_new(folder: Path, new: dict[str, bytes]) -> None:
    for name, found in contents(folder).items():
        if not name.endswith(".tmp"):
            assert found in (OLD[name], new[name]), f"{name} is neither the old file nor the whole new one"


@pytest.mark.promise("P30")
@pytest.mark.slow
def test_killed_at_any_operation_a_file_is_old_or_whole(torch_zygote: Zygote, whole: tuple[Path, dict[str, bytes], int]) -> None:
    folder, new, operations = whole
    assert set(new) == set(OLD)
    assert operations >= 10  # two files: create, write, sync, replace, sync of the folder
    seen = set()
    for kill_at in range(operations):
        own = with_old_files(folder / f"killed-{kill_at}")
        assert torch_zygote.run(generate_in_child, folder=str(own), kill_at=kill_at, seconds=100).signal == signal.SIGKILL
        assert_old_or_new(own, new)
        found = contents(own)
        seen.add(tuple(found[name] == new[name] for name in sorted(OLD)))
        if kill_at in (1, operations // 2, operations - 1):  # again: nothing is left of the killed one
            torch_zygote.run(generate_in_child, folder=str(own), seconds=100).check()
            assert contents(own) == new
    assert seen >= {(False, False), (False, True)}  # before the first file, and between both
