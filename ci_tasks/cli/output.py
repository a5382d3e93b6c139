"""What commands print beside the text of reports."""

from __future__ import annotations

from typing import Any

from ci_tasks.safe_output import json_document


def print_json(value: Any) -> None:
    print(json_document(value))
