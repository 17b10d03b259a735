"""What cutting a transformer off above its layer saves, and what it costs in accuracy.

    python benchmarks/encoders.py [--size base] [--seconds 4] [--layer 2] [--dtype float32]

Random weights of the real shapes are written to a temporary folder and read back by the library, so
nothing is downloaded. Prints a table: processor time to encode, its ratio to the full model, and
the relative error against the full model's hidden state. A second table compares the cost of
clearance and fidelity on layers of a Whisper (the shape of tiny.en) with that on `mel`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import in_turn, leaky, table, voices
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss.encoders import load_encoder

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 6, "intermediate_size": 128},
    "base": {},
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}


def full_model(size: str) -> Any:
    """A randomly initialised wav2vec 2.0 with layer-norm convolutions, as the large ones have."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    if size == "tiny":
        SIZES[size].update(num_attention_heads=2, conv_dim=(32,) * 7)
    norm = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
    return Wav2Vec2Model(Wav2Vec2Config(**SIZES[size], **norm)).eval()


def timed(function: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """Minimum processor seconds of a few runs, and the last result."""
    best, result = float("inf"), None
    for _ in range(repeats):
        began = time.process_time()
        result = function()
        best = min(best, time.process_time() - began)
    return best, result


def pair_costs(seconds: float, rounds: int) -> str:
    """Preparing and scoring two sources for clearance and fidelity, by encoder."""
    from transformers import WhisperConfig, WhisperModel

    sizes = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6}
    sizes |= {"encoder_ffn_dim": 1536, "decoder_layers": 1, "decoder_ffn_dim": 4}
    references = voices(seconds, batch=1)
    estimates = leaky(references)
    runs: dict[str, Callable[[], Any]] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of random weights, and of the pair with a transformer
        WhisperModel(WhisperConfig(**sizes)).save_pretrained(folder)
        pair_encoders = {"mel": "mel"}
        pair_encoders |= {f"Whisper, layer {k}": load_encoder(folder, layer=k) for k in range(5)}
        for name, encoder in pair_encoders.items():
            mapss = MAPSS("mel", decomposition_encoder=encoder, measures="decomposition")
            bank = mapss.prepare(references)
            runs[f"preparing, {name}"] = partial(mapss.prepare, references)
            runs[f"scoring, {name}"] = torch.no_grad()(partial(mapss, estimates, bank))
    best = in_turn(runs, rounds)
    rows = []
    for name in pair_encoders:
        preparing, scoring = best[f"preparing, {name}"], best[f"scoring, {name}"]
        ratio = preparing / best["preparing, mel"], scoring / best["scoring, mel"]
        rows.append([name, f"{preparing:.2f}", f"{ratio[0]:.1f}", f"{scoring:.2f}"])
        rows[-1].append(f"{ratio[1]:.1f}")
    header = ["clearance and fidelity by", "preparing s", "of mel", "scoring s", "of mel"]
    return table(header, rows)


def row(name: str, seconds: float, full: float, error: float | None = None) -> str:
    """One line of the table."""
    shown = "" if error is None else f"{error:.1e}"
    return f"| {name} | {seconds:.2g} | {seconds / full:.2g} | {shown} |"


def compare(size: str, wave: Tensor, layer: int, dtype: str) -> list[str]:
    """Rows of the full model, the cut model and the encoders without weights."""
    model = full_model(size)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        variance, mean = torch.var_mean(wave, -1, correction=0, keepdim=True)
        normal = (wave - mean) / variance.sqrt()
        full, outputs = timed(lambda: model(normal, output_hidden_states=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the folder has no settings of a preprocessor
            reading, encoder = timed(lambda: load_encoder(folder, layer=layer, dtype=dtype), 1)
        cut, features = timed(lambda: encoder(wave))
        expected = outputs.hidden_states[layer]
        error = float((features - expected).abs().max() / expected.abs().max())
    rows = [row(f"full {size} model", full, full), row(f"layer {layer}, {dtype}", cut, full, error)]
    for name in ("mel", "waveform"):
        embedded = load_encoder(name)
        seconds, _ = timed(lambda embedded=embedded: embedded(wave))
        rows.append(row(name, seconds, full))
    return [*rows, row("reading the checkpoint", reading, full)]


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", choices=tuple(SIZES), default="base", help="of the wav2vec 2.0")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of the signals")
    parser.add_argument("--layer", type=int, default=2, help="at which the model is cut off")
    parser.add_argument("--dtype", default="float32", help="of the cut model")
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    wave = 0.1 * torch.randn(2, int(16_000 * arguments.seconds), generator=generator)
    print(f"2 signals of {arguments.seconds:g} s, {torch.get_num_threads()} thread(s)\n")
    print("| encoder | processor s | of full | error |\n|---|---|---|---|")
    print("\n".join(compare(arguments.size, wave, arguments.layer, arguments.dtype)))
    print(f"\nTwo sources of {arguments.seconds:g} s, processor seconds:\n")
    print(pair_costs(arguments.seconds, rounds=2))


if __name__ == "__main__":
    main()
