"""A gallery of failures: how the ends of CI jobs look, made anew each time. Every row of it fails, and should.

Wherever that needs no GPU, the fault is a real one: a port that is taken, a device that is full, threads that wait for
each other, an HTTP answer. Process ids, ports, times, sizes and the ranks' order differ from run to run, as they do in
reality; what failed and why does not. README.md has the table.
"""

import argparse
import contextlib
import http.server
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tiny_slime import pretend_ray, pretend_sglang, pretend_torch
from tiny_slime.launch import execute_train, write_model

NUM_GPUS = 4
STEP_SECONDS = float(os.environ.get("TINY_STEP_SECONDS", "0.2"))
PATIENCE = 0.2 + 4 * STEP_SECONDS  # of watchdogs, in seconds; real ones wait for five to thirty minutes
chance = random.SystemRandom()


def oom(root):
    """A batch that does not fit: torch's allocator finds less free memory than a layer's activations need.

    The line has the sizes, and they differ each time. The launcher's CalledProcessError after it says nothing more.
    """
    execute_train(write_model(root, "Tiny-Dense"), 1, "--rollout-batch-size", "64")


def nccl_timeout(root):
    """A rank stops, say in its data loader, and the others wait for it in an all-reduce until their watchdogs speak.

    The log is silent, then every waiting rank writes the same lines from C++ and aborts. The first is the one to read;
    the rank that is missing among them is the one to look at. torchrun's table knows signals and exit codes only.
    """
    lazy, step = chance.randrange(4), chance.randrange(2, 6)
    pretend_torch.launch(4, train_rank, lazy, step)


def train_rank(rank, barrier, lazy, stop_at):
    group = pretend_torch.ProcessGroup(rank, barrier, PATIENCE)
    for step in range(stop_at + 1):
        if (rank, step) == (lazy, stop_at):
            time.sleep(3600)  # torchrun ends it
        group.all_reduce()
        if rank == 0:
            print(f"step {step}: {{'train/loss': {1 / (step + 1)}, 'train/step': {step}}}", flush=True)


def engine(root):
    """A scheduler of an inference engine fails its own check, and takes the engine and the rollout with it.

    The driver can only say that an actor died, two levels down, and Ray offers guesses about it. The engine's log lines
    arrive after that: the traceback that follows "Scheduler hit an exception" is the cause.
    """
    cluster = pretend_ray.Cluster()
    judges = [cluster.start("RewardWorker", "init", wait_for_responses, number) for number in range(4)]
    for judge in judges:
        judge.get()
    cluster.show_logs()
    cluster.start("RolloutManager", "generate", generate_rollout, cluster).get()


def wait_for_responses(number):
    print(f"reward worker {number} waits for responses")


def generate_rollout(cluster):
    print("engine 0 on GPUs [0, 1]")
    return cluster.start("SGLangEngine", "generate", pretend_sglang.serve, 2, pretend_sglang.generate_and_abort).get()


def kl(root):
    """A numerical check of `--ci-test`: at step 0 the policy must be its reference, and here it has another one."""
    reference = write_model(root, "Tiny-Other", logits=[chance.uniform(-0.5, 0.5) for _ in range(4)])
    execute_train(write_model(root, "Tiny-Dense"), 1, "--ref-load", str(reference))


def hang(root):
    """Two threads of a scheduler wait for each other's lock. Nothing is printed until SGLang's watchdog has had enough.

    It writes the stack of each thread as py-spy would, where the two lines `with …_lock` are to be found, and ends the
    server. Without such a watchdog the job's own timeout ends it, and nobody learns where it stood.
    """
    execute("-m", "tiny_slime.pretend_sglang", "--watchdog-timeout", f"{PATIENCE:g}")


def disk(root):
    """The disk fills up while a checkpoint is written. /dev/full is a device on which every write ends with ENOSPC."""
    home = Path(root, "checkpoints", "iter_0000002")
    home.mkdir(parents=True)
    (home / "state.tmp").symlink_to("/dev/full")
    execute_train(write_model(root, "Tiny-Dense"), 1, "--num-rollout", "2", "--save", str(home.parent))


def import_error(root):
    """A reward function from a package that the image does not have. Nothing is wrong with the code under test."""
    execute_train(write_model(root, "Tiny-Dense"), 1, "--reward-function", "tiny_math_verify.score")


def port(root):
    """Another process listens on the router's port: a server of a job that was not ended, or a neighbour's."""
    with socket.create_server(("127.0.0.1", 0)) as neighbour:
        execute("-m", "tiny_slime.router", "--port", str(neighbour.getsockname()[1]))


def hub(root):
    """The model hub has had too many requests from this address, and says so with 429 until the client gives up."""
    with rate_limited_hub() as endpoint:
        os.environ["HF_ENDPOINT"] = endpoint
        execute("-m", "tiny_slime.pretend_hub", "download", "tiny/Tiny-Dense", "--local-dir", root)


@contextlib.contextmanager
def rate_limited_hub():
    class TooMany(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(429)
            self.send_header("X-Request-Id", f"Root=1-{secrets.token_hex(4)}-{secrets.token_hex(12)}")
            self.end_headers()
            address = f"{self.client_address[0]}:{self.client_address[1]}"
            self.wfile.write(f"We had to rate limit you ({address}). Log in, or pass a token.".encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), TooMany) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def flaky(root):
    """A race: now and then an engine answers before the new weights have reached it.

    TINY_FLAKE is how often, as a probability. TINY_SEED settles the draw; without it every run draws anew.
    """
    draw = random.Random(os.environ.get("TINY_SEED") or None).random()
    waits = draw >= float(os.environ.get("TINY_FLAKE") or "0.3")
    steps = execute_train(write_model(root, "Tiny-Dense"), 1, "--num-rollout", "1")
    served = {"version": len(steps) - 1}
    update = threading.Thread(target=served.update, args=({"version": len(steps)},))
    if waits:
        update.start()
        update.join()
    version = served["version"]
    assert version == len(steps), f"the engine answers with weights of version {version}, not of {len(steps)}"


def execute(*arguments):
    command = [sys.executable, *arguments]
    print(f"EXEC: {' '.join(command)}", flush=True)
    subprocess.run(command, check=True)


FAILURES = {
    "oom": oom,
    "nccl-timeout": nccl_timeout,
    "engine": engine,
    "kl": kl,
    "hang": hang,
    "disk": disk,
    "import": import_error,
    "port": port,
    "hub": hub,
    "flaky": flaky,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fail in a chosen way.")
    parser.add_argument("--failure", choices=FAILURES, default="flaky")
    failure = FAILURES[parser.parse_args().failure]
    with tempfile.TemporaryDirectory() as root:
        failure(root)
