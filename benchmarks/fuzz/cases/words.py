"""Words of the command line that ask for more than a machine has, or for nothing sound."""

from collections.abc import Iterator

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER, OSU, SAMPLE


def words() -> Iterator[Case]:
    """Words of the command line that ask for more than a machine has, or for nothing sound."""
    huge = "9" * 5000
    for spec in (
        "ring:10000",
        "ring:100000",
        "ring:1000000",
        "ring:9999999",
        "torus:64x64x64",
        "torus:128x128x128",
        "mesh:2000x2000",
        "fat_tree:128",
        "fat_tree:1000",
        "dragonfly:999x99x99",
        "hypercube:20",
        "switch:1000000",
        "fully_connected:3000",
        "leaf_spine:1000x1000x10",
        f"ring:{huge}",
        "ring:0",
        "ring:1",
        "ring:-1",
        "torus:" + "x".join(["2"] * 40),
        "ring:٣",
        "torus:0x4",
        "rail:1000x8x1000",
    ):
        for command in (
            ("topology", spec),
            ("topology", f"{spec}, 50 GB/s, 1 us"),
            (
                "collective",
                "all_reduce",
                "-c",
                f"{spec}, 50 GB/s, 1 us",
                "-n",
                "4",
                "--sizes",
                "1MiB",
            ),
            ("topology", spec, "--throughput", "uniform"),
        ):
            yield Case(f"spec {spec[:30]}", command, {})
    for quantities in (
        "0 GB/s, 1 us",
        "1e-320 B/s, 1 us",
        "50 GB/s, 1e300 s",
        "1e300 GB/s, 1 us",
        "-1 GB/s, 1 us",
        "nan GB/s, 1 us",
        "50 GB/s, -1 us",
        f"{huge} B/s, 1 us",
        "50 GB/s, 1e-300 s",
        "1 B/s, 1 s",
        "1e-9 B/s, 0 s",
    ):
        yield Case(
            f"cables {quantities[:30]}",
            (
                "collective",
                "all_reduce",
                "-c",
                f"torus:2x2, {quantities}",
                "-n",
                "4",
                "--sizes",
                "1MiB",
            ),
            {},
        )
        yield Case(
            f"cables {quantities[:30]}", ("utility", SAMPLE, "-c", f"ring:4, {quantities}"), {}
        )
        yield Case(f"cables {quantities[:30]}", ("topology", f"torus:2x2, {quantities}"), {})
    for sizes in (
        "1e30",
        "1e308 B",
        "0 B",
        "-1 B",
        f"{huge}B",
        "1B..1e300B",
        "1KiB..1000000TiB",
        "nan",
        "1 B",
        "1e-320 B",
        ",".join(["1MiB"] * 5000),
        "1B..1PB",
    ):
        yield Case(
            f"sizes {sizes[:20]}",
            ("collective", "all_reduce", *CLUSTER, "-n", "8", "--sizes", sizes),
            {},
        )
    for ranks in ("1000000000", "9223372036854775808", huge, "100000", "0", "4000000"):
        yield Case(
            f"ranks {ranks[:20]}",
            ("collective", "all_reduce", *CLUSTER, "-n", ranks, "--sizes", "1MiB"),
            {},
        )
        yield Case(
            f"ranks of a log {ranks[:20]}",
            ("calibrate", "--logs", "o.log", *CLUSTER, "--ranks", ranks),
            {"o.log": OSU},
        )
        yield Case(
            f"ranks of a bill {ranks[:20]}", ("clusters", "dgx-a100", "--bill", "-n", ranks), {}
        )
        yield Case(
            f"ranks of links {ranks[:20]}", ("clusters", "dgx-a100", "--links", "-n", ranks), {}
        )
    for change in (
        "scale_up.bandwidth x1e308",
        "scale_up.bandwidth x0",
        "scale_up.bandwidth x-1",
        "compute xnan",
        "rank 9223372036854775808 compute x2",
        f"rank {huge} compute x2",
        "rank 0-999999999 compute x2",
        "*" * 5000 + " x0.5",
        "*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b x0.5",
        "fuse " + "*?" * 2000,
        "replicas x1000000000",
        "replicas x1e9",
        "scale_up.size x1000000000",
        "all_reduce bytes x1e300",
        "gaps x1e300",
        "compute x1e-320",
        "scale_up.latency x1e300",
        "\x1b]0;x\x07 x2",
        "rank 0 host x" + "9" * 400,
        "[" * 3000 + " x2",
        "(" * 3000 + " x2",
        "replicas x100000",
        "+".join(["compute x2"] * 900),
    ):
        for command in (
            ("what-if", SAMPLE, *CLUSTER, change),
            ("utility", SAMPLE, *CLUSTER, "--what-if", change),
        ):
            yield Case(f"what-if {change[:30]}", command, {})
    yield Case(
        "900 what-ifs",
        ("what-if", SAMPLE, *CLUSTER, *[f"compute x{1 + n / 1000}" for n in range(900)]),
        {},
    )
    yield Case(
        "100 stacked what-ifs",
        (
            "utility",
            SAMPLE,
            *CLUSTER,
            *[
                w
                for n in range(100)
                for w in ("--what-if", f"rank {n % 4} compute x{1 + n / 1000}")
            ],
        ),
        {},
    )
    for factor in ("1e308", "0", "-1", "nan", "1e-320", "inf", "1e30"):
        yield Case(f"factor {factor}", ("utility", SAMPLE, *CLUSTER, "--factor", factor), {})
        yield Case(
            f"factors {factor}",
            ("sweep", SAMPLE, *CLUSTER, "-r", "scale_up.bandwidth", "--factors", f"1,{factor}"),
            {},
        )
    yield Case(
        "a million factors",
        (
            "sweep",
            SAMPLE,
            *CLUSTER,
            "-r",
            "scale_up.bandwidth",
            "--factors",
            ",".join(["2"] * 50_000),
        ),
        {},
    )
    for option in (
        ("--tp", "1000000000"),
        ("--layers", huge),
        ("--micro-batch", "1000000000"),
        ("--sequence", "1000000000"),
        ("--global-batch", "1000000000"),
        ("--dp", "1000000"),
        ("--dp", "100000"),
        ("--pp", "1000000"),
        ("--sequence", "9223372036854775808"),
        ("--launch", "1e300 s"),
        ("--compute-efficiency", "1e-320"),
        ("--memory-efficiency", "nan"),
        ("--expert-imbalance", "zipf:1e308"),
        ("--slow-down", "1e308"),
    ):
        yield Case(
            f"generate {option[0]} {option[1][:20]}",
            ("generate", "llama-3.1-8b", *CLUSTER, *option),
            {},
        )
    for option in (
        ("--rate", "1e308/s"),
        ("--rate", "1e-320/s"),
        ("--rate", "0/s"),
        ("--concurrency", "1000000000"),
        ("--input", "1000000000"),
        ("--output-tokens", "1000000000"),
        ("--requests-count", "1000000000"),
        ("--requests-count", "3000000"),
        ("--tp", "1000000000"),
        ("--max-tokens", "1"),
        ("--blocks", "1"),
        ("--seeds", "1000000000"),
        ("--rate", "1/s", "--slo", "ttft 1e300 s"),
        ("--rate", "nan"),
    ):
        rate = () if option[0] in ("--rate", "--concurrency") else ("--rate", "1/s")
        yield Case(
            f"serving {option}"[:60],
            ("serving", "llama-3.1-8b", "-c", "hgx-h100", *rate, *option),
            {},
        )
    for placement in ("packed", "random"):
        yield Case(
            "copies",
            ("share", f"{SAMPLE}x1000000000", SAMPLE, "-c", "dgx-a100", "--placement", placement),
            {},
        )
    for limit in (
        "memory",
        "memory=" + huge,
        "memory=1",
        "depth=0",
        "items=0",
        "file=10",
        "ratio=0",
    ):
        yield Case(f"limit {limit[:20]}", ("inspect", SAMPLE, "--limit", limit), {})
