"""Errors, times and memory on a graphics card, in one run of at most eight minutes.

    python benchmarks/gpu.py [--minutes 8] [--out benchmarks/results/gpu.md]

Prints the card and the versions, then: error against the CPU; real-time factor and memory of
``evaluate`` with the architecture of wav2vec2-large (random weights, nothing is downloaded); steps
of training with cached and with uncached banks, and the share of the eigendecomposition in them, in
float64 and in float32; a bfloat16 encoder compared with a float32 one; and how often a step waits
for the card, according to the profiler. A section for which no time is left says so.
``--device cpu --small`` tries the script where there is no card.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import platform
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common import leaky, table, voices
from torch import Tensor

from torch_mapss import MAPSS, MAPSSLoss, evaluate
from torch_mapss import functional as F
from torch_mapss.core import linalg

RATE = 16_000
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
Rows = list[list[str]]


class Bench:
    """The device, the remaining time, and the encoder's folder."""

    def __init__(self, device: str, minutes: float, small: bool) -> None:
        self.device, self.small = torch.device(device), small
        self.end = time.monotonic() + 60.0 * minutes
        self.folder = tempfile.TemporaryDirectory()
        save_encoder(self.folder.name, small)

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self.end - time.monotonic()

    def mapss(self, **options: Any) -> MAPSS:
        """A scorer with the encoder of the folder."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the folder has no settings of a preprocessor
            return MAPSS(self.folder.name, layer=2, device=self.device, **options)

    def timed(self, function: Callable[[], object], rounds: int = 3) -> tuple[float, float]:
        """Median seconds of a call, and GiB that it allocates at its peak, after one to warm up."""
        function()
        allocated_before = self.allocated(reset=True)
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            function()
            self.wait()
            seconds.append(time.perf_counter() - began)
            if self.left < 5.0 * seconds[-1]:
                break
        return statistics.median(seconds), (self.allocated() - allocated_before) / 2**30

    def wait(self) -> None:
        """Until the card has finished what was queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def allocated(self, reset: bool = False) -> int:
        """Peak of the allocated bytes; with ``reset`` the peak is reset, to the current bytes."""
        if self.device.type != "cuda":
            return 0
        if reset:
            torch.cuda.reset_peak_memory_stats(self.device)
            return torch.cuda.memory_allocated(self.device)
        return torch.cuda.max_memory_allocated(self.device)


def save_encoder(folder: str, small: bool) -> None:
    """A wav2vec 2.0 of the large shape, three of its 24 blocks deep: layer 2 needs no more."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    if small:
        shape = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
        shape["conv_dim"] = (32,) * 7
    norm = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
    Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=3, **shape, **norm)).save_pretrained(folder)


# ------------------------------------------------------------------------------------ sections


def errors(bench: Bench) -> str:
    """Scores and gradients on the card against those of the CPU, in float64 and float32."""
    generator = torch.Generator("cpu").manual_seed(0)
    frames, features = (4, 16) if bench.small else (32, 256)

    def normal(*shape: int) -> Tensor:
        return torch.randn(frames, *shape, features, generator=generator)

    references = normal(2)
    distortions = references.unsqueeze(2) + 0.5 * normal(2, 68)
    points = references + 0.3 * normal(2), references, distortions

    def scored(name: str, device: torch.device, eigh: str) -> tuple[Tensor, Tensor]:
        outputs, references, distortions = (x.double().to(device) for x in points)
        outputs.requires_grad_()
        measure = F.perceptual_separation if name == "PS" else F.perceptual_match
        options = {} if name == "PS" else {"log": True}
        score = measure(outputs, references, distortions, eigh=eigh, **options)
        (gradient,) = torch.autograd.grad(score.sum(), outputs)
        return score.detach().cpu(), gradient.cpu()

    rows: Rows = []
    for name in ("PS", "log PM"):
        on_cpu = scored(name, torch.device("cpu"), "float64")
        for eigh in ("float64", "float32"):
            on_device = scored(name, bench.device, eigh)
            cells = []
            for values, expected in zip(on_device, on_cpu):
                error = float((values - expected).abs().max() / expected.abs().max())
                cells.append(f"{error:.1e}")
            rows.append([name, eigh, *cells])
    return table(["score", "eigh", "error of scores", "error of gradients"], rows)


def evaluation(bench: Bench) -> str:
    """Real-time factor of ``evaluate``; the paper's own code has 1.2 on an A6000."""
    mapss, rows = bench.mapss(), []
    lengths = (1.0,) if bench.small else (5.0, 30.0)
    for seconds, sources, bounds in itertools.product(lengths, (2, 4), (False, True)):
        line = [f"{seconds:g}", str(sources), "yes" if bounds else "no"]
        if bench.left < 60.0:
            rows.append([*line, "no time left", ""])
            continue
        references = voices(seconds, sources)
        score = functools.partial(
            evaluate,
            estimates=leaky(references),
            references=references,
            sample_rate=RATE,
            mapss=mapss,
            bounds=bounds,
        )
        took, memory = bench.timed(score, 2)
        rows.append([*line, f"{took / seconds:.3f}", f"{memory:.2f}"])
    return table(["s", "sources", "bounds", "real-time factor", "peak GiB"], rows)


def training(bench: Bench) -> str:
    """Steps a second, batch of four mixtures of 4 s: forward and backward to the estimates."""
    batch, seconds = (1, 1.0) if bench.small else (4, 4.0)
    references = voices(seconds).expand(batch, -1, -1).to(bench.device)
    estimates = leaky(references).requires_grad_()
    rows: Rows = []
    for eigh in ("float64", "float32"):
        loss = MAPSSLoss(bench.mapss(eigh=eigh))
        bank = loss.mapss.prepare(references)
        for label, targets in (("cached", bank), ("uncached", references)):
            if bench.left < 40.0:
                rows.append([eigh, label, "no time left", "", ""])
                continue

            def step(targets: Any = targets, loss: MAPSSLoss = loss) -> None:
                torch.autograd.grad(loss(estimates, targets), estimates)

            took, memory = bench.timed(step)
            with decomposing(bench.wait) as spent:
                began = time.perf_counter()
                step()
                bench.wait()
                share = sum(spent) / (time.perf_counter() - began)
            rows.append([eigh, label, f"{1.0 / took:.2f}", f"{memory:.2f}", f"{share:.2f}"])
    return table(["eigh", "bank", "steps a second", "peak GiB", "share of eigh"], rows)


@contextlib.contextmanager
def decomposing(wait: Callable[[], object] = lambda: None) -> Iterator[list[float]]:
    """A list that receives the seconds of each eigendecomposition; ``wait`` is called around it."""
    spent: list[float] = []
    eigh = linalg.eigh

    def watched(matrices: Tensor) -> tuple[Tensor, Tensor]:
        wait()
        began = time.perf_counter()
        decomposition = eigh(matrices)
        wait()
        spent.append(time.perf_counter() - began)
        return decomposition

    with mock.patch.object(linalg, "eigh", watched):
        yield spent


def decompositions(bench: Bench) -> str:
    """A bare batch of the matrices of 200 frames."""
    generator = torch.Generator("cpu").manual_seed(0)
    x = torch.randn(4 if bench.small else 200, 144, 80, generator=generator, dtype=torch.float64)
    kernels = (-torch.cdist(x, x).square() / 160.0).exp().to(bench.device)
    rows: Rows = []
    for dtype in (torch.float64, torch.float32):
        took, _ = bench.timed(lambda dtype=dtype: torch.linalg.eigh(kernels.to(dtype)))
        rows.append([str(dtype).removeprefix("torch."), f"{1e3 * took / len(x):.3f}"])
    return table(["eigh of 144 x 144", "ms a matrix"], rows)


def encoders(bench: Bench) -> str:
    """A bfloat16 encoder beside a float32 one: time to encode, and what it does to the scores."""
    references = voices(1.0 if bench.small else 5.0).unsqueeze(0).to(bench.device)
    estimates, rows, means = leaky(references), [], []
    for dtype in ("float32", "bfloat16"):
        mapss = bench.mapss(dtype=dtype)
        waves = references.expand(1 if bench.small else 16, -1, -1)
        with torch.no_grad():
            took, memory = bench.timed(lambda e=mapss.encoder, w=waves: e(w))
            means.append(mapss(estimates, references).utterance())
        changes = []
        for name in ("ps", "pm", "log_pm"):
            change = getattr(means[-1], name) - getattr(means[0], name)
            changes.append(f"{float(change.abs().max()):.4f}")
        rows.append([dtype, f"{took:.3f}", f"{memory:.2f}", *changes])
    header = ["encoder", "seconds", "peak GiB", "change of PS", "of PM", "of log PM"]
    return table(header, rows)


def waiting(bench: Bench) -> str:
    """How often a step with a cached bank waits, as the profiler sees it, for two lengths."""
    if bench.device.type != "cuda":
        return "Needs CUDA."
    from torch.profiler import ProfilerActivity, profile

    loss = MAPSSLoss(bench.mapss())
    rows: Rows = []
    for seconds in (1.0, 4.0):
        references = voices(seconds).unsqueeze(0).to(bench.device)
        bank = loss.mapss.prepare(references)
        estimates = leaky(references).requires_grad_()
        loss(estimates, bank).backward()  # fills caches
        for name in ("forward", "backward"):
            value = loss(estimates, bank) if name == "backward" else None
            bench.wait()
            with (
                decomposing() as chunks,
                profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen,
            ):
                if value is None:
                    loss(estimates, bank)
                else:
                    value.backward()
            counts = Counter({event.key: event.count for event in seen.key_averages()})
            values_read = counts["aten::_local_scalar_dense"] + counts["aten::nonzero"]
            waits = sum(counts[wait] for wait in WAITS)
            rows.append([f"{seconds:g}", name, str(values_read), str(waits), str(len(chunks))])
    return table(["s", "pass", "values read", "waits of the host", "eigh calls among them"], rows)


SECTIONS: dict[str, Callable[[Bench], str]] = {
    "Error against the CPU": errors,
    "Waits": waiting,
    "Eigendecomposition": decompositions,
    "Training": training,
    "Encoder in bfloat16": encoders,
    "evaluate": evaluation,
}


def heading(device: torch.device) -> str:
    """Card and versions."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        card = f"{torch.cuda.get_device_name(device)}, {total / 2**30:.0f} GiB ({free / 2**30:.0f} "
        card += f"free), compute capability {capability}, CUDA {torch.version.cuda}"
    else:
        card = f"{device} (no card)"
    return f"{card}; torch {torch.__version__}, Python {platform.python_version()}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="limit of the run")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--out", type=Path, help="page to write")
    options = parser.parse_args()
    bench = Bench(options.device, options.minutes, options.small)
    paragraphs = ["# On a graphics card", "Written by `benchmarks/gpu.py`.", heading(bench.device)]
    print(paragraphs[-1], flush=True)
    for name, section in SECTIONS.items():
        began = time.monotonic()
        text = section(bench) if bench.left > 20.0 else "No time left."
        about = (section.__doc__ or "").splitlines()[0]
        paragraphs += [f"## {name}", about, text]
        took = time.monotonic() - began
        print(f"\n## {name} ({took:.0f} s)\n{about}\n\n{text}", flush=True)
    if options.out is not None:
        options.out.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
