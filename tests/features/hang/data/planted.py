"""Programs that hang, each in its own way: `python planted.py CASE DIRECTORY [ROLE]`. The function that hangs has the
case's name, or that of its role. Before it does, it says so with a file DIRECTORY/ready-PID."""

import itertools
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data.dataloader import DataLoader

CASE, DIRECTORY = sys.argv[1], sys.argv[2]
ROLE = sys.argv[3] if len(sys.argv) > 3 else ""
RANK = int(os.environ.get("RANK", "-1"))
STEP = """def step_{}(until):
    while time.monotonic() < until:
        sum(range(1000))
"""
lock_a, lock_b = threading.Lock(), threading.Lock()


def ready(pid=None):
    open(os.path.join(DIRECTORY, f"ready-{pid or os.getpid()}"), "w").close()


def probe():
    """The probe itself, as a `.pth` file would load it."""
    directory = os.path.join(DIRECTORY, "evidence")
    os.makedirs(directory, exist_ok=True)
    payload = {}
    with open(os.environ["PLANTED_PROBE"]) as source:
        exec(compile(source.read(), "ci_tasks_probe.py", "exec"), payload)
    payload["begin"](directory, (), {}, {})


def again(role):
    """A child of this case with a role."""
    return [sys.executable, __file__, CASE, DIRECTORY, role]


# -- threads -----------------------------------------------------------------------------------------------------------


def lock_order():
    both = threading.Barrier(2)

    def other():
        with lock_b:
            both.wait()
            with lock_a:
                pass

    threading.Thread(target=other, daemon=True).start()
    with lock_a:
        both.wait()
        ready()
        with lock_b:
            pass


def goes_on():
    """It works, in another function each time."""
    ready()
    for number in itertools.count():
        names = {"time": time}
        exec(STEP.format(number), names)
        names[f"step_{number}"](time.monotonic() + 0.2)


# -- in C --------------------------------------------------------------------------------------------------------------


def d_state():
    """A parent is in state D until its child of posix_spawn has opened its files, and one of them never opens."""
    fifo = os.path.join(DIRECTORY, f"never-opened-{os.getpid()}")
    os.mkfifo(fifo)
    ready()
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)])


def d_thread():
    thread = threading.Thread(target=d_state)
    thread.start()
    thread.join()


# -- ranks -------------------------------------------------------------------------------------------------------------


def train():
    ready()
    dist.all_reduce()


def missing_collective():
    if RANK == 3:
        load()
    train()


def load():
    ready()
    queue.Queue().get()


class Samples(list):
    def __getitem__(self, at):
        return read_sample()


def read_sample():
    ready()
    ready(os.getppid())  # which waits for it
    time.sleep(100000)


def loader_worker():
    """Its DataLoader's worker waits, so rank 1 does, and so do the others."""
    if RANK == 1:
        read_samples()
    train()


def ray_tree():
    """A driver, below it a program that is no Python, and below that workers with ranks."""
    if ROLE == "worker":
        if RANK == 1:
            actor_loop()
        train()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = ""
    for rank in range(3):
        words = shlex.join(again("worker"))
        script += f"RANK={rank} WORLD_SIZE=3 PYTHONPATH={shlex.quote(os.environ['PYTHONPATH'])} {words} & "
    raylet = subprocess.Popen(["bash", "-c", script + "wait"], env=env, start_new_session=True)
    ready()
    raylet.wait()


def actor_loop():
    ready()
    threading.Event().wait()


# -- ranks on GPUs -----------------------------------------------------------------------------------------------------


def on_gpus(hang):
    """Three steps; then rank 1 hangs, and the others wait for it."""
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl")
    ones = torch.ones(1 << 20, device="cuda")
    for _ in range(3):
        step(ones)
    ready()
    if RANK == 1:
        hang()
    step(ones)


def step(tensor):
    dist.all_reduce(tensor)
    torch.cuda.synchronize()


def begin_endless_kernel():
    torch.cuda._sleep(1 << 62)


def wait_for_endless_kernel():
    begin_endless_kernel()
    torch.cuda.synchronize()


def read_samples():
    next(iter(DataLoader(Samples([1]), num_workers=1)))


GPU_CASES = {
    "gpu_queue": load,
    "gpu_worker": read_samples,
    "gpu_kernel": wait_for_endless_kernel,
    "gpu_kernel_before": begin_endless_kernel,
    "gpu_locks": lock_order,
    "gpu_stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "gpu_killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


if __name__ == "__main__":
    probe()
    if CASE in GPU_CASES:
        on_gpus(GPU_CASES[CASE])
    globals()[CASE]()
