"""Accuracies and distances of mostlyai-qa itself, on the same tables with the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.recipes.tabular.tables import mixed

from stoker.recipes.tabular.quality_accuracy import Accuracies, compare_accuracy
from stoker.recipes.tabular.quality_noise import make_splits
from stoker.recipes.tabular.quality_records import encode_events, find_proximity
from stoker.recipes.tabular.quality_tables import read_events

pytestmark = [pytest.mark.originals, pytest.mark.filterwarnings("ignore")]
PARTS = ("univariate", "bivariate", "trivariate", "coherence", "overall")


def original(
    path: Path, seed: int, trn: Any, syn: Any, hol: Any = None, contexts: Any = (None, None, None), key: Any = None
) -> Any:
    """What `report` of mostlyai-qa does for accuracies, in its order of random draws, without its plots."""
    _accuracy = pytest.importorskip("mostlyai.qa._accuracy")
    from mostlyai.qa import _coherence, _sampling, reporting
    from mostlyai.qa._filesystem import Statistics
    from mostlyai.qa.random_state import set_random_state

    set_random_state(seed)
    setup = "1:N" if key is not None else "1:1"
    around = {"ctx_primary_key": key if contexts[0] is not None else None, "tgt_context_key": key, "setup": setup}

    def prepared(table: Any, context: Any, **more: Any) -> Any:
        return _sampling.prepare_data_for_accuracy(df_tgt=table.copy(), df_ctx=context, **around, **more)

    ori = prepared(trn, contexts[0])
    dtypes = ori.dtypes.to_dict()
    if hol is not None:
        ori = pd.concat([ori, prepared(hol, contexts[2], ori_dtypes=dtypes)], axis=0, ignore_index=True)
    other = prepared(syn, contexts[1], ori_dtypes=dtypes)
    empty = pd.DataFrame({"column": [], "accuracy": [], "accuracy_max": []})
    seqs = cats = empty
    if key is not None:
        whole = pd.concat([trn, hol]) if hol is not None else trn
        ori_coh, bins = _sampling.prepare_data_for_coherence(df_tgt=whole, tgt_context_key=key)
        syn_coh, _ = _sampling.prepare_data_for_coherence(df_tgt=syn, tgt_context_key=key, bins=bins)
        _, ori_top, top, _ = _coherence.calculate_sequences_per_distinct_category(df=ori_coh, context_key=key)
        _, syn_top, _, _ = _coherence.calculate_sequences_per_distinct_category(df=syn_coh, context_key=key, top_cats=top)
        seqs = _coherence.calculate_sequences_per_distinct_category_accuracy(
            ori_seqs_per_top_cat_cnts=ori_top, syn_seqs_per_top_cat_cnts=syn_top
        )
        per_seq = [_coherence.calculate_distinct_categories_per_sequence(df=one, context_key=key) for one in (ori_coh, syn_coh)]
        ori_seq, bins = _accuracy.bin_data(per_seq[0], bins=10)
        syn_seq, _ = _accuracy.bin_data(per_seq[1], bins=bins)
        cats = _coherence.calculate_distinct_categories_per_sequence_accuracy(ori_seq, syn_seq)
    binned = _accuracy.binning_data(ori=ori, syn=other, statistics=Statistics(path=path))
    none = {name: np.ones(20) for name in ("dcr_syn_trn", "nndr_syn_trn")} | dict.fromkeys(
        ("dcr_syn_hol", "dcr_trn_hol", "nndr_syn_hol", "nndr_trn_hol", "sim_cosine_trn_hol", "sim_auc_trn_hol", "sim_auc_trn_syn")
    )
    return reporting._calculate_metrics(
        acc_uni=_accuracy.calculate_univariates(*binned),
        acc_biv=_accuracy.calculate_bivariates(*binned),
        acc_triv=_accuracy.calculate_trivariates(*binned),
        acc_cats_per_seq=cats,
        acc_seqs_per_cat=seqs,
        sim_cosine_trn_syn=1.0,
        **none,
    ).accuracy


def ours(seed: int, trn: Any, syn: Any, hol: Any = None, contexts: Any = (None, None, None), key: Any = None) -> Accuracies:
    tables = {"real": trn, "synthetic": syn, **({"holdout": hol} if hol is not None else {})}
    facts = {name: one for name, one in zip(("real", "synthetic", "holdout"), contexts, strict=True) if one is not None}
    found = read_events(tables, facts, key=key)
    real = [found["real"], *([found["holdout"]] if hol is not None else [])]
    splits = make_splits(sum(one.num_subjects for one in real), found["synthetic"].num_subjects, np.random.default_rng(0))
    return compare_accuracy(real, found["synthetic"], splits, seed=seed, is_sequence=key is not None)


def check(expected: Any, found: Accuracies) -> None:
    """Every accuracy and its maximum; mostlyai-qa gives seven decimals."""
    parts = {**found.parts, "overall": found.overall}
    for name in PARTS:
        if getattr(expected, name) is None:
            assert name not in parts
            continue
        assert parts[name].value == pytest.approx(getattr(expected, name), abs=1e-6), name
        assert parts[name].maximum == pytest.approx(getattr(expected, f"{name}_max"), abs=1e-6), name


@pytest.mark.parametrize("text_keys", [False, True])
def test_sequences_with_context_and_holdout(tmp_path: Path, text_keys: bool) -> None:
    several = [mixed(size, seed, text_keys=text_keys) for seed, size in enumerate((300, 260, 120))]
    events, contexts = [one[0].drop(columns=["flag", "note"]) for one in several], [one[1] for one in several]
    check(original(tmp_path, 7, *events, contexts, "user_id"), ours(7, *events, contexts, "user_id"))


def test_sequences_alone(tmp_path: Path) -> None:
    trn, syn = (mixed(size, seed)[0].drop(columns=["time", "score"]) for size, seed in ((400, 0), (200, 1)))
    check(original(tmp_path, 3, trn, syn, key="user_id"), ours(3, trn, syn, key="user_id"))


def test_flat_tables(tmp_path: Path) -> None:
    trn, syn, hol = (mixed(300, seed)[0].drop(columns=["user_id", "amount", "count"]) for seed in range(3))
    check(original(tmp_path, 1, trn, syn, hol), ours(1, trn, syn, hol))


def test_negative_control_another_seed_picks_other_events(tmp_path: Path) -> None:
    trn, syn = (mixed(200, seed)[0][["user_id", "amount", "word"]] for seed in range(2))
    expected = original(tmp_path, 3, trn, syn, key="user_id")
    with pytest.raises(AssertionError):
        check(expected, ours(4, trn, syn, key="user_id"))


def test_distances_of_flat_tables_without_strings() -> None:
    _distances = pytest.importorskip("mostlyai.qa._distances")
    from mostlyai.qa import _embeddings, _sampling, _similarity

    from stoker.recipes.tabular.quality_records import _cosine

    names = ["amount", "score", "count", "time"]
    tables = {name: mixed(200, seed)[0][names].head(400) for name, seed in (("real", 0), ("synthetic", 1), ("holdout", 2))}
    harmonized = {name: one.apply(_sampling.harmonize_dtype) for name, one in tables.items()}
    syn, trn, hol = _embeddings.encode_data(harmonized["synthetic"], harmonized["real"], harmonized["holdout"])
    read = read_events(tables, {}, key=None)
    points = encode_events({name: one.columns for name, one in read.items()})
    expected = _distances.calculate_distances(syn_embeds=syn, trn_embeds=trn, hol_embeds=hol)
    found = find_proximity(points)
    assert found.closest == pytest.approx(_distances.calculate_dcr(expected["dcr_syn_trn"]), abs=1e-6)
    assert found.reference == pytest.approx(_distances.calculate_dcr(expected["dcr_syn_hol"]), abs=1e-6)
    assert found.share == pytest.approx(_distances.calculate_dcr_share(expected["dcr_syn_trn"], expected["dcr_syn_hol"]), abs=1e-6)
    assert found.identical == _distances.calculate_ims(expected["dcr_syn_trn"])
    assert found.ratio == pytest.approx(
        _distances.calculate_nndr_ratio(expected["nndr_syn_trn"], expected["nndr_syn_hol"]), abs=1e-6
    )
    cosines = _similarity.calculate_cosine_similarities(syn_embeds=syn, trn_embeds=trn, hol_embeds=hol)
    assert _cosine(points["real"], points["synthetic"]) == pytest.approx(cosines[1], abs=1e-6)
