"""A job done in another process: headers of plain values, which JSON carries; the tensors travel beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unskew.base.errors import ClientError, InputError, one_line
from unskew.base.tree import Groups
from unskew.base.user_code import Loaded, note_loaded
from unskew.core.checks.faults import CAUGHT, explain
from unskew.core.jobs import Job, Reply
from unskew.core.task import Task
from unskew.executors.packing import Layout

Header = dict[str, Any]


def read_job(header: Header, message: Groups, state: Groups) -> Job:
    """The job of a header, with its tensors."""
    return Job(message=message, state=state, **{**header, "part": tuple(header["part"])})


def answer(task: Task, job: Job, write: Callable[[Groups], Layout], loaded: Loaded) -> Header:
    """Does a job; the header of its reply, or of what went wrong. `write`: puts tensors where the other side looks.

    `loaded`: knows which files of the user's slots have imported.
    """
    try:
        reply = task.profile.work(task, job) if task.profile else task.work(job)
        plain = {"diagnostics": dict(reply.diagnostics), "profile": dict(reply.profile)}
        groups, state = write(reply.groups), write(reply.state)
        return {**reply._asdict(), **plain, "groups": groups, "state": state, "loaded": loaded.list_files()}
    except InputError as error:
        return {"error": one_line(error), "input": True}
    except (*CAUGHT, KeyboardInterrupt) as error:  # no signal's: they are ignored where jobs are done
        found = explain(error)
        return {"error": found.what, "input": False, **found._asdict()}


def read_reply(header: Header, job: Job, read: Callable[[Layout], Groups]) -> Reply:
    """The reply of a header; a client's exception is raised here."""
    if "error" in header:
        if header["input"]:
            raise InputError(header["error"])
        # what it changed in place is the other process's copy
        about = {"method": header["method"], "slot": header["slot"]}
        raise ClientError(job.client, job.round, header["error"], header["details"], **about)
    note_loaded(header.pop("loaded"))
    # read one by one: the state stays, the groups are merged and freed
    groups, state = read(header.pop("groups")), read(header.pop("state"))
    return Reply(groups=groups, state=state, **header)
