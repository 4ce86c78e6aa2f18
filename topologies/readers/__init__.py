"""Readers of nodes and clusters that other tools describe: NCCL, nvidia-smi, InfraGraph."""
