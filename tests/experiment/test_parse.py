"""What a text means, and what is refused: nothing in a file can become code, or much larger than it is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.experiment.files import SMALL, read
from tests.harness import num_examples

from stoker.errors import ConfigError
from stoker.experiment import Config, load, read_document, to_tree, to_yaml
from stoker.experiment.config import AdamW, GruConfig, Mse, Own, Sgd, TransformerConfig
from stoker.experiment.parse import explain, known_fields, parse_yaml, scalar
from stoker.train import Constant


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),  # a text by the rules of YAML 1.1
        ("1E5", 1e5),
        ("3.", 3.0),
        (".5", 0.5),
        ("-0.25e+2", -25.0),
        ("12", 12),
        ("-7", -7),
        ("0", 0),
        ("true", True),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("017", "017"),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("0x1f", "0x1f"),
        ("fp16", "fp16"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_plain_words_become_numbers_truth_values_or_texts(text: str, value: object) -> None:
    found = scalar(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 2\n  c: 3\n", "f:4: b.c comes twice (first in line 3). Remove one of them."),
        ("a: &x [1]\nb: *x\n", "f:2: the alias *x is not read here. Write its value out."),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "f:1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not read here.",
        ),
        ("a: !!str 3\n", "f:1: the tag"),
        ("a: 1\n---\nb: 2\n", "f:2 is not YAML: expected a single document in the stream but found another document."),
        ("? [1, 2]\n: 3\n", "f:1: a key is expected here, which is a plain word."),
        ("*x : 3\n", "f:1: the alias *x is not read here."),
        ("a: b: c\n", "f:1 is not YAML: mapping values are not allowed here."),
        ("a: [1\n", "f:2 is not YAML:"),
        ("a: \x00\n", "f is not YAML: unacceptable character"),
        ("[" * 200, "f:1: values are nested deeper than 16 levels."),
        ("a: {" * 200, "f:1"),
    ],
)
def test_yaml_that_is_ambiguous_or_code_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_bomb_of_aliases_is_refused_before_it_unfolds() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    with pytest.raises(ConfigError, match="f:2: the alias"):
        parse_yaml("\n".join(lines), "f")


def test_json_and_yaml_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": {"b": [1, 2.5, "x", null, true]}}')
    (tmp_path / "a.yaml").write_text("a:\n  b: [1, 2.5, x, null, true]\n")
    assert read_document(tmp_path / "a.json").tree == read_document(tmp_path / "a.yaml").tree


def test_places_are_those_of_the_file_or_of_the_option(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a:\n  b: 1\n  c: [1,\n      2]\n")
    document = read_document(tmp_path / "a.yaml")
    assert document.place(("a", "b")).endswith("a.yaml:2")
    assert document.place(("a", "c", 1)).endswith("a.yaml:4")
    assert document.place(("a", "unknown")).endswith("a.yaml:1")
    assert document.place(()).endswith("a.yaml")


def test_a_pipe_or_a_device_is_refused_without_reading_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")  # opening it would wait for a writer
    for path in (tmp_path / "c.yaml", Path("/dev/zero")):
        with pytest.raises(ConfigError) as error:
            read_document(path)
        assert error.value.path == str(path)


# A wrong key or value names itself, its place, what was found and expected, and the nearest right one


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
        ("1e-3", ".inf", "c.yaml:6: optimizer.lr is inf; expected a number from 0 that is finite."),
        ("1e-3", "", "c.yaml:6: optimizer.lr is nothing; expected a number from 0."),
        ("1e-3", "high", "c.yaml:6: optimizer.lr is the string 'high'; expected a number from 0."),
        (
            "transformer",
            "transfomer",
            "c.yaml:5: model.name is the string 'transfomer'; expected one of transformer, gru, mlp, linear, own",
        ),
        ("transformer", "{width: 3}", "c.yaml:5: model.name is missing; expected one of transformer, gru, mlp, linear, own."),
        (
            "store: prices.stoker",
            "columns: null",
            "c.yaml:1: data.store is missing; expected a string, or a list that is not empty, each a string.",
        ),
        (
            "{lr: 1e-3}",
            "{betas: [0.9]}",
            "c.yaml:6: optimizer.betas is the list [0.9]; expected a list of 2, each a number from 0 below 1.",
        ),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SMALL.replace(old, new, 1))
    assert str(caught.value).startswith(f"{tmp_path}/{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted({one.dotted for one in known_fields(Config)}))
def test_an_absurd_value_of_any_field_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SMALL, f"{name}=[[[]]]")
    assert name in str(caught.value)
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


# `--set`: typed like the file, named by as much of the path as is needed


def test_the_end_of_a_path_is_enough(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL, "batch_size=512", "lr=3e-4", "train.epochs=7", "early_stopping.patience=2")
    assert (config.data.batch_size, config.optimizer.lr, config.train.epochs) == (512, 3e-4, 7)
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
        ("batch_size=[", "overrides batch_size is not YAML"),
        ("model={name: mlp", "overrides model is not YAML"),
        ("train.folder=", "overrides train.folder has no value; expected NAME=VALUE; write null for none."),
        ("split=  ", "overrides split has no value; expected NAME=VALUE"),
        ("=3", "overrides is '=3'; expected NAME=VALUE"),
        ("columns=[]", "overrides: data.columns is the list []; expected a list that is not empty, each a string, or null."),
        ("split.valid=0", "overrides: split.valid is 0; expected a number above 0 below 1."),
        ("loss.classes=3", "overrides: loss.classes is not known; it goes with another loss than the one that is set."),
        ("model=gru", ""),
    ],
)
def test_an_override_that_names_no_field_is_refused_with_the_nearest(tmp_path: Path, assignment: str, message: str) -> None:
    if not message:  # the control: this one can
        read(tmp_path, SMALL, assignment)
        return
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SMALL, assignment)
    assert str(caught.value).startswith(message)


# What is written reads back as the same, whatever the texts are; and the manual has all fields


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=num_examples(60), deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=4), TEXTS)
def test_all_values_come_back(options: dict[str, object], store: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        small = read(Path(folder))
        data = msgspec.structs.replace(small.data, store=store)
        config = msgspec.structs.replace(small, data=data, model=Own(function="a.py:f", options=options))
        path = Path(folder) / "again.yaml"
        path.write_bytes(to_yaml(config))
        again = load(path)
    assert to_tree(again) == to_tree(config)


def test_texts_that_look_like_numbers_are_quoted(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL, "columns=['1e-3', 'null', 'true', '12', 'no']")
    path = tmp_path / "again.yaml"
    path.write_bytes(to_yaml(config))
    assert load(path).data.columns == ["1e-3", "null", "true", "12", "no"]
    assert b'"1e-3"' in path.read_bytes()


def test_the_manual_names_every_field() -> None:
    lines = list(explain(Config))
    for one in known_fields(Config):
        assert any(line.strip().startswith(f"{one.path[-1]}: ") for line in lines), one.dotted


FROZEN = """\
data data.augment data.batch_size data.cache data.cache.folder data.cache.size data.columns data.dtype data.global_batch_size
data.known data.loading data.loading.prefetch data.loading.residency data.loading.threads data.normalize data.observed data.order
data.order.block data.order.pool data.order.window data.scale data.scale.method data.scale.per data.scale.unseen data.store
data.target data.test_store data.valid_store data.view data.view.buckets data.view.gaps data.view.horizon data.view.keep
data.view.length data.view.max_gap data.view.max_length data.view.shift data.view.stride data.view.tail data.weights
data.where loss loss.classes loss.delta loss.function loss.options loss.positive_weight loss.quantiles loss.smoothing model
model.causal model.dropout model.function model.heads model.hidden model.layers model.options model.width optimizer
optimizer.alpha optimizer.betas optimizer.eps optimizer.lr optimizer.momentum optimizer.nesterov optimizer.weight_decay
schedule schedule.end schedule.every schedule.factor schedule.start schedule.warmup split split.by split.column split.embargo
split.horizon split.overlap split.test split.time split.train split.valid split.warm_up train train.checkpoints
train.checkpoints.copies train.checkpoints.every train.checkpoints.keep train.device train.early_stopping
train.early_stopping.metric train.early_stopping.min_delta train.early_stopping.mode train.early_stopping.patience
train.early_stopping.restore_best train.ema train.epochs train.execution train.execution.activation_checkpointing
train.execution.compile train.execution.fused train.execution.graph train.execution.measured train.execution.parallel
train.folder train.grad_accum_steps train.guard train.loggers train.logging train.logging.config train.logging.every
train.logging.watch train.max_grad_norm train.max_seconds train.metrics train.precision train.seed
"""


def test_the_set_of_fields_is_frozen() -> None:
    """Files of users name them: a field that is renamed or goes must be changed here too, knowingly."""
    assert sorted({one.dotted for one in known_fields(Config)}) == sorted(FROZEN.split())
