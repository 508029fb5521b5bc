"""A first hour on a GPU: what no machine without one can say, by one command, in one report.

Each part runs in a process of its own with a limit, so that one that fails, hangs or brings the
device down leaves the others alone. On a CPU the same parts run against stand-ins.
"""
