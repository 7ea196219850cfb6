"""Arrays made tensors: of numpy or torch, in page-locked memory, on a device.

Takes a dict by name and gives one. Numpy arrays become tensors of memory of their own, contiguous and writable, which is what
torch and the consumers of DLPack (JAX) want; other values stay as they are. torch is loaded on first use, where it is installed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from zephon_async.errors import RecipeError

FRAMEWORKS = ("auto", "torch", "numpy")


@dataclass(frozen=True, slots=True)
class Delivery:
    """How tensors are given out. lists: plain lists in place of tensors."""

    framework: str
    lists: bool
    collate: Callable[[dict[str, Any]], dict[str, Any]] | None
    pin_memory: bool
    device: Any

    def __post_init__(self) -> None:
        if self.collate is not None and not callable(self.collate):
            raise RecipeError(f"to_training(collate={self.collate!r:.80}): give a function that takes a dict and gives one")
        if not self._moves:
            return
        what = "pin_memory=True" if self.device is None else f"device={self.device!r:.80}"
        if self.lists:
            raise RecipeError(f"to_training({what}, dtype=None): lists have no memory that could be chosen; give a dtype")
        if not self._torch:
            why = "with framework='numpy'" if self.framework == "numpy" else "and torch is not installed"
            raise RecipeError(f"to_training({what}): that needs tensors of torch, {why}; move the arrays yourself, or use torch")

    @property
    def _moves(self) -> bool:
        return self.pin_memory or self.device is not None

    @property
    def _torch(self) -> bool:
        return self.framework == "torch" or (self.framework == "auto" and find_spec("torch") is not None)

    def deliver(self, made: dict[str, Any]) -> dict[str, Any]:
        """What the trainer gets of arrays and other values by name."""
        if self.lists:
            made = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in made.items()}
        else:
            made = {name: _own(value) if isinstance(value, np.ndarray) else value for name, value in made.items()}
            made = _tensors(made) if self._torch else made
        if self.collate is not None:
            made = _checked(self.collate(made))
        return self._moved(made) if self._moves else made

    def _moved(self, made: dict[str, Any]) -> dict[str, Any]:
        import torch

        doing = "pin_memory=True"
        try:
            if self.pin_memory:
                made = _each(made, torch.Tensor, lambda tensor: tensor.pin_memory())
            if self.device is not None:
                doing = f"device={self.device!r:.80}"
                device = torch.device(self.device)  # what else `to` takes is no device
                made = _each(made, torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True))
        except (RuntimeError, AssertionError, TypeError) as error:  # torch that was built without it raises each of these
            if type(error).__name__ == "OutOfMemoryError":
                raise  # which is not in the call
            raise RecipeError(f"to_training({doing}): {error}") from error
        return made


def _each(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A value with others in the place of those of a kind in it, at any depth of dicts, lists and tuples."""
    if isinstance(value, kind):
        return change(value)
    if type(value) is dict:
        return {name: _each(part, kind, change) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_each(part, kind, change) for part in value)
    if type(value) in (list, tuple):
        return type(value)(_each(part, kind, change) for part in value)
    return value


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Contiguous and writable; a copy only of what is not."""
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy()


def _tensors(made: dict[str, Any]) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise RecipeError(f"to_training(framework='torch'): {error}; install torch, or use framework='numpy'") from error
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in made.items()}


def _checked(collated: Any) -> dict[str, Any]:
    if not isinstance(collated, Mapping):
        raise RecipeError(
            f"to_training(collate=...): it gave {type(collated).__name__} {collated!r:.80}, wanted a dict of tensors by name"
        )
    return dict(collated)
