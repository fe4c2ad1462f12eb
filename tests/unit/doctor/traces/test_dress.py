"""The same events in every dress that profilers and versions give them."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.unit.cli.typed import typed
from tests.unit.doctor.traces.made import Made, times_of, traced

ANSWER = {
    "wall": 1000,
    "busy": 300,
    "compute": 250,
    "exposed_copy": 50,
    "idle": 700,
    "waiting_for_data": 400,
    "copying_pageable": 20,
    "launching": 20,
    "synchronising": 100,
    "unattributed": 160,
}


def plain() -> Made:
    made = Made().step(1, 0, 1000).wait(0, 400)
    made.call("cudaMemcpyAsync", 400, 470, correlation=77).copy(420, 470, correlation=77, bytes=8)
    made.host("aten::mm", 500, 520).launched("cudaLaunchKernel", 510, 520, 770, length=5)
    made.call("cudaDeviceSynchronize", 700, 870)
    return made


def write(tmp_path, content, name="trace.json"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_plain_one(tmp_path):
    assert plain().times(tmp_path) == ANSWER


@pytest.mark.parametrize(
    "renamed",
    [
        {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "gpu_memcpy": "Memcpy"},
        {"cuda_runtime": "cuda_driver"},
        {"cuda_runtime": "xpu_runtime"},
        {"cuda_runtime": "privateuse1_runtime"},
        {"cuda_runtime": "privateuse1_driver", "user_annotation": "USER_ANNOTATION"},
        {"user_annotation": "cpu_op"},
    ],
)
def test_category_names_of_all_versions(tmp_path, renamed):
    made = plain()
    for event in made.events:
        event["cat"] = renamed.get(event["cat"], event["cat"])
    assert made.times(tmp_path) == ANSWER


@pytest.mark.parametrize(
    "renamed",
    [
        {
            "cudaLaunchKernel": "hipLaunchKernel",
            "cudaMemcpyAsync": "hipMemcpyAsync",
            "cudaDeviceSynchronize": "hipDeviceSynchronize",
        },
        {"cudaLaunchKernel": "cuLaunchKernelEx", "cudaDeviceSynchronize": "cuCtxSynchronize"},
        {"cudaLaunchKernel": "zeCommandListAppendLaunchKernel", "cudaDeviceSynchronize": "urQueueFinish"},
    ],
)
def test_calls_of_other_runtimes(tmp_path, renamed):
    made = plain()
    for event in made.events:
        event["name"] = renamed.get(event["name"], event["name"])
    assert made.times(tmp_path) == ANSWER


def test_times_as_text_and_with_fractions(tmp_path):
    made = plain()
    for event in made.events:
        event["ts"], event["dur"] = f"{event['ts'] + 1700000000000000}.250", f"{event['dur']}.000"
    assert made.times(tmp_path) == ANSWER


def test_a_thousandth_of_a_microsecond_counts(tmp_path):
    path = write(
        tmp_path, '[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":1700000000000000.125,"dur":0.3755}]'
    )
    assert traced(path)["time_us"]["busy"] == 0.376


def test_a_bare_array_with_or_without_its_end(tmp_path):
    events = json.dumps(plain().events)
    for text in (events, events[:-1], events[:-1] + ",", "\ufeff" + events, "\n" + events + "\n"):
        found = traced(write(tmp_path, text))
        assert times_of(found) == ANSWER
        assert found["ranks"][0]["num_events"] == len(plain().events)
        assert not found["ranks"][0]["is_truncated"]


def test_events_in_any_order(tmp_path):
    made = plain()
    made.events.reverse()
    assert made.times(tmp_path) == ANSWER


def test_beginnings_and_ends_instead_of_whole_events(tmp_path):
    parts = []
    for event in plain().events:
        length = event.pop("dur")
        parts.append({**event, "ph": "B"})
        parts.append({"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + length})
    # Among parts of one time the outer one begins first, so order by time only.
    parts.sort(key=lambda part: (part["ts"], part["ph"] == "B"))
    path = write(tmp_path, json.dumps({"traceEvents": parts}))
    assert times_of(traced(path)) == ANSWER


def test_an_end_closes_the_beginning_of_its_name_where_the_next_one_comes_before_it(tmp_path):
    events = [("B", "aten::mm", 10), ("E", "get_batch", 10), ("B", "get_batch", 0), ("E", "aten::mm", 30)]
    made = Made().step(0, 0, 40).kernel(30, 40)
    made.events += [
        {"ph": ph, "cat": "cpu_op", "name": name, "pid": 100, "tid": 100, "ts": ts} for ph, name, ts in events
    ]
    times = made.times(tmp_path)
    assert (times["waiting_for_data"], times["launching"]) == (10, 20)


def test_an_open_beginning_lasts_to_the_end_and_a_lone_end_is_dropped(tmp_path):
    events = [
        {"ph": "E", "cat": "kernel", "pid": 0, "tid": 1, "ts": 1},
        {"ph": "B", "cat": "kernel", "name": "k", "pid": 0, "tid": 1, "ts": 10},
        {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 5, "tid": 5, "ts": 0, "dur": 100},
    ]
    found = traced(write(tmp_path, json.dumps(events)))
    assert found["time_us"]["busy"] == 90
    assert "2 begin or end events have no partner" in found["ranks"][0]["notes"]


def test_arrows_stand_in_for_correlations(tmp_path):
    made = plain()
    for event in made.events:
        link = event.get("args", {}).pop("correlation", None)
        if link is not None:
            is_call = event["cat"] == "cuda_runtime"
            arrow = {"ph": "s" if is_call else "f", "cat": "ac2g", "name": "ac2g", "id": link}
            made.events.append({**arrow, **{key: event[key] for key in ("pid", "tid", "ts")}})
    assert made.times(tmp_path) == ANSWER


def test_gzip_by_content_not_by_name(tmp_path):
    packed = gzip.compress(json.dumps(plain().content()).encode())
    assert times_of(traced(write(tmp_path, packed, "trace.json"))) == ANSWER


def test_two_gzip_files_behind_each_other(tmp_path):
    text = json.dumps(plain().content()).encode()
    assert times_of(traced(write(tmp_path, gzip.compress(text[:300]) + gzip.compress(text[300:])))) == ANSWER


def test_gzip_that_lacks_its_end_is_cut_off_and_bytes_behind_it_are_padding(tmp_path):
    packed = gzip.compress(json.dumps(plain().content()).encode())
    for content, is_cut in ((packed[:-4], True), (packed + b"padding", False)):
        (rank,) = traced(write(tmp_path, content))["ranks"]
        assert (rank["is_truncated"], rank["num_events"]) == (is_cut, 8)


def test_commas_nan_control_characters_and_comments_of_no_json(tmp_path):
    text = json.dumps(plain().content())
    text = text.replace('"name": "aten::mm"', '"name": "aten::mm\n\x01", "extra": NaN, "more": [1,2,{"a":null,},],')
    text = text.replace("]}", ",],}")
    assert times_of(traced(write(tmp_path, text))) == ANSWER


def test_a_name_with_quotes_that_nobody_escaped_costs_one_event(tmp_path):
    text = json.dumps(plain().content())
    broken = '{"ph": "X", "cat": "python_function", "name": "{"device": "cpu"}(12): run", "ts": 1, "dur": 2}, '
    at = text.index('{"ph"')
    found = traced(write(tmp_path, text[:at] + broken + text[at:]))
    assert "1 events made no sense and were left out" in found["ranks"][0]["notes"]
    assert times_of(found) == ANSWER


def test_text_for_processes_and_threads(tmp_path):
    made = plain()
    for event in made.events:
        event["pid"], event["tid"] = f"GPU {event['pid']}", f"stream {event['tid']}"
    assert made.times(tmp_path) == ANSWER


def test_the_profiler_of_before_kineto_has_no_categories(tmp_path):
    events = [
        {"ph": "X", "name": "mm", "ts": 0, "dur": 100, "tid": 1, "pid": "CPU functions", "args": {}},
        {"ph": "X", "name": "gemm", "ts": 40, "dur": 30, "tid": 1, "pid": "CUDA functions", "args": {}},
    ]
    assert times_of(traced(write(tmp_path, json.dumps(events)))) == {
        "wall": 60,
        "busy": 30,
        "compute": 30,
        "idle": 30,
        "launching": 30,
    }


def test_arrows_are_followed_in_traces_without_categories(tmp_path):
    """The second kernel was launched long before the wait in which it begins."""
    parts = [(1, 9, "ProfilerStep#1", 0, 100), (1, 9, "get_batch", 5, 95), (2, 8, "Node@launch", 0, 2)]
    parts += [(2, 8, "Node@launch", 3, 4), (3, 7, "MatMulV2", 2, 40), (3, 7, "MatMulV2", 90, 100)]
    events = [{"ph": "X", "pid": p, "tid": t, "name": n, "ts": a, "dur": b - a} for p, t, n, a, b in parts]
    for number, (start, stop) in enumerate([(0, 2), (3, 90)], 1):
        arrow = {"cat": "HostToDevice", "name": "HostToDevice", "id": str(number)}
        events += [
            arrow | {"ph": "s", "pid": 2, "tid": 8, "ts": start},
            arrow | {"ph": "f", "pid": 3, "tid": 7, "ts": stop},
        ]
    for pid, name in enumerate(["Python", "CANN", "Ascend Hardware"], 1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
    times = times_of(traced(write(tmp_path, json.dumps(events))))
    assert times["queued"] == 50
    assert "waiting_for_data" not in times


def test_ascend_names_its_processes_and_writes_times_as_text(tmp_path):
    def event(pid, name, start, stop):
        return {
            "ph": "X",
            "name": name,
            "pid": pid,
            "tid": 2,
            "ts": f"{1700000000000000 + start}.000",
            "dur": stop - start,
        }

    def process(pid, name):
        return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}

    events = [event(1, "aten::mm", 0, 100), event(3, "MatMulV2", 10, 40), event(3, "EVENT_WAIT", 40, 90)]
    events += [event(4, "hcom_allReduce__1", 30, 60), event(5, "Free", 60, 100), event(2, "launch", 0, 5)]
    names = ["Python", "CANN", "Ascend Hardware", "Communication", "Overlap Analysis"]
    events += [process(pid, name) for pid, name in enumerate(names, 1)]
    times = times_of(traced(write(tmp_path, json.dumps(events))))
    assert (times["busy"], times["compute"], times["overlap"], times["exposed_comm"]) == (50, 30, 10, 20)


def test_what_the_file_says_of_itself_before_or_behind_the_events(tmp_path):
    text = json.dumps({"x": 1, **plain().content(), "distributedInfo": {"rank": 3, "world_size": 8, "backend": "nccl"}})
    (rank,) = traced(write(tmp_path, text))["ranks"]
    assert (rank["rank"], rank["world_size"], rank["backend"]) == (3, 8, "nccl")


@pytest.mark.parametrize("is_text", [False, True])
def test_files_of_a_rank_are_put_in_the_order_of_the_time_of_day(tmp_path, is_text):
    """Each file counts from a moment of its own: their events alone would be at the same time."""
    paths = []
    for day, number in ((1, "1001"), (0, "1000")):
        base = 1_712_000_000_000_000_000 + day * 86_400 * 10**9
        header = {"baseTimeNanoseconds": str(base) if is_text else base}
        made = plain().step(2 + day, 1000, 2000)
        paths.append(made.write(tmp_path / f"host_100.{number}.pt.trace.json", **header))
    (rank,) = traced(*paths)["ranks"]
    assert rank["paths"] == [str(path) for path in reversed(paths)]
    assert [step["step"] for step in rank["steps"]] == [1, 2, 1, 3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello", "is not a Chrome trace: it begins with 'hello'"),
        (b'{"schema": "1.0", "nodes": []}', 'no "traceEvents"'),
        (b"PK\x03\x04rest", "not a Chrome trace"),
        (b"{'traceEvents': []}", "not a Chrome trace"),
        (b'{"a" 5, "traceEvents": []}', "not a Chrome trace"),
        (b"\x28\xb5\x2f\xfdrest", "not a Chrome trace"),
        ("[]".encode("utf-16"), "not a Chrome trace"),
        (b"\x1f\x8b\x08\x00 broken", "damaged gzip"),
        (b"\x1f\x8b", "damaged gzip"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path, content, words):
    code, _, err = typed("trace", write(tmp_path, content))
    assert code == 1
    assert words in err
    assert "trace.json" in err


def in_steps(tmp_path, fill, names) -> dict[str, dict]:
    """Return the times of steps of 100 µs, one for each name, whose events `fill` adds from their beginning on."""
    made = Made()
    for number, name in enumerate(names):
        fill(made.step(number, 100 * number, 100 * number + 100), 100 * number, name)
    (rank,) = made.traced(tmp_path)["ranks"]
    return {name: step["time_us"] for name, step in zip(names, rank["steps"], strict=True)}


KERNELS = {
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "void deep_ep::internode::dispatch<false, 8, false, 12288, 24>(int4*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(...)",
        "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)",
        "void nvshmemi_device_barrier_on_stream",
        "mori::moe::EpDispatchIntraNodeKernel",
        "void moeA2ADispatchKernel<8>",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
        "two_shot_all_reduce_kernel",
        "multimem_all_reduce_kernel",
        "rcclGenericKernel",
    ],
    "compute": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor>",
        "flash_fwd_splitkv_combine_kernel",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>",
        "void deep_ep::layout::get_dispatch_layout<256>",
        "broadcast_gradient_kernel",
        "dispatch_segment_gemm",
    ],
    "exposed_copy": ["dma_request", "memcpy32_post", "copyHostToDevice"],
}


@pytest.mark.parametrize("part", KERNELS)
def test_kernels_are_known_by_their_names(tmp_path, part):
    found = in_steps(tmp_path, lambda made, at, name: made.kernel(at, at + 100, name), KERNELS[part])
    assert {name for name, times in found.items() if times[part] != 100} == set()


WAITS = {
    "cpu_op": [
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "IteratorGetNext",
        "IteratorGetNextAsOptional",
    ],
    "user_annotation": [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
        "get_batch",
        "prefetcher.next",
        "preprocess",
        "SBatchWait_3",
        "SBatchWait_N",
        "next(train_loader)",
        "wait_for_data",
        "data_time",
        "Data iter",
        "val_dataloader_next",
        "data",
        "## data_load ##",
        "next_batch",
        "stoker.wait",
        "stoker: wait",
        "[pl][profile]_PrefetchDataFetcher.__next__",
        "batch-generator",
        "get_batch_on_this_tp_rank",
        "next(data_iterator)",
        "Iterator::Prefetch",
        "[DALI] pipeline run",
        "wds_next",
        "train_dataloader",
        "iter_torch_batches",
        "get_next",
        "enumerate(DataLoader)#_StatefulMultiProcessingDataLoaderIter.__next__",
        "[pl][profile][_EvaluationLoop].val_next",
        "dataloader/train",
        "train_loader",
        "data io",
        "sample_minibatch",
        "data_queue.get",
    ],
    "python_function": [
        "torch/utils/data/dataloader.py(701): __next__",
        "train.py(30): get_batch",
        "/home/me/pipeline/loader.py(7): load_next_batch",
        "webdataset/pipeline.py(64): iterator",
        "nvidia/dali/plugin/base_iterator.py(400): _next",
        "transformers/trainer.py(5300): get_batch_samples",
        "accelerate/data_loader.py(567): __iter__",
        "utils/prefetcher.py(7): __next__",
        "fairseq/data/iterators.py(500): __next__",
        "timm/data/loader.py(120): __iter__",
        "datasets/formatting/formatting.py(400): query_table",
        "torchdata/nodes/base_node.py(80): __next__",
        "queue.py(154): get",
        "multiprocessing/queues.py(103): get",
        "composer/trainer/trainer.py(2100): _iter_dataloader",
    ],
}
OTHERS = [
    "## wait_for_batch ##",
    "## wait_sparse_data_dist ##",
    "forward",
    "copy_batch_to_gpu",
    "wait_for_batch_grad",
    "load_data_parallel_weights",
    "FSDP::pre_forward_prefetch",
    "batch time",
    "train_iter 5",
    "iteration",
    "train loop",
    "train",
    "DataParallel.forward",
    "BatchNorm2d",
    "load_checkpoint",
    "get_next_token",
    "batch_matmul",
    "transfer_batch_to_device",
    "get_input_embeddings",
    "queue_wait_event",
    "dataloader.to(device)",
    "data_transfer",
    "load model",
]


def waits_of(tmp_path, category, names) -> dict[str, float]:
    """Return how long a device that is idle for 60 µs waited for data, while the host was in what has each name."""
    found = in_steps(
        tmp_path, lambda made, at, name: made.host(name, at, at + 60, cat=category).kernel(at + 60, at + 100), names
    )
    return {name: times["waiting_for_data"] for name, times in found.items()}


@pytest.mark.parametrize("category", WAITS)
def test_names_of_waits_for_data(tmp_path, category):
    assert waits_of(tmp_path, category, WAITS[category]) == dict.fromkeys(WAITS[category], 60)


def test_names_of_other_things(tmp_path):
    assert waits_of(tmp_path, "user_annotation", OTHERS) == dict.fromkeys(OTHERS, 0)
    frames = [f"/data/load_data.py(3): {name}" for name in OTHERS]
    assert waits_of(tmp_path, "python_function", frames) == dict.fromkeys(frames, 0)


def test_a_trace_without_the_hosts_operators_does_not_say_that_nothing_waits_for_data(tmp_path):
    made = Made().launched("cudaLaunchKernel", 0, 2, 40).launched("cudaLaunchKernel", 88, 90, 100)
    found = made.traced(tmp_path)
    assert found["verdict"].endswith("Waiting for data does not show: profile with `ProfilerActivity.CPU`, too.")
    assert "`ProfilerActivity.CPU`" in found["advice"][0]


SYNCHRONISE = {
    "<built-in method item of Tensor object at 0x7f>": True,
    "<built-in method items of dict object at 0x7f>": False,
    "<built-in method cpu of Tensor object at 0x7f>": True,
    "<built-in method tolist of Tensor object at 0x7f>": True,
    "<built-in method tolist of numpy.ndarray object at 0x7f>": False,
    "torch/cuda/__init__.py(985): synchronize": True,
    "thing.py(3): item": False,
}


def test_python_functions_that_synchronise(tmp_path):
    """A device runs out of work while the host is in the function."""

    def fill(made, at, name):
        made.kernel(at, at + 55).host(name, at + 5, at + 60, cat="python_function")
        made.launched("cudaLaunchKernel", at + 80, at + 81, at + 100)

    found = in_steps(tmp_path, fill, SYNCHRONISE)
    assert {name: times["synchronising"] > 0 for name, times in found.items()} == SYNCHRONISE


def test_users_extend_the_table_of_names(tmp_path):
    made = Made().step(0, 0, 100).host("[feed] step 7", 0, 60, cat="user_annotation").kernel(60, 80)
    path = made.kernel(80, 100, "my ring kernel").write(tmp_path / "trace.json")
    times = traced(path, "--name", r"data=\[feed\] step \d", "--name", "communication=my ring")["time_us"]
    assert (times["waiting_for_data"], times["communication"]) == (60, 20)
    plain = traced(path)["time_us"]
    assert (plain["unattributed"], plain["communication"]) == (60, 0)


@pytest.mark.parametrize(
    ("category", "process", "word"),
    [("cuda_runtime", "python", "The GPU idles"), ("CANN", "Ascend Hardware", "The NPU idles")],
)
def test_devices_are_called_what_they_are(tmp_path, category, process, word):
    made = Made().step(0, 0, 100).wait(0, 60).kernel(60, 100).call("launch", 1, 2, cat=category)
    made.events.append({"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": process}})
    assert made.traced(tmp_path)["verdict"].startswith(word)


@pytest.mark.parametrize(
    ("name", "word"), [("Ascend910B2", "NPU"), ("Intel Gaudi2 HL-225", "HPU"), ("AMD Instinct MI300X", "GPU")]
)
def test_what_the_header_calls_a_device_says_what_it_is(tmp_path, name, word):
    made = Made().step(0, 0, 100).wait(0, 60).kernel(60, 100)
    found = made.traced(tmp_path, deviceProperties=[{"id": 0, "name": name}])
    assert found["verdict"].startswith(f"The {word} idles")


def test_kernels_without_a_duration_are_left_out_and_it_says_so(tmp_path):
    made = Made().step(0, 0, 100).kernel(0, 40).kernel(50, 90)
    for event in made.events:
        if event["cat"] == "kernel":
            del event["dur"]
    found = made.traced(tmp_path)
    assert found["verdict"] == "Work of devices has no duration here, so it does not show whether one idles."
    assert found["busy_share"] is None
    assert "2 events of devices have no duration and were left out" in found["ranks"][0]["notes"]
