"""Of a normal distribution: how many standard deviations either side of its mean hold how much."""

WITHIN_90 = 1.645
WITHIN_95 = 1.96
