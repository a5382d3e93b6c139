"""How fast a log passes through the masker: MB/s of processor time with 0, 3 and 10 secrets, for three kinds of logs.

python bench/masking.py [MB]
"""

from __future__ import annotations

import json
import random
import string
import sys
import time

from ci_tasks.agent.mask import Masker

CHUNK = 1 << 16  # bytes, as the supervisor reads them
CHARACTERS = string.ascii_letters + string.digits
WORDS = ("loss", "step", "reward", "rollout", "actor", "critic", "tokens", "checkpoint", "saved", "rank", "epoch")


def plain_line(choose: random.Random) -> str:
    words = " ".join(choose.choice(WORDS) for _ in range(9))
    return f"(MegatronTrainRayActor pid={choose.randint(1, 99999)}) {words} {choose.random():.6f}\n"


def json_line(choose: random.Random) -> str:
    return json.dumps({"message": json.dumps({"text": plain_line(choose)}), "path": "/a/b", "url": "a%20b%2Fc"}) + "\n"


def colored_line(choose: random.Random) -> str:
    return f"\x1b[36m{plain_line(choose).rstrip()}\x1b[0m\n"


def main(megabytes: int) -> None:
    for name, line in (("plain", plain_line), ("JSON", json_line), ("colors", colored_line)):
        choose = random.Random(1)
        block = "".join(line(choose) for _ in range(20_000)).encode()
        text = block * (megabytes * 1_000_000 // len(block) + 1)
        for count in (0, 3, 10):
            secrets = [
                "hf_" + "".join(choose.choices(string.ascii_letters + string.digits, k=34)) for _ in range(count)
            ]
            masker, began = Masker(secrets), time.process_time()
            for at in range(0, len(text), CHUNK):
                masker.feed(text[at : at + CHUNK])
            masker.flush()
            speed = len(text) / 1e6 / (time.process_time() - began)
            print(json.dumps({"log": name, "secrets": count, "MB/s": round(speed)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
