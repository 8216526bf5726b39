"""Devices as people name them: what torch answers with a traceback is one line here."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from stoker._device import check_device, sync_debug_mode
from stoker.errors import OptionError


@pytest.mark.parametrize("name", ["banana", "gpu", "cuda:x", None])
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="expected 'cpu', 'cuda' or 'cuda:N'"):
        check_device(name)


class Cuda:
    """torch.cuda as far as its debug mode goes: setting it takes effect, and warns."""

    def __init__(self) -> None:
        self.mode: Any = 0

    def get_sync_debug_mode(self) -> Any:
        return self.mode

    def set_sync_debug_mode(self, mode: Any) -> None:
        self.mode = mode
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=2)


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_the_sync_debug_mode_warns_no_one_and_is_restored(mode: str) -> None:
    cuda, seen = Cuda(), []

    def fail() -> None:
        with sync_debug_mode(mode, cuda):
            seen.append(cuda.mode)
            raise ValueError("within")

    with pytest.raises(ValueError, match="within"):
        fail()
    assert seen == [mode]
    assert cuda.mode == 0


def test_negative_control_setting_the_mode_alone_leaves_it_on() -> None:
    cuda = Cuda()
    with pytest.raises(UserWarning, match="prototype"):  # warnings are errors here, as in many projects
        cuda.set_sync_debug_mode("error")
    assert cuda.mode == "error"
