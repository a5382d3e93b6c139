"""What `hf download` prints when it fails → why. The texts are those of huggingface_hub 2.4 and of older ones."""

from __future__ import annotations

import pytest

from ci_tasks.features.prefetch.hub import of_output

URL = "http://127.0.0.1:1/org/m/resolve/aaa/model.safetensors"

TRACEBACK = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/huggingface_hub/utils/_http.py", line 429, in hf_raise_for_status
    raise _format({error}, message, response) from e
huggingface_hub.errors.{error}: {status} Client Error.

"""  # huggingface_hub 0.34 prints one
NO_REPOSITORY = f"""Repository Not Found for url: {URL}.
Please make sure you specified the correct `repo_id` and `repo_type`.
If you are trying to access a private or gated repo, make sure you are authenticated."""


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("Error: Access denied. Model 'org/m' requires approval.", "gated"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "gated"),
        (f"Error: Client error '401 Unauthorized' for url '{URL}'", "unauthorised"),
        ("Error: Model 'org/none' not found.\nIf the repo is private, make sure you are authenticated", "unauthorised"),
        (f"Error: File not found in model 'org/m'.\nURL: {URL}", "missing"),
        (f"Error: Local entry not found. 429 Too Many Requests for url: {URL}.", "limited"),
        (f"Error: Local entry not found. Server error '500 Internal Server Error' for url '{URL}'", "trouble"),
        ("PermissionError: [Errno 13] Permission denied: '/data/m/.cache'", "denied"),
        ("Error: Local entry not found. [Errno 111] Connection refused", "offline"),
        (TRACEBACK.format(error="RepositoryNotFoundError", status=401) + NO_REPOSITORY, "unauthorised"),
        (TRACEBACK.format(error="GatedRepoError", status=403) + f"Cannot access gated repo for url {URL}.", "gated"),
        ("", "trouble"),
    ],
)
def test_the_output_of_a_download_says_why_it_failed(printed: str, code: str) -> None:
    assert of_output(f"\nFetching 2 files:   0%|\r\n{printed}\n", "org/m").code == code
