"""All kinds of faults, by name."""

from faults import calls, files, kills, lines

KINDS = {kind.name: kind for kind in (kills.KIND, files.KIND, calls.KIND, lines.KIND)}
