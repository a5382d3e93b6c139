"""Writes and reads the state of one engine of one role."""

import json
import logging
from pathlib import Path

logger = logging.getLogger(__name__)


class MegatronCheckpointManager:
    def __init__(self, engine, rank):
        self.engine = engine
        self.rank = rank

    def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None):
        if self.rank:
            return
        path = Path(local_path)
        path.mkdir(parents=True, exist_ok=True)
        (path / "model.json").write_text(json.dumps(self.engine.state()))
        self.engine.save_hf(path / "huggingface")
        logger.info(f"[Rank {self.rank}] Checkpoint save completed for {path}")

    def load_checkpoint(self, local_path, hdfs_path=None, del_local_after_load=False):
        path = Path(local_path)
        self.engine.load_state(json.loads((path / "model.json").read_text()))
        if not self.rank:
            logger.info(f"[Rank {self.rank}] Loaded {self.engine.kind} checkpoint from {path}")
