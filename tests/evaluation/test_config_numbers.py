"""Every numeric option as YAML may hold it: taken as the number it is, or refused by its name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from torch_mapss import MAPSS
from torch_mapss.evaluation.score import Scorer
from torch_mapss.evaluation.settings import BANK_SETTINGS, ScoringSettings, read_config

# Option -> a number that YAML reads as text, for want of a point or sign, and what it means.
ACCEPTED: dict[str, tuple[str, float]] = {
    "seed": ("1e3", 1000),
    "sample_rate": ("8e3", 8000),
    "fs": ("8e3", 8000),
    "alpha": ("9e-1", 0.9),
    "time": ("2e0", 2),
    "energy": ("9e-1", 0.9),
    "max_dimension": ("2e1", 20),
    "loudness": ("-2e1", -20),
    "activity": ("1e-1", 0.1),
    "segment": ("3e1", 30),
    "memory": ("1e9", 10**9),
    "bank_size": ("2e1", 20),
    "sample_frames": ("1e2", 100),
    "excerpts": ("1e1", 10),
    "excerpt_seconds": ("1e1", 10),
    "confidence": ("9e-1", 0.9),
}
#: They need an encoder with layers; here their refusal alone is tried.
LAYERS = ("layer", "decomposition_layer")
WRONG = ("many", "'12'", "-1e300", "true", "false", "[1]", ".nan", ".inf", "''")


def scorer_of(folder: Path, lines: str) -> Scorer:
    """Of a file of options."""
    config = folder / "options.yaml"
    config.write_text(f"encoder: mel\nmeasures: decomposition\n{lines}\n", encoding="utf-8")
    return Scorer.of(read_config(config), "cpu")


def test_all_numeric_options_are_here():
    parameters = inspect.signature(MAPSS).parameters
    annotations = {name: str(parameter.annotation) for name, parameter in parameters.items()}
    annotations |= {name: str(kind) for name, kind in ScoringSettings.__annotations__.items()}
    numeric = {name for name, kind in annotations.items() if re.search(r"\b(int|float)\b", kind)}
    assert numeric | {"bank_size", "seed"} == {*ACCEPTED, *LAYERS}
    assert {"bank_size", "seed"} <= {*BANK_SETTINGS}


@pytest.mark.parametrize("option", ACCEPTED)
def test_a_number_that_yaml_reads_as_text_is_a_number(option, tmp_path):
    text, value = ACCEPTED[option]
    read = read_config_value(tmp_path, option, text)
    assert (read, type(read)) == (value, type(value))
    scorer_of(tmp_path, f"{option}: {text}")


def read_config_value(folder: Path, option: str, text: str) -> Any:
    path = folder / "option.yaml"
    path.write_text(f"{option}: {text}\n", encoding="utf-8")
    return read_config(path)[option]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("option", [*ACCEPTED, *LAYERS])
def test_non_numbers_are_refused_with_name_and_value(option, wrong, tmp_path):
    came = str(read_config_value(tmp_path, option, wrong))
    with pytest.raises((TypeError, ValueError)) as refusal:
        scorer_of(tmp_path, f"{option}: {wrong}")
    text = str(refusal.value)
    assert re.search(rf"\b{option}\b", text)
    assert came in text.replace("−", "-")
