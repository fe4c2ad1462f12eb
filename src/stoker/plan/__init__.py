"""What a loader would make of a data set, found out without one: footers, a look at some rows, one column."""
