"""How a framework runs a step: what it fuses, what it overlaps, and its host time.

A framework is a few facts from its source code (does it reduce gradients during the backward pass?)
and its host times. No cost depends on a model; which costs were fitted to which measurements is in
``docs/background/generated-steps.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from simulator.support.errors import WorkloadError
from simulator.support.names import one_of

Flash = Literal["flash", "flash1", "flash2"]
Sharding = Literal["", "flat", "each"]
SLOW_DOWN = 0.19
"""Slowdown of kernels beside a collective of NCCL, as a fraction of the time they overlap.

18.9 % in the mean over models of 4 A100, H100, MI250 and MI210 (arXiv 2507.03114, abstract): it
takes multiprocessors and memory bandwidth from them, and power.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Properties of a framework that affect the time of a step.

    Parameters
    ----------
    name
        As in ``--framework``.
    launch
        Host time (s) per kernel: Python, dispatch, autograd and the launch itself.
    exchange
        Host time (s) per collective or message.
    measured
        Whether kernels are timed by tables of measured ones, at clocks under load; else by a
        roofline.
    overlaps_gradients
        Whether replicas reduce gradients during the backward pass; else after it.
    overlaps_weights
        Whether new weights of ZeRO-1 and 2 are gathered during the next forward pass.
    overlaps_input_gradients
        Whether weight gradients are computed while tensor ranks reduce the input's gradient.
    overlaps_tensor_exchanges
        Whether tensor ranks exchange activations in pieces, during the matrix product that makes or
        reads them.
    waits_for_messages
        Whether the host blocks until a message between stages has arrived.
    accumulates_apart
        Whether a separate kernel adds a micro-batch's weight gradients to those of the step, not
        the matrix product.
    sharding
        Layout of sharded weights and gradients: ``flat``, all of a block as one parameter
        (PyTorch's first FSDP), ``each``, every parameter by itself (FSDP2), or "", any that needs
        no copies.
    flash
        Kernels of fused attention: ``flash``, the best for the accelerator (cuDNN's,
        FlashAttention-3), ``flash2``, those of FlashAttention-2, or ``flash1``, of the first.
    fused
        Whether element-wise kernels are fused, unless a run specifies it.
    slow_down
        Slowdown of kernels beside a collective, as a fraction of the time they overlap.
    captured
        Whether launches were captured before (CUDA graphs, or a compiled program) and so take no
        host time.
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
"""Host time of eager PyTorch with its Python (s): for a kernel, for a collective or message.

An assumption: the measured steps are limited by the device and do not show it.
"""

_eager = partial(Framework, launch=EAGER_LAUNCH, exchange=EAGER_EXCHANGE)
_serial = partial(
    _eager, overlaps_gradients=False, overlaps_input_gradients=False, waits_for_messages=True
)
_KNOWN = (
    Framework(name=NONE, measured=False, accumulates_apart=False, slow_down=0.0),
    _serial(name="megatron"),
    # Both of its host's times were fitted together to vTrain's steps on one node.
    _serial(name="deepspeed", launch=52e-6, exchange=45e-6),
    _eager(
        name="nemo", overlaps_weights=True, overlaps_tensor_exchanges=True, accumulates_apart=False
    ),
    _eager(
        name="fsdp2",
        overlaps_input_gradients=False,
        accumulates_apart=False,
        sharding="each",
        flash="flash2",
    ),
    _eager(
        name="composer",
        overlaps_input_gradients=False,
        sharding="flat",
        flash="flash1",
        fused=False,
    ),
    Framework(
        name="maxtext", measured=False, captured=True, accumulates_apart=False, slow_down=0.0
    ),
    _eager(name="vllm", captured=True, accumulates_apart=False),
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
