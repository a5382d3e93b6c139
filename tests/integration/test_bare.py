"""`runtime: none` on a host that is no pretence: a person already inside the image, whose Python stays as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


def test_a_row_installs_into_a_venv_of_its_own_over_the_python_on_path_even_from_a_login_shell(
    person: Any, tmp_path: Path
) -> None:
    """That Python may be a venv's itself. What `pip install -e` leaves in a shared Python is broken once the run is
    gone, and rows would fight for it."""
    image = tmp_path / "image"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(image)], check=True)
    (site,) = image.glob("lib/python*/site-packages")
    (site / "in_the_image.py").write_text("WORD = 'from the image'\n")
    file = person.home.with_name("hosts.yaml")
    file.write_text("hosts: {bare: {kind: local, runtime: none, gpus: 0}}\n")
    login_home = tmp_path / "login"
    login_home.mkdir()
    (login_home / ".bash_profile").write_text("PATH=/usr/bin:/bin\n")  # as Debian's /etc/profile
    person.env.update(CI_TASKS_HOSTS=str(file), PATH=f"{image}/bin:/usr/bin:/bin", HOME=str(login_home), PIP_USER="1")
    person.write(
        ".github/workflows/pr-test.yml",
        """\
on: pull_request
jobs:
  e2e-test-bare:
    runs-on: [self-hosted, cpu]
    strategy: {matrix: {info: [{test_file: test_bare.py}]}}
    steps:
      - run: |
          docker run --rm -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -w "$GITHUB_WORKSPACE" some/image \\
            bash -lc "pip install -e . --no-deps && python tests/${{ matrix.info.test_file }}"
""",
    )
    person.write(
        "tests/test_bare.py",
        "import in_the_image, sys, tiny_slime\n"
        "if __name__ == '__main__':\n    print('prefix', sys.prefix, in_the_image.WORD, tiny_slime.__file__)\n",
    )
    said = person.ci_tasks("remote", "--host", "bare", "bare")
    assert said.code == 0, said.out + said.err
    (log,) = person.logs().values()
    assert "from the image" in log
    assert f"prefix {person.home}" in log
    assert {path.name for path in site.iterdir()} - {"__pycache__"} == {"in_the_image.py"}
    assert not (login_home / ".local").exists()
    assert "Python packages" in {deviation["what"] for deviation in person.records()[0]["deviations"]}
