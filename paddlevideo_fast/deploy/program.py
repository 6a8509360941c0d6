"""What prediction asks of an exported network, whatever runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional

import numpy as np


@dataclass(frozen=True)
class ProgramOptions:
    """How a program is run.

    Args:
        use_gpu: None: where Paddle computes by default. An .onnx program runs on a CPU only.
        gpu_mem_mb: taken on the GPU at the start.
        precision: "fp16" computes in 16 bits; on a GPU only.
        cpu_threads: None: as many as Paddle or onnxruntime takes.
        use_mkldnn: oneDNN's operators on a CPU; not for an .onnx program.
        optimize: let Paddle or onnxruntime rewrite the program before it runs.
    """

    use_gpu: Optional[bool] = None
    gpu_mem_mb: int = 8000
    precision: Literal["fp32", "fp16"] = "fp32"
    cpu_threads: Optional[int] = None
    use_mkldnn: bool = False
    optimize: bool = True


class Program(ABC):
    """An exported network with one input and one output.

    Attributes:
        model_file: where it is from.
    """

    model_file: Path

    @abstractmethod
    def run(self, clips: np.ndarray) -> np.ndarray:
        """Logits of a batch.

        Args:
            clips: as the program takes them, the number of clips first.

        Returns:
            float32 [N, num_classes].

        Raises:
            ProgramError: the clips do not fit it.
        """
