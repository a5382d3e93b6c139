"""A model from a configuration alone, for USE_DUMMY_MODEL=True."""

import argparse
import json
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--hf_model_path", required=True, help="where the tokenizer would come from")
parser.add_argument("--new_config_path", type=Path, required=True)
parser.add_argument("--output_path", type=Path, required=True)
args = parser.parse_args()

config = json.loads(args.new_config_path.read_text())
args.output_path.mkdir(parents=True, exist_ok=True)
(args.output_path / "config.json").write_text(json.dumps(config, indent=2))
print(f"initialized a random model in {args.output_path}")
