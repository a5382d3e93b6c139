"""A pretend verl: PPO with Megatron workers under Ray, in its log's shapes."""

import logging
import os

logging.basicConfig(format="%(levelname)s:%(asctime)s:%(message)s", level=os.environ.get("VERL_LOGGING_LEVEL", "INFO"))
