"""`unskew deploy`: a federation of real sites, from its folder to the sites' own models."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.base import storage
from unskew.base.errors import InputError, let_pass
from unskew.base.text import Table, split_list
from unskew.cli import signals
from unskew.cli.output import DIVERGED, console, make_table, note, print_json, show_result
from unskew.cli.progress import RoundProgress
from unskew.cli.resume import show_finished
from unskew.cli.shared_flags import Json, Quiet
from unskew.deploy import presence
from unskew.deploy.flower import processes, training
from unskew.deploy.folder import DEFAULT_RUN, DeployFolder, Deployment
from unskew.deploy.samples import find_source, read_own
from unskew.deploy.server import prepare_deployment, prepare_table
from unskew.deploy.site import Site
from unskew.deploy.site_folder import AboutSite, SiteFolder
from unskew.runs.config import read_file
from unskew.runs.folder import RunFolder

deploy = typer.Typer(
    add_completion=False, rich_markup_mode="rich", no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Trains over real sites, which keep their data: a server, sites with their own keys, personal models.\n\n"
         "In this order: init, then server, then site at every place, then run; docs/deployment.md walks through it.",
)  # fmt: skip

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the deployment's folder")]
SitePlace = Annotated[Path, typer.Argument(metavar="SITEFOLDER", help="the site's folder (sites/NAME of a deployment)")]
OwnData = Annotated[
    str,
    typer.Option(
        "--data", help="the site's samples: an .npz file, a folder with a sub-folder of images per class, or a data "
                       "set's text, such as folder('scans', size=64, grey=true); default: as said last",
    ),
]  # fmt: skip


@deploy.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder")],
    sites: Annotated[str, typer.Option(help="the sites' names: north,south,west")],
    address: Annotated[str, typer.Option(help="where sites find the server")] = "127.0.0.1:18000",
    secure: Annotated[
        bool, typer.Option("--secure/--insecure", help="TLS and a key for each site, or plain text on this machine")
    ] = True,
    run: Annotated[Path | None, typer.Option(help="a run file: method, model, rounds; default: FedAvg")] = None,
    test: Annotated[
        str, typer.Option(help="the server's test samples: an .npz file, a folder of images, or a data set's text")
    ] = "",
) -> None:
    """Makes a deployment's folder: the run, certificates, and a folder for each site.

    Example: unskew deploy init hospital --sites north,south,west --test test.npz --run run.toml
    """
    names = [name.strip() for name in split_list(sites) if name.strip()]
    table, data = _read_run(run)
    if not (test or data):
        raise InputError("--test: expected the server's test samples, such as test.npz; it fixes classes and shapes")
    about = _check(names, address, secure, str(find_source(test or data)))
    prepare_table(table, about)  # whatever does not fit is said before anything is written
    folder = DeployFolder(path)
    folder.create(about, table)
    if secure:
        from unskew.deploy import certificates

        host, _ = processes.split_address(address, secure)
        certificates.make_all(folder.server, [folder.site(name).path for name in names], host)
    console.print(f"made {path}: {path / 'run.toml'} says what is trained, {path / 'deploy.toml'} the rest")
    place = shlex.quote(str(path))
    console.print(f"next: unskew deploy server {place}")
    console.print(f"at each site, with its own folder: unskew deploy site {place}/sites/NAME --data DATA")


def _read_run(file: Path | None) -> tuple[Table, str]:
    """The table of a run file without what sites have of their own, and the data that it names."""
    table = dict(read_file(file)) if file is not None else dict(DEFAULT_RUN)
    data = table.pop("data", "")
    for key in ("split", "split_seed", "clients", "code", "code_changes", "begun_in", "extended"):
        if table.pop(key, None) is not None:
            note(f"{file}: {key} is left out: every site is a client with data of its own")
    if isinstance(data, dict):
        from unskew.data.sources.base import sources

        data = str(sources.build(data))
    return table, str(data)


def _check(names: list[str], address: str, secure: bool, test: str) -> Deployment:
    from pydantic import ValidationError

    processes.find_command("flower-superlink")
    processes.split_address(address, secure)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"--sites: '{twice}' is there twice; give each site a name of its own")
    try:
        return Deployment(sites=names, address=address, secure=secure, test=test)
    except ValidationError:
        raise InputError(
            f"--sites: expected names of letters, digits, - and _, such as north,south,west; got '{', '.join(names)}'"
        ) from None


@deploy.command()
def server(path: Folder) -> None:
    """Runs the server until Ctrl-C: carries messages, knows sites by their keys, keeps what it knows in DIR/server."""
    folder = DeployFolder(path)
    processes.find_command("flower-superlink")
    from unskew.deploy.flower import serving

    signals.explain(lambda: f"the server has ended; start it again with 'unskew deploy server {_quote(path)}'")
    serving.serve(folder, note)


@deploy.command()
def site(path: SitePlace, data: OwnData = "") -> None:
    """Runs a site until Ctrl-C: holds its data, trains when it is asked to, keeps its personal model in SITEFOLDER."""
    folder, about = _open_site(path, data)
    processes.find_command("flower-supernode")
    from unskew.deploy.flower import attendance

    signals.explain(lambda: f"the site has ended; start it again with 'unskew deploy site {_quote(path)}'")
    attendance.attend(folder, about, note)


def _open_site(path: Path, data: str) -> tuple[SiteFolder, AboutSite]:
    """A site's folder; remembers where its samples are."""
    folder = SiteFolder(path)
    about = folder.read()
    if not (data or about.data):
        raise InputError("--data: expected the site's samples: an .npz file or a folder of images")
    if data:
        about = about.model_copy(update={"data": str(find_source(data))})
        folder.write(about)
    return folder, about


@deploy.command()
def run(
    path: Folder,
    min_replies: Annotated[
        int | None, typer.Option(min=1, help="sites that must answer in a round; default: as deploy.toml says")
    ] = None,
    round_timeout: Annotated[
        float | None, typer.Option(min=1, help="seconds that sites have for an answer; default: as deploy.toml says")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Trains what DIR/run.toml says over the sites, or goes on with it, and leaves a run folder in DIR/runs.

    Ctrl-C leaves the run alone: the same command shows it again, 'unskew deploy stop DIR' stops it.
    """
    folder = DeployFolder(path)
    about, config = folder.read(), prepare_deployment(folder).config
    out = path / "runs" / config.title
    if RunFolder(out).finished:
        show_finished(out, as_json)
        return
    if min_replies is not None and min_replies > len(about.sites):
        raise InputError(f"--min-replies: there are {len(about.sites)} sites, got {min_replies}")
    begun = training.order(folder, about, config.title, min_replies, round_timeout)
    place = _quote(path)
    signals.explain(
        lambda: (
            f"the run goes on at the server: 'unskew deploy run {place}' shows it, 'unskew deploy stop {place}' "
            "stops it"
        )
    )
    with RoundProgress(str(config.method), config.rounds, quiet) as progress:
        for row in begun.follow(note):
            progress(row)
    summary = RunFolder(out).summary()
    show_result(summary, out, as_json)
    if summary["diverged"]:
        raise typer.Exit(DIVERGED)


@deploy.command()
def status(path: Folder, as_json: Json = False) -> None:
    """Shows whether the server is at work, which sites are connected, and how far runs are."""
    folder = DeployFolder(path)
    about = folder.read()
    up = presence.find(folder.lock) is not None and processes.is_listening(about)
    found: dict[str, Any] = {
        "server": "up" if up else "down", "address": about.address, "secure": about.secure,
        "sites": _find_sites(folder, about) if up else dict.fromkeys(about.sites, "unknown"),
        "runs": [training.describe(folder, order) for order in folder.list_orders()],
    }  # fmt: skip
    if as_json:
        print_json(found)
        return
    rows = make_table("what", "state", title=f"{path}: server {found['server']} at {about.address}")
    for name, state in found["sites"].items():
        rows.add_row(f"site {name}", state)
    for each in found["runs"]:
        figures = [f"round {each['round']}"] if each["round"] is not None else []
        figures += [f"accuracy {100 * each['accuracy']:.2f} %"] if each["accuracy"] is not None else []
        figures += [f"sites' own {100 * each['personal']:.2f} %"] if each["personal"] is not None else []
        rows.add_row(f"run {each['run']}", ", ".join([each["state"], *figures]))
    console.print(rows)


def _find_sites(folder: DeployFolder, about: Deployment) -> dict[str, str]:
    nodes = processes.list_nodes(folder)
    if not about.secure:  # without keys nobody knows whose node it is
        online = sum(node["status"] == "online" for node in nodes.values())
        return {"(any)": f"{online} of {len(about.sites)} connected"}
    known = processes.read_nodes(folder)
    states = {name: str(nodes.get(known.get(name, -1), {}).get("status", "unknown")) for name in about.sites}
    return {name: {"online": "connected", "offline": "gone", "registered": "never seen"}.get(state, state)
            for name, state in states.items()}  # fmt: skip


@deploy.command()
def stop(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="the deployment's folder, or a site's")],
    everything: Annotated[bool, typer.Option("--server", help="also end the server's process")] = False,
) -> None:
    """Stops the run that is on, which 'unskew deploy run' goes on with; of a site's folder, the site's process."""
    if (path / "site.toml").is_file():
        _end_process(SiteFolder(path).lock, f"site {path}")
        return
    folder = DeployFolder(path)
    folder.read()
    found = training.find_at_work(folder)
    if found is not None:
        found.stop()
        note(f"stopped {found.out}; 'unskew deploy run {_quote(path)}' goes on with it")
    elif not everything:
        note("no run is on; nothing to do")
    if everything:
        _end_process(folder.lock, "the server")


def _end_process(lock: Path, what: str, seconds: float = 40) -> None:
    """Ends the process that holds a lock, and waits for it."""
    number = presence.find(lock)
    if not number:
        note(f"{what} is not at work; nothing to do")
        return
    os.kill(number, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while presence.find(lock) is not None:
        if time.monotonic() > deadline:
            raise InputError(f"{what} (process {number}) has not ended within {seconds:g} s; end it by hand")
        time.sleep(0.2)
    note(f"{what} has ended")


@deploy.command()
def export(
    path: SitePlace,
    out: Annotated[Path, typer.Option("--out", "-o", help="the file to write: model.safetensors")],
    run: Annotated[
        str | None, typer.Option(help="which run, a folder of SITEFOLDER/state; default: the newest")
    ] = None,
    data: OwnData = "",
) -> None:
    """Writes a site's own model, as its last test used it, to a safetensors file."""
    if out.exists():
        raise InputError(f"{out} is there already; choose another --out")
    folder, about = _open_site(path, data)
    own = read_own(find_source(about.data))
    made = Site(own.samples, folder.state, own.classes).export(run)
    try:
        storage.write_atomic(out, made)
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot write {out}: {error.strerror}; choose another --out") from None
    notes = storage.read_notes(made)
    console.print(f"{notes['method']} after round {notes['round']}: model of site {about.name} in {out}")


def _quote(path: Path) -> str:
    return shlex.quote(str(path))
