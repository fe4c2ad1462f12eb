"""Where the time went, on traces with known answers."""

from __future__ import annotations

import pytest
from tests.unit.doctor.traces.made import AUTOGRAD, Made, traced


def test_copies_and_fills_keep_the_device_busy(tmp_path):
    made = Made().host("aten::mm", 0, 100).copy(10, 20, "DtoD (Device -> Device)").kernel(15, 30)
    made.kernel(40, 45, "Memset (Device)", cat="gpu_memset")
    times = made.times(tmp_path)
    assert (times["busy"], times["compute"], times["exposed_copy"]) == (25, 15, 10)


def test_communication_is_hidden_by_computation_only(tmp_path):
    made = Made().host("aten::mm", 0, 100).kernel(0, 30).nccl(20, 60).copy(50, 70, stream=9)
    assert made.times(tmp_path) == {
        "wall": 100,
        "busy": 70,
        "idle": 30,
        "compute": 30,
        "communication": 40,
        "overlap": 10,
        "exposed_comm": 30,
        "exposed_copy": 10,
        "launching": 30,
    }


@pytest.mark.parametrize("link", [{"correlation": 5}, {}])
def test_the_autograd_thread_speaks_where_the_main_thread_is_silent(tmp_path, link):
    made = Made().step(0, 0, 100).host("aten::mm", 0, 10).kernel(95, 100, **link)
    made.host("MmBackward0", 20, 60, tid=AUTOGRAD).call("cudaLaunchKernel", 50, 55, tid=AUTOGRAD, **link)
    times = made.times(tmp_path)
    # From the launch to the kernel's begin, the launch is on its way.
    assert (times["launching"], times["unattributed"]) == (10 + 40 + 35, 10)


def test_a_loaders_thread_that_waits_is_no_reason(tmp_path):
    made = Made().step(0, 0, 100).launched("cudaLaunchKernel", 88, 90, 100)
    made.host("enumerate(DataLoader)#x", 10, 80, tid=7, cat="user_annotation")
    made.launched("cudaMemcpyAsync", 80, 85, 90, tid=7, cat="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)")
    assert made.times(tmp_path)["unattributed"] == 80


def test_a_fetch_that_drains_the_queue_is_synchronising_not_a_pageable_copy(tmp_path):
    made = Made().step(0, 0, 100).launched("cudaLaunchKernel", 0, 2, 40)
    made.call("cudaMemcpyAsync", 10, 60, correlation=77).copy(40, 42, "DtoH (Device -> Pageable)", correlation=77)
    made.launched("cudaLaunchKernel", 70, 75, 100, length=2)
    found = made.traced(tmp_path)
    times = found["time_us"]
    assert (times["synchronising"], times["unattributed"], times["launching"]) == (18 + 5, 10, 2)
    assert (times["copying_pageable"], found["pageable_copies"]) == (0, 0)


def test_a_copy_call_that_waits_while_nothing_runs_is_not_synchronising(tmp_path):
    made = Made().step(0, 0, 100).call("cudaMemcpyAsync", 10, 50, correlation=3)
    made.copy(48, 50, "DtoH (Device -> Pageable)", correlation=3)
    times = made.times(tmp_path)
    assert "synchronising" not in times
    assert times["launching"] == 38


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaMemcpyAsync", "enumerate(DataLoader)#x", "get_batch"])
def test_the_host_is_not_to_blame_for_a_gap_whose_next_work_was_launched_before_it(tmp_path, name):
    """The second kernel waits for another stream; what the host does meanwhile is of no account."""
    made = Made().step(0, 0, 100).launched("cudaLaunchKernel", 0, 2, 40).launched("cudaLaunchKernel", 3, 90, 100)
    made.host(name, 5, 95, cat="cuda_runtime" if name.startswith("cuda") else "user_annotation")
    assert made.times(tmp_path) == {
        "wall": 100,
        "busy": 48,
        "compute": 48,
        "idle": 52,
        "launching": 2,
        "queued": 50,
    }
    found = made.traced(tmp_path)
    assert "its next work was launched already" in found["verdict"]
    assert found["step_without_data_wait_us"][1] == 100  # nothing to gain


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "get_batch"])
def test_nor_where_no_call_has_a_correlation_and_none_was_made_in_the_gap(tmp_path, name):
    made = Made().step(0, 0, 100).call("cudaLaunchKernel", 0, 1).kernel(2, 40)
    made.call("cudaLaunchKernel", 3, 4).kernel(90, 100)
    made.host(name, 5, 95, cat="cuda_runtime" if name.startswith("cuda") else "user_annotation")
    times = made.times(tmp_path)
    assert times["queued"] == 50
    assert not times.keys() & {"synchronising", "waiting_for_data"}


def test_a_launch_that_returned_a_moment_before_the_gap_is_on_its_way_and_not_queued(tmp_path):
    """A loop that is all launches is a few microseconds ahead of its device, and never more."""
    made = Made().step(0, 0, 1000)
    for at in range(0, 1000, 20):
        made.host("aten::mm", at, at + 15).launched("cudaLaunchKernel", at + 8, at + 17, at + 26, length=2)
    times = made.times(tmp_path)
    assert "queued" not in times
    assert times["launching"] == times["idle"] > 500
    assert "while the host is busy launching work" in made.traced(tmp_path)["verdict"]


def test_short_kernels_behind_a_full_queue_are_called_what_they_are(tmp_path):
    """The host is far ahead; between two kernels a device takes a microsecond or two, whatever waits for it."""
    made = Made().step(0, 0, 1000)
    for number in range(250):
        made.launched("cudaLaunchKernel", number, 40 + 4 * number - 38, 40 + 4 * number - 36)
    found = made.traced(tmp_path)
    assert found["queued_share"] > 0.4
    assert "between kernels that were launched already: they are many, and short" in found["verdict"]
    assert found["advice"] == ["run fewer, longer kernels: `torch.compile`, CUDA graphs, a larger batch"]


def test_a_step_that_waits_for_a_pinned_copy_is_not_called_busy_and_well(tmp_path):
    made = Made()
    for step in range(5):
        at, name = 1000 * step, "Memcpy HtoD (Pinned -> Device)"
        made.step(step, at, at + 1000).launched("cudaMemcpyAsync", at, at + 10, at + 610, name=name, cat="gpu_memcpy")
        made.call("cudaStreamWaitEvent", at + 2, at + 3).launched("cudaLaunchKernel", at + 4, at + 612, at + 1000)
    found = made.traced(tmp_path)
    assert found["verdict"].startswith("The GPU does nothing but copy 60 % of the time, and idles 1.2 %")
    assert found["advice"][0].startswith("copy a batch while the step before it computes")


def test_a_frame_of_tolist_that_drains_the_queue_is_synchronising(tmp_path):
    made = Made().step(0, 0, 1000).launched("cudaLaunchKernel", 5, 10, 550)
    made.host("<built-in method tolist of Tensor object at 0x1>", 50, 600, cat="python_function")
    made.launched("cudaLaunchKernel", 800, 810, 1000)
    assert made.times(tmp_path)["synchronising"] == 60


def test_a_graph_that_was_launched_behind_a_wait_for_data_is_not_queued_in_it(tmp_path):
    made = Made()
    for step in range(5):
        at = 1000 * step
        made.step(step, at, at + 1000).wait(at, at + 400).call(
            "cudaGraphLaunch", at + 400, at + 410, correlation=step + 1
        )
        for number in range(5):
            made.kernel(at + 415 + 100 * number, at + 514 + 100 * number, correlation=step + 1)
    times = made.times(tmp_path)
    assert (times["waiting_for_data"], times["queued"]) == (3 * 400, 3 * 4)


def test_an_id_that_is_used_again_is_that_of_the_last_call_before_the_work(tmp_path):
    """As in a file with several runs of the profiler: each wait is the reason for the gap that it makes."""
    made = Made()
    for step in range(12):
        at = 1000 * step
        made.step(step, at, at + 1000).wait(at, at + 400)
        made.call("cudaLaunchKernel", at + 400, at + 402, correlation=1 + step % 4)
        made.kernel(at + 405, at + 1000, correlation=1 + step % 4)
    times = made.times(tmp_path)
    assert times["waiting_for_data"] == 10 * 400
    assert "queued" not in times


def test_of_two_calls_of_one_id_inside_each_other_the_outer_one_counts(tmp_path):
    made = Made().step(0, 0, 100).kernel(0, 15).call("cudaLaunchKernelExC", 10, 60, correlation=1)
    made.call("cuLaunchKernelEx", 12, 14, cat="cuda_driver", correlation=1).kernel(70, 100, correlation=1)
    times = made.times(tmp_path)
    assert times["launching"] == 55
    assert "queued" not in times


def test_a_pageable_copy_without_a_correlation_belongs_to_the_call_it_began_in(tmp_path):
    made = Made().step(0, 0, 100).call("cudaMemcpyAsync", 10, 50).copy(45, 55)
    assert made.times(tmp_path)["copying_pageable"] == 35


def test_pageable_copies_are_counted_with_their_bytes(tmp_path):
    made = Made().step(0, 0, 100)
    for start in (10, 30):
        made.copy(start, start + 5, bytes=1000)
    made.copy(50, 55, "HtoD (Pinned -> Device)", bytes=77)
    found = made.traced(tmp_path)
    assert (found["pageable_copies"], found["pageable_bytes"]) == (2, 2000)


def test_medians_leave_the_first_and_the_last_step_out(tmp_path):
    made = Made()
    for number, (start, stop) in enumerate([(0, 900), (900, 1000), (1000, 1110), (1110, 1230), (1230, 5000)]):
        made.step(number, start, stop).kernel(start, start + 10)
    assert made.traced(tmp_path)["step_us"] == 110


@pytest.mark.parametrize(("num", "kept"), [(1, [0]), (2, [0, 1]), (3, [1])])
def test_with_two_steps_or_one_all_are_kept_and_it_says_so(tmp_path, num, kept):
    made = Made().kernel(0, 5)
    for number in range(num):
        made.step(number, 10 * number, 10 * number + 10)
    rank = made.traced(tmp_path)["ranks"][0]
    assert [step["step"] for step in rank["steps"] if step["is_counted"]] == kept
    assert any("fewer than three" in note for note in rank["notes"]) == (num < 3)


def test_without_its_wait_a_step_takes_between_two_bounds(tmp_path):
    """Of 400 that the host waits, the device works 100: it gains 300 at least, and 400 at best."""
    made = Made()
    for number in range(4):
        start = 1000 * number
        made.step(number, start, start + 1000).wait(start, start + 400)
        made.kernel(start, start + 100).kernel(start + 400, start + 1000)
    found = made.traced(tmp_path)
    assert found["step_us"] == 1000
    assert found["step_without_data_wait_us"] == [max(600, 700), 805]


def test_a_step_never_takes_less_than_computation_and_exposed_communication(tmp_path):
    """The host waits 900 of 1000, of which the device works 700: without the wait, it still has 800 to do."""
    made = Made()
    for number in range(4):
        start = 1000 * number
        made.step(number, start, start + 1000).wait(start, start + 900)
        made.kernel(start + 200, start + 700).nccl(start + 600, start + 1000)
    assert made.traced(tmp_path)["step_without_data_wait_us"] == [800, 920]


def test_several_devices_of_one_process_are_each_looked_at(tmp_path):
    made = Made().host("aten::mm", 0, 100).kernel(0, 100, device=0).kernel(0, 50, device=1)
    times = made.times(tmp_path)
    assert (times["wall"], times["busy"], times["idle"]) == (200, 150, 50)
    devices = made.traced(tmp_path)["ranks"][0]["devices"]
    assert [(device["name"], device["busy_share"]) for device in devices] == [("0", 1.0), ("1", 0.5)]


def test_one_window_for_all_figures(tmp_path):
    """The first and the last step are ten times as long, and idle: neither shares nor steps count them."""
    made = Made()
    for number, (start, stop) in enumerate([(0, 1000), (1000, 1100), (1100, 1200), (1200, 2200)]):
        made.step(number, start, stop).wait(start, stop - 50).kernel(stop - 50, stop)
    found = made.traced(tmp_path)
    assert (found["busy_share"], found["data_wait_share"], found["step_us"]) == (0.5, 0.5, 100)
    assert found["host_data_wait_share"] == 0.5
    assert found["time_us"]["wall"] == 200
    assert [step["is_counted"] for step in found["ranks"][0]["steps"]] == [False, True, True, False]


def test_what_comes_before_the_first_work_is_no_idle_time_where_no_steps_were_profiled(tmp_path):
    made = Made().host("aten::empty", -5000, -100).wait(-100, 0)
    made.kernel(0, 50).wait(50, 90).kernel(90, 100)
    assert made.times(tmp_path) == {"wall": 100, "busy": 60, "compute": 60, "idle": 40, "waiting_for_data": 40}


@pytest.mark.parametrize("num_works", [0, 3, 5])
def test_a_cut_file_is_looked_at_as_far_as_it_has_the_devices_work(tmp_path, num_works):
    """Profilers write what the host did first: of the last steps, a cut leaves that alone."""
    made = Made()
    for step in range(8):
        made.step(step, 1000 * step, 1000 * step + 1000).wait(1000 * step, 1000 * step + 400)
        made.launched("cudaLaunchKernel", 1000 * step + 400, 1000 * step + 400, 1000 * step + 1000)
    made.events.sort(key=lambda event: event["cat"] == "kernel")
    path = made.write(tmp_path / "trace.json")
    kernels = path.read_text().split('{"ph": "X", "cat": "kernel"')
    path.write_text('{"ph": "X", "cat": "kernel"'.join(kernels[: 1 + num_works]) + '{"ph"')
    found = traced(path)
    assert found["ranks"][0]["is_truncated"]
    if not num_works:
        assert str(found["verdict"]).startswith("The file is cut off before any work of a device")
        return
    assert (found["data_wait_share"], found["busy_share"], found["step_us"]) == (0.4, 0.6, 1000)
    assert sum(step["is_counted"] for step in found["ranks"][0]["steps"]) == num_works - 1


def test_steps_that_are_counted_anew_in_one_file_are_all_looked_at(tmp_path):
    made = Made()
    for step in range(8):
        made.step(step % 4, 1000 * step, 1000 * step + 1000).wait(1000 * step, 1000 * step + 400)
        made.kernel(1000 * step + 400, 1000 * step + 1000)
    made.events += made.events[:3]  # and one is there twice
    found = made.traced(tmp_path)
    assert [step["step"] for step in found["ranks"][0]["steps"]] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert found["time_us"]["wall"] == 6000


def test_ids_that_are_used_again_are_told_apart_though_the_devices_clock_is_early(tmp_path):
    """Each work seems to begin before its own call, and long after the call of the run before that had its id."""
    made = Made()
    for run in range(2):
        at = 10_000 * run
        made.step(run, at, at + 1000).wait(at, at + 395)
        made.call("cudaLaunchKernel", at + 400, at + 401, correlation=1).kernel(at + 398, at + 900, correlation=1)
    times = made.times(tmp_path)
    assert times["waiting_for_data"] == 2 * 395
    assert "queued" not in times


def test_a_collective_that_a_wait_for_data_launches_is_part_of_the_wait(tmp_path):
    """As on a rank of tensor parallelism, to which another rank hands its batches."""
    made = Made()
    for step in range(5):
        at, name = 1000 * step, "ncclDevKernel_Broadcast_RING_LL(x)"
        made.step(step, at, at + 1000).host("batch-generator", at, at + 500, cat="user_annotation")
        made.launched("cudaLaunchKernel", at + 10, at + 20, at + 480, name=name, stream=20)
        made.launched("cudaLaunchKernel", at + 500, at + 505, at + 1000)
    found = made.traced(tmp_path)
    assert (found["data_wait_share"], found["comm_share"], found["busy_share"]) == (0.5, 0, 0.495)


def test_marks_on_the_device_are_no_work(tmp_path):
    made = Made().host("aten::mm", 0, 100).kernel(0, 10)
    made.kernel(20, 90, "ProfilerStep#1", cat="gpu_user_annotation").kernel(20, 90, "Stream Sync", cat="cuda_sync")
    made.kernel(20, 90, "event_wait", cat="mtia_ccp_events")
    for category in ("Trace", "overhead", "fwdbwd", "mtia_counters"):
        made.kernel(20, 90, "gemm", cat=category).host("get_batch", 10, 100, cat=category)
    assert made.times(tmp_path) == {"wall": 100, "busy": 10, "compute": 10, "idle": 90, "launching": 90}


def test_two_threads_that_launch_at_once_are_counted_once(tmp_path):
    made = Made().step(0, 0, 100).host("aten::mm", 0, 50).kernel(0, 10, correlation=7)
    made.host("MmBackward0", 20, 80, tid=AUTOGRAD).launched("cudaLaunchKernel", 92, 95, 100, tid=AUTOGRAD)
    made.call("cudaStreamSynchronize", 30, 70, tid=AUTOGRAD)  # of a device that has nothing to do
    times = made.times(tmp_path)
    assert (times["launching"], times["unattributed"]) == (70 + 3, 12)
