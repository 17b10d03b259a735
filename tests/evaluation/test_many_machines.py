"""The lines of the guide "Many files, many machines", run as printed on a small set.

Numbers of workers are made two. An engine that is not installed is skipped. SLURM is stood in for
by a script that runs the job here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from separations import contents, environment, write_manifest

GUIDE = Path(__file__).parents[2] / "recipes" / "guide" / "many_files.md"
BLOCKS = re.findall(r"```(\w+)[^\n]*\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
SETTINGS = next(
    text for _, text in BLOCKS if text.startswith("from torch_mapss import evaluate_set")
)
SCHEDULER = """#!/bin/bash
job=$(mktemp)
cp "${@: -1}" "$job"
setsid bash "$job" > /dev/null 2>&1 < /dev/null &
echo "Submitted batch job $!"
"""
STOP = """#!/bin/bash
kill -TERM -- "-$1"
"""
# Engine -> the module it needs, and what a block of it contains.
ENGINES = {
    "processes": ("concurrent.futures", "ProcessPoolExecutor("),
    "dask": ("distributed", "LocalCluster("),
    "dask on SLURM": ("dask_jobqueue", "SLURMCluster("),
    "ray": ("ray", "ray.util"),
    "mpi": ("mpi4py", "MPIPoolExecutor("),
    "submitit": ("submitit", "submitit.AutoExecutor("),
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with manifest.json, and the results of a run in one process."""
    folder = tmp_path_factory.mktemp("workplace")
    write_manifest(folder, 6, ("one", "two"), 0.3)
    call = 'evaluate_set("manifest.json", out="expected", encoder="mel", measures="decomposition")'
    executed([sys.executable, "-c", f"from torch_mapss import evaluate_set; {call}"], folder)
    tools = folder / "tools"
    tools.mkdir()
    run = f"#!/bin/bash\nexec {sys.executable} -m"
    programs = {"sbatch": SCHEDULER, "scancel": STOP, "srun": '#!/bin/bash\n"$@"\n'}
    programs["torch-mapss"] = f'{run} torch_mapss "$@"\n'
    programs["torchrun"] = f'{run} torch.distributed.run "$@"\n'
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return folder


def with_tools(workplace: Path) -> dict[str, str]:
    """SLURM's programs and ours on the search path."""
    return {"PATH": f"{workplace / 'tools'}{os.pathsep}{os.environ['PATH']}"}


def scores(folder: Path) -> dict[str, bytes]:
    """All files but the options, which a command states in full."""
    return {name: text for name, text in contents(folder).items() if name != "settings.json"}


def block(language: str, contained: str) -> str:
    """The one of the guide that contains a text."""
    (text,) = (text for kind, text in BLOCKS if kind == language and contained in text)
    return text


def executed(command: list[str], workplace: Path, **variables: str) -> None:
    """Run a command with one thread a process, since the last digits follow their number."""
    variables = {"OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        command,
        cwd=workplace,
        env=environment(**variables),
        capture_output=True,
        encoding="utf-8",
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_lines_of_an_engine(engine, workplace):
    module, contained = ENGINES[engine]
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    text = block("python", contained).replace("n_workers=8", "n_workers=2")
    text = re.sub(r"\b(Pool|ProcessPoolExecutor)\(8", r"\1(2", text).replace("::8", "::2")
    text = text.replace("range(8)", "range(2)").replace("maximum_jobs=16", "maximum_jobs=1")
    text = text.replace("cores=4", "cores=2")
    shutil.rmtree(workplace / "results", ignore_errors=True)
    name = f"score_{engine.replace(' ', '_')}.py"
    assert 'if __name__ == "__main__":\n' in text
    (workplace / name).write_text(f"{SETTINGS}\n{text}")
    command = [sys.executable, name]
    if engine == "mpi":
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed")
        launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
        command = [*launcher, sys.executable, "-m", "mpi4py.futures", name]
    # Without SLURM's programs submitit starts processes here.
    executed(command, workplace, **(with_tools(workplace) if "SLURM" in engine else {}))
    assert contents(workplace / "results") == contents(workplace / "expected")


@pytest.mark.slow
def test_the_job_array(workplace):
    """Each task in turn; the one that finds all else scored writes the tables."""
    results = workplace / "array"
    script = block("bash", "#SBATCH").replace("/data/manifest.json", "manifest.json")
    script = script.replace("/data/results", "array")
    (workplace / "job.sh").write_text(
        f"{script.rstrip()} \\\n    --measures decomposition --quiet\n"
    )
    for task in (2, 3, 1):
        numbers = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "3"}
        numbers |= with_tools(workplace)
        assert not (results / "scores.csv").exists()
        executed(["bash", "job.sh"], workplace, SLURM_CPUS_PER_TASK="1", **numbers)
    assert scores(results) == scores(workplace / "expected")


@pytest.mark.slow
def test_the_torchrun_line(workplace):
    (line,) = block("bash", "torchrun").splitlines()
    line = line.replace("--nproc-per-node 4", "--nproc-per-node 2")
    line = line.replace("--out results", "--out launched --encoder mel --measures decomposition")
    line = f"{line} --threads 1 --quiet"
    executed(["bash", "-c", line], workplace, **with_tools(workplace))
    assert scores(workplace / "launched") == scores(workplace / "expected")
