"""Score systems on LibriMix: two or three talkers, clean or with noise.

    python recipes/score_librimix.py Libri2Mix/wav16k/min/test --system convtasnet=out/convtasnet \\
        --out results/libri2mix --permute

Expects ``ROOT/{s1,s2,s3}/ID.wav`` (folders of noise and mixtures are ignored) and
``FOLDER/{s1,s2,s3}/ID.wav`` of every system; Asteroid's examples are a template:
``--system 'x=ex/{mixture}/{source}_estimate.wav'``.

Outputs of a separator come in any order; ``--permute`` orders them by SI-SDR. With ``--noise`` the
noise of the mixtures is a further reference, so that residual noise counts as leakage.
``--measures decomposition bss`` adds SDR, SIR and SAR; ``--encoder wav2vec2-large`` adds PS and PM
as in the paper, and downloads its weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataset_scoring import parser_of, score, templates


def main(arguments: Sequence[str] | None = None) -> int:
    """Score and compare; returns the exit code of ``torch-mapss evaluate``."""
    parser = parser_of(__doc__ or "", "folder of a split, e.g. Libri2Mix/wav16k/min/test")
    parser.add_argument("--talkers", type=int, default=2, choices=(2, 3), help="default: 2")
    parser.add_argument("--noise", action="store_true", help="use the noise as a further reference")
    args, options = parser.parse_known_args(arguments)
    sources = [f"s{k + 1}" for k in range(args.talkers)] + ["noise"] * args.noise
    command = ["--references", f"{args.root}/{{source}}/{{mixture}}.wav", "--sources", *sources]
    command += ["--system", *templates(args.system, "{source}/{mixture}.wav")]
    return score([*command, *options], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
