"""What a user hands over, on the command line or from Python: read by one set of rules, refused with the same words."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unskew.base.errors import InputError
from unskew.base.registry import Component
from unskew.base.text import Table, split_list
from unskew.core.method import Method, methods
from unskew.core.observer import Observer, as_observer
from unskew.data.dataset import Dataset
from unskew.data.sources.base import Source
from unskew.data.sources.in_memory import GivenDataset
from unskew.models.base import Architecture, Model
from unskew.models.user_module import GivenModule
from unskew.runs.config import FLAGS, Run, from_table, load_plugins, override, suggest
from unskew.runs.field import Field, expand, is_word

_FLAG_OF = {path: flag for flag, path in FLAGS.items()}


def spell_flag(flag: str) -> str:
    """An option as the command line writes it."""
    return f"--{flag.replace('_', '-')}"


def to_run(table: Mapping[str, Any]) -> Run:
    """The validated run; an option that has a flag is named by both."""
    try:
        return from_table(table)
    except InputError as error:
        option, colon, rest = str(error).partition(": ")
        flag = _FLAG_OF.get(option.removeprefix("run."))
        if flag is None:
            raise
        raise InputError(f"{option} ({spell_flag(flag)}){colon}{rest}") from None


# ---------------------------------------------------------------------------------- methods and seeds


def read_method(given: Any) -> Method:
    """A method from its text, its table, or itself."""
    if is_word(given):
        raise InputError(f"method: '{given}' stands for many methods, for compare; name one, such as fedavg")
    if isinstance(given, type):
        raise InputError(f"method: expected an object, got the class {given.__name__}; write {given.__name__}()")
    if not isinstance(given, (str, Path, Mapping, Method)):
        raise InputError(f'method: expected a name such as "fedprox(mu=0.1)" or a Method, got {_short(given)}')
    return methods.build(to_plain(given))


def read_methods(given: Any) -> Field:
    """The methods of a comparison: text such as `fedavg,fedprox(mu=0.1)` or `all`, or a list of texts and methods."""
    listed = split_list(given) if isinstance(given, str) else given
    if not isinstance(listed, (list, tuple)):
        raise InputError(f'--methods expects a list such as ["fedavg", "fedprox(mu=0.1)"], got {_short(given)}')
    if not listed:
        raise InputError('--methods names no method; give some, such as "fedavg,fedprox(mu=0.1)"')
    return expand([each if is_word(each) else read_method(each) for each in listed])


MOST_SEEDS = 10_000
"""As many runs of each method as anybody could want."""


def read_seeds(given: Any) -> list[int]:
    """Seeds: `3` means 0, 1, 2; `1024,2025` or a list means those; `7,` means seed 7 alone."""
    shown = f"'{given}'" if isinstance(given, str) else _short(given)
    if isinstance(given, range) and len(given) > MOST_SEEDS:
        raise InputError(f"--seeds expects at most {MOST_SEEDS}, got {shown}")
    values = _split_seeds(given)
    if values is None or any(isinstance(v, bool) or not isinstance(v, (int, np.integer)) for v in values):
        raise InputError(f"--seeds expects a number such as 3 or a list such as 1024,2025, got {shown}")
    numbers = [int(value) for value in values]
    if isinstance(given, (int, np.integer)) or (isinstance(given, str) and "," not in given):
        if not numbers or numbers[0] < 1:
            raise InputError(f"--seeds expects at least 1 seed, got {shown}")
        if numbers[0] > MOST_SEEDS:
            raise InputError(
                f"--seeds expects at most {MOST_SEEDS}, got {shown}; for the one seed of that number write "
                f"'{numbers[0]},' (in Python [{numbers[0]}])"
            )
        return list(range(numbers[0]))
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise InputError(f"--seeds expects different numbers from 0 up, got {shown}")
    return numbers


def _split_seeds(given: Any) -> list[Any] | None:
    if isinstance(given, str):
        try:
            return [int(part) for part in given.split(",") if part.strip()]
        except ValueError:
            return None
    if isinstance(given, (list, tuple, range)):
        return list(given)
    return [given]


# -------------------------------------------------------------------------------------- the Python interface


def read_options(options: Mapping[str, Any], data: Any, model: Any, head: Any, **more: Any) -> Table:
    """The table of a run: `more`, data and model, then options by their short names or paths, as `--set` takes them."""
    plugins = [place for key in ("plugin", "plugins") for place in _read_plugins(key, options.get(key))]
    table: Table = {"plugins": plugins, **more}
    load_plugins(table)  # before any name that they register is looked up
    table["data"] = read_data(data)
    if (chosen := read_model(model, head)) is not None:
        table["model"] = chosen
    fields = [field.name for field in dataclasses.fields(Run)]
    given: dict[str, str] = {}
    found: list[tuple[str, Any]] = []
    for name, value in options.items():
        if name in ("plugin", "plugins"):
            continue
        if name not in FLAGS and name.partition(".")[0] not in fields:
            known = [*FLAGS, *(field for field in fields if field not in FLAGS)]
            raise InputError(f"there is no option '{name}'; {suggest(name, known)}")
        _refuse_inside(name, data, model)
        path = FLAGS.get(name, name)
        for part in (path, *(f"{path}.{key}" for key in value)) if isinstance(value, Mapping) else (path,):
            if part in given:
                raise InputError(f"{part} is given twice, as '{given[part]}' and as '{name}'; give one of them")
            given[part] = name
        found += _open_table(path, to_plain(value))
    for path, value in sorted(found, key=lambda each: each[0].count(".")):  # what is set inside a whole comes after it
        table = override(table, path, value)
    return table


def _refuse_inside(name: str, data: Any, model: Any) -> None:
    """Refuses an option of data or a model that were handed over as they are."""
    if name.startswith("data.") and isinstance(data, Dataset):
        hint = "give it mean and std itself" if name == "data.normalisation" else "leave it out"
        raise InputError(f"{name} does nothing for a Dataset that is handed over; {hint}")
    if name.startswith("model.") and isinstance(model, nn.Module):
        hint = "say head=..." if name == "model.head" else "leave it out"
        raise InputError(f"{name} does nothing for an nn.Module that is handed over; {hint}")


def _open_table(path: str, value: Any) -> list[tuple[str, Any]]:
    """A table of plain options, such as `local`, as one after the other, so that it hides none given beside it."""
    plain = dataclasses.is_dataclass(own := getattr(Run(), path, None)) and not isinstance(own, Component)
    whole = not plain or not isinstance(value, dict) or not all(isinstance(key, str) for key in value)
    return [(path, value)] if whole else [(f"{path}.{key}", each) for key, each in value.items()]


def _read_plugins(key: str, given: Any) -> list[str]:
    if given is None:
        return []
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    if not all(isinstance(place, (str, Path)) and str(place) for place in listed):
        raise InputError(f"{key}: expected a Python file or module, or a list of them, got {_short(given)}")
    return [str(place) for place in listed]


def to_plain(value: Any) -> Any:
    """Paths and devices as text, numpy's numbers as Python's, also inside lists and tables."""
    if isinstance(value, (Path, torch.device)):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [to_plain(each) for each in value]
    return {key: to_plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def read_data(given: Any) -> str | Table | Source:
    """The data as a run's table names them; the record of a `Dataset` is its fingerprint."""
    if isinstance(given, Dataset):
        return GivenDataset(kind=given.name, fingerprint=given.fingerprint())
    if isinstance(given, (str, Path, Mapping, Source)):
        return to_plain(given)  # type: ignore[no-any-return]
    raise InputError(
        f'data: expected a name such as "digits", or an unskew.Dataset made of Samples(x, y), got {_short(given)}'
    )


def read_dataset(given: Any) -> Dataset | None:
    """The data that a resumed run is handed over again."""
    if given is None or isinstance(given, Dataset):
        return given
    raise InputError(f"data: expected the unskew.Dataset that the run began with, or nothing, got {_short(given)}")


def read_model(given: Any, head: Any = "") -> str | Table | Architecture | None:
    """The model as a run's table names it; None: by default."""
    if isinstance(given, type):
        raise InputError(f"model: expected an object, got the class {given.__name__}; write {given.__name__}()")
    if not isinstance(head, str):
        raise InputError(f'head: expected the name of the module\'s last layer, such as "fc", got {_short(head)}')
    _check_model_kind(given)
    if isinstance(given, nn.Module) and not (head and isinstance(given, Model)):
        return GivenModule.of(given, head)
    if head:
        hint = (
            "leave head out" if given is None or isinstance(given, nn.Module) else "write python('net.py:Net', head=fc)"
        )
        raise InputError(f"head='{head}' names the last layer of an nn.Module that is handed over as model=...; {hint}")
    return to_plain(given)  # type: ignore[no-any-return]


def _check_model_kind(given: Any) -> None:
    if isinstance(given, Mapping) and any(isinstance(value, torch.Tensor) for value in given.values()):
        raise InputError(
            "model: a state_dict holds weights only; load them into a network, net.load_state_dict(...), and hand over "
            "that as model=net"
        )
    if given is not None and not isinstance(given, (str, Path, Mapping, Architecture, nn.Module)):
        hint = "; call it, and hand over the network that it makes" if callable(given) else ""
        raise InputError(f'model: expected a name such as "cnn8", or an nn.Module, got {_short(given)}{hint}')


def read_module(given: Any, head: Any = "") -> GivenModule | None:
    """The module that a resumed run is handed over again."""
    if given is not None and not isinstance(given, (nn.Module, type)):
        raise InputError(f"model: expected the nn.Module that the run began with, or nothing, got {_short(given)}")
    found = read_model(given, head)
    return found if isinstance(found, GivenModule) else None


def read_place(what: str, given: Any) -> Path:
    """A path; `what` begins the error's line."""
    if not isinstance(given, (str, Path)) or not str(given):
        raise InputError(f"{what}: expected a folder's path, got {_short(given)}")
    try:
        Path(given).stat()
    except ValueError as error:  # a zero among the characters
        raise InputError(f"{what}: expected a folder's path, got {_short(given)}: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{what}: the name is too long, got {_short(given)}; choose a shorter one") from None
    return Path(given)


def read_data_dir(given: Any) -> Path | None:
    """Where data files are."""
    return None if given is None else read_place("data_dir", given)


def read_truth(what: str, given: Any) -> bool:
    """True or False; what only counts as one of them is refused."""
    if isinstance(given, (bool, np.bool_)):
        return bool(given)
    raise InputError(f"{what}: expected True or False, got {_short(given)}")


def read_rounds(given: Any) -> int:
    """A number of rounds; numpy's are taken for what they are."""
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool) and given >= 1:
        return int(given)
    raise InputError(f"rounds: expected a whole number from 1 up, got {_short(given)}")


def read_executor(given: Any) -> str | None:
    """Another executor for a resumed run; None: as it was begun."""
    if given is None or isinstance(given, str):
        return given
    raise InputError(f'executor: expected a name such as "pool", or nothing, got {_short(given)}')


def read_watch(given: Any) -> Observer | None:
    """Who is told of finished rounds."""
    return None if given is None else as_observer(given)


def refuse(options: Iterable[str], names: Mapping[str, str]) -> None:
    """Refuses options that would be ignored, each with what to do instead."""
    for option in options:
        if instead := names.get(option.partition(".")[0]):
            raise InputError(f"there is no option '{option}' here; {instead}")


def _short(value: Any) -> str:
    kind, text = type(value).__name__, " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({kind})"
