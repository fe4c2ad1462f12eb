"""Every command, as a user runs it: output, JSON and exit codes."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.processes import python
from tests.strategies import check_samples, write_files

import stoker

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_files(tmp_path / "data", [300, 200, 128], row_group_size=64)
    return "data"


def shell(*arguments, **options):
    """Start a command as a process of its own."""
    return python("-m", "stoker.cli", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def fields_of(command):
    """Return the names that docs/reference/cli.md gives for a command's JSON."""
    section = re.search(rf"^### JSON of `{command}`\n(.*?)(?=^#|\Z)", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^\| `(\w+)`", section[1], re.MULTILINE))


# ---------------------------------------------------------------------- help and errors


def test_help_names_every_command_and_exit_code(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(word in out for word in ("demo", "inspect", "warm", "cache", "explain", "order", "130"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bogus"],
        ["cache"],
        ["order"],
        ["inspect"],
        ["warm", "data"],
        ["warm", "data", "--cache", "c", "--threads", "0"],
        ["warm", "data", "--cache", "c", "--cache-limit", "much"],
        ["inspect", "data", "--chunk-size", "much"],
        ["inspect", "nowhere.py:dataset"],
        ["explain", "data", "--batch-size", "4"],
        ["explain", "data", "--batch-size", "4", "--step", "9999"],
        ["explain", "data", "--batch-size", "4", "--step", "0", "--rank", "2"],
        ["explain", "data", "--batch-size", "4", "--find", "part-00000.parquet", "0", "x"],
        ["explain", "data", "--batch-size", "4", "--step", "0", "--window", "some"],
        ["cache", "rm", "c"],
        ["cache", "rm", "c", "name", "--all"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_with_words_on_stderr(run, data, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "nowhere"], "nothing is stored at"),
        (["inspect", "broken.parquet"], "no Parquet file"),
        (["inspect", "data", "--columns", "nope"], "no file has the column 'nope'"),
        (["warm", "data", "--cache", "broken.parquet"], "cannot be used as a cache"),
        (["warm", "data", "--cache", "data"], "no Stoker cache"),
        (["warm", "data", "--cache", "c", "--cache-limit", "1kB"], "can never fit"),
        (["cache", "ls", "nowhere"], "is not there"),
        (["cache", "ls", "data"], "without a cache"),
        (["cache", "verify", "broken.parquet"], "is a file"),
        (["order", "quality", "data", "--column", "history", "--batch-size", "9"], "no classes"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_failure_is_exit_code_1_and_one_line_that_says_why(run, data, arguments, words):
    Path("broken.parquet").write_text("these are no columns")
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    first, *rest = [line for line in err.splitlines() if not line.endswith("the others are built now")]
    assert first.startswith("error ")
    assert words in first
    assert all(line.startswith("  ") for line in rest)
    assert not Path("nowhere").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("explain data --step 0 --batch-size 600", 0),
        ("inspect data", 0),
        ("ready data --cache empty --batch-size 4 --steps 1", 1),
        ("ready data --cache empty --batch-size 4 --steps 1 --json", 1),
    ],
)
def test_a_reader_that_has_gone_is_no_error_and_changes_no_code(data, command, code):
    process = shell(*command.split(), stdin=subprocess.DEVNULL)
    process.stdout.close()
    assert process.wait() == code
    assert process.stderr.read() == ""
    process.stderr.close()


def test_work_that_ends_since_nobody_reads_its_messages_is_a_failure(data, tmp_path):
    process = shell("warm", data, "--cache", tmp_path / "cache", stdin=subprocess.DEVNULL)
    process.stderr.close()
    assert process.wait() == 1
    assert process.stdout.read() == ""
    process.stdout.close()


def test_a_terminal_without_unicode_gets_question_marks(data):
    with shell("inspect", data, env={"PYTHONIOENCODING": "ascii"}) as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "word" in out


# ---------------------------------------------------------------------- inspect


def test_inspect_says_what_each_column_becomes(run, data):
    code, out, _ = run("inspect", data)
    assert code == 0
    assert re.search(r"^id +int64 +int64 +8 +0$", out, re.MULTILINE)
    assert re.search(r"^vector +fixed_size_list<.*>\[3\] +float32\[3\] +12 +0$", out, re.MULTILINE)
    assert re.search(r"^history +list<.*> +int64\[\*\] +≈ \d+ +\?$", out, re.MULTILINE)
    assert re.search(r"^rows +628 rows", out, re.MULTILINE)


def test_inspect_shows_numbered_columns_of_one_kind_as_one_line(run, tmp_path):
    pq.write_table(pa.table({f"dense_{i}": [1.0] for i in range(40)} | {"id": [1]}), tmp_path / "a.parquet")
    _, out, _ = run("inspect", tmp_path)
    assert re.search(r"^dense_0 … dense_39 \(40\) +double +float64 +40 x 8 +0$", out, re.MULTILINE)


def test_inspect_refuses_with_exit_code_1_what_a_loader_would_refuse(run, run_json, data, tmp_path):
    pq.write_table(pa.table({"a": [1], "b": pa.array([None], pa.null())}), tmp_path / "odd.parquet")
    code, out, _ = run("inspect", tmp_path / "odd.parquet")
    assert code == 1
    assert "A loader would refuse this" in out
    code, found = run_json("inspect", tmp_path / "odd.parquet")
    assert code == 1
    assert "'b'" in found["problems"][0]
    with pytest.raises(stoker.FieldError):
        stoker.Loader(stoker.Dataset(tmp_path / "odd.parquet"), batch_size=1)


@pytest.mark.parametrize("width", ["40", "60", "200"])
def test_inspect_fits_the_terminal(run, data, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    _, out, _ = run("inspect", data)
    assert max(map(len, out.splitlines())) <= int(width)


def test_json_of_inspect_is_what_the_docs_say(run_json, data):
    code, found = run_json("inspect", data)
    assert code == 0
    assert set(found) == fields_of("inspect")
    assert found["columns"][0] == {
        "column": "id",
        "arrow_type": "int64",
        "field": "id",
        "becomes": "int64",
        "sample_bytes": 8,
        "is_exact": True,
        "num_nulls": 0,
        "problem": None,
    }
    assert found["rows_a_row_group"] == {"min": 8, "median": 64, "max": 64}


# ---------------------------------------------------------------------- warm


def test_warm_builds_exactly_the_chunks_that_a_loader_uses(run, data):
    code, out, err = run("warm", data, "--cache", "cache", "--chunk-size", "4kB", "--threads", "2")
    assert code == 0
    assert "cache is warm" in out
    assert "the others are built now" in err
    dataset = stoker.Dataset(data, chunk_size="4kB")
    with stoker.Loader(dataset, batch_size=50, cache="cache") as loader:
        for batch in loader:
            check_samples(batch)
        stats = loader.stats()
    assert stats.num_built == 0
    assert stats.num_reused == len(list(Path("cache").rglob("*.safetensors")))


@pytest.mark.parametrize("num_threads", [1, 4])
def test_warm_goes_on_where_it_was(run_json, data, num_threads):
    write_files(Path(data, "huge"), [2_000], row_group_size=2_000)  # one row group, which is read in one go
    arguments = ["warm", data, "--cache", "cache", "--chunk-size", "4kB", "--threads", num_threads]
    _, first = run_json(*arguments)
    chunks = sorted(Path("cache").rglob("*.safetensors"))
    for path in chunks[::2]:
        path.unlink()
    code, second = run_json(*arguments)
    assert code == 0
    assert first["num_built"] == first["num_chunks"] == first["num_present"] == len(chunks)
    assert (second["num_built"], second["num_present"]) == (len(chunks[::2]), len(chunks))
    assert second["size_bytes"] == first["size_bytes"] == sum(path.stat().st_size for path in chunks)
    assert second["fingerprint"] == first["fingerprint"]


def test_warm_says_when_there_was_nothing_to_do(run, data):
    run("warm", data, "--cache", "cache")
    code, out, err = run("warm", data, "--cache", "cache")
    assert (code, err) == (0, "")
    assert "was warm already" in out


def test_a_cache_too_small_for_the_data_is_filled_as_far_as_it_goes(run, run_json, data):
    pq.write_table(pa.table({"x": range(400_000)}), "big.parquet", row_group_size=20_000)
    arguments = ["warm", "big.parquet", "--cache", "cache", "--chunk-size", "160kB", "--cache-limit", "2MB"]
    code, out, _ = run(*arguments)
    assert code == 0
    assert "is full: it holds" in out
    _, found = run_json(*arguments)
    assert (found["is_full"], found["is_complete"]) == (True, False)
    assert 0 < found["num_present"] < found["num_chunks"]
    assert found["size_bytes"] <= 2_000_000


def test_json_of_warm_is_what_the_docs_say(run_json, data):
    _, found = run_json("warm", data, "--cache", "cache")
    assert set(found) == fields_of("warm")


WAITING = """
import os
import stoker

def hold(table):
    # The first chunk is free; then say once that building has begun, and wait until told to go on.
    if table["id"][0].as_py() > 0 and not os.path.exists("held"):
        open("held", "w").close()
        with open("begun", "w") as begun:
            begun.write("x")
        with open("go") as go:
            go.read()
    return {"id": table["id"].to_numpy()}

dataset = stoker.Dataset("data", transform=hold, transform_version="1")
"""


def test_ctrl_c_finishes_what_is_begun_says_how_far_it_got_and_goes_on_later(run, tmp_path, data):
    write_files(tmp_path / "data", [64] * 8, row_group_size=64)
    Path("slow_script.py").write_text(WAITING)
    os.mkfifo("begun")
    os.mkfifo("go")
    process = shell("warm", "slow_script.py:dataset", "--cache", "cache", "--threads", "1")
    Path("begun").read_text()  # blocks until the second chunk is in the making
    process.send_signal(2)
    stopping = ""
    while "stopping" not in stopping:
        stopping = process.stderr.readline()
    Path("go").write_text("go")
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "")
    # One thread decodes; a second one may have begun with the third chunk, to decode it while this one is published.
    num_done = int(re.search(r"Stopped with (\d) of 8 chunks in the cache", out)[1])
    assert num_done in (2, 3)
    assert "goes on from there" in out
    # The same command, now without waiting, goes on where it was.
    with shell("warm", "slow_script.py:dataset", "--cache", "cache", "--json") as again:
        found = json.loads(again.communicate()[0])
    assert (found["num_built"], found["num_present"], found["is_complete"]) == (8 - num_done, 8, True)


def test_warm_runs_the_transform_in_processes_when_asked(run_json, data):
    Path("double_script.py").write_text(
        "import stoker\n\n\ndef double(table):\n    return {'x': table['id'].to_numpy() * 2}\n\n\n"
        "dataset = stoker.Dataset('data', transform=double, transform_version='1')\n"
    )
    with shell("warm", "double_script.py:dataset", "--cache", "cache", "--processes", "--json") as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["is_complete"]


# ---------------------------------------------------------------------- cache


@pytest.fixture
def cache(data, run):
    run("warm", data, "--cache", "cache", "--chunk-size", "4kB")
    run("warm", data, "--cache", "cache", "--columns", "id,half")
    return Path("cache")


def test_cache_ls_shows_data_sets_their_chunks_and_who_uses_them(run, run_json, cache):
    code, out, _ = run("cache", "ls", cache)
    assert code == 0
    assert "2 data sets" in out
    with stoker.Loader(stoker.Dataset("data", columns=["id", "half"]), batch_size=9, cache=cache):
        code, found = run_json("cache", "ls", cache)
    assert code == 0
    assert set(found) == fields_of("cache ls")
    assert [entry["is_in_use"] for entry in found["datasets"]] == [True, False]
    assert all(entry["num_present"] == entry["num_chunks"] for entry in found["datasets"])
    assert found["size_bytes"] == sum(entry["size_bytes"] for entry in found["datasets"])


def test_cache_ls_names_the_transform_and_its_version(run_json, data):
    dataset = stoker.Dataset(data, transform=only_id, transform_version="7")
    with stoker.Loader(dataset, batch_size=9, cache="cache"):
        pass
    entry = run_json("cache", "ls", "cache")[1]["datasets"][0]
    assert entry["transform"].endswith("only_id")
    assert entry["transform_version"] == "7"


def only_id(table):
    return {"id": table["id"].to_numpy()}


def test_cache_verify_finds_damage_with_exit_code_3_and_removes_it_when_told(run, run_json, cache):
    assert run("cache", "verify", cache)[0] == 0
    path = sorted(cache.rglob("*.safetensors"))[0]
    content = bytearray(path.read_bytes())
    content[int.from_bytes(content[:8], "little") + 8] ^= 1  # the first byte behind the header
    path.write_bytes(content)
    code, out, _ = run("cache", "verify", cache)
    assert code == 3
    assert "1 damaged chunk" in out
    code, found = run_json("cache", "verify", cache, "--fix")
    assert code == 3
    assert set(found) == fields_of("cache verify")
    assert [Path(damage["path"]).name for damage in found["damaged"]] == [path.name]
    assert not path.exists()
    assert run("cache", "verify", cache)[0] == 0


def test_cache_rm_removes_what_is_named_and_leaves_the_rest(run_json, cache):
    names = [entry["fingerprint"] for entry in run_json("cache", "ls", cache)[1]["datasets"]]
    code, found = run_json("cache", "rm", cache, names[0][:6], "--yes")
    assert code == 0
    assert set(found) == fields_of("cache rm")
    assert found["removed"] == [names[0]]
    left = run_json("cache", "ls", cache)[1]["datasets"]
    assert [entry["fingerprint"] for entry in left] == names[1:]
    assert run_json("cache", "rm", cache, "--all", "--yes")[1]["removed"] == names[1:]
    assert not list(cache.rglob("*.safetensors"))


def test_cache_rm_that_is_interrupted_says_what_is_gone(cache):
    chunks = cache / "chunks"
    for i in range(5000):
        (chunks / f"{i:064}.safetensors").write_bytes(bytes(10))
    num = len(list(chunks.iterdir()))
    with shell("cache", "rm", cache, "--all", "--yes") as process:
        while len(list(chunks.iterdir())) == num:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, err) == (130, "interrupted\n")
    told = re.match(r"([\d,]+) chunks removed, .* freed before it ended", out)
    gone = num - len(list(chunks.iterdir()))
    assert 0 <= gone - int(told[1].replace(",", "")) <= 1  # it may end between removing one and counting it
    assert gone < num


FAILS_AT_A_DATA_SET = """
import errno, sys
from stoker.cli import main

left, arguments = int(sys.argv[1]), sys.argv[2:]

def fail(event, what, names={names!r}):
    global left
    if event == "os.remove" and what[0] in names:
        left -= 1
        if left < 0:
            raise PermissionError(errno.EACCES, "Permission denied", what[0])

sys.addaudithook(fail)
sys.exit(main(arguments))
"""


def test_cache_rm_that_fails_at_the_data_sets_themselves_says_what_is_gone(run_json, cache):
    before = run_json("cache", "ls", cache)[1]
    names = [entry["fingerprint"] for entry in before["datasets"]]

    def fail(how_many, *arguments):
        script = FAILS_AT_A_DATA_SET.format(names=names)
        words = ["-c", script, how_many, "cache", "rm", cache, "--all", "--yes", *arguments]
        with python(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out, err = process.communicate()
        assert (process.returncode, "Permission denied" in err) == (1, True), err
        return out

    out = fail("0")
    assert out.startswith(f"{sum(entry['num_present'] for entry in before['datasets'])} chunks removed, ")
    assert "freed before it ended: 0 of 2 data sets removed, 2 left without chunks\n" in out
    found = json.loads(fail("1", "--json"))
    left = [entry["fingerprint"] for entry in run_json("cache", "ls", cache)[1]["datasets"]]
    assert len(left) == 1
    assert sorted(found["removed"] + left) == sorted(names)
    assert found["freed_bytes"] == 0


def test_cache_rm_refuses_what_is_in_use(run, cache):
    with stoker.Loader(stoker.Dataset("data", columns=["id", "half"]), batch_size=9, cache=cache):
        code, _, err = run("cache", "rm", cache, "data", "--yes")
    assert code == 1
    assert "is in use" in err


def test_cache_rm_removes_nothing_unasked_where_nobody_can_be_asked(cache):
    with shell("cache", "rm", cache, "--all", stdin=subprocess.DEVNULL) as process:
        _, err = process.communicate()
    assert process.returncode == 2
    assert "--yes" in err
    assert list(cache.rglob("*.safetensors"))


def test_cache_rm_on_a_terminal_asks_first(cache):
    def answer(text):
        leader, follower = os.openpty()
        os.write(leader, text.encode())
        with shell("cache", "rm", cache, "--all", stdin=follower) as process:
            out, err = process.communicate()
        os.close(leader)
        os.close(follower)
        return process.returncode, out, err

    code, out, err = answer("n\n")
    assert (code, out) == (1, "nothing was removed\n")
    assert "Remove these 2 data sets with their chunks? [y/N]" in err
    assert answer("y\n")[0] == 0
    assert not list(cache.rglob("*.safetensors"))


# ---------------------------------------------------------------------- explain and quality


ORDER = ["--batch-size", "50", "--shuffle", "--seed", "3", "--window", "2", "--chunk-size", "4kB"]


def test_explain_names_the_rows_that_a_loader_delivers(run, run_json, data):
    arguments = ["explain", data, "--step", "2", "--epoch", "1", "--rank", "1", "--world-size", "2", *ORDER]
    code, found = run_json(*arguments)
    assert code == 0
    assert set(found) == fields_of("explain")
    dataset = stoker.Dataset(data, chunk_size="4kB")
    settings = {"batch_size": 50, "shuffle": True, "seed": 3, "window": 2, "rank": 1, "world_size": 2}
    with stoker.Loader(dataset, **settings) as loader:
        loader.set_epoch(1)
        ids = list(loader)[2]["id"].tolist()
    named = [
        pq.ParquetFile(row["file"]).read_row_group(row["row_group"])["id"][row["row"]].as_py()
        for row in found["samples"]
    ]
    assert named == ids
    _, out, _ = run(*arguments)
    lines = [line.split("\t") for line in out.splitlines()[1:]]
    assert [[row["file"], str(row["row_group"]), str(row["row"])] for row in found["samples"]] == [
        line[1:] for line in lines
    ]


def test_explain_finds_the_step_of_a_row(run, run_json, data):
    sample = run_json("explain", data, "--step", "4", *ORDER)[1]["samples"][7]
    place = ["--find", sample["file"], sample["row_group"], sample["row"]]
    code, found = run_json("explain", data, *place, *ORDER)
    assert code == 0
    assert (found["step"], found["chunk"]) == (4, sample["chunk"])
    assert "is used in epoch 0, step 4 of 13" in run("explain", data, *place, *ORDER)[1]


def test_explain_says_which_passing_row_a_filtered_sample_is(run, data):
    Path("filter_script.py").write_text("import stoker\nd = stoker.Dataset('data', filters=[('flag', '=', True)])\n")
    code, out, _ = run("explain", "filter_script.py:d", "--step", "0", "--batch-size", "3")
    assert code == 0
    assert out.splitlines()[2].split("\t")[2:] == ["0-4", "passing row 1"]


def test_explain_with_a_transform_and_no_window_asks_for_one(run, data):
    Path("transform_script.py").write_text(
        "import stoker\n\n\ndef f(table):\n    return {'id': table['id'].to_numpy()}\n\n\n"
        "d = stoker.Dataset('data', transform=f, transform_version='1')\n"
    )
    arguments = ["explain", "transform_script.py:d", "--step", "0", "--batch-size", "3", "--shuffle"]
    code, _, err = run(*arguments)
    assert code == 2
    assert "give a window, or the cache" in err
    run("warm", "transform_script.py:d", "--cache", "cache")
    assert run(*arguments, "--cache", "cache")[0] == 0


def test_order_quality_is_a_number_and_a_sentence(run, run_json, tmp_path):
    pq.write_table(pa.table({"day": [i // 500 for i in range(20_000)]}), tmp_path / "a.parquet", row_group_size=500)
    arguments = ["order", "quality", tmp_path, "--column", "day", "--batch-size", "100", "--chunk-size", "4kB"]
    code, out, _ = run(*arguments, "--window", "2")
    assert code == 0
    assert out.startswith("Badly mixed")
    assert "measured by day, 40 values" in " ".join(out.split())
    code, found = run_json(*arguments, "--window", "all")
    assert code == 0
    assert set(found) == fields_of("order quality")
    assert found["chi_square"] == pytest.approx(1, abs=0.2)
