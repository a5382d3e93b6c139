"""Sending a run to a host: its code, itself and its beginning all at once, without waiting for an answer in between."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ci_tasks.hosts.channel import Channel, Pending
from ci_tasks.hosts.errand import Errand, Pack
from ci_tasks.runner.code.objects import form_of


class Sender:
    """What the runs of one command have in common: the code, which goes once over each connection."""

    def __init__(self) -> None:
        self.asking = threading.Lock()  # whether a run is wanted is not decided while it is asked for
        self._sending = threading.Lock()
        self.load([])

    def load(self, packs: list[Pack]) -> None:
        self._packs = packs
        self._packs_on: Channel | None = None
        self._everything = False  # the host does not have what we thought it had
        self._unsaid = True  # that the host has the code now

    def send(self, errand: Errand, channel: Channel) -> None:
        """The host has begun it when this returns, unless nobody wants it any more. Raises HostRefused, LinkDied."""
        with self._sending:
            packs = self._packs if errand.parts and self._packs_on is not channel else []
            asked = [
                channel.post_pack(pack.make(() if self._everything else pack.have), form_of(pack.tree))
                for pack in packs
            ]
            if packs:
                self._packs_on = channel
            with self.asking:
                if errand.never is not None:
                    return
                errand.tried = True
            asked += [
                channel.post(
                    "create",
                    dir=errand.directory,
                    plan=errand.plan,
                    script=errand.script,
                    parts=list(errand.parts),
                    workspace=errand.plan.get("workspace"),
                ),
                _post_begin(errand, channel),
                post_watch(errand, channel),
            ]
        _all(asked)

    def sent(self, channel: Channel) -> None:
        """A run has begun, so the code is there."""
        with self._sending:
            if self._packs_on is channel and self._unsaid:
                self._unsaid = False
                for pack in self._packs:
                    pack.sent()

    def sends_again(self, errand: Errand) -> bool:
        """After the host has said that it lacks what the code builds on: whether there is more to be sent."""
        with self._sending:
            if not self._everything:
                self._everything, self._packs_on = True, None
                return True
            again, errand.sent_again = not errand.sent_again, True
            return again  # another run of ours has sent everything meanwhile


def _post_begin(errand: Errand, channel: Channel) -> Pending:
    """On a box it begins at once, on a cluster when that has room for it."""
    secrets = dict(errand.secrets)
    if not errand.batch:
        return channel.post("start", dir=errand.directory, secrets=secrets)
    parts = list(errand.parts)
    return channel.post("submit", dir=errand.directory, secrets=secrets, script=errand.batch, parts=parts)


def post_watch(errand: Errand, channel: Channel) -> Pending:
    assert errand.mirror is not None
    return channel.post("watch", dir=errand.directory, key=errand.key, offset=errand.mirror.offset)


def _all(asked: Sequence[Pending]) -> None:
    """Every answer, so that the first refusal is the one that is raised."""
    for pending in asked:
        pending.wait()
