"""What a run begins with: its config, its folder, whether it is resumed, and the samples per update.

load        read and check a config
prepare     a new run, or one that is resumed: where the user asks for it, or where `torchrun` starts its processes again
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stoker import _disk
from stoker.errors import CheckpointInvalidError, ConfigError, OptionError
from stoker.experiment.config import Config
from stoker.experiment.parse import (
    CONFIG_NAME,
    Document,
    check,
    find,
    known_paths,
    override,
    read_document,
    to_tree,
    to_yaml,
)

if TYPE_CHECKING:
    from stoker.train.distributed import Ranks

SEARCH_SECTION = "search"


class Process(NamedTuple):
    """This process among those of a run. Rank 0 prints and writes."""

    rank: int
    world_size: int
    local_rank: int

    @property
    def is_first(self) -> bool:
        """Whether it is rank 0."""
        return self.rank == 0


def find_ranks() -> Process:
    """Which process this is. Nothing else of the command line asks."""
    from stoker.feed.prefetch import FeedRanks

    found = FeedRanks.find(None, None)
    return Process(found.rank, found.world_size, int(os.environ.get("LOCAL_RANK") or 0))


def choose_device(config: Config | None, local_rank: int) -> str:
    """As configured, or a GPU where there is one; each process of a machine has its own."""
    import torch

    device = config.train.device if config is not None else None
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{local_rank}" if device == "cuda" else device


COMPARED = {
    "data": ("data", "valid", "model"),
    "split": ("data", "valid", "model"),
    "model": ("model",),
    "loss": ("loss", "model"),
    "optimizer": ("optimizer",),
    "optimizer.name": ("optimizer", "config.optimizer"),
    "optimizer.lr": ("config.lr",),
    "optimizer.weight_decay": ("config.weight_decay",),
    "schedule": ("schedule", "config.schedule"),
    "data.batch_size": ("data", "schedule"),
    "data.global_batch_size": ("data", "config.grad_accum_steps", "schedule"),
    "train.epochs": ("schedule",),
    "train.seed": ("data", "valid", "run"),
    "train.precision": ("setup.precision",),
    "train.execution.graph": ("setup.graph",),
    "train.execution.compile": ("setup.compile",),
    "train.execution.fused": ("setup.fused",),
    "train.grad_accum_steps": ("config.grad_accum_steps", "schedule"),
    "train.max_grad_norm": ("config.max_grad_norm",),
    "train.ema": ("config.ema",),
    "train.guard": ("config.guard",),
    "train.early_stopping": ("run",),
}
"""Fields of a config, and those of a trainer's fingerprint that follow from them. What is allowed here is compared by the config;
the trainer compares what a config does not say: values of a store, code of functions."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config.

    Args:
        path: A YAML or JSON file.
        overrides: Values that replace those of the file, as `NAME=VALUE`. A name is a path like `data.batch_size`, or the end of
            one that only one field has.

    Returns:
        The config with all its values. `train.folder` is `runs/` and the name of the file, where it is not set.

    Raises:
        ConfigError: The file cannot be read, or a key or value is invalid. The message has the file and the line.

    Example:
        >>> import tempfile, stoker
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "waves.yaml"
        ...     text = "{data: {store: w.stoker, view: {name: windows, length: 8}, batch_size: 4}, model: gru}"
        ...     _ = path.write_text(text)
        ...     config = stoker.experiment.load(path, overrides=["batch_size=32"])
        >>> config.data.batch_size, config.train.folder
        (32, 'runs/waves')
    """
    path = Path(path)
    document = read_document(path)
    # What `stoker tune search` reads from the same file is not part of a training run.
    document = replace(document, tree={key: value for key, value in document.tree.items() if key != SEARCH_SECTION})
    config = check(override(document, overrides, Config), Config)
    return config if config.train.folder is not None else _in_folder(config, Path("runs") / path.stem)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run that is about to begin, or to be resumed."""

    config: Config
    folder: Path
    allow: Sequence[str] = ()
    """What may differ, by the names of the trainer's fingerprint."""
    resume: bool = False
    overwrite: bool = False

    def to_tree(self) -> dict[str, Any]:
        """As plain values, for other ranks."""
        return {**vars(self), "config": to_tree(self.config), "folder": str(self.folder), "allow": list(self.allow)}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> RunPlan:
        """What `to_tree` of another rank gave."""
        config = check(Document("the config", tree["config"]), Config)
        return cls(**{**tree, "config": config, "folder": Path(tree["folder"])})


def ranks_of(config: Config | str | Path, overrides: Sequence[str]) -> Ranks:
    """The ranks of this process, which meet here for the first time."""
    import torch
    from torch import nn

    from stoker.train.distributed import Ranks

    known = config if isinstance(config, Config) else None
    if known is None and Path(config).is_file():  # type: ignore[arg-type]
        known = load(config, overrides)  # type: ignore[arg-type]
    return Ranks.find("auto", nn.Identity(), torch.device(choose_device(known, find_ranks().local_rank)))


def prepare(
    config: Config | str | Path,
    *,
    overrides: Sequence[str],
    folder: str | Path | None,
    resume: bool,
    allow: Sequence[str],
    overwrite: bool,
) -> RunPlan:
    """Read and check what a run begins with. Where `torchrun` starts it again, it is resumed."""
    from stoker.train.run import find_launch, is_restart

    if resume and not isinstance(config, Config):
        return _resumed(Path(config), overrides, allow)
    if not isinstance(config, Config):
        config = load(config, overrides)
    else:  # checked too: the fields of a struct made in Python may hold anything
        config = check(override(Document("the config", to_tree(config)), overrides, Config), Config)
    where = folder if folder is not None else config.train.folder
    if where is None:
        raise OptionError("the config has no folder for the run. Pass folder=, or set train.folder.", parameter="folder")
    where = _disk.check_path(where)
    _fetch_copy(config, where, continues=resume or find_launch() is not None, overwrite=overwrite)
    was_begun = (where / CONFIG_NAME).is_file() and not (where / "run.json").exists() and find_launch() is not None
    if (resume and (where / CONFIG_NAME).is_file()) or was_begun or is_restart(where):
        return _resumed(where, (), allow, config=config)
    config = _fix_global_batch(_in_folder(config, where))
    _check_folder(config, where, overwrite=overwrite)
    return RunPlan(config=config, folder=where, overwrite=overwrite)


def _fetch_copy(config: Config, folder: Path, *, continues: bool, overwrite: bool) -> None:
    """Bring the newest copy of a run's checkpoint here, where another machine has made one."""
    from stoker.store.object_storage import open_bucket
    from stoker.train.mirror import Mirror

    if config.train.checkpoints.copies is None:
        return
    mirror = Mirror(open_bucket(config.train.checkpoints.copies), folder)
    if continues:
        mirror.fetch()
    elif not overwrite and not (folder / "run.json").exists() and mirror.has_copies():
        raise OptionError(
            f"{config.train.checkpoints.copies} has checkpoints of a run already. Continue it (--continue, or resume=True), replace it "
            f"(overwrite=True), or choose another place (train.checkpoints.copies).",
            parameter="resume",
        )


def _fix_global_batch(config: Config) -> Config:
    """With torchrun: the config with the samples per update that its processes have now, which then stay."""
    from stoker.train.run import find_launch

    data, accumulated, world_size = config.data, config.train.grad_accum_steps, find_ranks().world_size
    if data.global_batch_size is not None and accumulated > 1:
        raise ConfigError(
            f"data.global_batch_size is {data.global_batch_size:,} and train.grad_accum_steps {accumulated}: both say how many batches "
            f"make an update. Leave train.grad_accum_steps out."
        )
    if data.global_batch_size is not None or (world_size == 1 and find_launch() is None):
        return config
    size = data.batch_size * world_size * accumulated
    return msgspec.structs.replace(config, data=msgspec.structs.replace(data, global_batch_size=size))


def _check_folder(config: Config, folder: Path, *, overwrite: bool) -> None:
    """Refuse the folder of another run, for a new one."""
    from stoker.experiment.inputs import INPUTS_NAME, read_inputs
    from stoker.train.run import check_new

    if (folder / "run.json").exists():
        if not overwrite:
            raise OptionError(
                f"{folder} has a run already. Resume it (resume=True), replace it (overwrite=True), or choose another folder "
                f"(train.folder).",
                parameter="overwrite",
                path=folder,
            )
    elif folder.exists():
        check_new(folder)
        kept = folder / CONFIG_NAME
        if not kept.exists() and (folder / INPUTS_NAME).exists():  # left by a start that failed, or of another program
            try:
                read_inputs(folder / INPUTS_NAME)
            except CheckpointInvalidError:
                raise OptionError(
                    f"{folder / INPUTS_NAME} is there, but not of a run of stoker. Choose another folder (train.folder).",
                    parameter="folder",
                    path=folder,
                ) from None
        if kept.exists() and kept.read_bytes() != to_yaml(config):
            raise OptionError(
                f"{kept} is there, but no run.json says that it is of a run of stoker. Choose another folder, or resume what was "
                f"stopped before its first step (resume=True).",
                parameter="resume",
            )


def _resumed(folder: Path, overrides: Sequence[str], allow: Sequence[str], *, config: Config | None = None) -> RunPlan:
    """A run that is resumed, with what may differ."""
    from stoker.train import state_dict
    from stoker.train.fingerprint import GROUPS

    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"{folder} has no {CONFIG_NAME}, so it is not the folder of a run. Begin one: stoker train CONFIG.")
    document = read_document(folder / CONFIG_NAME)
    # A folder may have been moved since.
    saved = _in_folder(check(document, Config), folder)
    now = _in_folder(config or check(override(document, overrides, Config), Config), folder)
    if now.data.global_batch_size is None:  # that of the processes that began it
        now = msgspec.structs.replace(now, data=msgspec.structs.replace(now.data, global_batch_size=saved.data.global_batch_size))
    known = known_paths(Config)
    theirs = [name for name in allow if tuple(name.split(".")) not in known and name.partition(".")[0] in (*GROUPS, "setup")]
    allowed = [".".join(find(name, known, option="allow")) for name in allow if name not in theirs]
    # Another machine may keep its cache elsewhere, and copies may go elsewhere from now on.
    free = [*allowed, "data.cache", "train.checkpoints.copies"]
    state_dict.check_facts(to_tree(saved), to_tree(now), where=str(folder), allow=free)
    for ours, names in COMPARED.items():
        if any(name == ours or ours.startswith(f"{name}.") or name.startswith(f"{ours}.") for name in allowed):
            theirs.extend(names)
    return RunPlan(config=now, folder=folder, allow=theirs, resume=True)


def _in_folder(config: Config, folder: Path) -> Config:
    return msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, folder=str(folder)))
