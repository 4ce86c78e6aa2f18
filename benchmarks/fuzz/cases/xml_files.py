"""Encodings, document types, depth and numbers of formats that are XML."""

from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER, GRAPHML


def xml_files() -> Iterator[Case]:
    """Encodings, document types and depth in every format that is XML."""
    from helpers.node_drawings import Box, dgx_a100

    graph = ("topology", "a.graphml")
    node = ("clusters", "--from-file", "a.graphml", "--links")
    forced = (
        "collective",
        "all_gather",
        *CLUSTER,
        "-n",
        "2",
        "--sizes",
        "1MiB",
        "--algorithm",
        "a.xml",
    )
    bodies = {graph: GRAPHML.partition(b"\n")[2].decode(), node: dgx_a100(), forced: "<algo/>"}
    encodings = (
        "no-such",
        "utf-7",
        "idna",
        "zip",
        "rot13",
        "base64",
        "hex",
        "unicode_escape",
        "cp932",
        "utf-32",
        "punycode",
        "undefined",
        "UTF-16",
        "ascii",
        "mbcs",
        "x" * 999,
    )
    for command, body in bodies.items():
        name = command[-1] if command[-1].startswith("a.") else "a.graphml"
        for encoding in encodings:
            head = f'<?xml version="1.0" encoding="{encoding}"?>'
            yield Case(f"XML: encoding {encoding[:20]}", command, {name: (head + body).encode()})
        bomb = (
            '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
            + "".join(f'<!ENTITY a{n} "{f"&a{n - 1 or str()};" * 10}">' for n in range(1, 12))
            + "]>"
        )
        yield Case("XML: entities", command, {name: (bomb + "<a>&a11;</a>").encode()})
        yield Case(
            "XML: a file as entity",
            command,
            {name: b'<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><a>&a;</a>'},
        )
        yield Case(
            "XML: attributes",
            command,
            {name: ("<system " + " ".join(f'a{n}="1"' for n in range(60_000)) + "/>").encode()},
        )
    box = Box()
    deep = "<pci busid='a' class='0x060400' link_speed='8 GT/s' link_width='16'>" * 5000
    yield Case(
        "XML: 5,000 nested pci",
        node,
        {
            "a.graphml": f"<system><cpu numaid='0' {box.cpu}>{deep}{box.gpu()}{'</pci>' * 5000}</cpu></system>".encode()
        },
    )
    wide = "".join(box.gpu() for _ in range(600))
    yield Case(
        "XML: 600 GPUs",
        node,
        {"a.graphml": f"<system><cpu numaid='0' {box.cpu}>{wide}</cpu></system>".encode()},
    )
    switched = Box()
    wide = "".join(
        switched.gpu('<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>')
        + switched.nic()
        for _ in range(600)
    )
    for command in (
        node,
        (*node[:-1], "--bill"),
        ("clusters", "--from-file", "a.graphml", "-o", "json"),
    ):
        yield Case(
            "XML: 600 GPUs on a switch",
            command,
            {"a.graphml": f"<system><cpu numaid='0' {switched.cpu}>{wide}</cpu></system>".encode()},
        )
    for count in ("0", "-1", "1000000000", "9" * 5000, "1.5", "", "-0", "٣"):
        links = f'<nvlink target="fffffff:ffff:ff" count="{count}" tclass="0x068000"/>'
        few = Box()
        text = few.system(few.gpu(links) + few.gpu(links) + few.nic())
        yield Case(f"XML: {count[:9]} links", node, {"a.graphml": text.encode()})
    for speed in ("0", "-1", "9" * 400, "1e9", "1e300", "10000000000000", "nan"):
        few = Box(net=speed)
        text = few.system(few.gpu() + few.gpu() + few.nic())
        yield Case(f"XML: net speed {speed[:9]}", node, {"a.graphml": text.encode()})
    for lanes in ("0", "-1", "1000000000", "9" * 5000):
        few = Box()
        text = few.system(few.gpu(width=lanes) + few.gpu() + few.nic())
        yield Case(f"XML: {lanes[:9]} lanes", node, {"a.graphml": text.encode()})
    for speed in (
        "0 GT/s",
        "1e9 GT/s",
        "9" * 400 + " GT/s",
        "1.2.3 GT/s",
        ". GT/s",
        "999999999 GT/s",
    ):
        few = Box(speed=speed)
        text = few.system(few.gpu() + few.gpu() + few.nic())
        yield Case(f"XML: PCIe at {speed[:9]}", node, {"a.graphml": text.encode()})
