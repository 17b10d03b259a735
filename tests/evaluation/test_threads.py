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


@pytest.mark.parametrize(
    "given", [{}, *({name: "active"} for name in NAMES), {"torch": "loaded"}], ids=str
)
def test_idle_threads_sleep_unless_someone_chose(
    given: dict[str, str], before_torch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        if name == "torch":  # once it is there nothing is set
            before_torch.setitem(sys.modules, "torch", sys)
        else:
            before_torch.setenv(name, value)
    cli.let_idle_threads_sleep()
    chosen = {name: os.environ[name] for name in NAMES if name in os.environ}
    expected = {name: value for name, value in given.items() if name != "torch"}
    assert chosen == (expected if given else {"OMP_WAIT_POLICY": "passive"})


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
