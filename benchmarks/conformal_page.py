"""The page of results of the leakage family and of the conformal convention.

    python benchmarks/conformal_page.py

puts the reading below at the head of the page and its sections in order; so does every script that
writes a section.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bounds_page import table, write_section

PAGE = Path(__file__).parent / "results" / "conformal.md"
TITLE = """# PM: leakage members and the conformal convention, measured

Every section is written by the script it names.

**Reading.**

- *Validity.* Where output and distortions are exchangeable the rank form is at most u in no more
  than a share u of the draws, within what 140 shares leave to chance (one lies 1.8 standard errors
  above, all others at most 0.4): for all kinds of points, d from 2 to 66 of 70 distortions, ties,
  and through whole maps. Its floor is 1/(N_p + 1): with 8 distortions it is
  never 0.1. The paper's PM is at most 0.05 for 5 to 6 % of outputs drawn as its distortions are
  at d = 2, for 23 to 41 % at d = 20, for all of them at d = 66 (45 % with ties). The smooth form
  comes near for Gaussian and correlated points (3.8 to 5.5 %), has 7 % under heavy tails, at most
  3 % under ties, 4.5 to 8.4 % through maps and up to 12 % with 8 distortions: it promises nothing.
- *Other ridges and fits.* The laws hardly depend on κ, nor on the OAS weight in its place; with a
  smaller κ mean PM ranks singing worse (0.34 at 1e-3, 0.46 at 0.1), with a larger no better. A
  smaller shift c lets distortions that change nothing rule the fit (8 of them take a bad output
  from -22 to -3 at c = 0.01, from -25 to -6 at 0.1), a larger one is off at small u; median and MAD
  are the steadiest and the farthest off under heavy tails. The Gamma of r keeps 0.05 better under
  heavy tails and ties (3.2 to 5.4 % where the log-normal has 0.1 to 7.2 %), nearly as well for
  Gaussian points (5.2 to 5.8, 4.5 to 5.5 %), is less off at 0.01 (2.0 against 3.4 % at most), and
  keeps 57 % of a bad output's log PM beside 8 neutral distortions, the log-normal 25 %. But it is
  farther off at 0.5, and a bad output lies at -52 in place of -25. Listeners do not decide: by it
  mean PM ranks singing a little better (0.53, 0.46) and mean log PM no better (0.57, 0.67). No
  variant is better in all laws, so the log-normal with κ = c = 0.1 stays. As a probability at small
  u the Gamma would be the better of the two, and the rank form is better than both.
- *Leakage members* do what they are for in the paper convention: with `mel` PM under leakage rises
  from 0.52 … 0.03 to 0.83 … 0.44, while random phase, delay and lost packets are scored as before,
  to 0.03. So it is on other pairs of speech (0.53 … 0.04 to 0.81 … 0.45; to 0.04) and with
  `waveform` (0.45 … 0.03 to 0.92 … 0.39). With 13 of them it rises further: how many is a choice of
  how much leakage PM is to overlook. In the reference and conformal conventions they lift it by
  less (`mel`, 0.04 to 0.17) and leave distortion alone as well.
- *Both directions from one command* (`--rated`, section "Both directions at once"): leakage and
  random phase as above, and on speech rated apart 7 members bring log PM from 0.75 to 0.55 with the
  noise and from 0.55 to 0.59 with distortion, mean PM from 0.80 to 0.66 and 0.47 to 0.53; of
  these only the changes with the noise are beyond chance. Items with mean PM below 0.001 fall from
  22 to 3 %. The price, beyond chance as well: log PM ranks the overall rating, which counts noise
  too, worse (0.87 to 0.77). The members
  cost somewhat more than their number in scoring, since the eigenproblem grows faster than its
  points (1.09 times the members 1.13, 1.17 times the members 1.35, the fastest of five rounds;
  for three talkers single rounds of a busy machine gave 1.10 and 1.29 for 7 members, so the second
  digit is noise). Preparing costs about 1.1 times at most.
- *Three talkers.* The members hold the sum of the other sources, so they cover both leaking at once
  (as loud as the target: 0.01 to 0.43) and one of them alone hardly (0.14 to 0.18, log PM from -58
  to -19); twice as many of the sum do no more for it (0.19), so it is their kind that is missing.
  Members with each other source alone do the reverse (0.49, but 0.13 where both leak), both kinds
  cover both (0.50, 0.48). None changes what random phase gets by more than 0.03. So three times the
  members are worth it where single sources leak, those of each alone beside those of the sum
  (`leakage_alone=2`) and not in their place; their number grows with that of the sources. Scoring
  then costs 1.3 to 1.7 times as much, by run, preparing no more than can be measured.
- *The other direction*: with `mel` PS falls to 0.42 under leakage as loud as the source and is
  0.87 under full random phase, but 0.72 under a delay of 40 ms. With `waveform` it falls under
  phase and delay as under leakage (0.59, 0.56, 0.50): what PS overlooks is what its features and
  bank hold.
- *Conformal convention.* PM hardly sits at 0: on rated singing 3 % of frames are below 1e-6, in the
  paper convention 92 %. It is milder to distortion as well: full random phase has 0.75 where the
  paper convention has 0.04.
- *Speech* whose noise and distortion listeners rated apart: PM follows the noise in every
  convention. With `mel` in the paper convention 7 leakage members bring log PM from 0.75 to 0.55
  with the noise and leave it with distortion (0.55, 0.59), so that it follows both alike. They do
  less with `waveform` features, and with a transformer of random weights PM loses its hold on
  distortion too (0.39 to 0.30). The two mends *do not add up* there: in the conformal convention,
  where ridge and covariance already hold part of the leakage, log PM stays at 0.84 and 0.82 with
  the noise. Six talkers: intervals are wide.
- *Singing*, `mel`: mean PM ranks quality in the conformal convention and the reference's (0.46 and
  0.41), not in the paper's (0.03). Mean log PM ranks it in all three alike (0.67 or 0.68), so where
  log PM is read the conformal convention gains nothing, and leakage members nothing either. With a
  transformer of random weights members do help (log PM, paper 0.42 to 0.59, conformal 0.22 to 0.47)
  and mean PM ranks quality with both mends only (0.41). With `waveform` features PM follows
  interference and runs against quality in every convention; leakage members take much of that away,
  and leave no measure of quality.
- *Separated speech* has no listeners. Leakage members take log PM away from SI-SAR with `mel` (0.39
  to 0.13, conformal 0.60 to 0.49), nearer to it with `waveform` (paper, 0.75 to 0.84); nothing
  separates the conventions. *Guitars and bass* are nine outputs and no evidence.
- *Losses.* In the conformal convention 1 - PM keeps a slope at every distance, where that of the
  paper has none left, and -log PM stays of the order of 1. It costs no more. What they
  train is in `training.md`: the modes end alike, and leakage members need the PS term beside them.
- Levels, number of members, ridge and shift were set before and not chosen from these tables.
"""
# Of sections, by their first word.
ORDER = ("calibration", "variants", "both", "sweeps", "talkers", "rated", "slopes")


def write(section: str, text: str, page: Path = PAGE) -> None:
    """Print ``text`` and put it in place of a section of the page, below the reading."""
    write_section(section, text, page, TITLE)
    arrange(page)


def arrange(page: Path = PAGE) -> None:
    """The reading as it stands here, then the sections in order."""
    pattern = r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->\n"
    found = list(re.finditer(pattern, page.read_text(encoding="utf-8"), re.DOTALL))
    found.sort(key=lambda section: ORDER.index(section[1].partition("-")[0]))
    page.write_text("\n".join([TITLE, *(section[0] for section in found)]), encoding="utf-8")


def merged_table(
    section: str, header: list[str], rows: Sequence[list[str]], keys: int, page: Path = PAGE
) -> str:
    """The table of a section with ``rows`` put in, so that what was measured before stays.

    Args:
        section: name of the section whose table, if it has this header, is continued.
        header: of the table.
        rows: new ones; each replaces the row whose first ``keys`` cells are the same.
        keys: how many cells name a row.
        page: the page.
    """
    found = {tuple(row[:keys]): row for row in _rows(section, header, page)}
    found.update({tuple(row[:keys]): list(row) for row in rows})
    return table(header, list(found.values()))


def _rows(section: str, header: list[str], page: Path) -> list[list[str]]:
    """The rows below ``header`` in a section of the page; none where there is no such table."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    _, _, rest = text.partition(f"<!-- {section} -->\n")
    lines = rest.partition(f"<!-- /{section} -->\n")[0].splitlines()
    start = table(header, []).splitlines()
    found = []
    for line in lines[lines.index(start[0]) + len(start) :] if start[0] in lines else []:
        if not line.startswith("|"):
            break
        found.append(line[2:-2].split(" | "))
    return found


if __name__ == "__main__":
    arrange()
