"""The messages between client and host: every request is decoded as what it is."""

from __future__ import annotations

import typing

import pytest

from ci_tasks.agent.codec import RecordError, decode, encode
from ci_tasks.agent.records import CheckoutPart, Plan
from ci_tasks.agent.serving import messages
from ci_tasks.agent.serving.messages import ClientMessage, HostMessage, Response, Result, RunSummary
from ci_tasks.agent.serving.requests import ServeSession

EACH: list[messages.Request] = [
    messages.Receive("sha1"),
    messages.Create("/d", Plan(id="b.01"), "echo\n", (CheckoutPart("", "1" * 40, "2" * 40),)),
    messages.StartRun("/d", {"TOKEN": "x"}, "#!/bin/bash\n"),
    messages.Follow((messages.FollowedRun(3, "/d", 1 << 40),)),
    messages.Cancel("/d", kill=True),
    messages.Collect("/d"),
    messages.Clear("/d", shared=False),
    messages.StoreProgram("py-spy-", "1" * 64),
    messages.LookAtProcesses("/d", "abc"),
    messages.DescribeRun("/d"),
    messages.RunPrograms({"a": ("nvidia-smi", "-L")}, 2.5),
    messages.ListRuns(),
    messages.Prune(14.0),
]


@pytest.mark.parametrize("request_", EACH, ids=lambda request: request.do)
def test_a_request_arrives_as_it_was_sent(request_: messages.Request) -> None:
    sent = encode(ClientMessage(1, request_), versioned=False, compact=True)
    assert decode(ClientMessage, sent, where="request") == ClientMessage(1, request_)


def test_the_host_handles_every_request() -> None:
    assert {type(request) for request in EACH} == set(typing.get_args(messages.Request))
    verbs = {request.do.replace("-", "_") for request in EACH} - {"follow"}  # the server's own
    assert not {verb for verb in verbs if not callable(getattr(ServeSession, verb, None))}


@pytest.mark.parametrize(
    "response",
    [
        Response(1, Result(left=("a",))),
        Response(2, Result(runs=(RunSummary("/runs/b/01"),))),
        Response(3, error="x", code="busy"),
    ],
)
def test_a_response_arrives_as_it_was_sent(response: Response) -> None:
    sent = encode(HostMessage(response=response), versioned=False, compact=True)
    assert decode(HostMessage, sent, where="response").response == response


def test_secrets_do_not_show_in_a_request_that_is_printed() -> None:
    assert "hunter2" not in repr(messages.StartRun("/d", {"TOKEN": "hunter2"}))


def test_an_unknown_request_is_named() -> None:
    with pytest.raises(RecordError, match=r"^request: request\.do: expected one of .*got 'dance'"):
        decode(ClientMessage, {"id": 1, "request": {"do": "dance"}}, where="request")
