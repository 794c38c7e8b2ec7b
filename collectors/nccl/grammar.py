"""What one line of a training log says: a cheap sieve first, then the shapes of each layer."""

from collectors.nccl.launcher import LAUNCHER_SHAPES, PYTHON_SHAPES
from collectors.nccl.library import NCCL_SHAPES
from collectors.nccl.prefix import Prefixed
from collectors.nccl.rendezvous import RENDEZVOUS_SHAPES
from collectors.nccl.setup import SETUP_SHAPES, VERSION_SHAPE, tells
from collectors.nccl.shape import Fields, first_match
from collectors.nccl.watchdog import WATCHDOG_SHAPES

__all__ = ["classify", "relevant"]

_OTHERS = (
    *WATCHDOG_SHAPES,
    *RENDEZVOUS_SHAPES,
    *LAUNCHER_SHAPES,
    *NCCL_SHAPES,
    VERSION_SHAPE,
    *PYTHON_SHAPES,
)

#: Indented this far and without a prefix, a line is source code inside a Python traceback.
_SOURCE_CODE = "    "


def relevant(text: str) -> bool:
    """Whether a line can mean anything to us; false for nearly all that training prints.

    Written out, since this is asked of every line of every rank: a loop or a regular expression
    over the same words takes twice as long, and over bytes instead of text ten times.
    """
    return (
        "rror" in text
        or ("NCCL " in text and tells(text))
        or "ProcessGroup" in text
        or "onnect" in text
        or "ail" in text
        or "ollective" in text
        or "Traceback" in text
        or "xception" in text
        or "CUDA_ERR" in text
        or "GPU is lost" in text
        or "exitcode" in text
        or "return code" in text
        or "signal" in text
        or "torchelastic" in text
        or "endezvous" in text
        or "srun" in text
        or "ubprocess" in text
        or "worker group" in text
        or "nterrupt" in text
        or ("raining " in text and (" finished" in text or " done" in text or " complete" in text))
        or "Trainer.fit" in text
        or ("checkpoint" in text and ("aving " in text or "aved " in text))
        or "[Torch] Sav" in text
        or "MISMATCH" in text
        or "INCOMPLETE" in text
        or "DEAD" in text
        or "imed out" in text
        or "SIGKILL" in text
    )


def classify(line: Prefixed) -> Fields | None:
    """The fields of a line, or None when it says nothing that matters here."""
    if line.level == "INFO" and (fields := first_match(SETUP_SHAPES, line)) is not None:
        return fields
    if line.level is not None:
        return first_match(NCCL_SHAPES, line)
    prefixed = line.c10d or line.elastic
    if not prefixed and line.message.startswith(_SOURCE_CODE):
        return None
    return first_match(_OTHERS, line)
