"""An hour of examinations that can be cut short, and waits for a machine that keeps still."""

import itertools

import pytest

from stoker.demo.data import make_data
from stoker.doctor.probe_machine import Pace

doctor = pytest.importorskip("benchmarks.doctor")


def test_findings_of_the_doctor_that_are_kept_are_not_asked_for_again(tmp_path, monkeypatch):
    asked = []

    def find(case, folder, *, patience_s):
        asked.append((case.name, patience_s))
        return doctor.Finding(case.name, is_named=True, errors=[0.01, 0.03], remark=f"{case.name}: named")

    monkeypatch.setattr(doctor, "_find", find)
    data = make_data(tmp_path / "data", num_rows=4_096)
    kept = tmp_path / "kept.jsonl"
    one, two = (case.name for case in doctor.CASES[:2])
    for names in ([one], [one, two]):
        answer = doctor.run(data, tmp_path, num_rounds=1, names=names, kept=kept, patience_s=7.0)
    assert asked == [(one, 7.0), (two, 7.0)]
    assert (answer.ours, answer.ceiling, answer.ratios) == (0.02, 0.03, (1.0,))
    assert answer.remarks[1:] == (f"{one}: named", f"{two}: named")


def test_patience_with_a_busy_machine_has_an_end():
    now_s = 0.0

    def pace_of(speeds):
        def look():
            nonlocal now_s
            now_s += 0.15
            return Pace(cores=2.0, speed=next(speeds))

        return look

    doctor.wait_for_calm(60.0, look=pace_of(itertools.cycle([2000.0, 4000.0])), clock=lambda: now_s)
    assert 60.0 <= now_s < 65.0
    now_s = 0.0
    doctor.wait_for_calm(60.0, look=pace_of(itertools.cycle([3000.0, 3010.0])), clock=lambda: now_s)
    assert now_s < 5.0
