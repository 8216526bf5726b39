"""The folder of a run is a new one, an empty one, or that of a run: nothing else is written into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.train.training import network, pairs, trainer_of

import stoker
from stoker.errors import OptionError


def of_a_store(path: Path) -> Path:
    stoker.Store.from_arrays(x=[[1.0, 2.0]]).save(path / "a.stoker")
    return path / "a.stoker"


def with_a_file(path: Path) -> Path:
    (path / "mine").mkdir()
    (path / "mine" / "notes.txt").write_text("mine")
    return path / "mine"


def a_file(path: Path) -> Path:
    (path / "file").write_text("mine")
    return path / "file"


def a_link(path: Path) -> Path:
    (path / "link").symlink_to("/usr/lib")
    return path / "link"


REFUSED: dict[str, Callable[[Path], Path | str]] = {
    "": lambda path: "",
    "/": lambda path: "/",
    "system folder": lambda path: "/usr",
    "link to a system folder": a_link,
    "store": of_a_store,
    "other files": with_a_file,
    "file": a_file,
}


@pytest.mark.promise("P13")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}], ids=str)
def test_a_folder_that_is_not_for_a_run_is_refused_and_stays(kind: str, options: dict[str, bool], tmp_path: Path) -> None:
    folder = REFUSED[kind](tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(OptionError) as caught:
        trainer_of(network(), folder=folder).fit(pairs(), **options)
    assert caught.value.parameter == "folder"
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_negative_control_new_and_empty_folders_and_those_of_runs_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        assert trainer_of(network(), folder=tmp_path / name).fit(pairs()).step == 12
        assert trainer_of(network(), folder=tmp_path / name).fit(pairs(), overwrite=True).step == 12
        assert trainer_of(network(), folder=tmp_path / name).fit(pairs(), epochs=2, resume=True).step == 24
