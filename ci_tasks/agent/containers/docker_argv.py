"""The command line of `docker run`: its options, image and command. Pure.

The exact words are kept, so that unchanged options run as CI wrote them: `render(parse_run(words)) == words`. The
grammar is that of pflag, Docker's option parser, as Docker CLI 28 uses it: options end at the image (or at `--`), a
boolean takes its value only after `=`, short options may be clustered, and the last of a cluster may take a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..quick_dataclass import dataclass

# Canonical long name → the one-letter form, or "" where there is none.
BOOLEANS: dict[str, str] = {
    "detach": "d", "disable-content-trust": "", "help": "", "init": "", "interactive": "i", "no-healthcheck": "",
    "oom-kill-disable": "", "privileged": "", "publish-all": "P", "quiet": "q", "read-only": "", "rm": "",
    "sig-proxy": "", "tty": "t", "use-api-socket": "",
}  # fmt: skip
VALUED: dict[str, str] = {
    "add-host": "", "annotation": "", "attach": "a", "blkio-weight": "", "blkio-weight-device": "", "cap-add": "",
    "cap-drop": "", "cgroup-parent": "", "cgroupns": "", "cidfile": "", "cpu-count": "", "cpu-percent": "",
    "cpu-period": "", "cpu-quota": "", "cpu-rt-period": "", "cpu-rt-runtime": "", "cpu-shares": "c", "cpus": "",
    "cpuset-cpus": "", "cpuset-mems": "", "detach-keys": "", "device": "", "device-cgroup-rule": "",
    "device-read-bps": "", "device-read-iops": "", "device-write-bps": "", "device-write-iops": "", "dns": "",
    "dns-option": "", "dns-search": "", "domainname": "", "entrypoint": "", "env": "e", "env-file": "", "expose": "",
    "gpus": "", "group-add": "", "health-cmd": "", "health-interval": "", "health-retries": "",
    "health-start-interval": "", "health-start-period": "", "health-timeout": "", "hostname": "h",
    "io-maxbandwidth": "", "io-maxiops": "", "ip": "", "ip6": "", "ipc": "", "isolation": "", "kernel-memory": "",
    "label": "l", "label-file": "", "link": "", "link-local-ip": "", "log-driver": "", "log-opt": "",
    "mac-address": "", "memory": "m", "memory-reservation": "", "memory-swap": "", "memory-swappiness": "",
    "mount": "", "name": "", "network": "", "network-alias": "", "oom-score-adj": "", "pid": "", "pids-limit": "",
    "platform": "", "publish": "p", "pull": "", "restart": "", "runtime": "", "security-opt": "", "shm-size": "",
    "stop-signal": "", "stop-timeout": "", "storage-opt": "", "sysctl": "", "tmpfs": "", "ulimit": "", "user": "u",
    "userns": "", "uts": "", "volume": "v", "volume-driver": "", "volumes-from": "", "workdir": "w",
}  # fmt: skip
# Older spellings, which `docker run --help` no longer shows and the CLI still accepts.
HIDDEN: dict[str, str] = {"dns-opt": "dns-option", "net": "network", "net-alias": "network-alias"}
# What we give to podman, and `shell` reads again.
PODMAN_BOOLEANS = frozenset({"http-proxy"})
PODMAN_VALUED = frozenset({"init-path"})

# Options of `docker` itself, before the subcommand.
GLOBAL_BOOLEANS = frozenset({"-D", "--debug", "--tls", "--tlsverify", "-v", "--version", "--help"})
GLOBAL_VALUED = frozenset(
    {"--config", "-c", "--context", "-H", "--host", "-l", "--log-level", "--tlscacert", "--tlscert", "--tlskey"}
)

_LONGS = frozenset(BOOLEANS) | frozenset(VALUED) | frozenset(HIDDEN) | PODMAN_BOOLEANS | PODMAN_VALUED
_SHORTS: dict[str, str] = {letter: name for table in (BOOLEANS, VALUED) for name, letter in table.items() if letter}
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class DockerArgvError(ValueError):
    """A command line that Docker's CLI would not accept either, or an unknown option."""


@dataclass(frozen=True)
class DockerOption:
    """One option: its canonical long name, its value if it has one, and the words that it was written with.

    Inside a cluster (`-itv /a:/b`) each option has the words it would have alone (`-i`, `-t`, `-v /a:/b`), and `joined`
    says that its first word belongs to the cluster of the option before it.
    """

    name: str
    value: str | None
    argv: tuple[str, ...]
    joined: bool = False

    def is_on(self) -> bool:
        """The value of a boolean; true where it has none."""
        return self.value is None or self.value in _TRUE

    def with_value(self, value: str) -> DockerOption:
        """The same option, in the same spelling, with another value."""
        flag = self.argv[0]
        if len(self.argv) == 2:
            argv: tuple[str, ...] = (flag, value)
        elif flag.startswith("--"):
            argv = (flag.partition("=")[0] + "=" + value,)
        elif value:
            argv = (flag[:2] + ("=" if flag[2:3] == "=" or value[0] == "=" else "") + value,)
        else:
            argv = (flag[:2], value)
        return dataclasses.replace(self, value=value, argv=argv)

    def _can_join(self) -> bool:
        return self.value is None and len(self.argv[0]) == 2


@dataclass(frozen=True)
class DockerRun:
    """A `docker run`: the words up to `run`, the options in order, the image, and the command after it."""

    prefix: tuple[str, ...]
    options: tuple[DockerOption, ...]
    image: str
    command: tuple[str, ...] = ()
    dashes: bool = False  # CI wrote `--` between options and image

    def values(self, name: str) -> list[str]:
        return [option.value or "" for option in self.options if option.name == name]

    def last(self, name: str) -> str | None:
        """The last value, which is the one that counts."""
        values = self.values(name)
        return values[-1] if values else None

    def has(self, name: str) -> bool:
        return any(option.name == name for option in self.options)

    def is_on(self, name: str) -> bool:
        values = [option.is_on() for option in self.options if option.name == name]
        return bool(values) and values[-1]


def split_global(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Docker's global options (two words in `-H unix://x run img`), and the words from the subcommand on."""
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
    """Whether the words after `docker` are a `run` or `container run`."""
    args = split_global(argv)[1]
    return args[:1] == ["run"] or args[:2] == ["container", "run"]


def parse_run(argv: Sequence[str]) -> DockerRun:
    """Parse the words after `docker`. Raises DockerArgvError."""
    if not is_run(argv):
        raise DockerArgvError(f"not a docker run: {' '.join(argv[:2])!r}")
    first, args = split_global(argv)
    subcommand = 1 if args[0] == "run" else 2
    options, dashes, rest = _options(args[subcommand:])
    if not rest:
        raise DockerArgvError("docker run has no image")
    return DockerRun(tuple(first + args[:subcommand]), tuple(options), rest[0], tuple(rest[1:]), dashes)


def render(run: DockerRun) -> list[str]:
    """The words after `docker` again."""
    argv: list[str] = list(run.prefix)
    before: DockerOption | None = None
    for option in run.options:
        if option.joined and before is not None and before._can_join():
            argv[-1] += option.argv[0][1:]
            argv += option.argv[1:]
        else:
            argv += option.argv
        before = option
    return [*argv, *(["--"] if run.dashes else []), run.image, *run.command]


def option(name: str, value: str | None = None) -> DockerOption:
    """A new option: `--name value`, and `-e NAME` and `-v A:B` in their usual short form."""
    flag = {"env": "-e", "volume": "-v"}.get(name, "--" + name)
    return DockerOption(name, value, (flag,) if value is None else (flag, value))


def _options(args: Sequence[str]) -> tuple[list[DockerOption], bool, list[str]]:
    """The options, whether `--` ended them, and the words after them."""
    options: list[DockerOption] = []
    at = 0
    while at < len(args):
        word = args[at]
        if word == "--":
            return options, True, list(args[at + 1 :])
        if not word.startswith("-") or word == "-":
            break
        following = args[at + 1] if at + 1 < len(args) else None
        new = [_long(word, following)] if word.startswith("--") else _cluster(word, following)
        options += new
        at += len(new[-1].argv)
    return options, False, list(args[at:])


def _long(word: str, following: str | None) -> DockerOption:
    flag, equals, value = word[2:].partition("=")
    if flag not in _LONGS:
        raise DockerArgvError(f"docker run has no option --{flag}; the nearest is --{_nearest(flag)}")
    name = HIDDEN.get(flag, flag)
    if name in BOOLEANS or name in PODMAN_BOOLEANS:
        return DockerOption(name, _boolean(word, value) if equals else None, (word,))
    if equals:
        return DockerOption(name, value, (word,))
    return DockerOption(name, *_next_word(word, following))


def _cluster(word: str, following: str | None) -> list[DockerOption]:
    options: list[DockerOption] = []
    letters = word[1:]
    while letters:
        flag, rest = "-" + letters[0], letters[1:]
        if letters[0] not in _SHORTS:
            known = " ".join(f"-{letter}" for letter in _SHORTS)
            raise DockerArgvError(f"docker run has no option {flag} (in {word!r}); it has {known}")
        name = _SHORTS[letters[0]]
        joined = bool(options)
        if name in VALUED:
            # `-e=X` means X, while the lone `=` of `-e=` is the value: that is pflag's rule.
            value = rest[1:] if rest[:1] == "=" and len(rest) > 1 else rest
            value_and_words = (value, (flag + rest,)) if rest else _next_word(flag, following)
            return [*options, DockerOption(name, *value_and_words, joined=joined)]
        if rest[:1] == "=" and len(rest) > 1:
            return [*options, DockerOption(name, _boolean(word, rest[1:]), (flag + rest,), joined)]
        options.append(DockerOption(name, None, (flag,), joined))
        letters = rest
    return options


def _next_word(flag: str, following: str | None) -> tuple[str, tuple[str, ...]]:
    if following is None:
        raise DockerArgvError(f"docker run {flag} needs a value")
    return following, (flag, following)


def _boolean(word: str, value: str) -> str:
    if value not in _TRUE | _FALSE:
        raise DockerArgvError(f"docker run {word!r}: {value!r} is neither true nor false")
    return value


def _nearest(flag: str) -> str:
    import difflib  # for an error alone

    return difflib.get_close_matches(flag, sorted(_LONGS), n=1, cutoff=0.0)[0]
