"""What Stoker answers to each file of others, checked against a slow second reading by pyarrow.

    oracle.py     what a column's values should be, one Python object at a time
    answers.py    load a file; where it is refused, load what can be loaded of it
    page.py       docs/reference/real-files.md: its tables, read and written
    child.py      the same in a process of its own, with little memory and little time
    damage.py     sound files with bytes flipped, zeroed, cut off

`python -m tests.integration.real_files` writes the tables of docs/reference/real-files.md anew.
"""
