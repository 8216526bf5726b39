"""Samples: the authors' bit for bit, also within the Trainer of Hugging Face, or without a loss of targets and precision."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import torch
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset, collate
from benchmarks.time_moe.folder import walks, write_folder
from hypothesis import given, settings
from tests.harness import num_examples
from tests.recipes.time_moe.authors import assert_samples_are_theirs
from torch.utils.data import DataLoader

import stoker
from stoker.errors import OptionError
from stoker_recipes.time_moe import TimeMoeDataset
from stoker_recipes.time_moe.data import Corpus, open_corpus
from stoker_recipes.time_moe.dataset import CorpusScales, Pieces, train_ends


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "set", walks([300, 17, 64, 1, 65, 129, 40]), num_files=3)


@pytest.mark.parametrize(("context", "prediction", "stride"), [(32, 0, None), (24, 8, None), (32, 0, 5)])
@pytest.mark.parametrize("method", [None, "none", "zero", "max"])
def test_samples_are_the_authors_bit_for_bit(
    folder: Path, context: int, prediction: int, stride: int | None, method: str | None
) -> None:
    original = TimeMoEWindowDataset(TimeMoEDataset(folder, method), context, prediction, stride)
    found = TimeMoeDataset(folder, context, prediction, stride, method)
    assert len(found) == len(original)
    for mine, theirs in zip(found, original, strict=True):
        assert list(mine) == list(theirs)
        for name, values in theirs.items():
            assert mine[name].numpy().dtype == values.dtype
            assert mine[name].numpy().tobytes() == values.tobytes()


def test_the_same_seed_gives_the_same_batches(folder: Path) -> None:
    original: Any = TimeMoEWindowDataset(TimeMoEDataset(folder, "zero"), 32)
    found: Any = TimeMoeDataset(folder, 32, normalization_method="zero", shuffle=True)
    generators = [torch.Generator().manual_seed(9899) for _ in range(2)]
    theirs = DataLoader(original, batch_size=4, shuffle=True, generator=generators[0], collate_fn=collate)
    mine = DataLoader(found, batch_size=4, shuffle=True, generator=generators[1], collate_fn=TimeMoeDataset.collate)
    for one, other in zip(mine, theirs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.slow  # imports the trainer of transformers
def test_the_trainer_of_hugging_face_is_fed_as_by_the_authors(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    from tests.feed.transformers_model import Config, Tiny

    def fed_by(dataset: Any, collator: Any, *, remove: bool) -> list[dict[str, torch.Tensor]]:
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, save_strategy="no", report_to="none",
            disable_tqdm=True, use_cpu=True, logging_strategy="no", dataloader_pin_memory=False, seed=9899,
            remove_unused_columns=remove,
        )  # fmt: skip
        model = Tiny(Config())
        transformers.Trainer(model=model, args=args, train_dataset=dataset, data_collator=collator).train()
        fed: list[dict[str, torch.Tensor]] = model.fed
        return fed

    theirs = fed_by(TimeMoEWindowDataset(TimeMoEDataset(folder, "zero"), 32), None, remove=False)
    dataset = TimeMoeDataset(folder, 32, normalization_method="zero")
    for collator, remove in ((TimeMoeDataset.collate, False), (None, False), (TimeMoeDataset.collate, True)):
        mine = fed_by(dataset, collator, remove=remove)
        assert len(mine) == len(theirs) == 2 * -(-len(dataset) // 4)
        for one, other in zip(mine, theirs, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in other)
    assert np.isfinite(theirs[0]["labels"].numpy()).all()


# Fixed samples lose no target and no precision; compat samples are the authors' bit for bit


Array = npt.NDArray[Any]


def corpus_of(series: list[Any]) -> Corpus:
    return open_corpus(stoker.Store.from_arrays(x=[np.asarray(one) for one in series]))


def targets(pieces: Pieces) -> list[int]:
    """All points that are targets, as places in the flat array."""
    located = pieces.locate(np.arange(pieces.num_samples))
    return [int(start + 1 + t) for start, count in zip(located.starts, located.counts, strict=True) for t in range(count)]


@settings(max_examples=num_examples(60), deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.5]))
def test_every_target_is_in_exactly_one_piece(lengths: list[int], length: int, valid: float) -> None:
    corpus = corpus_of([np.arange(one, dtype=float) for one in lengths])
    ends = train_ends(corpus, valid)
    expected = [point for begin, end in zip(corpus.begins, ends, strict=True) for point in range(begin + 1, end)]
    if not expected:
        with pytest.raises(OptionError, match="no samples for the train part"):
            Pieces(corpus, length, valid=valid)
        return
    pieces = Pieces(corpus, length, valid=valid)
    assert targets(pieces) == expected
    assert pieces.num_positions == len(expected)
    assert pieces.locate(np.arange(pieces.num_samples)).counts.max() <= length


def test_integers_keep_their_values_and_constant_series_become_zero() -> None:
    rng = np.random.default_rng(0)
    corpus = open_corpus(stoker.Store.from_arrays(x=[np.arange(100), np.full(50, 7)]))
    scales = CorpusScales(corpus, "zero")
    scales.know(np.arange(2))
    assert scales.centers.tolist() == [49.5, 7.0]
    assert scales.divisors.tolist() == [np.arange(100.0).std(), 1.0]
    noisy = corpus_of([np.full(1000, 0.1, dtype=np.float32), rng.normal(size=100).astype(np.float32)])
    scales = CorpusScales(noisy, "zero")
    scales.know(np.arange(2))
    assert scales.divisors[0] == 1.0
    constant = (noisy.series(0).astype(float) - scales.centers[0]) / scales.divisors[0]
    assert np.abs(constant).max() < 1e-6
    original = zero_by_the_authors(noisy.series(0))
    assert np.abs(original).max() > 0.5, "the fault that this is about"


def zero_by_the_authors(values: Array) -> Array:
    from benchmarks.before.timemoe_dataset import zero_scaler

    return zero_scaler(values)


def test_scales_are_those_of_the_training_part_alone() -> None:
    corpus = corpus_of([np.r_[np.zeros(50), np.ones(50) * 100] + np.arange(100)])
    scales = CorpusScales(corpus, "zero", ends=train_ends(corpus, 0.5))
    scales.know(np.array([0]))
    assert scales.centers[0] == np.arange(50.0).mean()


@pytest.mark.parametrize("method", [None, "zero", "max"])
@pytest.mark.parametrize("stride", [None, 1, 5])
@pytest.mark.parametrize("num_files", [1, 4])
def test_compat_samples_of_binary_folders(tmp_path: Path, num_files: int, stride: int | None, method: str | None) -> None:
    lengths = [1, 2, 8, 9, 10, 16, 17, 33, 200]
    folder = write_folder(tmp_path / "set", walks(lengths), num_files=num_files)
    assert_samples_are_theirs(folder, 8, stride=stride, method=method)


HUGE = 2**60 + 2**36
MIXED: dict[str, list[Any]] = {
    "floats": [[0.1], [8.25] * 7, [-3.7, 1e-3, 2.5] * 10, [1 / 3, 2 / 3, 5.0] * 6],
    "integers": [[-50], [3] * 7, [49, -1, 7] * 10, [1, 2, -8] * 6],
    "integers beside floats": [[1, 5, 9, 2, 7] * 3, [0.5, 1.5, 3.25] * 4, [3, 1, 2] * 6],
    "both within a series": [[1, 2.5, 3] * 5, [1, 2, 4] * 5],
    "beyond float64": [[HUGE + 1, HUGE + 2, HUGE, HUGE + 2**37 + 1] * 3, [0.25, -1.0, 8.0] * 3],
    "beyond float64 alone": [[HUGE + 1, HUGE + 2, HUGE, -HUGE] * 3],
    "unsigned": [[2**63, 2**63 + 4096, 2**64 - 1] * 4, [1, 2, 9] * 4],
    "constants": [[4] * 12, [0.1] * 12, [0] * 12],
    "short ones": [[], [3], [1, 2], [2.5], [1.5, 7]],
}


@pytest.mark.parametrize("method", [None, "zero", "max"])
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_each_series_of_a_json_file_has_a_type_of_its_own(tmp_path: Path, kind: str, name: str, method: str | None) -> None:
    path = tmp_path / f"x.{kind}"
    elements = [{"sequence": one} if number % 2 else one for number, one in enumerate(MIXED[name])]
    path.write_text(json.dumps(elements) if kind == "json" else "".join(json.dumps(one) + "\n" for one in elements))
    assert_samples_are_theirs(path, 8, stride=3, method=method)


@pytest.mark.parametrize(("name", "method"), [("integers beside floats", "zero"), ("beyond float64 alone", None)])
def test_negative_control_one_type_for_the_file_is_another_result(tmp_path: Path, name: str, method: str | None) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in MIXED[name]))
    corpus = open_corpus(path, report=lambda _: None)
    corpus.flats = [replace(flat, own=None) for flat in corpus.flats]
    with pytest.raises(AssertionError):
        assert_samples_are_theirs(path, 8, stride=3, method=method, corpus=corpus)


@pytest.mark.parametrize("method", [None, "zero", "max"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint64", "int8", "int16"])
def test_integers_that_wrap_around_do_so_as_in_the_original(tmp_path: Path, dtype: str, method: str | None) -> None:
    rng = np.random.default_rng(0)
    outlier = np.where(np.arange(20_000) == 7, 100, 0)  # 141 deviations from the mean: more than int8 holds
    folder = write_folder(tmp_path / "set", [rng.integers(0, 100, 40), outlier, rng.integers(0, 9, 17)], dtype=dtype)
    assert_samples_are_theirs(folder, 8, stride=11, method=method)


@pytest.mark.parametrize("method", [None, "zero", "max"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", ">f8", "<i8", ">i8", "<u2", "|i1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_compat_samples_of_npy_arrays(tmp_path: Path, dtype: str, order: Any, method: str | None) -> None:
    values = np.random.default_rng(0).normal(size=(3, 9000)) * 40
    np.save(tmp_path / "x.npy", np.array(np.abs(values) if dtype[1] == "u" else values, order=order).astype(dtype))
    assert_samples_are_theirs(tmp_path / "x.npy", 64, method=method)
