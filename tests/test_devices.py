"""Devices as people name them: what torch answers with a traceback is one line here."""

from __future__ import annotations

import pytest
import torch

from stoker.devices import check_device
from stoker.errors import OptionError


def test_a_device_that_there_is_is_found() -> None:
    assert check_device("cpu") == check_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["banana", "gpu", "cuda:x", None])
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="expected 'cpu', 'cuda' or 'cuda:N'"):
        check_device(name)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(OptionError, match=r"sees no GPU here|there are .* GPUs here"):
        check_device("cuda:99")
