"""Score outputs of ESPnet or SpeechBrain: PS and PM in addition to their own measures.

ESPnet's enhancement recipes leave one Kaldi list (``KEY PATH`` a line) per speaker:

    python recipes/toolkit_scoring.py --ref-scp spk1.scp spk2.scp \\
        --inf-scp enhanced/spk1.scp enhanced/spk2.scp --system tfgridnet --out results

writes a manifest and scores it with ``torch-mapss evaluate``, so it can be resumed, and ``compare``
and ``report`` read its results. With several systems, run it for each and compare the folders.

SpeechBrain's separation recipes have ``predictions`` and ``targets`` as (batch, time, sources)
tensors. In ``save_results`` of ``Separation``, where SI-SNR is computed:

    from toolkit_scoring import speechbrain_scores
    rows = speechbrain_scores(predictions, targets, hparams["sample_rate"], mapss)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time imported where they are used, so that --help needs no torch
    from torch import Tensor

    from torch_mapss import MAPSS


def speechbrain_scores(
    predictions: Tensor, targets: Tensor, rate: int, mapss: MAPSS, **options: Any
) -> list[dict[str, float]]:
    """Scores of every item of a batch, by name.

    Args:
        predictions: (B, T, S) estimates in the order of the targets, as SpeechBrain's ``cal_loss``
            leaves them after its permutation; pass ``permute=True`` otherwise.
        targets: (B, T, S).
        rate: Hz of both.
        mapss: the scorer, made once.
        options: of ``torch_mapss.evaluate``.
    """
    from torch_mapss import evaluate

    rows = []
    for prediction, target in zip(predictions.detach(), targets):
        waves = {"estimates": prediction.mT, "references": target.mT}
        means = evaluate(**waves, sample_rate=rate, mapss=mapss, **options).means()
        rows.append({f"mapss_{name}": value for name, value in means.items()})
    return rows


def read_scp(path: Path) -> dict[str, str]:
    """Key -> path of a Kaldi list, whose paths are relative to the working folder."""
    paths_by_key = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        key, _, value = line.strip().partition(" ")
        if not value.strip() or value.rstrip().endswith("|"):
            raise SystemExit(f"{path}, line {number}: expected KEY PATH (no pipe), got {line!r}")
        paths_by_key[key] = str(Path(value.strip()).resolve())
    return paths_by_key


def manifest_of(
    references: Sequence[dict[str, str]], estimates: Sequence[dict[str, str]], system: str
) -> list[dict[str, Any]]:
    """An entry for every key of the references.

    Args:
        references: key -> path, for each speaker.
        estimates: likewise, in the same order.
        system: name of the system.

    Raises:
        SystemExit: a list lacks a key.
    """
    keys = list(references[0])
    for paths_by_key in (*references, *estimates):
        missing = [key for key in keys if key not in paths_by_key]
        if missing:
            raise SystemExit(f"a list lacks {len(missing)} of the keys, e.g. {missing[0]!r}")
    sources = [f"speaker {index + 1}" for index in range(len(references))]
    entries = []
    for key in keys:
        reference_paths = [paths_by_key[key] for paths_by_key in references]
        estimate_paths = [paths_by_key[key] for paths_by_key in estimates]
        entries.append(
            {
                "mixture_id": key,
                "references": reference_paths,
                "sources": sources,
                "systems": {system: estimate_paths},
            }
        )
    return entries


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the manifest of an ESPnet run and score it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--ref-scp", nargs="+", type=Path, required=True, help="references, a list per speaker"
    )
    parser.add_argument(
        "--inf-scp", nargs="+", type=Path, required=True, help="outputs, a list per speaker"
    )
    parser.add_argument("--system", default="system", help="its name in the tables")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--encoder", default="wav2vec2-large", help="mel needs no download")
    args, options = parser.parse_known_args(arguments)  # options: of torch-mapss evaluate
    from torch_mapss.evaluation import cli

    if len(args.ref_scp) != len(args.inf_scp):
        parser.error("--ref-scp and --inf-scp need one list per speaker each")
    references = [read_scp(path) for path in args.ref_scp]
    estimates = [read_scp(path) for path in args.inf_scp]
    args.out.mkdir(parents=True, exist_ok=True)
    manifest = args.out / "manifest.json"
    entries = manifest_of(references, estimates, args.system)
    manifest.write_text(json.dumps(entries, indent=1, ensure_ascii=False), encoding="utf-8")
    # --permute, since the outputs of a blind separator come in any order.
    scoring = ["--permute", "--encoder", args.encoder, *options]
    return cli.main(["evaluate", str(manifest), "--out", str(args.out), *scoring])


if __name__ == "__main__":
    raise SystemExit(main())
