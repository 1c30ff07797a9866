"""The commands."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew import __version__
from unskew.base.errors import ClientError, InputError, one_line
from unskew.base.process import keep_freed_memory
from unskew.base.text import Table
from unskew.cli import listing
from unskew.cli.flags import to_run, with_run_flags
from unskew.cli.progress import DownloadProgress, RoundProgress, errors, note
from unskew.report.tables import Format
from unskew.runs.comparison import Metric
from unskew.runs.config import load_plugins

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning when clients' data are skewed: run, compare, resume.",
)  # fmt: skip

DataDir = Annotated[Path | None, typer.Option(help="where the data files are; else UNSKEW_DATA, else the user's cache")]
Json = Annotated[bool, typer.Option("--json", help="print the result as one JSON object on standard output")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]


@app.command()
@with_run_flags()
def run(
    config: Table,
    out: Annotated[Path | None, typer.Option(help="the run's folder; default: runs/<method>-<data>-<hash>")] = None,
    data_dir: DataDir = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="show where the seconds went, and write profile.json")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Runs one method and leaves a folder with its results.

    Example: unskew run --method "fedprox(mu=0.1)" --split dirichlet:0.1 --clients 20 --sample 0.25 --rounds 20
    """
    from unskew.core.profile import Profile
    from unskew.runs import building, engine

    prepared = building.prepare(to_run(config), data_dir, download=DownloadProgress())
    wanted = prepared.config
    path = out or Path("runs") / wanted.title
    stopwatch = Profile() if profile else None
    with RoundProgress(str(wanted.method), wanted.rounds, quiet) as progress:
        result = engine.start(prepared, path, watch=progress, profile=stopwatch)
    listing.show_result(result.summary, path, as_json)
    if stopwatch is not None:
        listing.show_profile(stopwatch.seconds, path, as_json)


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder")],
    data_dir: DataDir = None,
    executor: Annotated[str | None, typer.Option(help="another executor than the run began with")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Goes on with an interrupted run, bit for bit, from its newest whole checkpoint."""
    from unskew.runs import engine
    from unskew.runs.folder import RunFolder

    folder, config = RunFolder.open(path)
    if folder.finished:
        summary = folder.summary()
        note(f"{path} is finished already; nothing to do")
        listing.show_result(summary, path, as_json)
        return
    with RoundProgress(str(config.method), config.rounds, quiet) as progress:
        result = engine.resume(path, data_dir=data_dir, watch=progress, executor=executor)
    listing.show_result(result.summary, path, as_json)


@app.command()
@with_run_flags("method", "seed")
def compare(
    config: Table,
    methods: Annotated[str, typer.Option(help='methods with their options: "fedavg,fedprox(mu=0.1),scaffold"')],
    seeds: Annotated[str, typer.Option(help="how many seeds (3 means 0, 1, 2), or a list such as 1024,2025")] = "3",
    out: Annotated[
        Path | None,
        typer.Option(
            help="the comparison's folder, whose finished runs are not run again; default: runs/compare-<hash>"
        ),
    ] = None,
    metric: Annotated[Metric, typer.Option(help="which figure of the accuracy curve to compare")] = "last",
    form: Annotated[Format | None, typer.Option("--format", help="print the table in this form")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compares methods on the same split, clients, batches and initial weights, over several seeds."""
    from unskew.cli.compare import run_comparison

    run_comparison(config, methods, seeds, out, metric, "json" if as_json else form, data_dir, quiet)


@app.command()
@with_run_flags("method", "model", "rounds", "epochs", "steps", "batch", "lr", "lr_decay", "momentum", "weight_decay",
                "augment", "buffers", "dropout", "stragglers", "straggler_online", "sample", "eval_every",
                "clients_every", "executor", "workers", "retries", "chunk", "compile", "memory_format", "device",
                "precision", "checkpoint_every", "measure")  # fmt: skip
def split(
    config: Table,
    out: Annotated[Path | None, typer.Option(help="save the partition as JSON; use it with --split file:PATH")] = None,
    csv: Annotated[Path | None, typer.Option(help="export client, sample index and label as CSV")] = None,
    picture: Annotated[Path | None, typer.Option(help="draw the partition into this PNG")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Shows and saves a partition: counts per client and class, how skewed it is, a picture.

    Splits: iid, dirichlet:ALPHA, dirichlet_uncapped:ALPHA, shards:N, domain, natural, file:PATH; for any number of
    clients, computed when needed: ranges (disjoint), virtual:SAMPLES (each draws for itself; they may share samples).
    """
    from unskew.cli.split import show_split
    from unskew.runs import building

    wanted = to_run(config)
    data = building.prepare_data(wanted, data_dir, None, DownloadProgress())
    show_split(wanted, data, building.cut(wanted.resolve(data), data), out, csv, picture, as_json)


Name = Annotated[str | None, typer.Argument(help="one of them, to be explained")]


@app.command()
def methods(
    name: Name = None,
    plugin: Annotated[list[str] | None, typer.Option(help="a Python file to import first")] = None,
    as_json: Json = False,
) -> None:
    """Lists the methods, or explains one (or a term) with all its options."""
    load_plugins({"plugins": plugin or []})
    listing.show_methods(name, as_json)


@app.command()
def data(name: Name = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Lists the data sets, or explains one: its files, and where they were looked for."""
    listing.show_data(name, data_dir, as_json)


@app.command()
def models(
    name: Name = None,
    shape: Annotated[str, typer.Option(help="input shape for the parameter counts: channels,height,width")] = "3,32,32",
    classes: Annotated[int, typer.Option(help="number of classes for the parameter counts")] = 10,
    as_json: Json = False,
) -> None:
    """Lists the models with their parameter counts, or explains one."""
    listing.show_models(name, shape, classes, as_json)


@app.command()
def measures(
    name: Name = None,
    plugin: Annotated[list[str] | None, typer.Option(help="a Python file to import first")] = None,
    as_json: Json = False,
) -> None:
    """Lists what a run can record besides (--measure), or explains one of them."""
    load_plugins({"plugins": plugin or []})
    listing.show_measures(name, as_json)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"unskew {__version__}\n")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="log what happens inside")] = False,
) -> None:
    """Federated learning when clients' data are skewed: run, compare, resume."""
    logging.getLogger("unskew").setLevel(logging.DEBUG if debug else logging.INFO)


INTERRUPTED = 130


class _Lines(logging.Handler):
    """Log records as plain lines on standard error, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


def main(arguments: list[str] | None = None) -> None:
    """The command's entry: bad input is one line and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign shows ? instead
    logging.getLogger("unskew").handlers = [_Lines()]
    keep_freed_memory()
    sys.exit(_guarded(arguments))


def _guarded(arguments: list[str] | None) -> int:
    try:
        code: Any = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # what the command-line library makes of Ctrl-C
            return _interrupted()
        return code if isinstance(code, int) else 0
    except InputError as error:
        return _say(one_line(error))
    except ClientError as error:
        if error.details:
            errors.print(error.details.rstrip())
        _say(f"{one_line(error)}; finished rounds are kept, 'unskew resume' goes on from the last checkpoint")
        return 1
    except KeyboardInterrupt:
        return _interrupted()
    except OSError as error:
        return _no_more_output() if isinstance(error, BrokenPipeError) else _told(error)
    except Exception as error:
        if hasattr(error, "format_message"):  # a wrong flag or value, told by the command-line library
            message = " ".join(error.format_message().split()) or "no command was given"
            return _say(f"{message} (see --help)")
        if type(error).__name__ == "Abort":
            return _interrupted()
        raise


def _interrupted() -> int:
    _say("interrupted; 'unskew resume RUN' goes on with a run, the same command again with a comparison")
    return INTERRUPTED


def _told(error: OSError) -> int:
    """What the system refused: a full disk, a missing right, a name that is too long."""
    _no_more_output()
    where = error.filename or "standard output or a file"
    return _say(f"{error.strerror or one_line(error)}: {where}; make room or choose another place")


def _no_more_output() -> int:
    """What could not be printed stays unprinted: the interpreter shall not try again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141  # as if ended by SIGPIPE, which is what `| head` expects


def _say(text: str) -> int:
    errors.print(f"error: {text}", style="bold red" if errors.is_terminal else None)
    return 2
