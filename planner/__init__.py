"""The 0-1 program, solvers, schedule, ordering, layout and verification; knows no torch and no operators."""
