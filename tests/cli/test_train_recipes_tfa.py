"""`stoker train tfa.yaml`, `stoker export` of its run, `stoker verify` of both: what a user sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done
from tests.recipes.tfa.training_folder import THEIRS, change_bars, make_folder

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
    assert not rest or rest[0].startswith("beware: NO ")
    done = stoker("verify", "bundle")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("bundle is complete and gives the same results as after training:\n")
    assert json.loads(stoker("verify", "bundle", "--json").out)["logits"] == 64


def test_the_result_for_programs(stoker: Stoker, folder: Path) -> None:
    done = stoker("train", "tfa.yaml", "--json", "--set", "epochs=1")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["folder"], found["epoch"], found["stopped"]) == ("run", 1, "finished")
    assert [line["name"] for line in found["score"]["lines"]] == ["model", "volatility", "linear", "mlp"]
    assert json.loads(stoker("export", "run", "bundle", "--json").out)["logits"] == 64


def test_a_run_resumes(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "tfa.yaml", "--quiet", "--set", "epochs=1").code == 0
    again = stoker("train", "tfa.yaml", "--quiet")
    assert again.code == 2
    assert again.err.startswith("stoker: run has a run already. ")
    (folder / "bars.csv").unlink()  # the run has its own copy
    done = stoker("train", "--resume", "run", "--quiet")
    assert (done.code, done.err) == (0, "")


def test_a_yaml_is_verified_without_training(stoker: Stoker, folder: Path) -> None:
    done = stoker("verify", "tfa.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("tfa.yaml passed all checks.\n")
    assert sorted(path.name for path in folder.iterdir()) == ["bars.csv", "spec.json", "tfa.yaml"]
    change_bars(folder, close=lambda close: -close)
    done = stoker("verify", "tfa.yaml", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("stoker: close is -")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("train", "tfa.yaml", "--set", "epoch=3"), "stoker: --set epoch is not known; did you mean epochs?\n"),
        (("train", "tfa.yaml", "--set", "T=x"), "stoker: --set: T is the string 'x'; expected "),
        (("train", "tfa", "nowhere.yaml"), "stoker: nowhere.yaml does not exist."),
        (("verify", "nowhere.yaml"), "stoker: "),
    ],
)
def test_a_mistake_is_one_line(stoker: Stoker, folder: Path, arguments: tuple[str, ...], line: str) -> None:
    done = stoker(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(line)
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


def test_what_is_beside_a_run_is_not_taken_for_scratch(stoker: Stoker, folder: Path) -> None:
    (folder / "run.verify").mkdir()
    (folder / "run.verify" / "mine.csv").write_text("precious")
    assert stoker("verify", "tfa.yaml").code == 0
    assert (folder / "run.verify" / "mine.csv").read_text() == "precious"


def test_a_run_is_replaced_where_that_is_asked_for(stoker: Stoker, folder: Path) -> None:
    for extra in ([], ["--overwrite"]):
        done = stoker("train", "tfa.yaml", "--json", "--set", "epochs=1", *extra)
        assert (done.code, done.err) == (0, "")
    done = stoker("train", "--resume", "run", "--overwrite")
    assert (done.code, done.out) == (2, "")
    assert "--overwrite replaces a run, --resume continues it: give one of them." in done.err


@pytest.mark.parametrize(
    ("saved", "line"),
    [
        (False, "stoker: stopped before anything was saved. Begin again: the same command\n"),
        (True, "stoker: stopped. The run is saved at step 1. Resume it: stoker train --resume run\n"),
    ],
)
def test_ctrl_c_says_what_there_is(stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch, saved: bool, line: str) -> None:
    from stoker.recipes.tfa import pipeline

    def stop(settings: object, run: Path, *given: object, **options: object) -> None:
        if saved:
            (run / "checkpoints").mkdir()
            (run / "checkpoints" / "LATEST").write_text("step-000000001")
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "prepare_run", stop)
    done = stoker("train", "tfa.yaml", "--quiet")
    assert (done.code, done.err) == (130, line)


def test_a_run_that_ended_before_its_first_step_is_reported(stoker: Stoker, folder: Path) -> None:
    change_bars(folder, close=lambda close: -close)
    assert stoker("train", "tfa.yaml", "--quiet").code == 2
    done = stoker("train", "--resume", "run")
    assert done.err == "stoker: run has no config.yaml: its run ended before its first step. Start it again: stoker train CONFIG\n"
    assert stoker("export", "run", "bundle").err.startswith("stoker: run has no config.yaml, so it is not the folder of a run.")
    assert not (folder / "bundle").exists()
    change_bars(folder)
    assert stoker("train", "tfa.yaml", "--quiet", "--set", "epochs=1").code == 0


def test_a_name_of_a_file_never_becomes_a_folder(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "tfa.yaml", "--quiet", "--set", "epochs=1").code == 0
    for name in ("model.pt", "model.onnx", "model.safetensors"):
        done = stoker("export", "run", name)
        assert (
            done.err
            == f"stoker: {name} would be a file, but a run on market bars becomes a folder with its programs. Give a folder.\n"
        )
        assert not (folder / name).exists()


def test_their_yaml_and_all_fields(stoker: Stoker, folder: Path) -> None:
    (folder / "theirs.yaml").write_text(THEIRS)
    done = stoker("train", "theirs.yaml", "--set", "epochs=1")
    assert done.code == 0, done.err
    assert "note       " in done.out
    fields = stoker("train", "tfa", "--fields").out
    assert "label_horizon" in fields
    assert "Bars ahead whose direction is predicted." in fields
