"""Every cell's run at full scale against the papers' protocols, transcribed by someone who had not seen the recipes.

`protocol.json` is a list of rules: tables, a condition on the printed row, what is expected there, and where that is
said. The rules that match a row are merged, later ones over earlier ones.
"""

import csv
import json
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

import pytest

from unskew.base.registry import to_table
from unskew.core.method import methods
from unskew.data.normalisation import PUBLISHED
from unskew.models.base import architectures, build
from unskew.models.sizes import count_parameters
from unskew.recipes import list_tables, readers
from unskew.recipes.base import Cell, Computed
from unskew.runs.config import cohort_size

RULES = json.loads((Path(__file__).parent / "protocol.json").read_text(encoding="utf-8"))
TABLES = {table.id: table for table in list_tables()}
METRICS = {
    "last": readers.last, "last_10_mean": readers.last_ten, "last_10_percent_mean": readers.last_tenth,
    "best": readers.best, "personal_best": readers.best_personal, "personal_last": readers.last_personal,
    "personal_last_over_clients": readers.mean_over_clients,
}  # fmt: skip
USUAL = {
    "cifar10": PUBLISHED["cifar"], "cifar100": PUBLISHED["cifar"], "cifar10_1": PUBLISHED["cifar"],
    "mnist": ((0.1307,), (0.3081,)), "fashion_mnist": ((0.2861,), (0.3530,)), "cinic10": PUBLISHED["cinic"],
    "svhn": ((0.4376821, 0.4437697, 0.47280442), (0.19803012, 0.20101562, 0.19703614)),
}  # fmt: skip


def expectation(table, row):
    """What the rules say of a printed row."""
    found = {}
    for rule in RULES:
        if any(fnmatch(table, pattern) for pattern in rule["tables"]) and all(
            row.get(key) in (value if isinstance(value, list) else [value]) for key, value in rule["when"].items()
        ):
            found |= rule["expect"]
    return found


def rows_of(table):
    place = resources.files("unskew.recipes") / "printed" / f"{table.file}.csv"
    return list(csv.DictReader(place.read_text(encoding="utf-8").splitlines()))


def cells():
    """(table, printed row with its value column, expectation, cell) of every figure."""
    for table in TABLES.values():
        for row in rows_of(table):
            for value in table.values:
                keys = {key: text for key, text in row.items() if key not in (*table.values, table.std)}
                yield table, row, {**keys, **({"value": value} if len(table.values) > 1 else {})}


def pick(expected, value):
    """An expectation that differs between the figures of a row."""
    return expected.get(value, expected) if isinstance(expected, dict) and value in expected else expected


def test_there_are_51_tables_and_rules_for_each():
    assert len(TABLES) == 51
    for table in TABLES:
        assert any(fnmatch(table, pattern) for rule in RULES for pattern in rule["tables"]), table
    files = {file.name for file in (resources.files("unskew.recipes") / "printed").iterdir()}
    assert files == {f"{table.file}.csv" for table in TABLES.values()}


def test_derived_rows_are_those_that_the_transcript_calls_so():
    for table in TABLES.values():
        listed = {tuple(figure.keys.items()) for figure in table.printed}
        for _, row, keys in (cell for cell in cells() if cell[0] is table):
            derived = expectation(table.id, row).get("derived", False)
            value = row[keys.get("value", table.values[0])]
            assert (tuple(keys.items()) in listed) == (not derived and value != ""), (table.id, row)


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_the_paper_s_protocol(name):
    table, checked = TABLES[name], 0
    for figure in table.printed:
        row = {**figure.keys}
        expected, cell = expectation(name, row), table.recipe(figure.keys)
        if isinstance(cell, Computed):
            assert expected["metric"] in ("settings", "bytes", "time"), figure
            continue
        where = f"{name} {dict(figure.keys)}"
        compare(cell, expected, row.get("value", ""), where)
        checked += 1
    assert checked or name in ("fedsol/t7", "fedsol/t8", "fedblade/t10", "fedblade/t11")


def compare(cell: Cell, expected, value, where):
    run, local = cell.run, cell.run.local

    def want(key):
        return pick(expected.get(key, "unstated"), value)

    def check(key, found, wanted=None):
        wanted = want(key) if wanted is None else wanted
        if wanted not in ("unstated", None):
            assert found == wanted, f"{where}: {key} is {found}, the protocol has {wanted}"

    check("clients", run.clients)
    check("sampled", cohort_size(run.sample, run.clients))
    check("rounds", run.rounds if want("metric") not in ("bytes", "time") else want("rounds"))
    for key in ("epochs", "lr", "momentum", "weight_decay", "lr_decay"):
        check(key, getattr(local, key))
    if run.method.name in ("fedaf", "feddm"):  # whose clients take no steps of local training
        check("batch", run.method.server_batch)
        check("batch", run.method.real_batch)
    else:
        check("batch", local.batch)
    check("pooled_test", run.pool_test)
    if want("metric") != "domain_best":  # a domain's test samples are its client's there
        check("local_test", run.evaluation.local_test)
    check_split(run, want("split"), where)
    check_data(run, want("data"), where)
    check_model(run, want, where)
    check_augment(run, want("augment"), where)
    check_scale(run, want, where)
    check_method(run, want("method"), where, () if want("metric") != "bytes" else ("steps", "server_epochs"))
    metric = want("metric")
    if metric in METRICS and value not in ("relative_time",) and run.method.name != "fedbn":
        assert cell.read is METRICS[metric], f"{where}: read by {cell.read}, the protocol has {metric}"


def check_split(run, wanted, where):
    if wanted == "unstated":
        return
    found = to_table(run.split)
    assert found["name"] == wanted["kind"], where
    for key in ("alpha", "per_client", "min_size", "cap"):
        if wanted.get(key) not in (None, "unstated") and key in found:
            assert found[key] == wanted[key], f"{where}: {key} of the split is {found[key]}, not {wanted[key]}"


def check_data(run, wanted, where):
    if wanted == "unstated":
        return
    wanted = {"name": wanted} if isinstance(wanted, str) else wanted
    table = to_table(run.data)
    assert {key: table[key] for key in wanted} == wanted, f"{where}: data {run.data}"
    assert table.get("use_validation_for_training", False) == wanted.get("use_validation_for_training", False), where


def check_model(run, want, where):
    if want("metric") == "bytes" and run.method.name == "fedaf":
        return  # the network changes no byte of what FedAF's clients send
    model, parameters = want("model"), want("parameters")
    if model not in ("unstated", None):
        assert run.model == architectures.build(model), f"{where}: model {run.model}, the protocol has {model}"
    about = run.data.about
    if isinstance(parameters, int) and want("metric") != "bytes":
        made = run.method.remodel(_built(str(run.model), about.shape, about.classes), about.classes)
        assert count_parameters(made) == parameters, f"{where}: {run.model} has {count_parameters(made)} parameters"


_BUILT = {}


def _built(text, shape, classes):
    key = (text, shape, classes)
    if key not in _BUILT:
        _BUILT[key] = build(architectures.build(text), shape, classes)
    return _BUILT[key]


def check_augment(run, wanted, where):
    if wanted in ("unstated", None):
        return
    found = {key: getattr(run.augment, key) for key in ("crop", "pad_mode", "flip", "cutout")}
    if not found["crop"] and not wanted.get("crop"):
        found["pad_mode"] = wanted.get("pad_mode")
    assert found == wanted, f"{where}: augmentation {found}, the protocol has {wanted}"


def check_scale(run, want, where):
    mean, std = want("mean"), want("std")
    if "unstated" in (mean, std) or None in (mean, std):
        return
    chosen = run.data.normalisation
    found = PUBLISHED[chosen] if chosen != "usual" else USUAL[run.data.name]
    channels = run.data.about.shape[0]
    wide = [scale * channels if len(scale) == 1 else scale for scale in found]
    given = [tuple(scale) * channels if len(scale) == 1 else tuple(scale) for scale in (mean, std)]
    assert wide == given, f"{where}: normalised by {wide}, the protocol has {given}"


def check_method(run, wanted, where, without=()):
    """`without`: options that the figure does not depend on."""
    if wanted in ("unstated", None):
        return
    found, expected = plain(run.method), plain(methods.build(wanted))
    for name in without:
        found.pop(name, None), expected.pop(name, None)
    assert found == expected, f"{where}: method {run.method}, the protocol has {wanted}"


def plain(method):
    """A method's table; what says the same in two ways is said in one."""
    table = to_table(method)
    if table["name"] == "fedblade":
        if table["gamma"] == 0 or not (table["pa"] or table["fa"]):
            table |= {"gamma": 0.0, "pa": False, "fa": False}
        if table["lambda_ld"] == 0 or table["decorrelation"] == "none":
            table |= {"lambda_ld": 0.0, "decorrelation": "none"}
    if hasattr(method, "inner"):
        table["inner"] = plain(method.inner)
    if table["name"] == "fedsol":
        if table["strategy"] == "A5" or table["projection"]:  # neither perturbs
            table |= {"rho": 0.0, "where": "all", "scaling": "fixed"}
        if table.get("prox", {}).get("name") == "kl" and table["inner"]["name"] == "fedavg":
            del table["prox"]  # what it takes there by itself
    return table
