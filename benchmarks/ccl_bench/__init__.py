"""Rows that CCL-Bench publishes beside what this project answers for them."""
