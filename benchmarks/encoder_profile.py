"""Where the time of a large encoder goes, and what convolutions without copies save.

    python benchmarks/encoder_profile.py shares|layers|alternatives [--rounds 3] [--seconds 1]

A wav2vec 2.0 of the large shape and two blocks with random weights, in one thread; nothing is
downloaded. Every section stands for itself and goes into its place of `results/encoders.md`:

* `shares`: prepare and score two sources of a second under torch's profiler, with the layers as
  transformers has them and as they are loaded here, by part of the program;
* `layers`: encode batches with either, forward, and with the way back to the waveform;
* `alternatives`: the convolutions alone, computed in other ways that copy less.

Times are the processor's, so that others on the machine disturb them less.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from bounds_page import table, write_section
from gpu import leaky, save_encoder, voices
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from torch_mapss import MAPSS, DistortionBank
from torch_mapss.encoders import clear_encoder_cache, wav2vec
from torch_mapss.pipeline import clusters, prepare, scoring

PAGE = Path(__file__).parent / "results" / "encoders.md"
TITLE = """# The cost of a large encoder

## Reading

Not written yet.
"""
STOCK, OURS = KINDS = "stock", "channels last"
SETTING = f"one thread, torch {torch.__version__}"
RATE = 16_000
LAYER = 2
Encode = Callable[[Tensor], Tensor]


def loaded(folder: str, kind: str) -> MAPSS:
    """With the convolutions of transformers, or with ours; weights are the same."""
    clear_encoder_cache()
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # no preprocessor's settings beside random weights
        if kind == STOCK:
            stack.enter_context(mock.patch.object(wav2vec, "keep_channels_last"))
        return MAPSS(folder, layer=LAYER)


# ------------------------------------------------------------------------------------ shares

# Part of the program -> the modules of the encoder it consists of.
PARTS = {
    "feature encoder": ("feature_extractor",),
    "its projection": ("feature_projection",),
    "positional convolution": ("encoder.pos_conv_embed",),
    "attention with its projections": tuple(f"encoder.layers.{i}.attention" for i in range(LAYER)),
    "feed-forward": tuple(f"encoder.layers.{i}.feed_forward" for i in range(LAYER)),
    "rest of the encoder": ("",),
}
MARK = "part: "
CONVOLUTIONS, NORMS = "convolutions", "their norms and activations"
GRAPHS, EIGH = "graphs and scores", "eigendecomposition"
ORDER = [CONVOLUTIONS, NORMS, *list(PARTS)[1:], "distortions", "loudness", GRAPHS, EIGH, "rest"]


def marked(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    """A function whose time is booked under a part."""

    def called(*arguments: Any, **options: Any) -> Any:
        with record_function(MARK + part):
            return function(*arguments, **options)

    return called


def marked_steps(function: Callable[..., Any], part: str) -> Callable[..., Iterator[Any]]:
    """The same for a generator: the time of its steps, not what is done between them."""

    def called(*arguments: Any, **options: Any) -> Iterator[Any]:
        steps, end = function(*arguments, **options), object()
        while True:
            with record_function(MARK + part):
                step = next(steps, end)
            if step is end:
                return
            yield step

    return called


@contextmanager
def watched(mapss: MAPSS) -> Iterator[None]:
    """Within, every part of the program leaves its mark in a profile."""
    with ExitStack() as stack:
        patch = lambda *args: stack.enter_context(mock.patch.object(*args))  # noqa: E731
        model: Any = mapss.encoder.model
        for part, names in PARTS.items():
            for name in names:
                module = model.get_submodule(name)
                patch(module, "forward", marked(module.forward, part))
        for where in (clusters, prepare, scoring):
            patch(where, "at_loudness", marked(where.at_loudness, "loudness"))
        for name in ("pending", "finished"):
            patch(scoring, name, marked(getattr(scoring, name), GRAPHS))
        patch(DistortionBank, "measure", marked(DistortionBank.measure, "distortions"))
        patch(DistortionBank, "iterate", marked_steps(DistortionBank.iterate, "distortions"))
        yield


def part_of(event: Any) -> str:
    """The innermost part an operation belongs to."""
    names = []
    while event is not None:
        names.append(event.name)
        event = event.cpu_parent
    part = next((name[len(MARK) :] for name in names if name.startswith(MARK)), "rest")
    if part == "feature encoder":
        windows = ("aten::conv", "aten::linear", "aten::unfold")
        return CONVOLUTIONS if any(name.startswith(windows) for name in names) else NORMS
    if part == GRAPHS and any("linalg_eigh" in name for name in names):
        return EIGH
    return part


def profiled(mapss: MAPSS, seconds: float) -> tuple[Counter[str], Counter[str]]:
    """Seconds by part, and those of them that copied; preparing and scoring two sources."""
    references = voices(seconds, 2)
    times, copies = Counter[str](), Counter[str]()
    with watched(mapss), profile(activities=[ProfilerActivity.CPU]) as seen, torch.no_grad():
        mapss(leaky(references), references)
    for event in seen.events():
        part, took = part_of(event), 1e-6 * event.self_cpu_time_total
        times[part] += took
        if event.name == "aten::copy_":
            copies[part] += took
    return times, copies


def shares(folder: str, seconds: float, rounds: int) -> str:
    runs = [
        (kind, profiled(loaded(folder, kind), seconds)) for _ in range(rounds) for kind in KINDS
    ]
    best = [min((run for kind, run in runs if kind == k), key=_total) for k in KINDS]
    rows = [[part, *(cell for run in best for cell in _cells(*run, part))] for part in ORDER]
    rows.append(["all", *(cell for run in best for cell in _cells(*run, None))])
    header = ["part", STOCK, "of it copies", OURS, "of it copies"]
    return (
        f"## Prepare and score {seconds:g} s, two sources\n\n"
        f"Percent of each column's own time, of the quicker of {rounds} runs, {SETTING}. The whole "
        f"takes {_total(best[0]) / _total(best[1]):.2f} times as long with the {STOCK} layers.\n\n"
        + table(header, rows)
    )


def _total(run: tuple[Counter[str], Counter[str]]) -> float:
    return sum(run[0].values())


def _cells(times: Counter[str], copies: Counter[str], part: str | None) -> list[str]:
    """Share of a part (None: of all) and of the copies in it, in percent."""
    whole = sum(times.values())
    took, copied = (c[part] if part else sum(c.values()) for c in (times, copies))
    return [f"{100.0 * took / whole:.1f}", f"{100.0 * copied / whole:.1f}"]


# ------------------------------------------------------------------------------------ layers


def taken(encode: Encode, wave: Tensor, backward: bool) -> tuple[float, Tensor]:
    """Processor seconds of one call, and the features or the gradient of the waveform."""
    wave = wave.detach().requires_grad_(backward)
    began = time.process_time()
    with torch.set_grad_enabled(backward):
        found = encode(wave)
    if backward:
        (found,) = torch.autograd.grad(found.square().sum(), wave)
    return time.process_time() - began, found.detach()


def compared(ways: dict[str, Encode], batches: list[tuple[int, float]], rounds: int) -> list[Any]:
    """Rows: batch, pass, seconds of the first way, then ratio and error of each other."""
    rows = []
    for encode in ways.values():
        taken(encode, torch.zeros(1, RATE // 10), True)  # the first call sets things up
    for items, seconds in batches:
        wave = 0.1 * torch.randn(items, int(RATE * seconds), generator=torch.Generator())
        for backward in (False, True):
            spent: dict[str, list[float]] = {name: [] for name in ways}
            found: dict[str, Tensor] = {}
            for _ in range(rounds):  # in turn, so that a busy minute meets them all
                for name, encode in ways.items():
                    took, found[name] = taken(encode, wave, backward)
                    spent[name].append(took)
            first, *others = ways
            line = [f"{items} of {seconds:g} s", "and back" if backward else "forward"]
            line.append(f"{min(spent[first]):.2f}")
            for name in others:
                ratio = statistics.median(a / b for a, b in zip(spent[first], spent[name]))
                error = (found[name] - found[first]).abs().max() / found[first].abs().max()
                line.append(f"{ratio:.2f} ({float(error):.0e})")
            print(line, flush=True)
            rows.append(line)
    return rows


def layers(folder: str, seconds: float, rounds: int) -> str:
    batches = [(16, seconds), (4, 4.0 * seconds)]
    ways = {kind: loaded(folder, kind).encoder for kind in KINDS}
    header = ["batch", "pass", f"{STOCK}, s", f"{OURS}: times as fast (difference)"]
    return (
        "## The encoder alone\n\n"
        f"Convolutions and two blocks, {SETTING}; processor time, in turn, median of the ratios of "
        f"{rounds} rounds.\n\n" + table(header, compared(ways, batches, rounds))
    )


# ------------------------------------------------------------------------------------ alternatives


def by_products(features: Any, wave: Tensor) -> Tensor:
    """(B, T) -> (B, T', C): each convolution a sum of matrix products with views of its input."""
    x = wave[..., None]
    for layer in features.conv_layers:
        (kernel,), (stride,) = layer.conv.kernel_size, layer.conv.stride
        count, whole = (x.shape[1] - kernel) // stride + 1, kernel - kernel % stride
        taps = [(first, stride) for first in range(0, whole, stride)]
        taps += [(first, 1) for first in range(whole, kernel)]
        found: Any = None
        for first, width in taps:
            rows = x[:, first : first + (count - 1) * stride + 1 : stride]
            if width > 1:
                rows = x[:, first : first + count * stride].reshape(len(x), count, -1)
            weight = layer.conv.weight[..., first : first + width].transpose(1, 2).flatten(1)
            bias = layer.conv.bias if found is None else None
            part = F.linear(rows, weight, bias)
            found = part if found is None else found.add_(part)
        x = layer.activation(layer.layer_norm(found))
    return x


def norm_across(features: Any, wave: Tensor) -> Tensor:
    """(B, T) -> (B, T', C): time stays last, mean and variance are taken over the axis before."""
    x = wave[:, None]
    for layer in features.conv_layers:
        x, norm = layer.conv(x), layer.layer_norm
        variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        x = (x - mean) * (variance + norm.eps).rsqrt()
        x = layer.activation(torch.addcmul(norm.bias[:, None], x, norm.weight[:, None]))
    return x.transpose(1, 2)


def in_dtype(encode: Encode, dtype: torch.dtype) -> Encode:
    """The same with its input rounded to a type; the difference is taken in float32."""
    return lambda wave: encode(wave.to(dtype)).float()


def alternatives(folder: str, seconds: float, rounds: int) -> str:
    batches = [(4, seconds)]
    models = [loaded(folder, kind).encoder.model.feature_extractor for kind in KINDS]
    stock, ours = models
    ways: dict[str, Encode] = {
        STOCK: lambda wave: stock(wave).transpose(1, 2),
        OURS: lambda wave: ours(wave).transpose(1, 2),
        "matrix products": lambda wave: by_products(stock, wave),
        "norm across": lambda wave: norm_across(stock, wave),
    }
    rows: list[Any] = []
    for dtype in (torch.float32, torch.bfloat16):
        stock.to(dtype), ours.to(dtype)
        cast = {name: in_dtype(way, dtype) for name, way in ways.items()}
        rows += [[str(dtype)[6:], *line] for line in compared(cast, batches, rounds)]
    header = ["dtype", "batch", "pass", f"{STOCK}, s", *list(ways)[1:]]
    return (
        "## The convolutions alone, in other ways\n\n"
        f"Times as fast as the {STOCK} layers (and the largest difference to them), {SETTING}; "
        f"processor time, in turn, median of the ratios of {rounds} rounds.\n\n"
        + table(header, rows)
    )


SECTIONS: dict[str, Callable[[str, float, int], str]] = {
    "shares": shares,
    "layers": layers,
    "alternatives": alternatives,
}


def main() -> None:
    """Parse the arguments, measure one section and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("section", choices=tuple(SECTIONS))
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a waveform")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write the section into")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        save_encoder(folder, options.small)
        text = SECTIONS[options.section](folder, options.seconds, options.rounds)
    write_section(options.section, text, options.out, TITLE)


if __name__ == "__main__":
    main()
