"""Score what ESPnet or SpeechBrain separated: PS and PM beside their own measures.

ESPnet's enhancement recipes leave one Kaldi list (``KEY PATH`` a line) per speaker:

    python recipes/toolkit_scoring.py --ref-scp spk1.scp spk2.scp \\
        --inf-scp enhanced/spk1.scp enhanced/spk2.scp --system tfgridnet --out results

writes a manifest and scores it as ``torch-mapss evaluate`` does, resumable, with ``compare``,
``report`` and all that follows. Several systems: call it once each and compare the folders.

SpeechBrain's separation recipes hold ``predictions`` and ``targets`` as (batch, time, sources)
tensors; in ``save_results`` of ``Separation``, beside SI-SNR:

    from toolkit_scoring import speechbrain_scores
    rows = speechbrain_scores(predictions, targets, hparams["sample_rate"], mapss)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # else loaded where they are needed: --help needs no torch
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
    """Key -> path of a Kaldi list; paths relative to the working folder, as Kaldi has them."""
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
    """Entries of every key of the references; a key that an estimate lacks is an error."""
    keys = list(references[0])
    for listed in (*references, *estimates):
        lost = [key for key in keys if key not in listed]
        if lost:
            raise SystemExit(f"a list lacks {len(lost)} of the keys, e.g. {lost[0]!r}")
    return [
        {
            "mixture_id": key,
            "references": [listed[key] for listed in references],
            "sources": [f"speaker {index + 1}" for index in range(len(references))],
            "systems": {system: [listed[key] for listed in estimates]},
        }
        for key in keys
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the manifest of an ESPnet run and score it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ref-scp", nargs="+", type=Path, required=True, help="one per speaker")
    parser.add_argument("--inf-scp", nargs="+", type=Path, required=True, help="one per speaker")
    parser.add_argument("--system", default="system", help="its name in the tables")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--encoder", default="wav2vec2-large", help="mel needs no download")
    args, options = parser.parse_known_args(arguments)  # options: of torch-mapss evaluate
    from torch_mapss.evaluation import cli

    if len(args.ref_scp) != len(args.inf_scp):
        parser.error("--ref-scp and --inf-scp need one list per speaker each")
    lists = [[read_scp(path) for path in paths] for paths in (args.ref_scp, args.inf_scp)]
    args.out.mkdir(parents=True, exist_ok=True)
    manifest = args.out / "manifest.json"
    entries = manifest_of(*lists, args.system)
    manifest.write_text(json.dumps(entries, indent=1, ensure_ascii=False), encoding="utf-8")
    # Outputs of a blind separator come in any order.
    scoring = ["--permute", "--encoder", args.encoder, *options]
    return cli.main(["evaluate", str(manifest), "--out", str(args.out), *scoring])


if __name__ == "__main__":
    raise SystemExit(main())
