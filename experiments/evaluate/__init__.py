"""Many scenarios in parallel; deployments that serve: KV blocks, SLO, clients, routers, scaling."""
