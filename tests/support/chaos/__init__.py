"""Mixed load on a server of real processes, random faults, and checks of every answer: `make chaos` and `make soak`.

`request_mix` draws what is sent and `fault_plan` what is broken, both from one seed. `load` sends, `answers` reads and
judges, `faults` breaks, `watch` measures processes, `report` sums up, `__main__` is the command line.
"""
