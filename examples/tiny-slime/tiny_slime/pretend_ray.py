"""A pretend Ray: an actor is a process that runs one method. What makes Ray's logs hard to read is kept as it is.

Each worker writes to a file of its own. A log monitor copies new lines to the driver from time to time, with the
actor's name in colour before each, and what several workers wrote only once. So the driver's own traceback often
stands before the lines that explain it. An error in a task is raised where its result is asked for, with the worker's
traceback as its message, and so on up: the innermost last line is the one that matters.
"""

import atexit
import multiprocessing
import os
import re
import secrets
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

CYAN, GREEN, DEFAULT, RESET = "\x1b[36m", "\x1b[32m", "\x1b[39m", "\x1b[0m"
FORK = multiprocessing.get_context("fork")


class RayTaskError(Exception):
    """The text of an error in a worker. Its class is also named after the error's: `RayTaskError(ValueError)`."""

    @classmethod
    def of(cls, name, text):
        return type(f"RayTaskError({name})", (cls,), {"__module__": "ray.exceptions"})(text)


class ActorDiedError(Exception):
    __module__ = "ray.exceptions"


class Cluster:
    """Workers and their log files. The process that made it is the driver; only there lines are shown."""

    def __init__(self):
        self.logs = Path(tempfile.mkdtemp(prefix="pretend-ray-"))
        self.address = ".".join(["10", *(str(secrets.randbelow(250) + 1) for _ in range(3))])
        self.copied = {}
        # Runs after the driver's last traceback has been printed. Workers end without: they are forks.
        atexit.register(self._shut_down)

    def start(self, name, method, function, *arguments):
        return Actor(self, name, method, function, arguments)

    def show_logs(self):
        """Print the workers' new lines. What several workers wrote, but for numbers, is shown once with a count."""
        seen = {}
        for log in sorted(self.logs.iterdir(), key=lambda _: secrets.randbelow(1000)):
            lines = log.read_text().splitlines()
            for line in lines[self.copied.get(log, 0) :]:
                text = f"{CYAN}({log.name}){RESET} {line}"
                writers = seen.setdefault(re.sub(r"\d+", "", line), {})
                if not writers or log in writers:
                    print(text)
                writers.setdefault(log, text)
            self.copied[log] = len(lines)
        for writers in seen.values():
            if len(writers) > 1:
                print(f"{list(writers.values())[-1]}{GREEN} [repeated {len(writers) - 1}x across cluster]{RESET}")
        sys.stdout.flush()

    def _shut_down(self):
        self.show_logs()
        shutil.rmtree(self.logs)


class Actor:
    def __init__(self, cluster, name, method, function, arguments):
        self.cluster, self.name, self.method, self.id = cluster, name, method, secrets.token_hex(16)
        sys.stdout.flush()
        self.outcome, answer = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=self._work, args=(answer, function, arguments))
        self.process.start()
        answer.close()

    def get(self):
        """What the method returned, once it has; its error is raised here again, with the worker's traceback."""
        try:
            error, value = self.outcome.recv()
        except EOFError:
            self.process.join()
            raise ActorDiedError(self._obituary()) from None
        self.process.join()
        if error:
            raise RayTaskError.of(error, value)
        return value

    def _work(self, answer, function, arguments):
        log = os.open(self.cluster.logs / f"{self.name} pid={os.getpid()}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout.reconfigure(line_buffering=True)
        try:
            answer.send((None, function(*arguments)))
        except Exception as problem:
            answer.send((type(problem).__name__.partition("(")[0], self._account_of(problem)))

    def _account_of(self, problem):
        """The traceback below this file, headed by the task's name instead of the usual words."""
        task = f"{CYAN}ray::{self.name}.{self.method}(){DEFAULT}"
        where = f"(pid={os.getpid()}, ip={self.cluster.address}, actor_id={self.id}, repr={self!r})"
        lines = traceback.format_exception(type(problem), problem, problem.__traceback__.tb_next)
        return f"{task} {where}\n{''.join(lines[1:])}".rstrip("\n")

    def _obituary(self):
        """Ray cannot know why a worker is gone, and guesses; the guesses are not evidence."""
        return (
            "The actor died unexpectedly before finishing this task.\n"
            f"\tclass_name: {self.name}\n\tactor_id: {self.id}\n\tpid: {self.process.pid}\n"
            f"\tip: {self.cluster.address}\n"
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
            "Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root "
            "causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force "
            "is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."
        )
