"""Orders are pure: they neither read nor change anybody's random numbers, and no environment changes them."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.calling import environment
from tests.sampling.plans import ORDERS, plan_of, whole

PRINT_ORDERS = """
import xxhash
from tests.sampling.plans import ORDERS, plan_of, whole
for order in ORDERS:
    print(order.kind, xxhash.xxh3_64_hexdigest(whole(plan_of(order, 777), 3)))
"""


@pytest.fixture
def global_state() -> Iterator[None]:
    """Whatever a test does to global state is undone."""
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state(), torch.get_default_dtype()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.random.set_rng_state(states[2])
    torch.set_default_dtype(states[3])


def states() -> list[Any]:
    """All random numbers that others might draw next."""
    name, keys, *rest = np.random.get_state()
    return [random.getstate(), name, keys.tolist(), rest, torch.random.get_rng_state().tolist()]  # type: ignore[union-attr]


@pytest.mark.promise("P8")
def test_no_one_elses_random_numbers_are_touched() -> None:
    before = states()
    for order in ORDERS:
        plan = plan_of(order, 777)
        whole(plan, 2)
        plan.describe()
    assert states() == before


@pytest.mark.promise("P8", control=True)
@pytest.mark.usefixtures("global_state")
def test_a_draw_from_a_global_generator_would_be_seen() -> None:
    before = states()
    np.random.rand()
    assert states() != before


@pytest.mark.usefixtures("global_state")
def test_others_seeds_and_types_change_no_order() -> None:
    expected = [whole(plan_of(order, 777), 2).tolist() for order in ORDERS]
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    assert [whole(plan_of(order, 777), 2).tolist() for order in ORDERS] == expected


# With -O all modules are compiled once more, which takes most of the time.
@pytest.mark.parametrize(
    ("flags", "extra"),
    [
        ([], {"PYTHONHASHSEED": "12345", "TZ": "America/St_Johns", "LC_ALL": "C", "OMP_NUM_THREADS": "1"}),
        pytest.param(["-O"], {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu"}, marks=pytest.mark.slow),
        pytest.param(["-OO"], {"PYTHONHASHSEED": "2"}, marks=pytest.mark.slow),
    ],
)
def test_no_environment_changes_an_order(flags: list[str], extra: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    exec(PRINT_ORDERS)
    expected = capsys.readouterr().out
    assert expected.count("\n") == len(ORDERS)
    command, root = [sys.executable, *flags, "-c", PRINT_ORDERS], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment(**extra), capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
