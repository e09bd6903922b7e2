"""All kinds of faults, by name."""

from faults import calls, disks, files, kills, lines

KINDS = {kind.name: kind for kind in (kills.KIND, disks.KIND, files.KIND, calls.KIND, lines.KIND)}
