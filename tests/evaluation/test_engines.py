"""Any engine's map: equal files from all, whatever the order, and nothing lost where one dies."""

from __future__ import annotations

import errno
import importlib
import json
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from separations import contents, environment, python, small_mapss, write_all, write_manifest
from waveforms import tones

from torch_mapss import compare, evaluate, evaluate_set, score_mixture
from torch_mapss.core.devices import with_index
from torch_mapss.evaluation import cli, engines
from torch_mapss.evaluation.manifest import Mixture, load_manifest
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.shard import local_device

QUICK: dict[str, Any] = {"measures": "bleed", "encoder": "mel"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of six short mixtures."""
    return write_manifest(tmp_path_factory.mktemp("tiny"), 6, ("one", "two"), 0.2)


@pytest.fixture(scope="module")
def expected(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run in this process leaves."""
    out = tmp_path_factory.mktemp("expected")
    evaluate_set(tiny, out=out, **QUICK)
    return contents(out)


def backwards(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """A lazy map that begins at the end."""
    return map(function, reversed([*items]))


def at_once(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [function(item) for item in items]


@pytest.mark.parametrize("engine", [backwards, at_once])
def test_order_and_laziness_are_the_engines_own(engine, tiny, expected, tmp_path):
    evaluate_set(tiny, out=tmp_path, map=engine, **QUICK)
    assert contents(tmp_path) == expected


def from_another_folder(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """As on a worker of a cluster, whose working folder is its own."""
    for item in [*items]:
        folder = os.getcwd()
        os.chdir(os.sep)
        try:
            result = function(item)
        finally:
            os.chdir(folder)
        yield result


def test_workers_need_not_share_the_working_folder(tiny, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    for name, engine in (("here", map), ("elsewhere", from_another_folder)):
        results = evaluate_set(tiny.name, out=tmp_path / name, map=engine, **QUICK)
        assert (results.failures, results.pending) == ((), ())
        assert results.records[0]["rows"][0]["estimate"] == "m0/one/a.wav"
        assert contents(tmp_path / name) == expected
    assert evaluate_set(tiny.name, out=tmp_path / "here", **QUICK).pending == ()


def test_folders_among_the_settings_mean_the_same_elsewhere(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache_folders = []

    def noted(function: Any, items: Iterable[Any]) -> Iterator[Any]:
        cache_folders.append(function.settings["cache_dir"])
        return map(function, items)

    evaluate_set(tiny, out="out", map=noted, cache_dir="weights", **QUICK)
    assert cache_folders == [str(tmp_path / "weights")]


def as_if_on_a_gpu(function: Any, items: Iterable[Any]) -> Iterator[Any]:
    """Workers that have the device which this process lacks."""
    assert function.device == "cuda:7"
    return map(function._replace(device="cpu"), items)


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    yield as_if_on_a_gpu


def test_device_is_not_tried_when_nothing_is_scored(tiny, expected, tmp_path, monkeypatch, capsys):
    results = evaluate_set(
        tiny, out=tmp_path / "python", map=as_if_on_a_gpu, device="cuda:7", **QUICK
    )
    assert contents(tmp_path / "python") == expected
    assert results.pending == ()
    monkeypatch.setattr(engines, "dask_map", cluster)
    options = ("--encoder", "mel", "--measures", "bleed", "--device", "cuda:7")
    command = ["evaluate", str(tiny), "--out", str(tmp_path / "command"), *options]
    assert cli.main([*command, "--dask", "tcp://somewhere:8786"]) == 0
    printed = capsys.readouterr()
    assert "omputing on" not in printed.err
    assert "omputed on" not in printed.out


def test_device_is_printed_by_the_process_that_uses_it(tiny, tmp_path, capsys):
    entry = json.loads(tiny.read_text())[0]
    (path := tiny.parent / "single.json").write_text(json.dumps([entry]))
    options = ("--measures", "bleed", "--device", "cpu", "--threads", "1")
    command = ["evaluate", str(path), "--out", str(tmp_path), *options]
    for expected_count in (1, 0):  # the second run finds all done
        assert cli.main(command) == 0
        assert capsys.readouterr().err.count("computing on cpu") == expected_count


def test_futures_are_no_results(tiny, tmp_path):
    with ThreadPoolExecutor(1) as pool:

        def submit_all(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
            return [pool.submit(function, item) for item in items]

        with pytest.raises(TypeError, match=r"'Future'.*Dask's client\.get_executor\(\)\.map"):
            evaluate_set(tiny, out=tmp_path, map=submit_all, **QUICK)


def test_an_encoder_that_nothing_reads_is_no_setting(tiny, tmp_path):
    """Clearance, fidelity and bleed are the same beside any encoder of PS on one grid of frames."""
    options: dict[str, Any] = {"measures": ("decomposition", "bleed"), "sample_frames": 3}
    results = [
        evaluate_set(tiny, out=tmp_path / name, encoder=name, **options)
        for name in ("waveform", "mel")
    ]
    compare(results)
    tables = [(tmp_path / name / "scores.csv").read_bytes() for name in ("waveform", "mel")]
    assert tables[0] == tables[1]
    assert results[0].protocol == results[1].protocol
    assert "encoder mel, convention" in results[0].statement()
    evaluate_set(tiny, out=tmp_path / "mel", encoder="waveform", **options)  # goes on there
    with pytest.raises(ValueError, match="different settings"):
        evaluate_set(tiny, out=tmp_path / "mel", encoder="mel", measures="separation")


def test_threads(tiny, expected, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        evaluate_set(tiny, out=tmp_path, map=engines.unordered(pool), **QUICK)
    assert contents(tmp_path) == expected


OWN_ENCODER = """
from torch_mapss.encoders.mel import MelEncoder

class TooLong(Exception):
    def __init__(self, samples, limit):  # two arguments: it can be pickled, but not unpickled
        super().__init__(f"{samples} samples, at most {limit}")

class ShortEncoder(MelEncoder):
    def _encode(self, flat):
        if flat.shape[-1] > 4000:
            raise TooLong(flat.shape[-1], 4000)
        return super()._encode(flat)
"""


def test_an_exception_of_a_users_encoder_fails_one_mixture_of_a_pool(tiny, tmp_path, monkeypatch):
    (tmp_path / "own_encoder.py").write_text(OWN_ENCODER)
    monkeypatch.syspath_prepend(tmp_path)
    encoder = importlib.import_module("own_encoder").ShortEncoder()
    settings: dict[str, Any] = {"encoder": encoder, "measures": "separation", "bank_size": 10}
    paths = tuple(write_all(tmp_path, tones(2, 0.5)))
    entries = [Mixture("long", paths, {"one": paths}, ""), *load_manifest(tiny)[:2]]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        rows = pool.map(partial(score_mixture, device="cpu", **settings), entries)
        statuses = [{row["status"] for row in rows_of_mixture} for rows_of_mixture in rows]
        with pytest.warns(UserWarning, match=r"TooLong: \d+ samples, at most 4000"):
            results = evaluate_set(entries, out=tmp_path / "out", map=pool.map, **settings)
    assert statuses == [{"failed"}, {"ok"}, {"ok"}]
    assert results.items["status"].tolist() == ["failed", "ok", "ok", "ok", "ok"]
    assert not results.pending


def test_an_engine_that_dies_loses_nothing_that_arrived(tiny, expected, tmp_path):
    def dying(function: Any, items: Any) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number == 2:
                raise OSError("the node went away")
            yield function(item)

    message = r"after 4 of 12 pairs .* again to continue \(the node went away\)"
    with pytest.raises(RuntimeError, match=f"the engine stopped {message}"):
        evaluate_set(tiny, out=tmp_path, map=dying, **QUICK)
    assert len([*(tmp_path / "records").glob("*.json")]) == 2
    assert len(load_results(tmp_path).pending) == 8
    short = partial(lambda count, function, items: map(function, [*items][:count]), 2)
    with pytest.raises(RuntimeError, match=r"without an error after 8 of 12 pairs"):
        evaluate_set(tiny, out=tmp_path, map=short, **QUICK)
    evaluate_set(tiny, out=tmp_path, map=backwards, **QUICK)  # another engine goes on
    assert contents(tmp_path) == expected


def test_engine_that_refuses_work_is_reported_like_one_that_stops(tiny, tmp_path):
    """Executors submit everything when their map is called."""
    with ThreadPoolExecutor(1) as pool:
        pass
    message = r"the engine stopped after 0 of 12 pairs .*cannot schedule new futures"
    with pytest.raises(RuntimeError, match=message):
        evaluate_set(tiny, out=tmp_path, map=pool.map, **QUICK)


def test_none_from_an_engine_is_refused(tiny, tmp_path):
    def without_results(function: Any, items: Any) -> list[None]:
        return [None for _ in items]

    with pytest.raises(TypeError, match=r"map must return what the function returned.*'NoneType'"):
        evaluate_set(tiny, out=tmp_path, map=without_results, **QUICK)


def test_score_mixture_gives_the_rows_of_the_table(tiny, tmp_path, monkeypatch):
    """Plain numbers and words, from an entry with paths relative to the working folder."""
    monkeypatch.chdir(tiny.parent)
    entry = json.loads(tiny.read_text())[0]
    rows = score_mixture(entry, **QUICK)
    assert {type(value) for row in rows for value in row.values()} <= {int, float, str}
    table = evaluate_set([entry], out=tmp_path, **QUICK).scores
    pandas.testing.assert_frame_equal(
        pandas.DataFrame(rows)[[*table]], table, check_dtype=False, rtol=1e-8
    )
    entry["systems"]["one"][0] = "nowhere.wav"
    rows = score_mixture(entry, **QUICK)
    assert [row["status"] for row in rows] == ["failed"] * 2 + ["ok"] * 2
    assert "nowhere.wav" in rows[0]["reason"]


def test_mapped_function_and_items_can_be_pickled(tiny):
    (mixture, *_) = load_manifest(tiny)
    job = partial(score_mixture, **QUICK)
    rows = pickle.loads(pickle.dumps(job))(mixture)
    assert pickle.loads(pickle.dumps(rows)) == rows or len(rows) == 4  # NaN is unlike itself


def test_a_report_is_sent_as_arrays_each_waveform_once(tmp_path):
    """Torch would hand tensors over as shared memory, with a file open for each."""
    from multiprocessing.reduction import ForkingPickler

    from waveforms import leaky, tones

    truth = tones(2, 1.0)
    report = evaluate(estimates=leaky(truth), references=truth, mapss=small_mapss())
    opened = len(os.listdir("/proc/self/fd"))
    sent = bytes(ForkingPickler.dumps(report))
    received = pickle.loads(sent)
    assert len(os.listdir("/proc/self/fd")) == opened
    waveforms = 4 * truth.shape[-1] * 4
    assert len(sent) < waveforms + 60_000
    pandas.testing.assert_frame_equal(received.scores, report.scores)
    assert received.estimates[0].parts.equal(report.estimates[0].parts)
    assert received.ps.nan_to_num().equal(report.ps.nan_to_num())
    assert received.save(tmp_path / "out")


def test_shares_of_gpus_go_round_robin(monkeypatch):
    placed: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", placed.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    for number in range(4):
        engines.start_worker(number, 1)
    assert placed == [0, 1, 0, 1]
    assert local_device("cpu") == "cpu"


def test_an_address_without_a_scheduler_is_named(tiny, tmp_path, capsys, monkeypatch):
    distributed = pytest.importorskip("distributed")

    def unreachable(address: str, timeout: str) -> None:
        raise OSError("Timed out trying to connect")

    monkeypatch.setattr(distributed, "Client", unreachable)
    command = ["evaluate", str(tiny), "--out", str(tmp_path), "--dask", "tcp://127.0.0.1:1"]
    assert cli.main(command) == 2
    assert "--dask 'tcp://127.0.0.1:1': no scheduler answers there" in capsys.readouterr().err
    assert cli.main([*command, "--workers", "2"]) == 2
    assert "pass either --workers or --dask" in capsys.readouterr().err


def test_a_scorer_keeps_the_gpu_of_the_thread_that_made_it(monkeypatch):
    """Mixtures are read in another thread, whose current GPU is the first."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for name, expected in {"cuda": "cuda:3", "cuda:1": "cuda:1", "cpu": "cpu"}.items():
        assert with_index(torch.device(name)) == torch.device(expected)


class Recorder:
    """A function that notes in which order it is told of items, and called for them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def read_ahead(self, item: int) -> None:
        self.events.append(("told", item))

    def __call__(self, item: int) -> int:
        self.events.append(("called", item))
        return 10 * item


def test_next_item_is_announced_before_scoring():
    function = Recorder()
    with ThreadPoolExecutor(1) as worker:
        results = [*engines.reading_ahead([worker])(function, range(3))]
    assert results == [0, 10, 20]
    told_early = [("told", 0), ("told", 1), ("called", 0), ("told", 2), ("called", 1)]
    assert function.events == [*told_early, ("called", 2)]


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_item_is_scored_once_by_the_announced_worker(count):
    class Told(Recorder):
        def read_ahead(self, item: int) -> None:
            self.events.append((threading.current_thread().name, item))

        def __call__(self, item: int) -> int:
            self.events.append((threading.current_thread().name, item))
            return item

    function = Told()
    with ThreadPoolExecutor(1) as first_worker, ThreadPoolExecutor(1) as second_worker:
        workers = [first_worker, second_worker]
        results = [*engines.reading_ahead(workers)(function, range(count))]
        plain = [*engines.reading_ahead(workers)(str, range(count))]
    assert sorted(results) == [*range(count)]
    assert sorted(plain) == sorted(map(str, range(count)))
    assert sorted(function.events) == sorted(2 * [*set(function.events)])


def test_mixtures_that_are_read_ahead_score_the_same(tiny, expected, tmp_path):
    with ThreadPoolExecutor(1) as worker:
        evaluate_set(tiny, out=tmp_path, map=engines.reading_ahead([worker]), **QUICK)
    assert contents(tmp_path) == expected


# ------------------------------------------------------------------ Processes, slow for their start


class KilledJob:
    """A job whose process is killed with -9 at one of its mixtures."""

    def __init__(self, job: Any, name: str) -> None:
        self.job, self.name = job, name

    def __call__(self, mixture: Any) -> Any:
        if mixture.name == self.name:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.job(mixture)


def submitit_map(folder: Path) -> Any:
    submitit = pytest.importorskip("submitit")
    executor = submitit.LocalExecutor(folder=folder)
    executor.update_parameters(timeout_min=10)

    def apply(function: Any, items: Any) -> Iterator[Any]:
        jobs = executor.map_array(function, [*items])
        for job in submitit.helpers.as_completed(jobs, poll_frequency=1):
            yield job.result()

    return apply


@pytest.mark.slow
def test_two_hundred_mixtures_through_four_engines(tmp_path):
    """The same to the byte; a worker killed with -9 in the middle; no lock left."""
    manifest = write_manifest(tmp_path / "set", 200, ("one",), 0.2)
    evaluate_set(manifest, out=tmp_path / "here", **QUICK)
    expected = contents(tmp_path / "here")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawn) as pool:

        def killed_map(function: Any, items: Any) -> Any:
            return pool.map(KilledJob(function, "m50"), items)

        with pytest.raises(RuntimeError, match=r"the engine stopped after \d+ of 200 pairs"):
            evaluate_set(manifest, out=tmp_path / "processes", map=killed_map, **QUICK)
    with ProcessPoolExecutor(2, spawn) as pool:
        evaluate_set(manifest, out=tmp_path / "processes", map=pool.map, **QUICK)
    with spawn.Pool(2) as pool:
        evaluate_set(manifest, out=tmp_path / "pool", map=pool.imap_unordered, **QUICK)
    distributed = pytest.importorskip("distributed")
    cluster = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**cluster) as local, distributed.Client(local) as client:
        dask_map = client.get_executor().map
        evaluate_set(manifest, out=tmp_path / "dask", map=dask_map, **QUICK)
    with engines.process_map(2, threads=1) as process_map:
        evaluate_set(manifest, out=tmp_path / "workers", map=process_map, **QUICK)
    for name in ("processes", "pool", "dask", "workers"):
        assert contents(tmp_path / name) == expected, name
    assert not [*tmp_path.rglob("*lock*")]


@pytest.mark.slow
def test_workers_of_the_command_line_and_a_dask_cluster(tiny, tmp_path):
    distributed = pytest.importorskip("distributed")
    command = ["evaluate", str(tiny), "--measures", "bleed", "--threads", "1", "--quiet", "--out"]
    assert cli.main([*command, str(tmp_path / "here")]) == 0
    assert cli.main([*command, str(tmp_path / "workers"), "--workers", "2"]) == 0
    cluster = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**cluster) as local:
        address = ["--dask", local.scheduler_address]
        assert cli.main([*command, str(tmp_path / "dask"), *address]) == 0
    expected_files = contents(tmp_path / "here")
    assert contents(tmp_path / "workers") == contents(tmp_path / "dask") == expected_files


@pytest.mark.slow
def test_ray_and_submitit(tiny, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    pytest.importorskip("ray")
    from ray.util.multiprocessing import Pool

    with Pool(1) as pool:
        evaluate_set(tiny, out=tmp_path / "ray", map=pool.imap_unordered, **QUICK)
    assert contents(tmp_path / "ray") == expected
    engine = submitit_map(tmp_path / "logs")
    evaluate_set(tiny, out=tmp_path / "submitit", map=engine, **QUICK)
    assert contents(tmp_path / "submitit") == expected
    assert load_results(tmp_path / "ray").pending == ()


# ------------------------------------------------------------------ What the system has not, or few


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES])
def test_a_file_system_without_locks(number, tiny, expected, tmp_path, monkeypatch):
    """As network folders may be: nothing is locked, so nothing is refused and nothing waits."""
    fcntl = pytest.importorskip("fcntl")

    def refused(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(fcntl, "lockf", refused)
    command = ["evaluate", str(tiny), "--out", str(tmp_path), "--measures", "bleed", "--quiet"]
    assert cli.main(command) == 0
    assert contents(tmp_path).keys() == expected.keys()
    assert not [*tmp_path.rglob("*lock*")]


MANY_REPORTS = """
import multiprocessing, os, resource
from concurrent.futures import ProcessPoolExecutor
import torch
from torch_mapss import MAPSS, evaluate

def report(number):
    torch.set_num_threads(1)
    references = torch.randn(2, 1600, generator=torch.Generator().manual_seed(number))
    global mapss
    mapss = globals().get("mapss") or MAPSS("mel", measures="bleed")
    return evaluate(estimates=references + 0.3 * references.flip(0), references=references,
                    mapss=mapss)

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        before = len(os.listdir("/proc/self/fd"))
        reports = [*pool.map(report, range(1000))]
        after = len(os.listdir("/proc/self/fd"))
    print(len(reports), after - before, len({float(r.scores["si_sdr"][0]) for r in reports}))
"""


@pytest.mark.slow
def test_a_thousand_reports_of_a_pool_under_a_limit_of_open_files(tmp_path):
    """Tensors sent as shared memory would keep files open: eight for each report."""
    program = tmp_path / "reports.py"
    program.write_text(MANY_REPORTS, encoding="utf-8")
    count, opened, unlike = map(int, python("-W", "ignore", str(program)).split())
    assert (count, unlike) == (1000, 1000)
    assert opened < 20


FORKED = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import torch
from torch_mapss import evaluate_set

torch.set_num_threads(2)
torch.randn(2000, 2000) @ torch.randn(2000, 2000)  # starts the threads that a fork does not have
with ProcessPoolExecutor(2, get_context("fork")) as pool:
    evaluate_set(sys.argv[1], out=sys.argv[2], map=pool.map, measures="bleed", encoder="mel")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_workers_do_not_wait_for_threads_of_their_parent(tiny, expected, tmp_path):
    python("-c", FORKED, str(tiny), str(tmp_path / "out"), timeout=300)
    actual = contents(tmp_path / "out")
    # Settings also tell the versions of the packages that were loaded by then.
    assert {**actual, "settings.json": b""} == {**expected, "settings.json": b""}
