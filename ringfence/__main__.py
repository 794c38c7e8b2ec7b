"""``python -m ringfence``: how the supervisor starts the parts, whatever is on PATH."""

from ringfence.cli import main

main()
