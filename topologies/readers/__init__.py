"""What other tools draw of a node or a cluster: NCCL's dumps, nvidia-smi's matrix, InfraGraph."""
