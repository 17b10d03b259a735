"""Score speech enhancement on sets like DNS: clean, noisy and enhanced files.

    python recipes/score_dns.py test_set --system dtln=out/dtln --out results/dns

Expects ``ROOT/clean/ID.wav`` and ``ROOT/noisy/ID.wav`` and ``FOLDER/ID.wav`` of every system. Where
names differ, give templates: ``--clean 'clean/clean_fileid_{mixture}.wav'
--noisy 'noisy/*_fileid_{mixture}.wav' --system 'x=out/*_fileid_{mixture}.wav'``.

The noise (noisy - clean) becomes the second reference. So leakage is residual noise, which
clearance and PS measure; fidelity and PM measure distortion of the speech. Clean and noisy must be
aligned and at the same level, as they are in such sets. ``--measures decomposition bss`` adds SDR,
SIR and SAR; ``--encoder wav2vec2-large`` adds PS and PM as in the paper, and downloads its weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataset_scoring import parser_of, score, templates


def main(arguments: Sequence[str] | None = None) -> int:
    """Score and compare; returns the exit code of ``torch-mapss evaluate``."""
    parser = parser_of(__doc__ or "", "folder that holds clean and noisy")
    parser.add_argument("--clean", default="clean/{mixture}.wav", help="template below ROOT")
    parser.add_argument("--noisy", default="noisy/{mixture}.wav", help="template below ROOT")
    args, options = parser.parse_known_args(arguments)
    command = ["--references", f"{args.root}/{args.clean}"]
    command += ["--noisy", f"{args.root}/{args.noisy}"]
    command += ["--system", *templates(args.system, "{mixture}.wav")]
    return score([*command, *options], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
