"""Trained weights of a run, and a model exported as a program.

find_trained, load_weights, load_trained    the best or latest weights of a run, loaded into a model
export_model                                a program for torch.export.load or ONNX, checked on a golden batch
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from stoker import _disk
from stoker._text import how_to_install
from stoker.errors import CheckpointError, CheckpointInvalidError, DiskError, OptionError, TrainError
from stoker.train import resume
from stoker.train.checkpoint import Checkpoint, CheckpointFolder


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Which weights a model was given."""

    step: int
    averaged: bool
    """Whether they are the average that the run kept."""


def load_trained(model: nn.Module, folder: str | Path, *, latest: bool = False) -> Loaded:
    """Load the best weights of a run into a model; their EMA, where the run kept one.

    Args:
        model: A model of the same shape; it is changed.
        folder: Folder of the run.
        latest: Load the newest weights instead of the best ones.

    Returns:
        The update of the weights, and whether they are an EMA.

    Raises:
        CheckpointError: The run has no checkpoint, or it is of another model.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = stoker.Trainer(model, torch.nn.MSELoss(), optimizer, folder="runs/a", progress=False)
        >>> result = trainer.fit([(torch.ones(4, 3), torch.ones(4, 1))], epochs=2)
        >>> stoker.train.load_trained(torch.nn.Linear(3, 1), "runs/a", latest=True).step
        2
    """
    checkpoint = find_trained(folder, latest=latest)
    return Loaded(step=checkpoint.step, averaged=load_weights(model, checkpoint))


def find_trained(folder: str | Path, *, latest: bool = False) -> Checkpoint:
    """The best checkpoint of a run, or the latest."""
    with CheckpointFolder(Path(folder) / "checkpoints") as checkpoints:
        checkpoint = None if latest else checkpoints.best()
        checkpoint = checkpoint or checkpoints.latest()
    if checkpoint is None:
        raise CheckpointError(f"{folder} has no checkpoint. Train it first: stoker train --resume {folder}")
    if checkpoint.step == 0:
        raise CheckpointError(f"{folder} stopped before its first update, so its weights are not trained. Train it again.")
    return checkpoint


def load_weights(model: nn.Module, found: Checkpoint) -> bool:
    """Give a model the weights of a checkpoint, averaged where it has an average; says whether it has."""
    with resume.naming(found):
        resume.check_weights(model, found.parts.get("model"))
        weights = dict(found.parts["model"])
        average = resume.average_of(found.parts.get("ema"), weights)
    weights.update({name: tensor.to(weights[name].dtype) for name, tensor in average.items()})
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointInvalidError(f"{found.path} is of another model: {' '.join(str(error).split())[:200]}") from error
    return bool(average)


# Export: a model as a program that needs none of its source, checked against the model before it is used.
#
# The program is written by `torch.export` with a batch axis of any size, read back, and run on a golden batch: whole, and on its
# first row alone. The golden batch and the model's answer stay beside the program, for a check where it is deployed.
# Nothing is read back but what was written a moment before.

Entries = dict[str, torch.Tensor]

TOLERANCE = 1e-4
"""How far answers may be from those of the model, as a share of the largest answer (or of 1)."""
ANSWER = "prediction"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What `export_model` wrote, and how it was checked.

    Args:
        path: The program.
        golden: The batch that it was checked on, and the model's answer.
        num_bytes: Size of the program.
        rows: Rows of that batch.
        difference: The largest difference between an answer of the program and one of the model.
    """

    path: Path
    golden: Path
    num_bytes: int
    rows: int
    difference: float


def export_model(model: nn.Module, batch: Mapping[str, torch.Tensor], path: Path, *, onnx: bool = False) -> Exported:
    """Write a model as a program for batches of any size, and check it on a batch.

    The batch and the model's answer are saved beside the program.

    Args:
        model: Called with a batch; returns a tensor.
        batch: The entries that the model reads, with at least two rows: a program traced with one row would hold for one only.
        path: Where the program goes.
        onnx: Write ONNX for other runtimes, instead of a program for `torch.export.load`.

    Returns:
        What was written, and the largest difference between the program and the model.

    Raises:
        OptionError: The batch has fewer than two rows.
        TrainError: The program does not give the answers of the model; nothing was written.

    Example:
        >>> class Sum(torch.nn.Module):
        ...     def forward(self, batch):
        ...         return batch["x"].sum(1)
        >>> exported = stoker.train.export_model(Sum(), {"x": torch.ones(2, 3)}, Path("sum.pt2"))
        >>> exported.rows, exported.difference
        (2, 0.0)
    """
    from safetensors.torch import save

    model = model.eval().cpu()
    entries = {name: tensor.detach().cpu().contiguous() for name, tensor in batch.items()}
    rows = len(next(iter(entries.values())))
    if rows < 2:
        raise OptionError(
            f"the golden batch has {rows} rows; expected at least 2, so that the program holds for any number.", parameter="example"
        )
    with torch.no_grad():
        answers = [(part, model(part)) for part in (entries, {name: tensor[:1] for name, tensor in entries.items()})]
    for _, answer in answers:
        if not isinstance(answer, torch.Tensor):
            raise OptionError(
                f"the model returned a {type(answer).__name__}; expected one tensor from model(batch).", parameter="model"
            )
    data, run = (_onnx if onnx else _program)(model, entries)
    difference = 0.0
    for part, answer in answers:
        given = run(part)
        if given.shape != answer.shape:
            raise TrainError(f"the program answers {tuple(given.shape)}, the model {tuple(answer.shape)}. It was not written.")
        apart, allowed = (given - answer).abs().max().item(), TOLERANCE * max(1.0, answer.abs().max().item())
        if not apart <= allowed:  # NaN is not equal either
            raise TrainError(f"the program is {apart:.2g} off from the model; expected at most {allowed:.2g}. It was not written.")
        difference = max(difference, apart)
    golden = golden_path(path)
    _disk.make_folder(path.parent)
    is_new = not golden.exists()
    try:
        _disk.write_file(golden, save({**entries, ANSWER: answers[0][1].contiguous()}))
        _disk.write_file(path, data)
    except BaseException:
        if is_new and not path.exists():  # or the next export would be refused, as a batch of another program
            with contextlib.suppress(DiskError):
                _disk.remove_file(golden)
        raise
    return Exported(path=path, golden=golden, num_bytes=len(data), rows=rows, difference=difference)


def golden_path(path: Path) -> Path:
    """Return where the golden batch of a program lies: beside it."""
    return path.with_name(path.name + ".golden.safetensors")


def _program(model: nn.Module, entries: Entries) -> tuple[bytes, Callable[[Entries], torch.Tensor]]:
    """The program as bytes, and a function that runs these bytes."""
    with _exporting():
        program = _export(model, entries)
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        buffer.seek(0)
        again = torch.export.load(buffer).module()
    return buffer.getvalue(), lambda part: again(part)


def _onnx(model: nn.Module, entries: Entries) -> tuple[bytes, Callable[[Entries], torch.Tensor]]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise OptionError(f"ONNX needs the package {error.name}. {how_to_install('onnx')}") from None
    with _exporting():
        program = _export(model, entries)
        exported = torch.onnx.export(program, dynamo=True, input_names=list(entries), output_names=[ANSWER], verbose=False)
        if exported is None:
            raise TrainError("torch.onnx gave no program.")
        data: bytes = exported.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = {entry.name for entry in session.get_inputs()}

    def run(part: Entries) -> torch.Tensor:
        given = {name: tensor.numpy() for name, tensor in part.items() if name in names}
        return torch.from_numpy(session.run([ANSWER], given)[0])

    return data, run


def _export(model: nn.Module, entries: Entries) -> torch.export.ExportedProgram:
    any_rows = {name: {0: torch.export.Dim.DYNAMIC} for name in entries}
    return torch.export.export(model, (entries,), dynamic_shapes=(any_rows,))


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Without the warnings of torch about its own layers and formats; a model that cannot be exported is one line."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (OptionError, TrainError):
        raise
    except Exception as error:  # torch raises many kinds, all of which mean the same here
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise TrainError(f"the model cannot be exported: {lines[0]}") from error
    finally:
        logger.setLevel(level)
