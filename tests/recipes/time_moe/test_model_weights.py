"""Weights: official names and shapes, exact both ways, and anything that does not fit is refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.recipes.time_moe.test_model import model_of

import stoker
from stoker.recipes.time_moe import SIZES, TimeMoe, load_weights, read_size, save_weights
from stoker.recipes.time_moe.model import from_official, to_official

OFFICIAL = {
    "model.embed_layer.emb_layer.weight": (384, 1),
    "model.embed_layer.gate_layer.weight": (384, 1),
    "model.layers.11.self_attn.q_proj.weight": (384, 384),
    "model.layers.0.self_attn.k_proj.bias": (384,),
    "model.layers.0.self_attn.v_proj.weight": (384, 384),
    "model.layers.3.self_attn.o_proj.weight": (384, 384),
    "model.layers.0.ffn_layer.gate.weight": (8, 384),
    "model.layers.0.ffn_layer.experts.7.gate_proj.weight": (768, 384),
    "model.layers.0.ffn_layer.experts.0.up_proj.weight": (768, 384),
    "model.layers.0.ffn_layer.experts.0.down_proj.weight": (384, 768),
    "model.layers.0.ffn_layer.shared_expert.gate_proj.weight": (1536, 384),
    "model.layers.0.ffn_layer.shared_expert.up_proj.weight": (1536, 384),
    "model.layers.0.ffn_layer.shared_expert.down_proj.weight": (384, 1536),
    "model.layers.0.ffn_layer.shared_expert_gate.weight": (1, 384),
    "model.layers.0.input_layernorm.weight": (384,),
    "model.layers.0.post_attention_layernorm.weight": (384,),
    "model.norm.weight": (384,),
    "lm_heads.0.out_layer.weight": (1, 384),
    "lm_heads.3.out_layer.weight": (64, 384),
}


@pytest.fixture
def model() -> TimeMoe:
    return model_of(SIZES["tiny"], torch.float32)


@pytest.fixture
def folder(model: TimeMoe, tmp_path: Path) -> Path:
    save_weights(model, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def weights_of(model: TimeMoe) -> list[torch.Tensor]:
    return [weight.detach() for weight in model.parameters()]


def test_names_and_shapes_are_the_official_ones() -> None:
    with torch.device("meta"):
        model = TimeMoe(SIZES["50m"])
    found = {name: tuple(tensor.shape) for name, tensor in to_official(dict(model.named_parameters()), model.size).items()}
    assert len(found) == 463
    assert OFFICIAL.items() <= found.items()


def test_what_is_saved_is_read_bit_for_bit(model: TimeMoe, folder: Path) -> None:
    other = TimeMoe(SIZES["tiny"])
    load_weights(other, folder)
    assert all(map(torch.equal, weights_of(other), weights_of(model)))
    load_weights(other.double(), folder / "model.safetensors")
    assert all(map(torch.equal, weights_of(other), [weight.double() for weight in weights_of(model)]))


def test_taking_apart_and_joining_are_inverse(folder: Path) -> None:
    official = load_file(folder / "model.safetensors")
    again = to_official(from_official(official, SIZES["tiny"]), SIZES["tiny"])
    assert official.keys() == again.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in official.items())


def test_short_numbers_fill_float32_weights_exactly(model: TimeMoe, tmp_path: Path) -> None:
    save_weights(model, tmp_path, dtype=torch.bfloat16)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    other = TimeMoe(SIZES["tiny"])
    load_weights(other, tmp_path)
    assert all(weight.dtype == torch.float32 for weight in other.parameters())
    assert all(map(torch.equal, weights_of(other), [weight.bfloat16().float() for weight in weights_of(model)]))


def test_the_config_reports_the_size(folder: Path) -> None:
    assert read_size(folder) == SIZES["tiny"]
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "time_moe"
    assert config["horizon_lengths"] == [1, 8, 32, 64]
    assert config["num_experts_per_tok"] == 2


def in_parts(folder: Path) -> dict[str, str]:
    """The same checkpoint in two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name, place in places.items() if place == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return places


def test_a_checkpoint_in_parts_is_read(model: TimeMoe, folder: Path) -> None:
    in_parts(folder)
    other = TimeMoe(SIZES["tiny"])
    load_weights(other, folder)
    assert all(map(torch.equal, weights_of(other), weights_of(model)))


def test_parts_that_disagree_with_their_index_are_refused(folder: Path) -> None:
    places = in_parts(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(stoker.errors.SourceNotFoundError, match=r"model-00002-of-00002\.safetensors is missing"):
        load_weights(TimeMoe(SIZES["tiny"]), folder)
    save_file({"model.norm.weight": torch.ones(32)}, folder / "model-00002-of-00002.safetensors")
    with pytest.raises(stoker.errors.SourceInvalidError, match=r"has no|does not list"):
        load_weights(TimeMoe(SIZES["tiny"]), folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(places, "../other.safetensors")}))
    with pytest.raises(stoker.errors.SourceInvalidError, match="weight_map is not a map"):
        load_weights(TimeMoe(SIZES["tiny"]), folder)


def test_tensors_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.ffn_layer.experts.1.up_proj.weight"
    cases = {
        "has no tensor model.layers.0.ffn_layer.experts.1.up_proj": {key: one for key, one in tensors.items() if key != name},
        r"experts.1.up_proj.weight has shape \(32, 32, 1\); expected \(32, 32\)": {**tensors, name: torch.ones(32, 32, 1)},
        "holds extra, which is not a tensor": {**tensors, "extra": torch.ones(1)},
        "is torch.int64; expected": {**tensors, name: torch.ones(32, 32, dtype=torch.int64)},
    }
    for number, (text, given) in enumerate(cases.items()):
        save_file(given, tmp_path / f"{number}.safetensors")
        with pytest.raises(stoker.errors.SourceInvalidError, match=text) as caught:
            load_weights(TimeMoe(SIZES["tiny"]), tmp_path / f"{number}.safetensors")
        assert "\n" not in str(caught.value)


def test_a_refused_checkpoint_changes_nothing(model: TimeMoe, tmp_path: Path) -> None:
    before = [weight.clone() for weight in weights_of(model)]
    save_file({"model.norm.weight": torch.zeros(32)}, tmp_path / "part.safetensors")
    with pytest.raises(stoker.errors.SourceInvalidError):
        load_weights(model, tmp_path / "part.safetensors")
    assert all(map(torch.equal, weights_of(model), before))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("hidden_size", 64, "hidden is 64, but the model's is 32"),
        ("model_type", "llama", "model_type is 'llama'; expected 'time_moe'"),
        ("use_dense", True, "use_dense is True"),
        ("num_key_value_heads", 2, "num_key_value_heads is 2"),
        ("num_key_value_heads", [4], "num_key_value_heads is \\[4\\]"),
        ("apply_aux_loss", False, "apply_aux_loss is False; expected True"),
        ("num_experts", "8", "num_experts is '8'; expected an integer from 1"),
        ("num_hidden_layers", True, "num_hidden_layers is True; expected an integer"),
        ("num_attention_heads", 0, "num_attention_heads is 0"),
        ("hidden_size", 33, "hidden_size is 33; expected an even number for each of the 4 heads"),
        ("num_experts_per_tok", 5, "num_experts_per_tok is 5; expected a divisor of intermediate"),
        ("horizon_lengths", None, "horizon_lengths are \\(None,\\); expected ascending integers"),
        ("horizon_lengths", [8, 1], "horizon_lengths are \\(8, 1\\)"),
        ("horizon_lengths", ["1"], "horizon_lengths are"),
        ("rope_theta", "10000", "rope_theta is '10000'; expected a number"),
        ("rope_theta", 10**400, "rope_theta is 1000.*…; expected a finite number above 0"),
        ("rms_norm_eps", -1.0, "rms_norm_eps is -1.0; expected a finite number above 0"),
        ("router_aux_loss_factor", float("nan"), "router_aux_loss_factor is nan; expected a finite number from 0"),
        ("initializer_range", None, "initializer_range is None; expected a number"),
        ("hidden_size", 10**9 * 8, "a model of these sizes has .* parameters, .* of memory are free. Use smaller sizes"),
        ("num_hidden_layers", 10**12, "a model of these sizes has"),
    ],
)
def test_a_config_of_another_model_is_refused(folder: Path, key: str, value: object, text: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(stoker.errors.SourceInvalidError, match=text) as caught:
        load_weights(TimeMoe(SIZES["tiny"]), folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_sizes_are_read_of_a_config_without_weights(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["rope_theta"], config["rms_norm_eps"], config["router_aux_loss_factor"]
    given = {**config, "hidden_size": 24, "num_key_value_heads": None, "initializer_range": 0.5, "horizon_lengths": 1, "new": "?"}
    (tmp_path / "config.json").write_text(json.dumps(given))
    size = read_size(tmp_path)
    assert size == replace(SIZES["tiny"], hidden=24, spread=0.5, horizons=(1,)) == read_size(tmp_path / "config.json")
    torch.manual_seed(0)
    assert 0.4 < float(TimeMoe(size).layers[0].attention.qkv.weight.detach().std()) < 0.6  # type: ignore[union-attr, operator]
    with pytest.raises(stoker.errors.SourceNotFoundError, match=r"none\.json is missing"):
        read_size(tmp_path / "none.json")


def test_a_checkpoint_is_not_written_over_another(model: TimeMoe, folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(stoker.errors.OptionError, match=r"checkpoint holds model\.safetensors already\. Choose another folder"):
        save_weights(TimeMoe(SIZES["tiny"]), folder)
    assert (folder / "model.safetensors").read_bytes() == before
    save_weights(TimeMoe(SIZES["tiny"]), folder, overwrite=True)
    assert (folder / "model.safetensors").read_bytes() != before, "negative control"


def test_other_files_are_not_checkpoints(tmp_path: Path) -> None:
    model = TimeMoe(SIZES["tiny"])
    with pytest.raises(stoker.errors.SourceNotFoundError, match="there is no checkpoint"):
        load_weights(model, tmp_path / "nowhere")
    with pytest.raises(stoker.errors.SourceNotFoundError, match="holds neither"):
        load_weights(model, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(stoker.errors.SourceInvalidError, match="is not a safetensors file"):
        load_weights(model, tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(stoker.errors.SourceInvalidError, match="is a list; expected a JSON object"):
        load_weights(model, tmp_path)
