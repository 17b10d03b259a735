"""Time and scores of the package and of the reference implementation (PyPI ``mapss-measures``).

    python benchmarks/reference_speed.py --reference-python ref/bin/python
    python benchmarks/reference_speed.py --reference-python ref/bin/python \\
        --references a.wav b.wav --estimates ea.wav eb.wav --encoder wav2vec2-large

Without files a synthetic mixture is scored: two sources, five seconds, 16 kHz. Each side runs in
its own process, one after the other, with bounds, and reports the times of its imports and of its
scoring. Times depend on the machine; their ratio within a run hardly does. Scores are printed side
by side, ours with ``convention="reference"``. Given the same embeddings the two agree; distortion
banks, activity and frame grids differ, and with them the means over an utterance. Without
``--reference-python`` only our side runs.
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
    began = time.perf_counter()
    import mapss
    import mapss.engine  # otherwise imported, and timed, by the first call

    loaded = time.perf_counter()
    result = mapss.mapss(
        job["references"], job["estimates"], model=MODELS[job["encoder"]], add_ci=True
    )
    done = time.perf_counter()

    def means(suffix: str) -> list[float]:
        """Of a kind of bound, by source."""
        columns = [name for name in result.ci if name.endswith(suffix)]
        return result.ci[columns].mean().tolist()

    return {
        "imports": loaded - began,
        "scoring": done - loaded,
        "frames": result.summary["ps_frames"].tolist(),
        "ps": result.summary["ps"].tolist(),
        "pm": result.summary["pm"].tolist(),
        "ps radius": means("_ps_bias"),
        "ps tail": means("_ps_prob"),
        "pm radius": means("_pm_bias"),
        "pm tail": means("_pm_prob"),
    }


def score_ours(job: dict[str, Any]) -> dict[str, Any]:
    """The same steps with torch_mapss: distort, encode, score, bounds."""
    began = time.perf_counter()
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
        "imports": loaded - began,
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
    """Score in a separate process, which reads and writes JSON files in the folder."""
    request, answer = folder / f"{side}_job.json", folder / f"{side}.json"
    request.write_text(json.dumps(job))
    command = [python, str(Path(__file__).resolve()), "--side", side, str(request), str(answer)]
    subprocess.run(command, check=True, cwd=folder)
    return json.loads(answer.read_text())


# ---------------------------------------------------------------------------------- the comparison


def write_synthetic(folder: Path, seconds: float) -> dict[str, list[str]]:
    """Write the synthetic mixture as float wave files, which both sides read."""
    import soundfile
    from common import leaky, voices  # here, as it imports torch, which is timed on each side

    references = voices(seconds)
    job: dict[str, list[str]] = {}
    for name, waves in {"estimates": leaky(references), "references": references}.items():
        job[name] = [str(folder / f"{name}_{index}.wav") for index in range(len(waves))]
        for path, wave in zip(job[name], waves, strict=True):
            soundfile.write(path, wave.numpy(), RATE, subtype="FLOAT")
    return job


def report(reference: dict[str, Any] | None, ours: dict[str, Any] | None) -> None:
    """Times, their ratio, and the means per source side by side."""
    from common import table  # here, as it imports torch, which is timed on each side

    sides = {"released package": reference, "torch_mapss": ours}
    results = {name: side for name, side in sides.items() if side is not None}
    rows = [
        [name, f"{side['imports']:.1f}", f"{side['scoring']:.1f}"] for name, side in results.items()
    ]
    print(table(["", "imports s", "scoring s"], rows))
    if reference is not None and ours is not None:
        print(f"\nRatio of scoring: {reference['scoring'] / ours['scoring']:.1f}.")
    rows = []
    sources = len((reference or ours or {})["frames"])
    for key in ("frames", "ps", "pm", "ps radius", "ps tail", "pm radius", "pm tail"):
        for source in range(sources):
            values = [side[key][source] for side in results.values()]
            rows.append([f"{key}, source {source}", *(f"{value:.4f}" for value in values)])
    print("\n" + table(["mean", *results], rows))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reference-python", help="interpreter with mapss-measures installed")
    parser.add_argument("--no-ours", action="store_true", help="run the reference side only")
    parser.add_argument("--references", nargs="+", help="audio files; default: a synthetic mixture")
    parser.add_argument("--estimates", nargs="+", help="audio files, in the order of references")
    parser.add_argument(
        "--encoder", default="waveform", choices=sorted(MODELS), help="of both sides"
    )
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
        job: dict[str, Any] = {}
        if options.references is None:
            job |= write_synthetic(folder, options.seconds)
        else:
            paths = {"references": options.references, "estimates": options.estimates}
            for key, files in paths.items():
                job[key] = [str(Path(file).resolve()) for file in files]
        job["encoder"] = options.encoder
        reference = ours = None
        if options.reference_python:
            # Not resolved: the interpreter of a virtual environment is a link.
            python = str(Path(options.reference_python).absolute())
            reference = run_side("reference", python, job, folder)
        if not options.no_ours:
            ours = run_side("ours", sys.executable, job, folder)
    report(reference, ours)


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        del sys.path[0]  # the folder of this script, whose coverage.py hides the package coverage
        side, request, answer = sys.argv[2:5]
        result = SIDES[side](json.loads(Path(request).read_text()))
        Path(answer).write_text(json.dumps(result))
    else:
        compare(parse(sys.argv[1:]))


if __name__ == "__main__":
    main()
