"""What the command line sets before torch loads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torch_mapss.evaluation import cli

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return monkeypatch


def test_idle_threads_sleep(before_torch: pytest.MonkeyPatch) -> None:
    cli.let_idle_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_of_ones_own_stays(name: str, before_torch: pytest.MonkeyPatch) -> None:
    before_torch.setenv(name, "active")
    cli.let_idle_threads_sleep()
    assert {n: os.environ[n] for n in NAMES if n in os.environ} == {name: "active"}


def test_once_torch_is_there_nothing_is_set(before_torch: pytest.MonkeyPatch) -> None:
    before_torch.setitem(sys.modules, "torch", sys)
    cli.let_idle_threads_sleep()
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.slow
def test_the_command_line_sets_it_before_torch_loads() -> None:
    code = (
        "import sys\n"
        "from torch_mapss.evaluation.cli import main\n"
        "main(['encoders'])\n"
        "import os, torch\n"
        "print(os.environ['OMP_WAIT_POLICY'])"
    )
    plain = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain
    )
    assert done.stdout.splitlines()[-1] == "passive"
