"""A feed whose options are given flat, as tests vary them one by one."""

from __future__ import annotations

from typing import Any

from stoker import Feed, Mixture, Sequential
from stoker.feed import CategoryCodes, Distributed, Loading, OnDevice, Returns

GROUPS: dict[str, tuple[Any, dict[str, str]]] = {
    "loading": (Loading, {name: name for name in ("residency", "threads", "prefetch")}),
    "distributed": (Distributed, {name: name for name in ("rank", "world_size", "global_batch_size")}),
    "returns": (Returns, {"return_index": "index", "return_series": "series", "return_store": "store", "masks": "masks"}),
    "categories": (CategoryCodes, {"categories": "texts", "category_offset": "offset"}),
}


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """The options as `Feed` takes them: those of groups may be flat, such as `threads=2` or `return_index=True`."""
    flat = dict(options)
    if "weights" in flat:
        flat["order"] = Mixture(flat.get("order") or Sequential(), flat.pop("weights"))
    if "device_transform" in flat:
        on_device = OnDevice(flat.pop("device_transform"))
        flat["transform"] = [flat["transform"], on_device] if "transform" in flat else on_device
    if "scaler" in flat:
        flat["normalize"] = flat.pop("scaler")
    for group, (kind, names) in GROUPS.items():
        given = {own: flat.pop(name) for name, own in names.items() if name in flat and not isinstance(flat[name], kind)}
        if given:
            flat[group] = kind(**given)
    return flat


def flat_feed(store: Any, view: Any, **options: Any) -> Feed:
    """`Feed(store, view, …)`."""
    return Feed(store, view, **grouped(options))
