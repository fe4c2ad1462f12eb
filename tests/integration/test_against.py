"""The comparison with an older commit: rounds in turn, the first not counted, the worst round told."""

import pytest

against = pytest.importorskip("benchmarks.against")


def test_both_sides_are_asked_in_turn_and_the_first_round_is_not_counted():
    asked = []

    def side(name, rates):
        def rate(question):
            asked.append(name)
            return {"rate": rates[asked.count(name) - 1], "unit": "rows/s", "question": question}

        return rate

    compared = against.in_turn("warm", side("now", [9, 10, 6, 20]), side("before", [1, 10, 10, 10]), num_rounds=3)
    assert asked == ["before", "now"] * 4
    assert compared.ratios == (1.0, 0.6, 2.0)
    assert not compared.is_kept  # one round of 0.6


def test_a_side_answers_from_its_own_sources(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    for package in ("src/stoker", "src/stoker/demo"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "src/stoker/demo/data.py").write_text("def make_data(folder, num_rows): return num_rows\n")
    (tmp_path / "benchmarks/__init__.py").touch()
    (tmp_path / "benchmarks/__main__.py").write_text(
        "from types import SimpleNamespace\n"
        "def ask(data, folder, num_rounds):\n"
        "    print('not an answer')\n"
        "    return SimpleNamespace(ours=data * num_rounds, unit='rows/s', question='how many?')\n"
        "QUESTIONS = {'rows': ask}\n"
    )
    with against.Side(against.Path(against.sys.executable), tmp_path, tmp_path / "data", num_rows=7) as side:
        assert side.rate("rows") == {"rate": 7, "unit": "rows/s", "question": "how many?"}
        with pytest.raises(RuntimeError, match="ended while it was asked nothing"):
            side.rate("nothing")
