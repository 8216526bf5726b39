"""What tests of several recipes share: absurd settings, runs that are stopped and resumed, and the precision of products."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from stoker.errors import OptionError
from stoker_recipes.run_folder import make_settings


@contextlib.contextmanager
def multiplied_as(products: str) -> Iterator[None]:
    """Matrix products of float32 in a precision: "highest", "high" or "medium"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(products)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def weights_of(done: Any) -> dict[str, torch.Tensor]:
    """A copy of the weights of a finished run, on the CPU."""
    return {name: tensor.cpu().clone() for name, tensor in done.model.state_dict().items()}


def stop_and_resume(
    train: Callable[..., Any], resume: Callable[..., Any], folder: Path, device: str = "cpu", **options: Any
) -> tuple[Any, dict[str, torch.Tensor]]:
    """The end of a run that stops after its first step and is resumed, and the weights of one that does not stop."""
    whole = weights_of(train(folder=folder / "whole", device=device, **options))
    first = train(folder=folder / "half", device=device, **options, max_seconds=1e-9, save_every=1)
    assert first.result.step > 0
    done = resume(folder / "half", device=device, max_seconds=None)
    assert first.result.step < done.result.step
    return done, whole


def assert_invalid_settings_are_named(kind: type[msgspec.Struct], *invalid: dict[str, Any]) -> None:
    """Each of these settings, each field with an absurd value, and a field that does not exist is an error of one line."""
    make_settings(kind, {"data": "x"})  # control: the others are valid
    absurd = ({field.name: {"a": [object]}} for field in msgspec.structs.fields(kind))
    for values in (*invalid, *absurd, {"no_such_setting": 1}):
        with pytest.raises(OptionError, match=next(iter(values))) as raised:
            make_settings(kind, {"data": "x", **values})
        assert "\n" not in str(raised.value)
