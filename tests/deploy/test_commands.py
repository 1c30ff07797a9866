"""`unskew deploy` without processes: what it writes, what it refuses, and a site's own samples and model."""

import importlib.util
import json
import shlex
import stat

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("flwr")

from deploy.federation import play_directly, simulate, write_data
from unskew import Samples
from unskew.base import storage
from unskew.base.errors import InputError
from unskew.cli import main
from unskew.deploy.folder import DeployFolder
from unskew.deploy.samples import find_source, read_own
from unskew.deploy.site import Facts, Site

RUN = {"method": "fedper", "model": "mlp(hidden=[8])", "rounds": 2, "local": {"batch": 16},
       "evaluation": {"local_test": "holdout"}}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys):
    def answer(line):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["deploy", *shlex.split(line)])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return answer


def test_init_writes_what_server_and_sites_need(here, call):
    code, out, err = call("init fed --sites north,south --test test.npz --address 127.0.0.1:18555")
    assert (code, err) == (0, "") and "unskew deploy server fed" in out
    folder = DeployFolder(here / "fed")
    assert folder.read().sites == ["north", "south"] and folder.read().secure
    for name in ("north", "south"):
        site = folder.site(name)
        assert site.read().server == "127.0.0.1:18555"
        assert {path.name for path in site.path.iterdir()} == {"site.toml", "key", "key.pub", "ca.crt"}
        assert stat.S_IMODE(site.key.stat().st_mode) == 0o600 and stat.S_IMODE(site.path.stat().st_mode) == 0o700
    assert folder.site("north").key.read_bytes() != folder.site("south").key.read_bytes()
    assert not list((here / "fed").rglob("ca.key"))
    code, out, _ = call("status fed --json")
    assert code == 0 and json.loads(out)["server"] == "down"


REFUSED = {
    "no sites": ("init fed --test test.npz", "Missing option '--sites'"),
    "site with a slash": ("init fed --sites a/b --test test.npz", "expected names of letters, digits, - and _"),
    "site twice": ("init fed --sites a,a --test test.npz", "'a' is there twice"),
    "no test samples": ("init fed --sites a,b", "--test: expected the server's test samples"),
    "test file missing": ("init fed --sites a,b --test gone.npz", "gone.npz' does not exist"),
    "no port": ("init fed --sites a --test test.npz --address here", "expected an address such as 10.0.0.5:18000"),
    "plain text elsewhere": (
        "init fed --sites a --test test.npz --insecure --address 10.0.0.5:18000",
        "without TLS only 127.0.0.1 may be used",
    ),
    "folder in use": ("init . --sites a --test test.npz", "is not empty; choose a new folder"),
    "run file gone": ("init fed --sites a --test test.npz --run no.toml", "cannot read the run file no.toml"),
    "common test": ("init fed --sites a --test test.npz --run common.toml", "sites test on samples of their own"),
    "measures": ("init fed --sites a --test test.npz --run measure.toml", "sites measure nothing yet"),
    "no deployment": ("server nowhere", "is no deployment; make one with 'unskew deploy init"),
    "no site": ("site nowhere --data north.npz", "is no site's folder: it has no site.toml"),
    "no data": ("site made/sites/north", "--data: expected the site's samples"),
    "data missing": ("site made/sites/north --data ./gone", "the folder or file './gone' does not exist"),
    "no key": ("site bare --data north.npz", "lacks key; copy the site's whole folder"),
    "no server": ("run made", "no server answers at 127.0.0.1:9; start it with 'unskew deploy server"),
    "too many replies": ("run made --min-replies 3", "--min-replies: there are 2 sites, got 3"),
    "nothing to export": ("export made/sites/north -o m.safetensors --data north.npz", "holds no model yet"),
    "export over a file": ("export made/sites/north -o north.npz --data north.npz", "is there already"),
    "spoilt deploy.toml": ("server spoilt", "min_replies: Input should be greater than or equal to 1, got 0"),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """Two deployments and files that do not fit them."""
    folder = tmp_path_factory.mktemp("bad")
    write_data(folder)
    (folder / "common.toml").write_text('evaluation = {local_test = "common"}\n')
    (folder / "measure.toml").write_text('measure = ["drift"]\nevaluation = {local_test = "holdout"}\n')
    for name in ("made", "spoilt"):
        with pytest.raises(SystemExit):
            main(["deploy", "init", str(folder / name), "--sites", "north,south", "--address", "127.0.0.1:9", "--test",
                  str(folder / "test.npz")])  # fmt: skip
    file = folder / "spoilt" / "deploy.toml"
    file.write_text(file.read_text().replace("min_replies = 1", "min_replies = 0"))
    (folder / "bare").mkdir()
    (folder / "bare" / "site.toml").write_bytes((folder / "made/sites/north/site.toml").read_bytes())
    return folder


@pytest.mark.parametrize(("line", "text"), REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(bad, monkeypatch, call, line, text):
    monkeypatch.chdir(bad)
    code, out, err = call(line)
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1, err
    assert text in err
    assert not (bad / "fed").exists()


def test_without_flower_one_line_says_so(here, call, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = call("init fed --sites a --test test.npz")
    assert code == 2 and "install it with: pip install 'unskew[flower]'" in err and err.count("\n") == 1


# ------------------------------------------------------------------------------------ a site's own samples


def write_images(folder, classes):
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(3):
            Image.fromarray(np.full((8, 8), 40 * number + index, np.uint8)).save(folder / name / f"{index}.png")


def test_classes_of_a_folder_are_matched_by_name(tmp_path):
    write_images(tmp_path / "scans", ["bird", "dog"])
    own = read_own(find_source(f"folder('{tmp_path / 'scans'}', size=8, grey=true)"))
    site = Site(own.samples, tmp_path / "state", own.classes)
    facts = Facts(("ant", "bird", "cat", "dog"), (1, 8, 8), "uint8", (0.5,), (0.5,))
    assert site._take_data(facts).train.y.tolist() == [1, 1, 1, 3, 3, 3]
    with pytest.raises(InputError, match="samples of class 'bird', the run knows ant, dog"):
        site._take_data(Facts(("ant", "dog"), (1, 8, 8), "uint8", (0.5,), (0.5,)))
    with pytest.raises(InputError, match="this site's samples are uint8, the run expects float32"):
        site._take_data(Facts(("ant", "dog"), (1, 8, 8), "float32", (0.5,), (0.5,)))


def test_a_site_uses_all_its_samples_but_those_marked_as_test(tmp_path, caplog):
    x, y = np.zeros((6, 8, 8), np.uint8), np.array([0, 7, 7, 9, 9, 9])
    np.savez(tmp_path / "whole.npz", images=x, labels=y)
    whole = read_own(find_source(str(tmp_path / "whole.npz")))
    assert whole.samples.y.tolist() == y.tolist() and whole.classes is None and not caplog.text
    np.savez(tmp_path / "split.npz", train_images=x, train_labels=y, test_images=x[:2], test_labels=y[:2])
    assert len(read_own(find_source(str(tmp_path / "split.npz"))).samples) == 6
    assert "2 test samples beside the training samples are not used" in caplog.text


@pytest.mark.parametrize("method", ["fedper", "fedavg", "fedbabu"])
def test_an_exported_model_is_the_client_s_own(here, method):
    wanted = {**RUN, "method": method}
    _, sites = play_directly(here, here / "state", wanted)
    simulated = simulate(here, wanted)
    for number, site in enumerate(sites):
        made = site.export()
        assert storage.read_notes(made)["round"] == 2
        own = dict(simulated.client_model(number).named_parameters())
        found = storage.decode(made)["model"]
        assert found.keys() == own.keys() and all(torch.equal(found[name], own[name]) for name in own)


def test_a_restarted_site_exports_the_same(here):
    _, sites = play_directly(here, here / "state", RUN)
    again = Site(Samples(sites[1].samples.x, sites[1].samples.y), sites[1].folder)
    assert again.export() == sites[1].export()
