"""Weights of mostlyai-engine load, and give its logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.recipes.tabular.test_model import CASES, make_case, random_batch

from stoker_recipes.tabular.layout import Size
from stoker_recipes.tabular.model import TabularModel

pytestmark = pytest.mark.originals
argn = pytest.importorskip("mostlyai.engine._tabular.argn")


@pytest.mark.promise("P30")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", ["s", "m", "l"])
def test_logits_are_those_of_the_package(rng: np.random.Generator, name: str, size: Size) -> None:
    layout = make_case(name, size)
    options = {
        "tgt_cardinalities": {sub.name: sub.num_classes for sub in layout.subs},
        "ctx_cardinalities": {sub.name: sub.num_classes for sub in layout.context},
        "ctxseq_len_median": {},
        "model_size": argn.ModelSize(size.upper()),
        "column_order": None,
        "device": torch.device("cpu"),
    }
    if layout.is_sequence:
        theirs = argn.SequentialModel(tgt_seq_len_median=5, tgt_seq_len_max=layout.max_length, **options)
    else:
        theirs = argn.FlatModel(**options)
    theirs.eval()
    ours = TabularModel(layout).eval()
    ours.load_upstream(theirs.state_dict())
    for _ in range(5):
        batch = random_batch(layout, rng)
        given = {sub.name: batch["codes"][..., number, None] for number, sub in enumerate(layout.subs)}
        given |= {sub.name: batch["context"][:, number, None] for number, sub in enumerate(layout.context)}
        order = [theirs.tgt_columns[int(column)] for column in batch["rank"].argsort()]
        with torch.no_grad():
            expected, _ = theirs(given, mode="trn", column_order=order)
            found = ours.logits(batch["codes"], batch["rank"], batch.get("context"))
        assert len(found) == sum(1 for sub in layout.subs if sub.hidden)
        for sub, logits in found.items():
            torch.testing.assert_close(logits, expected[sub], atol=1e-5, rtol=1e-5)
