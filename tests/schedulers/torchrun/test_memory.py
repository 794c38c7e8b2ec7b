"""What a supervisor keeps on disk."""

from pathlib import Path

import pytest

from schedulers.adapter import SchedulerError
from schedulers.torchrun.memory import Memory


def test_a_memory_that_is_damaged_or_in_use_starts_nothing(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "torchrun")
    with pytest.raises(SchedulerError, match="Another supervisor 'torchrun' runs"):
        Memory(tmp_path, "torchrun")
    memory.close()
    memory.path.write_bytes(b'{"schema": "torchrun/1", "marks": [{"comm')
    with pytest.raises(SchedulerError, match="is damaged, so nobody knows"):
        Memory(tmp_path, "torchrun")
