from io import BytesIO

import pytest

from benchmarks.study.looks import sheet


@pytest.fixture(scope="session")
def fonts() -> None:
    """Their files stay open from the first text that is drawn."""
    drawing, [axes] = sheet()
    axes.set_title("words")
    drawing.savefig(BytesIO())
