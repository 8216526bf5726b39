"""What the versions of `stoker train` share: settings of a recipe by `--set`, of a struct or a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import pytest

from stoker.cli import training
from stoker.errors import ConfigError


class Waves(msgspec.Struct):
    """Settings."""

    data: str
    epochs: int = 3
    """Passes over the data."""
    lr: float | None = None


@dataclass
class Plain:
    """The same as a dataclass."""

    data: str = ""
    epochs: int = 3
    lr: float | None = None


@pytest.mark.parametrize("name", ["Waves", "Plain"])
def test_settings_are_checked_by_the_types_of_their_fields(name: str) -> None:
    record = f"{__name__}:{name}"
    assert training.read_settings(["epochs=5", "lr=1e-3"], record) == {"epochs": 5, "lr": 0.001}
    assert training.read_settings(["lr=1", "lr=null"], record) == {"lr": None}
    for wrong in ("epochs=many", "epochs=1.5", "epoch=1", "epochs"):
        with pytest.raises(ConfigError) as error:
            training.read_settings([wrong], record)
        assert error.value.parameter == "overrides"
    with pytest.raises(click.UsageError, match="--set data cannot be set"):
        training.read_settings(["data=x"], record)


def test_fields_are_shown_with_their_texts(capsys: pytest.CaptureFixture[str]) -> None:
    training.show_fields(Waves)
    assert "epochs: 3" in (out := capsys.readouterr().out)
    assert "# Passes over the data." in out


def test_the_folder_of_a_run_is_named_after_its_data() -> None:
    assert str(training.folder_of("a/ett.stoker", resume=None, folder=None)) == "runs/ett"
    assert str(training.folder_of(None, resume="runs/x", folder=None)) == "runs/x"


def test_a_link_to_itself_is_the_name_of_data_like_others(tmp_path: Path) -> None:
    """It was a traceback of `stoker train icecube --data loop`; opening it is an error of one line."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((RuntimeError, OSError)):
        (tmp_path / "loop").resolve(strict=True)
    assert str(training.folder_of(str(tmp_path / "loop"), resume=None, folder=None)) == "runs/loop"
