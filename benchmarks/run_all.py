"""Run the benchmarks and write one page, `RESULTS.md` in the folder of this file.

    python benchmarks/run_all.py [--only core pair …] [--reference-python ref/bin/python]
        [--against CHECKOUT]

Each section of the page names its command, machine, versions and commit. Scripts that need a
graphics card or the released package are left out where these are missing.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy
import torch
import transformers

import torch_mapss

HERE = Path(__file__).resolve().parent
COMMIT = re.compile(r"\(commit (\w+)\)")
PAGE = HERE / "RESULTS.md"
# Name of the script -> title of its section, and its arguments.
SECTIONS: dict[str, tuple[str, list[str]]] = {
    "core": ("Kernels", []),
    "pair": ("Clearance and fidelity beside PS and PM, and 0.4.0", ["--before", "d0e31ac"]),
    "training_step": ("A training step", []),
    "sets": ("Whole sets", ["--short", "1000", "--songs", "4", "--clips", "1", "4"]),
    "scaling": ("Duration, sources, systems: time and memory", []),
    "reference_speed": ("Beside the released package", []),
    "distortions": ("Distortion banks", []),
    "loudness": ("Loudness", []),
    "encoders": ("A transformer cut above its layer", []),
    "special_accuracy": ("Incomplete gamma function", []),
    "coverage": ("Coverage of the error bounds", []),
    "gpu": ("Graphics card", []),
}


def machine() -> str:
    """Processor, cores, versions and commit."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model n"))
    except (OSError, UnicodeDecodeError, StopIteration):  # not Linux, or not x86
        pass
    command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or "none"
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start. "
        f"torch_mapss {torch_mapss.__version__} (commit {commit}), torch {torch.__version__}, "
        f"transformers {transformers.__version__}, NumPy {numpy.__version__}, "
        f"Python {platform.python_version()}. {date.today().isoformat()}."
    )


def stored() -> dict[str, str]:
    """Name -> section, of the page as it is."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    sections = {}
    for marked in text.split("<!-- ")[1:]:
        name, _, body = marked.partition(" -->")
        sections[name] = body.strip()
    return sections


def section(name: str, options: argparse.Namespace) -> str:
    """Run one script; returns its section of the page."""
    title, arguments = SECTIONS[name]
    if name == "reference_speed" and options.reference_python:
        arguments = ["--reference-python", options.reference_python]
    if name == "sets" and options.against:
        arguments = [*arguments, "--against", options.against]
    began = time.perf_counter()
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    shown = " ".join(["python", f"benchmarks/{name}.py", *SECTIONS[name][1]])
    took = time.perf_counter() - began
    return f"## {title}\n\n`{shown}` ({took:.0f} s)\n\n{finished.stdout.strip()}\n\n{machine()}"


def page(sections: dict[str, str]) -> str:
    """The whole page: head, with the sections that are missing, and the others in order."""
    commits = set(COMMIT.findall("\n".join(sections.values())))
    head = "# Benchmarks: what the scripts printed\n\nWritten by `benchmarks/run_all.py`."
    if len(commits) > 1:
        head += (
            f" The sections are of {len(commits)} commits, each named at its end: compare numbers "
            "within a section only."
        )
    missing = [f"`{name}.py` ({SECTIONS[name][0]})" for name in SECTIONS if name not in sections]
    if missing:
        head += f" Not run for this page: {', '.join(missing)}."
    body = [f"<!-- {name} -->\n\n{sections[name]}" for name in SECTIONS if name in sections]
    return "\n\n".join([head, *body]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="keep the other sections")
    parser.add_argument("--reference-python", help="interpreter with mapss-measures installed")
    parser.add_argument("--against", help="checkout of another version, for sets.py")
    options = parser.parse_args()
    chosen = options.only or [
        name
        for name in SECTIONS
        if (name != "reference_speed" or options.reference_python)
        and (name != "gpu" or torch.cuda.is_available())
    ]
    sections = stored()
    for name in chosen:
        print(f"{name} …", file=sys.stderr, flush=True)
        sections[name] = section(name, options)
        PAGE.write_text(page(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
