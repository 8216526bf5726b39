"""MLflow. Extra `mlflow`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stoker.errors import OptionError
from stoker.train.writers.extra import import_extra

_FORBIDDEN = re.compile(r"[^\w\-. :/]", re.ASCII)
"""What MLflow takes in no name of a metric."""


class Mlflow:
    """Logs to a run of MLflow, at the server that `tracking_uri` (or the environment) names; `run_id` goes on with a run."""

    def __init__(
        self, *, experiment: str | None = None, name: str | None = None, tracking_uri: str | None = None, run_id: str | None = None
    ) -> None:
        self._module = import_extra("mlflow", writer="Mlflow", extra="mlflow")
        try:
            if tracking_uri is not None:
                self._module.set_tracking_uri(tracking_uri)
            if experiment is not None:
                self._module.set_experiment(experiment)
            # Beside whatever run the program may have open itself.
            self.run_id: str = self._module.start_run(
                run_id=run_id, run_name=name, nested=self._module.active_run() is not None
            ).info.run_id
        except Exception as error:  # a server that is not there, a store that this version refuses, a package that is missing
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise OptionError(
                f"Mlflow cannot begin a run: {reason} Run: pip install 'stoker[mlflow]', or let MLFLOW_TRACKING_URI name a store, "
                f"such as sqlite:///mlflow.db or the address of a server."
            ) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        named = {_FORBIDDEN.sub("_", name): value for name, value in values.items()}
        self._module.log_metrics(named, step=step, run_id=self.run_id)

    def close(self) -> None:
        """End the run."""
        active = self._module.active_run()
        if active is not None and active.info.run_id == self.run_id:
            self._module.end_run()
