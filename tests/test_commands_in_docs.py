"""Every command that README and guide show runs, without a network, and prints what they say."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from docs_workspace import make_workspace

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("recipes/guide/*.md"))]
BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Commands that set up an environment, a cluster's job or a download: no commands of ours.
FOREIGN = ("python3", ".venv/bin/pip", ".venv/bin/python", "pip", "huggingface-cli", "export")
LAUNCHERS = ("srun", "sbatch", "torchrun", "dask", "#SBATCH", "ssh", "conda", "module")


class Shown(NamedTuple):
    """A command of a page."""

    words: list[str]
    output: str | None  # what the page says it prints; None: the page does not say


def shown_commands(page: Path) -> list[Shown]:
    """Commands of a page in order, without those of other programs."""
    commands = []
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        text = text.replace("\\\n", " ")
        if language == "console":
            for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = piece.partition("\n")
                commands.append(Shown(shlex.split(command, comments=True), output))
        else:
            lines = (shlex.split(line, comments=True) for line in text.splitlines())
            commands += [Shown(words, None) for words in lines if words]
    return [shown for shown in commands if shown.words[0] not in (*FOREIGN, *LAUNCHERS)]


def approximately(text: str) -> list[str | float]:
    """Words and numbers of an output; numbers are compared with a tolerance, rules not at all."""
    words = re.sub(r"[-=─━+|]{3,}", " ", text).split()
    return [float(word) if re.fullmatch(r"-?\d+\.\d+", word) else word for word in words]


def assert_prints(printed: str, stated: str) -> None:
    """What was printed has all that a page states, of which it may leave out lines (``…``)."""
    for passage in re.split(r"^…\n", stated, flags=re.MULTILINE):
        expected = approximately(passage)
        actual = approximately(printed)
        spans = (actual[i : i + len(expected)] for i in range(len(actual) - len(expected) + 1))
        assert any(same(span, expected) for span in spans), f"{passage}\nis not in\n{printed}"


def same(actual: list[str | float], expected: list[str | float]) -> bool:
    """Equal words; numbers within 0.02 or 5 %."""
    return all(
        x == pytest.approx(y, abs=0.02, rel=0.05) if isinstance(y, float) else x == y
        for x, y in zip(actual, expected)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_ours_and_have_these_options(page: Path) -> None:
    from torch_mapss.evaluation.cli import build_parser

    for shown in shown_commands(page):
        assert shown.words[0] == "torch-mapss", f"{page.name}: {' '.join(shown.words)}"
        if shown.words[1:] not in (["--help"], ["--version"]):
            build_parser().parse_args(shown.words[1:])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("template") / "set")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if shown_commands(page)], ids=lambda page: page.stem
)
def test_commands_run(
    page: Path,
    template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from torch_mapss.evaluation import cli

    folder = tmp_path / "work"
    shutil.copytree(template, folder)
    if makes_results(shown_commands(page)):
        shutil.rmtree(folder / "results")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for shown in shown_commands(page):
        if "--dask" in shown.words:  # needs a cluster that is running; the engines have tests
            continue
        if "--workers" in shown.words:  # a process for each processor of a small machine
            shown.words[shown.words.index("--workers") + 1] = "2"
        if "whisper-tiny.en" in shown.words:  # no network: random weights stand in for OpenAI's
            position = shown.words.index("whisper-tiny.en")
            shown.words[position] = "checkpoints/whisper-tiny.en"
        if "mushra.csv" in shown.words:
            (folder / "mushra.csv").write_text(mushra_answers(folder / "test" / "stimuli.csv"))
        capfd.readouterr()
        assert cli.main(shown.words[1:]) == 0, f"{' '.join(shown.words)}\n{capfd.readouterr()}"
        if shown.output is not None:
            assert_prints(capfd.readouterr().out, shown.output)


def makes_results(commands: list[Shown]) -> bool:
    """Whether a page scores into ``results`` itself, and does not begin with them."""
    scoring = [shown.words for shown in commands if shown.words[1] in ("score", "evaluate")]
    return any("--out results" in " ".join(words) for words in scoring)


def mushra_answers(key: Path) -> str:
    """What webMUSHRA writes when one listener has done every page."""
    import pandas as pd

    stimuli = pd.read_csv(key)
    lines = ["session_test_id,trial_id,rating_stimulus,rating_score"]
    for number, (page, condition) in enumerate(zip(stimuli["page"], stimuli["condition"])):
        lines.append(f"mapss-quality,{page},{condition},{40 + number % 60}")
    return "\n".join(lines) + "\n"


def test_a_wrong_output_is_noticed() -> None:
    assert_prints("score  0.913\n-----\nA 0.50 of 3\n", "A 0.51 of 3\n")
    with pytest.raises(AssertionError, match="is not in"):
        assert_prints("A 0.50 of 3\n", "A 0.61 of 3\n")
    with pytest.raises(AssertionError, match="is not in"):
        assert_prints("A 0.50 of 3\n", "B 0.50 of 3\n")
