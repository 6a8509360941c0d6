"""The RUNTIME section: how Paddle uses the machine."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Union

from paddlevideo_fast.config.run import settings_from
from paddlevideo_fast.config.types import Count, PositiveInt, Share


@dataclasses.dataclass(frozen=True)
class RuntimeSettings:
    """How Paddle uses the machine; null leaves an option as Paddle has it. See the page on the runtime.

    Args:
        cpu_affinity: CPU cores of the training processes of this machine, dealt out evenly: a list of their
            numbers, or `spread` for all that the processes may use.
        allocator_strategy: `auto_growth` takes memory as it is needed, `naive_best_fit` in large pieces.
        fraction_of_gpu_memory_to_use: size of such a piece, as a share of the GPU's memory; GPU only.
        cudnn_exhaustive_search: time cuDNN's algorithms for each new shape and keep the fastest; GPU only.
        conv_workspace_size_limit: MiB that a cuDNN algorithm may use on the side; GPU only.
        cudnn_batchnorm_spatial_persistent: cuDNN's faster batch norm, which may overflow; GPU only.
        enable_cublas_tensor_op_math: tensor cores in cuBLAS, with their rounding; GPU only.
        tf32: false makes cuBLAS and cuDNN compute float32 in float32; GPU only.
        build_strategy: switches of `paddle.static.BuildStrategy`, with `to_static`.
        cinn: compile the static graph by CINN, with `to_static`.
    """

    cpu_affinity: Optional[Union[Literal["spread"], List[Count]]] = None
    allocator_strategy: Optional[Literal["auto_growth", "naive_best_fit"]] = None
    fraction_of_gpu_memory_to_use: Optional[Share] = None
    cudnn_exhaustive_search: Optional[bool] = None
    conv_workspace_size_limit: Optional[PositiveInt] = None
    cudnn_batchnorm_spatial_persistent: Optional[bool] = None
    enable_cublas_tensor_op_math: Optional[bool] = None
    tf32: Optional[bool] = None
    build_strategy: Optional[Dict[str, bool]] = None
    cinn: bool = False

    paddle_flags: ClassVar[Tuple[str, ...]] = (
        "allocator_strategy",
        "fraction_of_gpu_memory_to_use",
        "cudnn_exhaustive_search",
        "conv_workspace_size_limit",
        "cudnn_batchnorm_spatial_persistent",
        "enable_cublas_tensor_op_math",
    )
    gpu_only: ClassVar[Tuple[str, ...]] = (*paddle_flags[1:], "tf32")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RuntimeSettings:
        """The RUNTIME section of a checked config."""
        return settings_from(cls, config.get("RUNTIME"))

    def environment(self) -> Dict[str, str]:
        """The options that Paddle and the libraries below it read from the environment, as its variables."""
        variables = {
            f"FLAGS_{name}": str(getattr(self, name))
            for name in self.paddle_flags
            if getattr(self, name) is not None
        }
        if self.tf32 is not None:
            variables["NVIDIA_TF32_OVERRIDE"] = str(int(self.tf32))
        return variables
