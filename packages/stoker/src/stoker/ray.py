"""Training runs on Ray Train: `stoker train` on the workers of a Ray cluster, which may come and go.

    import ray.train
    result = stoker.ray.fit("config.yaml", scaling=ray.train.ScalingConfig(num_workers=(2, 4)))

A checkpoint that Ray keeps is the whole folder of the run: weights, optimizer, random states and the position in the order. So workers
that are started again continue with the next sample, on any number of them, and every sample comes exactly once per epoch.

Ray (extra `ray`) is imported when `fit` is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stoker._text import how_to_install
from stoker.errors import OptionError
from stoker.experiment.config import Config, Own
from stoker.experiment.parse import Document, check, override, to_tree
from stoker.experiment.prepare import load

if TYPE_CHECKING:
    from ray.train import Result, RunConfig, ScalingConfig

__all__ = ["fit"]

PATHS = ("store", "valid_store", "test_store", "augment")
"""Fields of `data` that name files."""
_MARK = "://"


def fit(
    config: Config | str | Path,
    *,
    scaling: ScalingConfig | None = None,
    run_config: RunConfig | None = None,
    overrides: Sequence[str] = (),
) -> Result:
    """Train as a config says, on workers of Ray Train.

    Every checkpoint of the run is reported to Ray with the metrics of the last epoch. Where Ray keeps a run of this name already, it is
    continued. The samples per update stay the same on any number of workers (`data.global_batch_size`).

    Args:
        config: A config of `stoker train`, or the path of one. Stores at local paths must be there on all nodes.
        scaling: Workers, such as `ray.train.ScalingConfig(num_workers=4, use_gpu=True)`; by default one.
        run_config: Name, storage and failures; by default the name and the folder above are those of `train.folder`.
        overrides: Values that replace those of the config, as `NAME=VALUE`.

    Returns:
        What Ray returns. `result.checkpoint` is the folder of the run, as `stoker.load` takes it, and `result.metrics` has its last
        metrics and `step`.

    Raises:
        OptionError: Ray Train is not installed, or is older than 2.51.
        ConfigError: The config is invalid.

    Example:
        >>> import stoker
        >>> def train_on_cluster():
        ...     import ray.train
        ...     return stoker.ray.fit("config.yaml", scaling=ray.train.ScalingConfig(num_workers=4))
    """
    train = _import_ray_train()
    if isinstance(config, Config):
        config = check(override(Document("the config", to_tree(config)), overrides, Config), Config)
    else:
        config = load(config, overrides)
    scaling = scaling if scaling is not None else train.ScalingConfig()
    workers = scaling.num_workers if isinstance(scaling.num_workers, int) else max(scaling.num_workers)
    folder = Path(config.train.folder or "runs/ray").absolute()
    if run_config is None:
        run_config = train.RunConfig(name=folder.name, storage_path=str(folder.parent))
    from ray.train.torch import TorchTrainer

    given = {"config": to_tree(_for_workers(config, workers))}
    return TorchTrainer(_work, train_loop_config=given, scaling_config=scaling, run_config=run_config).fit()


def _import_ray_train() -> Any:
    advice = how_to_install("ray")
    try:
        import ray
        import ray.train
        import ray.train.torch
    except ImportError:
        raise OptionError(f"stoker.ray.fit needs Ray Train, which is not installed. {advice}") from None
    if not getattr(ray.train, "is_v2_enabled", lambda: False)():
        raise OptionError(f"stoker.ray.fit needs Ray Train V2, but this is Ray {ray.__version__} without it. {advice}")
    return ray.train


def _for_workers(config: Config, workers: int) -> Config:
    """The config for processes that run elsewhere: absolute paths, one checkpoint, and a number of samples per update that stays."""
    replace = msgspec.structs.replace
    data, accumulated = config.data, config.train.grad_accum_steps
    paths = {name: _absolute(getattr(data, name)) for name in PATHS}
    size = data.global_batch_size or data.batch_size * workers * accumulated
    own = {name: part for name in ("model", "loss") if isinstance(part := getattr(config, name), Own)}
    return replace(
        config,
        data=replace(data, **paths, global_batch_size=size),
        # Ray keeps as many as its own settings say.
        train=replace(config.train, checkpoints=replace(config.train.checkpoints, keep=1), grad_accum_steps=1),
        **{name: replace(part, function=_absolute(part.function)) for name, part in own.items()},
    )


def _absolute(path: Any) -> Any:
    if isinstance(path, list):
        return [_absolute(entry) for entry in path]
    return path if path is None or _MARK in path else str(Path(path).absolute())


def _work(given: Mapping[str, Any]) -> None:
    """One worker: continue from the checkpoint that Ray gives, if there is one, and report those of the run."""
    import ray.train

    from stoker import _disk
    from stoker.experiment.build import run

    checkpoint, is_first = ray.train.get_checkpoint(), ray.train.get_context().get_world_rank() == 0

    def report(folder: Path, metrics: dict[str, float]) -> None:
        made = ray.train.Checkpoint.from_directory(str(folder)) if is_first else None
        ray.train.report(metrics, checkpoint=made)

    with _disk.temporary_folder() as scratch:
        folder = scratch / "run"
        if checkpoint is not None and is_first:
            checkpoint.to_directory(str(folder))
        config = check(Document("the config", given["config"]), Config)
        run(config, folder=folder, resume=checkpoint is not None, progress=False, on_saved=report)
