"""What is read from a finished run: the papers' ways to sum it up in one figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from unskew.measures.figures import last_share_mean
from unskew.measures.rounds_to import accuracy_of, rounds_to_target
from unskew.recipes.base import Finished, Read
from unskew.runs.folder import Row


def _curve(finished: Finished) -> list[float]:
    """The global model's accuracy after each tested round, in per cent."""
    return [100 * row["accuracy"] for row in finished.rounds if row["round"] > 0 and "accuracy" in row]


def _personal(finished: Finished) -> list[Row]:
    """The figures of the tests at clients, round by round."""
    return [row["personal"] for row in finished.rounds if row.get("personal", {}).get("clients_tested")]


def last(finished: Finished) -> float:
    """FedSOL: the last round."""
    return _curve(finished)[-1]


def last_ten(finished: Finished) -> float:
    """FedBlade: the mean of the last ten rounds."""
    tail = _curve(finished)[-10:]
    return sum(tail) / len(tail)


def last_tenth(finished: Finished) -> float:
    """FLFA: the mean of the last tenth of the rounds."""
    return last_share_mean(_curve(finished))


def best(finished: Finished) -> float:
    """FedAF: the best round."""
    return max(_curve(finished))


def best_personal(finished: Finished) -> float:
    """FedAS: pooled over the clients' own test sets, the best round; the one before training counts (A12)."""
    return max(100 * float(own["pooled"]) for own in _personal(finished))


def last_personal(finished: Finished) -> float:
    """FedAS's FedBABU: pooled, after the last round's fine-tuning."""
    return 100 * float(finished.summary["personal"]["pooled"])


def mean_over_clients(finished: Finished) -> float:
    """FedSOL, Table 9: the mean over clients, after the last round."""
    return 100 * float(finished.summary["personal"]["mean"])


def best_mean_over_clients(finished: Finished) -> float:
    """FedAF's FedBN (E14): the mean over clients of shared weights with their own normalisation, the best round."""
    return max(100 * float(own["mean"]) for own in _personal(finished))


def domain(number: int | None) -> Read:
    """FedAF, Table 2: accuracy on a domain's test samples (None: the domains' mean) in the round of the best mean."""

    def read(finished: Finished) -> float | None:
        by_round: dict[int, dict[int, float]] = {}
        for row in finished.clients:
            if "accuracy" in row and row["round"] > 0:
                by_round.setdefault(row["round"], {})[row["client"]] = 100 * row["accuracy"]
        means = {round_: sum(own.values()) / len(own) for round_, own in by_round.items()}
        top = max(means, key=lambda round_: (means[round_], -round_))
        return means[top] if number is None else by_round[top].get(number)

    return read


def rounds_to(target: float) -> Read:
    """FedBlade: the first round that reaches this accuracy, in per cent."""

    def read(finished: Finished) -> float | None:
        tested = [row for row in finished.rounds if row["round"] > 0 and "accuracy" in row]
        place = rounds_to_target([100 * row["accuracy"] for row in tested], target)
        return None if place is None else float(tested[place - 1]["round"])

    return read


def local_seconds(finished: Finished) -> float:
    """Seconds of local training: to be divided by another run's."""
    return float(finished.summary["seconds"]["local"])


def measured(name: str) -> Read:
    """A measure of the last round that has it."""

    def read(finished: Finished) -> float | None:
        found = [row["measures"][name] for row in finished.rounds if row.get("measures", {}).get(name) is not None]
        return float(found[-1]) if found else None

    return read


def listed(name: str) -> Callable[[Finished], list[float]]:
    """A measure that is a list or has a value for each layer, of the last round that has it; empty if none does."""

    def read(finished: Finished) -> list[float]:
        found = [row["measures"][name] for row in finished.rounds if row.get("measures", {}).get(name)]
        values = found[-1] if found else []
        return [float(value) for value in (values.values() if isinstance(values, dict) else values)]

    return read


def megabytes_up(finished: Finished) -> float:
    """What a client sends in a round, in MB of 2^20 bytes."""
    done = [row for row in finished.rounds if row["round"] > 0]
    return float(sum(row["bytes_up"] for row in done)) / sum(len(row["clients"]) for row in done) / 2**20


def condensed_megabytes_up(finished: Finished) -> float:
    """FedAF, Table 7: what a client sends in a round with images of 8 bits, the mean over clients."""
    sizes = [row["bytes_up_8bit"] for row in finished.clients if "bytes_up_8bit" in row]
    return float(sum(sizes) / len(sizes) / 2**20)


def layer_share(of: Callable[[str], str], stage: str) -> Read:
    """FLFA, Table 13: in which per cent of the rounds the chosen layer is of this stage."""

    def read(finished: Finished) -> float | None:
        chosen = [layer for row in finished.rounds for layer in _chosen(row)]
        return 100 * Counter(map(of, chosen))[stage] / len(chosen) if chosen else None

    return read


def _chosen(row: Row) -> list[str]:
    found: list[str] = row.get("method", {}).get("feedback_layers", [])
    return found


def in_order(values: Iterable[float | None]) -> list[tuple[float, float]]:
    """Points at the places 0, 1, …, as far as there are values."""
    return [(float(place), value) for place, value in enumerate(values) if value is not None]


def curve(finished: Finished, name: str | None = None) -> list[tuple[float, float]]:
    """A measure over the rounds, or the accuracy in per cent (a personal method's: pooled)."""
    points = []
    for row in finished.rounds:
        value = row.get("measures", {}).get(name) if name else accuracy_of(row)
        if isinstance(value, (int, float)):
            points.append((float(row["round"]), float(value) if name else 100 * float(value)))
    return points
