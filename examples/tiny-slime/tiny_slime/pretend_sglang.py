"""A pretend SGLang: a server process, and a scheduler process per tensor-parallel rank that can crash or hang.

A scheduler that fails logs its traceback and sends its parent SIGQUIT; the parent kills everything, itself included.
One whose loop stands still is noticed by a thread that watches it, prints every thread's stack and does the same.
"""

import argparse
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback

from tiny_slime.pretend_ray import FORK

log = logging.getLogger("sglang")


def main():
    parser = argparse.ArgumentParser(prog="tiny_slime.pretend_sglang")
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--watchdog-timeout", type=float, default=300.0)
    args = parser.parse_args()
    serve(args.tp_size, update_weights_while_generating, args.watchdog_timeout)


def serve(tp_size, work, *arguments):
    """Run `work(scheduler, …)` in a process per rank."""
    configure_log("")
    server = os.getpid()
    schedulers = [FORK.Process(target=run_scheduler, args=(server, rank, work, arguments)) for rank in range(tp_size)]

    def end(_signal, _frame):
        log.error("Received sigquit from a child process. It usually means the child failed.")
        for scheduler in schedulers:
            scheduler.kill()
        os.kill(server, signal.SIGKILL)

    signal.signal(signal.SIGQUIT, end)
    # The first rank may fail while the last is being started; one that `end` does not know of would be left behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGQUIT})
    for scheduler in schedulers:
        scheduler.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGQUIT})
    for scheduler in schedulers:
        scheduler.join()


def configure_log(prefix):
    logging.basicConfig(
        format=f"[%(asctime)s{prefix}] %(message)s", datefmt="%Y-%m-%d %H:%M:%S", level=logging.INFO, force=True
    )


def run_scheduler(server, tp_rank, work, arguments):
    configure_log(f" TP{tp_rank}")
    try:
        work(Scheduler(server), *arguments)
    except Exception:
        log.error(f"Scheduler hit an exception: {traceback.format_exc()}")
        os.kill(server, signal.SIGQUIT)
        time.sleep(60)  # it kills us


class Scheduler:
    """Requests hold pages of a pool while they are generated."""

    def __init__(self, server):
        self.server = server
        self.pages = self.free = 4096 + random.SystemRandom().randrange(1024)
        self.batch_lock, self.weights_lock = threading.Lock(), threading.Lock()
        self.forward_count = 0
        log.info(f"KV Cache is allocated. #tokens: {self.pages}")

    def generate(self, tokens, aborted=False):
        self.free -= tokens
        self.forward_count += 1
        if not aborted:  # and this is the bug: the pages of an aborted request are lost
            self.free += tokens

    def check_memory(self):
        if self.free != self.pages:
            raise ValueError(f"token_to_kv_pool memory leak detected! available_size={self.free}, size={self.pages}")


def generate_and_abort(scheduler):
    """A rollout of which one request is aborted; then the scheduler is idle, and counts its pages."""
    step = float(os.environ.get("TINY_STEP_SECONDS", "0.2"))
    for request in range(3):
        time.sleep(step / 2)
        scheduler.generate(tokens=random.SystemRandom().randrange(64, 512), aborted=request == 2)
    scheduler.check_memory()


def update_weights_while_generating(scheduler, watchdog_timeout):
    """Two threads that each hold the lock which the other wants."""
    barrier = threading.Barrier(2)
    threading.Thread(target=watch, args=(scheduler, watchdog_timeout), daemon=True).start()
    threading.Thread(target=update_weights, args=(scheduler, barrier), name="update_weights", daemon=True).start()
    run_batch(scheduler, barrier)


def run_batch(scheduler, barrier):
    with scheduler.batch_lock:
        barrier.wait()
        with scheduler.weights_lock:
            scheduler.generate(tokens=16)


def update_weights(scheduler, barrier):
    with scheduler.weights_lock:
        barrier.wait()
        with scheduler.batch_lock:
            log.info("weights updated")


def watch(scheduler, watchdog_timeout):
    seen = None
    while seen != scheduler.forward_count:
        seen = scheduler.forward_count
        time.sleep(watchdog_timeout)
    log.error(f"Pyspy dump for PID {os.getpid()}:\n{stacks()}")
    log.error(f"Watchdog timeout (self.watchdog_timeout={watchdog_timeout:g})")
    os.kill(scheduler.server, signal.SIGQUIT)


def stacks():
    """Each thread's frames, the innermost first, in py-spy's words."""
    parts = [f"Process {os.getpid()}: {' '.join(sys.orig_argv)}\nPython v{sys.version.split()[0]} ({sys.executable})"]
    frames = sys._current_frames()
    for thread in threading.enumerate():
        lines = [f'Thread {thread.native_id} (idle): "{thread.name}"']
        frame = frames[thread.ident]
        while frame:
            code = frame.f_code
            lines.append(f"    {code.co_name} ({'/'.join(code.co_filename.split('/')[-2:])}:{frame.f_lineno})")
            frame = frame.f_back
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
