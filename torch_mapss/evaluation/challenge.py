r"""Running a challenge: what to pin, what to publish, what to check.

A score means something beside other scores that were made in the same way, on the same audio. This
page says how to see to that with what the package writes anyway.

**Before it begins: pin**

1. *The version of this package*, and one encoder with its layer. Name it, and publish the hash of
   its weights (``weights`` in ``settings.json``): a hub id can be given other weights.
2. *Everything else that a score depends on*: whole banks and their seed, convention, alignment,
   permutation, precision. All of it is in ``settings``, and the *protocol id* is its hash:
   score one mixture, and publish the id. Don't sample frames (``--sample-frames``) and don't
   shrink banks (``--bank-size``) in a challenge.
3. *The ranking*: which measure counts, how mixtures are weighted, and at which level systems are
   told apart. PS and log PM rank; the mean PM saturates. Say it before there are results.
4. *Enough mixtures*. With n of them no p-value below :math:`2^{1-n}` exists, and Holm's correction
   multiplies it by the number of pairs: :func:`least_mixtures` gives the fewest that can order s
   systems at all, 7 for three, 11 for ten, 13 for twenty. To tell apart what differs little takes
   many more.
5. *References of the test set*, as they were before mixing, aligned sample by sample with what is
   to be handed in, and the rate to hand it in at.

**During**: participants run the very command, on the development set:

    torch-mapss evaluate manifest.json --encoder facebook/wav2vec2-large-lv60 --out results
    torch-mapss compare results baseline --out comparison

Folders of unlike protocol, or of unlike references under one name, are refused, with what differs.

**Afterwards: publish**

* the results folder without ``progress``: ``settings.json`` (protocol, versions, SHA-256 of every
  audio file), ``mixtures.json``, the tables and ``frames``: all that statistics and reports need,
  and no audio. It gives away nothing of a hidden set but file names and hashes;
* ``comparison.csv`` and ``ranking.csv``: intervals, tests and groups, not the means alone;
* the paragraph of :func:`statement`;
* where licences allow, the audio: anybody can then run ``torch-mapss verify results``, which
  compares hashes, redoes the tables from the frames and scores a few pairs again.

**What a ranking says, and what not.** Systems that share a letter are not told apart by this set,
which does not make them equal. A measure that a system was trained on is no judge of it: hold one
back. And none of the measures replaces listeners: ``torch-mapss listen`` makes a listening test
that spans the scores, ``torch-mapss correlate`` says how far they agree with it.

Example:
    >>> [least_mixtures(systems) for systems in (2, 3, 10, 20)]
    [6, 7, 11, 13]
"""

from __future__ import annotations

from torch_mapss.evaluation.results import Results, records
from torch_mapss.evaluation.significance import least_holm_p


def least_mixtures(systems: int, alpha: float = 0.05) -> int:
    """The fewest mixtures that can tell any two of so many systems apart.

    Args:
        systems: in the challenge, at least two.
        alpha: level of the tests after Holm's correction.

    Returns:
        The least n with pairs · 2^(1 - n) ≤ alpha.

    Raises:
        ValueError: fewer than two systems, or a level outside (0, 1).
    """
    if systems < 2:
        raise ValueError(f"systems must be at least two, got {systems}.")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha!r}.")
    pairs, mixtures = systems * (systems - 1) // 2, 2
    while least_holm_p(mixtures, pairs) > alpha:
        mixtures += 1
    return mixtures


def statement(results: Results) -> str:
    """A paragraph to publish with results: what they were made with, on how much.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.

    Returns:
        Sentences with protocol id, encoder and weights, convention, banks, versions and counts.
    """
    settings = results.settings
    encoder = settings["encoder"]
    weights = (settings.get("weights") or {}).get("encoder")
    layer = f", layer {encoder['layer']}" if "layer" in encoder else ""
    hashed = f" (weights {weights})" if weights else ""
    banks = [settings[f"{kind}_bank"] for kind in ("separation", "match")]
    seconds = sum({i["mixture_id"]: i["seconds"] or 0.0 for i in records(results.items)}.values())
    failed = sum(item["status"] == "failed" for item in records(results.items))
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    return (
        f"{len(results.systems)} systems on {len(results.mixtures)} mixtures ({seconds / 60:.1f} "
        f"min; {failed} pairs failed), protocol {results.protocol}: encoder "
        f"{encoder['name']}{layer}{hashed}, convention {settings['convention']}, "
        f"{banks[0]['size']} distortions for PS and up to {banks[1]['size']} for PM (seed "
        f"{banks[0]['seed']})"
        + (f", {settings['sample_frames']} frames drawn at random" if results.sampled else "")
        + f". {versions}."
    )
