"""Real processes over Flower on this machine: TLS, keys, and the simulation's model to the last bit."""

import ssl
import subprocess

import pytest

pytest.importorskip("flwr")
import httpx

from deploy.federation import Federation, assert_same, simulate
from deploy.test_sites import SEVEN
from unskew.base.errors import InputError
from unskew.deploy import certificates
from unskew.deploy.flower import attendance
from unskew.deploy.flower.processes import end, find_command, find_free_port, make_environment
from unskew.deploy.site_folder import SiteFolder

SHORT = {"method": "scaffold", "model": "mlp(hidden=[16])", "rounds": 1, "local": {"batch": 16},
         "evaluation": {"local_test": "none"}}  # fmt: skip


def test_two_sites_give_the_simulation_s_model(tmp_path):
    federation = Federation(tmp_path, sites=2)
    try:
        federation.start_all()
        run = federation.run(SHORT)
        assert_same(run, simulate(tmp_path, SHORT))
        exported = tmp_path / "own.safetensors"
        federation.call("export", str(federation.deploy.site("north").path), "-o", str(exported))
        assert exported.stat().st_size > 1000
        logs = [federation.deploy.link_log, *(federation.deploy.site(name).log for name in federation.names)]
        assert not any("no warm process" in log.read_text() for log in logs)
        assert_control_is_closed(federation)
    finally:
        federation.close()


def assert_control_is_closed(federation):
    """A site, which holds ca.crt, cannot start runs or register keys at the server's port."""
    own = federation.deploy.site("north").path
    trust = ssl.create_default_context(cafile=str(own / "ca.crt"))
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"):
        assert httpx.post(f"https://{federation.address}{path}", verify=trust).status_code == 403
        assert f"refused POST '{path}' from 127.0.0.1" in federation.said("server")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three sites that stay for all tests of this file."""
    federation = Federation(tmp_path_factory.mktemp("three"))
    try:
        federation.start_all()
        yield federation
    finally:
        federation.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", SEVEN)
def test_three_sites_give_the_simulation_s_model(three, method):
    evaluation = {"local_test": "holdout", "every": 2}
    table = {"method": method, "model": "cnn8(norm=batch)", "rounds": 2, "local": {"batch": 16, "epochs": 1},
             "evaluation": evaluation}  # fmt: skip
    assert_same(three.run(table), simulate(three.folder, table))


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_it_was(three):
    table = {**SHORT, "rounds": 3, "seed": 5, "local": {"batch": 16, "steps": 40}}
    before = three.said("north").count("round 2: training")
    running = three.order(table)
    three.wait_for("north", "round 2: training", times=before + 1)
    assert "goes on with it" in three.call("stop", str(three.deploy.path))
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 2 and "the run was stopped" in said
    assert_same(three.run(table), simulate(three.folder, table))


# ------------------------------------------------------------------------------------------ who is refused


def try_node(three, tmp_path, *flags):
    """What Flower's node says when it is started with these flags at this server."""
    words = [find_command("flower-supernode"), "--superlink", three.address, "--host", "127.0.0.1", "--port",
             str(find_free_port()), "--max-retries", "2", *flags]  # fmt: skip
    with (tmp_path / "said").open("wb") as said:
        node = subprocess.Popen(words, env=make_environment(tmp_path), stdout=said, stderr=said, start_new_session=True)
    try:
        code = node.wait(240)
    finally:
        end(node)
    return code, (tmp_path / "said").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--root-certificates", "{own}/ca.crt", "--auth-supernode-private-key", "{other}/keys/key"], "code: 2004"),
        (["--root-certificates", "{own}/ca.crt"], "code: 2001"),
        (["--root-certificates", "{other}/ca.crt", "--auth-supernode-private-key", "{own}/key"],
         "CERTIFICATE_VERIFY_FAILED"),
        (["--insecure"], "Server disconnected without sending a response"),
    ],
    ids=["wrong key", "no key", "wrong CA", "plain text"],
)  # fmt: skip
def test_strangers_are_refused(three, tmp_path, flags, reason):
    other = tmp_path / "other"
    other.mkdir()
    keys = other / "keys"
    keys.mkdir()
    certificates.make_all(other, [keys], "127.0.0.1")
    own = three.deploy.site("north").path
    code, said = try_node(three, tmp_path, *(flag.format(own=own, other=other) for flag in flags))
    assert code == 1 and reason in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoilt", "reason"), [("key", "refuses this site's key"), ("ca.crt", "not signed by this folder's ca.crt")]
)
def test_a_site_says_why_it_is_refused(three, tmp_path, monkeypatch, spoilt, reason):
    other, own = tmp_path / "other", SiteFolder(tmp_path / "site")
    for folder in (other, own.path):
        folder.mkdir()
    certificates.make_all(other, [own.path], "127.0.0.1")
    keep = {"key": ["ca.crt"], "ca.crt": ["key", "key.pub"]}[spoilt]
    for name in keep:  # the rest is of another deployment
        (own.path / name).write_bytes((three.deploy.site("west").path / name).read_bytes())
    own.write(three.deploy.site("west").read().model_copy(update={"data": str(three.folder / "west.npz")}))
    monkeypatch.setattr(attendance, "PATIENCE", 1.0)
    with pytest.raises(InputError, match=reason):
        attendance.attend(own, own.read(), lambda text: None)
