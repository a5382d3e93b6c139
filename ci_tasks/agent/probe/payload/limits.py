"""How much the probe writes, and names that those who read it know too."""

MAX_FILES = 2000  # of a run; further processes are counted
MAX_BYTES = 1 << 18  # of a process, without what a suite's hooks note
MAX_HOOKS = 1 << 22  # bytes of a process for these: some 500 steps with 100 metrics each
RESERVED = 1 << 15  # of these for the end mark
RESERVED_FOR_UNCAUGHT = 1 << 16  # and for exceptions that nobody caught
MAX_EXCEPTIONS = 20  # of a process, for each place where they are seen
MAX_FRAMES = 50  # of an exception, from both ends
MAX_LINKED = 16  # exceptions that one is caused by, or made of
MAX_TEXT = 4000
MAX_MODULES = 50  # from outside of the interpreter, which nobody asked for
MAX_COMPILED = 200  # files of an installed package that an overlay's tree lacks
MAX_SOURCE = 1 << 22  # bytes of a source file that a line is read from
MAX_FIELDS = 1 << 16  # bytes of what a hook notes at once
COUNT = "count"  # a byte for each process
PACKAGES = "packages-"
OVERLAID = "overlaid-"  # a file for each package that some process has noted
OFF = "CI_TASKS_NO_PROBE"  # set for processes that are the agent's own
