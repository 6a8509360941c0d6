"""What the doctor found, as a paragraph, and as text for a terminal."""

import textwrap
from collections.abc import Mapping
from typing import Any

from paddlevideo_fast.log import counted

MIN_SPEEDUP = 1.1  # a gain from which on a change is named
_SUMS = (
    "The stages of training were timed one by one on made-up batches. Beside the reading, which\n"
    "shares cores and caches with it, training may be slower."
)
# Two parts have a stage of this name.
_OTHER = {"reading": "choosing frames and the rest", "training": "between the stages"}


def summary(result: Mapping[str, Any]) -> str:
    """What limits the run and what would help, as one paragraph."""
    real, synthetic, limit = result["real"], result["synthetic"], result["limit"]
    step_sec = real["step_sec"]
    sentences = [
        f"{limit['part'].capitalize()} limits this run: a step takes {_ms(step_sec)} and waits "
        f"{real['wait_share']:.0%} of its time for clips; on made-up batches it takes "
        f"{_ms(synthetic['step_sec'])}.",
        _of_reading(result) if limit["part"] == "reading" else _of_training(result),
    ]
    beyond = 1 - result["model"]["step_sec"] / step_sec
    if beyond > 0.25:
        sentences.append(
            f"{beyond:.0%} of a step is explained by none of this: other programs on the machine, files that "
            "come slowly the first time, or short epochs that start again."
        )
    helping = [
        f"{suggestion['name']} ({suggestion['gain']:.1f}×)"
        for suggestion in result["remedies"]
        if suggestion["helps"]
    ]
    unknown = [suggestion["name"] for suggestion in result["remedies"] if suggestion["gain"] is None]
    sentences.append(
        f"What would help, with the predicted gain of each alone: {', '.join(helping)}."
        if helping
        else "Nothing that was tried would gain a tenth."
    )
    if unknown:
        sentences.append(f"May help, gain unknown: {', '.join(unknown)}.")
    return " ".join(sentences)


def report(result: Mapping[str, Any]) -> str:
    """All findings as text for a terminal."""
    frames, height, width, _ = result["clip_shape"]
    lines = [
        f"{result['config']} on {result['device']}, Paddle {result['paddle']}: "
        f"{counted(result['num_cores'], 'core')}, {counted(result['num_threads'], 'thread')}, "
        f"{counted(result['num_workers'], 'worker')}, "
        f"{counted(result['batch_size'], 'clip')} of {frames}×{height}×{width} a batch",
        "",
        f"{'':<28}{'ms a step':>12}{'clips/s':>10}{'waiting':>10}",
    ]
    for name, key in (("training on the real loader", "real"), ("on made-up batches", "synthetic")):
        row = result[key]
        lines.append(
            f"{name:<28}{row['step_sec'] * 1e3:>12.1f}{row['clips_per_sec']:>10.1f}{row['wait_share']:>10.0%}"
        )
    for part, title in (("reading", "reading, in one process"), ("training", "training, stage by stage")):
        stages = result["stages_sec"][part]
        lines += ["", f"{title:<28}{sum(stages.values()) * 1e3:>12.1f}"]
        for name, sec in stages.items():
            lines += [f"  {_shown(part, name):<30}{sec * 1e3:>8.1f}{_bar(sec, stages)}"] if sec else []
        if part == "reading":
            lines += [f"    {name:<24}{sec * 1e3:>12.1f}" for name, sec in result["augment_sec"].items()]
    lines += ["", _SUMS, *_of_tokens(result), "", f"{'change':<28}{'predicted':>12}"]
    for suggestion in result["remedies"]:
        gain = "unknown" if suggestion["gain"] is None else f"{suggestion['gain']:.2f}×"
        lines.append(f"{suggestion['name']:<28}{gain:>12}  {suggestion['how']}")
        lines += [] if suggestion["gain"] else [f"{'':<42}({suggestion['basis'][:150]})"]
    return "\n".join([*lines, "", textwrap.fill(result["summary"], 100)])


def _of_tokens(result: Mapping[str, Any]) -> list[str]:
    """How many tokens repeat, where the network is one that can leave them out."""
    rows = result.get("repeated_tokens", ())
    lines = ["", f"{'run-length tokens (RLT)':<28}{'repeated':>12}{'work of the blocks':>22}"] if rows else []
    return lines + [
        f"  threshold {row['threshold']:<16g}{row['repeated']:>12.0%}{row['work']:>22.0%}" for row in rows
    ]


def _of_reading(result: Mapping[str, Any]) -> str:
    model, limit, workers = result["model"], result["limit"], result["num_workers"]
    each = "the training process makes the batches itself"
    if workers:
        each = "one worker does that" if workers == 1 else f"{workers} workers share that"
    return (
        f"One process needs {_ms(model['read_sec'])} to make the clips of a step, "
        f"{limit['share']:.0%} of it for '{_shown('reading', limit['stage'])}'; {each}."
    )


def _of_training(result: Mapping[str, Any]) -> str:
    stages, stage, workers = result["stages_sec"]["training"], result["limit"]["stage"], result["num_workers"]
    readers = "there is 1 worker" if workers == 1 else f"there are {workers or 'no'} workers"
    return (
        f"Of that, '{_shown('training', stage)}' takes {_ms(stages[stage])}; one process makes "
        f"the clips of a step in {_ms(result['model']['read_sec'])}, and {readers}."
    )


def _shown(part: str, stage: str) -> str:
    return _OTHER[part] if stage == "other" else stage


def _bar(sec: float, stages: Mapping[str, float]) -> str:
    share = sec / sum(stages.values())
    return f"{share:>8.0%}  {'█' * round(20 * share)}".rstrip()


def _ms(sec: float) -> str:
    return f"{sec * 1e3:.0f} ms" if sec >= 0.01 else f"{sec * 1e3:.1f} ms"
