"""Record a small sharded training with JAX on the devices of one CPU, as JAX profiles itself.

    python record_jax_cpu.py OUT_DIR

writes ``OUT_DIR/host.xplane.pb.gz``. It needs JAX (CPU), which the project itself neither needs
nor imports.

Four devices are a mesh of 2 x 2: weights are sharded over ``data`` (gathered before use, their
gradients reduced and scattered) and over ``model`` (partial products summed); a ring passes
activations on. So each step has all-gathers, reduce-scatters, all-reduces and a permute, over
groups of both axes, whose sizes follow from the constants below.
"""

import argparse
import gzip
import os
import tempfile
from pathlib import Path
from typing import Any

DATA, MODEL = 2, 2
LAYERS = 3
WIDTH, HIDDEN = 384, 768
BATCH = 96
"""Rows per device along ``data``."""
WARM_UP_STEPS = 3
RECORDED_STEPS = 4
_HOST_NAMES = 4
"""Field of ``XSpace`` that names the machine."""


def main() -> None:
    """Read the command line, train, write the profile."""
    parser = argparse.ArgumentParser(description="Record a sharded JAX training on the CPU.")
    parser.add_argument("directory", type=Path, help="where the profile is written")
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DATA * MODEL}"
    with tempfile.TemporaryDirectory() as scratch:
        record(scratch)
        raw = next(Path(scratch).rglob("*.xplane.pb")).read_bytes()
    packed = gzip.compress(without(raw, _HOST_NAMES), mtime=0)
    (directory / "host.xplane.pb.gz").write_bytes(packed)


def record(directory: str) -> None:
    """Train; profile the last steps."""
    import jax

    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    step, weights, inputs = training()
    for _ in range(WARM_UP_STEPS):
        weights, loss = step(weights, inputs)
    jax.block_until_ready(weights)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(directory, profiler_options=options):
        for number in range(RECORDED_STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                weights, loss = step(weights, inputs)
                jax.block_until_ready((weights, loss))


def training() -> tuple[Any, Any, Any]:
    """Make the training step, the weights and a batch, sharded over the mesh."""
    import jax
    from jax import lax
    from jax import numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((DATA, MODEL), ("data", "model"))
    into = PartitionSpec("data", "model")
    out_of = PartitionSpec("model", "data")
    rows = PartitionSpec("data", None)
    shards = [(into, out_of)] * LAYERS

    def loss_of(weights: Any, inputs: Any) -> Any:
        states = inputs
        for sharded_up, sharded_down in weights:
            up = lax.all_gather(sharded_up, "data", axis=0, tiled=True)
            down = lax.all_gather(sharded_down, "data", axis=1, tiled=True)
            hidden = jax.nn.relu(states @ up)
            states = states + lax.psum(hidden @ down, "model")
        passed_on = lax.ppermute(states, "data", [(i, (i + 1) % DATA) for i in range(DATA)])
        return jnp.mean((states - 0.5 * passed_on) ** 2)

    def local_step(weights: Any, inputs: Any) -> tuple[Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs)
        moved = jax.tree.map(lambda one, slope: one - 1e-3 * slope, weights, gradients)
        return moved, lax.pmean(loss, ("data", "model"))

    step = jax.jit(
        jax.shard_map(
            local_step,
            mesh=mesh,
            in_specs=(shards, rows),
            out_specs=(shards, PartitionSpec()),
            check_vma=False,
        )
    )
    keys = jax.random.split(jax.random.PRNGKey(0), 2 * LAYERS + 1)

    def place(key: Any, shape: tuple[int, int], spec: Any) -> Any:
        values = 0.02 * jax.random.normal(key, shape)
        return jax.device_put(values, NamedSharding(mesh, spec))

    weights = [
        (
            place(keys[2 * layer], (WIDTH, HIDDEN), into),
            place(keys[2 * layer + 1], (HIDDEN, WIDTH), out_of),
        )
        for layer in range(LAYERS)
    ]
    return step, weights, place(keys[-1], (BATCH * DATA, WIDTH), rows)


def without(message: bytes, field: int) -> bytes:
    """Leave a field of a protobuf message out; all fields of ``XSpace`` have a length."""
    kept, place = [], 0
    while place < len(message):
        tag, after = _varint(message, place)
        length, begin = _varint(message, after)
        end = begin + length
        if tag >> 3 != field:
            kept.append(message[place:end])
        place = end
    return b"".join(kept)


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return value, place


if __name__ == "__main__":
    main()
