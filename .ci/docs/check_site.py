"""Checks a built site: it needs no network, and its search knows the words that people look for.

python .ci/docs/check_site.py site
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

WORDS = ("stereo", "wandb", "cluster", "SLURM", "MUSDB", "offline", "NaN", "DDP", "permutation")
WORDS += ("delay", "silence", "channels")
# What a browser fetches when it opens a page; links to follow are not meant.
FETCHED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"")


def fetched_from_elsewhere(site: Path) -> list[str]:
    """Scripts, styles and pictures that a page would load from another host."""
    problems = []
    for page in sorted(site.rglob("*.html")):
        for tag in FETCHED.findall(page.read_text(encoding="utf-8")):
            problems.append(f"{page.relative_to(site)}: {tag}")
    return problems


def words_not_found(site: Path) -> list[str]:
    """Words that the search has no page for; it looks them up by how their stems begin."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    stems = [*index["terms"], *index["titleterms"]]
    return [word for word in WORDS if not any(stem[:4] == word.lower()[:4] for stem in stems)]


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="folder of the built pages")
    site = parser.parse_args().site
    problems = [f"loads from elsewhere: {tag}" for tag in fetched_from_elsewhere(site)]
    problems += [f"search finds nothing for {word!r}" for word in words_not_found(site)]
    print("\n".join(problems) or f"{site}: offline, and search finds {', '.join(WORDS)}")
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
