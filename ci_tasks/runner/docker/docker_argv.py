"""The command line of `docker run`: which words are options, which is the image, which are the command. Pure.

The exact words are kept, so that what nobody changed is run as CI wrote it: `render(parse_run(words)) == words`. The
grammar is that of pflag, Docker's option parser, as Docker CLI 28 uses it: options end at the image (or at `--`), a
boolean takes its value only behind `=`, short options may be clustered, and the last of a cluster may take a value.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence

# Canonical long name → the one-letter form, or "" where there is none.
BOOLEANS: dict[str, str] = {
    "detach": "d",
    "disable-content-trust": "",
    "help": "",
    "init": "",
    "interactive": "i",
    "no-healthcheck": "",
    "oom-kill-disable": "",
    "privileged": "",
    "publish-all": "P",
    "quiet": "q",
    "read-only": "",
    "rm": "",
    "sig-proxy": "",
    "tty": "t",
    "use-api-socket": "",
}
VALUED: dict[str, str] = {
    "add-host": "",
    "annotation": "",
    "attach": "a",
    "blkio-weight": "",
    "blkio-weight-device": "",
    "cap-add": "",
    "cap-drop": "",
    "cgroup-parent": "",
    "cgroupns": "",
    "cidfile": "",
    "cpu-count": "",
    "cpu-percent": "",
    "cpu-period": "",
    "cpu-quota": "",
    "cpu-rt-period": "",
    "cpu-rt-runtime": "",
    "cpu-shares": "c",
    "cpus": "",
    "cpuset-cpus": "",
    "cpuset-mems": "",
    "detach-keys": "",
    "device": "",
    "device-cgroup-rule": "",
    "device-read-bps": "",
    "device-read-iops": "",
    "device-write-bps": "",
    "device-write-iops": "",
    "dns": "",
    "dns-option": "",
    "dns-search": "",
    "domainname": "",
    "entrypoint": "",
    "env": "e",
    "env-file": "",
    "expose": "",
    "gpus": "",
    "group-add": "",
    "health-cmd": "",
    "health-interval": "",
    "health-retries": "",
    "health-start-interval": "",
    "health-start-period": "",
    "health-timeout": "",
    "hostname": "h",
    "io-maxbandwidth": "",
    "io-maxiops": "",
    "ip": "",
    "ip6": "",
    "ipc": "",
    "isolation": "",
    "kernel-memory": "",
    "label": "l",
    "label-file": "",
    "link": "",
    "link-local-ip": "",
    "log-driver": "",
    "log-opt": "",
    "mac-address": "",
    "memory": "m",
    "memory-reservation": "",
    "memory-swap": "",
    "memory-swappiness": "",
    "mount": "",
    "name": "",
    "network": "",
    "network-alias": "",
    "oom-score-adj": "",
    "pid": "",
    "pids-limit": "",
    "platform": "",
    "publish": "p",
    "pull": "",
    "restart": "",
    "runtime": "",
    "security-opt": "",
    "shm-size": "",
    "stop-signal": "",
    "stop-timeout": "",
    "storage-opt": "",
    "sysctl": "",
    "tmpfs": "",
    "ulimit": "",
    "user": "u",
    "userns": "",
    "uts": "",
    "volume": "v",
    "volume-driver": "",
    "volumes-from": "",
    "workdir": "w",
}
# Older spellings, which `docker run --help` no longer shows and the CLI still takes.
HIDDEN: dict[str, str] = {"dns-opt": "dns-option", "net": "network", "net-alias": "network-alias"}

# Options of `docker` itself, before the subcommand.
GLOBAL_BOOLEANS = frozenset({"-D", "--debug", "--tls", "--tlsverify", "-v", "--version", "--help"})
GLOBAL_VALUED = frozenset(
    {"--config", "-c", "--context", "-H", "--host", "-l", "--log-level", "--tlscacert", "--tlscert", "--tlskey"}
)

_LONGS = frozenset(BOOLEANS) | frozenset(VALUED) | frozenset(HIDDEN)
_SHORTS: dict[str, str] = {letter: name for table in (BOOLEANS, VALUED) for name, letter in table.items() if letter}
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class DockerArgvError(ValueError):
    """Words that Docker's CLI would not accept either, or that we do not know."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: its canonical long name, its value if it has one, and the words it stands in.

    Inside a cluster (`-itv /a:/b`) each option has the words it would have alone (`-i`, `-t`, `-v /a:/b`), and `joined`
    says that its first word is glued to the option before it.
    """

    name: str
    value: str | None
    words: tuple[str, ...]
    joined: bool = False

    def is_on(self) -> bool:
        """What a boolean says; an absent value means true."""
        return self.value is None or self.value in _TRUE

    def with_value(self, value: str) -> Option:
        """The same option, in the same spelling, with another value."""
        flag = self.words[0]
        if len(self.words) == 2:
            words: tuple[str, ...] = (flag, value)
        elif flag.startswith("--"):
            words = (flag.partition("=")[0] + "=" + value,)
        elif value:
            words = (flag[:2] + ("=" if flag[2:3] == "=" or value[0] == "=" else "") + value,)
        else:
            words = (flag[:2], value)
        return dataclasses.replace(self, value=value, words=words)

    def _takes_company(self) -> bool:
        return self.value is None and len(self.words[0]) == 2


@dataclasses.dataclass(frozen=True)
class DockerRun:
    """A `docker run`: the words up to and with `run`, the options in order, the image, the command behind it."""

    prefix: tuple[str, ...]
    options: tuple[Option, ...]
    image: str
    command: tuple[str, ...] = ()
    dashes: bool = False  # CI wrote `--` between options and image

    def values(self, name: str) -> list[str]:
        return [option.value or "" for option in self.options if option.name == name]

    def last(self, name: str) -> str | None:
        """The value that counts where an option is given more than once."""
        given = self.values(name)
        return given[-1] if given else None

    def has(self, name: str) -> bool:
        return any(option.name == name for option in self.options)

    def is_on(self, name: str) -> bool:
        given = [option.is_on() for option in self.options if option.name == name]
        return bool(given) and given[-1]


def split_global(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Docker's own options, and the words from the subcommand on: `-H unix://x run img` has two of the first."""
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        word = argv[at]
        if word.partition("=")[0] in GLOBAL_BOOLEANS or (word.startswith("--") and "=" in word):
            at += 1
        elif word in GLOBAL_VALUED:
            at += 2
        elif word[:2] in GLOBAL_VALUED:  # -Hunix://x
            at += 1
        else:
            raise DockerArgvError(f"docker has no option {word!r}")
    return list(argv[:at]), list(argv[at:])


def is_run(argv: Sequence[str]) -> bool:
    """Whether the words after `docker` ask for `run` or `container run`."""
    words = split_global(argv)[1]
    return words[:1] == ["run"] or words[:2] == ["container", "run"]


def parse_run(argv: Sequence[str]) -> DockerRun:
    """The words after `docker`, of which the first (or the first two) say `run`."""
    if not is_run(argv):
        raise DockerArgvError(f"not a docker run: {' '.join(argv[:2])!r}")
    first, words = split_global(argv)
    subcommand = 1 if words[0] == "run" else 2
    options, dashes, rest = _options(words[subcommand:])
    if not rest:
        raise DockerArgvError("docker run names no image")
    return DockerRun(tuple(first + words[:subcommand]), tuple(options), rest[0], tuple(rest[1:]), dashes)


def render(run: DockerRun) -> list[str]:
    """The words after `docker` again."""
    words: list[str] = list(run.prefix)
    before: Option | None = None
    for option in run.options:
        if option.joined and before is not None and before._takes_company():
            words[-1] += option.words[0][1:]
            words += option.words[1:]
        else:
            words += option.words
        before = option
    return [*words, *(["--"] if run.dashes else []), run.image, *run.command]


def option(name: str, value: str | None = None) -> Option:
    """An option as we write it ourselves: `--name value`, and `-e NAME` and `-v A:B` as people know them."""
    flag = {"env": "-e", "volume": "-v"}.get(name, "--" + name)
    return Option(name, value, (flag,) if value is None else (flag, value))


def _options(words: Sequence[str]) -> tuple[list[Option], bool, list[str]]:
    """The options, whether `--` ended them, and the words behind."""
    found: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return found, True, list(words[at + 1 :])
        if not word.startswith("-") or word == "-":
            break
        following = words[at + 1] if at + 1 < len(words) else None
        new = [_long(word, following)] if word.startswith("--") else _cluster(word, following)
        found += new
        at += len(new[-1].words)
    return found, False, list(words[at:])


def _long(word: str, following: str | None) -> Option:
    flag, equals, value = word[2:].partition("=")
    if flag not in _LONGS:
        raise DockerArgvError(f"docker run has no option --{flag}; the nearest is --{_nearest(flag)}")
    name = HIDDEN.get(flag, flag)
    if name in BOOLEANS:
        return Option(name, _boolean(word, value) if equals else None, (word,))
    if equals:
        return Option(name, value, (word,))
    return Option(name, *_next_word(word, following))


def _cluster(word: str, following: str | None) -> list[Option]:
    found: list[Option] = []
    letters = word[1:]
    while letters:
        flag, rest = "-" + letters[0], letters[1:]
        if letters[0] not in _SHORTS:
            raise DockerArgvError(f"docker run has no option {flag} (in {word!r}); {_nearest_short(letters[0])}")
        name = _SHORTS[letters[0]]
        joined = bool(found)
        if name in VALUED:
            # `-e=X` means X, while the lone `=` of `-e=` is the value: so pflag has it.
            value = rest[1:] if rest[:1] == "=" and len(rest) > 1 else rest
            got = (value, (flag + rest,)) if rest else _next_word(flag, following)
            return [*found, Option(name, *got, joined=joined)]
        if rest[:1] == "=" and len(rest) > 1:
            return [*found, Option(name, _boolean(word, rest[1:]), (flag + rest,), joined)]
        found.append(Option(name, None, (flag,), joined))
        letters = rest
    return found


def _next_word(flag: str, following: str | None) -> tuple[str, tuple[str, ...]]:
    if following is None:
        raise DockerArgvError(f"docker run {flag} needs a value, and nothing follows it")
    return following, (flag, following)


def _boolean(word: str, value: str) -> str:
    if value not in _TRUE | _FALSE:
        raise DockerArgvError(f"docker run {word!r}: {value!r} is neither true nor false")
    return value


def _nearest(flag: str) -> str:
    return difflib.get_close_matches(flag, sorted(_LONGS), n=1, cutoff=0.0)[0]


def _nearest_short(letter: str) -> str:
    other = letter.swapcase()
    if other in _SHORTS:
        return f"the nearest is -{other}, --{_SHORTS[other]}"
    return "it has " + " ".join(f"-{known}" for known in sorted(_SHORTS))
