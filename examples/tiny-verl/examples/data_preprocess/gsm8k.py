"""Writes the pretend training data: parquet's magic bytes around JSON."""

import argparse
import json
from pathlib import Path

COUNTS = {"train": 64, "test": 16}

parser = argparse.ArgumentParser()
parser.add_argument("--local_dataset_path", default=None, help="the raw dataset, if it is there")
parser.add_argument("--local_save_dir", type=Path, default=Path("~/data/gsm8k"))
args = parser.parse_args()

if args.local_dataset_path and not Path(args.local_dataset_path).exists():
    raise FileNotFoundError(f"no dataset in {args.local_dataset_path}")
directory = args.local_save_dir.expanduser()
directory.mkdir(parents=True, exist_ok=True)
for split, count in COUNTS.items():
    rows = [{"prompt": f"What is {number} + {number}?", "answer": str(2 * number)} for number in range(count)]
    (directory / f"{split}.parquet").write_bytes(b"PAR1" + json.dumps(rows).encode() + b"PAR1")
    print(f"{directory}/{split}.parquet: {count} rows")
