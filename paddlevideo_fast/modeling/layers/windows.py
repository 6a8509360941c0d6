"""Windows of tokens: a grid divided into boxes, which shift by half a box from block to block.

Reference: Liu et al., "Video Swin Transformer", arXiv 2106.13230, section 3.2.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.layers import cpu
from paddlevideo_fast.modeling.layers.operators import constant

Box = tuple[int, int, int]  # along T, H, W
_APART = -100.0  # added to the scores of tokens that do not see each other


def box(sides: Iterable[int]) -> Box:
    """Three numbers as a tuple, (T, H, W)."""
    t, h, w = sides
    return t, h, w


def grid_of(clip: Sequence[int], frames: tuple[str, int], side: tuple[str, int]) -> Box:
    """How many parts a clip of (T, H, W) has along each of these; -1 where that is free.

    Args:
        clip: T, H, W.
        frames: of a part: the key in MODEL.backbone, and the number.
        side: of a part in pixels, likewise.

    Raises:
        ConfigError: the parts do not divide the clip.
    """
    parts, whats = (frames, side, side), ("frames", "pixels in height", "pixels in width")
    for size, (key, part), what in zip(clip, parts, whats):
        if size > 0 and size % part:
            text = f"does not divide the {size} {what} of the clips; {nearest(size, part)} would fit"
            raise ConfigError(f"MODEL.backbone.{key}={part}: {text}")
    return box(size // part for size, (_, part) in zip(clip, parts))


def nearest(size: int, divisor: int) -> str:
    """The nearest sizes that a divisor divides, in words."""
    below = size // divisor * divisor
    return f"{below} or {below + divisor}" if below else f"{divisor}"


def closed(grid: Box, network: str) -> Box:
    """The same grid.

    Raises:
        ConfigError: a program of the network is exported with free sides.
    """
    if min(grid) < 1:
        text = "a program of it is for one size; give T, H and W as numbers"
        raise ConfigError(f"MODEL.backbone.name={network}: {text}")
    return grid


class PatchEmbed(nn.Layer):
    """Clips [N, C, T, H, W] to tokens [N, T', H', W', channels], one for each patch, by a convolution.

    Args:
        in_channels, channels: before and after.
        patch: frames, rows and columns of a patch.
        stride: from patch to patch; None: they do not overlap, and zeros fill the last one of an axis.
        norm: a LayerNorm ends it.
    """

    def __init__(
        self, in_channels: int, channels: int, patch: Box, stride: Box | None = None, norm: bool = False
    ) -> None:
        super().__init__()
        self._filled = patch if stride is None else (1, 1, 1)
        padding = 0 if stride is None else [side // 2 for side in patch]
        self.proj = nn.Conv3D(in_channels, channels, patch, stride=stride or patch, padding=padding)
        self.norm = cpu.LayerNorm(channels) if norm else None

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        t, h, w = (-side % part for side, part in zip(clips.shape[2:], self._filled))
        if t or h or w:
            clips = F.pad(clips, [0, w, 0, h, 0, t], data_format="NCDHW")
        tokens = self.proj(clips).transpose([0, 2, 3, 4, 1])
        return tokens if self.norm is None else self.norm(tokens)


class Windows:
    """How a grid of tokens [T, H, W] divides into windows.

    Along an axis that is no longer than the window, the window is as long as the axis and does not shift.
    Along the others, zeros fill the last window; they are tokens like all others.

    Args:
        grid: tokens along T, H, W.
        window: tokens of a whole window along T, H, W.

    Attributes:
        size: tokens of a window along T, H, W.
        shift: by how many tokens the shifted windows begin later.
    """

    def __init__(self, grid: Sequence[int], window: Box) -> None:
        pairs = list(zip(grid, window))
        self.size = box(min(side, whole) for side, whole in pairs)
        self.shift = box(0 if side <= whole else whole // 2 for side, whole in pairs)
        self._grid = box(grid)
        self._padded = box(-(-side // part) * part for side, part in zip(grid, self.size))

    @property
    def num_tokens(self) -> int:
        """In one window."""
        return self.size[0] * self.size[1] * self.size[2]

    def split(self, tokens: paddle.Tensor, shifted: bool) -> paddle.Tensor:
        """Tokens [N, T, H, W, C] to windows [N * windows, tokens of a window, C]."""
        if self._padded != self._grid:
            t, h, w = (whole - side for whole, side in zip(self._padded, self._grid))
            tokens = F.pad(tokens, [0, 0, 0, t, 0, h, 0, w, 0, 0])  # from N to C
        if shifted and any(self.shift):
            tokens = paddle.roll(tokens, [-step for step in self.shift], [1, 2, 3])
        (t, h, w), (_, num_h, num_w) = self.size, self._counts
        channels = tokens.shape[-1]
        # six axes at most: Paddle transposes more of them element by element on a CPU
        boxes = cpu.transpose(tokens.reshape([-1, t, num_h, h, num_w, w * channels]), [0, 2, 4, 1, 3, 5])
        return boxes.reshape([-1, self.num_tokens, channels])

    def join(self, windows: paddle.Tensor, shifted: bool) -> paddle.Tensor:
        """What `split` made back to tokens [N, T, H, W, C]."""
        (t, h, w), (_, num_h, num_w) = self.size, self._counts
        channels = windows.shape[-1]
        boxes = cpu.transpose(windows.reshape([-1, num_h, num_w, t, h, w * channels]), [0, 3, 1, 4, 2, 5])
        tokens = boxes.reshape([-1, *self._padded, channels])
        if shifted and any(self.shift):
            tokens = paddle.roll(tokens, list(self.shift), [1, 2, 3])
        if self._padded != self._grid:
            t, h, w = self._grid
            tokens = tokens[:, :t, :h, :w]
        return tokens

    def mask(self) -> paddle.Tensor:
        """What to add to the scores of shifted windows, float32 [windows, tokens, tokens].

        It keeps apart the tokens of a window that were not neighbours before the shift.
        """
        return constant(_mask, self._padded, self.size, self.shift)

    @property
    def _counts(self) -> Box:
        return box(whole // part for whole, part in zip(self._padded, self.size))


def relative_positions(window: Box, num_tokens: int) -> paddle.Tensor:
    """Which row of a table of relative positions each pair of tokens takes, int64 [num_tokens ** 2].

    The table has a row for each offset between two tokens of a whole window; the last axis runs fastest.

    Args:
        window: tokens of a whole window along T, H, W.
        num_tokens: of a window that may be smaller. Its tokens then take the rows of the first tokens of a
            whole window, as in the original and in torchvision, whatever their own offsets are.
    """
    return constant(_relative_positions, tuple(window), num_tokens)


def _mask(grid: Box, size: Box, shift: Box) -> paddle.Tensor:
    regions = paddle.to_tensor(_regions(grid, size, shift))
    apart = regions.unsqueeze(2) != regions.unsqueeze(1)
    return apart.astype("float32") * _APART


def _regions(grid: Box, size: Box, shift: Box) -> np.ndarray:
    """Numbers of tokens, int32 [windows, tokens]: neighbours before the shift have the same one."""
    regions = np.zeros(grid, "int32")
    for axis, (side, part, step) in enumerate(zip(grid, size, shift)):
        # the last window of an axis holds what was at its end, and what the shift brought from its start
        places = np.arange(side)
        numbers = (
            np.where(places < side - part, 0, np.where(places < side - step, 1, 2)) if step else 0 * places
        )
        regions = regions * 3 + numbers.reshape([-1 if axis == each else 1 for each in range(3)])
    (t, h, w), (num_t, num_h, num_w) = size, (side // part for side, part in zip(grid, size))
    boxes = regions.reshape([num_t, t, num_h, h, num_w, w]).transpose([0, 2, 4, 1, 3, 5])
    return boxes.reshape([-1, t * h * w])


def _relative_positions(window: Box, num_tokens: int) -> paddle.Tensor:
    sides = 2 * np.array(window) - 1
    steps = np.array([sides[1] * sides[2], sides[2], 1])  # rows of the table from one offset to the next
    rows = steps @ np.indices(window).reshape([3, -1])[:, :num_tokens]
    first = paddle.to_tensor(rows + steps @ (np.array(window) - 1))
    return (first.unsqueeze(1) - paddle.to_tensor(rows)).flatten()
