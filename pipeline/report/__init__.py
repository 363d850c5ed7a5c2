"""Result documents → a page that people read."""

from pipeline.report.page import render_report

__all__ = ["render_report"]
