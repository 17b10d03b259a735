"""Time and scores beside the reference implementation (PyPI ``mapss-measures``), in one run.

    python benchmarks/reference_speed.py --reference-python ref/bin/python
    python benchmarks/reference_speed.py --reference-python ref/bin/python \\
        --references a.wav b.wav --estimates ea.wav eb.wav --encoder wav2vec2-large

Without files a synthetic mixture is scored: two sources, five seconds, 16 kHz. Each side runs in
its own process, one after the other, with bounds on, and says how long its imports and its scoring
took. Times depend on the machine; the ratio within a run hardly does. Scores are printed side by
side, ours with ``convention="reference"``: from embeddings on the two agree, while distortion
banks, activity and the frame grid are each package's own, so utterance means differ. With
``--reference-python`` left out only our side runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RATE = 16_000
MODELS = {  # our encoder names -> the reference implementation's
    "waveform": "raw",
    "wav2vec2-large": "wav2vec2",
    "wav2vec2-base": "wav2vec2_base",
    "wav2vec2-xlsr": "wav2vec2_xlsr",
    "wavlm-large": "wavlm",
    "wavlm-base": "wavlm_base",
    "hubert-large": "hubert",
    "hubert-base": "hubert_base",
}


# ------------------------------------------------------------------ the two sides, each a process


def score_reference(job: dict[str, Any]) -> dict[str, Any]:
    """The reference implementation through its public entry point."""
    start = time.perf_counter()
    import mapss
    import mapss.engine  # which the first call would load

    loaded = time.perf_counter()
    result = mapss.mapss(
        job["references"], job["estimates"], model=MODELS[job["encoder"]], add_ci=True
    )
    done = time.perf_counter()
    bounds = result.ci.drop(columns="timestamp_ms")
    return {
        "imports": loaded - start,
        "scoring": done - loaded,
        "frames": result.summary["ps_frames"].tolist(),
        "ps": result.summary["ps"].tolist(),
        "pm": result.summary["pm"].tolist(),
        **{
            name: [float(bounds[c].mean()) for c in bounds.columns if c.endswith(suffix)]
            for name, suffix in {
                "ps radius": "_ps_bias",
                "ps tail": "_ps_prob",
                "pm radius": "_pm_bias",
                "pm tail": "_pm_prob",
            }.items()
        },
    }


def score_ours(job: dict[str, Any]) -> dict[str, Any]:
    """The same work with torch_mapss: distort, encode, score, bounds."""
    start = time.perf_counter()
    import torch

    import torch_mapss
    from torch_mapss.audio.files import load_audio
    from torch_mapss.audio.waveforms import resample

    loaded = time.perf_counter()
    mapss = torch_mapss.MAPSS(
        encoder=job["encoder"], convention="reference", measures=("separation", "match")
    )

    def read(paths: list[str]) -> torch.Tensor:
        waves = [(wave.mean(0), rate) for wave, rate in map(load_audio, paths)]
        return torch.stack([resample(wave, rate, RATE) for wave, rate in waves])[None]

    estimates = read(job["estimates"])
    with torch.no_grad():
        bank = mapss.prepare(read(job["references"]))
        bounds = mapss.bounds(estimates, bank)
    scores = bounds.scores  # of the same maps
    done = time.perf_counter()

    active = scores.active[0]

    def means(frames: torch.Tensor) -> list[float]:
        return [float(row[on].mean()) for row, on in zip(frames[0], active, strict=True)]

    return {
        "imports": loaded - start,
        "scoring": done - loaded,
        "frames": active.sum(-1).tolist(),
        "ps": means(scores.ps),
        "pm": means(scores.pm),
        "ps radius": means(bounds.ps.radius),
        "ps tail": means(bounds.ps.tail),
        "pm radius": means(bounds.pm.radius),
        "pm tail": means(bounds.pm.tail),
    }


SIDES = {"reference": score_reference, "ours": score_ours}


def run_side(side: str, python: str, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Score in a process of its own; its answer comes back as a JSON file."""
    request, answer = folder / f"{side}_job.json", folder / f"{side}.json"
    request.write_text(json.dumps(job))
    command = [python, str(Path(__file__).resolve()), "--side", side, str(request), str(answer)]
    subprocess.run(command, check=True, cwd=folder)
    return json.loads(answer.read_text())


# ---------------------------------------------------------------------------------- the comparison


def write_synthetic(folder: Path, seconds: float) -> dict[str, list[str]]:
    """The synthetic mixture as float wave files, which both sides read."""
    import soundfile
    from common import leaky, voices  # loads torch, which each side does on its own clock

    references = voices(seconds)
    job: dict[str, list[str]] = {}
    for name, waves in {"estimates": leaky(references), "references": references}.items():
        job[name] = [str(folder / f"{name}_{index}.wav") for index in range(len(waves))]
        for path, wave in zip(job[name], waves, strict=True):
            soundfile.write(path, wave.numpy(), RATE, subtype="FLOAT")
    return job


def report(reference: dict[str, Any] | None, ours: dict[str, Any] | None) -> None:
    """Times, their ratio, and the means per source side by side."""
    from common import table  # loads torch, which each side does on its own clock

    sides = {"released package": reference, "torch_mapss": ours}
    there = {name: side for name, side in sides.items() if side is not None}
    rows = [
        [name, f"{side['imports']:.1f}", f"{side['scoring']:.1f}"] for name, side in there.items()
    ]
    print(table(["", "imports s", "scoring s"], rows))
    if reference is not None and ours is not None:
        print(f"\nRatio of scoring: {reference['scoring'] / ours['scoring']:.1f}.")
    rows = []
    for key in ("frames", "ps", "pm", "ps radius", "ps tail", "pm radius", "pm tail"):
        for source in range(len((reference or ours or {})[key])):
            values = [side[key][source] for side in there.values()]
            rows.append([f"{key}, source {source}", *(f"{value:.4f}" for value in values)])
    print("\n" + table(["mean", *there], rows))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reference-python", help="interpreter with mapss-measures installed")
    parser.add_argument("--no-ours", action="store_true", help="run the reference side only")
    parser.add_argument("--references", nargs="+", help="audio files; default: a synthetic mixture")
    parser.add_argument("--estimates", nargs="+", help="audio files, in the order of references")
    parser.add_argument("--encoder", default="waveform", choices=sorted(MODELS))
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="length of the synthetic mixture"
    )
    options = parser.parse_args(arguments)
    if (options.references is None) != (options.estimates is None):
        parser.error("--references and --estimates go together; got only one of them")
    return options


def compare(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.references is None:
            job: dict[str, Any] = write_synthetic(folder, options.seconds)
        else:
            paths = {"references": options.references, "estimates": options.estimates}
            job = {key: [str(Path(p).resolve()) for p in value] for key, value in paths.items()}
        job["encoder"] = options.encoder
        reference = ours = None
        if options.reference_python:
            # absolute, but not resolved: a virtual environment's interpreter is a link
            python = str(Path(options.reference_python).absolute())
            reference = run_side("reference", python, job, folder)
        if not options.no_ours:
            ours = run_side("ours", sys.executable, job, folder)
    report(reference, ours)


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        del sys.path[0]  # this folder, whose coverage.py would hide the package of that name
        side, request, answer = sys.argv[2:5]
        result = SIDES[side](json.loads(Path(request).read_text()))
        Path(answer).write_text(json.dumps(result))
    else:
        compare(parse(sys.argv[1:]))


if __name__ == "__main__":
    main()
