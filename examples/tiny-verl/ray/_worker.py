"""The program of a worker process: take calls from one pipe, put results into another, and print as Ray shows it.

Ray's driver copies what workers print and puts the actor's name and process id before each line, in colour. Here each
worker does so itself, one write for a line, so that lines of several workers do not mix.
"""

import io
import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CYAN, DEFAULT, RESET = "\x1b[36m", "\x1b[39m", "\x1b[0m"


def main():
    name = sys.argv[1]
    # Before any import: logging keeps the stream that it finds.
    sys.stdout, sys.stderr = PrefixedLines(1, name), PrefixedLines(2, name)
    threading.Thread(target=end_with_driver, args=(int(sys.argv[2]),), daemon=True).start()
    find_packages()
    from ray import adopt
    from ray._remote import unpacked

    calls, results = (os.fdopen(int(number), mode) for number, mode in zip(sys.argv[3:], ("rb", "wb"), strict=True))
    cluster = pickle.load(calls)
    cluster.directory = None  # the driver's to remove
    adopt(cluster)
    actor, constructor_error = None, None
    while True:
        try:
            kind, target, arguments = pickle.load(calls)
        except EOFError:
            return
        try:
            if kind == "method" and constructor_error:
                answer = (True, constructor_error)
            elif kind == "class":
                actor = unpacked(*target)(*arguments)
                answer = (False, None)
            else:
                function = getattr(actor, target) if kind == "method" else unpacked(*target)
                answer = (False, function(*arguments))
        except Exception as error:
            called = {"method": f"{name}.{target}", "class": f"{name}.__init__"}.get(kind, name)
            answer = (True, (plain_name(error), described(called, error)))
            if kind == "class":
                constructor_error = answer[1]
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pickle.dump(answer, results)
            results.flush()
        except BrokenPipeError:
            return


def end_with_driver(driver):
    """A driver that was killed closes its pipes, but nobody reads them in the middle of a long step. It is no parent of
    ours where uv stands between."""
    try:
        while True:
            os.kill(driver, 0)
            time.sleep(0.2)
    except ProcessLookupError:
        os._exit(1)


def find_packages():
    """verl and ray come from this checkout, but after PYTHONPATH, as installed packages do."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT / "ray"]
    if "TINY_SITE_PACKAGES" in os.environ:
        sys.path.insert(0, os.environ["TINY_SITE_PACKAGES"])
    sys.path += [str(ROOT), str(ROOT / "pretend_image/site-packages")]


def plain_name(error):
    """A task's error that only passes through is not named twice."""
    return type(error).__name__.removeprefix("RayTaskError(").removesuffix(")")


def described(called, error):
    frames = traceback.extract_tb(error.__traceback__)[1:]
    place = f"(pid={os.getpid()}, ip=127.0.0.1, actor_id={os.getpid():032x})"
    text = "".join(traceback.format_list(frames) + traceback.format_exception_only(error))
    return f"{CYAN}ray::{called}(){DEFAULT} {place}\n{text.rstrip()}"


class PrefixedLines(io.TextIOBase):
    def __init__(self, descriptor, name):
        self.descriptor, self.pending = descriptor, ""
        self.prefix = f"{CYAN}({name} pid={os.getpid()}){RESET} "

    def write(self, text):
        *lines, self.pending = (self.pending + text).split("\n")
        for line in lines:
            self.put(line)
        return len(text)

    def flush(self):
        """A progress bar that is not finished is shown as a line of its own, its carriage return with it."""
        if self.pending:
            self.put(self.pending)
            self.pending = ""

    def put(self, line):
        try:
            os.write(self.descriptor, f"{self.prefix}{line}\n".encode())
        except BrokenPipeError:
            pass


if __name__ == "__main__":
    main()
