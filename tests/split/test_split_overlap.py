"""overlap="inputs": later windows look back over a boundary with their inputs; their targets never do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.split.stores import plain, timed
from tests.split.test_split_by_time import views
from tests.split.twin import Sample, list_samples, made_of, numbers_of

from stoker import Feed, Windows
from stoker.errors import LeakError, OptionError
from stoker.sampling.subset import Runs
from stoker.split import Split, check, chronological


def targets_of(sample: Sample, view: Any, horizon: int) -> range:
    """The steps of its series that are targets of a sample."""
    end = min(sample.start + view.length + horizon, sample.length)
    first = view.length if view.horizon else view.shift or min(view.length, sample.length - sample.start) - 1
    return range(sample.start + first, end)


def expected(lengths: list[int], view: Any, shares: list[float], horizon: int) -> dict[str, list[int]]:
    """Every sample in the subset that holds all of its targets."""
    found: dict[str, list[int]] = {name: [] for name in ("train", "valid", "test")[: len(shares) - 1]}
    for sample in list_samples(plain(lengths), view):
        cuts = [sample.length if share >= 1 else int(sample.length * share + 1e-6) for share in shares]
        targets = targets_of(sample, view, horizon)
        for i, name in enumerate(found):
            if cuts[i] <= targets.start and targets.stop <= cuts[i + 1]:
                found[name].append(sample.number)
    return found


def make(
    lengths: list[int], view: Any, fractions: tuple[float, ...], *, beyond: int = 0, warm_up: int = 0
) -> tuple[Split | None, dict[str, list[int]]]:
    own = max(view.horizon, view.shift)
    shares = [0.0, *np.cumsum(fractions).tolist()]
    wanted = expected(lengths, view, shares, own + beyond)
    options: Any = {"overlap": "inputs", "horizon": own + beyond if beyond else None, "warm_up": warm_up}
    if not all(wanted.values()):
        with pytest.raises(OptionError, match="has no sample"):
            chronological(plain(lengths), view, fractions=fractions, **options)
        return None, wanted
    return chronological(plain(lengths), view, fractions=fractions, **options), wanted


@pytest.mark.promise("P16")
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    views,
    st.sampled_from([(0.5, 0.25, 0.25), (0.6, 0.4), (0.25, 0.25)]),
    st.integers(0, 2),
    st.integers(0, 3),
)
def test_a_sample_is_where_all_its_targets_are(
    lengths: list[int], view: Any, fractions: tuple[float, ...], beyond: int, warm_up: int
) -> None:
    split, wanted = make(lengths, view, fractions, beyond=beyond, warm_up=warm_up)
    if split is None:
        return
    assert numbers_of(split) == wanted
    check(split)
    store = plain(lengths)
    samples, horizon = list_samples(store, view), split.margins.horizon
    names = list(wanted)
    for i, early in enumerate(names):
        held = {step for n in wanted[early] for step in made_of(samples[n], view, horizon=horizon, warm_up=warm_up)}
        for late in names[i + 1 :]:
            aims = {(samples[n].series, step) for n in wanted[late] for step in targets_of(samples[n], view, horizon)}
            assert not held & aims, "no target of a later subset is in a sample of an earlier one"


def test_the_usual_protocol_keeps_what_was_asked() -> None:
    """300 steps, windows of 48: 20 % for validation became 2 %."""
    store, view = plain([300]), Windows(48, horizon=8, tail="drop")
    strict = chronological(store, view, fractions=(0.8, 0.2))
    usual = chronological(store, view, fractions=(0.8, 0.2), overlap="inputs")
    assert (len(strict.valid), len(usual.valid)) == (5, 53)
    assert len(strict.train) == len(usual.train) == 185
    note = "the valid subset has 2.0% of the samples, but 20.0% was asked for; overlap='inputs' would keep windows that reach back"
    assert strict.valid.note == note
    assert f"note       {note}" in str(strict)
    assert note in str(Feed(store, view, subset=strict.valid, batch_size=1))
    assert (strict.train.note, usual.valid.note) == ("", "")
    assert "overlap    windows reach back" in str(usual)
    assert "overlap" not in str(strict).replace(note, "")
    assert strict.train.fingerprint == usual.train.fingerprint


def test_times_cut_all_series_at_once() -> None:
    store = timed([list(range(40)), list(range(20, 60))])
    split = chronological(store, Windows(4, horizon=2, tail="drop"), boundaries=[30], time="t", overlap="inputs")
    found = split.valid.over(split.sampled.samples).locate(np.arange(len(split.valid)))
    firsts = {int(series): int(found.starts[found.series == series].min()) + 4 for series in (0, 1)}
    assert firsts == {0: 30, 1: 40 + 10}, "the first targets are at the time of the boundary"


@pytest.mark.promise("P16", control=True)
@pytest.mark.parametrize("view", [Windows(5, horizon=2, tail="drop"), Windows(5, shift=1), Windows(5)], ids=str)
def test_negative_control_targets_that_overlap_are_refused(view: Any) -> None:
    """With the subset one sample earlier, the first target is one of a training sample."""
    split = chronological(plain([60, 50]), view, fractions=(0.5, 0.5), overlap="inputs")
    check(split)
    valid = split.valid
    earlier = replace(valid, runs=Runs(valid.runs.firsts - 1, valid.runs.ends - valid.runs.firsts))
    with pytest.raises(LeakError, match=r"of series 0 of <memory> is in two subsets, as a target of the later one"):
        check(replace(split, subsets={"train": split.train, "valid": earlier}))
    with pytest.raises(LeakError, match="is in two subsets: in the samples"):
        check(replace(split, margins=replace(split.margins, overlap=None)))
