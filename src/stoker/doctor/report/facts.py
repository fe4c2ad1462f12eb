"""What the verdict rests on: the data, the step, GPUs, the machine, and how to see it again."""

from __future__ import annotations

from stoker.doctor.report.figures import seconds, share, size
from stoker.doctor.report.markup import clean, definitions, paragraphs, words
from stoker.doctor.results import DoctorResult, GpuFacts
from stoker.words import count_text, some_of

_SHOWN_COLUMNS = 24


def gpus(result: DoctorResult) -> str:
    """Return what the driver says, or that there is none to ask."""
    if not result.gpus:
        return f"<section>\n<h2>GPU</h2>\n{paragraphs([result.gpu_note or 'no GPU here'], kind='soft')}\n</section>"
    cards = "\n".join(f"<h3>{words(gpu.name)}</h3>\n{definitions(_gpu(gpu))}" for gpu in result.gpus)
    lead = '<p class="soft">While the frozen batch was trained, as the driver says.</p>'
    note = paragraphs([result.gpu_note], kind="note")
    return f"<section>\n<h2>GPU</h2>\n{lead}\n{cards}\n{note}\n</section>"


def data(result: DoctorResult) -> str:
    """Return what was looked at."""
    facts, step = result.data, result.step
    columns = some_of(facts.repeated_columns, _SHOWN_COLUMNS)
    pairs = {
        "data set": facts.text,
        "samples": f"{facts.num_samples:,} in {count_text(facts.num_files, 'file')}, "
        f"{count_text(facts.num_chunks, 'chunk')}; {count_text(facts.num_probed, 'chunk')} looked at",
        "where": "behind a network" if facts.is_remote else "on this machine",
        "a sample": f"{size(facts.source_bytes)} at the source, {size(facts.arrow_bytes)} as Arrow, "
        f"{size(facts.tensor_bytes)} as tensors",
        "widest column": f"{facts.widest_column}, {share(facts.widest_share)} of the bytes at the source"
        if facts.widest_column
        else "",
        "repeats": f"{share(facts.repeated_share)} of the tensors’ bytes only repeat the sample before"
        + (f": {columns}" if columns else "")
        if facts.repeated_share is not None
        else "",
        "step": "none was given" if step is None else step.text,
    }
    if step is not None:
        how = "as it was given" if step.is_given else "measured on a frozen batch"
        pairs["length of a step"] = f"{seconds(step.step_s)} for {step.batch_size:,} samples, {how}"
        if step.host_s or step.cpu_s:
            pairs["a step on the host"] = (
                f"{seconds(step.host_s)} of the loop’s thread, {seconds(step.cpu_s)} of processors"
            )
    return f"<section>\n<h2>What was looked at</h2>\n{definitions(pairs)}\n</section>"


def environment(result: DoctorResult) -> str:
    """Return what it ran on."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    pairs = {**result.machine, "versions": versions}
    return f"<section>\n<h2>The machine</h2>\n{definitions(pairs)}\n</section>"


def again(result: DoctorResult) -> str:
    """Return the commands that repeat it."""
    extras = "report,torch" if "torch" in result.versions else "report"
    version = result.versions.get("stoker", "")
    pinned = f"=={version}" if version else ""
    lines = [f"pip install 'stoker[{extras}]{pinned}'", result.command]
    took = (
        f"Took {seconds(result.wall_s)} here, of a budget of {seconds(result.budget_s)}. What else ran on the machine"
    )
    return (
        "<section>\n<h2>Do it again</h2>\n"
        f'<pre tabindex="0">{words(lines[0])}\n{words(clean(lines[1]))}</pre>\n'
        f'<p class="note">{words(took)} shows in the figures.</p>\n</section>'
    )


def _gpu(gpu: GpuFacts) -> dict[str, str]:
    return {
        "utilisation": "" if gpu.utilisation is None else f"{share(gpu.utilisation)} of the time some kernel ran",
        "SM activity": "the driver does not tell"
        if gpu.sm_activity is None
        else f"{share(gpu.sm_activity)} of the multiprocessors at work",
        "SM clock": _of(gpu.sm_clock_mhz, gpu.max_sm_clock_mhz, "MHz"),
        "power": _of(gpu.power_w, gpu.power_limit_w, "W"),
        "memory": ""
        if gpu.memory_used_bytes is None
        else size(gpu.memory_used_bytes) + (f" of {size(gpu.memory_bytes)}" if gpu.memory_bytes else "") + " in use",
        "clock held down": "by " + ", ".join(gpu.throttled) if gpu.throttled else "no",
    }


def _of(value: float | None, most: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} of {most:,.0f} {unit}" if most else f"{value:,.0f} {unit}"
