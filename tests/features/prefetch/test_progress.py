"""How far a download is, as a person sees it."""

from __future__ import annotations

import io

from ci_tasks.features.prefetch.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_changes_and_elsewhere_few_are_written() -> None:
    for out, lines in ((io.StringIO(), 2), (Terminal(), 1)):
        times = iter(range(100))
        with ProgressLine(out, clock=lambda times=times: next(times) * 0.7) as shown:  # type: ignore[misc]
            for done in range(0, 101, 5):
                shown.progress("org/m", f"{done}%")
        text = out.getvalue()
        assert text.count("\n") == lines
        assert text.startswith(("org/m: 0%", "\r\x1b[Korg/m: 0%"))


def test_a_message_has_a_line_of_its_own() -> None:
    out = Terminal()
    with ProgressLine(out) as shown:
        shown.progress("org/m", "")
        shown.say("the hub says to wait 7 s")
    assert out.getvalue() == "\r\x1b[Korg/m: downloading\nthe hub says to wait 7 s\n"
