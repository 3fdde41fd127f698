from io import BytesIO

import pytest

from benchmarks.study.plot_style import make_figure


@pytest.fixture(scope="session")
def fonts() -> None:
    """Draw a text before the leak check of a test: matplotlib keeps font files open from the first text on."""
    figure, [axes] = make_figure()
    axes.set_title("words")
    figure.savefig(BytesIO())
