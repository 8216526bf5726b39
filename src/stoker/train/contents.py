"""Contents: what a checkpoint holds of a trainer, what it says of it, and what of that must be the same for a run to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from stoker.errors import CheckpointError
from stoker.train.schedule import Schedule
from stoker.train.shards import parts_of, whole

if TYPE_CHECKING:
    from stoker.train.trainer import Trainer


def take(trainer: Trainer) -> dict[str, Any]:
    """The state of the model and the optimizer, and of what goes along with them."""
    parts: dict[str, Any] = {"model": dict(trainer.model.state_dict()), "optimizer": trainer.optimizer.state_dict()["state"]}
    parts |= {name: one.state_dict() for name, one in _companions(trainer).items()}
    return whole(parts, kept=trainer.ranks.is_first) if trainer.ranks.shards else parts


def put(trainer: Trainer, parts: Mapping[str, Any]) -> None:
    """Let a trainer have what a checkpoint holds."""
    if trainer.ranks.shards:
        parts = _of_this_rank(trainer, parts)
    try:
        trainer.model.load_state_dict(parts["model"])
        groups = trainer.optimizer.state_dict()["param_groups"]  # those of now: what differs was compared before
        trainer.optimizer.load_state_dict({"state": parts["optimizer"], "param_groups": groups})
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint is of another model or optimizer: {str(error).splitlines()[0]}") from error
    for name, one in _companions(trainer).items():
        if name in parts:
            one.load_state_dict(parts[name])


def _companions(trainer: Trainer) -> dict[str, Any]:
    """What has a state beside the model and the optimizer, where a trainer has it."""
    found = {"ema": trainer.ema, "scale": trainer.scale, "stopping": trainer.stopping}
    return {name: one for name, one in found.items() if one is not None}


def _of_this_rank(trainer: Trainer, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Of a whole state what is this rank's."""
    weights = [weight for group in trainer.optimizer.param_groups for weight in group["params"]]
    mine = {**parts, "model": parts_of(parts["model"], trainer.model.state_dict())}
    mine["optimizer"] = {
        number: parts_of(state, dict.fromkeys(state, weights[number])) for number, state in parts["optimizer"].items()
    }
    if trainer.ema is not None:
        mine["ema"] = {**parts["ema"], "average": parts_of(parts["ema"]["average"], trainer.ema.state_dict()["average"])}
    return mine


def comparable(trainer: Trainer) -> dict[str, Any]:
    """What must be the same for a run to go on as if it had not been stopped."""
    groups = trainer.optimizer.param_groups
    return {
        "config": {
            "optimizer": type(trainer.optimizer).__name__,
            "lr": trainer.rates,
            "weight_decay": [float(group.get("weight_decay") or 0.0) for group in groups],
            "accumulate": trainer.accumulate,
            "clip": trainer.clip,
            "ema": trainer.ema.decay if trainer.ema is not None else None,
            "guard": trainer.guard,
            "schedule": _name_of(trainer.schedule),
        }
    }


def _name_of(schedule: Schedule | None) -> str | None:
    """A schedule as one writes it; of a function only that it is one, as its address is another each time."""
    return None if schedule is None else repr(schedule) if is_dataclass(schedule) else "a function"


def facts_of(trainer: Trainer, *, epoch: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    return {**comparable(trainer), "setup": asdict(trainer.setup), "epoch": epoch, "metrics": dict(metrics)}
