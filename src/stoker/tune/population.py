"""Population: many trials of a model train at once, each with its own weights, settings, seed and optimizer state.

1. make_model builds each model under its own seed
2. models are merged into one module; different widths and depths are padded (see `stoker.tune.population_merge`)
3. on the first batch the merged step is compared with steps of single models; what cannot be batched is split up
4. each step is one `vmap` of the gradient, and one update of all weights; on a GPU it is a CUDA graph
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stoker._batch import num_rows, to_device
from stoker.errors import OptionError, TrainError
from stoker.tune import population_optimizers as optimizers
from stoker.tune.population_group import MemberGroup
from stoker.tune.population_plan import Models, Planned, RecordedConfig, make_group, plan_groups
from stoker.tune.randomness import seed_model


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """How some members of a population train."""

    members: tuple[int, ...]
    how: str
    """"batched" (one step for all), "padded" (the same, with models of different sizes), or "one by one"."""
    reason: str | None
    """Why the members are not one batch with all others; None where they are."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = f"{len(self.members)} member{'s' if len(self.members) > 1 else ''}"
        return "; ".join([f"{count} {self.how}{f': {self.reason}' if self.reason else ''}", *self.notes])


@dataclass(frozen=True, kw_only=True)
class PopulationReport:
    """What was batched, grouped or run one by one, with the reason."""

    groups: tuple[GroupReport, ...]
    graph: str
    """Whether steps are CUDA graphs, or why not."""

    def __str__(self) -> str:
        return "\n".join([*map(str, self.groups), f"graph: {self.graph}"])


class Population:
    """Train many trials of a model at once.

    Trials differ in their configuration: the learning rate and other settings of the optimizer, numbers that enter the loss (a
    temperature, a margin, the strength of an augmentation), the dropout, the seed, or the width and depth of the model. A member
    gets the losses that it would get alone, within rounding.

    Args:
        make_model: Makes the model of a configuration, `make_model(config)`. The global random state is that of the member's seed.
        loss: `loss(model, batch)` returns a scalar tensor. With a third argument it is given `hyper`, the entries of the configuration
            that the optimizer does not take; numbers are tensors. With a fourth it is given a `MemberRandom`.
        configs: One dict per member. `lr` is required. `weight_decay`, `max_grad_norm` and the other arguments of the optimizer in
            `torch.optim` are optional, and so is `seed`.
        optimizer: "adamw", "sgd", "rmsprop" or "muon". Muon updates matrices; other parameters and embeddings are updated by AdamW
            with `adamw_lr`, which is `lr` unless given.
        seeds: One seed per member; the seed of a configuration wins. By default 0, 1, 2, …
        device: Where to train; by default where `make_model` puts the first model.
        graph: Whether steps are CUDA graphs: "auto" on a GPU if that works, True, or False.
        masking: Whether models of different sizes are padded to the largest, so that they train together; otherwise they are
            grouped by shape.
        schedule: Called with the number of the update, from 0; all learning rates are multiplied by what it returns.
        chunk_size: How many members are computed at once, where memory is short; None for all.
        compile: Compile the step with `torch.compile`, which takes half a minute or more; on a GPU attention and layer norm are
            fused without it.
        verbose: Print what could not be batched, once.

    Raises:
        OptionError: There are no configurations, or one has an invalid, missing or unused entry.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> def loss(model, batch, hyper):
        ...     return (model(batch["x"]) - batch["y"]).square().mean() / hyper["temperature"]
        >>> configs = [{"lr": lr, "temperature": 1.0} for lr in (1e-3, 1e-2, 1e-1)]
        >>> population = Population(lambda config: nn.Linear(4, 1), loss, configs)
        >>> batch = {"x": torch.randn(8, 4), "y": torch.randn(8, 1)}
        >>> losses = population.step(batch)
        >>> losses.shape, len(population), print(population.report)
        3 members batched
        graph: no: the population is on the CPU
        (torch.Size([3]), 3, None)
    """

    def __init__(
        self,
        make_model: Callable[[Mapping[str, Any]], nn.Module],
        loss: Callable[..., torch.Tensor],
        configs: Sequence[Mapping[str, Any]],
        *,
        optimizer: str = "adamw",
        seeds: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        graph: bool | str = "auto",
        masking: bool = True,
        schedule: Callable[[int], float] | None = None,
        chunk_size: int | None = None,
        compile: bool = False,
        verbose: bool = True,
    ) -> None:
        if not configs:
            raise OptionError("configs is empty; expected one dict per member.")
        if graph not in ("auto", True, False):
            raise OptionError(f"graph is {graph!r}; expected 'auto', True or False.")
        if seeds is not None and len(seeds) != len(configs):
            raise OptionError(f"seeds has {len(seeds):,} entries and configs {len(configs):,}; expected one seed per member.")
        self.configs = [dict(config) for config in configs]
        self.seeds = [int(config.get("seed", number if seeds is None else seeds[number])) for number, config in enumerate(configs)]
        self.num_updates = 0
        self._make_model = make_model
        self._loss = loss, _num_arguments(loss)
        self._optimizer = optimizer
        self._masking = masking
        self._schedule = schedule
        self._chunk_size = chunk_size
        self._compile = compile
        self._verbose = verbose
        optimizers.parse_settings(optimizer, self.configs)
        self._reads: set[str] = set()
        self._models = [self._build(config, seed) for config, seed in zip(self.configs, self.seeds, strict=True)]
        first = next(self._models[0].parameters(), torch.empty(0))
        self.device = first.device if device is None else torch.empty(0, device=device).device
        self._graph = graph
        self._why_no_graph = "graph=False" if graph is False else None
        if self.device.type != "cuda":
            if graph is True:
                raise OptionError(f"graph is True, but the population is on {self.device}; expected a GPU.")
            self._why_no_graph = "the population is on the CPU"
        self._groups: list[Planned] = []

    def __len__(self) -> int:
        return len(self.configs)

    def _build(self, config: Mapping[str, Any], seed: int) -> nn.Module:
        """The model of a configuration, as it is alone."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self._make_model(RecordedConfig(config, self._reads))
        if not isinstance(model, nn.Module):
            raise OptionError(f"make_model returned {model!r}; expected a torch.nn.Module.")
        return seed_model(model, seed)

    # Training.

    def prepare(self, batch: Any) -> PopulationReport:
        """Find out on a batch how members can train together. The first `step` or `evaluate` does this by itself.

        Args:
            batch: Like those of the training run. No weight changes.

        Returns:
            The report.

        Raises:
            OptionError: The loss does not return a scalar, or a configuration has an entry that is probably misspelt.
        """
        if self._groups:
            return self.report
        self._groups = plan_groups(self._models_of_now(), to_device(batch, self.device), masking=self._masking)
        self._models = []
        report = self.report
        if self._verbose and any(one.reason for one in report.groups):
            print("\n".join(f"  population: {one}" for one in report.groups), flush=True)
        return report

    def step(self, batch: Any) -> torch.Tensor:
        """One update of all members.

        Args:
            batch: The same for all members: tensors, or dicts, lists, tuples and dataclasses of them.

        Returns:
            The losses [K] before the update, on the device. That of a member that diverged is not finite; others are not affected.
        """
        batch = to_device(batch, self.device)
        if not self._groups:
            self.prepare(batch)
        if self._schedule is not None:
            for planned in self._groups:
                planned.group.factor.fill_(float(self._schedule(self.num_updates)))
        found = self._gather([self._step(planned.group, batch) for planned in self._groups])
        self.num_updates += 1
        return found

    def _step(self, group: MemberGroup, batch: Any) -> torch.Tensor:
        if self._why_no_graph is None:
            try:
                return group.step(batch, use_graph=True)
            except TrainError as error:
                if self._graph is True:
                    raise
                self._why_no_graph = str(error).rstrip(".")
                for planned in self._groups:
                    planned.group.drop_graphs()
        return group.step(batch, use_graph=False)

    def _gather(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Values of all groups, in the order of the members."""
        if len(parts) == 1:
            return parts[0]
        found = torch.empty(len(self), dtype=parts[0].dtype, device=self.device)
        for planned, part in zip(self._groups, parts, strict=True):
            found[planned.group.index] = part
        return found

    def evaluate(self, batches: Any, *, metric: Callable[..., torch.Tensor] | None = None) -> torch.Tensor:
        """The mean loss of each member in evaluation mode. Nothing changes: no weight, no buffer, no random number.

        Args:
            batches: One batch (a tensor, a dict, a tuple, a dataclass, or a list of tensors), or any other iterable of batches, such
                as a `Feed`.
            metric: A function with the arguments of the loss that returns a scalar; by default the loss itself.

        Returns:
            [K], the mean over batches, each weighted by its rows.

        Raises:
            OptionError: There is no batch.
        """
        total: torch.Tensor | None = None
        rows = 0
        for batch in [batches] if _is_batch(batches) else batches:
            batch = to_device(batch, self.device)
            self.prepare(batch)
            found = self._gather([planned.group.evaluate(batch, metric) for planned in self._groups])
            count = num_rows(batch) or 1
            rows += count
            total = found * count if total is None else total + found * count
        if total is None:
            raise OptionError("batches is empty; expected at least one batch to evaluate.")
        return total / rows

    # Members.

    def keep(self, indices: Sequence[int]) -> None:
        """Drop all other members and release their memory. Those that stay continue as if nothing had happened.

        Args:
            indices: Positions of the members that stay, in their new order.

        Raises:
            OptionError: An index is not that of a member, or is given twice, or there is none.
        """
        indices = [int(index) for index in indices]
        if not indices or len(set(indices)) < len(indices) or not all(0 <= index < len(self) for index in indices):
            raise OptionError(f"indices is {indices!r}; expected different positions from 0 to {len(self) - 1}, at least one.")
        position = {member: number for number, member in enumerate(indices)}
        self.configs = [self.configs[index] for index in indices]
        self.seeds = [self.seeds[index] for index in indices]
        self._models = [self._models[index] for index in indices] if self._models else []
        for planned in self._groups:
            planned.group.keep(position)
        self._groups = [planned for planned in self._groups if planned.group.members]

    def member(self, index: int) -> nn.Module:
        """A model of its own with the weights of a member, for predictions or to train it alone.

        Its dropout continues with the numbers that the member would draw next.

        Args:
            index: The position of the member.

        Returns:
            What `make_model` makes of the configuration of the member, with its weights and buffers.
        """
        if not 0 <= index < len(self):
            raise OptionError(f"index is {index}; expected a position from 0 to {len(self) - 1}.")
        model = self._build(self.configs[index], self.seeds[index]).to(self.device)
        for planned in self._groups:
            if index in planned.group.members:
                planned.group.copy_into(model, planned.group.members.index(index))
        return model

    def state_dict(self) -> dict[str, Any]:
        """All that a population needs to continue exactly: weights, optimizer states, buffers, and numbers of draws."""
        return {
            "configs": [dict(config) for config in self.configs],
            "seeds": list(self.seeds),
            "num_updates": self.num_updates,
            "groups": [
                {
                    "members": list(planned.group.members),
                    "is_batched": planned.group.is_batched,
                    "pass_on": planned.group.pass_on,
                    "fuses": planned.group.fuses,
                    "reason": planned.reason,
                    "notes": planned.notes,
                    "tensors": {name: one.detach().clone() for name, one in planned.group.tensors().items()},
                }
                for planned in self._groups
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken. Members are grouped as they were.

        Args:
            state: Of a population with the same functions; `configs` and `seeds` in it say which members it has.

        Raises:
            OptionError: The state is of other members.
        """
        if state["configs"] != self.configs or state["seeds"] != self.seeds:
            raise OptionError(
                f"the state is of {len(state['configs']):,} members with other configs or seeds than the {len(self):,} here; make the "
                f"population with configs=state['configs'] and seeds=state['seeds']."
            )
        models = self._models_of_now()
        self._groups = []
        for one in state["groups"]:
            group = make_group(models, one["members"], is_batched=one["is_batched"], pass_on=one["pass_on"])
            if isinstance(group, str):
                raise OptionError(f"the models of the state cannot train together: {group}.")
            group.load(one["tensors"])
            group.fuses = one["fuses"]
            self._groups.append(Planned(group=group, reason=one["reason"], notes=tuple(one["notes"])))
        self._models = [] if self._groups else models.models
        self.num_updates = state["num_updates"]

    def _models_of_now(self) -> Models:
        """The first models of all members; they are not kept once training has begun."""
        models = self._models or [self._build(config, seed) for config, seed in zip(self.configs, self.seeds, strict=True)]
        return Models(
            models=[model.to(self.device) for model in models],
            configs=self.configs,
            seeds=self.seeds,
            optimizer=self._optimizer,
            loss=self._loss,
            device=self.device,
            chunk_size=self._chunk_size,
            compile=self._compile,
            read_keys=self._reads,
        )

    @property
    def report(self) -> PopulationReport:
        """What is batched, padded or run one by one, and why; empty before the first batch."""
        groups = [
            GroupReport(members=tuple(planned.group.members), how=planned.group.how, reason=planned.reason, notes=planned.notes)
            for planned in self._groups
        ]
        return PopulationReport(groups=tuple(groups), graph=f"no: {self._why_no_graph}" if self._why_no_graph else "yes")


def _is_batch(given: Any) -> bool:
    """Whether this is one batch; a list of tensors is one, other lists are lists of batches."""
    if isinstance(given, list):
        return bool(given) and all(isinstance(one, torch.Tensor) for one in given)
    return isinstance(given, torch.Tensor | Mapping | tuple) or hasattr(type(given), "__dataclass_fields__")


def _num_arguments(loss: Callable[..., Any]) -> int:
    """How many arguments a loss takes: 2, 3 with `hyper`, or 4 with `random`."""
    if not callable(loss):
        raise OptionError(f"loss is {loss!r}; expected a function of a model and a batch.")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [one for one in inspect.signature(loss).parameters.values() if one.kind in kinds and one.default is one.empty]
    if not 2 <= len(taken) <= 4:
        names = ", ".join(one.name for one in taken)
        raise OptionError(f"loss takes ({names}); expected (model, batch), (model, batch, hyper) or (model, batch, hyper, random).")
    return len(taken)
