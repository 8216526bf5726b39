"""Resuming: what a checkpoint holds of a run, and what must be the same for the run to continue from it.

    take, put       the state of the model, the optimizer, the EMA, the loss scale and early stopping
    take_weights    the weights alone, which put_weights loads
    Progress        how far the loop is
    identify        the fingerprint of a run; compare refuses a checkpoint of another one
    check           refuses a checkpoint that is forged or of another model

A hash finds damage, not malice. So `check` compares everything with the model and the optimizer before anything is used: names,
types, shapes and ranges. An error names the field.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from stoker._batch import map_tensors
from stoker._text import printable
from stoker.errors import CheckpointError, CheckpointInvalidError
from stoker.train import fingerprint, state_dict
from stoker.train.autotune import Setup
from stoker.train.checkpoint import Checkpoint
from stoker.train.distributed import local, parts_of, whole
from stoker.train.early_stopping import EarlyStopping
from stoker.train.optimizer import is_fused, may_be_fused
from stoker.train.schedule import AnySchedule
from stoker.train.settings import Components
from stoker.train.state_dict import shown

T = TypeVar("T")

PARTS = ("model", "optimizer", "fit", "ema", "scale", "stopping")
MOST_STEPS = 2**53
"""No run has more updates; a float64 counts no further."""
Count = Annotated[int, Meta(ge=0, le=MOST_STEPS)]


class Progress(Struct, kw_only=True, forbid_unknown_fields=True):
    """How far a run is: what a checkpoint says beside tensors."""

    step: Count = 0
    epoch: Count = 0
    batches: Count = 0
    """Batches of the epoch that have been taken."""
    is_epoch_done: bool = False
    """Whether those were all of them, and only the validation is due."""
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    epoch_loss: float = 0.0
    epoch_updates: Count = 0
    skipped: Count = 0
    best: float | None = None
    best_step: Count | None = None
    last: dict[str, float] = {}


class Taken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the host knows of a window of numbers that is still on the device."""

    step: Count
    epoch: Count
    rate: float
    wait: float
    lr: float


class _SavedWindow(Struct, forbid_unknown_fields=True):
    first: Count
    rows: Any


class _SavedReadout(_SavedWindow, forbid_unknown_fields=True):
    names: list[str]
    under_way: list[_SavedWindow]


class _SavedRank(Struct, forbid_unknown_fields=True):
    """The random numbers and the position in the data of a rank."""

    stream: Any
    random: Any


class FitState(_SavedRank, forbid_unknown_fields=True):
    """The part `fit` of a checkpoint, as it is checked; `stream` and `random` are of the first rank."""

    progress: Progress
    readout: _SavedReadout
    taken: list[Taken]
    overflows: Count
    others: list[_SavedRank]


def take(parts: Components, others: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the model, the optimizer and the EMA, and of `others` that have one: the loss scale, early stopping."""
    state: dict[str, Any] = {"model": dict(parts.model.state_dict()), "optimizer": parts.optimizer.state_dict()["state"]}
    state |= {name: holder.state_dict() for name, holder in _stateful(parts, others).items()}
    return whole(state, kept=parts.ranks.is_first) if parts.ranks.shards else state


def take_weights(parts: Components) -> dict[str, Any]:
    """Return copies of the weights, the buffers and the EMA; where weights are sharded, the shards of this rank."""
    state = {"model": dict(parts.model.state_dict()), **({} if parts.ema is None else {"ema": parts.ema.state_dict()})}
    return dict(map_tensors(state, lambda tensor: tensor.detach().clone()))


def put_weights(parts: Components, saved: Mapping[str, Any]) -> None:
    """Load the weights, the buffers and the EMA that `take_weights` gave, or a checkpoint holds."""
    parts.model.load_state_dict(saved["model"])
    if parts.ema is not None and "ema" in saved:
        parts.ema.load_state_dict(saved["ema"])


def shards_of(parts: Components, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shards of this rank of the weights and the EMA of a checkpoint."""
    mine = {**saved, "model": parts_of(saved["model"], parts.model.state_dict())}
    if parts.ema is not None:
        average = parts_of(saved["ema"]["average"], parts.ema.state_dict()["average"])
        mine["ema"] = {**saved["ema"], "average": average}
    return mine


def put(parts: Components, others: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Load what a checkpoint holds; where weights are sharded, the shards of this rank."""
    if parts.ranks.shards:
        weights = [weight for group in parts.optimizer.param_groups for weight in group["params"]]
        states = saved["optimizer"].items()
        mine = {number: parts_of(state, dict.fromkeys(state, weights[number])) for number, state in states}
        saved = {**shards_of(parts, saved), "optimizer": mine}
    try:
        parts.model.load_state_dict(saved["model"])
        groups = parts.optimizer.state_dict()["param_groups"]  # those of now: what differs was compared before
        parts.optimizer.load_state_dict({"state": saved["optimizer"], "param_groups": groups})
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"the checkpoint is of another model or optimizer: {reason}") from error
    for name, holder in _stateful(parts, others).items():
        if name in saved:
            holder.load_state_dict(saved[name])


def _stateful(parts: Components, others: Mapping[str, Any]) -> dict[str, Any]:
    return {name: holder for name, holder in {"ema": parts.ema, **others}.items() if holder is not None}


# ---- what must be the same ----


def comparable(parts: Components) -> dict[str, Any]:
    """The options that must be the same for a run to resume."""
    groups, schedule = parts.optimizer.param_groups, None
    if parts.schedule is not None:  # of a function only that it is one, as its address is another each time
        is_value = isinstance(parts.schedule, AnySchedule) or is_dataclass(parts.schedule)
        schedule = repr(parts.schedule) if is_value else "a function"
    return {
        "config": {
            "optimizer": type(parts.optimizer).__name__,
            "lr": list(parts.rates),
            "weight_decay": [float(group.get("weight_decay") or 0.0) for group in groups],
            "grad_accum_steps": parts.micro_batches or parts.settings.grad_accum_steps,
            "max_grad_norm": parts.settings.max_grad_norm,
            "ema": parts.ema.decay if parts.ema is not None else None,
            "guard": parts.settings.guard,
            "schedule": schedule,
        }
    }


def identify(
    parts: Components, train: Any, valid: Any, *, stopping: EarlyStopping | None, total_updates: int | None
) -> dict[str, Any]:
    """The fingerprint of a run that begins now: all that its weights follow from, beside the options in `comparable`."""
    watched = ("metric", "mode", "patience", "min_delta")
    early_stopping = None if stopping is None else {name: getattr(stopping, name) for name in watched}
    return {
        "optimizer": fingerprint.of_optimizer(parts.optimizer, parts.model),
        "loss": {"function": fingerprint.describe(parts.loss)},
        "model": fingerprint.of_model(parts.model),
        "data": fingerprint.of_batches(train),
        "valid": fingerprint.of_batches(valid, for_training=False),
        "schedule": fingerprint.of_schedule(parts.schedule, total_updates),
        "run": {"seed": parts.settings.seed, "early_stopping": early_stopping},
        "source_files": fingerprint.source_files(parts.model, parts.loss),
        "threads": fingerprint.threads(),
    }


def asked_setup(parts: Components) -> dict[str, Any]:
    """The parts of a setup that decide bits and that the user has fixed."""
    execution = parts.settings.execution
    asked = {"precision": parts.settings.precision, "fused": execution.fused, "compile": execution.compile}
    fixed = {name: value for name, value in asked.items() if value is not None and value != "auto"}
    if "fused" not in fixed and not may_be_fused(parts.optimizer):
        fixed["fused"] = is_fused(parts.optimizer)
    return fixed


def setup_of(parts: Components, found: Checkpoint) -> Setup:
    """The setup of a run that resumes: as before, apart from what the user asks for, which was compared."""
    return replace(_converted(found.facts.get("setup"), Setup, "setup"), **asked_setup(parts))


def compare(
    parts: Components, identity: Mapping[str, Any], found: Checkpoint, *, allow: Collection[str] = (), strict: bool = False
) -> None:
    """Refuse a checkpoint of a run that differs in a field that `allow` does not name.

    Other source files are warned of, or refused with `strict`; another number of threads is warned of where results depend on it.
    """
    saved, now = ({name: facts.get(name) for name in fingerprint.GROUPS} for facts in (found.facts, identity))
    setup = asdict(_converted(found.facts.get("setup"), Setup, "setup"))
    state_dict.check_facts(
        {"config": found.facts.get("config"), **saved, "setup": setup},
        {**comparable(parts), **now, "setup": {**setup, **asked_setup(parts)}},
        where=str(found.path),
        allow=allow,
    )
    files = state_dict.differences(found.facts, {"source_files": identity["source_files"]})
    if files:
        names = ", ".join(line.partition(":")[0].removeprefix("source_files.") for line in files)
        text = f"{printable(names)} changed since {found.path} was saved"
        if strict:
            raise CheckpointInvalidError(f"{text}. Restore the source, or resume without strict.")
        warnings.warn(f"{text}, so the run may not continue as it would have.", stacklevel=2)
    before, threads = found.facts.get("threads"), identity["threads"]
    if parts.device.type == "cpu" and isinstance(before, Mapping) and before.get("torch") != threads["torch"]:
        saved_by, by = (
            f"{told.get('torch')} threads (OMP_NUM_THREADS={told.get('OMP_NUM_THREADS')})" for told in (before, threads)
        )
        warnings.warn(
            f"{found.path} was saved with {printable(saved_by)}, and this process has {by}: sums on a CPU differ in their last bits. "
            "Set OMP_NUM_THREADS, or call torch.set_num_threads, to have the same number.",
            stacklevel=2,
        )


# ---- what may be loaded ----


def check(parts: Components, found: Checkpoint) -> None:
    """Refuse a checkpoint that cannot be loaded as it is."""
    saved, facts = found.parts, found.facts
    with naming(found):
        odd = sorted(set(saved) - set(PARTS))
        if odd:
            _refuse("parts", f"hold {odd[0]!r}", f"only {', '.join(PARTS)}")
        config = _mapping(facts.get("config"), "facts.config")
        setup = _converted(facts.get("setup"), Setup, "facts.setup")
        _converted(facts.get("epoch"), Count, "facts.epoch")
        _converted(facts.get("metrics"), dict[str, float], "facts.metrics")
        needed = {"model", "optimizer", "fit"} | ({"ema"} if config.get("ema") is not None else set())
        needed |= {"scale"} if setup.precision == "fp16" else set()
        missing = sorted(needed - set(saved))
        if missing:
            _refuse("parts", f"lack {missing[0]!r}", f"{', '.join(sorted(needed))}")
        check_weights(parts.model, saved["model"])
        _check_optimizer(parts.optimizer, saved["optimizer"])
        if "ema" in saved:
            _check_average(parts, saved["ema"], config.get("ema"))
        if "scale" in saved:
            scale = _mapping(saved["scale"], "scale", keys=("value", "growth"))
            value = float(_tensor(scale["value"], "scale.value", shape=(), dtype=torch.float32))
            _tensor(scale["growth"], "scale.growth", shape=(), dtype=torch.int32)
            if not 0 < value < math.inf:
                _refuse("scale.value", f"is {value:g}", "a number above 0")
        if "stopping" in saved:
            _mapping(saved["stopping"], "stopping")
        _check_fit(saved["fit"], found.step)


def check_weights(model: nn.Module, saved: Any) -> None:
    """Refuse a state of a model that is not one of this model."""
    expected = model.state_dict()
    loose: set[str] = set()  # a module of the user's may have its own way to load, by which buffers change their shapes
    for at, module in model.named_modules():
        kind = type(module)
        if kind._load_from_state_dict is not nn.Module._load_from_state_dict and not kind.__module__.startswith("torch.nn."):
            loose |= {f"{at}.{name}".lstrip(".") for name in module._buffers}
    saved = _mapping(saved, "model")
    odd = sorted(map(str, saved.keys() ^ expected.keys()))
    if odd:
        whose = "the checkpoint" if odd[0] in saved else "this model"
        raise CheckpointInvalidError(f"it is of another model: only {whose} has {odd[0]!r} ({len(odd):,} such in all).")
    for name, now in expected.items():
        if not isinstance(now, Tensor):
            continue  # the extra state of a module, which only the module knows
        tensor = _tensor(saved[name], f"model.{name}", shape=None if name in loose else now.shape, dtype=now.dtype)
        if tensor.is_floating_point() and bool(local(now).isfinite().all()) and not bool(tensor.isfinite().all()):
            _refuse(f"model.{name}", "holds NaN or Inf", "finite values")


def _check_optimizer(optimizer: torch.optim.Optimizer, saved: Any) -> None:
    """Compare the state of each weight with that of an optimizer of the same kind after its first step."""
    templates, num_weights = _templates(optimizer), sum(len(group["params"]) for group in optimizer.param_groups)
    for number, entries in _mapping(saved, "optimizer").items():
        if type(number) is not int or not 0 <= number < num_weights:
            _refuse("optimizer", f"has a state of weight {number!r}", f"numbers from 0 to {num_weights - 1}")
        place = f"optimizer.{number}"
        state = _mapping(entries, place)
        template = state if templates is None else templates.get(number, {})
        if state.keys() != template.keys():
            _refuse(place, f"has {', '.join(map(str, state)) or 'nothing'}", ", ".join(template) or "nothing")
        for name, value in state.items():
            like = template[name]
            if isinstance(like, Tensor):
                _tensor(value, f"{place}.{name}", shape=like.shape, dtype=like.dtype if like.dim() else None)
            elif like is not None and type(value) is not type(like):
                _refuse(f"{place}.{name}", f"is {shown(value)}", f"a {type(like).__name__}")
            if isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any()):
                _refuse(f"{place}.{name}", "holds NaN", "numbers")


def _templates(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]] | None:
    """The states that the optimizer makes in its first step, without values where that is possible; None if it cannot be tried."""
    for device in ("meta", "cpu"):
        groups = [{**group, "lr": float(group["lr"])} for group in optimizer.param_groups]
        for group in groups:
            group.update({name: None for name in ("fused", "foreach") if name in group})
            group.update({name: False for name in ("capturable", "differentiable") if name in group})
            group["params"] = [torch.zeros(tuple(weight.shape), dtype=weight.dtype, device=device) for weight in group["params"]]
            for weight in group["params"]:
                weight.requires_grad_().grad = torch.zeros_like(weight)
        # Whatever an optimizer of somebody else does in its constructor or step, it is only not tried.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: Any = type(optimizer)(groups)  # type: ignore[call-arg]
            made.step()
            states: dict[int, dict[str, Any]] = made.state_dict()["state"]
            return states
    return None


def _check_average(parts: Components, saved: Any, decay: Any) -> None:
    saved_decay = _mapping(saved, "ema", keys=("decay", "average"))["decay"]
    if decay is not None and saved_decay != decay:
        _refuse("ema.decay", f"is {shown(saved_decay)}", f"{shown(decay)}, as in facts.config.ema")
    if parts.ema is None:
        average_of(saved, dict(parts.model.named_parameters()))
        return
    averages = parts.ema.state_dict()["average"]
    average = average_of(saved, averages)
    if average.keys() != averages.keys():
        _refuse("ema.average", f"lacks {min(averages.keys() - average.keys())!r}", "all weights that are trained")
    for name, value in average.items():
        _tensor(value, f"ema.average.{name}", dtype=averages[name].dtype)


def average_of(saved: Any, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The averages that a checkpoint holds of these weights; none where it has no such part."""
    if saved is None:
        return {}
    average = _mapping(_mapping(saved, "ema").get("average"), "ema.average")
    for name, value in average.items():
        if name not in weights:
            _refuse("ema.average", f"has {shown(name)}", "weights of the model")
        _tensor(value, f"ema.average.{name}", shape=weights[name].shape)
        if not value.is_floating_point() or not bool(value.isfinite().all()):
            _refuse(f"ema.average.{name}", f"of type {value.dtype} holds NaN, Inf or no floats", "finite floats")
    return average


def _check_fit(saved: Any, step: int) -> None:
    state = _converted(saved, FitState, "fit")
    if state.progress.step != step:
        _refuse("fit.progress.step", f"is {state.progress.step:,}", f"{step:,}, as the checkpoint is named")
    readout = state.readout
    for window in (*readout.under_way, readout):
        rows = _tensor(window.rows, "fit.readout.rows", dtype=torch.float32)
        if rows.dim() != 2 or rows.shape[1] != len(readout.names):
            _refuse("fit.readout.rows", f"has the shape {tuple(rows.shape)}", f"rows of {len(readout.names)} numbers")
    if readout.first + len(readout.rows) != step:
        _refuse("fit.readout.first", f"is {readout.first:,}", f"{step - len(readout.rows):,}")
    for random in (state.random, *(other.random for other in state.others)):
        state_dict.check(random)


# ---- words ----


def _refuse(place: str, found: str, expected: str) -> NoReturn:
    raise CheckpointInvalidError(f"{place} {found}; expected {expected}.")


@contextlib.contextmanager
def naming(found: Checkpoint) -> Iterator[None]:
    """Put the name of the checkpoint before what is wrong with it."""
    try:
        yield
    except CheckpointInvalidError as error:
        raise CheckpointInvalidError(
            f"{found.path} cannot be loaded: {error} Use another checkpoint, or the model it is of."
        ) from None


def _mapping(value: Any, place: str, *, keys: tuple[str, ...] | None = None) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        _refuse(place, f"is {shown(value)}", "named values")
    if keys is not None and value.keys() != set(keys):
        _refuse(place, f"has {shown(list(map(str, value)))}", ", ".join(keys))
    return value


def _tensor(value: Any, place: str, *, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    if not isinstance(value, Tensor):
        _refuse(place, f"is {shown(value)}", "a tensor")
    if shape is not None and value.shape != shape:
        _refuse(place, f"has the shape {tuple(value.shape)}", f"{tuple(shape)}")
    if dtype is not None and value.dtype != dtype:
        _refuse(place, f"has the type {value.dtype}", f"{dtype}")
    return value


def _converted(value: Any, kind: type[T], place: str) -> T:
    """Convert plain values to a type; keys that it does not know are refused."""
    if is_dataclass(kind) and isinstance(value, Mapping):
        odd = [key for key in value if key not in {field.name for field in fields(kind)}]
        if odd:
            _refuse(place, f"has {shown(odd[0])}", ", ".join(field.name for field in fields(kind)))
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise CheckpointInvalidError(f"{place} cannot be read: {str(error).splitlines()[0]}.") from None
