"""The switches of frameworks: their words, which framework runs a loop, and that each switch exists where it is said to be."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import FrameType

import pytest
from torch.utils.data import DataLoader

from stoker.diagnose.experiments.table import FIXES
from stoker.diagnose.frameworks import CLASSES, LOOPS, SWITCHES, framework_of, switch_sentence
from stoker.diagnose.hooks import frames
from stoker.diagnose.wording import ADVICE


@pytest.mark.parametrize(
    ("framework", "fix", "value", "words"),
    [
        ("transformers", "workers", 3, "TrainingArguments(dataloader_num_workers=3)"),
        ("transformers", "workers", None, "TrainingArguments(dataloader_num_workers=2)"),
        ("lightning", "workers", 2, "DataLoader(num_workers=2)"),
        ("accelerate", "workers", 0, "DataLoader(num_workers=0)"),
        ("accelerate", "autocast", None, 'Accelerator(mixed_precision="bf16")'),
        ("lightning", "autocast", None, 'Trainer(precision="bf16-mixed")'),
        ("transformers", "fused", None, 'TrainingArguments(optim="adamw_torch_fused")'),
        (
            "transformers",
            "reads",
            None,
            "TrainingArguments(logging_nan_inf_filter=False): the filter reads the loss of each step to look for NaN",
        ),
        ("lightning", "fused", None, None),
        (None, "workers", 2, None),
    ],
)
def test_a_fix_in_the_words_of_a_framework(framework: str | None, fix: str, value: int | None, words: str | None) -> None:
    assert switch_sentence(framework, fix, value) == words


def stack_in(module: str) -> Iterator[FrameType]:
    """The frames of a call from a function of a module with this name."""
    names = {"__name__": module, "frames": lambda: list(frames(sys._getframe(1)))}
    exec("def step():\n    return frames()\n", names)
    return iter(names["step"]())  # type: ignore[operator]


@pytest.mark.parametrize(
    ("module", "framework"),
    [
        ("transformers.trainer", "transformers"),
        ("transformers.optimization", None),
        ("pytorch_lightning.loops.optimization.automatic", "lightning"),
        ("lightning.pytorch.loops.optimization.automatic", "lightning"),
        ("accelerate.optimizer", "accelerate"),
        ("lightning_fast", None),
        ("train", None),
    ],
)
def test_the_framework_is_the_one_whose_loop_is_running(module: str, framework: str | None) -> None:
    assert framework_of(stack_in(module)) == framework


def test_the_trainer_of_transformers_is_not_taken_for_accelerate() -> None:
    assert framework_of([*stack_in("accelerate.optimizer"), *stack_in("transformers.trainer")]) == "transformers"


def test_names_are_those_of_fixes_frameworks_and_classes() -> None:
    assert set(SWITCHES) <= {*FIXES, *ADVICE, "reads", "callbacks"}
    for switches in SWITCHES.values():
        assert set(switches) <= set(LOOPS)
        assert {switch.callable for switch in switches.values()} <= {*CLASSES.values(), "DataLoader"}


@pytest.mark.slow  # imports the frameworks
@pytest.mark.parametrize("module", [name for name in CLASSES if not name.startswith("lightning.")])
def test_each_switch_is_an_argument_of_its_class(module: str) -> None:
    kind = getattr(importlib.import_module(module), CLASSES[module])
    keywords = set(inspect.signature(kind.__init__).parameters)
    for switches in SWITCHES.values():
        for switch in switches.values():
            assert switch.callable != kind.__name__ or switch.keyword in keywords
            assert switch.callable != "DataLoader" or switch.keyword in inspect.signature(DataLoader.__init__).parameters
