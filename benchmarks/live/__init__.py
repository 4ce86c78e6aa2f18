"""Real what-ifs: trainings run on a network that is set, predicted, and run again on others."""
