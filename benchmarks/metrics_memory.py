"""Does a metric grow? Memory and encoder calls over many updates, and what sharing saves.

    python benchmarks/metrics_memory.py [--updates 200] [--encoder mel] [--seconds 1] [--out FILE]

Three ways to log PS and PM of the same batches: `shared`, a MetricCollection around one MAPSS;
`separate`, a MAPSS for each metric; `history`, shared and with the scores of every item kept. Each
updates with estimates that require a gradient, alternately by `update` and by `forward`.

Memory is the resident set after a quarter of the updates and at the end, after a collection of
garbage; state is what the metric would send to another process. The run fails if `shared` grows by
more than 5 % of the resident set or 8 MiB, if its state grows at all, or if a waveform is encoded
twice.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from torch_mapss import MAPSS, DistortionBank, PerceptualMatch, PerceptualSeparation
from torch_mapss.encoders import Encoder, load_encoder

MIB = 2**20
SOURCES, ITEMS = 2, 2


class Row(NamedTuple):
    """One way of logging."""

    name: str
    updates: int
    seconds: float  # per update
    early: int  # resident bytes after a quarter of the updates
    late: int  # at the end
    state_growth: int  # bytes of state, end minus start
    waveforms: float  # encoded per update

    @property
    def growth(self) -> int:
        return self.late - self.early


class Counting(Encoder):
    """An encoder that counts the waveforms it is given."""

    def __init__(self, inner: Encoder) -> None:
        super().__init__(
            name=inner.name,
            sample_rate=inner.sample_rate,
            hop=inner.hop,
            receptive_field=inner.receptive_field,
            feature_size=inner.feature_size,
        )
        self.inner, self.waveforms = inner, 0

    def forward(self, waveform: Tensor) -> Tensor:
        self.waveforms += waveform[..., 0].numel()
        return self.inner(waveform)


def resident() -> int:
    """Bytes in memory now; where the system does not tell, the most there ever were."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def state_bytes(metrics: MetricCollection) -> int:
    states = [{n: getattr(m, n) for n in m._defaults} for m in metrics.values()]
    return len(pickle.dumps(states))


def collection(encoder: Encoder, members: int, name: str) -> MetricCollection:
    def mapss() -> MAPSS:
        return MAPSS(
            encoder,
            separation_bank=DistortionBank("separation", size=members),
            match_bank=DistortionBank("match", size=members),
        )

    first = mapss()
    second = mapss() if name == "separate" else first
    keep = name == "history"
    return MetricCollection(
        {
            "ps": PerceptualSeparation(first, keep_items=keep),
            "pm": PerceptualMatch(second, keep_items=keep),
            "log_pm": PerceptualMatch(second, log=True, keep_items=keep),
        }
    )


def measure(name: str, encoder: Counting, updates: int, seconds: float, members: int) -> Row:
    metrics = collection(encoder, members, name)
    samples = int(seconds * encoder.sample_rate)
    generator = torch.Generator().manual_seed(0)
    early, encoder.waveforms, spent = 0, 0, 0.0
    metrics.update(*batch(samples, generator))
    start_state = state_bytes(metrics)
    encoder.waveforms = 0
    for step in range(updates):
        preds, target = batch(samples, generator)
        began = time.process_time()
        (metrics if step % 2 else metrics.update)(preds.requires_grad_(), target)
        spent += time.process_time() - began
        if step + 1 == max(updates // 4, 1):
            early = resident()
    return Row(
        name=name,
        updates=updates,
        seconds=spent / updates,
        early=early,
        late=resident(),
        state_growth=state_bytes(metrics) - start_state,
        waveforms=encoder.waveforms / updates,
    )


def batch(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    target = torch.randn(ITEMS, SOURCES, samples, generator=generator)
    return target + 0.3 * target.roll(1, 1), target


def failed_claims(rows: Sequence[Row], members: int) -> list[str]:
    shared = next(row for row in rows if row.name == "shared")
    once = ITEMS * SOURCES * (2 + 2 * members)
    failed = []
    if shared.growth > max(0.05 * shared.early, 8 * MIB):
        failed.append(f"resident memory grew by {shared.growth / MIB:.1f} MiB")
    if shared.state_growth != 0:
        failed.append(f"the state grew by {shared.state_growth} bytes")
    if shared.waveforms != once:
        failed.append(f"{shared.waveforms} waveforms encoded per update instead of {once}")
    return failed


def table(rows: Sequence[Row], encoder: str, members: int) -> str:
    lines = [
        f"Encoder {encoder}, {ITEMS} mixtures of {SOURCES} sources per update, {members} "
        f"distortions per bank: {ITEMS * SOURCES * (2 + 2 * members)} waveforms to encode.",
        "",
        "| metrics | updates | s/update (CPU) | MiB at a quarter | growth MiB | state growth B "
        "| encoded/update |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r.name} | {r.updates} | {r.seconds:.3f} | {r.early / MIB:.0f} "
            f"| {r.growth / MIB:+.1f} | {r.state_growth} | {r.waveforms:.0f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--encoder", default="mel")
    parser.add_argument("--members", type=int, default=8, help="distortions per bank")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--out", help="also write the table to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    encoder = Counting(load_encoder(options.encoder))
    sizes = options.updates, options.seconds, options.members
    rows = [measure(name, encoder, *sizes) for name in ("shared", "separate", "history")]
    text = table(rows, options.encoder, options.members)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n", encoding="utf-8")
    failed = failed_claims(rows, options.members)
    print(*(f"FAILED: {claim}" for claim in failed), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
