"""A model is compiled once, however often the fix is switched on."""

from __future__ import annotations

import pytest
import torch

from stoker.diagnose.experiments.compile import Compile


@pytest.mark.parametrize(("value", "mode"), [(None, None), (1, "reduce-overhead")])
def test_a_model_is_compiled_once_and_as_before_in_the_end(
    value: int | None, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str | None] = []

    def compile_forward(forward: object, *, mode: str | None) -> object:
        modes.append(mode)
        return lambda batch: batch + 1

    monkeypatch.setattr(torch, "compile", compile_forward)
    model, fix = torch.nn.Linear(1, 1), Compile(value)
    for _ in range(2):
        fix.on([model], None, [])
        assert model(torch.ones(1)) == 2
        fix.remove()
    assert modes == [mode]
    assert "forward" not in vars(model)
