"""The kernels of an IceCube pack, for a zygote."""

import numpy as np

from stoker_recipes.icecube import data as packing


def _column(dtype: str) -> np.ndarray:
    """As Arrow gives it: it cannot be written to."""
    column = np.zeros(1, dtype)
    column.flags.writeable = False
    return column


_room = {name: np.empty(1, kind.to_pandas_dtype()) for name, kind in packing._STEP.items()}
packing._narrow(
    _column("<i8"), _column("<f8"), _column("<i2"),
    _room["time"], _room["charge"], _room["sensor_id"], _room["charge"].view(np.int32),
)  # fmt: skip
packing._is_of_events(_column("<i8"), np.zeros(1, "<i8"), np.ones(1, "<i8"))


def load_kernels() -> None:
    """Nothing: to find this function, the zygote itself has imported this module, and so loaded the kernels."""
