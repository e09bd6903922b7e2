"""Self-contained HTML pages: one style, charts drawn by the reader's browser, eigenvalues."""

from statemix.pages.chart import ACCURACY, Axis, Chart, Figure, Point, Series
from statemix.pages.document import make_document, note, section, show_figure

__all__ = [
    "ACCURACY",
    "Axis",
    "Chart",
    "Figure",
    "Point",
    "Series",
    "make_document",
    "note",
    "section",
    "show_figure",
]
