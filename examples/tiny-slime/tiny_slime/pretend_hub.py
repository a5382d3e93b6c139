"""A pretend model hub: a download over real HTTP, with errors as huggingface_hub words them.

`python -m tiny_slime.pretend_hub download NAME --local-dir DIR` asks the hub at HF_ENDPOINT.
"""

import argparse
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


class HfHubHTTPError(Exception):
    __module__ = "huggingface_hub.errors"


def main():
    parser = argparse.ArgumentParser(prog="tiny_slime.pretend_hub")
    parser.add_argument("command", choices=["download"])
    parser.add_argument("repo_id")
    parser.add_argument("--local-dir", required=True)
    args = parser.parse_args()
    url = f"{os.environ['HF_ENDPOINT']}/{args.repo_id}/resolve/main/config.json"
    Path(args.local_dir, "config.json").write_bytes(fetch(url, retries=2))


def fetch(url, retries):
    for retry in range(retries + 1):
        try:
            return get(url)
        except urllib.error.HTTPError as error:
            if retry == retries:
                raise_for_status(error)
            print(f"HTTP Error {error.code} thrown while requesting GET {url}", file=sys.stderr)
            print(f"Retrying in {retry + 1}s [Retry {retry + 1}/{retries}].", file=sys.stderr)
            time.sleep((retry + 1) * float(os.environ.get("TINY_STEP_SECONDS", "0.2")))


def get(url):
    # Without a proxy, whatever the environment says: the hub is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        return response.read()


def raise_for_status(error):
    request_id = error.headers.get("X-Request-Id", "")
    kind = "Client" if error.code < 500 else "Server"
    raise HfHubHTTPError(
        f"{error.code} {kind} Error: {error.reason} for url: {error.url} (Request ID: {request_id})\n\n"
        f"{error.read().decode()}"
    ) from error


if __name__ == "__main__":
    main()
