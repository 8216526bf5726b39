"""A wrong key or value names itself, its place, what was found and expected, and the nearest right one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.experiment.files import SMALL, read

from stoker.errors import ConfigError
from stoker.experiment.config import AdamW, Mse, Own, TransformerConfig
from stoker.train.schedule import Constant


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.data.batch_size == 256
    assert config.model == TransformerConfig()
    assert config.loss == Mse()
    assert config.optimizer == AdamW(lr=1e-3)
    assert config.schedule == Constant()
    assert config.train.epochs == 3
    assert config.split is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_size", "batchsize", "c.yaml:4: data.batchsize is not known; did you mean data.batch_size?"),
        ("epochs: 3", "batchsize: 3", "c.yaml:8: train.batchsize is not known; did you mean data.batch_size?"),
        ("train:", "lr: 1\ntrain:", "c.yaml:7: lr is not known; did you mean optimizer.lr?"),
        (
            "train:",
            "zebra: 1\ntrain:",
            "c.yaml:7: zebra is not known; expected one of data, split, model, loss, optimizer, schedule, train.",
        ),
        ("model: transformer", "model: linear\nloss: {name: mse, a: 1}", "c.yaml:6: loss.a is not known; nothing can be set here."),
        ("1e-3", "high", "c.yaml:6: optimizer.lr is the string 'high'; expected a number from 0."),
        ("1e-3", "-1e-3", "c.yaml:6: optimizer.lr is -0.001; expected a number from 0."),
        ("1e-3", ".inf", "c.yaml:6: optimizer.lr is inf; expected a number from 0 that is finite."),
        ("1e-3", "", "c.yaml:6: optimizer.lr is nothing; expected a number from 0."),
        ("256", "2.5", "c.yaml:4: data.batch_size is 2.5; expected an integer from 1."),
        (
            "transformer",
            "transfomer",
            "c.yaml:5: model.name is the string 'transfomer'; expected one of transformer, gru, mlp, linear, own",
        ),
        ("transformer", "{width: 3}", "c.yaml:5: model.name is missing; expected one of transformer, gru, mlp, linear, own."),
        ("store: prices.stoker", "columns: null", "c.yaml:1: data.store is missing; expected a string, or a list, each a string."),
        (
            "epochs: 3",
            "precision: fp31",
            "c.yaml:8: train.precision is the string 'fp31'; expected one of auto, bf16, fp16, fp32, tf32",
        ),
        (
            "epochs: 3",
            "execution: {compile: on}",
            "c.yaml:8: train.execution.compile is the string 'on'; expected true or false or auto.",
        ),
        ("epochs: 3", "metrics: [mae, mad]", "c.yaml:8: train.metrics is the list ['mae', 'mad']; expected a list, each one of"),
        (
            "{lr: 1e-3}",
            "{betas: [0.9]}",
            "c.yaml:6: optimizer.betas is the list [0.9]; expected a list of 2, each a number from 0 below 1.",
        ),
        (
            "epochs: 3",
            "early_stopping: 5",
            "c.yaml:8: train.early_stopping is 5; expected keys such as metric, patience, mode, or null.",
        ),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SMALL.replace(old, new, 1))
    assert str(caught.value).startswith(f"{tmp_path}/{message}")
    assert "\n" not in str(caught.value)


def test_options_of_a_function_may_be_anything_finite(tmp_path: Path) -> None:
    text = SMALL.replace("transformer", "{name: 'mine.py:make', options: {depth: 3, names: [a, b]}}")
    assert read(tmp_path, text).model == Own(function="mine.py:make", options={"depth": 3, "names": ["a", "b"]})
    with pytest.raises(ConfigError, match="finite"):
        read(tmp_path, text.replace("depth: 3", "depth: .nan"))


def test_a_value_deep_within_choices_and_lists_is_named(tmp_path: Path) -> None:
    for text, message in (
        ("cache: {folder: 3}", "c.yaml:4: data.cache.folder is 3; expected a string or null."),
        ("cache: {dir: x}", "c.yaml:4: data.cache.dir is not known; expected one of folder, size."),
        ("batch_size: 1\nsplit: {name: by_value}", "c.yaml:5: split.column is missing; expected a string."),
        ("columns: [a, 3]", "c.yaml:4: data.columns is the list ['a', 3]; expected"),
        (
            "batch_size: 99999999999999999999",
            "data.batch_size is 99999999999999999999; expected an integer from 1 below 2,147,483,648.",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            read(tmp_path, SMALL.replace("batch_size: 256", text, 1))
        assert message in str(caught.value)
