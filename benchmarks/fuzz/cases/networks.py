"""Clusters, graphs, matrices and infrastructures with numbers of no sense."""

import json
from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER_YAML, GRAPH, GRAPHML, INFRA, SAMPLE, SMI


def networks() -> Iterator[Case]:
    """Clusters, graphs, matrices and infrastructures with numbers of no sense."""
    for count in (
        "NV0",
        "NV" + "9" * 5000,
        "NV1000000000",
        "NV-1",
        "NV",
        "NV٣",
        "NV00000012",
        "NV12.5",
    ):
        data = SMI.replace(b"NV12", count.encode())
        yield Case(
            f"smi: {count[:12]}",
            ("clusters", "--from-file", "s.txt", "--like", "dgx-a100", "--links"),
            {"s.txt": data},
        )
    gpus = [f"GPU{n}" for n in range(600)]
    matrix = (
        "\t"
        + "\t".join(gpus)
        + "\n"
        + "".join(
            name + "\t" + "\t".join("X" if name == other else "SYS" for other in gpus) + "\n"
            for name in gpus
        )
    )
    yield Case(
        "smi: 600 GPUs",
        ("clusters", "--from-file", "s.txt", "--like", "dgx-a100", "--links"),
        {"s.txt": matrix.encode()},
    )
    for number in (
        "1000000000",
        "0",
        "-1",
        "1e9",
        "9" * 400,
        "true",
        "2.5",
        "'2'",
        "100000000000000000000",
        "10000000",
    ):
        for part in ("count: 2}", "count: 1}"):
            data = INFRA.replace(part.encode(), f"count: {number}}}".encode())
            yield Case(
                f"InfraGraph: {part[:8]} {number[:12]}",
                ("clusters", "--from-file", "i.yaml", "--like", "dgx-a100"),
                {"i.yaml": data},
            )
    nested = INFRA.replace(b"choice: switch, count: 1", b"choice: device, count: 1").replace(
        b"name: sw", b"name: server"
    )
    yield Case(
        "InfraGraph: a cycle",
        ("clusters", "--from-file", "i.yaml", "--like", "dgx-a100"),
        {"i.yaml": nested},
    )
    levels = (
        "name: box\ndevices:\n"
        + "".join(
            f"- name: d{n}\n  components:\n  - {{name: d{n + 1}, choice: device, count: 10}}\n  edges: []\n"
            for n in range(9)
        )
        + "- name: d9\n  components:\n  - {name: xpu, choice: xpu, count: 10}\n  edges: []\ninstances:\n- {name: h, device: d0, count: 1}\n"
    )
    yield Case(
        "InfraGraph: ten levels of ten",
        ("clusters", "--from-file", "i.yaml", "--like", "dgx-a100"),
        {"i.yaml": levels.encode()},
    )
    for bandwidth in (
        "1e-320 B/s",
        "1e300 GB/s",
        "0 GB/s",
        "-5 GB/s",
        "1e30 B/s",
        "nan GB/s",
        "9" * 400 + " GB/s",
        "1 B/s",
    ):
        data = CLUSTER_YAML.replace(b"200 GB/s", bandwidth.encode())
        for command in (
            ("utility", SAMPLE, "-c", "c.yaml"),
            ("clusters", "c.yaml"),
            ("collective", "all_reduce", "-c", "c.yaml", "-n", "8", "--sizes", "1MiB"),
        ):
            yield Case(f"cluster: {bandwidth[:12]}", command, {"c.yaml": data})
        data = GRAPH.replace(b"50 GB/s", bandwidth.encode())
        yield Case(f"graph: {bandwidth[:12]}", ("topology", "g.json"), {"g.json": data})
        yield Case(
            f"graph: {bandwidth[:12]}",
            ("collective", "all_reduce", "-c", "g.json", "-n", "2", "--sizes", "1MiB"),
            {"g.json": data},
        )
    for latency in ("1e300 s", "1e12 s", "-1 us", "1e-320 s", "nan us", "1000000000000000000000 s"):
        data = CLUSTER_YAML.replace(b"0.7 us", latency.encode())
        yield Case(
            f"cluster: {latency[:12]}", ("utility", SAMPLE, "-c", "c.yaml"), {"c.yaml": data}
        )
        data = GRAPH.replace(b"1 us", latency.encode())
        yield Case(
            f"graph: {latency[:12]}",
            ("collective", "all_reduce", "-c", "g.json", "-n", "2", "--sizes", "1MiB"),
            {"g.json": data},
        )
    for field, value in (
        ("nodes: 8", "nodes: 1000000000"),
        ("size: 4", "size: 1000000000"),
        ("nics_per_node: 2", "nics_per_node: 1000000000"),
        ("ranks_per_node: 4", "ranks_per_node: 1000000000"),
        ("nodes: 8", "nodes: 10000000000000000000000"),
        ("topology: switch, nics", "topology: ring, nics"),
        ("efficiency: 0.8", "efficiency: 1e-320"),
        ("efficiency: 0.8", "efficiency: nan"),
        ("peak: {bf16: 312 TFLOP/s}", "peak: {bf16: 1e-300 FLOP/s}"),
        ("memory_bandwidth: 2 TB/s", "memory_bandwidth: 1e-320 B/s"),
        ("nodes: 8", "nodes: .inf"),
        ("nodes: 8", "nodes: 8.5"),
    ):
        data = CLUSTER_YAML.replace(field.encode(), value.encode())
        for command in (
            ("utility", SAMPLE, "-c", "c.yaml"),
            ("clusters", "c.yaml", "--links"),
            ("clusters", "c.yaml", "--bill"),
            ("collective", "all_reduce", "-c", "c.yaml", "-n", "4", "--sizes", "1MiB"),
        ):
            yield Case(f"cluster: {value[:40]}", command, {"c.yaml": data})
    nodes = [{"id": n, "rank": n} for n in range(3000)]
    ring = [
        {"source": n, "target": (n + 1) % 3000, "bandwidth": "1 GB/s", "latency": "1 us"}
        for n in range(3000)
    ]
    big = json.dumps({"nodes": nodes, "edges": ring}).encode()
    yield Case("graph: 3,000 ranks in a ring", ("topology", "g.json"), {"g.json": big})
    for node in (
        {"id": [[[1]]], "rank": 0},
        {"id": None, "rank": 0},
        {"id": 1e400, "rank": 0},
        {"id": {"a": 1}, "rank": 0},
        {"id": 1, "rank": 2**63},
        {"id": 1, "rank": -1},
        {"id": 1, "rank": 1e300},
        {"id": [1, [2]] * 999, "rank": 0},
    ):
        graph = json.dumps(
            {
                "nodes": [node, {"id": "b", "rank": 1}],
                "edges": [{"source": "b", "target": "b", "bandwidth": "1 GB/s", "latency": "1 us"}],
            }
        )
        yield Case(
            f"graph: node {str(node)[:40]}", ("topology", "g.json"), {"g.json": graph.encode()}
        )
    keys = GRAPHML.replace(b'attr.type="int"', b'attr.type="%s"')
    for kind in ("double", "boolean", "nothing", "long", "float", "string", ""):
        yield Case(
            f"GraphML: type {kind}", ("topology", "g.graphml"), {"g.graphml": keys % kind.encode()}
        )
    for rank in ("1e999", "9" * 5000, "-1", "x", "2147483648", ""):
        yield Case(
            f"GraphML: rank {rank[:12]}",
            ("topology", "g.graphml"),
            {"g.graphml": GRAPHML.replace(b'"r">1<', b'"r">' + rank.encode() + b"<")},
        )
