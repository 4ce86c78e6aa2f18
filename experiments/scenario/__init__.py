"""A question ready to be simulated: resources to double, what-ifs as text, faults, replicas."""
