"""A run opened from its folder gives the figures, models and predictions that the run had."""

import pytest
import torch
from torch import nn

import unskew
from small_runs import SMALL
from unskew import Dataset, InputError, Samples
from unskew.base import storage
from unskew.runs.exporting import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def make(method="fedavg", **options):
        key = f"{method} {sorted(options.items())}"
        if key not in made:
            made[key] = tmp_path_factory.mktemp("saved") / "run"
            unskew.run(**{**SMALL, "method": method, "out": made[key], **options})
        return made[key]

    return make


@pytest.mark.parametrize("options", [{}, {"model": "cnn8(norm=batch)"}, {"method": "fedetf"}])
def test_predictions_give_the_accuracy_of_the_summary(folder, options):
    run = unskew.open(folder(**options))
    scores = run.predict(run.data.test.x)
    right = (scores.argmax(1) == run.data.test.y).double().mean().item()
    assert right == run.summary["accuracy"]["last"]
    assert scores.shape == (len(run.data.test.y), 10)


@pytest.mark.parametrize("method", ["fedper", "fedas", "fedproto", "fedrod", "knnper", "ditto", "fedbabu"])
def test_a_clients_predictions_give_its_accuracy(folder, method):
    place = folder(method, clients_every=1, local_test="holdout")
    run = unskew.open(place)
    rows = [row for row in run._folder.client_rows() if row["round"] == 2 and "accuracy" in row]
    assert len(rows) == 3
    for row in rows:
        client = run.client(row["client"])
        own = client.test_samples()
        assert (client.predict(own.x).argmax(1) == own.y).double().mean().item() == row["accuracy"]


def test_a_clients_exported_model_gives_its_accuracy_in_plain_torch(folder):
    run = unskew.open(folder("fedper", clients_every=1, local_test="holdout"))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    names = {"body.1.weight": "1.weight", "body.1.bias": "1.bias", "head.weight": "3.weight", "head.bias": "3.bias"}
    for row in [row for row in run._folder.client_rows() if row["round"] == 2 and "accuracy" in row]:
        client = run.client(row["client"])
        held = storage.decode(write_model(client.model(), run.data, {}, ".safetensors"))["model"]
        net.load_state_dict({names[name]: value for name, value in held.items()})
        own = client.test_samples()
        scores = net(unskew.normalise(own.x, run.data.mean, run.data.std))
        assert (scores.argmax(1) == own.y).double().mean().item() == row["accuracy"]


def test_a_clients_model_predicts_as_the_client(folder):
    run = unskew.open(folder("fedper", clients_every=1, local_test="holdout"))
    client = run.client(1)
    x = client.test_samples().x
    with torch.no_grad():
        assert torch.equal(client.model()(unskew.normalise(x, run.data.mean, run.data.std)).logits, client.predict(x))
    assert set(client.state) == {"personal"}


def test_the_model_is_the_results(folder, tmp_path):
    result = unskew.run(**{**SMALL, "out": tmp_path / "run"})
    model = unskew.open(tmp_path / "run").model()
    assert all(torch.equal(value, result.model().state_dict()[name]) for name, value in model.state_dict().items())


def test_a_run_that_stopped_can_be_looked_at(tmp_path):
    def watch(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unskew.run(**{**SMALL, "rounds": 4, "checkpoint_every": 1, "out": tmp_path / "run"}, watch=watch)
    run = unskew.open(tmp_path / "run")
    assert not run.finished and run.predict(run.data.test.x).shape[1] == 10
    assert "unfinished" in repr(run)
    with pytest.raises(InputError, match=r"is not finished, so it has no summary; run 'unskew resume"):
        _ = run.summary
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*"))
    unskew.open(tmp_path / "run").model()
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*"))


def test_a_frame_of_the_rounds(folder):
    pandas = pytest.importorskip("pandas")
    frame = unskew.open(folder()).to_frame()
    assert isinstance(frame, pandas.DataFrame) and list(frame.index) == [0, 1, 2]
    assert frame.accuracy.iloc[-1] == unskew.open(folder()).summary["accuracy"]["last"]
    assert "seconds.clients" in frame.columns


def test_arrays_are_read_as_files_are(folder):
    run = unskew.open(folder(model="cnn8"))
    x = run.data.test.x[:20]
    expected = run.predict(x)
    last = x.permute(0, 2, 3, 1)
    for same in (
        x.numpy(),
        last.contiguous().numpy(),
        last.numpy().tolist(),
        x.to(torch.int64),
        Samples(x, torch.zeros(20)),
    ):
        assert torch.equal(run.predict(same), expected)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda x: x.float(), "the run was trained on uint8, from 0 to 255; got float32"),
        (lambda x: x[:, :, :4], r"expected images of shape \[N, 1, 8, 8\], got \[20, 1, 4, 8\]"),
        (lambda x: x[0], "expected"),
        (lambda x: x.to(torch.int64) - 1, "expected pixels in 0..255"),
        (lambda x: "no images", "expected images of numbers"),
    ],
)
def test_other_images_are_refused(folder, change, line):
    run = unskew.open(folder(model="cnn8"))
    with pytest.raises(InputError, match=line):
        run.predict(change(run.data.test.x[:20]))


def test_refusals(folder, tmp_path):
    with pytest.raises(InputError, match="is not a run folder"):
        unskew.open(tmp_path)
    run = unskew.open(folder("fedper", clients_every=1, local_test="holdout"))
    for ask in (run.model, lambda: run.predict(run.data.test.x)):
        with pytest.raises(InputError, match="fedper gives every client a model of its own"):
            ask()
    with pytest.raises(InputError, match="expected a client from 0 to 2, got 3"):
        run.client(3).model()


def test_data_handed_over_are_handed_over_again(tmp_path):
    digits = unskew.load("digits")
    mine = Dataset("mine", digits.train, digits.test, digits.classes, digits.mean, digits.std)
    unskew.run(**{**SMALL, "data": mine, "out": tmp_path / "run"})
    assert unskew.open(tmp_path / "run", data=mine).predict(digits.test.x).shape == (len(digits.test.y), 10)
    assert unskew.open(tmp_path / "run").summary["accuracy"]
    with pytest.raises(InputError, match="mine"):
        unskew.open(tmp_path / "run").model()
