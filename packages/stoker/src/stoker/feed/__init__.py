"""Feed: from a store and an order to batches on the device.

    feed                              Feed, and what a user calls on it
    columns, scaling, categories      which columns, as which type, scaled how, with which codes
    residency                         where the columns stay: device, host or stream
    gather, device, padding           gathering samples on the CPU or on the GPU, padded and masked; transform: functions of the user
    prefetch, read_ahead              positions of a pass and background threads; reading ahead from disks and object storage
    mixture, adapters                 several stores as one; a feed as what DataLoader expects

These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

if TYPE_CHECKING:
    from stoker.feed.categories import CategoryCodes as CategoryCodes
    from stoker.feed.padding import Returns as Returns
    from stoker.feed.prefetch import Distributed as Distributed
    from stoker.feed.residency import Loading as Loading
    from stoker.feed.transform import OnDevice as OnDevice
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__)
