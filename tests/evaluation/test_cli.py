"""The command `torch-mapss`: usage, errors, exit codes, names, missing packages."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from separations import environment, leaky, small_mapss, sources, write, write_all, write_manifest

from torch_mapss import evaluate, pipeline
from torch_mapss.evaluation import cli, console
from torch_mapss.evaluation.commands import options

QUICK = ("--encoder", "mel", "--bank-size", "5")


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[str], list[str]]:
    """References and estimates."""
    truth = sources()
    return write_all(tmp_path / "truth", truth), write_all(tmp_path / "made", leaky(truth))


def score(files: tuple[list[str], list[str]], *options: str) -> int:
    references, estimates = files
    return cli.main(
        ["score", "--references", *references, "--estimates", *estimates, *QUICK, *options]
    )


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "torch_mapss", *arguments],
        env=environment(**env),
        capture_output=True,
    )


# ------------------------------------------------------------------------------------------------
# Scoring
# ------------------------------------------------------------------------------------------------


def test_score_prints_and_writes_what_evaluate_finds(
    tmp_path: Path, files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "nested"
    assert score(files, "--out", str(out), "--plot", "--bounds", "--confidence", "0.9") == 0
    printed = capsys.readouterr().out
    references, estimates = files
    report = evaluate(
        estimates=estimates,
        references=references,
        mapss=small_mapss(),
        bounds=True,
        confidence=0.9,
    )
    assert printed.startswith(report.summary())
    assert "90 % confidence" in printed
    with open(out / "scores.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ps"]) for row in rows] == [
        pytest.approx(row.ps, rel=1e-8) for row in report.rows
    ]
    assert sorted(path.name for path in out.iterdir()) == [
        "pm.csv",
        "ps.csv",
        "report.json",
        "scores.csv",
        "scores.png",
    ]


def test_options_reach_the_scorer(tmp_path: Path, files: tuple[list[str], list[str]]) -> None:
    references, estimates = files
    swapped = references, estimates[::-1]
    options = ("--convention", "reference", "--seed", "7", "--permute", "--align-polarity")
    assert score(swapped, "--out", str(tmp_path / "o"), "--quiet", *options) == 0
    content = json.loads((tmp_path / "o" / "report.json").read_text(encoding="utf-8"))
    settings = content["settings"]
    assert settings["convention"] == "reference"
    assert settings["separation_bank"]["seed"] == settings["match_bank"]["seed"] == 7
    assert settings["align_polarity"] is True
    assert [row["source_index"] for row in content["scores"]] == [1, 0]


def test_precision_of_the_eigendecomposition(
    tmp_path: Path, files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for precision in ("float64", "float32"):
        out = tmp_path / precision
        given = ("--eigh", precision, "--sample-frames", "6", "--quiet", "--out", str(out))
        assert score(files, *given) == 0
        content = json.loads((out / "report.json").read_text(encoding="utf-8"))
        assert content["settings"]["eigh"] == precision
        found[precision] = [row["ps"] for row in content["scores"]]
    assert found["float32"] != found["float64"]
    assert found["float32"] == pytest.approx(found["float64"], abs=2e-3)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        score(files, "--eigh", "float16")
    assert "invalid choice: 'float16'" in capsys.readouterr().err


def test_settings_of_bounds_reach_them(files: tuple[list[str], list[str]]) -> None:
    references, estimates = files
    given = {"estimates": estimates, "references": references, "mapss": small_mapss()}
    given |= {"bounds": True, "sample_frames": 4}
    plain, drawn = evaluate(**given), evaluate(**given, tail="bootstrap")
    derived = evaluate(**given, bounds_convention="derived")
    other = evaluate(**given, bounds_convention="reference")  # the scores stay the paper's
    for report in (drawn, derived, other):
        assert [row.ps for row in report.rows] == [row.ps for row in plain.rows]
        assert [row.ps_tail for row in report.rows] != [row.ps_tail for row in plain.rows]
    for wrong in ({"tail": "none"}, {"bounds_convention": "conformal"}):
        with pytest.raises(ValueError, match="must be one of"):
            evaluate(**given, **wrong)


def test_target_alone(
    files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    references, estimates = files
    assert score((references, estimates[1:])) == 2
    assert "attributed=" in capsys.readouterr().err
    assert score((references, estimates[1:]), "--attributed", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[0] == "b"


def test_quiet_prints_nothing(
    tmp_path: Path, files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert score(files, "--quiet", "--out", str(tmp_path / "o")) == 0
    assert capsys.readouterr() == ("", "")


def test_plot_goes_where_it_is_told(
    tmp_path: Path, files: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert score(files, "--plot") == 0
    assert (tmp_path / "scores.png").exists()
    assert score(files, "--plot", "figures/a.svg", "--quiet") == 0
    assert "<svg" in (tmp_path / "figures" / "a.svg").read_text(encoding="utf-8")


def test_threads_are_set_for_the_command_alone() -> None:
    before = torch.get_num_threads()
    with options.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_stages_show_on_a_terminal(
    files: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert score(files) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert score(files, "--bounds") == 0
    assert "scoring frames and their bounds [3/3" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------
# Errors
# ------------------------------------------------------------------------------------------------


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that an error prints."""
    out, err = capsys.readouterr()
    lines = err.strip().splitlines()
    assert out == ""
    assert len(lines) == 1, err
    assert lines[0].startswith("torch-mapss: error: ")
    return lines[0]


def test_errors_are_one_line(
    tmp_path: Path, files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    references, estimates = files
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF nonsense")
    taken = tmp_path / "taken"
    taken.write_text("mine")
    cases: list[tuple[tuple[list[str], list[str]], tuple[str, ...], str]] = [
        ((references, ["/nowhere.wav", estimates[1]]), (), "'/nowhere.wav'"),
        ((references, [str(broken), estimates[1]]), (), "broken.wav"),
        ((references[:1], estimates[:1]), (), "at least two references"),
        (files, ("--out", str(taken)), "taken' is a file"),
        (files, ("--encoder", "meel"), "Did you mean 'mel'"),
        (files, ("--device", "cuda:99"), "--device cuda:99 cannot be used here"),
        (files, ("--device", "nonsense"), "--device nonsense cannot be used here"),
        (files, ("--bounds", "--confidence", "1.5"), "confidence"),
        (files, ("--layer", "3"), "layer"),
        (files, ("--threads", "0"), "--threads must be at least 1"),
        (files, ("--sample-frames", "0"), "sample_frames must be at least 1, got 0"),
        (files, ("--tail", "bootstrap"), "--tail says how bounds are made"),
        (files, ("--bounds-convention", "derived"), "--bounds-convention says how bounds"),
        (files, ("--tail", "concentration"), "--tail says how bounds are made"),
        (files, ("--confidence", "0.9"), "--confidence says how bounds are made"),
        (files, ("--confidence", "0.95"), "add --bounds"),
        (files, ("--activity", "2"), "activity must be a share of a source's own RMS"),
        (files, ("--activity", "1"), "at least 0 and below 1, got 1.0"),
        (files, ("--activity", "-0.1"), "at least 0 and below 1, got -0.1"),
    ]
    for given, flags, message in cases:
        assert score(given, *flags) == 2
        assert message in error_of(capsys)
    assert taken.read_text() == "mine"


def test_debug_shows_the_traceback(
    files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    references, _ = files
    assert score((references, ["/nowhere.wav", "/nowhere.wav"]), "--debug") == 2
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert error.splitlines()[-1].startswith("torch-mapss: error: ")


def test_wrong_usage_exits_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["score"], ["score", "--nonsense"], ["evaluate", "m.json"], ["sing"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 2
        assert "usage: torch-mapss" in capsys.readouterr().err


def test_interruption_has_its_own_code(
    files: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_mapss.evaluation.scorer.evaluate", interrupted)
    assert score(files) == 130
    assert capsys.readouterr().err == "torch-mapss: interrupted\n"


def test_an_unexpected_error_points_to_debug(
    files: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("torch_mapss.evaluation.scorer.evaluate", failing)
    assert score(files) == 2
    line = error_of(capsys)
    assert "unexpected ZeroDivisionError: division by zero. Run with --debug" in line


def test_warnings_are_one_line(
    tmp_path: Path, files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    references, estimates = files
    write(Path(references[1]), torch.zeros(8000))
    assert score((references, estimates)) == 0
    out, err = capsys.readouterr()
    assert err.startswith("torch-mapss: warning: mixtures [0] have no frame")
    assert err.count("\n") == 1
    assert "0 of 2 estimates have scored frames" in out


# ------------------------------------------------------------------------------------------------
# Words
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["score", "--help"], ["evaluate", "--help"]])
def test_help_tells_what_the_measures_are(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "higher is better",
        "PS Perceptual Separation, 0 to 1",
        "PM Perceptual Match, 0 to 1",
        "A reference is the true source",
        "an estimate is what a separator made",
        "Exit codes: 0",
    ):
        assert words in text
    if arguments[0] != "--help":
        assert "the rate is brought to the encoder's" in text


def test_help_needs_neither_torch_nor_much_time() -> None:
    code = (
        "import sys, torch_mapss.evaluation.cli\n"
        "try: torch_mapss.evaluation.cli.main(['score', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_encoders_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from torch_mapss.encoders import encoder_table

    assert cli.main(["encoders"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row, line in zip(encoder_table(), lines[2:]):
        cells = line.split()
        assert cells[0] == row.name
        assert str(row.sample_rate) in cells
        assert cells[-1] == ("-" if row.layer is None else str(row.layer))


def test_every_option_of_score_is_explained() -> None:
    parser = cli.build_parser()
    commands = next(a for a in parser._actions if hasattr(a, "choices") and a.choices)
    for name, sub in commands.choices.items():  # type: ignore[union-attr]
        for action in sub._actions:
            assert action.help, f"{name} {action.dest}"


# ------------------------------------------------------------------------------------------------
# Names and locales
# ------------------------------------------------------------------------------------------------


NAMES = ("Füße é", "鼓手")


def named_files(folder: Path) -> tuple[list[str], list[str]]:
    truth = sources(seconds=0.3)
    return (
        write_all(folder / "wahr", truth, NAMES),
        write_all(folder / "geschätzt", leaky(truth), NAMES),
    )


def check_named_results(out: Path, estimates: list[str]) -> None:
    with open(out / "scores.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(row["source"] for row in rows) == NAMES
    assert [row["estimate"] for row in rows] == estimates
    content = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert tuple(row["source"] for row in content["scores"]) == NAMES
    assert (out / "scores.png").exists()


@pytest.mark.slow
def test_names_survive_the_c_locale(tmp_path: Path) -> None:
    references, estimates = named_files(tmp_path)
    out = tmp_path / "ergebnis_ü"
    done = command(
        *("score", "--references", *references, "--estimates", *estimates, *QUICK),
        *("--out", str(out), "--plot"),
        LC_ALL="C",
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert "鼓手" in done.stdout.decode("utf-8")
    check_named_results(out, estimates)


@pytest.mark.slow
def test_names_survive_where_file_names_are_bytes(tmp_path: Path) -> None:
    references, estimates = named_files(tmp_path)
    manifest = write_manifest(tmp_path / "größer", 1, ("système",))
    runs = [
        ["score", "--references", *references, "--estimates", *estimates, *QUICK, "--plot"],
        ["evaluate", str(manifest), *QUICK, "--save-frames"],
    ]
    outs = [tmp_path / "ergebnis_ü", tmp_path / "résultats"]
    code = (
        "import sys\nfrom torch_mapss.evaluation.cli import main\nhere = sys.argv.index('--then')\n"
        "sys.exit(main(sys.argv[1:here]) or main(sys.argv[here + 1:]))"
    )
    arguments = [*runs[0], "--out", str(outs[0]), "--then", *runs[1], "--out", str(outs[1])]
    # Python's own help for the C locale switched off: the terminal takes ASCII only.
    env = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    check_named_results(outs[0], estimates)
    assert "système" in (outs[1] / "summary.csv").read_text(encoding="utf-8")
    assert (outs[1] / "frames" / "m0" / "système" / "ps.csv").exists()


# ------------------------------------------------------------------------------------------------
# Missing packages
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "options", "install"),
    [
        ("matplotlib.figure", ("--plot",), r"pip install torch_mapss\[plot\]"),
        ("soundfile", (), "pip install soundfile"),
        ("torchaudio.functional", (), "pip install torchaudio"),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path,
    missing: str,
    options: tuple[str, ...],
    install: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    truth = sources(rate=22_050)  # needs resampling
    paths = [write(tmp_path / f"{k}.wav", wave, 22_050) for k, wave in enumerate(truth)]
    monkeypatch.setitem(sys.modules, missing, None)
    out = tmp_path / "out"
    assert score((paths, paths), *options, "--out", str(out)) == 2
    assert re.search(install, error_of(capsys))
    assert not out.exists() or not list(out.iterdir())


def test_a_missing_progress_bar_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(console.progress([1, 2])) == [1, 2]  # no terminal, no bar
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert console.progress([1, 2], quiet=True) == [1, 2]
    with pytest.raises(ImportError, match="pip install tqdm"):
        console.progress([1, 2])


# ------------------------------------------------------------------------------------------------
# Streams, folders and processes
# ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_closed_streams_are_no_failure(files: tuple[list[str], list[str]]) -> None:
    references, estimates = files
    arguments = ["score", "--references", *references, "--estimates", *estimates, *QUICK]
    code = (
        "import sys\nsys.stderr = None\nfrom torch_mapss.evaluation.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "PS" in done.stdout


@pytest.mark.parametrize("option", ["--out", "--plot"])
def test_a_folder_that_cannot_be_written_to_is_told_before_scoring(
    option: str,
    tmp_path: Path,
    files: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def never(**options: Any) -> None:
        raise AssertionError("scored before the folder was looked at")

    monkeypatch.setattr("torch_mapss.evaluation.scorer.evaluate", never)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    target = tmp_path / "x.png" if option == "--plot" else tmp_path
    assert score(files, option, str(target)) == 2
    assert "cannot be written to" in error_of(capsys)


def test_where_the_plot_went_is_told(
    tmp_path: Path, files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for given, written in (("plain", "plain.png"), ("", "scores.png")):
        assert score(files, "--plot", str(tmp_path / given)) == 0
        assert (tmp_path / written).is_file()
        assert f"Written to {tmp_path / written}\n" in capsys.readouterr().out
    assert score(files, "--plot", str(tmp_path / "x.xyz")) == 2
    assert "not 'xyz'" in error_of(capsys)


def test_every_process_says_which_one_it_is(
    files: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert score((files[0], ["nothing.wav", "nothing.wav"])) == 2
    assert capsys.readouterr().err.startswith("torch-mapss: error in process 1: ")


def test_options_of_the_encoder_reach_it(
    tmp_path: Path, files: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:

    seen: dict[str, Any] = {}

    def noted(*arguments: Any, **options: Any) -> None:
        seen.update(options, encoder=arguments[0], layer=arguments[1])
        raise ValueError("enough")

    monkeypatch.setattr(pipeline.mapss, "MAPSS", noted)
    given = {
        **{"encoder": "some/where", "layer": "4", "dtype": "bfloat16", "device": "cpu"},
        "cache_dir": str(tmp_path),
    }
    options = [
        word for key, value in given.items() for word in ("--" + key.replace("_", "-"), value)
    ]
    assert score(files, *options, "--local-files-only") == 2
    assert seen["layer"] == 4
    assert seen["local_files_only"] is True
    assert {key: seen[key] for key in given if key != "layer"} == {
        key: value for key, value in given.items() if key != "layer"
    }


@pytest.mark.parametrize("names", [("", " "), ("a", "")])
def test_blank_names_are_refused(
    names: tuple[str, str],
    files: tuple[list[str], list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert score(files, "--names", *names) == 2
    assert "one name for each" in error_of(capsys)


# ------------------------------------------------------------------------------------------------
# Messages, options, figures
# ------------------------------------------------------------------------------------------------


def test_a_pipe_is_told_to_be_one(
    tmp_path: Path, files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    references, estimates = files
    pipe = tmp_path / "pipe.wav"
    os.mkfifo(pipe)
    for path in (str(pipe), os.devnull):
        assert score(([path, references[1]], estimates)) == 2
        assert f"{path!r} is a pipe or device" in error_of(capsys)


def test_options_of_banks_and_map_reach_the_scorer(
    tmp_path: Path, files: tuple[list[str], list[str]]
) -> None:
    options = ("--match-encoder", "waveform", "--energy", "0.9", "--alpha", "0.5")
    options += ("--activity", "0.2", "--without", "noise", "tone", "notch/peak01")
    references, estimates = files
    arguments = ["score", "--references", *references, "--estimates", *estimates]
    arguments += ["--encoder", "mel", "--out", str(tmp_path), "--quiet", *options]
    assert cli.main(arguments) == 0
    settings = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["settings"]
    assert settings["match_encoder"]["name"] == "waveform"
    assert (settings["energy"], settings["alpha"], settings["activity"]) == (0.9, 0.5, 0.2)
    families = [settings[f"{kind}_bank"]["families"] for kind in ("separation", "match")]
    assert all({"noise", "tone"}.isdisjoint(found) for found in families)
    assert [found["notch"] for found in families] == [5, 19]  # the member is PM's alone


def test_families_are_chosen_or_refused(
    tmp_path: Path, files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--only", "comb", "echo", "--out", str(tmp_path), "--quiet")
    assert score(files, *given) == 0
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert set(content["settings"]["match_bank"]["families"]) == {"comb", "echo"}
    for option in ("--only", "--without"):
        assert score(files, option, "nois") == 2
        assert f"{option} names 'nois', which neither bank has" in error_of(capsys)


def test_distortions_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from torch_mapss.distortions import DistortionBank

    for rate in (16_000, 8000):
        assert cli.main(["distortions", "--rate", str(rate)]) == 0
        told = capsys.readouterr().out
        counts = [len(DistortionBank(kind).names(rate)) for kind in ("separation", "match")]
        assert f"At {rate} Hz: PS {counts[0]}, PM {counts[1]} members" in told
    for name in DistortionBank("match").names(8000):
        assert name.split("/", 1)[1] in told
    assert cli.main(["distortions", "--rate", "100"]) == 2
    assert "4000 to 384000 Hz" in capsys.readouterr().err


@pytest.mark.parametrize(
    "backend",
    [
        "module://nowhere.to.be.found",
        pytest.param("foo", marks=pytest.mark.slow),
        pytest.param("svg", marks=pytest.mark.slow),
    ],
)
def test_figures_need_no_backend(tmp_path: Path, backend: str) -> None:
    code = (
        "import os, sys\nfrom torch_mapss.evaluation import plots\n"
        "plots.save_figure(plots.new_figure(2, 2), sys.argv[1])\nimport matplotlib\n"
        "print(os.environ['MPLBACKEND'], matplotlib.rcParams['backend'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.png")],
        env=environment(MPLBACKEND=backend),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.png").stat().st_size > 0
    variable, chosen = done.stdout.split()
    assert variable == backend  # whoever draws afterwards finds what was there
    assert chosen == backend or backend != "svg"


def test_the_device_is_the_fastest_there_is(
    files: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert options.device_of_options("cpu") == "cpu"
    assert score(files) == 0
    best = "cuda" if torch.cuda.is_available() else "cpu"
    assert f"Computed on {best}" in capsys.readouterr().out
    monkeypatch.setattr("torch_mapss.core.devices.best_device", lambda: torch.device("meta"))
    assert options.device_of_options("auto") == "meta"
    assert options.device_of_options("cpu") == "cpu"


def test_what_a_half_width_is_not(
    files: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert score(files, "--bounds") == 0
    assert "It is no sampling error over files." in capsys.readouterr().out
