"""The sequences of mostlyai-engine itself: its padding, positions and batches, tensor by tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.recipes.tabular.originals.mostlyai import BatchCollator, encoding

from stoker_recipes.tabular import pad_sequences

pytestmark = [pytest.mark.originals, pytest.mark.filterwarnings("ignore")]


def events(rng: np.random.Generator, num_contexts: int, longest: int) -> pd.DataFrame:
    lengths = rng.integers(1, longest + 1, num_contexts)
    keys = rng.permutation(np.repeat(rng.permutation(10 * num_contexts)[:num_contexts], lengths))
    return pd.DataFrame(
        {"user": keys, "tgt:/item__cat": rng.integers(0, 100, len(keys)), "tgt:/price__E1": rng.integers(0, 10, len(keys))}
    )


def theirs(frame: pd.DataFrame, max_length: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """One batch of all contexts, in the order of their keys."""
    padded = encoding._enrich_positional_columns(encoding.pad_tgt_sequences(frame, "user"), "user", max_length)
    padded.columns = [name if name == "user" or name.startswith("tgt:") else f"tgt:/{name}" for name in padded.columns]
    flat = encoding.flatten_frame(padded, "user")
    collate = BatchCollator(is_sequential=True, max_sequence_window=None, device=torch.device("cpu"))
    return flat["user"].to_numpy(), collate(flat.drop(columns="user").to_dict("records"))


@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    ("num_contexts", "longest", "max_length"), [(40, 30, 30), (7, 99, 99), (5, 130, 130), (1, 1, 1), (300, 5, 9)]
)
def test_batches_are_those_of_the_engine(rng: np.random.Generator, num_contexts: int, longest: int, max_length: int) -> None:
    frame = events(rng, num_contexts, longest)
    keys, expected = theirs(frame, max_length)
    names = [name for name in frame.columns if name.startswith("tgt:")]
    found = pad_sequences(frame, key="user", columns=names, max_length=max_length, compat="mostlyai")
    order = np.argsort(np.asarray(found.contexts), kind="stable")
    assert np.asarray(found.contexts)[order].tolist() == keys.tolist()
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        steps = tensor.shape[1]  # theirs is as long as its longest sequence, ours as max_length
        assert torch.equal(found[name][order][:, :steps], tensor), name
        assert not found[name][order][:, steps:].any(), name


def test_negative_control_rows_the_other_way_round_are_seen(rng: np.random.Generator) -> None:
    frame = events(rng, 20, 10)
    _, expected = theirs(frame, 10)
    _, other = theirs(frame.iloc[::-1], 10)
    assert not torch.equal(expected["tgt:/item__cat"], other["tgt:/item__cat"])
