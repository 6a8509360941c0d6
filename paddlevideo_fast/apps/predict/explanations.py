"""Pictures of what decided: the frames of a clip, and below them the same frames with a heat map."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from paddlevideo_fast.apps.predict.predictor import Predictor, Score
from paddlevideo_fast.extensions.report.drawings import Lettering, label_text, picture
from paddlevideo_fast.extensions.report.explain import Explain, occlusion
from paddlevideo_fast.extensions.report.page import contact_sheet, heat_sheet

_FRAME_PX = 144
_DOTS_PER_INCH = 110  # of `drawings.picture`
_TITLE_PX = 40


class Explaining(NamedTuple):
    """How predictions are explained.

    Attributes:
        explain: makes the heat map of the first view of a video, which may be shorter than the clip it takes.
        folder: folder of the pictures.
        shown_folder: its name for the user, such as a URL to which the folder is copied.
    """

    explain: Explain
    folder: Path
    shown_folder: str


def by_occlusion(predictor: Predictor) -> Explain:
    """`occlusion` of the first view of a video, by the scores of an exported program."""
    num_views = predictor.recipe.dataset().pipeline.num_views
    progress = partial(tqdm, desc="occlusion", leave=False, disable=None)

    def explain(clip: np.ndarray, class_id: int) -> np.ndarray:
        first, others = np.split(clip, [len(clip) // num_views])

        def scores(firsts: np.ndarray) -> np.ndarray:
            same = np.broadcast_to(others, (len(firsts), *others.shape))
            return predictor.scores_of(np.concatenate([firsts, same], axis=1))

        return occlusion(scores, first, class_id, progress=progress)

    return explain


def draw_explanation(path: Path, clip: np.ndarray, heat: np.ndarray, best: Score, letters: Lettering) -> None:
    """Draws up to eight frames of a clip, and below them the same frames with the heat blended over.

    Args:
        path: of the PNG.
        clip: uint8 [T, H, W, 3].
        heat: float32 [T, H, W], from 0 to 1.
        best: the class of the heat, for the title.
        letters: font and names of the classes.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    sheets = [contact_sheet(clip, _FRAME_PX), heat_sheet(clip, heat, _FRAME_PX)]
    size_px = sheets[0].shape[1], 2 * _FRAME_PX + _TITLE_PX
    with picture(path, 2, 1, figsize=[side / _DOTS_PER_INCH for side in size_px]) as (_, axes):
        for axis, sheet in zip(axes, sheets):
            axis.imshow(sheet)
            axis.axis("off")
        title = f"{label_text(letters.names[best.class_id])}  {best.score:.2f}"
        axes[0].set_title(title, fontproperties=letters.font("medium"))
