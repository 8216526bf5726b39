"""The settings: their YAML means what it meant, ours adds to it, and what cannot be meant is one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.recipes.tfa.training_folder import THEIRS, make_folder, settings_of

from stoker.errors import ConfigError
from stoker.experiment.parse import docstrings
from stoker_recipes.tfa.settings import IGNORED, Settings, ignored, is_tfa, read_settings

MULTI = """\
symbol: QQQ
datasets:
  - {path: bars.csv, regime: calm, weight: 2.0}
  - {path: bars.csv, regime: wild}
feature_spec: spec.json
out_dir: run
train_split: 0.8
early_stopping_patience: 3
gradient_clip_norm: 0.5
max_training_hours: 0.5
"""

ONE = "symbol bars_csv feature_spec feature_cache out_dir batch_size epochs lr num_workers"
MODEL = "T d_model nhead num_layers ffn_hidden label_horizon label_kind min_volume_threshold price_change_threshold"
SEVERAL = "symbol datasets feature_spec feature_cache out_dir batch_size epochs lr num_workers train_split"
REGIMES = "regime_balancing early_stopping_patience gradient_clip_norm weight_decay max_training_hours cross_regime_validation"
THEIR_KEYS = {
    "tfa.yaml": f"{ONE} {MODEL}",
    "tfa.yaml, the first ones": f"{ONE} prefetch_factor hidden label_horizon label_kind",
    "tfa_transformer.yaml": f"{ONE} T hidden d_model nhead num_layers cutoff_bp".replace("feature_cache ", ""),
    "tfa_multi_regime.yaml": f"{SEVERAL} {MODEL} {REGIMES} regime_specific_metrics",
    "tfa_m4_optimized.yaml": f"{SEVERAL} {MODEL} {REGIMES} regime_specific_metrics prefetch_factor pin_memory persistent_workers",
}
"""The keys of all configurations of their repository (sentio_cpp, to 8920198)."""
VALUES = {
    "symbol": "QQQ",
    "bars_csv": "bars.csv",
    "datasets": "[{path: bars.csv, regime: calm, weight: 0.8, description: 'a market: steady'}]",
    "feature_spec": "spec.json",
    "feature_cache": "data",
    "out_dir": "artifacts/TFA/v1",
    "lr": "0.002",
    "num_workers": "6",
    "T": "8",
    "d_model": "16",
    "label_kind": "logret_fwd",
    "train_split": "0.85",
    "hidden": "128",
    "weight_decay": "1e-4",
    "cutoff_bp": "0.0",
    **dict.fromkeys(("regime_balancing", "cross_regime_validation", "regime_specific_metrics"), "true"),
    **dict.fromkeys(("pin_memory", "persistent_workers"), "true"),
}


def yaml_of(keys: str) -> str:
    return "".join(f"{key}: {VALUES.get(key, '4')}\n" for key in keys.split())


@pytest.mark.parametrize("name", THEIR_KEYS)
def test_every_yaml_of_theirs_is_read_and_says_what_it_ignores(tmp_path: Path, name: str) -> None:
    keys = THEIR_KEYS[name].split()
    settings = read_settings(make_folder(tmp_path, yaml_of(THEIR_KEYS[name]), num_bars=50))
    said = ignored(settings)
    for key in IGNORED:
        assert any(line.startswith(f"{key}: ") for line in said) == (key in keys), key
    assert all(" is ignored: " in line and "\n" not in line for line in said)
    assert settings.chosen_model == ("tfa" if "d_model" in keys else "banded")
    assert any(line.startswith("hidden: 128") for line in said) == ("hidden" in keys and "d_model" not in keys)
    assert settings.sizes.get("hidden") == (128 if "hidden" in keys and "d_model" in keys else 4 if "ffn_hidden" in keys else None)


@pytest.mark.parametrize("key", sorted({*IGNORED, "hidden", "cutoff_bp"}))
def test_a_misspelt_key_is_refused_also_where_the_right_one_is_ignored(tmp_path: Path, key: str) -> None:
    wrong = key[:-2] + key[-1]
    with pytest.raises(ConfigError, match=rf"{wrong} is not known; did you mean {key}\?"):
        read_settings(make_folder(tmp_path, f"{yaml_of(ONE)}{wrong}: 1\n", num_bars=50))


def test_negative_control_a_key_that_is_only_accepted_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a key taken out of the list of ignored ones, the test above would see that nothing is said of it."""
    monkeypatch.delitem(IGNORED, "prefetch_factor")
    settings = read_settings(make_folder(tmp_path, yaml_of(THEIR_KEYS["tfa_m4_optimized.yaml"]), num_bars=50))
    assert settings.prefetch_factor == 4
    assert not any(line.startswith("prefetch_factor") for line in ignored(settings))


def test_names_of_older_trainers_mean_what_they_meant(tmp_path: Path) -> None:
    make_folder(tmp_path, yaml_of(f"{ONE} T d_model nhead num_layers"), num_bars=50)
    assert settings_of(tmp_path, hidden=192).sizes["hidden"] == 192
    assert settings_of(tmp_path, hidden=192, ffn_hidden=192).sizes["hidden"] == 192
    with pytest.raises(ConfigError, match=r"hidden is 192, but ffn_hidden is 96; .* Give one of them\."):
        settings_of(tmp_path, hidden=192, ffn_hidden=96)
    assert settings_of(tmp_path, cutoff_bp=5).least_change == pytest.approx(5e-4)
    assert settings_of(tmp_path, cutoff_bp=5, price_change_threshold=1e-3).least_change == 1e-3
    assert settings_of(tmp_path, price_change_threshold=1e-3).least_change == 1e-3


def test_their_yaml_trains_their_model(tmp_path: Path) -> None:
    settings = read_settings(make_folder(tmp_path, THEIRS))
    assert settings.chosen_model == "tfa"
    assert settings.sizes == {"length": 8, "width": 16, "heads": 4, "layers": 2, "hidden": 32}
    assert (settings.labels, settings.positions, settings.lr) == ("masked", None, 2e-3)
    assert settings.out_dir == str(tmp_path / "artifacts/TFA/v1")
    assert settings.bars_csv == str(tmp_path / "bars.csv")


def test_their_yaml_of_several_datasets(tmp_path: Path) -> None:
    settings = read_settings(make_folder(tmp_path, MULTI))
    assert settings.chosen_model == "banded"
    assert settings.fractions == pytest.approx((0.8, 0.1, 0.1))
    assert [(one.path, one.regime, one.weight) for one in settings.sources] == [
        (str(tmp_path / "bars.csv"), "calm", 2.0),
        (str(tmp_path / "bars.csv"), "wild", 1.0),
    ]


def test_paths_are_from_the_yaml_or_from_where_the_spec_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path, THEIRS)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "tfa.yaml").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)  # as Sentio is run: from its root, with a YAML below it
    assert read_settings(Path("configs/tfa.yaml")).bars_csv == "bars.csv"


@pytest.mark.parametrize(
    ("found", "change", "line"),
    [
        ("epochs: 2", "epoch: 2", "tfa.yaml:7: epoch is not known; did you mean epochs?"),
        ("nhead: 4", "n_head: 4", "tfa.yaml:12: n_head is not known; did you mean nhead?"),
        ("T: 8", "T: eight", "tfa.yaml:10: T is the string 'eight'; expected "),
        ("lr: 2e-3", "lr: -1", "tfa.yaml:8: lr is -1; expected a number above 0 or null."),
        ("symbol: QQQ", "symbol: TQQQ", "tfa.yaml:1: symbol is TQQQ, which is a leveraged or inverse fund"),
        ("bars_csv: bars.csv\n", "", "tfa.yaml: bars come from bars_csv or datasets; neither is given. Give one of them."),
        ("spec.json", "specs.json", "tfa.yaml:3: feature_spec is 'specs.json', but there is no "),
        (
            "label_kind",
            "labels: maskd\nlabel_kind",
            "labels is the string 'maskd'; expected one of compat, masked (did you mean masked?)",
        ),
        ("T: 8", "device: mps\nT: 8", "tfa.yaml:10: device is 'mps'; expected cpu, cuda or cuda:N."),
        ("T: 8", "T: 8\ngrad_accum_steps: 0", "grad_accum_steps is 0; expected an integer from 1 "),
        ("d_model: 16", "d_model: 100000000000", "d_model is 100000000000; expected an integer from 1 up to 16,384"),
        ("artifacts/TFA/v1", '"a\\0b"', "tfa.yaml:5: out_dir is the string 'a\\x00b'; expected a string or null without NUL."),
        ("label_kind", "split: [0.9, 0.2, 0.1]\nlabel_kind", "split has 3 numbers with the sum 1.2; expected three shares (train"),
    ],
)
def test_an_invalid_value_is_one_line(tmp_path: Path, found: str, change: str, line: str) -> None:
    assert found in THEIRS
    with pytest.raises(ConfigError) as error:
        read_settings(make_folder(tmp_path, THEIRS.replace(found, change, 1)))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_other_configurations_are_not_taken_for_one() -> None:
    assert is_tfa({"bars_csv": "x", "feature_spec": "y"})
    assert is_tfa({"feature_spec": "y", "bars_cvs": "x"})  # a misspelt one is still one
    assert not is_tfa({"data": {"store": "x"}, "model": "gru"})


def test_every_key_is_in_the_page_with_what_it_means() -> None:
    page = (Path(__file__).parents[3] / "docs" / "recipes" / "tfa.md").read_text()
    for name in Settings.__struct_fields__:
        assert re.search(rf"^\| `{name}` \| .* \| {re.escape(docstrings(Settings)[name])} \|$", page, re.MULTILINE), name
