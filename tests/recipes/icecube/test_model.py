"""The packed model equals the padded one written down plainly: outputs, loss, every gradient; and it has the published sizes."""

from __future__ import annotations

import math

import pytest
import torch
from tests.recipes.icecube.plain_model import pad, padded_model, random_events, random_model, rms, vmf_loss
from torch import Tensor

from stoker_recipes.icecube.losses import VmfLoss
from stoker_recipes.icecube.model import IceCubeModel, IceCubeSize, attend

SMALL = IceCubeSize(layers=3, width=32, heads=2, ffn=48)
LENGTHS = [5, 1, 40, 17, 0, 33, 16]


@pytest.mark.promise("P29")
@pytest.mark.parametrize(
    ("layers", "input", "parameters"),
    [
        (6, "none", 4_997_403), (6, "linear", 5_063_195), (12, "none", 9_716_007), (12, "linear", 9_781_799),
        (24, "none", 19_153_215), (24, "linear", 19_219_007), (36, "none", 28_590_423), (36, "linear", 28_656_215),
    ],
)  # fmt: skip
def test_parameter_counts_are_the_published_ones(layers: int, input: str, parameters: int) -> None:
    with torch.device("meta"):
        model = IceCubeModel(IceCubeSize(layers=layers, input=input))  # type: ignore[arg-type]
    assert sum(weight.numel() for weight in model.parameters()) == parameters


def test_names_and_shapes_are_those_of_the_authors_checkpoints() -> None:
    shapes = {name: tuple(weight.shape) for name, weight in IceCubeModel(IceCubeSize(layers=1)).state_dict().items()}
    assert shapes == {
        "cls_token": (1, 1, 256), "resid_lambdas": (1,), "x0_lambdas": (1,),
        "input_proj.weight": (256, 256), "input_proj.bias": (256,),
        **{f"blocks.0.attn.c_{name}.weight": (256, 256) for name in ("q", "k", "v", "proj")},
        "blocks.0.ffn.c_fc.weight": (1024, 256), "blocks.0.ffn.c_proj.weight": (256, 1024),
        "vmf_head.net.0.weight": (1024, 256), "vmf_head.net.0.bias": (1024,),
        "vmf_head.net.2.weight": (15, 1024), "vmf_head.net.2.bias": (15,),
        "loss.step": (),  # batches of training so far, for the penalty on kappa
    }  # fmt: skip


def results(model: IceCubeModel, raw: Tensor, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {"raw": raw, "loss": loss, **{name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}}


@pytest.mark.promise("P29")
@pytest.mark.parametrize("input", ["linear", "none"])
def test_outputs_loss_and_every_gradient_equal_the_padded_model(input: str) -> None:
    size = IceCubeSize(layers=3, width=256, heads=8, ffn=48, input="none") if input == "none" else SMALL
    model = random_model(size)
    tokens, offsets, target = random_events(LENGTHS, extra=9)
    weights = dict(model.named_parameters())
    packed = model(tokens, offsets)
    loss = VmfLoss(10).double().train()
    found = results(model, packed, loss(packed, target)["loss"])
    plain = padded_model(*pad(tokens, offsets), weights, size)
    expected = results(model, plain, vmf_loss(plain, target, 1e-4))
    assert found.keys() == expected.keys()
    assert len(found) == 2 + len(weights)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


def test_an_event_depends_on_its_own_doms_in_any_order() -> None:
    model = random_model(SMALL)
    tokens, offsets, _ = random_events(LENGTHS)
    begin, end = int(offsets[2]), int(offsets[3])
    alone = model(tokens[begin:end], torch.tensor([0, end - begin], dtype=torch.int32))
    turned = model(tokens[begin:end].flip(0), torch.tensor([0, end - begin], dtype=torch.int32))
    torch.testing.assert_close(model(tokens, offsets)[2:3], alone)
    torch.testing.assert_close(turned, alone)


@pytest.mark.promise("P29", control=True)
def test_negative_control_without_the_cls_norm_rule_outputs_differ() -> None:
    """CLS does not pass the norm behind the embedding: a model that norms it is another."""
    model = random_model(SMALL)
    tokens, offsets, _ = random_events(LENGTHS)
    before = model(tokens, offsets).detach()
    with torch.no_grad():
        model.cls_token.div_(model.cls_token.square().mean().sqrt())
    assert float((model(tokens, offsets) - before).detach().abs().max()) > 1e-3


def test_the_directional_head_gives_vectors() -> None:
    size = IceCubeSize(layers=1, width=32, heads=2, ffn=48, head="direction")
    model = random_model(size)
    tokens, offsets, _ = random_events(LENGTHS)
    torch.testing.assert_close(model(tokens, offsets), padded_model(*pad(tokens, offsets), dict(model.named_parameters()), size))


# Packed rows: where they come from, and attention that stays within events


ATTENTION_LENGTHS = [5, 1, 40, 17, 1, 33, 16, 130]


def one_event(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    q, k, v = (x.view(len(x), heads, -1).transpose(0, 1) for x in (q, k, v))
    weights = (rms(q) @ rms(k).mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights @ v).transpose(0, 1).flatten(1)


@pytest.mark.promise("P29")
@pytest.mark.parametrize("only_cls", [False, True])
def test_attention_equals_that_of_one_event_at_a_time(only_cls: bool) -> None:
    offsets = torch.tensor([0, *ATTENTION_LENGTHS]).cumsum(0).int()
    q, k, v = (torch.randn(int(offsets[-1]) + 9, 32, dtype=torch.float64) for _ in range(3))
    bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    rows = [slice(begin, begin + 1 if only_cls else end) for begin, end in bounds]
    expected = torch.cat([one_event(q[row], k[a:b], v[a:b], 2) for row, (a, b) in zip(rows, bounds, strict=True)])
    found = attend(q[offsets[:-1].long()] if only_cls else q, k, v, offsets, 2)
    torch.testing.assert_close(found[: len(expected)], expected)
    assert not found[len(expected) :].any()


def test_negative_control_keys_of_other_events_would_be_seen() -> None:
    offsets = torch.tensor([0, 3, 8], dtype=torch.int32)
    q, k, v = (torch.randn(8, 32, dtype=torch.float64) for _ in range(3))
    together = attend(q, k, v, torch.tensor([0, 8], dtype=torch.int32), 2)
    assert not torch.allclose(together, attend(q, k, v, offsets, 2))
