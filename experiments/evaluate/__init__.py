"""Many scenarios in parallel; deployments that serve: SLO, clients, routers, scaling, caches."""
