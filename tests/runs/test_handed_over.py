"""Objects that a Python program hands over or asks of a result: taken for what they are, or refused in one line."""

import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from awkward import tiny_data
from small_runs import EVEN, FEW, digits_net, play, refused
from unskew.base.errors import InputError

QUICK = {"clients": 2, "rounds": 1}


# --------------------------------------------------------------------------------------------------- resuming


def test_an_edited_result_is_refused_as_on_the_command_line(tmp_path):
    out = tmp_path / "run"
    unskew.run(**QUICK, out=out)
    for name, change in (("summary.json", ('"last": 0.', '"last": 0.9')), ("rounds.jsonl", ('"loss": ', '"loss": 1'))):
        text = (out / name).read_text()
        assert change[0] in text
        (out / name).write_text(text.replace(*change))
        refused("summary.json and rounds.jsonl differ in", unskew.resume, out)
        (out / name).write_text(text)
    text = (out / "summary.json").read_text()
    (out / "summary.json").write_text(text.replace('"run": "', '"run": "0'))
    refused("and summary.json of 0", unskew.resume, out)


def test_only_true_and_false_accept_changed_code(tmp_path):
    for given in ("no", 1, None):
        refused("accept_changed_code: expected True or False", unskew.resume, tmp_path, accept_changed_code=given)


def test_another_executor_that_gives_the_same_bits(tmp_path):
    unskew.run(**QUICK, out=tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    assert unskew.resume(tmp_path / "run", executor="pool").run.execution.executor == "pool"
    refused("continues with serial, pool, ray or auto only", unskew.resume, tmp_path / "run", executor="stacked")
    refused("executor: expected a name such as", unskew.resume, tmp_path / "run", executor=3)


# ------------------------------------------------------------------------------------------- where the folder is


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def move(row):
        os.chdir(tmp_path / "elsewhere")

    result = unskew.run("fedper", clients=2, rounds=2, out="run", watch=move)
    assert result.folder == tmp_path / "run" and not list((tmp_path / "elsewhere").iterdir())
    assert isinstance(result.client_model(1), unskew.Model)
    monkeypatch.chdir(tmp_path)
    refused("run is there already and holds a finished run", unskew.run, **QUICK, out="run")
    resumed = unskew.resume("run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert isinstance(resumed.client_model(1), unskew.Model) and resumed.folder == tmp_path / "run"


def test_the_number_of_a_client_may_be_numpy_s_or_torch_s():
    result = unskew.run("fedper", **QUICK)
    for client in (np.int64(1), torch.tensor(1), np.array(1)):
        own = result.client_model(client)
        assert all(
            torch.equal(a, b) for a, b in zip(own.parameters(), result.client_model(1).parameters(), strict=True)
        )
    for client in (np.int64(2), torch.tensor(-1), True, torch.tensor(True), 1.0, "1", torch.tensor([0, 1])):
        refused("expected a client from 0 to 1", result.client_model, client)


# --------------------------------------------------------------------------------------------------- networks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat, self.fc = nn.Flatten(), nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(self.flat(x))


class Locked(Net):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Refusing(Net):
    def __deepcopy__(self, memo):
        raise RuntimeError("not me")


class InPlace(Net):
    def forward(self, x):
        return super().forward(x.mul_(2))


class Clamped(Net):
    def forward(self, x):
        return super().forward(x.relu_())


def old_weight_norm():
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(net.fc)
    return net


def hooked():
    net = Net()
    net.fc.weight.register_hook(lambda grad: grad * 0)
    return net


@pytest.mark.parametrize(("make", "line"), [
    (Locked, "model Locked cannot be copied"),
    (Refusing, "give a network that copy.deepcopy can copy"),
    (old_weight_norm, "torch.nn.utils.parametrizations"),
    (InPlace, "model InPlace changes its input in place"),
    (Clamped, "model Clamped changes its input in place"),
    (hooked, "'fc.weight' has a gradient hook, which runs do not call"),
    (lambda: Net().state_dict(), "a state_dict holds weights only; load them into a network, net.load_state_dict(...)"),
    (lambda: Net, "got the class Net; write Net()"),
    (lambda: (lambda: Net()), "call it, and hand over the network that it makes"),
    (lambda: [Net()], "model: expected a name such as"),
])  # fmt: skip
def test_a_network_that_cannot_be_used_is_named(make, line):
    refused(line, unskew.run, model=make(), head="fc", **QUICK)


# ------------------------------------------------------------------------------------------------------- data


def test_group_names_are_a_list_of_names():
    x, y = torch.rand(4, 2), torch.tensor([0, 1, 0, 1])
    samples = unskew.Samples(x, y)
    for names in (None, "ab", 3):
        refused("expected group_names as a list of names", unskew.Dataset, "d", samples, samples, classes=("a", "b"),
                mean=(0.0,), std=(1.0,), groups=y, group_names=names)  # fmt: skip


def test_masked_arrays_are_refused():
    masked = np.ma.masked_less(np.random.rand(4, 2).astype(np.float32), 0.5)
    refused("a masked array", unskew.Samples, masked, torch.tensor([0, 1, 0, 1]))


def test_changed_data_at_resume_ask_for_the_same_object(tmp_path):
    unskew.run(data=tiny_data(), out=tmp_path / "run", **QUICK)
    (tmp_path / "run/summary.json").unlink()
    other = tiny_data()
    other.train.x[0] += 1
    refused("hand over the Dataset that the run began with", unskew.resume, tmp_path / "run", data=other)


# ------------------------------------------------------------------------------------------------------ watch


async def waiting(row):
    pass


def yielding(row):
    yield row


class Waiting(unskew.Observer):
    async def finished(self, row):
        pass


@pytest.mark.parametrize("watch", [waiting, yielding, Waiting()])
def test_a_watch_that_would_never_run_is_refused(watch):
    refused("would never run", unskew.run, watch=watch, **QUICK)


# ----------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(("options", "line"), [
    ({"holdout": 0.5}, "it is evaluation.holdout: in Python **{\"evaluation.holdout\": ...}"),
    ({"threads": 2}, "it is execution.threads"),
    ({"thread": 2}, "did you mean execution.threads"),
    ({"local.lr": 0.1, "lr": 0.2}, "local.lr is given twice, as 'local.lr' and as 'lr'; give one"),
    ({"lr": 1e39}, "local.lr (--lr): input should be less than or equal to 3.4e+38, got 1e+39"),
    ({"weight_decay": 1e39}, "local.weight_decay (--weight-decay): input should be less than or equal to"),
    ({"rounds": 2.5}, "run.rounds (--rounds): input should be a whole number, got 2.5"),
    ({"epochs": "x"}, "local.epochs (--epochs): input should be a whole number, got 'x'"),
    ({"lr": "x"}, "local.lr (--lr): input should be a number, got 'x'"),
    ({"data_dir": "e" * 5000}, "data_dir: "),
    ({"out": "x\0y"}, "out: "),
])  # fmt: skip
def test_an_option_that_cannot_be_is_named(options, line):
    refused(line, unskew.run, **{**QUICK, **options})


def test_what_only_the_run_writes_is_not_offered():
    with pytest.raises(InputError) as caught:
        unskew.run(zzzzzz=1)
    assert not {"begun_in", "code", "code_changes"} & set(str(caught.value).replace(",", " ").split())


def test_so_many_seeds_are_refused_at_once(tmp_path):
    for seeds in (10**9, "1000000000", range(10**9)):
        refused("--seeds expects at most 10000", unskew.compare, "fedavg", seeds=seeds, out=tmp_path / "all")


def test_a_metric_belongs_to_the_table(tmp_path):
    refused("table(cells, title, metric=...)", unskew.compare, "fedavg", metric="last_k", out=tmp_path / "all")


def test_stragglers_that_are_never_online_are_said(caplog):
    result = unskew.run(clients=3, rounds=2, stragglers=1.0, straggler_online=0.0)
    assert [len(row["clients"]) for row in result.rounds[1:]] == [1, 1]
    assert "one of the sampled clients takes part in each round all the same" in caplog.text


# ----------------------------------------------------------------------------------------------------- tables


def test_tables_refuse_what_they_do_not_know(tmp_path):
    from unskew.report.comparison import table
    from unskew.report.tables import render

    refused("no runs", table, [], "x")
    cells = unskew.compare("fedavg,fedprox(mu=9)", seeds=1, out=Path(tmp_path) / "all", **QUICK)
    assert all(cell.folder.is_absolute() for cell in cells)
    refused("there is no form 'nope' of a table; known: csv, json, latex, md", render, table(cells, "x"), "nope")
    refused("there is no figure 'nope'", table, cells, "x", "nope")
    assert "bold: best" in render(table(cells, "x"), "md") and "bold: best" not in render(table(cells, "x"), "json")


# --------------------------------------------------------------------------------- networks, data and options of theirs


def handed_over():
    x, y = (torch.arange(60 * 64) % 251).byte().reshape(60, 1, 8, 8), torch.arange(60) % 4
    parts = unskew.Samples(x[:40], y[:40]), unskew.Samples(x[40:], y[40:])
    return unskew.Dataset("mine", *parts, classes=tuple("abcdefghij"), mean=(0.2,), std=(0.9,))


def test_options_of_what_is_handed_over():
    given = {**FEW, "data": handed_over()}
    line = "data.normalisation does nothing for a Dataset that is handed over; give it mean and std itself"
    refused(line, unskew.run, **given, **{"data.normalisation": "half"})
    refused("data.fingerprint does nothing", unskew.run, **given, **{"data.fingerprint": "x"})
    net = digits_net(nn.ReLU())
    refused("model.head does nothing for an nn.Module", unskew.run, **FEW, model=net, **{"model.head": "3"})


def test_a_head_that_is_not_there():
    refused("has no layer 'fc'; say head=\"3\" if that is", unskew.run, model=digits_net(nn.ReLU()), head="fc", **FEW)


def test_a_client_that_there_is():
    result = unskew.run("fedper", model="mlp", **FEW)
    refused("such as that of client 0: --client 0", result.model)


def test_what_an_opened_run_is_to_be_handed(tmp_path):
    unskew.run(out=tmp_path / "run", **{**FEW, "data": handed_over()}, model=digits_net(nn.ReLU()), head="3")
    without_data = unskew.open(tmp_path / "run", model=digits_net(nn.ReLU()), head="3")
    refused("with data=... of unskew.resume or unskew.open", without_data.model)
    without_model = unskew.open(tmp_path / "run", data=handed_over())
    refused("with model=... and head=... of unskew.resume or unskew.open", without_model.model)


def test_images_without_values(tmp_path):
    unskew.run(out=tmp_path / "run", model="mlp", **FEW)
    run = unskew.open(tmp_path / "run")
    images = torch.empty(2, 1, 8, 8, device="meta", dtype=run.data.train.x.dtype)
    for who in (run, run.client(0)):
        refused("got a tensor on device 'meta', which holds no values", who.predict, images)


def test_images_that_are_none(tmp_path):
    unskew.run("fedavg", out=tmp_path / "run", **{**EVEN, "rounds": 4, "checkpoint_every": 2})
    run, images = unskew.open(tmp_path / "run"), unskew.load("digits").test.x[:4]
    for given in (
        images > 3, np.ma.masked_less(images.numpy(), 3), np.array(images.tolist(), dtype=object), images.to_sparse(),
    ):  # fmt: skip
        with pytest.raises(InputError, match="predict: "):
            run.predict(given)
    pixels = images.float().numpy() if images.is_floating_point() else images.numpy().astype(">u2")
    assert torch.equal(run.predict(pixels.astype(pixels.dtype.newbyteorder(">"))), run.predict(images))
    with pytest.raises(InputError, match="title: expected a text"):
        run.plot(title=3)


def test_a_watch_of_two_arguments_is_refused():
    with pytest.raises(InputError, match=r"watch: .*<lambda> must take one argument, a round's row, got \(row, more\)"):
        play(watch=lambda row, more: None)
