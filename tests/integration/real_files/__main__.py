"""Write the tables of docs/reference/real-files.md anew."""

import sys

from tests.integration.real_files.page import PAGE, SHARED, TABLES, answers_now, with_answers


def main() -> str | None:
    """Return what is wrong, None where the page is written."""
    if not SHARED.is_dir():
        return f"there is no {SHARED} with the files of others"
    tables = {table: answers_now(table) for table in TABLES}
    failed = [answer for table in tables.values() for answer in table.values() if not answer[0].islower()]
    if failed:
        return "\n\n".join(["some files are not answered as they must be:", *failed])
    PAGE.write_text(with_answers(PAGE.read_text(), tables))
    return None


if __name__ == "__main__":
    sys.exit(main())
