"""Weights: official names and shapes, exact both ways, and anything that does not fit is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.recipes.time_moe.test_model import model_of

import stoker
from stoker_recipes.time_moe import SIZES, TimeMoe, load_weights, save_weights
from stoker_recipes.time_moe.model import to_official

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


def test_a_checkpoint_is_not_written_over_another(model: TimeMoe, folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(stoker.errors.OptionError, match=r"checkpoint holds model\.safetensors already\. Choose another folder"):
        save_weights(TimeMoe(SIZES["tiny"]), folder)
    assert (folder / "model.safetensors").read_bytes() == before
    save_weights(TimeMoe(SIZES["tiny"]), folder, overwrite=True)
    assert (folder / "model.safetensors").read_bytes() != before, "negative control"
