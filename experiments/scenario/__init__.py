"""A question ready to be simulated, its resources, and what-ifs written as text."""
