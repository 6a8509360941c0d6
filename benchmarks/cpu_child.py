"""One process of `cpu`: times a network, or operators, of this toolkit or of PyTorch.

    python benchmarks/cpu_child.py SIDE NETWORK          SIDE: now or torch
    python benchmarks/cpu_child.py RUNTIME NETWORK DIR   RUNTIME: a key of RUNTIMES

It imports nothing of `benchmarks`, so that it also runs in an environment with PyTorch alone.
Prints JSON: {"step": [wall seconds, CPU seconds], "predict": the same, "peak_mb": ...}; for the
network "operators" {name: milliseconds forward and backward}. A runtime predicts by the network in
DIR, or by the network here, and prints "predict" and "peak_mb", or {"error": ...}.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

NUM_CLASSES = 400
OPERATORS = "operators"
# The shape of a clip, and the config here.
NETWORKS = {
    "tsm_r50_8f": ((8, 3, 224, 224), "tsm_k400_videos"),
    "slowfast_r50_4x16": ((3, 32, 224, 224), "slowfast_4x16"),
    "x3d_s": ((3, 13, 160, 160), "x3d_s"),
    "video_swin_t": ((3, 32, 224, 224), "videoswin_tiny_k400_videos"),
    "mvit_v2_s": ((3, 16, 224, 224), "mvitv2_s_16x4"),
    "videomae_vit_s": ((3, 16, 224, 224), "videomae_vit_s_k400_videos"),
}
# What runs an exported network: the ending of its file, and the arguments of `ProgramOptions`.
RUNTIMES: dict[str, tuple[str, dict[str, Any]]] = {
    "network": ("", {}),
    "paddle": (".json", {}),
    "onednn": (".json", {"use_mkldnn": True}),
    "onnxruntime": (".onnx", {}),
}


def main() -> None:
    """Measures what the command line names, and prints it."""
    side, network, *folder = sys.argv[1:]
    result: dict[str, Any] = {}
    if network == OPERATORS:
        result |= (_ours_operators if side == "now" else _torch_operators)()
    elif folder:
        result = _of_runtime(side, network, *folder)
    else:
        step, predict = (_ours if side == "now" else _torch)(network)
        result = {"step": _timed(step), "peak_mb": peak_mib(), "predict": _timed(predict)}
    print(json.dumps(result))


def peak_mib() -> int:
    """The most memory that this process has had."""
    # not `ru_maxrss`: it begins with the memory of the process that started this one
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024


def _timed(work: Callable[[], Any]) -> list[float]:
    """Wall and CPU seconds of a call after one for warm-up."""
    work()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return [time.perf_counter() - wall, time.process_time() - cpu]


def _start() -> Any:
    """Paddle, prepared as a command does it."""
    from paddlevideo_fast.config.startup import prepare_process

    prepare_process()
    import paddle

    return paddle


def _clip(network: str) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, *NETWORKS[network][0]), dtype="float32")


def _ours(network: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    paddle = _start()
    from paddlevideo_fast.config.load import load_config
    from paddlevideo_fast.modeling import build_model

    model = build_model(load_config(NETWORKS[network][1])["MODEL"], load_pretrained=False)
    optimizer = paddle.optimizer.Momentum(1e-3, parameters=model.parameters())
    inputs, labels = paddle.to_tensor(_clip(network)), paddle.zeros([1], "int64")
    return _calls(model, model.loss, inputs, labels, optimizer, optimizer.clear_grad, paddle.no_grad)


def _calls(
    model: Any, loss: Any, inputs: Any, labels: Any, optimizer: Any, clear: Callable[[], None], no_grad: Any
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A training step and a prediction, the same calls on both sides."""

    def step() -> None:
        model.train()
        loss(model(inputs), labels).backward()
        optimizer.step()
        clear()

    def predict() -> None:
        model.eval()
        with no_grad():
            model(inputs)

    return step, predict


def _of_runtime(runtime: str, network: str, folder: str) -> dict[str, Any]:
    _start()
    from paddlevideo_fast.apps.predict.program import ProgramOptions, open_program
    from paddlevideo_fast.errors import ProgramError

    ending, how = RUNTIMES[runtime]
    if ending:
        options = ProgramOptions(cpu_threads=int(os.environ["OMP_NUM_THREADS"]), **how)
        try:
            program = open_program(f"{folder}/{network}{ending}", options=options)
        except ProgramError as error:
            return {"error": str(error).replace(f"{folder}/", "")}
        predict: Callable[[], Any] = partial(program.run, _clip(network))
    else:
        _, predict = _ours(network)
    return {"predict": _timed(predict), "peak_mb": peak_mib()}


def _torch(network: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import torch

    model = _torch_network(network)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    inputs, labels = torch.from_numpy(_clip(network)), torch.zeros(1, dtype=torch.int64)
    loss = torch.nn.functional.cross_entropy
    return _calls(model, loss, inputs, labels, optimizer, optimizer.zero_grad, torch.no_grad)


def _torch_network(network: str) -> Any:
    """The network of PyTorch's packages: torchvision, PyTorchVideo or transformers."""
    import torch

    if network == "tsm_r50_8f":
        return _torch_tsm()
    if network == "slowfast_r50_4x16":
        from pytorchvideo.models.slowfast import create_slowfast

        slowfast = create_slowfast(
            slowfast_channel_reduction_ratio=(8,), slowfast_conv_channel_fusion_ratio=2,
            slowfast_fusion_conv_kernel_size=(5, 1, 1), slowfast_fusion_conv_stride=(8, 1, 1),
            model_num_class=NUM_CLASSES, head_pool_kernel_sizes=((4, 7, 7), (32, 7, 7)),
        )  # fmt: skip

        def both(x: Any) -> Any:
            slow = torch.linspace(0, x.shape[2] - 1, x.shape[2] // 8).long()
            return slowfast([x[:, :, slow], x])

        return _torch_module(both, slowfast)
    if network == "x3d_s":
        from pytorchvideo.models.x3d import create_x3d

        sizes = {"input_clip_length": 13, "input_crop_size": 160, "model_num_class": NUM_CLASSES}
        return create_x3d(**sizes, head_activation=None)
    if network == "videomae_vit_s":
        from transformers import VideoMAEConfig, VideoMAEForVideoClassification

        sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
        videomae = VideoMAEForVideoClassification(VideoMAEConfig(**sizes, num_labels=NUM_CLASSES))
        return _torch_module(lambda x: videomae(x.transpose(1, 2)).logits, videomae)
    from torchvision.models import video

    make = video.swin3d_t if network == "video_swin_t" else video.mvit_v2_s
    return make(num_classes=NUM_CLASSES)


def _torch_module(forward: Callable[[Any], Any], part: Any) -> Any:
    """A module that computes `forward` by its part."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: Any) -> Any:
            return forward(x)

    return Module()


def _torch_tsm(frames: int = 8) -> Any:
    """Torchvision's ResNet-50 with a shift of two eighths of the channels in time, as in MIT's TSM."""
    import torch
    from torchvision.models import resnet50

    def shifted(convolution: Any) -> Any:
        def forward(x: Any) -> Any:
            clips = x.view(-1, frames, *x.shape[1:])
            fold = x.shape[1] // 8
            out = torch.zeros_like(clips)
            out[:, :-1, :fold] = clips[:, 1:, :fold]
            out[:, 1:, fold : 2 * fold] = clips[:, :-1, fold : 2 * fold]
            out[:, :, 2 * fold :] = clips[:, :, 2 * fold :]
            return convolution(out.view_as(x))

        return _torch_module(forward, convolution)

    network = resnet50(num_classes=NUM_CLASSES)
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        for block in stage:
            block.conv1 = shifted(block.conv1)
    return _torch_module(
        lambda x: network(x.flatten(0, 1)).view(-1, x.shape[1], NUM_CLASSES).mean(1), network
    )


# --- operators: shapes as the networks have them

_TOKENS = (2, 1568, 384)
_SHAPES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "GELU 2×1568×1536": ((2, 1568, 1536), {}),
    "layer norm 2×1568×384": (_TOKENS, {}),
    "attention, 6 heads of 64, 1568 tokens": (_TOKENS, {}),
    "linear 384→1536": (_TOKENS, {}),
    "conv 1×1 256→64, 16×56²": ((16, 256, 56, 56), {"out": 64, "kernel": (1, 1)}),
    "conv 3×3 64→64, 16×56²": ((16, 64, 56, 56), {"out": 64, "kernel": (3, 3)}),
    "conv 3×3 512→512, 16×7²": ((16, 512, 7, 7), {"out": 512, "kernel": (3, 3)}),
    "conv 7×7 3→64, 16×224²": ((16, 3, 224, 224), {"out": 64, "kernel": (7, 7), "stride": (2, 2)}),
    "batch norm and ReLU 16×256×56²": ((16, 256, 56, 56), {}),
    "max pool 3×3 16×64×112²": ((16, 64, 112, 112), {}),
    "conv 5×7×7 3→8, 32×224²": ((1, 3, 32, 224, 224), {"out": 8, "kernel": (5, 7, 7), "stride": (1, 2, 2)}),
    "conv 1×7×7 3→64, 4×224²": ((1, 3, 4, 224, 224), {"out": 64, "kernel": (1, 7, 7), "stride": (1, 2, 2)}),
    "conv 1×3×3 64→64, 8×56²": ((1, 64, 8, 56, 56), {"out": 64, "kernel": (1, 3, 3)}),
    "conv 3×1×1 256→64, 8×56²": ((1, 256, 8, 56, 56), {"out": 64, "kernel": (3, 1, 1)}),
    "conv 3×3×3 128→128, 8×28²": ((1, 128, 8, 28, 28), {"out": 128, "kernel": (3, 3, 3)}),
    "depthwise 3×3×3 108, 13×40²": ((1, 108, 13, 40, 40), {"out": 108, "kernel": (3, 3, 3), "groups": 108}),
    "conv 2×4×4/4 3→96, 32×224²": (
        (1, 3, 32, 224, 224),
        {"out": 96, "kernel": (2, 4, 4), "stride": (2, 4, 4)},
    ),
}


def _ours_operators() -> dict[str, float]:
    paddle = _start()
    from paddlevideo_fast.modeling import layers
    from paddlevideo_fast.modeling.layers.attention import attend
    from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm2D
    from paddlevideo_fast.modeling.layers.cpu import Conv2D

    nn = paddle.nn

    def convolution(rank: int, *sizes: Any, groups: int) -> Any:
        kind = layers.Conv3D if rank == 3 else Conv2D
        return kind(*sizes, groups=groups, bias_attr=False)

    def attention(x: Any) -> Any:
        return attend(*[x.reshape([2, 1568, 6, 64])] * 3)

    makers = {
        "GELU": lambda channels: layers.gelu,
        "layer": layers.LayerNorm,
        "attention,": lambda channels: attention,
        "linear": lambda channels: layers.Linear(channels, 1536),
        "batch": lambda channels: nn.Sequential(SubBatchNorm2D(channels), nn.ReLU()),
        "max": lambda channels: nn.MaxPool2D(3, 2, 1),
    }

    def backward(output: Any, gradient: Any) -> None:
        paddle.autograd.backward([output], [gradient])

    return _operators(makers, convolution, paddle.randn, backward)


def _torch_operators() -> dict[str, float]:
    import torch
    from torch import nn

    def convolution(rank: int, *sizes: Any, groups: int) -> Any:
        return (nn.Conv3d if rank == 3 else nn.Conv2d)(*sizes, groups=groups, bias=False)

    def attention(x: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(*[x.view(2, 1568, 6, 64).transpose(1, 2)] * 3)

    makers = {
        "GELU": lambda channels: nn.functional.gelu,
        "layer": nn.LayerNorm,
        "attention,": lambda channels: attention,
        "linear": lambda channels: nn.Linear(channels, 1536),
        "batch": lambda channels: nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU()),
        "max": lambda channels: nn.MaxPool2d(3, 2, 1),
    }
    return _operators(makers, convolution, torch.randn, torch.Tensor.backward)


def _operators(makers: Any, convolution: Any, randn: Any, backward: Any) -> dict[str, float]:
    """Milliseconds of CPU time of each operator, forward and backward.

    Args:
        makers: first word of an operator's name -> a function of its number of channels that makes it.
        convolution: makes all others.
        randn: makes random inputs.
        backward: computes the gradient of an output.
    """
    result = {}
    for name, (shape, how) in _SHAPES.items():
        if how:
            kernel, stride = how["kernel"], how.get("stride", 1)
            padding = 0 if kernel == stride else tuple(size // 2 for size in kernel)
            sizes = shape[1], how["out"], kernel, stride, padding
            operator = convolution(len(kernel), *sizes, groups=how.get("groups", 1))
        else:
            operator = makers[name.split()[0]](shape[1 if len(shape) > 3 else -1])
        inputs = randn(shape)
        if hasattr(inputs, "stop_gradient"):
            inputs.stop_gradient = False
        else:
            inputs.requires_grad_()
        gradient = randn(tuple(operator(inputs).shape))

        def both(operator: Any = operator, inputs: Any = inputs, gradient: Any = gradient) -> None:
            backward(operator(inputs), gradient)
            inputs.grad = None

        result[name] = round(_timed(both)[1] * 1e3, 3)
    return result


if __name__ == "__main__":
    main()
