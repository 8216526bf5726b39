"""Workers: processes that make batches ahead."""

from __future__ import annotations

from typing import Any

from stoker.diagnose.tries.loaders import LoaderFix, is_map_style


class Workers(LoaderFix):
    """`num_workers`, kept between epochs; for datasets whose samples are found by number, since others would come several times."""

    def change(self, options: dict[str, Any]) -> None:
        """Set the number of workers."""
        if not is_map_style(options):
            self.nothing = "the dataset is an IterableDataset: each worker would give all of its samples"
            return
        options["num_workers"] = self.value or 2
        options["persistent_workers"] = True
        self.used = True
