"""Sending a run to a host: its code, itself and its beginning all at once, without waiting for an answer in between."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ci_tasks.agent.serving.messages import Create, Done, StartRun, Submit, Watch
from ci_tasks.agent.trees.git import form_of
from ci_tasks.hosts.channel import Channel, PendingRequest
from ci_tasks.hosts.remote_run import CodePack, RemoteRun


class RunSender:
    """What the runs of one command have in common: the code, which goes once over each connection."""

    def __init__(self) -> None:
        self.cancel_lock = threading.Lock()  # whether a run is wanted is not decided while it is asked for
        self._sending = threading.Lock()
        self.set_packs([])

    def set_packs(self, packs: list[CodePack]) -> None:
        self._packs = packs
        self._packs_on: Channel | None = None
        self._everything = False  # the host does not have what we thought it had
        self._unreported = True  # that the host has the code now

    def send(self, remote_run: RemoteRun, channel: Channel) -> None:
        """The host has begun it when this returns, unless nobody wants it any more. Raises RequestRefused, LinkDied."""
        with self._sending:
            packs = self._packs if remote_run.parts and self._packs_on is not channel else []
            requests = [
                channel.post_pack(pack.build(() if self._everything else pack.known_trees), form_of(pack.tree))
                for pack in packs
            ]
            if packs:
                self._packs_on = channel
            with self.cancel_lock:
                if remote_run.aborted is not None:
                    return
                remote_run.was_sent = True
            if not remote_run.is_here:
                parts = tuple(remote_run.parts)
                requests.append(channel.post(Create(remote_run.directory, remote_run.plan, remote_run.script, parts)))
            requests += [_post_begin(remote_run, channel), post_watch(remote_run, channel)]
        _all(requests)

    def mark_delivered(self, channel: Channel) -> None:
        """A run has begun, so the code is there."""
        with self._sending:
            if self._packs_on is channel and self._unreported:
                self._unreported = False
                for pack in self._packs:
                    pack.mark_sent()

    def can_resend(self, remote_run: RemoteRun) -> bool:
        """After the host has said that it lacks what the code builds on: whether there is more to be sent."""
        with self._sending:
            if not self._everything:
                self._everything, self._packs_on = True, None
                return True
            again, remote_run.code_resent = not remote_run.code_resent, True
            return again  # another run of ours has sent everything meanwhile


def _post_begin(remote_run: RemoteRun, channel: Channel) -> PendingRequest[Done]:
    """On a box it begins at once, on a cluster when that has room for it."""
    if not remote_run.sbatch_script:
        return channel.post(StartRun(remote_run.directory, remote_run.secrets))
    return channel.post(
        Submit(remote_run.directory, remote_run.sbatch_script, tuple(remote_run.parts), remote_run.secrets)
    )


def post_watch(remote_run: RemoteRun, channel: Channel) -> PendingRequest[Done]:
    assert remote_run.mirror is not None
    return channel.post(Watch(remote_run.directory, remote_run.key, remote_run.mirror.offset))


def _all(requests: Sequence[PendingRequest[Done]]) -> None:
    """Every answer, so that the first refusal is the one that is raised."""
    for pending in requests:
        pending.wait()
