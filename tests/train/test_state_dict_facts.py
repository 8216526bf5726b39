"""Facts of a run: each field that differs is named with both values, and refused unless it is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.errors import CheckpointInvalidError, OptionError
from stoker.train.state_dict import check_facts, differences

SAVED: dict[str, Any] = {
    "config": {"batch_size": 256, "clip": float("nan"), "optimizer": {"name": "adam", "betas": (0.9, 0.999)}, "ema": None},
    "data": {"train": "ab12"},
    "versions": {"torch": "2.13.0", "stoker": "0.1"},
    "step": 100,
    "epoch": 3,
}
NOW = {key: SAVED[key] for key in ("config", "data", "versions")}


def changed(path: str, value: Any) -> dict[str, Any]:
    group, *keys = path.split(".")

    def put(tree: dict[str, Any], keys: list[str]) -> dict[str, Any]:
        return {**tree, keys[0]: value if len(keys) == 1 else put(tree[keys[0]], keys[1:])}

    return put(NOW, [group, *keys])


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("config.batch_size", 512, "config.batch_size: 256 saved, 512 now"),
        ("config.batch_size", True, "config.batch_size: 256 saved, True now"),
        ("config.ema", 0.9, "config.ema: None saved, 0.9 now"),
        ("config.optimizer.betas", (0.9, 0.99), "config.optimizer.betas: (0.9, 0.999) saved, (0.9, 0.99) now"),
        ("config.new", 1, "config.new: absent saved, 1 now"),
        ("config.optimizer", None, "config.optimizer: {'name': 'adam', 'betas': (0.9, 0.999)} saved, None now"),
        ("data.train", "cd34", "data.train: 'ab12' saved, 'cd34' now"),
        ("versions.torch", "2.14.0", "versions.torch: '2.13.0' saved, '2.14.0' now"),
    ],
)
def test_a_field_that_differs_is_named_and_can_be_allowed(path: str, value: Any, line: str) -> None:
    now = changed(path, value)
    assert differences(SAVED, now) == [line]
    with pytest.raises(CheckpointInvalidError, match="step-7 is of another run") as caught:
        check_facts(SAVED, now, where="step-7")
    assert line in str(caught.value)
    for allowed in (path, path.split(".")[0]):
        assert differences(SAVED, now, allow=[allowed]) == []
    check_facts(SAVED, now, where="step-7", allow=path)


def test_allowing_what_is_not_there_names_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"'config.batchsize': there is no such field. Did you mean 'config.batch_size'\?"):
        differences(SAVED, NOW, allow=["config.batchsize"])
