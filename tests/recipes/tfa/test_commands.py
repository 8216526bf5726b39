"""`stoker train tfa.yaml`, `stoker export` of its run, `stoker inspect --verify` of both: what a user sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done
from tests.recipes.tfa.training_folder import change_bars, make_folder

Stoker = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path)
    return tmp_path


def test_from_a_yaml_to_a_bundle_that_proves_itself(stoker: Stoker, folder: Path) -> None:
    done = stoker("train", "tfa.yaml")
    assert done.code == 0, done.err
    words = [line.split(" ")[0] for line in done.out.splitlines()]
    assert words[:6] == ["bars", "features", "labels", "train", "validation", "score"]
    assert words.count("checked") == 8
    assert "verdict    " in done.out
    assert done.out.endswith("run        run   next: stoker export run bundle/\n")
    done = stoker("export", "run", "bundle")
    assert (done.code, done.err) == (0, "")
    first, second, *rest = done.out.splitlines()
    assert first.startswith("exported the weights of step ")
    assert second.startswith(
        "proved on golden bars: 71 rows of features equal bit for bit in a batch and bar by bar, 64 logits within "
    )
    assert rest[-1] == "next: stoker tfa verify bundle"
    assert len(rest) == 1 or rest[0].startswith("beware: NO ")
    done = stoker("tfa", "verify", "bundle")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("bundle is complete and gives the same results as after training:\n")
    assert json.loads(stoker("tfa", "verify", "bundle", "--json").out)["logits"] == 64


def test_a_run_resumes(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "tfa.yaml", "--quiet", "--set", "epochs=1").code == 0
    again = stoker("train", "tfa.yaml", "--quiet")
    assert again.code == 2
    assert again.err.startswith("stoker: run has a run already. ")
    (folder / "bars.csv").unlink()  # the run has its own copy
    done = stoker("train", "--resume", "run", "--quiet")
    assert (done.code, done.err) == (0, "")


def test_a_yaml_is_verified_without_training(stoker: Stoker, folder: Path) -> None:
    done = stoker("tfa", "verify", "tfa.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("tfa.yaml passed all checks.   next: stoker train tfa.yaml\n")
    assert sorted(path.name for path in folder.iterdir()) == ["bars.csv", "spec.json", "tfa.yaml"]
    change_bars(folder, close=lambda close: -close)
    done = stoker("tfa", "verify", "tfa.yaml", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("stoker: close is -")
    assert done.err.count("\n") == 1


def test_a_folder_of_the_users_is_refused_and_left_alone(stoker: Stoker, folder: Path) -> None:
    (folder / "bars").mkdir()
    (folder / "bars" / "mine.csv").write_text("precious")
    for extra in ([], ["--overwrite"]):
        done = stoker("train", "tfa.yaml", "--quiet", "--set", "out_dir=.", *extra)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("stoker: . was not made by Stoker: it holds 'bars', and no recipe.json.")
        assert "--set out_dir=runs/tfa" in done.err
    assert (folder / "bars" / "mine.csv").read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == ["bars", "bars.csv", "spec.json", "tfa.yaml"]
