"""How a framework runs a step: what it fuses, what it overlaps, and what its host takes.

A framework is a few facts from its source code (does it reduce gradients behind the backward
pass?) and what its host takes. No cost depends on a model; which were fitted to what is recorded in
``docs/background/generated-steps.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.support.errors import WorkloadError
from simulator.support.names import one_of

Flash = Literal["flash", "flash1", "flash2"]
Sharding = Literal["", "flat", "each"]
SLOW_DOWN = 0.19
"""How much longer kernels take beside a collective of NCCL, of the time beside.

18.9 % in the mean over models of 4 A100, H100, MI250 and MI210 (arXiv 2507.03114, abstract): it
takes multiprocessors and memory bandwidth from them, and power.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What sets a framework apart, where a step's time is concerned.

    Parameters
    ----------
    name
        As ``--framework`` spells it.
    launch
        Time (s) of the host for a kernel: Python, dispatch, autograd and the launch itself.
    exchange
        Time (s) of the host for a collective or a message.
    measured
        Whether kernels take what tables of measured ones say, at clocks under load; else a roofline
        times them.
    overlaps_gradients
        Whether replicas reduce gradients behind the backward pass; else after it.
    overlaps_weights
        Whether new weights of ZeRO-1 and 2 are gathered behind the next forward pass.
    overlaps_input_gradients
        Whether weight gradients are computed while tensor ranks reduce the input's gradient.
    overlaps_tensor_exchanges
        Whether tensor ranks exchange activations in pieces, behind the matrix product that makes or
        reads them.
    waits_for_messages
        Whether the host waits until a message between stages has come.
    accumulates_apart
        Whether a micro-batch's weight gradients are added to the step's by a kernel of their own,
        not by the matrix product.
    sharding
        How sharded weights and gradients are laid out: ``flat``, all of a block as one parameter
        (PyTorch's first FSDP), ``each``, every parameter by itself (FSDP2), or "", by nothing that
        copies them.
    flash
        Which kernels of fused attention: ``flash``, the best for the accelerator (cuDNN's,
        FlashAttention-3), ``flash2``, those of FlashAttention-2, or ``flash1``, of the first.
    fused
        Whether element-wise kernels are fused, where a run does not say.
    slow_down
        How much longer kernels take beside a collective, of the time beside.
    captured
        Whether what the host launches was captured before (CUDA graphs, or a compiled program): it
        then costs nothing.
    """

    name: str
    launch: float = 0.0
    exchange: float = 0.0
    measured: bool = True
    overlaps_gradients: bool = True
    overlaps_weights: bool = False
    overlaps_input_gradients: bool = True
    overlaps_tensor_exchanges: bool = False
    waits_for_messages: bool = False
    accumulates_apart: bool = True
    sharding: Sharding = ""
    flash: Flash = "flash"
    fused: bool = True
    slow_down: float = SLOW_DOWN
    captured: bool = False


NONE = "none"
EAGER_LAUNCH, EAGER_EXCHANGE = 12e-6, 30e-6
"""Host of eager PyTorch, with its Python around it (s): for a kernel, for a collective or message.

An assumption: steps that were measured wait for the device, and do not show it.
"""

_KNOWN = (
    Framework(name=NONE, measured=False, accumulates_apart=False, slow_down=0.0),
    Framework(
        name="megatron",
        launch=EAGER_LAUNCH,
        exchange=EAGER_EXCHANGE,
        overlaps_gradients=False,
        overlaps_input_gradients=False,
        waits_for_messages=True,
    ),
    Framework(
        name="deepspeed",
        launch=52e-6,  # fitted, with the next, to vTrain's steps on one node
        exchange=45e-6,
        overlaps_gradients=False,
        overlaps_input_gradients=False,
        waits_for_messages=True,
    ),
    Framework(
        name="nemo",
        launch=EAGER_LAUNCH,
        exchange=EAGER_EXCHANGE,
        overlaps_weights=True,
        overlaps_tensor_exchanges=True,
        accumulates_apart=False,
    ),
    Framework(
        name="fsdp2",
        launch=EAGER_LAUNCH,
        exchange=EAGER_EXCHANGE,
        overlaps_input_gradients=False,
        accumulates_apart=False,
        sharding="each",
        flash="flash2",
    ),
    Framework(
        name="composer",
        launch=EAGER_LAUNCH,
        exchange=EAGER_EXCHANGE,
        overlaps_input_gradients=False,
        sharding="flat",
        flash="flash1",
        fused=False,
    ),
    Framework(
        name="maxtext", measured=False, captured=True, accumulates_apart=False, slow_down=0.0
    ),
    Framework(
        name="vllm",
        launch=EAGER_LAUNCH,
        exchange=EAGER_EXCHANGE,
        captured=True,
        accumulates_apart=False,
    ),
)
FRAMEWORKS: Mapping[str, Framework] = {one.name: one for one in _KNOWN}
"""Frameworks by name; ``none`` is the neutral baseline, a roofline and no host."""


def framework(name: str) -> Framework:
    """Return a framework by its name.

    Examples
    --------
    >>> framework("nemo").overlaps_gradients
    True
    """
    if name not in FRAMEWORKS:
        raise WorkloadError(f"framework {one_of(name, FRAMEWORKS)}")
    return FRAMEWORKS[name]
