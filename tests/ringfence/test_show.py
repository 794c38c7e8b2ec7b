import io

from rich.console import Console

from ringfence import show

UUID = "GPU-77aa0c1e-5b0f-4d5b-9f59-0f8c7b6f1e22"


def test_rows_for_another_program_are_tab_separated_and_whole() -> None:
    out = io.StringIO()
    show.table(Console(file=out, width=40), ["host", "uuid"], [["n1", UUID], [None, "[a]\tb"]])
    assert out.getvalue() == f"host\tuuid\nn1\t{UUID}\n\t[a] b\n"


def test_rows_on_a_terminal_are_folded_and_not_cut() -> None:
    out = io.StringIO()
    console = Console(file=out, width=30, force_terminal=True, color_system=None)
    show.table(console, ["host", "uuid"], [["n1", UUID]])
    shown = out.getvalue()
    assert "…" not in shown
    cells = [line.split("│")[2].strip() for line in shown.splitlines() if line.startswith("│")]
    assert "".join(cells) == UUID
