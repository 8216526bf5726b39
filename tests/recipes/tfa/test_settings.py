"""The settings: their YAML means what it meant, ours adds to it, and what cannot be meant is one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.recipes.tfa.trainings import THEIRS, make_folder, settings_of

from stoker.errors import ConfigInvalid
from stoker.recipes.tfa.settings import LEVERAGED, Settings, is_tfa, read_settings
from stoker.train.config.manual import docstrings

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
        ("T: 8", "T: eight", "tfa.yaml:10: T is the text 'eight'; expected "),
        ("lr: 2e-3", "lr: -1", "tfa.yaml:8: lr is -1; expected a number above 0 or null."),
        ("symbol: QQQ", "symbol: TQQQ", "tfa.yaml:1: symbol is TQQQ, which is a leveraged or inverse fund"),
        ("bars_csv: bars.csv\n", "", "tfa.yaml: bars come from bars_csv or from datasets; there is neither. Give one of them."),
        ("spec.json", "specs.json", "tfa.yaml:3: feature_spec is 'specs.json', but there is no "),
        (
            "label_kind",
            "labels: maskd\nlabel_kind",
            "labels is the text 'maskd'; expected one of compat, masked (did you mean masked?)",
        ),
        ("label_kind", "split: [0.9, 0.2, 0.1]\nlabel_kind", "split has 3 numbers with the sum 1.2; expected the shares of train"),
    ],
)
def test_what_cannot_be_meant_is_one_line(tmp_path: Path, found: str, change: str, line: str) -> None:
    assert found in THEIRS
    with pytest.raises(ConfigInvalid) as error:
        read_settings(make_folder(tmp_path, THEIRS.replace(found, change, 1)))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_key_of_a_dataset_has_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"tfa\.yaml:4: datasets\.1\.regim is not known; did you mean datasets\.1\.regime\?"):
        read_settings(make_folder(tmp_path, MULTI.replace("regime: wild", "regim: wild")))


def test_values_can_be_set_anew(tmp_path: Path) -> None:
    make_folder(tmp_path, THEIRS)
    assert settings_of(tmp_path, model="banded", epochs=7).chosen_model == "banded"


def test_other_configurations_are_not_taken_for_one() -> None:
    assert is_tfa({"bars_csv": "x", "feature_spec": "y"})
    assert is_tfa({"feature_spec": "y", "bars_cvs": "x"})  # a misspelt one is still one
    assert not is_tfa({"data": {"store": "x"}, "model": "gru"})


def test_every_key_is_in_the_page_with_what_it_means() -> None:
    page = (Path(__file__).parents[3] / "docs" / "recipes" / "tfa.md").read_text()
    for name in Settings.__struct_fields__:
        assert re.search(rf"^\| `{name}` \| .* \| {re.escape(docstrings(Settings)[name])} \|$", page, re.MULTILINE), name


def test_funds_with_leverage_are_known() -> None:
    assert {"TQQQ", "SQQQ"} <= LEVERAGED
