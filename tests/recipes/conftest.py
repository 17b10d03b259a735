"""Voices with ratings, for the experiments."""

from __future__ import annotations

import json

import pytest
from recipe_scripts import write
from waveforms import hum


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Four tracks, one rated source, three systems that leak more and more, a hidden reference."""
    folder = tmp_path_factory.mktemp("rated")
    entries, lines = [], ["track,source,system,question,mean_rating,group"]
    for track in range(4):
        pair = [
            hum(100.0 + 20 * track, track),
            hum(170.0 + 30 * track, 5 + track),
        ]
        names = [f"t{track}_a.wav", f"t{track}_b.wav"]
        for name, wave in zip(names, pair):
            write(folder / name, wave)
        systems = {"control:ref": [names[0], None]}
        lines.append(f"t{track},voice,ref,interference,100,all")
        for grade, leak in enumerate((0.05, 0.3, 0.9)):
            name = f"t{track}_s{grade}.wav"
            write(folder / name, pair[0] + leak * pair[1])
            systems[f"s{grade}"] = [name, None]
            lines.append(f"t{track},voice,s{grade},interference,{90 - 40 * grade - track},all")
        entry = {"mixture_id": f"t{track}", "sources": ["voice", "other"]}
        entries.append({**entry, "references": names, "systems": systems})
    (folder / "mapss.json").write_text(json.dumps(entries))
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    return ["--manifest", f"{folder}/mapss.json", "--ratings", f"{folder}/ratings.csv"]
