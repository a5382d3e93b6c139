"""A host whose clock is wrong: what its logins start sees another time of day, through a preloaded C library.

    clock = HostClock(directory)
    box = sshd.start("box", more=clock.sshd_config)
    clock.set_ahead(3600)              # also while something runs there

Raises Missing where there is no C compiler.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.parts import Missing

COMPILER = shutil.which("cc") or shutil.which("gcc")

# A time of day that can be stepped, and nothing else: what counts seconds goes on, and files have the kernel's time.
# (libfaketime makes Python's sleep fail where it leaves the monotonic clock alone.)
_LIBRARY = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long step(void) {
    long seconds = 0;
    const char *path = getenv("SECONDS_AHEAD_FILE");
    FILE *file = path ? fopen(path, "re") : NULL;
    if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
    return seconds;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += step();
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec t;
    int result = clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec; now->tv_usec = t.tv_nsec / 1000;
    return result;
}
time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
"""


class HostClock:
    """`sshd_config` has the lines that give a server this clock."""

    def __init__(self, directory: Path) -> None:
        if COMPILER is None:
            raise Missing("not installed: a C compiler (Debian: apt-get install gcc libc6-dev)")
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "seconds-ahead"
        source, library = directory / "clock.c", directory / "clock.so"
        source.write_text(_LIBRARY)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        variables = f"LD_PRELOAD={library} SECONDS_AHEAD_FILE={self._file}"
        self.sshd_config = f'ForceCommand env {variables} sh -c "$SSH_ORIGINAL_COMMAND"'
        self.set_ahead(0)

    def set_ahead(self, seconds: int) -> None:
        """The host's clock, as far as this from the true one."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{seconds}\n")
        beside.replace(self._file)
