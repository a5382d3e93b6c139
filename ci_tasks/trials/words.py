"""The verdicts of reproduce, compare and bisect: each word with its exit code and its meaning. The only such table:
docs/generate.py writes it into docs/reference/statuses.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from ci_tasks.errors import EXIT_CANCELLED

CANCELLED = "cancelled"
_BLOCKED = {"blocked": (125, "not run here, or not the test that failed; nothing is known about the code")}
_CANCELLED = {CANCELLED: (EXIT_CANCELLED, "you stopped it; the same command continues from here")}

# With several rows, the first word that one of them has counts.
MEANINGS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "reproduce": {
        "reproduced": (0, "the same failure: the same kind, and at least one equal piece of evidence beyond it"),
        "passed here": (1, "it passed: flaky, or a difference matters"),
        "different failure": (3, "it fails in another way"),
        "same kind": (4, "alike, but not shown to be the same failure; the differences are listed"),
        **_BLOCKED,
    },
    "reproduce --on-my-tree": {
        "fixed here": (0, "your tree passes where CI's commit failed"),
        "reproduced": (1, "your tree has the same failure"),
    },
    "compare": {
        "yours": (1, "your tree fails more often than the base"),
        **_BLOCKED,
        "cannot tell": (4, "no other result is shown after `--max-runs` new runs"),
        "already broken": (0, "the base fails in most runs too"),
        "flaky": (0, "both fail sometimes in the same way"),
        "fixed": (0, "your tree never failed, and the base fails more often"),
        "fine": (0, "your tree never failed"),
        "passes": (0, "with several rows: it passed once on your tree, and was not compared"),
        **_CANCELLED,
    },
    "bisect": {
        "found": (0, "the first bad commit or image"),
        "unclear": (1, "several candidates: the ones between cannot be tested, or 400 runs were not enough"),
        "not good": (2, "the good end fails like the bad end: choose an older one"),
        "not bad": (2, "the bad end did not fail in 30 runs: choose one that fails"),
        "untestable": (2, "an end does not show the failure: choose one where the row runs"),
        **_CANCELLED,
    },
}


CODES = {command: {word: code for word, (code, _) in words.items()} for command, words in MEANINGS.items()}
COMPARE, BISECT = CODES["compare"], CODES["bisect"]
ON_MY_TREE = CODES["reproduce"] | CODES["reproduce --on-my-tree"]
REPRODUCE = ON_MY_TREE | CODES["reproduce"]  # with the words of both, as its help has them
