"""The doctor's page: one self-contained HTML file for whoever decides and whoever digs.

    DoctorResult ─► page ──► charts   bars and lanes that the style sheet draws: they fit any width, light, dark, paper
                       └──► markup   words and tables

No script, no font, no request to anywhere.
"""

from stoker.doctor.report.page import check_report, report_html, write_report

__all__ = ["check_report", "report_html", "write_report"]
