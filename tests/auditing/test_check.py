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
from tests.auditing.samples import ALL, DATA, NUM, X, Y, batches_of, of, passed
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from stoker.auditing import check as epoch
from stoker.auditing import checks, fingerprints, samples
from stoker.auditing.check import check
from stoker.errors import BatchesInvalid, OptionError


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_loader_is_clean(workers: int) -> None:
    audit = check(DataLoader(DATA, batch_size=16, shuffle=True, num_workers=workers), epochs=2)
    assert (audit.ok, audit.findings) == (True, ())
    assert passed(audit) == set(ALL)
    assert (audit.num_epochs, audit.num_batches, audit.num_samples) == (2, 50, 2 * NUM)
    audit.raise_if_bad()


def test_a_loader_that_says_it_is_sequential_is_clean() -> None:
    audit = check(DataLoader(DATA, batch_size=16), epochs=2)
    assert (audit.ok, audit.findings) == (True, ())
    assert "as it says" in of(audit, "order").text


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (DATA[i] for i in range(NUM))


def test_without_a_reference_it_says_what_it_cannot_know() -> None:
    audit = check(DataLoader(Stream(), batch_size=16))
    assert (audit.ok, audit.findings) == (True, ())
    assert {check.kind for check in audit.checks if check.severity == "unchecked"} == set(ALL) - {"seen twice", "reused memory"}
    assert "there is no reference" in audit.basis


def test_a_dataset_of_tuples_is_compared_with_batches_of_dicts_of_another_type() -> None:
    audit = check(({"x": x.double(), "y": y.int()} for x, y in batches_of(range(NUM))), reference=DATA)
    assert audit.ok
    assert audit.entries == ("x", "y")
    assert "with the samples of the reference (all 400)" in audit.basis


def test_a_list_of_batches_is_no_list_of_items() -> None:
    assert check(batches_of(range(NUM)), reference=list(batches_of(range(NUM)))).ok
    assert check(batches_of(range(NUM)), reference=[DATA[i] for i in range(NUM)]).ok
    assert check(({"x": x, "y": y} for x, y in batches_of(range(NUM))), reference=list(batches_of(range(NUM)))).ok


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(OptionError, match="the reference has 'a', but batches have '\\[0\\]' and '\\[1\\]'"):
        check(batches_of(range(NUM)), reference=[{"a": X[0]}])
    with pytest.raises(OptionError, match="batch 0 is a str without a tensor, array or list"):
        check(["x", "y"])
    with pytest.raises(OptionError, match="batches is of type int; expected an iterable of batches"):
        check(3)  # type: ignore[arg-type]


@given(data=st.data())
@settings(max_examples=60)
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
    audit = check(batches, reference=[{"a": a, "b": b} for a, b in there])
    assert of(audit, "seen twice").count == again
    assert of(audit, "never seen").count == missing
    assert of(audit, "mixed rows").count == of(audit, "foreign rows").count == 0
    assert audit.ok == (not again and not missing)


@given(seed=st.integers(0, 2**32 - 1), num_mixed=st.integers(0, 50), values=st.sampled_from([2, 10**9]))
@settings(max_examples=30)
def test_exactly_the_mixed_rows_that_can_be_told_are_reported(seed: int, num_mixed: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, values, NUM)
    served = y.copy()
    rows = np.sort(rng.choice(NUM, num_mixed, replace=False))
    served[rows] = y[(rows + 1 + rng.integers(0, NUM - 1, num_mixed)) % NUM]
    x = X.numpy()
    audit = check(
        ({"x": x[i : i + 20], "y": served[i : i + 20]} for i in range(0, NUM, 20)), reference=TensorDataset(X, torch.as_tensor(y))
    )
    assert of(audit, "mixed rows").count == np.count_nonzero(served != y)
    assert of(audit, "seen twice").count == of(audit, "never seen").count == of(audit, "foreign rows").count == 0


@pytest.mark.parametrize("pending", [1, 50, 10_000])
def test_the_result_does_not_depend_on_how_many_rows_are_held(monkeypatch: pytest.MonkeyPatch, pending: int) -> None:
    monkeypatch.setattr(epoch, "PENDING_ROWS", pending)
    audit = check(({"x": x, "y": y} for x, y in batches_of([*range(1, NUM), *range(5, 9)])), reference=DATA)
    assert (of(audit, "seen twice").count, of(audit, "never seen").count) == (4, 1)
    assert "Sample 5 in batch 0 row 4 and batch 24 row 15" in of(audit, "seen twice").text


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_contents_are_no_repeats(workers: int) -> None:
    x = torch.zeros(NUM, 6)
    x[:100] = X[:100, :, 0]
    data = TensorDataset(x, Y)
    assert not check(DataLoader(data, batch_size=16, shuffle=True, num_workers=workers), epochs=2).findings


def test_equal_contents_without_a_reference_are_a_note() -> None:
    x = torch.zeros(NUM, 6)
    x[:300] = X[:300, :, 0]
    audit = check([(x[i : i + 16],) for i in range(0, NUM, 16)])
    assert audit.ok
    assert of(audit, "seen twice").severity == "note"
    assert "The data may hold equal rows" in of(audit, "seen twice").text


def test_more_of_an_equal_content_than_there_is_is_a_repeat() -> None:
    data = TensorDataset(torch.zeros(10, 3), torch.zeros(10))
    audit = check([data[:] for _ in range(2)], reference=data)
    assert of(audit, "seen twice").count == 10
    assert check([data[:]], reference=data).ok


def test_masked_rows_are_no_samples() -> None:
    def masked(valid: bool) -> Iterator[Any]:
        for x, y in batches_of(range(NUM), 64):
            empty = 64 - len(x)
            x, y = torch.cat([torch.zeros(empty, 6, 2), x]), torch.cat([torch.zeros(empty, dtype=torch.int64), y])
            yield {"x": x, "y": y} | ({"valid": torch.arange(64) >= empty} if valid else {})

    assert check(masked(True), reference=DATA).ok
    assert of(check(masked(False), reference=DATA), "foreign rows").count == 64 - NUM % 64
    again = [*masked(True), *list(masked(True))[-1:]]
    assert "batch 6 row 48 and batch 7 row 48" in of(check(again, reference=DATA), "seen twice").text


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
    audit = check(DataLoader(Ragged(), batch_size=3, shuffle=True, collate_fn=padded(0)), epochs=2)
    assert audit.entries == ("x", "y")
    assert {finding.kind for finding in audit.findings} <= {"shapes"}


def test_negative_control_with_its_padding_a_sample_would_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_hash", xxhash.xxh3_64_intdigest)
    audit = check(DataLoader(Ragged(), batch_size=3, shuffle=True, collate_fn=padded(0)))
    assert audit.entries == ("y",)


def test_padding_that_changes_the_content_is_set_aside() -> None:
    audit = check(DataLoader(Ragged(), batch_size=3, shuffle=True, collate_fn=padded(-100)))
    assert audit.ok
    assert audit.entries == ("y",)
    assert "'x' depends on chance, or on the rest of its batch" in audit.basis


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return NUM

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": X[i] + torch.randn(6, 2), "id": i, "y": Y[i]}


def test_random_augmentation_is_set_aside() -> None:
    audit = check(DataLoader(Augmented(), batch_size=16, shuffle=True), epochs=2)
    assert (audit.ok, audit.entries) == (True, ("id", "y"))


def test_negative_control_without_a_second_look_augmentation_would_be_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sometimes(Augmented):
        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": X[i] + (torch.rand(()) < 0.5) * torch.randn(6, 2), "y": Y[i]}

    loader = DataLoader(Sometimes(), batch_size=16)
    assert check(loader).ok
    monkeypatch.setattr(samples, "NUM_PROBED", 0)
    assert of(check(loader), "foreign rows").severity == "fault"


@pytest.mark.parametrize("ids", ["id", lambda batch: batch["id"].tolist()], ids=["entry", "function"])
def test_samples_that_carry_their_number(ids: Any) -> None:
    class Anonymous(Augmented):
        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": torch.randn(3), "id": i}

    clean = check(DataLoader(Anonymous(), batch_size=16, shuffle=True), ids=ids)
    assert not clean.findings
    assert {"seen twice", "never seen", "order"} <= passed(clean)
    assert "Samples are numbered by" in clean.basis
    sampler = [*range(1, NUM), *range(10, 20)]
    bad = check(DataLoader(Anonymous(), batch_size=16, sampler=sampler), ids=ids, once=True, shuffled=True)
    assert (of(bad, "seen twice").count, of(bad, "never seen").count) == (10, 1)
    assert of(bad, "order").severity == "fault"


def test_numbers_without_a_reference_show_repeats_and_order() -> None:
    audit = check([{"x": torch.randn(20, 3), "id": torch.arange(i, i + 20) * 7} for i in [*range(0, 400, 20), 0]], ids="id")
    assert of(audit, "seen twice").count == 20
    assert of(audit, "never seen").severity == "unchecked"
    assert "followed by the next one" in of(audit, "order").text


def test_numbers_that_the_reference_lacks_are_foreign() -> None:
    def numbered(first: int) -> list[Any]:
        return [{"x": torch.randn(20, 3), "id": torch.arange(i, i + 20)} for i in range(first, first + 200, 20)]

    audit = check(numbered(5), ids="id", reference=numbered(0))
    assert of(audit, "foreign rows").count == 5
    assert of(audit, "never seen").count == 5


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("z", "ids is 'z', but a batch has 'x'"),
        ("x", r"the entry 'x' gives float32 of shape \(16, 6, 2\); expected one whole number for each of 16 rows"),
        (lambda batch: [1], r"the function ids gives int64 of shape \(1,\)"),
    ],
)
def test_numbers_that_are_none(ids: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check(({"x": x} for x, _ in batches_of(range(NUM))), ids=ids)


def test_a_large_reference_is_read_in_part() -> None:
    clean = check(DataLoader(DATA, batch_size=16, shuffle=True), reference_limit=100)
    assert not clean.findings
    assert "of 400, drawn at random" in clean.basis
    assert "looked for (of 400)" in of(clean, "never seen").text
    half = check(batches_of(range(NUM // 2)), reference=DATA, reference_limit=100)
    assert 20 < of(half, "never seen").count < 70
    rolled = check(((x, y.roll(1)) for x, y in batches_of(range(NUM))), reference=DATA, reference_limit=100)
    assert of(rolled, "mixed rows").severity == "fault"
    assert "followed by the next one" in of(rolled, "order").text


def test_a_part_of_an_epoch() -> None:
    loader = DataLoader(DATA, batch_size=16, shuffle=True)
    audit = check(loader, max_batches=10)
    assert (audit.num_batches, audit.findings) == (10, ())
    assert of(audit, "never seen").text == "The epoch was not followed to its end; 160 of 400 samples came."
    assert of(check(loader, max_batches=25), "never seen").severity == "passed"


def test_samples_in_common_with_other_data() -> None:
    train, valid = Subset(DATA, range(300)), Subset(DATA, range(300, NUM))
    assert (
        of(check(DataLoader(train, batch_size=16), apart_from=DataLoader(valid, batch_size=16)), "shared samples").severity
        == "passed"
    )
    for other in (DataLoader(Subset(DATA, range(290, NUM)), batch_size=16), Subset(DATA, range(290, NUM))):
        audit = check(DataLoader(train, batch_size=16, shuffle=True), apart_from=other)
        assert of(audit, "shared samples").count == 10
    unknown = check(iter(DataLoader(train, batch_size=16)), apart_from=DataLoader(Subset(DATA, range(290, NUM)), batch_size=16))
    assert of(unknown, "shared samples").count == 10
    assert "batch 18 row 2 is row 0 there" in of(unknown, "shared samples").text


def test_frequent_contents_are_no_leak() -> None:
    x = X.clone()
    x[::4] = 0
    y = torch.zeros(NUM)
    train, valid = TensorDataset(x[:300], y[:300]), TensorDataset(x[300:], y[300:])
    audit = check(DataLoader(train, batch_size=16), apart_from=DataLoader(valid, batch_size=16))
    assert of(audit, "shared samples").severity == "passed"
    assert "1 content that are frequent on either side were left out" in of(audit, "shared samples").text


@pytest.mark.parametrize("kinds", [3, 10, 30], ids=str)
def test_contents_that_repeat_by_themselves_are_no_leak(kinds: int) -> None:
    """Small whole numbers, categories, labels: equal rows are to be expected in both."""
    x = torch.randint(0, kinds, (NUM, 2), generator=torch.Generator().manual_seed(0))
    train, valid = DataLoader(TensorDataset(x[:300]), batch_size=16), DataLoader(TensorDataset(x[300:]), batch_size=16)
    found = of(check(train, apart_from=valid), "shared samples")
    assert found.severity == "unchecked"
    assert "no more often equal in both than within each" in found.text


def test_negative_control_among_contents_that_seldom_repeat_a_leak_is_found() -> None:
    x = torch.randint(0, 300, (NUM, 2), generator=torch.Generator().manual_seed(0))
    for first, severity in ((300, ("passed", "unchecked")), (280, ("fault",))):
        train, valid = DataLoader(TensorDataset(x[:300]), batch_size=16), DataLoader(TensorDataset(x[first:]), batch_size=16)
        assert of(check(train, apart_from=valid), "shared samples").severity in severity


def test_other_data_without_an_entry_cannot_be_compared() -> None:
    audit = check(batches_of(range(NUM)), apart_from=[(x,) for x, _ in batches_of(range(NUM))])
    assert of(audit, "shared samples").severity == "unchecked"
    numbered = [{"id": torch.arange(i, i + 20)} for i in range(0, NUM, 20)]
    assert of(check(numbered, ids="id", apart_from=numbered[3:5]), "shared samples").count == 40


def test_a_generator_gives_one_epoch() -> None:
    with pytest.raises(OptionError, match="a generator gives one epoch only"):
        check(batches_of(range(NUM)), epochs=2)
    assert check(lambda: batches_of(torch.randperm(NUM)), reference=DATA, epochs=3).ok


@pytest.mark.parametrize("option", ["epochs", "max_batches", "reference_limit"])
def test_options_that_cannot_be_meant(option: str) -> None:
    with pytest.raises(OptionError, match=f"{option} is 0; expected a whole number of at least 1"):
        check([], **{option: 0})


def test_nothing_at_all_is_a_fault() -> None:
    assert of(check([]), "empty").text == "Epoch 0 gave 0 batches and no sample."
    audit = check([torch.zeros(0, 3)] * 2)
    assert of(audit, "empty").severity == "fault"
    assert audit.num_batches == 2


def test_empty_batches_are_counted_where_they_stand() -> None:
    audit = check([torch.zeros(0, 6, 2), X[:10], torch.zeros(0, 6, 2), X[:10]], reference=Subset(TensorDataset(X), range(10)))
    assert "Sample 0 in batch 1 row 0 and batch 3 row 0" in of(audit, "seen twice").text


def test_what_is_worth_knowing_is_a_note() -> None:
    class Lies(list[Any]):
        def __len__(self) -> int:
            return 5

    x = X.clone()
    x[40, 2, 1] = torch.nan
    x[41] = torch.inf
    batches = Lies({"x": x[i : i + 16].to(torch.float64 if i == 48 else torch.float32)} for i in range(0, NUM, 16))
    audit = check(batches)
    assert audit.ok
    assert of(audit, "length").text == "len() says 5, but 25 batches came."
    assert of(audit, "not finite").text == "'x' has 1 NaN and 12 infinite values, first in batch 2 row 8."
    assert of(audit, "shapes").text == "'x' is float32[6, 2] at first, but float64[6, 2] in batch 3 (1 of 25 batches differ)."


def test_an_entry_that_some_batches_lack_is_left_out() -> None:
    audit = check(({"x": x, "y": y if i else y[:9]} for i, (x, y) in enumerate(batches_of(range(NUM)))), reference=TensorDataset(X))
    assert audit.ok
    assert audit.entries == ("x",)
    assert "9 values for 16 rows" in of(audit, "shapes").text


def test_large_batches_are_held_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_BYTES", 1)
    buffer = torch.zeros(16, 6, 2)
    assert of(check(buffer.copy_(x) for x, _ in batches_of(range(NUM))), "reused memory").count == 24
    assert check(x for x, _ in batches_of(range(NUM))).ok


def test_an_audit_can_be_read_raised_and_sent() -> None:
    audit = check(batches_of([*range(NUM), 3]), reference=DATA, shuffled=True)
    lines = str(audit).splitlines()
    assert lines[0] == "batches_of: 26 batches with 401 samples"
    assert lines[2].startswith(
        "FAULT      seen twice      1 of 401 rows of epoch 0 came again: 1 of 400 samples, up to 2 times each. Sample 3"
    )
    assert lines[3].startswith(
        "FAULT      order           Said to be shuffled, but is not. 100% of the samples are followed by the next one;"
    )
    with pytest.raises(BatchesInvalid, match=r"batches_of: seen twice: 1 of 401 rows .* order: Said to be shuffled"):
        audit.raise_if_bad()
    found = audit.to_dict()
    assert (found["ok"], found["num_samples"], found["entries"]) == (False, 401, ["[0]", "[1]"])
    assert found["checks"][0] == {"kind": "seen twice", "severity": "fault", "count": 1, "text": audit.checks[0].text}


def test_progress_is_told() -> None:
    told: list[tuple[str, float, int]] = []
    check(DataLoader(DATA, batch_size=100), epochs=2, progress=lambda *one: told.append(one))
    assert list(dict.fromkeys(phase for phase, _, _ in told)) == ["reference", "epoch 0", "epoch 1"]
    assert told[-1] == ("epoch 1", 1.0, NUM)
    assert all(0 <= share <= 1 for _, share, _ in told)
