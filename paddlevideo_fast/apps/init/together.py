"""Which videos of a set belong on one side of the split: copies, and pieces of one recording.

A network that has seen one of them knows the other one, so validation would say more than is true.
"""

import re
from collections import Counter
from collections.abc import Sequence

from paddlevideo_fast.apps.data.confirming import Part, confirm, confirmed, groups_of
from paddlevideo_fast.apps.data.fingerprints import RATE, Fingerprint, Video
from paddlevideo_fast.apps.data.matching import groups, matches
from paddlevideo_fast.apps.init.init_dataset import Found
from paddlevideo_fast.jobs.executor import Executor, run_all

# Parts of file names that often say who or what is on a video, and then its number among the others.
_NAMES = (
    r"(?i)(?:person|subject|actor|speaker|player|patient|user)[_-]?[a-z0-9]+",
    r"(?i)(?:session|recording|camera|game|match|scene|cam|rec)[_-]?\d+",
    r"([^/]+?)[_-][a-z]*\d+\.\w+$",
)
_LEAST_GROUP = 2  # videos in the median group


def copies(clips: Sequence[Found], workers: int) -> list[list[int]]:
    """Groups of clips that show the same, by their numbers; also cut, scaled, re-encoded and mirrored ones.

    Clips of one file are no copies of each other.

    Args:
        clips: that decode.
        workers: processes.
    """
    videos = {clip.path: Video(str(clip.path.absolute())) for clip in clips}
    outcomes = run_all(_fingerprint, [*videos.values()], Executor(workers), "compared")
    fingerprints = dict(zip(videos, outcomes))
    numbers, parts, prints = [], [], []
    for number, clip in enumerate(clips):
        fingerprint = fingerprints[clip.path]
        own = None if fingerprint.cause else fingerprint.prints(clip.span)
        if own is not None:
            numbers.append(number)
            prints.append(own)
            start_sec = fingerprint.ends(clip.span)[0] / RATE
            parts.append(Part(videos[clip.path], start_sec, own.length_sec))

    def are_two_files(one: int, other: int) -> bool:
        return clips[numbers[one]].path != clips[numbers[other]].path

    alike = matches(prints, are_two_files)
    members, tasks = groups_of(parts, alike)
    answers = run_all(confirm, tasks, Executor(workers), "groups that look alike") if tasks else ()
    same = confirmed(members, tasks, answers)
    return [[numbers[number] for number in group] for group in groups(same)]


def _fingerprint(video: Video) -> Fingerprint:
    return video.do()


def united(names: Sequence[str], together: Sequence[Sequence[int]]) -> list[str]:
    """Names of groups, with one name for all groups of which a clip is in `together`.

    Args:
        names: the group of each clip.
        together: numbers of clips that belong on one side.
    """
    ids = {name: number for number, name in enumerate(dict.fromkeys(names))}
    clips_of: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        clips_of.setdefault(name, []).append(number)
    links = [(ids[names[group[0]]], ids[names[number]]) for group in together for number in group[1:]]
    all_names = [*ids]
    leader = {
        all_names[member]: all_names[members[0]]
        for members in groups((min(link), max(link)) for link in links if link[0] != link[1])
        for member in members
    }
    return [leader.get(name, name) for name in names]


def likely_pattern(paths: Sequence[str], labels: Sequence[str]) -> str | None:
    """The `--group` that file names suggest; None where they suggest none.

    Args:
        paths: of the videos.
        labels: the class of each.
    """
    for pattern in _NAMES:
        found = [re.search(pattern, path) for path in paths]
        if not all(found):
            continue
        own = [match[1] if match and match.groups() else match[0] for match in found if match]
        sizes = Counter(own)
        groups_of_class = Counter(label for label, _ in {*zip(labels, own)})
        splits_each_class = min(groups_of_class.values()) > 1
        median = sorted(sizes.values())[len(sizes) // 2]
        if splits_each_class and median >= _LEAST_GROUP:
            return pattern
    return None
