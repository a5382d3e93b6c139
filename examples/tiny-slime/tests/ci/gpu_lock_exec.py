#!/usr/bin/env python3
"""Run a command on GPUs that no other run on this machine uses.

    python tests/ci/gpu_lock_exec.py --count 4 -- python tests/test_tiny_ckpt.py --async-save

One file per GPU, locked with `flock` for as long as this process lives: a crash frees its GPUs, and nothing needs to
clean up. Either all the wanted GPUs are taken, the lowest free ones, or none. The command sees them in
CUDA_VISIBLE_DEVICES, and its exit code is ours (128 + n if a signal n ended it or us).

Where CI_TASKS_GPU_LOCK_DIR is set, the lock files are in that directory: GPUs that are only pretended must not keep
anyone from real ones.
"""

import argparse
import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time

LONGEST_SLEEP = 0.5
GRACE_SECONDS = 5.0


def main():
    args = parse_args()
    locks = acquire(args)
    gpus = ",".join(str(gpu) for gpu in locks)
    print(f"[gpu_lock_exec] Acquired GPUs: {gpus}", flush=True)
    # The descriptors in `locks` are not inherited by the command; they close, and so unlock, when this process ends.
    sys.exit(run(args.command, {**os.environ, "CUDA_VISIBLE_DEVICES": gpus}))


def parse_args():
    parser = argparse.ArgumentParser(description="Run a command on GPUs that no other run on this machine uses.")
    parser.add_argument("--count", type=int, required=True, help="how many GPUs to take")
    parser.add_argument("--total-gpus", type=int, default=8, help="how many there are")
    parser.add_argument("--timeout", type=float, default=24 * 3600, help="seconds to wait for them")
    parser.add_argument("--lock-path-pattern", default="/dev/shm/custom_gpu_lock_{gpu_id}.lock")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    args = parser.parse_args()
    args.command = args.command[args.command[:1] == ["--"] :]
    if not args.command:
        parser.error("no command after --")
    if "{gpu_id}" not in args.lock_path_pattern:
        parser.error("--lock-path-pattern must contain {gpu_id}")
    if not 1 <= args.count <= args.total_gpus:
        parser.error(f"--count must be 1 to {args.total_gpus}, not {args.count}")
    pretend = os.environ.get("CI_TASKS_GPU_LOCK_DIR")
    if pretend:
        args.lock_path_pattern = os.path.join(pretend, os.path.basename(args.lock_path_pattern))
    return args


def acquire(args):
    """{GPU id: locked descriptor}, waiting until there are enough."""
    os.makedirs(os.path.dirname(args.lock_path_pattern) or ".", exist_ok=True)
    deadline = time.monotonic() + args.timeout
    said = None
    while True:
        locks = {}
        for gpu in range(args.total_gpus):
            descriptor = try_lock(args.lock_path_pattern.format(gpu_id=gpu))
            if descriptor is not None:
                locks[gpu] = descriptor
            if len(locks) == args.count:
                return locks
        for descriptor in locks.values():
            os.close(descriptor)
        if time.monotonic() > deadline:
            sys.exit(f"[gpu_lock_exec] Timeout acquiring {args.count} GPUs (out of {args.total_gpus})")
        if said != list(locks):
            said = list(locks)
            print(f"[gpu_lock_exec] Waiting for {args.count} GPUs (free now: {said})", flush=True)
        # A random sleep keeps two waiting runs from taking turns at half of what each needs.
        time.sleep(random.uniform(0.05, LONGEST_SLEEP))


def try_lock(path):
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def open_lock(path):
    # Read access is enough for a lock. Asking for no more lets us share files that root has made.
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)


def run(command, env):
    """The command's exit code, with its whole process group ended if we are told to stop."""
    signals = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: signals.append(received))
    child = subprocess.Popen(command, env=env, start_new_session=True)
    while not signals:
        try:
            code = child.wait(timeout=0.2)
            return 128 - code if code < 0 else code
        except subprocess.TimeoutExpired:
            continue
    signal_group(child, signals[0])
    try:
        child.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"[gpu_lock_exec] still running after {GRACE_SECONDS:.0f} s, killing", flush=True)
    # Also when the command itself has ended: something that it started may not have.
    signal_group(child, signal.SIGKILL)
    child.wait()
    return 128 + signals[0]


def signal_group(child, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    main()
