"""`--set`: typed like the file, named by as much of the path as is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.experiment.files import SMALL, read

from stoker.errors import ConfigError
from stoker.experiment.config import GruConfig, Own, Sgd, TransformerConfig


def test_the_end_of_a_path_is_enough(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL, "batch_size=512", "lr=3e-4", "train.epochs=7", "early_stopping.patience=2")
    assert (config.data.batch_size, config.optimizer.lr, config.train.epochs) == (512, 3e-4, 7)
    assert config.train.early_stopping is not None
    assert config.train.early_stopping.patience == 2


def test_values_are_typed_like_the_file(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL, "columns=[open, '1e-3']", "max_grad_norm=1", "graph=false", "ema=null")
    assert config.data.columns == ["open", "1e-3"]
    assert config.train.max_grad_norm == 1
    assert config.train.execution.graph is False


def test_a_choice_can_be_changed_with_its_options(tmp_path: Path) -> None:
    assert read(tmp_path, SMALL, "model=gru", "model.width=32").model == GruConfig(width=32)
    assert read(tmp_path, SMALL, "optimizer={name: sgd, lr: 0.5}").optimizer == Sgd(lr=0.5)
    assert read(tmp_path, SMALL, "model.name=gru").model == GruConfig()
    assert read(tmp_path, SMALL, "model.layers=5").model == TransformerConfig(layers=5)
    assert read(tmp_path, SMALL, "model=a.py:f", "model.options.depth=3").model == Own(function="a.py:f", options={"depth": 3})


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("batch_size", "overrides is 'batch_size'; expected NAME=VALUE, such as batch_size=512."),
        ("batchsize=3", "overrides batchsize is not known; did you mean data.batch_size?"),
        ("qqqqqq=3", "overrides qqqqqq is not known; `stoker train --fields` shows all."),
        ("horizon=3", "overrides horizon could be data.view.horizon or split.horizon. Write it in full."),
        ("batch_size=many", "overrides: data.batch_size is the string 'many'; expected an integer from 1."),
        ("batch_size=[", "overrides batch_size:1 is not YAML"),
        ("loss.classes=3", "overrides: loss.classes is not known; it goes with another loss than the one that is set."),
        ("model=gru", ""),
    ],
)
def test_what_cannot_be_set(tmp_path: Path, assignment: str, message: str) -> None:
    if not message:  # the control: this one can
        read(tmp_path, SMALL, assignment)
        return
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SMALL, assignment)
    assert str(caught.value).startswith(message)
