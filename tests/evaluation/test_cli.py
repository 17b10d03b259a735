"""The command `torch-mapss`: usage, errors, exit codes, names, missing packages."""

from __future__ import annotations

import argparse
import inspect
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from separations import python, save_manifest, small_mapss, write, write_all, write_manifest
from waveforms import leaky, tones

from torch_mapss import DistortionBank, evaluate, pipeline
from torch_mapss.encoders import encoder_table
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.commands import arguments
from torch_mapss.evaluation.settings import checked_names, read_config, storable
from torch_mapss.score_table import RANKED, SCORES, scores_in

RANKED_WITH_ENCODER = tuple(
    name for name in SCORES if SCORES[name].ranked and SCORES[name].measure != "bss"
)
QUICK = ("--encoder", "mel", "--bank-size", "10")


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[str], list[str]]:
    """References and estimates."""
    truth = tones()
    return write_all(tmp_path / "truth", truth), write_all(tmp_path / "made", leaky(truth))


def score(files: Any, *options: str) -> int:
    words = ["--references", *files[0], "--estimates", *files[1]]
    return cli.main(["score", *words, *QUICK, *options])


def test_score_command_equals_evaluate(tmp_path, files, capsys):
    out, config = tmp_path / "new" / "nested", tmp_path / "c.yaml"
    config.write_text("confidence: 0.9\n")
    command_options = ("--out", str(out), "--plot", "--bounds", "--config", str(config))
    assert score(files, *command_options) == 0
    printed = capsys.readouterr().out
    options = {"encoder": "mel", "bank_size": 10, "bounds": True, "confidence": 0.9}
    report = evaluate(references=files[0], estimates=files[1], **options)
    assert printed.startswith(report.summary())
    assert "90 % confidence" in printed
    scores = pd.read_csv(out / "scores.csv")
    assert list(scores["ps"]) == pytest.approx([row.ps for row in report.rows], rel=1e-8)
    names = {"settings.json", "mixtures.json", "records", "frames", "scores.png"}
    names |= {"scores.csv", "items.csv", "summary.csv"}
    assert {path.name for path in out.iterdir()} == names


def test_options_and_settings_files_reach_the_scorer(tmp_path, files, capsys):
    out, config = tmp_path / "o", tmp_path / "settings.yaml"
    config.write_text(
        "convention: reference\nseed: 7\nalign_polarity: true\nalpha: 0.5\nenergy: 0.9\n"
        "activity: 0.2\nmatch_encoder: waveform\nsample_frames: 3\n"
        "without: [noise, tone, notch/peak01]\n"
    )
    options = ("--config", str(config), "--permute", "--sample-frames", "4", "--out", str(out))
    assert score((files[0], files[1][::-1]), *options, "--bank-size", "40", "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert [*pd.read_csv(out / "scores.csv")["source_index"]] == [1, 0]
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))["settings"]
    expected = {"convention": "reference", "align_polarity": True, "alpha": 0.5, "energy": 0.9}
    expected |= {"activity": 0.2, "sample_frames": 4}  # the command line comes first
    assert settings == settings | expected
    assert settings["separation_bank"]["seed"] == settings["match_bank"]["seed"] == 7
    assert settings["match_encoder"]["name"] == "waveform"
    families = [settings[f"{kind}_bank"]["families"] for kind in ("separation", "match")]
    assert all({"noise", "tone"}.isdisjoint(families_used) for families_used in families)


def test_without_an_encoder_nothing_is_fetched(tmp_path, files, monkeypatch, capsys):
    """Clearance, fidelity, bleed and SI-SDR, with mel; an encoder adds PS and PM."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr("socket.socket.connect", Mock(side_effect=AssertionError("a download")))
    command = ["score", "--references", *files[0], "--estimates", *files[1], "--quiet", "--out"]
    ranked = ["clearance", "fidelity", "bleed_db", "si_sdr"]
    for options, names in (
        ([], ranked),
        (["--measures", "clearance"], ["clearance", "fidelity", "si_sdr"]),
        (["--measures", "bss", "bleed"], ["bleed_db", "si_sdr", "sdr", "sir", "sar"]),
        (["--pair-encoder", "waveform", "--sample-frames", "2"], ranked),
        (["--encoder", "mel", "--bank-size", "10"], list(RANKED_WITH_ENCODER)),
    ):
        out = tmp_path / "-".join(["out", *options]).replace("--", "")
        assert cli.main([*command, str(out), *options]) == 0
        table = pd.read_csv(out / "scores.csv")
        assert [*scores_in(table, ranked=True)] == names
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())["settings"]
    assert settings["decomposition_encoder"]["name"] == "mel"
    assert cli.main([*command, str(tmp_path / "x"), "--measures", "ps", "match"]) == 2
    assert "--measures separation match needs an encoder: --encoder wav2" in error_of(capsys)


def test_bank_size_is_of_ps_and_pm_alone(files):
    """Clearance and fidelity keep their members."""
    full_bank, small = (
        evaluate(references=files[0], estimates=files[1], encoder="mel", **settings).means()
        for settings in (
            {"measures": "decomposition"},
            {"measures": ("decomposition", "separation"), "bank_size": 10},
        )
    )
    assert small["fidelity"] == pytest.approx(full_bank["fidelity"], rel=1e-6)
    assert small["clearance"] == pytest.approx(full_bank["clearance"], rel=1e-6)


NUMBERS = {"9e-1": 0.9, "1e3": 1000, "1E-3": 0.001, "1.5e2": 150, "-2e1": -20, "0.5": 0.5}


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_that_yaml_takes_for_text(tmp_path, text):
    (config := tmp_path / "c.yaml").write_text(f"energy: {text}\nencoder: 1e3-model\n")
    assert read_config(config) == {"energy": NUMBERS[text], "encoder": "1e3-model"}
    assert type(read_config(config)["energy"]) is type(NUMBERS[text])


def test_settings_of_pathlib_and_numpy_are_plain(tmp_path):
    settings = checked_names({"encoder": tmp_path, "bank_size": np.int64(7), "seed": np.int32(1)})
    assert settings == {"encoder": str(tmp_path), "bank_size": 7, "seed": 1}
    assert storable(settings) == settings


def test_options_of_templates_are_refused_with_a_manifest(tmp_path, capsys):
    for flags in (["--noisy", "x"], ["--allow-missing"], ["--sources", "a"]):
        assert cli.main(["evaluate", "m.json", "--out", str(tmp_path), *flags]) == 2
        assert f"{flags[0]} cannot be combined with a MANIFEST" in error_of(capsys)


def test_missing_estimates_may_be_allowed(tmp_path, capsys):
    """It is named, and scored as not estimated."""
    for k in range(3):
        truth = tones(2, 0.3, seed=k)
        write_all(tmp_path / "refs" / f"m{k}", truth, ("vocals", "drums"))
        for name, wave in zip(("vocals", "drums"), truth):
            if (k, name) != (0, "drums") and k != 1:
                write(tmp_path / "A" / f"m{k}" / f"{name}.wav", wave)
            write(tmp_path / "B" / f"m{k}" / f"{name}.wav", 0.5 * wave)
    form = "{mixture}/{source}.wav"
    command = ["evaluate", "--references", f"{tmp_path}/refs/{form}", "--measures", "bleed"]
    command += ["--system", f"A={tmp_path}/A/{form}", f"B={tmp_path}/B/{form}"]
    command += ["--out", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert "lacks 1 of 3 mixtures: 'm1'" in capsys.readouterr().err
    assert cli.main([*command, "--allow-missing"]) == 0
    told = capsys.readouterr().err
    assert "system 'A' lacks 1 of 3 mixtures: 'm1'" in told
    assert "system 'A' lacks 'drums' of 'm0'" in told
    items = pd.read_csv(tmp_path / "out" / "items.csv")
    counts = items.groupby("system")["estimates"].sum()
    assert (dict(counts), len(items)) == ({"A": 3, "B": 6}, 5)


def test_settings_of_bounds_reach_them(files):
    settings = {"references": files[0], "estimates": files[1], "bounds": True, "sample_frames": 4}
    settings |= {"mapss": small_mapss(), "measures": "separation"}
    plain, conventions = evaluate(**settings).scores, ("derived", "reference")
    for changed in ({"tail": "bootstrap"}, *({"bounds_convention": x} for x in conventions)):
        report = evaluate(**settings, **changed).scores
        assert report["ps"].equals(plain["ps"])  # the scores stay those of the paper
        assert (report["ps_tail"] != plain["ps_tail"]).all()


def error_of(capsys: Any) -> str:
    """The one line that an error prints."""
    out, err = capsys.readouterr()
    (line,) = err.strip().splitlines()
    assert (out, line[:20]) == ("", "torch-mapss: error: ")
    return line


BAD_SETTINGS = (
    ("encodr: mel", "unknown option 'encodr'; did you mean 'encoder'?"),
    ("[1, 2", "neither YAML nor JSON"),
    ("just words", "`option: value`"),
    ("only: [nois]", "'nois'"),
    ("only: nois", "'nois'"),
    ("activity: 2", "activity"),
    ("confidence: 1.5", "confidence"),
    ("tail: none", "tail"),
    ("excerpts: 0", "excerpts"),
    ("eigh: float16", "eigh"),
)
BAD_OPTIONS = (
    ("--encoder meel", "Did you mean 'mel'"),
    ("--device cuda:99", "--device cuda:99 cannot be used here"),
    ("--device nonsense", "--device nonsense cannot be used here"),
    ("--layer 3", "layer"),
    ("--threads 0", "--threads must be at least 1"),
    ("--sample-frames 0", "sample_frames must be at least 1, got 0"),
    ("--measures loudness", "measures"),
    ("--config /nowhere.yaml", "'/nowhere.yaml' cannot be read"),
    ("--plot x.xyz", "not 'xyz'"),
)


def test_errors_are_one_line(tmp_path, files, capsys):
    references, estimates = files
    (broken := tmp_path / "broken.wav").write_bytes(b"RIFF nonsense")
    (taken := tmp_path / "taken").write_text("mine")
    os.mkfifo(pipe := str(tmp_path / "pipe.wav"))
    cases = [
        (([pipe, references[1]], estimates), [], f"{pipe!r} is a folder, pipe or device"),
        (([os.devnull, references[1]], estimates), [], "pipe or device"),
        ((references, ["/nowhere.wav", estimates[1]]), [], "'/nowhere.wav'"),
        ((references, [str(broken), estimates[1]]), [], "broken.wav"),
        ((references[:1], estimates[:1]), [], "at least two references"),
        (files, ["--out", str(taken)], "taken' cannot be written to"),
        *((files, option_text.split(), message) for option_text, message in BAD_OPTIONS),
    ]
    for number, (text, message) in enumerate(BAD_SETTINGS):
        (config := tmp_path / f"{number}.yaml").write_text(text)
        cases.append((files, ["--config", str(config)], message))
    for files_of_case, flags, message in cases:
        assert score(files_of_case, *flags) == 2
        assert message in error_of(capsys)
    assert taken.read_text() == "mine"


def test_a_wrong_name_leaves_no_folder(tmp_path, files, capsys):
    assert score((files[0], ["/nowhere.wav", files[1][1]]), "--out", str(tmp_path / "out")) == 2
    assert "'/nowhere.wav'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options", [("--bank-size", "0"), ("--layer", "3"), ("--excerpts", "0"), ("--encoder", "./no")]
)
def test_wrong_settings_of_a_set_leave_no_folder(options, tmp_path, capsys):
    path = write_manifest(tmp_path / "set", 1, ("one",))
    command = ["evaluate", str(path), "--out", str(tmp_path / "out"), "--encoder", "mel"]
    assert cli.main([*command, *options]) == 2
    assert options[0].strip("-").replace("-", "_") in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wrong_usage_exits_with_two(capsys):
    for words in ([], ["score"], ["score", "--nonsense"], ["evaluate", "m.json"], ["sing"]):
        with pytest.raises(SystemExit, match=r"^2$"):
            cli.main(words)
        assert "usage: torch-mapss" in capsys.readouterr().err


def test_interruptions_and_unexpected_errors(files, monkeypatch, capsys):
    unexpected = ["error: unexpected ZeroDivisionError: division by zero", cli.DEBUG]
    for raised, code, told in (
        (KeyboardInterrupt(), 130, ["torch-mapss: interrupted\n"]),
        (ZeroDivisionError("division\nby zero"), 2, unexpected),
    ):
        monkeypatch.setattr(
            "torch_mapss.evaluation.single_mixture.evaluate", Mock(side_effect=raised)
        )
        assert score(files) == code
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert all(fragment in error for fragment in told)


def test_warnings_are_one_line(tmp_path, files, capsys):
    write(Path(files[0][1]), torch.zeros(8000))
    assert score(files, "--bank-size", "2") == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert any("bank_size=2 makes PM and log PM meaningless" in line for line in lines)
    assert all(line.startswith("torch-mapss: warning: ") for line in lines)
    assert any("no frame" in line for line in lines)
    assert "0 of 2 estimates have scored frames" in out


def test_help_needs_neither_torch_nor_much_time():
    code = (
        "import sys, torch_mapss.evaluation.cli\n"
        "try: torch_mapss.evaluation.cli.main(['score', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'pandas', 'yaml'} & set(sys.modules)))"
    )
    printed = python("-c", code)
    assert printed.splitlines()[-1] == "[]"
    help_text = " ".join(printed.split())
    for name in RANKED:
        assert SCORES[name].meaning in help_text
    assert "Exit codes: 0" in help_text
    assert "resampled to the encoder's rate" in help_text


def test_encoders_and_distortions_are_listed(capsys):
    assert cli.main(["encoders"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row, line in zip(encoder_table(), lines[2:]):
        layer = "-" if row.layer is None else str(row.layer)
        assert (line.split()[0], line.split()[-1]) == (row.name, layer)
    assert cli.main(["distortions"]) == 0
    told = capsys.readouterr().out
    names = [DistortionBank(kind).names(16_000) for kind in ("separation", "match")]
    assert f"At 16000 Hz: PS {len(names[0])}, PM {len(names[1])} members" in told
    assert all(name.split("/", 1)[1] in told for name in names[1])


class ListingParser(argparse.ArgumentParser):
    """Keeps the help of every argument by its first name."""

    def __init__(self) -> None:
        self.helps: dict[str, str | None] = {}
        super().__init__(add_help=False)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        self.helps[names[0]] = options.get("help")
        return super().add_argument(*names, **options)


def test_options_are_few_and_explained():
    total = 0
    for name in cli.COMMANDS:
        command = ListingParser()
        import_module(f"torch_mapss.evaluation.commands.{name}").add_options(command)
        helps = command.helps
        assert all(text and text != argparse.SUPPRESS for text in helps.values()), name
        options = [argument for argument in helps if argument.startswith("-")]
        assert len(options) <= 28, name  # none of them hidden
        total += len(options)
    assert 60 < total <= 90


NAMES = ("Füße é", "鼓手")


@pytest.mark.slow
def test_names_survive_where_file_names_are_bytes(tmp_path):
    truth = tones(seconds=0.3)
    references = write_all(tmp_path / "wahr", truth, NAMES)
    estimates = write_all(tmp_path / "geschätzt", leaky(truth), NAMES)
    manifest = write_manifest(tmp_path / "größer", 1, ("système",))
    (entry,) = json.loads(manifest.read_text(encoding="utf-8"))
    save_manifest(manifest.parent, [{**entry, "sources": NAMES}])
    # Python's own help for the C locale switched off: the terminal takes ASCII only.
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    of_score, of_evaluate, folders = (
        tmp_path / "ergebnis_ü",
        tmp_path / "résultats",
        tmp_path / "ordner",
    )
    named = ["--sources", *NAMES]
    of_files = [
        "--references",
        *references,
        "--estimates",
        *estimates,
        "--plot",
        "--out",
        str(of_score),
    ]
    of_folders = [f"--references={tmp_path}/wahr/{{source}}.wav", *named]
    of_folders += ["--system", f"é={tmp_path}/g*ätzt/{{source}}.wav"]
    for words in (
        ["score", *of_files, *named],
        ["evaluate", str(manifest), "--out", str(of_evaluate)],
        ["evaluate", *of_folders, "--out", str(folders)],
    ):
        python("-m", "torch_mapss", *words, *QUICK, changes=env, errors="replace")
    rows = pd.read_csv(of_score / "scores.csv")
    assert [(*rows["source"],), [*rows["estimate"]]] == [NAMES, estimates]
    record = json.loads((of_score / "records" / "mixture.json").read_text(encoding="utf-8"))
    assert tuple(row["source"] for row in record["systems"]["estimates"]["rows"]) == NAMES
    assert (of_score / "scores.png").exists()
    assert "système" in (of_evaluate / "summary.csv").read_text(encoding="utf-8")
    assert (of_evaluate / "frames" / "m0.npz").exists()
    for results, system in ((of_evaluate, "système"), (folders, "é")):
        items = pd.read_csv(results / "items.csv")
        assert [*items["system"], *items["status"]] == [system, "ok"]


@pytest.mark.parametrize("option", ["--out", "--plot"])
def test_folders_are_tried_before_scoring(option, tmp_path, files, monkeypatch, capsys):
    early = Mock(side_effect=AssertionError("scored before the folder was looked at"))
    monkeypatch.setattr("torch_mapss.evaluation.single_mixture.evaluate", early)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    target = tmp_path / "x.png" if option == "--plot" else tmp_path
    assert score(files, option, str(target)) == 2
    assert "cannot be written to" in error_of(capsys)


def test_plot_path_is_printed(tmp_path, files, capsys):
    for plot_option, written in (("plain", "plain.png"), ("", "scores.png")):
        assert score(files, "--measures", "bleed", "--plot", str(tmp_path / plot_option)) == 0
        assert (tmp_path / written).is_file()
        assert f"Written to {tmp_path / written}\n" in capsys.readouterr().out


def test_processes_say_which_they_are_and_show_tracebacks_if_asked(files, monkeypatch, capsys):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), (cli.DEBUG, "1")):
        monkeypatch.setenv(name, value)
    assert score((files[0], ["/nowhere.wav", "/nowhere.wav"])) == 2
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert error.splitlines()[-1].startswith("torch-mapss: error in process 2 of 2: ")


def test_options_of_the_encoder_reach_it(tmp_path, files, monkeypatch):
    seen: dict[str, Any] = {}

    def noted(**options: Any) -> None:
        seen.update(options)
        raise ValueError("enough")

    noted.__signature__ = inspect.signature(pipeline.mapss.MAPSS)  # type: ignore[attr-defined]
    monkeypatch.setattr(pipeline.mapss, "MAPSS", noted)
    settings = {"dtype": "bfloat16", "cache_dir": str(tmp_path), "local_files_only": True}
    (config := tmp_path / "c.json").write_text(json.dumps({**settings, "segment": 0}))
    options = ("--encoder", "some/where", "--layer", "4", "--device", "cpu")
    assert score(files, *options, "--config", str(config)) == 2
    kinds = ("separation", "match", "decomposition")
    assert [len(seen.pop(f"{kind}_bank")) for kind in kinds] == [10, 10, 20]
    assert seen == {**settings, "encoder": "some/where", "layer": 4, "segment": None}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["module://nowhere.to.be.found", "foo", "svg"])
def test_figures_need_no_backend(tmp_path, backend):
    code = (
        "import os, sys\nfrom torch_mapss.evaluation import plots\n"
        "plots.save_figure(plots.new_figure(2, 2), sys.argv[1])\nimport matplotlib\n"
        "print(os.environ['MPLBACKEND'], matplotlib.rcParams['backend'])"
    )
    printed = python("-c", code, str(tmp_path / "x.png"), changes={"MPLBACKEND": backend})
    assert (tmp_path / "x.png").stat().st_size > 0
    variable, chosen = printed.split()
    assert variable == backend  # whoever draws afterwards finds what was there
    assert chosen == backend or backend != "svg"


def test_devices_and_threads(monkeypatch):
    monkeypatch.setattr("torch_mapss.core.devices.best_device", lambda: torch.device("meta"))
    assert arguments.device_of_options("auto") == "meta"
    assert arguments.device_of_options("cpu") == "cpu"
    # Torch's own function is not called: with some releases of MKL, LU fails in a process after it.
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    before = torch.get_num_threads()
    with arguments.threads(None):
        assert numbers == []
    with arguments.threads(before + 1):
        assert numbers == [before + 1]
    assert numbers == [before + 1, before]


PARTS = {
    "soundfile": "audio.load_audio('a.wav')",
    "transformers": "load_encoder('wav2vec2-base')",
    "matplotlib": "plots.check_available()",
}
LIGHTNING = {"lightning": "import torch_mapss.lightning"}
SCRIPT = """
import sys
how, folder, parts = sys.argv[1], sys.argv[2], eval(sys.argv[3])
paths = {name: f"{folder}/{name}" for name in parts}
if how == "raising":
    sys.path[:0] = paths.values()
else:
    sys.modules.update(dict.fromkeys(parts))
import torch, torch_mapss
from torch_mapss import MAPSS, audio, load_encoder
from torch_mapss.evaluation import plots
MAPSS("waveform", decomposition_encoder="waveform").prepare(torch.randn(2, 2000), measures="match")
for name, code in parts.items():
    try:
        exec(code)
    except ImportError as error:
        assert name in str(error) or name == "matplotlib" and "[plot]" in str(error), (name, error)
        assert "install" in str(error), (name, error)
    else:
        raise SystemExit(f"{name}: no error")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["missing", "raising"])
@pytest.mark.parametrize("packages", [PARTS, LIGHTNING])
def test_missing_and_broken_packages_are_named_where_they_are_needed(tmp_path, how, packages):
    write(tmp_path / "a.wav", torch.zeros(800))
    for name in packages:  # there, but built against another torch, say
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "__init__.py").write_text("raise OSError('undefined symbol')\n")
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    python("-c", SCRIPT, how, str(tmp_path), repr(packages), changes=path, cwd=tmp_path)
