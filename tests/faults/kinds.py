"""All kinds of faults, by name."""

from faults import calls, disks, files, fuzz, kills, lines, ranks, threads, together

_ALL = (
    *(kills.KIND, ranks.KIND, disks.KIND, files.KIND, fuzz.KIND, calls.KIND, lines.KIND),
    *(together.KIND, together.SWEEPS, threads.KIND),
)
SMALL = (kills.SMALL, files.SMALL, fuzz.KIND, calls.KIND, threads.KIND)
KINDS = {kind.name: kind for kind in _ALL}
