"""Measured collectives beside the checkout: which rows are compared with the model."""

from pathlib import Path

import pandas as pd

TABLE = Path(__file__).parents[1] / ".." / "shared" / "reference" / "measured_collectives.csv"
CLUSTERS = {
    "dgx-a100": "dgx-a100",
    "hgx-h100": "hgx-h100",
    "hgx-h200": "hgx-h200",
    "hgx-h100-ndr": "hgx-h100",
    "alps-gh200": "gh200-alps",
    "polaris": "polaris",
    "a100-4gpu-mesh": "a100-mesh-4",
    "hgx-b300": "hgx-b300",
    "rtx-pro-6000-pcie-8": "rtx-pro-6000-pcie-8",
}
"""The catalogue's name of each measured system."""
MOST_PEERS = 256
"""All-to-alls of more ranks are left out: a million transfers a size, and minutes in all."""
NOT_NCCL = "custom|digitised|forced|NVLS_ENABLE=0|all_reduce_bench"


def load_rows(path: Path) -> pd.DataFrame:
    """Read the rows of systems that the catalogue has, NCCL's own choices only."""
    table = pd.read_csv(path)
    table = table[table.system.isin(CLUSTERS) & (table.size_bytes > 0)]
    table = table[~table.setting.fillna("").str.contains(NOT_NCCL)]
    return table[(table.collective != "all_to_all") | (table.gpus <= MOST_PEERS)]
