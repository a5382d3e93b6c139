"""The probe: writes down what this Python process is, what it imports, and how it fails. ci-tasks puts it into the
interpreters of a run, where a `.pth` file loads it; nothing here may change what the program does.

`evidence` joins these modules into one file, ci_tasks_probe.py: to import them one by one would cost each process more,
and in a container, where each file is mounted, a mount more. At start-up it imports built-in modules only, since a
program's own `types.py` must not meet another import order than without it. Python 3.8 to 3.14.
"""

MODULES = ("notes", "probe")  # the second uses the first
