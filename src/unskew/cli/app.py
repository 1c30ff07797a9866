"""The command `unskew`: finds the command that is called, imports it, and turns what it raises into exit codes."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import logging
import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from unskew import __version__
from unskew.base.errors import InputError, SlotError, one_line
from unskew.cli import signals, streams
from unskew.cli.output import errors, note, reserve_output

COMMANDS = {
    "run": ("run.run", "Runs one method and leaves a folder with its results."),
    "resume": ("resume.resume", "Resumes an interrupted run, bit for bit, from its newest complete checkpoint."),
    "extend": ("extend.extend", "Continues a run to more rounds, in a folder of its own."),
    "compare": (
        "compare.compare",
        "Compares methods on the same split, clients, batches and initial weights, over several seeds.",
    ),
    "tune": (
        "tune.tune",
        "Tunes every method with the same budget on validation data, then compares the choices on fresh seeds.",
    ),
    "reproduce": (
        "reproduce.reproduce",
        "Reproduces the papers' tables and figures: runs their cells and prints ours beside the printed figures.",
    ),
    "list": (
        "look.list_runs",
        "Lists the runs in a folder, the newest last: what was run, how far it came, how good it is.",
    ),
    "show": ("look.show", "Shows a run: its options and figures, or how far it came."),
    "plot": (
        "look.plot",
        "Draws the accuracy of runs over rounds into one picture; runs that differ in their seeds alone are one line.",
    ),
    "watch": (
        "watch.watch",
        "Shows runs while they go on, from another terminal or machine: curves, phase, time left; or as a local page.",
    ),
    "report": (
        "report.report",
        "Writes runs and comparisons as one interactive page, from their folders alone; finished or not.",
    ),
    "predict": ("use.predict", "Predicts with a run's model, or a client's own, and tells the accuracy."),
    "export": ("use.export", "Writes a run's model, or a client's own, as a file for other programs."),
    "track": (
        "track.track",
        "Shows runs in trackers, finished ones or as far as they came; what was shown before is not shown again.",
    ),
    "split": (
        "split.split",
        "Shows and saves a partition: counts per client and class, how skewed it is, a picture.",
    ),
    "deploy": (
        "deploy.deploy",
        "Trains over real sites, which keep their data: a server, sites with their own keys, personal models.",
    ),
    "methods": (
        "methods.list_methods",
        "Lists the methods and what combines with them, or explains one with all its options.",
    ),
    "data": (
        "listing.list_data",
        "Lists the data sets, or explains one: its files, and where they were looked for.",
    ),
    "models": ("listing.list_models", "Lists the models with their parameter counts, or explains one."),
    "measures": (
        "listing.list_measures",
        "Lists what a run can also record (--measure), or explains one of them.",
    ),
    "wire": (
        "listing.list_processors",
        "Lists what can happen to replies on their way to the server (--wire), or explains one of them.",
    ),
}
"""The commands: the module and function in unskew.cli, and the line in the help, which needs no import."""

INTERRUPTED, CLOSED_PIPE = 130, 141
"""Exit codes as if ended by SIGINT, and by SIGPIPE, which is what `| head` expects."""
EXIT_CODES = (
    "Exit codes: 0 done; 1 a client's work failed; 2 bad input, or the system refused something; 3 the run diverged; "
    "130, 143, 129 ended by Ctrl-C, SIGTERM, SIGHUP."
)


class LazyGroup(TyperGroup):
    """Knows its commands by name and line; imports the one that is called, as all of them need torch."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first argument names, imported, and the other arguments."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load_command(name), rest


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning when clients' data are skewed: run, compare, resume.", epilog=EXIT_CODES,
)  # fmt: skip
for _name, (_, _line) in COMMANDS.items():
    app.command(_name, help=_line)(lambda: None)


def load_command(name: str) -> Any:
    """The command of that name, its module imported."""
    module, _, function = COMMANDS[name][0].partition(".")
    gc.disable()  # what imports make stays; looking through it for garbage would take up to half a second
    from unskew.base.process import keep_freed_memory

    found = getattr(importlib.import_module(f"unskew.cli.{module}"), function)
    gc.freeze()
    gc.enable()
    keep_freed_memory()
    signals.begin_work()
    alone = found
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(name)(found)
    return refuse_empty_paths(typer.main.get_command(alone))


def refuse_empty_paths(command: Any) -> Any:
    """The command, to which an empty path (`--out=$UNSET`) is an error; else it would be the current folder."""
    for each in getattr(command, "commands", {}).values():
        refuse_empty_paths(each)
    for option in command.params:
        if option.type.name == "path":
            option.type.convert = _refusing_empty(option.type)
    return command


def _refusing_empty(kind: Any) -> Any:
    convert = kind.convert

    def check(value: Any, option: Any, context: Any) -> Any:
        if value == "":
            kind.fail("a path is expected, and this is empty", option, context)
        return convert(value, option, context)

    return check


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"unskew {__version__}\n")
        raise typer.Exit


@app.callback()
def set_up(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="log what happens inside; show tracebacks")] = False,
) -> None:
    """Federated learning when clients' data are skewed: run, compare, resume."""
    logging.getLogger("unskew").setLevel(logging.DEBUG if debug else logging.INFO)


class _LogLines(logging.Handler):
    """Log records as plain lines on standard error, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


def main(arguments: list[str] | None = None) -> None:
    """The command's entry: bad input is one line and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows ? instead
    logging.getLogger("unskew").handlers = [_LogLines()]
    sys.exit(_call(arguments))


def _call(arguments: list[str] | None) -> int:
    """Calls the command; gives the exit code."""
    try:
        return _try_command(arguments)
    except BaseException:
        if signals.was_received():  # it can come out as another error, of a module that was being imported
            return _report_interrupt()
        raise


def _try_command(arguments: list[str] | None) -> int:
    try:
        for_programs = {"--json", "--format"} & {each.partition("=")[0] for each in arguments or sys.argv[1:]}
        with reserve_output() if for_programs else nullcontext():
            code: Any = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED or signals.was_received():  # what the command-line library makes of Ctrl-C
            return _report_interrupt()
        return code if isinstance(code, int) else 0
    except InputError as error:
        return _report(one_line(error))
    except SlotError as error:
        return _report_failure(error)
    except KeyboardInterrupt:
        return _report_interrupt()
    except BrokenPipeError:
        return _discard_output()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # what the libraries make of it
            return _discard_output()
        from unskew.core.checks.faults import is_raised_outside

        if is_raised_outside(end):  # else exit 0 would say that all is done
            _report(f"your own code called sys.exit({end.code!r}), and so ended the command; raise an error instead")
            return 1
        raise
    except OSError as error:
        return _report_refusal(error)
    except Exception as error:
        if hasattr(error, "format_message"):  # the command-line library's error for a wrong flag or value
            message = " ".join(error.format_message().split()) or "no command was given"
            if type(error).__name__ == "NoSuchOption":  # the libraries' versions say it in different ways
                message = f"No such option: {error.option_name}"  # type: ignore[attr-defined]
            message = _explain_flag(error) or message
            return _report(f"{message} (see --help)")
        if type(error).__name__ == "Abort":
            return _report_interrupt()
        return _blame_own_code(error)


def _blame_own_code(error: Exception) -> int:
    """One line where the user's own code failed; else it is a fault of ours, which is shown whole."""
    from unskew.core.checks.faults import blame_own_code

    found = blame_own_code(error)
    if found is None:
        raise error
    return _report_failure(found)


def _explain_flag(error: Any) -> str | None:
    """The line of a flag that there is not, where a run's section has an option of that name."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    flags = [flag for parameter in getattr(command, "params", ()) for flag in parameter.opts]
    if not hasattr(error, "option_name") or "--set" not in flags:
        return None
    from unskew.runs.config import find_path

    path = find_path(error.option_name.lstrip("-").replace("-", "_"))
    return path and f"No such option: {error.option_name}; it is {path}: write --set {path}=..."


def _report_failure(error: SlotError) -> int:
    if error.details and logging.getLogger("unskew").isEnabledFor(logging.DEBUG):
        errors.print(error.details.rstrip(), markup=False, highlight=False)
    again = f"; finished rounds are kept, 'unskew resume {error.folder}' continues from the last checkpoint"
    _report(f"{one_line(error)}{again * bool(error.folder)}")
    return 1


def _report(text: str) -> int:
    errors.print(f"error: {text}", style="bold red" if errors.is_terminal else None)
    return 2


def _report_interrupt() -> int:
    _report(signals.describe())
    return signals.exit_code()


def _report_refusal(error: OSError) -> int:
    """Names what the system refused: a full disk, a missing permission, a name that is too long."""
    _discard_output()
    where = error.filename or "standard output or a file"
    advice = "choose another place" if error.errno == errno.EROFS else "make room or choose another place"
    return _report(f"{error.strerror or one_line(error)}: {where}; {advice}")


def _discard_output() -> int:
    streams.discard("stdout")
    return CLOSED_PIPE
