"""A forged or damaged inputs.json is refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.training_folder import make_folder
from tests.harness import NOT_JSON

import stoker
from stoker.errors import CheckpointInvalidError
from stoker.experiment.inputs import read_inputs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(make_folder(folder) or folder)
        stoker.experiment.run("c.yaml", folder="run", overrides=["epochs=1"], progress=False)
        yield folder / "run"


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another length": lambda tree: tree["task"].update(length=9),
    "a huge width": lambda tree: tree["task"]["inputs"].update(close=2**40),
    "a negative horizon": lambda tree: tree["task"].update(horizon=-1),
    "no columns": lambda tree: tree.update(columns=[]),
    "a column twice": lambda tree: tree["columns"].append(tree["columns"][0]),
    "another column": lambda tree: tree["task"]["inputs"].update(evil=1),
    "an option of pack": lambda tree: tree["pack"].update(evil=1),
    "text for a number": lambda tree: tree["task"].update(length="eight"),
    "no task": lambda tree: tree.pop("task"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_one_line(run: Path, name: str) -> None:
    path = run / "inputs.json"
    whole = path.read_bytes()
    tree = json.loads(whole)
    FORGERIES[name](tree)
    path.write_text(json.dumps(tree))
    try:
        with pytest.raises(CheckpointInvalidError, match=r"inputs\.json") as caught:
            stoker.load(run, device="cpu")
    finally:
        path.write_bytes(whole)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", NOT_JSON)
def test_a_damaged_file_is_one_line(run: Path, kind: str) -> None:
    path = run / "inputs.json"
    whole = path.read_bytes()
    path.write_bytes(NOT_JSON[kind])
    try:
        with pytest.raises(CheckpointInvalidError, match=r"inputs\.json is damaged") as caught:
            stoker.load(run, device="cpu")
    finally:
        path.write_bytes(whole)
    assert "\n" not in str(caught.value)


def test_negative_control_the_file_as_it_was_written_is_read(run: Path) -> None:
    assert stoker.load(run, device="cpu").inputs is not None


def test_a_pipe_in_the_place_of_the_inputs_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "inputs.json")
    with pytest.raises(CheckpointInvalidError, match="is not a plain file"):
        read_inputs(tmp_path / "inputs.json")
    with pytest.raises(CheckpointInvalidError, match="is missing"):  # negative control
        read_inputs(tmp_path / "gone.json")
