"""The audit: any iterable of batches is understood, what is wrong is counted exactly, and what is right is not accused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.samples import ALL, DATA, NUM, X, Y, batches_of, of, passed
from tests.harness import num_examples
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from stoker import audit
from stoker.audit import auditor as epoch
from stoker.audit import checks, fingerprints, samples
from stoker.errors import BatchError


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_loader_is_clean(workers: int) -> None:
    report = audit(DataLoader(DATA, batch_size=16, shuffle=True, num_workers=workers), epochs=2)
    assert (report.ok, report.findings) == (True, ())
    assert passed(report) == set(ALL)
    assert (report.num_epochs, report.num_batches, report.num_samples) == (2, 50, 2 * NUM)
    report.raise_if_bad()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (DATA[i] for i in range(NUM))


def test_without_a_reference_it_says_what_it_cannot_know() -> None:
    report = audit(DataLoader(Stream(), batch_size=16))
    assert (report.ok, report.findings) == (True, ())
    assert {audit.kind for audit in report.checks if audit.severity == "unchecked"} == set(ALL) - {"seen twice", "reused memory"}
    assert "there is no reference" in report.basis


def test_a_dataset_of_tuples_is_compared_with_batches_of_dicts_of_another_type() -> None:
    report = audit(({"x": x.double(), "y": y.int()} for x, y in batches_of(range(NUM))), reference=DATA)
    assert report.ok
    assert report.entries == ("x", "y")
    assert "with the samples of the reference (all 400)" in report.basis


@given(data=st.data())
@settings(max_examples=num_examples(60))
def test_exactly_what_was_injected_is_reported(data: st.DataObject) -> None:
    num = data.draw(st.integers(1, 120), label="samples")
    size = data.draw(st.integers(1, 40), label="batch")
    seed = data.draw(st.integers(0, 2**32 - 1), label="seed")
    order = np.random.default_rng(seed).permutation(num)
    omitted = data.draw(st.sets(st.integers(0, num - 1), max_size=num - 1), label="omitted")
    kept = [int(i) for i in order if int(i) not in omitted]
    twice = data.draw(st.lists(st.sampled_from(kept), max_size=30), label="twice")
    contents = np.random.default_rng(seed).integers(0, data.draw(st.sampled_from([2, 1000]), label="values"), (num, 2))
    served = kept + twice
    there = [tuple(row) for row in contents.tolist()]
    came = [there[i] for i in served]
    # By content: a sample that is there twice may come twice, whichever of the two it was.
    again = sum(max(0, came.count(content) - there.count(content)) for content in set(came))
    missing = sum(max(0, there.count(content) - came.count(content)) for content in set(there))
    batches = [
        {"a": contents[served[i : i + size], 0], "b": contents[served[i : i + size], 1]} for i in range(0, len(served), size)
    ]
    report = audit(batches, reference=[{"a": a, "b": b} for a, b in there])
    assert of(report, "seen twice").count == again
    assert of(report, "never seen").count == missing
    assert of(report, "mixed rows").count == of(report, "foreign rows").count == 0
    assert report.ok == (not again and not missing)


@given(seed=st.integers(0, 2**32 - 1), num_mixed=st.integers(0, 50), values=st.sampled_from([2, 10**9]))
@settings(max_examples=num_examples(30))
def test_exactly_the_mixed_rows_that_can_be_reported_are_reported(seed: int, num_mixed: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, values, NUM)
    served = y.copy()
    rows = np.sort(rng.choice(NUM, num_mixed, replace=False))
    served[rows] = y[(rows + 1 + rng.integers(0, NUM - 1, num_mixed)) % NUM]
    x = X.numpy()
    report = audit(
        ({"x": x[i : i + 20], "y": served[i : i + 20]} for i in range(0, NUM, 20)), reference=TensorDataset(X, torch.as_tensor(y))
    )
    assert of(report, "mixed rows").count == np.count_nonzero(served != y)
    assert of(report, "seen twice").count == of(report, "never seen").count == of(report, "foreign rows").count == 0


@pytest.mark.parametrize("pending", [1, 50, 10_000])
def test_the_result_does_not_depend_on_how_many_rows_are_held(monkeypatch: pytest.MonkeyPatch, pending: int) -> None:
    monkeypatch.setattr(epoch, "PENDING_ROWS", pending)
    report = audit(({"x": x, "y": y} for x, y in batches_of([*range(1, NUM), *range(5, 9)])), reference=DATA)
    assert (of(report, "seen twice").count, of(report, "never seen").count) == (4, 1)
    assert "Sample 5 in batch 0 row 4 and batch 24 row 15" in of(report, "seen twice").text


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_contents_are_not_repeats(workers: int) -> None:
    x = torch.zeros(NUM, 6)
    x[:100] = X[:100, :, 0]
    data = TensorDataset(x, Y)
    assert not audit(DataLoader(data, batch_size=16, shuffle=True, num_workers=workers), epochs=2).findings


def test_masked_rows_are_not_samples() -> None:
    def masked(valid: bool) -> Iterator[Any]:
        for x, y in batches_of(range(NUM), 64):
            empty = 64 - len(x)
            x, y = torch.cat([torch.zeros(empty, 6, 2), x]), torch.cat([torch.zeros(empty, dtype=torch.int64), y])
            yield {"x": x, "y": y} | ({"valid": torch.arange(64) >= empty} if valid else {})

    assert audit(masked(True), reference=DATA).ok
    assert of(audit(masked(False), reference=DATA), "foreign rows").count == 64 - NUM % 64
    again = [*masked(True), *list(masked(True))[-1:]]
    assert "batch 6 row 48 and batch 7 row 48" in of(audit(again, reference=DATA), "seen twice").text


class Ragged(Dataset[Any]):
    """Series of different lengths."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return X[i, : 1 + i % 6, 0], i % 7


def padded(value: float) -> Callable[[Any], Any]:
    def collate(items: Any) -> Any:
        x = torch.nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True, padding_value=value)
        return {"x": x, "y": torch.tensor([y for _, y in items])}

    return collate


def test_a_padded_sample_is_the_same_sample_in_every_batch() -> None:
    report = audit(DataLoader(Ragged(), batch_size=3, shuffle=True, collate_fn=padded(0)), epochs=2)
    assert report.entries == ("x", "y")
    assert {finding.kind for finding in report.findings} <= {"shapes"}


def test_negative_control_with_its_padding_a_sample_would_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_hash", xxhash.xxh3_64_intdigest)
    report = audit(DataLoader(Ragged(), batch_size=3, shuffle=True, collate_fn=padded(0)))
    assert report.entries == ("y",)


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return NUM

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": X[i] + torch.randn(6, 2), "id": i, "y": Y[i]}


def test_random_augmentation_is_set_aside() -> None:
    report = audit(DataLoader(Augmented(), batch_size=16, shuffle=True), epochs=2)
    assert (report.ok, report.entries) == (True, ("id", "y"))


def test_negative_control_without_a_second_look_augmentation_would_be_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sometimes(Augmented):
        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": X[i] + (torch.rand(()) < 0.5) * torch.randn(6, 2), "y": Y[i]}

    loader = DataLoader(Sometimes(), batch_size=16)
    assert audit(loader).ok
    monkeypatch.setattr(samples, "NUM_PROBED", 0)
    assert of(audit(loader), "foreign rows").severity == "fault"


@pytest.mark.parametrize("ids", ["id", lambda batch: batch["id"].tolist()], ids=["entry", "function"])
def test_samples_that_carry_their_number(ids: Any) -> None:
    class Anonymous(Augmented):
        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": torch.randn(3), "id": i}

    clean = audit(DataLoader(Anonymous(), batch_size=16, shuffle=True), ids=ids)
    assert not clean.findings
    assert {"seen twice", "never seen", "order"} <= passed(clean)
    assert "Samples are numbered by" in clean.basis
    sampler = [*range(1, NUM), *range(10, 20)]
    bad = audit(DataLoader(Anonymous(), batch_size=16, sampler=sampler), ids=ids, once=True, shuffled=True)
    assert (of(bad, "seen twice").count, of(bad, "never seen").count) == (10, 1)
    assert of(bad, "order").severity == "fault"


def test_a_large_reference_is_read_in_part() -> None:
    clean = audit(DataLoader(DATA, batch_size=16, shuffle=True), reference_limit=100)
    assert not clean.findings
    assert "of 400, drawn at random" in clean.basis
    assert "looked for (of 400)" in of(clean, "never seen").text
    half = audit(batches_of(range(NUM // 2)), reference=DATA, reference_limit=100)
    assert 20 < of(half, "never seen").count < 70
    rolled = audit(((x, y.roll(1)) for x, y in batches_of(range(NUM))), reference=DATA, reference_limit=100)
    assert of(rolled, "mixed rows").severity == "fault"
    assert "followed by the next one" in of(rolled, "order").text


def test_a_part_of_an_epoch() -> None:
    loader = DataLoader(DATA, batch_size=16, shuffle=True)
    report = audit(loader, max_batches=10)
    assert (report.num_batches, report.findings) == (10, ())
    assert of(report, "never seen").text == "The epoch was not followed to its end; 160 of 400 samples came."
    assert of(audit(loader, max_batches=25), "never seen").severity == "passed"


def test_samples_in_common_with_other_data() -> None:
    train, valid = Subset(DATA, range(300)), Subset(DATA, range(300, NUM))
    assert (
        of(audit(DataLoader(train, batch_size=16), apart_from=DataLoader(valid, batch_size=16)), "shared samples").severity
        == "passed"
    )
    for other in (DataLoader(Subset(DATA, range(290, NUM)), batch_size=16), Subset(DATA, range(290, NUM))):
        report = audit(DataLoader(train, batch_size=16, shuffle=True), apart_from=other)
        assert of(report, "shared samples").count == 10
    unknown = audit(iter(DataLoader(train, batch_size=16)), apart_from=DataLoader(Subset(DATA, range(290, NUM)), batch_size=16))
    assert of(unknown, "shared samples").count == 10
    assert "batch 18 row 2 is row 0 there" in of(unknown, "shared samples").text


@pytest.mark.parametrize("kinds", [3, 10, 30], ids=str)
def test_contents_that_repeat_by_themselves_are_not_leak(kinds: int) -> None:
    """Small whole numbers, categories, labels: equal rows are to be expected in both."""
    x = torch.randint(0, kinds, (NUM, 2), generator=torch.Generator().manual_seed(0))
    train, valid = DataLoader(TensorDataset(x[:300]), batch_size=16), DataLoader(TensorDataset(x[300:]), batch_size=16)
    found = of(audit(train, apart_from=valid), "shared samples")
    assert found.severity == "unchecked"
    assert "no more often equal in both than within each" in found.text


def test_negative_control_among_contents_that_seldom_repeat_a_leak_is_found() -> None:
    x = torch.randint(0, 300, (NUM, 2), generator=torch.Generator().manual_seed(0))
    for first, severity in ((300, ("passed", "unchecked")), (280, ("fault",))):
        train, valid = DataLoader(TensorDataset(x[:300]), batch_size=16), DataLoader(TensorDataset(x[first:]), batch_size=16)
        assert of(audit(train, apart_from=valid), "shared samples").severity in severity


@pytest.mark.parametrize(("copies", "share"), [(2, 0.5), (3, 0.2), (10, 0.1)])
def test_samples_that_are_copied_before_the_split_are_found(copies: int, share: float) -> None:
    """Rows of a rare class are oversampled, and then split: no wonder that the validation is good."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(NUM, 4, generator=generator), torch.rand(NUM, generator=generator) < share
    rows = torch.cat([torch.arange(NUM), torch.arange(NUM)[y].repeat(copies - 1)])
    rows = rows[torch.randperm(len(rows), generator=generator)]
    cut = int(0.8 * len(rows))
    parts = TensorDataset(x[rows[:cut]], y[rows[:cut]]), TensorDataset(x[rows[cut:]], y[rows[cut:]])
    train, valid = (DataLoader(part, batch_size=16) for part in parts)
    finding = of(audit(train, apart_from=valid), "shared samples")
    assert finding.severity == "fault"
    assert finding.count == len(set(rows[:cut].tolist()) & set(rows[cut:].tolist()))
    # Negative control: copied after the split, in the training part alone.
    first, second = torch.arange(300), torch.arange(300, NUM)
    first = torch.cat([first, first[y[:300]].repeat(copies - 1)])
    train, valid = (DataLoader(TensorDataset(x[part], y[part]), batch_size=16) for part in (first, second))
    assert of(audit(train, apart_from=valid), "shared samples").severity == "passed"


def test_samples_that_are_drawn_with_replacement_before_the_split_are_found() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(NUM, 8, generator=generator), torch.randint(0, 2, (NUM,), generator=generator)
    rows = torch.randint(0, NUM, (NUM,), generator=generator)
    for inputs, severity in ((x, "fault"), (x.sign(), "unchecked")):  # negative control: 256 kinds, which are equal by chance
        parts = (TensorDataset(inputs[part], y[part]) for part in (rows[:300], rows[300:]))
        train, valid = (DataLoader(part, batch_size=16) for part in parts)
        assert of(audit(train, apart_from=valid), "shared samples").severity == severity


def test_contents_that_are_equal_by_chance_are_not_copies(rng: np.random.Generator) -> None:
    for exponent in (1.1, 1.5, 2.5, None):
        for number in (200, 3000, 40_000):
            for _ in range(20):
                drawn = rng.zipf(exponent, number) if exponent else rng.integers(0, number // 3, number)
                assert not checks.are_copies(np.unique(drawn, return_counts=True)[1]), (exponent, number)
    periodic = np.full(168, 52)
    assert not checks.are_copies(periodic)


def test_nothing_at_all_is_a_fault() -> None:
    assert of(audit([]), "empty").text == "Epoch 0 gave 0 batches and no sample."
    report = audit([torch.zeros(0, 3)] * 2)
    assert of(report, "empty").severity == "fault"
    assert report.num_batches == 2


def test_what_is_worth_knowing_is_a_note() -> None:
    class Lies(list[Any]):
        def __len__(self) -> int:
            return 5

    x = X.clone()
    x[40, 2, 1] = torch.nan
    x[41] = torch.inf
    batches = Lies({"x": x[i : i + 16].to(torch.float64 if i == 48 else torch.float32)} for i in range(0, NUM, 16))
    report = audit(batches)
    assert report.ok
    assert of(report, "length").text == "len() says 5, but 25 batches came."
    assert of(report, "not finite").text == "'x' has 1 NaN and 12 infinite values, first in batch 2 row 8."
    assert of(report, "shapes").text == "'x' is float32[6, 2] at first, but float64[6, 2] in batch 3 (1 of 25 batches differ)."


def test_an_audit_can_be_read_raised_and_sent() -> None:
    report = audit(batches_of([*range(NUM), 3]), reference=DATA, shuffled=True)
    lines = str(report).splitlines()
    assert lines[0] == "batches_of: 26 batches with 401 samples"
    assert lines[2].startswith(
        "FAULT      seen twice      1 of 401 rows of epoch 0 came again: 1 of 400 samples, up to 2 times each. Sample 3"
    )
    assert lines[3].startswith(
        "FAULT      order           Said to be shuffled, but is not. 100% of the samples are followed by the next one;"
    )
    with pytest.raises(BatchError, match=r"batches_of: seen twice: 1 of 401 rows .* order: Said to be shuffled"):
        report.raise_if_bad()
    found = report.to_dict()
    assert (found["ok"], found["num_samples"], found["entries"]) == (False, 401, ["[0]", "[1]"])
    assert found["checks"][0] == {"kind": "seen twice", "severity": "fault", "count": 1, "text": report.checks[0].text}


@pytest.mark.parametrize(
    "change",
    [lambda rows: (rows * 100).round() / 100, lambda rows: rows * 2, lambda rows: rows + 1e-4],
    ids=["rounded", "scaled", "noise"],
)
def test_what_a_comparison_by_content_cannot_find_is_said(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    rows = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    near = audit([rows[:32], rows[32:]], apart_from=[change(rows)])
    for kind in ("shared samples", "seen twice"):
        assert of(near, kind).severity == "passed"
        assert "rounded, scaled or changed by noise are not found" in of(near, kind).text
    assert of(audit([rows[:32], rows[32:]], apart_from=[rows.clone()]), "shared samples").severity == "fault"  # negative control
