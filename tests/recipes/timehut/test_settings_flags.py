"""The options of the authors' script: each is answered, and those that act are the only ones that change a run."""

from __future__ import annotations

import pytest
import torch

from stoker.errors import OptionError
from stoker.recipes.timehut.settings import FLAGS, apply_flags, make_settings

SETTINGS = make_settings()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_flag_is_answered(device: str) -> None:
    for flag in FLAGS:
        changed, (effect,) = apply_flags([flag], SETTINGS, num_series=20, device=torch.device(device))
        assert (effect.flag, bool(effect.reason)) == (flag, True)
        assert (changed != SETTINGS) <= effect.acts  # what changes the settings is reported as acting
        assert effect.acts == (flag == "dynamic-batch" or (flag == "tf32" and device == "cuda"))


@pytest.mark.parametrize(("num", "size"), [(20, 20), (100, 32), (1000, 8), (6000, 2)])
def test_the_batch_size_follows_the_rule_of_the_authors(num: int, size: int) -> None:
    changed, (effect,) = apply_flags(["dynamic-batch"], SETTINGS, num_series=num, device=torch.device("cpu"))
    assert changed.batch_size == size
    assert effect.acts == (size != 8)


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"flags has 'turbo'; expected some of amp, compile"):
        apply_flags(["turbo"], SETTINGS, num_series=20, device=torch.device("cpu"))
