"""The doctor's page: one self-contained HTML file for whoever decides and whoever digs.

    DoctorResult ─► page ──► sections   tables and words, plain HTML
                      └────► charts_*   matplotlib figures ─► svg (colours of the page, no ids that clash)

No script, no request to anywhere. Charts need matplotlib, the extra `report`; it is imported on use.
"""

from stoker.doctor.report.page import check_report, report_html, write_report

__all__ = ["check_report", "report_html", "write_report"]
