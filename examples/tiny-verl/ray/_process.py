"""One worker process and the pipe to it: calls go in, results come out, in order."""

import os
import pickle
import subprocess
from pathlib import Path

from ray.exceptions import RayActorError, RayTaskError

WORKER = Path(__file__).with_name("_worker.py")


class Process:
    started = []

    def __init__(self, cluster, name):
        calls, calls_in = os.pipe()
        results_out, results = os.pipe()
        command = [*cluster.launch, str(WORKER), name, str(os.getpid()), str(calls), str(results)]
        self.child = subprocess.Popen(command, env=cluster.environment, pass_fds=(calls, results))
        os.close(calls)
        os.close(results)
        self.calls, self.results = os.fdopen(calls_in, "wb"), os.fdopen(results_out, "rb")
        self.name, self.answers, self.asked = name, {}, 0
        Process.started.append(self)
        self.send(cluster)

    def send(self, message):
        pickle.dump(message, self.calls)
        self.calls.flush()

    def call(self, *message):
        self.send(message)
        self.asked += 1
        return Reference(self, self.asked)

    def answer(self, number):
        while number not in self.answers:
            try:
                self.answers[len(self.answers) + 1] = pickle.load(self.results)
            except EOFError:
                raise RayActorError(f"The actor {self.name} died unexpectedly (pid={self.child.pid})") from None
        return self.answers[number]

    def end(self):
        """Closing the pipe is the request to end; a worker that is deep in a step gets no longer than a second."""
        for pipe in (self.calls, self.results):
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        try:
            self.child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class Reference:
    def __init__(self, process, number):
        self.process, self.number = process, number

    def result(self):
        failed, value = self.process.answer(self.number)
        if failed:
            raise RayTaskError.of(*value)
        return value
