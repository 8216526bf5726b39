"""What is written reads back as the same, whatever the texts are; and the manual has all fields."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.experiment.files import SMALL, read
from tests.harness import num_examples

from stoker.experiment import load
from stoker.experiment.config import Config, Own
from stoker.experiment.parse import explain, known_fields, to_tree, to_yaml

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
