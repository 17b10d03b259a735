"""What single steps cost on a CPU, and what idle threads do there: `results/cpu.md`.

    python benchmarks/cpu.py kept      # distances among a bank's points, kept or not
    python benchmarks/cpu.py steps     # median, Gamma tail, whole-space factor, gathering
    python benchmarks/cpu.py systems   # several systems of a mixture, together and one by one
    python benchmarks/cpu.py encoder   # where the time goes with a large transformer
    python benchmarks/cpu.py eigh --data FOLDER   # what eigh="float32" changes on real frames
    python benchmarks/cpu.py threads   # OMP_WAIT_POLICY, GOMP_SPINCOUNT, threads; with a load

Each section replaces its own part of the page. Whatever is compared runs in turn within one
process (or, for what must be set before Python starts, in processes in turn), and ratios of
neighbours are told, since other work on the machine moves all times alike.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import core
import eigh_errors
import gpu
import numpy as np
import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank
from torch_mapss.bounds import frames as bounds
from torch_mapss.bounds import match as match_bounds
from torch_mapss.bounds import separation as separation_bounds
from torch_mapss.core import frame_batches, gamma, kernel, linalg, match
from torch_mapss.core.checks import Clouds, check_clouds
from torch_mapss.core.diffusion_map import gather
from torch_mapss.core.scores import match_scores, separation_scores
from torch_mapss.core.settings import Settings
from torch_mapss.encoders import as_encoder

PAGE = Path(__file__).resolve().parent / "results" / "cpu.md"
HEAD = """# The CPU: single steps, shared work, idle threads

Every section is written by `benchmarks/cpu.py` with the section's name.

**Reading.** All of it was measured beside other work on the machine: ratios within a row count,
milliseconds do not.

- *Distances among a bank's points* are a fifth to a quarter of a frame of 1024 features, about
  a tenth of one of 240 to 400, and nothing that can be measured of one of 80. So they are shared,
  and kept, where there are as many features as points. Scores and slopes agree to
  what inner products keep: 1e-12 of the largest and better.
- *Several systems* share them, and the copies of the bank's frames, by being scored together: eight
  systems of 1024 features take three quarters of the time, two take seven eighths. A bank that
  keeps them gives single calls the same, for a third of the bank's memory more; with `waveform`,
  whose embeddings are views of the waveforms, the bank doubles.
- *Single steps.* The median by partition is worth a fifth of a frame of 80 features beside sorting;
  that it tells no places is worth nothing. One integration of the Gamma tail instead of two is
  worth a twentieth. If the factors of the whole space cost nothing the bounds would take a seventh
  less, but they need all of it: their ridge of 1e-6 forbids the shorter way through the rank of the
  cluster (Woodbury), whose terms cancel in their first six digits. The copies of a frame to
  float64 are a thirtieth of it. Nothing is left there to gain.
- *A large transformer*, two blocks of it, spends five sixths of the time in its convolutions and
  linear layers; what this package adds to the encoder is a twentieth at most.
- *The eigendecomposition in float32* moves PS by a millionth and log PM by 4e-5 of itself in the
  median; at most three maps of a thousand keep another d. Of the gradients 99 of a hundred are
  right to a hundredth, but single ones are wholly wrong, and a single log PM by a sixth of itself.
  So it is for training and means, not for single frames.
- *Idle threads* that spin while they wait cost more than all else: on a busy machine bounds took
  ten times as long and eight times the processor time as with threads that sleep or with one
  thread (no quiet machine was at hand: its load was 10 and more). The command line makes them
  sleep by itself (`OMP_WAIT_POLICY=passive`, set before torch loads, unless something of the kind
  is set); in Python set it before Python starts, or `OMP_NUM_THREADS=1` where other work shares
  the machine.
"""
SECTIONS = ("kept", "systems", "steps", "encoder", "eigh", "threads")
RATE = 16_000
FRAMES = 27  # scored of a mixture


# ------------------------------------------------------------------------------------------------
# The page
# ------------------------------------------------------------------------------------------------


def write(section: str, lines: list[str]) -> None:
    """Replace a section of the page; the others stay."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = {}
    for name in SECTIONS:
        start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        if start in text:
            parts[name] = text.split(start)[1].split(end)[0].strip()
    parts[section] = "\n".join(lines)
    blocks = [
        f"<!-- {name} -->\n{parts[name]}\n<!-- end {name} -->" for name in SECTIONS if name in parts
    ]
    PAGE.write_text("\n\n".join([HEAD.strip(), *blocks]) + "\n", encoding="utf-8")
    print("\n".join(lines))


def conditions() -> str:
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, load average {load:.1f}, "
        f"torch {torch.__version__}."
    )


def in_turn(
    one: Callable[[], object], other: Callable[[], object], repeats: int
) -> tuple[float, float, float, float, float]:
    """Median seconds of both, and quartiles of the ratio of the second to the first."""
    times = []
    for _ in range(repeats):
        pair = []
        for work in (one, other):
            start = time.perf_counter()
            work()
            pair.append(time.perf_counter() - start)
        times.append(pair)
    seconds = np.array(times)
    low, middle, high = np.quantile(seconds[:, 1] / seconds[:, 0], [0.25, 0.5, 0.75])
    first, second = np.median(seconds, 0)
    return first, second, low, middle, high


def row(name: str, found: tuple[float, float, float, float, float], count: int) -> str:
    first, second, low, middle, high = found
    per = 1e3 / count
    return (
        f"| {name} | {first * per:.2f} | {second * per:.2f} | {middle:.2f} | "
        f"{low:.2f} to {high:.2f} |"
    )


# ------------------------------------------------------------------------------------------------
# Distances among the points of a bank
# ------------------------------------------------------------------------------------------------


def measure_kept() -> None:
    lines = [
        "## Distances among a bank's points, kept or taken anew",
        "",
        "Frames of 140 points (two sources, 68 distortions, float64), with the block of D² of the "
        "bank's 138 points kept over the same frames without, in turn. The error is the largest "
        "difference of scores and slopes, relative to the largest of them; they "
        f"differ because inner products are taken about another centre. {conditions()}",
        "",
        *core.KEPT_HEADING,
    ]
    for features in (80, 240, 400, 1024):
        lines += core.kept(features)
        print(lines[-1], flush=True)
    write("kept", lines)


class Projection:
    """Frames of the waveform, taken to 1024 features by a fixed random matrix: nearly for nothing.

    As many features as the large transformers have, whose own time would hide all else here.
    """

    name, sample_rate, hop, receptive_field = "projection", RATE, 320, 400

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.matrix = torch.randn(400, 1024, generator=generator) / 20.0

    def __call__(self, waves: Tensor) -> Tensor:
        return torch.tanh(20.0 * waves.unfold(-1, 400, 320) @ self.matrix)


def one_by_one(mapss: MAPSS, estimates: list[Tensor], bank: ReferenceBank) -> None:
    for each in estimates:
        mapss.score_systems([each], bank, frames=FRAMES)


def measure_systems() -> None:
    generator = torch.Generator().manual_seed(0)
    references = 0.1 * torch.randn(2, 2 * RATE, generator=generator)
    lines = [
        "## Several systems of a mixture",
        "",
        "`MAPSS.score_systems` of estimates of one mixture (27 frames, two sources, full banks, "
        "encoding of the estimates included), over one call for each system with the same bank; "
        "then single calls with a bank that keeps its distances over one that does not. "
        f"{conditions()}",
        "",
        "| encoder | features | systems | one by one ms | together ms | ratio | middle half |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, features in (("mel", 80), ("waveform", 400), ("projection", 1024)):
        mapss = MAPSS(Projection() if name == "projection" else name)
        bank = mapss.prepare(references)
        for count in (2, 8):
            noise = [torch.randn(references.shape, generator=generator) for _ in range(count)]
            estimates = [references + 0.3 * references.flip(0) + 0.02 * x for x in noise]
            together = partial(mapss.score_systems, estimates, bank, frames=FRAMES)
            found = in_turn(partial(one_by_one, mapss, estimates, bank), together, 3)
            lines.append(row(f"{name} | {features} | {count}", found, 1))
            print(lines[-1], flush=True)
        full = bank.with_distances()
        plain, ready = (partial(one_by_one, mapss, estimates[:1], x) for x in (bank, full))
        found = in_turn(plain, ready, 5)
        size = f"kept with the bank ({bank.nbytes >> 20} to {full.nbytes >> 20} MiB)"
        lines.append(row(f"{name} | {features} | 1, {size}", found, 1))
        print(lines[-1], flush=True)
    write("systems", lines)


# ------------------------------------------------------------------------------------------------
# Single steps
# ------------------------------------------------------------------------------------------------


def by_sorting(values: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """As on accelerators: what stands beside NumPy's partition."""
    last = min(rank, values.shape[-1] - 1)
    ordered = values.sort(-1).values
    return ordered[..., rank - 1].clone(), ordered[..., last].clone()


def with_places(values: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A partition that also tells where the middle values stand."""
    last = min(rank, values.shape[-1] - 1)
    places = torch.from_numpy(np.argpartition(values.numpy(), (rank - 1, last), axis=-1))
    found = values.gather(-1, places[..., [rank - 1, last]])
    return found[..., 0].clone(), found[..., 1].clone()


def tails_apart(k: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return gamma.gammaincc(k, x), gamma.log_gammaincc(k, x)


def patched(where: Any, name: str, instead: Any, work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with mock.patch.object(where, name, instead):
            work()

    return run


def measure_steps() -> None:
    count, repeats = 27, 9
    few, many = (check_clouds(*core.frames(count, m), None, None, None, 1) for m in (80, 1024))
    ps, pm = (partial(whole, few, scores) for scores in (separation_scores, match_scores))
    lines = [
        "## Single steps",
        "",
        "A frame of 140 points, forward: as it is, and with one step done otherwise, in turn. "
        "*For nothing* hands the step its result: what could be gained by it at best. *Alone* is "
        f"the time of that step and nothing else. {conditions()}",
        "",
        "| what | as it is, ms a frame | otherwise | ratio | middle half |",
        "|---|---|---|---|---|",
    ]
    for name, one, other in (
        (
            "PS, 80 features: median by sorting",
            ps,
            patched(kernel, "_ordered_pair", by_sorting, ps),
        ),
        (
            "PS, 80 features: median by a partition with places",
            ps,
            patched(kernel, "_ordered_pair", with_places, ps),
        ),
        (
            "PM and log PM, 80 features: a Gamma tail for each",
            pm,
            patched(match, "both_tails", tails_apart, pm),
        ),
        *factors_for_nothing(few),
        *parts_alone(many),
    ):
        lines.append(row(name, in_turn(one, other, repeats), count))
        print(lines[-1], flush=True)
    write("steps", lines)


def whole(clouds: Clouds, scores: Any, rest: bool = False) -> None:
    with torch.no_grad():
        frame_batches.score_frames(clouds, Settings(), scores, rest=rest)


def factors_for_nothing(clouds: Clouds) -> Iterator[tuple[str, Any, Any]]:
    """Bounds, and the same with the factors of the whole space handed to them."""
    both = bounds.kernels_with_scores(bounds.Options(0.95, "paper"))
    rooms = (separation_bounds, "full_factor"), (match_bounds, "ridge_factor")
    for measure, scores, (room, name) in zip(("PS", "PM"), both, rooms):
        ordinary = partial(whole, clouds, scores, True)
        known: list[Tensor] = []
        original = getattr(room, name)

        def noted(*given: Any, original: Any = original, known: Any = known) -> Tensor:
            known.append(original(*given))
            return known[-1]

        def handed(*given: Any, known: Any = known) -> Tensor:
            known.append(known.pop(0))  # round and round, chunk by chunk
            return known[-1]

        patched(room, name, noted, ordinary)()
        yield (
            f"bounds of {measure}, 80 features: factors of the whole space for nothing",
            ordinary,
            patched(room, name, handed, ordinary),
        )


def parts_alone(clouds: Clouds) -> Iterator[tuple[str, Any, Any]]:
    """Frames of 1024 features, and single parts of the way alone."""
    ordinary = partial(whole, clouds, separation_scores)
    size = 27
    parts = [x.split(size) for x in clouds[:3]]

    def copies() -> None:
        for outputs, references, distortions in zip(*parts):
            gather(outputs, references, distortions.flatten(1, 2))

    points = torch.cat([clouds.outputs, clouds.references, clouds.distortions.flatten(1, 2)], 1)
    centred = [part - part.mean(-2, keepdim=True) for part in points.double().split(size)]

    def products() -> None:
        for part in centred:
            part @ part.mT

    matrices = [part @ part.mT for part in centred]

    def decompositions() -> None:
        for part in matrices:
            linalg.eigh(part)

    yield "PS, 1024 features: copies to float64 alone", ordinary, copies
    yield "PS, 1024 features: inner products of all points alone", ordinary, products
    yield "PS, 1024 features: eigendecompositions alone", ordinary, decompositions


# ------------------------------------------------------------------------------------------------
# A large transformer
# ------------------------------------------------------------------------------------------------

OPERATORS = {
    "convolutions": ("convolution", "conv1d"),
    "linear layers": ("addmm", "aten::mm", "linear"),
    "attention": ("attention", "softmax"),
    "layer norm": ("layer_norm",),
    "GELU": ("gelu",),
    "copies": ("copy_", "clone", "contiguous", "aten::cat"),
    "eigendecomposition": ("eigh",),
    "batched products (attention, core)": ("bmm",),
    "Fourier transforms": ("fft",),
}


def measure_encoder(seconds: float = 0.6) -> None:
    from torch.profiler import ProfilerActivity, profile

    banks = {f"{kind}_bank": DistortionBank(kind, size=16) for kind in ("separation", "match")}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no preprocessor's settings beside random weights
        gpu.save_encoder(folder, small=False)
        mapss = MAPSS(folder, layer=2, **banks)
        references = gpu.voices(seconds, 2)
        mapss(gpu.leaky(references), references)  # once before, for what is made once
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            mapss(gpu.leaky(references), references)
    shares = dict.fromkeys((*OPERATORS, "everything else"), 0.0)
    for event in seen.key_averages():
        kinds = [kind for kind, names in OPERATORS.items() if any(n in event.key for n in names)]
        shares[kinds[0] if kinds else "everything else"] += event.self_cpu_time_total
    total = sum(shares.values())
    lines = [
        "## A large transformer",
        "",
        f"Preparing and scoring {seconds:g} s of two sources with banks of 16, wav2vec 2.0 of the "
        f"large shape with random weights up to layer 2: share of the operators' own time in "
        f"{total / 1e6:.1f} s. {conditions()}",
        "",
        "| operators | share |",
        "|---|---|",
    ]
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    lines += [f"| {kind} | {100.0 * share / total:.1f} % |" for kind, share in ranked]
    write("encoder", lines)


# ------------------------------------------------------------------------------------------------
# The eigendecomposition in float32
# ------------------------------------------------------------------------------------------------


def measure_eigh(root: Path) -> None:
    lines = [
        "## The eigendecomposition in float32",
        "",
        '`eigh="float32"` against `"float64"`, full banks, convention `paper`: every output of '
        f"every system of `{root.name}/mapss.json`, of each file {eigh_errors.SECONDS:g} s and of "
        f"these up to {eigh_errors.FRAMES} frames in which all sources are active. Errors of PS "
        "and PM are absolute, others relative to the value in float64. A gradient is that of a "
        "frame's scores (for PM of log PM) by the embeddings of its outputs, and its error the "
        f"norm of the difference. torch {torch.__version__}.",
        "",
        *eigh_errors.HEADING,
    ]
    for rows in eigh_errors.table(root):
        lines += rows
        print("\n".join(rows), flush=True)
    write("eigh", lines)


# ------------------------------------------------------------------------------------------------
# Idle threads
# ------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, str]] = {
    "as torch has it": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "GOMP_SPINCOUNT=0": {"GOMP_SPINCOUNT": "0"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}
OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    code = "while True: sum(range(10000))"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def child() -> None:
    """Bounds and scores of three seconds of noise, after the modules are there."""
    generator = torch.Generator().manual_seed(0)
    references = 0.1 * torch.randn(2, 3 * RATE, generator=generator)
    banks = {f"{kind}_bank": DistortionBank(kind) for kind in ("separation", "match")}
    mapss = MAPSS(as_encoder("mel"), **banks)
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    mapss.bounds(references + 0.3 * references.flip(0), references)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cpu = spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime
    print(time.perf_counter() - start, cpu)


def one_run(given: dict[str, str]) -> tuple[float, float]:
    around = {name: value for name, value in os.environ.items() if name not in OURS}
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(
        command, env={**around, **given}, capture_output=True, text=True, check=True
    )
    wall, cpu = done.stdout.split()
    return float(wall), float(cpu)


def measure_threads(rounds: int) -> None:
    lines = [
        "## Idle threads",
        "",
        "Scores and bounds of 3 s of noise (mel, two sources, full banks), prepared and scored in "
        f"a process of its own for each setting, in turn, {rounds} rounds; without and beside a "
        "load of two processes that only compute. Other work may run on the machine; the average "
        f"load of a minute is told as well. {os.cpu_count()} cores, torch {torch.__version__}.",
        "",
        "| beside | load average | setting | seconds (median, worst) | processor seconds |",
        "|---|---|---|---|---|",
    ]
    for load in (0, 2):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
        with busy(load):
            for _ in range(rounds):
                for name, given in SETTINGS.items():
                    found[name].append(one_run(given))
            average = os.getloadavg()[0]
        for name, runs in found.items():
            wall, cpu = np.array(runs).T
            beside = f"{load} processes" if load else "nothing of ours"
            lines.append(
                f"| {beside} | {average:.1f} | {name} | {np.median(wall):.1f}, {wall.max():.1f} | "
                f"{np.median(cpu):.1f} |"
            )
            print(lines[-1], flush=True)
        write("threads", lines)  # what there is: a load can make the rest long


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", nargs="?", choices=SECTIONS)
    parser.add_argument("--rounds", type=int, default=3, help="of `threads`")
    parser.add_argument("--data", type=Path, help="of `eigh`: folder of mapss.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child()
    elif arguments.section == "threads":
        measure_threads(arguments.rounds)
    elif arguments.section == "eigh":
        if arguments.data is None:
            parser.error("eigh needs --data FOLDER, which holds mapss.json")
        measure_eigh(arguments.data)
    else:
        work = {"kept": measure_kept, "systems": measure_systems, "steps": measure_steps}
        work["encoder"] = measure_encoder
        if arguments.section is None:
            parser.error(f"name a section: {', '.join(SECTIONS)}")
        work[arguments.section]()


if __name__ == "__main__":
    main()
