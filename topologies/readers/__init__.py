"""Readers of nodes and clusters in the formats of other tools: NCCL, nvidia-smi, InfraGraph."""
