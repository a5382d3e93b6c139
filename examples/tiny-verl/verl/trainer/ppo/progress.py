"""A progress bar as tqdm draws it where there is no terminal."""

import sys
import time

WIDTH = 10
EIGHTHS = " ▏▎▍▌▋▊▉"


class Progress:
    def __init__(self, total, done):
        self.total, self.done, self.initial, self.start = total, done, done, time.monotonic()
        self.draw()

    def update(self):
        self.done += 1
        self.draw()

    def draw(self, end=""):
        filled = 8 * WIDTH * self.done // max(self.total, 1)
        bar = "█" * (filled // 8) + (EIGHTHS[filled % 8] if filled % 8 else "")
        print(
            f"\rTraining Progress: {100 * self.done // max(self.total, 1):3d}%|{bar:<{WIDTH}}| "
            f"{self.done}/{self.total} [{self.times()}]",
            end=end,
            file=sys.stderr,
            flush=True,
        )

    def times(self):
        elapsed, steps = time.monotonic() - self.start, self.done - self.initial
        if not steps:
            return f"{clock(elapsed)}<?, ?it/s"
        each = elapsed / steps
        rate = f"{1 / each:5.2f}it/s" if each < 1 else f"{each:5.2f}s/it"
        return f"{clock(elapsed)}<{clock(each * (self.total - self.done))}, {rate}"

    def close(self):
        self.draw(end="\n")


def clock(seconds):
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
