"""What a killed broker of three and a killed worker cost: runs the chaos tests, prints the figures.

``python bench/brokers.py`` takes about six minutes on two cores; ``--rounds`` adds the chaos rounds
(twenty minutes, root for some). It exits 1 when a test failed: then a command was lost or doubled.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
_WITHIN_S = 3600


def main(arguments: list[str] | None = None) -> int:
    """Run them and print one line of JSON a test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", action="store_true", help="the chaos rounds too")
    given = parser.parse_args(arguments)
    files = ["test_three_brokers.py", "test_resume.py"]
    files += ["test_rounds.py"] if given.rounds else []
    with tempfile.TemporaryDirectory(prefix="ringfence-bench-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
        command += [str(ROOT / "tests" / "chaos" / name) for name in files]
        done = subprocess.run(command, cwd=ROOT, check=False, timeout=_WITHIN_S)
        for case in ET.parse(report).getroot().iter("testcase"):
            told = {one.get("name"): one.get("value") for one in case.iter("property")}
            failed = case.find("failure") is not None or case.find("error") is not None
            print(json.dumps({"test": case.get("name"), "failed": failed} | told), flush=True)
    return 0 if done.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
