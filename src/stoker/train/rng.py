"""Random numbers: the state of every global generator, captured as plain values and put back.

Covers torch on the CPU, every CUDA device in use, NumPy's global generator and Python's `random`. Orders of feeds need none
of these; models (dropout) and users' code do. The law: after `restore` they give the numbers they would have given.
"""

from __future__ import annotations

import random
import warnings
from typing import Any, NoReturn

import numpy as np
import torch

from stoker.errors import CheckpointInvalid


def capture() -> dict[str, Any]:
    """The state of all generators, as values that `flatten` takes and JSON can hold."""
    version, numbers, gauss = random.getstate()
    return {
        "python": {"version": version, "numbers": np.array(numbers, dtype="<u4").tobytes(), "gauss": gauss},
        "numpy": _packed(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state().numpy().tobytes(),
        "cuda": [state.numpy().tobytes() for state in _cuda_states()],
    }


def check(state: Any) -> None:
    """Refuse a state that has not the form of those of this process: generators do not look at what they are given."""
    version, numbers, _ = random.getstate()
    form: Any = {
        "python": {"version": version, "numbers": b"." * (4 * len(numbers)), "gauss": None},
        "numpy": _packed(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state().numpy().tobytes(),
        "cuda": [],
    }
    _check_form(state, form, "random")
    gauss, place = state["python"]["gauss"], state["numpy"].get("state", {}).get("pos", 0)
    if gauss is not None and type(gauss) is not float:
        _refuse("random.python.gauss", gauss)
    if state["numpy"]["bit_generator"] == "MT19937" and not 0 <= place <= 624:
        _refuse("random.numpy.state.pos", place)  # it is an index, which NumPy does not check
    for one in state["cuda"]:
        if type(one) is not bytes:
            _refuse("random.cuda", one)


def _check_form(state: Any, form: Any, place: str) -> None:
    """Types, keys, names of generators and lengths of bytes are those of `form`; None stands for anything."""
    if form is None:
        return
    if type(state) is not type(form) or (isinstance(form, str | bytes) and len(state) != len(form)):
        _refuse(place, state)
    if isinstance(form, str) and state != form:
        _refuse(place, state)
    if isinstance(form, dict):
        if state.keys() != form.keys():
            _refuse(place, list(state))
        for name, part in form.items():
            _check_form(state[name], part, f"{place}.{name}")
    if isinstance(form, tuple):
        if len(state) != len(form):
            _refuse(place, state)
        for one, part in zip(state, form, strict=True):
            _check_form(one, part, place)


def _refuse(place: str, found: Any) -> NoReturn:
    text = repr(found)
    raise CheckpointInvalid(f"{place} is {text[:40]}{'…' * (len(text) > 40)}; expected the state of a generator of this process.")


def restore(state: dict[str, Any]) -> None:
    """Put captured states back; if one of them cannot be, none is changed."""
    before = capture()
    try:
        _restore(state)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        _restore(before)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointInvalid(f"the saved state of random numbers cannot be put back ({reason}).") from error
    saved, present = len(state["cuda"]), torch.cuda.device_count()
    if saved > present:
        warnings.warn(
            f"the checkpoint has the random state of {saved} CUDA devices, but there are {present}: random numbers made on the "
            f"missing ones will differ from those of an uninterrupted run.",
            stacklevel=2,
        )


def derive(state: dict[str, Any], number: int) -> None:
    """Give this process random numbers of its own, that follow from the captured state of another one and a number."""
    restore(state)
    seed = (int(torch.empty((), dtype=torch.int64).random_()) + number) % 2**63
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _restore(state: dict[str, Any]) -> None:
    python = state["python"]
    numbers = tuple(np.frombuffer(python["numbers"], dtype="<u4").tolist())
    random.setstate((python["version"], numbers, python["gauss"]))
    np.random.set_state(_unpacked(state["numpy"]))
    torch.set_rng_state(_as_tensor(state["torch"]))
    for i, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_as_tensor(one), i)


def _cuda_states() -> list[torch.Tensor]:
    # A program that has not used CUDA shall not be made to start it.
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _packed(value: Any) -> Any:
    """NumPy's description of a bit generator, with its arrays as (type, bytes)."""
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.tobytes())
    return value.item() if isinstance(value, np.generic) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unpacked(item) for key, item in value.items()}
    if isinstance(value, tuple):
        dtype, data = value
        if dtype not in ("<u4", "<u8"):
            raise ValueError(f"an array of {dtype!r}")
        return np.frombuffer(data, dtype=dtype).copy()
    return value
