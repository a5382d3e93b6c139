"""What Ray, Python and data loaders say when a run that has succeeded is taken down. None of it is a failure."""

import os
import secrets
import sys


def shutdown_noise():
    worker = os.getpid() + 3
    print(
        f"Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f{secrets.token_hex(5)}>\n"
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py", line 1654, in __del__\n'
        "    self._shutdown_workers()\n"
        f"RuntimeError: DataLoader worker (pid {worker}) is killed by signal: Terminated. \n"
        "/usr/lib/python3/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be "
        "1 leaked shared_memory objects to clean up at shutdown\n"
        "  warnings.warn('resource_tracker: There appear to be %d '",
        file=sys.stderr,
    )
    print(
        "\x1b[33m(raylet)\x1b[0m A worker died or was killed while executing a task by an unexpected system error. "
        f"To troubleshoot the problem, check the logs for the dead worker. Lease ID: {secrets.token_hex(28)} "
        f"Worker ID: {secrets.token_hex(28)} Node ID: {secrets.token_hex(28)} Worker IP address: 127.0.0.1 "
        f"Worker port: 10013 Worker PID: {worker} Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
        "unexpectedly exits with a connection error code 2. End of file.",
        file=sys.stderr,
    )
