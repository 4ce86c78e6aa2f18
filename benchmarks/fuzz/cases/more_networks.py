"""Clusters and networks: values of no sense in each."""

import json
from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER_YAML, GRAPH, GRAPHML, INFRA, SAMPLE, SMI, changed


def more_networks() -> Iterator[Case]:
    """Yield them all."""
    yield from _clusters()
    yield from _networks()


def _clusters() -> Iterator[Case]:
    commands = (
        ("utility", SAMPLE, "-c", "c.yaml"),
        ("clusters", "c.yaml", "--bill"),
        ("collective", "all_reduce", "-c", "c.yaml", "-n", "8", "--sizes", "1MiB"),
    )
    for old, new in (
        ("nics_per_node: 2", "nics_per_node: -2"),
        ("nics_per_node: 2", "nics_per_node: 3"),
        ("nics_per_node: 2", "nics_per_node: 0"),
        ("nodes: 8", "nodes: 0"),
        ("nodes: 8", "nodes: true"),
        ("nodes: 8", "nodes: 0x10"),
        ("nodes: 8", "nodes: 1_000"),
        ("nodes: 8", "nodes: 010"),
        ("nodes: 8", "nodes: 1:30"),
        ("nodes: 8", "nodes: 2020-01-01"),
        ("size: 4", "size: 3"),
        ("size: 4", "size: 5"),
        ("efficiency: 0.8", "efficiency: 1.5"),
        ("efficiency: 0.8", "efficiency: 0"),
        ("efficiency: 0.8", "efficiency: 1e-9"),
        ("200 GB/s", "200 GB"),
        ("200 GB/s", "200"),
        ("200 GB/s", "[200 GB/s]"),
        ("200 GB/s", "200e GB/s"),
        ("200 GB/s", "2e2e2 GB/s"),
        ("200 GB/s", "٢٠٠ GB/s"),
        ("200 GB/s", "200 GB/s/s"),
        ("200 GB/s", "200 gb/S"),
        ("0.7 us", "0.7"),
        ("0.7 us", "0.7 m"),
        ("0.7 us", "-0.0 us"),
        ("0.7 us", "1 year"),
        ("0.7 us", "3000000000 s"),
        ("topology: switch, size", "topology: torus, dimensions: [0, 4], size"),
        ("topology: switch, size", "topology: torus, dimensions: [100000, 100000], size"),
        ("topology: switch, nics", "topology: leaf_spine, leaves: 1000000, spines: 1000000, nics"),
        ("topology: switch, nics", "topology: fat_tree, ports: 3, nics"),
        ("topology: switch, nics", "topology: fat_tree, ports: 100000, nics"),
        ("topology: switch, nics", "topology: dragonfly, groups: 1000000, nics"),
        ("topology: switch, nics", "topology: rail, nodes_per_pod: 0, spines: 0, nics"),
        ("topology: switch, nics", "topology: no_such, nics"),
        ("topology: switch, nics", "topology: {a: 1}, nics"),
        ("peak: {bf16: 312 TFLOP/s}", "peak: {no_such: 312 TFLOP/s}"),
        ("peak: {bf16: 312 TFLOP/s}", "peak: {bf16: 1e300 TFLOP/s}"),
        ("peak: {bf16: 312 TFLOP/s}", "peak: {bf16: 1 FLOP/s}"),
        ("peak: {bf16: 312 TFLOP/s}", "peak: {bf16: 312 TFLOP/s}, memory: 1 B"),
        ("memory_bandwidth: 2 TB/s", "memory_bandwidth: 1e300 TB/s"),
        ("memory_bandwidth: 2 TB/s", "memory_bandwidth: 1 B/s"),
        ("name: own-2x4", 'name: "\\e]0;x\\a"'),
        ("name: own-2x4", "name: " + "x" * 100_000),
        ("name: own-2x4", "name: [a]"),
        ("name: own-2x4", "name: own\nname: twice"),
        ("library: {name: none}", "library: {name: nccl, version: 99.99.99}"),
        ("library: {name: none}", "library: {name: nccl, version: 2" + "9" * 400 + ".1}"),
        ("library: {name: none}", "library: {name: nccl, channels: 1000000000}"),
        ("library: {name: none}", "library: {name: nccl, p2p: NOPE}"),
        ("library: {name: none}", "library: {name: no_such}"),
        (
            "library: {name: none}",
            "library: {name: none}\nlink_factors: {scale_up: {overhead: 1e300}}",
        ),
        ("library: {name: none}", "library: {name: none}\ncollective_overhead: 1e9 s"),
        ("library: {name: none}", "library: {name: none}\nprice: {a: 1}"),
        ("library: {name: none}", "library: {name: none}\nprices: {accelerator: -5 USD}"),
        ("library: {name: none}", "library: {name: none}\nprices: {accelerator: 1e300}"),
        ("library: {name: none}", "library: {name: none}\npower: {accelerator: 1e300 W}"),
        ("library: {name: none}", "library: {name: none}\npower: {accelerator: -700 W}"),
        ("library: {name: none}", "library: {name: none}\nnode_kinds: {a: {nodes: 1000000000}}"),
        ("library: {name: none}", "library: !!python/object/apply:os.system [id]"),
        ("library: {name: none}", "library: &a {name: none, x: *a}"),
        ("library: {name: none}", "<<: {name: none}"),
        ("library: {name: none}", "? [a, b]\n: c"),
        ("library: {name: none}", "library: {name: none}\n---\nname: second"),
        ("library: {name: none}", "library: {name: none}\n\tx: 1"),
        ("library: {name: none}", "library: " + "[" * 3000),
        ("library: {name: none}", "library: |\n" + "  x\n" * 50_000),
        ("library: {name: none}", "".join(f"k{n}: 1\n" for n in range(30_000))),
        ("scale_up: {topology: switch", "scale_up: {topology: graph, file: c.yaml"),
        ("scale_up: {topology: switch", "scale_up: {topology: graph, file: /etc/passwd"),
        ("scale_up: {topology: switch", "scale_up: {topology: graph, file: /dev/zero"),
    ):
        data = changed(CLUSTER_YAML, old, new)
        for words in commands:
            yield Case(f"cluster: {new[:50]}", words, {"c.yaml": data})


def _networks() -> Iterator[Case]:
    graph = ("collective", "all_reduce", "-c", "g.json", "-n", "2", "--sizes", "1MiB")
    sound = json.loads(GRAPH)
    for label, change in {
        "directed, one way": {"directed": True},
        "no edge": {"edges": []},
        "edge to nobody": {
            "edges": [{"source": 0, "target": 99, "bandwidth": "1 GB/s", "latency": "1 us"}]
        },
        "edges nested": {"edges": [[[]]]},
        "ranks twice": {"nodes": [{"id": 0, "rank": 0}, {"id": 1, "rank": 0}, {"id": "s"}]},
        "ranks with a gap": {"nodes": [{"id": 0, "rank": 0}, {"id": 1, "rank": 5}, {"id": "s"}]},
        "rank true": {"nodes": [{"id": 0, "rank": False}, {"id": 1, "rank": True}, {"id": "s"}]},
        "rank text": {"nodes": [{"id": 0, "rank": "0"}, {"id": 1, "rank": "1"}, {"id": "s"}]},
        "links as links": {"links": sound["edges"], "edges": None},
        "nodes a number": {"nodes": 5},
        "parallel": {
            "multigraph": True,
            "edges": [{**edge, "key": 10**30} for edge in sound["edges"]] * 500,
        },
        "resource of 90,000": {
            "edges": [{**edge, "resource": "x" * 90_000} for edge in sound["edges"]]
        },
        "resource a list": {"edges": [{**edge, "resource": ["a"]} for edge in sound["edges"]]},
        "bandwidth a number": {"edges": [{**edge, "bandwidth": 1e9} for edge in sound["edges"]]},
        "bandwidth null": {"edges": [{**edge, "bandwidth": None} for edge in sound["edges"]]},
        "latency a list": {"edges": [{**edge, "latency": [1]} for edge in sound["edges"]]},
        "apart": {"edges": sound["edges"][:1]},
        "20,000 vertices in a line": {
            "nodes": [{"id": n, **({"rank": n} if n < 2 else {})} for n in range(20_000)],
            "edges": [
                {"source": n, "target": n + 1, "bandwidth": "1 GB/s", "latency": "1 us"}
                for n in range(19_999)
            ],
        },
    }.items():
        data = json.dumps({**sound, **change}).encode()
        for words in (
            ("topology", "g.json"),
            graph,
            ("topology", "g.json", "--throughput", "uniform"),
        ):
            yield Case(f"graph: {label}", words, {"g.json": data})
    for label, old, new in (
        ("no key", b'<data key="r">0', b'<data key="zz">0'),
        ("a port", b'<node id="s"/>', b'<node id="s"><port name="p"/></node>'),
        (
            "a hyperedge",
            b'<node id="s"/>',
            b'<node id="s"/><hyperedge><endpoint node="a"/></hyperedge>',
        ),
        (
            "a nested graph",
            b'<node id="s"/>',
            b'<node id="s"><graph edgedefault="directed"/></node>',
        ),
        ("edge to nobody", b'target="s"', b'target="zz"'),
        ("edgedefault", b'edgedefault="undirected"', b'edgedefault="no_such"'),
        ("two graphs", b"</graph>", b'</graph><graph edgedefault="undirected"/>'),
        ("no name space", b' xmlns="http://graphml.graphdrawing.org/xmlns"', b""),
        ("a processing instruction", b"<graph ", b'<?php system("id") ?><graph '),
        ("a default of no sense", b"/>\n<key", b"><default>x</default></key>\n<key"),
        ("CDATA", b"50 GB/s", b"<![CDATA[50 GB/s]]>"),
        ("an entity", b"50 GB/s", b"&#x35;0 GB/s"),
        ("an unknown entity", b"50 GB/s", b"&zz; GB/s"),
    ):
        data = GRAPHML.replace(old, new)
        yield Case(f"GraphML: {label}", ("topology", "g.graphml"), {"g.graphml": data})
        yield Case(
            f"GraphML: {label}",
            ("collective", "all_reduce", "-c", "g.graphml", "-n", "2", "--sizes", "1MiB"),
            {"g.graphml": data},
        )
    smi = ("clusters", "--from-file", "s.txt", "--like", "dgx-a100", "--links")
    for label, data in {
        "one way": SMI.replace(b"NV12", b"NV4", 1),
        "a row of nobody": SMI + b"GPU9\tNV12\n",
        "a row twice": SMI + SMI.splitlines(keepends=True)[1],
        "a word of no sense": SMI.replace(b"PXB", b"ZZZ"),
        "a long word": SMI.replace(b"PXB", b"P" * 50_000),
        "no GPU": b"\tNIC0\nNIC0\t X \n",
        "GPU of 5,000 digits": SMI.replace(b"GPU1", b"GPU" + b"9" * 5000),
        "colours": b"\x1b[4m" * 9999 + SMI,
        "affinity 0-999999999": SMI.replace(b"0-31", b"0-999999999"),
        "affinity of digits": SMI.replace(b"0-31", b"9" * 5000),
        "numa of no sense": SMI.replace(b"\t0\n", b"\tN/A\n"),
        "numa of 5,000 digits": SMI.replace(b"\t0\n", b"\t" + b"9" * 5000 + b"\n"),
        "a legend of NIC0": SMI + b"\nNIC Legend:\n\n  NIC0: " + b"m" * 90_000 + b"\n",
        "windows": SMI.replace(b"\n", b"\r\n"),
        "blanks for tabs": SMI.replace(b"\t", b" "),
    }.items():
        yield Case(f"smi: {label}", smi, {"s.txt": data})
    from helpers.node_drawings import dgx_a100

    node = dgx_a100()
    for label, old, new in (
        ("rank twice", 'rank="1"', 'rank="0"'),
        ("dev of 5,000 digits", 'dev="1"', f'dev="{"9" * 5000}"'),
        ("sm 0", 'sm="80"', 'sm="0"'),
        ("sm text", 'sm="80"', 'sm="x"'),
        ("class text", 'class="0x', 'class="zz'),
        ("busid of no sense", 'busid="0000', 'busid="zzzz'),
        ("busid long", 'busid="0000', f'busid="{"0" * 50_000}'),
        ("numaid of no sense", 'numaid="0"', 'numaid="-99999999999999999999"'),
        ("width text", 'link_width="16"', 'link_width="x"'),
        ("speed text", "GT/s", "furlongs"),
        ("count 1.5", 'count="', 'count="1.5'),
        ("no speed", "link_speed", "link_spoed"),
        ("version", 'version="1"', f'version="{"9" * 999}"'),
        ("another root", "<system", "<graphs"),
        ("tclass", "tclass=", "tclas="),
        ("target itself", "<nvlink target=", '<nvlink target="0000:07:00.0" target2='),
    ):
        text = node.replace(old, new)
        for words in (
            ("clusters", "--from-file", "n.xml", "--links"),
            ("clusters", "--from-file", "n.xml", "--like", "dgx-a100", "--bill"),
        ):
            yield Case(f"NCCL XML: {label}", words, {"n.xml": text.encode()})
    infra = ("clusters", "--from-file", "i.yaml", "--like", "dgx-a100", "--links")
    for label, old, new in (
        ("a component of nobody", b"component: xpu}", b"component: zzz}"),
        ("a link of nobody", b"link: NVLink}", b"link: zzz}"),
        ("a scheme of no sense", b"many2many", b"all2none"),
        ("a slice of nobody", b"component: xpu}", b'component: "xpu[0:999999999]"}'),
        ("a slice backwards", b"component: xpu}", b'component: "xpu[5:1]"}'),
        ("a slice of digits", b"component: xpu}", b'component: "xpu[' + b"9" * 5000 + b']"}'),
        ("a slice with a step of 0", b"component: xpu}", b'component: "xpu[0:2:0]"}'),
        ("a bandwidth of 0", b"gigabytes_per_second: 100}", b"gigabytes_per_second: 0}"),
        ("a bandwidth of -1", b"gigabytes_per_second: 100}", b"gigabytes_per_second: -1}"),
        ("a bandwidth of 1e300", b"gigabytes_per_second: 100}", b"gigabytes_per_second: 1e300}"),
        ("a bandwidth of nan", b"gigabytes_per_second: 100}", b"gigabytes_per_second: .nan}"),
        ("a bandwidth of text", b"gigabytes_per_second: 100}", b"gigabytes_per_second: x}"),
        ("another choice", b"choice: gigabytes_per_second", b"choice: parsecs"),
        ("devices twice", b"instances:", b"- name: server\n  components: []\ninstances:"),
        ("instances of nobody", b"device: server", b"device: zzz"),
        ("instances many", b"device: server, count: 1", b"device: server, count: 900000"),
        ("no instance", b"- {name: host, device: server, count: 1}", b"[]"),
        ("10,000 components", b"count: 2}", b"count: 10000}"),
        ("an alias", b"name: box", b"name: &a box\nx: *a"),
    ):
        yield Case(f"InfraGraph: {label}", infra, {"i.yaml": INFRA.replace(old, new)})
