"""Requests over Flower's grid: which node is which site, who answers within the time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from unskew.deploy.channel import Refused
from unskew.deploy.flower.records import from_records, read_introduction, to_records

log = logging.getLogger(__name__)

POLL = 0.05
"""Seconds between two looks for answers; each is held by the door before Flower's server until there is one."""


class OverFlower:
    """Sends requests to the nodes of sites and waits for their answers."""

    def __init__(
        self, grid: Grid, names: Sequence[str], known: Mapping[str, int], timeout: float, patience: float
    ) -> None:
        """`known`: the node of each site, where keys say it; else nodes say it themselves."""
        self._grid, self._names, self._known = grid, names, known
        self._timeout, self._patience = timeout, patience
        self._nodes: dict[int, int] = {}
        """The node of each client."""

    def exchange(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | str]]:
        """Answers as they come."""
        self._find(requests)
        for client in requests.keys() - self._nodes.keys():
            yield client, "its site is not connected"
        sent = {self._nodes[client]: client for client in requests if client in self._nodes}
        messages = [
            Message(to_records(requests[client]), dst_node_id=node, message_type="train")
            for node, client in sent.items()
        ]
        for node, reply in self._ask(messages, self._timeout):
            client = sent[node]
            if reply.has_error():
                self._nodes.pop(client, None)  # it may come back as another node
                yield client, f"no answer: {reply.error.reason or 'error ' + str(reply.error.code)}"[:300]
                continue
            try:
                yield client, from_records(reply.content)
            except Refused as error:
                yield client, str(error)

    def _find(self, wanted: Mapping[int, bytes]) -> None:
        """Finds the nodes of clients that are not known, or not there any more; waits a while for those missing."""
        deadline = time.monotonic() + self._patience
        while True:
            there = set(self._grid.get_node_ids())
            self._nodes = {client: node for client, node in self._nodes.items() if node in there}
            for client, name in enumerate(self._names):  # a key says whose node it is: no need to ask
                if self._known.get(name) in there:
                    self._nodes[client] = self._known[name]
            if wanted.keys() <= self._nodes.keys():
                return
            for node, name in self._meet(sorted(there - set(self._nodes.values())) if not self._known else []):
                if name not in self._names:
                    log.warning("a node that says it is site '%s' is none of this run's; it is left out", name)
                    continue
                self._nodes[self._names.index(name)] = node
            if wanted.keys() <= self._nodes.keys() or time.monotonic() > deadline:
                return
            time.sleep(1.0)

    def _meet(self, nodes: Sequence[int]) -> Iterator[tuple[int, str]]:
        messages = [Message(RecordDict({}), dst_node_id=node, message_type="query") for node in nodes]
        for node, reply in self._ask(messages, self._timeout):
            if not reply.has_error():
                try:
                    yield node, read_introduction(reply.content)
                except Refused as error:
                    log.warning("node %d: %s", node, error)

    def _ask(self, messages: Sequence[Message], seconds: float) -> Iterator[tuple[int, Message]]:
        """Pairs of node and answer, as they come, for so long at most."""
        if not messages:
            return
        to = {}
        for number, message in zip(self._grid.push_messages(messages), messages, strict=True):
            if number:
                to[number] = message.metadata.dst_node_id
        deadline = time.monotonic() + seconds
        while to and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(to)):
                node = to.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply
            if to:
                time.sleep(POLL)
